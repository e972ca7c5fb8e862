/* test.h - what every cmocka test includes, in the order that cmocka wants. */
#ifndef TARN_TESTS_UNIT_TEST_H
#define TARN_TESTS_UNIT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define assert_ok(call) assert_int_equal((call), OK)

#endif
