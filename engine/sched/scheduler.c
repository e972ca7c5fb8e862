/* scheduler.c - lifecycle, events, queries. The plan: scheduler_plan.c; the order:
 * scheduler_policies.c. */
#include "engine/sched/scheduler.h"

#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "engine/sched/scheduler_internal.h"

#define N_TENANTS_MAX 1024
#define N_IDLE_SESSIONS_MAX 4096
/* Assumed times without a cost model: of a step, and of a prefilled token. */
#define STEP_S 0.010
#define TOKEN_S 0.0001
/* Context length at which the expected time of a decode step is taken. */
#define USUAL_CONTEXT 512
/* Approximate size of a KV block. */
#define TOKENS_PER_BLOCK 32
/* Decodes over which the tokens of a step are counted, and those of all sequences that weigh as
 * much as the sequence's own. */
#define YIELD_DECODES 1024
#define YIELD_PRIOR 16
/* Weight of a new observation in the moving mean of the restore cost. */
#define RESTORE_RATE 0.05

/* --- seconds --- */

double prefill_seconds(const struct scheduler *s, uint32_t n_cached, uint32_t n_new)
{
    return cost_model_seconds(s->config.cost, n_cached, n_new);
}

double decode_seconds(const struct scheduler *s, uint32_t n_cached, uint32_t n_seqs)
{
    return cost_model_decode_seconds(s->config.cost, n_cached, n_seqs);
}

double next_iteration_seconds(const struct scheduler *s, const struct entry *e)
{
    uint32_t left = entry_left(e);

    return left > 1 ? prefill_seconds(s, entry_computed(e), left)
                    : decode_seconds(s, entry_computed(e), s->config.n_running_max);
}

/* --- tokens of a step --- */

double scheduler_yield(const struct scheduler *s)
{
    return s->decode_steps > 0 ? s->decode_tokens / s->decode_steps : 1;
}

double entry_yield(const struct scheduler *s, const struct entry *e)
{
    double n_tokens = e->n_out > 1 ? e->n_out - 1 : 0; /* the first one ends the prefill */

    return (YIELD_PRIOR * scheduler_yield(s) + n_tokens) / (YIELD_PRIOR + n_tokens - e->n_accepted);
}

static void count_decode(struct scheduler *s)
{
    double kept = 1 - 1.0 / YIELD_DECODES;

    s->decode_tokens = s->decode_tokens * kept + 1;
    s->decode_steps = s->decode_steps * kept + 1;
}

/* --- lifecycle --- */

static enum status check_config(const struct scheduler_config *c, struct buf *why)
{
    if (c->ratio != 0 && !(c->ratio >= 1.1 && c->ratio <= 16))
        return buf_why(why, ERR_INVALID, "{level_ratio} %g: expected 1.1 to 16", c->ratio);
    if (c->quantum_s != 0 && !(c->quantum_s > 0 && c->quantum_s <= 3600))
        return buf_why(why, ERR_INVALID, "{quantum_ms} %g: expected above 0, at most 3600000",
                       c->quantum_s * 1e3);
    if (c->reorder_window > SCHED_REORDER_MAX)
        return buf_why(why, ERR_INVALID, "{cache_reorder_window} %u: expected at most %u",
                       c->reorder_window, SCHED_REORDER_MAX);
    if (!(c->starvation_s >= 0))
        return buf_why(why, ERR_INVALID, "{starvation_ms}: expected 0 or more");
    if (!(c->step_s_max >= 0))
        return buf_why(why, ERR_INVALID, "{max_step_ms}: expected 0 or more");
    return OK;
}

/* The model without a profile: a step takes 10 ms whatever decodes in it, a prefill 0.1 ms a
 * token. */
