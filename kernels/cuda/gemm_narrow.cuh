/* gemm_narrow.cuh - products of few rows, which wait for memory.
 *
 * A block computes 16 MT outputs of 8 NT rows, each warp one range of K; the sums of the ranges are
 * added in order. Loads of weights begin before the kernels in front have ended (LAUNCH_EARLY).
 *
 * The number of bytes under way decides the speed: at 3 TB/s and 0.7 to 1 us of latency (a guess)
 * each multiprocessor must have 16 to 23 KB under way at all times. A lane loads 16-bit floats
 * into registers, one part of a row ahead of the sums: 32 KB a block. Quantized weights are fewer
 * bytes in as many registers. A lane copies those into a ring in shared memory instead,
 * NARROW_RING_BYTES a block, from where the lane itself reads them, so that no thread waits for
 * another one. A slot is filled again when its words have been multiplied.
 *
 * Owns    nothing.
 * Thread  device code.
 * Errors  none.
 * Units   elements unless the name says bytes. */
#ifndef TARN_KERNELS_CUDA_GEMM_NARROW_CUH
#define TARN_KERNELS_CUDA_GEMM_NARROW_CUH

#include "kernels/cuda/gemm_tile.cuh"

#define NARROW_THREADS (GEMM_SPLITS * WARP)
/* Of a block; as much as a static array may have. */
#define NARROW_RING_BYTES (48 << 10)

/* Blocks per multiprocessor: more have more loads under way, where that needs no spilling. */
template <enum dtype W, int MT, int NT>
static __host__ __device__ constexpr int narrow_blocks(void)
{
    return W < DTYPE_FLOATS ? (MT * NT <= 4 ? 2 : 1) : MT * NT == 1 ? 3 : 1;
}

/* --- a warp's range of K --------------------------------------------------------------------- */

/* The rows of a lane: weights and scales of outputs g + 8 i, activations of rows g + 8 i. */
template <enum dtype W, int GROUP, int MT, int NT>
struct narrow_rows {
    const unsigned char *w[2 * MT];
    const uint16_t *scales[2 * MT], *a[NT];

    /* Threads behind the last row compute the last row again; the results are dropped at the
     * end. */
    template <bool EXPERTS>
    __device__ __forceinline__ void init(const struct product &p, uint32_t n0, uint32_t t0)
    {
        uint32_t g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;

#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            uint32_t n = min(n0 + 8 * i + g, p.n - 1);

            w[i] = p.w + n * p.w_row_bytes + c * 16;
            scales[i] = scale_row_of<W, GROUP>(p, n);
        }
#pragma unroll
        for (int i = 0; i < NT; i++)
            a[i] = activations_of<EXPERTS>(p, min(t0 + 8 * i + g, p.n_rows - 1)) + 8 * c;
    }

    __device__ __forceinline__ uint4 activations(int i, uint32_t k) const
    {
        return *reinterpret_cast<const uint4 *>(a[i] + k);
    }
};

/* The walk of 16-bit floats: a lane loads the next PART steps into registers while it multiplies
 * the current ones. */
template <enum dtype W, int MT, int NT>
struct float_walk {
    static constexpr int WORDS = step_words<W>(), PART = MT > 1 ? 2 : GEMM_CHUNK_STEPS;
    struct narrow_rows<W, 0, MT, NT> rows;
    uint32_t words[PART][2 * MT][WORDS], ahead[PART][2 * MT][WORDS];
    struct warp_sums<W, 0, MT, NT> sums;

    __device__ __forceinline__ void load(uint32_t k)
    {
#pragma unroll
        for (int s = 0; s < PART; s++)
#pragma unroll
            for (int i = 0; i < 2 * MT; i++)
                load_words_once(rows.w[i] + (k / GEMM_STEP + s) * step_bytes<W>(),
                                [&](int j, uint32_t word) { ahead[s][i][j] = word; });
    }

    __device__ __forceinline__ void begin(unsigned char *, uint32_t first, uint32_t end)
    {
        if (first < end)
            load(first);
    }

    __device__ __forceinline__ void run(uint32_t first, uint32_t end)
    {
        const uint32_t none[2 * MT][1] = {};

        sums.clear();
        for (uint32_t k = first; k < end; k += PART * GEMM_STEP) {
            copy_array(words, ahead);
            if (k + PART * GEMM_STEP < end)
                load(k + PART * GEMM_STEP);
#pragma unroll
            for (int s = 0; s < PART; s++) {
                uint4 act[NT];

#pragma unroll
                for (int i = 0; i < NT; i++)
                    act[i] = rows.activations(i, k + s * GEMM_STEP);
                sums.step(s, words[s], none, act);
            }
        }
    }
};

