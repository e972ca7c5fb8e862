#include "loadgen/bench/sched/planning.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static struct planning_figure figure_of(double *seconds, uint32_t n)
{
    struct planning_figure f = {0};

    qsort(seconds, n, sizeof *seconds, by_value);
    for (uint32_t i = 0; i < n; i++)
        f.mean += seconds[i] / n;
    f.median = seconds[n / 2];
    f.p99 = seconds[(uint64_t)n * 99 / 100];
    f.max = seconds[n - 1];
    return f;
}

static void one_step(struct crowd *c, double *plan_s, double *step_s)
{
    struct plan plan;
    uint64_t t0 = clock_now_ns(), t1, t2;

    crowd_plan(c, &plan);
    t1 = clock_now_ns();
    crowd_run(c, &plan);
    t2 = clock_now_ns();
    *plan_s = (double)(t1 - t0) * 1e-9;
    *step_s = (double)(t2 - t0) * 1e-9;
}

static uint64_t n_preempted(const struct scheduler_stats *st)
{
    return st->n_preempted_for_place + st->n_preempted_for_memory;
}

/* Fill in the events since `before`. */
static void count(struct planning_result *r, const struct crowd *c, const struct crowd *c0,
                  const struct scheduler_stats *st0)
{
    struct scheduler_stats st;

    scheduler_stats(c->scheduler, &st);
    r->n_ended = c->n_ended - c0->n_ended;
    r->n_admitted = c->n_admitted - c0->n_admitted;
    r->n_preempted = n_preempted(&st) - n_preempted(st0);
    r->n_demoted = st.n_demoted - st0->n_demoted;
    r->n_starving = st.n_starving - st0->n_starving;
    r->n_items_mean = (double)(c->n_items - c0->n_items) / r->n_plans;
    for (uint32_t i = 0; i < st.n_levels; i++)
        r->n_levels_used += st.n_in_level[i] > 0;
}

static void measure(struct planning_result *r, struct crowd *c, double *plan_s, double *step_s)
{
    struct scheduler_stats st0;
    double unused[2];

    for (uint32_t i = 0; i < r->n_plans / 2; i++)
        one_step(c, &unused[0], &unused[1]);
    scheduler_stats(c->scheduler, &st0);
    struct crowd c0 = *c;
    for (uint32_t i = 0; i < r->n_plans; i++)
        one_step(c, &plan_s[i], &step_s[i]);
    count(r, c, &c0, &st0);
    scheduler_check(c->scheduler);
    r->plan = figure_of(plan_s, r->n_plans);
    r->step = figure_of(step_s, r->n_plans);
}

enum status planning_run(struct planning_result *r, const struct crowd_config *config,
                         uint32_t n_plans, struct buf *why)
{
    struct crowd c;
    double *plan_s = calloc(n_plans, sizeof *plan_s), *step_s = calloc(n_plans, sizeof *step_s);
    enum status s = plan_s && step_s ? OK : buf_why(why, ERR_NOMEM, "out of memory");

    *r = (struct planning_result){.config = *config, .n_plans = n_plans};
    if (s == OK)
        s = crowd_init(&c, config, why);
    if (s == OK) {
        measure(r, &c, plan_s, step_s);
        crowd_fini(&c);
    }
    free(plan_s);
    free(step_s);
    return s;
}
