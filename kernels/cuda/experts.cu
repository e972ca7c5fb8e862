/* experts.cu - routers of mixtures of experts, the order of rows by expert, and the sum of the
 * experts' outputs. gemm.cu has the products. */
#include "base/check.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/context.cuh"
#include "kernels/cuda/vec4.cuh"

#define THREADS 256
#define WARPS (THREADS / WARP)
#define GRID_Y_MAX 65535
#define ROUTE_THREADS 128
#define ROUTE_WARPS (ROUTE_THREADS / WARP)
/* Most choices that the last block of route_kernel() sorts: a launch less, and each thread walks
 * the list twice for each of its experts. */
#define SORT_HERE_MAX 1024
#define NO_EXPERT 0xffffu

static __device__ __forceinline__ uint32_t lower_lanes(void)
{
    return (1u << threadIdx.x % WARP) - 1;
}

/* --- the choice --- */

/* What the threads of a block share about its row. */
struct route_row {
    float key[ROUTE_EXPERTS_MAX], score[ROUTE_EXPERTS_MAX];
    float sum; /* of the scores by which weights are divided */
    uint32_t chosen[ROUTE_CHOSEN_MAX];
    uint32_t counts[ROUTE_WARPS];
};

/* Compute the scores of a row and their sum by one warp: the order depends on E alone. */
static __device__ __forceinline__ void score_row(const struct route_params &p,
                                                 const float *logits, struct route_row &r)
{
    float max = -INFINITY, sum = 0;

    for (uint32_t e = threadIdx.x; e < p.n_experts; e += WARP)
        max = fmaxf(max, r.key[e]);
    max = warp_max(max);
    for (uint32_t e = threadIdx.x; e < p.n_experts; e += WARP) {
        float score = p.score == ROUTE_SIGMOID ? 1 / (1 + expf(-logits[e])) : expf(logits[e] - max);

        r.score[e] = score;
        sum += score;
    }
    sum = warp_sum(sum);
    if (threadIdx.x == 0)
        r.sum = p.score == ROUTE_SIGMOID ? 1 : sum;
}

/* Collect the chosen experts in ascending order: those with fewer than k better ones. */
static __device__ __forceinline__ void choose(const struct route_params &p, struct route_row &r)
{
    uint32_t warp = threadIdx.x / WARP, n = 0;

    for (uint32_t e0 = 0; e0 < p.n_experts; e0 += ROUTE_THREADS) {
        uint32_t e = e0 + threadIdx.x, rank = 0;
        float mine = r.key[min(e, p.n_experts - 1)];

        for (uint32_t i = 0; i < p.n_experts; i++)
            rank += r.key[i] > mine || (r.key[i] == mine && i < e);
        bool is_chosen = e < p.n_experts && rank < p.n_chosen;
        uint32_t votes = __ballot_sync(FULL_WARP, is_chosen);
        if (threadIdx.x % WARP == 0)
            r.counts[warp] = __popc(votes);
        __syncthreads();
        for (uint32_t w = 0; w < ROUTE_WARPS; w++) {
            if (is_chosen && w == warp)
                r.chosen[n + __popc(votes & lower_lanes())] = e;
            n += r.counts[w];
        }
        __syncthreads(); /* the counts of this turn have been read */
    }
}

static __device__ __forceinline__ void route_one(const struct route_params &p,
                                                 struct route_row &r)
{
    const float *logits = p.logits + (size_t)blockIdx.x * p.n_experts;
    size_t out = (size_t)blockIdx.x * p.n_chosen;

    for (uint32_t e = threadIdx.x; e < p.n_experts; e += ROUTE_THREADS)
        r.key[e] = logits[e] == logits[e] ? logits[e] : -INFINITY;
    __syncthreads();
    if (threadIdx.x < WARP)
        score_row(p, logits, r);
    choose(p, r); /* its barriers make the scores visible */
    float sum = r.sum;
    if (p.renormalize) {
        sum = 0;
        for (uint32_t j = 0; j < p.n_chosen; j++)
            sum += r.score[r.chosen[j]];
    }
    for (uint32_t j = threadIdx.x; j < p.n_chosen; j += ROUTE_THREADS) {
        p.experts[out + j] = r.chosen[j];
        p.weights[out + j] = r.score[r.chosen[j]] / sum * p.scale;
    }
}

/* A row of padding: combine_kernel() then adds 0 times some row, which nobody reads. */
static __device__ __forceinline__ void route_none(const struct route_params &p)
{
    for (uint32_t j = threadIdx.x; j < p.n_chosen; j += ROUTE_THREADS) {
        size_t i = (size_t)blockIdx.x * p.n_chosen + j;

        p.experts[i] = p.n_experts;
        p.weights[i] = 0;
        if (p.at)
            p.at[i] = 0;
    }
}

/* --- the order --- */

