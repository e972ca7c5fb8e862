#include "base/log_line.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

#define ESCAPE_BYTES 16
/* Room kept for the end of a line: `..."`, ` cut=true` or `,"cut":true}`, newline, NUL. */
#define TAIL_BYTES 32
#define SPEC_BYTES 32

/* --- escapes --- */

/* Whether a terminal obeys the character, or the character changes how the rest of the line is
 * shown. */
static bool is_control(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c <= 0x9f) || c == 0x061c || c == 0x200e || c == 0x200f ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0xfeff;
}

/* Write the character at s[0..n) to out, escaped for a quoted string. Returns the bytes of s that
 * it takes and sets *n_out. */
static size_t escape(bool json, const char *s, size_t n, char out[ESCAPE_BYTES], size_t *n_out)
{
    static const char letters[] = "\n\r\t\"\\", escaped[] = "nrt\"\\";
    uint32_t c = 0;
    size_t len = utf8_decode(s, n, &c);
    const char *letter = len == 1 && c ? strchr(letters, (int)c) : NULL;

    if (letter)
        *n_out = (size_t)snprintf(out, ESCAPE_BYTES, "\\%c", escaped[letter - letters]);
    else if (len == 0 && json)
        *n_out = (size_t)snprintf(out, ESCAPE_BYTES, "\xef\xbf\xbd");
    else if (len == 0)
        *n_out = (size_t)snprintf(out, ESCAPE_BYTES, "\\x%02x", (unsigned char)s[0]);
    else if (is_control(c))
        *n_out = (size_t)snprintf(out, ESCAPE_BYTES, c < 0x80 && !json ? "\\x%02x" : "\\u%04x",
                                  (unsigned)c);
    else
        memcpy(out, s, *n_out = len);
    return len ? len : 1;
}

/* Whether readers of key=value lines need no quotes around the text. */
static bool is_plain(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] <= ' ' || s[i] > '~' || s[i] == '"' || s[i] == '=' || s[i] == '\\')
            return false;
    return n > 0;
}

static size_t n_digits(const char *s, size_t n)
{
    size_t i = 0;

    while (i < n && s[i] >= '0' && s[i] <= '9')
        i++;
    return i;
}

/* Whether the text is a JSON literal without quotes: true, false or a number. */
static bool is_json_bare(const char *s, size_t n)
{
    size_t i = n > 0 && s[0] == '-', digits;

    if ((n == 4 && !memcmp(s, "true", 4)) || (n == 5 && !memcmp(s, "false", 5)))
        return true;
    digits = n_digits(s + i, n - i);
    if (digits == 0 || (digits > 1 && s[i] == '0'))
        return false;
    i += digits;
    if (i < n && s[i] == '.') {
        digits = n_digits(s + i + 1, n - i - 1);
        if (digits == 0)
            return false;
        i += 1 + digits;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i++;
        i += i < n && (s[i] == '+' || s[i] == '-');
        digits = n_digits(s + i, n - i);
        if (digits == 0)
            return false;
        i += digits;
    }
    return i == n;
}

/* --- the line --- */

static size_t room(const struct log_line *l)
{
    const size_t end = sizeof l->bytes - TAIL_BYTES;

    return l->n < end ? end - l->n : 0;
}

static void put(struct log_line *l, const char *s, size_t n)
{
    memcpy(l->bytes + l->n, s, n);
    l->n += n;
}

/* Append s[0..n) between quotes; text that does not fit is replaced by "...". */
static void put_quoted(struct log_line *l, const char *s, size_t n)
{
    char out[ESCAPE_BYTES];
    size_t n_out;

    put(l, "\"", 1);
    for (size_t i = 0; i < n;) {
        size_t taken = escape(l->json, s + i, n - i, out, &n_out);
        if (n_out > room(l)) {
            put(l, "...", 3);
            l->cut = true;
            break;
        }
        put(l, out, n_out);
        i += taken;
    }
    put(l, "\"", 1);
}

void log_line_begin(struct log_line *l, bool json, const char *when, const char *level,
                    const char *event)
{
    int n = snprintf(l->bytes, 96,
                     json ? "{\"time\":\"%.40s\",\"level\":\"%.8s\",\"event\":" : "%.40s %-5.8s ",
                     when, level);

    l->json = json;
    l->cut = false;
    l->n = (size_t)n;
    if (json) {
        put_quoted(l, event, strlen(event));
        return;
    }
    for (; *event && room(l) > 0; event++) { /* the event is constant words: other bytes are a
                                                mistake of the caller */
        char c = *event >= ' ' && *event != 0x7f ? *event : '?';
        put(l, &c, 1);
    }
}

