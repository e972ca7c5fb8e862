/* attn_decode.cu - attention of sequences with one row: split over segments, then combined.
 *
 * Decode reads every key and value once for a few queries, so its speed depends on the number of
 * loads in flight. Each warp keeps half of its tile in flight in registers: up to 128 dimensions of
 * K, then V in their place. Warps share only the results of a segment's tiles.
 *
 * A segment that several sequences have is read once for as many of them as fill the 16 rows of an
 * mma: four where four query heads share a KV head. A row of an mma depends on no other row, so a
 * query has the same bits in any company. */
#include "base/check.h"
#include "kernels/cuda/attn_launch.cuh"
#include "kernels/cuda/attn_tile.cuh"
#include "kernels/cuda/rounded.cuh"

#define THREADS(dim) (ATTN_SEGMENT_TILES * ATTN_PARTS(dim) * WARP)
#define SHARED_BYTES_PLAIN 49152 /* more must be asked for */
#define VALUES_AHEAD 2 /* groups of V in flight while one is used */

/* Results of a segment's tiles, one tile per warp, or per pair of them. Aligned, since o is stored
 * four floats at a time. */
template <int DIM>
struct __align__(16) results {
    float o[ATTN_SEGMENT_TILES][ATTN_QUERIES][DIM + 4]; /* + 4: two queries are never in one bank */
    float2 ml[ATTN_SEGMENT_TILES][ATTN_QUERIES];
    uint32_t slots[ATTN_WORK_MAX]; /* of the members, in the partial results */
};

/* A sequence that reads the block's segment. Lane i of each warp has member i. */
struct member {
    uint32_t slot; /* of its segment: index of the partial result */
    uint32_t row;
    uint32_t pos;
};

/* The work of one block at a time: a segment, and up to 16 queries that share a KV head. Query i is
 * head i % n_heads of member first + i / n_heads. */
struct piece {
    struct attn_segment seg;
    uint32_t pos; /* of the first member; the others see the same keys */
    uint32_t kv_head;
    uint32_t head0;
    uint32_t n_heads; /* of each member */
    uint32_t first;
    uint32_t n_queries;
};

/* The members of the block's group whose partial results have slots; returns how many. */
static __device__ __forceinline__ uint32_t find_members(const struct attn_job &job,
                                                        struct member *out)
{
    const struct attention_params &p = job.p;
    struct attn_work work = {blockIdx.x, 0, 1};
    uint32_t lane = threadIdx.x % WARP, n = 1;

    if (p.work) {
        n = attn_min(p.work[blockIdx.x].n, ATTN_WORK_MAX);
        if (n == 0)
            return 0;
        work = p.work[blockIdx.x + attn_min(lane, n - 1)];
    } else {
        const struct attn_seq last = p.seqs[p.n_seqs - 1];

        if (blockIdx.x >= last.seg0 + last.n_segs) /* padding */
            return 0;
        work.seq = attn_find_seq(p.seqs, p.n_seqs, blockIdx.x,
                                 [](const struct attn_seq &s, uint32_t) { return s.seg0; });
    }
    const struct attn_seq seq = p.seqs[work.seq];
    *out = {work.segment, seq.row0, seq.pos0};
    /* Segments ascend with sequences, so members without slots are the last ones. */
    return (uint32_t)__popc(
        __ballot_sync(FULL_WARP, lane < n && attn_is_split(seq, job.n_partial_segs)));
}

/* Four words as they are in memory, on the way to registers. select() makes tokens t and t + 1, of
 * which the words are, zeros where they are outside the range. */
template <enum dtype TYPE>
struct words {
    uint4 x;

    __device__ __forceinline__ uint4 get() const { return x; }
    __device__ __forceinline__ void select(uint32_t t, struct attn_range range)
    {
        x = attn_select(x, t, range);
    }
};

template <>
struct words<DTYPE_F16> {
    uint4 x; /* of two rows */

    __device__ __forceinline__ uint4 get() const { return attn_weave(x); }
    __device__ __forceinline__ void select(uint32_t t, struct attn_range range)
    {
        if (t < range.lo || t >= range.hi)
            x.x = x.y = 0;
        if (t + 1 < range.lo || t + 1 >= range.hi)
            x.z = x.w = 0;
    }
};

