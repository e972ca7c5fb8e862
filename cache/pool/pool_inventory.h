/* pool_inventory.h - what lies in this instance's cache, as the directory knows it: segments, each
 * with the length of its longest branch, and the tier of the branch. Pure.
 *
 * Cache events come in (cache/events.h); what has changed, and in a rolling way everything, goes
 * out as records for directory_announce(). A CACHE_CLEARED begins a listing of the whole cache:
 * what was announced and is not listed again is withdrawn once no event has come for
 * INVENTORY_QUIET_NS, or after INVENTORY_LISTING_NS.
 *
 * Owns    its tables, of at most the numbers given at open.
 * Thread  one at a time.
 * Errors  ERR_NOMEM at open. Blocks beyond the bounds are not announced.
 * Units   blocks, segments, nanoseconds. */
#ifndef TARN_CACHE_POOL_POOL_INVENTORY_H
#define TARN_CACHE_POOL_POOL_INVENTORY_H

#include "cache/events.h"
#include "cache/pool/directory.h"

#define INVENTORY_QUIET_NS (500 * UINT64_C(1000000))
#define INVENTORY_LISTING_NS (10 * UINT64_C(1000000000))

struct inventory;

NODISCARD enum status inventory_open(struct inventory **out, uint32_t n_blocks_max,
                                     uint32_t n_segments_max);
void inventory_close(struct inventory *v); /* NULL is fine */

void inventory_take(struct inventory *v, const struct cache_event *event, uint64_t now_ns);
/* Whether the block lies here in any tier. */
bool inventory_has(const struct inventory *v, const struct kv_key *key);
/* The leading blocks of a path that lie in memory here. */
uint32_t inventory_n_in_memory(const struct inventory *v, const struct kv_key *keys, uint32_t n);
/* As inventory_has(), or that is about to be so, or not known because the cache is being listed. */
bool inventory_may_have(const struct inventory *v, const struct kv_key *key);
/* The name [DIRECTORY_SEGMENT_BYTES] of the segment of a block that lies here, and the number of
 * its blocks before this one. NULL: the block does not lie here. */
const uint8_t *inventory_segment(const struct inventory *v, const struct kv_key *key,
                                 uint32_t *depth);
/* Segments that are announced. */
uint32_t inventory_n_segments(const struct inventory *v);

/* The oldest changes, at most n_max. The same are returned again until inventory_announced(). */
uint32_t inventory_changes(struct inventory *v, uint64_t now_ns, struct directory_segment *out,
                           uint32_t n_max);
/* The directory has taken the first n of them. */
void inventory_announced(struct inventory *v, uint32_t n);
/* Everything is a change again. */
void inventory_announce_all(struct inventory *v);
/* The next announced segments of the rolling pass, at most n_max. */
uint32_t inventory_roll(struct inventory *v, struct directory_segment *out, uint32_t n_max);

/* Others hold the segment, too, and this instance's copy is not the one that counts; or not.
 * Returns whether that is new, or known for the first time. */
bool inventory_set_replica(struct inventory *v, const uint8_t key[DIRECTORY_SEGMENT_BYTES],
                           bool is_replica);
/* Forget what inventory_set_replica() stored, so that its next call returns true: the engine could
 * not be told. */
void inventory_forget_replica(struct inventory *v, const uint8_t key[DIRECTORY_SEGMENT_BYTES]);

#endif
