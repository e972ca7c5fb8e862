/* gemm_quant.h - quantizes rows of activations to int8 for all kernels with quantized weights.
 * Every variant gives the numbers defined at struct gemm_params (params.h). */
#ifndef TARN_KERNELS_CPU_GEMM_QUANT_H
#define TARN_KERNELS_CPU_GEMM_QUANT_H

#include "kernels/cpu/gemm.h"

/* The scale of a group of a row. */
struct quant_scale {
    float scale;   /* max|a| / 127; NaN if the group has NaN or inf */
    float inverse; /* 127 / max|a|, or 0 */
};

static inline vu quant_larger(vu a, vu b)
{
    vu m = (vu)((vi)a > (vi)b); /* both below 2^31 */

    return (a & m) | (b & ~m);
}

static struct quant_scale quant_scale_of(const float *a, uint32_t n)
{
    /* Magnitudes compare like their bits as integers; NaN and inf are above all numbers. */
    const vu mag = (vu)v_set1_i32(0x7fffffff);
    vu max[4] = {{0}, {0}, {0}, {0}}; /* each waits for itself only */
    uint32_t k = 0, top;
    float f;

    for (; k + 4 * VW <= n; k += 4 * VW) {
        UNROLL
        for (uint32_t i = 0; i < 4; i++)
            max[i] = quant_larger((vu)v_load(a + k + i * VW) & mag, max[i]);
    }
    for (; k < n; k += VW)
        max[0] = quant_larger((vu)v_load_n(a + k, min_u32(n - k, VW)) & mag, max[0]);
    max[0] = quant_larger(quant_larger(max[0], max[1]), quant_larger(max[2], max[3]));
    UNROLL
    for (int half = VW / 2; half > 0; half /= 2)
        max[0] = quant_larger(max[0], __builtin_shuffle(max[0], (vu)(v_lanes() ^ half)));
    top = max[0][0];
    memcpy(&f, &top, sizeof(f));
    if (top >= 0x7f800000u)
        return (struct quant_scale){NAN, 0};
    if (f < QUANT_MIN)
        return (struct quant_scale){0, 0};
    return (struct quant_scale){f / 127.0f, 127.0f / f};
}

/* Quantize n <= QUANT_CHUNK elements to signed bytes, with zeros behind them. The lanes of *sum
 * together grow by their sum. */
ALWAYS_INLINE void quant_chunk(int8_t out[QUANT_CHUNK], const float *a, uint32_t n, float inverse,
                               vi *sum)
{
    const vf magic = v_set1(0x1.8p23f); /* adding it rounds to an integer in the low bits */

    if (inverse == 0) { /* zeros, or a NaN: 0 * NaN would not be an integer */
        memset(out, 0, QUANT_CHUNK);
        return;
    }
    UNROLL
    for (uint32_t k = 0; k < QUANT_CHUNK; k += VW) {
        vf x = n >= k + VW ? v_load(a + k) : n > k ? v_load_n(a + k, n - k) : v_set1(0);
        vi q = (vi)(x * v_set1(inverse) + magic) - (vi)magic;

        typedef int8_t v8 __attribute__((vector_size(VW)));
        v8 bytes = __builtin_convertvector(q, v8);

        *sum += q;
        memcpy(out + k, &bytes, sizeof(bytes));
    }
}

/* The sum of all lanes. */
ALWAYS_INLINE int32_t quant_sum(vi sum)
{
    UNROLL
    for (int half = VW / 2; half > 0; half /= 2)
        sum += __builtin_shuffle(sum, v_lanes() ^ half);
    return sum[0];
}

#endif
