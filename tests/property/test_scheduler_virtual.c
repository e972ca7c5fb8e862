/* The scheduler's promises with random workloads in virtual time (sched_world.h): all policies,
 * priorities, tenants, sessions, cancels in every phase, cache hits shorter or longer than planned,
 * scarce memory, plans made while a step runs.
 *
 * world_begin() checks each plan: each slot is in one state, decodes are never omitted, the plan
 * fits into memory, tokens and slots. scheduler_check() recounts after each event. */
#include "base/check.h"
#include "tests/unit/test.h"

#include <math.h>
#include <string.h>

#include "tests/unit/engine/sched/sched_world.h"

static const char *const policies[] = {"skip-join-mlfq", "mlfq", "sjf-prompt", "srpt", "fcfs"};
#define N_POLICIES 5
#define N_WITH_W 4 /* policies with the bound W; in fcfs a job may wait until all before it end */

#define N_SLOTS 20

/* --- random worlds --- */

struct mix {
    uint32_t n_prompt_max, n_out_max;
    uint32_t n_priorities, n_tenants, n_sessions;
    uint32_t other_percent;  /* chance that a job is speculative, and that it is background */
    uint32_t cancel_percent; /* chance of a cancel in each step */
    uint32_t match_percent;  /* chance in each step that a waiting job's cached prompt changes */
    uint32_t arrive_percent; /* chance of an arrival for each free slot and step */
};

static void submit_random(struct world *w, const struct mix *mix, uint32_t slot)
{
    uint32_t n_prompt = 1 + world_draw(w, mix->n_prompt_max);
    uint32_t n_out = 1 + world_draw(w, mix->n_out_max);
    struct sched_request r = {.n_out_max = n_out + world_draw(w, 2) * 5};

    r.priority = (int32_t)world_draw(w, mix->n_priorities) - 1;
    r.tenant = world_draw(w, mix->n_tenants);
    if (mix->other_percent) {
        uint32_t at = world_draw(w, 100) / mix->other_percent;
        r.class = at == 0 ? SCHED_SPECULATIVE : at == 1 ? SCHED_BACKGROUND : SCHED_USUAL;
    }
    r.session = world_draw(w, 2) ? world_draw(w, mix->n_sessions + 1) : 0;
    r.n_cached = world_draw(w, 3) ? 0 : world_draw(w, n_prompt);
    world_submit_as(w, slot, n_prompt, n_out, &r);
}

static void come_and_go(struct world *w, const struct mix *mix)
{
    for (uint32_t slot = 0; slot < N_SLOTS; slot++)
        if (!w->jobs[slot].is_live && world_draw(w, 100) < mix->arrive_percent)
            submit_random(w, mix, slot);
    if (world_draw(w, 100) < mix->cancel_percent) {
        uint32_t slot = world_draw(w, N_SLOTS);

        if (w->jobs[slot].is_live)
            world_cancel(w, slot);
    }
    if (mix->match_percent && world_draw(w, 100) < mix->match_percent) {
        struct world_job *j = &w->jobs[world_draw(w, N_SLOTS)];

        if (j->is_live && j->n_admitted == 0)
            j->n_kept = world_draw(w, j->r.n_known);
    }
}

static const char *const variants[] = {"tarn", "paper", "released", "learned", NULL};

static void open_random(struct world *w, const char *policy, uint64_t seed)
{
    world_init(w, policy, N_SLOTS);
    w->seed = seed;
    w->config.n_running_max = 1 + world_draw(w, 6);
    w->config.n_tokens_max = 8 + world_draw(w, 200);
    w->config.step_s_max = world_draw(w, 2) ? 0.020 + 0.001 * world_draw(w, 100) : 0;
    w->config.starvation_s = world_draw(w, 3) ? 0.2 + 0.1 * world_draw(w, 10) : INFINITY;
    w->config.variant = variants[world_draw(w, ARRAY_SIZE(variants))];
    w->config.reserve_blocks = world_draw(w, 6);
    w->config.reorder_window = world_draw(w, 2) * world_draw(w, 10);
    w->n_blocks = world_draw(w, 3) ? 30 + world_draw(w, 40) : 4000;
    w->keep_percent = world_draw(w, 3) * 50;
    w->surprise_percent = world_draw(w, 2) * 30;
    world_open(w);
}

static const struct mix usual_mix = {.n_prompt_max = 300,
                                     .n_out_max = 40,
                                     .n_priorities = 3,
                                     .n_tenants = 3,
                                     .n_sessions = 4,
                                     .other_percent = 10,
                                     .cancel_percent = 10,
                                     .arrive_percent = 20};