static void make_own_cost(struct scheduler *s)
{
    static const uint32_t cached[] = {0, 1 << 20}, fresh[] = {1, 1 << 20}, batch[] = {1, 1 << 20};
    static const double seconds[] = {TOKEN_S, TOKEN_S * (1 << 20), TOKEN_S, TOKEN_S * (1 << 20)};
    static const double decode[] = {STEP_S, STEP_S, STEP_S, STEP_S};
    struct cost_points points = {cached, fresh, batch, 2, 2, 2, seconds, decode};
    enum status st = cost_model_init(&s->own_cost, &points, NULL);

    ASSERT(st == OK);
    s->config.cost = &s->own_cost;
}

/* The default depends on the variant: ageing alone keeps the variant learned from starving. */
static void set_starvation(struct scheduler *s)
{
    double seconds = s->config.starvation_s;

    if (seconds == 0)
        seconds = s->variant == MLFQ_LEARNED ? INFINITY : fmax(3, 100 * s->decode_s);
    s->starvation_ns = seconds < 1e9 ? (uint64_t)(seconds * NS_PER_S) : UINT64_MAX;
}

static void set_defaults(struct scheduler *s)
{
    struct scheduler_config *c = &s->config;

    if (!c->cost)
        make_own_cost(s);
    s->decode_s = decode_seconds(s, USUAL_CONTEXT, c->n_running_max);
    if (c->ratio == 0)
        c->ratio = 2;
    if (c->quantum_s == 0)
        c->quantum_s = s->decode_s;
    set_starvation(s);
    policy_init_levels(s);
}

static enum status allocate(struct scheduler *s)
{
    uint32_t n = s->config.n_slots, n_run = s->config.n_running_max;
    enum status st = order_init(&s->order, n);

    if (st == OK)
        st = order_init(&s->others, n);
    if (st == OK)
        st = tenants_init(&s->tenants, n < N_TENANTS_MAX ? n + 1 : N_TENANTS_MAX);
    if (st == OK)
        st = trajectories_init(&s->trajectories, n + N_IDLE_SESSIONS_MAX);
    if (st == OK)
        st = learned_init(s);
    s->entries = calloc(n, sizeof *s->entries);
    s->running = calloc(n_run, sizeof *s->running);
    s->items = calloc(n_run, sizeof *s->items);
    s->chunks = calloc(n_run, sizeof *s->chunks);
    s->preempt = calloc(n_run, sizeof *s->preempt);
    s->is_victim = calloc(n_run, sizeof *s->is_victim);
    return st == OK && s->entries && s->running && s->items && s->chunks && s->preempt &&
                   s->is_victim
               ? OK
               : ERR_NOMEM;
}

/* Find policy and variant by their names; a variant NULL or "" is the default one. */
static enum status find_policy(const char *name, const char *variant_name,
                               const struct policy **policy, enum mlfq_variant *variant,
                               struct buf *why)
{
    *variant = MLFQ_TARN;
    if (variant_name && variant_name[0] && !variant_find(variant_name, variant))
        return buf_why(why, ERR_INVALID, "unknown MLFQ variant %s; known: %s", variant_name,
                       scheduler_variants());
    *policy = policy_find(name, *variant);
    if (!*policy)
        return buf_why(why, ERR_INVALID, "unknown scheduling policy %s; known: %s", name,
                       scheduler_policies());
    if ((*policy)->place != learned_place && (!(*policy)->has_levels || *variant == MLFQ_LEARNED))
        *variant = MLFQ_TARN;
    return OK;
}

enum status scheduler_create(struct scheduler **out, const struct scheduler_config *config,
                             struct buf *why)
{
    const struct policy *policy;
    enum mlfq_variant variant;
    struct scheduler *s;
    enum status st = find_policy(config->policy, config->variant, &policy, &variant, why);

