/* key.h - the bytes that a block's key is the hash of.
 *
 * key(block) = BLAKE2b-256, keyed with the 32-byte fingerprint, over this message:
 *
 *   offset  bytes  what
 *   0       32     key of the block before it in the sequence; zeros for the first block
 *   32      32     scope: who may share it; zeros = public
 *   64      1      1 if the block starts a segment, else 0
 *   65      1      n: token ids in the block, 1..32
 *   66      4 n    the ids, unsigned 32-bit little-endian, in order
 *
 * Nothing else goes in: not the position (the chain implies it), not the tier, not the process. So a
 * key is stable across processes, machines and restarts, and device, disk and directory share it.
 * Any change here needs a new KV_FORMAT_VERSION (cache.h), which is part of the fingerprint.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   bytes. */
#ifndef TARN_CACHE_KEY_H
#define TARN_CACHE_KEY_H

#include "cache/cache.h"

void key_of_block(struct kv_key *out, const uint8_t *fingerprint, const struct kv_key *prev,
                  const struct kv_scope *scope, bool starts_segment, const uint32_t *ids,
                  uint32_t n_ids);

#endif
