/* cache.h - the KV cache: the only cache header that engine/ includes.
 *
 * KV is kept in blocks of up to 32 tokens. A sequence (`cache_seq`) is a list of segments, each a
 * list of blocks. The cuts depend only on the ids and the span boundaries of the prompt, never on
 * the schedule:
 *   a block closes after KV_BLOCK_TOKENS tokens or at the end of its span,
 *   a segment closes after the configured number of tokens (at most 256) or at the end of its span.
 * Generated tokens continue the last span, which stays open.
 *
 * Each closed block has a key (key.h). Closed blocks form a tree of prefixes (knowledge_tree.h):
 * a node holds at most one segment and is shared by all sequences that begin alike. One policy
 * (replace.h) picks the victims in every tier.
 *
 * A node lies in device memory, in host memory, on disk, or in several of these tiers.
 *   - A node evicted from the device is copied to the host, if there is a host tier and the host
 *     has no copy yet ("copy out once"). A hit on the host brings the node back to the device.
 *   - On a GPU, host memory is pinned and copies run on their own streams. Kernels that need the
 *     result of a copy are ordered behind it on the device; the host does not wait.
 *   - A host device computes in host memory. Its two memory tiers are two sets of block numbers
 *     of one memory, and a node changes tiers by exchanging numbers: nothing is copied.
 *   - A node that was used min_uses times or is registered is written to disk in the background
 *     while it lies in memory. Eviction therefore never waits for the disk, and what is on disk
 *     survives the process. A node that lies on disk only is read while its request waits
 *     (cache_seq_load()).
 *   - Other instances of a pool are one more tier (cache/pool/pool.h). A waiting request asks them
 *     for blocks that no tier here has, and what is found is read like nodes on disk.
 *
 * A block is in exactly one state: free; cached (in the tree, no reference); in use (one reference
 * or more); in transfer. The sum is constant (promise P2, ARCHITECTURE.md).
 *
 * Owns    the KV pools in device and host memory, the tree, every cache_seq until closed.
 * Thread  cache_knows(): any. All other functions: engine thread only, no locks.
 * Errors  ERR_NO_BLOCKS is a normal answer: preempt a sequence and retry. A copy that fails counts
 *         as a miss: the tokens are computed again.
 * Units   tokens and blocks; bytes where the name says so. */
#ifndef TARN_CACHE_CACHE_H
#define TARN_CACHE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "cache/events.h"
#include "cache/key.h"
#include "cache/pool/pool.h"
#include "kernels/device.h"
#include "kernels/params.h"

struct cache;
struct cache_seq;

/* A prompt. Everything in it is borrowed from the request. */
struct cache_prompt {
    const uint32_t *ids; /* [n_ids] */
    uint32_t n_ids;
    const uint32_t *span_ends; /* [n_span_ends] ascending positions, each in [1, n_ids]; a span
                                  ends before that position. Without any: one open span. */
    uint32_t n_span_ends;
    uint32_t n_public;         /* ids in the public scope: the argument of kv_chain_prompt() */
    const struct kv_key *keys; /* [n_keys] of the closed blocks, in order */
    uint32_t n_keys;
    struct kv_chain chain; /* the state after the last id; generated tokens continue it */
    uint64_t salt;         /* cache_salt, hashed, for cache events; 0: none */
};

/* The largest number of blocks of a prompt of n_ids with these spans and n_more tokens after it. */
uint32_t cache_blocks_max(uint32_t n_ids, uint32_t n_span_ends, uint32_t n_more);

/* --- lifecycle --- */

enum cache_tier {
    CACHE_DEVICE,
    CACHE_HOST,
    CACHE_DISK,
    CACHE_REMOTE, /* on another instance of the pool; a block lies there only while no tier of this
                     instance has it */
    CACHE_N_TIERS
};
const char *cache_tier_name(enum cache_tier t); /* "device", "host", "disk", "remote" */

/* Nodes that are read from disk when the cache is opened. */
enum cache_preload { CACHE_PRELOAD_NONE, CACHE_PRELOAD_REGISTERED, CACHE_PRELOAD_ALL };

