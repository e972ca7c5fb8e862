/* attn_decode.cu - attention of sequences with one row: split over segments, then combined.
 *
 * Decode reads every key and value once for a few queries, so its speed depends on the number of
 * loads in flight. Each warp keeps half of its tile in flight in registers: K while the queries are
 * loaded, V while the products of K are computed. Warps share only the results of a segment's
 * tiles. */
#include "base/check.h"
#include "kernels/cuda/attn_launch.cuh"
#include "kernels/cuda/attn_tile.cuh"
#include "kernels/cuda/rounded.cuh"

#define THREADS (ATTN_SEGMENT_TILES * WARP)
#define VALUES_AHEAD ATTN_TILE_BLOCKS /* groups of V in flight while one is used */

/* Results of a segment's tiles, one tile per warp. Aligned, since o is stored four floats at a
 * time. */
template <int DIM>
struct __align__(16) results {
    float o[ATTN_SEGMENT_TILES][ATTN_QUERIES][DIM + 4]; /* + 4: two queries are never in one bank */
    float2 ml[ATTN_SEGMENT_TILES][ATTN_QUERIES];
};

/* The work of one block: a segment, and up to 16 heads that share a KV head. */
struct piece {
    struct attn_segment seg;
    uint32_t slot;       /* index in the partial results */
    uint32_t row;
    uint32_t pos;
    uint32_t kv_head;
    uint32_t head0;
    uint32_t n_heads;
};

static __device__ __forceinline__ uint4 load_if(const uint4 *from, bool valid)
{
    return valid ? load_once16(from) : make_uint4(0, 0, 0, 0);
}

/* Four words as they are in memory, on the way to registers. */
template <enum dtype TYPE>
struct words {
    uint4 x;

    __device__ __forceinline__ uint4 get() const { return x; }
};

template <>
struct words<DTYPE_I8> {
    uint2 x;

    __device__ __forceinline__ uint4 get() const { return attn_widen<DTYPE_I8>(x); }
};

template <>
struct words<DTYPE_F8> {
    uint2 x;

    __device__ __forceinline__ uint4 get() const { return attn_widen<DTYPE_F8>(x); }
};

/* Words 4g .. 4g + 3 of row i of K or V; a row has ROW words. */
template <uint32_t ROW>
static __device__ __forceinline__ void load_words(words<DTYPE_BF16> &w, const unsigned char *head,
                                                  uint32_t i, uint32_t g, bool valid)
{
    w.x = load_if(reinterpret_cast<const uint4 *>(head) + i * (ROW / 4) + g, valid);
}

template <uint32_t ROW, enum dtype TYPE>
static __device__ __forceinline__ void load_words(words<TYPE> &w, const unsigned char *head,
                                                  uint32_t i, uint32_t g, bool valid)
{
    w.x = valid ? attn_load_bytes<ROW>(head, i, g) : make_uint2(0, 0);
}

template <int DIM, enum dtype TYPE>
struct half_tile_k {
    words<TYPE> rows[DIM / 8];
};

template <int DIM, enum dtype TYPE>
static __device__ __forceinline__ void load_keys(half_tile_k<DIM, TYPE> &k,
                                                 const unsigned char *from, uint32_t n)
{
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;

#pragma unroll
    for (int i = 0; i < DIM / 8; i++)
        load_words<KV_BLOCK_TOKENS>(k.rows[i], from, 4 * i + c, g, 4 * g < n);
}

/* A group of 32 dimensions of V, with all rows of the tile. */
template <enum dtype TYPE>
struct value_group {
    words<TYPE> rows[ATTN_TILE_BLOCKS][4];
};

template <int DIM, enum dtype TYPE>
static __device__ __forceinline__ void
load_values(value_group<TYPE> &v, int group, const unsigned char *const from[ATTN_TILE_BLOCKS],
            uint32_t n)
{
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    bool in_row = DIM % 32 == 0 || 8 * group + g < DIM / 4;

#pragma unroll
    for (int b = 0; b < ATTN_TILE_BLOCKS; b++)
#pragma unroll
        for (int s = 0; s < 4; s++) {
            uint32_t row = 4 * c + s;

            load_words<DIM>(v.rows[b][s], from[b], row, 8 * group + g,
                            in_row && KV_BLOCK_TOKENS * b + 2 * row < n);
        }
}

