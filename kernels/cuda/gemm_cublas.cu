/* gemm_cublas.cu - products by cuBLASLt: a plan for each shape, and the choice among algorithms.
 *
 * cuBLASLt is column-major, so a call is D[N, T] = W[N, K] * A[K, T], and Tarn's rows are its
 * columns. A table keeps the algorithm for a shape, because the choice takes the host about as long
 * as a small product takes the GPU.
 *
 * Numbers of rows share a plan with the next number of the form 2^i or 3 * 2^i, so a few steps see
 * all plans. Which bits a product has follows from cuBLASLt's first proposal for that number, on
 * which nothing that is measured has an influence. While the device is tuned (device_tune()), all
 * proposals are run; the fastest of those whose results have the bits of the first one's is kept.
 * Two algorithms that add in another order differ in some of thousands of outputs, so those are
 * left out: KV stored by one process is that of the next, whatever the clock said. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/gemm.cuh"

/* The table of plans is set-associative: a new plan replaces the least recently used one of its
 * set. A model has five shapes per number of rows. */
#define PLAN_SETS 256
#define PLAN_WAYS 8
#define PLAN_ROWS_MIN 16
/* Largest alignment that cuBLASLt distinguishes. */
#define ALIGNMENT_MAX 256
/* Algorithms that cuBLASLt proposes for a shape, and how often each is timed. */
#define PROPOSALS 8
#define TIMED_RUNS 3
/* The first proposal is replaced by one that takes at most this share of its time. */
#define TIME_SHARE 0.97f
#define SUM_THREADS 256
#define SUM_BLOCKS_MAX 1024

struct plan_key {
    uint64_t out_stride, a_stride;
    uint32_t n, k, n_rows; /* n_rows: plan_rows() */
    uint16_t out_alignment, a_alignment, w_alignment;
    uint8_t dtype, bias;
};

struct plan {
    struct plan_key key;
    uint64_t last_use;        /* 0: empty */
    bool is_tuned, is_refused; /* is_refused: some product of it was, which is logged once */
    bool has_algo;            /* otherwise cuBLASLt has none for the shape */
    cublasLtMatmulAlgo_t algo;
};

struct gemm_plans {
    /* Descriptions of one product for cuBLASLt: created once, filled in before each call. */
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t w, a, out;
    cublasLtMatmulPreference_t wish;
    cudaEvent_t begin, end;   /* while the device is tuned, else NULL */
    uint64_t n_uses;
    uint32_t n_tuned, n_replaced;
    struct plan table[PLAN_SETS][PLAN_WAYS];
};

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

/* The number of rows whose plan T rows have: the next one of the form 2^i or 3 * 2^i. */
static uint32_t plan_rows(uint32_t n_rows)
{
    uint32_t n = PLAN_ROWS_MIN;

    while (n < n_rows && n <= UINT32_MAX / 4)
        n *= 2;
    return n > PLAN_ROWS_MIN && n_rows <= n / 4 * 3 ? n / 4 * 3 : n;
}

/* The smallest number of rows that has the plan of so many. */
static uint32_t plan_rows_least(uint32_t n_rows)
{
    uint32_t top = plan_rows(n_rows), least = n_rows;

    while (least > 2 && plan_rows(least - 1) == top)
        least--;
    return least;
}

static struct plan_key key_of(const struct gemm_params *p)
{
    struct plan_key key;

