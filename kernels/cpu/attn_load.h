/* attn_load.h - elements of K and V as vectors, and the link of attention's chains.
 *
 * In most kernel sets a link is a fused multiply-add of floats, and KV of any type becomes floats.
 * The set avx512bf16 has an instruction that adds two products of bf16 numbers at twice that rate.
 * Where it is used, a factor is a word of two bf16 numbers. KV in bf16 is stored in such words. A
 * number of one byte is exact in bf16: two tables give the halves of 64 numbers in one instruction
 * each, and another one lays two rows of them into words.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   columns: keys for K, dimensions for V. */
#ifndef TARN_KERNELS_CPU_ATTN_LOAD_H
#define TARN_KERNELS_CPU_ATTN_LOAD_H

#include "kernels/cpu/attn.h"

/* Whether KV of a type is multiplied by the instruction for pairs of bf16 numbers. Queries and
 * probabilities are rounded to bf16 then, and stored in pairs: a word of 32 bits takes the place of
 * two floats. Cores with AMX have the instruction at half the rate of floats, so the vector kernel
 * of that variant does not use it. */
#if defined(HAVE_BF16_DOT) && !defined(HAVE_AMX)
#define ATTN_HAVE_DOT 1
#else
#define ATTN_HAVE_DOT 0
#endif
ALWAYS_INLINE bool attn_is_dot(enum dtype t)
{
    return ATTN_HAVE_DOT && (t == DTYPE_BF16 || kv_dtype_is_scaled(t));
}

/* Whether words of two numbers are made of two rows of bytes. */
ALWAYS_INLINE bool attn_is_byte_dot(enum dtype t)
{
    return attn_is_dot(t) && kv_dtype_is_scaled(t);
}

/* Dimensions of K, or tokens of V, in a step over rows of memory. */
ALWAYS_INLINE uint32_t attn_per_step(enum dtype t)
{
    return t == DTYPE_BF16 || attn_is_dot(t) ? 2 : 1;
}

/* Index of the float, or of the word of a pair, that has the i-th dimension or probability. */
ALWAYS_INLINE uint32_t attn_index(enum dtype t, uint32_t i)
{
    return attn_is_dot(t) ? i / 2 : i;
}

/* acc + a * w; of pairs, acc + both products. */
ALWAYS_INLINE vf attn_fma(enum dtype t, vf a, vf w, vf acc)
{
#if ATTN_HAVE_DOT
    if (attn_is_dot(t))
        return v_dot_bf16(acc, a, w);
#endif
    (void)t;
    return v_fma(a, w, acc);
}

/* Bytes of one element of a row of K or V in memory; in bf16 a row consists of pairs. */
ALWAYS_INLINE size_t attn_col_bytes(enum dtype t)
{
    if (kv_dtype_is_scaled(t))
        return 1;
    return t == DTYPE_F16 ? 2 : 4;
}

/* Rows of a step. */
ALWAYS_INLINE size_t attn_step_rows(enum dtype t)
{
    return attn_is_byte_dot(t) ? 2 : 1;
}

/* As floats, F8 is read as f16 with 4 bits of exponent less: all numbers are 2^8 times too small;
 * queries and probabilities are multiplied by 2^8 instead. Both are exact, so that sums of products
 * have the bits of the numbers themselves. */
ALWAYS_INLINE float attn_unit(enum dtype t)
{
    return t == DTYPE_F8 && !attn_is_dot(t) ? 256.0f : 1.0f;
}

/* VW elements of KV of one byte as floats, without their scale, in units of attn_unit(). */
ALWAYS_INLINE vf attn_load_byte(enum dtype t, const void *p)
{
#if defined(__AVX512F__)
    if (t == DTYPE_F8) {
        __m256i w = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(p)), 7);

        return v_from_f16((vh)_mm256_and_si256(w, _mm256_set1_epi16((short)0xbfff)));
    }
#elif defined(__AVX2__)
    if (t == DTYPE_F8) {
        __m128i w = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64(p)), 7);

        return v_from_f16((vh)_mm_and_si128(w, _mm_set1_epi16((short)0xbfff)));
    }
#endif
    return t == DTYPE_F8 ? v_load_byte(t, p) * (1 / attn_unit(t)) : v_load_byte(t, p);
}

#if ATTN_HAVE_DOT
/* The low or high byte of the bf16 numbers 0 .. 127 (I8), and of F8 codes without sign. */
#define I8_EXPONENT(m) ((m > 1) + (m > 3) + (m > 7) + (m > 15) + (m > 31) + (m > 63))
#define I8_BF16(m) (m == 0 ? 0 : (127 + I8_EXPONENT(m)) << 7 | (m << (7 - I8_EXPONENT(m)) & 0x7f))
/* m * 2^-9 without exponent; else in bf16's places, with 120 more in the exponent. */
#define F8_BF16(c)                                                                                 \
    (c == 0  ? 0                                                                                   \
     : c < 2 ? 0x3b00                                                                              \
     : c < 4 ? 0x3b00 + c * 0x40                                                                   \
     : c < 8 ? 0x3b80 + c * 0x20                                                                   \
             : (120 << 7) + (c << 4))
#define I8_LOW(m) (I8_BF16(m) & 0xff)
#define I8_HIGH(m) (I8_BF16(m) >> 8)
#define F8_LOW(c) (F8_BF16(c) & 0xff)
#define F8_HIGH(c) (F8_BF16(c) >> 8)
#define EIGHT(f, i)                                                                                \
    f((i)), f((i + 1)), f((i + 2)), f((i + 3)), f((i + 4)), f((i + 5)), f((i + 6)), f((i + 7))