/* --- tokens once each, nothing left --- */

static void run_random(const char *policy, uint64_t seed, struct world *w)
{
    open_random(w, policy, seed);
    for (uint32_t i = 0; i < 250; i++) {
        come_and_go(w, &usual_mix);
        world_step(w);
        if (world_draw(w, 20) == 0)
            world_sleep(w, 0.1);
    }
    world_run_until_empty(w, 20000);
}

static void every_plan_fits_and_every_job_gets_each_token_once(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 8 * N_POLICIES; seed++) {
        struct scheduler_stats stats;
        struct world w;

        run_random(policies[seed % N_POLICIES], seed, &w);
        scheduler_stats(w.s, &stats);
        for (uint32_t i = 0; i < stats.n_levels; i++)
            assert_int_equal(stats.n_in_level[i], 0);
        assert_true(stats.n_preempted_for_place + stats.n_preempted_for_memory <= w.n_preempted);
        world_close(&w);
    }
}

static void the_same_events_give_the_same_plans(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_POLICIES; i++) {
        struct world a, b;

        run_random(policies[i], 77 + i, &a);
        run_random(policies[i], 77 + i, &b);
        assert_int_equal(a.now_ns, b.now_ns);
        assert_int_equal(a.n_steps, b.n_steps);
        assert_int_equal(a.n_preempted, b.n_preempted);
        assert_int_equal(a.n_view_calls, b.n_view_calls);
        world_close(&a);
        world_close(&b);
    }
}

/* --- planning ahead --- */

static bool are_equal(const struct plan *a, const struct plan *b)
{
    bool same = a->n_items == b->n_items && a->n_tokens == b->n_tokens &&
                a->n_preempt == b->n_preempt && a->step_s == b->step_s;

    for (uint32_t i = 0; same && i < a->n_items; i++)
        same = a->items[i].slot == b->items[i].slot && a->items[i].admit == b->items[i].admit &&
               a->items[i].n_tokens == b->items[i].n_tokens &&
               a->items[i].n_cached == b->items[i].n_cached;
    for (uint32_t i = 0; same && i < a->n_preempt; i++)
        same = a->preempt[i] == b->preempt[i];
    return same;
}

struct kept_plan {
    struct plan plan;
    struct plan_item items[N_SLOTS];
    uint32_t preempt[N_SLOTS];
};

static void keep(struct kept_plan *k, const struct plan *p)
{
    k->plan = *p;
    memcpy(k->items, p->items, p->n_items * sizeof *p->items);
    memcpy(k->preempt, p->preempt, p->n_preempt * sizeof *p->preempt);
    k->plan.items = k->items;
    k->plan.preempt = k->preempt;
}

/* Run steps as the engine does. The next plan is made while a step runs, for the time of its end,
 * and used if it is still current. Then a fresh plan must be equal to it. */
static void plan_ahead(struct world *w, uint32_t n_steps, uint32_t n_current[2])
{
    struct sched_view view = world_view(w);
    struct kept_plan ahead;
    struct plan plan;

    scheduler_plan(w->s, w->now_ns, &view, &plan);
    for (uint32_t i = 0; i < n_steps; i++) {
        uint64_t ends_ns;
        bool is_current;

        world_begin(w, &plan);
        ends_ns = w->now_ns + (uint64_t)llround(w->step_s * 1e9);
        view = world_view(w);
        scheduler_plan(w->s, ends_ns, &view, &plan);
        keep(&ahead, &plan);
        scheduler_check(w->s);
        if (world_draw(w, 2)) /* jobs arrive and are cancelled while the step runs */
            come_and_go(w, &usual_mix);
        world_end(w);
        is_current = scheduler_is_current(w->s, &ahead.plan);
        n_current[is_current]++;
        view = world_view(w);
        scheduler_plan(w->s, w->now_ns, &view, &plan);
        if (is_current)
            assert_true(are_equal(&plan, &ahead.plan));
    }
    world_begin(w, &plan);
    world_end(w);
}

static void a_plan_made_ahead_that_is_current_is_the_one_made_afresh(void **state)
{
    uint32_t n_current[2] = {0, 0};

    (void)state;
    for (uint64_t seed = 0; seed < 4 * N_POLICIES; seed++) {
        struct world w;

        open_random(&w, policies[seed % N_POLICIES], 1000 + seed);
        plan_ahead(&w, 300, n_current);
        world_run_until_empty(&w, 20000);
        world_close(&w);
    }
    assert_true(n_current[1] > n_current[0] / 2); /* most plans made ahead are used */
}

