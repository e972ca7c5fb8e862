/* ref.c - the table of the reference kernels. */
#include "kernels/ref/ref.h"

const struct ops ref_ops = {
    .name = "ref",
    .version = 3,
    .embed = ref_embed,
    .rmsnorm = ref_rmsnorm,
    .gemm = ref_gemm,
    .rope_kv = ref_rope_kv,
    .attention = ref_attention,
    .silu_mul = ref_silu_mul,
    .gather = ref_gather,
    .scale = ref_scale,
    .kv_dtypes = KV_FLOAT_DTYPES | KV_SCALED_DTYPES,
    .route = ref_route,
    .gemm_experts = ref_gemm_experts,
    .combine = ref_combine,
};
