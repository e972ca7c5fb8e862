#include "loadgen/sim/instance.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/sched/contest.h"
#include "engine/sched/cost_model.h"
#include "engine/settings.h"
#include "loadgen/sim/ids.h"
#include "loadgen/sim/virtual_device.h"

#define NO_SLOT UINT32_MAX
#define NEVER UINT64_MAX

struct instance {
    struct instance_config config;
    struct virtual_device *time;
    struct device *device;
    struct cache *cache;
    struct lineup lineup;
    struct contest *contest;     /* NULL: the policy stays */
    struct estimator *estimator; /* NULL: nothing is predicted */
    struct job **by_slot;        /* [n_slots] */
    uint32_t *free_slots;        /* [n_free_slots] */
    uint32_t n_slots, n_free_slots;
    struct link inbox, leaving; /* jobs */
    uint32_t n_inside;
    uint64_t n_blocks_inside;   /* the most that jobs in the lineup may need */
    uint64_t began_ns, ends_ns; /* of the step under way; NEVER: there is none */
    uint64_t wake_ns;
    bool is_stuck;
    struct sim_result result;
};

/* --- life --- */

static double seconds_of(const void *arg, uint32_t n_cached, uint32_t n_new)
{
    return cost_model_seconds(arg, n_cached, n_new);
}

/* One layer and one head, as wide as needed: only the product of the sizes counts. */
static struct kv_pool pool_of(const struct instance_config *c)
{
    return (struct kv_pool){.layout = kv_layout_of(DTYPE_F16),
                            .n_blocks = c->n_device_blocks,
                            .n_layers = 1,
                            .n_kv_heads = 1,
                            .head_dim = (uint32_t)((c->bytes_per_token + 3) / 4)};
}

static enum status open_cache(struct instance *in, struct buf *why)
{
    const struct instance_config *c = &in->config;
    bool has_host = c->swap == SWAP_PROACTIVE || c->swap == SWAP_REACTIVE;
    struct cache_config config = {
        .group = device_group_of(in->device),
        .pool = pool_of(c),
        .segment_tokens = c->segment_tokens,
        .prefix_caching = c->prefix_caching,
        .policy = c->cache_policy,
        .n_host_blocks = has_host ? c->n_host_blocks : 0,
        .prefetch_share = c->prefetch_share,
        .hold_share = DEFAULT_KV_HOLD_SHARE,
        .seconds = seconds_of,
        .seconds_arg = c->cost,
    };

    return cache_create(&in->cache, &config, why);
}

static enum status open_lineup(struct instance *in, struct buf *why)
{
    struct lineup_config config = {.cache = in->cache,
                                   .scheduler = in->config.scheduler,
                                   .swap_ahead = in->config.swap == SWAP_PROACTIVE,
                                   .copy_s_per_token =
                                       in->config.bytes_per_token / in->config.in_bytes_per_s};

    config.scheduler.n_slots = in->n_slots;
    config.scheduler.cost = in->config.cost;
    return lineup_create(&in->lineup, &config, why);
}

static enum status open_contest(struct instance *in, struct buf *why)
{
    const struct instance_config *c = &in->config;
    bool has_host = c->swap == SWAP_PROACTIVE || c->swap == SWAP_REACTIVE;
    struct contest_config config = {
        .scheduler = c->scheduler,
        .memory = {.n_device_blocks = c->n_device_blocks,
                   .n_host_blocks = has_host ? c->n_host_blocks : 0,
                   .copy_s_per_token = (double)c->bytes_per_token / c->in_bytes_per_s},
        .follows = true};

    return c->follows_contest ? contest_create(&in->contest, &config, why) : OK;
}

enum status instance_open(struct instance **out, const struct instance_config *config,
                          struct buf *why)
{
    struct virtual_device_config bandwidth = {config->in_bytes_per_s, config->out_bytes_per_s};
    struct instance *in = calloc(1, sizeof *in);

