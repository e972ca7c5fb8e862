/* replace_inner.h - what the files of replace share; nobody else includes it.
 *
 * One entry has a fixed part (struct entry) and one part per tier (struct place), in two arrays.
 * Candidates of a tier lie in a binary heap per order: policies have one order, contest has
 * three, whose heaps hold the same entries, so that it can change its mind at any event for free.
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

/* Bins of a histogram over keys. The ring must reach from the highest key down to the one at which
 * the tier is full. Recency: 128 bins a turnover, and what was used longer than one turnover ago
 * is not among the most recent tierful. Worth: 8 bins for each factor of 2, so 128 octaves.
 * Clock: 8 bins for a use at mean cost, so uses beyond CLOCK_USES_MAX are not told apart. */
#define N_BINS 1024
#define BINS_PER_KEY 8.0
#define KEYS_PER_TURNOVER 16.0 /* of recency */
#define CLOCK_USES_MAX 64.0

/* Victims over which the age at leaving is averaged. */
#define SURVIVAL_MEMORY 32u

struct entry {
    uint64_t key;
    uint64_t bytes;
    uint64_t stamp; /* number of its last use: the younger wins a tie */
    double miss_s;  /* sum of miss_s_per_byte over n_misses */
    double own_s;
    double next_use;
    uint32_t n_uses, n_misses;
    uint32_t parent, depth;
    uint32_t n_children; /* in the tree */
    uint32_t n_expected;
    double due_s;          /* the earliest of those; read while there are any */
    double used_s;         /* when it was used or unpinned for the last time */
    uint32_t older, newer; /* of those that left the tree; newer also links unused ids */
    bool in_tree;
    bool known; /* in the tree or remembered */
};

struct place {
    double key[N_ORDERS_MAX];   /* the priority; larger stays longer */
    double due;                 /* of those that leave last; INFINITY: of the others */
    double score;               /* contest: uses, decayed up to `scored_at` */
    double scored_at;           /* in turnovers */
    uint32_t pos[N_ORDERS_MAX]; /* in the heaps, or REPLACE_NONE */
    uint32_t n_children;        /* in this tier */
    uint32_t n_pins;
    bool present;
};

/* What would be cached if the tier kept the highest keys of all that is known. */
struct skyline {
    uint64_t bytes[N_BINS]; /* of known entries, by bin of their key: a ring */
    int64_t top;            /* highest bin; the ring holds (top - N_BINS, top] */
    int64_t full;           /* bins >= full fit into the tier together */
    uint64_t above;         /* their bytes */
    double line;            /* the highest key so far at which the tier was full */
    double saved_s;         /* by hits above, decayed */
};

struct tier {
    uint64_t capacity, used;
    uint32_t n_entries;
    uint32_t n_candidates;
    uint32_t order; /* which heap picks */
    uint64_t n_evicted, n_switches;
    double age_s; /* decayed mean of what left that nobody waited for */
    uint32_t n_ages;
    double clock;
    double turnovers;             /* inserted bytes / capacity: the time of this tier */
    double judged_at;             /* contest: turnovers at the last decay */
    double asked_s, asked_bytes;  /* contest: of uses of the known, decayed */
    uint32_t *heap[N_ORDERS_MAX]; /* [n_entries_max] ids */
    struct skyline *sky;          /* [N_ORDERS_MAX], contest only */
};

struct replace {
    enum replace_policy policy;
    uint32_t n_orders;
    uint32_t n_tiers;
    uint32_t n_entries_max;
    uint32_t unused;         /* stack of ids never used */
    uint32_t oldest, newest; /* of those that left the tree */
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

/* Mean seconds per byte over the uses that missed it; what is known otherwise where none did. */
static inline double entry_avg_cost(const struct entry *e)
{
    return e->n_misses ? e->miss_s / e->n_misses : e->own_s;
}

/* replace_heap.c */
void heap_push(struct replace *r, uint32_t tier, uint32_t id); /* into all orders */
void heap_take(struct replace *r, uint32_t tier, uint32_t id);
void heap_moved(struct replace *r, uint32_t tier, uint32_t id); /* its keys changed */
/* a goes before b */
bool heap_less(const struct replace *r, uint32_t tier, uint32_t order, uint32_t a, uint32_t b);
void heap_check(const struct replace *r, uint32_t tier);

/* replace_contest.c */
/* The use was counted in e; judge the orders by its old keys, give it new ones. */
void contest_accessed(struct replace *r, uint32_t tier, uint32_t id, bool was_known);
/* The entry is new: a first key. */
void contest_entered(struct replace *r, uint32_t tier, uint32_t id);
/* Its bytes count at its keys. */
void contest_know(struct replace *r, uint32_t tier, uint32_t id);
/* They do not any more. */
void contest_forget(struct replace *r, uint32_t tier, uint32_t id);
void contest_check(const struct replace *r, uint32_t tier);

#endif
