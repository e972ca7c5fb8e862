/* utf8.h - decode one character of UTF-8.
 *
 * Owns    nothing.
 * Thread  any; no state.
 * Errors  0 for bytes that are not a valid character: truncated, overlong, a surrogate, too large.
 * Units   bytes. */
#ifndef TARN_BASE_UTF8_H
#define TARN_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Decode the character at s[0..n), n at least 1. Returns its length, 1 to 4, and sets *c; or 0. */
size_t utf8_decode(const char *s, size_t n, uint32_t *c);

#endif
