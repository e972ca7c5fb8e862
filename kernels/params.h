/* params.h - one plain struct per op: shapes, dtypes and which pointers may be NULL.
 *
 * Common subset of C11 and C++ (nvcc reads it too).
 *
 * Owns    nothing: every pointer is device memory borrowed for the duration of the call.
 * Thread  as ops.h.
 * Errors  as ops.h.
 * Units   shapes in elements, row-major; strides in elements; tokens, not bytes.
 *
 * Shape letters: T rows (tokens) of this step, D hidden size, F feed-forward size, H query heads, G
 * KV heads (H is a multiple of G), d head size, V vocabulary, K and N of a matrix product. */
#ifndef TARN_KERNELS_PARAMS_H
#define TARN_KERNELS_PARAMS_H

#include "kernels/dtype.h"
#include "kernels/kv_layout.h"

/* Most tokens in one segment, the unit of attention tiles and of transfers. */
#define KV_SEGMENT_TOKENS_MAX 256
/* Output columns in one packed panel of a weight. */
#define PANEL_COLS 32

/* Groups of activations whose largest magnitude is below this are quantized to zeros. */
#define QUANT_MIN 1e-30f
/* Most elements of K in a group of quantized activations. One scale for a whole row costs real
 * models much, because a few elements of a row are far larger than all others: the perplexity of
 * SmolLM2-135M grows by 2.9 %, with groups of 128, 64 and 32 by 0.8, 0.17 and 0.10 %. */
#define QUANT_GROUP_MAX 64

/* Layout of a weight in memory; pack.h describes both layouts. Each device wants one of them. */
enum weight_layout {
    WEIGHT_PANELS = 0, /* panels of PANEL_COLS outputs, for the CPU kernels */
    WEIGHT_ROWS        /* row-major: embedding tables, and all weights of a GPU */
};

/* A weight [N, K] (N outputs). */
struct weight {
    enum dtype dtype;
    enum weight_layout layout;
    uint32_t n;
    uint32_t k;
    uint32_t group;  /* elements of K that share a scale: 32 or 128 (F8: 128); 0: floats */
    uint32_t stride; /* WEIGHT_ROWS: elements from one row to the next, at least K; else 0 */
    const void *data;
};

/* Elements of K in a group of activations that a quantized weight is multiplied by. */
static inline uint32_t quant_group(const struct weight *w)
{
    return w->group < QUANT_GROUP_MAX ? w->group : QUANT_GROUP_MAX;
}

/* Results of an op as the next product reads them: rounded to 16 bits, f16 for F16 weights and bf16
 * for all others. Only rmsnorm, silu_mul and attention of a device with ops.rounds_rows make them,
 * and its gemm reads them. */
struct rounded_rows {
    uint16_t *data;     /* [T, stride], aligned to 16; elements from K on become 0. NULL: the op
                           writes floats to `out`; else nothing is left in `out`, which attention
                           may use as scratch memory */
    uint32_t stride;    /* of the product's weight */
    enum dtype weights; /* its type, not F32 */
};

/* out[t, :] = table[ids[t], :] */
struct embed_params {
    uint32_t n_rows;     /* T */
    uint32_t dim;        /* D */
    uint32_t n_vocab;    /* V; every id is below it (checked by the caller) */
    struct weight table; /* [V, D]: floats in WEIGHT_ROWS, possibly in a mapped file (aligned to the
                            element size only); or I8, A8 or F8 in the device's layout. May be
                            shared with the output layer */
    const uint32_t *ids; /* [T] */
    float *out;          /* [T, D] */
    /* Ids that only a GPU knows yet; both NULL elsewhere, and on every host device. */
    const uint32_t *from;   /* [T] row t is that of the id picked[from[t]]; UINT32_MAX: of ids[t] */
    const uint32_t *picked; /* sample_params.ids of an earlier sample */
};

/* out[t, i] = w[i] * x[t, i] / sqrt(mean(x[t, :]^2) + eps). With `sum`: first sum += x, then the
 * norm of sum (the residual stream, where a product could not add to it).
 *
 * The fields behind `out` make other norms; all of them are 0 otherwise, and `sum` is NULL if one
 * of them is not. A row then has n_parts vectors of D elements, one behind the other, and each is
 * normed by itself with the same w (the heads of Q or K). */
