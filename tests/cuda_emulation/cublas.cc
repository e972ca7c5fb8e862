/* cublas.cc - cuBLASLt's matrix products as a plain loop, enqueued like a kernel. */
#include "streams.h"

#include <cublasLt.h>

#include "kernels/cuda/ptx.cuh"

#define ALGO_MARK 0x74726e31u
#define ALGORITHMS 4
#define MANY_ROWS 64

struct cublasLtContext {
    int unused;
};

struct cublasLtMatmulDescOpaque_t {
    cublasComputeType_t compute;
    int32_t scale_type, transa, transb, epilogue, pointer_mode, bias_type;
    const void *bias;
};

struct cublasLtMatrixLayoutOpaque_t {
    int32_t type, order;
    uint64_t rows, cols;
    int64_t ld;
};

struct cublasLtMatmulPreferenceOpaque_t {
    uint64_t workspace_bytes;
    uint32_t alignment[4];
    uint32_t reduction_mask, search_mode;
};

static cublasStatus_t enter(const char *name)
{
    return call_enter(name) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

#define ENTER_CUBLAS()                       \
    LOCK();                                  \
    cublasStatus_t entered_ = enter(__func__); \
    if (entered_ != CUBLAS_STATUS_SUCCESS)   \
    return entered_

size_t cublasLtGetVersion(void)
{
    return 130000;
}

const char *cublasLtGetStatusName(cublasStatus_t s)
{
    switch (s) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    }
}

const char *cublasLtGetStatusString(cublasStatus_t s)
{
    return cublasLtGetStatusName(s);
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    ENTER_CUBLAS();
    *out = new cublasLtContext();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    ENTER_CUBLAS();
    delete h;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    ENTER_CUBLAS();
    *out = new cublasLtMatmulDescOpaque_t{compute, scale, CUBLAS_OP_N, CUBLAS_OP_N,
                                          CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_POINTER_MODE_HOST,
                                          -1, nullptr};
    return CUBLAS_STATUS_SUCCESS;
}