struct cache_disk_config {
    const char *path;           /* NULL: no disk tier. disk_dir.h describes the files */
    uint64_t n_bytes;           /* limit for all files under path, tables included */
    const uint8_t *fingerprint; /* [KV_FINGERPRINT_BYTES] of all keys */
    uint32_t min_uses;          /* uses after which a node is written; 1: at the first use */
    uint64_t timeout_ns;        /* a read that takes longer is a miss */
    enum cache_preload preload; /* at most half of the blocks of the tier that is read into */
    bool threads_only;          /* no io_uring (tests) */
};

/* Use of KV that only another instance has. */
enum cache_query {
    CACHE_QUERY_AUTO,  /* as is expected to take less time */
    CACHE_QUERY_NEVER, /* read it */
    CACHE_QUERY_ALWAYS /* send queries where the peer answers them (tests) */
};

/* A pool of instances (cache/pool/pool.h): KV that lies on others is one more tier. */
struct cache_remote_config {
    const char *url;             /* of the directory; NULL: no pool */
    const char *pool;            /* name of the pool; NULL: "default" */
    const char *listen;          /* of the data plane, HOST:PORT */
    const char *announce_host;   /* NULL: the host of listen */
    const char *transport;       /* "auto", "ucx", "tcp" */
    const char *name, *http;     /* of this instance, for people */
    const uint8_t *secret;       /* [POOL_SECRET_BYTES] */
    const uint8_t *fingerprint;  /* [KV_FINGERPRINT_BYTES] of all keys */
    uint32_t lookup_ms, pull_ms; /* deadlines: as struct pool_config */
    enum cache_query query;      /* of KV that lies on others: read it, or send queries to it */
    uint32_t query_ms;           /* a layer's answer that takes longer is lost; 0: 250 */
    uint32_t spread_segments;    /* queries to twice as many segments go to several lenders; 0: 4 */
    uint32_t n_heads;            /* H: a query has H * head_dim floats, a tile H * (head_dim + 2) */
    /* Compute the tiles of a peer's query; another thread than the engine's. NULL: no queries. */
    enum status (*attend)(void *arg, const struct pool_attend *a);
    void *attend_arg;
    bool balances;           /* as struct pool_config */
    bool shares_device;      /* a GPU's KV is lent to processes of this machine, and read from them,
                                without the host in between (CUDA IPC) */
    const char *machine;     /* as struct pool_config */
    uint32_t n_blocks;       /* of others that may be known at a time; 0: 16384 */
    void (*wake)(void *arg); /* cache_poll() has something to do; any thread */
    void *wake_arg;
};

struct cache_config {
    struct device_group group; /* rank r has the r-th of n equal ranges of each block's KV heads */
    struct kv_pool pool;       /* with the KV heads of all ranks; n_blocks: of the device tier; base
                                  is filled in */
    uint32_t segment_tokens;
    bool prefix_caching;    /* false: a sequence finds only the KV that it computed itself before
                               a preemption, and its KV is forgotten when it is closed */
    const char *policy;     /* eviction policy, a name of replace.h; NULL: the default */
    uint32_t n_host_blocks; /* 0: no host tier */
    double prefetch_share;  /* share of the device blocks that may hold prefetched nodes */
    double hold_share;      /* share of the device blocks that holds may cover */
    struct cache_remote_config remote;
    struct cache_events *kv_events; /* every block that comes or goes, for routers; NULL: none */
    bool always_copy;               /* a host device copies between tiers, too (tests) */
    struct cache_disk_config disk;
    /* The cost of a miss: seconds to compute n_new tokens behind n_cached. NULL: all tokens cost
     * the same. Called on the engine thread. */
    double (*seconds)(const void *arg, uint32_t n_cached, uint32_t n_new);
    const void *seconds_arg;
};

NODISCARD enum status cache_create(struct cache **out, const struct cache_config *config,
                                   struct buf *why);
void cache_destroy(struct cache *c); /* NULL is fine; asserts that no sequence is open */
/* Memory of a GPU that a cache with remote.shares_device takes beside its blocks. */
uint64_t cache_sharing_bytes(uint64_t block_bytes);
/* The pools for the kernels [group.n], each with its rank's KV heads; n_blocks counts all block ids
 * that a sequence may hold. */
const struct kv_pool *cache_pool(const struct cache *c);
/* Whether the block with this key is cached in any tier. A hint: the answer may be out of date
 * (key_index.h). Any thread. False without prefix caching. */
