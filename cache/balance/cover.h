/* cover.h - chooses which copy of each segment a query reads, so that it needs few instances.
 *
 * Greedy set cover (Johnson 1974; at most 1 + ln(segments) times the least number of instances):
 * local copies first; then instances that this step contacts anyway; then, again and again, the
 * instance that holds most of the segments that are left, of equals the least loaded.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   load: of the caller's choice. O(segments * holders * instances chosen). */
#ifndef TARN_CACHE_BALANCE_COVER_H
#define TARN_CACHE_BALANCE_COVER_H

#include <stdbool.h>
#include <stdint.h>

#define COVER_NONE UINT32_MAX

struct cover_segment {
    const uint32_t *holders; /* [n] instances */
    uint32_t n;
};
struct cover_query {
    const struct cover_segment *segments; /* [n] */
    uint32_t n;
    uint32_t local;        /* instance that asks; COVER_NONE: it holds nothing */
    const bool *contacted; /* [n_instances]; NULL: none */
    const double *load;    /* [n_instances] */
    uint32_t *n_held;      /* [n_instances] room to count in; zeros, and zeros again after */
    uint32_t n_instances;
};

/* Fill from [n] with an instance for each segment; COVER_NONE: nobody has it. Returns the number of
 * instances but the local one. */
uint32_t cover_choose(const struct cover_query *q, uint32_t *from);

#endif
