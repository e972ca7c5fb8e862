#include "engine/run/batch.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

enum status batch_create(struct batch *b, uint32_t n_rows_max, uint32_t n_seqs_max,
                         uint32_t n_out_max, uint32_t n_blocks_max)
{
    *b = (struct batch){.n_rows_max = n_rows_max,
                        .n_seqs_max = n_seqs_max,
                        .n_out_max = n_out_max,
                        .n_segments_max = n_blocks_max,
                        .n_blocks_max = n_blocks_max};
    b->ids = calloc(n_rows_max, sizeof *b->ids);
    b->from = calloc(n_rows_max, sizeof *b->from);
    b->pos = calloc(n_rows_max, sizeof *b->pos);
    b->slot_block = calloc(n_rows_max, sizeof *b->slot_block);
    b->slot_offset = calloc(n_rows_max, sizeof *b->slot_offset);
    b->seqs = calloc(n_seqs_max, sizeof *b->seqs);
    b->segments = calloc(n_blocks_max, sizeof *b->segments);
    b->blocks = calloc(n_blocks_max, sizeof *b->blocks);
    b->out_rows = calloc(n_out_max, sizeof *b->out_rows);
    b->queries = calloc(n_seqs_max, sizeof *b->queries);
    b->adapter_runs = calloc(n_seqs_max, sizeof *b->adapter_runs);
    if (b->ids && b->from && b->pos && b->slot_block && b->slot_offset && b->seqs && b->segments &&
        b->blocks && b->out_rows && b->queries && b->adapter_runs)
        return OK;
    batch_destroy(b);
    return ERR_NOMEM;
}

void batch_destroy(struct batch *b)
{
    free(b->ids);
    free(b->from);
    free(b->pos);
    free(b->slot_block);
    free(b->slot_offset);
    free(b->seqs);
    free(b->segments);
    free(b->blocks);
    free(b->out_rows);
    free(b->queries);
    free(b->adapter_runs);
    *b = (struct batch){0};
}

void batch_reset(struct batch *b)
{
    b->n_rows = b->n_seqs = b->n_segments = b->n_blocks = b->n_out = 0;
    b->seq_rows_most = b->seq_segments_most = b->n_queries = b->n_adapter_runs = 0;
}

/* Begin a sequence of n_segments segments, which the caller appends. */
static void begin_seq(struct batch *b, uint32_t pos0, uint32_t n, uint32_t n_out,
                      uint32_t n_segments, uint32_t n_blocks)
{
    ASSERT(n >= 1 && n_out <= n);
    ASSERT(b->n_rows + n <= b->n_rows_max && b->n_seqs < b->n_seqs_max);
    ASSERT(b->n_segments + n_segments <= b->n_segments_max);
    ASSERT(b->n_blocks + n_blocks <= b->n_blocks_max && b->n_out + n_out <= b->n_out_max);

    b->seqs[b->n_seqs++] = (struct attn_seq){b->n_rows, n, pos0, b->n_segments, n_segments};
    if (n > b->seq_rows_most)
        b->seq_rows_most = n;
    if (n_segments > b->seq_segments_most)
        b->seq_segments_most = n_segments;
}

void batch_add_query(struct batch *b, struct cache_seq *kv, uint32_t remote0, uint32_t n_remote)
{
    ASSERT(b->n_seqs > 0 && remote0 + n_remote <= b->seqs[b->n_seqs - 1].n_segs);
    b->queries[b->n_queries++] = (struct batch_query){
        .kv = kv, .seq = b->n_seqs - 1, .remote0 = remote0, .n_remote = n_remote};
}

void batch_follow(struct batch *b, uint32_t from)
{
    ASSERT(b->n_rows > 0 && from < b->n_out_max);
    b->from[b->n_rows - 1] = from;
}

void batch_adapt(struct batch *b, const struct adapter *adapter)
{
    const struct attn_seq *q = &b->seqs[b->n_seqs - 1];
    struct adapter_run *last = b->n_adapter_runs ? &b->adapter_runs[b->n_adapter_runs - 1] : NULL;

    ASSERT(b->n_seqs > 0);
    if (last && last->adapter == adapter && last->row0 + last->n_rows == q->row0)
        last->n_rows += q->n_rows;
    else
        b->adapter_runs[b->n_adapter_runs++] =
            (struct adapter_run){.row0 = q->row0, .n_rows = q->n_rows, .adapter = adapter};
}

void batch_want(struct batch *b, uint32_t row)
{
    ASSERT(row < b->n_rows && b->n_out < b->n_out_max);
    b->out_rows[b->n_out++] = row;
}

bool batch_has_failed(const struct batch *b, uint32_t seq)
{
    for (uint32_t i = 0; i < b->n_queries; i++)
        if (b->queries[i].seq == seq)
            return b->queries[i].failed;
    return false;
}

void batch_add(struct batch *b, struct cache_seq *seq, const uint32_t *ids, uint32_t pos0,
               uint32_t n, uint32_t n_out)
{
    struct cache_view view;

    cache_seq_view(seq, &view);
    ASSERT(pos0 + n == view.n_slots);
    begin_seq(b, pos0, n, n_out, view.n_segments, view.n_blocks);
    for (uint32_t i = 0; i < view.n_segments; i++) {
        struct attn_segment s = view.segments[i];
        s.block0 += b->n_blocks;
        b->segments[b->n_segments++] = s;
    }
    memcpy(b->blocks + b->n_blocks, view.blocks, view.n_blocks * sizeof *b->blocks);
    b->n_blocks += view.n_blocks;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = b->n_rows++;
        b->ids[row] = ids[i];
        b->from[row] = BATCH_KNOWN;
        b->pos[row] = pos0 + i;
        cache_seq_slot(seq, pos0 + i, &b->slot_block[row], &b->slot_offset[row]);
        if (i >= n - n_out)
            b->out_rows[b->n_out++] = row;
    }
    if (view.n_remote > 0)
        batch_add_query(b, seq, view.remote0, view.n_remote);
}

void batch_add_blocks(struct batch *b, uint32_t block0, uint32_t segment_tokens,
                      const uint32_t *ids, uint32_t pos0, uint32_t n, uint32_t n_out)
{
    uint32_t n_tokens = pos0 + n, first = b->n_blocks;
    uint32_t n_blocks = (n_tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;

    begin_seq(b, pos0, n, n_out, (n_tokens + segment_tokens - 1) / segment_tokens, n_blocks);
    for (uint32_t pos = 0; pos < n_tokens; pos += segment_tokens) {
        uint32_t left = n_tokens - pos;
        b->segments[b->n_segments++] = (struct attn_segment){
            pos, left < segment_tokens ? left : segment_tokens, first + pos / KV_BLOCK_TOKENS};
    }
    for (uint32_t i = 0; i < n_blocks; i++)
        b->blocks[b->n_blocks++] = block0 + i;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = b->n_rows++;
        if (ids)
            b->ids[row] = ids[i];
        b->from[row] = BATCH_KNOWN;
        b->pos[row] = pos0 + i;
        b->slot_block[row] = block0 + (pos0 + i) / KV_BLOCK_TOKENS;
        b->slot_offset[row] = (pos0 + i) % KV_BLOCK_TOKENS;
        if (i >= n - n_out)
            b->out_rows[b->n_out++] = row;
    }
}
