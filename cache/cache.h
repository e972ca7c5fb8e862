/* cache.h - where KV lives: the only cache header that engine/ includes.
 *
 * KV is kept in blocks of 32 tokens. A sequence (`cache_seq`) is a list of segments, each a list of
 * blocks; how a prompt is cut depends only on its ids and span boundaries, never on the schedule:
 *   a block closes after KV_BLOCK_TOKENS tokens or at the end of its span,
 *   a segment closes after the configured number of tokens (at most 256) or at the end of its span.
 * Generated tokens continue the last span, which stays open.
 *
 * Each closed block has a key (key.h of this folder writes it down byte by byte). Closed blocks
 * stand in a tree of prefixes (knowledge_tree.h), whose nodes are at most a segment long and are
 * shared by all sequences that begin alike. What is evicted is decided by one policy for all
 * (replace.h).
 *
 * Tiers. A node lies in the device's memory, in host memory, on disk, or in several of them. What
 * leaves the device goes to the host once ("copy out once"), if there is a host tier; what is hit
 * there comes back.
 *   - Beside a GPU host memory is pinned, and copies run on streams of their own: kernels that need
 *     what a copy brings wait for it on the device, nobody waits on the host.
 *   - A host device computes in host memory. Its tiers are two sets of blocks of one memory, and to
 *     move a node is to exchange block numbers with the other set: nothing is copied.
 *   - To disk goes, in the background, what was used a second time or is registered, while it lies
 *     in memory: so leaving memory never waits for a disk, and what was written survives the
 *     process. What lies on disk only is read while its request waits (cache_seq_load()).
 *
 * A block is in exactly one state: free; cached (in the tree, no reference); in use (one reference
 * or more); in transfer. The sum is constant (design P2).
 *
 * Owns    the KV pools in device and host memory, the tree, every cache_seq until closed.
 * Thread  kv_chain_*, cache_knows(): any. All else: engine thread only, no locks.
 * Errors  ERR_NO_BLOCKS is a normal answer: preempt something and retry. A copy that fails is a
 *         miss: what it was to bring is computed again.
 * Units   tokens and blocks; bytes where it says so. */
#ifndef TARN_CACHE_CACHE_H
#define TARN_CACHE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "cache/key.h"
#include "kernels/params.h"

struct device;
struct cache;
struct cache_seq;

/* A prompt as the cache sees it; everything is borrowed from the request. */
struct cache_prompt {
    const uint32_t *ids; /* [n_ids] */
    uint32_t n_ids;
    const uint32_t *span_ends; /* [n_span_ends] ascending positions, each in [1, n_ids]; a span
                                  ends before that position. Without any: one open span. */
    uint32_t n_span_ends;
    uint32_t n_public;         /* ids in the public scope, as kv_chain_prompt() was told */
    const struct kv_key *keys; /* [n_keys] of the closed blocks, in order */
    uint32_t n_keys;
    struct kv_chain chain; /* the state after the last id (generated tokens go on from it) */
};

/* Blocks that a prompt of n_ids with these spans can touch at most, with n_more tokens after it. */
uint32_t cache_blocks_max(uint32_t n_ids, uint32_t n_span_ends, uint32_t n_more);

/* --- lifecycle --- */

enum cache_tier { CACHE_DEVICE, CACHE_HOST, CACHE_DISK, CACHE_N_TIERS };
const char *cache_tier_name(enum cache_tier t); /* "device", "host", "disk" */

/* What is read from disk when the cache is opened. */
enum cache_preload { CACHE_PRELOAD_NONE, CACHE_PRELOAD_REGISTERED, CACHE_PRELOAD_ALL };

struct cache_disk_config {
    const char *path;           /* NULL: no disk tier. disk_dir.h says what is made there */
    uint64_t n_bytes;           /* of all that is there, tables included */
    const uint8_t *fingerprint; /* [KV_FINGERPRINT_BYTES] of all keys */
    uint32_t min_uses;          /* what was used so often is written; 1: all at once */
    uint64_t timeout_ns;        /* a read that takes longer is a miss */
    enum cache_preload preload; /* as far as half of the device's blocks */
    bool threads_only;          /* no io_uring (tests) */
};

