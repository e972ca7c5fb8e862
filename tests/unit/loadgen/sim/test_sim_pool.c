/* Many light instances: caches, directory, pool, routing, failures; and their distance from the
 * real scheduler and cache. */
#include "tests/unit/loadgen/loadgen_test.h"

#include "base/check.h"
#include "base/rng.h"
#include "engine/sched/cost_model.h"
#include "loadgen/sim/cost.h"
#include "loadgen/sim/registry.h"
#include "loadgen/sim/shelf.h"
#include "loadgen/sim/sim.h"

#define MS UINT64_C(1000000)

static struct cost_model cost;
static struct buf why;
static uint64_t drawn;

static uint32_t draw(uint32_t n)
{
    return rng_u32(31, drawn++) % n;
}

/* --- table --- */

static void a_table_holds_what_was_put_and_not_removed(void **state)
{
    static uint32_t expected[512]; /* 0: not there */
    struct table t = {0};

    (void)state;
    for (int i = 0; i < 20000; i++) {
        uint32_t k = draw(512), value;
        uint64_t key = k % 2 ? k : (uint64_t)k << 40; /* crowded homes */
        assert_int_equal(table_get(&t, key, &value), expected[k] != 0);
        if (expected[k])
            assert_int_equal(value, expected[k]);
        if (draw(2)) {
            expected[k] = 1 + draw(1000);
            assert_ok(table_put(&t, key, expected[k]));
        } else {
            expected[k] = 0;
            table_remove(&t, key);
        }
    }
    uint32_t n = 0;
    for (int k = 0; k < 512; k++)
        n += expected[k] != 0;
    assert_int_equal(t.n, n);
    table_fini(&t);
}

/* --- shelf --- */

static struct piece path_of(uint32_t chain, uint32_t depth)
{
    return (struct piece){(uint64_t)(chain + 1) << 32 | (depth + 1), 10 + (chain + depth) % 7};
}

static void add_path(struct shelf *s, uint32_t chain, uint32_t n)
{
    struct piece v[16];
    struct pieces p = {v, n, 0};

    for (uint32_t d = 0; d < n; d++)
        v[d] = path_of(chain, d);
    shelf_use(s, &p, shelf_match(s, &p));
    for (uint32_t d = 0; d < n; d++) {
        if (d > 0)
            shelf_pin(s, v[d - 1].key);
        bool has_room = shelf_has(s, v[d].key) || shelf_make_room(s, v[d].n_tokens);
        if (d > 0)
            shelf_unpin(s, v[d - 1].key);
        if (!has_room)
            return;
        assert_ok(shelf_add(s, d > 0 ? v[d - 1].key : 0, v[d].key, v[d].n_tokens));
    }
}

static void the_least_recently_used_leaf_leaves_first(void **state)
{
    struct shelf s;

    (void)state;
    assert_ok(shelf_init(&s, 200));
    add_path(&s, 0, 4);
    add_path(&s, 1, 4);
    add_path(&s, 2, 4);
    add_path(&s, 0, 4); /* used again: 1 is the oldest */
    shelf_check(&s);
    assert_true(shelf_make_room(&s, 200 - s.n_cached + 1));
    assert_false(shelf_has(&s, path_of(1, 3).key));
    assert_true(shelf_has(&s, path_of(1, 2).key)); /* what is before a leaf stays longer */
    shelf_demote(&s, path_of(0, 3).key);
    assert_true(shelf_make_room(&s, 200 - s.n_cached + 1));
    assert_false(shelf_has(&s, path_of(0, 3).key));
    shelf_pin(&s, path_of(2, 3).key);
    assert_false(shelf_make_room(&s, 200));
    assert_int_equal(s.n_cached, s.n_pinned);
    for (uint32_t d = 0; d < 4; d++)
        assert_true(shelf_has(&s, path_of(2, d).key));
    shelf_check(&s);
    shelf_fini(&s);
}

static void random_events_keep_a_shelf_consistent(void **state)
{
    struct shelf s;
    uint64_t pins[64];
    uint32_t n_pins = 0;

    (void)state;
    assert_ok(shelf_init(&s, 1000));
    for (int i = 0; i < 20000; i++) {
        struct piece p = path_of(draw(20), draw(12));
        switch (draw(6)) {
        case 0:
            if (n_pins < 64 && shelf_has(&s, p.key)) {
                shelf_pin(&s, p.key);
                pins[n_pins++] = p.key;
            }
            break;
        case 1:
            if (n_pins > 0)
                shelf_unpin(&s, pins[--n_pins]);
            break;
        case 2: shelf_demote(&s, p.key); break;
        case 3: (void)shelf_drop(&s, p.key); break;
        default: add_path(&s, draw(20), 1 + draw(12));
        }
        if (i % 16 == 0)
            shelf_check(&s);
    }
    shelf_fini(&s);
}

