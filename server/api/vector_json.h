/* vector_json.h - the vector of a text as JSON: numbers, or base64 of little-endian floats.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none; those of writing are in the writer.
 * Units   elements. */
#ifndef TARN_SERVER_API_VECTOR_JSON_H
#define TARN_SERVER_API_VECTOR_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include "server/api/writer.h"

/* Cut v [n_all] to its first n elements, and scale these to length 1, as models of the matryoshka
 * kind are meant to be used. With n equal to n_all no bit changes. False: the n elements are all
 * zero. */
NODISCARD bool vector_cut(float *v, uint32_t n_all, uint32_t n);

/* Write "[0.1,...]". Each number parses back to the same float. */
void vector_write(struct writer *w, const float *v, uint32_t n);
/* Write the floats' bytes, little-endian, as a string of base64 with padding. */
void vector_write_base64(struct writer *w, const float *v, uint32_t n);

#endif
