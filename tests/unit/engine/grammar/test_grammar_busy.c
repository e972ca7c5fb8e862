/* P1: an answer whose grammar another thread has locked for long is the same answer, with the same
 * work. The waits that fail are made: two functions of locks are wrapped. */
#include "tests/unit/test.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/grammar/grammar.h"
#include "engine/run/vocab_mask.h"
#include "engine/text/tokenizer/tokenizer.h"

#define N_STEPS 60u
#define SLICE 1000u

static struct tokenizer *tokenizer;
static struct grammar_vocab *vocab;
static uint32_t n_vocab, eos;
static bool is_busy; /* nobody gets a lock soon */

int __real_pthread_mutex_trylock(pthread_mutex_t *m);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *m);
int __real_pthread_mutex_timedlock(pthread_mutex_t *m, const struct timespec *until);
int __wrap_pthread_mutex_timedlock(pthread_mutex_t *m, const struct timespec *until);

int __wrap_pthread_mutex_trylock(pthread_mutex_t *m)
{
    return is_busy ? EBUSY : __real_pthread_mutex_trylock(m);
}

int __wrap_pthread_mutex_timedlock(pthread_mutex_t *m, const struct timespec *until)
{
    return is_busy ? ETIMEDOUT : __real_pthread_mutex_timedlock(m, until);
}

static int open_vocab(void **state)
{
    (void)state;
    assert_ok(tokenizer_load(&tokenizer, TARN_SOURCE_DIR "/deploy/demo-model", NULL));
    n_vocab = tokenizer_n_vocab(tokenizer);
    eos = tokenizer_eos(tokenizer);
    assert_ok(grammar_vocab_create(&vocab, tokenizer, n_vocab));
    return 0;
}

static int close_vocab(void **state)
{
    (void)state;
    grammar_vocab_destroy(vocab);
    tokenizer_destroy(tokenizer);
    return 0;
}

static struct grammar *grammar_of(enum grammar_kind kind, const char *source)
{
    struct json *j = NULL;
    struct grammar *g;

    assert_ok(js_parse(&j, source, strlen(source), NULL));
    assert_ok(grammar_create(&g, vocab, kind, j, NULL));
    js_unref(j);
    return g;
}

static uint32_t pick(const uint32_t *mask, uint64_t seed, uint32_t step)
{
    uint32_t n = 0, at, id = 0;

    for (uint32_t i = 0; i < n_vocab; i++)
        n += vocab_mask_allows(mask, i);
    assert_true(n > 0);
    at = rng_u32(seed, step) % n;
    while (!vocab_mask_allows(mask, id) || at-- > 0)
        id++;
    return id;
}

/* The mask, as the engine gets it: where the lock is busy, a copy makes it and takes the place. */
static void get_mask(struct grammar_run *r, uint32_t *mask)
{
    enum status s;

    while ((s = grammar_run_try_mask(r, SLICE, &eos, 1, mask)) == ERR_BUSY) {
        struct grammar_run job;
        grammar_run_copy(&job, r);
        assert_ok(grammar_run_prepare(&job));
        grammar_run_fini(r);
        *r = job;
        is_busy = false;
    }
    assert_ok(s);
}

static void tokens_that_are_read_later_change_no_mask(void **state)
{
    static const char *const schemas[] = {
        "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}, \"size\": "
        "{\"enum\": [\"small\", \"large\"]}}, \"required\": [\"name\", \"size\"]}",
        "{\"type\": \"array\", \"items\": {\"type\": \"integer\"}}"};
    uint32_t n_words = vocab_mask_n_words(n_vocab), n_late = 0, id;
    uint32_t *plain = malloc(n_words * sizeof *plain), *late = malloc(n_words * sizeof *late);
    double chance;

    (void)state;
    for (uint64_t seed = 0; seed < 8; seed++) {
        struct grammar *g = grammar_of(GRAMMAR_JSON_SCHEMA, schemas[seed % 2]);
        struct grammar *other = grammar_of(GRAMMAR_JSON_SCHEMA, schemas[seed % 2]);
        struct grammar_run a, b;
        grammar_run_init(&a, g, false);
        grammar_run_init(&b, other, false);
        for (uint32_t i = 0; i < N_STEPS && !a.is_over; i++) {
            assert_ok(grammar_run_mask(&a, &eos, 1, plain));
            is_busy = rng_u32(seed + 100, i) % 2;
            get_mask(&b, late);
            assert_memory_equal(plain, late, n_words * sizeof *plain);
            assert_true(a.work == b.work && a.credit == b.credit && a.n_worked == b.n_worked);
            id = pick(plain, seed, i);
            assert_ok(grammar_run_feed(&a, &eos, 1, id));
            is_busy = rng_u32(seed + 200, i) % 2;
            assert_ok(grammar_run_feed(&b, &eos, 1, id));
            if (b.n_unread > 0) {
                n_late++;
                is_busy = false;
                assert_int_equal(grammar_run_forced(&b, &id, &chance, 1), 0);
            }
            is_busy = false;
        }
        grammar_run_fini(&a);
        grammar_run_fini(&b);
        grammar_unref(g);
        grammar_unref(other);
    }
    assert_true(n_late > 20);
    free(plain);
    free(late);
}