    *out = NULL;
    if (st == OK)
        st = check_config(config, why);
    if (st != OK)
        return st;
    ASSERT(config->n_running_max >= 1 && config->n_tokens_max >= 1 && config->n_slots >= 1);
    s = calloc(1, sizeof *s);
    if (!s)
        return buf_why(why, ERR_NOMEM, "out of memory");
    s->config = *config;
    if (s->config.n_running_max > config->n_tokens_max) /* each running sequence needs a token per
                                                           step */
        s->config.n_running_max = config->n_tokens_max;
    s->policy = policy;
    s->variant = variant;
    s->oldest = s->newest = ORDER_NONE;
    set_defaults(s);
    st = allocate(s);
    if (st != OK) {
        scheduler_destroy(s);
        return buf_why(why, st, "out of memory for %u scheduler slots", config->n_slots);
    }
    *out = s;
    return OK;
}

void scheduler_destroy(struct scheduler *s)
{
    if (!s)
        return;
    order_fini(&s->order);
    order_fini(&s->others);
    tenants_fini(&s->tenants);
    trajectories_fini(&s->trajectories);
    learned_fini(s);
    free(s->entries);
    free(s->running);
    free(s->items);
    free(s->chunks);
    free(s->preempt);
    free(s->is_victim);
    free(s);
}

/* --- entries --- */

uint32_t entry_computed(const struct entry *e)
{
    return e->n_computed + e->n_flying;
}

uint32_t entry_known(const struct entry *e)
{
    return e->n_known + (entry_computed(e) == e->n_known);
}

uint32_t entry_left(const struct entry *e)
{
    return entry_known(e) - entry_computed(e);
}

/* Priority as an unsigned number above 0 in the same order; 0 is for starving sequences. */
static uint64_t priority_bits(int32_t priority)
{
    uint32_t bits = (uint32_t)priority ^ 0x80000000u;

    return bits ? bits : 1;
}

static struct order_key key_of(const struct scheduler *s, uint32_t slot)
{
    const struct entry *e = &s->entries[slot];

    if (e->class != SCHED_USUAL)
        return (struct order_key){e->class, priority_bits(e->priority), e->arrival};
    if (e->is_urgent)
        return (struct order_key){.low = e->urgent_no};
    struct order_key key = s->policy->place(s, slot);
    key.high = priority_bits(e->priority) << 32 | e->level;
    return key;
}

bool entry_precedes(const struct scheduler *s, uint32_t a, uint32_t b)
{
    enum sched_class class = s->entries[a].class, other = s->entries[b].class;

    if (class != other && (class == SCHED_USUAL || other == SCHED_USUAL))
        return class == SCHED_USUAL;
    return order_before(class == SCHED_USUAL ? &s->order : &s->others, a, b);
}

void entry_placed(struct scheduler *s, uint32_t slot)
{
    if (s->variant == MLFQ_LEARNED)
        learned_rank(s, slot);
    if (order_move(&s->order, slot, key_of(s, slot)))
        s->version++;
}

/* Ranks ascend in the order of arrival at the level. Ranks of the front count down from the
 * middle. */
#define RANK_MIDDLE (UINT64_C(1) << 63)

static void set_rank(struct scheduler *s, uint32_t slot, bool to_front)
{
    struct entry *e = &s->entries[slot];
    uint64_t n = s->n_ranked++;
    uint32_t index = round_index(e->level, e->priority);

    e->rank = to_front ? RANK_MIDDLE - 1 - n : RANK_MIDDLE + n;
    if (s->variant != MLFQ_RELEASED) /* the released code has no tenants */
        e->round = tenants_round(&s->tenants, e->tenant, index, s->round[index]);
}

void entry_to_level(struct scheduler *s, uint32_t slot, uint32_t level, bool to_front)
{
    struct entry *e = &s->entries[slot];

    s->n_in_level[e->level]--;
    s->n_in_level[level]++;
    e->level = level;
    e->charged_s = 0;
    set_rank(s, slot, to_front);
}

void entry_found(struct entry *e, uint32_t n_computed)
{
    e->n_computed = n_computed;
    e->has_lost = n_computed < e->n_had;
}

/* --- list by last_run_ns: candidates for starvation --- */