/* Slots that the row does not see may contain anything, even NaN, and 0 * NaN would be NaN. */
static __device__ __forceinline__ void select_values(value_group<DTYPE_BF16> &v,
                                                     struct attn_range range)
{
    uint32_t c = threadIdx.x % 4;

#pragma unroll
    for (int b = 0; b < ATTN_TILE_BLOCKS; b++)
#pragma unroll
        for (int s = 0; s < 4; s++)
            v.rows[b][s].x =
                attn_select(v.rows[b][s].x, KV_BLOCK_TOKENS * b + 2 * (4 * c + s), range);
}

template <enum dtype TYPE>
static __device__ __forceinline__ void select_values(value_group<TYPE> &, struct attn_range)
{
    /* bytes are finite, and p is 0 */
}

/* Store this lane's share of 32 dimensions of its two queries. */
static __device__ __forceinline__ void store_group(float *o0, float *o1, const float acc[4][4])
{
    float4 *to0 = reinterpret_cast<float4 *>(o0), *to1 = reinterpret_cast<float4 *>(o1);

    to0[0] = make_float4(acc[0][0], acc[1][0], acc[2][0], acc[3][0]);
    to0[1] = make_float4(acc[0][1], acc[1][1], acc[2][1], acc[3][1]);
    to1[0] = make_float4(acc[0][2], acc[1][2], acc[2][2], acc[3][2]);
    to1[1] = make_float4(acc[0][3], acc[1][3], acc[2][3], acc[3][3]);
}

/* The scales behind each of these heads of K or V. */
template <enum dtype TYPE>
static __device__ __forceinline__ struct attn_scales
scales_of_blocks(const struct kv_pool &pool, const unsigned char *const heads[ATTN_TILE_BLOCKS])
{
    const float *at[ATTN_TILE_BLOCKS];

#pragma unroll
    for (int b = 0; b < ATTN_TILE_BLOCKS; b++)
        at[b] = scales_of<TYPE>(pool, heads[b]);
    return attn_load_scales(at);
}

/* Compute this warp's tile of the segment. */
template <int DIM, enum dtype TYPE>
static __device__ __forceinline__ void one_tile(struct results<DIM> &out,
                                                const struct attention_params &p,
                                                const struct piece &piece, struct attn_range range)
{
    uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    uint32_t token0 = warp * ATTN_TILE, n = attn_min(piece.seg.n_tokens - token0, ATTN_TILE);
    const uint32_t *blocks = p.blocks + piece.seg.block0 + token0 / KV_BLOCK_TOKENS;
    uint32_t n1 = n > KV_BLOCK_TOKENS ? n - KV_BLOCK_TOKENS : 0;
    uint32_t block[ATTN_TILE_BLOCKS] = {blocks[0], blocks[n1 > 0]};
    const unsigned char *from_k[ATTN_TILE_BLOCKS], *from_v[ATTN_TILE_BLOCKS];
    half_tile_k<DIM, TYPE> k[ATTN_TILE_BLOCKS];
    value_group<TYPE> v[ATTN_GROUPS(DIM)];

#pragma unroll
    for (int b = 0; b < ATTN_TILE_BLOCKS; b++) {
        from_k[b] = kv_at_as<TYPE>(p.pool, block[b], p.layer, 0, piece.kv_head);
        from_v[b] = kv_at_as<TYPE>(p.pool, block[b], p.layer, 1, piece.kv_head);
        load_keys<DIM, TYPE>(k[b], from_k[b], b == 0 ? n : n1);
    }

    uint4 q[DIM / 16];
    const float *q0 = p.q + piece.row * p.q_stride + (size_t)(piece.head0 + g) * DIM;
    const float *query[2] = {g < piece.n_heads ? q0 : NULL,
                             g + 8 < piece.n_heads ? q0 + 8 * DIM : NULL};
    const struct attn_range ranges[2] = {range, range};
    float s[ATTN_TILE_BLOCKS][4][4];
    struct attn_tile tile;

#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        q[i] = attn_tile_query(query, i);
#pragma unroll
    for (int b = 0; b < ATTN_TILE_BLOCKS; b++) {
        attn_tile_products<DIM>(
            s[b], [&](int i) { return q[i]; }, [&](int i) { return k[b].rows[i].get(); });
        if (b < ATTN_GROUPS(DIM)) /* reuses the registers of k[b] */
            load_values<DIM, TYPE>(v[b], b, from_v, n);
    }
    if (kv_dtype_is_scaled(TYPE))
        attn_scale_keys(s, scales_of_blocks<TYPE>(p.pool, from_k));
    attn_tile_scores(s, ranges, attn_scale_of(p));
    attn_tile_exp(tile, s);
    if (kv_dtype_is_scaled(TYPE))
        attn_scale_values(s, ranges, scales_of_blocks<TYPE>(p.pool, from_v));
    attn_tile_pack(tile, s);
    if (c == 0) {
        out.ml[warp][g] = make_float2(tile.m[0], tile.l[0]);
        out.ml[warp][g + 8] = make_float2(tile.m[1], tile.l[1]);
    }
#pragma unroll
    for (int u = 0; u < ATTN_GROUPS(DIM); u++) {
        float acc[4][4];

        if (u + VALUES_AHEAD < ATTN_GROUPS(DIM))
            load_values<DIM, TYPE>(v[u + VALUES_AHEAD], u + VALUES_AHEAD, from_v, n);
        if (range.hi - range.lo < ATTN_TILE)
            select_values(v[u], range);
        attn_tile_values(acc, tile, [&](int b, int i) { return v[u].rows[b][i].get(); });
        if (DIM % 32 == 0 || 32 * u + 8 * c < DIM)
            store_group(&out.o[warp][g][32 * u + 8 * c], &out.o[warp][g + 8][32 * u + 8 * c], acc);
    }
}