/* There is room for one token only. */
static void a_second_token_waits_for_the_lock(void **state)
{
    struct grammar *g = grammar_of(GRAMMAR_CHOICE, "[\"aba\"]");
    struct grammar_run r, copy;
    uint32_t a = tokenizer_find(tokenizer, "a", 1), b = tokenizer_find(tokenizer, "b", 1);

    (void)state;
    grammar_run_init(&r, g, true);
    is_busy = true;
    assert_ok(grammar_run_feed(&r, &eos, 1, a));
    assert_true(r.n_unread > 0);
    grammar_run_copy(&copy, &r);
    assert_ok(grammar_run_feed(&r, &eos, 1, b));
    assert_int_equal(r.n_unread, 0);
    /* The copy has a token of its own that is not read. */
    assert_int_equal(grammar_run_feed(&copy, &eos, 1, a), ERR_INVALID);
    is_busy = false;
    assert_ok(grammar_run_feed(&r, &eos, 1, a));
    grammar_run_fini(&r);
    grammar_run_fini(&copy);
    grammar_unref(g);
}

static void a_text_before_the_answer_may_be_read_later(void **state)
{
    uint32_t n_words = vocab_mask_n_words(n_vocab);
    uint32_t *plain = malloc(n_words * sizeof *plain), *late = malloc(n_words * sizeof *late);
    struct grammar *g = grammar_of(GRAMMAR_CHOICE, "[\"abc\", \"abd\", \"b\"]");
    struct grammar_run a, b, c;

    (void)state;
    grammar_run_init(&a, g, true);
    grammar_run_init(&b, g, true);
    grammar_run_init(&c, g, true);
    assert_ok(grammar_run_skip(&a, "ab"));
    is_busy = true;
    assert_ok(grammar_run_skip(&b, "ab"));
    assert_ok(grammar_run_skip(&c, "x"));
    assert_int_equal(b.n_unread, 2);
    is_busy = false;
    assert_ok(grammar_run_mask(&a, &eos, 1, plain));
    assert_ok(grammar_run_mask(&b, &eos, 1, late));
    assert_memory_equal(plain, late, n_words * sizeof *plain);
    assert_int_equal(grammar_run_mask(&c, &eos, 1, late), ERR_INVALID);
    grammar_run_fini(&a);
    grammar_run_fini(&b);
    grammar_run_fini(&c);
    grammar_unref(g);
    free(plain);
    free(late);
}

static void a_late_token_that_is_forbidden_is_an_error(void **state)
{
    struct grammar *g = grammar_of(GRAMMAR_CHOICE, "[\"a\"]");
    uint32_t *mask = malloc(vocab_mask_n_words(n_vocab) * sizeof *mask);
    struct grammar_run r;

    (void)state;
    grammar_run_init(&r, g, true);
    is_busy = true;
    assert_ok(grammar_run_feed(&r, &eos, 1, tokenizer_find(tokenizer, "b", 1)));
    is_busy = false;
    assert_int_equal(grammar_run_try_mask(&r, SLICE, &eos, 1, mask), ERR_INVALID);
    assert_int_equal(grammar_run_prepare(&r), ERR_INVALID);
    assert_int_equal(grammar_run_mask(&r, &eos, 1, mask), ERR_INVALID);
    grammar_run_fini(&r);
    grammar_unref(g);
    free(mask);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_that_are_read_later_change_no_mask),
        cmocka_unit_test(a_second_token_waits_for_the_lock),
        cmocka_unit_test(a_text_before_the_answer_may_be_read_later),
        cmocka_unit_test(a_late_token_that_is_forbidden_is_an_error),
    };
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
