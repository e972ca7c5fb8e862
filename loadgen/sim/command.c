#include "loadgen/sim/command.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/flags.h"
#include "engine/sched/contest.h"
#include "engine/sched/cost_model.h"
#include "engine/settings.h"
#include "loadgen/load/report.h"
#include "loadgen/sim/cost.h"
#include "loadgen/sim/ids.h"
#include "loadgen/sim/sim.h"

/* The closed loop that measures the capacity runs full batches with as many requests waiting, and
 * enough requests for its beginning and end to be a small part. */
#define N_ROUNDS_INSIDE 2
#define N_ROUNDS_MIN 6
#define N_MEASURED_USUAL 4000
#define N_MEASURED_MAX 20000
#define N_OUTPUT_USUAL 128 /* tokens of a request without a length: the default of --output-len */

struct command {
    const struct options *o;
    struct cost_model cost;
    struct sim_config config;
    struct workload *workload;
    struct outcome_list outcomes;
    struct sim_result result;
};

static enum status next(void *arg, struct load_request *out)
{
    return workload_next(arg, out);
}

static enum status blocks_of(uint32_t *out, const char *flag, uint64_t n_bytes,
                             uint64_t bytes_per_token, uint32_t n_min, struct buf *why)
{
    uint64_t n = n_bytes / (bytes_per_token * KV_BLOCK_TOKENS);

    if (n < n_min || n > UINT32_MAX / 8)
        return buf_why(why, ERR_INVALID, "%s: are %llu blocks of %u tokens; expected %u to %u",
                       flag, (unsigned long long)n, KV_BLOCK_TOKENS, n_min, UINT32_MAX / 8);
    *out = (uint32_t)n;
    return OK;
}

static enum status fill_instance(struct command *x, struct buf *why)
{
    const struct options *o = x->o;
    uint64_t bytes_per_token = (o->kv_bytes_per_token + 3) / 4 * 4;
    bool is_auto = strcmp(o->scheduling_policy, CONTEST_AUTO) == 0;
    struct instance_config *c = &x->config.fleet.instance;

    *c = (struct instance_config){
        .follows_contest = is_auto,
        .predicts = o->estimates,
        .scheduler = {.policy = is_auto ? DEFAULT_SCHEDULING_POLICY : o->scheduling_policy,
                      .n_running_max = (uint32_t)o->n_seqs_max,
                      .n_tokens_max = (uint32_t)o->n_batched_tokens_max,
                      .step_s_max = o->max_step_ms / 1e3,
                      .quantum_s = o->quantum_ms / 1e3,
                      .ratio = o->level_ratio,
                      .starvation_s = o->starvation_s,
                      .variant = o->mlfq_variant,
                      .objective = (enum latency_objective)flag_choice_at(LATENCY_OBJECTIVE_NAMES,
                                                                          o->latency_objective),
                      .age_s = o->age_boost_ms / 1e3,
                      .reorder_window = (uint32_t)o->cache_reorder_window,
                      .reserve_blocks = (uint32_t)o->kv_reserve_blocks},
        .cost = &x->cost,
        .swap = (enum sim_swap)flag_choice_at("proactive|reactive|recompute|off", o->kv_swap),
        .in_bytes_per_s = (double)o->copy_in_bytes,
        .out_bytes_per_s = (double)o->copy_out_bytes,
        .bytes_per_token = bytes_per_token,
        .segment_tokens = DEFAULT_KV_SEGMENT_TOKENS,
        .prefetch_share = o->kv_prefetch_share,
        .prefix_caching = o->prefix_caching,
        .cache_policy = o->cache_policy,
        .overhead_ns = (uint64_t)(o->step_overhead_us * 1e3),
        .n_queued_max = (uint32_t)o->n_queued_max,
    };
    enum status s = blocks_of(&c->n_device_blocks, "--kv-device-bytes", o->kv_device_bytes,
                              bytes_per_token, 2, why);
    return s == OK ? blocks_of(&c->n_host_blocks, "--kv-host-bytes", o->kv_host_bytes,
                               bytes_per_token, 0, why)
                   : s;
}

static uint64_t ns_of(double ms)
{
    return (uint64_t)(ms * 1e6 + 0.5);
}

