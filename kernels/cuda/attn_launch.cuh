/* attn_launch.cuh - how attention is divided among kernels. cuda_attention() in attn_launch.cu
 * chooses:
 *
 *   attn_plain    head sizes and KV types without tensor-core kernels: a warp per row and head
 *   attn_decode   sequences of one row: segments in parallel, then a combine kernel
 *   attn_prefill  all other sequences: a block of rows walks over the segments; where there are few
 *                 blocks, each walks one group of segments, and a second kernel joins the groups
 *   attn_wgmma    of these the ones with many rows, on Hopper's own matrix instructions, where
 *                 attn_choice.cu chose them
 *
 * attn_decode and attn_prefill do the same arithmetic (attn_tile.cuh); attn_wgmma has other bits.
 * On the device, attn_is_split() and attn_is_wide() decide which of them takes a sequence; the host
 * only omits launches that no sequence needs.
 *
 * Owns    nothing.
 * Thread  as ops.h.
 * Errors  as ops.h.
 * Units   as params.h. */
#ifndef TARN_KERNELS_CUDA_ATTN_LAUNCH_CUH
#define TARN_KERNELS_CUDA_ATTN_LAUNCH_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/context.cuh"
#include "kernels/params.h"

/* Argument of the kernels. */
struct attn_job {
    struct attention_params p;
    float *partials;         /* [n_partial_segs][H][d], then [n_partial_segs][H] pairs (m, l) */
    uint32_t n_partial_segs;
    uint32_t n_groups;       /* attn_prefill: of the longest sequence; 0: a block walks all */
    uint32_t n_shared;       /* query heads per KV head */
    bool has_wide;           /* attn_wgmma takes what attn_is_wide() says */
};

/* A query is one head of one row. The queries of all heads that share a KV head are computed
 * together: query i of a sequence and KV head is head i % n_shared (of this KV head) of row i /
 * n_shared. */

/* Whether attn_decode takes the sequence. Segment i of the batch has slot i of the partial
 * results; a sequence with segments behind the last slot is left to attn_prefill, which gives
 * the same bits. */
static __device__ __forceinline__ bool attn_is_split(const struct attn_seq &seq,
                                                     uint32_t n_partial_segs)
{
    return seq.n_rows == 1 && seq.seg0 + (size_t)seq.n_segs <= n_partial_segs;
}

/* Queries of a block of attn_wgmma, and the fewest of a sequence that it takes. */
#define ATTN_WIDE_QUERIES 128

/* Whether attn_wgmma takes the sequence. The rows of this call decide, not those of the batch. */
static __device__ __forceinline__ bool attn_is_wide(const struct attn_seq &seq,
                                                    const struct attn_job &job)
{
    return job.has_wide && (uint64_t)seq.n_rows * job.n_shared >= ATTN_WIDE_QUERIES;
}

/* Find the last of n sequences that starts at x or before. start(seq, i) ascends, and that of the
 * first one is at most x. All lanes of a warp call it together. */
template <typename Start>
static __device__ __forceinline__ uint32_t attn_find_seq(const struct attn_seq *seqs, uint32_t n,
                                                         uint32_t x, const Start &start)
{
    uint32_t lane = threadIdx.x % WARP, first = 0;

    while (n > 1) {
        uint32_t step = ceil_div(n, WARP), at = lane * step;
        bool starts = at < n && start(seqs[first + at], first + at) <= x;
        uint32_t before = (uint32_t)__popc(__ballot_sync(FULL_WARP, starts)) - 1;

        first += before * step;
        n = n - before * step < step ? n - before * step : step;
    }
    return first;
}

/* Where (m, l) of a head are; `slot` of the partial results. */
static __device__ __forceinline__ float2 *attn_partial_ml(const struct attn_job &job, size_t slot,
                                                          uint32_t head)
{
    const struct attention_params &p = job.p;
    size_t n_o = (size_t)job.n_partial_segs * p.n_heads * p.pool.head_dim;

    return reinterpret_cast<float2 *>(job.partials + n_o) + slot * p.n_heads + head;
}

/* The op. */
enum status attention_of(struct cuda_context *c, cudaStream_t stream,
                         const struct attention_params *p);
enum status attn_plain(struct cuda_context *c, cudaStream_t s, const struct attention_params *p);
enum status attn_decode(struct cuda_context *c, cudaStream_t s, const struct attn_job *job);
enum status attn_prefill(struct cuda_context *c, cudaStream_t s, const struct attn_job *job);
/* Called by attn_prefill, with n_groups set. */
enum status attn_wgmma(struct cuda_context *c, cudaStream_t s, const struct attn_job *job);
/* Load the kernel of a head size, on compute capability 9.0 only. */
cudaError_t attn_wgmma_prepare(uint32_t head_dim);
/* Whether there is one for KV of this type. */
static inline bool attn_wgmma_exists(enum dtype kv, uint32_t head_dim)
{
    return kv == DTYPE_BF16 && (head_dim == 64 || head_dim == 128);
}

/* fn<DIM, TYPE> for each head size with tensor-core kernels: of bf16, and of the other types.
 * attn_launch.cu knows these sizes too. */
#define ATTN_FOR_DIM(dim, fn, ...)                    \
    ((dim) == 256   ? fn<256, DTYPE_BF16>(__VA_ARGS__)            \
     : (dim) == 128 ? fn<128, DTYPE_BF16>(__VA_ARGS__)            \
     : (dim) == 64  ? fn<64, DTYPE_BF16>(__VA_ARGS__)             \
     : (dim) == 112 ? fn<112, DTYPE_BF16>(__VA_ARGS__)            \
     : (dim) == 96  ? fn<96, DTYPE_BF16>(__VA_ARGS__)             \
     : (dim) == 80  ? fn<80, DTYPE_BF16>(__VA_ARGS__)             \
     : (dim) == 48  ? fn<48, DTYPE_BF16>(__VA_ARGS__)             \
     : (dim) == 32  ? fn<32, DTYPE_BF16>(__VA_ARGS__)             \
                    : fn<16, DTYPE_BF16>(__VA_ARGS__))
#define ATTN_FOR_OTHER(type, dim, fn, ...)        \
    ((dim) == 256   ? fn<256, type>(__VA_ARGS__) \
     : (dim) == 128 ? fn<128, type>(__VA_ARGS__) \
     : (dim) == 96  ? fn<96, type>(__VA_ARGS__)  \
                    : fn<64, type>(__VA_ARGS__))
#define ATTN_FOR(pool, fn, ...)                                                                    \
    ((pool).layout.dtype == DTYPE_I8                                                               \
         ? ATTN_FOR_OTHER(DTYPE_I8, (pool).head_dim, fn, __VA_ARGS__)                              \
     : (pool).layout.dtype == DTYPE_F8                                                             \
         ? ATTN_FOR_OTHER(DTYPE_F8, (pool).head_dim, fn, __VA_ARGS__)                              \
     : (pool).layout.dtype == DTYPE_F16                                                            \
         ? ATTN_FOR_OTHER(DTYPE_F16, (pool).head_dim, fn, __VA_ARGS__)                             \
         : ATTN_FOR_DIM((pool).head_dim, fn, __VA_ARGS__))

#endif