struct cache_config {
    struct device *device;
    struct kv_pool pool; /* n_blocks: of the device tier; base is filled in */
    uint32_t segment_tokens;
    bool prefix_caching;    /* off: a sequence finds again only what it computed itself, before
                               a preemption, and what it leaves at its end is forgotten */
    const char *policy;     /* of eviction: a name of replace.h; NULL: the default */
    uint32_t n_host_blocks; /* 0: no host tier */
    double prefetch_share;  /* of the device's blocks, that waiting requests may fetch into */
    double hold_share;      /* of the device's blocks, that holds may cover */
    bool always_copy;       /* a host device too copies between tiers (tests) */
    struct cache_disk_config disk;
    /* Seconds to compute n_new tokens behind n_cached: what a miss costs. NULL: all tokens cost the
     * same. Called on the engine thread. */
    double (*seconds)(const void *arg, uint32_t n_cached, uint32_t n_new);
    const void *seconds_arg;
};

NODISCARD enum status cache_create(struct cache **out, const struct cache_config *config,
                                   struct buf *why);
void cache_destroy(struct cache *c); /* NULL is fine; asserts that no sequence is open */
/* What kernels read: n_blocks counts all blocks that a sequence may hold. */
const struct kv_pool *cache_pool(const struct cache *c);
/* Whether the block with this key is cached in any tier, as far as is known: a hint (key_index.h).
 * Any thread. False without prefix caching. */
bool cache_knows(const struct cache *c, const struct kv_key *key);
/* "contest, lru, ...": for the message about an unknown policy and for --help. */
const char *cache_policies(void);

/* Once per step, before anything is planned: completes copies, reads and writes that are done and
 * ends holds whose time is over. True while any are under way: poll again soon. */
bool cache_poll(struct cache *c, uint64_t now_ns);

/* --- sequences --- */

/* A handle with room for n_tokens_max tokens; holds no block yet. `prompt` is copied but what it
 * points to must outlive the sequence. */
NODISCARD enum status cache_seq_open(struct cache *c, const struct cache_prompt *prompt,
                                     uint32_t n_tokens_max, struct cache_seq **out);
/* Drop every reference and the handle. Closed blocks, and what is written of the open one (a tail),
 * stay cached until evicted. NULL is fine. */
void cache_seq_close(struct cache_seq *s);

/* Let the sequence match and attach at most its first n_tokens from now on; CACHE_MATCH_ALL, as
 * after opening, lifts the limit. A request that needs the hidden states of its prompt computes
 * tokens whose KV is cached. Their blocks are committed like all others: a block that the tree has
 * already is exchanged for the tree's. */
#define CACHE_MATCH_ALL UINT32_MAX
void cache_seq_limit_match(struct cache_seq *s, uint32_t n_tokens);

/* One more id is known (it was sampled): the sequence's cut and keys go on. */
void cache_seq_extend(struct cache_seq *s, uint32_t id);

/* Tokens at the start of the sequence whose KV lies in memory now, on the device or the host: whole
 * blocks, then a tail that somebody left inside of one; at most all known ids but one (the last is
 * always computed: its logits are wanted). Pins nothing: weak. */
uint32_t cache_match(const struct cache_seq *s);
/* The same with what lies on disk only behind it, and without a tail: what cache_seq_load() may
 * bring. */
uint32_t cache_match_disk(const struct cache_seq *s);
/* Pin what cache_match() would find; what lies on the host only is fetched. The sequence then holds
 * that many tokens: fewer than the match when a copy failed. Only on a sequence that holds none,
 * and with cache_seq_need() of it available. Returns the tokens; found [CACHE_N_TIERS], unless
 * NULL, is where they lay. */
uint32_t cache_seq_attach(struct cache_seq *s, uint32_t *found);
/* The sequence waits, and is expected to use what lies on its path at due_ns (of cache_poll()'s
 * clock). Of what is expected, that leaves first which is due last; and what is due later than the
 * time for which KV that nobody waits for survives in the tier, or a second if that is more, leaves
 * like that, in the order of the policy. Until it attaches or is closed. Again: the new time; one
 * that differs little counts as the old one, but is to be told now and then all the same. */
