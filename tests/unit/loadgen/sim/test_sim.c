/* The simulator: latencies by hand, conservation, equal runs, queues, routing, swapping. */
#include "tests/unit/loadgen/loadgen_test.h"

#include "base/check.h"
#include "engine/sched/cost_model.h"
#include "loadgen/sim/agenda.h"
#include "loadgen/sim/cost.h"
#include "loadgen/sim/ids.h"
#include "loadgen/sim/sim.h"

#define MS UINT64_C(1000000)

static struct cost_model cost;
static struct buf why;

/* --- what runs --- */

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

/* 12 GB/s each way, blocks of 26 MB as OPT-13B's. */
static struct sim_config usual_sim(const char *policy)
{
    return (struct sim_config){
        .fleet.instance = {.scheduler = {.policy = policy,
                                         .n_running_max = 4,
                                         .n_tokens_max = 512,
                                         .step_s_max = 0.1},
                           .cost = &cost,
                           .swap = SWAP_PROACTIVE,
                           .in_bytes_per_s = 12e9,
                           .out_bytes_per_s = 12e9,
                           .bytes_per_token = SIM_BUILTIN_BYTES_PER_TOKEN,
                           .n_device_blocks = 400,
                           .n_host_blocks = 1600,
                           .segment_tokens = 256,
                           .prefetch_share = 0.1,
                           .prefix_caching = true},
        .fleet.n_instances = 1,
        .n_output_usual = 16,
        .count = 100,
        .token_times = true,
    };
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

static struct workload_config constant(uint32_t n_in, uint32_t n_out, double rate)
{
    struct workload_config c = usual_config(WORKLOAD_RANDOM);

    c.arrival = (struct arrival_config){.kind = ARRIVAL_CONSTANT, .rate = rate, .burstiness = 1};
    c.input = (struct dist){.form = {{DIST_CONSTANT, n_in, n_in}}};
    c.output = (struct dist){.form = {{DIST_CONSTANT, n_out, n_out}}};
    return c;
}

/* --- latencies --- */

static void an_idle_servers_latency_is_the_cost_models(void **state)
{
    struct made m = {.config = usual_sim("fcfs")};
    struct workload_config w = constant(100, 5, 0.1);

    (void)state;
    m.config.count = 3;
    simulate(&m, &w);
    assert_int_equal(m.outcomes.n, 3);
    for (size_t i = 0; i < 3; i++) {
        const struct outcome *o = &m.outcomes.v[i];
        /* 27 + 0.17 * 100, then 27 + 0.0006 for each cached token. */
        double at_ms = 27 + 17;
        assert_near((o->intended_ns - SIM_START_NS) / 1e9, i * 10.0, 1e-9);
        assert_int_equal(o->n_tokens, 5);
        for (uint32_t k = 0; k < 5; k++) {
            assert_near((double)(o->token_ns[k] - o->intended_ns) / 1e6, at_ms, 1e-3);
            at_ms += 27 + 0.0006 * (100 + k);
        }
        assert_int_equal(o->usage.cached_tokens, 0);
        assert_int_equal(o->end_ns, o->last_ns);
        assert_int_equal(o->sent_ns, o->intended_ns);
    }
    fini(&m);
}

static void the_hosts_part_of_a_step_delays_it(void **state)
{
    struct made m = {.config = usual_sim("fcfs")};
    struct workload_config w = constant(100, 2, 0.1);

    (void)state;
    m.config.count = 1;
    m.config.fleet.instance.overhead_ns = 3 * MS;
    simulate(&m, &w);
    assert_near((double)(m.outcomes.v[0].first_ns - SIM_START_NS) / 1e6, 3 + 27 + 17, 1e-3);
    fini(&m);
}

static void a_prompt_seen_before_is_not_computed_again(void **state)
{
    struct made m = {.config = usual_sim("fcfs")};
    struct workload_config w = constant(10, 2, 0.1);

    (void)state;
    w.kind = WORKLOAD_PREFIX;
    w.n_prefixes = 1;
    w.prefix_len = dist_of("constant:320");
    m.config.count = 2;
    simulate(&m, &w);
    assert_int_equal(m.outcomes.v[0].usage.cached_tokens, 0);
    assert_int_equal(m.outcomes.v[1].usage.cached_tokens, 320);
    assert_int_equal(m.outcomes.v[1].usage.cached_by_tier[TARN_TIER_DEVICE], 320);
    double ms = (double)(m.outcomes.v[1].first_ns - m.outcomes.v[1].intended_ns) / 1e6;
    assert_near(ms, 27 + 0.17 * 10 + 0.0006 * 320, 1e-3);
    fini(&m);
}

/* The server has one place, so the second of two requests waits for the first. */
/* --- searches, speculation, prefills in the background --- */

/* Requests far apart, each with two documents of 256 tokens and a question of 32; nearly all lists
 * differ. The prefill takes 27 + 0.17 * 544 ms. */
static struct workload_config two_documents(void)
{
    struct workload_config c = constant(32, 1, 0.1);

