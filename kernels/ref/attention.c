/* attention.c - reference: a plain softmax in double over all visible keys. It has no tiles, so
 * it also checks how the fast kernels merge theirs. */
#include <math.h>
#include <stdbool.h>
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

/* The keys and values of one KV head that some row of a sequence sees, as floats: from position
 * `first` on. They are read once for all rows. */
struct seen {
    uint32_t first, n;
    float *k, *v;   /* [n][head_dim] */
    bool *is_there; /* [n] */
};

static void load_seen(const struct attention_params *p, const struct attn_seq *seq, uint32_t g,
                      const struct seen *seen)
{
    uint32_t dim = p->pool.head_dim, off;

    for (uint32_t j = 0; j < seen->n; j++) {
        uint32_t block = find_block(p, seq, seen->first + j, &off);

        seen->is_there[j] = block != NO_BLOCK;
        for (uint32_t i = 0; block != NO_BLOCK && i < dim; i++) {
            seen->k[(size_t)j * dim + i] =
                kv_load(&p->pool, kv_at(&p->pool, block, p->layer, 0, g), 0, i, off);
            seen->v[(size_t)j * dim + i] =
                kv_load(&p->pool, kv_at(&p->pool, block, p->layer, 1, g), 1, i, off);
        }
    }
}

static double dot_key(const struct attention_params *p, const float *q, const float *k)
{
    double sum = 0;

    for (uint32_t i = 0; i < p->pool.head_dim; i++)
        sum += (double)q[i] * k[i];
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

/* score [seen->n] */
static void one_head(const struct attention_params *p, const struct attn_seq *seq, uint32_t row,
                     uint32_t h, const struct seen *seen, double *score)
{
    uint32_t dim = p->pool.head_dim;
    uint32_t first = first_key(p, seq->pos0 + row) - seen->first;
    uint32_t n_keys = keys_end(p, seq, row) - seen->first;
    const float *q = p->q + (seq->row0 + row) * p->q_stride + (size_t)h * dim;
    float *out = p->out + ((size_t)(seq->row0 + row) * p->n_heads + h) * dim;
    double max = -INFINITY, total = 0;

    for (uint32_t j = first; j < n_keys; j++) {
        score[j] = seen->is_there[j] ? dot_key(p, q, seen->k + (size_t)j * dim) : -INFINITY;
        max = score[j] > max ? score[j] : max;
    }
    for (uint32_t j = first; j < n_keys; j++) {
        score[j] = score[j] == -INFINITY ? 0 : exp(score[j] - max);
        total += score[j];
    }
    for (uint32_t i = 0; i < dim; i++) {
        double sum = 0;

        for (uint32_t j = first; j < n_keys; j++)
            if (seen->is_there[j])
                sum += score[j] * seen->v[(size_t)j * dim + i];
        out[i] = total == 0 ? 0 : (float)(sum / total);
    }
    if (p->lse)
        p->lse[(size_t)(seq->row0 + row) * p->n_heads + h] =
            total == 0 ? -INFINITY : (float)(max + log(total));
}

static enum status one_sequence(const struct attention_params *p, const struct attn_seq *seq)
{
    uint32_t n_shared = p->n_heads / p->pool.n_kv_heads;
    uint32_t first = first_key(p, seq->pos0), n = keys_end(p, seq, seq->n_rows - 1) - first;
    size_t n_floats = (size_t)n * p->pool.head_dim;
    float *kv = malloc(2 * n_floats * sizeof *kv);
    bool *is_there = malloc(n * sizeof *is_there);
    double *score = malloc(n * sizeof *score);
    struct seen seen = {first, n, kv, kv + n_floats, is_there};
    enum status s = kv && is_there && score ? OK : ERR_NOMEM;

    for (uint32_t g = 0; s == OK && g < p->pool.n_kv_heads; g++) {
        load_seen(p, seq, g, &seen);
        for (uint32_t row = 0; row < seq->n_rows; row++)
            for (uint32_t h = g * n_shared; h < (g + 1) * n_shared; h++)
                one_head(p, seq, row, h, &seen, score);
    }
    free(kv);
    free(is_there);
    free(score);
    return s;
}

enum status ref_attention(struct device *d, struct stream *s, const struct attention_params *p)
{
    enum status done = OK;

    (void)d;
    (void)s;
    ASSERT(p->n_heads % p->pool.n_kv_heads == 0 && !(p->bidirectional && p->window));
    for (uint32_t i = 0; done == OK && i < p->n_seqs; i++)
        if (p->seqs[i].n_rows > 0)
            done = one_sequence(p, &p->seqs[i]);
    return done;
}
