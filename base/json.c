#include "base/json.h"

#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/file.h"
#include "base/json_memory.h"
#include "base/utf8.h"
#include "base/json_text.h"

#define DEPTH_MAX 512
/* Memory limit of a parse without other limits: more than any text needs. The worst case is {}: 208
 * bytes and a place in an array for each 3 bytes of text. */
#define PARSE_BYTES_MIN ((size_t)1 << 20)
#define PARSE_BYTES_PER_BYTE 100

/* struct json is json_t under another name, so that there are no wrapper objects. */
static json_t *in(const struct json *j)
{
    return (json_t *)(uintptr_t)j;
}

static struct json *out_of(json_t *j)
{
    return (struct json *)j;
}

/* --- memory --- */

static json_malloc_t malloc_before = malloc;
static json_free_t free_before = free;

static void *hook_malloc(size_t n)
{
    return json_memory_is_running() ? json_memory_alloc(n) : malloc_before(n);
}

static void hook_free(void *p)
{
    if (p && !json_memory_free(p))
        free_before(p);
}

static pthread_once_t hooks_once = PTHREAD_ONCE_INIT;

static void set_hooks(void)
{
    json_get_alloc_funcs(&malloc_before, &free_before);
    json_set_alloc_funcs(hook_malloc, hook_free);
    json_object_seed(0); /* now, because two parses must not do it at once */
}

/* --- one pass over the text before it is parsed --- */

/* Counts over the text. */
struct outline {
    size_t n_values; /* member names are values too */
    int depth_max;
};

/* The index behind a string's closing quote, or len. `at` is behind the opening quote. */
static size_t skip_string(const char *text, size_t len, size_t at)
{
    const char *quote;

    for (size_t from = at; (quote = memchr(text + from, '"', len - from));) {
        size_t end = (size_t)(quote - text), n_escapes = 0;
        while (end - n_escapes > from && text[end - n_escapes - 1] == '\\')
            n_escapes++;
        from = end + 1;
        if (n_escapes % 2 == 0)
            return from;
    }
    return len;
}

enum byte_class { WORD, SEPARATOR, OPEN, CLOSE, QUOTE };

static const unsigned char classes[256] = {
    [' '] = SEPARATOR, ['\t'] = SEPARATOR, ['\r'] = SEPARATOR, ['\n'] = SEPARATOR,
    [','] = SEPARATOR, [':'] = SEPARATOR,  ['['] = OPEN,       ['{'] = OPEN,
    [']'] = CLOSE,     ['}'] = CLOSE,      ['"'] = QUOTE,
};

static enum byte_class class_of(char c)
{
    return (enum byte_class)classes[(unsigned char)c];
}

/* Count without building anything. For malformed text the counts are arbitrary. */
static struct outline read_outline(const char *text, size_t len)
{
    struct outline o = {0};
    int depth = 0;

    for (size_t i = 0; i < len;) {
        enum byte_class c = class_of(text[i++]);
        o.n_values += c == OPEN || c == QUOTE || c == WORD;
        if (c == OPEN) {
            depth++;
            o.depth_max = depth > o.depth_max ? depth : o.depth_max;
        } else if (c == CLOSE) {
            depth--;
        } else if (c == QUOTE) {
            i = skip_string(text, len, i);
        } else if (c == WORD) {
            while (i < len && class_of(text[i]) == WORD)
                i++;
        }
    }
    return o;
}

/* --- parse --- */

struct parse {
    const char *text;
    size_t len;
    json_t *out;
    json_error_t error;
};

static bool build(void *arg)
{
    struct parse *p = arg;

    p->out = json_loadb(p->text, p->len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL,
                        &p->error);
    return p->out != NULL;
}

/* Refuse a number that JSON or a double cannot represent, and name its member. */
static enum status refuse_number(const struct parse *p, struct buf *why)
{
    char path[128], word[48];
    size_t at = p->error.position > 0 ? (size_t)p->error.position : 0;

    json_text_path(p->text, at < p->len ? at : p->len, path, sizeof path);
    json_text_word(p->text, p->len, at, word, sizeof word);
    if (json_error_code(&p->error) == json_error_numeric_overflow)
        return buf_why(why, ERR_INVALID, "%s%s%s is too large for a number", path,
                       path[0] ? ": " : "", word);
    return buf_why(why, ERR_INVALID, "%s%s%s is not a JSON number; leave it out or send null", path,
                   path[0] ? ": " : "", word);
}

/* Whether the parser stopped at NaN or Infinity, which Python and JavaScript write. */
static bool is_not_finite(const struct parse *p)
{
    static const char *const words[] = {"NaN", "nan", "Infinity", "-Infinity", "inf", "-inf"};
    char word[16];

    if (json_error_code(&p->error) != json_error_invalid_syntax || p->error.position < 0)
        return false;
    json_text_word(p->text, p->len, (size_t)p->error.position, word, sizeof word);
    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (strcmp(word, words[i]) == 0)
            return true;
    return false;
}

