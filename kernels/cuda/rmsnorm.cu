/* rmsnorm.cu - root-mean-square norm of rows (Zhang and Sennrich 2019), with the residual's sum;
 * norms of heads, and LayerNorm.
 *
 * Grid (T): a block computes one row, with a number of warps chosen by its length. A thread has
 * four consecutive elements out of every 4 * block size. The first KEPT of these stay in registers;
 * those behind (in rows longer than 8192) are read twice. All loads are issued before the first
 * store: since out may be x, the compiler could not move them.
 *
 * On compute capability 9.0 the kernel begins early, and loads its weights while the kernel in
 * front ends: with few rows nothing else hides the time of that load.
 *
 * The squares are summed in four chains per thread, then by a butterfly over the warp, then over
 * the warps in order: a row's bits depend on the row alone. */
#include "base/check.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/context.cuh"
#include "kernels/cuda/rounded.cuh"

#define KEPT 4

static __device__ __forceinline__ float4 add4(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

static __device__ __forceinline__ float4 square4(float4 v, float4 sum)
{
    return make_float4(fmaf(v.x, v.x, sum.x), fmaf(v.y, v.y, sum.y), fmaf(v.z, v.z, sum.z),
                       fmaf(v.w, v.w, sum.w));
}

static __device__ __forceinline__ float4 normed(float4 v, float scale, float4 w)
{
    return make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z,
                       v.w * scale * w.w);
}

