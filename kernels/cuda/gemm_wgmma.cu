/* gemm_wgmma.cu - products of many rows with quantized weights on Hopper's own matrix instructions,
 * for compute capability 9.0 alone (sm_90a).
 *
 * A block computes 128 outputs of 128 rows; its two warpgroups have 64 outputs each. No warp only
 * copies: with one more, ptxas gives each thread 168 registers, and some kernels spill. Weights go
 * from memory straight into the registers of A, unpacked there to bf16: through shared memory each
 * would be written and read once more for 128 products. A lane loads the words that the narrow
 * kernel's lane loads (gemm_tile.cuh), so its pairs are columns in that kernel's order.
 * Activations are B, in shared memory, which a matrix descriptor reads in one order only. So
 * arrange_kernel() brings the activations into the weights' order and a descriptor's swizzle, with
 * the sums of each group behind them. A stage of shared memory is then one contiguous copy
 * (cp.async.bulk), and needs no tensor map, whose making takes an entry point of the driver.
 *
 * Sums of a group grow in the instructions' accumulators; their scaled sum is in fp32 beside them,
 * as in gemm.cuh, but K is one range, and an instruction adds in an order of its own. So the bits
 * are others than those of the kernels for few rows. */
#include "base/check.h"
#include "kernels/cuda/gemm_tile.cuh"
#include "kernels/cuda/gemm_wgmma.cuh"
#include "kernels/cuda/matrix_descriptor.cuh"
#include "kernels/cuda/ptx_sm90.cuh"

#define GROUP_ROWS 64 /* outputs of a warpgroup */
#define N_GROUPS 2
#define TN (N_GROUPS * GROUP_ROWS)
#define TT WGMMA_ROWS
#define WARPS (N_GROUPS * 4)
#define THREADS (WARPS * WARP)
#define STAGES 4
/* A row of 64 elements of K in shared memory; rows of a tile of B. */
#define ROW_BYTES OPERAND_ROW_BYTES
#define ATOM_BYTES (TT * ROW_BYTES)

/* Of the pieces of one chunk of K: a stage of shared memory, and the same in global memory. */
template <enum dtype W, int GROUP>
struct piece {
    /* Sums of activations: of each group, for types whose weights have offsets. */
    static constexpr int SUMS = is_affine<W>() ? GEMM_CHUNK / GROUP : 0;
    static constexpr int BYTES = WGMMA_PIECE_BYTES(SUMS);
    static constexpr int SHARED_BYTES = STAGES * BYTES + OPERAND_ALIGNMENT;
};

/* --- activations ----------------------------------------------------------------------------- */

struct arrange_params {
    uint32_t n_rows, k;
    const uint16_t *from;  /* [T, k] bf16 */
    unsigned char *to;     /* [ceil(T / TT)][k / GEMM_CHUNK] pieces */
    uint32_t n_sums;       /* of a row in a piece: 0, 1, or one a step */
};

#define ARRANGE_THREADS (TT * GEMM_CHUNK_STEPS)

static __device__ __forceinline__ float sum_of_pair(uint32_t pair)
{
    return bf16_lower(pair) + bf16_upper(pair);
}

/* Grid (k / GEMM_CHUNK, ceil(T / TT)): a thread has one step of one row. In each 8 elements of
 * 8 c .. 8 c + 7, pair i becomes pair c of 16-byte unit i; unit u of a row of 128 bytes lies at
 * u ^ row % 8. Rows behind the last are 0. */
static __global__ void __launch_bounds__(ARRANGE_THREADS) arrange_kernel(struct arrange_params p)
{
    uint32_t step = threadIdx.x % GEMM_CHUNK_STEPS, row = threadIdx.x / GEMM_CHUNK_STEPS;
    uint32_t t = blockIdx.y * TT + row;
    unsigned char *piece = p.to + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) *
                                      WGMMA_PIECE_BYTES(p.n_sums);
    unsigned char *to = piece + step / 2 * ATOM_BYTES;
    const uint4 *from = reinterpret_cast<const uint4 *>(
        p.from + (size_t)min(t, p.n_rows - 1) * p.k + blockIdx.x * GEMM_CHUNK + step * GEMM_STEP);
    uint4 eight[4]; /* elements 8 c .. 8 c + 7 */
    float sum = 0;

