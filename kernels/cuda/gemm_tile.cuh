/* gemm_tile.cuh - products on matrix instructions: fragments, scales and sums of a warp, and the
 * kernel for many rows. gemm_narrow.cuh has the one for few rows.
 *
 * Two kernels, one order of operations (gemm.cuh). The narrow kernel divides the ranges of K among
 * the warps of a block and brings weights to the lane that multiplies them: best for few rows,
 * which wait for memory. The tile kernel walks all of K in each block and shares both operands
 * through shared memory.
 *
 * A step is 32 elements of K. Lane (g = lane / 4, c = lane % 4) has elements 8c .. 8c + 7 of its
 * rows. They are four pairs: the first two go into one mma as columns 2c and 2c + 8, the other two
 * into a second mma. The order of columns is free as long as both operands and both kernels use the
 * same one, so no shuffle is needed. A lane loads 16 bytes of a row of weights at once: elements of
 * one step if they are 16-bit floats, else of two or four steps (mixed_steps()), whose words pack.h
 * stores one behind the other. In shared memory the rows of a step are contiguous, so those loads
 * have no bank conflicts.
 *
 * The permutation of k that makes a lane's fragment one wide load is Marlin's (Frantar et al.,
 * 2024), as is unpacking four bits by or-ing an exponent onto them.
 *
 * Owns    nothing.
 * Thread  device code.
 * Errors  none.
 * Units   elements unless the name says bytes. */
#ifndef TARN_KERNELS_CUDA_GEMM_TILE_CUH
#define TARN_KERNELS_CUDA_GEMM_TILE_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/gemm.cuh"

#define GEMM_STEP 32
#define GEMM_CHUNK_STEPS (GEMM_CHUNK / GEMM_STEP)
#define GEMM_STAGES 4
/* Bytes of one row of activations in a step. */
#define GEMM_A_BYTES (GEMM_STEP * 2)

/* Bits of an integer; and whether groups have offsets. */
template <enum dtype W>
static __host__ __device__ constexpr int n_bits(void)
{
    return W == DTYPE_I4 || W == DTYPE_A4 ? 4 : 8;
}

template <enum dtype W>
static __host__ __device__ constexpr bool is_affine(void)
{
    return W == DTYPE_A8 || W == DTYPE_A4;
}

/* Bytes of one row of weights in a step; and its 32-bit words per lane. */
template <enum dtype W>
static __host__ __device__ constexpr int step_bytes(void)
{
    return W >= DTYPE_FLOATS ? GEMM_STEP * n_bits<W>() / 8 : GEMM_STEP * 2;
}

template <enum dtype W>
static __host__ __device__ constexpr int step_words(void)
{
    return step_bytes<W>() / 16;
}

/* Steps whose words are neighbours in a lane's order (pack.h), 16 bytes together. */
template <enum dtype W>
static __host__ __device__ constexpr int mixed_steps(void)
{
    return 4 / step_words<W>();
}

/* --- fragments --- */

/* Copy an array, element by element. nvcc 13.0 compiles memcpy() between members of a struct that
 * are arrays of arrays to a copy of the first inner array alone, and reads registers that nothing
 * wrote for the others (tests/tools/cuda_ptx.py finds such registers). */
template <typename T>
static __device__ __forceinline__ void copy_array(T &to, const T &from)
{
    to = from;
}

template <typename T, size_t N>
static __device__ __forceinline__ void copy_array(T (&to)[N], const T (&from)[N])
{
#pragma unroll
    for (size_t i = 0; i < N; i++)
        copy_array(to[i], from[i]);
}

template <int WORDS>
static __device__ __forceinline__ void load_words(uint32_t *dst, const unsigned char *src)
{
    if constexpr (WORDS == 4) {
        uint4 v = *reinterpret_cast<const uint4 *>(src);

        dst[0] = v.x;
        dst[1] = v.y;
        dst[2] = v.z;
        dst[3] = v.w;
    } else if constexpr (WORDS == 2) {
        uint2 v = *reinterpret_cast<const uint2 *>(src);

        dst[0] = v.x;
        dst[1] = v.y;
    } else {
        dst[0] = *reinterpret_cast<const uint32_t *>(src);
    }
}