template <>
struct words<DTYPE_I8> {
    uint2 x;

    __device__ __forceinline__ uint4 get() const { return attn_widen<DTYPE_I8>(x); }
    __device__ __forceinline__ void select(uint32_t, struct attn_range) {} /* p is 0 */
};

template <>
struct words<DTYPE_F8> {
    uint2 x;

    __device__ __forceinline__ uint4 get() const { return attn_widen<DTYPE_F8>(x); }
    __device__ __forceinline__ void select(uint32_t, struct attn_range) {} /* p is 0 */
};

/* Four words of K or V, whose rows have ROW words. Zeros if not valid. */
template <uint32_t ROW>
static __device__ __forceinline__ void load_words(words<DTYPE_BF16> &w, const unsigned char *at,
                                                  bool valid)
{
    w.x = load_once16_if(at, valid);
}

template <uint32_t ROW>
static __device__ __forceinline__ void load_words(words<DTYPE_F16> &w, const unsigned char *at,
                                                  bool valid)
{
    w.x = attn_load_halves<ROW>(at, valid);
}

template <uint32_t ROW, enum dtype TYPE>
static __device__ __forceinline__ void load_words(words<TYPE> &w, const unsigned char *at,
                                                  bool valid)
{
    w.x = attn_load_bytes<ROW>(at, valid);
}

#define STEPS(dim) ((dim) / 16) /* of 16 dimensions */

/* A step of K: rows 4c and 4c + 4 behind it. */
template <enum dtype TYPE>
struct key_step {
    words<TYPE> lo, hi;
};

/* `at`: the lane's words of the first step. */
template <enum dtype TYPE>
static __device__ __forceinline__ void load_keys(key_step<TYPE> &k, int step,
                                                 const unsigned char *at, bool valid)
{
    constexpr uint32_t ROW_BYTES = KV_BLOCK_TOKENS * ATTN_PAIR_BYTES(TYPE);

    load_words<KV_BLOCK_TOKENS>(k.lo, at + 8 * step * ROW_BYTES, valid);
    load_words<KV_BLOCK_TOKENS>(k.hi, at + (8 * step + 4) * ROW_BYTES, valid);
}

/* A group of 32 dimensions of V, with all rows of the tile. */
template <enum dtype TYPE>
struct value_group {
    words<TYPE> rows[ATTN_TILE_BLOCKS][4];
};

/* `at`: the lane's words of the part's first group in each block. */
template <int DIM, enum dtype TYPE>
static __device__ __forceinline__ void
load_values(value_group<TYPE> &v, int group, const unsigned char *const at[ATTN_TILE_BLOCKS],
            uint32_t n)
{
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    bool in_row = DIM % 32 == 0 || 8 * group + g < DIM / 4;

#pragma unroll
    for (int b = 0; b < ATTN_TILE_BLOCKS; b++)
#pragma unroll
        for (int s = 0; s < 4; s++)
            load_words<DIM>(v.rows[b][s],
                            at[b] + s * DIM * ATTN_PAIR_BYTES(TYPE) +
                                8 * group * ATTN_QUAD_BYTES(TYPE),
                            in_row && KV_BLOCK_TOKENS * b + 2 * (4 * c + s) < n);
}

