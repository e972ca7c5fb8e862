/* mma.cc - matrix instructions on the fragments of 32 lanes, and conversions of 16-bit floats.
 *
 * Layouts: PTX ISA, "Matrix Fragments for mma.m16n8k16" and "ldmatrix". */
#include "internal.h"

#include "kernels/cuda/ptx.cuh"

uint32_t emulation_bf16_bits(float v)
{
    uint32_t bits = __float_as_uint(v);

    if (v != v)
        return 0x7fff; /* cvt.rn.bf16x2 returns this for any NaN */
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

float emulation_f16_value(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, bits = h & 0x7fff;

    if (bits >= 0x7c00) /* infinity, or NaN */
        bits = 0x7f800000 | bits << 13;
    else if (bits >= 0x400)
        bits = (bits << 13) + ((127 - 15) << 23);
    else /* denormal: units of 2^-24 */
        bits = __float_as_uint((float)bits * 0x1p-24f);
    return __uint_as_float(sign | bits);
}

uint32_t emulation_f16_bits(float v)
{
    uint32_t sign = __float_as_uint(v) >> 16 & 0x8000;
    float magnitude = fabsf(v);

    if (v != v)
        return 0x7fff;
    if (magnitude >= 65520) /* rounds to a number above the largest, 65504 */
        return sign | 0x7c00;
    if (magnitude < 0x1p-14f) /* denormal: units of 2^-24 */
        return sign | (uint32_t)rintf(magnitude * 0x1p24f);
    uint32_t bits = __float_as_uint(magnitude);
    return sign | ((bits + 0xfff + (bits >> 13 & 1)) - (112u << 23)) >> 13;
}

static float bf16_value(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}

/* The row of register i in A [16, 16], and the column of its lower half. B [k][n] is analogous. */
template <float (*value)(uint16_t)> static void mma(const emulation_operands all[32])
{
    float a[16][16], b[16][8], d[16][8];

    for (int lane = 0; lane < 32; lane++) {
        int g = lane / 4, c = lane % 4;
        const uint32_t *ra = static_cast<const uint32_t *>(all[lane].a);
        const uint32_t *rb = static_cast<const uint32_t *>(all[lane].b);
        const float *rd = static_cast<const float *>(all[lane].out);
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < 4; i++)
                a[g + 8 * (i % 2)][2 * c + 8 * (i / 2) + half] =
                    value((uint16_t)(ra[i] >> 16 * half));
            for (int i = 0; i < 2; i++)
                b[2 * c + 8 * i + half][g] = value((uint16_t)(rb[i] >> 16 * half));
            for (int i = 0; i < 2; i++)
                d[g + 8 * i][2 * c + half] = rd[2 * i + half];
        }
    }
    for (int m = 0; m < 16; m++)
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 8; n++)
                d[m][n] += a[m][k] * b[k][n];
    for (int lane = 0; lane < 32; lane++) {
        int g = lane / 4, c = lane % 4;
        float *rd = static_cast<float *>(all[lane].out);
        for (int i = 0; i < 4; i++)
            rd[i] = d[g + 8 * (i / 2)][2 * c + i % 2];
    }
}

void emulation_mma_bf16(const emulation_operands all[32])
{
    mma<bf16_value>(all);
}

void emulation_mma_f16(const emulation_operands all[32])
{
    mma<emulation_f16_value>(all);
}

static void check_rows(const emulation_operands all[32])
{
    for (int lane = 0; lane < 32; lane++) {
        if (reinterpret_cast<uintptr_t>(all[lane].a) % 16)
            emulation_die("ldmatrix: lane %d's row %p is not aligned to 16", lane, all[lane].a);
        if (!emulation_is_shared(all[lane].a, 16))
            emulation_die("ldmatrix: lane %d's row %p is not in shared memory", lane, all[lane].a);
    }
}

void emulation_ldmatrix(const emulation_operands all[32])
{
    check_rows(all);
    for (int lane = 0; lane < 32; lane++)
        for (int j = 0; j < 4; j++)
            memcpy(static_cast<uint32_t *>(all[lane].out) + j,
                   static_cast<const char *>(all[8 * j + lane / 4].a) + 4 * (lane % 4), 4);
}

/* The transposed form: element [row][column] goes to the place of [column][row]. */
void emulation_ldmatrix_transposed(const emulation_operands all[32])
{
    check_rows(all);
    for (int lane = 0; lane < 32; lane++)
        for (int j = 0; j < 4; j++)
            for (int half = 0; half < 2; half++)
                memcpy(static_cast<char *>(all[lane].out) + 4 * j + 2 * half,
                       static_cast<const char *>(all[8 * j + 2 * (lane % 4) + half].a) +
                           2 * (lane / 4),
                       2);
}
