/* elastic.h - the degree of parallelism of waiting prefills: which requests form a batch, and how
 * many instances compute it.
 *
 * TokenLake's stateless elastic scheduling (arXiv 2508.17219): requests are sorted by context
 * length; a batch is a run of neighbours; f(i, k) is the least sum of latencies of the first i
 * requests on k instances:
 *     f(i, k) = min over j < i, l < k of f(j, l) + (i - j) T(j+1..i, k - l),
 * where a batch may not take longer than its shortest SLO. When no plan keeps the SLOs, the plan is
 * made without them. (The print has T >= SLO and j < l, which are taken for misprints.)
 *
 * Owns    nothing outside of a call.
 * Thread  any.
 * Errors  ERR_NOMEM.
 * Units   seconds. O(requests^2 * instances^2) calls of `seconds`, at most
 *         requests^2 / 2 * instances different ones. */
#ifndef TARN_CACHE_BALANCE_ELASTIC_H
#define TARN_CACHE_BALANCE_ELASTIC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct elastic_problem {
    uint32_t n_requests, n_instances; /* n_instances above 0 */
    /* Time of a batch of requests [first, end) on n instances. */
    double (*seconds)(const void *arg, uint32_t first, uint32_t end, uint32_t n);
    const void *arg;
    const double *slo_s; /* [n_requests]; NULL: none */
};

struct elastic_batch {
    uint32_t first, end; /* requests */
    uint32_t n_instances;
};

/* Fill batches [n_requests] and *n; *sum_s is the sum of latencies; *keeps_slo: every batch does.
 * */
NODISCARD enum status elastic_plan(const struct elastic_problem *p, struct elastic_batch *batches,
                                   uint32_t *n, double *sum_s, bool *keeps_slo);

#endif
