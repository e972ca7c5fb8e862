/* gemm.cu - the launcher of matrix products: rounds activations to 16 bits, then calls cuBLASLt or
 * one of Tarn's kernels.
 *
 * cuBLASLt computes products with float weights, unless they must be batch-invariant or have one
 * row; quantized weights always use Tarn's kernels. cuBLASLt is column-major, so a call is
 * D[N, T] = W[N, K] * A[K, T], and Tarn's rows are its columns. A table keeps the algorithm that
 * cuBLASLt chooses for a shape, because the choice takes the host about as long as a small product
 * takes the GPU. A shape for which cuBLASLt has no algorithm uses Tarn's kernel. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/rounded.cuh"
#include "kernels/pack.h"

#define THREADS 256
/* Elements per thread of round_kernel(): 16 bytes. */
#define ROUND_ELEMENTS 8

/* The table of plans is set-associative: a new plan replaces the least recently used one of its
 * set. A model has five shapes per number of rows. */
#define PLAN_SETS 1024
#define PLAN_WAYS 8
/* Largest alignment that cuBLASLt distinguishes. */
#define ALIGNMENT_MAX 256

struct plan_key {
    uint64_t out_stride, a_stride;
    uint32_t n, k, n_rows;
    uint16_t out_alignment, a_alignment, w_alignment;
    uint8_t dtype, accumulate, bias, zero;
};

struct plan {
    struct plan_key key;
    uint64_t last_use;        /* 0: empty */
    bool ours;                /* cuBLASLt has no algorithm for it; Tarn's kernel computes it */
    cublasLtMatmulAlgo_t algo;
};

struct gemm_plans {
    /* Descriptions of one product for cuBLASLt: created once, filled in before each call. */
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t w, a, out;
    cublasLtMatmulPreference_t wish;
    uint64_t n_uses;
    struct plan table[PLAN_SETS][PLAN_WAYS];
};

/* --- activations ----------------------------------------------------------------------------- */

struct round_params {
    uint32_t n_rows, k, stride; /* stride: of `to`, a multiple of ROUND_ELEMENTS */
    const float *from;
    size_t from_stride;
    uint16_t *to;
    enum dtype weights;         /* type of the product's weights */
};

/* Grid ceil(T * stride / (ROUND_ELEMENTS * THREADS)): a thread rounds ROUND_ELEMENTS elements of
 * one row; elements behind K become 0. */
static __global__ void round_kernel(struct round_params p)
{
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * ROUND_ELEMENTS;
    uint32_t row = (uint32_t)(i / p.stride), k = (uint32_t)(i % p.stride);
    const float *from = p.from + row * p.from_stride + k;
    float v[ROUND_ELEMENTS];

    if (row >= p.n_rows)
        return;
    if (k + ROUND_ELEMENTS <= p.k && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
        float4 lo = reinterpret_cast<const float4 *>(from)[0];
        float4 hi = reinterpret_cast<const float4 *>(from)[1];

        v[0] = lo.x, v[1] = lo.y, v[2] = lo.z, v[3] = lo.w;
        v[4] = hi.x, v[5] = hi.y, v[6] = hi.z, v[7] = hi.w;
    } else {
        for (uint32_t j = 0; j < ROUND_ELEMENTS; j++)
            v[j] = k + j < p.k ? from[j] : 0;
    }
    *reinterpret_cast<uint4 *>(p.to + i) = make_uint4(
        round_pair(p.weights, v[0], v[1]), round_pair(p.weights, v[2], v[3]),
        round_pair(p.weights, v[4], v[5]), round_pair(p.weights, v[6], v[7]));
}

/* Round the activations of p to the scratch, unless the op that made them did. */
static enum status round_activations(struct cuda_context *c, cudaStream_t stream,
                                     struct gemm_params *p)
{
    struct round_params r = {};
    size_t n_blocks;

    if (p->w.dtype == DTYPE_F32 || p->rounded)
        return OK;
    p->rounded = c->act;