static enum status refuse_malformed(const struct parse *p, struct buf *why)
{
    const json_error_t *e = &p->error;

    if (json_error_code(e) == json_error_numeric_overflow || is_not_finite(p))
        return refuse_number(p, why);
    /* The parser has already read one word behind the JSON. */
    if (json_error_code(e) == json_error_end_of_input_expected)
        return buf_why(why, ERR_INVALID,
                       "malformed JSON at line %d, column %d: more text follows "
                       "the end of the JSON value",
                       e->line, e->column);
    return buf_why(why, ERR_INVALID, "malformed JSON at line %d, column %d: %s", e->line, e->column,
                   e->text);
}

/* Run the parser. JSON does not limit integers, but jansson stops at one outside of int64_t. Then
 * run it again with such integers as reals: the getters name a field whose number is too large, and
 * fields that no getter reads may have any number. *wide keeps the second text. */
static enum status parse_text(struct parse *p, const struct js_limits *limits, struct buf *wide)
{
    enum status s = json_memory_run(limits->n_bytes_max, build, p);
    bool any;

    if (s != OK || p->out || json_error_code(&p->error) != json_error_numeric_overflow)
        return s;
    s = json_text_widen(p->text, p->len, wide, &any);
    if (s != OK || !any)
        return s == OK ? OK : ERR_NOMEM;
    p->text = buf_str(wide);
    p->len = wide->len;
    return json_memory_run(limits->n_bytes_max, build, p);
}

enum status js_parse_limited(struct json **out, const char *text, size_t len,
                             const struct js_limits *limits, struct buf *why)
{
    struct outline outline = read_outline(text, len);
    struct parse p = {.text = text, .len = len};
    struct buf wide;

    *out = NULL;
    if (outline.n_values == 0)
        return buf_why(why, ERR_INVALID, "malformed JSON at line 1: the text is empty");
    if (outline.depth_max > DEPTH_MAX)
        return buf_why(why, ERR_INVALID, "JSON is nested deeper than %d levels", DEPTH_MAX);
    if (outline.n_values > limits->n_values_max)
        return buf_why(why, ERR_TOO_LARGE, "JSON has %zu values and member names; the limit is %zu",
                       outline.n_values, limits->n_values_max);
    pthread_once(&hooks_once, set_hooks);
    buf_init(&wide, len + len / 8 + 16);
    enum status s = parse_text(&p, limits, &wide);
    *out = out_of(p.out);
    if (s == ERR_TOO_LARGE)
        buf_why(why, s,
                "JSON of %zu bytes and %zu values needs more than %zu bytes of memory, its limit",
                len, outline.n_values, limits->n_bytes_max);
    else if (s != OK)
        buf_why(why, s, "out of memory while parsing %zu bytes of JSON", len);
    else if (!p.out)
        s = refuse_malformed(&p, why);
    buf_fini(&wide);
    return s;
}

enum status js_parse(struct json **out, const char *text, size_t len, struct buf *why)
{
    struct js_limits limits = {.n_values_max = SIZE_MAX, .n_bytes_max = SIZE_MAX};

    if (len < (SIZE_MAX - PARSE_BYTES_MIN) / PARSE_BYTES_PER_BYTE)
        limits.n_bytes_max = PARSE_BYTES_MIN + len * PARSE_BYTES_PER_BYTE;
    return js_parse_limited(out, text, len, &limits, why);
}

enum status js_parse_file(struct json **out, const char *path, size_t max_bytes, struct buf *why)
{
    struct buf text, inner;

    *out = NULL;
    buf_init(&text, max_bytes);
    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status s = file_read(&text, path, why);
    if (s == OK) {
        s = js_parse(out, buf_str(&text), text.len, &inner);
        if (s != OK)
            buf_why(why, s, "%s: %s", path, buf_str(&inner));
    }
    buf_fini(&inner);
    buf_fini(&text);
    return s;
}

/* Whether references are counted: true, false and null of jansson are constants. */
static bool is_counted(const json_t *j)
{
    return j && __atomic_load_n(&j->refcount, __ATOMIC_RELAXED) != SIZE_MAX;
}

/* Values are shared by threads. jansson's json_incref() and json_decref() change the count
 * atomically, but read it plainly before, a data race. */
struct json *js_ref(struct json *j)
{
    json_t *value = in(j);

    if (is_counted(value))
        __atomic_add_fetch(&value->refcount, 1, __ATOMIC_RELAXED);
    return j;
}

