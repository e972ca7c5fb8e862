/* gemm_int.cu - products with quantized weights: gemm_tile.cuh for each type and group.
 *
 * Activations are bf16 (weight-only quantization). Integers of up to 8 bits and F8 numbers are
 * exact in bf16, so its matrix instructions are used, and each group's sum is in fp32. */
#include "base/check.h"
#include "kernels/cuda/gemm_launch.cuh"

template <enum dtype W>
static void gemm_int_of(cudaStream_t stream, uint32_t group, const struct product *p)
{
    if (group == 32)
        launch_product<W, 32>(stream, p);
    else
        launch_product<W, 128>(stream, p);
}

template <enum dtype W>
static cudaError_t prepare_int(void)
{
    cudaError_t e = prepare_product<W, 32>();

    return e == cudaSuccess ? prepare_product<W, 128>() : e;
}

void gemm_int(cudaStream_t stream, enum dtype t, uint32_t group, const struct product *p)
{
    ASSERT(t >= DTYPE_FLOATS && t < DTYPE_COUNT);
    ASSERT(group == 128 || (group == 32 && t != DTYPE_F8));
    switch (t) {
    case DTYPE_I8: gemm_int_of<DTYPE_I8>(stream, group, p); break;
    case DTYPE_I4: gemm_int_of<DTYPE_I4>(stream, group, p); break;
    case DTYPE_A8: gemm_int_of<DTYPE_A8>(stream, group, p); break;
    case DTYPE_F8: launch_product<DTYPE_F8, 128>(stream, p); break;
    default: gemm_int_of<DTYPE_A4>(stream, group, p); break;
    }
}

cudaError_t gemm_int_prepare(void)
{
    cudaError_t e = prepare_int<DTYPE_I8>();

    if (e == cudaSuccess)
        e = prepare_int<DTYPE_I4>();
    if (e == cudaSuccess)
        e = prepare_int<DTYPE_A8>();
    if (e == cudaSuccess)
        e = prepare_product<DTYPE_F8, 128>();
    return e == cudaSuccess ? prepare_int<DTYPE_A4>() : e;
}
