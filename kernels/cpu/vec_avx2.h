/* vec_avx2.h - the vector layer for AVX2 with FMA and F16C: 8 lanes, 16 registers.
 *
 * Included by cpu_avx2.c only, which is compiled with the flags for it. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define VW 8
#define ACC_MAX 12
#define ROWS_MAX 6
#define CPU_NAME "cpu-avx2"
#define CPU_OPS cpu_ops_avx2

typedef float vf __attribute__((vector_size(32)));
typedef uint32_t vu __attribute__((vector_size(32)));
typedef int32_t vi __attribute__((vector_size(32)));
typedef uint16_t vh __attribute__((vector_size(16)));

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

#include "kernels/cpu/vec_partial.h"
