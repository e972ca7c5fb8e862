/* The cache through the engine's interface: its view from another thread, holds of requests, and
 * the tiers in which prompts were found. */
#include "tests/unit/test.h"

#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/engine_test.h"

#define BLOCK_BYTES (2u * 2 * 2 * 12 * 32 * 2) /* of the small Llama: 2 layers, 2 KV heads of 12 */
#define WAIT_MAX_NS UINT64_C(240000000000)     /* a guard against hanging */
#define N_BLOCKS 60
#define N_VOCAB 300
#define N_PROMPT 400

static void open_small(struct engine_test *t, uint32_t n_host_blocks)
{
    struct engine_config c;

    engine_config_init(&c);
    c.n_threads = 1;
    c.max_num_seqs = 8;
    c.max_batched_tokens = 512;
    c.max_model_len = 800;
    c.kv_bytes = (uint64_t)N_BLOCKS * BLOCK_BYTES;
    c.kv_host_bytes = (uint64_t)n_host_blocks * BLOCK_BYTES;
    c.kv_always_copy = true;
    c.cache_policy = "lru";
    c.check_each_step = true;
    engine_test_open(t, NULL, &c);
}

static struct request *make(struct engine_test *t, uint32_t which, uint32_t n_out)
{
    uint32_t ids[N_PROMPT], end = N_PROMPT - 16;
    struct kv_scope scope = {{0}};
    struct sampling sp;
    struct stopping st;
    struct request *r;

    for (uint32_t i = 0; i < N_PROMPT; i++)
        ids[i] = rng_u32(which, i) % N_VOCAB;
    engine_test_params(&sp, &st, n_out);
    sp.n_logprobs = 0;
    assert_ok(request_create(&r, t->engine, ids, N_PROMPT, &end, 1, &scope, 0, &sp, &st, NULL));
    return r;
}

static struct request *create(struct engine_test *t, uint32_t which, uint32_t n_out,
                              uint32_t cache_ttl_s)
{
    struct request *r = make(t, which, n_out);

    r->cache_ttl_s = cache_ttl_s;
    assert_ok(engine_submit(t->engine, r, NULL));
    return r;
}

/* Wait for the request. Return the tokens of its prompt that were found, and check that the
 * counts of the tiers add up to them. */
static uint32_t finish(struct request *r, uint32_t *n_host)
{
    engine_test_wait(r);
    assert_int_equal(request_finish(r), FINISH_LENGTH);
    uint32_t n = atomic_load(&r->n_cached), host = atomic_load(&r->n_cached_in[CACHE_HOST]);
    assert_int_equal(n, host + atomic_load(&r->n_cached_in[CACHE_DEVICE]));
    request_unref(r);
    if (n_host)
        *n_host = host;
    return n;
}

static uint32_t ask(struct engine_test *t, uint32_t which, uint32_t *n_host)
{
    return finish(create(t, which, 2, 0), n_host);
}

/* Ask prompts 10, 11, ... of 13 blocks each, so that 60 blocks hold four of them. */
static void ask_others(struct engine_test *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        ask(t, 10 + i, NULL);
}

static void the_view_of_an_idle_engine_shows_what_was_run(void **state)
{
    static struct engine_cache_view view;
    struct engine_stats stats;
    struct engine_test t;

    (void)state;
    open_small(&t, 0);
    assert_ok(engine_cache_view(t.engine, 8, &view));
    assert_true(view.n_spans == 0 && view.n_spans_all == 0 && view.stats.n_nodes == 0);
    ask(&t, 1, NULL);
    assert_true(ask(&t, 1, NULL) >= 384);
    engine_test_idle(&t, &stats);
    assert_ok(engine_cache_view(t.engine, 8, &view));
    assert_int_equal(view.n_spans, view.n_spans_all);
    assert_true(view.spans[0].depth == 0 && view.spans[0].n_tokens == 384);
    assert_true(view.spans[0].n_hit_tokens == 384 && view.spans[0].n_uses == 2);
    assert_int_equal(view.stats.tier[CACHE_DEVICE].n_blocks, N_BLOCKS);
    assert_string_equal(view.stats.policy, "lru");
    assert_ok(engine_cache_view(t.engine, 0, &view));
    assert_true(view.n_spans == 0 && view.n_spans_all > 0);
    assert_ok(engine_cache_view(t.engine, UINT32_MAX, &view)); /* cut to what there is room for */
    engine_reset_cache(t.engine);
    assert_int_equal(ask(&t, 1, NULL), 0);
    engine_test_close(&t);
}