    c.kind = WORKLOAD_RAG;
    c.n_documents = 100000;
    c.n_retrieved = 2;
    c.document_len = dist_of("constant:256");
    return c;
}

/* A prompt is one step. */
static struct sim_config searching(double search_s, double final_share, bool speculates)
{
    struct sim_config c = usual_sim("fcfs");

    c.fleet.instance.scheduler.n_tokens_max = 1024;
    c.fleet.instance.scheduler.step_s_max = 1;
    c.search = (struct sim_search){search_s, 4, final_share, speculates};
    return c;
}

static double first_ms(const struct made *m, size_t i)
{
    return (double)(m->outcomes.v[i].first_ns - m->outcomes.v[i].intended_ns) / 1e6;
}

static void a_request_waits_for_its_search(void **state)
{
    struct made m = {.config = searching(0.2, 0.25, false)};
    struct workload_config w = two_documents();

    (void)state;
    m.config.count = 2;
    simulate(&m, &w);
    for (size_t i = 0; i < 2; i++)
        assert_near(first_ms(&m, i), 200 + 27 + 0.17 * 544, 1e-3);
    assert_int_equal(m.result.n_speculated, 0);
    fini(&m);
}

static void a_list_that_is_final_early_is_prefilled_during_the_search(void **state)
{
    struct made m = {.config = searching(0.2, 0.25, true)};
    struct workload_config w = two_documents();

    (void)state;
    m.config.count = 3;
    simulate(&m, &w);
    for (size_t i = 0; i < 3; i++) {
        /* Prefilled from 50 to 170 ms; the block with the last id is computed again. */
        assert_int_equal(m.outcomes.v[i].usage.cached_tokens, 512);
        assert_near(first_ms(&m, i), 200 + 27 + 0.17 * 32 + 0.0006 * 512, 1e-3);
    }
    assert_int_equal(m.result.n_speculated, 3);
    assert_int_equal(m.result.n_speculated_in_vain, 0);
    fini(&m);
}

static void lists_that_change_are_speculated_on_in_vain(void **state)
{
    struct made m = {.config = searching(0.8, 1, true)}; /* a stage is longer than a prefill */
    struct workload_config w = two_documents();

    (void)state;
    m.config.count = 2;
    simulate(&m, &w);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(m.outcomes.v[i].usage.cached_tokens, 0);
        assert_near(first_ms(&m, i), 800 + 27 + 0.17 * 544, 1e-3);
    }
    assert_int_equal(m.result.n_speculated, 6);
    assert_int_equal(m.result.n_speculated_in_vain, 6);
    fini(&m);
}

static void clients_that_hang_up_during_a_search_end_with_the_run(void **state)
{
    struct made m = {.config = usual_sim("fcfs")};
    struct workload_config w = two_documents();

    (void)state;
    m.config.count = 0;
    m.config.duration_s = 30;
    m.config.drain_s = 0.1; /* the last search is under way then */
    m.config.search = (struct sim_search){5, 2, 0.5, true};
    w.arrival.rate = 1;
    simulate(&m, &w);
    uint64_t n_ok = 0, n_unfinished = 0;
    for (size_t i = 0; i < m.outcomes.n; i++) {
        n_ok += m.outcomes.v[i].end == OUTCOME_OK;
        n_unfinished += m.outcomes.v[i].end == OUTCOME_UNFINISHED;
    }
    assert_true(n_ok >= 20 && n_unfinished >= 3);
    assert_int_equal(n_ok + n_unfinished, m.outcomes.n);
    fini(&m);
}