void cache_seq_expect(struct cache_seq *s, uint64_t due_ns);
/* The sequence waits: start to fetch what lies on the host. False: nothing more may be fetched now
 * (prefetch_share, or all that could make room is due before it), so ask for no other either. On a
 * host device nothing is to be done. */
bool cache_seq_prefetch(struct cache_seq *s);
/* The sequence waits, and will be planned for soon: start to read what of its path lies on disk
 * only. To be called in the order of service, in every step, until cache_seq_is_loading() is false:
 * when all is there, a read failed or took longer than timeout_ns, or reading would take longer
 * than computing. is_first: nobody before it is loading; room is made for it of whatever nobody
 * uses, for the others within prefetch_share. False: no more can be read now, so ask no more. */
bool cache_seq_load(struct cache_seq *s, bool is_first);
/* It had better not run yet. True from its opening on, where there is a disk, until
 * cache_seq_load() has found that nothing is to be waited for. */
bool cache_seq_is_loading(const struct cache_seq *s);
/* It runs although it is loading (nothing else does, say): what comes too late is computed. */
void cache_seq_stop_loading(struct cache_seq *s);
/* Start to spill what ranks lowest until n_blocks of the device are free or on their way out, so
 * that who comes next does not wait for a copy: at most 16 nodes a call, nothing that was fetched
 * ahead or is due about now, and of what is expected nothing that would be lost. Prefetching leaves
 * n_blocks alone from now on. Nothing without a host tier, or on a host device. */
void cache_spill_ahead(struct cache *c, uint32_t n_blocks);
/* The first n_tokens of the sequence, those that are in the tree, are evicted last until `until_ns`
 * (of cache_poll()). Returns the tokens: fewer, or 0, when hold_share or the number of holds is
 * used up. */
uint32_t cache_seq_hold(struct cache_seq *s, uint32_t n_tokens, uint64_t until_ns);
/* Blocks that growing by n_tokens would take out of free and cached. On a sequence that holds
 * nothing: by n_tokens after an attach, the cached blocks which that would pin included. Pure. */
uint32_t cache_seq_need(const struct cache_seq *s, uint32_t n_tokens);
/* Blocks that only this sequence holds: what dropping it would make available. */
uint32_t cache_seq_reclaimable(const struct cache_seq *s);
/* Make slots for the next n_tokens tokens, evicting cached blocks where none is free.
 * All or nothing: ERR_NO_BLOCKS leaves the sequence as it was. */
NODISCARD enum status cache_seq_grow(struct cache_seq *s, uint32_t n_tokens);
/* The KV of the next n grown tokens has been written by a finished step: closed blocks enter the
 * tree and can be found by others. A block that another sequence committed first is exchanged for
 * that one (equal by P1). */
void cache_seq_commit(struct cache_seq *s, uint32_t n);
/* Take back slots that were grown but not committed (the step did not run). */
void cache_seq_shrink(struct cache_seq *s);
/* Preemption: give every reference back, hold nothing; attach finds what is still there, the tail
 * included. */
void cache_seq_drop(struct cache_seq *s);

/* What attention needs; valid until the next call that changes the sequence. */
struct cache_view {
    const uint32_t *blocks; /* [n_blocks] ids */
    uint32_t n_blocks;
    const struct attn_segment *segments; /* [n_segments]; n_tokens = slots there, block0 counts
                                            from this sequence's first block */
    uint32_t n_segments;
    uint32_t n_tokens; /* committed */
    uint32_t n_slots;  /* committed and grown */
};
void cache_seq_view(const struct cache_seq *s, struct cache_view *out);
/* Block id and offset of the slot of position pos < n_slots. */
void cache_seq_slot(const struct cache_seq *s, uint32_t pos, uint32_t *block, uint32_t *offset);

/* --- watching --- */

struct cache_tier_stats {
    uint32_t n_blocks; /* 0: there is no such tier */
    uint32_t n_free;
    uint32_t n_cached;
    uint32_t n_in_use;
    uint32_t n_in_transfer;
    uint32_t n_leaked;     /* in no state: 0, or P2 is broken */
    uint32_t n_nodes;      /* of the tree, that lie here */
    uint64_t n_hit_tokens; /* found here at attach */
    uint64_t n_evicted;    /* blocks that left the tier to make room */
    uint64_t n_moved_in;   /* blocks that came from another tier */
    const char *order;     /* policy contest: which of its orders picks now; else "" */
};

