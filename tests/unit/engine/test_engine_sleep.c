/* Sleep of the engine's parts where calls follow each other faster than a sleep: no step runs on a
 * cache that rests, and a sleep that was called off forgets nothing later. */
#include "tests/unit/test.h"

#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/engine_test.h"

#define WAIT_MAX_NS UINT64_C(240000000000) /* a guard against hanging */
#define N_VOCAB 300
#define N_PROMPT 40
#define N_OUT 700 /* a request of so many tokens outlives the calls beside it */
#define N_TRIES 20

static atomic_bool is_lent; /* blocks of the cache are lent: it cannot sleep yet */
static atomic_uint n_sleeps_tried, n_resets;

bool __real_cache_sleep(struct cache *c);
bool __wrap_cache_sleep(struct cache *c)
{
    atomic_fetch_add(&n_sleeps_tried, 1);
    return !atomic_load(&is_lent) && __real_cache_sleep(c);
}

void __real_cache_reset(struct cache *c);
void __wrap_cache_reset(struct cache *c)
{
    atomic_fetch_add(&n_resets, 1);
    __real_cache_reset(c);
}

static void open_engine(struct engine_test *t)
{
    struct engine_config c;

    engine_config_init(&c);
    c.n_threads = 1;
    c.max_num_seqs = 4;
    c.max_model_len = 800;
    c.kv_bytes = 1 << 20;
    c.check_each_step = true;
    engine_test_open(t, NULL, &c);
    atomic_store(&is_lent, false);
    atomic_store(&n_resets, 0);
}

static struct request *submit(struct engine_test *t)
{
    uint32_t ids[N_PROMPT];
    struct sampling sp;
    struct stopping st;

    for (uint32_t i = 0; i < N_PROMPT; i++)
        ids[i] = rng_u32(5, i) % N_VOCAB;
    engine_test_params(&sp, &st, N_OUT);
    sp.n_logprobs = 0;
    return engine_test_submit(t, ids, N_PROMPT, NULL, 0, &sp, &st);
}

static unsigned asleep(struct engine_test *t)
{
    struct engine_sleep_state s;

    engine_sleep_state(t->engine, &s);
    return s.asleep;
}

static void wait_for(struct engine_test *t, unsigned parts)
{
    uint64_t until = clock_now_ns() + WAIT_MAX_NS;

    while (asleep(t) != parts) {
        if (clock_now_ns() > until)
            fail_msg("parts %u sleep, not %u", asleep(t), parts);
        clock_sleep_ns(100000);
    }
}

static void sleep_parts(struct engine_test *t, unsigned parts, bool waits, bool forgets)
{
    const struct engine_sleep s = {.parts = parts, .waits = waits, .forgets = forgets};

    engine_sleep(t->engine, &s);
}

/* Whether the engine has tried so often to put the cache to sleep before the request ended. */
static bool is_tried(const struct request *r, uint32_t n)
{
    uint64_t until = clock_now_ns() + WAIT_MAX_NS;

    while (atomic_load(&n_sleeps_tried) < n) {
        if (request_finish(r) != FINISH_NONE)
            return false;
        if (clock_now_ns() > until)
            fail_msg("the cache was put to sleep %u times", atomic_load(&n_sleeps_tried));
        clock_sleep_ns(100000);
    }
    return true;
}

/* A request whose sequence rests because the cache is on its way to sleep. */
static struct request *rest(struct engine_test *t)
{
    for (int i = 0; i < N_TRIES; i++) {
        struct request *r = submit(t);
        atomic_store(&is_lent, true);
        atomic_store(&n_sleeps_tried, 0);
        while (request_n_out(r) == 0 && request_finish(r) == FINISH_NONE)
            clock_sleep_ns(10000);
        sleep_parts(t, ENGINE_KV, false, false);
        if (is_tried(r, 1))
            return r;
        engine_wake(t->engine, ENGINE_PARTS);
        request_unref(r);
    }
    fail_msg("all requests ended before the sleep began");
    return NULL;
}

/* A second call that waits for requests must not wait now: they cannot end on a cache at rest. */
static void no_step_runs_between_the_parts_of_a_sleep(void **state)
{
    static const unsigned parts[] = {ENGINE_KV, ENGINE_STEPS, ENGINE_WEIGHTS | ENGINE_KV};
    struct engine_test t;

    (void)state;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        open_engine(&t);
        struct request *r = rest(&t);
        uint32_t n_out = request_n_out(r);
        sleep_parts(&t, parts[i], true, false);
        assert_true(is_tried(r, atomic_load(&n_sleeps_tried) + 20));
        assert_int_equal(request_n_out(r), n_out);
        atomic_store(&is_lent, false);
        wait_for(&t, parts[i] | ENGINE_KV);
        assert_int_equal(request_n_out(r), n_out);
        engine_wake(t.engine, ENGINE_PARTS);
        engine_test_wait(r);
        assert_int_equal(request_n_out(r), N_OUT);
        request_unref(r);
        engine_test_close(&t);
    }
}

static void a_deep_sleep_that_was_called_off_forgets_nothing_later(void **state)
{
    enum finish_reason finish = FINISH_LENGTH;
    struct engine_sleep_state s;
    struct engine_test t;

    (void)state;
    open_engine(&t);
    for (int i = 0; finish != FINISH_NONE && i < N_TRIES; i++) {
        struct request *r = submit(&t);
        while (request_n_out(r) == 0)
            clock_sleep_ns(10000);
        atomic_store(&n_resets, 0);
        sleep_parts(&t, ENGINE_KV, true, true); /* waits for the request */
        engine_wake(t.engine, ENGINE_KV);
        finish = request_finish(r);
        engine_test_wait(r);
        request_unref(r);
        wait_for(&t, 0);
    }
    assert_int_equal(finish, FINISH_NONE); /* when the sleep was called off */
    sleep_parts(&t, ENGINE_KV, false, false);
    wait_for(&t, ENGINE_KV);
    engine_sleep_state(t.engine, &s);
    assert_true(!s.is_deep && atomic_load(&n_resets) == 0);
    /* The reverse: KV sleeps, so the call to forget it is done, however soon it wakes. */
    sleep_parts(&t, ENGINE_KV, false, true);
    engine_wake(t.engine, ENGINE_KV);
    wait_for(&t, 0);
    assert_int_equal(atomic_load(&n_resets), 1);
    engine_test_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_step_runs_between_the_parts_of_a_sleep),
        cmocka_unit_test(a_deep_sleep_that_was_called_off_forgets_nothing_later),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
