/* key.h - the bytes that a block's key is the hash of.
 *
 * domain = BLAKE2b-256, keyed with the 32-byte fingerprint, over the 32-byte scope (who may share;
 * zeros = public). key(block) = BLAKE2b-256 without a key, with the domain's first half as salt and
 * its second half as personalization, over this message:
 *
 *   offset  bytes  what
 *   0       32     key of the block before it in the sequence; zeros for the first block
 *   32      3 n    the n token ids in the block, 1..32, unsigned 24-bit little-endian, in order;
 *                  bit 23 of the first one is set if the block starts a segment. Ids are below 2^23
 *
 * At most 128 bytes: one compression of BLAKE2b, where a keyed hash over ids of 32 bits took three.
 *
 * Scopes only narrow along a chain: the blocks of a public preamble, then those of a tenant (or of
 * a tenant and a cache_salt), then nothing wider again. kv_chain_prompt() changes the scope at the
 * one span end that the caller names, where no block is open. A request with a cache_salt shares
 * public preambles like any other: their ids are the operator's, and a hit tells only that somebody
 * used the preamble before. All behind them is in the salted scope.
 *
 * Nothing else goes in: not the position (the chain implies it), not the tier, not the process. So
 * a key is stable across processes, machines and restarts, and device, disk and directory share it.
 * Any change here needs a new KV_FORMAT_VERSION (cache.h), which is part of the fingerprint.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   bytes. */
#ifndef TARN_CACHE_KEY_H
#define TARN_CACHE_KEY_H

#include "cache/cache.h"

/* A hash is uniform: any 8 bytes of it name a block in a table; the full key decides. */
static inline uint64_t short_key(const struct kv_key *key)
{
    uint64_t k;

    __builtin_memcpy(&k, key->bytes, sizeof k);
    return k;
}

#define KV_ID_MAX ((1u << 23) - 1)

/* domain [KV_DOMAIN_BYTES], fingerprint [KV_FINGERPRINT_BYTES]. */
void key_domain(uint8_t *domain, const uint8_t *fingerprint, const struct kv_scope *scope);
/* ids [n_ids], each at most KV_ID_MAX. */
void key_of_block(struct kv_key *out, const uint8_t *domain, const struct kv_key *prev,
                  bool starts_segment, const uint32_t *ids, uint32_t n_ids);

#endif
