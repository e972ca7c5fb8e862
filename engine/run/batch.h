/* batch.h - the flat arrays of one step: its tokens, the slots of their KV, the rows with logits.
 *
 * Owns    its arrays, sized once.
 * Thread  engine thread only.
 * Errors  batch_create(): ERR_NOMEM. Adding more than the capacity is a bug (ASSERT): the
 *         scheduler's plan keeps to it.
 * Units   rows (one token each). */
#ifndef TARN_ENGINE_RUN_BATCH_H
#define TARN_ENGINE_RUN_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/cache.h"
#include "engine/model/adapter.h"

/* A sequence of the step that sends queries: some of its segments lie on another instance. */
struct batch_query {
    struct cache_seq *kv;
    uint32_t seq;               /* index in batch.seqs */
    uint32_t remote0, n_remote; /* of its segments: those on the other instance */
    bool failed;                /* by forward_run(): a query failed, and the rows mean nothing */
};

#define BATCH_KNOWN UINT32_MAX

struct batch {
    uint32_t n_rows, n_rows_max;
    uint32_t *ids;         /* [n_rows] */
    uint32_t *from;        /* [n_rows] place of the row's id among those that the device picked
                              last, while ids has another one; BATCH_KNOWN: it is in ids */
    uint32_t *pos;         /* [n_rows] */
    uint32_t *slot_block;  /* [n_rows] */
    uint32_t *slot_offset; /* [n_rows] */
    uint32_t n_seqs, n_seqs_max;
    struct attn_seq *seqs; /* [n_seqs] */
    uint32_t n_segments, n_segments_max;
    struct attn_segment *segments;
    uint32_t n_blocks, n_blocks_max;
    uint32_t *blocks;
    uint32_t n_out, n_out_max;
    uint32_t *out_rows;               /* [n_out] rows whose logits are wanted */
    uint32_t seq_rows_most;           /* rows of the sequence that has most */
    uint32_t seq_segments_most;       /* segments of the sequence that has most */
    uint32_t n_queries;               /* at most n_seqs_max */
    struct batch_query *queries;      /* [n_queries] in ascending order of seq */
    uint32_t n_adapter_runs;          /* at most n_seqs_max */
    struct adapter_run *adapter_runs; /* [n_adapter_runs] in ascending order of rows */
};

/* Allocate the arrays. n_blocks_max bounds the blocks of all sequences of a step together. */
NODISCARD enum status batch_create(struct batch *b, uint32_t n_rows_max, uint32_t n_seqs_max,
                                   uint32_t n_out_max, uint32_t n_blocks_max);
void batch_destroy(struct batch *b);
void batch_reset(struct batch *b);

/* Append rows for the ids at positions [pos0, pos0 + n) of a sequence whose slots are grown to
 * pos0 + n. The last n_out rows want logits. */
void batch_add(struct batch *b, struct cache_seq *seq, const uint32_t *ids, uint32_t pos0,
               uint32_t n, uint32_t n_out);
/* The id of the row that was added last is the one that the device picked in row `from` of the step
 * before: forward_follow(). */
void batch_follow(struct batch *b, uint32_t from);
/* The rows of the sequence that was added last have this adapter. Neighbours with the same adapter
 * share a run. */
void batch_adapt(struct batch *b, const struct adapter *adapter);
/* Have the logits of one more row, behind those of the rows before. */
void batch_want(struct batch *b, uint32_t row);
/* Segments [remote0, remote0 + n_remote) of the sequence that was added last lie on another
 * instance; kv sends the queries. Their blocks are not read. batch_add() calls it. */
void batch_add_query(struct batch *b, struct cache_seq *kv, uint32_t remote0, uint32_t n_remote);
/* Whether sequence seq of the batch lost a query in forward_run(). */
bool batch_has_failed(const struct batch *b, uint32_t seq);

/* The same for a sequence without a cache: token i of its KV lies in block block0 + i /
 * KV_BLOCK_TOKENS of the pool, and a segment has segment_tokens. ids NULL: the caller sets
 * b->ids. */
void batch_add_blocks(struct batch *b, uint32_t block0, uint32_t segment_tokens,
                      const uint32_t *ids, uint32_t pos0, uint32_t n, uint32_t n_out);

#endif
