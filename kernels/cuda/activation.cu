/* activation.cu - the gated activation of a feed-forward layer; multipliers and soft caps.
 *
 * Grid (T, ceil(F / (4 * THREADS)), at most GRID_Y_MAX): a block computes parts of one row, four
 * elements per thread and turn. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/context.cuh"
#include "kernels/cuda/rounded.cuh"

#define THREADS 256
#define GRID_Y_MAX 65535

template <enum activation F> static __device__ __forceinline__ float activate(float x)
{
    if (F == ACTIVATION_GELU)
        return x * (0.5f * erfcf(x * -0.70710678f));
    if (F == ACTIVATION_SILU)
        return x / (1 + expf(-x));
    float u = (x * x * 0.044715f + 1) * x * 1.5957691216057308f; /* 2 sqrt(2 / pi) */

    return x / (1 + expf(-u));
}

template <enum activation F, bool VEC>
static __global__ void __launch_bounds__(THREADS) silu_mul_kernel(struct silu_mul_params p)
{
    const float *gate = p.gate_up + (size_t)blockIdx.x * (p.ungated ? 1 : 2) * p.dim;
    float *out = p.out + (size_t)blockIdx.x * p.dim;
    uint32_t step = gridDim.y * THREADS * 4, n_out = row_length(p.rounded, p.dim);

    let_next_begin(); /* a product, which loads its first weights meanwhile */
    wait_for_inputs();
    for (uint32_t i = (blockIdx.y * THREADS + threadIdx.x) * 4; i < n_out; i += step) {
        float4 g = load4<VEC>(gate, i, p.dim), u = make_float4(1, 1, 1, 1);

        if (!p.ungated)
            u = load4<VEC>(gate + p.dim, i, p.dim);
        put4<VEC>(p.rounded, blockIdx.x, out, i, p.dim,
                  make_float4(activate<F>(g.x) * u.x, activate<F>(g.y) * u.y,
                              activate<F>(g.z) * u.z, activate<F>(g.w) * u.w));
    }
}

static dim3 grid_of(uint32_t n_rows, uint32_t dim)
{
    uint32_t n_y = ceil_div(dim, 4 * THREADS);

    return dim3(n_rows, n_y < GRID_Y_MAX ? n_y : GRID_Y_MAX);
}

template <enum activation F>
static void silu_mul_launch(const struct silu_mul_params *p, cudaStream_t s, bool early)
{
    dim3 grid = grid_of(p->n_rows, row_length(p->rounded, p->dim));

    if (rows_are_vec4(p->gate_up, p->dim) && rows_are_vec4(p->out, p->dim))
        LAUNCH_EARLY((silu_mul_kernel<F, true>), grid, THREADS, 0, s, early, *p);
    else
        LAUNCH_EARLY((silu_mul_kernel<F, false>), grid, THREADS, 0, s, early, *p);
}

enum status cuda_silu_mul(struct device *d, struct stream *stream, const struct silu_mul_params *p)
{
    struct cuda_context *c = cuda_context_of(d);
    cudaStream_t s = cuda_stream_of(c, stream);
    bool early = c->major >= 9;

    if (p->n_rows == 0)
        return OK;
    if (p->activation == ACTIVATION_GELU)
        silu_mul_launch<ACTIVATION_GELU>(p, s, early);
    else if (p->activation == ACTIVATION_GELU_TANH)
        silu_mul_launch<ACTIVATION_GELU_TANH>(p, s, early);
    else
        silu_mul_launch<ACTIVATION_SILU>(p, s, early);
    return cuda_launched(c, "silu_mul");
}

static __device__ __forceinline__ float scaled(const struct scale_params &p, float x, float old)
{
    float y = x * p.scale;

    if (p.soft_cap > 0)
        y = tanhf(y / p.soft_cap) * p.soft_cap;
    return p.accumulate ? old + y : y;
}

template <bool VEC>
static __global__ void __launch_bounds__(THREADS) scale_kernel(struct scale_params p)
{
    const float *x = p.x + (size_t)blockIdx.x * p.dim;
    float *out = p.out + (size_t)blockIdx.x * p.dim;
    uint32_t step = gridDim.y * THREADS * 4;

    for (uint32_t i = (blockIdx.y * THREADS + threadIdx.x) * 4; i < p.dim; i += step) {
        float4 v = load4<VEC>(x, i, p.dim), old = make_float4(0, 0, 0, 0);

        if (p.accumulate)
            old = load4<VEC>(out, i, p.dim);
        store4<VEC>(out, i, p.dim,
                    make_float4(scaled(p, v.x, old.x), scaled(p, v.y, old.y),
                                scaled(p, v.z, old.z), scaled(p, v.w, old.w)));
    }
}

enum status cuda_scale(struct device *d, struct stream *stream, const struct scale_params *p)
{
    struct cuda_context *c = cuda_context_of(d);
    cudaStream_t s = cuda_stream_of(c, stream);
    dim3 grid = grid_of(p->n_rows, p->dim);

    if (p->n_rows == 0)
        return OK;
    if (rows_are_vec4(p->x, p->dim) && rows_are_vec4(p->out, p->dim))
        LAUNCH(scale_kernel<true>, grid, THREADS, 0, s, *p);
    else
        LAUNCH(scale_kernel<false>, grid, THREADS, 0, s, *p);
    return cuda_launched(c, "scale");
}
