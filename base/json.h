/* json.h - JSON: parse hostile text, read typed fields by name, write into a buf.
 *
 * ONLY module that includes jansson (names with json_; Tarn's begin with js_). A `struct json` is
 * one value of a parsed or built document.
 *
 * Parsed documents have their own memory (json_memory.h): a parse that runs out of memory ends with
 * ERR_NOMEM, and the memory is returned to the system with the document's last reference. For that,
 * js_parse() sets jansson's allocation functions; they forward other blocks to the functions that
 * were set before. A program that sets its own functions must do so before its first js_parse().
 *
 * Owns    js_parse(), js_new_*() hand over one reference: js_unref(). Values returned by a getter
 *         are borrowed and live as long as their root.
 * Thread  a document belongs to one thread at a time; distinct documents are independent. Documents
 *         that share values by js_ref() count as one.
 * Errors  ERR_INVALID with a message in `why` that names the field, e.g. "messages[2].role:
 *         expected a string"; ERR_TOO_LARGE with the limit; ERR_NOMEM.
 * Units   lengths in bytes; text is UTF-8 and may contain NUL only where a length is returned. */
#ifndef TARN_BASE_JSON_H
#define TARN_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct json;

enum js_type {
    JS_NULL,
    JS_BOOL,
    JS_INT,
    JS_REAL,
    JS_STRING,
    JS_ARRAY,
    JS_OBJECT,
};

/* Parse one JSON value of any type. Errors: duplicate keys, nesting deeper than 512, an empty text,
 * bytes behind the value. U+0000 is allowed in strings but not in keys, so callers use the length,
 * or js_read_cstr() and js_get_str(), which refuse it. Integers outside of int64_t become JS_REAL.
 * A document takes at most about 100 times the bytes of its text. */
NODISCARD enum status js_parse(struct json **out, const char *text, size_t len, struct buf *why);

/* Limits for a text from clients. */
struct js_limits {
    size_t n_values_max; /* values of the document; each member name counts as a value */
    size_t n_bytes_max;  /* memory during the parse, without the text itself */
};

/* js_parse() with limits; ERR_TOO_LARGE names the one that was exceeded. */
NODISCARD enum status js_parse_limited(struct json **out, const char *text, size_t len,
                                       const struct js_limits *limits, struct buf *why);
NODISCARD enum status js_parse_file(struct json **out, const char *path, size_t max_bytes,
                                    struct buf *why);
struct json *js_ref(struct json *j);
void js_unref(struct json *j); /* NULL is fine */

enum js_type js_typeof(const struct json *j); /* NULL: JS_NULL */
const char *js_type_name(enum js_type t);     /* "a string", "an object", ... */
static inline bool js_is(const struct json *j, enum js_type t)
{
    return js_typeof(j) == t;
}

/* The value; each asserts the type. js_number() accepts INT and REAL. */
bool js_bool(const struct json *j);
int64_t js_int(const struct json *j);
double js_number(const struct json *j);
/* The text may hold U+0000: pass len_out unless the document is the program's own. */
const char *js_string(const struct json *j, size_t *len_out /* may be NULL */);

/* Arrays. Any other value, and an index out of range, give 0 and NULL. */
size_t js_len(const struct json *j); /* of an array or object */
struct json *js_at(const struct json *j, size_t i);

/* Objects. js_get: NULL when absent or not an object. */
struct json *js_get(const struct json *j, const char *key);
/* Like js_get, but an explicit null counts as absent. */
struct json *js_get_set(const struct json *j, const char *key);
/* Members in document order: for (it = js_first(o); it; it = js_next(o, it)). */
void *js_first(const struct json *j);
void *js_next(const struct json *j, void *it);
const char *js_it_key(void *it);
struct json *js_it_value(void *it);

/* Typed getters. Absent or null: OK, and *out stays unchanged, so preset the default. Wrong type or
 * out of range: ERR_INVALID, and the message names the key. */
NODISCARD enum status js_get_bool(const struct json *obj, const char *key, bool *out,
                                  struct buf *why);
NODISCARD enum status js_get_i64(const struct json *obj, const char *key, int64_t min, int64_t max,
                                 int64_t *out, struct buf *why);
NODISCARD enum status js_get_f64(const struct json *obj, const char *key, double min, double max,
                                 double *out, struct buf *why);
/* Read a string; *out is borrowed. With len_out NULL, a string with U+0000 is refused. */
NODISCARD enum status js_get_str(const struct json *obj, const char *key, const char **out,
                                 size_t *len_out /* may be NULL */, struct buf *why);
/* Read `v` itself as a C string. ERR_INVALID: not a string, absent, or contains U+0000. `name` is
 * the field's name in the message. *out is borrowed. */
NODISCARD enum status js_read_cstr(const struct json *v, const char *name, const char **out,
                                   struct buf *why);

/* Build. js_new_* return NULL when out of memory. The setters take over `value` in every case and
 * return ERR_NOMEM when it is NULL. */
struct json *js_new_object(void);
struct json *js_new_array(void);
struct json *js_new_string(const char *s, size_t len); /* invalid UTF-8 -> NULL */
struct json *js_new_int(int64_t v);
struct json *js_new_real(double v);
struct json *js_new_bool(bool v);
struct json *js_new_null(void);
NODISCARD enum status js_set(struct json *obj, const char *key, struct json *value);
NODISCARD enum status js_push(struct json *arr, struct json *value);
NODISCARD enum status js_remove(struct json *obj, const char *key);
struct json *js_copy_deep(const struct json *j);

/* Write. Compact; keys in document order. */
NODISCARD enum status js_write(struct buf *out, const struct json *j);
/* Write `"text"` with quotes and escapes; bytes that are not UTF-8 become U+FFFD. */
NODISCARD enum status js_write_string(struct buf *out, const char *s, size_t len);
/* Write a number that parses back to the same double; a non-finite one becomes null. */
NODISCARD enum status js_write_number(struct buf *out, double v);

#endif
