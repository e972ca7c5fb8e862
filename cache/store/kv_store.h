/* kv_store.h - the one owner of KV blocks: the knowledge tree, the tiers it lies in, what is
 * evicted.
 *
 * Three modules stay as pure as they are and are joined here: the tree (which prefixes have KV,
 * where), the policy (who leaves a tier) and the free blocks of each tier. The rules:
 *
 *   - A sequence holds a path: a pin on the node where it ends, and how many of the path's blocks
 *     are its own. Other sequences may split that node meanwhile; the next call finds the place
 *     again.
 *   - What leaves the device goes to the host unless it lies there already, the host has nothing
 *     worse, or there is no host tier (RAGCache: copy out once). What leaves both is forgotten.
 *   - Copies are asynchronous. A node being fetched is pinned until its copy is done, a node being
 *     spilled cannot leave the host. Whoever reads what a copy brings is ordered behind it on the
 *     device.
 *   - On a host device nothing is copied: the node's block numbers change sides with free ones.
 *
 * Owns    tree, policy, free lists, host memory, copies under way.
 * Thread  engine thread only.
 * Errors  ERR_NOMEM at create. A copy that fails is counted, and what it was to bring is not there.
 * Units   blocks, tokens, nanoseconds. */
#ifndef TARN_CACHE_STORE_KV_STORE_H
#define TARN_CACHE_STORE_KV_STORE_H

#include <float.h>

#include "cache/cache.h"
#include "cache/policy/replace.h"
#include "cache/tree/knowledge_tree.h"

struct store;
struct tier;

/* tiers [CACHE_N_TIERS], NULL for those that do not exist: they stay the caller's, and are closed
 * after the store is destroyed. */
NODISCARD enum status store_create(struct store **out, const struct cache_config *config,
                                   struct tier *const *tiers, enum replace_policy policy,
                                   struct buf *why);
void store_destroy(struct store *st); /* NULL is fine; nothing is private or pinned any more */
/* See cache_knows(). Any thread. */
bool store_knows(const struct store *st, const struct kv_key *key);
const struct kv_pool *store_pool(const struct store *st);

/* --- private device blocks: of one sequence, in no tree --- */

/* Device blocks that are free or can be made so. */
uint32_t store_n_available(const struct store *st);
/* n of them, evicting what ranks lowest. All or nothing. */
NODISCARD enum status store_take(struct store *st, uint32_t *ids, uint32_t n);
void store_give(struct store *st, uint32_t id);

/* --- paths --- */

/* Where a sequence's path ends. */
struct store_end {
    uint32_t node;     /* pinned, unless KTREE_ROOT */
    uint32_t n_blocks; /* of the path that are the sequence's; the node may go on */
};

/* What a request's use of a path says to the policy. */
struct store_use {
    bool is_new;            /* it had not run yet; else it comes back after a preemption */
    double miss_s_per_byte; /* T(cached, new) / bytes of new */
    /* What a record on disk says of its blocks. */
    const uint32_t *ids; /* [n_ids] from position 0 on, as far as they are known */
    uint32_t n_ids;
    uint32_t n_public;     /* of them in the public scope: registered */
    struct kv_scope scope; /* of the others */
};

/* The longest path of keys [n] in memory, on the device or the host; weak. */
struct ktree_match store_match(const struct store *st, const struct kv_key *keys, uint32_t n);
/* The same in any tier, the disk included. */
struct ktree_match store_match_disk(const struct store *st, const struct kv_key *keys, uint32_t n);
/* Tokens of its blocks. */
uint32_t store_match_tokens(const struct store *st, const struct ktree_match *m);
/* Device blocks that pinning it takes out of what is available. */
uint32_t store_need(const struct store *st, const struct ktree_match *m);
/* Pin it and have it on the device: ids of its blocks to blocks [m->n_blocks], and to found
 * [CACHE_N_TIERS] how many blocks lay where. *end is where it ended: earlier than the match when a
 * copy failed. */
void store_attach(struct store *st, const struct ktree_match *m, const struct store_use *use,
                  struct store_end *end, uint32_t *blocks, uint32_t *found);
/* Let go of the path; *end is the root then. */
void store_release(struct store *st, struct store_end *end);
/* Device blocks of the tree that would become available by that. */
uint32_t store_reclaimable(const struct store *st, const struct store_end *end);

/* Consecutive closed blocks of one segment that a sequence has computed behind its end. */
struct store_run {
    const struct kv_key *keys; /* [n] */
    uint32_t *blocks;          /* [n] private ones; where the tree had an equal block, that one
                                  stands there afterwards and the private one is given back */
    uint32_t n;                /* at most KV_SEGMENT_TOKENS_MAX / KV_BLOCK_TOKENS */
    uint32_t pos0;             /* position of the first token */
    uint32_t n_tokens;
    uint32_t depth; /* spans before it */
    bool starts_segment;
};
/* They enter the tree, and *end moves on. Returns how many did: fewer when two keys are alike in
 * their first 64 bits; the rest stays private, and so must all that comes behind it. */
