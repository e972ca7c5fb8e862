/* dist.h - distributions of lengths, written as users write them.
 *
 *     N  constant:N  uniform:A:B  lognormal:MEAN:CV
 *     80%X+20%Y   a mixture: X and Y are forms of the first line, the shares add up to 100
 *     X/N/Y       a change: the first N requests draw from X, all later ones from Y
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

struct dist_form {
    enum dist_kind kind;
    double a, b; /* N; A, B; mean, CV */
};

struct dist {
    struct dist_form form[2]; /* the second one of a mixture or a change only */
    double second_share;      /* of a mixture: of the draws; else 0 */
    uint64_t second_from;     /* of a change: first request of the second form; else 0 */
};

NODISCARD enum status dist_parse(struct dist *d, const char *text, struct buf *why);
/* Draw the length of request `index` (or document, prefix, ...: what the length belongs to). */
uint32_t dist_draw(const struct dist *d, uint64_t index, struct draw *draw);
double dist_mean(const struct dist *d); /* before clamping; of a change: before the change */

#endif
