/* Promise P2: nothing leaks. 10,000 random submit, cancel and finish events on a small pool. The
 * states of the blocks add up after each step that is checked, and at the end no block is in
 * use. Holds of random prompts and tenants stay within their bounds, and none is left once all are
 * released. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/engine_test.h"

#ifndef N_EVENTS /* sanitizer builds take fewer: see tests/property/CMakeLists.txt */
#define N_EVENTS 10000
#endif
#define N_LIVE 40
#define N_VOCAB 300
#define WAIT_MAX_NS UINT64_C(240000000000) /* a guard against hanging */

static void assert_adds_up(const struct cache_stats *all)
{
    const struct cache_tier_stats *c = &all->tier[CACHE_DEVICE];

    assert_int_equal(c->n_leaked, 0);
    assert_int_equal(c->n_free + c->n_cached + c->n_in_use + c->n_in_transfer, c->n_blocks);
}

static struct request *submit_random(struct engine_test *t, uint64_t e)
{
    static uint32_t ids[600];
    struct sampling sp;
    struct stopping st;
    uint32_t n = 1 + rng_u32(1, e) % 400, family = rng_u32(2, e) % 5, n_spans = 0, ends[2];

    for (uint32_t i = 0; i < n; i++) /* families share prefixes */
        ids[i] = rng_u32(family + 50, i) % N_VOCAB;
    if (n > 100 && e % 3 == 0) {
        ends[n_spans++] = 33;
        ends[n_spans++] = n;
    }
    engine_test_params(&sp, &st, e % 6 == 0 ? 0 : 1 + rng_u32(3, e) % 30); /* 0: prefill only */
    sp.n_logprobs = 0;
    sp.want_prompt_logprobs = e % 5 == 0;
    sp.temperature = e % 2 ? 1 : 0;
    sp.presence_penalty = e % 7 == 0 ? 0.5f : 0;
    return engine_test_submit(t, ids, n, ends, n_spans, &sp, &st);
}

static void random_events_leak_nothing(void **state)
{
    struct request *live[N_LIVE] = {0};
    uint32_t n_cancelled = 0, n_finished = 0, n_submitted = 0;
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;

    (void)state;
    engine_config_init(&c);
    c.max_num_seqs = 12;
    c.max_batched_tokens = 200;
    c.max_model_len = 500;
    c.kv_bytes = (uint64_t)60 * (2 * 2 * 2 * 12 * 32 * 2); /* 60 blocks, which is always too few */
    engine_test_open(&t, NULL, &c);
    for (uint64_t e = 0; e < N_EVENTS; e++) {
        uint32_t r = rng_u32(9, e), i = r % N_LIVE;
        if (!live[i]) {
            live[i] = submit_random(&t, e);
            n_submitted++;
        } else if ((r >> 10) % 8 == 0) {
            request_cancel(live[i]);
            request_unref(live[i]); /* the engine holds a reference of its own */
            live[i] = NULL;
            n_cancelled++;
        } else if ((r >> 14) % 4 == 0) { /* some requests finish, however slow the machine is */
            engine_test_wait(live[i]);
            assert_int_equal(request_finish(live[i]), FINISH_LENGTH);
            request_unref(live[i]);
            live[i] = NULL;
            n_finished++;
        }
        engine_stats(t.engine, &st);
        assert_adds_up(&st.cache);
    }
    for (uint32_t i = 0; i < N_LIVE; i++)
        if (live[i])
            request_cancel(live[i]);
    engine_test_idle(&t, &st);
    assert_adds_up(&st.cache);
    assert_int_equal(st.cache.tier[CACHE_DEVICE].n_in_use, 0);
    for (uint32_t i = 0; i < N_LIVE; i++)
        request_unref(live[i]);
    printf("%u submitted, %u cancelled, %u finished, %llu preemptions, %llu evictions\n",
           n_submitted, n_cancelled, n_finished, (unsigned long long)st.n_preemptions,
           (unsigned long long)st.cache.tier[CACHE_DEVICE].n_evicted);
    assert_true(n_finished > 100 && n_cancelled > 100);
    assert_true(st.n_preemptions > 0 && st.cache.tier[CACHE_DEVICE].n_evicted > 0);
    engine_test_close(&t);
}

#define BLOCK_BYTES (2u * 2 * 2 * 12 * 32 * 2) /* of the small Llama */
#define N_TENANTS 3u
#define N_FAMILIES 5u /* of prompts that share prefixes */

static uint64_t bound_of(uint64_t tenant)
{
    return tenant * 4 * BLOCK_BYTES;
}

/* Submit a prompt of a random tenant that is held to its end, to breaks, or not at all. */
static struct request *submit_held(struct engine_test *t, uint64_t e)
{
    static uint32_t ids[400];
    uint32_t n = 33 + rng_u32(21, e) % 300, family = rng_u32(22, e) % N_FAMILIES;
    uint32_t r = rng_u32(23, e);
    struct kv_scope scope = {{0}};
    struct sampling sp;
    struct stopping st;
    struct request *q;

