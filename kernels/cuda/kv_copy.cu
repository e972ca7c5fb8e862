/* kv_copy.cu - copies KV blocks of all layers to one buffer, and back.
 *
 * Grid: at most N_PER_SM blocks per multiprocessor. Thread blocks walk over pieces of PIECE bytes,
 * of which a thread moves MOVES times 16 bytes, with all loads before the first store. So N_PER_SM
 * * PIECE bytes per multiprocessor are in flight. Memory needs less (bandwidth times latency is
 * about 2.7 MB on an H100, 20 KB per multiprocessor), and a bus to the host far less; and most of
 * every multiprocessor is left to the kernels of other streams.
 *
 * The flat side may be pinned host memory: with unified addressing a kernel reads and writes it in
 * place, so a block crosses the bus without a copy in between. */
#include "base/check.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/context.cuh"

#define THREADS 256
#define MOVES 8
#define PIECE ((size_t)THREADS * MOVES * 16)
#define N_PER_SM 2

/* Move this thread's share of a piece of n <= PIECE bytes. */
static __device__ __forceinline__ void move_piece(unsigned char *to, const unsigned char *from,
                                                  uint32_t n)
{
    uint4 v[MOVES];
    uint32_t at = threadIdx.x * 16;

#pragma unroll
    for (int j = 0; j < MOVES; j++)
        if (at + j * (THREADS * 16) < n)
            v[j] = load_once16(from + at + j * (THREADS * 16));
#pragma unroll
    for (int j = 0; j < MOVES; j++)
        if (at + j * (THREADS * 16) < n)
            *reinterpret_cast<uint4 *>(to + at + j * (THREADS * 16)) = v[j];
}

template <bool SCATTER>
static __global__ void __launch_bounds__(THREADS, N_PER_SM) kv_copy_kernel(struct kv_copy_params p,
                                                                  size_t n_bytes)
{
    uint32_t per_block = (uint32_t)((n_bytes + PIECE - 1) / PIECE), n = per_block * p.n_blocks;

    for (uint32_t piece = blockIdx.x; piece < n; piece += gridDim.x) {
        size_t i = piece / per_block, at = piece % per_block * PIECE;
        unsigned char *in_pool =
            static_cast<unsigned char *>(p.pool.base) + p.blocks[i] * n_bytes + at;
        unsigned char *in_flat = static_cast<unsigned char *>(p.flat) + i * n_bytes + at;
        uint32_t n_here = (uint32_t)(n_bytes - at < PIECE ? n_bytes - at : PIECE);

        if (SCATTER)
            move_piece(in_pool, in_flat, n_here);
        else
            move_piece(in_flat, in_pool, n_here);
    }
}

template <bool SCATTER>
static enum status kv_copy(struct device *d, struct stream *stream,
                           const struct kv_copy_params *p)
{
    struct cuda_context *c = cuda_context_of(d);
    size_t n_bytes = kv_block_bytes(&p->pool);
    size_t n = (n_bytes + PIECE - 1) / PIECE * p->n_blocks;
    size_t n_max = (size_t)c->n_sms * N_PER_SM;

    if (n == 0)
        return OK;
    ASSERT(n <= UINT32_MAX / 2);
    /* A head's K has 32 tokens of at least 2 bytes for each dimension, so its size is a multiple of
     * 64. */
    ASSERT(n_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(p->flat) % 16 == 0 &&
           reinterpret_cast<uintptr_t>(p->pool.base) % 16 == 0);
    LAUNCH(kv_copy_kernel<SCATTER>, (uint32_t)(n < n_max ? n : n_max), THREADS, 0,
           cuda_stream_of(c, stream), *p, n_bytes);
    return cuda_launched(c, SCATTER ? "kv_scatter" : "kv_gather");
}

enum status cuda_kv_gather(struct device *d, struct stream *s, const struct kv_copy_params *p)
{
    return kv_copy<false>(d, s, p);
}

enum status cuda_kv_scatter(struct device *d, struct stream *s, const struct kv_copy_params *p)
{
    return kv_copy<true>(d, s, p);
}