bool cache_knows(const struct cache *c, const struct kv_key *key);
/* "contest, lru, ...", for --help and for the message about an unknown policy. */
const char *cache_policies(void);

/* Call once per step, before planning: complete the copies, reads and writes that are over, and end
 * expired holds. Returns true while any are under way: poll again soon. */
bool cache_poll(struct cache *c, uint64_t now_ns);
/* Whether all that is under way is at other instances, and nothing of it has ended since the last
 * call. Their answers wake the engine thread (struct cache_remote_config), so polls are needed for
 * deadlines only. */
bool cache_awaits_pool_only(struct cache *c);

/* --- sequences --- */

/* Open a sequence with room for n_tokens_max tokens; it holds no block yet. *prompt is copied, but
 * its ids, span ends and keys must outlive the sequence. */
NODISCARD enum status cache_seq_open(struct cache *c, const struct cache_prompt *prompt,
                                     uint32_t n_tokens_max, struct cache_seq **out);
/* Drop every reference and the handle. The closed blocks, and the written part of the open block
 * (the tail), stay cached until they are evicted. NULL is fine. */
void cache_seq_close(struct cache_seq *s);

/* Limit what the sequence may match and attach to its first n_tokens; CACHE_MATCH_ALL, the state
 * after opening, lifts the limit. This is for requests that need the hidden states of their prompt
 * and so must compute tokens whose KV is cached. Their blocks are committed like all others: a
 * block that the tree already has is replaced by the tree's. */
#define CACHE_MATCH_ALL UINT32_MAX
void cache_seq_limit_match(struct cache_seq *s, uint32_t n_tokens);

/* Append one sampled id: the sequence's cuts and keys continue with it. */
void cache_seq_extend(struct cache_seq *s, uint32_t id);

/* Tokens at the start of the sequence whose KV lies in memory now, on the device or on the host:
 * whole blocks, then perhaps the tail that an earlier sequence left inside a block. At most all
 * known ids but one: the last is always computed, because its logits are needed. The match is not
 * pinned and may be evicted at any time. */
uint32_t cache_match(const struct cache_seq *s);
/* The same, plus the nodes behind it that lie in slow tiers only, without a tail: what the match
 * can become after cache_seq_load(). */
uint32_t cache_match_disk(const struct cache_seq *s);
/* Leading tokens, in whole blocks, that s will find in the cache when `other` has computed them. */
uint32_t cache_seq_shared(const struct cache_seq *s, const struct cache_seq *other);
/* Pin what cache_match() would find, and fetch what lies on the host only. Call it only on a
 * sequence that holds no tokens, when cache_seq_need() blocks are available. Returns the number of
 * tokens that the sequence now holds: fewer than the match when a copy failed. found
 * [CACHE_N_TIERS] (or NULL) receives the number of tokens that lay in each tier. */
uint32_t cache_seq_attach(struct cache_seq *s, uint32_t *found);
/* Declare that the waiting sequence is expected to use the nodes of its path at due_ns (on the
 * clock of cache_poll()). Expected blocks are evicted latest-due first, and after all blocks that
 * no sequence expects. Exception: blocks due later than unexpected KV usually survives in the tier
 * (at least a second) are evicted in the policy's order, like unexpected ones. The declaration ends
 * when the sequence attaches or is closed. Call again with a new time when the estimate changes,
 * and now and then even if it does not: a small change counts as no change. */
void cache_seq_expect(struct cache_seq *s, uint64_t due_ns);
/* Begin to fetch the nodes of a waiting sequence that lie on the host. False: no more can be
 * fetched now, because prefetch_share is used up or all possible victims are due earlier. Then do
 * not ask for later sequences either. No effect on a host device. */
bool cache_seq_prefetch(struct cache_seq *s);
/* Begin to read the nodes of a waiting sequence that lie in slow tiers only. With a pool, look up
 * what no tier here has, once. Call it in every step, for the waiting sequences in the order of
 * service, until cache_seq_is_loading() is false: everything is in memory, a lookup or read failed
 * or took longer than its deadline, or reading would take longer than computing. is_first: no
 * sequence before this one is loading. The first sequence may evict any unused node; the others
 * stay within prefetch_share. False: no more can be read now, do not ask for later sequences. */
bool cache_seq_load(struct cache_seq *s, bool is_first);
/* Return the number of waiting sequences, in the order of service, for which the caller should call
 * cache_seq_load() while n_running sequences run. In a pool, sequences far behind would hold loans
 * of other instances, and room here, long before they run. */