    r.n_rows = p->n_rows;
    r.k = p->w.k;
    r.stride = p->w.stride;
    r.from = p->a;
    r.from_stride = p->a_stride;
    r.to = c->act;
    r.weights = p->w.dtype;
    n_blocks = ((size_t)r.n_rows * (r.stride / ROUND_ELEMENTS) + THREADS - 1) / THREADS;
    ASSERT(n_blocks < (size_t)1 << 31); /* limit of gridDim.x */
    LAUNCH(round_kernel, (unsigned)n_blocks, THREADS, 0, stream, r);
    return cuda_launched(c, "round_activations");
}

/* --- Tarn's kernels
 * ---------------------------------------------------------------------------- */

static const struct expert_rows no_experts = {};

static enum status multiply_ours(struct cuda_context *c, cudaStream_t stream,
                                 const struct gemm_params *p, const struct expert_rows *x)
{
    struct product q = {};
    struct pack_range ranges[2];
    uint32_t n_ranges = pack_row_ranges(&p->w, 0, p->w.n, ranges);

    if (p->w.dtype == DTYPE_F32) {
        gemm_f32(stream, p, x);
        return cuda_launched(c, "gemm_f32");
    }
    q.n_rows = p->n_rows;
    q.n = p->w.n;
    q.k = p->w.stride;
    q.split = gemm_split(q.k);
    q.n_tiles_min = (uint32_t)c->n_sms;
    q.early = c->major >= 9;
    q.partials = static_cast<float *>(c->workspace); /* cuBLASLt's, on the same stream */
    q.n_partials_max = CUBLAS_WORKSPACE_BYTES / sizeof(float);
    q.a = p->rounded;
    q.w = static_cast<const unsigned char *>(p->w.data);
    q.w_row_bytes = ranges[0].n_bytes / p->w.n;
    if (n_ranges == 2)
        q.scales = reinterpret_cast<const uint16_t *>(q.w + ranges[1].offset);
    q.bias = p->bias;
    q.accumulate = p->accumulate;
    q.out = p->out;
    q.out_stride = p->out_stride;
    q.x = *x;
    if (p->w.dtype < DTYPE_FLOATS)
        gemm_rows(stream, p->w.dtype, &q);
    else
        gemm_int(stream, p->w.dtype, p->w.group, &q);
    return cuda_launched(c, "gemm");
}

/* --- cuBLASLt -------------------------------------------------------------------------------- */

/* Translate to the CUDA error of the same meaning, which the context survives or not. */
static enum status cublas_check(struct cuda_context *c, cublasStatus_t e, const char *what)
{
    switch (e) {
    case CUBLAS_STATUS_SUCCESS:
        return OK;
    case CUBLAS_STATUS_ALLOC_FAILED:
        return cuda_check(c, cudaErrorMemoryAllocation, what);
    case CUBLAS_STATUS_EXECUTION_FAILED:
    case CUBLAS_STATUS_INTERNAL_ERROR:
    case CUBLAS_STATUS_MAPPING_ERROR:
        return cuda_check(c, cudaErrorLaunchFailure, what);
    default: /* arguments that cuBLASLt refuses: a bug of the caller */
        return cuda_check(c, cudaErrorInvalidValue, what);
    }
}

/* The largest power of two that divides an address. */
static uint16_t alignment_of(const void *p)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(p) | ALIGNMENT_MAX;

    return (uint16_t)(at & (~at + 1));
}

static cudaDataType_t cuda_type(enum dtype t)
{
    return t == DTYPE_F32 ? CUDA_R_32F : t == DTYPE_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

/* The activations for cuBLASLt: floats as they are, others rounded and padded. */
static const void *operand(const struct gemm_params *p)
{
    return p->w.dtype == DTYPE_F32 ? static_cast<const void *>(p->a) : p->rounded;
}

static struct plan_key key_of(const struct gemm_params *p)
{
    struct plan_key key;

    memset(&key, 0, sizeof(key)); /* the key is compared as bytes */
    key.out_stride = p->out_stride;
    key.a_stride = p->w.dtype == DTYPE_F32 ? p->a_stride : p->w.stride;
    key.n = p->w.n;
    key.k = p->w.dtype == DTYPE_F32 ? p->w.k : p->w.stride;
    key.n_rows = p->n_rows;
    key.out_alignment = alignment_of(p->out);
    key.a_alignment = alignment_of(operand(p));
    key.w_alignment = alignment_of(p->w.data);
    key.dtype = (uint8_t)p->w.dtype;
    key.accumulate = p->accumulate != 0;
    key.bias = p->bias != NULL;
    return key;
}

template <typename T>
static cublasStatus_t set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attribute,
                          const T &value)
{
    return cublasLtMatmulDescSetAttribute(d, attribute, &value, sizeof(value));
}

