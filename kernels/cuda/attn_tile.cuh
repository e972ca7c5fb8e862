/* attn_tile.cuh - the parts that all attention kernels share: visibility, a tile, and the merge.
 *
 * A row's bits depend only on its own keys and on how they are cut (promise P1, ARCHITECTURE.md).
 * So every kernel does the same operations, however it divides them among threads:
 *
 *   tile     up to 64 keys, [64 i, 64 i + 64) of one segment: scores by mma over dimensions in
 *            ascending order (of heads of 256: those of the first 128 dimensions plus those of the
 *            others), their maximum m, p = 2^(score - m), l = sum of p, o = sum of p * V
 *   segment  its tiles that the row sees, merged in ascending order
 *   group    its segments that the row sees, of ATTN_GROUP_SEGMENTS of the sequence, merged in
 *            ascending order
 *   row      its groups, merged in ascending order, then divided by l
 *
 * Groups make the walk of a row short: several blocks can share it, and write one partial result
 * for each group.
 *
 * A tile, segment or group without a key that the row sees is skipped by selection, which changes
 * no bit. A key that a row does not see has p = +0 and adds exactly 0, so it does not matter which
 * other rows share the mma. Scores are multiplied by log2(e), since the hardware has exp2. l sums p
 * in fp32 as in FlashAttention, while o uses p rounded to 16 bits: the log-sum-exp is then exact to
 * fp32, and the rounding errors of p average out.
 *
 * Source: the tile is that of FlashAttention-2 (Dao, 2023); the split over segments and the merge
 * are those of FlashDecoding.
 *
 * Fragments. A warp has 16 queries; queries g and g + 8 are in lanes 4g .. 4g + 3 (g = lane / 4, c
 * = lane % 4; ptx.cuh has the layout). The KV layout (params.h) gives whole B registers as words of
 * 32 bits, and the order of keys and dimensions in an mma is free, so each lane reads 16 bytes at
 * once:
 *   K  row of words i (dims 2i, 2i + 1), tokens 4g .. 4g + 3: column g of four mma. So columns 2c
 *      and 2c + 1 of the j-th mma are tokens 8c + j and 8c + 4 + j of the block, and a lane has the
 *      scores of tokens 8c .. 8c + 7: whole pairs, as the second product needs them
 *   V  row of words 4c + s (tokens 8c + 2s, 8c + 2s + 1), dims 4g .. 4g + 3: column g of four mma.
 *      So a lane ends up with dims 8c .. 8c + 7 of each 32, for queries g and g + 8
 *
 * KV in f16 and of one byte has the same layout without pairs: K is [d][32 tokens], V is [32
 * tokens][d]. A lane reads four elements of two neighbouring rows where it would read 16 bytes of
 * words, and makes the words of them.
 *
 * With KV in f16 all operands are f16: queries beyond 65504 become infinite, as keys do. Numbers of
 * one byte are exact in bf16. Their products are multiplied by the keys' scales, and p, once
 * summed, by the values'. Elements are always finite, so values need no selection, but scales that
 * a query does not see do.
 *
 * Owns    nothing.
 * Thread  device code; all 32 lanes of a warp call attn_tile_* together.
 * Errors  none.
 * Units   tokens, positions, dimensions; scores times log2(e). */
#ifndef TARN_KERNELS_CUDA_ATTN_TILE_CUH
#define TARN_KERNELS_CUDA_ATTN_TILE_CUH

#include <math.h>

#include "kernels/cuda/common.cuh"

#define ATTN_TILE 64
#define ATTN_TILE_BLOCKS (ATTN_TILE / KV_BLOCK_TOKENS)
#define ATTN_SEGMENT_TILES (KV_SEGMENT_TOKENS_MAX / ATTN_TILE)
#define ATTN_GROUP_SEGMENTS 8
#define ATTN_QUERIES 16 /* of one warp: the rows of an mma */
#define ATTN_LOG2E 1.44269504088896341f
#define ATTN_LN2 0.693147180559945309f
/* Warps that share 16 queries and a tile. Each computes the products of its part of the dimensions,
 * and the values of that part: a lane holds all of a tile's scores, but o of 128 dimensions at
 * most. */
#define ATTN_PARTS(dim) ((dim) > 128 ? 2 : 1)
#define ATTN_PART_DIMS(dim) ((dim) / ATTN_PARTS(dim))
/* Groups of 32 dimensions: four mma per step of keys. */
#define ATTN_GROUPS(dim) (((dim) + 31) / 32)