uint32_t cache_n_load_ahead(const struct cache *c, uint32_t n_running);
/* Begin to look up once more what no tier here has, if the pool's answer is old: other instances
 * may have computed it since, or compute it now. Call it for a waiting sequence that is about to
 * run. It is loading then. */
void cache_seq_look_again(struct cache_seq *s);
/* Whether the sequence should wait for reads. With a slow tier this is true from opening until
 * cache_seq_load() finds nothing to wait for. */
bool cache_seq_is_loading(const struct cache_seq *s);
/* The sequence would run now if it were not loading. The time until it attaches is counted as
 * waiting (struct cache_tier_stats). */
void cache_seq_begin_wait(struct cache_seq *s);
/* Let the sequence run although it is loading, for example because no other one can run. Nodes that
 * arrive too late are computed. */
void cache_seq_stop_loading(struct cache_seq *s);
/* Spill the lowest ranked nodes to the host until n_blocks of the device are free or about to be,
 * so that the next request does not wait for a copy. One call spills at most 16 nodes, no
 * prefetched node, none that is due about now, and no expected node of which no copy would remain.
 * From now on prefetching leaves n_blocks free. No effect without a host tier or on a host device.
 */
void cache_spill_ahead(struct cache *c, uint32_t n_blocks);
/* The sequence is a request of this session: a number that is not 0. Call it after opening. The KV
 * that the session's last request left is no longer held over a pause, and is evicted first once
 * this sequence has computed its prompt, as far as it is not part of this sequence, and only if no
 * other session ever used it. This needs a prompt that continues that request's prompt. */
void cache_seq_join_session(struct cache_seq *s, uint64_t session);
/* When the sequence is closed, hold what it leaves for the session's next request, which is
 * expected at due_ns: it counts as expected then (cache_seq_expect()), until until_ns at most, and
 * within hold_share. The time until due_ns is weighed by the cost of restoring. Without this call
 * the session's last request remains the one before. */
void cache_seq_keep(struct cache_seq *s, uint64_t due_ns, uint64_t until_ns);
/* The session has ended: what its last request left, and no other session ever used, is evicted
 * first. *n_blocks: the blocks that this concerns. False: the cache remembers no such session. */
bool cache_close_session(struct cache *c, uint64_t session, uint32_t *n_blocks);
/* The KV that the session's last request left. False: as above. */
struct cache_session {
    uint32_t n_tokens, n_blocks;
    uint32_t n_own_blocks;               /* used by no other session */
    uint32_t n_blocks_in[CACHE_N_TIERS]; /* a block may lie in several */
    bool is_held;
};
bool cache_session(const struct cache *c, uint64_t session, struct cache_session *out);
/* Held KV is evicted last. */
struct cache_hold {
    uint64_t owner;       /* a number; the KV that an owner holds is counted */
    uint64_t n_bytes_max; /* of all KV that the owner holds, this included; 0: no bound */
    uint64_t until_ns;    /* on the clock of cache_poll(); CACHE_HOLD_FOREVER: cache_release() */
};
#define CACHE_HOLD_FOREVER UINT64_MAX
enum cache_hold_limit {
    CACHE_HOLD_NO_LIMIT,
    CACHE_HOLD_SHARE, /* hold_share is used up */
    CACHE_HOLD_OWNER, /* the owner would hold more than n_bytes_max */
    CACHE_HOLD_COUNT, /* the number of holds or of held blocks is used up, or memory */
    CACHE_HOLD_N_LIMITS
};
const char *cache_hold_limit_name(enum cache_hold_limit l); /* "share", "owner", "count" */
/* Hold the first n_tokens of the sequence, as far as they are whole blocks in the tree, in all
 * tiers. All or nothing: where a limit is reached, nothing changes. Returns the number of tokens
 * held; *limit (may be NULL): the limit reached. A longer or renewed hold of the same owner
 * replaces the hold of a part that ends no later. */
uint32_t cache_seq_hold(struct cache_seq *s, uint32_t n_tokens, const struct cache_hold *hold,
                        enum cache_hold_limit *limit);
/* End the holds without end whose path contains the block with this key. The KV stays cached.
 * Returns the number of blocks that nothing holds any more. */
