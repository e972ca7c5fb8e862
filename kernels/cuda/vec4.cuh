/* vec4.cuh - four consecutive floats per thread: one 16-byte access if the memory is aligned for
 * it, else four single ones.
 *
 * A kernel is a template over VEC and gives each thread the same elements either way, so its bits
 * do not depend on the alignment of its arrays.
 *
 * Owns    nothing.
 * Thread  device code; is_aligned() and rows_are_vec4() on the host.
 * Errors  none.
 * Units   elements; is_aligned(): bytes. */
#ifndef TARN_KERNELS_CUDA_VEC4_CUH
#define TARN_KERNELS_CUDA_VEC4_CUH

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

static inline bool is_aligned(const void *p, size_t n_bytes)
{
    return reinterpret_cast<uintptr_t>(p) % n_bytes == 0;
}

/* Whether rows of n floats from p on can be accessed with VEC. */
static inline bool rows_are_vec4(const float *p, size_t n)
{
    return is_aligned(p, 16) && n % 4 == 0;
}

/* x[i .. i + 3], with 0 from x[n] on. VEC: i and n are multiples of 4 and x is aligned to 16
 * bytes. */
template <bool VEC>
static __device__ __forceinline__ float4 load4(const float *x, uint32_t i, uint32_t n)
{
    float4 v = make_float4(0, 0, 0, 0);

    if (VEC) {
        if (i < n)
            v = *reinterpret_cast<const float4 *>(x + i);
        return v;
    }
    if (i < n)
        v.x = x[i];
    if (i + 1 < n)
        v.y = x[i + 1];
    if (i + 2 < n)
        v.z = x[i + 2];
    if (i + 3 < n)
        v.w = x[i + 3];
    return v;
}

/* Store x[i .. i + 3]; nothing is written from x[n] on. */
template <bool VEC>
static __device__ __forceinline__ void store4(float *x, uint32_t i, uint32_t n, float4 v)
{
    if (VEC) {
        if (i < n)
            *reinterpret_cast<float4 *>(x + i) = v;
        return;
    }
    if (i < n)
        x[i] = v.x;
    if (i + 1 < n)
        x[i + 1] = v.y;
    if (i + 2 < n)
        x[i + 2] = v.z;
    if (i + 3 < n)
        x[i + 3] = v.w;
}

#endif
