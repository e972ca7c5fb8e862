/* dist.h - distributions of lengths, written as users write them.
 *
 *     N  constant:N  uniform:A:B  lognormal:MEAN:CV
 *
 * uniform has both ends; lognormal is given by the mean and the coefficient of variation (standard
 * deviation / mean) of the lengths themselves, not of their logarithms.
 *
 * Owns    nothing; plain data.
 * Thread  any.
 * Errors  ERR_INVALID with words.
 * Units   tokens (or another count), at least 1, at most DIST_MAX. A draw outside is clamped: the
 *         mean of a lognormal with a large CV is then another. */
#ifndef TARN_LOADGEN_LOAD_DIST_H
#define TARN_LOADGEN_LOAD_DIST_H

#include "base/buf.h"
#include "loadgen/load/draw.h"

#define DIST_MAX 10000000u

enum dist_kind { DIST_CONSTANT, DIST_UNIFORM, DIST_LOGNORMAL };

struct dist {
    enum dist_kind kind;
    double a, b; /* N; A, B; mean, CV */
};

NODISCARD enum status dist_parse(struct dist *d, const char *text, struct buf *why);
uint32_t dist_draw(const struct dist *d, struct draw *draw);
double dist_mean(const struct dist *d); /* before clamping */
/* The same distribution, every length times `factor`. */
struct dist dist_scaled(const struct dist *d, double factor);

#endif
