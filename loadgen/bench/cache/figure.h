/* figure.h - the summary of many values: median, extremes, and the slowest tenth.
 *
 * Owns    figure_series_init(): room for the values, until fini.
 * Thread  one.
 * Errors  ERR_NOMEM. A value beyond the room is a bug and asserted.
 * Units   the values'. */
#ifndef TARN_LOADGEN_BENCH_CACHE_FIGURE_H
#define TARN_LOADGEN_BENCH_CACHE_FIGURE_H

#include <stdint.h>

#include "base/status.h"

struct figure {
    uint32_t n; /* 0: nothing was measured, and the rest is 0 */
    double median, min, max;
    double p90; /* nine of ten are at most this */
};

struct figure_series {
    double *values; /* [n_max] */
    uint32_t n, n_max;
};

NODISCARD enum status figure_series_init(struct figure_series *s, uint32_t n_max);
void figure_series_fini(struct figure_series *s); /* also fine on a zeroed struct */
/* The same for all of s[0..n); fini also where not all have room. */
NODISCARD enum status figure_series_init_all(struct figure_series *s, uint32_t n, uint32_t n_max);
void figure_series_fini_all(struct figure_series *s, uint32_t n);
void figure_series_add(struct figure_series *s, double value);
/* Sort the values. */
struct figure figure_of(struct figure_series *s);

#endif