void js_unref(struct json *j)
{
    json_t *value = in(j);

    if (is_counted(value) && __atomic_sub_fetch(&value->refcount, 1, __ATOMIC_ACQ_REL) == 0)
        json_delete(value);
}

enum js_type js_typeof(const struct json *j)
{
    if (!j)
        return JS_NULL;
    switch (json_typeof(in(j))) {
    case JSON_OBJECT: return JS_OBJECT;
    case JSON_ARRAY: return JS_ARRAY;
    case JSON_STRING: return JS_STRING;
    case JSON_INTEGER: return JS_INT;
    case JSON_REAL: return JS_REAL;
    case JSON_TRUE:
    case JSON_FALSE: return JS_BOOL;
    case JSON_NULL: break;
    }
    return JS_NULL;
}

const char *js_type_name(enum js_type t)
{
    switch (t) {
    case JS_NULL: return "null";
    case JS_BOOL: return "a boolean";
    case JS_INT: return "an integer";
    case JS_REAL: return "a number";
    case JS_STRING: return "a string";
    case JS_ARRAY: return "an array";
    case JS_OBJECT: return "an object";
    }
    return "a value";
}

bool js_bool(const struct json *j)
{
    ASSERT(js_is(j, JS_BOOL));
    return json_is_true(in(j));
}

int64_t js_int(const struct json *j)
{
    ASSERT(js_is(j, JS_INT));
    return json_integer_value(in(j));
}

double js_number(const struct json *j)
{
    ASSERT(js_is(j, JS_INT) || js_is(j, JS_REAL));
    return json_number_value(in(j));
}

const char *js_string(const struct json *j, size_t *len_out)
{
    ASSERT(js_is(j, JS_STRING));
    if (len_out)
        *len_out = json_string_length(in(j));
    return json_string_value(in(j));
}

size_t js_len(const struct json *j)
{
    if (js_is(j, JS_ARRAY))
        return json_array_size(in(j));
    return js_is(j, JS_OBJECT) ? json_object_size(in(j)) : 0;
}

struct json *js_at(const struct json *j, size_t i)
{
    return js_is(j, JS_ARRAY) ? out_of(json_array_get(in(j), i)) : NULL;
}

struct json *js_get(const struct json *j, const char *key)
{
    return js_is(j, JS_OBJECT) ? out_of(json_object_get(in(j), key)) : NULL;
}

struct json *js_get_set(const struct json *j, const char *key)
{
    struct json *value = js_get(j, key);

    return js_is(value, JS_NULL) ? NULL : value;
}

void *js_first(const struct json *j)
{
    return js_is(j, JS_OBJECT) ? json_object_iter(in(j)) : NULL;
}

void *js_next(const struct json *j, void *it)
{
    return json_object_iter_next(in(j), it);
}

const char *js_it_key(void *it)
{
    return json_object_iter_key(it);
}

struct json *js_it_value(void *it)
{
    return out_of(json_object_iter_value(it));
}

static enum status wrong_type(const char *key, const char *wanted, const struct json *got,
                              struct buf *why)
{
    return buf_why(why, ERR_INVALID, "%s: expected %s, got %s", key, wanted,
                   js_type_name(js_typeof(got)));
}

enum status js_get_bool(const struct json *obj, const char *key, bool *out, struct buf *why)
{
    const struct json *v = js_get_set(obj, key);

    if (!v)
        return OK;
    if (!js_is(v, JS_BOOL))
        return wrong_type(key, "a boolean", v, why);
    *out = js_bool(v);
    return OK;
}

enum status js_get_i64(const struct json *obj, const char *key, int64_t min, int64_t max,
                       int64_t *out, struct buf *why)
{
    const struct json *v = js_get_set(obj, key);

    if (!v)
        return OK;
    int64_t n;
    if (js_is(v, JS_INT)) {
        n = js_int(v);
    } else if (js_is(v, JS_REAL) && js_number(v) == floor(js_number(v))) {
        /* Some clients write 5.0. Values from 2^63 on do not fit into int64_t. */
        if (!(fabs(js_number(v)) < 0x1p63))
            return buf_why(why, ERR_INVALID, "%s: %.20g is outside of [%lld, %lld]", key,
                           js_number(v), (long long)min, (long long)max);
        n = (int64_t)js_number(v);
    } else {
        return wrong_type(key, "an integer", v, why);
    }
    if (n < min || n > max)
        return buf_why(why, ERR_INVALID, "%s: %lld is outside of [%lld, %lld]", key, (long long)n,
                       (long long)min, (long long)max);
    *out = n;
    return OK;
}

enum status js_get_f64(const struct json *obj, const char *key, double min, double max, double *out,
                       struct buf *why)
{
    const struct json *v = js_get_set(obj, key);

