/* replace.h - the eviction policies: the caller reports entries and events, the policy names
 * victims.
 *
 * An entry is a unit of eviction (here a node of the tree). It has a parent, its prefix, and lies
 * in no, one or several tiers (0 = device, 1 = host, ...). In each tier only unpinned leaves are
 * candidates for eviction: an entry with a child in the same tier is not one.
 *
 * Each tier has its own capacity, logical clock and order. The policies:
 *
 *   contest The default, below.
 *   pgdsf   RAGCache, Algorithm 1 (Jin et al., 2024, arXiv 2404.12457): Clock + uses * AvgCost,
 *           AvgCost = the mean of T(cached, new) / new over the uses that missed the entry.
 *   gdsf    Cherkasova 1998: Clock + uses * Cost / Size, Cost = the time to compute the entry
 *           behind its whole prefix.
 *   lru     The victim is the least recently used entry.
 *   lfu     The victim is the least often used entry; of equals the least recently used.
 *   belady  The victim is the entry whose next use is farthest: an oracle, for simulations.
 *
 * In gdsf and pgdsf an eviction raises the tier's clock to the priority of the victim, and uses
 * count whether they hit or not, as published.
 *
 * contest keeps three orders in every tier. The order that would have saved most seconds lately
 * picks the victims.
 *   recency    as lru. The last part of a conversation is used again soon or never.
 *   clock      as pgdsf; its clock is the priority at which the tier is full.
 *   worth      (decayed uses + prior(depth)) * AvgCost: the expected seconds saved per byte of
 *              pgdsf, with two changes for documents. First, uses lose half of their weight with
 *              every CONTEST_HALF_LIFE turnovers of the tier; the clock of pgdsf instead forgets a
 *              document within about one turnover. Second, an entry used once is judged by its
 *              place: prior = CONTEST_PRIOR / (1 + depth), because a document that comes first in
 *              a prompt is likely to come first again, and the sixth behind five others is not.
 * The seconds that each order would have saved are estimated without shadow caches
 * (replace_contest.c). The contest begins with `worth`, in which prompts that are used once rank
 * low and are evicted first, so no separate admission filter is needed. In a pool of instances
 * (is_shared) it begins with `recency`, and another order needs a lead of CONTEST_SHARED_LEAD
 * entries, because each instance sees only a part of the uses of an entry. An entry behind
 * CONTEST_SHARED_DEPTH spans within the first turnover makes it begin with `worth` after all: the
 * prompts have documents, for which `worth` is made.
 *
 * An expected entry (some request waits for it) has a due time: the earliest time at which it is
 * expected to be used. Victims come from two classes, in this order:
 *   1. entries that no request expects, and entries due later than the time for which unexpected
 *      entries survive in the tier: together, in the policy's order;
 *   2. entries due sooner, latest due first; of equals in the policy's order.
 * Demoted entries (replace_demote()) are the first victims of class 1, and are in no mean.
 * The survival time is measured: a decayed mean, over unexpected victims, of the time since their
 * last use. It is at least REPLACE_SOON_S, and infinite before the first victim. The class of an
 * entry is decided when its due time is set and when it is inserted into the tier, not while time
 * passes. Waiting requests therefore set the due time again now and then.
 *
 * The record of an entry that left the tree is kept until another entry needs its place
 * (n_entries_max), so a document that comes back keeps its use count. n_entries_max should be
 * several times the number of entries that fit into the tiers; 4 times was measured
 * (loadgen/bench/policy/README.md).
 *
 * Owns    everything it allocates at create; nothing is allocated later. It reads no clock except
 *         replace_time() and does no I/O: equal events give equal victims.
 * Thread  one at a time.
 * Errors  ERR_NOMEM and ERR_INVALID at create; ERR_NO_BLOCKS when nothing can be evicted, which is
 *         a normal answer. Wrong events (unpin without pin, ...) are bugs: ASSERT.
 * Units   bytes, seconds, uses. Every event costs O(log n), n = entries in that tier. */
#ifndef TARN_CACHE_POLICY_REPLACE_H
#define TARN_CACHE_POLICY_REPLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define REPLACE_N_TIERS_MAX 4
#define REPLACE_SOON_S 1.0 /* entries due within this time are always in class 2 */
#define REPLACE_NONE UINT32_MAX