    memset(&key, 0, sizeof(key)); /* the key is compared as bytes */
    key.out_stride = p->out_stride;
    key.a_stride = p->w.dtype == DTYPE_F32 ? p->a_stride : p->w.stride;
    key.n = p->w.n;
    key.k = p->w.dtype == DTYPE_F32 ? p->w.k : p->w.stride;
    key.n_rows = plan_rows(p->n_rows);
    key.out_alignment = alignment_of(p->out);
    key.a_alignment = alignment_of(operand(p));
    key.w_alignment = alignment_of(p->w.data);
    key.dtype = (uint8_t)p->w.dtype;
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

/* Describe the product for so many rows. */
static cublasStatus_t describe(struct gemm_plans *d, const struct plan_key *key,
                               const struct gemm_params *p, uint32_t n_rows)
{
    cudaDataType_t t = cuda_type((enum dtype)key->dtype);
    cublasStatus_t e = set(d->product, CUBLASLT_MATMUL_DESC_EPILOGUE,
                           p->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);

    if (e == CUBLAS_STATUS_SUCCESS)
        e = set(d->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p->bias);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = describe_matrix(d->w, t, key->k, key->n, p->w.stride);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = describe_matrix(d->a, t, key->k, n_rows, key->a_stride);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = describe_matrix(d->out, CUDA_R_32F, key->n, n_rows, key->out_stride);
    return e;
}

/* Ask for algorithms for a plan's shape, the most promising first. */
static cublasStatus_t propose(struct cuda_context *c, const struct plan_key *key,
                              const struct gemm_params *p,
                              cublasLtMatmulHeuristicResult_t found[PROPOSALS], int *n_found)
{
    struct gemm_plans *d = c->plans;
    cublasStatus_t e = describe(d, key, p, key->n_rows);

    *n_found = 0;
    if (e == CUBLAS_STATUS_SUCCESS)
        e = set(d->wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)key->w_alignment);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = set(d->wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)key->a_alignment);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = set(d->wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                (uint32_t)key->out_alignment);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = set(d->wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                (uint32_t)key->out_alignment);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = cublasLtMatmulAlgoGetHeuristic(c->cublas, d->product, d->w, d->a, d->out, d->out,
                                           d->wish, PROPOSALS, found, n_found);
    if (e == CUBLAS_STATUS_NOT_SUPPORTED) {
        *n_found = 0;
        return CUBLAS_STATUS_SUCCESS;
    }
    return e;
}

/* The plan of a shape; chosen now if it is not in the table. */
static enum status find_plan(struct cuda_context *c, const struct gemm_params *p,
                             struct plan **out)
{
    cublasLtMatmulHeuristicResult_t found[PROPOSALS] = {};
    struct plan_key key = key_of(p);
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(&key);
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    struct plan *oldest;
    int n_found;

