/* order.h - a set of slots in the order of a key: insert, remove, walk; a treap over slot numbers.
 *
 * Owns    one node a slot, allocated at init; nothing is allocated later.
 * Thread  one at a time.
 * Errors  order_init(): ERR_NOMEM. A slot that is in the set twice, or is removed without being
 *         there, is a bug.
 * Units   slots. Insert, remove and move cost O(log n), a step of a walk O(1) amortized. */
#ifndef TARN_ENGINE_SCHED_ORDER_H
#define TARN_ENGINE_SCHED_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define ORDER_NONE UINT32_MAX

/* Smaller goes first; of equal keys the smaller slot. */
struct order_key {
    uint64_t high, middle, low;
};

struct order_node {
    struct order_key key;
    uint32_t parent, left, right;
    uint32_t weight; /* of the heap that keeps the tree shallow */
};

struct order {
    struct order_node *nodes; /* [n_slots] */
    uint32_t root;
    uint32_t n;
};

NODISCARD enum status order_init(struct order *o, uint32_t n_slots);
void order_fini(struct order *o); /* also fine on a zeroed struct */

void order_insert(struct order *o, uint32_t slot, struct order_key key);
void order_remove(struct order *o, uint32_t slot);
/* A new key for a slot that is in the set. False: its neighbours stay what they were. */
bool order_move(struct order *o, uint32_t slot, struct order_key key);

struct order_key order_key_of(const struct order *o, uint32_t slot);
/* Whether a goes before b; both are in the set. */
bool order_before(const struct order *o, uint32_t a, uint32_t b);
uint32_t order_first(const struct order *o);               /* ORDER_NONE when empty */
uint32_t order_next(const struct order *o, uint32_t slot); /* ORDER_NONE behind the last */
/* ASSERT that keys ascend and links agree. O(n). */
void order_check(const struct order *o);

#endif