/* The key of the i-th of the spans without one before them, and its blocks with those behind it. */
static struct kv_key document(const struct engine_cache_view *v, uint32_t i, uint32_t *n_blocks)
{
    for (uint32_t k = 0; k < v->n_spans; k++)
        if (v->spans[k].depth == 0 && i-- == 0) {
            *n_blocks = v->spans[k].n_blocks;
            return v->spans[k].key;
        }
    fail_msg("there are fewer spans");
    return (struct kv_key){{0}};
}

static void erasing_a_span_forgets_it_and_what_is_behind_it(void **state)
{
    static struct engine_cache_view view;
    struct kv_key nobodys = {{1, 2, 3}};
    uint32_t n, n_document, n_found = 0;
    struct engine_test t;

    (void)state;
    open_small(&t, 0);
    for (uint32_t i = 1; i <= 3; i++)
        ask(&t, i, NULL);
    assert_ok(engine_cache_view(t.engine, 16, &view));
    uint32_t n_spans = view.n_spans_all, n_nodes = view.stats.n_nodes;
    struct kv_key key = document(&view, 1, &n_document);
    assert_ok(engine_cache_erase(t.engine, &key, &n));
    assert_true(n_document == 12 && n > n_document);   /* the question behind it as well */
    assert_ok(engine_cache_erase(t.engine, &key, &n)); /* it is gone, and that is no error */
    assert_int_equal(n, 0);
    assert_ok(engine_cache_erase(t.engine, &nobodys, &n));
    assert_int_equal(n, 0);
    assert_ok(engine_cache_view(t.engine, 16, &view));
    assert_true(view.n_spans_all * 3 == n_spans * 2 && view.stats.n_nodes * 3 == n_nodes * 2);
    for (uint32_t i = 1; i <= 3; i++)
        n_found += ask(&t, i, NULL) >= 384;
    assert_int_equal(n_found, 2);
    engine_test_close(&t);
}

/* Blocks that running requests compute behind an erased span are erased, too. */
static void a_running_request_keeps_an_erased_span_until_its_end(void **state)
{
    static struct engine_cache_view view;
    uint32_t n, n_document, n_waits = 0;
    struct engine_test t;

    (void)state;
    open_small(&t, 0);
    ask(&t, 1, NULL);
    assert_ok(engine_cache_view(t.engine, 16, &view));
    struct kv_key key = document(&view, 0, &n_document);
    struct request *r = create(&t, 1, 390, 0);
    while (request_n_out(r) == 0 && n_waits++ < 60000)
        clock_sleep_ns(1000000);
    assert_ok(engine_cache_erase(t.engine, &key, &n));
    assert_true(n >= n_document);
    assert_true(finish(r, NULL) >= 384);
    assert_int_equal(ask(&t, 1, NULL), 0);
    engine_test_close(&t);
}

struct viewer {
    struct engine_test *t;
    atomic_bool stop;
    atomic_uint n_views;
    const char *wrong;
};

static void *look_on(void *arg)
{
    struct viewer *v = arg;
    struct engine_cache_view *view = test_calloc(1, sizeof *view);

    while (!atomic_load(&v->stop)) {
        const struct cache_tier_stats *d = &view->stats.tier[CACHE_DEVICE];

        enum status s = engine_cache_view(v->t->engine, 16, view);
        if (s == ERR_TIMEOUT) /* the machine is slow: the engine did not answer in time */
            continue;
        if (s != OK)
            v->wrong = "no view";
        else if (d->n_leaked ||
                 d->n_free + d->n_cached + d->n_in_use + d->n_in_transfer != N_BLOCKS)
            v->wrong = "blocks do not add up";
        else if (view->n_spans > 16 || view->n_spans > view->n_spans_all)
            v->wrong = "more spans than there are";
        for (uint32_t i = 1; i < view->n_spans; i++)
            if (view->spans[i].n_hit_tokens > view->spans[i - 1].n_hit_tokens)
                v->wrong = "spans out of order";
        if (v->wrong)
            break;
        atomic_fetch_add(&v->n_views, 1);
        clock_sleep_ns(100000);
    }
    test_free(view);
    return NULL;
}