    *out = NULL;
    if (!in)
        return buf_why(why, ERR_NOMEM, "out of memory");
    in->config = *config;
    link_init(&in->inbox);
    link_init(&in->leaving);
    in->ends_ns = in->wake_ns = NEVER;
    in->n_slots = config->n_queued_max ? config->n_queued_max + config->scheduler.n_running_max
                                       : SIM_SLOTS_MAX;
    in->by_slot = calloc(in->n_slots, sizeof *in->by_slot);
    in->free_slots = calloc(in->n_slots, sizeof *in->free_slots);
    enum status s = in->by_slot && in->free_slots ? OK : buf_why(why, ERR_NOMEM, "out of memory");
    for (uint32_t i = in->n_slots; s == OK && i-- > 0;)
        in->free_slots[in->n_free_slots++] = i;
    if (s == OK)
        s = virtual_device_open(&in->time, &in->device, &bandwidth, why);
    if (s == OK)
        s = open_cache(in, why);
    if (s == OK)
        s = open_lineup(in, why);
    if (s == OK)
        s = open_contest(in, why);
    if (s == OK && config->predicts)
        s = estimator_create(&in->estimator, in->lineup.scheduler, NULL, NULL, ESTIMATE_N_STEPS);
    if (s != OK) {
        instance_close(in);
        return s;
    }
    *out = in;
    return OK;
}

void instance_close(struct instance *in)
{
    if (!in)
        return;
    for (uint32_t i = 0; in->lineup.seqs && i < in->n_slots; i++)
        if (in->lineup.seqs[i].kv)
            lineup_end(&in->lineup, i, false, virtual_device_now(in->time));
    contest_destroy(in->contest);
    estimator_destroy(in->estimator);
    lineup_destroy(&in->lineup);
    cache_destroy(in->cache);
    device_close(in->device);
    free(in->by_slot);
    free(in->free_slots);
    free(in);
}

/* --- coming and leaving --- */

/* End a job that is in no list and holds nothing any more. */
static void end_job(struct instance *in, struct job *j, enum job_end end, uint64_t now_ns)
{
    in->n_inside--;
    in->config.on_end(in->config.arg, j, end, now_ns);
}

static struct sched_request asked_of(const struct job *j)
{
    return (struct sched_request){.n_known = j->prompt.n_ids,
                                  .n_out_max = j->n_out,
                                  .priority = j->priority,
                                  .tenant = j->tenant,
                                  .session = j->session,
                                  .class = j->class};
}

/* The contest learns of usual jobs. */
static void note_arrival(struct instance *in, struct job *j, const struct sched_request *asked)
{
    struct contest_request r = {.asked = *asked, .arrival_ns = j->arrival_ns};

    if (in->contest && j->class == SCHED_USUAL)
        j->contest_id = contest_arrived(in->contest, &r, j->slot);
}

static void note_end(struct instance *in, const struct job *j)
{
    if (in->contest && j->class == SCHED_USUAL)
        contest_ended(in->contest, j->contest_id, j->n_cached, j->n_got);
}

static void leave_lineup(struct instance *in, struct job *j, enum job_end end, uint64_t now_ns)
{
    const struct sequence *q = &in->lineup.seqs[j->slot];

    j->n_cached = q->n_cached;
    memcpy(j->n_cached_in, q->n_cached_in, sizeof j->n_cached_in);
    note_end(in, j);
    lineup_end(&in->lineup, j->slot, end == JOB_DONE, now_ns);
    in->by_slot[j->slot] = NULL;
    in->free_slots[in->n_free_slots++] = j->slot;
    in->n_blocks_inside -= j->n_blocks;
    j->slot = NO_SLOT;
    end_job(in, j, end, now_ns);
}

/* Whether the prompt fits the device's memory; cut n_out to the rest, as the server does. */
static bool fits(struct instance *in, struct job *j)
{
    uint64_t n_blocks = in->config.n_device_blocks, n_spans = j->prompt.n_span_ends;

    if (n_blocks <= n_spans + 1)
        return false;
    uint64_t n_tokens_max = (n_blocks - n_spans - 1) * KV_BLOCK_TOKENS + KV_BLOCK_TOKENS - 1;
    if (j->prompt.n_ids >= n_tokens_max)
        return false;
    if (j->n_out > n_tokens_max - j->prompt.n_ids) {
        j->n_out = (uint32_t)(n_tokens_max - j->prompt.n_ids);
        in->result.n_cut++;
    }
    j->n_blocks = cache_blocks_max(j->prompt.n_ids, j->prompt.n_span_ends, j->n_out);
    return true;
}