/* Load 16 bytes of a row of weights, and call put(i, word i). Those of four lanes are whole
 * sectors, which are read once. */
template <typename F>
static __device__ __forceinline__ void load_words_once(const unsigned char *src, F put)
{
    uint4 v = load_weight16(src);

    put(0, v.x);
    put(1, v.y);
    put(2, v.z);
    put(3, v.w);
}

/* Unpack eight consecutive weights to four pairs of 16-bit floats. Integers, also codes, become u -
 * 128 or u - 8, which is exact in bf16, as F8 is. */
template <enum dtype W>
static __device__ __forceinline__ void unpack(uint32_t pair[4], const uint32_t *words)
{
    const uint32_t one = 0x3f803f80;

    if constexpr (W < DTYPE_FLOATS) {
        for (int j = 0; j < 4; j++)
            pair[j] = words[j];
    } else if constexpr (W == DTYPE_F8) {
        /* Exponent and mantissa of a number that is 2^120 times too small; less -0 */
        for (int j = 0; j < 4; j++) {
            uint32_t u = __byte_perm(words[j / 2], 0, j % 2 ? 0x3424 : 0x1404);

            pair[j] = fma_bf16x2((u & 0x80008000) | (u >> 4 & 0x07f007f0), 0x7b807b80, 0x80008000);
        }
    } else if constexpr (n_bits<W>() == 8) {
        /* bf16 0x4300 | m is 128 + m for seven bits m. To get u - 128, 256 must be subtracted if
         * the eighth bit of u is clear, and 128 if it is set. The bit has the position in which
         * these two numbers differ: 0x4380 and 0x4300. */
        for (int j = 0; j < 4; j++) {
            uint32_t u = __byte_perm(words[j / 2], 0, j % 2 ? 0x4342 : 0x4140);

            pair[j] = fma_bf16x2((u & 0x007f007f) | 0x43004300, one,
                                 (u & 0x00800080) ^ 0xc380c380);
        }
    } else {
        for (int j = 0; j < 4; j++) /* 128 + u, less 136 */
            pair[j] = fma_bf16x2((words[0] >> 4 * j & 0x000f000f) | 0x43004300, one, 0xc308c308);
    }
}

template <enum dtype W>
static __device__ __forceinline__ void mma_any(float d[4], const uint32_t a[4],
                                               const uint32_t b[2])
{
    if constexpr (W == DTYPE_F16)
        mma_f16(d, a, b);
    else
        mma_bf16(d, a, b);
}

/* d += the weights of 16 outputs times the activations of 8 rows, over one step. */
template <enum dtype W>
static __device__ __forceinline__ void multiply(float d[4], const uint32_t upper[4],
                                                const uint32_t lower[4], uint4 act)
{
    uint32_t a0[4] = {upper[0], lower[0], upper[1], lower[1]};
    uint32_t a1[4] = {upper[2], lower[2], upper[3], lower[3]};
    uint32_t b0[2] = {act.x, act.y}, b1[2] = {act.z, act.w};

    mma_any<W>(d, a0, b0);
    mma_any<W>(d, a1, b1);
}

/* d += the sums of the activations of 8 rows over one step: weights of 1. */
static __device__ __forceinline__ void multiply_ones(float d[4], uint4 act)
{
    const uint32_t ones[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};

    multiply<DTYPE_BF16>(d, ones, ones, act);
}

/* sum += scale * group; rows g and g + 8 of a fragment have different scales. */
static __device__ __forceinline__ void add_scaled(float sum[4], const float group[4], float upper,
                                                  float lower)
{
    sum[0] = fmaf(upper, group[0], sum[0]);
    sum[1] = fmaf(upper, group[1], sum[1]);
    sum[2] = fmaf(lower, group[2], sum[2]);
    sum[3] = fmaf(lower, group[3], sum[3]);
}