struct rmsnorm_params {
    uint32_t n_rows; /* T */
    uint32_t dim;    /* D */
    float eps;
    const float *x;              /* [T, D] */
    float *sum;                  /* [T, D], not x; may be NULL */
    const float *w;              /* [D] */
    float *out;                  /* [T, D]; may be x or sum */
    uint32_t n_parts;            /* 0: one */
    size_t x_stride;             /* elements from a row of x to the next; 0: n_parts * D */
    size_t out_stride;           /* the same of out */
    int center;                  /* LayerNorm: the mean of the vector is subtracted from x first */
    int accumulate;              /* the result is added to out */
    const float *bias;           /* [D] is added to the result; may be NULL */
    struct rounded_rows rounded; /* only of rows of one vector; without accumulate */
    int keep_out;                /* with `rounded`: the floats are written to `out`, too */
};

/* out = a * w^T + bias, or out += a * w^T + bias when accumulate is set. Each output is one chain
 * over K in ascending order that starts at 0 and is the same for any number of rows and threads.
 * The bias, then the old out, are added once at its end (promise P1).
 *
 * With BF16 weights a device may round `a` to bf16 (nearest even) first, the input of the matrix
 * instructions. With quantized weights each group of quant_group() elements of a row is quantized
 * separately:
 *   q[k] = round(a[k] * (127 / max|a|)), nearest even, in -127 .. 127, scale s = max|a| / 127
 * The chain then runs over these groups; the sums inside a group are exact integers:
 *   sum = fma((float)(sum over the group of q[k] * w[n, k]) * s, scale of w, sum)
 * where w is the signed integer of I8 and I4 and the code of A8 and A4; for the latter, then
 *   sum = fma((float)(sum over the group of q[k]) * s, offset of w, sum)
 * A row with a NaN or an infinity gives NaN in all its outputs; a group with max|a| < QUANT_MIN
 * counts as zeros. F8 weights are multiplied as floats, whose products with `a` (which a device may
 * round to bf16 first) are summed in each group from 0 on; then sum = fma(group's sum, scale, sum).
 *
 * A CUDA device keeps activations as floats: `a` is rounded to f16 for F16 weights and to bf16 for
 * all others but F32, products are summed in fp32, and each group's sum is multiplied by its scale;
 * the sum of the group's `a` then by its offset. Without device_config.batch_invariant the order of
 * a sum may depend on T, also with quantized weights. */
struct gemm_params {
    uint32_t n_rows; /* T */
    const float *a;  /* [T, K], row stride a_stride */
    size_t a_stride;
    const uint16_t *rounded;   /* in place of `a`: the data of rounded_rows for w; else NULL */
    struct weight w;           /* [N, K] */
    const struct weight *next; /* weight of the next product, to be prefetched; may be NULL */
    const float *bias;         /* [N]; may be NULL */
    int accumulate;
    float *out; /* [T, N], row stride out_stride; never overlaps a */
    size_t out_stride;
};

/* Most experts of a layer, and most that a row goes to. */
#define ROUTE_EXPERTS_MAX 512
#define ROUTE_CHOSEN_MAX 64

enum route_score {
    ROUTE_SOFTMAX = 0, /* over all experts; with `renormalize` over the chosen ones */
    ROUTE_SIGMOID      /* of each logit; with `renormalize` divided by the sum of the chosen */
};

/* Choose for each row the k experts with the largest logits; a tie goes to the lower index, and NaN
 * counts as -inf. A row's choice depends on its own logits alone (promise P1).
 *
 * Rows are then sorted by expert: the products of an expert read consecutive rows. A row appears
 * once for each of its experts; expert e has the sorted rows offsets[e] .. offsets[e + 1] - 1, in
 * ascending order of rows. A call with one expert needs no order: offsets, rows and at are NULL.
 *
 * Rows that fill a GPU's batch (rope_kv_params) go to no expert: their experts are E, weights and
 * places 0, so that no weight is read for them. */
