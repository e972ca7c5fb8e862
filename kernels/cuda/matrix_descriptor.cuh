/* matrix_descriptor.cuh - how an operand of a warpgroup's product lies in shared memory.
 *
 * Rows of 64 elements of K, of 16 bits: 128 bytes. Unit u of 16 bytes of row i lies at unit u ^ i %
 * 8, which is the 128-byte swizzle of the PTX ISA ("Matrix Descriptor Format"), if row 0 is aligned
 * to OPERAND_ALIGNMENT. More than 64 elements of K are several such operands, one behind the other.
 *
 * Owns    nothing.
 * Thread  device code.
 * Errors  none.
 * Units   bytes. */
#ifndef TARN_KERNELS_CUDA_MATRIX_DESCRIPTOR_CUH
#define TARN_KERNELS_CUDA_MATRIX_DESCRIPTOR_CUH

#include "kernels/cuda/common.cuh"

#define OPERAND_ROW_BYTES 128
#define OPERAND_ALIGNMENT 1024 /* eight rows: the swizzle's period */

/* The place of a unit of 16 bytes of a row. */
static __device__ __forceinline__ uint32_t operand_unit(uint32_t row, uint32_t unit)
{
    return row * OPERAND_ROW_BYTES + 16 * (unit ^ row % 8);
}

/* The descriptor of an operand at `address`, or of the elements of K from (address - operand) / 2
 * on, a multiple of 16: start and distances in units of 16 bytes. The distance of eight rows is
 * OPERAND_ALIGNMENT; that along K has no meaning in this mode. */
static __device__ __forceinline__ uint64_t operand_at(uint32_t address)
{
    return (uint64_t)1 << 62 | (uint64_t)(OPERAND_ALIGNMENT >> 4) << 32 | (uint64_t)1 << 16 |
           (address >> 4 & 0x3fff);
}

#endif
