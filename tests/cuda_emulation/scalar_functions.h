/* scalar_functions.h - CUDA's bit and math functions of one thread.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   none. */
#ifndef TARN_TESTS_CUDA_SCALAR_FUNCTIONS_H
#define TARN_TESTS_CUDA_SCALAR_FUNCTIONS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <limits>

static inline int __popc(unsigned v)
{
    return __builtin_popcount(v);
}

static inline int __popcll(unsigned long long v)
{
    return __builtin_popcountll(v);
}

static inline int __clz(int v)
{
    return v ? __builtin_clz((unsigned)v) : 32;
}

static inline int __clzll(long long v)
{
    return v ? __builtin_clzll((unsigned long long)v) : 64;
}

static inline int __ffs(int v)
{
    return __builtin_ffs(v);
}

static inline int __ffsll(long long v)
{
    return __builtin_ffsll(v);
}

static inline unsigned __brev(unsigned v)
{
    unsigned r = 0;

    for (int i = 0; i < 32; i++)
        r |= (v >> i & 1) << (31 - i);
    return r;
}

static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    uint64_t both = (uint64_t)y << 32 | x;
    unsigned r = 0;

    for (int i = 0; i < 4; i++) {
        unsigned s = selector >> 4 * i & 0xf;
        unsigned byte = (unsigned)(both >> 8 * (s & 7)) & 0xff;
        if (s & 8)
            byte = byte & 0x80 ? 0xff : 0;
        r |= byte << 8 * i;
    }
    return r;
}

static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift)
{
    return (unsigned)((((uint64_t)hi << 32 | lo) << (shift & 31)) >> 32);
}

static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift)
{
    return (unsigned)(((uint64_t)hi << 32 | lo) >> (shift & 31));
}

static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)(((uint64_t)a * b) >> 32);
}

static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}

static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++)
        c += (int8_t)((unsigned)a >> 8 * i) * (int8_t)((unsigned)b >> 8 * i);
    return c;
}

template <typename To, typename From> static inline To emulation_bit_cast(From v)
{
    To r;

    static_assert(sizeof r == sizeof v, "equal sizes");
    memcpy(&r, &v, sizeof r);
    return r;
}

static inline unsigned __float_as_uint(float v)
{
    return emulation_bit_cast<unsigned>(v);
}

static inline int __float_as_int(float v)
{
    return emulation_bit_cast<int>(v);
}

static inline float __uint_as_float(unsigned v)
{
    return emulation_bit_cast<float>(v);
}

static inline float __int_as_float(int v)
{
    return emulation_bit_cast<float>(v);
}

static inline long long __double_as_longlong(double v)
{
    return emulation_bit_cast<long long>(v);
}

static inline double __longlong_as_double(long long v)
{
    return emulation_bit_cast<double>(v);
}

static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

static inline float __fadd_rn(float a, float b)
{
    return a + b;
}

static inline float __fsub_rn(float a, float b)
{
    return a - b;
}

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}

static inline float __frcp_rn(float a)
{
    return 1 / a;
}

static inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}

static inline double __fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}

static inline double __dadd_rn(double a, double b)
{
    return a + b;
}

static inline double __dmul_rn(double a, double b)
{
    return a * b;
}

static inline float __fdividef(float a, float b)
{
    return a / b;
}

/* glibc has functions of these names for its own use. */
#define __expf(v) expf(v)
#define __logf(v) logf(v)
#define __log2f(v) log2f(v)

static inline float rsqrtf(float v)
{
    return 1 / sqrtf(v);
}

/* Out of range becomes the nearest value in it, NaN 0, as the instructions do. */
template <typename To> static inline To emulation_convert(double v)
{
    const To lo = std::numeric_limits<To>::min(), hi = std::numeric_limits<To>::max();

    if (!(v == v))
        return 0;
    return v < (double)lo ? lo : v > (double)hi ? hi : (To)v;
}

static inline int __float2int_rn(float v)
{
    return emulation_convert<int>(nearbyint((double)v));
}

static inline int __float2int_rz(float v)
{
    return emulation_convert<int>(trunc((double)v));
}

static inline int __float2int_rd(float v)
{
    return emulation_convert<int>(floor((double)v));
}

static inline unsigned __float2uint_rn(float v)
{
    return emulation_convert<unsigned>(nearbyint((double)v));
}

static inline unsigned __float2uint_rz(float v)
{
    return emulation_convert<unsigned>(trunc((double)v));
}

static inline float __int2float_rn(int v)
{
    return (float)v;
}

static inline float __uint2float_rn(unsigned v)
{
    return (float)v;
}

#define EMULATION_MIN_MAX(a_type, b_type, type)                                                    \
    static inline constexpr type min(a_type a, b_type b)                                           \
    {                                                                                              \
        return (type)a < (type)b ? (type)a : (type)b;                                              \
    }                                                                                              \
    static inline constexpr type max(a_type a, b_type b)                                           \
    {                                                                                              \
        return (type)a > (type)b ? (type)a : (type)b;                                              \
    }
EMULATION_MIN_MAX(int, int, int)
EMULATION_MIN_MAX(unsigned, unsigned, unsigned)
EMULATION_MIN_MAX(int, unsigned, unsigned)
EMULATION_MIN_MAX(unsigned, int, unsigned)
EMULATION_MIN_MAX(long, long, long)
EMULATION_MIN_MAX(unsigned long, unsigned long, unsigned long)
EMULATION_MIN_MAX(long, unsigned long, unsigned long)
EMULATION_MIN_MAX(unsigned long, long, unsigned long)
EMULATION_MIN_MAX(long long, long long, long long)
EMULATION_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)

#define EMULATION_MIN_MAX_FLOAT(a_type, b_type, fn_min, fn_max)                                    \
    static inline auto min(a_type a, b_type b)                                                     \
    {                                                                                              \
        return fn_min(a, b);                                                                       \
    }                                                                                              \
    static inline auto max(a_type a, b_type b)                                                     \
    {                                                                                              \
        return fn_max(a, b);                                                                       \
    }
EMULATION_MIN_MAX_FLOAT(float, float, fminf, fmaxf)
EMULATION_MIN_MAX_FLOAT(double, double, fmin, fmax)
EMULATION_MIN_MAX_FLOAT(float, double, fmin, fmax)
EMULATION_MIN_MAX_FLOAT(double, float, fmin, fmax)

#endif
