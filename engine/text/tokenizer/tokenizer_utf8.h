/* tokenizer_utf8.h - UTF-8 for the tokenizer and the detokenizer: classify, repair, iterate.
 *
 * Owns    nothing.
 * Thread  any; no state.
 * Errors  those of the buf for repaired text.
 * Units   bytes; code points are uint32_t. */
#ifndef TARN_ENGINE_TEXT_TOKENIZER_TOKENIZER_UTF8_H
#define TARN_ENGINE_TEXT_TOKENIZER_TOKENIZER_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

enum utf8_kind {
    UTF8_VALID,   /* a whole character */
    UTF8_BAD,     /* an invalid sequence, to be replaced by one U+FFFD */
    UTF8_PARTIAL, /* the text ends inside a sequence that is valid so far */
};

/* Classify the sequence at s[0..n), n > 0; *size_out: its bytes. Invalid bytes are divided into
 * sequences as by Python's errors='replace' and Rust's from_utf8_lossy (maximal subparts). */
enum utf8_kind utf8_classify(const char *s, size_t n, size_t *size_out);
bool utf8_is_valid(const char *s, size_t n);
/* Append s to *out, with U+FFFD for each invalid sequence. */
NODISCARD enum status utf8_repair(struct buf *out, const char *s, size_t n);
/* Write c to s, which has room for 4 bytes; returns the bytes used. */
size_t utf8_put(char *s, uint32_t c);
/* Unicode's White_Space property, as Rust's char::is_whitespace and Oniguruma's \s use it. */
bool utf8_is_space(uint32_t c);

/* Bytes of the character with this first byte, in valid text. */
static inline size_t utf8_size(char lead)
{
    unsigned char b = (unsigned char)lead;

    return b < 0x80 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
}

/* The character at *s, in valid text; advances *s behind it. */
static inline uint32_t utf8_next(const char **s)
{
    const unsigned char *p = (const unsigned char *)*s;
    size_t n = utf8_size(**s);

    *s += n;
    switch (n) {
    case 1: return p[0];
    case 2: return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    case 3: return (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    default:
        return (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
    }
}

#endif
