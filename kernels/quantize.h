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

#include <stdbool.h>

#include "kernels/pack.h"

/* Number n of the paths that this machine can run: 0 .. n - 1, the fastest last. */
uint32_t quantize_n_paths(void);

/* pack_quantize_rows() on a given path. */
void quantize_rows_on(uint32_t path, const struct weight *w, uint32_t n0, enum dtype from,
                      const void *src, uint32_t n_rows);

/* The place of the group with element k of output n (quantized types). The two layouts differ only
 * in the steps and in the order of 4-bit elements inside their four bytes. */
struct pack_group {
    unsigned char *scale; /* of output n */
    size_t offset_at;     /* bytes from a scale to its offset (a8, a4) */
    size_t scale_step;    /* to the scale of output n + 1 */
    unsigned char *quad;  /* first four bytes of n's elements */
    size_t quad_step;     /* to the next four bytes of n, or to the next place */
    size_t row_step;      /* to output n + 1; in panels only inside one panel */
    bool mixed;           /* rows: quad i is at pack_word_place(dtype, i) */
    enum dtype dtype;
};
struct pack_group pack_group_of(const struct weight *w, uint32_t n, uint32_t k);

/* Bytes from a group's first quad to its i-th one. */
static inline __attribute__((always_inline)) size_t pack_quad_offset(const struct pack_group *g,
                                                                     uint32_t i)
{
    return (g->mixed ? pack_word_place(g->dtype, i) : i) * g->quad_step;
}

/* Reorder a word of 4-bit elements from panel to row order. A panel has element i of eight in bits
 * 8 (i % 4) + 4 (i / 4), a row in bits 4 (i / 2) + 16 (i % 2): the three bits of a half-byte's
 * index are rotated left by one, which takes two swaps. */
static inline __attribute__((always_inline)) uint32_t pack_row_order_i4(uint32_t u)
{
    uint32_t swap = (u ^ u >> 12) & 0xf0f0; /* half-bytes 1 and 4, 3 and 6 */

    u ^= swap | swap << 12;
    swap = (u ^ u >> 8) & 0xff00; /* half-bytes 2 and 4, 3 and 5 */
    return u ^ (swap | swap << 8);
}

#endif
