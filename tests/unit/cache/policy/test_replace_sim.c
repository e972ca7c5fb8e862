/* The policies in tarn-cachesim's replay, on traces small enough to follow by hand. */
#include "tests/unit/test.h"

#include <math.h>

#include "base/rng.h"
#include "loadgen/bench/policy/replay.h"

#define N_ROWS_MAX 2000
#define N_PARTS_MAX (4 * N_ROWS_MAX)

static struct trace_row rows[N_ROWS_MAX];
static struct trace_part parts[N_PARTS_MAX];
static struct trace trace;
static struct cost_model cost;

static void start(void)
{
    const uint32_t cached[] = {0, 1000}, fresh[] = {1, 1001};
    const double seconds[] = {1, 1001, 1, 1001}; /* one second per token */
    const struct cost_points points = {
        .cached = cached, .n_cached = 2, .new_tokens = fresh, .n_new = 2, .seconds = seconds};

    trace = (struct trace){.rows = rows, .parts = parts};
    assert_ok(cost_model_init(&cost, &points, NULL));
}

static void add_part(uint64_t id, uint32_t n_tokens)
{
    parts[trace.n_parts++] = (struct trace_part){id, n_tokens, PART_DOCUMENT};
    rows[trace.n_rows - 1].n_parts++;
}

static void add_row(void)
{
    rows[trace.n_rows++] = (struct trace_row){.first_part = trace.n_parts};
}

static struct replay_result run(const struct paths *p, enum replace_policy policy,
                                uint64_t capacity, uint32_t n_lookahead)
{
    struct replay_options o = {policy, capacity, 4, n_lookahead, &cost, true};
    struct replay_result result;

    assert_ok(replay(p, &o, &result));
    assert_true(result.n_tokens_max <= capacity);
    assert_true(result.n_tokens_hit <= p->n_tokens_ideal);
    return result;
}

static void a_trace_becomes_one_tree(void **state)
{
    struct paths p;

    (void)state;
    start();
    add_row(), add_part(1, 10), add_part(2, 5);
    add_row(), add_part(2, 5); /* the same document at another position */
    add_row(), add_part(1, 10), add_part(0, 0), add_part(2, 5), add_part(3, 1);
    assert_ok(paths_build(&p, &trace, PARTS_AUTO, 0, UINT64_MAX, NULL));
    assert_int_equal(p.n_nodes, 4);
    assert_int_equal(p.n_tokens, 15 + 5 + 16);
    assert_int_equal(p.n_tokens_distinct, 10 + 5 + 5 + 1);
    assert_int_equal(p.n_tokens_ideal, 15);
    assert_int_equal(p.nodes[p.steps[5].node].depth, 2);
    assert_int_equal(p.steps[0].next_use, 2);
    assert_int_equal(p.steps[2].next_use, NO_REQUEST);
    for (int policy = 0; policy < REPLACE_N_POLICIES; policy++) {
        struct replay_result r = run(&p, (enum replace_policy)policy, 21, 0);

        assert_int_equal(r.n_tokens_hit, 15);
        assert_true(fabs(r.saved_s - 15) < 1e-9 && fabs(r.ideal_s - 15) < 1e-9);
        assert_int_equal(r.n_evicted, 0);
    }
    paths_fini(&p);
    assert_int_equal(paths_build(&p, &trace, PARTS_ALL, 3, 9, NULL), ERR_INVALID);
}

static void blocks_that_do_not_fit_are_not_kept(void **state)
{
    struct paths p;

    (void)state;
    start();
    add_row(), add_part(1, 4), add_part(2, 4), add_part(3, 4);
    add_row(), add_part(1, 4), add_part(2, 4), add_part(3, 4);
    assert_ok(paths_build(&p, &trace, PARTS_AUTO, 0, 9, NULL));
    struct replay_result r = run(&p, REPLACE_LRU, 9, 0);
    assert_int_equal(r.n_not_kept, 2);
    assert_int_equal(r.n_tokens_hit, 8);
    paths_fini(&p);
}

static void build_random(struct paths *p)
{
    start();
    for (uint64_t n = 0; trace.n_rows < N_ROWS_MAX;) {
        uint32_t n_parts = 1 + rng_u32(3, n++) % 4;

        add_row();
        for (uint32_t i = 0; i < n_parts; i++) { /* the cube makes low ids popular */
            uint32_t id = (uint32_t)(400 * pow(rng_uniform(3, n++), 3));

            add_part(id, 1 + id % 7);
        }
    }
    assert_ok(paths_build(p, &trace, PARTS_AUTO, 0, UINT64_MAX, NULL));
}

static void belady_has_the_most_hits(void **state)
{
    struct paths p;

    (void)state;
    build_random(&p);
    struct replay_result best = run(&p, REPLACE_BELADY, p.n_tokens_distinct / 10, 0);
    for (int policy = 0; policy < REPLACE_N_POLICIES; policy++) {
        struct replay_result r = run(&p, (enum replace_policy)policy, p.n_tokens_distinct / 10, 0);

        assert_true(r.n_evicted > 0 && r.n_tokens_hit <= best.n_tokens_hit);
        assert_true(policy == REPLACE_BELADY || r.n_tokens_hit < best.n_tokens_hit);
        struct replay_result again =
            run(&p, (enum replace_policy)policy, p.n_tokens_distinct / 10, 0);
        assert_int_equal(r.n_tokens_hit, again.n_tokens_hit);
    }
    paths_fini(&p);
}

static void expecting_queued_requests_raises_hits(void **state)
{
    struct paths p;

    (void)state;
    build_random(&p);
    for (int policy = 0; policy < REPLACE_BELADY; policy++) {
        uint64_t capacity = p.n_tokens_distinct / 10;
        struct replay_result blind = run(&p, (enum replace_policy)policy, capacity, 0);
        struct replay_result sees = run(&p, (enum replace_policy)policy, capacity, 30);

        assert_true(sees.n_tokens_hit > blind.n_tokens_hit);
    }
    paths_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trace_becomes_one_tree),
        cmocka_unit_test(blocks_that_do_not_fit_are_not_kept),
        cmocka_unit_test(belady_has_the_most_hits),
        cmocka_unit_test(expecting_queued_requests_raises_hits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
