/* ops.h - the kernel ABI: a table of launchers, one per op. forward.c is written once against it.
 *
 * Common subset of C11 and C++.
 *
 * Owns    nothing; the table is constant and belongs to the device that returned it.
 * Thread  one caller at a time per device (the engine thread). A CPU device spreads the work over
 *         its pool and returns when it is done; a GPU device only enqueues it on the stream.
 * Errors  shapes are guarded by ASSERT, since the caller computed them itself. ERR_NOMEM or
 *         ERR_INTERNAL come from a device that failed. n_rows == 0 is OK and does nothing.
 * Units   as params.h. */
#ifndef TARN_KERNELS_OPS_H
#define TARN_KERNELS_OPS_H

#include "base/status.h"
#include "kernels/params.h"

#ifdef __cplusplus
extern "C" {
#endif

struct device;
struct stream; /* NULL: the device's default stream, the only one of a CPU */

struct ops {
    const char *name; /* "ref", "cpu-avx512", "cpu-portable", "cuda-sm90", ... */
    uint32_t version; /* version of the numerics: incremented when any op may give other bits */
    enum status (*embed)(struct device *, struct stream *, const struct embed_params *);
    enum status (*rmsnorm)(struct device *, struct stream *, const struct rmsnorm_params *);
    enum status (*gemm)(struct device *, struct stream *, const struct gemm_params *);
    enum status (*rope_kv)(struct device *, struct stream *, const struct rope_kv_params *);
    enum status (*attention)(struct device *, struct stream *, const struct attention_params *);
    enum status (*silu_mul)(struct device *, struct stream *, const struct silu_mul_params *);
    enum status (*gather)(struct device *, struct stream *, const struct gather_params *);
    /* NULL: attention of this device has no tiles that can be merged later. */
    enum status (*attention_tiles)(struct device *, struct stream *,
                                   const struct attention_params *);
    enum status (*merge_tiles)(struct device *, struct stream *, const struct merge_tiles_params *);
    /* NULL: no collective, so the device works in groups of one only. Each device of a group calls
     * it with its own x. */
    enum status (*all_reduce)(struct device *, struct stream *, const struct all_reduce_params *);
    /* NULL if logits are in host memory: engine/run/sampler.c picks tokens there. */
    enum status (*sample)(struct device *, struct stream *, const struct sample_params *);
    enum status (*scale)(struct device *, struct stream *, const struct scale_params *);
    /* Types of KV, in their native layouts, that rope_kv and attention take: bit 1 << dtype. */
    uint32_t kv_dtypes;
    /* Mixtures of experts. */
    enum status (*route)(struct device *, struct stream *, const struct route_params *);
    enum status (*gemm_experts)(struct device *, struct stream *,
                                const struct gemm_experts_params *);
    enum status (*combine)(struct device *, struct stream *, const struct combine_params *);
    int rounds_rows; /* products read rounded_rows, and other ops make them */
};

#ifdef __cplusplus
}
#endif
#endif
