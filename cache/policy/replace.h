/* replace.h - which KV leaves a tier when room is needed: entries and events in, victims out.
 *
 * An entry is whatever the tree evicts as one thing (a block, a segment, a span). It hangs below a
 * parent, its prefix, and lies in no, one or several tiers (0 = device, 1 = host, ...). In each
 * tier only leaves that nobody pins can go: an entry with a child in that tier is no candidate.
 *
 * Each tier has its own capacity, logical clock and order. Policies:
 *
 *   contest The default, below.
 *   pgdsf   RAGCache, Algorithm 1 (arXiv 2404.12457): Clock + uses * AvgCost, AvgCost = the mean
 *           of T(cached, new) / new over the uses that missed the entry.
 *   gdsf    Cherkasova 1998: Clock + uses * Cost / Size, Cost = the time to compute the entry
 *           behind its whole prefix.
 *   lru     The least recently used goes first.
 *   lfu     The least often used goes first, of those the least recently used.
 *   belady  The one whose next use is farthest goes first: an oracle, for simulations.
 *
 * In gdsf and pgdsf an eviction raises the tier's clock to the priority of what left, and uses
 * count whether they hit or not, as published.
 *
 * contest: three orders are kept in every tier, and the one that would lately have saved most
 * seconds picks the victims.
 *   recency    as lru. What was said last in a conversation comes again soon or never.
 *   clock      as pgdsf, its clock being the priority at which the tier is full.
 *   worth      (decayed uses + prior(depth)) * AvgCost: pgdsf's expected seconds saved per byte
 *              with two changes, for documents. Uses lose half of their weight with every
 *              CONTEST_HALF_LIFE turnovers of the tier, instead of clock inflation, which forgets
 *              a document within about one. And an entry used once is judged by its place:
 *              prior = CONTEST_PRIOR / (1 + depth), because a document that comes first in a
 *              prompt is likely to come first again and the sixth behind five others is not.
 * Who would have saved more is known without shadow caches (replace_contest.c says how). The
 * contest begins with worth. Prompts that never come again rank low there and leave first: the
 * order itself is the admission filter.
 *
 * What somebody waits for has a due time: the earliest at which it is expected to be used. Two
 * classes leave a tier in this order:
 *   1. what nobody waits for, and what is due later than the time for which that survives in the
 *      tier anyway: mixed together, in the policy's order;
 *   2. what is due sooner, that which is due last first; of equals in the policy's order.
 * How long the first survives is measured: a decayed mean, over victims that nobody waited for, of
 * the time since their last use; at least REPLACE_SOON_S, and infinite without any victim yet. An
 * entry's class is decided when its due time is told and when it comes into the tier, never by time
 * passing: so who waits tells it again now and then.
 *
 * What a policy knows about an entry that left the tree stays until the room is needed for another
 * one (n_entries_max): a document that comes back finds its count again. So give n_entries_max
 * room for several times what fits into the tiers; 4 times more is what was measured
 * (loadgen/bench/policy/README.md).
 *
 * Owns    everything it allocates at create; nothing is allocated later. No clock but what
 *         replace_time() tells, no I/O: equal events give equal victims.
 * Thread  one at a time.
 * Errors  ERR_NOMEM and ERR_INVALID at create; ERR_NO_BLOCKS where nothing can be evicted, a
 *         normal answer. Wrong events (unpin without pin, ...) are bugs: ASSERT.
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
#define REPLACE_SOON_S 1.0 /* what is due within it leaves late, however fast others come and go */
#define REPLACE_NONE UINT32_MAX

/* One set of constants for every workload; loadgen/bench/policy/README.md says on which halves of which
 * traces they were chosen and how flat the results around them are. */
#define CONTEST_HALF_LIFE 8.0 /* turnovers of the tier */
#define CONTEST_PRIOR 2.0     /* uses that a place at depth 0 is worth by itself */
#define CONTEST_MEMORY 1.0    /* turnovers after which a saved second counts half */
#define CONTEST_MARGIN 0.001  /* of the tier: what an order must lead by to take over */

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
/* ERR_NOT_FOUND for a name that is none. */
NODISCARD enum status replace_policy_parse(const char *name, enum replace_policy *out);

struct replace;

struct replace_config {
    enum replace_policy policy;
    uint32_t n_entries_max; /* in the tree, and of those that left it the most recent */
    uint32_t n_tiers;
    uint64_t capacity_bytes[REPLACE_N_TIERS_MAX]; /* [n_tiers], each > 0 */
};

/* On OK *out is the caller's: replace_destroy(). */
NODISCARD enum status replace_create(struct replace **out, const struct replace_config *config);
void replace_destroy(struct replace *r); /* NULL is fine */

/* --- entries of the tree --- */

/* A new entry, in no tier yet. key: 64 bits that name it for ever (of its hash). parent: an entry
 * in the tree, or REPLACE_NONE. depth: how many spans (documents) stand before it in its path.
 * bytes > 0. Returns its id, below n_entries_max; REPLACE_NONE when the tree has that many, or an
 * entry with the same 64 bits: then do not cache it. */
