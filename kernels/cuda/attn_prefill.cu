/* attn_prefill.cu - attention of sequences with several rows: many queries against each tile.
 *
 * A block of 4 warps takes 64 queries of one KV head, 16 per warp, and walks over the tiles that
 * any of them sees. K and V of a tile are copied to shared memory once for all warps: the next K
 * while V is used, the next V while K is used. This kernel also takes decoding sequences whose
 * partial results have no slot.
 *
 * Heads of 256: 16 queries per pair of warps. Each warp of a pair computes the products of half of
 * the dimensions, which the two exchange in the place of K, and o of half of the dimensions. A
 * block has 8 warps, or 4, and half of the queries, where shared memory is small: with 32 queries
 * it fits into the 99 KB of a GPU of compute capability 8.6 or 8.9. A row's bits are the same.
 *
 * A query has three states: of the segment, the group and the row. Registers hold that of the
 * segment. The group's o is in shared memory, where each lane uses only its own part, once per
 * segment. The row's o is in `out` while the walk goes on, and is touched once per group: of a row
 * with one group not at all.
 *
 * A few queries behind a long context make few blocks. Then each block walks one group and writes
 * its state as a partial result, and attn_groups_kernel joins the groups in order. */
#include "base/check.h"
#include "kernels/cuda/attn_walk.cuh"
#include "kernels/cuda/rounded.cuh"

#define QUERIES(dim, n_warps) ((n_warps) / ATTN_PARTS(dim) * ATTN_QUERIES) /* of a block */
#define SHARED_BYTES_BESIDE 1024 /* what is not dynamic */

/* Shared memory, in chunks of 16 bytes: K of a tile [2 blocks][DIM / 2 rows of words][8], V [2
 * blocks][16 rows][V_ROW], the groups' o of each warp, (m, l) of the rows. Eight lanes read 16
 * bytes each at once: two neighbouring chunks (g) of four rows (c). The chunk index is xored with
 * 2c, so that these are in distinct banks. */
template <int DIM>
struct layout {
    enum {
        K_BLOCK = DIM / 2 * 8,
        V_ROW = ATTN_GROUPS(DIM) * 8,
        V_BLOCK = KV_BLOCK_TOKENS / 2 * V_ROW,
        V = ATTN_TILE_BLOCKS * K_BLOCK,
        TOTAL = V + ATTN_TILE_BLOCKS * V_BLOCK,
        N_TOTAL = 4 * ATTN_GROUPS(ATTN_PART_DIMS(DIM)), /* of one thread; WARP chunks apart */
    };

    static constexpr size_t bytes(uint32_t n_warps)
    {
        return (TOTAL + (N_TOTAL + 1) * n_warps * WARP) * sizeof(uint4);
    }
};

static_assert(layout<256>::bytes(4) + SHARED_BYTES_BESIDE <= 99 << 10, "capability 8.6 and 8.9");

/* The warp's part of the dimensions, and the first of them. */
template <int DIM>
static __device__ __forceinline__ uint32_t warp_part()
{
    return threadIdx.x / WARP % ATTN_PARTS(DIM);
}

template <int DIM>
static __device__ __forceinline__ uint32_t first_dim()
{
    return warp_part<DIM>() * ATTN_PART_DIMS(DIM);
}

static __device__ __forceinline__ uint32_t k_chunk(uint32_t row, uint32_t chunk)
{
    return row * 8 + (chunk ^ 2 * (row % 4));
}

template <int DIM>
static __device__ __forceinline__ uint32_t v_chunk(uint32_t row, uint32_t chunk)
{
    return row * layout<DIM>::V_ROW + (chunk ^ 2 * (row / 4 % 4));
}

/* Words 4i .. 4i + 3 of K or V, whose rows have ROW words. Zeros if not valid. */
template <enum dtype TYPE, uint32_t ROW>
static __device__ __forceinline__ uint4 load_words(const unsigned char *head, uint32_t i,
                                                   bool valid)
{
    const unsigned char *at = attn_words_at<TYPE, ROW>(head, i / (ROW / 4), i % (ROW / 4));

    if constexpr (TYPE == DTYPE_BF16)
        return load_once16_if(at, valid);
    else if constexpr (TYPE == DTYPE_F16)
        return attn_weave(attn_load_halves<ROW>(at, valid));
    else
        return attn_widen<TYPE>(attn_load_bytes<ROW>(at, valid));
}