/* An idle server's times are the cost model's, and so are the predictions. */
static void predictions_are_compared_with_what_came(void **state)
{
    struct made m = {.config = usual_sim("fcfs")}, loaded = {.config = usual_sim("fcfs")};
    struct workload_config w = constant(100, 5, 0.1), fast = constant(100, 5, 60);

    (void)state;
    m.config.count = 1; /* nothing is corrected yet */
    m.config.fleet.instance.predicts = true;
    simulate(&m, &w);
    assert_int_equal(m.result.n_estimated, 1);
    assert_near(m.result.ttft_error[1], 0, 1e-6);
    fini(&m);

    loaded.config.count = 200;
    loaded.config.fleet.instance.predicts = true;
    simulate(&loaded, &fast);
    assert_int_equal(loaded.result.n_estimated, 200);
    assert_true(loaded.result.ttft_error[1] > 1e-3 && loaded.result.ttft_error[1] < 1);
    assert_true(loaded.result.e2e_error[0] > 1e-3 && loaded.result.e2e_error[0] < 1);
    fini(&loaded);
}

static void documents_are_prefilled_in_the_background(void **state)
{
    struct made m = {.config = usual_sim("fcfs")};
    struct workload_config w = constant(100, 2, 0.5);

    (void)state;
    m.config.count = 20;
    m.config.n_background = 5;
    m.config.n_background_tokens = 740;
    simulate(&m, &w);
    assert_int_equal(m.outcomes.n, 20);
    assert_int_equal(m.result.n_background, 5);
    fini(&m);

    struct made endless = {.config = usual_sim("fcfs")}; /* what is left ends with the requests */
    endless.config.count = 20;
    endless.config.n_background = 1000000;
    endless.config.n_background_tokens = 740;
    simulate(&endless, &w);
    assert_int_equal(endless.outcomes.n, 20);
    assert_true(endless.result.n_background > 50 && endless.result.n_background < 1000);
    fini(&endless);
}

static void an_unknown_cache_policy_is_refused_in_words(void **state)
{
    struct made m = {.config = usual_sim("fcfs")};
    struct workload_config w = constant(10, 2, 1);

    (void)state;
    m.config.fleet.instance.cache_policy = "newest";
    assert_ok(workload_create(&m.workload, &w, NULL));
    m.config.source = (struct load_source){next, m.workload};
    buf_reset(&why);
    assert_int_equal(sim_run(&m.config, &m.outcomes, &m.result, &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "newest"));
    fini(&m);
}

static void one_place_serves_one_after_the_other(void **state)
{
    struct made m = {.config = usual_sim("fcfs")};
    struct workload_config w = constant(100, 1, 0);

    (void)state;
    w.arrival.kind = ARRIVAL_AT_ONCE;
    m.config.count = 2;
    m.config.fleet.instance.scheduler.n_running_max = 1;
    simulate(&m, &w);
    assert_near((double)(m.outcomes.v[0].first_ns - SIM_START_NS) / 1e6, 44, 1e-3);
    assert_near((double)(m.outcomes.v[1].first_ns - SIM_START_NS) / 1e6, 88, 1e-3);
    fini(&m);
}

/* --- conservation --- */

static void check_outcome(const struct outcome *o)
{
    assert_int_equal(o->end, OUTCOME_OK);
    assert_int_equal(o->n_tokens, o->n_output_asked);
    assert_int_equal(o->usage.completion_tokens, o->n_output_asked);
    assert_int_equal(o->usage.prompt_tokens, o->n_prompt_asked);
    assert_true(o->usage.cached_tokens < o->n_prompt_asked);
    assert_true(o->intended_ns <= o->sent_ns && o->sent_ns < o->first_ns);
    for (uint32_t i = 1; i < o->n_tokens; i++)
        assert_true(o->token_ns[i] > o->token_ns[i - 1]);
    assert_int_equal(o->token_ns[o->n_tokens - 1], o->last_ns);
}