static void views_of_several_threads_agree_under_load(void **state)
{
    enum { N_VIEWERS = 3, N_REQUESTS = 60 };
    struct viewer viewers[N_VIEWERS];
    struct request *live[N_REQUESTS];
    struct engine_stats stats;
    pthread_t threads[N_VIEWERS];
    struct engine_test t;
    uint32_t n_host = 0;

    (void)state;
    open_small(&t, 100);
    for (int i = 0; i < N_VIEWERS; i++) {
        viewers[i] = (struct viewer){.t = &t};
        assert_int_equal(pthread_create(&threads[i], NULL, look_on, &viewers[i]), 0);
    }
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        live[i] = create(&t, rng_u32(3, i) % 9, 8, i % 4 == 0 ? 1 : 0);
        if (i == N_REQUESTS / 2)
            engine_reset_cache(t.engine);
    }
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        uint32_t n;

        finish(live[i], &n);
        n_host += n;
    }
    for (int i = 0; i < N_VIEWERS; i++) {
        uint64_t began = clock_now_ns();

        while (atomic_load(&viewers[i].n_views) < 2 && clock_now_ns() - began < WAIT_MAX_NS)
            clock_sleep_ns(1000000);
        atomic_store(&viewers[i].stop, true);
        pthread_join(threads[i], NULL);
        assert_null(viewers[i].wrong);
        assert_true(viewers[i].n_views >= 2);
    }
    engine_test_idle(&t, &stats);
    assert_int_equal(stats.n_prompt_tokens_in[CACHE_HOST], n_host);
    assert_int_equal(stats.n_prompt_tokens_cached,
                     stats.n_prompt_tokens_in[CACHE_HOST] + stats.n_prompt_tokens_in[CACHE_DEVICE]);
    engine_test_close(&t);
}

static void a_ttl_keeps_a_prompt_until_it_is_over(void **state)
{
    static struct engine_cache_view view;
    struct engine_test t;

    (void)state;
    open_small(&t, 0);
    ask(&t, 1, NULL);
    ask_others(&t, 6);
    assert_int_equal(ask(&t, 1, NULL), 0); /* without one it is gone */
    assert_true(finish(create(&t, 2, 2, 3600), NULL) == 0);
    assert_ok(engine_cache_view(t.engine, 0, &view));
    assert_true(view.stats.n_holds == 1 && view.stats.n_held_blocks == 12);
    ask_others(&t, 6);
    assert_true(ask(&t, 2, NULL) >= 384);
    engine_reset_cache(t.engine);
    assert_int_equal(ask(&t, 2, NULL), 0);
    assert_ok(engine_cache_view(t.engine, 0, &view));
    assert_int_equal(view.stats.n_holds, 0);
    uint64_t began = clock_now_ns();
    finish(create(&t, 3, 2, 1), NULL);
    do { /* its second passes, also while nothing runs */
        clock_sleep_ns(20000000);
        assert_ok(engine_cache_view(t.engine, 0, &view));
    } while (view.stats.n_holds && clock_now_ns() - began < WAIT_MAX_NS);
    assert_int_equal(view.stats.n_holds, 0);
    assert_true(clock_now_ns() - began > 500000000);
    engine_test_close(&t);
}

/* The default share is a quarter of 60 blocks, enough to hold one prompt of 12, but not two. */
static void holds_of_requests_stay_within_their_share(void **state)
{
    static struct engine_cache_view view;
    struct engine_test t;

    (void)state;
    open_small(&t, 0);
    for (uint32_t i = 1; i <= 3; i++)
        finish(create(&t, i, 2, UINT32_MAX), NULL);
    assert_ok(engine_cache_view(t.engine, 0, &view));
    assert_true(view.stats.n_holds == 1 && view.stats.n_held_blocks == 12);
    engine_test_close(&t);
}

/* Submit, wait, and check what the request says that it holds. */
static void expect_held(struct engine_test *t, struct request *r, uint32_t n_held,
                        enum cache_hold_limit limit)
{
    assert_ok(engine_submit(t->engine, r, NULL));
    engine_test_wait(r);
    assert_int_equal(r->n_held, n_held);
    assert_int_equal(r->hold_limit, limit);
    request_unref(r);
}