static void fill_cluster(struct fleet_config *f, const struct options *o)
{
    f->hash_tokens = (uint32_t)o->hash_tokens;
    f->hash_factor = o->hash_factor;
    f->is_light = strcmp(o->instance_model, "light") == 0;
    f->cluster = (struct cluster_config){
        .is_pool = o->pool,
        .link_bytes_per_s = (double)o->link_bytes,
        .link_ns = (uint64_t)(o->link_us * 1e3 + 0.5),
        .lookup_ns = ns_of(o->pool_lookup_ms),
        .directory_ns = ns_of(o->directory_ms),
        .command_ns = (uint64_t)(o->directory_us * 1e3 + 0.5),
        .query = (enum cluster_query)flag_choice_at("auto|never|always", o->pool_query),
        .query_bytes = o->query_bytes,
        .n_layers = (uint32_t)o->query_layers,
        .balance_ns = ns_of(o->balance_ms),
        .balance_share = o->balance_share,
        .is_elastic = o->elastic,
        .fail_ns = o->fail_at_s > 0 ? SIM_START_NS + ns_of(1e3 * o->fail_at_s) : 0,
        .join_ns = o->join_at_s > 0 ? SIM_START_NS + ns_of(1e3 * o->join_at_s) : 0,
    };
}

/* The light model leaves out what the real engine and cache do beside it. */
static enum status check_light(const struct options *o, struct buf *why)
{
    bool is_light = strcmp(o->instance_model, "light") == 0;

    if (!is_light && (o->pool || o->fail_at_s > 0))
        return buf_why(why, ERR_INVALID, "--pool, --fail-at: need --instance-model light");
    if (o->elastic && !o->pool)
        return buf_why(why, ERR_INVALID, "--elastic: needs --pool");
    if (is_light && (o->search_ms > 0 || o->background_documents > 0 || o->estimates))
        return buf_why(
            why, ERR_INVALID,
            "--search-ms, --background-documents, --estimates: need --instance-model real");
    return OK;
}

static void fill_config(struct command *x)
{
    const struct options *o = x->o;
    struct sim_config *c = &x->config;

    c->fleet.n_instances = (uint32_t)o->n_instances;
    c->fleet.routing = (enum sim_routing)flag_choice_at(SIM_ROUTINGS, o->routing);
    fill_cluster(&c->fleet, o);
    c->n_background = o->background_documents;
    c->n_background_tokens = (uint32_t)o->background_tokens;
    c->closed = o->closed;
    c->concurrency = (uint32_t)o->concurrency;
    c->count = o->count;
    c->warmup_s = o->warmup_s;
    c->duration_s = o->duration_s;
    c->drain_s = o->drain_s;
    c->n_output_usual = N_OUTPUT_USUAL;
    c->ends_conversations = o->finish_conversations;
    c->real_history = strcmp(o->history, "real") == 0;
    c->send_session = o->send_session;
    c->token_times = o->token_times && !c->fleet.is_light; /* it has no times of single tokens */
    c->search = (struct sim_search){.search_s = o->search_ms / 1e3,
                                    .n_stages = (uint32_t)o->n_search_stages,
                                    .final_share = o->search_final,
                                    .speculates = strcmp(o->speculative_prefill, "auto") == 0};
}

static void fill_result(struct command *x)
{
    const struct instance_config *c = &x->config.fleet.instance;
    bool has_host = c->swap == SWAP_PROACTIVE || c->swap == SWAP_REACTIVE;

    x->result = (struct sim_result){
        .policy = x->o->scheduling_policy,
        .swap = x->o->kv_swap,
        .routing = x->o->routing,
        .cost_model = x->o->cost_model[0] ? x->o->cost_model : SIM_BUILTIN_NAME,
        .n_instances = x->config.fleet.n_instances,
        .n_running_max = c->scheduler.n_running_max,
        .n_tokens_max = c->scheduler.n_tokens_max,
        .bytes_per_token = c->bytes_per_token,
        .n_device_blocks = c->n_device_blocks,
        .n_host_blocks = has_host ? c->n_host_blocks : 0,
        .cache_policy = x->o->cache_policy,
        .load = x->o->load,
        .is_light = x->config.fleet.is_light,
        .is_pool = x->o->pool,
    };
}

/* Measure with the run's own requests, all submitted at the start, first come first served. */
static enum status measure_capacity(struct command *x, struct sim_capacity *out, struct buf *why)
{
    const struct options *o = x->o;
    struct workload_config w = o->config;
    struct sim_config c = x->config;
    struct workload *workload;

