/* replace_inner.h - what the files of the policy share; included by cache/policy/ only.
 *
 * An entry has a fixed part (struct entry) and one part per tier (struct place), in two arrays. The
 * candidates of a tier lie in one binary heap per order. contest has three orders and keeps the
 * candidates in all three heaps, so it can switch between orders at no cost; other policies have
 * one.
 *
 * Owns    nothing.
 * Thread  as replace.h.
 * Errors  none.
 * Units   as replace.h; a turnover is the tier's capacity in inserted bytes. */
#ifndef TARN_CACHE_POLICY_REPLACE_INNER_H
#define TARN_CACHE_POLICY_REPLACE_INNER_H

#include "base/map.h"
#include "cache/policy/replace.h"

#define N_ORDERS_MAX 3
enum { ORDER_WORTH, ORDER_CLOCK, ORDER_RECENCY }; /* of contest; other policies have one */

/* Bins of a histogram over priorities. The ring must reach from the highest priority down to the
 * one at which the tier is full. Recency: 128 bins per turnover; entries used longer than one
 * turnover ago cannot be among those that fill the tier. Worth: 8 bins per factor of 2, so 128
 * octaves. Clock: 8 bins per use at mean cost, so uses beyond CLOCK_USES_MAX count as that many. */
#define N_BINS 1024
#define BINS_PER_KEY 8.0
#define KEYS_PER_TURNOVER 16.0 /* of recency */
#define CLOCK_USES_MAX 64.0

/* Number of victims over which the survival time is averaged. */
#define SURVIVAL_MEMORY 32u

struct entry {
    uint64_t key;
    uint64_t bytes;
    uint64_t stamp; /* number of its last use; in a tie the entry used later stays */
    double miss_s;  /* sum of miss_s_per_byte over n_misses */
    double own_s;
    double limit_s; /* replace_limit_cost() */
    double next_use;
    uint32_t n_uses, n_misses;
    uint32_t parent, depth;
    uint32_t n_children; /* in the tree */
    uint32_t n_expected;
    double due_s;          /* earliest due time; valid while n_expected > 0 */
    double used_s;         /* when it was last used or unpinned */
    uint32_t older, newer; /* list of remembered entries; newer also links unused ids */
    bool is_dead;
    bool is_counted; /* contest: in the histograms; not from replace_demote() to the next use */
    bool in_tree;
    bool known; /* in the tree or remembered */
};

struct place {
    double key[N_ORDERS_MAX];   /* the priority; larger stays longer */
    double due;                 /* due time of an entry of class 2; INFINITY in class 1 */
    double score;               /* contest: uses, decayed up to `scored_at` */
    double scored_at;           /* in turnovers */
    uint32_t pos[N_ORDERS_MAX]; /* in the heaps, or REPLACE_NONE */
    uint32_t n_children;        /* in this tier */
    uint32_t n_pins;
    bool present;
};

/* The entries that one order would keep in the tier: those of the highest priorities, among all
 * entries in the tree or remembered. */
struct skyline {
    uint64_t bytes[N_BINS]; /* bytes of known entries by bin of their priority: a ring */
    int64_t top;            /* highest bin; the ring holds (top - N_BINS, top] */
    int64_t full;           /* the bins >= full fit into the tier together */
    uint64_t above;         /* bytes in these bins */
    double line;            /* the highest priority so far at which the tier was full */
    double saved_s;         /* seconds saved by hits in these bins, decayed */
};

struct tier {
    uint64_t capacity, used;
    uint32_t n_entries;
    uint32_t n_candidates;
    uint32_t order; /* the heap that picks victims */
    uint64_t n_evicted, n_switches;
    double age_s;  /* decayed mean of the time since the last use of unexpected victims */
    double cost_s; /* the same of their cost of a miss, per byte */
    uint32_t n_ages;
    double clock;
    double turnovers;             /* inserted bytes / capacity: the logical time of this tier */
    double judged_at;             /* contest: turnovers at the last decay */
    double asked_s, asked_bytes;  /* contest: cost and bytes of uses of known entries, decayed */
    uint32_t *heap[N_ORDERS_MAX]; /* [n_entries_max] ids */
    struct skyline *sky;          /* [N_ORDERS_MAX], contest only */
};

struct replace {
    enum replace_policy policy;
    bool is_shared;
    uint32_t n_orders;
    uint32_t n_tiers;
    uint32_t n_entries_max;
    uint32_t unused;         /* stack of ids never used */
    uint32_t oldest, newest; /* remembered entries, which have left the tree */
    uint64_t n_uses;
    double now_s;
    uint64_t memory_bytes;
    struct map by_key;
    struct entry *entries; /* [n_entries_max] */
    struct place *places;  /* [n_entries_max][n_tiers] */
    struct tier tiers[REPLACE_N_TIERS_MAX];
};

static inline struct place *place_of(const struct replace *r, uint32_t tier, uint32_t id)
{
    return &r->places[(uint64_t)id * r->n_tiers + tier];
}

/* Mean seconds per byte over the uses that missed the entry; without any, its own estimate. */
static inline double entry_full_cost(const struct entry *e)
{
    return e->n_misses ? e->miss_s / e->n_misses : e->own_s;
}

/* The same, at most what it costs to have it from elsewhere. */
static inline double entry_avg_cost(const struct entry *e)
{
    double cost = entry_full_cost(e);

    return cost < e->limit_s ? cost : e->limit_s;
}

/* replace_heap.c */
void heap_push(struct replace *r, uint32_t tier, uint32_t id); /* into all orders */
void heap_take(struct replace *r, uint32_t tier, uint32_t id);
void heap_moved(struct replace *r, uint32_t tier, uint32_t id); /* its priorities changed */
/* Whether a is evicted before b. */
bool heap_less(const struct replace *r, uint32_t tier, uint32_t order, uint32_t a, uint32_t b);
void heap_check(const struct replace *r, uint32_t tier);

/* replace_contest.c */
/* After a use of the entry: credit the orders that would have kept it by its old priorities, then
 * compute its new ones. */
void contest_accessed(struct replace *r, uint32_t tier, uint32_t id, bool was_known);
/* The entry's cost was `was` and has changed: move its priorities. */
void contest_repriced(struct replace *r, uint32_t tier, uint32_t id, double was);
/* Compute the first priorities of a new entry. */
void contest_entered(struct replace *r, uint32_t tier, uint32_t id);
/* Add the entry's bytes to the histograms at its priorities, if it is counted. */
void contest_know(struct replace *r, uint32_t tier, uint32_t id);
/* Remove them; contest_know() of this or another entry is to follow before the next use. */
void contest_forget(struct replace *r, uint32_t tier, uint32_t id);
/* Remove them for good. */
void contest_demoted(struct replace *r, uint32_t tier, uint32_t id);
void contest_check(const struct replace *r, uint32_t tier);

#endif