uint32_t cache_release(struct cache *c, const struct kv_key *key);
/* Blocks, out of cache_n_available(), that growing by n_tokens would take. For a sequence that
 * holds nothing: that attaching and then growing by n_tokens would take, including the cached
 * blocks that the attach would pin. Changes nothing. */
uint32_t cache_seq_need(const struct cache_seq *s, uint32_t n_tokens);
/* Blocks that only this sequence holds: dropping it makes these available. */
uint32_t cache_seq_reclaimable(const struct cache_seq *s);
/* Take slots for the next n_tokens tokens, evicting cached blocks where none is free. All or
 * nothing: ERR_NO_BLOCKS leaves the sequence unchanged. */
NODISCARD enum status cache_seq_grow(struct cache_seq *s, uint32_t n_tokens);
/* The same for tokens whose ids are only guessed: they follow all known ids, and fit into
 * n_tokens_max of cache_seq_open(). Slots that are not committed after the step are given back by
 * cache_seq_shrink(). */
NODISCARD enum status cache_seq_grow_guessed(struct cache_seq *s, uint32_t n_tokens);
/* Declare that a finished step has written the KV of the next n grown tokens. Closed blocks enter
 * the tree, where other sequences find them. A block that another sequence committed first is
 * replaced by that one; the two are equal by promise P1 (ARCHITECTURE.md). */
void cache_seq_commit(struct cache_seq *s, uint32_t n);
/* Give back the slots that were grown but not committed, because the step did not run. */
void cache_seq_shrink(struct cache_seq *s);
/* Preempt: give back every reference. A later attach finds what is still cached, including the
 * tail. */
void cache_seq_drop(struct cache_seq *s);
/* The same for a sequence in any state; one that waits ends its lookups and begins again to load
 * after cache_wake(). */
void cache_seq_sleep(struct cache_seq *s);

/* The input of attention; valid until the next call that changes the sequence. */
struct cache_view {
    const uint32_t *blocks; /* [n_blocks] ids */
    uint32_t n_blocks;
    const struct attn_segment *segments; /* [n_segments]; n_tokens = slots there, block0 counts
                                            from this sequence's first block */
    uint32_t n_segments;
    uint32_t n_tokens; /* committed */
    uint32_t n_slots;  /* committed and grown */
    /* Segments [remote0, remote0 + n_remote) lie on other instances: their blocks are
     * CACHE_NO_BLOCK, and attention to them goes by cache_seq_query(). */
    uint32_t remote0, n_remote;
};
#define CACHE_NO_BLOCK UINT32_MAX
void cache_seq_view(const struct cache_seq *s, struct cache_view *out);
/* Block id and offset of the slot of position pos < n_slots. */
void cache_seq_slot(const struct cache_seq *s, uint32_t pos, uint32_t *block, uint32_t *offset);

/* --- query shipping: attention to KV that stays on other instances (cache_seq_query.c) --- */

/* Tokens that the sequence is expected to generate yet. With CACHE_QUERY_AUTO it helps to decide
 * whether queries are sent or KV is read (store/query_choice.h). Call it before cache_seq_load().
 * */
void cache_seq_expect_output(struct cache_seq *s, uint32_t n_tokens);
/* The KV of the sequence is wanted here after its end: it sends no queries. */
void cache_seq_bring_here(struct cache_seq *s);
/* Whether the sequence that has attached sends queries. Its own KV is private: it does not enter
 * the tree, because the tree never has a block without those before it. */
bool cache_seq_queries(const struct cache_seq *s);
/* The most rows of one query: POOL_QUERY_ROWS_MAX, or fewer where the tiles of many segments would
 * be too large for one answer; at least 1. 0: the sequence sends no queries. */
uint32_t cache_seq_query_rows(const struct cache_seq *s);
/* Send the queries of n_rows <= cache_seq_query_rows() rows of a layer to the remote segments. q:
 * row stride q_stride, copied. One such query of a sequence at a time. */
NODISCARD enum status cache_seq_query(struct cache_seq *s, uint32_t layer, const float *q,
                                      size_t q_stride, uint32_t n_rows);
/* Wait for the answer, query_ms from cache_seq_query() on at the latest. tiles [n_remote] is filled
 * in, for each segment [n_rows, H, head_dim + 2], valid until the next cache_seq_query() or the end
 * of the sequence. After an error of either call the sequence has lost its remote part: what it
 * grew in this step is to be given back, then cache_seq_drop(); it sends no queries again. */
