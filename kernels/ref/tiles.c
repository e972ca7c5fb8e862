/* tiles.c - reference: attention in tiles that are merged later, in double but for the tiles. */
#include <math.h>

#include "base/check.h"
#include "kernels/pack.h"
#include "kernels/ref/ref.h"

static double score_of(const struct attention_params *p, const struct attn_segment *seg,
                       const float *q, uint32_t key, uint32_t kv_head)
{
    const void *k = kv_at(&p->pool, p->blocks[seg->block0 + key / p->pool.layout.block_tokens],
                          p->layer, 0, kv_head);
    uint32_t offset = key % p->pool.layout.block_tokens;
    double sum = 0;

    for (uint32_t i = 0; i < p->pool.head_dim; i++)
        sum += (double)q[i] * kv_load(&p->pool, k, 0, i, offset);
    return sum * p->scale;
}

/* The tile of one query over the first n_keys of a segment. */
static void one_tile(const struct attention_params *p, const struct attn_segment *seg,
                     const float *q, uint32_t n_keys, uint32_t kv_head, float *tile)
{
    double score[KV_SEGMENT_TOKENS_MAX], max = -INFINITY, total = 0;
    uint32_t dim = p->pool.head_dim, per_block = p->pool.layout.block_tokens;

    ASSERT(n_keys <= KV_SEGMENT_TOKENS_MAX);
    for (uint32_t j = 0; j < n_keys; j++) {
        score[j] = score_of(p, seg, q, j, kv_head);
        max = score[j] > max ? score[j] : max;
    }
    for (uint32_t j = 0; j < n_keys; j++)
        total += score[j] = exp(score[j] - max);
    for (uint32_t i = 0; i < dim; i++) {
        double sum = 0;

        for (uint32_t j = 0; j < n_keys; j++) {
            const void *v =
                kv_at(&p->pool, p->blocks[seg->block0 + j / per_block], p->layer, 1, kv_head);

            sum += score[j] * kv_load(&p->pool, v, 1, i, j % per_block);
        }
        tile[i] = (float)sum;
    }
    tile[dim] = (float)max;
    tile[dim + 1] = (float)total;
}

static float *seq_tiles(const struct attention_params *p, const struct attn_seq *seq, float *out)
{
    uint32_t dim = p->pool.head_dim, n_shared = p->n_heads / p->pool.n_kv_heads;

    for (uint32_t s = 0; s < seq->n_segs; s++)
        for (uint32_t row = 0; row < seq->n_rows; row++)
            for (uint32_t h = 0; h < p->n_heads; h++, out += dim + 2) {
                const struct attn_segment *seg = &p->segments[seq->seg0 + s];
                uint32_t end = seq->pos0 + row + 1, n = end > seg->pos0 ? end - seg->pos0 : 0;

                one_tile(p, seg, p->q + (seq->row0 + row) * p->q_stride + (size_t)h * dim,
                         n < seg->n_tokens ? n : seg->n_tokens, h / n_shared, out);
            }
    return out;
}

enum status ref_attention_tiles(struct device *d, struct stream *s,
                                const struct attention_params *p)
{
    float *out = p->out;

    (void)d;
    (void)s;
    if (p->window > 0 || p->soft_cap > 0 || p->bidirectional)
        return ERR_UNSUPPORTED;
    for (uint32_t i = 0; i < p->n_seqs; i++)
        out = seq_tiles(p, &p->seqs[i], out);
    return OK;
}

static void merge_head(const struct merge_tiles_params *p, size_t at)
{
    float *out = p->out + at * p->head_dim;
    uint32_t dim = p->head_dim;
    double max = -INFINITY, total = 0;

    at *= dim + 2;
    for (uint32_t i = 0; i < p->n_parts; i++)
        if (p->parts[i][at + dim + 1] != 0)
            max = fmax(max, p->parts[i][at + dim]);
    for (uint32_t i = 0; i < p->n_parts; i++)
        if (p->parts[i][at + dim + 1] != 0)
            total += p->parts[i][at + dim + 1] * exp(p->parts[i][at + dim] - max);
    for (uint32_t k = 0; k < dim; k++) {
        double sum = 0;

        for (uint32_t i = 0; i < p->n_parts; i++)
            if (p->parts[i][at + dim + 1] != 0)
                sum += exp(p->parts[i][at + dim] - max) * p->parts[i][at + k];
        out[k] = total != 0 ? (float)(sum / total) : 0;
    }
}

enum status ref_merge_tiles(struct device *d, struct stream *s, const struct merge_tiles_params *p)
{
    (void)d;
    (void)s;
    for (size_t at = 0; at < (size_t)p->n_rows * p->n_heads; at++)
        merge_head(p, at);
    return OK;
}