static __device__ __forceinline__ uint32_t attn_min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Position of the first key that a row at `pos` sees. */
static __device__ __forceinline__ uint32_t attn_first_key(uint32_t window, uint32_t pos)
{
    return window > 0 && pos >= window ? pos - window + 1 : 0;
}

/* Keys [lo, hi) of a piece, counted from its first key; lo == hi: none. */
struct attn_range {
    uint32_t lo;
    uint32_t hi;
};

/* The range that a row at `pos` sees of the n keys from position pos0 on. */
static __device__ __forceinline__ struct attn_range attn_visible(uint32_t window, uint32_t pos,
                                                                 uint32_t pos0, uint32_t n)
{
    uint32_t first = attn_first_key(window, pos);
    struct attn_range r = {first > pos0 ? first - pos0 : 0,
                           pos < pos0 ? 0 : attn_min(pos - pos0 + 1, n)};

    r.lo = attn_min(r.lo, r.hi);
    return r;
}

/* The range that a row sees of the segment's tile that starts at token0; empty behind the segment's
 * end. */
static __device__ __forceinline__ struct attn_range
attn_visible_tile(uint32_t window, uint32_t pos, const struct attn_segment &seg, uint32_t token0)
{
    uint32_t n = seg.n_tokens > token0 ? attn_min(seg.n_tokens - token0, ATTN_TILE) : 0;

    return attn_visible(window, pos, seg.pos0 + token0, n);
}

static __device__ __forceinline__ bool attn_sees(struct attn_range r)
{
    return r.lo < r.hi;
}

