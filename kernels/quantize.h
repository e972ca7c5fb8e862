/* quantize.h - what pack.c and quantize.c share: where a group lies; and the code paths of the
 * quantizer, for the tests.
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

/* Where the group that holds element k of output n lies (i8, i4): the same for both layouts but for
 * the steps, and for the order of i4 elements inside their four bytes. */
struct pack_group {
    unsigned char *scale; /* of output n */
    size_t scale_step;    /* to the scale of output n + 1 */
    unsigned char *quad;  /* the first four bytes of n's elements */
    size_t quad_step;     /* to n's next four */
    size_t row_step;      /* to those of output n + 1; for panels inside one panel only */
};
struct pack_group pack_group_of(const struct weight *w, uint32_t n, uint32_t k);

#endif
