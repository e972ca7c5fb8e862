/* pack.h - the weight layout that one-row and many-row kernels share (design P1).
 *
 * A weight [N, K] is cut into panels of PANEL_COLS outputs, zero-padded to a whole panel:
 *   f32:        panel[k][32]                one output per lane
 *   f16:        panel[k][32]
 *   bf16:       panel[ceil(K/2)][32][2]     pairs along K, as vdpbf16ps wants them; an odd K is
 *                                           padded with one zero
 * A kernel walks one panel from k = 0 to K for as many rows as it has accumulators; whether it has
 * one row or twelve, each output sees the same operations in the same order.
 *
 * Owns    nothing; the caller gives the destination (pack_bytes() long, 64-byte aligned).
 * Thread  any; distinct panels may be packed at once.
 * Errors  none; shapes are asserted.
 * Units   bytes, elements. */
#ifndef TARN_KERNELS_PACK_H
#define TARN_KERNELS_PACK_H

#include "kernels/params.h"

#ifdef __cplusplus
extern "C" {
#endif

size_t pack_panel_bytes(enum dtype t, uint32_t k);
size_t pack_bytes(enum dtype t, uint32_t n, uint32_t k);

/* Copy the row-major src [n_rows, K] of w->dtype into rows [n0, n0 + n_rows) of w. Rows may be
 * given in any order and split as one likes (Q, K and V go into one weight); padding must be zero
 * beforehand (device_alloc gives zeroed memory). src needs only the alignment of its element. */
void pack_rows(const struct weight *w, uint32_t n0, const void *src, uint32_t n_rows);

/* One element as float: for the reference kernels and tests. */
float pack_at(const struct weight *w, uint32_t n, uint32_t k);

/* Scalar conversions, round to nearest even, NaN stays NaN. */
float dtype_load(enum dtype t, const void *base, size_t i);
void dtype_store(enum dtype t, void *base, size_t i, float v);

#ifdef __cplusplus
}
#endif
#endif
