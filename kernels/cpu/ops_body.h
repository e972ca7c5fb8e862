/* ops_body.h - one whole variant: the kernel bodies and their table.
 *
 * A cpu_<variant>.c includes its vec_<variant>.h, then this file. Everything but the table is
 * static, so that code compiled for one instruction set is never linked into another variant. */
#include "kernels/cpu/attn_body.h"
#include "kernels/cpu/experts_body.h"

extern const struct ops CPU_OPS;

const struct ops CPU_OPS = {
    .name = CPU_NAME,
    .version = ATTN_HAVE_DOT ? 5 : 3,
    .embed = embed,
    .rmsnorm = rmsnorm,
    .gemm = gemm,
    .rope_kv = rope_kv,
    .attention = attention,
    .silu_mul = silu_mul,
    .gather = gather,
    .attention_tiles = attention_tiles,
    .merge_tiles = merge_tiles,
    .scale = scale,
    .kv_dtypes = KV_FLOAT_DTYPES | KV_SCALED_DTYPES,
    .route = route,
    .gemm_experts = gemm_experts,
    .combine = combine,
};
