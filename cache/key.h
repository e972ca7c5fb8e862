/* key.h - the identity of a block of KV: how a token sequence is cut into blocks and segments, and
 * how the key of each block is computed.
 *
 * domain = BLAKE2b-256, keyed with the 32-byte fingerprint, over the 32-byte scope (which tenants
 * may share the block; all zero = public). key(block) = BLAKE2b-256 without a key, with the first
 * half of the domain as salt and the second half as personalization, over this message:
 *
 *   offset  bytes  what
 *   0       32     key of the previous block of the sequence; zeros for the first block
 *   32      3 n    the n token ids of the block, 1..32, unsigned 24-bit little-endian, in order;
 *                  bit 23 of the first id is set if the block starts a segment. Ids are below 2^23
 *
 * The message has at most 128 bytes, which is one BLAKE2b compression.
 *
 * The scope may only narrow along a sequence: first the blocks of a public preamble, then blocks of
 * one tenant (or of one tenant and one cache_salt), never public blocks again. kv_chain_prompt()
 * changes the scope at the one span end that its caller names, because no block is open there. A
 * request with a cache_salt still shares public preambles: their ids are the operator's, and a hit
 * reveals only that some request used the preamble before. All later blocks are in the salted
 * scope.
 *
 * Nothing else is hashed: not the position (the previous key implies it), not the tier, not the
 * process. A key is therefore the same in every process, on every machine and after every restart,
 * and is used for all tiers. Any change to the hash needs a new KV_FORMAT_VERSION.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   tokens and bytes. */
#ifndef TARN_CACHE_KEY_H
#define TARN_CACHE_KEY_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/params.h"

/* Incremented when the keys, the cutting or the layout of a block change. Part of every
 * fingerprint. */
#define KV_FORMAT_VERSION 3

#define KV_KEY_BYTES 32
#define KV_FINGERPRINT_BYTES 32
#define KV_SCOPE_BYTES 32
#define KV_DOMAIN_BYTES 32
#define KV_ID_MAX ((1u << 23) - 1)

struct kv_key {
    uint8_t bytes[KV_KEY_BYTES];
};

/* The requests that may share a block: H(tenant, installation secret), or all zero for public. */
struct kv_scope {
    uint8_t bytes[KV_SCOPE_BYTES];
};

/* The first 8 bytes of a key, for use in hash tables. Keys are uniform, so these bytes spread well;
 * a lookup must still compare the full key. */
static inline uint64_t short_key(const struct kv_key *key)
{
    uint64_t k;

    __builtin_memcpy(&k, key->bytes, sizeof k);
    return k;
}

/* domain [KV_DOMAIN_BYTES], fingerprint [KV_FINGERPRINT_BYTES]. */
void key_domain(uint8_t *domain, const uint8_t *fingerprint, const struct kv_scope *scope);
/* ids [n_ids], each at most KV_ID_MAX. */
void key_of_block(struct kv_key *out, const uint8_t *domain, const struct kv_key *prev,
                  bool starts_segment, const uint32_t *ids, uint32_t n_ids);

/* The state of cutting one sequence: the caller feeds ids in order and receives the key of each
 * block that closes. */
struct kv_chain {
    uint8_t fingerprint[KV_FINGERPRINT_BYTES];
    struct kv_scope scope;
    uint8_t domain[KV_DOMAIN_BYTES]; /* of the fingerprint and the scope */
    struct kv_key prev;              /* key of the last closed block; zero at the start */
    uint32_t ids[KV_BLOCK_TOKENS];   /* of the open block */
    uint32_t n_open;                 /* ids in the open block */
    uint32_t n_in_segment;           /* tokens in the open segment, open block included */
    uint32_t segment_tokens;         /* a segment closes at this length */
    bool block_starts_segment;
};

/* fingerprint [KV_FINGERPRINT_BYTES]. segment_tokens: a multiple of KV_BLOCK_TOKENS, at most
 * KV_SEGMENT_TOKENS_MAX. */
void kv_chain_init(struct kv_chain *c, const uint8_t *fingerprint, const struct kv_scope *scope,
                   uint32_t segment_tokens);
/* Feed one id. Returns true when a block closed; *key is then its key. */
bool kv_chain_push(struct kv_chain *c, uint32_t id, struct kv_key *key);
/* End the span. Returns true when this closed a partly filled block; *key is then its key. */
bool kv_chain_end_span(struct kv_chain *c, struct kv_key *key);
/* Continue in a scope that is part of the chain's: from public to a tenant's. No block is open. */
void kv_chain_narrow(struct kv_chain *c, const struct kv_scope *scope);
/* Cut and hash a whole prompt. keys_out has room for cache_blocks_max(n_ids, n_span_ends, 0) keys;
 * *c ends in the state after the last id. n_public is 0 or one of the span ends: the ids before it
 * are hashed in the public scope, so that all tenants share them (promise P5, ARCHITECTURE.md); the
 * other ids are hashed in the scope of the chain. Returns the number of keys. */
uint32_t kv_chain_prompt(struct kv_chain *c, const uint32_t *ids, uint32_t n_ids,
                         const uint32_t *span_ends, uint32_t n_span_ends, uint32_t n_public,
                         struct kv_key *keys_out);

#endif