/* --- scales of one row for one chunk of K; for affine types pairs with offsets, for F8 floats ---
 * */

/* Whether scales are loaded for one step, not for a chunk: four pairs would need more registers
 * than there are beside the sums. */
template <enum dtype W, int GROUP>
static __host__ __device__ constexpr bool scales_by_step(void)
{
    return is_affine<W>() && GROUP == GEMM_STEP;
}

template <enum dtype W, int GROUP>
static __host__ __device__ constexpr int scale_words(void)
{
    return GROUP == 32 && !is_affine<W>() ? 2 : 1;
}

/* The scales of row n. */
template <enum dtype W, int GROUP>
static __device__ __forceinline__ const uint16_t *scale_row_of(const struct product &p, uint32_t n)
{
    if constexpr (GROUP == 0)
        return NULL;
    else
        return p.scales + (size_t)n * (p.k / GROUP) * (is_affine<W>() || W == DTYPE_F8 ? 2 : 1);
}

template <enum dtype W, int GROUP>
static __device__ __forceinline__ void load_scales(uint32_t *dst, const uint16_t *row, uint32_t k)
{
    if constexpr (GROUP != 0 && (is_affine<W>() || W == DTYPE_F8))
        load_words<1>(dst, reinterpret_cast<const unsigned char *>(row + k / GROUP * 2));
    else if constexpr (GROUP == 32)
        load_words<2>(dst, reinterpret_cast<const unsigned char *>(row + k / 32));
    else if constexpr (GROUP == 128)
        dst[0] = row[k / 128];
}

/* The scale of step s of the chunk. */
template <enum dtype W, int GROUP>
static __device__ __forceinline__ float scale_of(const uint32_t *scales, int s)
{
    if constexpr (is_affine<W>())
        return f32_from_f16((uint16_t)scales[0]);
    else if constexpr (W == DTYPE_F8)
        return __uint_as_float(scales[0]);
    else if constexpr (GROUP == 32)
        return s % 2 ? bf16_upper(scales[s / 2]) : bf16_lower(scales[s / 2]);
    else
        return bf16_lower(scales[0]);
}

/* The offset of the weights of step s: each activation is multiplied by the scaled integer and by
 * this offset. */
template <enum dtype W, int GROUP>
static __device__ __forceinline__ float offset_of(const uint32_t *scales, int s)
{
    float offset = f32_from_f16((uint16_t)(scales[0] >> 16));

    return fmaf(n_bits<W>() == 8 ? 128.0f : 8.0f, scale_of<W, GROUP>(scales, s), offset);
}

/* --- sums of a warp: 16 MT outputs by 8 NT rows --- */

/* Call f(m, n, i) for each of a lane's sums [MT][NT][4], unrolled to keep them in registers. */
template <int MT, int NT, typename F>
static __device__ __forceinline__ void each_sum(F f)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                f(m, n, i);
}

template <enum dtype W, int GROUP, int MT, int NT>
struct warp_sums {
    float sum[MT][NT][4];
    float group[GROUP == 128 ? MT : 1][NT][4]; /* sums of a group that is longer than a step */
    float act_group[is_affine<W>() ? NT : 1][4]; /* of its activations, twice; affine types */

    __device__ __forceinline__ void clear(void)
    {
        each_sum<MT, NT>([&](int m, int n, int i) { sum[m][n][i] = 0; });
    }

    /* The end of a group in step s: add its sums d of the m-th sixteen, scaled. */
    __device__ __forceinline__ void add_group(int s, int m, int n, const float d[4],
                                              const uint32_t (*scales)[scale_words<W, GROUP>()])
    {
        const uint32_t *upper = scales[2 * m], *lower = scales[2 * m + 1];

        add_scaled(sum[m][n], d, scale_of<W, GROUP>(upper, s), scale_of<W, GROUP>(lower, s));
        if constexpr (is_affine<W>())
            add_scaled(sum[m][n], act_group[n], offset_of<W, GROUP>(upper, s),
                       offset_of<W, GROUP>(lower, s));
    }