/* Copy these words. */
template <enum dtype TYPE, uint32_t ROW>
static __device__ __forceinline__ void copy_words(uint4 *to, const unsigned char *head, uint32_t i,
                                                  bool valid)
{
    if constexpr (TYPE == DTYPE_BF16)
        cp_async16(to, reinterpret_cast<const uint4 *>(head) + i, valid);
    else
        *to = load_words<TYPE, ROW>(head, i, valid);
}

/* The scales of a tile's K (v = 0) or V (v = 1). */
template <enum dtype TYPE>
static __device__ __forceinline__ struct attn_scales
tile_scales(const struct attention_params &p, const struct walk &w, int v)
{
    const struct attn_segment seg = p.segments[w.index];
    const uint32_t *blocks = p.blocks + seg.block0 + w.token0 / KV_BLOCK_TOKENS;
    const float *at[ATTN_TILE_BLOCKS];

#pragma unroll
    for (int b = 0; b < ATTN_TILE_BLOCKS; b++)
        at[b] = w.token0 + b * KV_BLOCK_TOKENS < seg.n_tokens
                    ? scales_of<TYPE>(p.pool,
                                      kv_at_as<TYPE>(p.pool, blocks[b], p.layer, v, blockIdx.y))
                    : NULL;
    return attn_load_scales(at);
}

/* Start copying K (V) of a tile. Slots behind the segment's end become 0. Words of KV in f16 and of
 * one byte are made on the way, so their copy is done when the call returns. */
template <int DIM, enum dtype TYPE, int N_WARPS>
static __device__ __forceinline__ void copy_keys(uint4 *k, const struct attention_params &p,
                                                 const struct walk &w)
{
    const struct attn_segment seg = p.segments[w.index];
    uint32_t n = attn_min(seg.n_tokens - w.token0, ATTN_TILE);
    const uint32_t *blocks = p.blocks + seg.block0 + w.token0 / KV_BLOCK_TOKENS;

#pragma unroll 1
    for (uint32_t t = 0; t < n; t += KV_BLOCK_TOKENS, k += layout<DIM>::K_BLOCK) {
        const unsigned char *head =
            kv_at_as<TYPE>(p.pool, blocks[t / KV_BLOCK_TOKENS], p.layer, 0, blockIdx.y);

#pragma unroll
        for (uint32_t i = threadIdx.x; i < layout<DIM>::K_BLOCK; i += N_WARPS * WARP)
            copy_words<TYPE, KV_BLOCK_TOKENS>(k + k_chunk(i / 8, i % 8), head, i,
                                              t + 4 * (i % 8) < n);
    }
}

template <int DIM, enum dtype TYPE, int N_WARPS>
static __device__ __forceinline__ void copy_values(uint4 *v, const struct attention_params &p,
                                                   const struct walk &w)
{
    const struct attn_segment seg = p.segments[w.index];
    uint32_t n = attn_min(seg.n_tokens - w.token0, ATTN_TILE);
    const uint32_t *blocks = p.blocks + seg.block0 + w.token0 / KV_BLOCK_TOKENS;

#pragma unroll 1
    for (uint32_t t = 0; t < ATTN_TILE; t += KV_BLOCK_TOKENS, v += layout<DIM>::V_BLOCK) {
        const unsigned char *head = kv_at_as<TYPE>(
            p.pool, blocks[t < n ? t / KV_BLOCK_TOKENS : 0], p.layer, 1, blockIdx.y);

#pragma unroll(DIM % 32 == 0 ? 8 : 1) /* otherwise each turn would compute its own addresses */
        for (uint32_t i = threadIdx.x; i < KV_BLOCK_TOKENS / 2 * (DIM / 4);
             i += N_WARPS * WARP)
            copy_words<TYPE, DIM>(v + v_chunk<DIM>(i / (DIM / 4), i % (DIM / 4)), head, i,
                                  t + 2 * (i / (DIM / 4)) < n);
    }
}

/* For a tile that some query sees only in part: zero the token behind the tile's end that shares a
 * word with the last one. Return in all threads, behind a barrier, whether V has inf or NaN: these
 * must not reach a query that does not see their key, since 0 * inf is NaN. */
