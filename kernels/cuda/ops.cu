/* ops.cu - the table of launchers. */
#include <stdio.h>

#include "kernels/cuda/context.cuh"

/* Incremented when any op may give other bits under the same name. */
#define NUMERIC_VERSION 5

/* The name is part of the fingerprint of stored KV. It has the choices between kernels that add in
 * other orders (gemm_choice.cu, attn_choice.cu) and the generation of the GPU: matrix instructions
 * of another generation may add in another order, and cuBLASLt chooses by device, so their KV must
 * not be mixed. */
void cuda_ops_init(struct cuda_context *c)
{
    snprintf(c->ops_name, sizeof(c->ops_name), "cuda-sm%d%d%s%s", c->major, c->minor,
             c->config.batch_invariant ? "-invariant" : c->has_wgmma ? "-wgmma" : "",
             c->has_wgmma_attention ? "-attnwgmma" : "");
    /* all_reduce comes with a group: collective.cu. */
    c->ops = {c->ops_name,    NUMERIC_VERSION, cuda_embed,     cuda_rmsnorm,    cuda_gemm,
              cuda_rope_kv,   cuda_attention,  cuda_silu_mul,  cuda_gather,     NULL,
              NULL,           NULL,            cuda_sample,     cuda_scale,
              KV_FLOAT_DTYPES | KV_SCALED_DTYPES, cuda_route,  cuda_gemm_experts, cuda_combine, 1};
}
