/* experts.cu - routers of mixtures of experts, the order of rows by expert, and the sum of the
 * experts' outputs. gemm.cu has the products. */
#include "base/check.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/context.cuh"
#include "kernels/cuda/vec4.cuh"

#define THREADS 256
#define WARPS (THREADS / WARP)
#define GRID_Y_MAX 65535

/* --- the choice --- */

static __device__ __forceinline__ uint32_t lower_lanes(void)
{
    return (1u << threadIdx.x % WARP) - 1;
}

/* Write the chosen experts in ascending order: those with fewer than k better ones. */
static __device__ __forceinline__ void choose(const struct route_params &p, const float *key,
                                              uint32_t *chosen)
{
    uint32_t lane = threadIdx.x, n = 0;

    for (uint32_t e0 = 0; e0 < p.n_experts; e0 += WARP) {
        uint32_t e = e0 + lane, rank = 0;
        float mine = key[min(e, p.n_experts - 1)];

        for (uint32_t i = 0; i < p.n_experts; i++)
            rank += key[i] > mine || (key[i] == mine && i < e);
        bool is_chosen = e < p.n_experts && rank < p.n_chosen;
        uint32_t all = __ballot_sync(FULL_WARP, is_chosen);
        if (is_chosen)
            chosen[n + __popc(all & lower_lanes())] = e;
        n += __popc(all);
    }
}

/* Grid T, one warp: a row. Sums have an order that depends on E and k alone. */
static __global__ void __launch_bounds__(WARP) route_kernel(struct route_params p)
{
    __shared__ float key[ROUTE_EXPERTS_MAX], score[ROUTE_EXPERTS_MAX];
    __shared__ uint32_t chosen[ROUTE_CHOSEN_MAX];
    const float *logits = p.logits + (size_t)blockIdx.x * p.n_experts;
    size_t out = (size_t)blockIdx.x * p.n_chosen;
    float max = -INFINITY, sum = 0;

    for (uint32_t e = threadIdx.x; e < p.n_experts; e += WARP) {
        key[e] = logits[e] == logits[e] ? logits[e] : -INFINITY;
        max = fmaxf(max, key[e]);
    }
    max = warp_max(max);
    for (uint32_t e = threadIdx.x; e < p.n_experts; e += WARP) {
        score[e] = p.score == ROUTE_SIGMOID ? 1 / (1 + expf(-logits[e])) : expf(logits[e] - max);
        sum += score[e];
    }
    sum = p.score == ROUTE_SIGMOID ? 1 : warp_sum(sum);
    __syncthreads();
    choose(p, key, chosen);
    __syncthreads();
    if (p.renormalize) {
        sum = 0;
        for (uint32_t j = 0; j < p.n_chosen; j++)
            sum += score[chosen[j]];
    }
    for (uint32_t j = threadIdx.x; j < p.n_chosen; j += WARP) {
        p.experts[out + j] = chosen[j];
        p.weights[out + j] = score[chosen[j]] / sum * p.scale;
    }
}

/* --- the order --- */

/* Sum over the block; `shared` has WARPS elements and is free again when all threads return. */
static __device__ __forceinline__ uint32_t block_count(uint32_t v, uint32_t *shared)
{
    for (int m = WARP / 2; m > 0; m /= 2)
        v += __shfl_xor_sync(FULL_WARP, v, m);
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < WARPS; i++)
        v += shared[i];
    __syncthreads();
    return v;
}

/* Grid E: a block finds the rows of one expert. Their first place is the number of choices of lower
 * experts, so blocks do not wait for each other. */