void age_list_append(struct scheduler *s, uint32_t slot, uint64_t now_ns)
{
    struct entry *e = &s->entries[slot];

    age_list_take(s, slot);
    e->last_run_ns = now_ns;
    e->is_listed = true;
    e->older = s->newest;
    e->newer = ORDER_NONE;
    if (s->newest == ORDER_NONE)
        s->oldest = slot;
    else
        s->entries[s->newest].newer = slot;
    s->newest = slot;
}

void age_list_take(struct scheduler *s, uint32_t slot)
{
    struct entry *e = &s->entries[slot];

    if (!e->is_listed)
        return;
    e->is_listed = false;
    if (e->older == ORDER_NONE)
        s->oldest = e->newer;
    else
        s->entries[e->older].newer = e->newer;
    if (e->newer == ORDER_NONE)
        s->newest = e->older;
    else
        s->entries[e->newer].older = e->older;
}

/* --- events --- */

enum length_kind entry_kind(const struct scheduler *s, uint32_t trajectory)
{
    if (trajectory == NO_TRAJECTORY)
        return LENGTH_CALL;
    return s->trajectories.v[trajectory].ended_ns ? LENGTH_LATER_CALL : LENGTH_FIRST_CALL;
}

void entry_join(struct scheduler *s, uint32_t slot, bool goes_on)
{
    struct entry *e = &s->entries[slot];

    s->policy->join(s, slot);
    if (goes_on && s->policy->has_levels) {
        const struct trajectory *t = &s->trajectories.v[e->trajectory];
        if (t->level >= e->level) {
            e->level = t->level;
            e->charged_s = t->charged_s;
        }
    }
    s->n_in_level[e->level]++;
    if (s->variant == MLFQ_LEARNED)
        learned_join(s, slot);
    else
        set_rank(s, slot, false);
    order_insert(&s->order, slot, key_of(s, slot));
}

/* The part of a submission that only usual sequences have. */
static void submit_usual(struct scheduler *s, uint32_t slot, const struct sched_request *r,
                         uint64_t now_ns)
{
    struct entry *e = &s->entries[slot];
    bool goes_on;

    e->tenant = tenants_enter(&s->tenants, r->tenant);
    e->trajectory = trajectories_enter(&s->trajectories, r->session, r->tenant, now_ns,
                                       s->starvation_ns, &goes_on);
    e->length_class =
        lengths_enter(s->lengths, &(struct length_traits){.tenant = r->tenant,
                                                          .n_prompt = r->n_known,
                                                          .n_out_max = r->n_out_max,
                                                          .has_limit = r->has_limit,
                                                          .kind = entry_kind(s, e->trajectory)});
    learned_enter_program(s, e, now_ns);
    entry_join(s, slot, goes_on);
    age_list_append(s, slot, now_ns);
    s->came_sum_s += now_ns / NS_PER_S;
}

void entry_begin(struct scheduler *s, uint32_t slot, const struct sched_request *r, uint64_t now_ns)
{
    struct entry *e = &s->entries[slot];
    uint32_t n_cached = r->n_cached < r->n_known ? r->n_cached : r->n_known - 1;

    ASSERT(slot < s->config.n_slots && e->state == ENTRY_NONE && r->n_known > 0);
    *e = (struct entry){.state = ENTRY_WAITING,
                        .class = r->class,
                        .n_known = r->n_known,
                        .n_out_left = r->n_out_max,
                        .n_cached = n_cached,
                        .priority = r->priority,
                        .prefill_s = prefill_seconds(s, n_cached, r->n_known - n_cached),
                        .origin_ns = now_ns,
                        .came_ns = now_ns,
                        .slo_ttft_s = r->slo_ttft_s,
                        .slo_tpot_s = r->slo_tpot_s,
                        .arrival = s->n_arrived++};
}

