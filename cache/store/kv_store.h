/* kv_store.h - the one owner of KV blocks: decides which nodes of the tree lie in which tier.
 *
 * The store joins modules that do not know each other: the tree (which prefixes have KV, and in
 * which tiers), the policy (the next victim of a tier) and the tiers (blocks and their bytes,
 * tier.h). Rules:
 *
 *   - A sequence holds a path: a pin on the path's last node, and the number of the path's blocks
 *     that it uses. Other sequences may split that node; the next call finds the place again.
 *   - A node evicted from the device is copied to the host, unless the host has a copy, everything
 *     on the host is worth more, or there is no host tier (RAGCache: copy out once). A node that
 *     leaves its last tier is forgotten.
 *   - Copies are asynchronous. A node being fetched is pinned until its copy is over; a node being
 *     spilled cannot leave the host before. Kernels that read what a copy brings are ordered behind
 *     it on the device.
 *   - On a host device nothing is copied: the tiers exchange block numbers.
 *
 * Owns    the tree, the policy, and all blocks of the tiers.
 * Thread  engine thread only.
 * Errors  ERR_NOMEM at create. A copy that fails is counted; its node is not there and is a miss.
 * Units   blocks, tokens, nanoseconds. */
#ifndef TARN_CACHE_STORE_KV_STORE_H
#define TARN_CACHE_STORE_KV_STORE_H

#include <float.h>

#include "cache/cache.h"
#include "cache/policy/replace.h"
#include "cache/tree/knowledge_tree.h"

struct store;
struct tier;
struct pool;

/* tiers [CACHE_N_TIERS], NULL where there is none; pool: NULL without CACHE_REMOTE. They stay the
 * caller's, who closes them after store_destroy(). */
NODISCARD enum status store_create(struct store **out, const struct cache_config *config,
                                   struct tier *const *tiers, struct pool *pool,
                                   enum replace_policy policy, struct buf *why);
void store_destroy(struct store *st); /* NULL is fine; no block is private or pinned any more */
/* Lend from the device tier to instances that can map it: `near`, borrowed, computes the checksums.
 * Only with a pool. ERR_NOMEM. */
struct tier_near;
NODISCARD enum status store_lend_near(struct store *st, struct tier_near *near);
/* Send cache events to these readers, from now on; NULL: there is no such reader. */
void store_send_events(struct store *st, struct cache_events *pool, struct cache_events *routers);
/* See cache_knows(). Any thread. */
bool store_knows(const struct store *st, const struct kv_key *key);
const struct kv_pool *store_pool(const struct store *st);

/* --- private device blocks: owned by one sequence, not in the tree --- */

/* Device blocks that are free or can be freed by eviction. */
uint32_t store_n_available(const struct store *st);
/* Blocks that holds and pauses of sessions keep. */
uint32_t store_n_held(const struct store *st);
/* Take n available ones, evicting as needed. All or nothing. */
NODISCARD enum status store_take(struct store *st, uint32_t *ids, uint32_t n);
void store_give(struct store *st, uint32_t id);

/* --- paths --- */

/* Where a sequence's path ends. */
struct store_end {
    uint32_t node;     /* pinned, unless KTREE_ROOT */
    uint32_t n_blocks; /* blocks of the path that the sequence uses; the node may have more */
};

/* A request's use of a path. */
struct store_use {
    bool is_new;            /* the first use by this request; else it resumes after a preemption */
    double miss_s_per_byte; /* T(cached, new) / bytes of new */
    uint64_t session;       /* 0: none */
    /* For the records on disk. */
    const uint32_t *ids; /* [n_ids] known ids from position 0 on; NULL: the blocks are not for the
                            disk */
    uint32_t n_ids;
    uint32_t n_public;     /* ids in the public scope; their blocks count as registered */
    struct kv_scope scope; /* of the other ids */
    /* For cache events with ids. */
    const uint32_t *event_ids; /* [n_event_ids] generated ids included; NULL: not wanted */
    uint32_t n_event_ids;
    uint64_t salt; /* as cache_event.salt */
};

/* The longest path of keys [n] in memory, on the device or on the host. Not pinned. */
struct ktree_match store_match(const struct store *st, const struct kv_key *keys, uint32_t n);
/* The same in any tier, slow ones included. */
struct ktree_match store_match_all(const struct store *st, const struct kv_key *keys, uint32_t n);
/* Tokens of the match. */
uint32_t store_match_tokens(const struct store *st, const struct ktree_match *m);
/* Device blocks by which attaching the match lowers store_n_available(). */
uint32_t store_need(const struct store *st, const struct ktree_match *m);
/* Pin the match and bring it to the device. blocks [m->n_blocks] receives its block ids, found
 * [CACHE_N_TIERS] the number of blocks that lay in each tier. *end is the end of what was attached:
 * less than the match when a copy failed. */
