/* attn_operands.cuh - the shared memory of a block of attn_wgmma.cu, and the warpgroup that brings
 * K and V there.
 *
 * An operand in shared memory has 16 bytes along the dimension that the product sums over, while
 * KV in memory has pairs: K is [d / 2][32 tokens][2], V is [16][d][2 tokens]. So a row of words
 * must become a column. A thread loads 16 bytes of each of four rows of words, which are 16 bytes
 * of each of four rows of the operand: what it stores is what it loaded, with other names for the
 * registers. Eight lanes store eight different units of a row, so the banks are distinct.
 *
 * Owns    nothing.
 * Thread  device code; bring_tiles() by all threads of the last warpgroup.
 * Errors  none.
 * Units   bytes, tokens. */
#ifndef TARN_KERNELS_CUDA_ATTN_OPERANDS_CUH
#define TARN_KERNELS_CUDA_ATTN_OPERANDS_CUH

#include "kernels/cuda/attn_walk.cuh"
#include "kernels/cuda/matrix_descriptor.cuh"
#include "kernels/cuda/ptx_sm90.cuh"

#define GROUP_QUERIES 64 /* of a warpgroup */
#define N_GROUPS 2
#define BLOCK_QUERIES (N_GROUPS * GROUP_QUERIES)
#define GROUP_THREADS (4 * WARP)
#define CONSUMERS (N_GROUPS * GROUP_THREADS)
#define PRODUCERS GROUP_THREADS
#define PRODUCER_WARPS (PRODUCERS / WARP)
#define THREADS (CONSUMERS + PRODUCERS)
#define STAGES 3
/* An operand of 64 rows: queries, or tokens of K. */
#define OPERAND_BYTES (64 * OPERAND_ROW_BYTES)

static_assert(BLOCK_QUERIES == ATTN_WIDE_QUERIES, "attn_is_wide() counts whole blocks");
static_assert(ATTN_TILE == 64, "V's rows, of the tokens of a tile, are rows of an operand");

/* Shared memory in bytes, from an aligned address on: Q of each warpgroup, the stages (K, then V),
 * the groups' o, (m, m, l, l) of a thread's two queries, (m, l) of its two rows. */
template <int DIM>
struct layout {
    static constexpr int PARTS = DIM / 64; /* operands of a row of Q or K */
    static constexpr int Q = PARTS * OPERAND_BYTES;
    static constexpr int K = PARTS * OPERAND_BYTES;
    static constexpr int V = DIM * OPERAND_ROW_BYTES;
    static constexpr int STAGE0 = N_GROUPS * Q;
    static constexpr int TOTALS = STAGE0 + STAGES * (K + V);
    static constexpr int N_TOTAL = DIM / 8; /* float4 of one thread; CONSUMERS apart */
    static constexpr int SUMS = TOTALS + N_TOTAL * CONSUMERS * 16;
    static constexpr int ROWS = SUMS + CONSUMERS * 16;
    static constexpr int BYTES = ROWS + CONSUMERS * 16 + OPERAND_ALIGNMENT;
};

/* Messages between the warpgroups. A phase of `full` is a tile that has come, one of `empty`
 * that all consumers are done with it. */
struct exchange {
    uint64_t full[STAGES], empty[STAGES];
    uint64_t turn;                            /* all consumers */
    uint32_t special[STAGES][PRODUCER_WARPS]; /* V has inf or NaN that a query may not see */
    struct place place;
    struct walk begin;
};

/* A block's shared memory. */
struct memory {
    unsigned char *at; /* aligned */
    struct exchange *x;

    template <int DIM>
    __device__ __forceinline__ unsigned char *keys(uint32_t i) const
    {
        return at + layout<DIM>::STAGE0 + i % STAGES * (layout<DIM>::K + layout<DIM>::V);
    }

    template <int DIM>
    __device__ __forceinline__ unsigned char *values(uint32_t i) const
    {
        return keys<DIM>(i) + layout<DIM>::K;
    }
};

/* Step to the next tile that is seen. */
static __device__ __forceinline__ struct walk walk_next(struct walk w,
                                                        const struct attention_params &p,
                                                        const struct place &place)
{
    w.token0 += ATTN_TILE;
    walk_settle(&w, p, place);
    return w;
}

