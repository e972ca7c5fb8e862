/* context.cuh - the state of a CUDA device, and the translation of CUDA errors to statuses.
 *
 * Owns    streams, the cuBLASLt handle, scratch memory: created by device.cu, used by the
 *         launchers.
 * Thread  as ops.h: one caller at a time; alloc_pinned from any thread.
 * Errors  cuda_check() translates. After an error that ends the context (CUDA runtime API,
 *         cudaError_t: "the process must be terminated and relaunched") `failed` stays set, and
 *         every later call returns ERR_INTERNAL without using the device.
 * Units   bytes. */
#ifndef TARN_KERNELS_CUDA_CONTEXT_CUH
#define TARN_KERNELS_CUDA_CONTEXT_CUH

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "kernels/backend.h"

/* Most bytes of partial results of decode attention. A sequence with segments behind them takes the
 * kernel that needs none; the bits are the same. */
#define PARTIALS_BYTES_MAX ((size_t)256 << 20)
#define CUBLAS_WORKSPACE_BYTES ((size_t)32 << 20)

struct gemm_plans; /* defined in gemm_cublas.cu */
struct collective; /* defined in collective.cu */

struct cuda_context {
    struct device_config config;
    int n_sms;
    int major, minor;             /* compute capability */
    struct ops ops;
    char ops_name[32];            /* "cuda-sm90", "cuda-sm90-invariant", "cuda-sm90-wgmma",
                                     "cuda-sm90-wgmma-attnwgmma" */
    size_t shared_max;            /* most dynamic shared memory of a block */
    cudaStream_t streams[DEVICE_STREAM_COUNT];
    cublasLtHandle_t cublas;
    struct gemm_plans *plans;
    void *workspace;              /* CUBLAS_WORKSPACE_BYTES, for products */
    uint16_t *act;                /* [max_rows][pack_row_stride(max_k)] activations rounded to 16
                                     bits */
    bool has_wgmma;               /* products of many rows with weights of the config's type run
                                     on Hopper's own instructions (gemm_choice.cu) */
    bool has_wgmma_attention;     /* so does attention of many rows to KV in bf16 with heads of
                                     max_head_dim (attn_choice.cu) */
    void *arranged;               /* activations in their order (gemm_wgmma.cuh); NULL without */
    float *partials;              /* partial results of decode attention (attn_launch.cuh):
                                     n_partial_segs times [H][d + 2]; o of all segments first, then
                                     (m, l) of all */
    size_t n_partial_segs;
    uint32_t *n_routed;           /* blocks of route_kernel() that have ended; 0 between launches */
    struct collective *collective; /* NULL: the device is in no group */
    bool failed;
    char failure[256];
};

/* Make the context's device the one that calls of this thread are about. A device that cannot be
 * made current has failed. */
void cuda_make_current(struct cuda_context *c);

/* The context of a backend's state, or of a device that runs an op: made current. */
static inline struct cuda_context *cuda_context_from(void *state)
{
    struct cuda_context *c = static_cast<struct cuda_context *>(state);

    cuda_make_current(c);
    return c;
}

static inline struct cuda_context *cuda_context_of(struct device *d)
{
    return cuda_context_from(device_backend_state(d));
}

static inline cudaStream_t cuda_stream_of(struct cuda_context *c, struct stream *s)
{
    return s ? reinterpret_cast<cudaStream_t>(s) : c->streams[DEVICE_COMPUTE];
}

/* Return OK, ERR_NOMEM or ERR_INTERNAL, and log a failure once. `what` names the call. */
NODISCARD enum status cuda_check(struct cuda_context *c, cudaError_t e, const char *what);
/* Mark the context as failed, for the reason `words`; a reason from before is kept. Any thread. */
void cuda_fail(struct cuda_context *c, const char *words);
/* To be called after a launch: cuda_check(c, cudaGetLastError(), kernel). */
NODISCARD enum status cuda_launched(struct cuda_context *c, const char *kernel);

/* Of the backend's table, in graph.cu; `state` is the context. */
enum status cuda_graph_begin(void *state);
enum status cuda_graph_end(void *state, struct device_graph **out);
enum status cuda_graph_launch(void *state, const struct device_graph *g);
void cuda_graph_destroy(void *state, struct device_graph *g);

/* CRC32C of pieces of device memory, in crc32c.cu; as device_crc32c_async(). */
enum status cuda_sums(struct cuda_context *c, struct stream *s, const void *const *pieces,
                      uint32_t n, size_t n_bytes, uint32_t *sums);

/* Of the backend's table, in gemm_cublas.cu. */
void cuda_tune(void *state, bool on);

/* Of the backend's table, in collective.cu. */
enum status cuda_connect(void *const *states, uint32_t n, struct buf *why);
void cuda_end_group(void *state, const char *words);
enum status cuda_all_gather(void *state, struct stream *s, const struct all_gather_params *p);
/* Leave the group; the context's streams are idle, or it has failed. */
void collective_destroy(struct cuda_context *c);

/* Allow the kernels of products their shared memory. */
NODISCARD enum status gemm_prepare(struct cuda_context *c);
/* Find out whether products run on Hopper's own instructions: c->has_wgmma. ERR_INTERNAL: the trial
 * ended the context. */
NODISCARD enum status gemm_choose(struct cuda_context *c, struct buf *why);
/* The same for attention: c->has_wgmma_attention. */
NODISCARD enum status attn_choose(struct cuda_context *c, struct buf *why);
/* Created and freed with the context. */
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
enum status cuda_sample(struct device *, struct stream *, const struct sample_params *);
enum status cuda_scale(struct device *, struct stream *, const struct scale_params *);
enum status cuda_route(struct device *, struct stream *, const struct route_params *);
enum status cuda_gemm_experts(struct device *, struct stream *, const struct gemm_experts_params *);
enum status cuda_combine(struct device *, struct stream *, const struct combine_params *);
/* Fill c->ops, the table of launchers; the device's compute capability must be known. */
void cuda_ops_init(struct cuda_context *c);

#endif
