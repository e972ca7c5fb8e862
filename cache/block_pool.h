/* block_pool.h - fixed-size KV blocks: alloc, ref, unref, find by key, evict the least recent.
 *
 * A block is in exactly one state (design P2):
 *   free    no key, no reference; on the free stack
 *   cached  a key, no reference; on the list of the least recently used, evictable
 *   in use  one reference or more, with or without a key
 *
 * Owns    the bookkeeping of all blocks; the memory they stand for belongs to cache.c.
 * Thread  engine thread only; no locks.
 * Errors  ERR_NO_BLOCKS is a normal answer (the caller preempts and retries).
 * Units   blocks. */
#ifndef TARN_CACHE_BLOCK_POOL_H
#define TARN_CACHE_BLOCK_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/cache.h"

#define BLOCK_NONE UINT32_MAX

struct block_pool;

NODISCARD enum status block_pool_create(struct block_pool **out, uint32_t n_blocks);
void block_pool_destroy(struct block_pool *bp);

/* n fresh blocks with one reference each, evicting cached ones where needed. All or nothing. */
NODISCARD enum status block_pool_alloc(struct block_pool *bp, uint32_t *ids, uint32_t n);
/* One more reference to a block that is in use or cached. */
void block_pool_ref(struct block_pool *bp, uint32_t id);
/* One less. At zero a block with a key becomes cached (most recent), one without becomes free. */
void block_pool_unref(struct block_pool *bp, uint32_t id);
uint32_t block_pool_n_refs(const struct block_pool *bp, uint32_t id);

/* BLOCK_NONE when no block has the key. */
uint32_t block_pool_find(const struct block_pool *bp, const struct kv_key *key);
/* Name a block in use that has no key yet; the key must be new. */
void block_pool_name(struct block_pool *bp, uint32_t id, const struct kv_key *key);
/* Forget every cached block. */
void block_pool_forget(struct block_pool *bp);

void block_pool_stats(const struct block_pool *bp, struct cache_stats *out);
uint32_t block_pool_n_available(const struct block_pool *bp);
void block_pool_check(const struct block_pool *bp);

#endif
