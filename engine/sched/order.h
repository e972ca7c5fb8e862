/* order.h - a set of slots sorted by key (insert, remove, walk): a treap over slot numbers.
 *
 * Owns    one node per slot, allocated by order_init(); no later allocation.
 * Thread  one at a time.
 * Errors  order_init(): ERR_NOMEM. Inserting a slot twice, or removing one that is not in the set,
 *         is a bug.
 * Units   slots. Insert, remove, move and position cost O(log n), a step of a walk
 *         O(1) amortized. */
#ifndef TARN_ENGINE_SCHED_ORDER_H
#define TARN_ENGINE_SCHED_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define ORDER_NONE UINT32_MAX

/* Smaller keys come first; equal keys are ordered by slot number. */
struct order_key {
    uint64_t high, middle, low;
};

struct order_node {
    struct order_key key;
    uint32_t parent, left, right;
    uint32_t n_below; /* nodes of its subtree, itself included */
    uint32_t weight;  /* heap priority: a parent's is at least its child's */
};

struct order {
    struct order_node *nodes; /* [n_slots] */
    uint32_t root;
    uint32_t n;
};

NODISCARD enum status order_init(struct order *o, uint32_t n_slots);
void order_fini(struct order *o); /* a zeroed struct is fine */

void order_insert(struct order *o, uint32_t slot, struct order_key key);
void order_remove(struct order *o, uint32_t slot);
/* Change the key of a slot in the set. Returns whether the slot passed a neighbour. */
bool order_move(struct order *o, uint32_t slot, struct order_key key);

struct order_key order_key_of(const struct order *o, uint32_t slot);
/* Whether a comes before b. Both are in the set. */
bool order_before(const struct order *o, uint32_t a, uint32_t b);
uint32_t order_first(const struct order *o);               /* ORDER_NONE: the set is empty */
uint32_t order_next(const struct order *o, uint32_t slot); /* ORDER_NONE: slot is the last */
/* Count of slots before this one. */
uint32_t order_position(const struct order *o, uint32_t slot);
/* The slot with `position` slots before it. */
uint32_t order_at(const struct order *o, uint32_t position);
/* ASSERT that keys ascend and links agree. Costs O(n). */
void order_check(const struct order *o);

#endif