template <typename T>
static cublasStatus_t set(cublasLtMatrixLayout_t m, cublasLtMatrixLayoutAttribute_t attribute,
                          const T &value)
{
    return cublasLtMatrixLayoutSetAttribute(m, attribute, &value, sizeof(value));
}

template <typename T>
static cublasStatus_t set(cublasLtMatmulPreference_t d,
                          cublasLtMatmulPreferenceAttributes_t attribute, const T &value)
{
    return cublasLtMatmulPreferenceSetAttribute(d, attribute, &value, sizeof(value));
}

/* Describe a column-major matrix; its columns are Tarn's rows. */
static cublasStatus_t describe_matrix(cublasLtMatrixLayout_t m, cudaDataType_t type,
                                      uint64_t n_rows, uint64_t n_cols, uint64_t stride)
{
    cublasStatus_t e = set(m, CUBLASLT_MATRIX_LAYOUT_TYPE, type);

    if (e == CUBLAS_STATUS_SUCCESS)
        e = set(m, CUBLASLT_MATRIX_LAYOUT_ROWS, n_rows);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = set(m, CUBLASLT_MATRIX_LAYOUT_COLS, n_cols);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = set(m, CUBLASLT_MATRIX_LAYOUT_LD, (int64_t)stride);
    return e;
}

