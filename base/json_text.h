/* json_text.h - JSON before it is parsed: names of members for error messages, and integers that do
 * not fit into int64_t.
 *
 * Only base/json.c uses it.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE of the buffer.
 * Units   bytes. */
#ifndef TARN_BASE_JSON_TEXT_H
#define TARN_BASE_JSON_TEXT_H

#include <stdbool.h>

#include "base/buf.h"

/* Append the text with "e0" behind every integer outside of [-2^63, 2^63), which makes it a real
 * number of the same value. *any: whether there was one. */
NODISCARD enum status json_text_widen(const char *text, size_t len, struct buf *out, bool *any);

/* Write the name of the value that ends at or holds byte `at`, such as "messages[0].content", or ""
 * for the document itself. The text before `at` is well-formed. Letters, digits and _ - are copied,
 * other bytes of a member's name become '?'; what does not fit into n_out bytes is cut. */
void json_text_path(const char *text, size_t at, char *out, size_t n_out);

/* Write the number or word (not a string) around byte `at`, cut as above. */
void json_text_word(const char *text, size_t len, size_t at, char *out, size_t n_out);

#endif
