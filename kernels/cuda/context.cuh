/* context.cuh - the state behind a CUDA device, and how its errors become statuses.
 *
 * Owns    streams, the cuBLASLt handle, scratch memory: made by device.cu, used by the launchers.
 * Thread  as ops.h: one caller at a time; alloc_pinned from any thread.
 * Errors  cuda_check() translates; after an error that a context does not survive (CUDA runtime
 *         API, cudaError_t: "the process must be terminated and relaunched") `failed` is set for
 *         good and every later call returns ERR_INTERNAL without touching the device.
 * Units   bytes. */
#ifndef TARN_KERNELS_CUDA_CONTEXT_CUH
#define TARN_KERNELS_CUDA_CONTEXT_CUH

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "kernels/backend.h"

/* Partial results of decode attention kept at once, at most: a sequence whose segments lie behind
 * takes the kernel that needs none (the bits are the same). */
#define PARTIALS_BYTES_MAX ((size_t)256 << 20)
#define CUBLAS_WORKSPACE_BYTES ((size_t)32 << 20)

struct gemm_plans; /* gemm.cu */

struct cuda_context {
    struct device_config config;
    int n_sms;
    int major, minor;             /* compute capability */
    struct ops ops;
    char ops_name[32];            /* "cuda-sm90", "cuda-sm90-invariant" */
    size_t shared_max;            /* dynamic shared memory that a block may ask for */
    cudaStream_t streams[DEVICE_STREAM_COUNT];
    cublasLtHandle_t cublas;
    struct gemm_plans *plans;
    void *workspace;              /* CUBLAS_WORKSPACE_BYTES, of products */
    uint16_t *act;                /* [max_rows][pack_row_stride(max_k)] activations in 16 bits */
    float *partials;              /* of decode attention (attn_launch.cuh): n_partial_segs times
                                     [H][d + 2], o of all segments first, then (m, l) of all */
    size_t n_partial_segs;
    bool failed;
    char failure[256];
};

/* The context behind a device that runs an op. */
static inline struct cuda_context *cuda_context_of(struct device *d)
{
    return static_cast<struct cuda_context *>(device_backend_state(d));
}

static inline cudaStream_t cuda_stream_of(struct cuda_context *c, struct stream *s)
{
    return s ? reinterpret_cast<cudaStream_t>(s) : c->streams[DEVICE_COMPUTE];
}

/* OK, ERR_NOMEM, or ERR_INTERNAL; logs what failed once. `what` names the call. */
NODISCARD enum status cuda_check(struct cuda_context *c, cudaError_t e, const char *what);
/* After a launch: cuda_check(c, cudaGetLastError(), kernel). */
NODISCARD enum status cuda_launched(struct cuda_context *c, const char *kernel);

/* Made and freed with the context. */
NODISCARD enum status gemm_plans_create(struct cuda_context *c);
void gemm_plans_destroy(struct cuda_context *c);

/* The launchers of the table, each in the file of its family. */
enum status cuda_embed(struct device *, struct stream *, const struct embed_params *);
enum status cuda_gather(struct device *, struct stream *, const struct gather_params *);
enum status cuda_rmsnorm(struct device *, struct stream *, const struct rmsnorm_params *);
enum status cuda_rope_kv(struct device *, struct stream *, const struct rope_kv_params *);
enum status cuda_silu_mul(struct device *, struct stream *, const struct silu_mul_params *);
enum status cuda_gemm(struct device *, struct stream *, const struct gemm_params *);
enum status cuda_attention(struct device *, struct stream *, const struct attention_params *);
enum status cuda_merge(struct device *, struct stream *, const struct merge_params *);
enum status cuda_kv_gather(struct device *, struct stream *, const struct kv_copy_params *);
enum status cuda_kv_scatter(struct device *, struct stream *, const struct kv_copy_params *);
enum status cuda_sample(struct device *, struct stream *, const struct sample_params *);
/* Fills c->ops, their table: once the device's compute capability is known. */
void cuda_ops_init(struct cuda_context *c);

#endif