struct route_params {
    uint32_t n_rows;    /* T */
    uint32_t n_experts; /* E, 1 .. ROUTE_EXPERTS_MAX */
    uint32_t n_chosen;  /* k, 1 .. min(E, ROUTE_CHOSEN_MAX) */
    enum route_score score;
    int renormalize;
    float scale;                /* factor of all weights */
    const float *logits;        /* [T, E] */
    const uint32_t *slot_block; /* [T] UINT32_MAX: the row is padding; NULL: none is. A CPU does not
                                   read it */
    uint32_t *experts;          /* [T, k] in ascending order */
    float *weights;             /* [T, k] */
    uint32_t *offsets;          /* [E + 1] */
    uint32_t *rows;             /* [T k] the row of each sorted row */
    uint32_t *at;               /* [T, k] the sorted row of each choice */
};

/* The products of all experts: out[i, :] = a[i, :] * w_e^T for the sorted rows i of each expert e.
 * Each row gets the bits that gemm() gives it with the weight w_e (promise P1). */
struct gemm_experts_params {
    uint32_t n_rows;         /* P: offsets[E], or more where rows are padding */
    uint32_t n_rows_max;     /* no expert has more rows */
    uint32_t n_experts;      /* E */
    struct weight w;         /* [N, K] of expert 0; the others have the same shape and type */
    size_t expert_bytes;     /* from the data of an expert's weight to the next's: a multiple of
                                256 */
    const uint32_t *offsets; /* [E + 1] */
    const float *a;          /* [P, K]; with `rows` [n_rows_max, K] */
    const uint16_t *rounded; /* in place of `a`: the data of rounded_rows for w; else NULL */
    const uint32_t *rows;    /* [P] the row of `a` or `rounded` that each sorted row is; NULL: row i
                                is sorted row i. Only a device with ops.rounds_rows reads it */
    float *out;              /* [P, N] */
};

/* out[t, :] += the sum over j of weights[t, j] * y[at[t, j], :], as one chain of fused
 * multiply-adds in ascending order of j that starts at 0. */
struct combine_params {
    uint32_t n_rows;      /* T */
    uint32_t dim;         /* D */
    uint32_t n_chosen;    /* k */
    const float *weights; /* [T, k] */
    const uint32_t *at;   /* [T, k], each below T * k; NULL: t * k + j */
    const float *y;       /* [T k, D] */
    float *out;           /* [T, D]; not y */
};

/* Rotate Q in place; rotate K and write K and V to the cache, rounded to the cache dtype (nearest
 * even) before any row attends to them. The rotated pairs are (i, i + r/2) with r = rot_dim, the
 * Hugging Face convention; dimensions from r on are not rotated. */
struct rope_kv_params {
    uint32_t n_rows;  /* T */
    uint32_t n_heads; /* H */
    uint32_t rot_dim; /* r: even, at most d */
    uint32_t layer;
    float *q;       /* [T, H, d], row stride qkv_stride */
    const float *k; /* [T, G, d], row stride qkv_stride */
    const float *v; /* [T, G, d], row stride qkv_stride */
    size_t qkv_stride;
    const uint32_t *pos;         /* [T] position of each row in its sequence */
    const float *cos_sin;        /* [n_pos, r]: for each position r/2 cosines, then r/2 sines */
    uint32_t n_pos;              /* every pos is below it */
    const uint32_t *slot_block;  /* [T] block for the row's K and V; on a GPU: none, for padding */
    const uint32_t *slot_offset; /* [T] token index inside that block, below KV_BLOCK_TOKENS */
    struct kv_pool pool;
};

/* One segment of one sequence, as attention sees it. Token i of the segment lies in
 * blocks[block0 + i / KV_BLOCK_TOKENS] at offset i % KV_BLOCK_TOKENS. */
struct attn_segment {
    uint32_t pos0;     /* position of its first token */
    uint32_t n_tokens; /* in the cache, including this step's; 1..KV_SEGMENT_TOKENS_MAX */
    uint32_t block0;   /* index into blocks */
};

/* Consecutive rows of a batch at consecutive positions; none, behind all others, is padding. */
struct attn_seq {
    uint32_t row0;
    uint32_t n_rows;
    uint32_t pos0;   /* position of row0; its keys are 0..pos0, if attention is causal */
    uint32_t seg0;   /* index into segments */
    uint32_t n_segs; /* in ascending order of position; they cover 0 .. pos0 + n_rows - 1 without a
                        gap, or only a part of it for partial attention */
};