/* --- directory --- */

static const struct registry_config usual_directory = {.n_instances = 4,
                                                       .segment_tokens = 256,
                                                       .delay_ns = 20 * MS,
                                                       .lifetime_ns = 3000 * MS,
                                                       .command_ns = 1000,
                                                       .record_ns = 100,
                                                       .away_ns = 500 * MS,
                                                       .again_ns = 200000 * MS};

static uint32_t named(const struct registry *r, uint64_t key, uint64_t at_ms)
{
    uint32_t out[4];

    return registry_holders(r, key, at_ms * MS, out, 4);
}

static void the_directory_learns_late_of_all_changes(void **state)
{
    struct registry *r;
    uint32_t out[4];

    (void)state;
    assert_ok(registry_create(&r, &usual_directory));
    assert_ok(registry_add(r, 7, 2, 256, 1000 * MS));
    assert_int_equal(named(r, 7, 1010), 0);
    assert_int_equal(registry_exact(r, 7, out, 4), 1);
    assert_int_equal(out[0], 2);
    assert_int_equal(named(r, 7, 1021), 1);
    registry_remove(r, 7, 2, 1100 * MS);
    assert_int_equal(registry_exact(r, 7, out, 4), 0);
    assert_int_equal(named(r, 7, 1110), 1); /* stale */
    assert_int_equal(named(r, 7, 1121), 0);
    assert_ok(registry_add(r, 7, 1, 256, 2000 * MS));
    registry_die(r, 1, 2100 * MS);
    assert_int_equal(named(r, 7, 5000), 1); /* its record lives on */
    assert_int_equal(named(r, 7, 5101), 0);
    assert_int_equal(registry_exact(r, 7, out, 4), 0);
    assert_ok(registry_add(r, 7, 1, 256, 6000 * MS)); /* it came back */
    assert_int_equal(registry_exact(r, 7, out, 4), 1);
    registry_destroy(r);
}

static void a_directory_with_too_much_to_do_is_away(void **state)
{
    struct registry *r;
    uint64_t wait_ns;
    uint32_t n = 0;

    (void)state;
    assert_ok(registry_create(&r, &usual_directory));
    while (registry_look(r, 16, 1000 * MS, &wait_ns))
        n++;
    assert_true(n > 500 * MS / 16000 - 2 && n < 500 * MS / 16000 + 2);
    assert_true(wait_ns >= 500 * MS - 16000);
    assert_true(registry_look(r, 16, 2000 * MS, &wait_ns));
    assert_true(wait_ns < MS);
    registry_destroy(r);
}

/* --- whole simulations --- */

struct made {
    struct workload *workload;
    struct sim_config config;
    struct outcome_list outcomes;
    struct sim_result result;
};

static enum status next(void *arg, struct load_request *out)
{
    return workload_next(arg, out);
}

/* 16,000 tokens of KV each; links that move a prompt of 1,000 tokens in 16 ms. */
static struct sim_config usual_sim(uint32_t n_instances, enum sim_routing routing, bool is_pool)
{
    return (struct sim_config){
        .fleet =
            {.instance = {.scheduler = {.policy = "fcfs", .n_running_max = 8, .n_tokens_max = 2048},
                          .cost = &cost,
                          .swap = SWAP_RECOMPUTE,
                          .in_bytes_per_s = 12e9,
                          .out_bytes_per_s = 12e9,
                          .bytes_per_token = SIM_BUILTIN_BYTES_PER_TOKEN,
                          .n_device_blocks = 500,
                          .segment_tokens = 256,
                          .prefix_caching = true,
                          .cache_policy = "lru"},
             .n_instances = n_instances,
             .routing = routing,
             .hash_tokens = 512,
             .is_light = true,
             .cluster = {.is_pool = is_pool,
                         .link_bytes_per_s = 50e9,
                         .link_ns = 10000,
                         .lookup_ns = 50 * MS,
                         .directory_ns = 20 * MS,
                         .command_ns = 2500,
                         .query = CLUSTER_QUERY_NEVER,
                         .query_bytes = 1 << 20,
                         .n_layers = 40,
                         .balance_ns = 100 * MS,
                         .balance_share = 0.05}},
        .n_output_usual = 16,
        .count = 400,
    };
}

