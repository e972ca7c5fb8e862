/* ops.cu - the table of launchers. */
#include "kernels/cuda/context.cuh"

/* Counts up when any op of either table may give other bits. */
#define NUMERIC_VERSION 1

static const struct ops tables[2] = {
    {"cuda", NUMERIC_VERSION, cuda_embed, cuda_rmsnorm, cuda_gemm, cuda_rope_kv, cuda_attention,
     cuda_silu_mul, cuda_gather, cuda_merge, cuda_kv_gather, cuda_kv_scatter, cuda_sample},
    {"cuda-invariant", NUMERIC_VERSION, cuda_embed, cuda_rmsnorm, cuda_gemm, cuda_rope_kv,
     cuda_attention, cuda_silu_mul, cuda_gather, cuda_merge, cuda_kv_gather, cuda_kv_scatter,
     cuda_sample},
};

const struct ops *cuda_ops(bool batch_invariant)
{
    return &tables[batch_invariant ? 1 : 0];
}
