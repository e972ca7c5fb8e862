/* ops.cu - the table of launchers. */
#include <stdio.h>

#include "kernels/cuda/context.cuh"

/* Counts up when any op may give other bits, whatever the name. */
#define NUMERIC_VERSION 1

/* Another generation's matrix instructions may add in another order, and cuBLASLt picks by device:
 * KV of one must never be taken for KV of the other. The fingerprint takes the name, so it says. */
void cuda_ops_init(struct cuda_context *c)
{
    snprintf(c->ops_name, sizeof(c->ops_name), "cuda-sm%d%d%s", c->major, c->minor,
             c->config.batch_invariant ? "-invariant" : "");
    c->ops = {c->ops_name,    NUMERIC_VERSION, cuda_embed,     cuda_rmsnorm,    cuda_gemm,
              cuda_rope_kv,   cuda_attention,  cuda_silu_mul,  cuda_gather,     cuda_merge,
              cuda_kv_gather, cuda_kv_scatter, cuda_sample};
}