void store_attach(struct store *st, const struct ktree_match *m, const struct store_use *use,
                  struct store_end *end, uint32_t *blocks, uint32_t *found);
/* Unpin the path and set *end to the root. */
void store_release(struct store *st, struct store_end *end);
/* Device blocks of the tree that store_release() would make available. */
uint32_t store_reclaimable(const struct store *st, const struct store_end *end);

/* Consecutive closed blocks of one segment that a sequence has computed behind its end. */
struct store_run {
    const struct kv_key *keys; /* [n] */
    uint32_t *blocks;          /* [n] private blocks. Where the tree already has an equal block,
                                  that block replaces the private one, which is given back */
    uint32_t n;                /* at most KV_SEGMENT_TOKENS_MAX / KV_BLOCK_TOKENS */
    uint32_t pos0;             /* position of the first token */
    uint32_t n_tokens;
    uint32_t depth; /* spans before the run */
    bool starts_segment;
};
/* Enter the run into the tree and advance *end. Returns the number of blocks entered: fewer than n
 * when two keys have equal first 64 bits. The rest stays private, and so must all later blocks. */
uint32_t store_append(struct store *st, struct store_end *end, const struct store_run *run,
                      const struct store_use *use);

/* --- tails: the first tokens of a block that is not closed --- */

/* Enter the open block of a sequence that ends, with n_tokens of it written, as a node behind the
 * sequence's end. key: of these tokens, as if the block closed after them; a prompt whose span ends
 * there has the same key. False: not possible, the block stays private. */
bool store_leave_tail(struct store *st, struct store_end *end, const struct kv_key *key,
                      uint32_t block, uint32_t pos0, uint32_t n_tokens, uint32_t depth,
                      const struct store_use *use);
/* Whether there are tails behind the match. */
bool store_has_tails(const struct store *st, const struct ktree_match *m);
/* The tail with this key behind the match if it can be taken, else KTREE_NONE. */
uint32_t store_find_tail(const struct store *st, const struct ktree_match *m,
                         const struct kv_key *key);
/* Remove the tail from the tree and make its block private, so that the sequence can append to it.
 * *lay: the tier in which it lay. False: there was no room to bring it to the device. */
bool store_take_tail(struct store *st, uint32_t node, const struct store_use *use, uint32_t *block,
                     enum cache_tier *lay);

/* --- expected paths --- */

/* Declare that a path, keys [n] of its blocks, will be used at due_s (on the clock of store_poll(),
 * in seconds). Returns the number of keys that were counted; pass this number to the two functions
 * below. */
uint32_t store_expect(struct store *st, const struct kv_key *keys, uint32_t n, double due_s);
/* Change the due time from was_s to due_s. Call now and then even if nothing changed. Where several
 * requests wait for a block the earliest due time counts. When that request moves back or leaves,
 * the next time that any waiting request reports is taken. */
void store_expect_at(struct store *st, const struct kv_key *keys, uint32_t n, double was_s,
                     double due_s);
/* Withdraw the declaration. */
void store_unexpect(struct store *st, const struct kv_key *keys, uint32_t n, double was_s);
double store_now_s(const struct store *st);
/* Whether prefetching can help: there is a host tier, and it is a separate memory. */
bool store_prefetches(const struct store *st);
/* Fetch the nodes of the path that lie on the host only, within prefetch_share; then the tail with
 * key `tail` (or NULL) behind it. Victims are only nodes due later than due_s, and the reserve of
 * store_spill_ahead() stays free. False: nothing more can be fetched now, for any sequence. */
bool store_prefetch(struct store *st, const struct ktree_match *m, const struct kv_key *tail,
                    double due_s);
/* due_s of a sequence that set no due time: only unexpected nodes are evicted for it. */
#define STORE_NO_DUE DBL_MAX
/* A counter that rises when an expected node leaves the device: it may have to be fetched again. */
uint64_t store_n_expected_out(const struct store *st);
/* Cancel an unused prefetch and return its blocks to the budget of prefetch_share. */
void store_forget_prefetch(struct store *st, const struct ktree_match *m,
                           const struct kv_key *tail);
