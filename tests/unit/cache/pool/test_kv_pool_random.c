/* Random requests on caches that are joined by a fake pool, with random faults. All bytes that a
 * request finds are those that belong to its prompt, all books agree after every event
 * (cache_check()), and nothing stays lent or known at the end. */
#include "tests/unit/test.h"

#include "base/rng.h"
#include "tests/unit/cache/pool/joined_caches.h"

#ifndef N_EVENTS
#define N_EVENTS 14000u
#endif
#define N_SEQS 5u

static const char *const documents[] = {"ABCDEFGHIJ|", "KLMp|",    "QRSTUVWX|",
                                        "NO|",         "ABCDXYZ|", "KLZ|"};

struct life {
    struct open_seq o;
    bool is_open, runs;
};

struct world {
    uint64_t seed, n_draws;
    struct life lives[FAKE_N_POOLS][N_SEQS];
    uint64_t n_found_remote, n_run, n_cancelled;
    uint64_t n_answered, n_lost; /* queries */
};

static uint32_t draw(struct world *w, uint32_t below)
{
    return rng_u32(w->seed, w->n_draws++) % below;
}

static void begin(struct world *w, uint32_t i, struct life *l)
{
    char text[64] = "";
    uint32_t n = 1 + draw(w, 2);
    static const char *const ends[] = {"A", "B", "CD", ""};

    while (n-- > 0)
        strcat(text, documents[draw(w, sizeof documents / sizeof *documents)]);
    strcat(text, ends[draw(w, 4)]);
    seq(caches[i], &l->o, text);
    cache_seq_expect_output(l->o.s, draw(w, 2) ? 1 : 100000);
    if (draw(w, 20) == 0)
        cache_seq_bring_here(l->o.s);
    if (draw(w, 4) == 0)
        cache_seq_join_session(l->o.s, 1 + draw(w, 3));
    l->is_open = true;
    l->runs = false;
}

/* A sequence that runs sends queries, or is preempted. After a failed query it is dropped. */
static void run_on(struct world *w, uint32_t i, struct life *l)
{
    bool is_lost = draw(w, 8) == 0;

    if (cache_seq_queries(l->o.s)) {
        is_lost |= query_kv(caches[i], &l->o, 1 + draw(w, 3)) != OK;
        w->n_answered += !is_lost;
        w->n_lost += is_lost;
    }
    if (!is_lost)
        return;
    cache_seq_shrink(l->o.s);
    cache_seq_drop(l->o.s);
    l->runs = false;
}

static void go_on(struct world *w, uint32_t i, struct life *l)
{
    struct cache *c = caches[i];
    uint32_t found[CACHE_N_TIERS];

    if (l->runs && draw(w, 3) > 0) {
        run_on(w, i, l);
        return;
    }
    if (l->runs || draw(w, 20) == 0) {
        w->n_cancelled += !l->runs;
        cache_seq_close(l->o.s);
        l->is_open = false;
        return;
    }
    if (cache_seq_is_loading(l->o.s)) {
        (void)cache_seq_load(l->o.s, draw(w, 3) == 0);
        (void)cache_seq_prefetch(l->o.s);
        if (draw(w, 30) == 0)
            cache_seq_stop_loading(l->o.s);
        return;
    }
    if (cache_seq_need(l->o.s, l->o.q.p.n_ids - cache_match(l->o.s)) > cache_n_available(c))
        return;
    l->runs = compute_kv(c, &l->o, found) != UINT32_MAX;
    if (!l->runs) {
        cache_seq_drop(l->o.s);
        return;
    }
    w->n_found_remote += found[CACHE_REMOTE];
    w->n_run++;
}

static void draw_fault(struct world *w, struct pool *p)
{
    static const enum status faults[] = {OK, OK, OK, ERR_TIMEOUT, ERR_NOT_FOUND, ERR_CORRUPT};

    switch (draw(w, 11)) {
    case 0: p->stalls = !p->stalls; break;
    case 1: p->holds_back = !p->holds_back; break;
    case 2: p->is_away = draw(w, 3) == 0; break;
    case 3: p->lease_ns = (1 + draw(w, 100)) * STEP_NS; break;
    case 4: p->n_reads_good = draw(w, 4); break;
    case 5: p->read_status = faults[draw(w, 6)]; break;
    case 6: p->bytes_per_s = draw(w, 2) ? 1e3 : 1e9; break;
    case 7: p->n_queries_good = draw(w, 4); break;
    case 8: p->query_status = faults[draw(w, 6)]; break;
    case 9: p->refuses_queries = draw(w, 4) == 0; break;
    default:
        p->stalls = p->holds_back = p->is_away = p->refuses_queries = false;
        p->read_status = p->query_status = OK;
    }
}

/* News about the first segment of a random document. */
static void draw_news(struct world *w, struct pool *p)
{
    struct prompt q;

    prompt_of(&q, documents[draw(w, sizeof documents / sizeof *documents)]);
    if (p->n_news == sizeof p->news / sizeof *p->news)
        return;
    p->news[p->n_news] = (struct pool_news){.is_replica = draw(w, 2)};
    memcpy(p->news[p->n_news++].segment.bytes, q.keys[0].bytes, DIRECTORY_SEGMENT_BYTES);
}

