/* queries.h - attention of a step in which some sequences send queries to other instances.
 *
 * Some segments of such a sequence lie on another instance (batch.h). In each layer the rows' Q is
 * sent there; meanwhile attention to the other sequences and the tiles of the local segments are
 * computed here. The answer is one unmerged tile per remote segment. All tiles are merged in the
 * order of the segments, as attention() does on one instance, so the rows have the same bits
 * (promise P1).
 *
 *     wave:  query, query, ...  | attention() of the others | attention_tiles() | answer, merge ...
 *
 * A wave has at most one piece of each sequence: as many rows as a query may have, and as the tiles
 * of the wave have room for. Further rows follow in further waves.
 *
 * A query that fails costs only its own sequence: the rows are zeros in this layer and all later
 * ones, and no more queries are sent for them in this step.
 *
 * Owns    the memory for tiles, at most QUERIES_TILE_BYTES, and its tables.
 * Thread  the engine thread.
 * Errors  queries_create(): ERR_NOMEM; ERR_UNSUPPORTED where the device has no tiles or its memory
 *         is not the host's. queries_attention(): errors of the device.
 * Units   rows, segments. */
#ifndef TARN_ENGINE_RUN_QUERIES_H
#define TARN_ENGINE_RUN_QUERIES_H

#include "engine/run/batch.h"

/* A sequence with more local segments than tiles of one row have room for here loses its query. */
#define QUERIES_TILE_BYTES (16u << 20)

/* The calls of cache.h; tests have their own. */
struct query_calls {
    uint32_t (*rows_max)(const struct cache_seq *s); /* of one query; 0: the sequence cannot */
    enum status (*query)(struct cache_seq *s, uint32_t layer, const float *q, size_t q_stride,
                         uint32_t n_rows);
    enum status (*answer)(struct cache_seq *s, const float **tiles); /* [n_remote] */
};

struct queries_config {
    struct device *device;
    const struct ops *ops;
    const struct query_calls *calls;
    uint32_t n_heads, head_dim;
    uint32_t n_seqs_max;
};

struct queries;

NODISCARD enum status queries_create(struct queries **out, const struct queries_config *config);
void queries_destroy(struct queries *q); /* NULL is fine */

/* Begin a step with n_queries > 0. The batch must stay until the step is over. */
void queries_begin(struct queries *q, struct batch *b);
/* Attention of one layer, in place of ops->attention(); arg is the struct queries. */
NODISCARD enum status queries_attention(void *arg, const struct attention_params *p);

#endif
