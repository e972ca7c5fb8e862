/* jinja_tests.h - the tests of jinja2, which follow `is`.
 *
 * Owns    nothing: a static table.
 * Thread  any.
 * Errors  ERR_INVALID for wrong arguments and for comparisons that Python refuses.
 * Units   none. */
#ifndef TARN_ENGINE_TEXT_JINJA_JINJA_TESTS_H
#define TARN_ENGINE_TEXT_JINJA_JINJA_TESTS_H

#include "engine/text/jinja/jinja_value.h"

struct jinja_test {
    const char *name;
    enum status (*check)(struct jinja_run *r, const struct jinja_value *in,
                         const struct jinja_args *args, bool *out);
};

/* NULL: there is no test of that name. */
const struct jinja_test *jinja_test_find(const char *name);

#endif