template <int DIM, enum dtype TYPE>
static __device__ __forceinline__ bool clean_values(uint4 *v, uint32_t n)
{
    const struct attn_range range = {0, n};
    bool special = false;

    for (uint32_t i = threadIdx.x; i < ATTN_TILE / 2 * (DIM / 4); i += blockDim.x) {
        uint32_t row = i / (DIM / 4), at = v_chunk<DIM>(row, i % (DIM / 4));

        if (2 * row + 1 >= n)
            v[at] = attn_select(v[at], 2 * row, range);
        uint4 x = v[at];
        special |= has_special<TYPE>(x.x) || has_special<TYPE>(x.y) || has_special<TYPE>(x.z) ||
                   has_special<TYPE>(x.w);
    }
    return __syncthreads_or(special);
}

/* Copy V again, with zeros outside the range that a row sees. */
template <int DIM, enum dtype TYPE>
static __device__ __forceinline__ void select_values(uint4 *v, const struct attention_params &p,
                                                     uint32_t block0, struct attn_range range)
{
    __syncthreads(); /* all threads have used the old V */
    for (uint32_t i = threadIdx.x; i < ATTN_TILE / 2 * (DIM / 4); i += blockDim.x) {
        uint32_t row = i / (DIM / 4), chunk = i % (DIM / 4);
        bool valid = 2 * row < range.hi;
        uint32_t block = p.blocks[block0 + (valid ? row / 16 : 0)];
        uint4 x = load_words<TYPE, DIM>(kv_at_as<TYPE>(p.pool, block, p.layer, 1, blockIdx.y),
                                        row % 16 * (DIM / 4) + chunk, valid);

        v[v_chunk<DIM>(row, chunk)] = attn_select(x, 2 * row, range);
    }
    __syncthreads();
}

/* This lane's state of two queries within a segment: m, l, and dims 32u + 8c .. 8c + 7 of the
 * warp's part of o, where o[4u + e] is as attn_tile_values() returns it. */
template <int DIM>
struct state {
    float m[2];
    float l[2];
    float o[layout<DIM>::N_TOTAL][4];
};

template <int DIM>
static __device__ __forceinline__ void state_clear(state<DIM> &s)
{
    s.m[0] = s.m[1] = -INFINITY;
    s.l[0] = s.l[1] = 0;
#pragma unroll
    for (int i = 0; i < 4 * layout<DIM>::N_TOTAL; i++)
        s.o[i / 4][i % 4] = 0;
}

template <int DIM>
static __device__ __forceinline__ void total_clear(struct total &t)
{
    t.m[0] = t.m[1] = -INFINITY;
    t.l[0] = t.l[1] = -1;
#pragma unroll
    for (int i = 0; i < layout<DIM>::N_TOTAL; i++)
        t.o[WARP * i] = make_float4(0, 0, 0, 0);
}

/* Merge a tile into the segment's state. A query with an empty range keeps its state. */
template <int DIM, enum dtype TYPE>
static __device__ __forceinline__ void join_tile(state<DIM> &state, const struct attn_tile &tile,
                                                 const uint4 *v, const struct attn_range range[2])
{
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    struct attn_weights w[2];

    v += first_dim<DIM>() / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        w[r] = attn_weigh(state.m[r], tile.m[r]);
        if (attn_sees(range[r])) {
            state.m[r] = w[r].m;
            state.l[r] = attn_join(state.l[r], tile.l[r], w[r]);
        }
    }
#pragma unroll
    for (int u = 0; u < ATTN_GROUPS(ATTN_PART_DIMS(DIM)); u++) {
        float o[4][4];

        attn_tile_values<TYPE>(o, tile, [&](int b, int i) {
            return v[v_chunk<DIM>(KV_BLOCK_TOKENS / 2 * b + 4 * c + i, 8 * u + g)];
        });
#pragma unroll
        for (int e = 0; e < 16; e++)
            if (attn_sees(range[e % 4 / 2]))
                state.o[4 * u + e / 4][e % 4] =
                    attn_join(state.o[4 * u + e / 4][e % 4], o[e / 4][e % 4], w[e % 4 / 2]);
    }
}

