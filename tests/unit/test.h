/* test.h - the headers that every cmocka test needs, in the order that cmocka.h demands. */
#ifndef TARN_TESTS_UNIT_TEST_H
#define TARN_TESTS_UNIT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define assert_ok(call) assert_int_equal((call), OK)

#endif
