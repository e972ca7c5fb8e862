/* quantize.h - what pack.c and quantize.c share: the code paths of the quantizer, for the tests.
 *
 * Every path gives the same bytes; they differ only in the instructions that the compiler may use.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none; shapes are asserted.
 * Units   as pack.h. */
#ifndef TARN_KERNELS_QUANTIZE_H
#define TARN_KERNELS_QUANTIZE_H

#include "kernels/pack.h"

/* Paths that this machine can run: 0 .. n - 1, the best last. */
uint32_t quantize_n_paths(void);

/* pack_quantize_rows() on the given path. */
void quantize_rows_on(uint32_t path, const struct weight *w, uint32_t n0, enum dtype from,
                      const void *src, uint32_t n_rows);

/* First byte of the group that holds element k of output n: its row of scales (i8, i4). */
unsigned char *pack_group_of(const struct weight *w, uint32_t n, uint32_t k);

#endif