static struct workload_config prefixes(uint32_t n, double rate)
{
    struct workload_config c = usual_config(WORKLOAD_PREFIX);

    c.arrival = (struct arrival_config){.kind = ARRIVAL_GAMMA, .rate = rate, .burstiness = 1};
    c.n_prefixes = n;
    c.prefix_len = (struct dist){.form = {{DIST_CONSTANT, 1000, 1000}}};
    c.input = (struct dist){.form = {{DIST_CONSTANT, 100, 100}}};
    c.output = (struct dist){.form = {{DIST_CONSTANT, 20, 20}}};
    return c;
}

static void simulate(struct made *m, const struct workload_config *w)
{
    assert_ok(workload_create(&m->workload, w, NULL));
    m->config.source = (struct load_source){next, m->workload};
    memset(&m->result, 0, sizeof m->result);
    buf_reset(&why);
    enum status s = sim_run(&m->config, &m->outcomes, &m->result, &why);
    if (s != OK)
        print_message("%s\n", buf_str(&why));
    assert_ok(s);
    outcome_list_sort(&m->outcomes);
}

static void fini(struct made *m)
{
    outcome_list_fini(&m->outcomes);
    workload_destroy(m->workload);
}

struct sums {
    double hit_share, remote_share, ttft_s;
};

static struct sums sum_up(const struct made *m)
{
    struct sums s = {0};
    double n_prompt = 0;

    for (size_t i = 0; i < m->outcomes.n; i++) {
        const struct outcome *o = &m->outcomes.v[i];
        assert_int_equal(o->end, OUTCOME_OK);
        n_prompt += (double)o->usage.prompt_tokens;
        s.hit_share += (double)o->usage.cached_tokens;
        s.remote_share += (double)o->usage.cached_by_tier[TARN_TIER_REMOTE];
        s.ttft_s += (double)(o->first_ns - o->intended_ns) / 1e9 / (double)m->outcomes.n;
    }
    s.hit_share /= n_prompt;
    s.remote_share /= n_prompt;
    return s;
}

static struct sums run(struct sim_config config, const struct workload_config *w)
{
    struct made m = {.config = config};

    simulate(&m, w);
    struct sums s = sum_up(&m);
    fini(&m);
    return s;
}

static void an_idle_light_instance_takes_as_long_as_the_cost_model_says(void **state)
{
    struct made m = {.config = usual_sim(1, ROUTE_RANDOM, false)};
    struct workload_config w = usual_config(WORKLOAD_RANDOM);

    (void)state;
    w.arrival = (struct arrival_config){.kind = ARRIVAL_CONSTANT, .rate = 0.1, .burstiness = 1};
    w.input = (struct dist){.form = {{DIST_CONSTANT, 100, 100}}};
    w.output = (struct dist){.form = {{DIST_CONSTANT, 5, 5}}};
    m.config.count = 3;
    simulate(&m, &w);
    for (size_t i = 0; i < 3; i++) {
        const struct outcome *o = &m.outcomes.v[i];
        /* As test_sim.c: 27 + 0.17 * 100, then four steps of 27 + 0.0006 for each cached token. */
        assert_near((double)(o->first_ns - o->intended_ns) / 1e6, 44, 1e-3);
        assert_near((double)(o->last_ns - o->first_ns) / 1e6,
                    4 * 27 + 0.0006 * (101 + 102 + 103 + 104), 1e-2);
        assert_int_equal(o->usage.completion_tokens, 5);
    }
    fini(&m);
}

static void a_pool_finds_what_another_instance_computed(void **state)
{
    struct workload_config w = prefixes(1, 2);
    struct made m = {.config = usual_sim(2, ROUTE_ROUND_ROBIN, true)};

    (void)state;
    m.config.count = 4;
    w.arrival.kind = ARRIVAL_CONSTANT;
    simulate(&m, &w);
    assert_int_equal(m.outcomes.v[0].usage.cached_tokens, 0);
    assert_int_equal(m.outcomes.v[1].usage.cached_by_tier[TARN_TIER_REMOTE], 1000);
    assert_int_equal(m.outcomes.v[2].usage.cached_by_tier[TARN_TIER_DEVICE], 1000);
    assert_int_equal(m.outcomes.v[3].usage.cached_by_tier[TARN_TIER_DEVICE], 1000);
    assert_int_equal(m.result.read_tokens, 1000);
    /* 1,000 tokens of 819,200 bytes at 50 GB/s are 16.4 ms, computing them 170 ms. */
    uint64_t first_ns = m.outcomes.v[0].first_ns - m.outcomes.v[0].intended_ns;
    uint64_t second_ns = m.outcomes.v[1].first_ns - m.outcomes.v[1].intended_ns;
    assert_near(((double)first_ns - (double)second_ns) / 1e6, 170 - 16.4 - 0.6, 1.5);
    fini(&m);
}