    /* Add step s of a chunk. words[2m], words[2m + 1]: rows g, g + 8 of the m-th sixteen; scales in
     * the same order. */
    __device__ __forceinline__ void step(int s, const uint32_t (*words)[step_words<W>()],
                                         const uint32_t (*scales)[scale_words<W, GROUP>()],
                                         const uint4 *act)
    {
        if constexpr (is_affine<W>()) {
#pragma unroll
            for (int n = 0; n < NT; n++) {
                if (GROUP == GEMM_STEP || s == 0)
                    act_group[n][0] = act_group[n][1] = act_group[n][2] = act_group[n][3] = 0;
                multiply_ones(act_group[n], act[n]);
            }
        }
#pragma unroll
        for (int m = 0; m < MT; m++) {
            uint32_t upper[4], lower[4];

            unpack<W>(upper, words[2 * m]);
            unpack<W>(lower, words[2 * m + 1]);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                if constexpr (GROUP == 0) {
                    multiply<W>(sum[m][n], upper, lower, act[n]);
                } else if constexpr (GROUP == GEMM_STEP) {
                    float d[4] = {0, 0, 0, 0};

                    multiply<W>(d, upper, lower, act[n]);
                    add_group(s, m, n, d, scales);
                } else {
                    float *d = group[m][n];

                    if (s == 0)
                        d[0] = d[1] = d[2] = d[3] = 0;
                    multiply<W>(d, upper, lower, act[n]);
                    if (s == GEMM_CHUNK_STEPS - 1)
                        add_group(s, m, n, d, scales);
                }
            }
        }
    }
};

/* Return the present value of an output to which the product is added; 0 if it is not added. */
static __device__ __forceinline__ float old_output(const struct product &p, uint32_t t, uint32_t n)
{
    return p.accumulate ? p.out[t * p.out_stride + n] : 0;
}

static __device__ __forceinline__ void put_output(const struct product &p, uint32_t t, uint32_t n,
                                                  float v, float old)
{
    if (p.bias)
        v += p.bias[n];
    if (p.accumulate)
        v += old;
    p.out[t * p.out_stride + n] = v;
}

/* --- rows sorted by expert --- */

/* A tile of rows of one expert. */
struct expert_tile {
    uint32_t expert;
    uint32_t row0, n_rows; /* the expert's rows in the product */
    uint32_t t0;           /* the tile's first row among them */
};

/* Find tile number `tile`, of `tile_rows` rows, among the tiles of all experts; false: there are
 * fewer. All lanes of a warp get the same result. */
static __device__ __forceinline__ bool find_tile(const struct expert_rows &x, uint32_t n_rows,
                                                 uint32_t tile, uint32_t tile_rows,
                                                 struct expert_tile *out)
{
    uint32_t lane = threadIdx.x % WARP, before = 0, last = x.row0 + n_rows;

