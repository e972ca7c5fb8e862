/* common.cuh - helpers of the kernels: conversions, and reductions in a fixed order.
 *
 * Contraction is off for every file here (--fmad=false, -ffp-contract=off): a product and a sum are
 * fused only by an explicit fmaf(), so two kernels that share a function give equal bits.
 *
 * Owns    nothing.
 * Thread  device code; all 32 lanes of a warp call warp_* together, all threads of a block block_*.
 * Errors  none.
 * Units   as params.h. */
#ifndef TARN_KERNELS_CUDA_COMMON_CUH
#define TARN_KERNELS_CUDA_COMMON_CUH

#include "kernels/cuda/ptx.cuh"
#include "kernels/params.h"

#define WARP 32
#define FULL_WARP 0xffffffffu

static __host__ __device__ __forceinline__ uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

static __device__ __forceinline__ float bf16_lower(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

static __device__ __forceinline__ float bf16_upper(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}

/* Element i of an array of a float type. */
static __device__ __forceinline__ float load_float(enum dtype t, const void *base, size_t i)
{
    if (t == DTYPE_F32)
        return static_cast<const float *>(base)[i];
    uint16_t h = static_cast<const uint16_t *>(base)[i];
    return t == DTYPE_F16 ? f32_from_f16(h) : __uint_as_float((uint32_t)h << 16);
}

static __device__ __forceinline__ void store_float(enum dtype t, void *base, size_t i, float v)
{
    if (t == DTYPE_F32)
        static_cast<float *>(base)[i] = v;
    else
        static_cast<uint16_t *>(base)[i] =
            (uint16_t)(t == DTYPE_F16 ? pack_f16(v, 0) : pack_bf16(v, 0));
}

/* kv_at() for a native pool whose type the kernel knows: sizes become constants. */
template <enum dtype TYPE>
static __device__ __forceinline__ unsigned char *kv_at_as(const struct kv_pool &native,
                                                          uint32_t block, uint32_t layer, int v,
                                                          uint32_t head)
{
    struct kv_pool pool = native;

    pool.layout = kv_layout_of(TYPE);
    return kv_at(&pool, block, layer, v, head);
}

/* Element i of K or V; of KV of one byte without its scale. */
template <enum dtype TYPE>
static __device__ __forceinline__ float load_kv(const unsigned char *base, size_t i)
{
    return kv_dtype_is_scaled(TYPE) ? kv_unrounded(TYPE, base[i]) : load_float(TYPE, base, i);
}

/* The scales behind the elements of K or V of a head. */
template <enum dtype TYPE>
static __device__ __forceinline__ const float *scales_of(const struct kv_pool &native,
                                                         const unsigned char *head)
{
    struct kv_pool pool = native;

    pool.layout = kv_layout_of(TYPE);
    return reinterpret_cast<const float *>(head + kv_elements_bytes(&pool));
}

/* Sum (maximum) over the lanes by a butterfly, whose order is fixed; the same bits in each lane. */
static __device__ __forceinline__ float warp_sum(float v)
{
    for (int m = WARP / 2; m > 0; m /= 2)
        v += __shfl_xor_sync(FULL_WARP, v, m);
    return v;
}

static __device__ __forceinline__ float warp_max(float v)
{
    for (int m = WARP / 2; m > 0; m /= 2)
        v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, m));
    return v;
}

/* Sum over a block of N_WARPS warps; the same bits in every thread. `shared` has N_WARPS floats and
 * may be reused after the caller's next barrier. */
template <int N_WARPS>
static __device__ __forceinline__ float block_sum(float v, float *shared)
{
    v = warp_sum(v);
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < N_WARPS; i++)
        v += shared[i];
    return v;
}

#endif
