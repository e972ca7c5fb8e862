/* replace_contest.c - three orders, and an estimate of the seconds that each would have saved.
 *
 * An order keeps the entries with the highest keys (priorities), as many as fit. The keys of an
 * entry change only when it is used: `worth` is a logarithm, so that decay, the same factor for all
 * entries, need not touch the keys of entries that are not used (LRFU, Lee et al. 2001, in
 * logarithms), and a clock changes no key:
 *
 *   worth   = log2(score + prior) + log2(AvgCost) + now / CONTEST_HALF_LIFE
 *   clock   = line + uses * AvgCost / mean AvgCost
 *   recency = KEYS_PER_TURNOVER * (now - the share of its cost that elsewhere saves)
 *
 * A prefix is used whenever an entry below it is, so its keys are not lower, and the entries with
 * the highest keys form a tree without holes. (AvgCost of a prefix may be lower; then the heap
 * still evicts leaves first, and the histogram is slightly wrong.) The skyline is the key at which
 * the tier is full: a position in a histogram of bytes by key, over all known entries, in the tier
 * or not. It moves by a few bins when an entry is added. A use of an entry whose old key lies above
 * the skyline would have been a hit; a use in the bin at the skyline counts by the share of the bin
 * that still fits.
 *
 * ARC (Megiddo and Modha 2003) and LeCaR (Vietri et al. 2018) also choose between orders by the
 * hits of each, but learn only from remembered victims of the current order. The histogram gives an
 * estimate for all orders at every use.
 *
 * A demoted entry is in no histogram until its next use, because it makes room for any other, and
 * that use is credited to no order. In a pool such entries are copies that went on elsewhere. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "cache/policy/replace_inner.h"

#define COST_MIN 1e-30 /* seconds per byte of entries without a known cost: the same for all */

static int64_t bin_of(double key)
{
    return (int64_t)floor(key * BINS_PER_KEY);
}

static uint64_t *bin_at(struct skyline *sky, int64_t bin)
{
    return &sky->bytes[(uint64_t)bin & (N_BINS - 1)];
}

static bool in_ring(const struct skyline *sky, int64_t bin)
{
    return bin > sky->top - N_BINS && bin <= sky->top;
}

/* Advance the ring until it contains `bin`. The bins lost at the lower end are far below the line.
 */
static void raise_top(struct skyline *sky, int64_t bin)
{
    if (bin - sky->top >= N_BINS) {
        memset(sky->bytes, 0, sizeof sky->bytes);
        sky->top = sky->full = bin;
        sky->above = 0;
    }
    while (sky->top < bin) {
        int64_t lost = ++sky->top - N_BINS;

        if (lost >= sky->full) {
            sky->above -= *bin_at(sky, lost);
            sky->full = lost + 1;
        }
        *bin_at(sky, sky->top) = 0;
    }
}

/* Set `full` to the lowest bin such that it and all higher bins fit together. */
static void settle(struct skyline *sky, uint64_t capacity)
{
    while (sky->above > capacity)
        sky->above -= *bin_at(sky, sky->full++);
    while (in_ring(sky, sky->full - 1) && sky->above + *bin_at(sky, sky->full - 1) <= capacity)
        sky->above += *bin_at(sky, --sky->full);
    if (in_ring(sky, sky->full - 1)) /* not everything fits */
        sky->line = fmax(sky->line, (double)sky->full / BINS_PER_KEY);
}

static void sky_add(struct skyline *sky, double key, uint64_t bytes)
{
    int64_t bin = bin_of(key);

    raise_top(sky, bin);
    if (!in_ring(sky, bin))
        return;
    *bin_at(sky, bin) += bytes;
    if (bin >= sky->full)
        sky->above += bytes;
}

static void sky_remove(struct skyline *sky, double key, uint64_t bytes)
{
    int64_t bin = bin_of(key);

    if (!in_ring(sky, bin))
        return;
    *bin_at(sky, bin) -= bytes;
    if (bin >= sky->full)
        sky->above -= bytes;
}