static void every_request_ends_once_with_its_tokens(void **state)
{
    static const char *const policies[] = {"fcfs", "skip-join-mlfq", "mlfq", "srpt", "sjf-prompt"};

    (void)state;
    for (size_t p = 0; p < ARRAY_SIZE(policies); p++)
        for (enum sim_swap swap = SWAP_PROACTIVE; swap <= SWAP_OFF; swap++) {
            struct made m = {.config = usual_sim(policies[p])};
            struct workload_config w = usual_config(WORKLOAD_RANDOM);

            w.input = dist_of("uniform:1:300");
            w.output = dist_of("lognormal:40:2");
            w.output_max = 300;
            w.arrival.rate = 4; /* overload: requests queue, and memory is short */
            m.config.fleet.instance.swap = swap;
            m.config.fleet.instance.n_device_blocks = 44;
            m.config.fleet.instance.n_host_blocks = 100;
            m.config.fleet.instance.scheduler.starvation_s = INFINITY;
            simulate(&m, &w);
            assert_int_equal(m.outcomes.n, 100);
            for (size_t i = 0; i < m.outcomes.n; i++) {
                assert_int_equal(m.outcomes.v[i].index, i);
                check_outcome(&m.outcomes.v[i]);
            }
            if (swap >= SWAP_RECOMPUTE)
                assert_int_equal(m.result.copied_in_bytes + m.result.copied_out_bytes, 0);
            fini(&m);
        }
}

static void conversations_follow_their_ends(void **state)
{
    struct made m = {.config = usual_sim("skip-join-mlfq")};
    struct workload_config w = usual_config(WORKLOAD_MULTITURN);

    (void)state;
    w.think_s = 0.5;
    w.arrival.rate = 1;
    m.config.send_session = m.config.real_history = true;
    simulate(&m, &w);
    assert_int_equal(m.outcomes.n, 100);
    for (size_t i = 1; i < m.outcomes.n; i++) {
        const struct outcome *o = &m.outcomes.v[i], *before = o - 1;
        if (o->turn == 0)
            continue;
        assert_int_equal(before->session, o->session);
        assert_true(o->intended_ns >= before->end_ns);
        /* All tokens that were computed before, except for the last block and its last token. */
        assert_true(o->usage.cached_tokens >=
                    (int64_t)before->n_prompt_asked + before->n_output_asked - 33);
    }
    fini(&m);
}

/* --- programs --- */

/* Mean seconds of whole programs of ten requests, with log-normal pauses, near the capacity. */
static double mean_program_s(bool by_program)
{
    struct made m = {.config = usual_sim("skip-join-mlfq")};
    struct workload_config w = usual_config(WORKLOAD_MULTITURN);
    double sum_s = 0;
    uint32_t n = 0;

    m.config.fleet.instance.scheduler.variant = "learned";
    m.config.send_session = by_program;
    m.config.real_history = m.config.ends_conversations = true;
    m.config.count = 2000;
    w.turns = dist_of("10");
    w.input = dist_of("uniform:1:60");
    w.output = dist_of("lognormal:40:1");
    w.think_s = 5;
    w.think_cv = 1;
    w.arrival.rate = 0.35;
    simulate(&m, &w);
    for (size_t i = 0; i < m.outcomes.n; i++) {
        const struct outcome *o = &m.outcomes.v[i];
        if (!o->is_last)
            continue;
        assert_int_equal(o->turn, 9);
        assert_true(o->paused_ns > 0 && o->began_ns + o->paused_ns < o->last_ns);
        sum_s += (double)(o->last_ns - o->began_ns) / 1e9;
        n++;
    }
    assert_int_equal(n * 10, m.outcomes.n); /* every program that began has ended */
    fini(&m);
    return sum_s / n;
}