#define HALF(f, i)                                                                                 \
    EIGHT(f, i), EIGHT(f, i + 8), EIGHT(f, i + 16), EIGHT(f, i + 24), EIGHT(f, i + 32),            \
        EIGHT(f, i + 40), EIGHT(f, i + 48), EIGHT(f, i + 56)
static const uint8_t attn_bf16_bytes[2][2][128] = {
    {{HALF(I8_LOW, 0), HALF(I8_LOW, 64)}, {HALF(I8_HIGH, 0), HALF(I8_HIGH, 64)}},
    {{HALF(F8_LOW, 0), HALF(F8_LOW, 64)}, {HALF(F8_HIGH, 0), HALF(F8_HIGH, 64)}}};
/* Places of the bytes of 16 words among 64 low bytes and 64 high ones of two rows. */
#define WORD(i) (i), (i) + 64, (i) + 32, (i) + 96
#define WORDS(i) WORD(i), WORD(i + 1), WORD(i + 2), WORD(i + 3)
static const uint8_t attn_words[2][64] = {{WORDS(0), WORDS(4), WORDS(8), WORDS(12)},
                                          {WORDS(16), WORDS(20), WORDS(24), WORDS(28)}};

/* Words of 32 columns, of two rows of 32 numbers of one byte behind each other. I8's -128, which is
 * never stored, would be -0. */
ALWAYS_INLINE void attn_words_of(vf words[2], enum dtype t, __m512i rows)
{
    const uint8_t(*const bytes)[128] = attn_bf16_bytes[t == DTYPE_F8];
    __m512i magnitude = t == DTYPE_I8 ? _mm512_abs_epi8(rows) : rows;
    __m512i low = _mm512_permutex2var_epi8(_mm512_loadu_si512(bytes[0]), magnitude,
                                           _mm512_loadu_si512(bytes[0] + 64));
    __m512i high = _mm512_permutex2var_epi8(_mm512_loadu_si512(bytes[1]), magnitude,
                                            _mm512_loadu_si512(bytes[1] + 64));

    high = _mm512_ternarylogic_epi32(high, rows, _mm512_set1_epi8((char)0x80), 0xf8); /* | & */
    words[0] = (vf)_mm512_permutex2var_epi8(low, _mm512_loadu_si512(attn_words[0]), high);
    words[1] = (vf)_mm512_permutex2var_epi8(low, _mm512_loadu_si512(attn_words[1]), high);
}

/* The rows begin at w and w + next; of each, n numbers exist if `part` is set. */
ALWAYS_INLINE void attn_load_words(vf words[2], enum dtype t, bool part, const unsigned char *w,
                                   size_t next, int32_t n)
{
    __m256i first, second;

    if (part && n < 2 * VW) {
        __mmask32 have = n <= 0 ? 0 : (1u << n) - 1;

        first = _mm256_maskz_loadu_epi8(have, w);
        second = _mm256_maskz_loadu_epi8(have, w + next);
    } else if (next == 2 * VW) {
        attn_words_of(words, t, _mm512_loadu_si512(w));
        return;
    } else {
        first = _mm256_loadu_si256((const void *)w);
        second = _mm256_loadu_si256((const void *)(w + next));
    }
    attn_words_of(words, t, _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1));
}
#endif

/* VW elements of a row at w as floats, of which n exist if `part` is set. */
ALWAYS_INLINE vf attn_load(enum dtype t, bool part, const unsigned char *w, int32_t n)
{
    if (!part || n >= VW)
        return kv_dtype_is_scaled(t) ? attn_load_byte(t, w) : v_load_as(t, w);
    if (n <= 0)
        return v_set1(0);
    if (!kv_dtype_is_scaled(t))
        return v_load_as_n(t, w, (uint32_t)n);
    unsigned char b[VW] = {0};

    memcpy(b, w, (size_t)n);
    return attn_load_byte(t, b);
}

/* The same for a row; of bf16, where a row consists of pairs, both; of words of pairs the word, in
 * *even. */
ALWAYS_INLINE void attn_load2(vf *even, vf *odd, enum dtype t, bool part, const unsigned char *w,
                              int32_t n)
{
    const float *at = (const float *)(const void *)w;

    if (t != DTYPE_BF16) {
        *even = attn_load(t, part, w, n);
        return;
    }
    vu pair = (vu)(!part || n >= VW ? v_load(at) : n <= 0 ? v_set1(0) : v_load_n(at, (uint32_t)n));
    if (attn_is_dot(t)) {
        *even = (vf)pair;
        return;
    }
    *even = (vf)(pair << 16);
    *odd = (vf)(pair & 0xffff0000u);
}

/* Load vector i of some columns, w being its place, by attn_load2(). Words of bytes come in twos:
 * those of vectors i and i + 1 if i is even. */
ALWAYS_INLINE void attn_load_step(vf *even, vf *odd, enum dtype t, bool part, int i,
                                  const unsigned char *w, size_t next, int32_t n)
{
#if ATTN_HAVE_DOT
    if (attn_is_byte_dot(t)) {
        if (i % 2 == 0)
            attn_load_words(even, t, part, w, next, n);
        return;
    }
#endif
    (void)i;
    (void)next;
    attn_load2(even, odd, t, part, w, n);
}

/* The lower (0) or upper half of each word, with 0 in the other. */
ALWAYS_INLINE vf attn_half(vf words, int which)
{
    return (vf)((vu)words & (which ? 0xffff0000u : 0xffffu));
}
#endif