void instance_submit(struct instance *in, struct job *j, uint64_t now_ns)
{
    bool is_full = in->n_inside >= in->n_slots;

    j->slot = NO_SLOT;
    j->n_got = j->n_cached = j->n_computed_max = 0;
    j->arrival_ns = now_ns;
    j->is_cancelled = false;
    memset(j->n_cached_in, 0, sizeof j->n_cached_in);
    if (is_full || !fits(in, j)) {
        in->config.on_end(in->config.arg, j, is_full ? JOB_REFUSED_FULL : JOB_REFUSED_LONG, now_ns);
        return;
    }
    in->n_inside++;
    link_append(&in->inbox, &j->link);
    if (in->ends_ns == NEVER)
        in->wake_ns = now_ns;
}

void instance_cancel(struct instance *in, struct job *j, uint64_t now_ns)
{
    if (j->is_cancelled)
        return;
    j->is_cancelled = true;
    if (j->slot == NO_SLOT)
        link_remove(&j->link);
    link_append(&in->leaving, &j->link);
    if (in->ends_ns == NEVER)
        in->wake_ns = now_ns;
}

static void drop_cancelled(struct instance *in, uint64_t now_ns)
{
    while (!link_is_empty(&in->leaving)) {
        struct job *j = LINK_ITEM(in->leaving.next, job, link);

        link_remove(&j->link);
        if (j->slot == NO_SLOT)
            end_job(in, j, JOB_CANCELLED, now_ns);
        else
            leave_lineup(in, j, JOB_CANCELLED, now_ns);
    }
}

static enum status enter_lineup(struct instance *in, struct job *j, uint64_t now_ns)
{
    uint32_t slot = in->free_slots[in->n_free_slots - 1];
    struct cache_seq *kv;
    enum status s = cache_seq_open(in->cache, &j->prompt, j->prompt.n_ids + j->n_out, &kv);

    if (s != OK)
        return s;
    struct sched_request r = asked_of(j);
    in->n_free_slots--;
    in->by_slot[slot] = j;
    in->n_blocks_inside += j->n_blocks;
    j->slot = slot;
    r.n_cached = lineup_submit(&in->lineup, slot, kv, &r, now_ns);
    note_arrival(in, j, &r);
    if (in->estimator && j->class == SCHED_USUAL)
        estimate_slot(in->estimator, slot, (double)(now_ns - j->arrival_ns) * 1e-9, -1,
                      &j->estimate);
    return OK;
}

static bool is_let_in(const struct instance *in, const struct job *j)
{
    return in->config.swap != SWAP_OFF || in->n_blocks_inside == 0 ||
           in->n_blocks_inside + j->n_blocks <= in->config.n_device_blocks;
}

static void take_submitted(struct instance *in, uint64_t now_ns)
{
    while (!link_is_empty(&in->inbox) && is_let_in(in, LINK_ITEM(in->inbox.next, job, link))) {
        struct job *j = LINK_ITEM(in->inbox.next, job, link);

        link_remove(&j->link);
        if (enter_lineup(in, j, now_ns) != OK)
            end_job(in, j, JOB_FAILED, now_ns);
    }
}

uint32_t instance_n_inside(const struct instance *in)
{
    return in->n_inside;
}

uint32_t instance_n_waiting(const struct instance *in)
{
    uint32_t n_running = in->lineup.n_items;

    return in->n_inside > n_running ? in->n_inside - n_running : 0;
}

double instance_in_use(const struct instance *in)
{
    return 1 - (double)cache_n_available(in->cache) / in->config.n_device_blocks;
}

uint32_t instance_match(const struct instance *in, const struct cache_prompt *p)
{
    uint32_t n = 0;

    while (n < p->n_keys && cache_knows(in->cache, &p->keys[n]))
        n++;
    uint64_t n_tokens = (uint64_t)n * KV_BLOCK_TOKENS; /* blocks at ends of spans have fewer */
    return n_tokens < p->n_ids ? (uint32_t)n_tokens : p->n_ids;
}