/* Begin to read the nodes of the path that lie in slow tiers only, from the beginning of the path,
 * for the waiting request `owner`. must: also what is expected to be computed faster. */
enum store_load_state {
    STORE_LOADED,     /* there is nothing to read, or computing is faster */
    STORE_LOADING,    /* all reads are under way */
    STORE_CANNOT_LOAD /* some reads must wait for room or for other reads */
};
enum store_load_state store_load(struct store *st, const struct kv_key *keys, uint32_t n,
                                 const void *owner, double due_s, bool must);
/* Name the first of the waiting requests. Any unused node may be evicted for what it reads, so that
 * its reads always come to an end. Reads for the others stay within prefetch_share. */
void store_load_first(struct store *st, const void *owner);
/* A counter that rises when store_load() may give another answer. */
uint64_t store_n_load_events(const struct store *st);
/* --- other instances of the pool: kv_store_remote.c --- */

#define STORE_NO_LOOKUP UINT32_MAX
/* Join a lookup of another request, but none of `joined` [n_joined]: one for the block that comes
 * after the part of the path keys [n] that is known, or one that found a block of this part.
 * STORE_NO_LOOKUP: there is none. */
uint32_t store_join_lookup(struct store *st, const struct kv_key *keys, uint32_t n,
                           const uint32_t *joined, uint32_t n_joined);
struct store_ask {
    const struct kv_key *keys; /* [n] a path */
    const struct pool_meta *meta;
    uint32_t n;
    uint32_t n_delayed;     /* sequences that computing delays: this one, and those that wait for no
                           KV */
    double wait_s;          /* how long the request is expected to wait in any case */
    const uint32_t *others; /* [n_others] found lookups: their lenders are not asked */
    uint32_t n_others;
    bool is_again; /* the request asked before */
    bool is_part;  /* only for queries to blocks [from, n): nothing enters the tree */
    uint32_t from;
};
/* Ask the pool for a path, if that is worth it. Found blocks enter the tree. STORE_NO_LOOKUP:
 * everything is known, or it is not worth it, or it is not possible now. */
uint32_t store_begin_lookup(struct store *st, const struct store_ask *ask);
/* Return the expected time of a lookup. */
double store_lookup_seconds(const struct store *st);
/* Whether the lookup has found less than other instances are said to have. */
bool store_leaves_more(const struct store *st, uint32_t lookup);
/* A sequence here is going to compute blocks [from, n) of this path: peers that ask for them wait.
 * Returns the end of what was promised; store_unpromise() is due once for these blocks. Needs a
 * pool. */
uint32_t store_promise(struct store *st, const struct kv_key *keys, const struct pool_meta *meta,
                       uint32_t from, uint32_t n);
void store_unpromise(struct store *st, const struct kv_key *keys, uint32_t n);
/* The sequence looks for promised blocks keys [n] elsewhere (by: 1), or does not any more (-1). */
void store_hesitate(struct store *st, const struct kv_key *keys, uint32_t n, int by);
/* Whether the answer is awaited. */
bool store_is_looking(const struct store *st, uint32_t lookup);
/* The request does not need the lookup any more. When none does, the nodes that were not read leave
 * the tree. */
void store_end_lookup(struct store *st, uint32_t lookup);
/* Blocks [from, to) of the path keys [n] are those that the lookup found. False: it found none. */
bool store_found(const struct store *st, uint32_t lookup, const struct kv_key *keys, uint32_t n,
                 uint32_t *from, uint32_t *to);
/* The work of a sequence that sends queries to the KV of a found lookup. */
struct store_query {
    uint32_t n_blocks, n_tokens, n_segments; /* of the remote part */
    uint32_t pos0;                           /* its first position */
    uint32_t n_prompt_rows, n_output_rows;   /* still to be computed behind it */
    bool is_of_session;                      /* a later request will need those rows' KV, too */
};
/* Whether queries are expected to take less time than reading and than computing the KV. */
bool store_is_query_best(const struct store *st, uint32_t lookup, const struct store_query *q);
/* The most rows of one query to so many segments; 0: not even one. */
uint32_t store_query_rows(const struct store *st, uint32_t n_segments);
/* Become a user of the found lookup that sends queries, until store_end_queries(). */
void store_begin_queries(struct store *st, uint32_t lookup);
void store_end_queries(struct store *st, uint32_t lookup);
/* Private blocks [from, n) of the path of a sequence that sent queries. */
struct store_bequest {
    const struct kv_key *keys; /* [n] */
    const struct pool_meta *meta;
    const uint32_t *blocks; /* [n - from] */
    uint32_t from, n;
};
/* Hand the blocks to the instance whose KV the lookup found, which has those before them. False:
 * not possible; the blocks stay the caller's. */
