/* json_string.h - inside of engine/grammar: characters, formats and keys of JSON strings.
 *
 * Owns    nothing.
 * Thread  as expr.h.
 * Errors  as expr.h.
 * Units   none. */
#ifndef TARN_ENGINE_GRAMMAR_JSON_STRING_H
#define TARN_ENGINE_GRAMMAR_JSON_STRING_H

#include "engine/grammar/expr.h"

#define JSON_NAMES_MAX 1000u
#define JSON_NAME_BYTES_MAX 256u /* of names that front_other_key() excludes */

/* A character of a string, escaped in any way that JSON knows; surrogates in pairs. */
uint32_t front_character(struct exprs *e);
/* A regular expression for texts of a format such as "date-time", a part of them where the format
 * is very wide ("uri"). NULL: the format is not known, and says nothing then. */
const char *front_format_regex(const char *format);
/* The characters, without escapes, of a key that is none of names [n]; sorts them. */
uint32_t front_other_key(struct exprs *e, const char **names, size_t n);

#endif
