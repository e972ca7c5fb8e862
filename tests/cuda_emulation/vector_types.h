/* vector_types.h - CUDA's small vectors and qualifiers, for the host's compiler.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   elements. */
#ifndef TARN_TESTS_CUDA_VECTOR_TYPES_H
#define TARN_TESTS_CUDA_VECTOR_TYPES_H

#define __host__
#define __device__
#define __global__
#define __shared__ static /* one copy for all blocks: they run one after another (shared.cc) */
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

#define EMULATION_VECTOR_2(name, type, alignment)                                                  \
    struct __attribute__((aligned(alignment))) name##2                                             \
    {                                                                                              \
        type x, y;                                                                                 \
    };                                                                                             \
    static inline name##2 make_##name##2(type x, type y)                                           \
    {                                                                                              \
        return {x, y};                                                                             \
    }
#define EMULATION_VECTOR_4(name, type, alignment)                                                  \
    struct __attribute__((aligned(alignment))) name##4                                             \
    {                                                                                              \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    static inline name##4 make_##name##4(type x, type y, type z, type w)                           \
    {                                                                                              \
        return {x, y, z, w};                                                                       \
    }
#define EMULATION_VECTORS(name, type)                                                              \
    struct name##1                                                                                 \
    {                                                                                              \
        type x;                                                                                    \
    };                                                                                             \
    struct name##3                                                                                 \
    {                                                                                              \
        type x, y, z;                                                                              \
    };                                                                                             \
    static inline name##1 make_##name##1(type x)                                                   \
    {                                                                                              \
        return {x};                                                                                \
    }                                                                                              \
    static inline name##3 make_##name##3(type x, type y, type z)                                   \
    {                                                                                              \
        return {x, y, z};                                                                          \
    }                                                                                              \
    EMULATION_VECTOR_2(name, type, 2 * sizeof(type))                                               \
    EMULATION_VECTOR_4(name, type, 4 * sizeof(type) < 16 ? 4 * sizeof(type) : 16)

EMULATION_VECTORS(char, signed char)
EMULATION_VECTORS(uchar, unsigned char)
EMULATION_VECTORS(short, short)
EMULATION_VECTORS(ushort, unsigned short)
EMULATION_VECTORS(int, int)
EMULATION_VECTORS(uint, unsigned)
EMULATION_VECTORS(longlong, long long)
EMULATION_VECTORS(ulonglong, unsigned long long)
EMULATION_VECTORS(float, float)
EMULATION_VECTORS(double, double)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z)
    {
    }
};

#endif