/* Most members of a group of attn_work. A GPU computes 16 queries of a KV head at a time, so a
 * group of more than 16 / (H / G) members reads its segment several times. */
#define ATTN_WORK_MAX 16

/* One segment of a sequence of one row, in the order in which a GPU reads them. Segments of several
 * sequences that are the same tokens at the same positions, in the same blocks, may be a group: the
 * GPU reads them once. Members of a group are neighbours, in ascending order of `seq`. */
struct attn_work {
    uint32_t segment; /* index into segments */
    uint32_t seq;     /* index into seqs: the sequence that has this segment */
    uint32_t n;       /* members of the group that begins here, itself included; 0: another member,
                         or padding */
};

/* Causal attention, or, with `bidirectional`, attention of encoders. Tiles are whole segments. For
 * each row and tile: scores of the visible keys, their maximum, exp and weighted sum in a fixed
 * order of keys. Tiles are merged in segment order by log-sum-exp in fp32 (promise P1; the merge is
 * that of FlashDecoding and of TokenLake's query shipping). Keys after the row's position or before
 * its window count exactly 0.
 *
 * Partial attention: segments may hold only some of a row's keys. Then `lse` is the logarithm of
 * the weight that the result has among others. A row that sees no key gets zeros. */
struct attention_params {
    uint32_t n_seqs;
    uint32_t n_rows;     /* T: of all sequences */
    uint32_t n_rows_max; /* most rows of one sequence */
    uint32_t n_segs;     /* of all sequences; on a GPU padding may follow, as in attn_seq */
    uint32_t n_segs_max; /* most segments of one sequence */
    uint32_t n_heads;    /* H */
    uint32_t layer;
    uint32_t window;   /* a row at position p sees keys from p - window + 1 on; 0: all */
    int bidirectional; /* every row sees all keys of its sequence, up to its last row's; without a
                          window. ERR_UNSUPPORTED on a GPU */
    float scale;       /* usually 1 / sqrt(d) */
    float soft_cap;    /* scores become cap * tanh(score / cap); 0: none */
    const float *q;    /* [T, H, d], row stride q_stride */
    size_t q_stride;
    float *out; /* [T, H, d], row stride H * d */
    float *lse; /* [T, H] ln of the sum of exp(score) over the visible keys, -inf if there is none;
                   may be NULL */
    struct rounded_rows rounded;
    const struct attn_seq *seqs;         /* [n_seqs] */
    const struct attn_segment *segments; /* of all sequences, one after the other */
    const uint32_t *blocks;              /* block ids of all segments */
    const struct attn_work
        *work; /* [n_segs] each segment of each sequence of one row, then padding;
                                     NULL: segments are read one by one, to the same bits. Only a
                                     GPU reads it */
    struct kv_pool pool;
};

/* attention_tiles: the same attention, before its tiles are merged. Each tile of a (segment, row,
 * head) is d + 2 floats: the sum over the visible keys of exp(score - max) * v, the maximum of the
 * scores in the device's unit, and the sum of exp(score - max). A row that sees no key of the
 * segment has the sum 0, whatever the rest holds. The bits are those that attention() merges, so
 * attention_tiles() and merge_tiles() together give the bits of attention() (promise P1), also
 * where some tiles were computed by another process with the same kernels.
 *
 * p: as for attention(), with lse NULL; p->out receives, sequence after sequence, [n_segs][n_rows,
 * H, d + 2] of that sequence. ERR_UNSUPPORTED with a window, a soft cap or `bidirectional`. */

/* Merge tiles in the order of the parts, as attention() merges segments. */
struct merge_tiles_params {
    uint32_t n_rows;     /* T */
    uint32_t n_heads;    /* H */
    uint32_t head_dim;   /* d */
    enum dtype kv_dtype; /* of the KV that the tiles were computed from */
    uint32_t n_parts;
    const float *const *parts; /* [n_parts] -> [T, H, d + 2]; host memory on a host device */
    float *out;                /* [T, H, d] */
};

