/* sample.cuh - the building blocks of the sampling kernel: order and mass of a logit, sums over a
 * block, walks over a row.
 *
 * Order: a logit's key grows with the logit. -0 has the key of +0; NaN has 0, below the key of
 * every number. "The best" of a row is the largest key, with ties to the lower id.
 *
 * Mass: exp((x - max) / temperature) as an integer multiple of 1 / row_view.scale, a power of two.
 * Sums of integers are the same in any order, so atomics and any split over threads give the same
 * bits. The scale is chosen so that V masses do not overflow 64 bits. exp is computed in fp32, so a
 * mass is correct to about 2^-22 of the largest, and a share below 1 / scale counts as 0.
 *
 * Owns    nothing.
 * Thread  device code; all SAMPLE_THREADS threads of a block call block_* together, and other
 *         functions that say so.
 * Errors  none.
 * Units   masses in 1 / scale. */
#ifndef TARN_KERNELS_CUDA_SAMPLE_CUH
#define TARN_KERNELS_CUDA_SAMPLE_CUH

#include "kernels/cuda/common.cuh"

/* One block does a row, and few rows are common, so a block is as wide as possible: that many loads
 * are in flight. A block has as many warps as a warp has lanes, so one warp can join the results of
 * all. */
#define SAMPLE_THREADS 1024
#define SAMPLE_WARPS (SAMPLE_THREADS / WARP)

struct row_view {
    const float *x;        /* [n] */
    uint32_t n;
    float max;             /* largest number; finite wherever masses are used */
    float inv_temperature;
    float scale;
    float bins_per_unit;   /* coarse bins per unit of logit */
};

static __device__ __forceinline__ uint32_t key_of(float x)
{
    uint32_t bits = __float_as_uint(x + 0.0f); /* -0 + 0 is +0 */

    if (x != x)
        return 0;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static __device__ __forceinline__ float logit_of(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* Key and id in one number, whose maximum is the best, with ties to the lower id; 0 for NaN. */
static __device__ __forceinline__ uint64_t ranked(float x, uint32_t id)
{
    uint32_t key = key_of(x);

    return key ? (uint64_t)key << 32 | (uint32_t)~id : 0;
}

static __device__ __forceinline__ uint32_t ranked_id(uint64_t r)
{
    return r ? ~(uint32_t)r : 0;
}

static __device__ __forceinline__ float probability(const struct row_view *r, float x)
{
    return expf((x - r->max) * r->inv_temperature);
}

static __device__ __forceinline__ uint64_t mass_of(const struct row_view *r, float p)
{
    return p > 0 ? (uint64_t)(p * r->scale) : 0; /* 0 for NaN */
}

/* Exponent of the largest power of two with which n masses fit into 63 bits. */
static __device__ __forceinline__ int mass_shift(uint32_t n)
{
    return 31 + __clz((int)n);
}

/* --- reductions over a block --- */

struct join_max {
    template <typename T> __device__ T operator()(T a, T b) const
    {
        return a > b ? a : b;
    }
};

struct join_min {
    template <typename T> __device__ T operator()(T a, T b) const
    {
        return a < b ? a : b;
    }
};

struct join_sum {
    template <typename T> __device__ T operator()(T a, T b) const
    {
        return a + b;
    }
};

template <typename T, typename Join>
static __device__ __forceinline__ T warp_reduce(T v, Join join)
{
    for (int m = WARP / 2; m > 0; m /= 2)
        v = join(v, __shfl_xor_sync(FULL_WARP, v, m));
    return v;
}

/* `shared` [SAMPLE_WARPS]; the same result in every thread. Consecutive calls may use the same
 * memory. */
template <typename Join>
static __device__ __forceinline__ uint64_t block_reduce(uint64_t v, uint64_t *shared, Join join)
{
    v = warp_reduce(v, join);
    __syncthreads(); /* no thread reads the previous result any more */
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = v;
    __syncthreads();
    return warp_reduce(shared[threadIdx.x % WARP], join);
}

struct amount {
    uint64_t mass;
    uint64_t count;
};

static __device__ __forceinline__ struct amount add(struct amount a, struct amount b)
{
    return {a.mass + b.mass, a.count + b.count};
}

/* Sum of the amounts of this lane and all lower lanes. */
static __device__ __forceinline__ struct amount warp_scan(struct amount v)
{
    for (uint32_t d = 1; d < WARP; d *= 2) {
        struct amount low = {__shfl_up_sync(FULL_WARP, v.mass, d),
                             __shfl_up_sync(FULL_WARP, v.count, d)};
        if (threadIdx.x % WARP >= d)
            v = add(v, low);
    }
    return v;
}

/* Sum of the amounts of this thread and all lower threads; *total: of all threads. `shared`
 * [SAMPLE_WARPS], as in block_reduce(). */
static __device__ __forceinline__ struct amount block_scan(struct amount v, struct amount *shared,
                                                           struct amount *total)
{
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;

    v = warp_scan(v);
    __syncthreads(); /* no thread reads the previous result any more */
    if (lane == WARP - 1)
        shared[warp] = v;
    __syncthreads();
    struct amount sums = warp_scan(shared[lane]);
    struct amount before = {__shfl_sync(FULL_WARP, sums.mass, (int)warp - 1),
                            __shfl_sync(FULL_WARP, sums.count, (int)warp - 1)};
    *total = {__shfl_sync(FULL_WARP, sums.mass, WARP - 1),
              __shfl_sync(FULL_WARP, sums.count, WARP - 1)};
    return warp == 0 ? v : add(v, before);
}

/* --- walks over a row --- */

/* Call f(id, x[id]) for every id, by all threads of the block, with loads of 16 bytes for any
 * alignment of the row. */
template <typename F>
static __device__ __forceinline__ void each(const float *x, uint32_t n, F f)
{
    uint32_t head = (uint32_t)((0 - reinterpret_cast<uintptr_t>(x) / 4) % 4);

    if (head > n)
        head = n;
    uint32_t n4 = (n - head) / 4, n_odd = n - 4 * n4;
    const float4 *v = reinterpret_cast<const float4 *>(x + head);
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < n4; i += SAMPLE_THREADS) {
        float4 q = v[i];
        uint32_t id = head + 4 * i;
        f(id, q.x);
        f(id + 1, q.y);
        f(id + 2, q.z);
        f(id + 3, q.w);
    }
    if (threadIdx.x < n_odd) { /* at most 6, before and behind the aligned part */
        uint32_t id = threadIdx.x < head ? threadIdx.x : threadIdx.x + 4 * n4;
        f(id, x[id]);
    }
}

#endif