    for (uint32_t i = 0; i < n; i++)
        ids[i] = rng_u32(family + 50, i) % N_VOCAB;
    scope.bytes[0] = (uint8_t)(1 + r % N_TENANTS); /* tenants share no KV */
    engine_test_params(&sp, &st, 1 + r / 8 % 20);
    sp.n_logprobs = 0;
    assert_ok(request_create(&q, t->engine, ids, n, NULL, 0, &scope, 0, &sp, &st, NULL));
    q->tenant = 1 + r % N_TENANTS;
    q->cache_bytes_max = bound_of(q->tenant);
    q->cache_ttl_s = r / 256 % 3 == 0 ? CACHE_TTL_FOREVER : r / 256 % 3;
    if (r / 1024 % 2) {
        q->breaks[0] = (struct request_break){n / 3, CACHE_TTL_FOREVER};
        q->breaks[1] = (struct request_break){n / 2, 1};
        q->n_breaks = 2;
    }
    assert_ok(engine_submit(t->engine, q, NULL));
    return q;
}

static void assert_bounded(const struct cache_stats *c)
{
    uint32_t n_blocks = 0;

    assert_adds_up(c);
    for (uint32_t i = 0; i < c->n_owners; i++) {
        assert_true(c->owners[i].n_blocks * (uint64_t)BLOCK_BYTES <= bound_of(c->owners[i].owner));
        n_blocks += c->owners[i].n_blocks;
    }
    assert_int_equal(n_blocks, c->n_held_blocks); /* no block has two owners here */
}

/* Keep the first key of each tenant's prompts: a release with it ends all its endless holds. */
static void release_all(struct engine_test *t, const struct kv_key *firsts, uint32_t n)
{
    uint32_t n_blocks;

    for (uint32_t i = 0; i < n; i++)
        assert_ok(engine_cache_release(t->engine, &firsts[i], &n_blocks));
}

static void random_holds_stay_in_their_bounds_and_none_is_left(void **state)
{
    static struct engine_cache_view view;
    struct kv_key firsts[N_TENANTS * N_FAMILIES];
    struct request *live[N_LIVE] = {0};
    uint32_t n_firsts = 0, n_held = 0, n_refused = 0;
    struct engine_config c;
    struct engine_test t;
    struct engine_stats st;

    (void)state;
    engine_config_init(&c);
    c.max_num_seqs = 12;
    c.max_batched_tokens = 200;
    c.max_model_len = 500;
    c.kv_bytes = (uint64_t)60 * BLOCK_BYTES;
    c.kv_host_bytes = (uint64_t)40 * BLOCK_BYTES;
    c.kv_hold_share = 0.5;
    c.check_each_step = true;
    engine_test_open(&t, NULL, &c);
    for (uint64_t e = 0; e < N_EVENTS / 5; e++) {
        uint32_t r = rng_u32(24, e), i = r % N_LIVE, k = 0;
        if (!live[i]) {
            live[i] = submit_held(&t, e);
            const struct kv_key *first = &live[i]->prompt.keys[0];
            while (k < n_firsts && memcmp(&firsts[k], first, sizeof *first) != 0)
                k++;
            if (k == n_firsts)
                firsts[n_firsts++] = *first;
        } else if ((r >> 10) % 4 == 0) {
            if ((r >> 12) % 4 == 0)
                request_cancel(live[i]);
            engine_test_wait(live[i]);
            n_held += live[i]->n_held > 0;
            n_refused += live[i]->hold_limit != CACHE_HOLD_NO_LIMIT;
            request_unref(live[i]);
            live[i] = NULL;
        } else if ((r >> 14) % 16 == 0 && n_firsts > 0) {
            release_all(&t, &firsts[r % n_firsts], 1);
        }
        engine_stats(t.engine, &st);
        assert_bounded(&st.cache);
    }
    for (uint32_t i = 0; i < N_LIVE; i++)
        if (live[i])
            engine_test_wait(live[i]);
    release_all(&t, firsts, n_firsts);
    for (uint64_t began = clock_now_ns();;) { /* the timed ones end after a second or two */
        assert_ok(engine_cache_view(t.engine, 0, &view));
        if (view.stats.n_holds == 0 || clock_now_ns() - began > WAIT_MAX_NS)
            break;
        clock_sleep_ns(20000000);
    }
    assert_true(view.stats.n_holds == 0 && view.stats.n_held_blocks == 0);
    assert_int_equal(view.stats.n_owners, 0);
    engine_test_idle(&t, &st);
    assert_adds_up(&st.cache);
    assert_int_equal(st.cache.tier[CACHE_DEVICE].n_in_use, 0);
    for (uint32_t i = 0; i < N_LIVE; i++)
        request_unref(live[i]);
    printf("%u requests held KV, %u of them less than asked\n", n_held, n_refused);
    assert_true(n_held > 20 && n_refused > 20);
    engine_test_close(&t);
}

