/* matching.h - assigns rows to columns so that the sum of their gains is largest.
 *
 * The Hungarian method with shortest augmenting paths (Jonker and Volgenant, "A shortest augmenting
 * path algorithm for dense and sparse linear assignment problems", 1987). A pool dispatches with
 * it: rows are the batches of a step, each as often as its degree of parallelism; columns are the
 * instances; the gain is the traffic that an assignment saves (TokenLake, arXiv 2508.17219, calls
 * it bipartite matching).
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   gain: of the caller's choice, any sign. O(rows^2 * columns). */
#ifndef TARN_CACHE_BALANCE_MATCHING_H
#define TARN_CACHE_BALANCE_MATCHING_H

#include <stdint.h>

#define MATCHING_MAX 64u

/* gain [n_rows][n_columns], n_rows <= n_columns <= MATCHING_MAX. Fill column [n_rows], all
 * different; returns the sum of gains. */
double matching_best(const double *gain, uint32_t n_rows, uint32_t n_columns, uint32_t *column);

/* Batches that need several instances each: gain [n_batches][n_instances], n_each [n_batches] of
 * sum <= n_instances. Fill batch_of [n_instances] with the batch that an instance works for;
 * UINT32_MAX: none. */
double matching_dispatch(const double *gain, const uint32_t *n_each, uint32_t n_batches,
                         uint32_t n_instances, uint32_t *batch_of);

#endif