void scheduler_submit(struct scheduler *s, uint32_t slot, const struct sched_request *r,
                      uint64_t now_ns)
{
    struct entry *e = &s->entries[slot];

    entry_begin(s, slot, r, now_ns);
    if (r->class == SCHED_USUAL)
        submit_usual(s, slot, r, now_ns);
    else
        order_insert(&s->others, slot, key_of(s, slot));
    s->n_waiting_of[e->class]++;
    s->version++;
}

void scheduler_on_attach(struct scheduler *s, uint32_t slot, uint32_t n_computed, uint32_t n_run)
{
    struct entry *e = &s->entries[slot];

    ASSERT(slot < s->config.n_slots && e->state == ENTRY_RUNNING);
    ASSERT(n_run > 0 && n_computed + n_run <= e->n_known);
    entry_found(e, n_computed);
    e->n_flying = n_run;
    s->version++;
    if (e->class == SCHED_USUAL && !s->policy->has_levels)
        entry_placed(s, slot);
}

void scheduler_on_restored(struct scheduler *s, uint32_t slot, double copy_s)
{
    const struct entry *e = &s->entries[slot];
    uint32_t n_lost = e->n_had > e->n_computed ? e->n_had - e->n_computed : 0;
    double seconds = copy_s + prefill_seconds(s, e->n_computed, n_lost);

    ASSERT(slot < s->config.n_slots && e->state == ENTRY_RUNNING && copy_s >= 0);
    if (e->class != SCHED_USUAL)
        return;
    s->restore_s += RESTORE_RATE * (seconds - s->restore_s);
    /* The few tokens behind the last whole block are computed in a step that others need, too. */
    s->restored_s += fmax(0, seconds - prefill_seconds(s, e->n_computed, n_lost > 0));
}

/* A usual sequence took part in a step, whose tokens are counted already. */
static void ran_usual(struct scheduler *s, uint32_t slot, uint32_t n_new, uint64_t step_ns,
                      uint64_t now_ns)
{
    struct entry *e = &s->entries[slot];

    e->charged_s += (double)step_ns / NS_PER_S;
    e->served_s += (double)step_ns / NS_PER_S;
    if (e->trajectory != NO_TRAJECTORY)
        trajectories_charge(&s->trajectories, e->trajectory, (double)step_ns / NS_PER_S, n_new);
    e->has_lost &= n_new == 0;
    if (!e->has_lost)
        age_list_append(s, slot, now_ns);
    if (n_new > 0) {
        if (e->n_out == 1)
            e->first_ns = now_ns;
        else if (step_ns > 0) /* else a guess */
            count_decode(s);
        if (s->variant == MLFQ_LEARNED)
            learned_set_due(s, slot, now_ns);
        e->is_urgent = false;
        s->policy->ran(s, slot);
    }
    if (n_new > 0 || !s->policy->has_levels)
        entry_placed(s, slot);
}

void scheduler_on_tokens(struct scheduler *s, uint32_t slot, uint32_t n_run, uint32_t n_new,
                         uint64_t step_ns, uint64_t now_ns)
{
    struct entry *e = &s->entries[slot];

    ASSERT(slot < s->config.n_slots && e->state == ENTRY_RUNNING && n_run <= e->n_flying);
    ASSERT(e->n_following == 0 || (n_run == e->n_flying && n_new == 1));
    if (n_run < e->n_flying || n_new != (e->n_computed + n_run == e->n_known))
        s->version++; /* a plan made meanwhile expected another number of tokens */
    e->n_computed += n_run;
    e->n_flying = e->n_following;
    e->n_following = 0;
    e->n_known += n_new;
    ASSERT(e->n_computed <= e->n_known);
    e->n_out += n_new;
    e->n_out_left -= n_new && e->n_out_left > 0;
    if (e->class == SCHED_USUAL)
        ran_usual(s, slot, n_new, step_ns, now_ns);
}

void scheduler_on_accepted(struct scheduler *s, uint32_t slot, uint64_t now_ns)
{
    struct entry *e = &s->entries[slot];

    ASSERT(slot < s->config.n_slots && e->n_flying == 0 && e->n_computed + 1 == e->n_known);
    e->n_flying = 1;
    e->n_accepted++;
    s->decode_tokens += 1;
    scheduler_on_tokens(s, slot, 1, 1, 0, now_ns);
}

