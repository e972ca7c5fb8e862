/* jinja_test.h - a template run with an arena, for unit tests of the lexer, parser and evaluator.
 *
 * Owns    the arena and the message; freed by jinja_test_close().
 * Thread  the test's.
 * Errors  end the test.
 * Units   none. */
#ifndef TARN_TESTS_JINJA_TEST_H
#define TARN_TESTS_JINJA_TEST_H

#include "tests/unit/test.h"

#include <stdio.h>
#include <string.h>

#include "engine/text/jinja/jinja_lexer.h"

struct jinja_test {
    struct arena arena;
    struct buf why;
    struct jinja_run run;
};

static inline void jinja_test_open(struct jinja_test *t)
{
    arena_init(&t->arena, (size_t)16 << 20);
    buf_init(&t->why, BUF_WHY_MAX);
    t->run = (struct jinja_run){
        .arena = &t->arena, .why = &t->why, .line = 1, .out_max_bytes = (size_t)1 << 20};
}

static inline void jinja_test_close(struct jinja_test *t)
{
    arena_fini(&t->arena);
    buf_fini(&t->why);
}

/* Check that the run failed with the status `expected` and with the message `words`, and name the
 * source if it did not. */
static inline void jinja_test_failed(const struct jinja_test *t, const char *source, enum status s,
                                     enum status expected, const char *words)
{
    if (s != expected || strcmp(buf_str(&t->why), words) != 0)
        fail_msg("%s\n  expected status %d: %s\n  got      status %d: %s", source, (int)expected,
                 words, (int)s, buf_str(&t->why));
}

#endif