    /* A lane takes four experts, whose offsets it loads at once: a wait for memory is as long as
     * the rest of a small product. */
    for (uint32_t e0 = 0; e0 < x.n_experts; e0 += 4 * WARP) {
        uint32_t e = e0 + 4 * lane, at[5], n[4], sum = 0;

#pragma unroll
        for (uint32_t i = 0; i < 5; i++)
            at[i] = min(max(x.offsets[min(e + i, x.n_experts)], x.row0), last);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            sum += n[i] = ceil_div(at[i + 1] - at[i], tile_rows);
        uint32_t mine = sum;
        for (uint32_t d = 1; d < WARP; d *= 2) {
            uint32_t lower = __shfl_up_sync(FULL_WARP, sum, d);

            sum += lane >= d ? lower : 0;
        }
        uint32_t reached = __ballot_sync(FULL_WARP, before + sum > tile);
        if (reached) {
            int lane_of = __popc((reached & (0u - reached)) - 1); /* the lowest one */
            uint32_t i_of = 0, begin = at[0], end = at[1], left = tile - before - (sum - mine);
            bool found = left < n[0]; /* what follows has a meaning in lane_of alone */

#pragma unroll
            for (uint32_t i = 1; i < 4; i++) {
                left -= found ? 0 : n[i - 1];
                if (!found && left < n[i]) {
                    i_of = i, begin = at[i], end = at[i + 1];
                    found = true;
                }
            }
            out->expert = __shfl_sync(FULL_WARP, e + i_of, lane_of);
            out->row0 = __shfl_sync(FULL_WARP, begin, lane_of) - x.row0;
            out->n_rows = __shfl_sync(FULL_WARP, end - begin, lane_of);
            out->t0 = __shfl_sync(FULL_WARP, left, lane_of) * tile_rows;
            return true;
        }
        before += __shfl_sync(FULL_WARP, sum, WARP - 1);
    }
    return false;
}

/* Make p the product of the expert that has tile number `tile`, and t0 the tile's first row. */
static __device__ __forceinline__ bool take_tile(struct product &p, uint32_t tile,
                                                 uint32_t tile_rows, uint32_t &t0)
{
    struct expert_tile found;

    if (!find_tile(p.x, p.n_rows, tile, tile_rows, &found))
        return false;
    t0 = found.t0;
    p.n_rows = found.n_rows;
    if (p.x.a_rows)
        p.x.a_rows += found.row0;
    else
        p.a += (size_t)found.row0 * p.k;
    p.out += found.row0 * p.out_stride;
    p.w += found.expert * p.x.expert_bytes;
    if (p.scales)
        p.scales += found.expert * p.x.expert_bytes / sizeof *p.scales;
    return true;
}

/* The activations of row t of take_tile()'s product, or of a product without experts. */
template <bool EXPERTS>
static __device__ __forceinline__ const uint16_t *activations_of(const struct product &p,
                                                                 uint32_t t)
{
    return p.a + (size_t)(EXPERTS && p.x.a_rows ? p.x.a_rows[t] : t) * p.k;
}

/* Most tiles that the rows of all experts have. */
static inline uint32_t n_tiles_max(const struct expert_rows *x, uint32_t n_rows,
                                   uint32_t tile_rows)
{
    return n_rows / tile_rows + (n_rows < x->n_experts ? n_rows : x->n_experts);
}

/* --- many rows: the tile kernel --- */

/* Grid (ceil(T / TT), ceil(N / TN)), so that consecutive blocks share weights. A block computes TN
 * outputs of TT rows by WARPS_N by WARPS_T warps of 16 MT by 8 NT. */
template <enum dtype W, int GROUP, int MT, int NT, int WARPS_N, int WARPS_T>
struct tile {
    static constexpr int THREADS = WARPS_N * WARPS_T * WARP;
    static constexpr int TN = 16 * MT * WARPS_N, TT = 8 * NT * WARPS_T;
    static constexpr int STEPS = mixed_steps<W>(); /* of a stage */
    static constexpr int STAGES = STEPS > 1 ? 3 : GEMM_STAGES;
    static constexpr int ROW_BYTES = STEPS * step_bytes<W>(), W_BYTES = TN * ROW_BYTES;
    static constexpr int A_BYTES = TT * GEMM_A_BYTES; /* of a step */
    static constexpr int STAGE_BYTES = W_BYTES + STEPS * A_BYTES;
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES;
    /* Of a thread's copies of activations: with the addresses of all, A4 in groups of 32 spills. */
    static constexpr int COPIES = STEPS * TT * 4 / THREADS;
    static constexpr int COPIES_AT_ONCE = scales_by_step<W, GROUP>() ? 2 : COPIES;