/* Undo submit_usual(). */
static void forget_usual(struct scheduler *s, uint32_t slot, uint64_t now_ns)
{
    struct entry *e = &s->entries[slot];

    s->n_started -= e->state == ENTRY_WAITING && e->has_run;
    learned_forget_due(s, slot);
    if (s->variant == MLFQ_LEARNED && !e->has_run) {
        learned_started(s, e);
        tenants_refund(&s->tenants, e->tenant, round_index(0, e->priority), 1);
    }
    if (s->variant != MLFQ_LEARNED)
        tenants_refund(&s->tenants, e->tenant, round_index(e->level, e->priority),
                       1 - e->charged_s / s->quantum_s[e->level]);
    tenants_leave(&s->tenants, e->tenant);
    learned_leave_program(s, e);
    if (e->trajectory != NO_TRAJECTORY)
        trajectories_leave(&s->trajectories, e->trajectory, e->level, e->charged_s, now_ns);
    age_list_take(s, slot);
    order_remove(&s->order, slot);
    lengths_leave(s->lengths, e->length_class);
    s->came_sum_s = s->order.n ? s->came_sum_s - e->came_ns / NS_PER_S : 0;
    s->n_in_level[e->level]--;
}

void entry_stops(struct scheduler *s, uint32_t slot)
{
    struct entry *e = &s->entries[slot];

    for (uint32_t i = e->running_at + 1; i < s->n_running; i++) {
        s->running[i - 1] = s->running[i];
        s->entries[s->running[i - 1]].running_at = i - 1;
    }
    s->n_running--;
    s->n_running_of[e->class]--;
}

static void forget(struct scheduler *s, uint32_t slot, uint64_t now_ns)
{
    struct entry *e = &s->entries[slot];

    ASSERT(slot < s->config.n_slots && e->state != ENTRY_NONE);
    if (e->state == ENTRY_RUNNING)
        entry_stops(s, slot);
    else
        s->n_waiting_of[e->class]--;
    if (e->class == SCHED_USUAL)
        forget_usual(s, slot, now_ns);
    else
        order_remove(&s->others, slot);
    e->state = ENTRY_NONE;
    s->version++;
}

void scheduler_on_finish(struct scheduler *s, uint32_t slot, uint64_t now_ns)
{
    if (s->entries[slot].class == SCHED_USUAL)
        learned_ended(s, slot, now_ns);
    forget(s, slot, now_ns);
}

void scheduler_on_cancel(struct scheduler *s, uint32_t slot, uint64_t now_ns)
{
    forget(s, slot, now_ns);
}

/* --- another policy --- */

/* Give the sequence the level that it would have reached under the new policy with the service that
 * it has received. */
static void replace_level(struct scheduler *s, uint32_t slot)
{
    struct entry *e = &s->entries[slot];

    s->n_in_level[e->level]--;
    s->policy->join(s, slot);
    e->charged_s = e->served_s;
    while (s->policy->has_levels && e->charged_s >= s->quantum_s[e->level])
        e->charged_s -= s->quantum_s[e->level++];
    s->n_in_level[e->level]++;
}

/* Place all sequences anew, one after the other in the present order of service. Nothing may be
 * allocated, so the order itself holds the list: first each sequence gets its number as a key
 * before those of any priority, then each moves to its place behind the list. Starving ones, which
 * are in front, keep that number. */
