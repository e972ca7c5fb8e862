/* quota.h - splits the loads of items over copies so that the fullest instance carries as little as
 * possible.
 *
 * Each item has a home, which always holds it, and a load. An instance has n_slots places for
 * copies of items of other homes. The solver chooses which items get copies, where, and which quota
 * of its load each copy serves. Items are anything that can be copied: KV segments, or experts of a
 * mixture.
 *
 * Binary search on the largest load T, as in UltraEP (arXiv 2606.04101): a trial goes over the
 * instances above T, the fullest first, and over their items, the heaviest first, and gives the
 * excess to the instances with the most room below T and a free slot, in portions of at least
 * load_min. The search ends when the bounds are within `tolerance` of each other. A trial is greedy
 * (the exact problem is NP-hard): with 2 to 4 instances of one slot each it was 6 % above the
 * optimum on average and 41 % at worst; 256 experts on 64 instances with two slots come within 2 %
 * of the mean.
 *
 * Owns    nothing outside of a call.
 * Thread  any.
 * Errors  ERR_NOMEM.
 * Units   load: of the caller's choice. O(log(1 / tolerance) * (items log items + quotas *
 *         instances)). */
#ifndef TARN_CACHE_BALANCE_QUOTA_H
#define TARN_CACHE_BALANCE_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct quota_item {
    double load;   /* >= 0 */
    uint32_t home; /* instance */
};

struct quota {
    uint32_t item, instance;
    double load;
};

struct quota_problem {
    const struct quota_item *items; /* [n_items] */
    uint32_t n_items;
    uint32_t n_instances;
    uint32_t n_slots; /* of each instance, for copies */
    double load_min;  /* of a copy's quota: less is not worth a copy */
    double tolerance; /* 0: 0.01 */
};

/* Fill quotas [n_items + n_instances * n_slots] and *n, in the order of items; each item's home
 * comes first. *load_max is the load of the fullest instance. */
NODISCARD enum status quota_solve(const struct quota_problem *p, struct quota *quotas, uint32_t *n,
                                  double *load_max);

#endif