static cublasStatus_t describe(struct gemm_plans *d, const struct plan_key *key,
                               uint32_t w_stride, const float *bias)
{
    cudaDataType_t t = cuda_type((enum dtype)key->dtype);
    cublasStatus_t e = set(d->product, CUBLASLT_MATMUL_DESC_EPILOGUE,
                           bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);

    if (e == CUBLAS_STATUS_SUCCESS)
        e = set(d->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = describe_matrix(d->w, t, key->k, key->n, w_stride);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = describe_matrix(d->a, t, key->k, key->n_rows, key->a_stride);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = describe_matrix(d->out, CUDA_R_32F, key->n, key->n_rows, key->out_stride);
    return e;
}

static cublasStatus_t choose(struct cuda_context *c, struct plan *plan)
{
    struct gemm_plans *d = c->plans;
    cublasLtMatmulHeuristicResult_t found = {};
    int n_found = 0;
    cublasStatus_t e = set(d->wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                           (uint32_t)plan->key.w_alignment);

    if (e == CUBLAS_STATUS_SUCCESS)
        e = set(d->wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                (uint32_t)plan->key.a_alignment);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = set(d->wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                (uint32_t)plan->key.out_alignment);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = set(d->wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                (uint32_t)plan->key.out_alignment);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatmulAlgoGetHeuristic(c->cublas, d->product, d->w, d->a, d->out, d->out,
                                           d->wish, 1, &found, &n_found);
    plan->ours = e == CUBLAS_STATUS_NOT_SUPPORTED || (e == CUBLAS_STATUS_SUCCESS && n_found == 0);
    plan->algo = found.algo;
    return plan->ours ? CUBLAS_STATUS_SUCCESS : e;
}

/* The plan of a shape; chosen now if it is not in the table. */
static enum status find_plan(struct cuda_context *c, const struct plan_key *key,
                             struct plan **out)
{
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(key);
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    struct plan *oldest;

    for (size_t i = 0; i < sizeof(*key); i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    struct plan *set = c->plans->table[(hash >> 32) % PLAN_SETS];
    oldest = set;
    for (struct plan *p = set; p < set + PLAN_WAYS; p++) {
        if (p->last_use && memcmp(&p->key, key, sizeof(*key)) == 0) {
            p->last_use = ++c->plans->n_uses;
            *out = p;
            return OK;
        }
        oldest = p->last_use < oldest->last_use ? p : oldest;
    }
    oldest->key = *key;
    oldest->last_use = 0; /* the slot is empty if the choice fails */
    enum status s = cublas_check(c, choose(c, oldest), "cublasLtMatmulAlgoGetHeuristic");
    if (s == OK)
        oldest->last_use = ++c->plans->n_uses;
    *out = oldest;
    return s;
}

/* Whether cuBLASLt refused the arguments and did nothing. */
static bool is_refusal(cublasStatus_t e)
{
    return e == CUBLAS_STATUS_NOT_SUPPORTED || e == CUBLAS_STATUS_INVALID_VALUE ||
           e == CUBLAS_STATUS_ARCH_MISMATCH;
}

static enum status multiply_cublas(struct cuda_context *c, cudaStream_t stream,
                                   const struct gemm_params *p)
{
    struct gemm_plans *d = c->plans;
    struct plan_key key = key_of(p);
    struct plan *plan;
    float one = 1, old = p->accumulate ? 1.0f : 0.0f;
    enum status s = cublas_check(c, describe(d, &key, p->w.stride, p->bias),
                                 "describing a product to cuBLASLt");

    if (s == OK)
        s = find_plan(c, &key, &plan);
    if (s != OK)
        return s;
    if (plan->ours)
        return multiply_ours(c, stream, p, &no_experts);
    cublasStatus_t e = cublasLtMatmul(c->cublas, d->product, &one, p->w.data, d->w, operand(p),
                                      d->a, &old, p->out, d->out, p->out, d->out, &plan->algo,
                                      c->workspace, CUBLAS_WORKSPACE_BYTES, stream);
    if (!is_refusal(e))
        return cublas_check(c, e, "cublasLtMatmul");
    log_event(LOG_WARN, "cuBLASLt refuses a product that it chose an algorithm for; Tarn's own "
              "kernel computes it", "status=\"%s\" rows=%u n=%u k=%u", cublasLtGetStatusString(e),
              p->n_rows, p->w.n, p->w.k);
    plan->ours = true;
    return multiply_ours(c, stream, p, &no_experts);
}

static cublasStatus_t create_descriptions(struct gemm_plans *d)
{
    /* No TF32 for F32 weights: its 10 bits of mantissa are less than their user expects. */
    cublasStatus_t e = cublasLtMatmulDescCreate(&d->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    if (e == CUBLAS_STATUS_SUCCESS)
        e = set(d->product, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatrixLayoutCreate(&d->w, CUDA_R_32F, 1, 1, 1);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatrixLayoutCreate(&d->a, CUDA_R_32F, 1, 1, 1);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatrixLayoutCreate(&d->out, CUDA_R_32F, 1, 1, 1);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatmulPreferenceCreate(&d->wish);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = set(d->wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (uint64_t)CUBLAS_WORKSPACE_BYTES);
    return e;
}

enum status gemm_plans_create(struct cuda_context *c)
{
    enum status s = cuda_check(c, gemm_rows_prepare(), "cudaFuncSetAttribute");

    if (s == OK)
        s = cuda_check(c, gemm_int_prepare(), "cudaFuncSetAttribute");
    if (s != OK)
        return s;
    c->plans = static_cast<struct gemm_plans *>(calloc(1, sizeof(*c->plans)));
    if (!c->plans)
        return ERR_NOMEM;
    /* gemm_plans_destroy() handles a partial creation. */
    return cublas_check(c, create_descriptions(c->plans), "describing products to cuBLASLt");
}

void gemm_plans_destroy(struct cuda_context *c)
{
    struct gemm_plans *d = c->plans;

    if (!d)
        return;
    /* These free host memory; errors have no consequence. */
    if (d->wish)
        (void)cublasLtMatmulPreferenceDestroy(d->wish);
    if (d->out)
        (void)cublasLtMatrixLayoutDestroy(d->out);
    if (d->a)
        (void)cublasLtMatrixLayoutDestroy(d->a);
    if (d->w)
        (void)cublasLtMatrixLayoutDestroy(d->w);
    if (d->product)
        (void)cublasLtMatmulDescDestroy(d->product);
    free(d);
    c->plans = NULL;
}

/* --- the launcher ---------------------------------------------------------------------------- */

/* The product of at most max_rows rows. */
static enum status multiply_some(struct cuda_context *c, cudaStream_t stream,
                                 struct gemm_params *p)
{
    enum status s = round_activations(c, stream, p);

    if (s != OK)
        return s;
    /* One row waits for memory only, and our kernel begins to read before its inputs are there. */
    bool is_one_row = p->n_rows == 1 && p->w.dtype != DTYPE_F32;

    if (c->config.batch_invariant || p->w.dtype >= DTYPE_FLOATS || is_one_row ||
        (p->bias && alignment_of(p->bias) < 16)) /* its epilogue needs an aligned bias */
        return multiply_ours(c, stream, p, &no_experts);
    return multiply_cublas(c, stream, p);
}

enum status cuda_gemm(struct device *d, struct stream *s, const struct gemm_params *p)
{
    struct cuda_context *c = cuda_context_of(d);
    struct gemm_params some = *p;
    enum status status = OK;

    ASSERT(p->w.layout == WEIGHT_ROWS && p->w.stride == pack_row_stride(p->w.k));
    ASSERT(p->w.k <= c->config.max_k && c->config.max_rows > 0);
    ASSERT(!p->rounded || p->w.dtype != DTYPE_F32);
    if (c->failed)
        return ERR_INTERNAL;
    if (p->w.n == 0)
        return OK;
    for (uint32_t t = 0; t < p->n_rows && status == OK; t += some.n_rows) {
        some.n_rows = p->n_rows - t < c->config.max_rows ? p->n_rows - t : c->config.max_rows;
        some.a = p->rounded ? NULL : p->a + t * p->a_stride;
        some.rounded = p->rounded ? p->rounded + (size_t)t * p->w.stride : NULL;
        some.out = p->out + t * p->out_stride;
        status = multiply_some(c, cuda_stream_of(c, s), &some);
    }
    return status;
}

enum status cuda_gemm_experts(struct device *d, struct stream *s,
                              const struct gemm_experts_params *p)
{
    struct cuda_context *c = cuda_context_of(d);
    cudaStream_t stream = cuda_stream_of(c, s);
    struct expert_rows x = {p->offsets, p->n_experts, 0, p->n_rows_max, p->expert_bytes, p->rows};
    bool is_whole = p->w.dtype == DTYPE_F32 || p->rounded || p->rows;
    uint32_t n_rows_max = is_whole ? p->n_rows : c->config.max_rows;
    struct gemm_params some = {};
    enum status status = OK;

    ASSERT(!p->rounded || p->w.dtype != DTYPE_F32);
    ASSERT(p->w.layout == WEIGHT_ROWS && p->w.stride == pack_row_stride(p->w.k));
    ASSERT(p->w.k <= c->config.max_k && c->config.max_rows > 0 && p->expert_bytes % 256 == 0);
    if (c->failed)
        return ERR_INTERNAL;
    some.w = p->w;
    some.a_stride = p->w.k;
    some.out_stride = p->w.n;
    /* The scratch memory has max_rows rounded rows: without `rows`, that many are multiplied at
     * once. */
    for (; x.row0 < p->n_rows && status == OK; x.row0 += some.n_rows) {
        uint32_t n_left = p->n_rows - x.row0, n = n_left < n_rows_max ? n_left : n_rows_max;

        some.a = p->a + x.row0 * some.a_stride;
        some.out = p->out + x.row0 * some.out_stride;
        some.rounded = p->rounded;
        some.n_rows = p->rows ? p->n_rows_max : n;
        ASSERT(some.rounded || p->w.dtype == DTYPE_F32 || some.n_rows <= c->config.max_rows);
        status = round_activations(c, stream, &some);
        some.n_rows = n;
        if (status == OK)
            status = multiply_ours(c, stream, &some, &x);
    }
    return status;
}
