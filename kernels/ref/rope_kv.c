/* rope_kv.c - reference: rotate Q in place, rotate K and write it to the cache, write V to the
 * cache. */
#include "base/check.h"
#include "kernels/pack.h"
#include "kernels/ref/ref.h"

#define HEAD_DIM_MAX 1024

/* Element i of a head after rotation. Pairs are (i, i + r/2); dimensions from r on stay as they
 * are. */
static float rotated(const float *x, uint32_t i, uint32_t r, const float *cos_sin)
{
    uint32_t half = r / 2;

    if (i >= r)
        return x[i];
    double c = cos_sin[i % half];
    double s = cos_sin[half + i % half];
    return (float)(i < half ? x[i] * c - x[i + half] * s : x[i] * c + x[i - half] * s);
}

static void rotate_q(const struct rope_kv_params *p, float *q, const float *cos_sin)
{
    uint32_t half = p->rot_dim / 2;

    for (uint32_t i = 0; i < half; i++) {
        float lo = rotated(q, i, p->rot_dim, cos_sin);
        float hi = rotated(q, i + half, p->rot_dim, cos_sin);

        q[i] = lo;
        q[i + half] = hi;
    }
}

static void store_kv(const struct rope_kv_params *p, uint32_t t, const float *cos_sin)
{
    uint32_t dim = p->pool.head_dim;
    uint32_t block = p->slot_block[t];
    uint32_t off = p->slot_offset[t];

    ASSERT(block < p->pool.n_blocks && off < p->pool.layout.block_tokens && dim <= HEAD_DIM_MAX);
    for (uint32_t g = 0; g < p->pool.n_kv_heads; g++) {
        const float *k = p->k + t * p->qkv_stride + (size_t)g * dim;
        float head[HEAD_DIM_MAX];

        for (uint32_t i = 0; i < dim; i++)
            head[i] = rotated(k, i, p->rot_dim, cos_sin);
        kv_token_store(&p->pool, block, p->layer, 0, g, off, head);
        kv_token_store(&p->pool, block, p->layer, 1, g, off,
                       p->v + t * p->qkv_stride + (size_t)g * dim);
    }
}

enum status ref_rope_kv(struct device *d, struct stream *s, const struct rope_kv_params *p)
{
    (void)d;
    (void)s;
    for (uint32_t t = 0; t < p->n_rows; t++) {
        ASSERT(p->pos[t] < p->n_pos);
        const float *cos_sin = p->cos_sin + (size_t)p->pos[t] * p->rot_dim;

        for (uint32_t h = 0; h < p->n_heads; h++)
            rotate_q(p, p->q + t * p->qkv_stride + (size_t)h * p->pool.head_dim, cos_sin);
        store_kv(p, t, cos_sin);
    }
    return OK;
}