static void a_hold_without_end_ends_when_it_is_released(void **state)
{
    static struct engine_cache_view view;
    struct engine_test t;
    uint32_t n;

    (void)state;
    open_small(&t, 0);
    struct request *r = make(&t, 1, 2);
    struct kv_key key = r->prompt.keys[0];
    r->cache_ttl_s = CACHE_TTL_FOREVER;
    expect_held(&t, r, 384, CACHE_HOLD_NO_LIMIT);
    ask_others(&t, 6);
    assert_true(ask(&t, 1, NULL) >= 384);
    assert_ok(engine_cache_release(t.engine, &key, &n));
    assert_int_equal(n, 12);
    assert_true(ask(&t, 1, NULL) >= 384); /* it stays cached until it is evicted */
    assert_ok(engine_cache_release(t.engine, &key, &n));
    assert_int_equal(n, 0);
    assert_ok(engine_cache_view(t.engine, 0, &view));
    assert_int_equal(view.stats.n_holds, 0);
    ask_others(&t, 6);
    assert_int_equal(ask(&t, 1, NULL), 0);
    engine_test_close(&t);
}

/* The share has room for 15 blocks. */
static void a_request_holds_up_to_its_last_break_that_the_limits_let_in(void **state)
{
    static struct engine_cache_view view;
    struct engine_test t;

    (void)state;
    open_small(&t, 0);
    struct request *r = make(&t, 1, 2);
    r->tenant = 5;
    r->breaks[0] = (struct request_break){100, 3600};
    r->breaks[1] = (struct request_break){200, 600};
    r->breaks[2] = (struct request_break){399, 600};
    r->n_breaks = 3;
    r->cache_bytes_max = 7 * BLOCK_BYTES;
    expect_held(&t, r, 192, CACHE_HOLD_OWNER); /* the third is over the bound: six whole blocks */
    assert_ok(engine_cache_view(t.engine, 0, &view));
    assert_int_equal(view.stats.n_holds, 2); /* the first is held for longer */
    assert_true(view.stats.n_owners == 1 && view.stats.owners[0].owner == 5 &&
                view.stats.owners[0].n_blocks == 6);
    r = make(&t, 2, 2);
    r->breaks[0] = (struct request_break){70, 600};
    r->n_breaks = 1;
    r->cache_ttl_s = 600;
    expect_held(&t, r, 64, CACHE_HOLD_SHARE);
    r = make(&t, 1, 2); /* with the same ends, earlier breaks need no holds of their own */
    r->tenant = 5;
    r->n_breaks = 2;
    r->breaks[0] = (struct request_break){70, 600};
    r->breaks[1] = (struct request_break){100, 600};
    expect_held(&t, r, 96, CACHE_HOLD_NO_LIMIT);
    assert_ok(engine_cache_view(t.engine, 0, &view));
    assert_true(view.stats.n_holds == 3 && view.stats.n_held_blocks == 8);
    engine_test_close(&t);
}

static void tokens_are_counted_by_the_tier_they_lay_in(void **state)
{
    struct engine_stats stats;
    struct engine_test t;
    uint32_t n_host;

    (void)state;
    open_small(&t, 200);
    ask(&t, 1, NULL);
    assert_true(ask(&t, 1, &n_host) >= 384);
    assert_int_equal(n_host, 0);
    ask_others(&t, 6);
    assert_true(ask(&t, 1, &n_host) >= 384);
    assert_true(n_host >= 384); /* evicted to the host, and fetched from there */
    engine_test_idle(&t, &stats);
    assert_int_equal(stats.n_prompt_tokens_in[CACHE_HOST], n_host);
    assert_true(stats.n_prompt_tokens_in[CACHE_DEVICE] >= 384);
    engine_test_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_view_of_an_idle_engine_shows_what_was_run),
        cmocka_unit_test(erasing_a_span_forgets_it_and_what_is_behind_it),
        cmocka_unit_test(a_running_request_keeps_an_erased_span_until_its_end),
        cmocka_unit_test(views_of_several_threads_agree_under_load),
        cmocka_unit_test(a_ttl_keeps_a_prompt_until_it_is_over),
        cmocka_unit_test(holds_of_requests_stay_within_their_share),
        cmocka_unit_test(a_hold_without_end_ends_when_it_is_released),
        cmocka_unit_test(a_request_holds_up_to_its_last_break_that_the_limits_let_in),
        cmocka_unit_test(tokens_are_counted_by_the_tier_they_lay_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