    if (!v)
        return OK;
    if (!js_is(v, JS_INT) && !js_is(v, JS_REAL))
        return wrong_type(key, "a number", v, why);
    double x = js_number(v);
    if (!(x >= min && x <= max))
        return buf_why(why, ERR_INVALID, "%s: %g is outside of [%g, %g]", key, x, min, max);
    *out = x;
    return OK;
}

enum status js_get_str(const struct json *obj, const char *key, const char **out, size_t *len_out,
                       struct buf *why)
{
    const struct json *v = js_get_set(obj, key);

    if (!v)
        return OK;
    if (!len_out)
        return js_read_cstr(v, key, out, why);
    if (!js_is(v, JS_STRING))
        return wrong_type(key, "a string", v, why);
    *out = js_string(v, len_out);
    return OK;
}

enum status js_read_cstr(const struct json *v, const char *name, const char **out, struct buf *why)
{
    size_t len;

    if (!js_is(v, JS_STRING))
        return wrong_type(name, "a string", v, why);
    const char *text = js_string(v, &len);
    if (strlen(text) != len)
        return buf_why(why, ERR_INVALID, "%s: must not hold the character U+0000", name);
    *out = text;
    return OK;
}

struct json *js_new_object(void)
{
    return out_of(json_object());
}

struct json *js_new_array(void)
{
    return out_of(json_array());
}

struct json *js_new_string(const char *s, size_t len)
{
    return out_of(json_stringn(s, len));
}

struct json *js_new_int(int64_t v)
{
    return out_of(json_integer(v));
}

struct json *js_new_real(double v)
{
    return out_of(json_real(v));
}

struct json *js_new_bool(bool v)
{
    return out_of(json_boolean(v));
}

struct json *js_new_null(void)
{
    return out_of(json_null());
}

enum status js_set(struct json *obj, const char *key, struct json *value)
{
    ASSERT(js_is(obj, JS_OBJECT));
    /* jansson takes over the reference even when it fails. */
    return json_object_set_new(in(obj), key, in(value)) == 0 ? OK : ERR_NOMEM;
}

enum status js_push(struct json *arr, struct json *value)
{
    ASSERT(js_is(arr, JS_ARRAY));
    return json_array_append_new(in(arr), in(value)) == 0 ? OK : ERR_NOMEM;
}

enum status js_remove(struct json *obj, const char *key)
{
    return json_object_del(in(obj), key) == 0 ? OK : ERR_NOT_FOUND;
}

struct json *js_copy_deep(const struct json *j)
{
    return out_of(json_deep_copy(in(j)));
}

struct dump {
    struct buf *out;
    enum status status;
};

static int dump_to_buf(const char *bytes, size_t n, void *arg)
{
    struct dump *d = arg;

    d->status = buf_append(d->out, bytes, n);
    return d->status == OK ? 0 : -1;
}

enum status js_write(struct buf *out, const struct json *j)
{
    struct dump d = {.out = out, .status = OK};
    size_t len_before = out->len;

    if (json_dump_callback(in(j), dump_to_buf, &d, JSON_COMPACT | JSON_ENCODE_ANY) == 0)
        return OK;
    out->len = len_before;
    return d.status == OK ? ERR_NOMEM : d.status; /* not the buffer's error: jansson ran out of
                                                     memory */
}

static enum status write_escape(struct buf *out, unsigned char c)
{
    switch (c) {
    case '"': return buf_append(out, "\\\"", 2);
    case '\\': return buf_append(out, "\\\\", 2);
    case '\n': return buf_append(out, "\\n", 2);
    case '\r': return buf_append(out, "\\r", 2);
    case '\t': return buf_append(out, "\\t", 2);
    default: return buf_printf(out, "\\u%04x", c);
    }
}

enum status js_write_string(struct buf *out, const char *text, size_t len)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t plain = 0; /* start of the run that needs no escapes */
    uint32_t c;
    enum status st = buf_putc(out, '"');

    for (size_t i = 0; st == OK && i < len;) {
        size_t n = utf8_decode(text + i, len - i, &c);
        bool fine = n > 1 || (n == 1 && s[i] >= 0x20 && s[i] != '"' && s[i] != '\\');
        if (fine) {
            i += n;
            continue;
        }
        st = buf_append(out, text + plain, i - plain);
        if (st == OK)
            st = n == 0 ? buf_puts(out, "\xef\xbf\xbd") : write_escape(out, s[i]);
        i++;
        plain = i;
    }
    if (st == OK)
        st = buf_append(out, text + plain, len - plain);
    return st == OK ? buf_putc(out, '"') : st;
}

enum status js_write_number(struct buf *out, double v)
{
    char text[40];

    if (!isfinite(v))
        return buf_puts(out, "null");
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    return buf_puts(out, text);
}
