/* gemm_int.cu - products with 8-bit and 4-bit weights: gemm_tile.cuh for each type and group.
 *
 * Activations are bf16 (weight-only quantization). Integers of up to 8 bits are exact in bf16, so
 * the matrix instructions for floats are used, and each group's sum is in fp32. */
#include "base/check.h"
#include "kernels/cuda/gemm_tile.cuh"

void gemm_int(cudaStream_t stream, enum dtype t, uint32_t group, const struct product *p)
{
    ASSERT((t == DTYPE_I8 || t == DTYPE_I4) && (group == 32 || group == 128));
    if (t == DTYPE_I8 && group == 32)
        launch_product<DTYPE_I8, 32>(stream, p);
    else if (t == DTYPE_I8)
        launch_product<DTYPE_I8, 128>(stream, p);
    else if (group == 32)
        launch_product<DTYPE_I4, 32>(stream, p);
    else
        launch_product<DTYPE_I4, 128>(stream, p);
}

cudaError_t gemm_int_prepare(void)
{
    cudaError_t e = prepare_product<DTYPE_I8, 32>();

    if (e == cudaSuccess)
        e = prepare_product<DTYPE_I8, 128>();
    if (e == cudaSuccess)
        e = prepare_product<DTYPE_I4, 32>();
    if (e == cudaSuccess)
        e = prepare_product<DTYPE_I4, 128>();
    return e;
}