#pragma unroll
    for (int c = 0; c < 4; c++)
        eight[c] = t < p.n_rows ? from[c] : make_uint4(0, 0, 0, 0);
    const uint4 units[4] = {make_uint4(eight[0].x, eight[1].x, eight[2].x, eight[3].x),
                            make_uint4(eight[0].y, eight[1].y, eight[2].y, eight[3].y),
                            make_uint4(eight[0].z, eight[1].z, eight[2].z, eight[3].z),
                            make_uint4(eight[0].w, eight[1].w, eight[2].w, eight[3].w)};
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t u = step % 2 * 4 + i;

        *reinterpret_cast<uint4 *>(to + operand_unit(row, u)) = units[i];
        sum += sum_of_pair(eight[i].x) + sum_of_pair(eight[i].y) + sum_of_pair(eight[i].z) +
               sum_of_pair(eight[i].w);
    }
    if (p.n_sums == 0)
        return;
    float *sums = reinterpret_cast<float *>(piece + 2 * ATOM_BYTES);
    if (p.n_sums == 1) {
        sum += __shfl_xor_sync(FULL_WARP, sum, 1);
        sum += __shfl_xor_sync(FULL_WARP, sum, 2);
        if (step == 0)
            sums[row] = sum;
    } else {
        sums[step * TT + row] = sum;
    }
}

/* --- the product ----------------------------------------------------------------------------- */

/* The stages of shared memory: a phase of `full` is a piece that has come, one of `empty` is that
 * all warps are done with it. */
template <int BYTES>
struct ring {
    unsigned char *stages;
    const unsigned char *from; /* the pieces of the tile's rows */
    uint64_t *full, *empty;
    uint32_t n_chunks;

    /* Copy piece i, if there is one, as soon as its stage is empty. One thread. */
    __device__ __forceinline__ void fill(uint32_t i) const
    {
        uint32_t stage = i % STAGES;

        if (i >= n_chunks)
            return;
        if (i >= STAGES)
            barrier_wait(&empty[stage], (i / STAGES - 1) % 2);
        barrier_arrive_expecting(&full[stage], BYTES);
        bulk_copy(stages + stage * BYTES, from + (size_t)i * BYTES, BYTES, &full[stage]);
    }
};

/* The weights and sums of a warp: outputs g and g + 8 of its 16, all rows of the tile. */
template <enum dtype W, int GROUP>
struct warp_product {
    static constexpr int WORDS = step_words<W>(), MIXED = mixed_steps<W>();
    const unsigned char *w_row[2];
    const uint16_t *scale_row[2];
    uint32_t ahead[GEMM_CHUNK_STEPS][2][WORDS], words[GEMM_CHUNK_STEPS][2][WORDS];
    uint32_t scales[2][scale_words<W, GROUP>()], scales_ahead[2][scale_words<W, GROUP>()];
    uint32_t a[2][8]; /* of two steps: two instructions each */
    float group[64], total[64];

    __device__ __forceinline__ void begin(const struct product &p, uint32_t n, uint32_t c)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t row = min(n + 8 * i, p.n - 1);

            w_row[i] = p.w + row * p.w_row_bytes + c * (MIXED * WORDS * 4);
            scale_row[i] = scale_row_of<W, GROUP>(p, row);
        }
