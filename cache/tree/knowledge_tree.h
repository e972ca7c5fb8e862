/* knowledge_tree.h - the tree of cached prefixes: which have KV, and in which tiers. No bytes here.
 *
 * A node is a run of consecutive blocks of one span: a document at one place in one path, or a run
 * of plain prompt. A path from the root is the beginning of a prompt (the knowledge tree of
 * RAGCache, Jin et al., 2024, arXiv 2404.12457, section 5.1, with blocks instead of whole
 * documents). The key of a block is a hash over everything before it (key.h), so a key names one
 * place in the tree, and the key of a node's first block finds the node without a search among its
 * siblings.
 *
 *        root - [b0 b1 b2] - [b3 b4]          a document behind a preamble
 *                          \ [b5 b6 b7]       another one there: its first key differs
 *
 * Where two spans differ only after some blocks, the node is split and they share the equal part:
 *
 *        [b3 b4] and b3 b9   ->   [b3] - [b4]
 *                                      \ [b9]
 *
 * A node lies, whole, in one or several tiers (0 = device, the fastest). Invariant: a parent lies
 * in a tier at least as fast as each of its children, so along a path blocks never get faster. A
 * node cannot leave a tier when this would make a child faster than it.
 *
 * Pin only the last node of a path: the invariant keeps its ancestors. A node with a pin on it or
 * below it is active.
 *
 * The tree does not choose victims (replace.h does) and does not interpret slots: a slot is the
 * caller's number for the place of a block in its tier.
 *
 * Owns    nodes and block records, all allocated at create.
 * Thread  engine thread only; no locks.
 * Errors  ERR_NOMEM at create; ERR_NO_BLOCKS when the records run out: evict and retry. A call
 *         against the rules is a bug: ASSERT.
 * Units   blocks. One step of a walk costs O(1), a pin O(nodes that it makes active), a split
 *         O(blocks of the upper part). */
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
/* Keep the keys of all blocks that enter the tree from now on in *x, which is borrowed. */
void ktree_share_keys(struct ktree *t, struct key_index *x);

/* Have fn called for each node after ktree_place() (enters), and before ktree_leave(). */
void ktree_watch(struct ktree *t, void (*fn)(void *arg, uint32_t node, uint32_t tier, bool enters),
                 void *arg);

/* --- finding --- */

struct ktree_match {
    uint32_t node;      /* where the walk ended, or KTREE_ROOT */
    uint32_t n_in_node; /* matching blocks of that node; fewer than it has: a partial hit */
    uint32_t n_blocks;  /* matching blocks of the path, from the root on */
};

/* Find the longest prefix of keys [n_keys] that is in the tree. Changes nothing, pins nothing. */
struct ktree_match ktree_match(const struct ktree *t, const struct kv_key *keys, uint32_t n_keys);
/* The node whose first block has this key, or KTREE_NONE. */
uint32_t ktree_find(const struct ktree *t, const struct kv_key *first);
/* The same; only the first n bytes (8 or more) of the key are known. */
uint32_t ktree_find_part(const struct ktree *t, const struct kv_key *first, uint32_t n);

/* --- growing --- */

/* Split the node after its first n_upper blocks (0 < n_upper < its blocks). The new node is the
 * upper part; the old id, its pins and its children stay with the lower part. A holder that pinned
 * the node for n_upper or fewer blocks now pins a node below its path's end; it notices that by
 * n_before. ERR_NO_BLOCKS: no node record is left. */
NODISCARD enum status ktree_split(struct ktree *t, uint32_t node, uint32_t n_upper,
                                  uint32_t *upper);
/* Add a node below `parent`, which lies in `tier` or a faster one: keys [n > 0], and slots [n] of
 * its blocks in the tier. No child of the parent begins with keys[0]. depth: spans before the node.
 * All or nothing. */
NODISCARD enum status ktree_add(struct ktree *t, uint32_t parent, uint32_t depth, uint32_t tier,
                                const struct kv_key *keys, const uint32_t *slots, uint32_t n,
                                uint32_t *node);
/* Append blocks to a node that has no children and lies only in `tier`. All or nothing. */
NODISCARD enum status ktree_extend(struct ktree *t, uint32_t node, uint32_t tier,
                                   const struct kv_key *keys, const uint32_t *slots, uint32_t n);

/* --- tiers and pins --- */

/* The node now lies in this tier, too: slots [its blocks]. Its parent lies there or in a faster
 * tier. */
void ktree_place(struct ktree *t, uint32_t node, uint32_t tier, const uint32_t *slots);
/* Whether the node may leave this tier: it lies there, no child would then be faster than it, and
 * it is not pinned if this is its fastest tier. */
bool ktree_can_leave(const struct ktree *t, uint32_t node, uint32_t tier);
/* The node leaves the tier; the caller has read its slots before. Returns true when this was its
 * last tier: the node is gone then, and its id is free. */
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
/* The slots of the node's first n blocks in this tier. */
void ktree_slots(const struct ktree *t, uint32_t node, uint32_t tier, uint32_t *slots, uint32_t n);
/* The key of the node's last block. It stays the same when the node is split. */
const struct kv_key *ktree_key(const struct ktree *t, uint32_t node);
/* The key of the node's block i. O(i). */
const struct kv_key *ktree_key_at(const struct ktree *t, uint32_t node, uint32_t i);
bool ktree_is_active(const struct ktree *t, uint32_t node);
uint32_t ktree_first_child(const struct ktree *t, uint32_t node);  /* or KTREE_NONE */
uint32_t ktree_next_sibling(const struct ktree *t, uint32_t node); /* or KTREE_NONE */

/* The next node in depth-first order, parents first, among the nodes below `top` (KTREE_ROOT: all).
 * KTREE_NONE at the end. */
uint32_t ktree_next(const struct ktree *t, uint32_t node, uint32_t top);
/* The same, without the nodes below this one. */
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
/* Recount everything and ASSERT that it agrees. O(nodes + blocks). */
void ktree_check(const struct ktree *t);

#endif