NODISCARD enum status cache_seq_answer(struct cache_seq *s, const float **tiles);

/* --- watching --- */

struct cache_tier_stats {
    uint32_t n_blocks; /* 0: there is no such tier */
    uint32_t n_free;
    uint32_t n_cached;
    uint32_t n_in_use;
    uint32_t n_in_transfer;
    uint32_t n_leaked;     /* in no state; anything but 0 breaks promise P2 */
    uint32_t n_nodes;      /* nodes of the tree that lie in this tier */
    uint64_t n_hit_tokens; /* tokens found here at attach */
    uint64_t n_evicted;    /* blocks evicted to make room */
    uint64_t n_moved_in;   /* blocks moved in from another tier */
    uint64_t n_not_worth;  /* disk, remote: times that computing was expected to be faster than
                              reading */
    double saved_s;        /* computing time that KV found here has saved, less the waiting */
    double lost_s;         /* disk, remote: time of reads whose KV was not used */
    const char *order;     /* policy contest: the order that picks victims now; else "" */
};

struct cache_disk_stats {
    bool is_on, is_hung;
    const char *io; /* "io_uring", "threads"; "" without a disk */
    bool is_direct; /* O_DIRECT */
    uint64_t extent_bytes;
    double index_s;   /* time to open the directory and to enter its records */
    uint32_t n_found; /* blocks entered at start */
    /* Blocks that were not entered, by reason: disk_verdict_name() of disk_format.h; orphaned: an
     * earlier block of the path is missing; doubled: another block has the same key. */
    uint32_t n_torn, n_foreign, n_impossible, n_misnamed, n_orphaned, n_doubled;
    uint64_t n_read_bytes, n_written_bytes; /* of payload, since the start */
    uint64_t n_reads_failed, n_writes_failed, n_timeouts, n_corrupt;
    uint64_t n_not_worth; /* times that computing was expected to be faster than reading */
    uint64_t n_preloaded_blocks;
    double read_bytes_per_s; /* a moving mean; 0 before the first read */
};

/* The ways in which a sequence uses a prefix whose KV another instance has. */
enum cache_way {
    CACHE_PULLED,
    CACHE_QUERIED,
    CACHE_COMPUTED, /* part of it was computed here: that was expected to take less time, or reading
                       it failed */
    CACHE_N_WAYS
};
const char *cache_way_name(enum cache_way w); /* "pull", "query", "compute" */

/* Owners beyond this number hold KV like the others, but are not listed. */
#define CACHE_N_OWNERS_MAX 128

struct cache_stats {
    struct cache_tier_stats tier[CACHE_N_TIERS];
    uint32_t n_tiers; /* without a pool CACHE_REMOTE: answers and metrics name no remote tier */
    struct cache_disk_stats disk;
    struct pool_stats pool; /* zeros without a pool */
    const char *policy;
    uint64_t n_query_tokens;    /* tokens looked up at the first attach of each request */
    uint64_t n_hit_tokens;      /* tokens found there */
    double saved_s;             /* as struct cache_span */
    uint64_t n_restored_tokens; /* tokens found by preempted sequences; not in the two above */
    uint64_t n_copies_failed;
    /* Blocks moved between tiers, by reason. */
    uint64_t n_spilled_ahead; /* before the room was needed */
    uint64_t n_spilled_on_demand;
    uint64_t n_fetched_ahead; /* for a waiting sequence */
    uint64_t n_fetched_on_demand;
    uint64_t n_expected_lost; /* blocks that left their last tier although a sequence waited for
                                 them: they are computed again */
    uint32_t n_nodes;         /* of the tree */
    uint32_t n_holds;
    uint32_t n_held_blocks;
    uint32_t n_owners; /* of holds */
    struct cache_owner {
        uint64_t owner;
        uint32_t n_blocks;        /* held; a block that several owners hold counts for each */
    } owners[CACHE_N_OWNERS_MAX]; /* [n_owners] */
    uint32_t n_session_blocks;    /* held over the pauses of sessions */
    uint64_t n_superseded; /* blocks that were demoted because their session went on without */
    uint64_t n_ways[CACHE_N_WAYS]; /* attached sequences for which another instance had KV */
    uint64_t memory_bytes;         /* of the tree, the policy and the bookkeeping; not of the KV */
};
void cache_stats(const struct cache *c, struct cache_stats *out);