static void slow_links_are_not_used(void **state)
{
    struct workload_config w = prefixes(4, 2);
    struct made m = {.config = usual_sim(4, ROUTE_RANDOM, true)};

    (void)state;
    m.config.fleet.cluster.link_bytes_per_s = 1e9; /* 0.8 s for 170 ms of computing */
    simulate(&m, &w);
    assert_int_equal(m.result.n_reads, 0);
    fini(&m);
}

static void queries_leave_the_kv_where_it_is(void **state)
{
    struct workload_config w = prefixes(4, 2);
    struct made m = {.config = usual_sim(4, ROUTE_RANDOM, true)};

    (void)state;
    m.config.fleet.cluster.query = CLUSTER_QUERY_ALWAYS;
    m.config.fleet.cluster.balance_ns = 0;
    simulate(&m, &w);
    assert_true(m.result.n_queries > 100);
    assert_int_equal(m.result.n_reads, 0);
    assert_true(m.result.query_bytes > m.result.n_queries * 20 * (1 << 20));
    fini(&m);
}

static void queries_are_chosen_by_bytes(void **state)
{
    struct workload_config w = prefixes(4, 2);
    struct made m = {.config = usual_sim(4, ROUTE_RANDOM, true)};

    (void)state;
    m.config.fleet.cluster.query = CLUSTER_QUERY_AUTO;
    m.config.fleet.cluster.query_bytes = 1000; /* (100 + 20) rows, 4 segments: 0.5 MB for 0.8 GB */
    simulate(&m, &w);
    assert_true(m.result.n_queries > 0 && m.result.n_reads == 0);
    fini(&m);
    m = (struct made){.config = m.config};
    m.config.fleet.cluster.query_bytes = 1 << 24;
    simulate(&m, &w);
    assert_true(m.result.n_queries == 0 && m.result.n_reads > 0);
    fini(&m);
}

static void a_pool_finds_more_than_independent_caches(void **state)
{
    struct workload_config w = prefixes(60, 6); /* 15 prefixes fit into an instance */
    struct sims {
        struct sums alone, pool, precise, hash;
    } s;

    (void)state;
    s.alone = run(usual_sim(8, ROUTE_RANDOM, false), &w);
    s.pool = run(usual_sim(8, ROUTE_RANDOM, true), &w);
    s.precise = run(usual_sim(8, ROUTE_PRECISE, false), &w);
    s.hash = run(usual_sim(8, ROUTE_HASH, false), &w);
    assert_true(s.pool.hit_share > 1.5 * s.alone.hit_share);
    assert_true(s.pool.ttft_s < s.alone.ttft_s);
    assert_true(s.pool.remote_share > 0.2 && s.alone.remote_share == 0);
    assert_true(s.precise.hit_share > 1.5 * s.alone.hit_share);
    assert_true(s.hash.hit_share > 1.5 * s.alone.hit_share);
}

static void hashing_one_beginning_uses_one_instance(void **state)
{
    struct workload_config w = prefixes(1, 2);
    struct made m = {.config = usual_sim(4, ROUTE_HASH, false)};

    (void)state;
    simulate(&m, &w);
    assert_near(m.result.access_cv, 1.7320508, 1e-6); /* sqrt(3): one of four does all */
    fini(&m);
}

static void a_bound_spreads_one_beginning_over_all_instances(void **state)
{
    struct workload_config w = prefixes(1, 30);
    struct made m = {.config = usual_sim(4, ROUTE_HASH, true)};

    (void)state;
    m.config.fleet.hash_factor = 1.25;
    simulate(&m, &w);
    assert_true(m.result.access_cv < 0.5);
    assert_true(sum_up(&m).hit_share > 0.85);
    fini(&m);
}

