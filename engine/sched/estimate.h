/* estimate.h - predicts when a sequence gets its first and its last token: "when will I be served?"
 *
 * Prediction. The sequences that precede the request in the order of service, and those that run
 * behind it, go through coarse steps: a step with prompts is cut as the plan cuts it
 * (scheduler_plan.c), steps that only decode pass in one jump until a sequence leaves its place.
 * Step times are the cost model's. A sequence leaves at its end, or when an MLFQ has demoted it
 * behind the request. The length of a running answer is unknown, so each sequence gets another
 * quantile of its expected length: if all had the mean, no place would become free before all do.
 *
 * With speculation a step yields several tokens of a decode. The lengths are divided by the tokens
 * of a step that were measured: of the sequence, while it has few of all sequences.
 *
 * Bounded cost. All running sequences, the first ESTIMATE_N_AHEAD waiting ones and n_steps steps
 * are simulated; the work that is left then is divided by the speed. The waiting sequences between
 * those and the request are represented by ESTIMATE_N_SAMPLES evenly spaced ones, whose mean work
 * is multiplied by their number. So the cost is O(running), whatever the number that waits.
 *
 * Correction. All predicted times are multiplied by the time of the last steps over their expected
 * time. Later arrivals that overtake the request, KV memory that runs short and the time between
 * steps are unknown. Instead, the quantiles 0.5 and 0.9 of actual / predicted time are followed,
 * and multiplied to the prediction: apart for first token and end, and for groups of requests. A
 * group has about as many requests before it, and is overtaken by about the same share of later
 * ones: with learned ranks, by as many as would have overtaken it of the last ones. So half of the
 * requests are served earlier than ttft_s, and nine of ten earlier than ttft_high_s. A group that
 * is young takes the quantiles of all requests that wait for a place, or of all others.
 *
 * Owns    the scratch arrays of one prediction; the scheduler is borrowed.
 * Thread  as the scheduler: one at a time.
 * Errors  estimator_create(): ERR_NOMEM.
 * Units   seconds and tokens. */
#ifndef TARN_ENGINE_SCHED_ESTIMATE_H
#define TARN_ENGINE_SCHED_ESTIMATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

struct scheduler;
struct sched_request;

#define ESTIMATE_N_AHEAD 32
#define ESTIMATE_N_SAMPLES 16
#define ESTIMATE_N_STEPS 24

/* Tokens that the sequence is still to generate: the p-quantile, 0 < p < 1. At most its limit. */
typedef double estimate_tokens_fn(const void *arg, uint32_t slot, double p);

struct estimator;

/* tokens NULL: by the lengths that the scheduler has learned (lengths.h). n_steps: usually
 * ESTIMATE_N_STEPS. */
NODISCARD enum status estimator_create(struct estimator **out, struct scheduler *s,
                                       estimate_tokens_fn *tokens, const void *tokens_arg,
                                       uint32_t n_steps);
void estimator_destroy(struct estimator *m); /* NULL is fine */

/* A prediction, in seconds since the submission of the request. */
struct estimate {
    double ttft_s, ttft_high_s; /* median and 90th percentile */
    double e2e_s, e2e_high_s;
    uint32_t n_before; /* sequences that precede it in the order of service */
    /* Of estimator_note_*(): the prediction without the correction, from when it was made. */
    double raw_ttft_s, raw_e2e_s, waited_s;
    bool waits;     /* for a place */
    uint32_t group; /* of the correction */
};

/* Predict a sequence of the scheduler that waits and has not run: once, when it comes, since later
 * predictions remember its place. waited_s: time since its submission. n_tokens: the number that it
 * will generate; negative: unknown. Between two steps. */
void estimate_slot(struct estimator *m, uint32_t slot, double waited_s, double n_tokens,
                   struct estimate *out);
/* Predict a request if it were submitted now; `slot` is a free one. The scheduler stays as it is,
 * also a plan that was made ahead. */
void estimate_request(struct estimator *m, uint32_t slot, const struct sched_request *r,
                      uint64_t now_ns, struct estimate *out);

/* A step took actual_s seconds, and the cost model expected expected_s. Predictions follow the
 * speed of the last second of steps: other load makes a machine slower for a while. */
void estimator_note_step(struct estimator *m, double expected_s, double actual_s);
/* The time that the last second of steps took over the expected one; 1 before the first step. */
double estimator_pace(const struct estimator *m);
/* Correct later predictions by what a predicted request got, in seconds since its submission.
 * Return the relative error |predicted - actual| / actual. */
double estimator_note_ttft(struct estimator *m, const struct estimate *e, double actual_s);
double estimator_note_e2e(struct estimator *m, const struct estimate *e, double actual_s);

/* Followed quantiles, 0.5 and 0.9. */
struct estimate_factors {
    double median, high;
    uint64_t n; /* requests that they were learned from */
};
struct estimator_stats {
    /* Of actual / predicted, by whether the request waits for a place. */
    struct estimate_factors ttft[2], e2e[2];
    struct estimate_factors ttft_error, e2e_error; /* lately, of the relative error */
};
void estimator_stats(const struct estimator *m, struct estimator_stats *out);

#endif