static void ranking_by_program_shortens_whole_programs(void **state)
{
    double by_call_s = mean_program_s(false), by_program_s = mean_program_s(true);

    (void)state;
    print_message("mean program: by call %.1f s, by program %.1f s\n", by_call_s, by_program_s);
    assert_true(by_program_s < by_call_s);
}

/* --- equal runs --- */

static void equal_seeds_give_equal_outcomes(void **state)
{
    struct made m[2];

    (void)state;
    for (int k = 0; k < 2; k++) {
        struct workload_config w = usual_config(WORKLOAD_RAG);
        m[k] = (struct made){.config = usual_sim("skip-join-mlfq")};
        w.n_documents = 30;
        w.arrival.rate = 6;
        m[k].config.fleet.n_instances = 3;
        m[k].config.fleet.instance.n_device_blocks = 40;
        simulate(&m[k], &w);
    }
    assert_int_equal(m[0].outcomes.n, m[1].outcomes.n);
    for (size_t i = 0; i < m[0].outcomes.n; i++) {
        const struct outcome *a = &m[0].outcomes.v[i], *b = &m[1].outcomes.v[i];
        assert_int_equal(a->n_tokens, b->n_tokens);
        assert_memory_equal(a->token_ns, b->token_ns, a->n_tokens * sizeof *a->token_ns);
        assert_memory_equal(&a->usage, &b->usage, sizeof a->usage);
    }
    assert_memory_equal(&m[0].result, &m[1].result, sizeof m[0].result);
    fini(&m[0]);
    fini(&m[1]);
}

/* --- limits --- */

static uint64_t count_ends(const struct made *m, enum outcome_end end, int http_status)
{
    uint64_t n = 0;

    for (size_t i = 0; i < m->outcomes.n; i++)
        n += m->outcomes.v[i].end == end && m->outcomes.v[i].http_status == http_status;
    return n;
}

static void a_full_queue_refuses_requests(void **state)
{
    struct made m = {.config = usual_sim("fcfs")};
    struct workload_config w = constant(50, 20, 0);

    (void)state;
    w.arrival.kind = ARRIVAL_AT_ONCE;
    m.config.fleet.instance.n_queued_max = 10;
    simulate(&m, &w);
    /* All requests come before the first step: n_running_max of them run and ten wait. */
    uint32_t n_inside = 10 + m.config.fleet.instance.scheduler.n_running_max;
    assert_int_equal(count_ends(&m, OUTCOME_OK, 200), n_inside);
    assert_int_equal(count_ends(&m, OUTCOME_FAILED, 429), 100 - n_inside);
    assert_int_equal(m.outcomes.v[99].error, TARN_ERR_BUSY);
    fini(&m);
}

static void sequences_beyond_the_memory_are_cut_or_refused(void **state)
{
    struct made m = {.config = usual_sim("fcfs")};
    struct workload_config w = constant(100, 1000, 0.01);

    (void)state;
    m.config.count = 1;
    m.config.fleet.instance.n_device_blocks = 8;
    simulate(&m, &w);
    assert_int_equal(m.result.n_cut, 1);
    assert_int_equal(m.outcomes.v[0].n_tokens, 7 * 32 + 31 - 100);
    fini(&m);
    memset(&m, 0, sizeof m);
    m.config = usual_sim("fcfs");
    m.config.count = 1;
    m.config.fleet.instance.n_device_blocks = 3;
    simulate(&m, &w);
    assert_int_equal(count_ends(&m, OUTCOME_FAILED, 400), 1);
    assert_non_null(strstr(m.outcomes.v[0].message, "--kv-device-bytes"));
    fini(&m);
}

static void clients_that_hang_up_get_no_more(void **state)
{
    struct made m = {.config = usual_sim("skip-join-mlfq")};
    struct workload_config w = constant(50, 40, 3);
    uint32_t n_early = 0;

    (void)state;
    w.disconnect_share = 1;
    simulate(&m, &w);
    assert_int_equal(m.outcomes.n, 100);
    for (size_t i = 0; i < m.outcomes.n; i++) {
        const struct outcome *o = &m.outcomes.v[i];
        if (o->end == OUTCOME_OK) /* its client would have cancelled after its last token */
            continue;
        assert_int_equal(o->end, OUTCOME_DISCONNECTED);
        assert_true(o->n_tokens <= 40);
        n_early += o->n_tokens < 40;
    }
    assert_true(n_early > 80);
    fini(&m);
}

