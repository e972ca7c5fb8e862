/* map.h - u64 -> u32, open addressing, a capacity given at birth.
 *
 * Owns    one table of 16 bytes per slot; never grows.
 * Thread  one at a time.
 * Errors  map_init(): ERR_NOMEM. Putting more than n_max pairs is a bug (ASSERT).
 * Units   pairs. Keys are expected to be spread already (hashes); they are mixed once more. */
#ifndef TARN_BASE_MAP_H
#define TARN_BASE_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct map_slot {
    uint64_t key;
    uint32_t value;
    uint32_t used;
};

struct map {
    struct map_slot *slots;
    uint32_t mask;
    uint32_t n;
    uint32_t n_max;
};

NODISCARD enum status map_init(struct map *m, uint32_t n_max);
void map_fini(struct map *m);
bool map_get(const struct map *m, uint64_t key, uint32_t *value);
/* A map_get() of this key will come soon: have its memory on the way. */
void map_prefetch(const struct map *m, uint64_t key);
void map_put(struct map *m, uint64_t key, uint32_t value); /* replaces */
bool map_remove(struct map *m, uint64_t key);              /* false: was not there */

#endif