/* Merge a tile whose V has arrived. `active`: this warp sees some of it. */
template <int DIM, enum dtype TYPE>
static __device__ __forceinline__ void use_values(state<DIM> &part, const struct attn_tile &tile,
                                                  const struct attention_params &p, uint4 *v,
                                                  const struct place &place, const struct walk &w,
                                                  const uint32_t row_pos[2],
                                                  bool active)
{
    const struct attn_segment seg = p.segments[w.index];
    const struct attn_range first = attn_visible_tile(p.window, place.first_pos, seg, w.token0),
                            last = attn_visible_tile(p.window, place.last_pos, seg, w.token0);
    uint32_t pos = place.last_pos;
    bool special = false;

    if (!kv_dtype_is_scaled(TYPE) &&
        (first.lo + last.lo > 0 || first.hi + last.hi < 2 * ATTN_TILE))
        special = clean_values<DIM, TYPE>(v, attn_min(seg.n_tokens - w.token0, ATTN_TILE));
    if (special)
        pos = place.first_pos;
#pragma unroll 1
    for (; pos <= place.last_pos; pos++) { /* one turn, unless inf or NaN force a turn per row */
        struct attn_range range[2];

        if (special)
            select_values<DIM, TYPE>(v, p, seg.block0 + w.token0 / KV_BLOCK_TOKENS,
                                     attn_visible_tile(p.window, pos, seg, w.token0));
        for (int r = 0; r < 2; r++) {
            range[r] = attn_visible_tile(p.window, row_pos[r], seg, w.token0);
            if (special && row_pos[r] != pos)
                range[r].hi = range[r].lo; /* only the rows at pos take part in this turn */
        }
        if (active)
            join_tile<DIM, TYPE>(part, tile, v, range);
    }
}

/* Merge a finished segment into the group's state. */
template <int DIM>
static __device__ __forceinline__ void join_segment(struct total &total, const state<DIM> &part,
                                                    const uint32_t row_pos[2], uint32_t window,
                                                    const struct attn_segment &seg)
{
    struct attn_weights w[2];
    bool sees[2];

#pragma unroll
    for (int r = 0; r < 2; r++) {
        w[r] = attn_weigh(total.m[r], part.m[r]);
        sees[r] = attn_sees(attn_visible(window, row_pos[r], seg.pos0, seg.n_tokens));
        if (sees[r]) {
            total.m[r] = w[r].m;
            total.l[r] = attn_join(total.l[r] < 0 ? 0 : total.l[r], part.l[r], w[r]);
        }
    }
#pragma unroll
    for (int i = 0; i < layout<DIM>::N_TOTAL; i++) {
        float4 o = total.o[WARP * i];

        if (sees[0]) {
            o.x = attn_join(o.x, part.o[i][0], w[0]);
            o.y = attn_join(o.y, part.o[i][1], w[0]);
        }
        if (sees[1]) {
            o.z = attn_join(o.z, part.o[i][2], w[1]);
            o.w = attn_join(o.w, part.o[i][3], w[1]);
        }
        total.o[WARP * i] = o;
    }
}

/* --- rows --- */

/* This lane's eight dimensions of query r in group u of 32 dimensions. */
static __device__ __forceinline__ void get_eight(float x[8], const struct total &t, int u, int r)
{
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float4 o = t.o[WARP * (4 * u + e)];

        x[e] = r == 0 ? o.x : o.z;
        x[4 + e] = r == 0 ? o.y : o.w;
    }
}

static __device__ __forceinline__ void put_eight(float *to, const float x[8])
{
    reinterpret_cast<float4 *>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4 *>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
}

/* Eight dimensions, rounded. */
static __device__ __forceinline__ void put_eight_rounded(uint16_t *to, enum dtype weights,
                                                         const float x[8])
{
    *reinterpret_cast<uint4 *>(to) =
        make_uint4(round_pair(weights, x[0], x[1]), round_pair(weights, x[2], x[3]),
                   round_pair(weights, x[4], x[5]), round_pair(weights, x[6], x[7]));
}

/* Join the group's state of query r to the row's, whose DIM dimensions of o are in `out` and whose
 * (m, l) is ml. The row's first group is taken as it is. `last`: divide by l, and write to
 * `rounded` unless that is NULL. Returns the row's (m, l). */