/* Index of the sequence's first segment that ends behind position `first`; n_segs: none does. */
static __device__ __forceinline__ uint32_t attn_first_segment(const struct attn_segment *segs,
                                                              uint32_t n_segs, uint32_t first)
{
    uint32_t lo = 0, hi = n_segs;

    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;

        if (segs[mid].pos0 + segs[mid].n_tokens > first)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* --- merging --- */

/* How (m, l, o) is joined to a state: the new maximum, and the factors of the old and of the added
 * part. */
struct attn_weights {
    float m;
    float old;
    float add;
};

static __device__ __forceinline__ struct attn_weights attn_weigh(float m_old, float m_add)
{
    float m = fmaxf(m_old, m_add);
    float from = m == -INFINITY ? 0 : m; /* all scores are -inf: both factors are 0 instead of
                                            NaN */

    return {m, fast_exp2(m_old - from), fast_exp2(m_add - from)};
}

/* Join l, or one element of o. */
static __device__ __forceinline__ float attn_join(float old, float add, struct attn_weights w)
{
    return fmaf(add, w.add, old * w.old);
}

/* Final factor of o; 0 for a row without visible keys. */
static __device__ __forceinline__ float attn_inverse(float l)
{
    return l == 0 ? 0 : 1 / l;
}

static __device__ __forceinline__ float attn_lse(float m, float l)
{
    return fmaf(m, ATTN_LN2, logf(l));
}

/* N elements of o, with the maximum and the sum of their head. */
template <int N>
struct attn_joined {
    float m, l, o[N];
    bool has_any;
};

template <int N>
static __device__ __forceinline__ void attn_joined_clear(struct attn_joined<N> &s)
{
    s.m = -INFINITY;
    s.l = 0;
    s.has_any = false;
#pragma unroll
    for (int e = 0; e < N; e++)
        s.o[e] = 0;
}

/* Join a segment to its group. */
template <int N>
static __device__ __forceinline__ void attn_joined_add(struct attn_joined<N> &s, float m, float l,
                                                       const float o[N])
{
    struct attn_weights w = attn_weigh(s.m, m);

    s.m = w.m;
    s.l = attn_join(s.l, l, w);
    s.has_any = true;
#pragma unroll
    for (int e = 0; e < N; e++)
        s.o[e] = attn_join(s.o[e], o[e], w);
}

/* Join a group to its row. The first one is taken as it is. */
template <int N>
static __device__ __forceinline__ void attn_joined_group(struct attn_joined<N> &row, float m,
                                                         float l, const float o[N])
{
    if (row.has_any) {
        attn_joined_add(row, m, l, o);
        return;
    }
    row.m = m;
    row.l = l;
    row.has_any = true;
#pragma unroll
    for (int e = 0; e < N; e++)
        row.o[e] = o[e];
}

/* --- scores --- */

/* How a product becomes a score. */
struct attn_scale {
    float mul;     /* factor of the product */
    float cap;     /* cap * tanh() of that; 0: no cap */
};

static __device__ __forceinline__ struct attn_scale attn_scale_of(const struct attention_params &p)
{
    if (p.soft_cap > 0)
        return {p.scale / p.soft_cap, p.soft_cap * ATTN_LOG2E};
    return {p.scale * ATTN_LOG2E, 0};
}

static __device__ __forceinline__ float attn_score(float product, struct attn_scale scale)
{
    float x = product * scale.mul;

    return scale.cap > 0 ? scale.cap * tanhf(x) : x;
}

/* Two numbers rounded to the type of the operands with KV of this type. */
template <enum dtype TYPE>
static __device__ __forceinline__ uint32_t attn_pack(float lo, float hi)
{
    return TYPE == DTYPE_F16 ? pack_f16(lo, hi) : pack_bf16(lo, hi);
}

/* d[e] += a * (column g = word e of lo and hi). */
template <enum dtype TYPE>
static __device__ __forceinline__ void attn_mma4(float d[4][4], uint4 a, uint4 lo, uint4 hi)
{
    const uint32_t a4[4] = {a.x, a.y, a.z, a.w};
    const uint32_t b[4][2] = {{lo.x, hi.x}, {lo.y, hi.y}, {lo.z, hi.z}, {lo.w, hi.w}};

#pragma unroll
    for (int e = 0; e < 4; e++)
        if (TYPE == DTYPE_F16)
            mma_f16(d[e], a4, b[e]);
        else
            mma_bf16(d[e], a4, b[e]);
}

/* The A fragment of this lane's two queries (NULL: zeros), dims 16 i .. 16 i + 15, rounded. */
template <enum dtype TYPE>
static __device__ __forceinline__ uint4 attn_tile_query(const float *const query[2], int i)
{
    uint32_t at = 16 * i + 2 * (threadIdx.x % 4), a[4];

#pragma unroll
    for (int r = 0; r < 4; r++) {
        const float *x = query[r % 2];
        uint32_t j = at + 8 * (r / 2);

        a[r] = x ? attn_pack<TYPE>(x[j], x[j + 1]) : 0;
    }
    return make_uint4(a[0], a[1], a[2], a[3]);
}

/* Products of the queries with one block of 32 keys. keys(i) returns 16 bytes of row 4i + c of
 * K. */
template <int DIM, enum dtype TYPE, typename Queries, typename Keys>
static __device__ __forceinline__ void attn_tile_products(float s[4][4], const Queries &queries,
                                                          const Keys &keys)
{
#pragma unroll
    for (int e = 0; e < 16; e++)
        s[e / 4][e % 4] = 0;
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        attn_mma4<TYPE>(s, queries(i), keys(2 * i), keys(2 * i + 1));
}

/* This lane's two queries of a tile: maxima, sums, and p as A fragments of the second product. Step
 * k of that product takes rows 4c + 2 (k % 2) and the next one of V's block k / 2. */
struct attn_tile {
    float m[2];
    float l[2];
    uint4 p[2 * ATTN_TILE_BLOCKS];
};

/* Turn products into scores; -inf where the query does not see the key. */
static __device__ __forceinline__ void attn_tile_scores(float s[ATTN_TILE_BLOCKS][4][4],
                                                        const struct attn_range range[2],
                                                        struct attn_scale scale)
{
    uint32_t c = threadIdx.x % 4;
    bool whole = range[0].lo + range[1].lo == 0 && range[0].hi + range[1].hi == 2 * ATTN_TILE;

#pragma unroll
    for (int e = 0; e < 16 * ATTN_TILE_BLOCKS; e++)
        s[e / 16][e / 4 % 4][e % 4] = attn_score(s[e / 16][e / 4 % 4][e % 4], scale);
    if (__all_sync(FULL_WARP, whole))
        return;
#pragma unroll
    for (int e = 0; e < 16 * ATTN_TILE_BLOCKS; e++) {
        uint32_t token = KV_BLOCK_TOKENS * (e / 16) + 8 * c + 4 * (e % 2) + e / 4 % 4;
        const struct attn_range &r = range[e % 4 / 2];

        if (token < r.lo || token >= r.hi)
            s[e / 16][e / 4 % 4][e % 4] = -INFINITY;
    }
}

/* The warps of a pair add their products: each puts its own where the other one finds them, four
 * floats of each row in turn, then both add the same two numbers. at(j): 16 bytes for each lane. */
template <typename Place>
static __device__ __forceinline__ void attn_put_products(const float s[ATTN_TILE_BLOCKS][4][4],
                                                         const Place &at)
{
#pragma unroll
    for (int j = 0; j < 4 * ATTN_TILE_BLOCKS; j++) {
        const float *x = s[j / 4][j % 4];

        *at(j) = make_float4(x[0], x[1], x[2], x[3]);
    }
}

template <typename Place>
static __device__ __forceinline__ void attn_add_products(float s[ATTN_TILE_BLOCKS][4][4],
                                                         const Place &at)
{
#pragma unroll
    for (int j = 0; j < 4 * ATTN_TILE_BLOCKS; j++) {
        float4 other = *at(j);
        float *x = s[j / 4][j % 4];

        x[0] += other.x;
        x[1] += other.y;
        x[2] += other.z;
        x[3] += other.w;
    }
}

/* Maximum and sum over the four lanes that share a query; the same bits in each lane. */
static __device__ __forceinline__ float attn_quad_max(float v)
{
    v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, 1));
    return fmaxf(v, __shfl_xor_sync(FULL_WARP, v, 2));
}