struct cache_disk_stats {
    bool is_on, is_hung;
    const char *io; /* "io_uring", "threads"; "" without a disk */
    bool is_direct; /* O_DIRECT */
    uint64_t extent_bytes;
    double index_s;   /* it took to open the directory and to enter its records */
    uint32_t n_found; /* blocks entered then */
    /* Those that were not, by why: disk_verdict_name() of disk_format.h; orphaned: what comes
     * before them in their path is missing; doubled: there are two of one key. */
    uint32_t n_torn, n_foreign, n_impossible, n_misnamed, n_orphaned, n_doubled;
    uint64_t n_read_bytes, n_written_bytes; /* of payload, since then */
    uint64_t n_reads_failed, n_writes_failed, n_timeouts, n_corrupt;
    uint64_t n_not_worth; /* sequences that computed what would take longer to read */
    uint64_t n_preloaded_blocks;
    double read_bytes_per_s; /* a moving mean; 0: nothing was read yet */
};

struct cache_stats {
    struct cache_tier_stats tier[CACHE_N_TIERS];
    struct cache_disk_stats disk;
    const char *policy;
    uint64_t n_query_tokens;    /* tokens looked up at attach, by requests that had not run */
    uint64_t n_hit_tokens;      /* of those, found */
    uint64_t n_restored_tokens; /* found again by preempted sequences: not in the two above */
    uint64_t n_copies_failed;
    /* Swapping: blocks of the tiers' moves, by why they were made. */
    uint64_t n_spilled_ahead; /* before the room was needed */
    uint64_t n_spilled_on_demand;
    uint64_t n_fetched_ahead; /* for a waiting sequence */
    uint64_t n_fetched_on_demand;
    uint64_t n_expected_lost; /* blocks that left the last tier although somebody waited for them:
                                 they are computed again */
    uint32_t n_nodes;         /* of the tree */
    uint32_t n_holds;
    uint32_t n_held_blocks;
    uint64_t memory_bytes; /* of tree, policy and bookkeeping; not the KV */
};
void cache_stats(const struct cache *c, struct cache_stats *out);

/* A span in the tree: a document at one place in one path, or a run of plain prompt. Where prompts
 * part inside of a span, all branches count. */
struct cache_span {
    struct kv_key key; /* of its first block: names the path to it */
    uint32_t depth;    /* spans before it */
    uint32_t n_blocks;
    uint32_t n_tokens;
    uint32_t n_blocks_in[CACHE_N_TIERS];
    uint32_t n_nodes;
    uint32_t n_children;   /* spans behind it */
    uint64_t n_uses;       /* requests that had its first block on their path */
    uint64_t n_hit_tokens; /* of it, found by requests that had not run */
    uint64_t idle_ns;      /* since its last use; by cache_poll() */
    bool in_use;
    bool is_held;
};
/* The n_max spans of which most tokens were found, best first. *n_all: spans in the tree. Returns
 * how many were written. O(nodes): between steps, when somebody asks. */
uint32_t cache_top_spans(const struct cache *c, struct cache_span *out, uint32_t n_max,
                         uint32_t *n_all);

/* Device blocks that are free or can be evicted: what cache_seq_grow() could hand out now. */
uint32_t cache_n_available(const struct cache *c);
/* Recount everything from scratch and ASSERT that states, references and lists agree. O(blocks). */
void cache_check(const struct cache *c);
/* Forget every cached block of every tier (those in use stay), and all holds. What lies on disk is
 * overwritten. */
void cache_reset(struct cache *c);
/* Forget the span whose first block has this key, and all that comes behind it in any path, in
 * every tier; on disk it is overwritten. What is in use, or on its way, goes when it is not any
 * more. Returns the blocks of the tree that it was: 0 when there is no such span. */
uint32_t cache_erase(struct cache *c, const struct kv_key *first);

#endif