uint32_t store_append(struct store *st, struct store_end *end, const struct store_run *run,
                      const struct store_use *use);

/* --- tails: the first tokens of a block that is not closed --- */

/* A sequence leaves: the block behind its end, with n_tokens of it written, becomes a node of its
 * own there. False: it cannot be; the block stays private. key: of these tokens as if the block
 * ended with them, which is what it is for a prompt whose span ends there. */
bool store_leave_tail(struct store *st, struct store_end *end, const struct kv_key *key,
                      uint32_t block, uint32_t pos0, uint32_t n_tokens, uint32_t depth,
                      const struct store_use *use);
/* Whether it is worth while to look for one behind the match. */
bool store_has_tails(const struct store *st, const struct ktree_match *m);
/* The tail of that name behind the match, if it can be taken; KTREE_NONE else. */
uint32_t store_find_tail(const struct store *st, const struct ktree_match *m,
                         const struct kv_key *key);
/* Its block becomes private, to be written on: the tree has it no more. False: it is gone, or there
 * was no room to bring it to the device. */
bool store_take_tail(struct store *st, uint32_t node, const struct store_use *use, uint32_t *block,
                     enum cache_tier *lay);

/* --- what comes --- */

/* A path will be used at due_s (of store_poll(), in seconds). keys [n]: of its blocks. Returns how
 * many were counted: so many are to be given to the two below. */
uint32_t store_expect(struct store *st, const struct kv_key *keys, uint32_t n, double due_s);
/* It is due at due_s instead of was_s; to be told now and then though nothing changed. Where
 * several wait for a block the earliest counts; when that one moves back or leaves, who tells
 * next. */
void store_expect_at(struct store *st, const struct kv_key *keys, uint32_t n, double was_s,
                     double due_s);
/* It is not expected any more. */
void store_unexpect(struct store *st, const struct kv_key *keys, uint32_t n, double was_s);
double store_now_s(const struct store *st);
/* Whether fetching ahead saves anything: there is a host tier, and it is another memory. */
bool store_prefetches(const struct store *st);
/* Fetch what of the path lies on the host only, within prefetch_share; then the tail of that name
 * behind it, unless NULL. Room is made of what is due later than due_s, and never of the reserve
 * that store_spill_ahead() was told. False: nothing more can be fetched for anybody now. */
bool store_prefetch(struct store *st, const struct ktree_match *m, const struct kv_key *tail,
                    double due_s);
/* Of a sequence that told no time: only what nobody waits for makes room for it. */
#define STORE_NO_DUE DBL_MAX
/* Counts up when something that is expected leaves the device: it may have to be fetched again. */
uint64_t store_n_expected_out(const struct store *st);
/* Who waited for it does not any more, and did not use it: its share is another's. */
void store_forget_prefetch(struct store *st, const struct ktree_match *m,
                           const struct kv_key *tail);
/* What of the path lies on disk only is to be read, for `owner` who waits. Reads of one path are
 * begun together, from its beginning. */
enum store_load_state {
    STORE_LOADED,     /* nothing is, or it is not worth while */
    STORE_LOADING,    /* all that is worth while is under way */
    STORE_CANNOT_LOAD /* some of it must wait for room, or for others */
};
enum store_load_state store_load(struct store *st, const struct kv_key *keys, uint32_t n,
                                 const void *owner, double due_s);
/* Of those who wait `owner` comes first: room is made for what it reads of whatever nobody uses, so
 * that it ends. The others' is within the share of what is fetched ahead. */
void store_load_first(struct store *st, const void *owner);
/* Counts up when store_load() may have another answer. */
uint64_t store_n_load_events(const struct store *st);
/* What the tree has of keys [n] is written to disk without waiting for its second use. */
void store_save(struct store *st, const struct kv_key *keys, uint32_t n,
                const struct store_use *use);
/* Spill until n_blocks of the device are free or on their way out. */
void store_spill_ahead(struct store *st, uint32_t n_blocks);
/* What the tree has of the path, keys [n], is expected until then. Returns how many blocks are. */
uint32_t store_hold(struct store *st, const struct kv_key *keys, uint32_t n, uint64_t until_ns);

/* What begins with this key leaves all tiers, at once or when its copies are done and nobody uses
 * it any more: it was one sequence's, which is no more, or somebody wants it gone. Returns its
 * blocks. */
uint32_t store_forget(struct store *st, const struct kv_key *first);

/* --- every step, and watching --- */

/* True while copies are under way. */
bool store_poll(struct store *st, uint64_t now_ns);
void store_reset(struct store *st);
void store_stats(const struct store *st, struct cache_stats *out);
void store_check(const struct store *st);
uint32_t store_top_spans(const struct store *st, struct cache_span *out, uint32_t n_max,
                         uint32_t *n_all);

#endif