uint32_t replace_enter(struct replace *r, uint64_t key, uint32_t parent, uint32_t depth,
                       uint64_t bytes);
/* The tree cuts an entry in two: a new one for the upper part, `key` and `bytes` of it (fewer than
 * the entry has), between the entry and its parent. It lies where the entry lies and was used as
 * often; the entry keeps its pins and children. Returns the upper part's id, or REPLACE_NONE as
 * above. */
uint32_t replace_split(struct replace *r, uint32_t id, uint64_t key, uint64_t bytes);
/* It grew at its end, to `bytes` (more than it has), and is named `key` from now on. It has no
 * child, and lies in one tier, where there is room. False, and nothing changed, when another entry
 * in the tree has that name. What is remembered of an entry of that name is added to it. */
bool replace_grow(struct replace *r, uint32_t id, uint64_t key, uint64_t bytes);
/* It leaves the tree: it is in no tier, has no pin, no expectation and no child in the tree. */
void replace_leave(struct replace *r, uint32_t id);

struct replace_access {
    bool was_cached;        /* in any tier, with its whole prefix */
    double miss_s_per_byte; /* T(cached, new) / bytes of new, of the request; read if !was_cached */
    double own_s_per_byte;  /* T(prefix, this entry) / its bytes; read by gdsf only */
    double next_use;        /* read by belady only; INFINITY: never */
};

/* A request has this entry on its path; call it from the root on, once per request. */
void replace_accessed(struct replace *r, uint32_t id, const struct replace_access *access);
/* delta > 0: so many waiting requests will use it; < 0: so many came or left. The first one makes
 * it due now until replace_due() says better: it leaves last. */
void replace_expect(struct replace *r, uint32_t id, int delta);
/* It is expected, at due_s for the first time. The same time again: its class is decided anew. */
void replace_due(struct replace *r, uint32_t id, double due_s);
/* It is now_s; a time before the last one is none. Before the first call it is 0. */
void replace_time(struct replace *r, double now_s);

/* --- tiers --- */

/* It lies in this tier now; there must be room (replace_evict() until there is). Its parent has to
 * lie in this tier or a faster one. */
void replace_insert(struct replace *r, uint32_t tier, uint32_t id);
/* It does not any more, by other means than replace_evict(). It has no pin there, and no child that
 * lies there and in no faster tier it lies in. */
void replace_remove(struct replace *r, uint32_t tier, uint32_t id);
void replace_pin(struct replace *r, uint32_t tier, uint32_t id);
void replace_unpin(struct replace *r, uint32_t tier, uint32_t id);

struct replace_victim {
    uint32_t id;
    bool has_copy;  /* a slower tier holds it: dropping costs nothing ("copy out once") */
    bool has_below; /* children of it lie in slower tiers: without a copy of it they are lost */
};

/* Take the next victim out of this tier. ERR_NO_BLOCKS: there is no candidate. */
NODISCARD enum status replace_evict(struct replace *r, uint32_t tier, struct replace_victim *out);
/* The entry that replace_evict() would take, or REPLACE_NONE. */
uint32_t replace_peek(const struct replace *r, uint32_t tier);
/* A filter for those who copy into a slower tier: whether there is room, or the entry ranks at
 * least as high there as the next victim. */
bool replace_admits(const struct replace *r, uint32_t tier, uint32_t id);

/* --- watching --- */

struct replace_stats {
    uint64_t capacity_bytes;
    uint64_t used_bytes;
    uint32_t n_entries; /* in this tier */
    uint32_t n_candidates;
    uint64_t n_evicted;
    double survival_s;   /* replace_survival_s() */
    double clock;        /* of gdsf and pgdsf */
    const char *order;   /* contest: "worth", "clock" or "recency", which picks now; else "" */
    uint64_t n_switches; /* contest */
};

uint32_t replace_n_expected(const struct replace *r, uint32_t id);
/* Hits and misses, those before it left the tree and came back included. */
uint32_t replace_n_uses(const struct replace *r, uint32_t id);
/* INFINITY: nobody waits for it. */
double replace_due_s(const struct replace *r, uint32_t id);
/* How long lives in this tier what nobody waits for. */
double replace_survival_s(const struct replace *r, uint32_t tier);
/* Whether replace_enter(), replace_split() and replace_grow() would take this name. */
bool replace_is_free_name(const struct replace *r, uint64_t key);
bool replace_in_tier(const struct replace *r, uint32_t tier, uint32_t id);
bool replace_has_room(const struct replace *r, uint32_t tier, uint64_t bytes);
/* What the order of this tier compares; larger stays longer. */
double replace_priority(const struct replace *r, uint32_t tier, uint32_t id);
void replace_stats(const struct replace *r, uint32_t tier, struct replace_stats *out);
/* Bytes allocated at create. */
uint64_t replace_memory_bytes(const struct replace *r);
/* Recount everything from scratch and ASSERT that it agrees. O(n). */
void replace_check(const struct replace *r);

#ifdef __cplusplus
}
#endif

#endif