/* Whether some query of the block sees only a part of the tile's n tokens. */
static __device__ __forceinline__ bool is_seen_in_part(const struct attention_params &p,
                                                       const struct walk &w,
                                                       const struct place &place, uint32_t n)
{
    const struct attn_segment seg = p.segments[w.index];
    const struct attn_range first = attn_visible_tile(p.window, place.first_pos, seg, w.token0),
                            last = attn_visible_tile(p.window, place.last_pos, seg, w.token0);

    return first.lo + last.lo > 0 || first.hi + last.hi < 2 * n;
}

/* 16 bytes of each of four rows of words. */
struct four {
    uint4 row[4];
};

/* Of a thread's own, of K or V of a tile. */
#define FOURS(dim) ((dim) / 64)

/* Where K of a layer and KV head is in block 0; V and other blocks lie behind it. */
struct source {
    const unsigned char *keys;
    size_t block_bytes;
    uint32_t half_bytes;

    __device__ __forceinline__ const unsigned char *at(uint32_t block) const
    {
        return keys + block * block_bytes;
    }
};

static __device__ __forceinline__ struct source source_of(const struct attention_params &p)
{
    struct kv_pool pool = p.pool;

    pool.layout = kv_layout_of(DTYPE_BF16);
    return {kv_at(&pool, 0, p.layer, 0, blockIdx.y), kv_block_bytes(&pool),
            (uint32_t)kv_half_bytes(&pool)};
}

/* A tile of n tokens, whose blocks begin at `blocks`. */
struct tile {
    const uint32_t *blocks;
    uint32_t n;
};

static __device__ __forceinline__ struct tile tile_of(const struct attention_params &p,
                                                      const struct walk &w)
{
    const struct attn_segment seg = p.segments[w.index];

    return {p.blocks + seg.block0 + w.token0 / KV_BLOCK_TOKENS,
            attn_min(seg.n_tokens - w.token0, ATTN_TILE)};
}

/* The four that a thread brings of K: unit u of operand `part` (dimensions 64 part + 8u .. + 7) of
 * tokens t0 .. t0 + 3 of the tile; the next four are those of the tokens 32 behind them. */
template <int DIM>
struct key_place {
    uint32_t u, part, t0;

    __device__ __forceinline__ key_place(uint32_t n)
        : u(n % 8), part(n / 8 % layout<DIM>::PARTS), t0(n / 8 / layout<DIM>::PARTS * 4)
    {
    }
};

template <int DIM>
static __device__ __forceinline__ void load_keys(four (&k)[FOURS(DIM)], const struct source &from,
                                                 const struct tile &t)
{
    const key_place<DIM> at(threadIdx.x % PRODUCERS);
    uint32_t word = (32 * at.part + 4 * at.u) * KV_BLOCK_TOKENS + at.t0 % KV_BLOCK_TOKENS;

#pragma unroll
    for (int j = 0; j < FOURS(DIM); j++) {
        uint32_t t0 = at.t0 + KV_BLOCK_TOKENS * j;
        bool valid = t0 < t.n;
        const unsigned char *head = from.at(t.blocks[valid ? t0 / KV_BLOCK_TOKENS : 0]) + 4 * word;

#pragma unroll
        for (int i = 0; i < 4; i++)
            k[j].row[i] = load_once16_if(head + i * KV_BLOCK_TOKENS * 4, valid);
    }
}

/* Store rows row0 .. row0 + 3 of an operand, row0 a multiple of 4: word e of each row of words. */
static __device__ __forceinline__ void store_four(unsigned char *to, uint32_t row0, uint32_t unit,
                                                  const four &f)
{
    const uint4 *r = f.row;
    const uint4 rows[4] = {make_uint4(r[0].x, r[1].x, r[2].x, r[3].x),
                           make_uint4(r[0].y, r[1].y, r[2].y, r[3].y),
                           make_uint4(r[0].z, r[1].z, r[2].z, r[3].z),
                           make_uint4(r[0].w, r[1].w, r[2].w, r[3].w)};
    uint32_t at = operand_unit(row0, unit);

#pragma unroll
    for (uint32_t e = 0; e < 4; e++) /* operand_unit(row0 + e, unit) */
        *reinterpret_cast<uint4 *>(to + (at ^ 16 * e) + e * OPERAND_ROW_BYTES) = rows[e];
}