void log_line_add(struct log_line *l, const char *key, size_t n_key, const char *value, size_t n,
                  enum log_value kind)
{
    bool bare = l->json ? kind == LOG_NUMBER && is_json_bare(value, n)
                        : kind != LOG_TEXT && is_plain(value, n);

    if (l->cut || room(l) < n_key + 8 || (bare && room(l) < n_key + n + 8)) {
        l->cut = true;
        return;
    }
    put(l, l->json ? ",\"" : " ", l->json ? 2 : 1);
    put(l, key, n_key);
    put(l, l->json ? "\":" : "=", l->json ? 2 : 1);
    if (bare)
        put(l, value, n);
    else
        put_quoted(l, value, n);
}

void log_line_end(struct log_line *l)
{
    const char *cut = !l->cut ? "" : l->json ? ",\"cut\":true" : " cut=true";

    put(l, cut, strlen(cut));
    put(l, l->json ? "}\n" : "\n", l->json ? 2 : 1);
}

/* --- fields from a printf format --- */

struct value {
    size_t n;
    bool full;       /* ends with "..." */
    bool has_string; /* part of it came from %s */
    char bytes[LOG_VALUE_BYTES_MAX + 4];
};

struct args {
    va_list ap;
};

/* Append text. Past LOG_VALUE_BYTES_MAX it is cut at a character's boundary and ends with "...". */
static void value_add(struct value *v, const char *s, size_t n)
{
    uint32_t c;
    size_t fits = LOG_VALUE_BYTES_MAX - v->n;

    if (v->full)
        return;
    if (n > fits) {
        size_t at = fits;
        while (at > 0 && fits - at < 3 && (s[at] & 0xc0) == 0x80)
            at--;
        fits = at < fits && utf8_decode(s + at, n - at, &c) == 0 ? fits : at;
        v->full = true;
    }
    memcpy(v->bytes + v->n, s, v->full ? fits : n);
    v->n += v->full ? fits : n;
    if (v->full) {
        memcpy(v->bytes + v->n, "...", 3);
        v->n += 3;
    }
}

/* One conversion of a printf format. */
struct conversion {
    char flags[8];
    int width, precision; /* -1: none */
    char length;          /* 'H' for hh, 'q' for ll, 'h', 'l', 'z', 'j', 't', or 0 */
    char letter;
};

static int parse_number(const char **f, struct args *a)
{
    int n = 0;

    if (**f == '*') {
        ++*f;
        return va_arg(a->ap, int);
    }
    while (**f >= '0' && **f <= '9')
        n = n * 10 + (*(*f)++ - '0');
    return n;
}

/* Parse the conversion at f, behind its '%'. Returns the text behind the conversion. */
static const char *parse_conversion(const char *f, struct args *a, struct conversion *c)
{
    size_t n = 0;

    *c = (struct conversion){.width = -1, .precision = -1};
    while (*f && strchr("-+ #0", *f) && n + 1 < sizeof c->flags)
        c->flags[n++] = *f++;
    if (*f == '*' || (*f >= '1' && *f <= '9'))
        c->width = parse_number(&f, a);
    if (*f == '.') {
        f++;
        c->precision = parse_number(&f, a);
    }
    if (*f && strchr("hlzjt", *f)) {
        c->length = *f++;
        if ((c->length == 'h' || c->length == 'l') && *f == c->length) {
            c->length = c->length == 'h' ? 'H' : 'q';
            f++;
        }
    }
    c->letter = *f;
    return *f ? f + 1 : f;
}

static long long take_signed(struct args *a, char length)
{
    switch (length) {
    case 'H': return (signed char)va_arg(a->ap, int);
    case 'h': return (short)va_arg(a->ap, int);
    case 'l': return va_arg(a->ap, long);
    case 'q': return va_arg(a->ap, long long);
    case 'z': return (long long)va_arg(a->ap, size_t);
    case 'j': return (long long)va_arg(a->ap, intmax_t);
    case 't': return (long long)va_arg(a->ap, ptrdiff_t);
    default: return va_arg(a->ap, int);
    }
}