static void a_run_of_some_seconds_stops_then(void **state)
{
    struct made m = {.config = usual_sim("fcfs")};
    struct workload_config w = constant(50, 200, 2);

    (void)state;
    m.config.count = 0;
    m.config.warmup_s = 2;
    m.config.duration_s = 5;
    m.config.drain_s = 1;
    simulate(&m, &w);
    assert_int_equal(m.outcomes.n, 14);
    for (size_t i = 0; i < m.outcomes.n; i++)
        assert_int_equal(m.outcomes.v[i].measured, i >= 4);
    assert_true(count_ends(&m, OUTCOME_UNFINISHED, 200) > 0);
    assert_true(m.result.simulated_s <= 2 + 5 + 1 + 0.5);
    fini(&m);
}

static void a_closed_loop_keeps_its_places_full(void **state)
{
    struct made m = {.config = usual_sim("fcfs")};
    struct workload_config w = constant(50, 20, 0);

    (void)state;
    w.arrival.kind = ARRIVAL_CLOSED;
    m.config.closed = true;
    m.config.concurrency = 3;
    simulate(&m, &w);
    assert_int_equal(count_ends(&m, OUTCOME_OK, 200), 100);
    for (size_t i = 3; i < m.outcomes.n; i++)
        assert_int_equal(m.outcomes.v[i].sent_ns, m.outcomes.v[i - 3].end_ns);
    fini(&m);
}

/* --- capacity --- */

/* Four places, 27 ms a step and a little, 10 tokens each: their prompts cost 17 ms once. */
static void the_capacity_is_that_of_full_batches(void **state)
{
    struct sim_config config = usual_sim("fcfs");
    struct workload_config w = constant(100, 10, 0);
    struct sim_capacity capacity;
    struct workload *workload;

    (void)state;
    w.arrival.kind = ARRIVAL_CLOSED;
    assert_ok(workload_create(&workload, &w, NULL));
    config.source = (struct load_source){next, workload};
    config.closed = true;
    config.fleet.instance.n_device_blocks = 4000; /* no copies */
    config.concurrency = 16;
    config.count = 400;
    assert_ok(sim_capacity(&config, &capacity, &why));
    double ms = (10 * (27 + 0.0006 * 4 * 105) + 4 * 17) / 4;
    assert_near(capacity.requests_per_s, 1e3 / ms, 0.05 * 1e3 / ms);
    assert_near(capacity.conversations_per_s, capacity.requests_per_s, 1e-9);
    workload_destroy(workload);
}

/* --- several instances --- */

static void routing_spreads_and_sticks(void **state)
{
    struct made m = {.config = usual_sim("fcfs")}, one = {.config = usual_sim("fcfs")};
    struct workload_config w = usual_config(WORKLOAD_MULTITURN);

    (void)state;
    w.arrival.rate = 2;
    m.config.fleet.n_instances = one.config.fleet.n_instances = 4;
    m.config.real_history = one.config.real_history = true;
    m.config.fleet.routing = ROUTE_SESSION;
    one.config.fleet.routing = ROUTE_ROUND_ROBIN;
    simulate(&m, &w);
    simulate(&one, &w);
    int64_t sticky = 0, spread = 0;
    for (size_t i = 0; i < 100; i++) {
        sticky += m.outcomes.v[i].usage.cached_tokens;
        spread += one.outcomes.v[i].usage.cached_tokens;
    }
    assert_true(sticky > 2 * spread); /* a session finds the blocks of its earlier turns */
    fini(&m);
    fini(&one);
}

