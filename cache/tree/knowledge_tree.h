/* knowledge_tree.h - which prefixes have KV, and in which tiers: the pure tree, without bytes.
 *
 * A node is a run of consecutive blocks of one span: a document at one place in one path, or a
 * run of plain prompt. A path from the root is a prompt's beginning (RAGCache, arXiv 2404.12457,
 * section 5.1, with blocks instead of whole documents). The key of a block is a hash over all that
 * stands before it (key.h), so a key names one place in one tree, and the first key of a node finds
 * it without looking through its siblings.
 *
 *        root - [b0 b1 b2] - [b3 b4]          a document behind a preamble
 *                          \ [b5 b6 b7]       another one there: its first key differs
 *
 * Where two spans differ only after some blocks, the node is split and they share what is equal:
 *
 *        [b3 b4] and b3 b9   ->   [b3] - [b4]
 *                                      \ [b9]
 *
 * A node lies, whole, in one or several tiers (0 = device, the fastest). Invariant: a parent lies
 * in a tier at least as fast as each of its children, so a path is never read from a slower tier
 * in its beginning than in its end. It is kept by refusing: a node cannot leave a tier while a
 * child would then be faster than it.
 *
 * Pin the last node of a path only: its ancestors cannot leave because of the invariant. A node
 * with a pin on it or below it is active.
 *
 * What the tree does not know: who is evicted (replace.h), what a slot is (a block's place in its
 * tier; the caller's number).
 *
 * Owns    nodes and block records, all allocated at create.
 * Thread  engine thread only; no locks.
 * Errors  ERR_NOMEM at create; ERR_NO_BLOCKS when records run out: evict and retry. A call against
 *         the rules is a bug: ASSERT.
 * Units   blocks. A step of a walk costs O(1), a pin O(nodes that it makes active), a split
 * O(blocks
 *         of the upper part). */
#ifndef TARN_CACHE_TREE_KNOWLEDGE_TREE_H
#define TARN_CACHE_TREE_KNOWLEDGE_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/cache.h"

#define KTREE_N_TIERS_MAX 4
#define KTREE_ROOT 0u /* no blocks, in every tier, never leaves */
#define KTREE_NONE UINT32_MAX

struct ktree;
struct key_index;

/* On OK *out is the caller's: ktree_destroy(). */
NODISCARD enum status ktree_create(struct ktree **out, uint32_t n_nodes_max, uint32_t n_blocks_max,
                                   uint32_t n_tiers);
void ktree_destroy(struct ktree *t); /* NULL is fine */
/* Enter the keys of all blocks that come from now on into *x, and take them out when they leave the
 * tree. Borrowed. */
void ktree_share_keys(struct ktree *t, struct key_index *x);

/* --- finding --- */

struct ktree_match {
    uint32_t node;      /* where the walk ended, or KTREE_ROOT */
    uint32_t n_in_node; /* of its blocks that match; fewer than it has: a partial hit */
    uint32_t n_blocks;  /* of the path that match, from the root on */
};

/* The longest beginning of keys [n_keys] that is in the tree. Changes nothing, pins nothing. */
struct ktree_match ktree_match(const struct ktree *t, const struct kv_key *keys, uint32_t n_keys);
/* The node, wherever it stands, whose first block has this key; KTREE_NONE when there is none. */
uint32_t ktree_find(const struct ktree *t, const struct kv_key *first);

/* --- growing --- */

/* Cut the node behind its first n_upper blocks (0 < n_upper < its blocks). The new node is the
 * upper part; the old id, its pins and its children stay with the lower part. So whoever holds a
 * pin for less than n_upper blocks of it stands below its place then: n_before says so.
 * ERR_NO_BLOCKS: no node is left. */
NODISCARD enum status ktree_split(struct ktree *t, uint32_t node, uint32_t n_upper,
                                  uint32_t *upper);
/* A new node below `parent`, which lies in `tier` or a faster one: keys [n > 0], and where each
 * block lies there, slots [n]. No child of the parent begins with keys[0]. depth: spans before it.
 * All or nothing. */
NODISCARD enum status ktree_add(struct ktree *t, uint32_t parent, uint32_t depth, uint32_t tier,
                                const struct kv_key *keys, const uint32_t *slots, uint32_t n,
                                uint32_t *node);
/* More blocks at the end of a node without children that lies only in `tier`. All or nothing. */
NODISCARD enum status ktree_extend(struct ktree *t, uint32_t node, uint32_t tier,
                                   const struct kv_key *keys, const uint32_t *slots, uint32_t n);

/* --- tiers and pins --- */

/* It lies in this tier too: slots [its blocks]. Its parent lies there or in a faster one. */
void ktree_place(struct ktree *t, uint32_t node, uint32_t tier, const uint32_t *slots);
/* Whether it may leave this tier: it is there; if that is its fastest one, nobody pins it; and no
 * child would be faster than it then. */
bool ktree_can_leave(const struct ktree *t, uint32_t node, uint32_t tier);
/* It leaves the tier; the caller has read its slots before. A node in no tier any more is gone,
 * and its id free: returns true then. */
bool ktree_leave(struct ktree *t, uint32_t node, uint32_t tier);
void ktree_pin(struct ktree *t, uint32_t node);
void ktree_unpin(struct ktree *t, uint32_t node);

/* --- looking --- */

struct ktree_node {
    uint32_t parent;
    uint32_t depth;
    uint32_t n_blocks;
    uint32_t n_children;
    uint32_t n_before; /* blocks before it in its path */
    uint32_t n_pins;
    uint32_t n_active_children;
    uint32_t tiers;   /* bit i: lies in tier i */
    uint32_t fastest; /* tier */
};
struct ktree_node ktree_look(const struct ktree *t, uint32_t node);
/* Its first n slots in this tier, in order; n at most its blocks. */
void ktree_slots(const struct ktree *t, uint32_t node, uint32_t tier, uint32_t *slots, uint32_t n);
/* The key of its last block: names the node, splits above it included. */
const struct kv_key *ktree_key(const struct ktree *t, uint32_t node);
/* The key of its block i. O(i). */
const struct kv_key *ktree_key_at(const struct ktree *t, uint32_t node, uint32_t i);
bool ktree_is_active(const struct ktree *t, uint32_t node);
uint32_t ktree_first_child(const struct ktree *t, uint32_t node);  /* or KTREE_NONE */
uint32_t ktree_next_sibling(const struct ktree *t, uint32_t node); /* or KTREE_NONE */

/* The node behind this one when parents come before their children and what is below a node before
 * its siblings; from `top` on these are all below it (KTREE_ROOT: all). KTREE_NONE at the end. */
uint32_t ktree_next(const struct ktree *t, uint32_t node, uint32_t top);
/* The same, without what is below this one. */
uint32_t ktree_next_outside(const struct ktree *t, uint32_t node, uint32_t top);

struct ktree_stats {
    uint32_t n_nodes; /* without the root */
    uint32_t n_blocks;
    uint32_t n_pinned; /* nodes with a pin */
    uint32_t n_blocks_active;
    uint32_t n_blocks_in[KTREE_N_TIERS_MAX];
    uint64_t memory_bytes;
};
void ktree_stats(const struct ktree *t, struct ktree_stats *out);
/* Recount everything from scratch and ASSERT that it agrees. O(nodes + blocks). */
void ktree_check(const struct ktree *t);

#endif