    /* Copy steps `step` .. step + STEPS - 1 of both operands to a stage, with zeros for rows behind
     * the last. a_rows [TT]: the tile's rows of the activations; NULL: they are neighbours. */
    static __device__ __forceinline__ void copy(unsigned char *stage, const struct product &p,
                                                uint32_t n0, uint32_t t0, uint32_t step,
                                                const uint32_t *a_rows)
    {
        constexpr int PIECES = ROW_BYTES / 16; /* 16-byte pieces of a row */

#pragma unroll
        for (uint32_t i = threadIdx.x; i < TN * PIECES; i += THREADS) {
            uint32_t n = n0 + i / PIECES;
            bool there = n < p.n;

            cp_async16(stage + 16 * i,
                       p.w + (there ? n : 0) * p.w_row_bytes + (size_t)step * step_bytes<W>() +
                           i % PIECES * 16,
                       there);
        }
#pragma unroll(COPIES_AT_ONCE)
        for (uint32_t i = threadIdx.x; i < STEPS * TT * 4; i += THREADS) {
            uint32_t t = t0 + i / 4 % TT, s = step + i / 4 / TT;
            bool there = t < p.n_rows;
            uint32_t row = a_rows ? a_rows[t - t0] : there ? t : 0;

            cp_async16(stage + W_BYTES + 16 * i,
                       p.a + (size_t)row * p.k + s * GEMM_STEP + i % 4 * 8, there);
        }
    }
};

/* Blocks per multiprocessor that the compiler has to leave room for; 0: it decides. Left to itself
 * it spills some of the quantized types. */
template <int GROUP>
static __host__ __device__ constexpr int tile_blocks(void)
{
    return GROUP ? 1 : 0;
}

/* SPLIT: a block computes range z of K only, and writes its sums to the partial results [z][T][N],
 * which fold_kernel() adds in order. */
template <enum dtype W, int GROUP, int MT, int NT, int WARPS_N, int WARPS_T, bool EXPERTS = false,
          bool SPLIT = false>
static __global__ void __launch_bounds__(WARPS_N *WARPS_T *WARP,
                                         tile_blocks<GROUP>())
