/* pack.h - the two layouts of weights. Kernels for one row and for many rows share a layout, so
 * that they can share an order of operations (promise P1, ARCHITECTURE.md).
 *
 * WEIGHT_PANELS, for CPU kernels. A weight [N, K] is cut into panels of PANEL_COLS outputs,
 * zero-padded to a whole panel:
 *   f32:        panel[k][32]                one output per lane
 *   f16:        panel[k][32]
 *   bf16:       panel[ceil(K/2)][32][2]     pairs along K, as vdpbf16ps and AMX take them; an odd K
 *                                           is padded with one zero
 *   i8, i4:     groups of `group` elements of K (the last may be short), one after the other. A
 *               group is a row of scales, then the quantized elements as unsigned numbers:
 *     scale[32]                             bf16; a weight is (u - 128) * scale or (u - 8) * scale
 *     i8: u[ceil(g/4)][32][4]               quads along K, as vpdpbusd and AMX take them; 1 .. 255
 *     i4: u[ceil(g/8)][32][4]               byte j of quad i has element 8i + j in its lower half
 *                                           and element 8i + 4 + j in its upper half; 0 .. 15
 *   a8, a4:     the same groups with codes as u, 0 .. 255 or 0 .. 15, behind two rows:
 *     scale[32], offset[32]               f16; a weight is u * scale + offset
 *               Behind the end of K or N the padding is 0 bytes; kernels multiply it by
 *               activations of 0.
 *   f8:         the same groups with e4m3 numbers as u, behind scale[32], f32; a weight is
 *               u * scale
 * A kernel walks one panel from k = 0 to K for as many rows as it has accumulators. With one row or
 * twelve, each output sees the same operations in the same order.
 *
 * WEIGHT_ROWS, for GPU kernels: rows [N], each of `stride` elements: pack_row_stride(K), or K if
 * the weight is a table used in place in a mapped file. Elements behind K are 0.
 *   f32, f16, bf16: row[stride]
 *   i8:         row[stride]                 unsigned bytes, the weight is (u - 128) * scale; of
 *                                           each 16 words of four elements, word 8a+2c+j is at
 *                                           4c+2a+j
 *   i4:         row[stride / 8]             32-bit words, little-endian, of 8 elements: element 2j
 *                                           in bits 4j, element 2j + 1 in bits 16 + 4j; the weight
 *                                           is (u - 8) * scale; of each 16 words, word 4s+c is at
 *                                           4c+s
 *   i8, i4:     then, from the next multiple of 256 bytes on, scale[N][stride / group], bf16; 0 for
 *               groups wholly behind K.
 *   a8, a4:     codes in the order of i8, i4; then, from the next multiple of 256 bytes on, pairs
 *               (scale, offset)[N][stride / group], f16; (0, 0) for groups wholly behind K.
 *   f8:         row[stride] of e4m3 numbers in the order of i8, then the scales as those of i8, but
 *               f32
 *
 * Owns    nothing; the caller supplies the destination (pack_bytes() long, 64-byte aligned).
 * Thread  any; distinct panels may be packed at the same time.
 * Errors  none; shapes are asserted.
 * Units   bytes, elements. */
#ifndef TARN_KERNELS_PACK_H
#define TARN_KERNELS_PACK_H

#include "kernels/params.h"