bool store_bequeath(struct store *st, uint32_t lookup, const struct store_bequest *what);
/* See cache_drain(). */
void store_drain(struct store *st);
bool store_drains(const struct store *st);
/* Whether queries can still be sent. */
bool store_may_query(const struct store *st, uint32_t lookup);
uint32_t store_ticket(const struct store *st, uint32_t lookup);
/* Users that send queries, of all lookups. */
uint32_t store_n_queriers(const struct store *st);
/* A new request found n_tokens at pos0 on another instance, without reading them. */
void store_note_queried(struct store *st, uint32_t pos0, uint32_t n_tokens);
/* A request needs so many device blocks now: no loans begin for a while if they are in its way. */
void store_note_need(struct store *st, uint32_t n_blocks);
/* See cache_leave() and cache_has_left(). With a pool only. */
void store_leave(struct store *st);
bool store_has_left(const struct store *st);

/* A request waited for reads from a slow tier; useful: it used what was read. */
void store_note_wait(struct store *st, enum cache_tier tier, double seconds, bool useful);
/* Write the nodes of the path keys [n] to disk, whatever their use count. */
void store_save(struct store *st, const struct kv_key *keys, uint32_t n,
                const struct store_use *use);
/* See cache_spill_ahead(). */
void store_spill_ahead(struct store *st, uint32_t n_blocks);

/* --- holds: kv_store_hold.c --- */

/* Hold the part of the path keys [n] that is in the tree: it counts as expected now. Returns the
 * number of blocks held, and in *limit (may be NULL) why they are fewer. */
uint32_t store_hold(struct store *st, const struct kv_key *keys, uint32_t n,
                    const struct cache_hold *hold, enum cache_hold_limit *limit);
/* End the holds without end whose path contains this key. Returns the number of blocks that nothing
 * holds any more. */
uint32_t store_release_holds(struct store *st, const struct kv_key *key);

/* --- sessions: kv_store_session.c --- */

/* The latest request of a session has ended: its path is held until until_ns, and expected to be
 * used at due_ns. */
struct store_keep {
    uint64_t session;          /* not 0 */
    const struct kv_key *keys; /* [n] the first n_prompt are those of its prompt */
    uint32_t n, n_prompt;
    uint32_t n_prompt_ids;     /* tokens of the prompt */
    const struct kv_key *tail; /* behind them; NULL: none */
    uint64_t due_ns, until_ns;
};
void store_keep(struct store *st, const struct store_keep *k);
/* The next request of the session has arrived: end the hold. */
void store_session_goes_on(struct store *st, uint64_t session);
/* A request of the session, with the keys [n] of its closed blocks, has computed its prompt: demote
 * what the request before it left and no later prompt contains. */
void store_supersede(struct store *st, uint64_t session, const struct kv_key *keys, uint32_t n,
                     uint32_t n_prompt_ids);
/* Forget the session, and demote its own nodes. False: there is no such session. */
bool store_close_session(struct store *st, uint64_t session, uint32_t *n_blocks);
bool store_session(const struct store *st, uint64_t session, struct cache_session *out);

/* Remove the node that begins with this key and all nodes behind it from all tiers: at once, or for
 * nodes in use or being moved when that ends. Returns the number of their blocks. */
uint32_t store_forget(struct store *st, const struct kv_key *first);

/* --- every step, and watching --- */

/* Returns true while moves are under way. */
bool store_poll(struct store *st, uint64_t now_ns);
/* As cache_set_pace(). */
void store_set_pace(struct store *st, double pace);
/* Whether all that is under way is at other instances, which report what ends. */
bool store_awaits_pool_only(const struct store *st);
void store_reset(struct store *st);
/* Forget what lies in memory only, and begin no more reads and loans until store_wake(). Writes to
 * disk that are under way end first. No sequence holds blocks. True: all blocks in memory are
 * free; false: moves or loans are under way, call again after the next store_poll(). */
bool store_sleep(struct store *st);
/* The tiers in memory are awake. */
void store_wake(struct store *st);
void store_stats(const struct store *st, struct cache_stats *out);
void store_check(const struct store *st);
/* See cache_find_span(). */
bool store_find_span(const struct store *st, const struct kv_key *first, struct cache_span *out);
uint32_t store_top_spans(const struct store *st, struct cache_span *out, uint32_t n_max,
                         uint32_t *n_all);

#endif