tile_kernel(struct product p)
{
    using Tile = struct tile<W, GROUP, MT, NT, WARPS_N, WARPS_T>;
    constexpr int WORDS = step_words<W>(), STEPS = Tile::STEPS, STAGES = Tile::STAGES;
    constexpr bool BY_STEP = scales_by_step<W, GROUP>();
    DYNAMIC_SHARED(unsigned char, stages);
    uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    uint32_t t0 = blockIdx.x * Tile::TT, n0 = blockIdx.y * Tile::TN;
    uint32_t n_warp = warp % WARPS_N * 16 * MT, t_warp = warp / WARPS_N * 8 * NT;
    uint32_t begin = SPLIT ? blockIdx.z * p.split : 0;
    uint32_t end = SPLIT ? min(begin + p.split, p.k) : p.k;
    uint32_t n_steps = (end - begin) / GEMM_STEP, step = 0, step0 = begin / GEMM_STEP;
    uint32_t mixed[STEPS > 1 ? 2 * MT : 1][4]; /* words of STEPS steps */
    float total[MT][NT][4];
    struct warp_sums<W, GROUP, MT, NT> sums;
    __shared__ uint32_t rows_here[EXPERTS ? Tile::TT : 1];
    const uint32_t *a_rows = EXPERTS ? rows_here : NULL;
    uint32_t scales[2 * MT][scale_words<W, GROUP>()], scales_ahead[2 * MT][scale_words<W, GROUP>()];

    auto load_scales_ahead = [&](uint32_t k) {
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            uint32_t n = min(n0 + n_warp + 8 * i + g, p.n - 1);

            load_scales<W, GROUP>(scales_ahead[i], scale_row_of<W, GROUP>(p, n), k);
        }
    };

    if constexpr (EXPERTS) {
        if (!take_tile(p, blockIdx.x, Tile::TT, t0))
            return;
        for (uint32_t i = threadIdx.x; i < Tile::TT; i += Tile::THREADS) {
            uint32_t t = min(t0 + i, p.n_rows - 1);

            rows_here[i] = p.x.a_rows ? p.x.a_rows[t] : t;
        }
        __syncthreads();
    }
    each_sum<MT, NT>([&](int m, int n, int i) { total[m][n][i] = 0; });
    sums.clear();
    for (uint32_t s = 0; s < STAGES - 1; s++) {
        if (s * STEPS < n_steps)
            Tile::copy(stages + s * Tile::STAGE_BYTES, p, n0, t0, step0 + s * STEPS, a_rows);
        cp_async_commit();
    }
    load_scales_ahead(begin);
    for (uint32_t k = begin; k < end; k += GEMM_CHUNK) {
        if constexpr (!BY_STEP) {
            copy_array(scales, scales_ahead);
            if (k + GEMM_CHUNK < end)
                load_scales_ahead(k + GEMM_CHUNK);
        }
#pragma unroll
        for (int s = 0; s < GEMM_CHUNK_STEPS; s++, step++) {
            if constexpr (BY_STEP) {
                keep_loads_behind(); /* those of four steps at once would need all registers */
                copy_array(scales, scales_ahead);
                if (step + 1 < n_steps)
                    load_scales_ahead((step0 + step + 1) * GEMM_STEP);
            }
            const unsigned char *stage = stages + step / STEPS % STAGES * Tile::STAGE_BYTES;
            uint32_t words[2 * MT][WORDS], later = step + (STAGES - 1) * STEPS;
            uint4 act[NT];

            if (s % STEPS == 0) {
                cp_async_wait<STAGES - 2>();
                __syncthreads(); /* this stage has arrived for all threads, and all are done with
                                    the previous one */
                if (later < n_steps)
                    Tile::copy(stages + later / STEPS % STAGES * Tile::STAGE_BYTES, p, n0, t0,
                               step0 + later, a_rows);
                cp_async_commit();
            }
#pragma unroll
            for (int i = 0; i < 2 * MT; i++) {
                const unsigned char *row = stage + (n_warp + 8 * i + g) * Tile::ROW_BYTES;

                if constexpr (STEPS > 1) {
                    if (s % STEPS == 0)
                        load_words<4>(mixed[i], row + c * 16);
#pragma unroll
                    for (int j = 0; j < WORDS; j++)
                        words[i][j] = mixed[i][s % STEPS * WORDS + j];
                } else {
                    load_words<WORDS>(words[i], row + c * (WORDS * 4));
                }
            }
#pragma unroll
            for (int i = 0; i < NT; i++)
                act[i] = *reinterpret_cast<const uint4 *>(stage + Tile::W_BYTES +
                                                          s % STEPS * Tile::A_BYTES +
                                                          (t_warp + 8 * i + g) * GEMM_A_BYTES +
                                                          c * 16);
            sums.step(s, words, scales, act);
        }
        bool ends_range = (k + GEMM_CHUNK) % p.split == 0 || k + GEMM_CHUNK == p.k;

        if (!SPLIT && ends_range) {
            /* Not by each_sum(), with which nvcc 13.0 gives other, longer code here. */
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int n = 0; n < NT; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        total[m][n][i] += sums.sum[m][n][i];
            sums.clear();
        }
    }

    each_sum<MT, NT>([&](int m, int nt, int i) {
        uint32_t n = n0 + n_warp + 16 * m + g + i / 2 * 8;
        uint32_t t = t0 + t_warp + 8 * nt + 2 * c + i % 2;

        if (n >= p.n || t >= p.n_rows)
            return;
        if constexpr (SPLIT)
            p.partials[((size_t)blockIdx.z * p.n_rows + t) * p.n + n] = sums.sum[m][nt][i];
        else
            put_output(p, t, n, total[m][nt][i], old_output(p, t, n));
    });
}

#endif
