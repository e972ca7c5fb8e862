/* params.h - one plain struct per op: shapes, dtypes and who may be NULL.
 *
 * Common subset of C11 and C++ (nvcc reads it too).
 *
 * Owns    nothing: every pointer is borrowed device memory for the length of the call.
 * Thread  as ops.h.
 * Errors  as ops.h.
 * Units   shapes in elements, row-major; strides in elements; tokens, not bytes.
 *
 * Shape letters: T rows (tokens) of this step, D hidden size, F feed-forward size, H query heads,
 * G KV heads (H is a multiple of G), d head size, V vocabulary, K and N of a matrix product. */
#ifndef TARN_KERNELS_PARAMS_H
#define TARN_KERNELS_PARAMS_H

#include <stddef.h>
#include <stdint.h>

/* Tokens in one KV block: unit of allocation and of identity (design: "KV block"). */
#define KV_BLOCK_TOKENS 32
/* Tokens in one segment at most: unit of attention tiles and of transfer. */
#define KV_SEGMENT_TOKENS_MAX 256
/* Output columns in one packed panel of a weight. */
#define PANEL_COLS 32

enum dtype {
    DTYPE_F32 = 0,
    DTYPE_F16 = 1,
    DTYPE_BF16 = 2,
    DTYPE_FLOATS, /* those above are numbers by themselves; the rest are weights with scales */
    DTYPE_I8 = DTYPE_FLOATS,
    DTYPE_I4,
    DTYPE_COUNT
};

static inline size_t dtype_bytes(enum dtype t) /* of a float type */
{
    return t == DTYPE_F32 ? 4 : 2;
}

/* Rows of activations whose largest magnitude is below this are quantized to zeros. */
#define QUANT_ROW_MIN 1e-30f

/* A weight [N, K] (N outputs), packed as pack.h says. */
struct weight {
    enum dtype dtype;
    uint32_t n;
    uint32_t k;
    uint32_t group;   /* elements of K that share a scale (I8, I4): 32 or 128; 0 for floats */
    const void *data; /* [ceil(N / PANEL_COLS)] panels, see pack.h */
};

/* out[t, :] = table[ids[t], :] */
struct embed_params {
    uint32_t n_rows;       /* T */
    uint32_t dim;          /* D */
    uint32_t n_vocab;      /* V; every id is below it (checked by the caller) */
    enum dtype dtype;      /* of table: F32, F16, BF16 or I8 */
    uint32_t group;        /* I8: as in struct weight */
    const void *table;     /* floats: [V, D] row-major, not packed; may lie in a mapped file, any
                              alignment of 2 (bf16, f16) or 4 (f32). I8: the packed panels of a
                              weight [V, D], which may be the output layer's */
    const uint32_t *ids;   /* [T] */
    float *out;            /* [T, D] */
};

/* out[t, i] = w[i] * x[t, i] / sqrt(mean(x[t, :]^2) + eps) */
struct rmsnorm_params {
    uint32_t n_rows;       /* T */
    uint32_t dim;          /* D */
    float eps;
    const float *x;        /* [T, D] */
    const float *w;        /* [D] */
    float *out;            /* [T, D]; may be x */
};

/* out = a * w^T + bias, or out += a * w^T + bias when accumulate is set. Each output is one chain
 * over K in ascending order, started at 0 and the same for any number of rows and threads; the
 * bias, then the old out, are added once at its end (design P1).
 *
 * With BF16 weights a device may round `a` to bf16 (nearest even) first: that is what the matrix
 * instructions take. With I8 and I4 each row of `a` is quantized by itself, to
 *   q[k] = round(a[k] * (127 / max|a|)), nearest even, in -127 .. 127, scale s = max|a| / 127
 * and the chain runs over groups, the sums inside a group being exact integers:
 *   sum = fma((float)(sum over the group of q[k] * w[n, k]), group's scale of n, sum)
 * then out = sum * s. A row with a NaN or an infinity gives NaN in all its outputs; a row with
 * max|a| < QUANT_ROW_MIN counts as zeros. */
struct gemm_params {
    uint32_t n_rows;       /* T */
    const float *a;        /* [T, K], row stride a_stride */
    size_t a_stride;
    struct weight w;       /* [N, K] */
    const struct weight *next; /* of the product after this one, to be fetched early; may be NULL */
    const float *bias;     /* [N]; may be NULL */
    int accumulate;
    float *out;            /* [T, N], row stride out_stride; never overlaps a */
    size_t out_stride;
};

/* The KV pool: [n_blocks][n_layers][2: K then V][G][...], contiguous per block. Inside one
 * (block, layer): K of a head is [d][KV_BLOCK_TOKENS], so that the scores of 32 keys fill vector
 * lanes; V of a head is [KV_BLOCK_TOKENS][d], so that a weighted sum of rows does. In BF16 both are
 * in pairs along the dimension that the product sums over, as matrix instructions want them: K
 * [ceil(d/2)][KV_BLOCK_TOKENS][2], V [KV_BLOCK_TOKENS/2][d][2]; kv_k_index() and kv_v_index() say
 * it in one place. */
struct kv_pool {
    void *base;
    enum dtype dtype;
    uint32_t n_blocks;
    uint32_t n_layers;
    uint32_t n_kv_heads;   /* G */
    uint32_t head_dim;     /* d */
};