/* The walk of quantized weights. A piece is 16 bytes of each of a lane's rows, of STEPS steps; a
 * slot of the ring has a piece of every thread. Lane c of four has the scales of unit c among four
 * units, the next four in advance: a unit is what one load of scales is for. */
template <enum dtype W, int GROUP, int MT, int NT>
struct ring_walk {
    static constexpr int WORDS = step_words<W>(), STEPS = mixed_steps<W>();
    static constexpr int SLOT_BYTES = 2 * MT * 16 * NARROW_THREADS;
    static constexpr int SLOTS = NARROW_RING_BYTES / SLOT_BYTES, PIECE = STEPS * GEMM_STEP;
    static constexpr int UNIT = scales_by_step<W, GROUP>() ? GEMM_STEP : GEMM_CHUNK;
    struct narrow_rows<W, GROUP, MT, NT> rows;
    unsigned char *slot0; /* the thread's part of the ring */
    uint32_t held[2 * MT][scale_words<W, GROUP>()], later[2 * MT][scale_words<W, GROUP>()];
    uint32_t scales[2 * MT][scale_words<W, GROUP>()];
    struct warp_sums<W, GROUP, MT, NT> sums;

    __device__ __forceinline__ unsigned char *place(uint32_t slot, int i) const
    {
        return slot0 + slot * SLOT_BYTES + i * (16 * NARROW_THREADS);
    }

    /* Copy the piece at k to a slot; every piece is one group, also where K has ended. */
    __device__ __forceinline__ void copy(uint32_t slot, uint32_t k, uint32_t end) const
    {
#pragma unroll
        for (int i = 0; i < 2 * MT; i++)
            if (k < end)
                cp_async_weight16(place(slot, i),
                                  rows.w[i] + k / PIECE * (STEPS * step_bytes<W>()));
        cp_async_commit();
    }

    /* Load the scales of four units, from k on. */
    __device__ __forceinline__ void load_later(uint32_t k, uint32_t end)
    {
        uint32_t at = min(k + threadIdx.x % 4 * UNIT, end - UNIT);

#pragma unroll
        for (int i = 0; i < 2 * MT; i++)
            load_scales<W, GROUP>(later[i], rows.scales[i], at);
    }

    /* Make the scales of unit n, counted from the first one, those of all lanes. */
    __device__ __forceinline__ void take_scales(uint32_t n, uint32_t k, uint32_t end)
    {
        if (n % 4 == 0) {
            copy_array(held, later);
            if (k + 4 * UNIT < end)
                load_later(k + 4 * UNIT, end);
        }
#pragma unroll
        for (int i = 0; i < 2 * MT; i++)
#pragma unroll
            for (int j = 0; j < scale_words<W, GROUP>(); j++)
                scales[i][j] = __shfl_sync(FULL_WARP, held[i][j],
                                           (threadIdx.x % WARP & ~3u) | n % 4);
    }

    __device__ __forceinline__ void begin(unsigned char *ring, uint32_t first, uint32_t end)
    {
        slot0 = ring + threadIdx.x * 16;
        if (first < end)
            load_later(first, end);
#pragma unroll
        for (int slot = 0; slot < SLOTS; slot++)
            copy(slot, first + slot * PIECE, end);
    }

    /* The piece of `slot`, which is at k: steps s0 .. s0 + STEPS - 1 of a chunk. */
    __device__ __forceinline__ void piece(uint32_t slot, int s0, uint32_t first, uint32_t k,
                                          uint32_t end)
    {
        uint32_t words[STEPS][2 * MT][WORDS];
        uint4 act[STEPS][NT];

#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int i = 0; i < NT; i++) /* before a wait that is longer */
                act[s][i] = rows.activations(i, k + s * GEMM_STEP);
        cp_async_wait<SLOTS - 1>();
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            uint32_t four[4];

            load_words<4>(four, place(slot, i));
#pragma unroll
            for (int j = 0; j < 4; j++)
                words[j / WORDS][i][j % WORDS] = four[j];
        }
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (UNIT == GEMM_STEP || s0 + s == 0)
                take_scales((k + s * GEMM_STEP - first) / UNIT, k + s * GEMM_STEP, end);
            sums.step(s0 + s, words[s], scales, act[s]);
        }
        copy(slot, k + SLOTS * PIECE, end); /* its words have been used */
    }

    __device__ __forceinline__ void run(uint32_t first, uint32_t end)
    {
        uint32_t slot = 0;

        sums.clear();
        for (uint32_t k = first; k < end; k += GEMM_CHUNK) {
#pragma unroll
            for (int s0 = 0; s0 < GEMM_CHUNK_STEPS; s0 += STEPS) {
                piece(slot, s0, first, k + s0 * GEMM_STEP, end);
                slot = slot + 1 < SLOTS ? slot + 1 : 0;
            }
        }
    }
};