#pragma unroll
        for (int i = 0; i < 64; i++)
            group[i] = total[i] = 0;
    }

    __device__ __forceinline__ void load_scales_ahead(uint32_t k)
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            load_scales<W, GROUP>(scales_ahead[i], scale_row[i], k);
    }

    /* Load the words of the chunk at k. */
    __device__ __forceinline__ void load_ahead(uint32_t k)
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int s = 0; s < GEMM_CHUNK_STEPS; s += MIXED) {
                const unsigned char *at = w_row[i] + (k / GEMM_STEP + s) * step_bytes<W>();

                load_words_once(at, [&](int j, uint32_t word) {
                    ahead[s + j / WORDS][i][j % WORDS] = word;
                });
            }
    }

    __device__ __forceinline__ void unpack_step(int s)
    {
        uint32_t upper[4], lower[4], *to = a[s % 2];

        unpack<W>(upper, words[s][0]);
        unpack<W>(lower, words[s][1]);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            to[4 * i] = upper[2 * i];
            to[4 * i + 1] = lower[2 * i];
            to[4 * i + 2] = upper[2 * i + 1];
            to[4 * i + 3] = lower[2 * i + 1];
        }
    }

    /* Start the products of a step, whose activations lie at `address`. */
    __device__ __forceinline__ void start_step(int s, uint32_t address)
    {
        bool adds = GROUP != GEMM_STEP && s > 0;

        pin_registers(a[s % 2]);
        pin_registers(group);
        wgmma_fence();
        wgmma_bf16(group, a[s % 2], operand_at(address), adds);
        wgmma_bf16(group, a[s % 2] + 4, operand_at(address + 32), true);
        wgmma_commit();
    }

    /* The end of a group in step s. sums: of its activations, from row 2 c of the tile on. */
    __device__ __forceinline__ void add_group(int s, const float *sums)
    {
        float upper = scale_of<W, GROUP>(scales[0], s), lower = scale_of<W, GROUP>(scales[1], s);

#pragma unroll
        for (int j = 0; j < 16; j++) {
            add_scaled(total + 4 * j, group + 4 * j, upper, lower);
            if constexpr (is_affine<W>()) {
                uint2 two = *reinterpret_cast<const uint2 *>(sums + 8 * j);
                float x = __uint_as_float(two.x), y = __uint_as_float(two.y);
                const float of_rows[4] = {x, y, x, y};

                add_scaled(total + 4 * j, of_rows, offset_of<W, GROUP>(scales[0], s),
                           offset_of<W, GROUP>(scales[1], s));
            }
        }
    }

    /* Add the chunk at k, whose words and scales are loaded. */
    __device__ __forceinline__ void chunk(const unsigned char *stage, uint32_t k, uint32_t n_k,
                                          uint32_t c)
    {
        uint32_t address = shared_address(stage);
        const float *sums = reinterpret_cast<const float *>(stage + 2 * ATOM_BYTES) + 2 * c;

        unpack_step(0);
#pragma unroll
        for (int s = 0; s < GEMM_CHUNK_STEPS; s++) {
            bool ends = GROUP == GEMM_STEP || s == GEMM_CHUNK_STEPS - 1;

            if constexpr (scales_by_step<W, GROUP>()) {
                copy_array(scales, scales_ahead);
                if (k + (s + 1) * GEMM_STEP < n_k)
                    load_scales_ahead(k + (s + 1) * GEMM_STEP);
            }
            start_step(s, address + s / 2 * ATOM_BYTES + s % 2 * (ROW_BYTES / 2));
            if (s + 1 < GEMM_CHUNK_STEPS) {
                wgmma_wait<1>(); /* the step before this one has read its registers */
                pin_registers(a[(s + 1) % 2]);
                unpack_step(s + 1);
            }
            if (ends) {
                wgmma_wait<0>();
                pin_registers(group);
                add_group(s, sums + (GROUP == GEMM_STEP ? s * TT : 0));
            }
        }
    }
};

template <enum dtype W, int GROUP>
static __device__ __forceinline__ void multiply_tile(const struct product &p,
                                                     const struct ring<piece<W, GROUP>::BYTES> &r)
{
    constexpr bool BY_STEP = scales_by_step<W, GROUP>();
    uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    uint32_t n0 = blockIdx.y * TN + warp * 16 + g, t0 = blockIdx.x * TT + 2 * c;
    struct warp_product<W, GROUP> own;

    own.begin(p, n0, c);
    own.load_ahead(0);
    own.load_scales_ahead(0);
    for (uint32_t i = 0; threadIdx.x == 0 && i < STAGES - 1; i++)
        r.fill(i);
    for (uint32_t k = 0, i = 0; k < p.k; k += GEMM_CHUNK, i++) {
        uint32_t stage = i % STAGES;

        if (threadIdx.x == 0) /* the stage of the chunk before this one */
            r.fill(i + STAGES - 1);
        __syncwarp(); /* the warp's products need all lanes at once */

        copy_array(own.words, own.ahead);
        if constexpr (!BY_STEP)
            copy_array(own.scales, own.scales_ahead);
        if (k + GEMM_CHUNK < p.k) {
            own.load_ahead(k + GEMM_CHUNK);
            if constexpr (!BY_STEP)
                own.load_scales_ahead(k + GEMM_CHUNK);
        }
        barrier_wait(&r.full[stage], i / STAGES % 2);
        own.chunk(r.stages + stage * piece<W, GROUP>::BYTES, k, p.k, c);
        __syncwarp();
        if (threadIdx.x % WARP == 0)
            barrier_arrive(&r.empty[stage]);
    }
#pragma unroll
    for (int j = 0; j < 16; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t n = n0 + i / 2 * 8, t = t0 + 8 * j + i % 2;

            if (n < p.n && t < p.n_rows)
                put_output(p, t, n, own.total[4 * j + i], old_output(p, t, n));
        }
}

