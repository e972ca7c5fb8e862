/* hist.h - a histogram with fixed upper bounds, as Prometheus exports them.
 *
 * Owns    nothing; plain data, copied by assignment.
 * Thread  one writer at a time.
 * Errors  none; a NaN is not counted.
 * Units   whatever the caller observes (seconds, tokens). */
#ifndef TARN_BASE_HIST_H
#define TARN_BASE_HIST_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HIST_N_BOUNDS_MAX 32

struct hist {
    const double *bounds; /* [n_bounds] ascending, inclusive upper bounds; static storage */
    uint32_t n_bounds;
    uint64_t counts[HIST_N_BOUNDS_MAX + 1]; /* per bucket, not cumulative; the last is +Inf */
    uint64_t n;
    double sum;
};

void hist_init(struct hist *h, const double *bounds, uint32_t n_bounds);
void hist_add(struct hist *h, double value);
/* Estimate the q-quantile, q in [0, 1], by linear interpolation in its bucket; 0 when empty. */
double hist_quantile(const struct hist *h, double q);

/* The bounds of vLLM's histograms, so that dashboards made for vLLM work. */
extern const double hist_bounds_ttft_s[22];
extern const double hist_bounds_itl_s[19];
extern const double hist_bounds_e2e_s[21];
extern const double hist_bounds_tokens[20]; /* 1 2 5 10 ... */
extern const double hist_bounds_step_tokens[15];
extern const double hist_bounds_n[5];       /* answers per request */
extern const double hist_bounds_step_s[17]; /* not vLLM's: 0.5 ms to 10 s */
extern const double hist_bounds_gap_s[14];  /* not vLLM's: 5 us to 100 ms */

#ifdef __cplusplus
}
#endif

#endif