template <int DIM>
static __device__ __forceinline__ float2 join_group(const struct total &t, int r, float *out,
                                                    uint16_t *rounded, enum dtype weights,
                                                    float2 ml, bool last)
{
    uint32_t c = threadIdx.x % 4;
    float2 group = total_ml(t, r);

    if (group.y < 0 && !last)
        return ml;
    const struct group_join j = join_ml(&ml, group, last);

#pragma unroll 1
    for (int u = 0; u < ATTN_GROUPS(DIM); u++) {
        float *at = out + 32 * u + 8 * c, x[8];

        if (DIM % 32 != 0 && 32 * u + 8 * c >= DIM)
            continue;
        get_eight(x, t, u, r);
#pragma unroll
        for (int e = 0; e < 8; e++)
            x[e] = (j.stays ? at[e] : j.joins ? attn_join(at[e], x[e], j.w) : x[e]) * j.factor;
        if (last && rounded)
            put_eight_rounded(rounded + 32 * u + 8 * c, weights, x);
        else
            put_eight(at, x);
    }
    return ml;
}

/* A group ends; `last`: the row does too. rows: (m, l) of the thread's two rows. */
template <int DIM>
static __device__ __forceinline__ void end_group(const struct total &t, const struct attn_job &job,
                                                 const struct place &place, float4 *rows, bool last)
{
    const struct attention_params &p = job.p;

#pragma unroll 1
    for (int r = 0; r < 2; r++) {
        float2 *ml = reinterpret_cast<float2 *>(rows) + r;
        uint32_t head;
        size_t row;

        if (!find_query<ATTN_PARTS(DIM)>(job, place, r, &row, &head))
            continue;
        uint16_t *rounded = p.rounded.data ? p.rounded.data + row * p.rounded.stride : NULL;
        size_t at = head * DIM + first_dim<DIM>();

        *ml = join_group<ATTN_PART_DIMS(DIM)>(t, r, p.out + row * p.n_heads * DIM + at,
                                              rounded ? rounded + at : NULL, p.rounded.weights,
                                              *ml, last);
        if (warp_part<DIM>() > 0)
            continue;
        if (last && rounded && head == p.n_heads - 1)
            for (uint32_t i = p.n_heads * DIM + threadIdx.x % 4; i < p.rounded.stride; i += 4)
                rounded[i] = 0;
        if (last && p.lse && threadIdx.x % 4 == 0)
            p.lse[row * p.n_heads + head] = attn_lse(ml->x, ml->y);
    }
}

/* Write the group's states as partial results: slot row * n_groups + group. */
template <int DIM>
static __device__ __forceinline__ void write_partials(const struct total &t,
                                                      const struct attn_job &job,
                                                      const struct place &place)
{
    uint32_t c = threadIdx.x % 4;

#pragma unroll 1
    for (int r = 0; r < 2; r++) {
        uint32_t head;
        size_t row;

        if (!find_query<ATTN_PARTS(DIM)>(job, place, r, &row, &head) || total_ml(t, r).y < 0)
            continue;
        size_t slot = row * job.n_groups + blockIdx.z;
        float *to = job.partials + (slot * job.p.n_heads + head) * DIM + first_dim<DIM>();

#pragma unroll 1
        for (int u = 0; u < ATTN_GROUPS(ATTN_PART_DIMS(DIM)); u++) {
            float x[8];

            if (DIM % 32 != 0 && 32 * u + 8 * c >= DIM)
                continue;
            get_eight(x, t, u, r);
            put_eight(to + 32 * u + 8 * c, x);
        }
        if (c == 0 && warp_part<DIM>() == 0)
            *attn_partial_ml(job, slot, head) = total_ml(t, r);
    }
}

/* --- the walk --- */

/* Whether any query of the warp sees any key of a tile. */
static __device__ __forceinline__ bool sees_tile(const struct attention_params &p,
                                                 const struct walk &w, const uint32_t row_pos[2])
{
    const struct attn_segment seg = p.segments[w.index];

    return __any_sync(FULL_WARP,
                      attn_sees(attn_visible_tile(p.window, row_pos[0], seg, w.token0)) ||
                          attn_sees(attn_visible_tile(p.window, row_pos[1], seg, w.token0)));
}

/* The thread's part of shared memory for (m, l) of its two rows. */
template <int DIM>
static __device__ __forceinline__ float4 *rows_of(uint4 *shared)
{
    return reinterpret_cast<float4 *>(shared) + layout<DIM>::TOTAL +
           layout<DIM>::N_TOTAL * blockDim.x + threadIdx.x;
}

/* Add the products of the other half of the dimensions to those of this warp. `exchange`: memory
 * that nothing else uses now. All threads of the block call it. */