/* Without arrivals, ends and changes of the order, the plan made ahead stays current. */
static void a_plan_made_ahead_stays_current_while_nothing_changes(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_POLICIES; i++) {
        uint32_t n_current = 0;
        struct world w;

        world_init(&w, policies[i], 4);
        w.config.n_tokens_max = 64;
        world_open(&w);
        for (uint32_t slot = 0; slot < 4; slot++)
            world_submit(&w, slot, 500, 300);
        for (uint32_t n = 0; n < 200; n++) {
            struct sched_view view = world_view(&w);
            struct plan plan;

            scheduler_plan(w.s, w.now_ns, &view, &plan);
            world_begin(&w, &plan);
            view = world_view(&w);
            scheduler_plan(w.s, w.now_ns + (uint64_t)llround(w.step_s * 1e9), &view, &plan);
            world_end(&w);
            n_current += scheduler_is_current(w.s, &plan);
        }
        assert_true(n_current >= 180); /* the rest are changes of level, which become rare */
        world_close(&w);
    }
}

/* --- a naive implementation of the order, from the header's text --- */

struct place {
    uint32_t level;
    double charged_s;
    uint64_t ticket; /* order of arrival at the level */
    bool is_urgent;
    uint64_t urgent_ns; /* last step before it became urgent */
    uint64_t last_ns;   /* last step, or arrival */
    uint32_t n_cached;  /* cached tokens at its arrival */
    bool has_run;
};

struct naive {
    struct world *w;
    const char *policy;
    bool is_mlfq;
    bool to_top; /* a starving job moves to the top level: variant "paper" */
    struct place of[N_SLOTS];
    uint64_t n_tickets;
};

static double quantum_s(const struct world *w, uint32_t level)
{
    return w->config.quantum_s * pow(2, level);
}

static uint32_t level_for(const struct world *w, uint32_t level, double seconds)
{
    while (quantum_s(w, level) < seconds)
        level++;
    return level;
}

static void naive_came(struct naive *v, uint32_t slot)
{
    const struct world_job *j = &v->w->jobs[slot];
    uint32_t n_new = j->r.n_known - j->r.n_cached;

    v->of[slot] = (struct place){
        .ticket = v->n_tickets++, .last_ns = v->w->now_ns, .n_cached = j->r.n_cached};
    if (!strcmp(v->policy, "skip-join-mlfq"))
        v->of[slot].level = level_for(v->w, 0, n_new * v->w->token_s);
}

static void naive_ran(struct naive *v, uint32_t slot, uint32_t n_known_before)
{
    struct place *p = &v->of[slot];

    p->charged_s += v->w->step_s;
    p->has_run = true;
    p->last_ns = v->w->now_ns;
    if (v->w->jobs[slot].n_known == n_known_before)
        return;
    p->is_urgent = false;
    if (!v->is_mlfq || p->charged_s < quantum_s(v->w, p->level))
        return;
    p->level = level_for(v->w, p->level + 1, v->w->decode_s);
    p->charged_s = 0;
    p->ticket = v->n_tickets++;
}

/* Starving jobs run before all others, the one that has waited longest first. */
static void naive_starving(struct naive *v)
{
    for (;;) {
        uint64_t first_ns = UINT64_MAX;

        for (uint32_t i = 0; i < N_SLOTS; i++) {
            const struct place *p = &v->of[i];
            double waited_s = world_seconds(v->w->now_ns - p->last_ns);

            if (v->w->jobs[i].is_live && !p->is_urgent && waited_s >= v->w->config.starvation_s &&
                p->last_ns < first_ns)
                first_ns = p->last_ns;
        }
        if (first_ns == UINT64_MAX)
            return;
        for (uint32_t i = 0; i < N_SLOTS; i++) {
            struct place *p = &v->of[i];

            if (!v->w->jobs[i].is_live || p->is_urgent || p->last_ns != first_ns)
                continue;
            p->is_urgent = true;
            p->urgent_ns = first_ns;
            if (v->is_mlfq && v->to_top) {
                p->ticket = v->n_tickets; /* jobs of the same time may be in any order */
                p->level = 0;
                p->charged_s = 0;
            }
        }
        v->n_tickets++;
    }
}

