/* weighted.h - pick one of n things by weight: Zipf, measured counts, or all equal.
 *
 * Owns    a table of n doubles: weighted_fini().
 * Thread  read-only after init.
 * Errors  ERR_INVALID for no things, or weights that are negative, not finite or all zero;
 *         ERR_NOMEM.
 * Units   weights need not sum to 1. */
#ifndef TARN_LOADGEN_LOAD_WEIGHTED_H
#define TARN_LOADGEN_LOAD_WEIGHTED_H

#include "base/status.h"
#include "loadgen/load/draw.h"

struct weighted {
    double *upto; /* [n] sums of the weights up to and including each */
    uint32_t n;
};

/* Rank k (from 0) has weight 1 / (k + 1)^alpha; alpha 0 makes all equal. */
NODISCARD enum status weighted_init_zipf(struct weighted *w, uint32_t n, double alpha);
NODISCARD enum status weighted_init(struct weighted *w, const double *weights, uint32_t n);
void weighted_fini(struct weighted *w); /* also fine on a zeroed struct */
uint32_t weighted_draw(const struct weighted *w, struct draw *d);
/* Draw k different things, in the order of drawing; at most as many as have a weight. */
NODISCARD enum status weighted_draw_distinct(const struct weighted *w, struct draw *d,
                                             uint32_t *out, uint32_t *k);

#endif