/* Four requests at once on four instances: no two share a step. */
static void the_least_loaded_instance_is_taken(void **state)
{
    struct made m = {.config = usual_sim("fcfs")};
    struct workload_config w = constant(100, 1, 0);

    (void)state;
    w.arrival.kind = ARRIVAL_AT_ONCE;
    m.config.count = m.config.fleet.n_instances = 4;
    simulate(&m, &w);
    assert_int_equal(m.result.n_steps, 4);
    for (size_t i = 0; i < 4; i++)
        assert_near((double)(m.outcomes.v[i].first_ns - SIM_START_NS) / 1e6, 44, 1e-3);
    fini(&m);
}

/* --- swapping --- */

static struct made swapped(enum sim_swap swap)
{
    struct made m = {.config = usual_sim("srpt")};
    struct workload_config w = usual_config(WORKLOAD_RANDOM);

    w.input = dist_of("constant:200");
    w.output = dist_of("lognormal:100:1");
    w.output_max = 400;
    w.arrival.rate = 1.1;
    m.config.fleet.instance.n_device_blocks = 60;
    m.config.fleet.instance.n_host_blocks = 4000;
    m.config.fleet.instance.swap = swap;
    m.config.fleet.instance.scheduler.starvation_s = INFINITY;
    simulate(&m, &w);
    return m;
}

static void copies_ahead_of_time_are_waited_for_less(void **state)
{
    struct made ahead = swapped(SWAP_PROACTIVE), late = swapped(SWAP_REACTIVE);
    struct made again = swapped(SWAP_RECOMPUTE);

    (void)state;
    assert_true(late.result.n_spilled_on_demand > 0 && late.result.n_fetched_on_demand > 0);
    assert_int_equal(late.result.n_spilled_ahead + late.result.n_fetched_ahead, 0);
    assert_true(ahead.result.n_spilled_ahead > 0);
    assert_true(ahead.result.compute_waited_ns < late.result.compute_waited_ns);
    assert_true(late.result.compute_waited_ns > 0);
    assert_true(again.result.n_tokens_recomputed > 4 * ahead.result.n_tokens_recomputed);
    fini(&ahead);
    fini(&late);
    fini(&again);
}

/* --- parts --- */

static void ids_follow_from_parts_and_spans_from_documents(void **state)
{
    struct sim_prompt_config c = {.tenant = 1, .segment_tokens = 256};
    struct cache_prompt a, b;
    struct load_request r;

    (void)state;
    load_request_init(&r, 0);
    assert_non_null(load_request_add(&r, PART_SYSTEM, 11, 40));
    assert_non_null(load_request_add(&r, PART_DOCUMENT, 22, 50));
    assert_non_null(load_request_add(&r, PART_DOCUMENT, 33, 60));
    assert_non_null(load_request_add(&r, PART_USER, 44, 0));
    r.parts[3].text = "  ten words make\tthirteen tokens, as said in the\nheader ";
    r.parts[3].text_len = strlen(r.parts[3].text);
    assert_ok(sim_prompt_make(&a, &r, &c));
    assert_int_equal(a.n_ids, 40 + 50 + 60 + 13);
    const uint32_t ends[] = {40, 90, 150};
    assert_int_equal(a.n_span_ends, 3);
    assert_memory_equal(a.span_ends, ends, sizeof ends);
    assert_int_equal(a.n_keys, 2 + 2 + 2);
    r.parts[3].id = 55; /* another question */
    assert_ok(sim_prompt_make(&b, &r, &c));
    assert_memory_equal(a.ids, b.ids, 150 * sizeof *a.ids);
    assert_memory_not_equal(a.ids + 150, b.ids + 150, 10 * sizeof *a.ids);
    assert_memory_equal(a.keys, b.keys, 6 * sizeof *a.keys);
    sim_prompt_fini(&b);
    c.tenant = 2; /* tenants share nothing */
    assert_ok(sim_prompt_make(&b, &r, &c));
    assert_memory_not_equal(a.keys, b.keys, sizeof *a.keys);
    sim_prompt_fini(&a);
    sim_prompt_fini(&b);
    load_request_fini(&r);
}

#define N_ITEMS 300