/* The policy's rank of a job within its priority: the smallest runs first. */
static double rank_of(const struct naive *v, uint32_t slot)
{
    const struct world *w = v->w;
    const struct world_job *j = &w->jobs[slot];
    uint32_t n_out = j->r.n_out_max - (j->n_known - j->r.n_known);
    uint32_t n_have = j->is_running         ? j->n_computed
                      : v->of[slot].has_run ? j->n_known - 1
                                            : v->of[slot].n_cached;

    if (v->is_mlfq)
        return v->of[slot].level;
    if (!strcmp(v->policy, "sjf-prompt"))
        return v->of[slot].has_run ? 0 : (j->r.n_known - v->of[slot].n_cached) * w->token_s;
    if (!strcmp(v->policy, "srpt"))
        return n_out * w->decode_s + (j->n_known - n_have) * w->token_s;
    return 0;
}

/* Whether a is before b by more than the estimates of a remaining time may differ. */
static bool is_before(const struct naive *v, uint32_t a, uint32_t b)
{
    const struct place *p = &v->of[a], *q = &v->of[b];
    double margin = strcmp(v->policy, "srpt") != 0 ? 0 : 3 * v->w->token_s;
    double rank_a = rank_of(v, a), rank_b = rank_of(v, b);

    if (p->is_urgent != q->is_urgent)
        return p->is_urgent;
    if (p->is_urgent)
        return p->urgent_ns < q->urgent_ns;
    if (v->w->jobs[a].r.priority != v->w->jobs[b].r.priority)
        return v->w->jobs[a].r.priority < v->w->jobs[b].r.priority;
    if (fabs(rank_a - rank_b) > margin)
        return rank_a < rank_b;
    return margin == 0 && p->ticket < q->ticket;
}

/* With ample resources the plan must contain the first n_running_max jobs of the order. */
static void check_first(struct naive *v)
{
    const struct world *w = v->w;

    for (uint32_t a = 0; a < N_SLOTS; a++)
        for (uint32_t b = 0; b < N_SLOTS; b++)
            if (w->jobs[a].is_live && w->jobs[b].is_live && !w->jobs[a].n_run && w->jobs[b].n_run)
                assert_false(is_before(v, a, b));
    assert_int_equal(w->plan.n_items,
                     w->n_live < w->config.n_running_max ? w->n_live : w->config.n_running_max);
}

static void step_of_naive(struct naive *v)
{
    struct world *w = v->w;
    struct sched_view view = world_view(w);
    uint32_t n_known[N_SLOTS];
    struct plan plan;

    naive_starving(v);
    scheduler_plan(w->s, w->now_ns, &view, &plan);
    /* The order is computed from the state before the step. */
    for (uint32_t slot = 0; slot < N_SLOTS; slot++)
        w->jobs[slot].n_run = 0;
    for (uint32_t i = 0; i < plan.n_items; i++)
        w->jobs[plan.items[i].slot].n_run = 1;
    w->plan.n_items = plan.n_items;
    check_first(v);
    for (uint32_t slot = 0; slot < N_SLOTS; slot++) {
        w->jobs[slot].n_run = 0;
        n_known[slot] = w->jobs[slot].n_known;
    }
    world_begin(w, &plan);
    world_end(w);
    for (uint32_t i = 0; i < w->plan.n_items; i++) /* in the order of the plan, as world_end() */
        if (w->jobs[w->items[i].slot].is_live)
            naive_ran(v, w->items[i].slot, n_known[w->items[i].slot]);
}

static void come_and_go_naive(struct naive *v, const struct mix *mix)
{
    struct world *w = v->w;
    uint32_t gone = world_draw(w, N_SLOTS);

    for (uint32_t slot = 0; slot < N_SLOTS; slot++)
        if (!w->jobs[slot].is_live && world_draw(w, 100) < mix->arrive_percent) {
            submit_random(w, mix, slot);
            naive_came(v, slot);
        }
    if (world_draw(w, 100) < mix->cancel_percent && w->jobs[gone].is_live)
        world_cancel(w, gone);
}

