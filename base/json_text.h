/* json_text.h - works on the text of JSON before it is parsed: names of members for error messages,
 * and integers outside of int64_t.
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

/* Append the text with "e0" behind every integer outside of [-2^63, 2^63), which turns the integer
 * into a real number of the same value. *any: whether the text has such an integer. */
NODISCARD enum status json_text_widen(const char *text, size_t len, struct buf *out, bool *any);

/* Write the name of the value that ends at or contains byte `at`, such as "messages[0].content", or
 * "" for the document itself. The text before `at` must be well-formed. Letters, digits, _ and -
 * are copied; other bytes of a member's name become '?'. The name is cut to n_out bytes. */
void json_text_path(const char *text, size_t at, char *out, size_t n_out);

/* Write the number or word (not a string) around byte `at`, cut to n_out bytes. */
void json_text_word(const char *text, size_t len, size_t at, char *out, size_t n_out);

#endif
