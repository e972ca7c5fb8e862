/* planning.h - measures scheduler_plan() among many sequences.
 *
 * Owns    nothing after a call.
 * Thread  one; the clock of the machine is read around each plan.
 * Errors  ERR_NOMEM, ERR_INVALID with words.
 * Units   seconds. */
#ifndef TARN_LOADGEN_BENCH_SCHED_PLANNING_H
#define TARN_LOADGEN_BENCH_SCHED_PLANNING_H

#include "loadgen/bench/sched/crowd.h"

struct planning_figure {
    double mean, median, p99, max;
};

struct planning_result {
    struct crowd_config config;
    uint32_t n_plans;
    struct planning_figure plan; /* scheduler_plan() alone */
    struct planning_figure step; /* and all events of the step: take, tokens, ends, arrivals */
    /* Events during the measurement: planning an unchanged queue would show little. */
    uint64_t n_ended, n_admitted, n_preempted, n_demoted, n_starving;
    double n_items_mean;    /* of a step */
    uint32_t n_levels_used; /* that hold a sequence at the end */
};

/* Measure n_plans plans, after half as many to warm up. */
NODISCARD enum status planning_run(struct planning_result *r, const struct crowd_config *config,
                                   uint32_t n_plans, struct buf *why);

#endif