static unsigned long long take_unsigned(struct args *a, char length)
{
    switch (length) {
    case 'H': return (unsigned char)va_arg(a->ap, unsigned);
    case 'h': return (unsigned short)va_arg(a->ap, unsigned);
    case 'l': return va_arg(a->ap, unsigned long);
    case 'q': return va_arg(a->ap, unsigned long long);
    case 'z': return va_arg(a->ap, size_t);
    case 'j': return (unsigned long long)va_arg(a->ap, uintmax_t);
    case 't': return (unsigned long long)va_arg(a->ap, ptrdiff_t);
    default: return va_arg(a->ap, unsigned);
    }
}

/* Append one number with the conversion's own flags, width and precision. */
static void add_number(struct value *v, const struct conversion *c, struct args *a)
{
    char spec[SPEC_BYTES], text[512];
    int n = snprintf(spec, sizeof spec, "%%%s", c->flags);

    if (c->width >= 0)
        n += snprintf(spec + n, sizeof spec - (size_t)n, "%d", c->width);
    if (c->precision >= 0)
        n += snprintf(spec + n, sizeof spec - (size_t)n, ".%d", c->precision);
    snprintf(spec + n, sizeof spec - (size_t)n, "%s%c", strchr("diuxXo", c->letter) ? "ll" : "",
             c->letter);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* built from a format that the compiler
                                                        checked */
    if (strchr("di", c->letter))
        n = snprintf(text, sizeof text, spec, take_signed(a, c->length));
    else if (strchr("uxXo", c->letter))
        n = snprintf(text, sizeof text, spec, take_unsigned(a, c->length));
    else if (c->letter == 'c')
        n = snprintf(text, sizeof text, spec, va_arg(a->ap, int));
    else if (c->letter == 'p')
        n = snprintf(text, sizeof text, spec, va_arg(a->ap, void *));
    else
        n = snprintf(text, sizeof text, spec, va_arg(a->ap, double));
#pragma GCC diagnostic pop
    if (n > 0)
        value_add(v, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

static const char *convert(struct value *v, const char *f, struct args *a)
{
    struct conversion c;

    f = parse_conversion(f, a, &c);
    if (c.letter == '%') {
        value_add(v, "%", 1);
    } else if (c.letter == 's') {
        const char *s = va_arg(a->ap, const char *);
        size_t max = c.precision >= 0 ? (size_t)c.precision : SIZE_MAX;
        s = s ? s : "(null)";
        v->has_string = true;
        value_add(v, s, strnlen(s, max));
    } else if (c.letter) {
        add_number(v, &c, a);
    }
    return f;
}

/* The kind of a value that had no quotes in the format. A string stays a string in JSON, even
 * "12". */
static enum log_value kind_of(const struct value *v)
{
    bool is_bool =
        (v->n == 4 && !memcmp(v->bytes, "true", 4)) || (v->n == 5 && !memcmp(v->bytes, "false", 5));

    return v->has_string && !is_bool ? LOG_WORD : LOG_NUMBER;
}

void log_line_add_format(struct log_line *l, const char *fields, va_list ap)
{
    static const char unnamed[] = "text";
    struct value v;
    struct args a;

    va_copy(a.ap, ap);
    for (const char *f = fields; *f;) {
        size_t n_key = strcspn(f, "=% ");
        const char *key = f;
        bool named = f[n_key] == '=' && n_key > 0;
        f = named ? f + n_key + 1 : f;
        bool quoted = *f == '"';
        f += quoted;
        v.n = 0;
        v.full = v.has_string = false;
        while (*f && *f != (quoted ? '"' : ' ')) {
            if (*f == '%') {
                f = convert(&v, f + 1, &a);
            } else {
                size_t n = strcspn(f, quoted ? "%\"" : "% ");
                value_add(&v, f, n);
                f += n;
            }
        }
        f += quoted && *f;
        f += strspn(f, " ");
        if (named)
            log_line_add(l, key, n_key, v.bytes, v.n, quoted ? LOG_TEXT : kind_of(&v));
        else if (v.n > 0)
            log_line_add(l, unnamed, sizeof unnamed - 1, v.bytes, v.n, LOG_TEXT);
    }
    va_end(a.ap);
}
