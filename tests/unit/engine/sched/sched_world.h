/* sched_world.h - a world in virtual time around the scheduler: for tests of its contract.
 *
 * A toy KV memory of n_blocks blocks stands behind the view; a step takes decode_s if anybody
 * decodes, and token_s for each token of a prefill. What a preempted sequence computed stays
 * findable for keep_percent of the times. Each plan is checked against what scheduler.h promises
 * of every plan (world_begin()), and scheduler_check() runs after each event.
 *
 * Owns    the scheduler, the jobs and copies of the plan.
 * Thread  the test's main thread.
 * Errors  everything that fails ends the test with a message.
 * Units   tokens, blocks, nanoseconds; seconds where a name says so. */
#ifndef TARN_TESTS_SCHED_WORLD_H
#define TARN_TESTS_SCHED_WORLD_H

#include "engine/sched/cost_model.h"
#include "engine/sched/scheduler.h"

#define WORLD_BLOCK 16

struct world_job {
    struct sched_request r;
    uint32_t n_out; /* tokens that it generates; then it ends */
    bool is_live, is_running;
    uint32_t n_known, n_computed;
    uint32_t n_slots, n_held; /* tokens with a place, blocks */
    uint32_t n_kept;          /* waiting: tokens that would be found */
    uint32_t n_run;           /* in the step under way; 0: not in it */
    uint32_t n_admitted, n_preempted;
    uint64_t came_ns, ran_ns, token_ns, left_ns; /* ran, token: the last time */
    double ran_s;                                /* time of the steps that it took part in */
};

struct world {
    struct scheduler *s;
    struct scheduler_config config;
    struct cost_model cost;
    double decode_s, token_s;
    double decode_growth; /* a decode of 1000 sequences takes so many times decode_s */
    uint32_t n_blocks, n_free;
    uint32_t keep_percent, surprise_percent;
    bool is_checked; /* scheduler_check() after each event */
    uint64_t seed, n_drawn;
    uint64_t now_ns;
    struct world_job *jobs; /* [n_slots] */
    uint32_t n_live;
    bool is_stepping;
    double step_s;    /* of the step under way, or the last */
    struct plan plan; /* the last that was taken, with arrays of its own */
    struct plan_item *items;
    uint32_t *preempt;
    uint64_t n_steps, n_preempted, n_view_calls;
    uint32_t n_without_items; /* plans in turn that only take places away */
    uint64_t n_tokens_out;
    uint64_t wait_ns; /* the longest from a job's coming or step to its next step */
    uint64_t gap_ns;  /* and to its next token */
    double longest_step_s;
};

/* Before world_open(): a policy with 4 sequences at once, a step of at most 1000 tokens, a step
 * 10 ms, a token of a prefill 1 ms; memory that is never short. */
void world_init(struct world *w, const char *policy, uint32_t n_slots);
void world_open(struct world *w);
void world_close(struct world *w);
uint32_t world_draw(struct world *w, uint32_t n); /* below n */

void world_submit(struct world *w, uint32_t slot, uint32_t n_prompt, uint32_t n_out);
/* With what else a request says; r->n_known and n_out_max 0: n_prompt and n_out. */
void world_submit_as(struct world *w, uint32_t slot, uint32_t n_prompt, uint32_t n_out,
                     const struct sched_request *r);
void world_cancel(struct world *w, uint32_t slot);

struct sched_view world_view(struct world *w);
/* Take the plan, which is checked, and carry it out. */
void world_begin(struct world *w, const struct plan *plan);
/* The step that was begun ends: tokens come, and who has all of them leaves. */
void world_end(struct world *w);
/* Plan, begin and end. False: there was nothing to run. */
bool world_step(struct world *w);
void world_run_until_empty(struct world *w, uint64_t n_steps_max);
/* Nobody runs: time passes. */
void world_sleep(struct world *w, double seconds);

bool world_is_planned(const struct world *w, uint32_t slot); /* in the last plan */
uint32_t world_level(const struct world *w);                 /* of the only live job */
/* Seconds from a job's coming or step to its next one, or a token to its next one, at most; those
 * that still wait count. */
double world_longest_wait_s(const struct world *w);
double world_longest_gap_s(const struct world *w);
double world_seconds(uint64_t ns);
void assert_near(double value, double expected, double tolerance);

#endif
