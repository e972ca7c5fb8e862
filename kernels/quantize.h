/* quantize.h - declarations shared by pack.c and quantize.c: the place of a group; and, for the
 * tests, the code paths of the quantizer.
 *
 * All paths give the same bytes; they differ only in the instructions that the compiler may use.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none; shapes are asserted.
 * Units   as pack.h. */
#ifndef TARN_KERNELS_QUANTIZE_H
#define TARN_KERNELS_QUANTIZE_H

#include "kernels/pack.h"

/* Number n of the paths that this machine can run: 0 .. n - 1, the fastest last. */
uint32_t quantize_n_paths(void);

/* pack_quantize_rows() on a given path. */
void quantize_rows_on(uint32_t path, const struct weight *w, uint32_t n0, enum dtype from,
                      const void *src, uint32_t n_rows);

/* The place of the group with element k of output n (i8, i4). The two layouts differ only in the
 * steps and in the order of i4 elements inside their four bytes. */
struct pack_group {
    unsigned char *scale; /* of output n */
    size_t scale_step;    /* to the scale of output n + 1 */
    unsigned char *quad;  /* first four bytes of n's elements */
    size_t quad_step;     /* to the next four bytes of n */
    size_t row_step;      /* to output n + 1; in panels only inside one panel */
};
struct pack_group pack_group_of(const struct weight *w, uint32_t n, uint32_t k);

#endif
