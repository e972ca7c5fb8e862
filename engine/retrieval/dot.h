/* dot.h - inner products of float vectors with the widest instructions of this CPU.
 *
 * The Faiss of Debian is compiled for any x86-64 CPU, and its own inner product is a scalar loop.
 * A pair of vectors has the same result in every call on one machine, whatever other vectors the
 * call has.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   none. */
#ifndef TARN_ENGINE_RETRIEVAL_DOT_H
#define TARN_ENGINE_RETRIEVAL_DOT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

float dot_one(const float *a, const float *b, size_t dim);
/* out[i * n_rows + j] = the inner product of x[i] and rows[j]; x [n_x, dim], rows [n_rows, dim]. */
void dot_many(float *out, const float *x, size_t n_x, const float *rows, size_t n_rows, size_t dim);

/* dot_many() on a given path, for tests: 0 (plain) to dot_n_paths() - 1. */
uint32_t dot_n_paths(void);
void dot_many_on(uint32_t path, float *out, const float *x, size_t n_x, const float *rows,
                 size_t n_rows, size_t dim);

#ifdef __cplusplus
}
#endif
#endif