/* Number of choices [2 n_pairs] that are expert e. */
static __device__ __forceinline__ uint32_t count_of(const uint32_t *pairs, uint32_t n_pairs,
                                                    uint32_t e)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_pairs; i++)
        n += (pairs[i] % 65536 == e) + (pairs[i] / 65536 == e);
    return n;
}

/* Sum of `v` over the threads of the block before this one. */
static __device__ __forceinline__ uint32_t sum_before(uint32_t v, uint32_t *counts)
{
    uint32_t sum = v, before = 0;

    for (uint32_t d = 1; d < WARP; d *= 2) {
        uint32_t lower = __shfl_up_sync(FULL_WARP, sum, d);

        sum += threadIdx.x % WARP >= d ? lower : 0;
    }
    if (threadIdx.x % WARP == WARP - 1)
        counts[threadIdx.x / WARP] = sum;
    __syncthreads();
    for (uint32_t w = 0; w < threadIdx.x / WARP; w++)
        before += counts[w];
    return before + sum - v;
}

/* Sort all choices by expert in one block. A thread has the same number of consecutive experts as
 * the others. */
static __device__ __forceinline__ void sort_here(const struct route_params &p, uint32_t *pairs,
                                                 uint32_t *counts)
{
    const volatile uint32_t *experts = p.experts; /* other blocks have written them */
    uint32_t n = p.n_rows * p.n_chosen, n_pairs = (n + 1) / 2, n_mine = 0;
    uint32_t each = ceil_div(p.n_experts, ROUTE_THREADS), first = threadIdx.x * each;

    for (uint32_t i = threadIdx.x; i < n_pairs; i += ROUTE_THREADS) {
        uint32_t second = 2 * i + 1 < n ? experts[2 * i + 1] : NO_EXPERT;

        pairs[i] = experts[2 * i] | second << 16;
    }
    __syncthreads();
    for (uint32_t e = first; e < min(first + each, p.n_experts); e++)
        n_mine += count_of(pairs, n_pairs, e);
    uint32_t at = sum_before(n_mine, counts);
    for (uint32_t e = first; e < min(first + each, p.n_experts); e++) {
        p.offsets[e] = at;
        for (uint32_t i = 0; i < 2 * n_pairs; i++)
            if ((pairs[i / 2] >> i % 2 * 16 & 0xffff) == e) {
                p.rows[at] = i / p.n_chosen;
                p.at[i] = at++;
            }
    }
    if (threadIdx.x == ROUTE_THREADS - 1)
        p.offsets[p.n_experts] = at;
}

/* Grid T: a block routes a row. SORTS: the block that ends last sorts the choices of all; n_done
 * counts the blocks and is 0 again afterwards. */
template <bool SORTS>
static __global__ void __launch_bounds__(ROUTE_THREADS)
route_kernel(struct route_params p, uint32_t *n_done)
{
    __shared__ struct route_row row;
    __shared__ uint32_t pairs[SORTS ? SORT_HERE_MAX / 2 : 1], is_last;

    let_next_begin(); /* the products of the experts */
    if (p.slot_block && p.slot_block[blockIdx.x] == UINT32_MAX)
        route_none(p);
    else
        route_one(p, row);
    if constexpr (SORTS) {
        __threadfence(); /* this block's choices can be seen before it is counted */
        __syncthreads();
        if (threadIdx.x == 0) {
            is_last = atomicAdd(n_done, 1u) + 1 == gridDim.x;
            if (is_last)
                *n_done = 0;
        }
        __syncthreads();
        if (!is_last)
            return;
        __threadfence();
        sort_here(p, pairs, row.counts);
    }
}

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

    let_next_begin(); /* the products of the experts */
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        lower += p.experts[i] < expert;
    at = block_count(lower, counts);
    if (threadIdx.x == 0)
        p.offsets[expert] = at;
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
    if (threadIdx.x == 0 && expert + 1 == p.n_experts)
        p.offsets[p.n_experts] = at;
}

enum status cuda_route(struct device *d, struct stream *stream, const struct route_params *p)
{
    struct cuda_context *c = cuda_context_of(d);
    cudaStream_t s = cuda_stream_of(c, stream);
    bool sorts_here = p->n_rows > 0 && (size_t)p->n_rows * p->n_chosen <= SORT_HERE_MAX;

    ASSERT(p->n_experts > 0 && p->n_experts <= ROUTE_EXPERTS_MAX);
    ASSERT(p->n_chosen > 0 && p->n_chosen <= ROUTE_CHOSEN_MAX && p->n_chosen <= p->n_experts);
    if (p->offsets && sorts_here)
        LAUNCH(route_kernel<true>, p->n_rows, ROUTE_THREADS, 0, s, *p, c->n_routed);
    else if (p->n_rows > 0)
        LAUNCH(route_kernel<false>, p->n_rows, ROUTE_THREADS, 0, s, *p, c->n_routed);
    if (p->offsets && !sorts_here)
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