/* The share of an entry with this key that the tier would hold: 1, 0, or between at the skyline. */
static double sky_share(struct skyline *sky, double key, uint64_t capacity)
{
    int64_t bin = bin_of(key);

    if (bin >= sky->full)
        return 1;
    if (bin < sky->full - 1 || !in_ring(sky, bin) || *bin_at(sky, bin) == 0)
        return 0;
    return (double)(capacity - sky->above) / (double)*bin_at(sky, bin);
}

/* Decay the savings by the turnovers of the tier since the last call. */
static void fade(struct tier *t)
{
    double factor;

    if (t->judged_at == t->turnovers)
        return;
    factor = exp2((t->judged_at - t->turnovers) / CONTEST_MEMORY);
    t->judged_at = t->turnovers;
    t->asked_s *= factor;
    t->asked_bytes *= factor;
    for (uint32_t order = 0; order < N_ORDERS_MAX; order++)
        t->sky[order].saved_s *= factor;
}

/* The lead that an order needs: bytes at the mean cost per byte of the uses. */
static double margin_s(const struct replace *r, const struct tier *t)
{
    double bytes = CONTEST_MARGIN * (double)t->capacity;

    if (r->is_shared && t->n_entries > 0)
        bytes = fmax(bytes, CONTEST_SHARED_LEAD * (double)t->used / t->n_entries);
    return bytes * t->asked_s / t->asked_bytes;
}

/* Credit each order with the seconds that it would have saved at this use. The order that saved
 * most takes over when it leads by the margin. */
static void judge(const struct replace *r, struct tier *t, const struct entry *e,
                  const struct place *p)
{
    double seconds = (double)e->bytes * entry_avg_cost(e);
    uint32_t best = t->order;

    fade(t);
    t->asked_s += seconds;
    t->asked_bytes += (double)e->bytes;
    for (uint32_t order = 0; order < N_ORDERS_MAX; order++) {
        t->sky[order].saved_s += seconds * sky_share(&t->sky[order], p->key[order], t->capacity);
        if (t->sky[order].saved_s > t->sky[best].saved_s)
            best = order;
    }
    if (t->sky[best].saved_s > t->sky[t->order].saved_s + margin_s(r, t)) {
        t->order = best;
        t->n_switches++;
    }
}

/* Return the time by which an entry of this cost counts as used earlier: up to a turnover where
 * another tier or instance has it, so that copies are evicted first under `recency`, too. */
static double discount(const struct entry *e, double cost)
{
    double full = entry_full_cost(e);

    return full > 0 ? KEYS_PER_TURNOVER * (1 - cost / full) : 0;
}

static void set_keys(const struct tier *t, const struct entry *e, struct place *p)
{
    double weight = p->score + CONTEST_PRIOR / (1.0 + e->depth);
    double cost = fmax(entry_avg_cost(e), COST_MIN);
    double mean = t->asked_s > 0 ? t->asked_s / t->asked_bytes : cost;

    p->key[ORDER_WORTH] = log2(weight * cost) + t->turnovers / CONTEST_HALF_LIFE;
    p->key[ORDER_CLOCK] = t->sky[ORDER_CLOCK].line + fmin(e->n_uses * cost / mean, CLOCK_USES_MAX);
    p->key[ORDER_RECENCY] = KEYS_PER_TURNOVER * t->turnovers - discount(e, entry_avg_cost(e));
}

void contest_accessed(struct replace *r, uint32_t tier, uint32_t id, bool was_known)
{
    struct tier *t = &r->tiers[tier];
    struct entry *e = &r->entries[id];
    struct place *p = place_of(r, tier, id);

    if (was_known && e->is_counted)
        judge(r, t, e, p);
    contest_forget(r, tier, id);
    p->score = p->score * exp2((p->scored_at - t->turnovers) / CONTEST_HALF_LIFE) + 1;
    p->scored_at = t->turnovers;
    set_keys(t, e, p);
}