/* Set an attribute; its size must be exact. */
template <typename T>
static cublasStatus_t set(T *field, const void *value, size_t n_bytes)
{
    if (!value || n_bytes != sizeof *field)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, value, n_bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t attr,
                                              const void *value, size_t n_bytes)
{
    ENTER_CUBLAS();
    switch (attr) {
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
        return set(&d->scale_type, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        return set(&d->pointer_mode, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&d->transa, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&d->transb, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&d->epilogue, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&d->bias, value, n_bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return set(&d->bias_type, value, n_bytes);
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    ENTER_CUBLAS();
    delete d;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    ENTER_CUBLAS();
    *out = new cublasLtMatrixLayoutOpaque_t{type, CUBLASLT_ORDER_COL, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t m,
                                                cublasLtMatrixLayoutAttribute_t attr,
                                                const void *value, size_t n_bytes)
{
    ENTER_CUBLAS();
    switch (attr) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
        return set(&m->type, value, n_bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
        return set(&m->order, value, n_bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
        return set(&m->rows, value, n_bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
        return set(&m->cols, value, n_bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD:
        return set(&m->ld, value, n_bytes);
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t m)
{
    ENTER_CUBLAS();
    delete m;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    ENTER_CUBLAS();
    *out = new cublasLtMatmulPreferenceOpaque_t{0, {256, 256, 256, 256},
                                                CUBLASLT_REDUCTION_SCHEME_MASK, 0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void *value, size_t n_bytes)
{
    ENTER_CUBLAS();
    switch (attr) {
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
        return set(&p->search_mode, value, n_bytes);
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(&p->workspace_bytes, value, n_bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(&p->reduction_mask, value, n_bytes);
    default:
        return set(&p->alignment[attr - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
                   n_bytes);
    }
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    ENTER_CUBLAS();
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

static size_t type_bytes(int32_t type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

static float load(int32_t type, const void *base, size_t i)
{
    if (type == CUDA_R_32F)
        return static_cast<const float *>(base)[i];
    uint16_t h = static_cast<const uint16_t *>(base)[i];
    return type == CUDA_R_16F ? emulation_f16_value(h) : __uint_as_float((uint32_t)h << 16);
}

static bool layout_valid(const cublasLtMatrixLayoutOpaque_t *m)
{
    return m && m->order == CUBLASLT_ORDER_COL && m->rows > 0 && m->cols > 0 &&
           m->ld >= (int64_t)m->rows;
}

static uint64_t op_rows(const cublasLtMatrixLayoutOpaque_t *m, int32_t op)
{
    return op == CUBLAS_OP_N ? m->rows : m->cols;
}

static uint64_t op_cols(const cublasLtMatrixLayoutOpaque_t *m, int32_t op)
{
    return op == CUBLAS_OP_N ? m->cols : m->rows;
}

/* Check that the shapes and types belong to one product. */
static cublasStatus_t check(cublasLtHandle_t h, const cublasLtMatmulDescOpaque_t *d,
                            const cublasLtMatrixLayoutOpaque_t *a,
                            const cublasLtMatrixLayoutOpaque_t *b,
                            const cublasLtMatrixLayoutOpaque_t *c,
                            const cublasLtMatrixLayoutOpaque_t *out)
{
    if (!h || !d || !layout_valid(a) || !layout_valid(b) || !layout_valid(c) || !layout_valid(out))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (op_rows(a, d->transa) != out->rows || op_cols(b, d->transb) != out->cols ||
        op_cols(a, d->transa) != op_rows(b, d->transb) || c->rows != out->rows ||
        c->cols != out->cols)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (d->compute != CUBLAS_COMPUTE_32F || d->scale_type != CUDA_R_32F || a->type != b->type ||
        c->type != out->type || out->type != CUDA_R_32F ||
        d->pointer_mode != CUBLASLT_POINTER_MODE_HOST)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (d->epilogue != CUBLASLT_EPILOGUE_DEFAULT && d->epilogue != CUBLASLT_EPILOGUE_BIAS)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                              cublasLtMatmulPreference_t p, int n_wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int *n_results)
{
    ENTER_CUBLAS();
    cublasStatus_t s = check(h, d, a, b, c, out);
    *n_results = 0;
    if (s != CUBLAS_STATUS_SUCCESS)
        return s;
    if (!p || n_wanted < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    for (unsigned i = 0; i < ALGORITHMS && (int)i < n_wanted; i++) {
        memset(&results[i], 0, sizeof results[i]);
        results[i].algo.data[0] = ALGO_MARK;
        results[i].algo.data[1] = i;
        results[i].algo.data[2] = (i == 2) != (out->cols > MANY_ROWS); /* sums from the end */
        results[i].workspaceSize = p->workspace_bytes < 1024 ? (size_t)p->workspace_bytes : 1024;
        results[i].state = CUBLAS_STATUS_SUCCESS;
        results[i].wavesCount = 1;
        *n_results = (int)i + 1;
    }
    return CUBLAS_STATUS_SUCCESS;
}

struct product {
    cublasLtMatmulDescOpaque_t d;
    cublasLtMatrixLayoutOpaque_t la, lb, lc, lout;
    float alpha, beta;
    const void *a, *b, *c;
    void *out;
    bool descends; /* the order of K */
};

static void multiply(const product &m)
{
    uint64_t n_k = op_cols(&m.la, m.d.transa);
    uint64_t a_row = m.d.transa == CUBLAS_OP_N ? 1 : (uint64_t)m.la.ld;
    uint64_t a_col = m.d.transa == CUBLAS_OP_N ? (uint64_t)m.la.ld : 1;
    uint64_t b_row = m.d.transb == CUBLAS_OP_N ? 1 : (uint64_t)m.lb.ld;
    uint64_t b_col = m.d.transb == CUBLAS_OP_N ? (uint64_t)m.lb.ld : 1;
    int32_t bias_type = m.d.bias_type < 0 ? m.lout.type : m.d.bias_type;

    for (uint64_t j = 0; j < m.lout.cols; j++)
        for (uint64_t i = 0; i < m.lout.rows; i++) {
            float sum = 0;
            for (uint64_t at = 0; at < n_k; at++) {
                uint64_t k = m.descends ? n_k - 1 - at : at;

                sum += load(m.la.type, m.a, i * a_row + k * a_col) *
                       load(m.lb.type, m.b, k * b_row + j * b_col);
            }
            sum *= m.alpha;
            if (m.beta != 0) /* as in cuBLAS, C is not read if beta is 0 */
                sum += m.beta * load(m.lc.type, m.c, i + j * (uint64_t)m.lc.ld);
            if (m.d.epilogue == CUBLASLT_EPILOGUE_BIAS)
                sum += load(bias_type, m.d.bias, i);
            static_cast<float *>(m.out)[i + j * (uint64_t)m.lout.ld] = sum;
        }
}

/* Whether all of a matrix lies in device memory. */
static bool on_device(const void *p, const cublasLtMatrixLayoutOpaque_t *m)
{
    const allocation *a = memory_find(
        p, ((size_t)(m->cols - 1) * (size_t)m->ld + m->rows) * type_bytes(m->type));

    return a && a->device == device_current() &&
           reinterpret_cast<uintptr_t>(p) % type_bytes(m->type) == 0;
}

static uint64_t products_by[ALGORITHMS];

uint64_t emulation_products_by(unsigned algorithm)
{
    LOCK();
    return products_by[algorithm];
}

static bool refuses_products;

void emulation_refuse_products(int refuse)
{
    refuses_products = refuse;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *out,
                              cublasLtMatrixLayout_t out_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t s)
{
    ENTER_CUBLAS();
    cublasStatus_t status = check(h, d, a_layout, b_layout, c_layout, out_layout);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (!alpha || !beta || (algo && (algo->data[0] != ALGO_MARK || algo->data[1] >= ALGORITHMS)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (refuses_products)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const product m = {*d, *a_layout, *b_layout, *c_layout, *out_layout,
                       *static_cast<const float *>(alpha), *static_cast<const float *>(beta),
                       a, b, c, out, algo && algo->data[2] != 0};
    const unsigned number = algo ? (unsigned)algo->data[1] : 0;
    if (!on_device(a, a_layout) || !on_device(b, b_layout) || !on_device(out, out_layout) ||
        (m.beta != 0 && !on_device(c, c_layout)))
        emulation_die("cublasLtMatmul: an operand does not lie in device memory as a whole");
    if (workspace_bytes) {
        const allocation *w = memory_find(workspace, workspace_bytes);
        if (!w || w->device != device_current() || reinterpret_cast<uintptr_t>(workspace) % 16)
            emulation_die("cublasLtMatmul: the workspace does not lie in device memory as a whole");
    }
    if (d->epilogue == CUBLASLT_EPILOGUE_BIAS && !memory_find(d->bias, 4 * out_layout->rows))
        emulation_die("cublasLtMatmul: the bias does not lie in device memory as a whole");
    stream_enqueue(s, [m, number] {
        static const double seconds[ALGORITHMS] = {400, 300, 100, 200}; /* no clock matters */

        stream_takes(seconds[number]);
        products_by[number]++;
        multiply(m);
        trace_product(m.lout.rows, m.lout.cols, op_cols(&m.la, m.d.transa));
    });
    return CUBLAS_STATUS_SUCCESS;
}