/* Slots that the row does not see may contain anything, even NaN, and 0 * NaN would be NaN. */
template <enum dtype TYPE>
static __device__ __forceinline__ void select_values(value_group<TYPE> &v, struct attn_range range)
{
    uint32_t c = threadIdx.x % 4;

#pragma unroll
    for (int b = 0; b < ATTN_TILE_BLOCKS; b++)
#pragma unroll
        for (int s = 0; s < 4; s++)
            v.rows[b][s].select(KV_BLOCK_TOKENS * b + 2 * (4 * c + s), range);
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

/* Query i of the piece; NULL behind the last one. All lanes of a warp call it together. */
template <int DIM>
static __device__ __forceinline__ const float *query_at(const struct attention_params &p,
                                                        const struct piece &piece,
                                                        const struct member &member, uint32_t i)
{
    uint32_t at = i / piece.n_heads, head = piece.head0 + i - at * piece.n_heads;
    uint32_t row = __shfl_sync(FULL_WARP, member.row, piece.first + at);

    return i < piece.n_queries ? p.q + row * p.q_stride + (size_t)head * DIM : NULL;
}

/* Addresses of a tile's K and V, by block, and the number of its tokens. */
struct tile_source {
    const unsigned char *k[ATTN_TILE_BLOCKS], *v[ATTN_TILE_BLOCKS];
    uint32_t n;
};

template <enum dtype TYPE>
static __device__ __forceinline__ struct tile_source find_tile(const struct attention_params &p,
                                                               const struct piece &piece,
                                                               uint32_t token0)
{
    struct tile_source from;
    const uint32_t *blocks = p.blocks + piece.seg.block0 + token0 / KV_BLOCK_TOKENS;

    from.n = attn_min(piece.seg.n_tokens - token0, ATTN_TILE);
#pragma unroll
    for (uint32_t b = 0; b < ATTN_TILE_BLOCKS; b++) {
        uint32_t block = blocks[KV_BLOCK_TOKENS * b < from.n ? b : 0];

        from.k[b] = kv_at_as<TYPE>(p.pool, block, p.layer, 0, piece.kv_head);
        from.v[b] = kv_at_as<TYPE>(p.pool, block, p.layer, 1, piece.kv_head);
    }
    return from;
}

/* Return the warp's tile of the segment; warp_part(): its part of the dimensions. */
template <int DIM>
static __device__ __forceinline__ uint32_t warp_tile()
{
    return threadIdx.x / WARP / ATTN_PARTS(DIM);
}

template <int DIM>
static __device__ __forceinline__ uint32_t warp_part()
{
    return threadIdx.x / WARP % ATTN_PARTS(DIM);
}

/* Compute the products of the queries with K, of the warp's part of the dimensions, and load the
 * first groups of V. */
template <int DIM, enum dtype TYPE, int N_GROUPS>
static __device__ __forceinline__ void
multiply_keys(float s[ATTN_TILE_BLOCKS][4][4], value_group<TYPE> (&v)[N_GROUPS],
              const unsigned char *const values[ATTN_TILE_BLOCKS], const struct tile_source &from,
              const float *const query[2])
{
    constexpr int N_STEPS = STEPS(ATTN_PART_DIMS(DIM));
    uint32_t g = threadIdx.x % WARP / 4, step0 = warp_part<DIM>() * N_STEPS;
    key_step<TYPE> k[ATTN_TILE_BLOCKS][N_STEPS];

#pragma unroll
    for (int b = 0; b < ATTN_TILE_BLOCKS; b++) {
        const unsigned char *at = attn_words_at<TYPE, KV_BLOCK_TOKENS>(
            from.k[b], 8 * step0 + threadIdx.x % 4, g);

#pragma unroll
        for (int i = 0; i < N_STEPS; i++)
            load_keys(k[b][i], i, at, KV_BLOCK_TOKENS * b + 4 * g < from.n);
    }
#pragma unroll
    for (int e = 0; e < 16 * ATTN_TILE_BLOCKS; e++)
        s[e / 16][e / 4 % 4][e % 4] = 0;
#pragma unroll
    for (int i = 0; i < N_STEPS; i++) {
        uint4 q = attn_tile_query<TYPE>(query, step0 + i);

#pragma unroll
        for (int b = 0; b < ATTN_TILE_BLOCKS; b++) {
            const key_step<TYPE> &step = k[b][i];

            attn_mma4<TYPE>(s[b], q, step.lo.get(), step.hi.get());
        }
        /* V takes the registers that K leaves. */
        if (i == (N_STEPS - 1) / 2)
            load_values<DIM, TYPE>(v[0], 0, values, from.n);
        if (ATTN_PARTS(DIM) == 1 && i == N_STEPS - 1 && N_GROUPS > 1)
            load_values<DIM, TYPE>(v[N_GROUPS > 1], 1, values, from.n);
    }
}

/* Turn products into p, and store maxima and sums. */
template <int DIM, enum dtype TYPE>
static __device__ __forceinline__ void weigh_keys(struct attn_tile &tile, struct results<DIM> &out,
                                                  float s[ATTN_TILE_BLOCKS][4][4],
                                                  const struct attention_params &p,
                                                  const struct tile_source &from,
                                                  struct attn_range range)
{
    const struct attn_range ranges[2] = {range, range};
    uint32_t g = threadIdx.x % WARP / 4;

    if (kv_dtype_is_scaled(TYPE))
        attn_scale_keys(s, scales_of_blocks<TYPE>(p.pool, from.k));
    attn_tile_scores(s, ranges, attn_scale_of(p));
    attn_tile_exp(tile, s);
    if (kv_dtype_is_scaled(TYPE))
        attn_scale_values(s, ranges, scales_of_blocks<TYPE>(p.pool, from.v));
    attn_tile_pack<TYPE>(tile, s);
    if (threadIdx.x % 4 == 0 && warp_part<DIM>() == 0) {
        out.ml[warp_tile<DIM>()][g] = make_float2(tile.m[0], tile.l[0]);
        out.ml[warp_tile<DIM>()][g + 8] = make_float2(tile.m[1], tile.l[1]);
    }
}

/* Compute o of the warp's part of the dimensions. */
template <int DIM, enum dtype TYPE, int N_GROUPS>
static __device__ __forceinline__ void
multiply_values(struct results<DIM> &out, const struct attn_tile &tile,
                value_group<TYPE> (&v)[N_GROUPS],
                const unsigned char *const values[ATTN_TILE_BLOCKS], uint32_t n,
                struct attn_range range)
{
    uint32_t g = threadIdx.x % WARP / 4;
    uint32_t at = warp_part<DIM>() * ATTN_PART_DIMS(DIM) + 8 * (threadIdx.x % 4);
    float(*o)[DIM + 4] = out.o[warp_tile<DIM>()];

#pragma unroll
    for (int u = 0; u < N_GROUPS; u++) {
        uint32_t dim = 32 * u + at;
        float acc[4][4];

        if (u + VALUES_AHEAD < N_GROUPS)
            load_values<DIM, TYPE>(v[u + VALUES_AHEAD], u + VALUES_AHEAD, values, n);
        if (range.hi - range.lo < ATTN_TILE)
            select_values(v[u], range);
        attn_tile_values<TYPE>(acc, tile,
                               [&](int b, int i) { return v[u].rows[b][i].get(); });
        if (DIM % 32 == 0 || dim < DIM)
            store_group(&o[g][dim], &o[g + 8][dim], acc);
    }
}

/* Compute this warp's tile of the segment, of which the members see `range`. Where two warps share
 * a tile, all threads of the block call it. */
template <int DIM, enum dtype TYPE>
static __device__ __forceinline__ void one_tile(struct results<DIM> &out,
                                                const struct attention_params &p,
                                                const struct piece &piece,
                                                const struct member &member,
                                                struct attn_range range)
{
    uint32_t g = threadIdx.x % WARP / 4, tile_index = warp_tile<DIM>();
    const float *query[2] = {query_at<DIM>(p, piece, member, g),
                             query_at<DIM>(p, piece, member, g + 8)};
    value_group<TYPE> v[ATTN_GROUPS(ATTN_PART_DIMS(DIM))];
    float s[ATTN_TILE_BLOCKS][4][4];
    const unsigned char *values[ATTN_TILE_BLOCKS];
    struct tile_source from;
    struct attn_tile tile;

    if (attn_sees(range)) {
        from = find_tile<TYPE>(p, piece, tile_index * ATTN_TILE);
#pragma unroll
        for (int b = 0; b < ATTN_TILE_BLOCKS; b++)
            values[b] = attn_words_at<TYPE, DIM>(
                from.v[b], 4 * (threadIdx.x % 4), warp_part<DIM>() * (ATTN_PART_DIMS(DIM) / 4) + g);
        multiply_keys<DIM, TYPE>(s, v, values, from, query);
    }
    if (ATTN_PARTS(DIM) > 1) {
        /* Where the other warp's o will be; row j of it has 16 bytes for each lane. */
        float *theirs = &out.o[tile_index][0][(1 - warp_part<DIM>()) * ATTN_PART_DIMS(DIM)];
        float *own = &out.o[tile_index][0][warp_part<DIM>() * ATTN_PART_DIMS(DIM)];
        uint32_t at = 4 * (threadIdx.x % WARP);

        static_assert(ATTN_PARTS(DIM) == 1 || ATTN_PART_DIMS(DIM) == 4 * WARP, "a row of products");
        if (attn_sees(range))
            attn_put_products(s, [&](int j) {
                return reinterpret_cast<float4 *>(theirs + j * (DIM + 4) + at);
            });
        __syncthreads(); /* the products are there */
        if (attn_sees(range))
            attn_add_products(s, [&](int j) {
                return reinterpret_cast<const float4 *>(own + j * (DIM + 4) + at);
            });
        __syncwarp(); /* all lanes have read what o replaces; the shuffles ensure that, too */
    }
    if (attn_sees(range)) {
        if (ATTN_PARTS(DIM) > 1) /* not earlier: there products take its registers */
            load_values<DIM, TYPE>(v[1 % (sizeof(v) / sizeof(v[0]))], 1, values, from.n);
        weigh_keys<DIM, TYPE>(tile, out, s, p, from, range);
        multiply_values<DIM, TYPE>(out, tile, v, values, from.n, range);
    }
}

/* Merge the tiles of the segment in order and write the partial results: four dimensions of one
 * query per thread. */
template <int DIM>
static __device__ __forceinline__ void merge_tiles(const struct results<DIM> &in,
                                                   const struct attn_job &job,
                                                   const struct piece &piece)
{
    const struct attention_params &p = job.p;

    for (uint32_t i = threadIdx.x; i < piece.n_queries * (DIM / 4); i += THREADS(DIM)) {
        uint32_t query = i / (DIM / 4), at = i % (DIM / 4) * 4, member = query / piece.n_heads;
        uint32_t head = piece.head0 + query - member * piece.n_heads;
        float m = -INFINITY, l = 0, o[4] = {0, 0, 0, 0};

        for (uint32_t t = 0; t < ATTN_SEGMENT_TILES; t++) {
            if (!attn_sees(attn_visible_tile(p.window, piece.pos, piece.seg, t * ATTN_TILE)))
                continue;
            struct attn_weights w = attn_weigh(m, in.ml[t][query].x);
            m = w.m;
            l = attn_join(l, in.ml[t][query].y, w);
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[e] = attn_join(o[e], in.o[t][query][at + e], w);
        }
        uint32_t slot = in.slots[piece.first + member];
        float *to = job.partials + ((size_t)slot * p.n_heads + head) * DIM + at;
        *reinterpret_cast<float4 *>(to) = make_float4(o[0], o[1], o[2], o[3]);
        if (at == 0)
            *attn_partial_ml(job, slot, head) = make_float2(m, l);
    }
}

/* How many members are computed together: all, unless a sliding window lets them see different keys
 * of the segment. Then values that one of them does not see could spoil its sums, if they are not
 * finite, so each is computed by itself. */
static __device__ __forceinline__ uint32_t members_together(const struct attn_job &job,
                                                            const struct piece &piece,
                                                            const struct member &member, uint32_t n)
{
    struct attn_range range =
        attn_visible(job.p.window, member.pos, piece.seg.pos0, piece.seg.n_tokens);
    uint32_t lo = __shfl_sync(FULL_WARP, range.lo, 0), hi = __shfl_sync(FULL_WARP, range.hi, 0);
    bool is_same = range.lo == lo && range.hi == hi;

    if (!__all_sync(FULL_WARP, is_same || threadIdx.x % WARP >= n))
        return 1;
    return attn_min(n, ATTN_QUERIES / piece.n_heads);
}

/* Grid (n_segs, G * n_head_groups), 4 warps, or 8 for heads of 256: a segment, and up to 16 heads
 * of each member. */
template <int DIM, enum dtype TYPE>
static __global__ void __launch_bounds__(THREADS(DIM), DIM <= 64 ? 3 : DIM <= 128 ? 2 : 1)
    attn_decode_kernel(struct attn_job job, uint32_t n_head_groups)
{
    static_assert(alignof(struct results<DIM>) >= alignof(float4), "o is stored by float4");
    static_assert(ATTN_WORK_MAX <= ATTN_QUERIES && ATTN_QUERIES < WARP, "a lane has a member");
    DYNAMIC_SHARED(struct results<DIM>, shared);
    struct results<DIM> &results = *shared;
    const struct attention_params &p = job.p;
    uint32_t group0 = blockIdx.y % n_head_groups * ATTN_QUERIES;
    struct member member;
    struct piece piece;
    uint32_t n = find_members(job, &member);

    if (n == 0)
        return;
    if (threadIdx.x < n)
        results.slots[threadIdx.x] = member.slot;
    piece.seg = p.segments[__shfl_sync(FULL_WARP, member.slot, 0)];
    piece.kv_head = blockIdx.y / n_head_groups;
    piece.head0 = piece.kv_head * job.n_shared + group0;
    piece.n_heads = attn_min(job.n_shared - group0, ATTN_QUERIES);
    uint32_t n_together = members_together(job, piece, member, n);

    for (piece.first = 0; piece.first < n; piece.first += n_together) {
        piece.pos = __shfl_sync(FULL_WARP, member.pos, piece.first);
        piece.n_queries = attn_min(n - piece.first, n_together) * piece.n_heads;
        struct attn_range range =
            attn_visible_tile(p.window, piece.pos, piece.seg, warp_tile<DIM>() * ATTN_TILE);

        if (ATTN_PARTS(DIM) > 1 || attn_sees(range))
            one_tile<DIM, TYPE>(results, p, piece, member, range);
        __syncthreads();
        if (attn_sees(attn_visible(p.window, piece.pos, piece.seg.pos0, piece.seg.n_tokens)))
            merge_tiles<DIM>(results, job, piece);
        if (n_together < n)
            __syncthreads(); /* the results are used again */
    }
}

/* --- combining --- */

#define COMBINE_WARPS 8
#define COMBINE_THREADS (COMBINE_WARPS * WARP)
#define COMBINE_ELEMENTS (4 * WARP) /* of a block */

typedef struct attn_joined<4> joined4;

/* Merge the partial results of segments [i, end) of one group, of this thread's four elements. */
static __device__ __forceinline__ void combine_group(joined4 *out, const float *o, const float2 *ml,
                                                     uint32_t i, uint32_t end, uint32_t n_elements,
                                                     uint32_t n_heads)
{
    float4 o_next[ATTN_GROUP_SEGMENTS];
    float2 ml_next[ATTN_GROUP_SEGMENTS];

    attn_joined_clear(*out);
#pragma unroll
    for (uint32_t k = 0; k < ATTN_GROUP_SEGMENTS; k++)
        if (i + k < end) {
            o_next[k] = *reinterpret_cast<const float4 *>(o + (size_t)(i + k) * n_elements);
            ml_next[k] = ml[(size_t)(i + k) * n_heads];
        }
#pragma unroll
    for (uint32_t k = 0; k < ATTN_GROUP_SEGMENTS; k++)
        if (i + k < end) {
            const float x[4] = {o_next[k].x, o_next[k].y, o_next[k].z, o_next[k].w};

            attn_joined_add(*out, ml_next[k].x, ml_next[k].y, x);
        }
}

/* Store four elements of a row; 0 behind its end. */
static __device__ __forceinline__ void combine_store(const struct attention_params &p,
                                                     uint32_t row, uint32_t at, const joined4 &r)
{
    uint32_t n = p.n_heads * p.pool.head_dim;
    float by = attn_inverse(r.l);

    put4<true>(p.rounded, row, p.out + (size_t)row * n, at, n,
               make_float4(r.o[0] * by, r.o[1] * by, r.o[2] * by, r.o[3] * by));
    if (p.lse && at < n && at % p.pool.head_dim == 0)
        p.lse[(size_t)row * p.n_heads + at / p.pool.head_dim] = attn_lse(r.m, r.l);
}

/* Grid (n_seqs * ceil(H * d / 128)): 128 elements of a row, merged in two levels. Each warp merges
 * the segments of a group, four elements per lane; then the first warp merges the groups in order.
 * The segments that the row sees are consecutive. */
static __global__ void __launch_bounds__(COMBINE_THREADS) attn_combine_kernel(struct attn_job job,
                                                                              uint32_t n_blocks)
{
    __shared__ joined4 groups[COMBINE_WARPS][WARP];
    const struct attention_params &p = job.p;
    const struct attn_seq seq = p.seqs[blockIdx.x / n_blocks];
    const struct attn_segment *segs = p.segments + seq.seg0;
    uint32_t n_elements = p.n_heads * p.pool.head_dim;
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    uint32_t at = blockIdx.x % n_blocks * COMBINE_ELEMENTS + 4 * lane;
    uint32_t first, end;
    joined4 row;

    let_next_begin(); /* a product, which loads its first weights meanwhile */
    if (!attn_is_split(seq, job.n_partial_segs))
        return;
    first = attn_first_segment(segs, seq.n_segs, attn_first_key(p.window, seq.pos0));
    end = attn_first_segment(segs, seq.n_segs, seq.pos0);
    if (end < seq.n_segs && segs[end].pos0 <= seq.pos0)
        end++; /* the segment with the row itself */
    attn_joined_clear(row);
    end = first < end ? end : 0; /* a row that sees no key has no group */
    for (uint32_t group0 = first / ATTN_GROUP_SEGMENTS; group0 * ATTN_GROUP_SEGMENTS < end;
         group0 += COMBINE_WARPS) {
        uint32_t from = (group0 + warp) * ATTN_GROUP_SEGMENTS;
        uint32_t to = attn_min(end, from + ATTN_GROUP_SEGMENTS);

        from = from > first ? from : first;
        if (from < to && at < n_elements)
            combine_group(&groups[warp][lane], job.partials + (size_t)seq.seg0 * n_elements + at,
                          attn_partial_ml(job, seq.seg0, at / p.pool.head_dim), from, to,
                          n_elements, p.n_heads);
        __syncthreads();
        for (uint32_t w = 0; w < COMBINE_WARPS && warp == 0 && at < n_elements; w++)
            if ((group0 + w) * ATTN_GROUP_SEGMENTS < end)
                attn_joined_group(row, groups[w][lane].m, groups[w][lane].l, groups[w][lane].o);
        __syncthreads(); /* the groups are used again */
    }
    if (warp == 0)
        combine_store(p, seq.row0, at, row);
}

template <int DIM, enum dtype TYPE>
static enum status launch(struct cuda_context *c, const struct attn_job *job, cudaStream_t s)
{
    const struct attention_params *p = &job->p;
    uint32_t n_head_groups = ceil_div(job->n_shared, ATTN_QUERIES);
    dim3 grid(p->n_segs, p->pool.n_kv_heads * n_head_groups);
    size_t n_bytes = sizeof(struct results<DIM>);
    enum status status = OK;

    if (n_bytes > SHARED_BYTES_PLAIN)
        status = cuda_check(c, allow_shared(attn_decode_kernel<DIM, TYPE>, n_bytes),
                            "cudaFuncSetAttribute");
    if (status != OK)
        return status;
    LAUNCH((attn_decode_kernel<DIM, TYPE>), grid, THREADS(DIM), n_bytes, s, *job, n_head_groups);
    return cuda_launched(c, "attn_decode");
}

enum status attn_decode(struct cuda_context *c, cudaStream_t s, const struct attn_job *job)
{
    const struct attention_params *p = &job->p;
    uint32_t n_out = row_length(p->rounded, p->n_heads * p->pool.head_dim);
    uint32_t n_blocks = ceil_div(n_out, COMBINE_ELEMENTS);

    ASSERT(p->n_heads <= 65535);                               /* limit of gridDim.y */
    ASSERT(p->n_segs <= INT32_MAX && /* limit of gridDim.x */
           (uint64_t)p->n_seqs * n_blocks <= INT32_MAX);
    if (p->n_segs > 0) {
        enum status status = ATTN_FOR(p->pool, launch, c, job, s);
        if (status != OK)
            return status;
    }
    LAUNCH(attn_combine_kernel, p->n_seqs * n_blocks, COMBINE_THREADS, 0, s, *job, n_blocks);
    return cuda_launched(c, "attn_combine");
}