/* A span in the tree: a document at one place of one path, or a run of plain prompt. Where prompts
 * diverge inside a span, all its branches count. */
struct cache_span {
    struct kv_key key; /* of its first block; identifies the span and the path to it */
    uint32_t depth;    /* spans before it in the path */
    uint32_t n_blocks;
    uint32_t n_tokens;
    uint32_t n_blocks_in[CACHE_N_TIERS];
    uint32_t n_nodes;
    uint32_t n_children;   /* spans that follow it directly */
    uint64_t n_uses;       /* requests with its first block on their path */
    uint64_t n_hit_tokens; /* of its tokens, found at the first attach of requests */
    double saved_s;        /* time that computing those would have taken; tokens where the cache
                              knows no times */
    uint64_t idle_ns;      /* since its last use, on the clock of cache_poll() */
    bool in_use;
    bool is_held;
};
/* List the n_max spans with most hit tokens, best first. *n_all: spans in the tree. Returns the
 * number written. O(nodes), so for requests of an operator only. */
uint32_t cache_top_spans(const struct cache *c, struct cache_span *out, uint32_t n_max,
                         uint32_t *n_all);

/* Look up the span whose first block has this key. False: there is none. O(nodes of the span). */
bool cache_find_span(const struct cache *c, const struct kv_key *first, struct cache_span *out);

/* Device blocks that are free or can be evicted: the most that cache_seq_grow() can take now. */
uint32_t cache_n_available(const struct cache *c);
/* Device blocks, at most, that holds and pauses of sessions keep from eviction. */
uint32_t cache_n_held(const struct cache *c);
/* Recount everything and ASSERT that states, references and lists agree. O(blocks). */
void cache_check(const struct cache *c);
/* Forget every cached block of every tier and all holds. Blocks in use stay. Blocks on disk are
 * overwritten. */
void cache_reset(struct cache *c);
/* Give the memory of all blocks back to the system, until cache_wake(). Writes to disk that are
 * under way end first; everything else that lies in memory only is forgotten. Every sequence was
 * put to rest by cache_seq_sleep(), and none grows or loads before cache_wake(). False: loans to
 * other instances or moves are not over, call again after the next cache_poll(). */
bool cache_sleep(struct cache *c);
/* ERR_NOMEM: the cache sleeps on. No effect on a cache that is awake. */
NODISCARD enum status cache_wake(struct cache *c);
/* Forget the span whose first block has this key and everything behind it, in every tier; on disk
 * it is overwritten. Blocks that are in use or being moved go when that ends. Returns the number of
 * blocks of the tree that this concerns: 0 when there is no such span. */
uint32_t cache_erase(struct cache *c, const struct kv_key *first);

/* --- a pool of instances; no effect without one --- */

/* Steps took `pace` times as long lately as `seconds` of struct cache_config says, because others
 * use the processor, too. Reading KV, and asking other instances for it, are compared with
 * computing at this pace; the policy's costs stay as they are. 1 until the first call. */
void cache_set_pace(struct cache *c, double pace);
/* Tell the other instances how many requests wait and run here. Call it often: it does something at
 * most every 100 ms. */
void cache_set_load(struct cache *c, uint32_t n_waiting, uint32_t n_running);
/* The longest that a lookup and the reads of what it finds take; 0 without a pool. */
uint32_t cache_pool_deadline_ms(const struct cache *c);
/* Begin to hand over to other instances what no other one holds. cache_poll() goes on with it; the
 * cache serves as before. Further calls have no effect. */
void cache_leave(struct cache *c);
/* No more requests come: what a sequence computes behind KV of another instance is handed to that
 * instance when the sequence ends. */
void cache_drain(struct cache *c);
/* Whether all that can be handed over has been. True without a pool. */
bool cache_has_left(const struct cache *c);
/* Messages to and from other members (cache/pool/pool_note.h). NULL without a pool. Any thread. */
struct pool_notes *cache_notes(const struct cache *c);
/* List the instances of the pool, this one first. Returns their number. Any thread. */
uint32_t cache_instances(struct cache *c, struct directory_instance *out, uint32_t n_max);

#endif