/* --- steps --- */

uint64_t instance_next(const struct instance *in)
{
    return in->ends_ns != NEVER ? in->ends_ns : in->wake_ns;
}

bool instance_is_stuck(const struct instance *in)
{
    return in->is_stuck;
}

static uint64_t nanoseconds(double s)
{
    return (uint64_t)(s * 1e9 + 0.5);
}

/* Expected time of the step by the cost model. */
static double step_seconds(struct instance *in)
{
    const struct lineup *l = &in->lineup;
    struct cost_step step = {0};

    for (uint32_t i = 0; i < l->n_items; i++) {
        const struct plan_item *item = &l->items[i];
        cost_step_add(&step, in->config.cost, scheduler_seq(l->scheduler, item->slot).n_computed,
                      item->n_tokens);
        in->result.n_step_tokens += item->n_tokens;
    }
    in->result.n_items += l->n_items;
    return cost_model_step_seconds(in->config.cost, &step);
}

static void drop_failed(struct instance *in, uint64_t now_ns)
{
    for (uint32_t i = 0; i < in->lineup.n_failed; i++) {
        struct job *j = in->by_slot[in->lineup.failed[i]];

        if (j->is_cancelled)
            link_remove(&j->link);
        leave_lineup(in, j, JOB_FAILED, now_ns);
    }
}

static void launch(struct instance *in, uint64_t now_ns)
{
    uint64_t n_ns = nanoseconds(step_seconds(in));

    virtual_device_advance(in->time, virtual_device_now(in->time) + in->config.overhead_ns);
    in->ends_ns = virtual_device_run(in->time, n_ns);
    in->began_ns = now_ns;
    lineup_ahead(&in->lineup, in->ends_ns);
    if (virtual_device_now(in->time) > in->ends_ns) /* the host waited for a copy meanwhile */
        in->ends_ns = virtual_device_now(in->time);
    in->result.n_steps++;
    in->result.busy_ns += in->ends_ns - now_ns;
}

/* Hold a contest, and change to its winner. */
static void hold_contest(struct instance *in)
{
    struct contest_verdict v;

    contest_begin(in->contest, in->config.cost, in->lineup.scheduler, virtual_device_now(in->time));
    while (!contest_run(in->contest, UINT32_MAX)) {
    }
    contest_end(in->contest, &v);
    if (v.is_change) {
        enum status s =
            scheduler_set_policy(in->lineup.scheduler, v.best->policy, v.best->variant, NULL);
        ASSERT(s == OK); /* contest_create() has checked all names */
    }
}

void instance_begin_step(struct instance *in, uint64_t now_ns)
{
    if (in->ends_ns != NEVER)
        return;
    virtual_device_advance(in->time, now_ns);
    if (in->contest && contest_is_due(in->contest))
        hold_contest(in);
    in->wake_ns = NEVER;
    drop_cancelled(in, now_ns);
    take_submitted(in, now_ns);
    if (in->n_free_slots == in->n_slots)
        return;
    (void)cache_poll(in->cache, virtual_device_now(in->time));
    uint32_t n = lineup_begin(&in->lineup, virtual_device_now(in->time));
    bool has_changed = in->lineup.n_failed > 0 || in->lineup.n_preempted > 0;
    drop_failed(in, virtual_device_now(in->time));
    if (n > 0) {
        launch(in, now_ns);
        return;
    }
    in->wake_ns = has_changed ? virtual_device_now(in->time) : virtual_device_next(in->time);
    in->is_stuck = in->wake_ns == NEVER && in->n_free_slots < in->n_slots;
}

static void count_computed(struct instance *in, struct job *j, uint32_t from, uint32_t n)
{
    uint32_t again = j->n_computed_max > from ? j->n_computed_max - from : 0;

    in->result.n_tokens_recomputed += again < n ? again : n;
    if (from + n > j->n_computed_max)
        j->n_computed_max = from + n;
}

static void note_predicted(struct instance *in, const struct job *j, uint64_t now_ns)
{
    double since_s = (double)(now_ns - j->arrival_ns) * 1e-9;

    if (j->n_got == 1)
        (void)estimator_note_ttft(in->estimator, &j->estimate, since_s);
    if (j->n_got == j->n_out)
        (void)estimator_note_e2e(in->estimator, &j->estimate, since_s);
}

