/* jinja_text.h - UTF-8 text with Python's view of it: code points, white space, case; growing text.
 *
 * Owns    nothing: a jinja_out grows in the run's arena.
 * Thread  any; a jinja_out belongs to its run's thread.
 * Errors  ERR_TOO_LARGE: a jinja_out exceeds the run's out_max_bytes.
 * Units   bytes, unless a name says chars (code points). Text must be valid UTF-8. */
#ifndef TARN_ENGINE_TEXT_JINJA_JINJA_TEXT_H
#define TARN_ENGINE_TEXT_JINJA_JINJA_TEXT_H

#include "engine/text/jinja/jinja_value.h"

bool jinja_utf8_valid(const char *s, size_t len);
/* Decode the code point at p. Returns its bytes, 1 to 4, at most `left`. */
size_t jinja_utf8_next(const char *p, size_t left, uint32_t *cp);
size_t jinja_utf8_put(char out[4], uint32_t cp);
size_t jinja_n_chars(struct jinja_str s);
/* Byte offset of the code point with that index; the length if there are fewer. */
size_t jinja_char_offset(struct jinja_str s, size_t char_index);

bool jinja_is_space(uint32_t cp); /* str.isspace() */
bool jinja_is_alnum(uint32_t cp); /* approximate above Latin: includes every letter-like code
                                     point */
uint32_t jinja_lower(uint32_t cp);
uint32_t jinja_upper(uint32_t cp);

/* Strip white space, or the code points of `chars`, at the ends. */
struct jinja_str jinja_strip(struct jinja_str s, const struct jinja_str *chars, bool left,
                             bool right);
/* Offset of the first (or last) `needle` at or behind `from`; SIZE_MAX: none. */
size_t jinja_find(struct jinja_str hay, struct jinja_str needle, size_t from);
NODISCARD enum status jinja_find_last(struct jinja_run *r, struct jinja_str hay,
                                      struct jinja_str needle, size_t *out);

/* Text that grows in the arena. */
struct jinja_out {
    char *p;
    size_t len;
    size_t cap;
};

NODISCARD enum status jinja_put(struct jinja_run *r, struct jinja_out *o, const char *p,
                                size_t len);
NODISCARD enum status jinja_puts(struct jinja_run *r, struct jinja_out *o, const char *text);
NODISCARD enum status jinja_put_cp(struct jinja_run *r, struct jinja_out *o, uint32_t cp);
NODISCARD enum status jinja_put_spaces(struct jinja_run *r, struct jinja_out *o, size_t n);
static inline struct jinja_value jinja_out_value(const struct jinja_out *o)
{
    return jinja_str(o->p ? o->p : "", o->len);
}

NODISCARD enum status jinja_concat(struct jinja_run *r, struct jinja_str a, struct jinja_str b,
                                   struct jinja_str *out);
/* A NUL-terminated copy, e.g. of a name for a message. */
NODISCARD enum status jinja_cdup(struct jinja_run *r, struct jinja_str s, const char **out);

/* Append s with &, <, >, ' and " escaped as in markupsafe. */
NODISCARD enum status jinja_put_escaped(struct jinja_run *r, struct jinja_out *o,
                                        struct jinja_str s);
/* `s` itself if it is Markup or `markup` is false; else its escaped text. */
NODISCARD enum status jinja_escape_for(struct jinja_run *r, const struct jinja_value *s,
                                       bool markup, struct jinja_str *out);

/* CAPITALIZE: the first code point in upper case, TITLE: the first letter of each word; the rest in
 * lower case. */
enum jinja_case { JINJA_CASE_UPPER, JINJA_CASE_LOWER, JINJA_CASE_CAPITALIZE, JINJA_CASE_TITLE };
NODISCARD enum status jinja_recase(struct jinja_run *r, const struct jinja_value *s,
                                   enum jinja_case how, struct jinja_value *out);
/* str.replace(); count < 0: all. */
NODISCARD enum status jinja_replace(struct jinja_run *r, struct jinja_str s, struct jinja_str from,
                                    struct jinja_str to, int64_t count, struct jinja_str *out);
/* str.splitlines(keep_ends). */
NODISCARD enum status jinja_splitlines(struct jinja_run *r, const struct jinja_value *s,
                                       bool keep_ends, struct jinja_list *out);

#endif