static __device__ __forceinline__ void join_products(float s[ATTN_TILE_BLOCKS][4][4],
                                                     uint4 *exchange, bool active)
{
    float4 *at = reinterpret_cast<float4 *>(exchange) + threadIdx.x % WARP;
    uint32_t warp = threadIdx.x / WARP;

    if (active)
        attn_put_products(s, [&](int j) { return at + (8 * warp + j) * WARP; });
    __syncthreads(); /* the products are there */
    if (active)
        attn_add_products(s, [&](int j) { return at + (8 * (warp ^ 1) + j) * WARP; });
    __syncthreads(); /* all threads have used them */
}

/* Walk all tiles for one warp's queries. Every warp of the block takes part in every copy and
 * barrier. */
template <int DIM, enum dtype TYPE, int N_WARPS>
static __device__ __forceinline__ void walk_tiles(struct total &total, const struct attn_job &job,
                                                  const struct place &place, uint4 *k,
                                                  const uint4 q[ATTN_PART_DIMS(DIM) / 16],
                                                  struct walk next,
                                                  const uint32_t row_pos[2])
{
    const struct attention_params &p = job.p;
    uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    uint4 *v = k + layout<DIM>::V, *own_k = k + k_chunk(first_dim<DIM>() / 2, 0);
    state<DIM> part;

    state_clear(part);
    if (!walk_ended(next, place))
        copy_keys<DIM, TYPE, N_WARPS>(k, p, next);
    cp_async_commit();
    if (!walk_ended(next, place))
        copy_values<DIM, TYPE, N_WARPS>(v, p, next);
    cp_async_commit();
    while (!walk_ended(next, place)) {
        const struct walk w = next;
        const bool active = sees_tile(p, w, row_pos);
        float s[ATTN_TILE_BLOCKS][4][4];
        struct attn_tile tile;

        cp_async_wait<1>();
        __syncthreads(); /* K has arrived */
        if (active)
#pragma unroll
            for (int b = 0; b < ATTN_TILE_BLOCKS; b++)
                attn_tile_products<ATTN_PART_DIMS(DIM), TYPE>(
                    s[b], [&](int i) { return q[i]; },
                    [&](int i) { return own_k[b * layout<DIM>::K_BLOCK + k_chunk(4 * i + c, g)]; });
        cp_async_wait<0>();
        __syncthreads(); /* V has arrived, and all threads have used K */
        if (ATTN_PARTS(DIM) > 1)
            join_products(s, k, active);
        next.token0 += ATTN_TILE;
        walk_settle(&next, p, place);
        if (!walk_ended(next, place))
            copy_keys<DIM, TYPE, N_WARPS>(k, p, next);
        cp_async_commit();
        if (active) {
            const struct attn_segment seg = p.segments[w.index];
            const struct attn_range range[2] = {
                attn_visible_tile(p.window, row_pos[0], seg, w.token0),
                attn_visible_tile(p.window, row_pos[1], seg, w.token0)};

            if (kv_dtype_is_scaled(TYPE))
                attn_scale_keys(s, tile_scales<TYPE>(p, w, 0));
            attn_tile_scores(s, range, attn_scale_of(p));
            attn_tile_exp(tile, s);
            if (kv_dtype_is_scaled(TYPE))
                attn_scale_values(s, range, tile_scales<TYPE>(p, w, 1));
            attn_tile_pack<TYPE>(tile, s);
        }
        use_values<DIM, TYPE>(part, tile, p, v, place, w, row_pos, active);
        if (next.index != w.index) {
            join_segment<DIM>(total, part, row_pos, p.window, p.segments[w.index]);
            if (!walk_ended(next, place) && in_other_group(p, place, w.index, next.index)) {
                end_group<DIM>(total, job, place, rows_of<DIM>(k), false);
                total_clear<DIM>(total);
            }
            state_clear(part);
        }
        __syncthreads(); /* all threads have used V */
        if (!walk_ended(next, place))
            copy_values<DIM, TYPE, N_WARPS>(v, p, next);
        cp_async_commit();
    }
}