/* One set of constants for every workload. loadgen/bench/policy/README.md says on which traces they
 * were chosen and how flat the results around them are. */
#define CONTEST_HALF_LIFE 8.0  /* turnovers of the tier */
#define CONTEST_PRIOR 2.0      /* uses that an entry at depth 0 is credited with */
#define CONTEST_MEMORY 1.0     /* turnovers after which a saved second counts half */
#define CONTEST_MARGIN 0.001   /* lead that an order needs to take over, as a share of the tier */
#define CONTEST_SHARED_LEAD 4  /* in a pool: at least that of so many mean entries */
#define CONTEST_SHARED_DEPTH 2 /* in a pool: a preamble and a document are before such an entry */

enum replace_policy {
    REPLACE_CONTEST,
    REPLACE_PGDSF,
    REPLACE_GDSF,
    REPLACE_LRU,
    REPLACE_LFU,
    REPLACE_BELADY,
    REPLACE_N_POLICIES
};

const char *replace_policy_name(enum replace_policy p);
/* ERR_NOT_FOUND: there is no policy of this name. */
NODISCARD enum status replace_policy_parse(const char *name, enum replace_policy *out);

struct replace;

struct replace_config {
    enum replace_policy policy;
    uint32_t n_entries_max; /* entries in the tree plus remembered ones */
    uint32_t n_tiers;
    uint64_t capacity_bytes[REPLACE_N_TIERS_MAX]; /* [n_tiers], each > 0 */
    bool is_shared; /* other instances use the same entries: contest, above */
};

/* On OK *out is the caller's: replace_destroy(). */
NODISCARD enum status replace_create(struct replace **out, const struct replace_config *config);
void replace_destroy(struct replace *r); /* NULL is fine */

/* --- entries of the tree --- */

/* Add an entry, in no tier yet. key: 64 bits of its hash, its permanent name. parent: an entry in
 * the tree, or REPLACE_NONE. depth: number of spans (documents) before it in its path. bytes > 0.
 * Returns its id, below n_entries_max; REPLACE_NONE when the tree is full or has an entry with the
 * same key: then do not cache it. */
uint32_t replace_enter(struct replace *r, uint64_t key, uint32_t parent, uint32_t depth,
                       uint64_t bytes);
/* Split an entry. The new entry, with `key` and `bytes` (fewer than the entry has), is the upper
 * part: it stands between the entry and its parent, lies in the same tiers and has the same use
 * count. The entry keeps its pins and children. Returns the id of the upper part, or REPLACE_NONE
 * as above. */
uint32_t replace_split(struct replace *r, uint32_t id, uint64_t key, uint64_t bytes);
/* Grow an entry at its end to `bytes` (more than it has) and rename it to `key`. The entry has no
 * child and lies in one tier that has room. A remembered entry of that name is merged into it.
 * False, and nothing changed, when another entry in the tree has the name. */
bool replace_grow(struct replace *r, uint32_t id, uint64_t key, uint64_t bytes);
/* Remove an entry from the tree. It lies in no tier, is not pinned or expected, and has no child.
 */
void replace_leave(struct replace *r, uint32_t id);

struct replace_access {
    bool was_cached;        /* it lay in some tier, with its whole prefix */
    double miss_s_per_byte; /* T(cached, new) / bytes of new, of the request; read if !was_cached */
    double own_s_per_byte;  /* T(prefix, this entry) / its bytes; read by gdsf only */
    double next_use;        /* read by belady only; INFINITY: never */
};

/* Count a use: a request has this entry on its path. Call once per request, root first. */
void replace_accessed(struct replace *r, uint32_t id, const struct replace_access *access);
/* Add delta to the number of waiting requests that expect the entry. The first one makes the entry
 * due now, and so the last victim, until replace_due() sets a time. */
void replace_expect(struct replace *r, uint32_t id, int delta);
/* Set the due time of an expected entry: the earliest expected use. Setting the same time again
 * decides its class anew. */
void replace_due(struct replace *r, uint32_t id, double due_s);
/* The entry will not be used again, as far as its users know: evict it before all entries that no
 * request expects. A use revokes this. Returns false if it was demoted before. */