/* --- the kernel ------------------------------------------------------------------------------ */

template <enum dtype W, int GROUP, int MT, int NT>
struct narrow {
    static constexpr int COLS = 16 * MT, ROWS = 8 * NT;
    static constexpr int STRIDE = COLS + 4; /* of sums: no bank conflicts */
    static constexpr int SUMS_BYTES = GEMM_SPLITS * ROWS * STRIDE * 4;
    static constexpr int SHARED_BYTES = GROUP ? NARROW_RING_BYTES : SUMS_BYTES;
    static constexpr int OUTPUTS = (ROWS * COLS + NARROW_THREADS - 1) / NARROW_THREADS;
    static_assert(SUMS_BYTES <= SHARED_BYTES, "sums lie where the ring was");

    /* Call f(i, t, n) for each of a thread's outputs, whose number is i. */
    template <typename F>
    static __device__ __forceinline__ void each_output(const struct product &p, uint32_t n0,
                                                       uint32_t t0, F f)
    {
#pragma unroll
        for (uint32_t i = 0; i < OUTPUTS; i++) {
            uint32_t at = i * NARROW_THREADS + threadIdx.x, t = at / COLS, n = at % COLS;

            if (t < ROWS && t0 + t < p.n_rows && n0 + n < p.n)
                f(i, t, n);
        }
    }
};

template <enum dtype W, int GROUP, int MT, int NT>
struct walk_of {
    using type = struct ring_walk<W, GROUP, MT, NT>;
};

template <enum dtype W, int MT, int NT>
struct walk_of<W, 0, MT, NT> {
    using type = struct float_walk<W, MT, NT>;
};

/* Grid (ceil(T / 8 NT), ceil(N / 16 MT)), GEMM_SPLITS warps: consecutive blocks share weights, so
 * that memory is read once. With experts, x is the number of a tile. */
template <enum dtype W, int GROUP, int MT, int NT, bool EXPERTS = false>
static __global__ void __launch_bounds__(NARROW_THREADS, (narrow_blocks<W, MT, NT>()))
narrow_kernel(struct product p)
{
    using Narrow = struct narrow<W, GROUP, MT, NT>;
    __shared__ __align__(16) unsigned char shared[Narrow::SHARED_BYTES];
    float (*sums)[Narrow::ROWS][Narrow::STRIDE] =
        reinterpret_cast<float (*)[Narrow::ROWS][Narrow::STRIDE]>(shared);
    uint32_t warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, c = threadIdx.x % 4;
    uint32_t n0 = blockIdx.y * Narrow::COLS, t0 = blockIdx.x * Narrow::ROWS;
    uint32_t first = warp * p.split, end = min(first + p.split, p.k);
    float old[Narrow::OUTPUTS] = {};
    typename walk_of<W, GROUP, MT, NT>::type walk;

    let_next_begin(); /* a norm or an activation, which waits */
    if constexpr (EXPERTS) {
        wait_for_inputs(); /* the offsets tell which weights */
        if (!take_tile(p, blockIdx.x, Narrow::ROWS, t0))
            return;
    }
    walk.rows.template init<EXPERTS>(p, n0, t0);
    walk.begin(shared, first, end);
    if constexpr (!EXPERTS)
        wait_for_inputs(); /* weights and scales are no kernel's results */
    Narrow::each_output(p, n0, t0, [&](uint32_t i, uint32_t t, uint32_t n) {
        old[i] = old_output(p, t0 + t, n0 + n);
    });
    walk.run(first, end);

    if constexpr (GROUP != 0)
        __syncthreads(); /* all threads have read their weights */
    each_sum<MT, NT>([&](int m, int n, int i) {
        sums[warp][8 * n + 2 * c + i % 2][16 * m + g + i / 2 * 8] = walk.sums.sum[m][n][i];
    });
    __syncthreads();
    Narrow::each_output(p, n0, t0, [&](uint32_t i, uint32_t t, uint32_t n) {
        float v = 0;

        for (uint32_t s = 0; s * p.split < p.k; s++)
            v += sums[s][t][n];
        put_output(p, t0 + t, n0 + n, v, old[i]);
    });
}

#endif