    w.arrival = (struct arrival_config){.kind = ARRIVAL_CLOSED, .burstiness = 1};
    w.think_s = 0;
    enum status s = workload_create(&workload, &w, why);
    if (s != OK)
        return s;
    c.source = (struct load_source){next, workload};
    c.closed = true;
    c.concurrency =
        N_ROUNDS_INSIDE * c.fleet.n_instances * c.fleet.instance.scheduler.n_running_max;
    c.count = o->count ? o->count : N_MEASURED_USUAL;
    if (c.count > N_MEASURED_MAX)
        c.count = N_MEASURED_MAX;
    if (c.count < (uint64_t)N_ROUNDS_MIN * c.concurrency)
        c.count = (uint64_t)N_ROUNDS_MIN * c.concurrency;
    c.warmup_s = c.duration_s = c.drain_s = 0;
    c.search.search_s = 0;
    c.n_background = 0;
    c.fleet.instance.scheduler.policy = "fcfs";
    c.fleet.instance.follows_contest = c.fleet.instance.predicts = false;
    c.fleet.instance.n_queued_max = 0;
    c.token_times = false;
    s = sim_capacity(&c, out, why);
    workload_destroy(workload);
    return s;
}

static double cpu_seconds(void)
{
    struct timespec t = {0};

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* cannot fail on Linux */
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static enum status run(struct command *x, struct buf *why)
{
    struct workload_config w = x->o->config;
    uint64_t began_ns = clock_now_ns();
    double began_cpu_s = cpu_seconds();
    enum status s = OK;

    fill_result(x);
    if (x->o->load > 0) {
        struct sim_capacity capacity;
        s = measure_capacity(x, &capacity, why);
        if (s != OK)
            return s;
        x->result.n_simulated = capacity.n_simulated;
        x->result.capacity_per_s = capacity.requests_per_s;
        x->result.rate_per_s = w.arrival.rate = x->o->load * capacity.conversations_per_s;
    }
    s = workload_create(&x->workload, &w, why);
    if (s != OK)
        return s;
    x->config.source = (struct load_source){next, x->workload};
    s = sim_run(&x->config, &x->outcomes, &x->result, why);
    outcome_list_sort(&x->outcomes);
    x->result.n_simulated += x->outcomes.n;
    x->result.wall_s = (double)(clock_now_ns() - began_ns) / 1e9;
    x->result.cpu_s = cpu_seconds() - began_cpu_s;
    return s;
}

static enum status report(struct command *x, bool *failed, struct buf *why)
{
    static const struct http_loop_stats no_loop;
    struct options shown = *x->o;
    struct target target = {.url = "", .style = {.tokens_per_word = IDS_PER_WORD}};
    const char *names[N_TENANTS_MAX];
    struct metrics m;
    struct metrics_options options = {.percents = shown.percents,
                                      .tenant_names = names,
                                      .n_tenants = workload_n_tenants(x->workload)};

    options.start_ns = SIM_START_NS + (uint64_t)(shown.warmup_s * 1e9);
    if (shown.duration_s > 0 && shown.count == 0 && shown.config.arrival.kind != ARRIVAL_TRACE)
        options.until_ns = options.start_ns + (uint64_t)(shown.duration_s * 1e9);
    if (x->result.rate_per_s > 0)
        shown.config.arrival.rate = x->result.rate_per_s;
    metrics_add_usual_percents(&options.percents);
    for (uint32_t i = 0; i < options.n_tenants; i++)
        names[i] = workload_tenant_name(x->workload, i);
    enum status s = metrics_compute(&m, x->outcomes.v, x->outcomes.n, &options);
    if (s != OK)
        return buf_why(why, s, "out of memory");
    snprintf(target.url, sizeof target.url, "sim:%s", x->result.policy);
    snprintf(target.model, sizeof target.model, "%s", x->result.cost_model);
    struct report r = {&shown,   &target,      &m,    &x->outcomes, NULL,
                       &no_loop, SIM_START_NS, false, &x->result};
    if (!shown.quiet)
        report_print(strcmp(shown.json_file, "-") == 0 ? stderr : stdout, &r);
    *failed = m.all.n_completed == 0 && m.all.n_disconnected == 0;
    s = report_write_files(&r, why);
    metrics_fini(&m);
    return s;
}

enum status sim_command(const struct options *o, bool *failed, struct buf *why)
{
    struct command x = {.o = o};
    enum status s = o->cost_model[0] ? sim_cost_load(&x.cost, o->cost_model, why)
                                     : sim_cost_builtin(&x.cost, why);

    *failed = true;
    if (s == OK)
        s = report_make_dir(o, why);
    if (s == OK)
        s = check_light(o, why);
    if (s == OK)
        s = fill_instance(&x, why);
    fill_config(&x);
    if (s == OK)
        s = run(&x, why);
    if (s == OK)
        s = report(&x, failed, why);
    outcome_list_fini(&x.outcomes);
    workload_destroy(x.workload);
    return s;
}