static inline size_t kv_head_bytes(const struct kv_pool *p) /* K (or V) of a block, layer, head */
{
    size_t dim = p->dtype == DTYPE_BF16 ? ((size_t)p->head_dim + 1) / 2 * 2 : p->head_dim;

    return dim * KV_BLOCK_TOKENS * dtype_bytes(p->dtype);
}

static inline size_t kv_half_bytes(const struct kv_pool *p) /* K (or V) of one block and layer */
{
    return p->n_kv_heads * kv_head_bytes(p);
}

/* Which element of a head's K (V) is dimension i of the token at offset t of the block. */
static inline size_t kv_k_index(const struct kv_pool *p, uint32_t i, uint32_t t)
{
    if (p->dtype == DTYPE_BF16)
        return ((size_t)(i / 2) * KV_BLOCK_TOKENS + t) * 2 + i % 2;
    return (size_t)i * KV_BLOCK_TOKENS + t;
}

static inline size_t kv_v_index(const struct kv_pool *p, uint32_t i, uint32_t t)
{
    if (p->dtype == DTYPE_BF16)
        return ((size_t)(t / 2) * p->head_dim + i) * 2 + t % 2;
    return (size_t)t * p->head_dim + i;
}

static inline size_t kv_block_bytes(const struct kv_pool *p)
{
    return kv_half_bytes(p) * 2 * p->n_layers;
}

/* First byte of K (v = 0) or V (v = 1) of one block, layer and KV head. */
static inline unsigned char *kv_at(const struct kv_pool *p, uint32_t block, uint32_t layer, int v,
                                   uint32_t head)
{
    return (unsigned char *)p->base + (size_t)block * kv_block_bytes(p) +
           kv_half_bytes(p) * (2 * (size_t)layer + (v ? 1 : 0)) + head * kv_head_bytes(p);
}

/* Rotate Q in place and K on its way into the cache, write V into the cache. K and V are rounded
 * to the cache dtype (nearest even) here, before any row attends to them. Pairs are (i, i + r/2)
 * with r = rot_dim, the Hugging Face convention; dimensions from r on pass unrotated. */
struct rope_kv_params {
    uint32_t n_rows;       /* T */
    uint32_t n_heads;      /* H */
    uint32_t rot_dim;      /* r: even, at most d */
    uint32_t layer;
    float *q;              /* [T, H, d], row stride qkv_stride */
    const float *k;        /* [T, G, d], row stride qkv_stride */
    const float *v;        /* [T, G, d], row stride qkv_stride */
    size_t qkv_stride;
    const uint32_t *pos;   /* [T] position of each row in its sequence */
    const float *cos_sin;  /* [n_pos, r]: r/2 cosines, then r/2 sines, of each position */
    uint32_t n_pos;        /* every pos is below it */
    const uint32_t *slot_block;  /* [T] block that takes the row's K and V */
    const uint32_t *slot_offset; /* [T] token index inside that block, below KV_BLOCK_TOKENS */
    struct kv_pool pool;
};

/* One segment of one sequence, as attention sees it. Token i of the segment lies in
 * blocks[block0 + i / KV_BLOCK_TOKENS] at offset i % KV_BLOCK_TOKENS. */
struct attn_segment {
    uint32_t pos0;         /* position of its first token */
    uint32_t n_tokens;     /* present in the cache, this step's included; 1..KV_SEGMENT_TOKENS_MAX */
    uint32_t block0;       /* index into blocks */
};

/* Rows of one sequence: consecutive rows of the batch at consecutive positions. */
struct attn_seq {
    uint32_t row0;
    uint32_t n_rows;
    uint32_t pos0;         /* position of row0; its keys are 0..pos0 */
    uint32_t seg0;         /* index into segments */
    uint32_t n_segs;       /* they cover positions 0 .. pos0 + n_rows - 1 without a gap */
};

/* Causal attention. Tiles are whole segments: for each row and segment the visible keys' scores,
 * their maximum, exp and weighted sum over the tile in a fixed order of keys; tiles are merged in
 * segment order by log-sum-exp in fp32 (design P1; the merge is that of FlashDecoding and of
 * TokenLake's query shipping). Keys behind the row's position count exactly 0. */
struct attention_params {
    uint32_t n_seqs;
    uint32_t n_heads;      /* H */
    uint32_t layer;
    float scale;           /* usually 1 / sqrt(d) */
    const float *q;        /* [T, H, d], row stride q_stride */
    size_t q_stride;
    float *out;            /* [T, H, d], row stride H * d */
    const struct attn_seq *seqs;         /* [n_seqs] */
    const struct attn_segment *segments; /* all sequences' */
    const uint32_t *blocks;              /* all segments' block ids */
    struct kv_pool pool;
};

/* out[t, i] = silu(gu[t, i]) * gu[t, F + i], silu(x) = x / (1 + exp(-x)) */
struct silu_mul_params {
    uint32_t n_rows;       /* T */
    uint32_t dim;          /* F */
    const float *gate_up;  /* [T, 2F] */
    float *out;            /* [T, F] */
};

/* out[i, :] = x[rows[i], :] */
struct gather_params {
    uint32_t n_rows;       /* rows of out */
    uint32_t dim;
    const float *x;        /* [T, dim] */
    const uint32_t *rows;  /* [n_rows] */
    float *out;            /* [n_rows, dim]; does not overlap x */
};

#endif