template <int DIM>
static __device__ __forceinline__ void store_keys(unsigned char *to, const four (&k)[FOURS(DIM)])
{
    const key_place<DIM> at(threadIdx.x % PRODUCERS);

#pragma unroll
    for (int j = 0; j < FOURS(DIM); j++)
        store_four(to + at.part * OPERAND_BYTES, at.t0 + KV_BLOCK_TOKENS * j, at.u, k[j]);
}

/* Load 16 bytes of each of the four rows of V's unit u (tokens 8u .. 8u + 7): dimensions 4g .. 4g +
 * 3. Zeros behind the tile's tokens, but for the one that shares a word with the last of them. */
template <int DIM>
static __device__ __forceinline__ void load_unit(four &v, const struct source &from,
                                                 const struct tile &t, uint32_t u, uint32_t g)
{
    const unsigned char *head = from.at(t.blocks[8 * u < t.n ? u / 4 : 0]) + from.half_bytes +
                                (u % 4 * 4 * DIM + 4 * g) * 4;

#pragma unroll
    for (int i = 0; i < 4; i++)
        v.row[i] = load_once16_if(head + i * DIM * 4, 8 * u + 2 * i < t.n);
}

template <int DIM>
static __device__ __forceinline__ void load_values(four (&v)[FOURS(DIM)],
                                                   const struct source &from, const struct tile &t)
{
    uint32_t n = threadIdx.x % PRODUCERS;

#pragma unroll
    for (int j = 0; j < FOURS(DIM); j++)
        load_unit<DIM>(v[j], from, t, n % 8, n / 8 + PRODUCERS / 8 * j);
}

/* Store the values that are in the range, and zeros for the others. */
static __device__ __forceinline__ void store_unit(unsigned char *to, uint32_t u, uint32_t g,
                                                  four &v, struct attn_range range)
{
    if (8 * u < range.lo || 8 * u + 8 > range.hi)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            v.row[i] = attn_select(v.row[i], 8 * u + 2 * i, range);
    store_four(to, 4 * g, u, v);
}

/* Store V's tile of n tokens. Returns whether this thread's have inf or NaN, if `asks`. */
template <int DIM>
static __device__ __forceinline__ bool store_values(unsigned char *to, four (&v)[FOURS(DIM)],
                                                    uint32_t n_tokens, bool asks)
{
    const struct attn_range all = {0, n_tokens};
    uint32_t n = threadIdx.x % PRODUCERS;
    bool special = false;

#pragma unroll
    for (int j = 0; j < FOURS(DIM); j++) {
        store_unit(to, n % 8, n / 8 + PRODUCERS / 8 * j, v[j], all);
        if (asks)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint4 x = v[j].row[i];

                special |= has_special<DTYPE_BF16>(x.x) || has_special<DTYPE_BF16>(x.y) ||
                           has_special<DTYPE_BF16>(x.z) || has_special<DTYPE_BF16>(x.w);
            }
    }
    return special;
}

/* Bring all tiles. While one half of a tile is stored, the other one is under way. */
template <int DIM>
static __device__ __forceinline__ void bring_tiles(const struct attention_params &p,
                                                   const struct memory &m)
{
    const struct place &place = m.x->place;
    struct walk w = m.x->begin;
    const struct source from = source_of(p);
    four k[FOURS(DIM)], v[FOURS(DIM)];

    if (walk_ended(w, place))
        return;
    load_keys<DIM>(k, from, tile_of(p, w));
    load_values<DIM>(v, from, tile_of(p, w));
    for (uint32_t i = 0; !walk_ended(w, place); i++) {
        const struct walk next = walk_next(w, p, place);
        uint32_t n = tile_of(p, w).n;
        bool asks = is_seen_in_part(p, w, place, n), has_next = !walk_ended(next, place);

        if (i >= STAGES)
            barrier_wait(&m.x->empty[i % STAGES], (i / STAGES - 1) % 2);
        store_keys<DIM>(m.keys<DIM>(i), k);
        if (has_next)
            load_keys<DIM>(k, from, tile_of(p, next));
        bool special = store_values<DIM>(m.values<DIM>(i), v, n, asks);
        special = __any_sync(FULL_WARP, special);
        if (threadIdx.x % WARP == 0)
            m.x->special[i % STAGES][threadIdx.x / WARP % PRODUCER_WARPS] = special;
        if (has_next)
            load_values<DIM>(v, from, tile_of(p, next));
        fence_stores_for_products();
        barrier_arrive(&m.x->full[i % STAGES]);
        w = next;
    }
}

#endif
