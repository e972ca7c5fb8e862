/* gemm_quant.h - quantizes rows of activations to int8 for all kernels with quantized weights.
 * Every variant gives the numbers defined at struct gemm_params (params.h). */
#ifndef TARN_KERNELS_CPU_GEMM_QUANT_H
#define TARN_KERNELS_CPU_GEMM_QUANT_H

#include "kernels/cpu/gemm.h"

/* Elements quantized together; all groups but the last of a row are multiples of it. */
#define QUANT_CHUNK 32

/* The scale of a row. */
struct quant_row {
    float scale;   /* max|a| / 127; NaN if the row has NaN or inf */
    float inverse; /* 127 / max|a|, or 0 */
};

static struct quant_row quant_row_of(const float *a, uint32_t n)
{
    /* Magnitudes compare like their bits as integers; NaN and inf are above all numbers. */
    vu max = (vu)v_set1(0);
    uint32_t lanes[VW], top = 0;
    float f;

    for (uint32_t k = 0; k < n; k += VW) {
        vu bits = (vu)v_load_n(a + k, min_u32(n - k, VW)) & 0x7fffffffu;
        vu larger = (vu)(bits > max);

        max = (bits & larger) | (max & ~larger);
    }
    memcpy(lanes, &max, sizeof(lanes));
    for (int i = 0; i < VW; i++)
        top = lanes[i] > top ? lanes[i] : top;
    memcpy(&f, &top, sizeof(f));
    if (top >= 0x7f800000u)
        return (struct quant_row){NAN, 0};
    if (f < QUANT_ROW_MIN)
        return (struct quant_row){0, 0};
    return (struct quant_row){f / 127.0f, 127.0f / f};
}

/* Quantize n <= QUANT_CHUNK elements to signed bytes, with zeros behind them. Returns their sum. */
static int32_t quant_chunk(int8_t out[QUANT_CHUNK], const float *a, uint32_t n, float inverse)
{
    const vf magic = v_set1(0x1.8p23f); /* adding it rounds to an integer in the low bits */
    vi sum = v_set1_i32(0);
    int32_t lanes[VW], total = 0;

    if (inverse == 0) { /* a zero row or a NaN row: 0 * NaN would not be an integer */
        memset(out, 0, QUANT_CHUNK);
        return 0;
    }
    for (uint32_t k = 0; k < QUANT_CHUNK; k += VW) {
        vf x = k < n ? v_load_n(a + k, min_u32(n - k, VW)) : v_set1(0);
        vi q = (vi)(x * v_set1(inverse) + magic) - (vi)magic;
        typedef int8_t v8 __attribute__((vector_size(VW)));
        v8 bytes = __builtin_convertvector(q, v8);

        sum += q;
        memcpy(out + k, &bytes, sizeof(bytes));
    }
    memcpy(lanes, &sum, sizeof(lanes));
    for (int i = 0; i < VW; i++)
        total += lanes[i];
    return total;
}

#endif