static void place_all(struct scheduler *s)
{
    uint32_t next, n = 0;

    for (uint32_t slot = order_first(&s->order); slot != ORDER_NONE;
         slot = order_next(&s->order, slot)) {
        s->entries[slot].urgent_no = n;
        order_move(&s->order, slot, (struct order_key){.low = n++});
    }
    for (uint32_t slot = order_first(&s->order); slot != ORDER_NONE; slot = next) {
        next = order_next(&s->order, slot);
        if (order_key_of(&s->order, slot).high > 0) /* the first one that has its place */
            break;
        replace_level(s, slot);
        learned_forget_due(s, slot);
        if (s->variant == MLFQ_LEARNED)
            learned_rejoin(s, slot);
        else
            set_rank(s, slot, false);
        s->entries[slot].has_cleared = false;
        order_move(&s->order, slot, key_of(s, slot));
    }
}

enum status scheduler_set_policy(struct scheduler *s, const char *policy_name,
                                 const char *variant_name, struct buf *why)
{
    const struct policy *policy;
    enum mlfq_variant variant;
    enum status st = find_policy(policy_name, variant_name, &policy, &variant, why);

    if (st != OK || (policy == s->policy && variant == s->variant))
        return st;
    s->policy = policy;
    s->variant = variant;
    set_starvation(s);
    tenants_forget_rounds(&s->tenants);
    for (uint32_t i = 0; i < ARRAY_SIZE(s->round); i++)
        s->round[i] = 0;
    learned_forget_rounds(s);
    place_all(s);
    s->version++;
    return OK;
}

/* --- queries --- */

struct sched_seq scheduler_seq(const struct scheduler *s, uint32_t slot)
{
    const struct entry *e = &s->entries[slot];

    return e->state == ENTRY_NONE
               ? (struct sched_seq){0}
               : (struct sched_seq){e->n_known, e->n_computed, e->state == ENTRY_WAITING};
}

uint32_t scheduler_n_running(const struct scheduler *s)
{
    return s->n_running;
}

uint32_t scheduler_n_waiting(const struct scheduler *s)
{
    uint32_t n = 0;

    for (int i = 0; i < SCHED_N_CLASSES; i++)
        n += s->n_waiting_of[i];
    return n;
}

uint32_t entry_next_waiting(const struct scheduler *s, const struct order *order, uint32_t slot)
{
    uint32_t at = slot == ORDER_NONE ? order_first(order) : order_next(order, slot);

    while (at != ORDER_NONE && s->entries[at].state != ENTRY_WAITING)
        at = order_next(order, at);
    return at;
}

bool scheduler_next_waiting(const struct scheduler *s, uint32_t *slot)
{
    bool in_others = *slot != ORDER_NONE && s->entries[*slot].class != SCHED_USUAL;
    uint32_t at = in_others ? ORDER_NONE : entry_next_waiting(s, &s->order, *slot);

    if (at == ORDER_NONE)
        at = entry_next_waiting(s, &s->others, in_others ? *slot : ORDER_NONE);
    *slot = at;
    return at != ORDER_NONE;
}

bool scheduler_session(const struct scheduler *s, uint64_t session, struct sched_session *out)
{
    const struct trajectory *x = trajectories_find(&s->trajectories, session);

    *out = (struct sched_session){.pause = trajectories_pause(&s->trajectories, x)};
    if (!x)
        return false;
    out->n_calls = x->n_calls;
    out->n_inside = x->refs;
    out->n_generated = x->n_generated;
    out->served_s = x->served_s;
    out->first_ns = x->first_ns;
    out->ended_ns = x->ended_ns;
    return true;
}

bool scheduler_close_session(struct scheduler *s, uint64_t session)
{
    const struct trajectory *x = trajectories_find(&s->trajectories, session);

    if (x && x->refs == 0 && !x->is_over)
        learned_end_program(s, x);
    return trajectories_close(&s->trajectories, session);
}

double scheduler_step_s_max(const struct scheduler *s)
{
    return s->config.step_s_max > 0 ? s->config.step_s_max : INFINITY;
}

uint32_t scheduler_reserve_blocks(const struct scheduler *s)
{
    const struct scheduler_config *c = &s->config;

    return c->reserve_blocks ? c->reserve_blocks
                             : c->n_running_max + c->n_tokens_max / TOKENS_PER_BLOCK;
}

