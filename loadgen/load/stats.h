/* stats.h - exact statistics over all values; nothing is binned.
 *
 * Percentiles interpolate linearly between the two nearest ranks, and the standard deviation is
 * that of the population: both as numpy's defaults, which vLLM's tool uses.
 *
 * Owns    a series its values: series_fini().
 * Thread  one at a time.
 * Errors  ERR_NOMEM.
 * Units   whatever the values have; an empty series has mean, median, ... 0. */
#ifndef TARN_LOADGEN_LOAD_STATS_H
#define TARN_LOADGEN_LOAD_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct series {
    double *v; /* [n] */
    size_t n, cap;
    bool sorted;
};

NODISCARD enum status series_push(struct series *s, double value);
void series_fini(struct series *s); /* also fine on a zeroed struct */
void series_sort(struct series *s);

double stats_mean(const double *v, size_t n);
double stats_std(const double *v, size_t n);
/* v ascending; p in [0, 100]. */
double stats_percentile(const double *v, size_t n, double p);

/* The statistics of a series that `compare` prints. */
enum statistic { STATISTIC_MEAN, STATISTIC_MEDIAN, STATISTIC_P95, STATISTIC_P99, N_STATISTICS };
const char *statistic_name(enum statistic s); /* "mean", "median", "p95", "p99" */

/* A ratio and its 95 % interval. All three are NAN where there is no ratio. */
struct interval {
    double value, low, high;
};

/* Compute statistic(b) / statistic(a) of n pairs, with the interval between the 2.5th and the
 * 97.5th percentile of resampled pairs. Without pairs, and where a's statistic is 0, there is no
 * ratio; resamples whose ratio has no value are left out of the interval. */
NODISCARD enum status stats_ratio_bootstrap(const double *a, const double *b, size_t n,
                                            enum statistic what, uint64_t seed,
                                            struct interval *out);
/* Compute the geometric mean of b[i] / a[i], with Student's interval on the logarithms. Pairs with
 * a value that is not above 0 are left out; *n_used counts the others. Without such pairs there is
 * no ratio; a single pair has the interval [0, INFINITY]. */
struct interval stats_ratio_t(const double *a, const double *b, size_t n, size_t *n_used);
/* The 97.5 % point of Student's t. */
double stats_t975(size_t degrees_of_freedom);

#endif