bool replace_demote(struct replace *r, uint32_t id);
bool replace_is_demoted(const struct replace *r, uint32_t id);
/* Limit what a miss of the entry costs, in seconds per byte: it can be had from elsewhere for that.
 * INFINITY, the state after entering: no limit. lru, lfu and belady know no costs. */
void replace_limit_cost(struct replace *r, uint32_t id, double s_per_byte);
/* Advance the clock, which starts at 0; earlier times are ignored. */
void replace_time(struct replace *r, double now_s);

/* --- tiers --- */

/* Insert an entry into a tier that has room (call replace_evict() until it has). Its parent must
 * lie in this tier or a faster one. */
void replace_insert(struct replace *r, uint32_t tier, uint32_t id);
/* Remove an entry from a tier; replace_evict() does this for its victims. The entry is not pinned
 * there, and no child would then lie in a faster tier than the entry. */
void replace_remove(struct replace *r, uint32_t tier, uint32_t id);
void replace_pin(struct replace *r, uint32_t tier, uint32_t id);
void replace_unpin(struct replace *r, uint32_t tier, uint32_t id);

struct replace_victim {
    uint32_t id;
    bool has_copy;  /* a slower tier has a copy: no other copy is needed ("copy out once") */
    bool is_dead;   /* replace_demote() */
    bool has_below; /* children lie in slower tiers: they are useless without a copy of it */
};

/* Remove the next victim from this tier. ERR_NO_BLOCKS: there is no candidate. */
NODISCARD enum status replace_evict(struct replace *r, uint32_t tier, struct replace_victim *out);
/* The entry that replace_evict() would take, or REPLACE_NONE. */
uint32_t replace_peek(const struct replace *r, uint32_t tier);
/* Whether an entry is worth copying into a slower tier: there is room, or the entry ranks at least
 * as high there as the next victim. */
bool replace_admits(const struct replace *r, uint32_t tier, uint32_t id);

/* --- watching --- */

struct replace_stats {
    uint64_t capacity_bytes;
    uint64_t used_bytes;
    uint32_t n_entries; /* in this tier */
    uint32_t n_candidates;
    uint64_t n_evicted;
    double survival_s; /* replace_survival_s() */
    double clock;      /* of gdsf and pgdsf */
    const char
        *order; /* contest: the order that picks now, "worth", "clock" or "recency"; else "" */
    uint64_t n_switches; /* contest: changes of that order */
};

uint32_t replace_n_expected(const struct replace *r, uint32_t id);
/* Hits and misses, including those before the entry last left the tree. */
uint32_t replace_n_uses(const struct replace *r, uint32_t id);
/* The due time; INFINITY: no request expects the entry. */
double replace_due_s(const struct replace *r, uint32_t id);
/* Return the time that unexpected entries survive in this tier. */
double replace_survival_s(const struct replace *r, uint32_t tier);
/* The mean cost per byte of the entry's misses, relative to that of recent unexpected victims of
 * the tier; 1 before the first victim. Between 1/8 and 8. */
double replace_relative_cost(const struct replace *r, uint32_t tier, uint32_t id);
/* The mean cost per byte of the misses of recent unexpected victims of the tier, in seconds; 0
 * before the first victim. */
double replace_usual_cost(const struct replace *r, uint32_t tier);
/* Whether replace_enter(), replace_split() and replace_grow() would accept this name. */
bool replace_is_free_name(const struct replace *r, uint64_t key);
bool replace_in_tier(const struct replace *r, uint32_t tier, uint32_t id);
bool replace_has_room(const struct replace *r, uint32_t tier, uint64_t bytes);
/* The priority in the order of this tier; entries with larger ones stay longer. */
double replace_priority(const struct replace *r, uint32_t tier, uint32_t id);
void replace_stats(const struct replace *r, uint32_t tier, struct replace_stats *out);
/* Bytes allocated at create. */
uint64_t replace_memory_bytes(const struct replace *r);
/* Recount everything and ASSERT that it agrees. O(n). */
void replace_check(const struct replace *r);

#ifdef __cplusplus
}
#endif

#endif