static __device__ __forceinline__ float attn_quad_sum(float v)
{
    v += __shfl_xor_sync(FULL_WARP, v, 1);
    return v + __shfl_xor_sync(FULL_WARP, v, 2);
}

/* Maxima and sums; s becomes p. */
static __device__ __forceinline__ void attn_tile_exp(struct attn_tile &t,
                                                     float s[ATTN_TILE_BLOCKS][4][4])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = -INFINITY, l = 0;

#pragma unroll
        for (int e = 0; e < 8 * ATTN_TILE_BLOCKS; e++)
            m = fmaxf(m, s[e / 8][e / 2 % 4][2 * r + e % 2]);
        m = attn_quad_max(m);
        float from = m == -INFINITY ? 0 : m; /* then every p is 2^-inf = 0, or NaN if a score is
                                                NaN */
#pragma unroll
        for (int e = 0; e < 8 * ATTN_TILE_BLOCKS; e++) {
            float &x = s[e / 8][e / 2 % 4][2 * r + e % 2];

            x = fast_exp2(x - from);
            l += x;
        }
        t.m[r] = m;
        t.l[r] = attn_quad_sum(l);
    }
}

template <enum dtype TYPE>
static __device__ __forceinline__ void attn_tile_pack(struct attn_tile &t,
                                                      const float s[ATTN_TILE_BLOCKS][4][4])
{
#pragma unroll
    for (int k = 0; k < 2 * ATTN_TILE_BLOCKS; k++) {
        const float(*x)[4] = s[k / 2];
        int e = k % 2;

        t.p[k] = make_uint4(
            attn_pack<TYPE>(x[0][e], x[1][e]), attn_pack<TYPE>(x[0][e + 2], x[1][e + 2]),
            attn_pack<TYPE>(x[2][e], x[3][e]), attn_pack<TYPE>(x[2][e + 2], x[3][e + 2]));
    }
}

/* --- KV in memory --- */

/* Bytes of two neighbouring elements, and of what a lane reads of a row of words: four words, or
 * four elements of each of two rows. */
#define ATTN_PAIR_BYTES(type) ((type) == DTYPE_BF16 || (type) == DTYPE_F16 ? 4u : 2u)
#define ATTN_QUAD_BYTES(type) ((type) == DTYPE_BF16 ? 16u : 2 * ATTN_PAIR_BYTES(type))

/* Words 4g .. 4g + 3 of row of words i of K (V), which begins at `head`. A row has ROW words. */
template <enum dtype TYPE, uint32_t ROW>
static __device__ __forceinline__ const unsigned char *attn_words_at(const unsigned char *head,
                                                                     uint32_t i, uint32_t g)
{
    return head + i * (ROW * ATTN_PAIR_BYTES(TYPE)) + g * ATTN_QUAD_BYTES(TYPE);
}

/* --- KV in f16 --- */

/* Four elements of two rows: x and y, z and w. Zeros if not valid. */
template <uint32_t ROW>
static __device__ __forceinline__ uint4 attn_load_halves(const unsigned char *at, bool valid)
{
    uint2 lo = load_once8_if(at, valid), hi = load_once8_if(at + 2 * ROW, valid);

    return make_uint4(lo.x, lo.y, hi.x, hi.y);
}

/* Four words: element e of the first row in the lower half of word e, that of the second in the
 * upper half. */
static __device__ __forceinline__ uint4 attn_weave(uint4 rows)
{
    return make_uint4((rows.x & 0xffff) | rows.z << 16, rows.x >> 16 | (rows.z & 0xffff0000u),
                      (rows.y & 0xffff) | rows.w << 16, rows.y >> 16 | (rows.w & 0xffff0000u));
}

/* --- KV of one byte --- */