#ifdef __cplusplus
extern "C" {
#endif

/* WEIGHT_ROWS: elements from row to row for K elements, the next multiple of 128. */
uint32_t pack_row_stride(uint32_t k);
/* Bytes of a whole weight in its layout. */
size_t pack_weight_bytes(const struct weight *w);

/* The byte ranges of rows [n0, n0 + n_rows) of a WEIGHT_ROWS weight: one for floats, two for
 * quantized weights (elements; scales and offsets). Returns their number. A weight of only these
 * rows, {n = n_rows}, has ranges of equal sizes at n0 = 0: so a weight can be packed piece by piece
 * in host memory and each piece copied to its place. */
struct pack_range {
    size_t offset;
    size_t n_bytes;
};
uint32_t pack_row_ranges(const struct weight *w, uint32_t n0, uint32_t n_rows,
                         struct pack_range ranges[2]);

/* WEIGHT_PANELS. `group` is that of struct weight and ignored for floats. */
size_t pack_panel_bytes(enum dtype t, uint32_t k, uint32_t group);
size_t pack_bytes(enum dtype t, uint32_t n, uint32_t k, uint32_t group);

/* WEIGHT_PANELS, quantized types: bytes in front of a group's elements; and bytes of one group of a
 * panel, those included, for n_k elements of K. */
TARN_HOST_DEVICE
static inline uint32_t pack_head_bytes(enum dtype t)
{
    return dtype_is_affine(t) || t == DTYPE_F8 ? PANEL_COLS * 4 : PANEL_COLS * 2;
}
size_t pack_group_bytes(enum dtype t, uint32_t n_k);

/* WEIGHT_ROWS, quantized types: the place of a row's i-th 32-bit word, of four elements of 8 bits,
 * or of eight of 4 bits. */
TARN_HOST_DEVICE
static inline uint32_t pack_word_place(enum dtype t, uint32_t i)
{
    return t == DTYPE_I4 || t == DTYPE_A4 ? (i & ~15u) | (i & 3) << 2 | (i & 12) >> 2
                                          : (i & ~14u) | (i & 6) << 1 | (i & 8) >> 2;
}

/* Copy the row-major src [n_rows, K] of w->dtype (a float type) to rows [n0, n0 + n_rows) of w.
 * Rows may be copied in any order and in any pieces (Q, K and V go into one weight). Padding must
 * be zero before (device_alloc() returns zeroed memory). src needs the alignment of its element
 * only. */
void pack_rows(const struct weight *w, uint32_t n0, const void *src, uint32_t n_rows);

/* pack_rows() for an i8, i4 or f8 weight: quantize the float rows src [n_rows, K] of dtype `from`
 * (alignment of its element). Each group of each row is quantized on its own, symmetrically,
 * against its scale as rounded to bf16 (2^-126 at least). i8: the scale of max|x| / 124 .. 127 that
 * represents the largest element best. i4: the scale of least squared error among a few near max|x|
 * / 8 with its sign. f8: the scale max|x| / 448 in f32, as kv_scale_of() has it. A group with NaN
 * or inf gets the scale NaN. Padding must be zero before. */
void pack_quantize_rows(const struct weight *w, uint32_t n0, enum dtype from, const void *src,
                        uint32_t n_rows);

/* pack_rows() for an a8, a4 or f8 weight: codes [n_rows, K], one a byte, and scales and offsets
 * [n_rows, ceil(K / code_group)], rounded to f16; f8: scales as they are, and no offsets, which may
 * be NULL. code_group is a multiple of w->group; a4 takes the low four bits of a code. Padding must
 * be zero before. */
void pack_coded_rows(const struct weight *w, uint32_t n0, const uint8_t *codes, const float *scales,
                     const float *offsets, uint32_t code_group, uint32_t n_rows);

/* One element as float, dequantized; for reference kernels and tests. */
float pack_at(const struct weight *w, uint32_t n, uint32_t k);
/* The scale of a quantized element; its offset (0 but for a8 and a4); and its integer: signed for
 * i8 and i4, the code for a8, a4 and f8. */
float pack_scale_at(const struct weight *w, uint32_t n, uint32_t k);
float pack_offset_at(const struct weight *w, uint32_t n, uint32_t k);
int pack_int_at(const struct weight *w, uint32_t n, uint32_t k);

/* Scalar conversions of float types: round to nearest even; NaN stays NaN. */
float dtype_load(enum dtype t, const void *base, size_t i);
void dtype_store(enum dtype t, void *base, size_t i, float v);
/* Convert n elements, one by one as by the two above; src and dst have any alignment. */
void dtype_convert(enum dtype to, void *dst, enum dtype from, const void *src, size_t n);

#ifdef __cplusplus
}
#endif
#endif