static void the_first_of_the_order_run(void **state)
{
    static const struct mix mix = {.n_prompt_max = 300,
                                   .n_out_max = 30,
                                   .n_priorities = 3,
                                   .n_tenants = 1,
                                   .n_sessions = 0,
                                   .cancel_percent = 5,
                                   .arrive_percent = 4};

    (void)state;
    for (uint64_t seed = 0; seed < 4 * N_POLICIES; seed++) {
        const char *policy = policies[seed % N_POLICIES];
        struct world w;
        struct naive v = {.w = &w,
                          .policy = policy,
                          .is_mlfq = strstr(policy, "mlfq") != NULL,
                          .to_top = seed % 2};

        world_init(&w, policy, N_SLOTS);
        w.seed = 5000 + seed;
        w.config.variant = v.to_top ? "paper" : "tarn";
        w.config.n_running_max = 1 + (uint32_t)seed % 5;
        w.config.n_tokens_max = 1u << 20;
        w.config.quantum_s = 0.0101; /* so that no job uses exactly a quantum */
        w.config.starvation_s = strcmp(policy, "fcfs") != 0 ? 1.0003 : INFINITY;
        w.token_s = 0.00097;
        world_open(&w);
        for (uint32_t i = 0; i < 400; i++) {
            come_and_go_naive(&v, &mix);
            if (w.n_live)
                step_of_naive(&v);
        }
        world_close(&w);
    }
}

/* --- no starvation: the bound W of promise P6 --- */

/* W = alpha + (ceil(N / B) + 1) I. A job that has not run for alpha runs before all others, except
 * jobs that have waited longer: at most N, the number of jobs. At least B jobs fit into slots and
 * memory at once, and a job that is served keeps its place until its next token. I is the longest
 * time to serve B jobs: the steps needed for all their known tokens, at the tokens per step that
 * decodes leave, times the longest step. One more I is for the jobs that are served when the job
 * becomes urgent. */
static double bound_s(const struct world *w, const struct mix *mix)
{
    uint32_t n_known = mix->n_prompt_max + mix->n_out_max, n_run = w->config.n_running_max;
    uint32_t n_blocks = (n_known + WORLD_BLOCK - 1) / WORLD_BLOCK;
    uint32_t fit =
        w->n_blocks / (n_blocks + (w->config.reserve_blocks ? w->config.reserve_blocks : 1));
    uint32_t n_at_once = fit < 1 ? 1 : fit < n_run ? fit : n_run;
    uint32_t n_tokens = w->config.n_tokens_max - n_run;
    double iteration_s = ceil((double)n_at_once * n_known / n_tokens) * w->longest_step_s;

    return w->config.starvation_s + (ceil((double)N_SLOTS / n_at_once) + 1) * iteration_s;
}

static void every_job_runs_again_within_the_bound(void **state)
{
    static const struct mix mix = {.n_prompt_max = 150,
                                   .n_out_max = 40,
                                   .n_priorities = 3,
                                   .n_tenants = 2,
                                   .n_sessions = 2,
                                   .other_percent = 10,
                                   .cancel_percent = 1,
                                   .match_percent = 80,
                                   .arrive_percent = 100};

    (void)state;
    for (uint64_t seed = 0; seed < 12 * N_WITH_W; seed++) {
        double n_chunks, w_s;
        struct world w;

        world_init(&w, policies[seed % N_WITH_W], N_SLOTS);
        w.seed = 9000 + seed;
        w.config.n_running_max = 1 + world_draw(&w, 4);
        w.config.n_tokens_max = 50 + world_draw(&w, 100);
        w.config.starvation_s = 0.5;
        w.config.variant = variants[seed / N_WITH_W % 4];
        w.config.variant =
            w.config.variant && !strcmp(w.config.variant, "released") ? "tarn" : w.config.variant;
        w.config.reorder_window = 4 * world_draw(&w, 4);
        w.n_blocks = world_draw(&w, 2) ? 16 + world_draw(&w, 20) : 4000;
        w.keep_percent = world_draw(&w, 3) * 50;
        world_open(&w);
        for (uint32_t i = 0; i < 1500; i++) {
            come_and_go(&w, &mix);
            world_step(&w);
        }
        w_s = bound_s(&w, &mix);
        assert_true(world_longest_wait_s(&w) <= w_s);
        /* Before its first token, a job may be preempted after each chunk and wait again. */
        n_chunks = ceil((mix.n_prompt_max + mix.n_out_max) /
                        (double)(w.config.n_tokens_max - w.config.n_running_max));
        assert_true(world_longest_gap_s(&w) <= n_chunks * w_s);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_plan_fits_and_every_job_gets_each_token_once),
        cmocka_unit_test(the_same_events_give_the_same_plans),
        cmocka_unit_test(a_plan_made_ahead_that_is_current_is_the_one_made_afresh),
        cmocka_unit_test(a_plan_made_ahead_stays_current_while_nothing_changes),
        cmocka_unit_test(the_first_of_the_order_run),
        cmocka_unit_test(every_job_runs_again_within_the_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
