/* vec_avx512.h - the vector layer for AVX-512 (F, BW, VL, DQ, VNNI): 16 lanes, 32 registers.
 *
 * Included by the variants with AVX-512 (cpu_avx512.c, cpu_avx512bf16.c, cpu_amx.c), which are
 * compiled with the flags for it. Each vec_<variant>.h defines the names below; vec.h adds what
 * GCC's vector extensions can express for all variants. */
#include <immintrin.h>
#include <stdint.h>

#define VW 16          /* lanes of a vector */
#define ACC_MAX 24     /* accumulators that fit into registers beside the operands */
#define ROWS_MAX 12    /* most rows of one tile */
#define INT_ACC_MAX 12 /* accumulators of integer products: as many float sums are beside them */
#define INT_ROWS 6     /* most rows of their tiles: more of them cost more in spilled sums */
#define I8_OFFSET 128  /* v_dot_i8() multiplies by the stored, unsigned weight */

typedef float vf __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(32)));
typedef uint8_t vb __attribute__((vector_size(64)));

static inline vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void v_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}

/* Store to 64-byte aligned memory past the caches, without reading the line first. Other threads
 * may read it after v_stream_end(). */
static inline void v_stream(float *p, vf v)
{
    _mm512_stream_ps(p, v);
}

static inline void v_stream_end(void)
{
    _mm_sfence();
}

static inline vf v_set1(float f)
{
    return _mm512_set1_ps(f);
}

/* a * b + c, rounded once */
static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* The larger lane; NaN where b is NaN. */
static inline vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

/* The first n lanes (0 .. VW), with 0 behind them; memory behind them is not read. */
static inline vf v_load_n(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}

static inline void v_store_n(float *p, vf v, uint32_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), v);
}

static inline vh h_load(const uint16_t *p)
{
    return (vh)_mm256_loadu_si256((const __m256i *)p);
}

static inline vh h_load_n(const uint16_t *p, uint32_t n)
{
    return (vh)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p);
}

static inline void h_store_n(uint16_t *p, vh v, uint32_t n)
{
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), (__m256i)v);
}

/* Widen 16 bits to 32 with zeros. GCC 12 makes four instructions of __builtin_convertvector. */
static inline vu v_widen(vh h)
{
    return (vu)_mm512_cvtepu16_epi32((__m256i)h);
}

static inline vf v_from_f16(vh h)
{
    return _mm512_cvtph_ps((__m256i)h);
}

static inline vh v_to_f16(vf v)
{
    return (vh)_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* VW signed bytes in 32-bit lanes. */
static inline vi v_widen_i8(const void *p)
{
    return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128(p));
}

static inline vf v_from_i32(vi v)
{
    return _mm512_cvtepi32_ps((__m512i)v);
}

/* acc + the sum of the four products in each 32-bit lane, w unsigned, a signed; exact. */
static inline vi v_dot_i8(vi acc, vb w, vi a)
{
    return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)a);
}

/* v_dot_i8() for w in 0 .. 15. */
static inline vi v_dot_i4(vi acc, vb w, vi a)
{
    return v_dot_i8(acc, w, a);
}

#ifdef __AVX512BF16__
#define HAVE_BF16_DOT 1
/* acc + the two products of bf16 numbers in each 32-bit lane */
static inline vf v_dot_bf16(vf acc, vf a, vf w)
{
    return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)w);
}

/* The lower (odd 0) or upper F8 number of each 16-bit lane as bf16, exactly. A number is moved to
 * bf16's places, and 120 is added to its exponent; one without exponent is m * 2^-9, which a table
 * of differences makes of it. */
static inline vb v_bf16_from_f8(vb codes, int odd)
{
    static const uint16_t differences[32] = {0,
                                             0x3b00 - 0x10,
                                             0x3b80 - 0x20,
                                             0x3bc0 - 0x30,
                                             0x3c00 - 0x40,
                                             0x3c20 - 0x50,
                                             0x3c40 - 0x60,
                                             0x3c60 - 0x70};
    __m512i c = (__m512i)codes, low = odd ? _mm512_srli_epi16(c, 8) : c;
    __m512i x = _mm512_srai_epi16(odd ? c : _mm512_slli_epi16(c, 8), 4);

    x = _mm512_and_si512(x, _mm512_set1_epi16((short)0x87f0));
    return (vb)_mm512_add_epi16(
        x, _mm512_mask_permutexvar_epi16(_mm512_set1_epi16(120 << 7),
                                         _mm512_testn_epi16_mask(x, _mm512_set1_epi16(0x780)), low,
                                         _mm512_loadu_si512(differences)));
}

/* Round to nearest even; numbers below 2^-126 become 0. */
static inline vh v_to_bf16_product(vf v)
{
    return (vh)_mm512_cvtneps_pbh((__m512)v);
}
#endif
