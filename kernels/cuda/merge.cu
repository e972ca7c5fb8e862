/* merge.cu - joins partial attentions by their log-sum-exp (Milakov and Gimelshein 2018; the
 * combine step of FlashDecoding).
 *
 * Grid (ceil(T * H * ceil(d / 4) / THREADS)): a thread computes four consecutive dimensions of one
 * head from all parts in order. The weights are cheap compared with the parts' bytes, so each
 * thread computes them itself. */
#include <math.h>

#include "base/check.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/context.cuh"
#include "kernels/cuda/vec4.cuh"

#define THREADS 256

/* sum + weight * v, or sum unchanged for a part without visible keys, whatever v contains. */
static __device__ __forceinline__ float4 weighted(float4 sum, float weight, float4 v, bool counts)
{
    if (!counts)
        return sum;
    return make_float4(fmaf(weight, v.x, sum.x), fmaf(weight, v.y, sum.y),
                       fmaf(weight, v.z, sum.z), fmaf(weight, v.w, sum.w));
}

template <bool VEC>
static __global__ void __launch_bounds__(THREADS) merge_kernel(struct merge_params p)
{
    size_t item = (size_t)blockIdx.x * THREADS + threadIdx.x;
    size_t n_heads = (size_t)p.n_rows * p.n_heads; /* heads of all rows */
    uint32_t per_head = ceil_div(p.head_dim, 4);
    size_t head = item / per_head;
    uint32_t i = (uint32_t)(item % per_head) * 4;

    if (head >= n_heads)
        return;

    float top = -INFINITY, total = 0;
    float4 sum = make_float4(0, 0, 0, 0);

    for (uint32_t part = 0; part < p.n_parts; part++)
        top = fmaxf(top, p.lse[part * n_heads + head]);
#pragma unroll 4 /* parts loaded together */
    for (uint32_t part = 0; part < p.n_parts; part++) {
        size_t at = part * n_heads + head;
        float4 v = load4<VEC>(p.parts + at * p.head_dim, i, p.head_dim);
        float lse = p.lse[at];
        bool counts = lse != -INFINITY; /* NaN counts, so that it shows in the result */
        float weight = counts ? expf(lse - top) : 0;

        sum = weighted(sum, weight, v, counts);
        total += weight;
    }
    if (total != 0) /* 0: no part counts; otherwise the largest weight is 1 */
        sum = make_float4(sum.x / total, sum.y / total, sum.z / total, sum.w / total);
    store4<VEC>(p.out + head * p.head_dim, i, p.head_dim, sum);
    if (p.out_lse && i == 0)
        p.out_lse[head] = total != 0 ? top + logf(total) : -INFINITY;
}

enum status cuda_merge(struct device *d, struct stream *stream, const struct merge_params *p)
{
    struct cuda_context *c = cuda_context_of(d);
    cudaStream_t s = cuda_stream_of(c, stream);
    size_t n_items = (size_t)p->n_rows * p->n_heads * ceil_div(p->head_dim, 4);
    size_t n_blocks = (n_items + THREADS - 1) / THREADS;

    if (n_items == 0)
        return OK;
    ASSERT(n_blocks <= INT32_MAX); /* below 512 G elements */
    if (rows_are_vec4(p->parts, p->head_dim) && rows_are_vec4(p->out, p->head_dim))
        LAUNCH(merge_kernel<true>, (uint32_t)n_blocks, THREADS, 0, s, *p);
    else
        LAUNCH(merge_kernel<false>, (uint32_t)n_blocks, THREADS, 0, s, *p);
    return cuda_launched(c, "merge");
}