enum activation {
    ACTIVATION_SILU = 0, /* x / (1 + exp(-x)) */
    /* x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3); equals x / 2 (1 + tanh(u)) */
    ACTIVATION_GELU_TANH,
    /* x P(Z <= x) of a normal Z: x / 2 (1 + erf(x / sqrt(2))), relatively within 2e-6 for x > -13;
     * between 0 and the exact value below */
    ACTIVATION_GELU
};

/* out[t, i] = f(gu[t, i]) * gu[t, F + i] with the activation f; `ungated`: out[t, i] =
 * f(gu[t, i]) */
struct silu_mul_params {
    uint32_t n_rows;      /* T */
    uint32_t dim;         /* F */
    const float *gate_up; /* [T, 2F]; ungated: [T, F] */
    float *out;           /* [T, F]; may be gate_up if that is ungated */
    enum activation activation;
    int ungated;
    struct rounded_rows rounded;
};

/* out[i] = y, or out[i] += y when accumulate is set, with y = x[i] * scale; a soft_cap above 0
 * makes y = cap * tanh(x[i] * scale / cap). */
struct scale_params {
    uint32_t n_rows; /* T */
    uint32_t dim;    /* D */
    float scale;
    float soft_cap;
    int accumulate;
    const float *x; /* [T, D] */
    float *out;     /* [T, D]; may be x */
};

/* out[i, :] = x[rows[i], :] */
struct gather_params {
    uint32_t n_rows; /* rows of out */
    uint32_t dim;
    const float *x;       /* [T, dim] */
    const uint32_t *rows; /* [n_rows] */
    float *out;           /* [n_rows, dim]; does not overlap x */
};

/* x[i] = the sum of x[i] over the devices of a group, with the same bits on each device. */
struct all_reduce_params {
    size_t n;
    float *x; /* [n] on this device */
};

/* An id that a row has seen, once per distinct id. */
struct sample_seen {
    uint32_t id;
    uint16_t count;     /* times in the output */
    uint16_t in_prompt; /* 0 or 1; only a repetition penalty looks at it */
};

struct sample_bias {
    uint32_t id;
    float bias;
};

/* Content of a row's range of mask words. Pairs are (index, word), by ascending index. */
enum sample_mask {
    SAMPLE_MASK_ALL,     /* all ceil(V / 32) words */
    SAMPLE_MASK_FORBIDS, /* pairs of the words that forbid an id */
    SAMPLE_MASK_ALLOWS   /* pairs of the words that allow an id */
};

/* Parameters by which a row's token is chosen; the fields have meaning and order of
 * engine/run/sampler.h. */
struct sample_row {
    uint64_t seed;
    uint32_t n;        /* the draw's number: index of the token in the output */
    float temperature; /* 0: greedy */
    uint32_t top_k;    /* 0: off */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    float repetition_penalty, presence_penalty, frequency_penalty;
    uint32_t seen0, n_seen; /* range of `seen` */
    uint32_t bias0, n_bias; /* range of `bias` */
    uint32_t mask0, n_mask; /* range of `mask`; n_mask 0: every id is allowed */
    enum sample_mask mask_form;
    uint32_t lowest_masked; /* the lowest forbidden id, where n_mask > 0 */
    uint32_t raw0;          /* range of `raw`: n_seen + n_bias, and 1 where n_mask > 0 */
    uint32_t want_logprob;  /* 0 or 1 */
    uint32_t n_logprobs;    /* at most n_top */
};

struct sample_top {
    uint32_t id;
    float logprob;
};

/* One token per row of logits: the token that engine/run/sampler.h picks for the same logits,
 * unless the draw lies within rounding of the boundary between two candidates. */
struct sample_params {
    uint32_t n_rows;                /* R */
    uint32_t n_vocab;               /* V */
    float *logits;                  /* [R, V]; changed */
    const struct sample_row *rows;  /* [R] */
    const struct sample_seen *seen; /* all rows' */
    const struct sample_bias *bias;
    const uint32_t *mask;   /* bit id % 32 of word id / 32: 1 if the id is allowed */
    float *raw;             /* scratch; may be NULL when no row wants a logprob */
    uint32_t n_top;         /* stride of top */
    uint32_t *ids;          /* [R] */
    float *logprobs;        /* [R] of the chosen token under the raw logits, if wanted */
    struct sample_top *top; /* [R, n_top] best first; may be NULL when n_top is 0 */
};

#endif
