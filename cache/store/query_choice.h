/* query_choice.h - decides how a sequence uses KV that lies on another instance only: read the KV
 * ("pull"), send queries to it, or compute it here. A pure function.
 *
 * TokenLake (Wu et al., "TokenLake: A Unified Segment-level Prefix Cache Pool for Fine-grained
 * Elastic Long-Context LLM Serving", 2025) sends queries, and always. Here the expected times of
 * the three ways are compared:
 *
 *   pull     latency + n_bytes / rate + evict_s
 *   query    n_layers * ((c + o) * t + (r - c) * row_bytes / rate) + lost_s
 *   compute  compute_s
 *
 * r rows of the prompt are left behind the KV, and go out in c = r / n_rows_max queries per layer,
 * rounded up; o rows follow, one for each token of the output. t is the measured time of a query,
 * or at first latency + row_bytes / rate. Attention itself takes as long here as there, and is left
 * out. Queries and pull cost equal bytes after n_bytes / (n_layers * row_bytes) rows: with 16 heads
 * and 8 KV heads of 64 floats, and one segment of 256 tokens, a row takes 8,320 bytes per layer,
 * the KV 1.05 MB, and both are equal after 126 rows.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   seconds, bytes, rows. */
#ifndef TARN_CACHE_STORE_QUERY_CHOICE_H
#define TARN_CACHE_STORE_QUERY_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

struct query_costs {
    double n_bytes;     /* of the KV */
    double latency_s;   /* of a read */
    double bytes_per_s; /* of reads from the peer; 0: not measured yet */
    double evict_s;     /* what evicting blocks here for the KV is expected to cost */
    double query_s;     /* t, measured; 0: not yet */
    double row_bytes;   /* of a row in one layer: its query, and one tile for each segment */
    uint32_t n_layers;
    uint32_t n_prompt_rows; /* r */
    uint32_t n_output_rows; /* o */
    uint32_t n_rows_max;    /* of one query, > 0 */
    double lost_s;    /* computing the sequence's own KV again in its session's next request: with
                      queries it does not stay here */
    double compute_s; /* computing the KV here; INFINITY: not known */
};

struct query_times {
    double pull_s, query_s; /* INFINITY: not known */
};
void query_expected_times(const struct query_costs *c, struct query_times *out);
/* Whether queries are expected to take less time than both other ways. False while the rate is not
 * known: the first pull measures it. */
bool query_is_best(const struct query_costs *c);

#endif