/* Merge the tiles of the segment in order and write the partial result: four dimensions of one head
 * per thread. */
template <int DIM>
static __device__ __forceinline__ void merge_tiles(const struct results<DIM> &in,
                                                   const struct attn_job &job,
                                                   const struct piece &piece)
{
    const struct attention_params &p = job.p;

    for (uint32_t i = threadIdx.x; i < piece.n_heads * (DIM / 4); i += THREADS) {
        uint32_t head = i / (DIM / 4), at = i % (DIM / 4) * 4;
        float m = -INFINITY, l = 0, o[4] = {0, 0, 0, 0};

        for (uint32_t t = 0; t < ATTN_SEGMENT_TILES; t++) {
            if (!attn_sees(attn_visible_tile(p.window, piece.pos, piece.seg, t * ATTN_TILE)))
                continue;
            struct attn_weights w = attn_weigh(m, in.ml[t][head].x);
            m = w.m;
            l = attn_join(l, in.ml[t][head].y, w);
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[e] = attn_join(o[e], in.o[t][head][at + e], w);
        }
        size_t slot = (size_t)piece.slot * p.n_heads + piece.head0 + head;
        *reinterpret_cast<float4 *>(job.partials + slot * DIM + at) =
            make_float4(o[0], o[1], o[2], o[3]);
        if (at == 0)
            *attn_partial_ml(job, piece.slot, piece.head0 + head) = make_float2(m, l);
    }
}

/* Grid (n_segs, G * n_head_groups), 4 warps: a segment and up to 16 heads. */
template <int DIM, enum dtype TYPE>
static __global__ void __launch_bounds__(THREADS, DIM <= 64 ? 3 : 2)
    attn_decode_kernel(struct attn_job job, uint32_t n_head_groups)
{
    static_assert(alignof(struct results<DIM>) >= alignof(float4), "o is stored by float4");
    __shared__ struct results<DIM> results;
    const struct attention_params &p = job.p;
    const struct attn_seq last = p.seqs[p.n_seqs - 1];

    if (blockIdx.x >= last.seg0 + last.n_segs) /* padding */
        return;
    const struct attn_seq seq = p.seqs[attn_find_seq(
        p.seqs, p.n_seqs, blockIdx.x,
        [](const struct attn_seq &s, uint32_t) { return s.seg0; })];
    uint32_t group0 = blockIdx.y % n_head_groups * ATTN_QUERIES;

    if (!attn_is_split(seq, job.n_partial_segs))
        return;
    struct piece piece;
    piece.slot = blockIdx.x;
    piece.seg = p.segments[piece.slot];
    piece.row = seq.row0;
    piece.pos = seq.pos0;
    piece.kv_head = blockIdx.y / n_head_groups;
    piece.head0 = piece.kv_head * job.n_shared + group0;
    piece.n_heads = attn_min(job.n_shared - group0, ATTN_QUERIES);
    struct attn_range range =
        attn_visible_tile(p.window, piece.pos, piece.seg, threadIdx.x / WARP * ATTN_TILE);

    if (attn_sees(range))
        one_tile<DIM, TYPE>(results, p, piece, range);
    __syncthreads();
    if (attn_sees(attn_visible(p.window, piece.pos, piece.seg.pos0, piece.seg.n_tokens)))
        merge_tiles<DIM>(results, job, piece);
}

