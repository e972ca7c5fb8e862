/* Speculative prefills, with the real engine: the final request finds what they computed. */
#include "tests/unit/test.h"

#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "server/api/prompt.h"
#include "server/api/speculation.h"
#include "server/api/tally.h"
#include "server/auth/auth.h"
#include "server/server.h"
#include "tests/engine_test.h"

#define N_VOCAB 300
#define N_PROMPT 400
#define WAIT_MAX_NS UINT64_C(240000000000) /* a guard against hanging */

static struct engine_test t;
static struct server srv;
static struct config config;
static struct account account;
static const struct kv_scope scope = {{7}};

static bool no_name(uint32_t route, char out[ROUTE_NAME_BYTES])
{
    (void)route;
    (void)out;
    return false;
}

static void open_all(void)
{
    static char mode[] = "auto";
    struct engine_config c;

    engine_config_init(&c);
    c.n_threads = 1;
    c.max_num_seqs = 4;
    c.max_batched_tokens = 64;
    c.kv_bytes = UINT64_C(1) << 20;
    c.max_model_len = 1000;
    c.check_each_step = true;
    engine_test_open(&t, NULL, &c);
    config = (struct config){.speculative_prefill = mode};
    memset(&srv, 0, sizeof srv);
    srv.config = &config;
    srv.engine = t.engine;
    assert_ok(tally_create(&srv.tally, 1, no_name));
}

static void close_all(void)
{
    engine_test_close(&t);
    tally_destroy(srv.tally);
}

static struct speculation *begin(void)
{
    struct speculation *s;

    assert_ok(speculation_create(&s, &srv, &account, &scope, 0));
    return s;
}

/* A prompt whose first n_common ids are those of all others; it has two spans. */
static void fill(struct prompt *p, uint32_t which, uint32_t n_common)
{
    uint32_t end = N_PROMPT / 2;

    prompt_init(p, N_PROMPT);
    for (uint32_t i = 0; i < N_PROMPT; i++) {
        uint32_t id = rng_u32(i < n_common ? 0 : which, i) % N_VOCAB;
        assert_ok(buf_append(&p->ids, &id, sizeof id));
    }
    assert_ok(buf_append(&p->span_ends, &end, sizeof end));
}

static uint64_t counted(enum tally_count what)
{
    return tally_count(srv.tally, what);
}

static void wait_for_class(uint64_t n_ended)
{
    uint64_t t0 = clock_now_ns();
    struct engine_stats st;

    do {
        assert_true(clock_now_ns() - t0 < WAIT_MAX_NS);
        clock_sleep_ns(200000);
        engine_stats(t.engine, &st);
    } while (st.of_class[SCHED_SPECULATIVE].n_ended < n_ended);
}

static struct request *submit_final(const struct prompt *p, uint32_t n_out)
{
    struct sampling sp;
    struct stopping st;
    struct request *r;

    engine_test_params(&sp, &st, n_out);
    sp.n_logprobs = 0;
    assert_ok(request_create(&r, t.engine, prompt_ids(p), prompt_n_ids(p), prompt_span_ends(p),
                             prompt_n_span_ends(p), &scope, p->n_public, &sp, &st, NULL));
    assert_ok(engine_submit(t.engine, r, NULL));
    return r;
}

static void the_final_request_finds_what_was_computed(void **state)
{
    struct speculation *s;
    struct engine_stats st;
    struct request *r;
    struct prompt p;

    (void)state;
    open_all();
    fill(&p, 1, 0);
    s = begin();
    speculation_update(s, &p);
    speculation_update(s, &p); /* the same prompt goes on */
    wait_for_class(1);
    speculation_confirm(s, &p);
    r = submit_final(&p, 2);
    speculation_destroy(s);
    engine_test_wait(r);
    assert_int_equal(request_finish(r), FINISH_LENGTH);
    assert_true(atomic_load(&r->n_cached) >= N_PROMPT - 32); /* whole blocks */
    assert_int_equal(counted(TALLY_SPECULATION_STARTED), 1);
    assert_int_equal(counted(TALLY_SPECULATION_CONFIRMED), 1);
    assert_int_equal(counted(TALLY_SPECULATION_REPLACED), 0);
    assert_int_equal(counted(TALLY_SPECULATION_DROPPED), 0);
    assert_int_equal(counted(TALLY_SPECULATED_FOR_NOTHING), 0);
    engine_stats(t.engine, &st); /* clients' figures have the final request only */
    assert_int_equal(st.n_prompt_tokens, N_PROMPT);
    assert_int_equal(st.ttft_s.n, 1);
    request_unref(r);
    prompt_fini(&p);
    close_all();
}

/* Cancelled after some steps, the prefill leaves whole blocks that the final request finds. */
static void a_prefill_that_is_cut_short_leaves_what_it_computed(void **state)
{
    uint64_t t0 = clock_now_ns();
    struct engine_stats st = {0};
    struct speculation *s;
    struct request *r;
    struct prompt p;

    (void)state;
    open_all();
    fill(&p, 1, 0);
    s = begin();
    speculation_update(s, &p);
    while (st.of_class[SCHED_SPECULATIVE].n_tokens < 64) {
        assert_true(clock_now_ns() - t0 < WAIT_MAX_NS);
        engine_stats(t.engine, &st);
    }
    speculation_confirm(s, &p);
    r = submit_final(&p, 2);
    speculation_destroy(s);
    engine_test_wait(r);
    assert_int_equal(request_finish(r), FINISH_LENGTH);
    assert_true(atomic_load(&r->n_cached) >= 64);
    assert_int_equal(counted(TALLY_SPECULATED_FOR_NOTHING), 0);
    request_unref(r);
    prompt_fini(&p);
    close_all();
}

