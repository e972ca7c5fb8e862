/* dtype.h - element types of weights, KV and files.
 *
 * Common subset of C11 and C++ (nvcc reads it too).
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   bytes. */
#ifndef TARN_KERNELS_DTYPE_H
#define TARN_KERNELS_DTYPE_H

#include <stddef.h>
#include <stdint.h>

/* Marks inline functions that device code calls, too. */
#ifdef __CUDACC__
#define TARN_HOST_DEVICE __host__ __device__
#else
#define TARN_HOST_DEVICE
#endif

enum dtype {
    DTYPE_F32 = 0,
    DTYPE_F16 = 1,
    DTYPE_BF16 = 2,
    DTYPE_FLOATS, /* number of float types; the types below need scales beside their elements */
    DTYPE_I8 = DTYPE_FLOATS,
    DTYPE_I4,
    DTYPE_A8, /* affine: unsigned codes, with a scale and an offset per group */
    DTYPE_A4,
    DTYPE_F8,   /* 1 sign, 4 exponent and 3 mantissa bits, bias 7, without infinities (e4m3fn) */
    DTYPE_COUNT /* the numbers of all types are part of fingerprints */
};

/* Bytes of an element of a float type. */
TARN_HOST_DEVICE
static inline size_t dtype_bytes(enum dtype t)
{
    return t == DTYPE_F32 ? 4 : 2;
}

/* Bits of an element of a quantized type. */
TARN_HOST_DEVICE
static inline uint32_t dtype_bits(enum dtype t)
{
    return t == DTYPE_I4 || t == DTYPE_A4 ? 4 : 8;
}

/* Whether groups of a quantized type have an offset beside the scale. */
TARN_HOST_DEVICE
static inline int dtype_is_affine(enum dtype t)
{
    return t == DTYPE_A8 || t == DTYPE_A4;
}

#endif