void scheduler_stats(const struct scheduler *s, struct scheduler_stats *out)
{
    *out = (struct scheduler_stats){
        .policy = s->policy->name,
        .variant =
            s->policy->has_levels || s->variant == MLFQ_LEARNED ? variant_name(s->variant) : "",
        .n_levels = s->policy->has_levels ? SCHEDULER_N_LEVELS : 1,
        .starvation_s =
            s->starvation_ns == UINT64_MAX ? INFINITY : (double)starvation_now_ns(s) / NS_PER_S,
        .n_preempted_for_place = s->n_preempted_for_place,
        .n_preempted_for_memory = s->n_preempted_for_memory,
        .n_starving = s->n_starving,
        .n_demoted = s->n_demoted,
        .n_reordered = s->n_reordered};
    for (int i = 0; i < SCHED_N_CLASSES; i++) {
        out->n_running[i] = s->n_running_of[i];
        out->n_waiting[i] = s->n_waiting_of[i];
    }
    for (uint32_t l = 0; l < out->n_levels; l++) {
        out->n_in_level[l] = s->n_in_level[l];
        out->quantum_s[l] = s->quantum_s[l];
    }
}

/* Count one sequence into *seen, and check what it says of itself. */
static void check_entry(const struct scheduler *s, uint32_t slot, struct scheduler_stats *seen)
{
    const struct entry *e = &s->entries[slot];
    const struct order *order = e->class == SCHED_USUAL ? &s->order : &s->others;
    struct order_key want = key_of(s, slot), has = order_key_of(order, slot);

    ASSERT(want.high == has.high && want.middle == has.middle && want.low == has.low);
    ASSERT(e->state != ENTRY_RUNNING || s->running[e->running_at] == slot);
    ASSERT(e->state == ENTRY_RUNNING || e->n_flying + e->n_following + e->n_computed == 0);
    seen->n_running[e->class] += e->state == ENTRY_RUNNING;
    seen->n_waiting[e->class] += e->state == ENTRY_WAITING;
    ASSERT(e->class == SCHED_USUAL || (!e->is_urgent && !e->is_listed && !e->due_ns));
    if (e->class != SCHED_USUAL)
        return;
    seen->n_in_level[e->level]++;
    ASSERT(e->is_urgent || e->is_listed);
}

void scheduler_check(const struct scheduler *s)
{
    uint32_t n_started = 0, n_listed = 0, n_running = 0;
    struct scheduler_stats seen = {0};
    uint64_t before = 0;

    order_check(&s->order);
    order_check(&s->others);
    for (uint32_t slot = 0; slot < s->config.n_slots; slot++) {
        const struct entry *e = &s->entries[slot];

        if (e->state == ENTRY_NONE)
            continue;
        check_entry(s, slot, &seen);
        n_started += e->class == SCHED_USUAL && e->state == ENTRY_WAITING && e->has_run;
        n_listed += e->is_listed;
    }
    for (int i = 0; i < SCHED_N_CLASSES; i++) {
        ASSERT(seen.n_running[i] == s->n_running_of[i] && seen.n_waiting[i] == s->n_waiting_of[i]);
        n_running += seen.n_running[i];
    }
    ASSERT(n_running == s->n_running && n_started == s->n_started);
    ASSERT(s->order.n == seen.n_running[SCHED_USUAL] + seen.n_waiting[SCHED_USUAL]);
    ASSERT(s->order.n + s->others.n == n_running + scheduler_n_waiting(s));
    for (uint32_t l = 0; l < SCHEDULER_N_LEVELS; l++)
        ASSERT(seen.n_in_level[l] == s->n_in_level[l]);
    for (uint32_t slot = s->oldest; slot != ORDER_NONE; slot = s->entries[slot].newer) {
        ASSERT(s->entries[slot].last_run_ns >= before);
        before = s->entries[slot].last_run_ns;
        n_listed--;
    }
    ASSERT(n_listed == 0);
}