static void another_prompt_replaces_the_prefill(void **state)
{
    struct speculation *s;
    struct engine_stats st;
    struct prompt a, b;

    (void)state;
    open_all();
    fill(&a, 1, 150);
    fill(&b, 2, 150);
    s = begin();
    speculation_update(s, &a);
    wait_for_class(1);
    speculation_update(s, &b);
    wait_for_class(2);
    speculation_confirm(s, &b);
    speculation_destroy(s);
    engine_test_idle(&t, &st);
    assert_int_equal(counted(TALLY_SPECULATION_STARTED), 2);
    assert_int_equal(counted(TALLY_SPECULATION_REPLACED), 1);
    assert_int_equal(counted(TALLY_SPECULATION_CONFIRMED), 1);
    assert_int_equal(counted(TALLY_SPECULATED_FOR_NOTHING), N_PROMPT - 150);
    prompt_fini(&a);
    prompt_fini(&b);
    close_all();
}

static void a_running_prefill_is_replaced_at_once_although_it_fills_the_pool(void **state)
{
    struct speculation *s;
    struct engine_stats st;
    struct prompt p[8];

    (void)state;
    open_all();
    s = begin();
    for (uint32_t i = 0; i < 8; i++) {
        fill(&p[i], 1 + i, 0);
        speculation_update(s, &p[i]);
    }
    assert_int_equal(counted(TALLY_SPECULATION_STARTED), 8);
    speculation_confirm(s, &p[7]);
    speculation_destroy(s);
    engine_test_idle(&t, &st);
    wait_for_class(8);
    assert_int_equal(counted(TALLY_SPECULATION_REPLACED), 7);
    for (uint32_t i = 0; i < 8; i++)
        prompt_fini(&p[i]);
    close_all();
}

static void a_search_that_fails_drops_the_prefill(void **state)
{
    struct speculation *s;
    struct engine_stats st;
    struct prompt p;

    (void)state;
    open_all();
    fill(&p, 1, 0);
    s = begin();
    speculation_update(s, &p);
    wait_for_class(1);
    speculation_destroy(s);
    engine_test_idle(&t, &st);
    assert_int_equal(counted(TALLY_SPECULATION_DROPPED), 1);
    assert_int_equal(counted(TALLY_SPECULATED_FOR_NOTHING), N_PROMPT);
    prompt_fini(&p);
    close_all();
}

/* The engine's thread has not been started, so the request stays without a first token. */
static void nothing_starts_while_prefills_fill_the_engine(void **state)
{
    char dir[ENGINE_TEST_DIR_BYTES];
    struct engine_config c;
    struct speculation *s;
    struct request *r;
    struct prompt p;

    (void)state;
    open_all();
    engine_test_close(&t);
    engine_test_make_model(dir, NULL);
    engine_config_init(&c);
    c.model_dir = dir;
    c.load_format = "dummy";
    c.profile_cost = false;
    c.n_threads = 1;
    c.max_batched_tokens = 64;
    c.kv_bytes = UINT64_C(1) << 20;
    c.max_model_len = 1000;
    assert_ok(engine_open(&t.engine, &c, NULL));
    srv.engine = t.engine;
    fill(&p, 1, 0);
    r = submit_final(&p, 1);
    s = begin();
    speculation_update(s, &p);
    assert_int_equal(counted(TALLY_SPECULATION_STARTED), 0);
    assert_ok(engine_start(t.engine));
    engine_test_wait(r);
    speculation_update(s, &p); /* there is room now */
    assert_int_equal(counted(TALLY_SPECULATION_STARTED), 1);
    speculation_confirm(s, &p);
    speculation_destroy(s);
    request_unref(r);
    prompt_fini(&p);
    engine_close(t.engine);
    engine_test_remove_model(dir);
    tally_destroy(srv.tally);
}

static void nothing_is_speculated_where_it_is_off(void **state)
{
    static char off[] = "off";
    struct speculation *s;
    struct prompt p;

    (void)state;
    open_all();
    config.speculative_prefill = off;
    s = begin();
    assert_null(s);
    fill(&p, 1, 0);
    speculation_update(s, &p);
    speculation_confirm(s, &p);
    speculation_destroy(s);
    assert_int_equal(counted(TALLY_SPECULATION_STARTED), 0);
    prompt_fini(&p);
    close_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_final_request_finds_what_was_computed),
        cmocka_unit_test(a_prefill_that_is_cut_short_leaves_what_it_computed),
        cmocka_unit_test(another_prompt_replaces_the_prefill),
        cmocka_unit_test(a_running_prefill_is_replaced_at_once_although_it_fills_the_pool),
        cmocka_unit_test(a_search_that_fails_drops_the_prefill),
        cmocka_unit_test(nothing_starts_while_prefills_fill_the_engine),
        cmocka_unit_test(nothing_is_speculated_where_it_is_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
