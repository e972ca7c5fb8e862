/* place.h - chooses the instance that gets a new item, and the copies that are to be made.
 *
 * A new item has one copy. The producer keeps it (no transfer) while the producer's load is at most
 * (1 + eps) times the mean. Otherwise the item goes to the less loaded of two candidates, which its
 * key names (Azar, Broder, Karlin, Upfal, "Balanced allocations", 1994; Mitzenmacher, "The power of
 * two choices", 2001): the fullest of n instances then exceeds the mean by O(log log n) items.
 *
 * place_copies() serves heavy items that should have several copies (heavy.h), and in the same way
 * refills holes: after the loss of an instance an item has fewer copies than it should have. An
 * item without any copy is left alone, because its KV has to be computed again by the next request.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   load: of the caller's choice; free: any unit of room, above 0 where there is room. */
#ifndef TARN_CACHE_BALANCE_PLACE_H
#define TARN_CACHE_BALANCE_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#define PLACE_EPS 0.1
#define PLACE_NONE UINT32_MAX

struct place_instances {
    const double *load;   /* [n] */
    const uint64_t *free; /* [n] 0: full, or gone */
    uint32_t n;
};

/* The instance for a new item. producer: PLACE_NONE if there is none. eps below 0: PLACE_EPS.
 * PLACE_NONE: all are full. */
uint32_t place_new(const struct place_instances *in, uint64_t key, uint32_t producer, double eps);

struct place_item {
    uint64_t key;
    double load;
    uint64_t size;
    uint32_t n_copies, n_wanted;
};
struct place_copy {
    uint32_t item, from, to;
};
struct place_state {
    struct place_instances in;
    const struct place_item *items; /* [n_items] the most important first */
    uint32_t n_items;
    /* Whether the instance holds the item. */
    bool (*holds)(const void *arg, uint32_t item, uint32_t instance);
    const void *arg;
    uint64_t budget; /* size of all copies together, at most */
};
/* List copies to be made, n_max at most, until the budget is used up. Each comes from the least
 * loaded holder and goes to the less loaded of two candidates that do not hold the item. */
uint32_t place_copies(const struct place_state *s, struct place_copy *out, uint32_t n_max);

#endif