/* Grid (ceil(T / TT), ceil(N / TN)): consecutive blocks share weights. */
template <enum dtype W, int GROUP>
static __global__ void __launch_bounds__(THREADS, 1)
wgmma_kernel(struct product p, const unsigned char *arranged)
{
    constexpr int BYTES = piece<W, GROUP>::BYTES;
    __shared__ uint64_t full[STAGES], empty[STAGES];
    DYNAMIC_SHARED(unsigned char, shared);
    uint32_t n_chunks = p.k / GEMM_CHUNK;
    const struct ring<BYTES> r = {shared + (0u - shared_address(shared)) % OPERAND_ALIGNMENT,
                                  arranged + (size_t)blockIdx.x * n_chunks * BYTES, full, empty,
                                  n_chunks};

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], WARPS);
        }
        barrier_inits_done();
    }
    __syncthreads();
    multiply_tile<W, GROUP>(p, r);
}

/* --- launchers ------------------------------------------------------------------------------- */

template <enum dtype W, int GROUP>
struct launcher {
    static cudaError_t prepare(void)
    {
        return allow_shared(wgmma_kernel<W, GROUP>, piece<W, GROUP>::SHARED_BYTES);
    }

    static void launch(cudaStream_t stream, const struct product *p, unsigned char *arranged)
    {
        struct arrange_params r = {p->n_rows, p->k, p->a, arranged, piece<W, GROUP>::SUMS};
        dim3 grid(ceil_div(p->n_rows, TT), ceil_div(p->n, TN));

        ASSERT(grid.y <= 65535); /* N below eight million */
        LAUNCH_SM90A(arrange_kernel, dim3(p->k / GEMM_CHUNK, grid.x), ARRANGE_THREADS, 0, stream,
                     r);
        LAUNCH_SM90A((wgmma_kernel<W, GROUP>), grid, THREADS, (piece<W, GROUP>::SHARED_BYTES),
                     stream, *p, arranged);
    }
};

struct launchers {
    cudaError_t (*prepare)(void);
    void (*launch)(cudaStream_t stream, const struct product *p, unsigned char *arranged);
};

template <enum dtype W>
static struct launchers of_group(uint32_t group)
{
    if (group == 32)
        return {launcher<W, 32>::prepare, launcher<W, 32>::launch};
    return {launcher<W, 128>::prepare, launcher<W, 128>::launch};
}

static struct launchers find_launchers(enum dtype t, uint32_t group)
{
    switch (t) {
    case DTYPE_I8: return of_group<DTYPE_I8>(group);
    case DTYPE_I4: return of_group<DTYPE_I4>(group);
    case DTYPE_A8: return of_group<DTYPE_A8>(group);
    case DTYPE_A4: return of_group<DTYPE_A4>(group);
    default: return {launcher<DTYPE_F8, 128>::prepare, launcher<DTYPE_F8, 128>::launch};
    }
}

cudaError_t gemm_wgmma_prepare(enum dtype t, uint32_t group)
{
    struct cudaFuncAttributes attributes; /* asking loads the kernel */
    cudaError_t e = cudaFuncGetAttributes(&attributes, arrange_kernel);

    return e == cudaSuccess ? find_launchers(t, group).prepare() : e;
}

void gemm_wgmma(cudaStream_t stream, enum dtype t, uint32_t group, const struct product *p,
                void *arranged)
{
    ASSERT(!p->x.offsets && p->n_rows > 0);
    find_launchers(t, group).launch(stream, p, static_cast<unsigned char *>(arranged));
}
