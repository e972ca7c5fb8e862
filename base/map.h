/* map.h - hash map u64 -> u32 with open addressing and a fixed capacity.
 *
 * Owns    one table of 16 bytes per slot; it never grows.
 * Thread  one at a time.
 * Errors  map_init(): ERR_NOMEM. Putting more than n_max pairs is a bug (ASSERT).
 * Units   pairs. Keys are expected to be hashes already; the map mixes them once more. */
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
/* Prefetch the memory that a map_get() of this key will read. */
void map_prefetch(const struct map *m, uint64_t key);
void map_put(struct map *m, uint64_t key, uint32_t value); /* replaces an existing value */
bool map_remove(struct map *m, uint64_t key);              /* false: the key was not in the map */

#endif