/* Grid (n_tiles, G, groups or 1), N_WARPS warps: 64 queries of one sequence and KV head, or 32. */
template <int DIM, enum dtype TYPE, int N_WARPS>
static __global__ void __launch_bounds__(N_WARPS *WARP, 8 / N_WARPS)
    attn_prefill_kernel(struct attn_job job)
{
    DYNAMIC_SHARED(uint4, shared);
    __shared__ struct place place;
    const struct attention_params &p = job.p;
    struct place own;

    if (!find_place<QUERIES(DIM, N_WARPS)>(&own, job, false))
        return;
    const struct attn_seq seq = p.seqs[own.seq];
    struct walk walk = walk_start<QUERIES(DIM, N_WARPS)>(job, seq, &own);

    if (job.n_groups > 0 && walk_ended(walk, own))
        return;
    if (threadIdx.x == 0)
        place = own;
    /* Lanes behind the last query compute zeros at its position, so that they see the same
     * tiles. */
    uint32_t head0 = blockIdx.y * job.n_shared, n_queries = seq.n_rows * job.n_shared;
    struct total total;
    const float *from[2];
    uint32_t row_pos[2];
    uint4 q[ATTN_PART_DIMS(DIM) / 16];

    for (int r = 0; r < 2; r++) {
        uint32_t query = lane_query<ATTN_PARTS(DIM)>(own.block0, r);
        uint32_t row = seq.row0 + query / job.n_shared;
        const float *x = p.q + row * p.q_stride + (size_t)(head0 + query % job.n_shared) * DIM;

        row_pos[r] = seq.pos0 + attn_min(query, n_queries - 1) / job.n_shared;
        from[r] = query < n_queries ? x : NULL;
    }
#pragma unroll
    for (int i = 0; i < ATTN_PART_DIMS(DIM) / 16; i++)
        q[i] = attn_tile_query<TYPE>(from, first_dim<DIM>() / 16 + i);
    total.o = reinterpret_cast<float4 *>(shared) + layout<DIM>::TOTAL +
              threadIdx.x / WARP * (layout<DIM>::N_TOTAL * WARP) + threadIdx.x % WARP;
    total_clear<DIM>(total);
    reinterpret_cast<float2 *>(rows_of<DIM>(shared))[0] = no_row();
    reinterpret_cast<float2 *>(rows_of<DIM>(shared))[1] = no_row();
    __syncthreads(); /* `place` is there */
    walk_tiles<DIM, TYPE, N_WARPS>(total, job, place, shared, q, walk, row_pos);
    if (job.n_groups > 0)
        write_partials<DIM>(total, job, place);
    else
        end_group<DIM>(total, job, place, rows_of<DIM>(shared), true);
}

/* --- groups --- */

#define JOIN_THREADS 128

/* Grid (T * ceil(H * d / 128)): a thread joins one element of a row over the groups that the row
 * sees, which are consecutive, in order. */
static __global__ void __launch_bounds__(JOIN_THREADS) attn_groups_kernel(struct attn_job job,
                                                                          uint32_t n_blocks)
{
    const struct attention_params &p = job.p;
    uint32_t row = blockIdx.x / n_blocks, n_elements = p.n_heads * p.pool.head_dim;
    uint32_t at = blockIdx.x % n_blocks * JOIN_THREADS + threadIdx.x;
    const struct attn_seq seq = p.seqs[attn_find_seq(
        p.seqs, p.n_seqs, row, [](const struct attn_seq &s, uint32_t) { return s.row0; })];
    const struct attn_segment *segs = p.segments + seq.seg0;

    if (attn_is_split(seq, job.n_partial_segs) || at >= row_length(p.rounded, n_elements))
        return;
    if (at >= n_elements) {
        put1(p.rounded, row, p.out, at, n_elements, 0);
        return;
    }
    uint32_t head = at / p.pool.head_dim, pos = seq.pos0 + row - seq.row0;
    uint32_t first = attn_first_segment(segs, seq.n_segs, attn_first_key(p.window, pos));
    uint32_t end = attn_first_segment(segs, seq.n_segs, pos);
    struct attn_joined<1> joined;

    attn_joined_clear(joined);
    if (end < seq.n_segs && segs[end].pos0 <= pos)
        end++; /* the segment with the row itself */
    for (uint32_t i = first / ATTN_GROUP_SEGMENTS; first < end && i * ATTN_GROUP_SEGMENTS < end;
         i++) {
        size_t slot = (size_t)row * job.n_groups + i;
        float2 ml = *attn_partial_ml(job, slot, head);

        attn_joined_group(joined, ml.x, ml.y, &job.partials[slot * n_elements + at]);
    }
    put1(p.rounded, row, p.out, at, n_elements, joined.o[0] * attn_inverse(joined.l));
    if (p.lse && at % p.pool.head_dim == 0)
        p.lse[(size_t)row * p.n_heads + head] = attn_lse(joined.m, joined.l);
}

