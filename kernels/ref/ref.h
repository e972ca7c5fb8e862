/* ref.h - the reference kernels: plain C, sums in double, one thread. Tests compare all other
 * kernels with them.
 *
 * Owns    nothing.
 * Thread  any; they keep no state and ignore device and stream (both may be NULL).
 * Errors  as ops.h; attention, its tiles and gemm allocate (ERR_NOMEM).
 * Units   as params.h. */
#ifndef TARN_KERNELS_REF_REF_H
#define TARN_KERNELS_REF_REF_H

#include "kernels/ops.h"

extern const struct ops ref_ops;

NODISCARD enum status ref_embed(struct device *, struct stream *, const struct embed_params *);
NODISCARD enum status ref_rmsnorm(struct device *, struct stream *, const struct rmsnorm_params *);
NODISCARD enum status ref_gemm(struct device *, struct stream *, const struct gemm_params *);
NODISCARD enum status ref_rope_kv(struct device *, struct stream *, const struct rope_kv_params *);
NODISCARD enum status ref_attention(struct device *, struct stream *,
                                    const struct attention_params *);
NODISCARD enum status ref_silu_mul(struct device *, struct stream *,
                                   const struct silu_mul_params *);
NODISCARD enum status ref_gather(struct device *, struct stream *, const struct gather_params *);
/* For tests only, not in ref_ops: attention has no tiles here, so these two give its result, but
 * not its bits. */
NODISCARD enum status ref_attention_tiles(struct device *, struct stream *,
                                          const struct attention_params *);
NODISCARD enum status ref_merge_tiles(struct device *, struct stream *,
                                      const struct merge_tiles_params *);
NODISCARD enum status ref_scale(struct device *, struct stream *, const struct scale_params *);
NODISCARD enum status ref_route(struct device *, struct stream *, const struct route_params *);
NODISCARD enum status ref_gemm_experts(struct device *, struct stream *,
                                       const struct gemm_experts_params *);
NODISCARD enum status ref_combine(struct device *, struct stream *, const struct combine_params *);

#endif