static void an_agenda_is_in_order_whoever_leaves(void **state)
{
    static struct agenda_item items[N_ITEMS];
    struct agenda a = {0};
    uint64_t last_due = 0, last_number = 0, seed = 1;
    uint32_t n = 0;

    (void)state;
    for (uint32_t i = 0; i < N_ITEMS; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        agenda_item_init(&items[i], i);
        assert_ok(agenda_add(&a, &items[i], seed >> 58));
    }
    for (uint32_t i = 0; i < N_ITEMS; i += 3)
        agenda_remove(&a, &items[i]);
    agenda_remove(&a, &items[0]); /* removed twice: no effect */
    for (struct agenda_item *item; (item = agenda_first(&a)); n++) {
        assert_true(item->due_ns > last_due ||
                    (item->due_ns == last_due && (n == 0 || item->number > last_number)));
        assert_true(item->number % 3 != 0);
        last_due = item->due_ns;
        last_number = item->number;
        agenda_remove(&a, item);
    }
    assert_int_equal(n, N_ITEMS - N_ITEMS / 3);
    agenda_fini(&a);
}

static void a_cost_file_of_any_machine_is_read(void **state)
{
    struct cost_model_subject subject = {{1, 2, 250}, "cpu 2 threads"};
    struct cost_model read;
    struct scratch files;
    struct buf text;

    (void)state;
    scratch_init(&files);
    buf_init(&text, 1 << 20);
    assert_ok(cost_model_write(&text, &cost, &subject));
    assert_ok(sim_cost_load(&read, scratch_write(&files, "cost.json", buf_str(&text)), &why));
    assert_near(cost_model_seconds(&read, 64, 300), cost_model_seconds(&cost, 64, 300), 1e-9);
    assert_int_equal(sim_cost_load(&read, scratch_write(&files, "no.json", "{\"a\":1}"), &why),
                     ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "no.json"));
    assert_int_equal(sim_cost_load(&read, "/nowhere/cost.json", &why), ERR_NOT_FOUND);
    buf_fini(&text);
    scratch_fini(&files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_idle_servers_latency_is_the_cost_models),
        cmocka_unit_test(the_hosts_part_of_a_step_delays_it),
        cmocka_unit_test(a_prompt_seen_before_is_not_computed_again),
        cmocka_unit_test(a_request_waits_for_its_search),
        cmocka_unit_test(a_list_that_is_final_early_is_prefilled_during_the_search),
        cmocka_unit_test(lists_that_change_are_speculated_on_in_vain),
        cmocka_unit_test(clients_that_hang_up_during_a_search_end_with_the_run),
        cmocka_unit_test(predictions_are_compared_with_what_came),
        cmocka_unit_test(documents_are_prefilled_in_the_background),
        cmocka_unit_test(an_unknown_cache_policy_is_refused_in_words),
        cmocka_unit_test(one_place_serves_one_after_the_other),
        cmocka_unit_test(every_request_ends_once_with_its_tokens),
        cmocka_unit_test(conversations_follow_their_ends),
        cmocka_unit_test(ranking_by_program_shortens_whole_programs),
        cmocka_unit_test(equal_seeds_give_equal_outcomes),
        cmocka_unit_test(a_full_queue_refuses_requests),
        cmocka_unit_test(sequences_beyond_the_memory_are_cut_or_refused),
        cmocka_unit_test(clients_that_hang_up_get_no_more),
        cmocka_unit_test(a_run_of_some_seconds_stops_then),
        cmocka_unit_test(a_closed_loop_keeps_its_places_full),
        cmocka_unit_test(the_capacity_is_that_of_full_batches),
        cmocka_unit_test(routing_spreads_and_sticks),
        cmocka_unit_test(the_least_loaded_instance_is_taken),
        cmocka_unit_test(copies_ahead_of_time_are_waited_for_less),
        cmocka_unit_test(ids_follow_from_parts_and_spans_from_documents),
        cmocka_unit_test(an_agenda_is_in_order_whoever_leaves),
        cmocka_unit_test(a_cost_file_of_any_machine_is_read),
    };

    buf_init(&why, BUF_WHY_MAX);
    if (sim_cost_builtin(&cost, &why) != OK)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    buf_fini(&why);
    return failed;
}
