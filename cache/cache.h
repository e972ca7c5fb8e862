/* cache.h - where KV lives: the only cache header that engine/ includes.
 *
 * KV is kept in blocks of 32 tokens. A sequence (`cache_seq`) is a list of segments, each a list of
 * blocks; how a prompt is cut depends only on its ids and span boundaries, never on the schedule:
 *   a block closes after KV_BLOCK_TOKENS tokens or at the end of its span,
 *   a segment closes after the configured number of tokens (at most 256) or at the end of its span.
 * Generated tokens continue the last span, which stays open.
 *
 * Each closed block has a key (key.h of this folder writes it down byte by byte). Blocks with a key
 * are found again by cache_match() and shared by reference count. A block is in exactly one state:
 * free, cached (key, no reference), in use (one reference or more), in transfer; the sum is
 * constant (design P2).
 *
 * Owns    the KV pool in device memory, the table of keys, every cache_seq until closed.
 * Thread  kv_chain_*: any. All else: engine thread only, no locks.
 * Errors  ERR_NO_BLOCKS is a normal answer: preempt something and retry. A corrupt or foreign
 *         segment would be a miss, never an error.
 * Units   tokens and blocks; bytes where it says so. */
#ifndef TARN_CACHE_CACHE_H
#define TARN_CACHE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "kernels/params.h"

struct device;
struct cache;
struct cache_seq;

/* Counts up when keys, cuts or the layout of a block change; part of every fingerprint. */
#define KV_FORMAT_VERSION 2

#define KV_KEY_BYTES 32
#define KV_FINGERPRINT_BYTES 32
#define KV_SCOPE_BYTES 32

struct kv_key {
    uint8_t bytes[KV_KEY_BYTES];
};

/* Who may share: H(tenant, installation secret), or all zero for the public scope. */
struct kv_scope {
    uint8_t bytes[KV_SCOPE_BYTES];
};

/* --- identity: cutting and hashing, on any thread --- */

/* The running state of one sequence's cut: feed ids in order, collect keys of closed blocks. */
struct kv_chain {
    uint8_t fingerprint[KV_FINGERPRINT_BYTES];
    struct kv_scope scope;
    struct kv_key prev;                /* key of the last closed block; zero at the start */
    uint32_t ids[KV_BLOCK_TOKENS];     /* of the open block */
    uint32_t n_open;                   /* ids in the open block */
    uint32_t n_in_segment;             /* tokens in the open segment, open block included */
    uint32_t segment_tokens;           /* where segments close */
    bool block_starts_segment;
};

/* fingerprint [KV_FINGERPRINT_BYTES]. segment_tokens: a multiple of KV_BLOCK_TOKENS, at most
 * KV_SEGMENT_TOKENS_MAX. */
void kv_chain_init(struct kv_chain *c, const uint8_t *fingerprint, const struct kv_scope *scope,
                   uint32_t segment_tokens);
/* Feed one id. True when a block closed: its key is in *key. */
bool kv_chain_push(struct kv_chain *c, uint32_t id, struct kv_key *key);
/* The span ends here. True when that closed a partly filled block. */
bool kv_chain_end_span(struct kv_chain *c, struct kv_key *key);

/* A prompt as the cache sees it; everything is borrowed from the request. */
struct cache_prompt {
    const uint32_t *ids;        /* [n_ids] */
    uint32_t n_ids;
    const uint32_t *span_ends;  /* [n_span_ends] ascending positions, each in [1, n_ids]; a span
                                   ends before that position. Without any: one open span. */
    uint32_t n_span_ends;
    const struct kv_key *keys;  /* [n_keys] of the closed blocks, in order */
    uint32_t n_keys;
    struct kv_chain chain;      /* the state after the last id (generated tokens go on from it) */
};

/* Cut and hash a whole prompt: keys_out has room for cache_blocks_max(n_ids, n_span_ends, 0) keys;
 * the state after the last id is left in *c. Returns the number of keys. */
uint32_t kv_chain_prompt(struct kv_chain *c, const uint32_t *ids, uint32_t n_ids,
                         const uint32_t *span_ends, uint32_t n_span_ends,
                         struct kv_key *keys_out);

/* Blocks that a prompt of n_ids with these spans can touch at most, with n_more tokens after it. */
uint32_t cache_blocks_max(uint32_t n_ids, uint32_t n_span_ends, uint32_t n_more);