/* All outcomes and counts of two runs are the same. */
static void equal_seeds_make_equal_runs(void **state)
{
    struct workload_config w = prefixes(40, 8);
    struct made m[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        m[i] = (struct made){.config = usual_sim(6, ROUTE_RANDOM, true)};
        m[i].config.fleet.cluster.fail_ns = SIM_START_NS + 10000 * MS;
        m[i].config.fleet.cluster.join_ns = SIM_START_NS + 20000 * MS;
        simulate(&m[i], &w);
    }
    assert_int_equal(m[0].outcomes.n, m[1].outcomes.n);
    for (size_t i = 0; i < m[0].outcomes.n; i++) {
        assert_int_equal(m[0].outcomes.v[i].first_ns, m[1].outcomes.v[i].first_ns);
        assert_int_equal(m[0].outcomes.v[i].end_ns, m[1].outcomes.v[i].end_ns);
    }
    assert_memory_equal(&m[0].result.access_cv, &m[1].result.access_cv,
                        offsetof(struct sim_result, simulated_s) -
                            offsetof(struct sim_result, access_cv));
    fini(&m[0]);
    fini(&m[1]);
}

static void the_requests_of_a_dead_instance_are_served_by_others(void **state)
{
    struct workload_config w = prefixes(10, 20);
    struct made m = {.config = usual_sim(4, ROUTE_RANDOM, true)};

    (void)state;
    m.config.fleet.cluster.fail_ns = SIM_START_NS + 5000 * MS;
    simulate(&m, &w);
    (void)sum_up(&m); /* all were answered */
    assert_true(m.result.n_moved_jobs > 0);
    assert_true(m.result.n_stale > 0); /* the directory named it for a while */
    fini(&m);
}

static void heavy_prefixes_get_copies(void **state)
{
    struct workload_config w = prefixes(30, 6);
    struct made m = {.config = usual_sim(16, ROUTE_SESSION, true)};

    (void)state;
    w.zipf = 1.5;
    simulate(&m, &w);
    assert_true(m.result.n_copies > 0);
    fini(&m);
    m = (struct made){.config = m.config};
    m.config.fleet.cluster.balance_ns = 0;
    simulate(&m, &w);
    assert_int_equal(m.result.n_copies + m.result.n_moves, 0);
    fini(&m);
}

/* Memory for few requests, short answers and long ones, faults, all ways of reading: all requests
 * are answered, and cluster_count() finds all counts right. */
static void random_clusters_answer_everything(void **state)
{
    uint64_t n_preempted = 0, n_reads = 0, n_queries = 0, n_moved = 0, n_groups = 0;

    (void)state;
    for (int round = 0; round < 40; round++) {
        struct workload_config w = prefixes(1 + draw(40), 4 + draw(40));
        struct made m = {.config = usual_sim(1 + draw(9), draw(6), draw(4) > 0)};
        struct cluster_config *c = &m.config.fleet.cluster;

        w.seed = 100 + round;
        w.output = (struct dist){.form = {{DIST_UNIFORM, 1, 1 + draw(400)}}};
        w.zipf = draw(3);
        m.config.count = 150;
        m.config.fleet.instance.n_device_blocks = 60 + draw(200);
        c->query = draw(3);
        c->query_bytes = 1u << (6 + draw(16));
        c->link_bytes_per_s = draw(2) ? 50e9 : 8e9;
        c->balance_ns = draw(2) * 50 * MS;
        c->is_elastic = c->is_pool && draw(2);
        c->fail_ns = draw(2) ? SIM_START_NS + draw(8000) * MS : 0;
        c->join_ns = c->fail_ns && draw(2) ? c->fail_ns + (1 + draw(4000)) * MS : 0;
        simulate(&m, &w);
        assert_int_equal(m.outcomes.n, 150);
        (void)sum_up(&m);
        n_preempted += m.result.n_preempted_for_memory;
        n_reads += m.result.n_reads;
        n_queries += m.result.n_queries;
        n_moved += m.result.n_moved_jobs;
        n_groups += m.result.n_group_steps;
        fini(&m);
    }
    assert_true(n_preempted > 0 && n_reads > 0 && n_queries > 0 && n_moved > 0 && n_groups > 0);
}

/* --- elastic prompts --- */

static struct workload_config long_prompts(double rate)
{
    struct workload_config w = prefixes(1000, rate);

    w.prefix_len = (struct dist){.form = {{DIST_CONSTANT, 8000, 8000}}};
    w.output = (struct dist){.form = {{DIST_CONSTANT, 1, 1}}};
    return w;
}

