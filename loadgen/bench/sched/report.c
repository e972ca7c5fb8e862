#include "loadgen/bench/sched/report.h"

#include <inttypes.h>

/* An appender that does nothing after the first failure. */
#define PUT(...)                                                                                   \
    do {                                                                                           \
        if (s == OK)                                                                               \
            s = buf_printf(out, __VA_ARGS__);                                                      \
    } while (0)

static const char *starvation_name(const struct crowd_config *c)
{
    return c->starvation_never ? "never" : "default";
}

enum status schedbench_report_text(struct buf *out, const struct planning_result *r, uint32_t n)
{
    enum status s = OK;

    PUT("%-15s %-10s %8s %7s %10s %9s %9s %9s %8s %8s %8s %6s\n", "policy", "starvation", "queued",
        "running", "plan us", "p99", "max", "step us", "ended", "preempt", "demoted", "levels");
    for (uint32_t i = 0; i < n; i++, r++)
        PUT("%-15s %-10s %8" PRIu32 " %7" PRIu32 " %10.1f %9.1f %9.1f %9.1f %8" PRIu64 " %8" PRIu64
            " %8" PRIu64 " %6" PRIu32 "\n",
            r->config.policy, starvation_name(&r->config), r->config.n_queued, r->config.n_running,
            r->plan.median * 1e6, r->plan.p99 * 1e6, r->plan.max * 1e6, r->step.median * 1e6,
            r->n_ended, r->n_preempted, r->n_demoted, r->n_levels_used);
    PUT("plan us: the median of one scheduler_plan(); step us: with all events of the step.\n");
    return s;
}

static enum status put_figure(struct buf *out, const char *name, const struct planning_figure *f)
{
    return buf_printf(out, "\"%s\":{\"mean\":%.9g,\"median\":%.9g,\"p99\":%.9g,\"max\":%.9g}", name,
                      f->mean, f->median, f->p99, f->max);
}

static enum status put_row(struct buf *out, const struct planning_result *r)
{
    enum status s = OK;

    PUT("{\"policy\":\"%s\",\"starvation\":\"%s\",\"n_queued\":%" PRIu32 ",\"n_running\":%" PRIu32
        ",\"n_plans\":%" PRIu32 ",",
        r->config.policy, starvation_name(&r->config), r->config.n_queued, r->config.n_running,
        r->n_plans);
    if (s == OK)
        s = put_figure(out, "plan_s", &r->plan);
    PUT(",");
    if (s == OK)
        s = put_figure(out, "step_s", &r->step);
    PUT(",\"n_ended\":%" PRIu64 ",\"n_admitted\":%" PRIu64 ",\"n_preempted\":%" PRIu64
        ",\"n_demoted\":%" PRIu64 ",\"n_starving\":%" PRIu64 ",\"n_items_mean\":%.6g"
        ",\"n_levels_used\":%" PRIu32 "}",
        r->n_ended, r->n_admitted, r->n_preempted, r->n_demoted, r->n_starving, r->n_items_mean,
        r->n_levels_used);
    return s;
}

enum status schedbench_report_json(struct buf *out, const struct planning_result *r, uint32_t n)
{
    enum status s = OK;

    PUT("{\"format\":1,\"planning\":[");
    for (uint32_t i = 0; s == OK && i < n; i++) {
        PUT("%s", i ? ",\n" : "");
        if (s == OK)
            s = put_row(out, &r[i]);
    }
    PUT("]}\n");
    return s;
}