    for (size_t i = 0; i < sizeof(key); i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    struct plan *set = c->plans->table[(hash >> 32) % PLAN_SETS];
    oldest = set;
    for (struct plan *plan = set; plan < set + PLAN_WAYS; plan++) {
        if (plan->last_use && memcmp(&plan->key, &key, sizeof(key)) == 0) {
            plan->last_use = ++c->plans->n_uses;
            *out = plan;
            return OK;
        }
        oldest = plan->last_use < oldest->last_use ? plan : oldest;
    }
    memset(oldest, 0, sizeof(*oldest)); /* the slot is empty if the choice fails */
    oldest->key = key;
    enum status s = cublas_check(c, propose(c, &key, p, found, &n_found),
                                 "cublasLtMatmulAlgoGetHeuristic");
    if (s != OK)
        return s;
    oldest->has_algo = n_found > 0;
    oldest->algo = found[0].algo;
    oldest->last_use = ++c->plans->n_uses;
    *out = oldest;
    return OK;
}

/* Whether cuBLASLt refused the arguments and did nothing. */
static bool is_refusal(cublasStatus_t e)
{
    return e == CUBLAS_STATUS_NOT_SUPPORTED || e == CUBLAS_STATUS_INVALID_VALUE ||
           e == CUBLAS_STATUS_ARCH_MISMATCH;
}

/* Enqueue the product that was described. */
static cublasStatus_t multiply(struct cuda_context *c, cudaStream_t stream,
                               const struct gemm_params *p, const cublasLtMatmulAlgo_t *algo,
                               float old)
{
    struct gemm_plans *d = c->plans;
    float one = 1;

    return cublasLtMatmul(c->cublas, d->product, &one, p->w.data, d->w, operand(p), d->a, &old,
                          p->out, d->out, p->out, d->out, algo, c->workspace,
                          CUBLAS_WORKSPACE_BYTES, stream);
}

/* --- timing ---------------------------------------------------------------------------------- */

/* A sum of all bits of [T, N] floats, each with its place; in any order. */
static __global__ void __launch_bounds__(SUM_THREADS)
    sum_bits_kernel(const float *x, size_t stride, uint32_t n_rows, uint32_t n,
                    unsigned long long *sum)
{
    unsigned long long own = 0;

    for (uint32_t row = blockIdx.x; row < n_rows; row += gridDim.x)
        for (uint32_t i = threadIdx.x; i < n; i += SUM_THREADS) {
            unsigned long long h = ((unsigned long long)row << 32 | i) + 0x9e3779b97f4a7c15u;

            h = (h ^ __float_as_uint(x[row * stride + i])) * 0xbf58476d1ce4e5b9u;
            own += (h ^ h >> 29) * 0x94d049bb133111ebu;
        }
    atomicAdd(sum, own);
}

/* Compute n_rows rows and take the sum of the result's bits. *refused: there is no result. */
static enum status sum_of_bits(struct cuda_context *c, cudaStream_t stream,
                               const struct gemm_params *p, const struct plan *plan,
                               const cublasLtMatmulAlgo_t *algo, uint32_t n_rows,
                               unsigned long long *sum, bool *refused)
{
    /* The product's scratch memory; the product has ended when the kernel begins. */
    unsigned long long *on_device = static_cast<unsigned long long *>(c->workspace);
    uint32_t n_blocks = n_rows < SUM_BLOCKS_MAX ? n_rows : SUM_BLOCKS_MAX;
    enum status s = cublas_check(c, describe(c->plans, &plan->key, p, n_rows),
                                 "describing a product to cuBLASLt");

    if (s != OK)
        return s;
    cublasStatus_t e = multiply(c, stream, p, algo, 0);
    *refused = is_refusal(e);
    if (*refused)
        return OK;
    s = cublas_check(c, e, "cublasLtMatmul");
    if (s == OK)
        s = cuda_check(c, cudaMemsetAsync(on_device, 0, sizeof(*sum), stream), "cudaMemsetAsync");
    if (s != OK)
        return s;
    LAUNCH(sum_bits_kernel, n_blocks, SUM_THREADS, 0, stream, p->out, p->out_stride, n_rows,
           p->w.n, on_device);
    s = cuda_launched(c, "sum_bits");
    if (s == OK)
        s = cuda_check(c, cudaMemcpyAsync(sum, on_device, sizeof(*sum), cudaMemcpyDeviceToHost,
                                          stream), "cudaMemcpyAsync");
    return s == OK ? cuda_check(c, cudaStreamSynchronize(stream), "cudaStreamSynchronize") : s;
}

/* Time the product that was described, after a first run. */
static enum status time_algo(struct cuda_context *c, cudaStream_t stream,
                             const struct gemm_params *p, const cublasLtMatmulAlgo_t *algo,
                             float *ms)
{
    struct gemm_plans *d = c->plans;
    enum status s = cuda_check(c, cudaEventRecord(d->begin, stream), "cudaEventRecord");

    for (int i = 0; i < TIMED_RUNS && s == OK; i++)
        s = cublas_check(c, multiply(c, stream, p, algo, 0), "cublasLtMatmul");
    if (s == OK)
        s = cuda_check(c, cudaEventRecord(d->end, stream), "cudaEventRecord");
    if (s == OK)
        s = cuda_check(c, cudaEventSynchronize(d->end), "cudaEventSynchronize");
    return s == OK ? cuda_check(c, cudaEventElapsedTime(ms, d->begin, d->end),
                                "cudaEventElapsedTime") : s;
}

/* Whether an algorithm gives the bits that the plan's first one gives, with the most and with the
 * fewest rows. sums: of the first one, or to be filled in by it. */
static enum status has_same_bits(struct cuda_context *c, cudaStream_t stream,
                                 const struct gemm_params *p, const struct plan *plan,
                                 const cublasLtMatmulAlgo_t *algo, bool is_first,
                                 unsigned long long sums[2], bool *same)
{
    const uint32_t n_rows[2] = {plan_rows_least(p->n_rows), p->n_rows};
    enum status s = OK;

    *same = true;
    for (int i = 0; i < 2 && s == OK && *same; i++) {
        unsigned long long sum = 0;
        bool refused = false;

        s = sum_of_bits(c, stream, p, plan, algo, n_rows[i], &sum, &refused);
        if (is_first)
            sums[i] = sum;
        *same = !refused && sum == sums[i];
    }
    return s;
}

/* Replace the plan's algorithm by the fastest one with the same bits. The product's output is
 * overwritten. */
static enum status tune(struct cuda_context *c, cudaStream_t stream, const struct gemm_params *p,
                        struct plan *plan)
{
    cublasLtMatmulHeuristicResult_t found[PROPOSALS] = {};
    unsigned long long sums[2];
    float best_ms = 0;
    int n_found, best = 0;
    enum status s = cublas_check(c, propose(c, &plan->key, p, found, &n_found),
                                 "cublasLtMatmulAlgoGetHeuristic");

