/* attention.c - reference: a plain softmax in double over all visible keys. It has no tiles, so
 * it also checks how the fast kernels merge theirs. */
#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "kernels/pack.h"
#include "kernels/ref/ref.h"

#define NO_BLOCK UINT32_MAX

/* Find the key at `pos`: returns its block and sets the offset inside. NO_BLOCK: no segment has
 * it. */
static uint32_t find_block(const struct attention_params *p, const struct attn_seq *seq,
                           uint32_t pos, uint32_t *offset)
{
    for (uint32_t i = 0; i < seq->n_segs; i++) {
        const struct attn_segment *seg = &p->segments[seq->seg0 + i];

        if (pos < seg->pos0 || pos - seg->pos0 >= seg->n_tokens)
            continue;
        *offset = (pos - seg->pos0) % p->pool.layout.block_tokens;
        return p->blocks[seg->block0 + (pos - seg->pos0) / p->pool.layout.block_tokens];
    }
    return NO_BLOCK;
}

static double dot_key(const struct attention_params *p, const float *q, const void *k,
                      uint32_t offset)
{
    double sum = 0;

    for (uint32_t i = 0; i < p->pool.head_dim; i++)
        sum += (double)q[i] * kv_load(&p->pool, k, 0, i, offset);
    sum *= p->scale;
    return p->soft_cap > 0 ? p->soft_cap * tanh(sum / p->soft_cap) : sum;
}

/* Number of keys up to the last one that a row sees. */
static uint32_t keys_end(const struct attention_params *p, const struct attn_seq *seq, uint32_t row)
{
    return seq->pos0 + (p->bidirectional ? seq->n_rows : row + 1);
}

/* Position of the first key that the row at `pos` sees. */
static uint32_t first_key(const struct attention_params *p, uint32_t pos)
{
    return p->window > 0 && pos + 1 > p->window ? pos + 1 - p->window : 0;
}

static void one_head(const struct attention_params *p, const struct attn_seq *seq, uint32_t row,
                     uint32_t h, double *score /* [n_keys] */)
{
    uint32_t dim = p->pool.head_dim;
    uint32_t g = h / (p->n_heads / p->pool.n_kv_heads);
    uint32_t n_keys = keys_end(p, seq, row), first = first_key(p, seq->pos0 + row);
    const float *q = p->q + (seq->row0 + row) * p->q_stride + (size_t)h * dim;
    float *out = p->out + ((size_t)(seq->row0 + row) * p->n_heads + h) * dim;
    double max = -INFINITY, total = 0;
    uint32_t off;

    for (uint32_t j = first; j < n_keys; j++) {
        uint32_t block = find_block(p, seq, j, &off);

        score[j] = block == NO_BLOCK ? -INFINITY
                                     : dot_key(p, q, kv_at(&p->pool, block, p->layer, 0, g), off);
        max = score[j] > max ? score[j] : max;
    }
    for (uint32_t j = first; j < n_keys; j++) {
        score[j] = score[j] == -INFINITY ? 0 : exp(score[j] - max);
        total += score[j];
    }
    for (uint32_t i = 0; i < dim; i++) {
        double sum = 0;

        for (uint32_t j = first; j < n_keys; j++) {
            uint32_t block = find_block(p, seq, j, &off);

            if (block == NO_BLOCK)
                continue;
            const void *v = kv_at(&p->pool, block, p->layer, 1, g);

            sum += score[j] * kv_load(&p->pool, v, 1, i, off);
        }
        out[i] = total == 0 ? 0 : (float)(sum / total);
    }
    if (p->lse)
        p->lse[(size_t)(seq->row0 + row) * p->n_heads + h] =
            total == 0 ? -INFINITY : (float)(max + log(total));
}

enum status ref_attention(struct device *d, struct stream *s, const struct attention_params *p)
{
    (void)d;
    (void)s;
    ASSERT(p->n_heads % p->pool.n_kv_heads == 0 && !(p->bidirectional && p->window));
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct attn_seq *seq = &p->seqs[i];
        double *score = malloc(((size_t)seq->pos0 + seq->n_rows + 1) * sizeof(*score));

        if (!score)
            return ERR_NOMEM;
        for (uint32_t row = 0; row < seq->n_rows; row++)
            for (uint32_t h = 0; h < p->n_heads; h++)
                one_head(p, seq, row, h, score);
        free(score);
    }
    return OK;
}