static void got_token(struct instance *in, struct job *j, uint64_t now_ns)
{
    j->n_got++;
    if (in->estimator && j->class == SCHED_USUAL)
        note_predicted(in, j, now_ns);
    if (!j->is_cancelled)
        in->config.on_token(in->config.arg, j, now_ns);
    if (j->n_got == j->n_out && !j->is_cancelled) {
        leave_lineup(in, j, JOB_DONE, now_ns);
        return;
    }
    cache_seq_extend(in->lineup.seqs[j->slot].kv, sim_id(j->answer_name, j->n_got - 1));
}

void instance_end_step(struct instance *in, uint64_t now_ns)
{
    struct lineup *l = &in->lineup;
    uint64_t step_ns = now_ns - in->began_ns;

    if (in->ends_ns == NEVER || in->ends_ns > now_ns)
        return;
    virtual_device_advance(in->time, now_ns);
    in->ends_ns = NEVER;
    in->wake_ns = now_ns;
    for (uint32_t i = 0; i < l->n_items; i++) {
        const struct plan_item *item = &l->items[i];
        struct sched_seq q = scheduler_seq(l->scheduler, item->slot);
        bool is_token = q.n_computed + item->n_tokens == q.n_known;

        count_computed(in, in->by_slot[item->slot], q.n_computed, item->n_tokens);
        struct job *j = in->by_slot[item->slot];
        lineup_ran(l, i, is_token && j->n_out > 0, step_ns, now_ns);
        if (is_token && j->n_out > 0)
            got_token(in, j, now_ns);
        else if (is_token && !j->is_cancelled)
            leave_lineup(in, j, JOB_DONE, now_ns);
    }
}

/* --- looking --- */

static void count_cache(const struct instance *in, struct sim_result *r)
{
    struct virtual_device_stats time;
    struct cache_stats c;

    cache_stats(in->cache, &c);
    virtual_device_stats(in->time, &time);
    r->n_tokens_restored += c.n_restored_tokens;
    r->n_spilled_ahead += c.n_spilled_ahead;
    r->n_spilled_on_demand += c.n_spilled_on_demand;
    r->n_fetched_ahead += c.n_fetched_ahead;
    r->n_fetched_on_demand += c.n_fetched_on_demand;
    r->n_expected_lost += c.n_expected_lost;
    r->copied_in_bytes += time.in_bytes;
    r->copied_out_bytes += time.out_bytes;
    r->compute_waited_ns += time.compute_waited_ns;
    r->host_waited_ns += time.host_waited_ns;
}

static void count_contests(const struct instance *in, struct sim_result *r)
{
    struct contest_stats s;

    if (!in->contest)
        return;
    contest_stats(in->contest, &s);
    r->n_contests += s.n_contests;
    r->n_policy_changes += s.n_changes;
}

void instance_count(const struct instance *in, struct sim_result *r)
{
    struct scheduler_stats s;

    scheduler_stats(in->lineup.scheduler, &s);
    r->n_steps += in->result.n_steps;
    r->n_items += in->result.n_items;
    r->n_step_tokens += in->result.n_step_tokens;
    r->busy_ns += in->result.busy_ns;
    r->n_cut += in->result.n_cut;
    r->n_tokens_recomputed += in->result.n_tokens_recomputed;
    r->n_preempted_for_place += s.n_preempted_for_place;
    r->n_preempted_for_memory += s.n_preempted_for_memory;
    r->n_starving += s.n_starving;
    r->n_reordered += s.n_reordered;
    r->n_demoted += s.n_demoted;
    r->n_plans_ahead += in->lineup.n_planned_ahead;
    count_contests(in, r);
    count_cache(in, r);
}

void instance_check(const struct instance *in)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < in->n_slots; i++) {
        ASSERT((in->by_slot[i] != NULL) == (in->lineup.seqs[i].kv != NULL));
        n += in->by_slot[i] != NULL;
    }
    ASSERT(n == in->n_slots - in->n_free_slots);
    lineup_check(&in->lineup);
    cache_check(in->cache);
}