/* Four words: byte e of x in the lower half of word e, that of y in the upper half. */
template <enum dtype TYPE>
static __device__ __forceinline__ uint4 attn_widen(uint2 bytes)
{
    uint32_t w[4];

#pragma unroll
    for (int e = 0; e < 4; e++) {
        uint32_t x = (bytes.x >> 8 * e & 0xff) | (bytes.y >> 8 * e & 0xff) << 16;

        if (TYPE == DTYPE_I8) /* (128 + the lower 7 bits) - (128, or 256 if negative) */
            w[e] = fma_bf16x2((x & 0x007f007fu) | 0x43004300u, 0x3f803f80u,
                              (x & 0x00800080u) | 0xc300c300u);
        else /* exponent and mantissa of a number that is 2^120 times too small */
            w[e] = fma_bf16x2((x & 0x007f007fu) << 4 | (x & 0x00800080u) << 8, 0x7b807b80u,
                              0x80008000u);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* Four bytes of two rows. Zeros if not valid. */
template <uint32_t ROW>
static __device__ __forceinline__ uint2 attn_load_bytes(const unsigned char *at, bool valid)
{
    return make_uint2(load_once4_if(at, valid), load_once4_if(at + ROW, valid));
}

/* The scales of the tokens of which this lane has scores: [block][4 e + j] is that of token 8c + 4
 * e + j. `at`: the scales of each block, or NULL. */
struct attn_scales {
    float4 of[ATTN_TILE_BLOCKS][2];
};

static __device__ __forceinline__ struct attn_scales
attn_load_scales(const float *const at[ATTN_TILE_BLOCKS])
{
    struct attn_scales s;

#pragma unroll
    for (int b = 0; b < ATTN_TILE_BLOCKS; b++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            s.of[b][e] = at[b] ? reinterpret_cast<const float4 *>(at[b])[threadIdx.x % 4 * 2 + e]
                               : make_float4(0, 0, 0, 0);
    return s;
}

static __device__ __forceinline__ float attn_scale_at(const struct attn_scales &s, int b, int e,
                                                      int j)
{
    const float4 &x = s.of[b][e];

    return j == 0 ? x.x : j == 1 ? x.y : j == 2 ? x.z : x.w;
}

/* Multiply products by the scales of their keys. */
static __device__ __forceinline__ void attn_scale_keys(float s[ATTN_TILE_BLOCKS][4][4],
                                                       const struct attn_scales &scales)
{
#pragma unroll
    for (int e = 0; e < 16 * ATTN_TILE_BLOCKS; e++)
        s[e / 16][e / 4 % 4][e % 4] *= attn_scale_at(scales, e / 16, e % 2, e / 4 % 4);
}

/* Multiply p by the scales of the values; 0 where the query does not see the key. */
static __device__ __forceinline__ void attn_scale_values(float s[ATTN_TILE_BLOCKS][4][4],
                                                         const struct attn_range range[2],
                                                         const struct attn_scales &scales)
{
#pragma unroll
    for (int e = 0; e < 16 * ATTN_TILE_BLOCKS; e++) {
        uint32_t token = KV_BLOCK_TOKENS * (e / 16) + 8 * (threadIdx.x % 4) + 4 * (e % 2) +
                         e / 4 % 4;
        const struct attn_range &r = range[e % 4 / 2];
        float &x = s[e / 16][e / 4 % 4][e % 4];

        x = token < r.lo || token >= r.hi
                ? 0
                : x * attn_scale_at(scales, e / 16, e % 2, e / 4 % 4);
    }
}

/* o of one group of 32 dimensions: o[e][0 .. 1] are dims 8c + e and 8c + 4 + e of the first query,
 * o[e][2 .. 3] those of the second. values(b, s) returns 16 bytes of row 4c + s of V's block b. */
template <enum dtype TYPE, typename Values>
static __device__ __forceinline__ void attn_tile_values(float o[4][4], const struct attn_tile &t,
                                                        const Values &values)
{
#pragma unroll
    for (int e = 0; e < 16; e++)
        o[e / 4][e % 4] = 0;
#pragma unroll
    for (int k = 0; k < 2 * ATTN_TILE_BLOCKS; k++)
        attn_mma4<TYPE>(o, t.p[k], values(k / 2, 2 * (k % 2)), values(k / 2, 2 * (k % 2) + 1));
}

/* Words of V with tokens t and t + 1 of a tile: tokens outside the range become 0. */
static __device__ __forceinline__ uint4 attn_select(uint4 v, uint32_t t, struct attn_range r)
{
    uint32_t mask = (t >= r.lo && t < r.hi ? 0x0000ffffu : 0) |
                    (t + 1 >= r.lo && t + 1 < r.hi ? 0xffff0000u : 0);

    return make_uint4(v.x & mask, v.y & mask, v.z & mask, v.w & mask);
}

#endif
