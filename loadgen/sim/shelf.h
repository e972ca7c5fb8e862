/* shelf.h - a light model of an instance's KV cache: a tree of pieces under LRU.
 *
 * A node is one piece behind its parent. Only leaves that are not pinned can be evicted, the least
 * recently used first. Memory is counted in tokens: those of the nodes, and private ones of
 * requests that run. The real cache (cache/) also has blocks, tiers and better policies;
 * loadgen/bench/pool/README.md compares the two.
 *
 * Owns    nodes and table: shelf_fini().
 * Thread  one.
 * Errors  ERR_NOMEM.
 * Units   tokens. */
#ifndef TARN_LOADGEN_SIM_SHELF_H
#define TARN_LOADGEN_SIM_SHELF_H

#include "loadgen/sim/pieces.h"
#include "loadgen/sim/table.h"

#define SHELF_NONE UINT32_MAX

struct shelf_node {
    uint64_t key, used; /* number of the last use; larger is later */
    uint32_t parent, n_children, n_pins, n_tokens;
    uint32_t before, after; /* among leaves that can be evicted, ascending by `used` */
};

struct shelf {
    struct shelf_node *nodes; /* [n_cap] node 0 is the head of the list of leaves */
    uint32_t n_cap, first_free;
    struct table at;
    uint64_t clock, n_tokens_max;
    uint64_t n_cached, n_private; /* tokens */
    uint64_t n_pinned;            /* of the cached ones */
    uint32_t n_nodes;
    /* A piece has come or gone. */
    void (*changed)(void *arg, uint64_t key, uint32_t n_tokens, bool is_here);
    void *arg;
};

NODISCARD enum status shelf_init(struct shelf *s, uint64_t n_tokens_max);
void shelf_fini(struct shelf *s);
/* Pieces at the beginning of the path that are here. */
uint32_t shelf_match(const struct shelf *s, const struct pieces *p);
bool shelf_has(const struct shelf *s, uint64_t key);
/* Count a use of the first n pieces, which are here. */
void shelf_use(struct shelf *s, const struct pieces *p, uint32_t n);
/* Keep a piece, and so those before it, from eviction. */
void shelf_pin(struct shelf *s, uint64_t key);
void shelf_unpin(struct shelf *s, uint64_t key);
/* Move a pin from a piece to one that follows it. */
void shelf_move_pin(struct shelf *s, uint64_t child);
/* Evict until n more tokens have room. False: too much is in use. */
bool shelf_make_room(struct shelf *s, uint64_t n_tokens);
/* Add a piece behind `parent` (0: the first one). The caller has made room. OK also when it is
 * here. ERR_NOT_FOUND: the parent is not. */
NODISCARD enum status shelf_add(struct shelf *s, uint64_t parent, uint64_t key, uint32_t n_tokens);
/* Make the piece, and leaves before it as they come up, the next victims. */
void shelf_demote(struct shelf *s, uint64_t key);
/* List the path to a piece, the piece first. 0: it is not here, or longer than n_max. */
uint32_t shelf_path(const struct shelf *s, uint64_t key, struct piece *out, uint32_t n_max);
/* Remove a piece if it is a leaf that is not pinned. */
bool shelf_drop(struct shelf *s, uint64_t key);
/* ASSERT that counts and lists agree. */
void shelf_check(const struct shelf *s);

#endif
