/* front.h - inside of engine/grammar: the notations that a grammar can be written in.
 *
 * Owns    nothing.
 * Thread  as expr.h.
 * Errors  ERR_INVALID, ERR_UNSUPPORTED with words; a bound or lack of memory is noted in the
 *         expressions (exprs_status()).
 * Units   bytes. */
#ifndef TARN_ENGINE_GRAMMAR_FRONT_H
#define TARN_ENGINE_GRAMMAR_FRONT_H

#include "base/json.h"
#include "engine/grammar/expr.h"

/* A value by a JSON schema (draft 2020-12, the part that docs/user/structured.md lists). Objects
 * have their properties in the order of the schema. */
NODISCARD enum status front_json_schema(struct exprs *e, const struct json *schema, uint32_t *out,
                                        struct buf *why);
/* Any JSON object. */
uint32_t front_json_object(struct exprs *e);
enum front_regex_flags {
    REGEX_IN_JSON = 1, /* the text as it is written inside of a JSON string */
    REGEX_SEARCH = 2,  /* a text that contains a match; ^ and $ are its ends */
    REGEX_WIDE =
        4 /* also what other dialects match: Unicode digits and words, $ before a new line */
};
/* Text that matches the whole of a regular expression: characters, classes, groups, alternatives,
 * repetition; ^ and $ at the ends of alternatives that are in no group. */
NODISCARD enum status front_regex(struct exprs *e, const char *text, size_t len, unsigned flags,
                                  uint32_t *out, struct buf *why);
/* A character of the ranges [n] (negated: another one) as it is written inside of a JSON string. */
uint32_t front_json_class(struct exprs *e, const struct code_range *ranges, size_t n, bool negated);
/* The text as it is written inside of a JSON string, every character in the shortest way. */
uint32_t front_json_text(struct exprs *e, const char *text, size_t len);
/* Make the expression for one of an array of strings. */
NODISCARD enum status front_choice(struct exprs *e, const struct json *list, uint32_t *out,
                                   struct buf *why);
/* Calls of tools, by an object that the server made:
 *
 *   {"marker", "gap", "open", "separator", "close", "free", "many", "form", "before_form", "style",
 *    "calls": [{"name", "begin", "behind_number", "schema", "end"}]}
 *
 * The text is marker, perhaps gap, open, a call, with `many` more calls behind separators, close. A
 * call is begin, perhaps a number and behind_number, a value by the schema (none: any object), end.
 * With `free` all of that is optional, and a text without the marker, whose first byte comes in the
 * marker once, may precede it. before_form and a value by the schema `form` (true: any object) may
 * come instead. With a `style`, arguments are no object: see front_arguments(). */
NODISCARD enum status front_calls(struct exprs *e, const struct json *source, uint32_t *out,
                                  struct buf *why);
/* A text with tags, by a format of xgrammar (tags.c). */
NODISCARD enum status front_tags(struct exprs *e, const struct json *source, uint32_t *out,
                                 struct buf *why);
/* Arguments by the properties of a schema (NULL: any), each written as
 *
 *   before_key NAME behind_key VALUE behind_value
 *
 * Where value_end is not "", strings are plain text without it; else values are JSON, and
 * behind_value stands between arguments only. Where behind_json_key is not "", it stands instead of
 * behind_key before a value that is no string. style: an object with these texts. */
NODISCARD enum status front_arguments(struct exprs *e, const struct json *schema,
                                      const struct json *style, uint32_t *out, struct buf *why);
#define CALL_ARGUMENTS_MAX 512u
/* A text without the word, whose first character comes in it once. */
uint32_t front_text_without(struct exprs *e, const char *word);
/* Nothing, or begin, a text without `end`, end, some white space and behind. The first byte of
 * `end` comes in it once. */
uint32_t front_reasoning(struct exprs *e, const char *begin, const char *end, const char *behind);
/* Rules `name ::= ...` (GBNF; the first is "root") or `name: ...` (Lark; the first is "start"). */
NODISCARD enum status front_ebnf(struct exprs *e, const char *text, size_t len, uint32_t *out,
                                 struct buf *why);

#endif