/* --- launching --- */

template <int DIM, enum dtype TYPE, int N_WARPS>
static enum status launch_warps(struct cuda_context *c, cudaStream_t s, const struct attn_job *job,
                                uint32_t n_tiles)
{
    dim3 grid(n_tiles, job->p.pool.n_kv_heads, job->n_groups ? job->n_groups : 1);
    size_t n_bytes = layout<DIM>::bytes(N_WARPS);
    enum status status = cuda_check(c,
                                    allow_shared(attn_prefill_kernel<DIM, TYPE, N_WARPS>, n_bytes),
                                    "cudaFuncSetAttribute");

    if (status != OK)
        return status;
    LAUNCH((attn_prefill_kernel<DIM, TYPE, N_WARPS>), grid, N_WARPS *WARP, n_bytes, s, *job);
    return cuda_launched(c, "attn_prefill");
}

/* Return the warps of a block. Blocks of 8 warps for heads of 256 read KV half as often; KV of one
 * byte is half as long. */
static uint32_t block_warps(const struct cuda_context *c, const struct kv_pool *pool)
{
    bool fits = c->shared_max >= layout<256>::bytes(8) + SHARED_BYTES_BESIDE;

    return pool->head_dim == 256 && !kv_dtype_is_scaled(pool->layout.dtype) && fits ? 8 : 4;
}

template <int DIM, enum dtype TYPE>
static enum status launch(struct cuda_context *c, cudaStream_t s, const struct attn_job *job,
                          uint32_t n_tiles)
{
    if constexpr (ATTN_PARTS(DIM) > 1 && (TYPE == DTYPE_BF16 || TYPE == DTYPE_F16))
        if (block_warps(c, &job->p.pool) == 8)
            return launch_warps<DIM, TYPE, 8>(c, s, job, n_tiles);
    return launch_warps<DIM, TYPE, 4>(c, s, job, n_tiles);
}

/* The groups that blocks share: where a block for each n_queries queries would leave half of the
 * GPU idle, which has room for two on each multiprocessor, and the partial results fit. 0: a block
 * walks all groups. */
static uint32_t choose_groups(const struct cuda_context *c, const struct attn_job *job,
                              uint32_t n_queries)
{
    const struct attention_params *p = &job->p;
    uint32_t n_groups = ceil_div(p->n_segs_max, ATTN_GROUP_SEGMENTS);
    uint64_t n_full = (uint64_t)p->n_rows * job->n_shared / n_queries + 1;
    bool is_idle = n_full * p->pool.n_kv_heads < (uint64_t)c->n_sms;
    bool fits = (uint64_t)p->n_rows * n_groups <= job->n_partial_segs && n_groups <= 65535;

    return n_groups > 1 && is_idle && fits ? n_groups : 0;
}

enum status attn_prefill(struct cuda_context *c, cudaStream_t s, const struct attn_job *job)
{
    const struct attention_params *p = &job->p;
    uint32_t n_queries = QUERIES(p->pool.head_dim, block_warps(c, &p->pool));
    uint64_t n_tiles = (uint64_t)p->n_rows * job->n_shared / n_queries + p->n_seqs;
    uint32_t n_out = row_length(p->rounded, p->n_heads * p->pool.head_dim);
    uint32_t n_blocks = ceil_div(n_out, JOIN_THREADS);
    bool some_wide = job->has_wide &&
                     (uint64_t)p->n_rows_max * job->n_shared >= ATTN_WIDE_QUERIES;
    struct attn_job prefill = *job;
    enum status status = OK;

    ASSERT(p->pool.n_kv_heads <= 65535 && n_tiles <= INT32_MAX);
    prefill.n_groups = choose_groups(c, job, some_wide ? ATTN_WIDE_QUERIES : n_queries);
    if (!some_wide || p->n_seqs > 1)
        status = ATTN_FOR(p->pool, launch, c, s, &prefill, (uint32_t)n_tiles);
    if (status == OK && some_wide)
        status = attn_wgmma(c, s, &prefill);
    if (status != OK || prefill.n_groups == 0)
        return status;
    ASSERT((uint64_t)p->n_rows * n_blocks <= INT32_MAX);
    LAUNCH(attn_groups_kernel, p->n_rows * n_blocks, JOIN_THREADS, 0, s, prefill, n_blocks);
    return cuda_launched(c, "attn_groups");
}