void contest_repriced(struct replace *r, uint32_t tier, uint32_t id, double was)
{
    const struct tier *t = &r->tiers[tier];
    const struct entry *e = &r->entries[id];
    struct place *p = place_of(r, tier, id);
    double old = fmax(was, COST_MIN), cost = fmax(entry_avg_cost(e), COST_MIN);
    double mean = t->asked_s > 0 ? t->asked_s / t->asked_bytes : fmax(old, cost);

    contest_forget(r, tier, id);
    p->key[ORDER_WORTH] += log2(cost / old);
    p->key[ORDER_CLOCK] += fmin(e->n_uses * cost / mean, CLOCK_USES_MAX) -
                           fmin(e->n_uses * old / mean, CLOCK_USES_MAX);
    p->key[ORDER_RECENCY] += discount(e, was) - discount(e, entry_avg_cost(e));
    contest_know(r, tier, id);
}

void contest_entered(struct replace *r, uint32_t tier, uint32_t id)
{
    struct tier *t = &r->tiers[tier];
    struct place *p = place_of(r, tier, id);

    /* Before a turnover no use says much: paths of several spans say that documents are in use. */
    if (r->is_shared && r->entries[id].depth >= CONTEST_SHARED_DEPTH && t->turnovers < 1 &&
        t->n_switches == 0)
        t->order = ORDER_WORTH;
    p->scored_at = t->turnovers;
    set_keys(t, &r->entries[id], p);
    contest_know(r, tier, id);
}

void contest_know(struct replace *r, uint32_t tier, uint32_t id)
{
    struct tier *t = &r->tiers[tier];
    const struct entry *e = &r->entries[id];

    for (uint32_t order = 0; order < N_ORDERS_MAX; order++) {
        if (e->is_counted)
            sky_add(&t->sky[order], place_of(r, tier, id)->key[order], e->bytes);
        settle(&t->sky[order], t->capacity);
    }
}

void contest_forget(struct replace *r, uint32_t tier, uint32_t id)
{
    const struct place *p = place_of(r, tier, id);

    for (uint32_t order = 0; r->entries[id].is_counted && order < N_ORDERS_MAX; order++)
        sky_remove(&r->tiers[tier].sky[order], p->key[order], r->entries[id].bytes);
}

void contest_demoted(struct replace *r, uint32_t tier, uint32_t id)
{
    struct tier *t = &r->tiers[tier];

    contest_forget(r, tier, id);
    for (uint32_t order = 0; order < N_ORDERS_MAX; order++)
        settle(&t->sky[order], t->capacity);
}

/* Recount the bytes of known entries whose keys lie in the ring; *above: from bin `full` on. */
static uint64_t count_known(const struct replace *r, uint32_t tier, uint32_t order, uint64_t *above)
{
    const struct skyline *sky = &r->tiers[tier].sky[order];
    uint64_t n_bytes = 0;

    *above = 0;
    for (uint32_t id = 0; id < r->n_entries_max; id++) {
        int64_t bin = bin_of(place_of(r, tier, id)->key[order]);

        if (!r->entries[id].known || !r->entries[id].is_counted || !in_ring(sky, bin))
            continue;
        n_bytes += r->entries[id].bytes;
        *above += bin >= sky->full ? r->entries[id].bytes : 0;
    }
    return n_bytes;
}

void contest_check(const struct replace *r, uint32_t tier)
{
    const struct tier *t = &r->tiers[tier];

    for (uint32_t order = 0; order < N_ORDERS_MAX; order++) {
        const struct skyline *sky = &t->sky[order];
        uint64_t above, n_bytes = 0;

        for (uint32_t i = 0; i < N_BINS; i++)
            n_bytes += sky->bytes[i];
        ASSERT(n_bytes == count_known(r, tier, order, &above));
        ASSERT(above == sky->above && above <= t->capacity);
        ASSERT(!in_ring(sky, sky->full - 1) ||
               above + sky->bytes[(uint64_t)(sky->full - 1) & (N_BINS - 1)] > t->capacity);
        ASSERT(sky->full > sky->top - N_BINS && sky->full <= sky->top + 1);
    }
}