/* --- combining --- */

#define COMBINE_THREADS 128
#define COMBINE_AHEAD 16 /* segments whose partial results are loaded together */

/* Grid (n_seqs * ceil(H * d / 128)): a thread merges one element of a row over the segments that
 * the row sees, which are consecutive, in order, group by group. */
static __global__ void __launch_bounds__(COMBINE_THREADS) attn_combine_kernel(struct attn_job job,
                                                                              uint32_t n_blocks)
{
    const struct attention_params &p = job.p;
    const struct attn_seq seq = p.seqs[blockIdx.x / n_blocks];
    const struct attn_segment *segs = p.segments + seq.seg0;
    uint32_t n_elements = p.n_heads * p.pool.head_dim;
    uint32_t at = blockIdx.x % n_blocks * COMBINE_THREADS + threadIdx.x;

    let_next_begin(); /* a product, which loads its first weights meanwhile */
    if (!attn_is_split(seq, job.n_partial_segs) || at >= row_length(p.rounded, n_elements))
        return;
    if (at >= n_elements) {
        put1(p.rounded, seq.row0, p.out, at, n_elements, 0);
        return;
    }
    uint32_t head = at / p.pool.head_dim;
    uint32_t i = attn_first_segment(segs, seq.n_segs, attn_first_key(p.window, seq.pos0));
    uint32_t end = attn_first_segment(segs, seq.n_segs, seq.pos0);
    const float *o = job.partials + (size_t)seq.seg0 * n_elements + at;
    const float2 *ml = attn_partial_ml(job, seq.seg0, head);
    struct attn_joined row, group;

    attn_joined_clear(row);
    attn_joined_clear(group);
    if (end < seq.n_segs && segs[end].pos0 <= seq.pos0)
        end++; /* the segment with the row itself */
    for (; i < end; i += COMBINE_AHEAD) {
        float o_next[COMBINE_AHEAD];
        float2 ml_next[COMBINE_AHEAD];

#pragma unroll
        for (uint32_t k = 0; k < COMBINE_AHEAD; k++)
            if (i + k < end) {
                o_next[k] = o[(size_t)(i + k) * n_elements];
                ml_next[k] = ml[(size_t)(i + k) * p.n_heads];
            }
#pragma unroll
        for (uint32_t k = 0; k < COMBINE_AHEAD; k++)
            if (i + k < end) {
                attn_joined_add(group, ml_next[k].x, ml_next[k].y, o_next[k]);
                if ((i + k + 1) % ATTN_GROUP_SEGMENTS == 0 || i + k + 1 == end) {
                    attn_joined_group(row, group);
                    attn_joined_clear(group);
                }
            }
    }
    put1(p.rounded, seq.row0, p.out, at, n_elements, row.o * attn_inverse(row.l));
    if (p.lse && at % p.pool.head_dim == 0)
        p.lse[(size_t)seq.row0 * p.n_heads + head] = attn_lse(row.m, row.l);
}

template <int DIM, enum dtype TYPE>
static void launch(const struct attn_job *job, cudaStream_t s)
{
    const struct attention_params *p = &job->p;
    uint32_t n_head_groups = ceil_div(job->n_shared, ATTN_QUERIES);
    dim3 grid(p->n_segs, p->pool.n_kv_heads * n_head_groups);

    LAUNCH((attn_decode_kernel<DIM, TYPE>), grid, THREADS, 0, s, *job, n_head_groups);
}

enum status attn_decode(struct cuda_context *c, cudaStream_t s, const struct attn_job *job)
{
    const struct attention_params *p = &job->p;
    uint32_t n_out = row_length(p->rounded, p->n_heads * p->pool.head_dim);
    uint32_t n_blocks = ceil_div(n_out, COMBINE_THREADS);

    ASSERT(p->n_heads <= 65535);                               /* limit of gridDim.y */
    ASSERT(p->n_segs <= INT32_MAX && /* limit of gridDim.x */
           (uint64_t)p->n_seqs * n_blocks <= INT32_MAX);
    if (p->n_segs > 0) {
        ATTN_FOR(p->pool, launch, job, s);
        enum status status = cuda_launched(c, "attn_decode");
        if (status != OK)
            return status;
    }
    LAUNCH(attn_combine_kernel, p->n_seqs * n_blocks, COMBINE_THREADS, 0, s, *job, n_blocks);
    return cuda_launched(c, "attn_combine");
}
