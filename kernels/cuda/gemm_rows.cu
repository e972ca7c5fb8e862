/* gemm_rows.cu - products with float weights, in an order that does not depend on the number of
 * rows. */
#include "base/check.h"
#include "kernels/cuda/gemm_launch.cuh"

/* Elements of K in shared memory at once in the f32 kernel. With rows 4 elements further apart,
 * 16-byte loads of eight lanes have no bank conflicts. */
#define F32_STEP 64
#define F32_STRIDE (F32_STEP + 4)
#define F32_SIDE 16 /* threads along each side of a block */

void gemm_rows(cudaStream_t stream, enum dtype t, const struct product *p)
{
    ASSERT(t == DTYPE_BF16 || t == DTYPE_F16);
    if (t == DTYPE_BF16)
        launch_product<DTYPE_BF16, 0>(stream, p);
    else
        launch_product<DTYPE_F16, 0>(stream, p);
}

cudaError_t gemm_rows_prepare(void)
{
    cudaError_t e = prepare_product<DTYPE_BF16, 0>();

    return e == cudaSuccess ? prepare_product<DTYPE_F16, 0>() : e;
}

/* Copy rows [row0, row0 + N_ROWS) of a row-major matrix, elements [k0, k0 + F32_STEP), with 0 for
 * missing ones. Works for any alignment of the rows. With `rows` [n_rows], row i is rows[i] of the
 * matrix. */
template <int N_ROWS>
static __device__ __forceinline__ void f32_copy(float (*dst)[F32_STRIDE], const float *src,
                                                const uint32_t *rows, size_t stride, uint32_t row0,
                                                uint32_t n_rows, uint32_t k0, uint32_t n_k)
{
#pragma unroll
    for (uint32_t i = threadIdx.x; i < N_ROWS * F32_STEP; i += F32_SIDE * F32_SIDE) {
        uint32_t row = row0 + i / F32_STEP, k = k0 + i % F32_STEP;

        bool there = row < n_rows && k < n_k;
        size_t from = there && rows ? rows[row] : row;

        dst[i / F32_STEP][i % F32_STEP] = there ? src[from * stride + k] : 0;
    }
}

/* f32_copy() for weights, whose rows are aligned and padded: 16 bytes at once. */
template <int N_ROWS>
static __device__ __forceinline__ void f32_copy_weights(float (*dst)[F32_STRIDE],
                                                        const struct weight &w, uint32_t row0,
                                                        uint32_t k0)
{
    const float *src = static_cast<const float *>(w.data);

#pragma unroll
    for (uint32_t i = threadIdx.x; i < N_ROWS * F32_STEP / 4; i += F32_SIDE * F32_SIDE) {
        uint32_t row = min(row0 + i / (F32_STEP / 4), w.n - 1), k = i % (F32_STEP / 4) * 4;

        *reinterpret_cast<uint4 *>(&dst[i / (F32_STEP / 4)][k]) =
            load_weight16(src + (size_t)row * w.stride + k0 + k);
    }
}

/* Grid (ceil(N / 16 NN), ceil(T / 16 NT)), 16 x 16 threads; with experts, y is the number of a
 * tile. A thread computes outputs x + 16 i of
 * rows y + 16 j, each as one chain over K. */
template <int NN, int NT, bool EXPERTS>
static __global__ void __launch_bounds__(F32_SIDE *F32_SIDE)
f32_kernel(struct gemm_params p, struct expert_rows experts)
{
    __shared__ __align__(16) float w[NN * F32_SIDE][F32_STRIDE], a[NT * F32_SIDE][F32_STRIDE];
    uint32_t x = threadIdx.x % F32_SIDE, y = threadIdx.x / F32_SIDE;
    uint32_t n0 = blockIdx.x * NN * F32_SIDE, t0 = blockIdx.y * NT * F32_SIDE;
    const uint32_t *a_rows = NULL;
    float sum[NN][NT];

    if constexpr (EXPERTS) {
        struct expert_tile tile;

        if (!find_tile(experts, p.n_rows, blockIdx.y, NT * F32_SIDE, &tile))
            return;
        t0 = tile.t0;
        p.n_rows = tile.n_rows;
        a_rows = experts.a_rows ? experts.a_rows + tile.row0 : NULL;
        p.a += a_rows ? 0 : tile.row0 * p.a_stride;
        p.out += tile.row0 * p.out_stride;
        p.w.data = static_cast<const unsigned char *>(p.w.data) +
                   tile.expert * experts.expert_bytes;
    }
#pragma unroll
    for (int i = 0; i < NN; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
            sum[i][j] = 0;
    for (uint32_t k0 = 0; k0 < p.w.k; k0 += F32_STEP) {
        __syncthreads(); /* all threads are done with the previous elements */
        f32_copy_weights<NN * F32_SIDE>(w, p.w, n0, k0);
        f32_copy<NT * F32_SIDE>(a, p.a, a_rows, p.a_stride, t0, p.n_rows, k0, p.w.k);
        __syncthreads();
        for (int k = 0; k < F32_STEP; k += 4) {
            float4 wv[NN], av[NT];

#pragma unroll
            for (int i = 0; i < NN; i++)
                wv[i] = *reinterpret_cast<const float4 *>(&w[x + i * F32_SIDE][k]);
#pragma unroll
            for (int j = 0; j < NT; j++)
                av[j] = *reinterpret_cast<const float4 *>(&a[y + j * F32_SIDE][k]);
#pragma unroll
            for (int i = 0; i < NN; i++)
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    sum[i][j] = fmaf(av[j].x, wv[i].x, sum[i][j]);
                    sum[i][j] = fmaf(av[j].y, wv[i].y, sum[i][j]);
                    sum[i][j] = fmaf(av[j].z, wv[i].z, sum[i][j]);
                    sum[i][j] = fmaf(av[j].w, wv[i].w, sum[i][j]);
                }
        }
    }
#pragma unroll
    for (int i = 0; i < NN; i++)
#pragma unroll
        for (int j = 0; j < NT; j++) {
            uint32_t n = n0 + x + i * F32_SIDE, t = t0 + y + j * F32_SIDE;
            float v = sum[i][j];

            if (n >= p.w.n || t >= p.n_rows)
                continue;
            float *out = p.out + t * p.out_stride + n;
            if (p.bias)
                v += p.bias[n];
            if (p.accumulate)
                v += *out;
            *out = v;
        }
}

void gemm_f32(cudaStream_t stream, const struct gemm_params *p, const struct expert_rows *x)
{
    if (x->offsets) {
        dim3 grid(ceil_div(p->w.n, 2 * F32_SIDE), n_tiles_max(x, p->n_rows, F32_SIDE));

        ASSERT(grid.y <= 65535);
        LAUNCH((f32_kernel<2, 1, true>), grid, F32_SIDE * F32_SIDE, 0, stream, *p, *x);
    } else if (p->n_rows <= F32_SIDE) {
        dim3 grid(ceil_div(p->w.n, 2 * F32_SIDE), 1);

        LAUNCH((f32_kernel<2, 1, false>), grid, F32_SIDE * F32_SIDE, 0, stream, *p, *x);
    } else {
        dim3 grid(ceil_div(p->w.n, 4 * F32_SIDE), ceil_div(p->n_rows, 4 * F32_SIDE));

        LAUNCH((f32_kernel<4, 4, false>), grid, F32_SIDE * F32_SIDE, 0, stream, *p, *x);
    }
}
