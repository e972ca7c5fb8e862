/* heavy.h - heavy hitters: which items carry so much load that one copy is not enough, and how many
 * copies each should have.
 *
 * Load is a decayed sum: an access counts half after `half_life` ticks. With W = the load of all
 * items and N instances, the threshold is
 *     tau = W / (N c ln N),
 * and an item of load w should have min(N, ceil(w / tau)) copies. At most c N ln N items can be
 * above tau. When no copy carries more than tau, random or two-choice placement of the copies
 * leaves the fullest instance near the mean (Fan et al., "Small cache, big effect", SoCC 2011; the
 * argument of NetCache, SOSP 2017, and DistCache, FAST 2019). TokenLake (arXiv 2508.17219)
 * replicates frequent segments only; its thresholds are not published, these are ours.
 *
 * Copies are added as soon as they are due. A copy is given up only when w < tau (r - 1) / 2 with r
 * copies, so that a load near a threshold does not make copies come and go.
 *
 * A full table forgets all items below twice the mean load of its places; none of them can be heavy
 * while it has at least 2 c N ln N places.
 *
 * Owns    a table of n_items_max items.
 * Thread  one at a time.
 * Errors  ERR_NOMEM.
 * Units   load: of the caller's choice (bytes served, seconds). */
#ifndef TARN_CACHE_BALANCE_HEAVY_H
#define TARN_CACHE_BALANCE_HEAVY_H

#include <stdint.h>

#include "base/status.h"

#define HEAVY_C 4.0
#define HEAVY_HALF_LIFE 64.0

struct heavy_config {
    uint32_t n_instances;
    uint32_t n_items_max;
    double c;         /* 0: HEAVY_C */
    double half_life; /* ticks; 0: HEAVY_HALF_LIFE */
};

struct heavy_item {
    uint64_t key;
    double load;
    uint32_t n_copies; /* that it should have */
};

struct heavy;

NODISCARD enum status heavy_create(struct heavy **out, const struct heavy_config *config);
void heavy_destroy(struct heavy *h); /* NULL is fine */

/* Instances have come or gone. */
void heavy_set_instances(struct heavy *h, uint32_t n_instances);
/* Load that others count, of the same unit and decay: W includes it until the next call. */
void heavy_set_others(struct heavy *h, double load);
/* Count an access. load > 0. */
void heavy_add(struct heavy *h, uint64_t key, double load);
/* Let n ticks pass. */
void heavy_tick(struct heavy *h, double n);
void heavy_forget(struct heavy *h, uint64_t key);

double heavy_load(const struct heavy *h, uint64_t key); /* 0: unknown */
double heavy_total(const struct heavy *h);              /* without that of others */
/* tau; infinite with one instance. */
double heavy_threshold(const struct heavy *h);
/* Update the number of copies of every item, and list the items that should have more than one,
 * the heaviest first; of equals the smaller key. Returns the number written, at most n_max.
 * O(items). */
uint32_t heavy_list(struct heavy *h, struct heavy_item *out, uint32_t n_max);

#endif
