/* gemm.cu - the launcher of matrix products: rounds activations to 16 bits, then calls cuBLASLt or
 * one of Tarn's kernels.
 *
 * cuBLASLt computes products with float weights, unless they must be batch-invariant or have one
 * row; quantized weights always use Tarn's kernels, and so do products that cuBLASLt refuses. With
 * many rows of quantized weights these are the kernels of gemm_wgmma.cu, where they were chosen. */
#include "base/check.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/gemm_wgmma.cuh"
#include "kernels/cuda/rounded.cuh"
#include "kernels/pack.h"

#define THREADS 256
/* Elements per thread of round_kernel(): 16 bytes. */
#define ROUND_ELEMENTS 8

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

/* Whether gemm_wgmma.cu computes a product: one that has a tile for every other multiprocessor. */
static bool takes_wgmma(const struct cuda_context *c, const struct gemm_params *p,
                        const struct expert_rows *x)
{
    size_t n_tiles = (size_t)ceil_div(p->n_rows, WGMMA_ROWS) * ceil_div(p->w.n, WGMMA_ROWS);

    return c->has_wgmma && p->w.dtype == c->config.weights &&
           p->w.group == c->config.weights_group && !x->offsets &&
           p->n_rows >= WGMMA_ROWS_MIN && 2 * n_tiles >= (size_t)c->n_sms;
}

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
    else if (takes_wgmma(c, p, x))
        gemm_wgmma(stream, p->w.dtype, p->w.group, &q, c->arranged);
    else
        gemm_int(stream, p->w.dtype, p->w.group, &q);
    return cuda_launched(c, "gemm");
}

enum status gemm_ours(struct cuda_context *c, cudaStream_t stream, const struct gemm_params *p)
{
    return multiply_ours(c, stream, p, &no_experts);
}

enum status gemm_prepare(struct cuda_context *c)
{
    enum status s = cuda_check(c, gemm_rows_prepare(), "cudaFuncSetAttribute");

    return s == OK ? cuda_check(c, gemm_int_prepare(), "cudaFuncSetAttribute") : s;
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

    if (c->config.batch_invariant || p->w.dtype >= DTYPE_FLOATS || is_one_row)
        return multiply_ours(c, stream, p, &no_experts);
    s = gemm_cublas(c, stream, p);
    return s == ERR_UNSUPPORTED ? multiply_ours(c, stream, p, &no_experts) : s;
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