static void a_cancelled_request_holds_nothing_after_the_next_step(void **state)
{
    struct engine_config c;
    struct engine_test t;
    struct engine_stats before, after;
    static uint32_t ids[7000];
    struct sampling sp;
    struct stopping stop;

    (void)state;
    engine_config_init(&c);
    c.max_batched_tokens = 64;
    engine_test_open(&t, NULL, &c);
    for (uint32_t i = 0; i < 7000; i++)
        ids[i] = i % N_VOCAB;
    engine_test_params(&sp, &stop, 500);
    struct request *r = engine_test_submit(&t, ids, 7000, NULL, 0, &sp, &stop);
    do { /* cancel in the middle of its prefill */
        engine_stats(t.engine, &before);
    } while (before.n_steps < 3);
    request_cancel(r);
    engine_test_wait(r);
    engine_stats(t.engine, &after);
    assert_int_equal(request_finish(r), FINISH_CANCELLED);
    engine_test_idle(&t, &after);
    assert_int_equal(after.cache.tier[CACHE_DEVICE].n_in_use, 0);
    assert_true(after.n_steps < 7000 / 64);
    request_unref(r);
    engine_test_close(&t);
}

static void a_full_queue_is_said_and_never_grows(void **state)
{
    struct engine_config c;
    struct engine_test t;
    struct request *r[64];
    bool is_in[64];
    uint32_t ids[40] = {0}, n_busy = 0, n_in = 0;
    struct kv_scope scope = {{0}};
    struct engine_stats st;
    struct sampling sp;
    struct stopping stop;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    engine_config_init(&c);
    c.max_num_seqs = 2;
    c.max_queued = 8;
    engine_test_open(&t, NULL, &c);
    engine_test_params(&sp, &stop, 400);
    for (int i = 0; i < 64; i++) {
        assert_ok(request_create(&r[i], t.engine, ids, 40, NULL, 0, &scope, 0, &sp, &stop, &why));
        enum status s = engine_submit(t.engine, r[i], &why);
        assert_true(s == OK || s == ERR_BUSY);
        is_in[i] = s == OK;
        n_busy += s == ERR_BUSY;
        n_in += s == OK;
    }
    assert_true(n_in >= 8 && n_busy > 0);
    engine_drain_begin(t.engine);
    assert_int_equal(engine_submit(t.engine, r[63], &why), ERR_UNAVAILABLE);
    for (int i = 0; i < 64; i++)
        request_cancel(r[i]);
    for (int i = 0; i < 64; i++) /* the statistics may be older than the last submission */
        if (is_in[i])
            engine_test_wait(r[i]);
    assert_true(engine_drained(t.engine));
    engine_test_idle(&t, &st);
    assert_int_equal(st.n_rejected, n_busy);
    for (int i = 0; i < 64; i++)
        request_unref(r[i]);
    engine_test_close(&t);
    buf_fini(&why);
}

static void requests_that_can_never_run_are_refused_at_once(void **state)
{
    struct engine_config c;
    struct engine_test t;
    uint32_t ids[200] = {0}, ends[150];
    struct kv_scope scope = {{0}};
    struct sampling sp;
    struct stopping stop;
    struct request *r;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    engine_config_init(&c);
    c.max_model_len = 300;
    c.kv_bytes = (uint64_t)16 * (2 * 2 * 2 * 12 * 32 * 2);
    engine_test_open(&t, NULL, &c);
    engine_test_params(&sp, &stop, 50);
    for (uint32_t i = 0; i < 150; i++) /* 150 spans of one token take 150 blocks */
        ends[i] = i + 1;
    assert_ok(request_create(&r, t.engine, ids, 200, ends, 150, &scope, 0, &sp, &stop, &why));
    assert_int_equal(engine_submit(t.engine, r, &why), ERR_TOO_LARGE);
    request_unref(r);
    ids[3] = 300;
    assert_int_equal(request_create(&r, t.engine, ids, 200, NULL, 0, &scope, 0, &sp, &stop, &why),
                     ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "token id 300"));
    assert_int_equal(request_create(&r, t.engine, ids, 0, NULL, 0, &scope, 0, &sp, &stop, &why),
                     ERR_INVALID);
    static uint32_t many[300];
    assert_int_equal(request_create(&r, t.engine, many, 300, NULL, 0, &scope, 0, &sp, &stop, &why),
                     ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "maximum context length is 300"));
    engine_test_close(&t);
    buf_fini(&why);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_events_leak_nothing),
        cmocka_unit_test(random_holds_stay_in_their_bounds_and_none_is_left),
        cmocka_unit_test(a_cancelled_request_holds_nothing_after_the_next_step),
        cmocka_unit_test(a_full_queue_is_said_and_never_grows),
        cmocka_unit_test(requests_that_can_never_run_are_refused_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
