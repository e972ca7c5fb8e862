/* median.h - the median, nothing else.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none; n >= 1 is asserted.
 * Units   the values'. */
#ifndef TARN_LOADGEN_BENCH_ENGINE_MEDIAN_H
#define TARN_LOADGEN_BENCH_ENGINE_MEDIAN_H

#include <stdint.h>

/* Sort the n values, ascending, and return their median. */
double median_of(double *values, uint32_t n);

#endif
