/* agenda.h - future events in order of time: a binary heap whose items know their place, so that
 * each can be removed. Items with one time come in order of their numbers.
 *
 * Owns    its array, not the items.
 * Thread  one.
 * Errors  ERR_NOMEM.
 * Units   nanoseconds. */
#ifndef TARN_LOADGEN_SIM_AGENDA_H
#define TARN_LOADGEN_SIM_AGENDA_H

#include <stdint.h>

#include "base/status.h"

struct agenda_item {
    uint64_t due_ns;
    uint64_t number;
    uint32_t place; /* in the heap, from 1 on; 0: not in it */
};

struct agenda {                 /* fine when zeroed */
    struct agenda_item **items; /* [n] of [cap]; items[0] is place 1 */
    uint32_t n, cap;
};

void agenda_fini(struct agenda *a);
void agenda_item_init(struct agenda_item *item, uint64_t number);
/* Add an item that is in no agenda. */
NODISCARD enum status agenda_add(struct agenda *a, struct agenda_item *item, uint64_t due_ns);
void agenda_remove(struct agenda *a, struct agenda_item *item); /* fine when it is not there */
struct agenda_item *agenda_first(const struct agenda *a);       /* NULL: empty */

#endif