static void happen(struct world *w)
{
    uint32_t i = draw(w, n_caches), what = draw(w, 100);
    struct life *l = &w->lives[i][draw(w, N_SEQS)];

    if (what < 25)
        step_all();
    else if (what < 28)
        draw_fault(w, &fakes[i]);
    else if (what < 29)
        draw_news(w, &fakes[i]);
    else if (what == 29 && draw(w, 10) == 0)
        cache_reset(caches[i]);
    else if (what == 30 && draw(w, 4) == 0)
        (void)cache_erase(caches[i], &l->o.q.keys[0]);
    else if (what == 31)
        cache_spill_ahead(caches[i], draw(w, 16));
    else if (!l->is_open)
        begin(w, i, l);
    else
        go_on(w, i, l);
    cache_check(caches[i]);
}

/* End all requests; when their leases have ended nothing is in use anywhere. */
static void end_all(struct world *w)
{
    for (uint32_t i = 0; i < n_caches; i++) {
        fakes[i].stalls = fakes[i].holds_back = fakes[i].is_away = false;
        for (uint32_t k = 0; k < N_SEQS; k++) {
            if (w->lives[i][k].is_open)
                cache_seq_close(w->lives[i][k].o.s);
            w->lives[i][k].is_open = false;
        }
    }
    pass_ms(2000);
    for (uint32_t i = 0; i < n_caches; i++) {
        struct cache_stats stats = stats_of(caches[i]);
        assert_int_equal(stats.tier[CACHE_REMOTE].n_free, stats.tier[CACHE_REMOTE].n_blocks);
        for (int t = 0; t < CACHE_N_TIERS; t++) {
            assert_int_equal(stats.tier[t].n_in_use, 0);
            assert_int_equal(stats.tier[t].n_in_transfer, 0);
        }
    }
}

static void live(uint64_t seed, uint32_t n_host_blocks, bool copies, bool leaves,
                 enum cache_query query)
{
    static struct world w;

    w = (struct world){.seed = seed};
    for (uint32_t i = 0; i < 3; i++) {
        struct cache_config config =
            query_config_of(48 + 24 * i, i == 1 ? 0 : n_host_blocks, query);
        config.always_copy = copies;
        config.policy = i == 2 ? "lru" : "contest";
        config.remote.n_blocks = i == 0 ? 24 : 256;
        config.remote.spread_segments = 1;
        fake_of(join_with(&config))->names_all = i > 0;
    }
    for (uint32_t i = 0; i < N_EVENTS; i++) {
        if (leaves && i == N_EVENTS / 2)
            cache_leave(caches[0]);
        happen(&w);
    }
    end_all(&w);
    assert_true(w.n_run > N_EVENTS / 50 && w.n_cancelled > 0);
    assert_true(w.n_found_remote > 0);
    if (query == CACHE_QUERY_NEVER)
        assert_true(w.n_answered + w.n_lost == 0);
    else if (query == CACHE_QUERY_AUTO) /* which seldom chooses them */
        assert_true(w.n_answered + w.n_lost > 0 || N_EVENTS < 10000u);
    else if (N_EVENTS >= 10000u) /* fewer may have no query that is lost */
        assert_true(w.n_answered > 0 && w.n_lost > 0);
}

static void random_requests_and_faults_on_one_memory(void **state)
{
    (void)state;
    live(101, 0, false, false, CACHE_QUERY_NEVER);
}

static void random_requests_and_faults_with_a_host_tier(void **state)
{
    (void)state;
    live(102, 32, false, false, CACHE_QUERY_AUTO);
}

static void random_requests_and_faults_on_separate_memories(void **state)
{
    (void)state;
    live(103, 32, true, false, CACHE_QUERY_ALWAYS);
}

static void random_requests_and_faults_while_an_instance_leaves(void **state)
{
    (void)state;
    live(104, 32, false, true, CACHE_QUERY_AUTO);
}

static void random_queries_and_faults_on_one_memory(void **state)
{
    (void)state;
    live(105, 0, false, false, CACHE_QUERY_ALWAYS);
}

static void random_queries_and_faults_with_a_host_tier(void **state)
{
    (void)state;
    live(106, 32, false, true, CACHE_QUERY_ALWAYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(random_requests_and_faults_on_one_memory, leave_world),
        cmocka_unit_test_teardown(random_requests_and_faults_with_a_host_tier, leave_world),
        cmocka_unit_test_teardown(random_requests_and_faults_on_separate_memories, leave_world),
        cmocka_unit_test_teardown(random_requests_and_faults_while_an_instance_leaves, leave_world),
        cmocka_unit_test_teardown(random_queries_and_faults_on_one_memory, leave_world),
        cmocka_unit_test_teardown(random_queries_and_faults_with_a_host_tier, leave_world),
    };

    if (!open_device())
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return failed;
}
