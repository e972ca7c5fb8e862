/* table.h - hash map u64 -> u32 that grows: open addressing, linear probing, removal without marks.
 * Keys are hashes already; 0 is a key like others.
 *
 * Owns    its slots: table_fini().
 * Thread  one.
 * Errors  ERR_NOMEM.
 * Units   pairs. */
#ifndef TARN_LOADGEN_SIM_TABLE_H
#define TARN_LOADGEN_SIM_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct table_slot {
    uint64_t key;
    uint32_t value, used;
};
struct table { /* fine when zeroed */
    struct table_slot *slots;
    uint32_t n, n_slots;
};

void table_fini(struct table *t);
bool table_get(const struct table *t, uint64_t key, uint32_t *value);
NODISCARD enum status table_put(struct table *t, uint64_t key, uint32_t value);
void table_remove(struct table *t, uint64_t key); /* fine when it is not there */

#endif