static __global__ void __launch_bounds__(THREADS) sort_kernel(struct route_params p)
{
    __shared__ uint32_t counts[WARPS];
    uint32_t n = p.n_rows * p.n_chosen, expert = blockIdx.x, lower = 0, at;

    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        lower += p.experts[i] < expert;
    at = block_count(lower, counts);
    if (threadIdx.x == 0)
        p.offsets[expert] = at;
    if (threadIdx.x == 0 && expert + 1 == p.n_experts)
        p.offsets[p.n_experts] = n;
    for (uint32_t i0 = 0; i0 < n; i0 += THREADS) {
        uint32_t i = i0 + threadIdx.x, warp = threadIdx.x / WARP, before = 0, all = 0;
        bool mine = i < n && p.experts[i] == expert;
        uint32_t votes = __ballot_sync(FULL_WARP, mine);

        if (threadIdx.x % WARP == 0)
            counts[warp] = __popc(votes);
        __syncthreads();
        for (uint32_t w = 0; w < WARPS; w++) {
            before += w < warp ? counts[w] : 0;
            all += counts[w];
        }
        __syncthreads(); /* the counts of this turn have been read */
        if (mine) {
            uint32_t place = at + before + __popc(votes & lower_lanes());

            p.rows[place] = i / p.n_chosen;
            p.at[i] = place;
        }
        at += all;
    }
}

enum status cuda_route(struct device *d, struct stream *stream, const struct route_params *p)
{
    struct cuda_context *c = cuda_context_of(d);
    cudaStream_t s = cuda_stream_of(c, stream);

    ASSERT(p->n_experts > 0 && p->n_experts <= ROUTE_EXPERTS_MAX);
    ASSERT(p->n_chosen > 0 && p->n_chosen <= ROUTE_CHOSEN_MAX && p->n_chosen <= p->n_experts);
    if (p->n_rows > 0)
        LAUNCH(route_kernel, p->n_rows, WARP, 0, s, *p);
    if (p->offsets)
        LAUNCH(sort_kernel, p->n_experts, THREADS, 0, s, *p);
    return cuda_launched(c, "route");
}

/* --- the sum --- */

/* Grid (T, ceil(D / (4 * THREADS)), at most GRID_Y_MAX): a block computes parts of one row, four
 * elements per thread and turn. */
template <bool VEC>
static __global__ void __launch_bounds__(THREADS) combine_kernel(struct combine_params p)
{
    size_t first = (size_t)blockIdx.x * p.n_chosen;
    float *out = p.out + (size_t)blockIdx.x * p.dim;

    for (uint32_t i = (blockIdx.y * THREADS + threadIdx.x) * 4; i < p.dim;
         i += gridDim.y * THREADS * 4) {
        float4 sum = make_float4(0, 0, 0, 0), old = load4<VEC>(out, i, p.dim);

        for (size_t j = first; j < first + p.n_chosen; j++) {
            float4 y = load4<VEC>(p.y + (p.at ? p.at[j] : j) * p.dim, i, p.dim);
            float w = p.weights[j];

            sum = make_float4(fmaf(w, y.x, sum.x), fmaf(w, y.y, sum.y), fmaf(w, y.z, sum.z),
                              fmaf(w, y.w, sum.w));
        }
        store4<VEC>(out, i, p.dim,
                    make_float4(old.x + sum.x, old.y + sum.y, old.z + sum.z, old.w + sum.w));
    }
}

enum status cuda_combine(struct device *d, struct stream *stream, const struct combine_params *p)
{
    struct cuda_context *c = cuda_context_of(d);
    cudaStream_t s = cuda_stream_of(c, stream);
    uint32_t n_y = ceil_div(p->dim, 4 * THREADS);
    dim3 grid(p->n_rows, n_y < GRID_Y_MAX ? n_y : GRID_Y_MAX);

    if (p->n_rows == 0 || p->dim == 0)
        return OK;
    if (rows_are_vec4(p->y, p->dim) && rows_are_vec4(p->out, p->dim))
        LAUNCH(combine_kernel<true>, grid, THREADS, 0, s, *p);
    else
        LAUNCH(combine_kernel<false>, grid, THREADS, 0, s, *p);
    return cuda_launched(c, "combine");
}