template <int N_WARPS, bool VEC>
static __global__ void __launch_bounds__(N_WARPS *WARP) rmsnorm_kernel(struct rmsnorm_params p)
{
    __shared__ float shared[N_WARPS];
    const uint32_t step = N_WARPS * WARP * 4, i0 = threadIdx.x * 4;
    const uint32_t n_out = row_length(p.rounded, p.dim);

    let_next_begin(); /* a product, which loads its first weights meanwhile */
    size_t row = (size_t)blockIdx.x * p.dim;
    const float *x = p.x + row;
    float *sum = p.sum ? p.sum + row : NULL;
    float4 kept[KEPT], w[KEPT], squares = make_float4(0, 0, 0, 0);

#pragma unroll
    for (int j = 0; j < KEPT; j++)
        if (VEC) /* else it would spill */
            w[j] = load4<VEC>(p.w, i0 + j * step, p.dim);
    wait_for_inputs(); /* weights are no kernel's results */
#pragma unroll
    for (int j = 0; j < KEPT; j++)
        kept[j] = load4<VEC>(x, i0 + j * step, p.dim);
    if (sum) {
        float4 old[KEPT];

#pragma unroll
        for (int j = 0; j < KEPT; j++)
            old[j] = load4<VEC>(sum, i0 + j * step, p.dim);
#pragma unroll
        for (int j = 0; j < KEPT; j++) {
            kept[j] = add4(old[j], kept[j]);
            store4<VEC>(sum, i0 + j * step, p.dim, kept[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < KEPT; j++)
        squares = square4(kept[j], squares);
    for (uint32_t i = i0 + KEPT * step; i < p.dim; i += step) {
        float4 v = load4<VEC>(x, i, p.dim);

        if (sum) {
            v = add4(load4<VEC>(sum, i, p.dim), v);
            store4<VEC>(sum, i, p.dim, v);
        }
        squares = square4(v, squares);
    }

    float mine = (squares.x + squares.y) + (squares.z + squares.w);
    float scale = 1.0f / sqrtf(block_sum<N_WARPS>(mine, shared) / (float)p.dim + p.eps);
    float *out = p.out + row;

    /* A thread writes only elements that no other thread reads, so out may be x or sum. */
    auto put = [&](uint32_t i, float4 v, float4 weights) {
        float4 y = normed(v, scale, weights);

        put4<VEC>(p.rounded, blockIdx.x, out, i, p.dim, y);
        if (p.keep_out)
            store4<VEC>(out, i, p.dim, y);
    };
#pragma unroll
    for (int j = 0; j < KEPT; j++)
        put(i0 + j * step, kept[j], VEC ? w[j] : load4<VEC>(p.w, i0 + j * step, p.dim));
    for (uint32_t i = i0 + KEPT * step; i < n_out; i += step)
        put(i, load4<VEC>(sum ? sum : x, i, p.dim), load4<VEC>(p.w, i, p.dim));
}

template <int N_WARPS>
static void rmsnorm_launch(const struct rmsnorm_params *p, cudaStream_t s, bool early)
{
    bool vec = rows_are_vec4(p->x, p->dim) && rows_are_vec4(p->out, p->dim) &&
               rows_are_vec4(p->w, p->dim) && rows_are_vec4(p->sum, p->dim);

    if (vec)
        LAUNCH_EARLY((rmsnorm_kernel<N_WARPS, true>), p->n_rows, N_WARPS * WARP, 0, s, early, *p);
    else
        LAUNCH_EARLY((rmsnorm_kernel<N_WARPS, false>), p->n_rows, N_WARPS * WARP, 0, s, early, *p);
}

/* Norms of other kinds than Llama's: a warp per vector, whose lanes have elements lane, lane +
 * WARP, ... */
static __global__ void __launch_bounds__(WARP) norm_kernel(struct rmsnorm_params p)
{
    __shared__ float shared[1];
    uint32_t row = blockIdx.x / p.n_parts, part = blockIdx.x % p.n_parts;
    const float *x = p.x + row * p.x_stride + (size_t)part * p.dim;
    float *out = p.out + row * p.out_stride + (size_t)part * p.dim;
    float mean = 0, squares = 0;

    let_next_begin();
    wait_for_inputs();
    if (p.center) {
        for (uint32_t i = threadIdx.x; i < p.dim; i += WARP)
            mean += x[i];
        mean = block_sum<1>(mean, shared) / (float)p.dim;
        __syncthreads(); /* before `shared` is written again */
    }
    for (uint32_t i = threadIdx.x; i < p.dim; i += WARP)
        squares = fmaf(x[i] - mean, x[i] - mean, squares);
    float scale = 1.0f / sqrtf(block_sum<1>(squares, shared) / (float)p.dim + p.eps);

    /* A thread writes only elements that no other thread reads, so out may be x. */
    for (uint32_t i = threadIdx.x; i < row_length(p.rounded, p.dim); i += WARP) {
        float y = i < p.dim ? (x[i] - mean) * scale * p.w[i] : 0;

        if (p.bias && i < p.dim)
            y += p.bias[i];
        if (p.rounded.data)
            put1(p.rounded, row, NULL, i, p.dim, y);
        if (!p.rounded.data || (p.keep_out && i < p.dim))
            out[i] = p.accumulate ? out[i] + y : y;
    }
}

static void norm_launch(struct rmsnorm_params p, cudaStream_t s, bool early)
{
    ASSERT(!p.sum && !(p.rounded.data && (p.accumulate || p.n_parts)));
    p.n_parts = p.n_parts ? p.n_parts : 1;
    p.x_stride = p.x_stride ? p.x_stride : (size_t)p.n_parts * p.dim;
    p.out_stride = p.out_stride ? p.out_stride : (size_t)p.n_parts * p.dim;
    LAUNCH_EARLY(norm_kernel, p.n_rows * p.n_parts, WARP, 0, s, early, p);
}

enum status cuda_rmsnorm(struct device *d, struct stream *stream, const struct rmsnorm_params *p)
{
    struct cuda_context *c = cuda_context_of(d);
    cudaStream_t s = cuda_stream_of(c, stream);
    bool early = c->major >= 9;

    if (p->n_rows == 0)
        return OK;
    if (p->n_parts || p->x_stride || p->out_stride || p->center || p->accumulate || p->bias)
        norm_launch(*p, s, early);
    else if (p->dim <= WARP * 4 * KEPT)
        rmsnorm_launch<1>(p, s, early);
    else if (p->dim <= 4 * WARP * 4 * KEPT)
        rmsnorm_launch<4>(p, s, early);
    else
        rmsnorm_launch<16>(p, s, early);
    return cuda_launched(c, "rmsnorm");
}
