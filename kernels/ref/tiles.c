/* tiles.c - reference: attention in tiles that are merged later, in double but for the tiles. */
#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "kernels/pack.h"
#include "kernels/ref/ref.h"

/* k, v [n_keys][head_dim]: the keys and values of one KV head of a segment, as floats. */
static void load_segment(const struct attention_params *p, const struct attn_segment *seg,
                         uint32_t kv_head, uint32_t n_keys, float *k, float *v)
{
    uint32_t dim = p->pool.head_dim, per_block = p->pool.layout.block_tokens;

    for (uint32_t j = 0; j < n_keys; j++) {
        uint32_t block = p->blocks[seg->block0 + j / per_block];

        for (uint32_t i = 0; i < dim; i++) {
            *k++ = kv_load(&p->pool, kv_at(&p->pool, block, p->layer, 0, kv_head), 0, i,
                           j % per_block);
            *v++ = kv_load(&p->pool, kv_at(&p->pool, block, p->layer, 1, kv_head), 1, i,
                           j % per_block);
        }
    }
}

static double score_of(const struct attention_params *p, const float *q, const float *k)
{
    double sum = 0;

    for (uint32_t i = 0; i < p->pool.head_dim; i++)
        sum += (double)q[i] * k[i];
    return sum * p->scale;
}

/* The tile of one query over the first n_keys of a segment. */
static void one_tile(const struct attention_params *p, const float *q, uint32_t n_keys,
                     const float *k, const float *v, float *tile)
{
    double score[KV_SEGMENT_TOKENS_MAX], max = -INFINITY, total = 0;
    uint32_t dim = p->pool.head_dim;

    for (uint32_t j = 0; j < n_keys; j++) {
        score[j] = score_of(p, q, k + (size_t)j * dim);
        max = score[j] > max ? score[j] : max;
    }
    for (uint32_t j = 0; j < n_keys; j++)
        total += score[j] = exp(score[j] - max);
    for (uint32_t i = 0; i < dim; i++) {
        double sum = 0;

        for (uint32_t j = 0; j < n_keys; j++)
            sum += score[j] * v[(size_t)j * dim + i];
        tile[i] = (float)sum;
    }
    tile[dim] = (float)max;
    tile[dim + 1] = (float)total;
}

/* Number of a segment's keys that a row sees. */
static uint32_t n_seen(const struct attn_segment *seg, const struct attn_seq *seq, uint32_t row)
{
    uint32_t end = seq->pos0 + row + 1, n = end > seg->pos0 ? end - seg->pos0 : 0;

    return n < seg->n_tokens ? n : seg->n_tokens;
}

/* kv: room for the keys and values of a segment. Returns the end of the tiles. */
static float *seq_tiles(const struct attention_params *p, const struct attn_seq *seq, float *kv,
                        float *out)
{
    uint32_t dim = p->pool.head_dim, n_shared = p->n_heads / p->pool.n_kv_heads;
    float *v = kv + (size_t)KV_SEGMENT_TOKENS_MAX * dim;

    for (uint32_t s = 0; s < seq->n_segs; s++) {
        const struct attn_segment *seg = &p->segments[seq->seg0 + s];

        ASSERT(seg->n_tokens <= KV_SEGMENT_TOKENS_MAX);
        for (uint32_t g = 0; g < p->pool.n_kv_heads && seq->n_rows > 0; g++) {
            load_segment(p, seg, g, n_seen(seg, seq, seq->n_rows - 1), kv, v);
            for (uint32_t row = 0; row < seq->n_rows; row++)
                for (uint32_t h = g * n_shared; h < (g + 1) * n_shared; h++)
                    one_tile(p, p->q + (seq->row0 + row) * p->q_stride + (size_t)h * dim,
                             n_seen(seg, seq, row), kv, v,
                             out + ((size_t)row * p->n_heads + h) * (dim + 2));
        }
        out += (size_t)seq->n_rows * p->n_heads * (dim + 2);
    }
    return out;
}

enum status ref_attention_tiles(struct device *d, struct stream *s,
                                const struct attention_params *p)
{
    float *out = p->out, *kv;

    (void)d;
    (void)s;
    if (p->window > 0 || p->soft_cap > 0 || p->bidirectional)
        return ERR_UNSUPPORTED;
    kv = malloc(2 * (size_t)KV_SEGMENT_TOKENS_MAX * p->pool.head_dim * sizeof *kv);
    if (!kv)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < p->n_seqs; i++)
        out = seq_tiles(p, &p->seqs[i], kv, out);
    free(kv);
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
