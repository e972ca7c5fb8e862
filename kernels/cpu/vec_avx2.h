/* vec_avx2.h - the vector layer for AVX2 with FMA and F16C: 8 lanes, 16 registers.
 *
 * Only cpu_avx2.c includes it, which is compiled with the flags for it. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define VW 8
#define ACC_MAX 12
#define ROWS_MAX 6
#define INT_ACC_MAX 4
#define I8_OFFSET 0 /* v_dot_i8() subtracts the offset of 128 itself */

typedef float vf __attribute__((vector_size(32)));
typedef uint32_t vu __attribute__((vector_size(32)));
typedef int32_t vi __attribute__((vector_size(32)));
typedef uint16_t vh __attribute__((vector_size(16)));
typedef uint8_t vb __attribute__((vector_size(32)));

static inline vf v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void v_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v);
}

static inline vf v_set1(float f)
{
    return _mm256_set1_ps(f);
}

static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline vh h_load(const uint16_t *p)
{
    return (vh)_mm_loadu_si128((const __m128i *)p);
}

static inline vu v_widen(vh h)
{
    return (vu)_mm256_cvtepu16_epi32((__m128i)h);
}

static inline vf v_from_f16(vh h)
{
    return _mm256_cvtph_ps((__m128i)h);
}

static inline vh v_to_f16(vf v)
{
    return (vh)_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vi v_widen_i8(const void *p)
{
    return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64(p));
}

static inline vf v_from_i32(vi v)
{
    return _mm256_cvtepi32_ps((__m256i)v);
}

/* acc + the sum of the four products in each 32-bit lane, w in 0 .. 15, a in -127 .. 127. Exact:
 * pairs of products stay below 2^15. */
static inline vi v_dot_i4(vi acc, vb w, vi a)
{
    __m256i pairs = _mm256_maddubs_epi16((__m256i)w, (__m256i)a);

    return acc + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/* v_dot_i4() for the weight w - 128. The instruction wants w unsigned, but bytes up to 255 would
 * overflow the 16-bit pairs; so w becomes |w - 128| <= 127, and its sign moves to `a`. */
static inline vi v_dot_i8(vi acc, vb w, vi a)
{
    __m256i signed_w = (__m256i)(w ^ 0x80);

    return v_dot_i4(acc, (vb)_mm256_abs_epi8(signed_w), (vi)_mm256_sign_epi8((__m256i)a, signed_w));
}

#include "kernels/cpu/vec_partial.h"