static struct sim_config elastic_sim(uint32_t n_instances, bool is_elastic)
{
    struct sim_config c = usual_sim(n_instances, ROUTE_ROUND_ROBIN, true);

    c.count = 40;
    c.fleet.cluster.is_elastic = is_elastic;
    return c;
}

static void idle_instances_shorten_a_long_prompt(void **state)
{
    struct workload_config w = long_prompts(0.05);

    (void)state;
    double alone = run(elastic_sim(4, false), &w).ttft_s,
           four = run(elastic_sim(4, true), &w).ttft_s;
    assert_true(four < alone / 2 && four > alone / 4);
}

static void slow_links_form_no_groups(void **state)
{
    struct workload_config w = long_prompts(0.05);
    struct made m = {.config = elastic_sim(4, true)};

    (void)state;
    m.config.fleet.cluster.link_bytes_per_s = 1e6;
    simulate(&m, &w);
    assert_int_equal(m.result.n_group_steps, 0);
    fini(&m);
}

static void one_instance_is_as_fast_as_without_groups(void **state)
{
    struct workload_config w = long_prompts(1);

    (void)state;
    assert_true(run(elastic_sim(1, false), &w).ttft_s == run(elastic_sim(1, true), &w).ttft_s);
}

static void helpers_take_part_in_the_busy_time(void **state)
{
    struct workload_config w = long_prompts(0.05);
    struct made m = {.config = elastic_sim(4, true)};

    (void)state;
    simulate(&m, &w);
    assert_true(m.result.n_group_steps > 0 && m.result.n_group_steps <= m.result.n_steps);
    assert_true(m.result.helped_ns > m.result.busy_ns / 2 && m.result.helped_ns < m.result.busy_ns);
    fini(&m);
}

/* --- beside the real scheduler and cache --- */

static void the_light_model_is_near_the_real_one(void **state)
{
    static const enum sim_routing routings[] = {ROUTE_RANDOM, ROUTE_HASH, ROUTE_PRECISE};
    struct workload_config w = prefixes(60, 8);

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(routings); i++) {
        struct sim_config light = usual_sim(4, routings[i], false), real = light;
        real.fleet.is_light = false;
        struct sums a = run(real, &w), b = run(light, &w);
        print_message("hits %.3f and %.3f, TTFT %.3f and %.3f s\n", a.hit_share, b.hit_share,
                      a.ttft_s, b.ttft_s);
        assert_near(a.hit_share, b.hit_share, 0.05);
        assert_true(b.ttft_s > 0.8 * a.ttft_s && b.ttft_s < 1.25 * a.ttft_s);
    }
}

static int setup(void **state)
{
    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    return sim_cost_builtin(&cost, &why) == OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    buf_fini(&why);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_holds_what_was_put_and_not_removed),
        cmocka_unit_test(the_least_recently_used_leaf_leaves_first),
        cmocka_unit_test(random_events_keep_a_shelf_consistent),
        cmocka_unit_test(the_directory_learns_late_of_all_changes),
        cmocka_unit_test(a_directory_with_too_much_to_do_is_away),
        cmocka_unit_test(an_idle_light_instance_takes_as_long_as_the_cost_model_says),
        cmocka_unit_test(a_pool_finds_what_another_instance_computed),
        cmocka_unit_test(slow_links_are_not_used),
        cmocka_unit_test(queries_leave_the_kv_where_it_is),
        cmocka_unit_test(queries_are_chosen_by_bytes),
        cmocka_unit_test(a_pool_finds_more_than_independent_caches),
        cmocka_unit_test(hashing_one_beginning_uses_one_instance),
        cmocka_unit_test(a_bound_spreads_one_beginning_over_all_instances),
        cmocka_unit_test(equal_seeds_make_equal_runs),
        cmocka_unit_test(the_requests_of_a_dead_instance_are_served_by_others),
        cmocka_unit_test(heavy_prefixes_get_copies),
        cmocka_unit_test(random_clusters_answer_everything),
        cmocka_unit_test(idle_instances_shorten_a_long_prompt),
        cmocka_unit_test(slow_links_form_no_groups),
        cmocka_unit_test(one_instance_is_as_fast_as_without_groups),
        cmocka_unit_test(helpers_take_part_in_the_busy_time),
        cmocka_unit_test(the_light_model_is_near_the_real_one),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