    for (int i = 0; i < n_found && s == OK; i++) {
        const cublasLtMatmulAlgo_t *algo = i == 0 ? &plan->algo : &found[i].algo;
        bool same = false;
        float ms = 0;

        s = has_same_bits(c, stream, p, plan, algo, i == 0, sums, &same);
        if (i == 0 && !same)
            return s; /* the first one is refused: nothing can be compared */
        if (s != OK || !same)
            continue;
        s = time_algo(c, stream, p, algo, &ms);
        if (s == OK && (i == 0 || ms < best_ms * TIME_SHARE)) {
            best_ms = ms;
            best = i;
        }
    }
    if (s != OK)
        return s;
    if (best > 0)
        plan->algo = found[best].algo;
    plan->is_tuned = true;
    c->plans->n_tuned++;
    c->plans->n_replaced += best > 0;
    return OK;
}

void cuda_tune(void *state, bool on)
{
    struct cuda_context *c = cuda_context_from(state);
    struct gemm_plans *d = c->plans;

    if (c->failed || on == (d->end != NULL))
        return;
    if (on) {
        if (cudaEventCreate(&d->begin) == cudaSuccess && cudaEventCreate(&d->end) == cudaSuccess)
            return;
        (void)cudaGetLastError(); /* then products are not timed */
    } else {
        log_event(LOG_INFO, "matrix products were timed", "shapes=%u replaced=%u", d->n_tuned,
                  d->n_replaced);
    }
    if (d->begin)
        (void)cudaEventDestroy(d->begin);
    if (d->end)
        (void)cudaEventDestroy(d->end);
    d->begin = d->end = NULL;
}

/* --- the product ------------------------------------------------------------------------------ */

enum status gemm_cublas(struct cuda_context *c, cudaStream_t stream, const struct gemm_params *p)
{
    struct plan *plan;

    if (p->bias && alignment_of(p->bias) < 16) /* the epilogue needs an aligned bias */
        return ERR_UNSUPPORTED;
    enum status s = find_plan(c, p, &plan);
    if (s == OK && plan->has_algo && c->plans->end && !plan->is_tuned)
        s = tune(c, stream, p, plan);
    if (s == OK)
        s = cublas_check(c, describe(c->plans, &plan->key, p, p->n_rows),
                         "describing a product to cuBLASLt");
    if (s != OK)
        return s;
    if (!plan->has_algo)
        return ERR_UNSUPPORTED;
    cublasStatus_t e = multiply(c, stream, p, &plan->algo, p->accumulate ? 1.0f : 0.0f);
    if (!is_refusal(e))
        return cublas_check(c, e, "cublasLtMatmul");
    /* Asked again each time: other numbers of rows of the plan keep their algorithm. */
    if (!plan->is_refused)
        log_event(LOG_WARN, "cuBLASLt refuses a product that it chose an algorithm for; Tarn's own "
                  "kernel computes it", "status=\"%s\" rows=%u n=%u k=%u",
                  cublasLtGetStatusString(e), p->n_rows, p->w.n, p->w.k);
    plan->is_refused = true;
    return ERR_UNSUPPORTED;
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
    cuda_tune(c, false);
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