/* --- lifecycle --- */

struct cache_config {
    struct device *device;
    struct kv_pool pool;         /* base is filled in by cache_create(); all else is given */
    uint32_t segment_tokens;
    bool prefix_caching;         /* off: nothing is found again */
};

NODISCARD enum status cache_create(struct cache **out, const struct cache_config *config,
                                   struct buf *why);
void cache_destroy(struct cache *c); /* NULL is fine; asserts that no sequence is open */
const struct kv_pool *cache_pool(const struct cache *c);

/* --- sequences --- */

/* A handle with room for n_tokens_max tokens; holds no block yet. `prompt` is copied but what it
 * points to must outlive the sequence. */
NODISCARD enum status cache_seq_open(struct cache *c, const struct cache_prompt *prompt,
                                     uint32_t n_tokens_max, struct cache_seq **out);
/* Drop every reference and the handle. Closed blocks stay cached until evicted. NULL is fine. */
void cache_seq_close(struct cache_seq *s);

/* One more id is known (it was sampled): the sequence's cut and keys go on. */
void cache_seq_extend(struct cache_seq *s, uint32_t id);

/* Tokens at the start of the sequence whose KV lies in the cache now, whole blocks only and at most
 * all known ids but one (the last is always computed: its logits are wanted). Pins nothing: weak. */
uint32_t cache_match(const struct cache_seq *s);
/* Pin what cache_match() would find; the sequence then holds that many tokens. Only on a sequence
 * that holds none. Returns the tokens. */
uint32_t cache_seq_attach(struct cache_seq *s);
/* Blocks that growing by n_tokens would take out of free and cached. On a sequence that holds
 * nothing: by n_tokens after an attach, the cached blocks which that would pin included. Pure. */
uint32_t cache_seq_need(const struct cache_seq *s, uint32_t n_tokens);
/* Blocks that only this sequence holds: what dropping it would make available. */
uint32_t cache_seq_reclaimable(const struct cache_seq *s);
/* Make slots for the next n_tokens tokens, evicting cached blocks where none is free.
 * All or nothing: ERR_NO_BLOCKS leaves the sequence as it was. */
NODISCARD enum status cache_seq_grow(struct cache_seq *s, uint32_t n_tokens);
/* The KV of the next n grown tokens has been written by a finished step: closed blocks get their
 * keys and can be found by others. A block that another sequence committed first is exchanged for
 * that one (equal by P1). */
void cache_seq_commit(struct cache_seq *s, uint32_t n);
/* Take back slots that were grown but not committed (the step did not run). */
void cache_seq_shrink(struct cache_seq *s);
/* Preemption: give every reference back, hold nothing; attach and grow start again. */
void cache_seq_drop(struct cache_seq *s);

/* What attention needs; valid until the next call that changes the sequence. */
struct cache_view {
    const uint32_t *blocks;               /* [n_blocks] ids */
    uint32_t n_blocks;
    const struct attn_segment *segments;  /* [n_segments]; n_tokens = slots there, block0 counts
                                             from this sequence's first block */
    uint32_t n_segments;
    uint32_t n_tokens;                    /* committed */
    uint32_t n_slots;                     /* committed and grown */
};
void cache_seq_view(const struct cache_seq *s, struct cache_view *out);
/* Block id and offset of the slot of position pos < n_slots. */
void cache_seq_slot(const struct cache_seq *s, uint32_t pos, uint32_t *block, uint32_t *offset);

/* --- watching --- */

struct cache_stats {
    uint32_t n_blocks;
    uint32_t n_free;
    uint32_t n_cached;
    uint32_t n_in_use;
    uint32_t n_in_transfer;
    uint32_t n_leaked;        /* in no state: 0, or P2 is broken */
    uint64_t n_query_tokens;  /* prompt tokens looked up at attach */
    uint64_t n_hit_tokens;    /* of those, found */
    uint64_t n_evicted;       /* blocks */
};
void cache_stats(const struct cache *c, struct cache_stats *out);
/* Free or cached: what cache_seq_grow() could hand out now. */
uint32_t cache_n_available(const struct cache *c);
/* Recount everything from scratch and ASSERT that states, references and lists agree. O(blocks). */
void cache_check(const struct cache *c);
/* Forget every cached block (those in use stay). */
void cache_reset(struct cache *c);

#endif
