/* activation.cu - the gated activation of a SwiGLU feed-forward layer.
 *
 * Grid (T, ceil(F / (4 * THREADS)), at most GRID_Y_MAX): a block computes parts of one row, four
 * elements per thread and turn. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/context.cuh"
#include "kernels/cuda/vec4.cuh"

#define THREADS 256
#define GRID_Y_MAX 65535

static __device__ __forceinline__ float silu_mul(float x, float up)
{
    return x / (1 + expf(-x)) * up;
}

template <bool VEC>
static __global__ void __launch_bounds__(THREADS) silu_mul_kernel(struct silu_mul_params p)
{
    const float *gate = p.gate_up + (size_t)blockIdx.x * 2 * p.dim;
    float *out = p.out + (size_t)blockIdx.x * p.dim;
    uint32_t step = gridDim.y * THREADS * 4;

    for (uint32_t i = (blockIdx.y * THREADS + threadIdx.x) * 4; i < p.dim; i += step) {
        float4 g = load4<VEC>(gate, i, p.dim), u = load4<VEC>(gate + p.dim, i, p.dim);

        store4<VEC>(out, i, p.dim,
                    make_float4(silu_mul(g.x, u.x), silu_mul(g.y, u.y), silu_mul(g.z, u.z),
                                silu_mul(g.w, u.w)));
    }
}

enum status cuda_silu_mul(struct device *d, struct stream *stream, const struct silu_mul_params *p)
{
    struct cuda_context *c = cuda_context_of(d);
    cudaStream_t s = cuda_stream_of(c, stream);
    uint32_t n_y = ceil_div(p->dim, 4 * THREADS);
    dim3 grid(p->n_rows, n_y < GRID_Y_MAX ? n_y : GRID_Y_MAX);

    if (p->n_rows == 0)
        return OK;
    if (rows_are_vec4(p->gate_up, p->dim) && rows_are_vec4(p->out, p->dim))
        LAUNCH(silu_mul_kernel<true>, grid, THREADS, 0, s, *p);
    else
        LAUNCH(silu_mul_kernel<false>, grid, THREADS, 0, s, *p);
    return cuda_launched(c, "silu_mul");
}
