/* "..." % values and "...".format(): the conversions that templates use. */
#include <stdio.h>

#include "engine/text/jinja/jinja_ops.h"
#include "engine/text/jinja/jinja_print.h"

#define WIDTH_MAX 10000

struct spec {
    char align; /* '<', '>', '^', '=' or 0 */
    struct jinja_str fill;
    char sign; /* '+', ' ' or 0 */
    bool alternate, zero, comma;
    int width;
    int precision; /* -1: none */
    char type;     /* 0: none */
};

static bool digit(struct jinja_str s, size_t at)
{
    return at < s.len && s.p[at] >= '0' && s.p[at] <= '9';
}

static int read_int(struct jinja_str s, size_t *at)
{
    int v = 0;

    for (; digit(s, *at); (*at)++)
        v = v > WIDTH_MAX ? v : v * 10 + (s.p[*at] - '0');
    return v;
}

/* Numbers as text, without padding ---------------------------------------------------------- */

static enum status put_integer(struct jinja_run *r, int64_t v, const struct spec *s,
                               struct jinja_out *o)
{
    char digits[72];
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    const char *prefix = "";

    if (s->type == 'x' || s->type == 'X' || s->type == 'o') {
        snprintf(digits, sizeof digits,
                 s->type == 'x'   ? "%llx"
                 : s->type == 'X' ? "%llX"
                                  : "%llo",
                 (unsigned long long)u);
        if (s->alternate)
            prefix = s->type == 'x' ? "0x" : s->type == 'X' ? "0X" : "0o";
    } else {
        snprintf(digits, sizeof digits, "%llu", (unsigned long long)u);
    }
    TRY(jinja_puts(r, o, v < 0 ? "-" : s->sign == '+' ? "+" : s->sign ? " " : ""));
    TRY(jinja_puts(r, o, prefix));
    size_t n = strlen(digits);
    for (size_t i = 0; i < n; i++) {
        if (s->comma && i && (n - i) % 3 == 0)
            TRY(jinja_puts(r, o, ","));
        TRY(jinja_put(r, o, digits + i, 1));
    }
    return OK;
}

static enum status put_real(struct jinja_run *r, double v, const struct spec *s,
                            struct jinja_out *o)
{
    char text[1024];
    char format[16];
    int precision = s->precision < 0 ? 6 : s->precision > 300 ? 300 : s->precision;

    if (s->type == '%')
        v *= 100;
    snprintf(format, sizeof format, "%%%s.*%c",
             s->sign == '+' ? "+"
             : s->sign      ? " "
                            : "",
             s->type == '%' || s->type == 'F' ? 'f' : s->type);
    int n = snprintf(text, sizeof text, format, precision, v);
    if (n < 0 || (size_t)n >= sizeof text)
        return jinja_fail(r, ERR_TOO_LARGE, "a formatted number is too long");
    TRY(jinja_puts(r, o, text));
    return s->type == '%' ? jinja_puts(r, o, "%") : OK;
}

/* Pad `text` to `width` code points; zeros go behind the sign. */
static enum status put_padded(struct jinja_run *r, struct jinja_str text, const struct spec *s,
                              bool number, struct jinja_out *o)
{
    size_t n = jinja_n_chars(text);
    size_t more = (size_t)s->width > n ? (size_t)s->width - n : 0;
    char align = s->align ? s->align : s->zero && number ? '=' : number ? '>' : '<';
    struct jinja_str fill = s->fill.len ? s->fill
                            : s->zero   ? (struct jinja_str){"0", 1}
                                        : (struct jinja_str){" ", 1};
    size_t before = align == '<' ? 0 : align == '^' ? more / 2 : more;

    if (align == '=' && text.len && strchr("+- ", text.p[0])) {
        TRY(jinja_put(r, o, text.p, 1));
        text = (struct jinja_str){text.p + 1, text.len - 1};
    }
    for (size_t i = 0; i < before; i++)
        TRY(jinja_put(r, o, fill.p, fill.len));
    TRY(jinja_put(r, o, text.p, text.len));
    for (size_t i = before; i < more; i++)
        TRY(jinja_put(r, o, fill.p, fill.len));
    return OK;
}

static enum status put_number(struct jinja_run *r, const struct jinja_value *v,
                              const struct spec *s, struct jinja_out *o)
{
    struct jinja_out text = {0};
    int64_t i;
    double f;

    if (s->type && strchr("eEfFgG%", s->type)) {
        if (!jinja_as_number(v, &f))
            return jinja_fail(r, ERR_INVALID, "must be real number, not %s", jinja_type_name(v));
        TRY(put_real(r, f, s, &text));
    } else {
        if (v->type == JINJA_FLOAT && s->type == 'd')
            i = (int64_t)(v->real > 9e18 ? 9e18 : v->real < -9e18 ? -9e18 : v->real);
        else if (!jinja_as_int(v, &i))
            return jinja_fail(r, ERR_INVALID, "a number is required, not %s", jinja_type_name(v));
        TRY(put_integer(r, i, s, &text));
    }
    return put_padded(r, jinja_out_value(&text).str, s, true, o);
}

static enum status put_text(struct jinja_run *r, const struct jinja_value *v, const struct spec *s,
                            bool repr, bool markup, struct jinja_out *o)
{
    struct jinja_out text = {0};
    struct jinja_value string;

    if (repr) {
        TRY(jinja_put_repr(r, &text, v));
        string = jinja_out_value(&text);
    } else {
        TRY(jinja_to_str(r, v, &string));
    }
    TRY(jinja_escape_for(r, &string, markup, &string.str));
    if (s->precision >= 0)
        string.str.len = jinja_char_offset(string.str, (size_t)s->precision);
    return put_padded(r, string.str, s, false, o);
}

/* % ---------------------------------------------------------------------------------------- */

struct percent {
    const struct jinja_value *values;
    size_t used; /* values used of a tuple, or of the single value */
};

static enum status next_value(struct jinja_run *r, struct percent *p,
                              const struct jinja_value **out)
{
    bool tuple = jinja_is_seq(p->values, JINJA_TUPLE);

    if (p->used >= (tuple ? p->values->seq->n : 1))
        return jinja_fail(r, ERR_INVALID, "not enough arguments for format string");
    *out = tuple ? &p->values->seq->items[p->used] : p->values;
    p->used++;
    return OK;
}

/* Find the value of "%(key)s"; NULL: the next of the values. */
static enum status percent_value(struct jinja_run *r, struct percent *p, struct jinja_str f,
                                 size_t *at, const struct jinja_value **out)
{
    if (*at >= f.len || f.p[*at] != '(') {
        *out = NULL; /* taken behind the width; a width of '*', which Python allows, is not
                        supported */
        return OK;
    }
    size_t close = jinja_find(f, (struct jinja_str){")", 1}, *at);
    if (close == SIZE_MAX || p->values->type != JINJA_DICT)
        return jinja_fail(r, ERR_INVALID, "format requires a mapping");
    TRY(jinja_dict_get_text(r, p->values->dict, f.p + *at + 1, close - *at - 1, out));
    if (!*out)
        return jinja_fail(r, ERR_INVALID, "format: no key '%.*s'", (int)(close - *at - 1),
                          f.p + *at + 1);
    *at = close + 1;
    p->used = 1;
    return OK;
}

static void percent_spec(struct jinja_str f, size_t *at, struct spec *s)
{
    *s = (struct spec){.precision = -1, .align = '>'};
    for (; *at < f.len && strchr("-+ #0", f.p[*at]) && f.p[*at]; (*at)++) {
        char c = f.p[*at];
        s->zero |= c == '0';
        s->alternate |= c == '#';
        if (c == '-')
            s->align = '<';
        else if (c == '+' || c == ' ')
            s->sign = c;
    }
    s->width = read_int(f, at);
    if (*at < f.len && f.p[*at] == '.') {
        (*at)++;
        s->precision = read_int(f, at);
    }
    if (*at < f.len)
        s->type = f.p[(*at)++];
    if (s->zero && s->align == '>')
        s->align = '=';
    if (s->align == '<')
        s->zero = false;
}

static enum status percent_one(struct jinja_run *r, struct percent *p,
                               const struct jinja_value *format, size_t *at, struct jinja_out *o)
{
    const struct jinja_value *v = NULL;
    struct spec s;

    TRY(percent_value(r, p, format->str, at, &v));
    percent_spec(format->str, at, &s);
    if (s.width > WIDTH_MAX || s.precision > WIDTH_MAX)
        return jinja_fail(r, ERR_TOO_LARGE, "a format is wider than %d", WIDTH_MAX);
    if (s.type == '%')
        return jinja_put(r, o, format->str.p + *at - 1, 1);
    if (!v)
        TRY(next_value(r, p, &v));
    if (v->type == JINJA_UNDEFINED && s.type != 's')
        return jinja_fail_undefined(r, v);
    if (s.type == 's' || s.type == 'r') {
        s.zero = false;
        if (s.align == '=')
            s.align = '>';
        return put_text(r, v, &s, s.type == 'r', format->markup, o);
    }
    if (s.type == 'i' || s.type == 'u')
        s.type = 'd';
    if (s.type == '\0' || !strchr("dxXoeEfFgG", s.type))
        return jinja_fail(r, ERR_INVALID, "unsupported format character '%c'",
                          s.type ? s.type : '%');
    return put_number(r, v, &s, o);
}

enum status jinja_percent(struct jinja_run *r, const struct jinja_value *format,
                          const struct jinja_value *values, struct jinja_value *out)
{
    struct jinja_str f = format->str;
    struct percent p = {.values = values};
    struct jinja_out o = {0};

    for (size_t at = 0; at < f.len;) {
        size_t hit = jinja_find(f, (struct jinja_str){"%", 1}, at);
        size_t end = hit == SIZE_MAX ? f.len : hit;
        TRY(jinja_put(r, &o, f.p + at, end - at));
        at = end + 1;
        if (hit == SIZE_MAX)
            break;
        TRY(jinja_charge(r, 1));
        TRY(percent_one(r, &p, format, &at, &o));
    }
    size_t given = jinja_is_seq(values, JINJA_TUPLE) ? values->seq->n : p.used;
    bool single = !jinja_is_seq(values, JINJA_TUPLE) && values->type != JINJA_DICT &&
                  !jinja_is_seq(values, JINJA_LIST);
    if (p.used < given || (single && p.used == 0))
        return jinja_fail(r, ERR_INVALID, "not all arguments converted during string formatting");
    *out = jinja_str_like(format, o.p ? o.p : "", o.len);
    return OK;
}

/* str.format -------------------------------------------------------------------------------- */

/* [[fill]align][sign][#][0][width][,][.precision][type] */
static enum status format_spec(struct jinja_run *r, struct jinja_str f, struct spec *s)
{
    size_t at = 0;
    uint32_t cp;

    *s = (struct spec){.precision = -1};
    if (f.len) {
        size_t n = jinja_utf8_next(f.p, f.len, &cp);
        if (n < f.len && f.p[n] && strchr("<>^=", f.p[n])) {
            s->fill = (struct jinja_str){f.p, n};
            s->align = f.p[n];
            at = n + 1;
        } else if (f.p[0] && strchr("<>^=", f.p[0])) {
            s->align = f.p[at++];
        }
    }
    if (at < f.len && f.p[at] && strchr("+- ", f.p[at]))
        s->sign = f.p[at] == '-' ? '\0' : f.p[at], at++;
    if (at < f.len && f.p[at] == '#')
        s->alternate = true, at++;
    if (at < f.len && f.p[at] == '0')
        s->zero = true, at++;
    s->width = read_int(f, &at);
    if (at < f.len && f.p[at] == ',')
        s->comma = true, at++;
    if (at < f.len && f.p[at] == '.') {
        at++;
        s->precision = read_int(f, &at);
    }
    if (at < f.len)
        s->type = f.p[at++];
    if (at != f.len || s->width > WIDTH_MAX || s->precision > WIDTH_MAX)
        return jinja_fail(r, ERR_INVALID, "invalid format specifier '%.*s'", (int)f.len, f.p);
    return OK;
}

/* Find the value that "{name}", "{0}" or "{}" names; ".attr" and "[key]" are not supported. */
static enum status format_value(struct jinja_run *r, struct jinja_str name,
                                const struct jinja_args *args, size_t *auto_index,
                                const struct jinja_value **out)
{
    size_t at = 0;
    size_t index = *auto_index;

    for (size_t i = 0; i < args->n_kw; i++)
        if (args->kw[i].name.len == name.len && memcmp(args->kw[i].name.p, name.p, name.len) == 0) {
            *out = &args->kw[i].value;
            return OK;
        }
    if (name.len == 0)
        (*auto_index)++;
    else
        index = (size_t)read_int(name, &at);
    if (at != name.len)
        return jinja_fail(r, ERR_UNSUPPORTED, "format(): no value for the field '%.*s'",
                          (int)name.len, name.p);
    if (index >= args->n_pos)
        return jinja_fail(r, ERR_INVALID,
                          "Replacement index %zu out of range for positional "
                          "args tuple",
                          index);
    *out = &args->pos[index];
    return OK;
}

/* Format a field "name!r:spec". */
static enum status format_field(struct jinja_run *r, const struct jinja_value *format,
                                struct jinja_str field, const struct jinja_args *args,
                                size_t *auto_index, struct jinja_out *o)
{
    const struct jinja_value *v = NULL;
    struct spec s;
    size_t colon = jinja_find(field, (struct jinja_str){":", 1}, 0);
    struct jinja_str name = {field.p, colon == SIZE_MAX ? field.len : colon};
    struct jinja_str rest = {field.p + name.len, field.len - name.len};

    if (rest.len)
        rest = (struct jinja_str){rest.p + 1, rest.len - 1};
    bool repr = name.len >= 2 && memcmp(name.p + name.len - 2, "!r", 2) == 0;
    bool str = name.len >= 2 && memcmp(name.p + name.len - 2, "!s", 2) == 0;
    if (repr || str)
        name.len -= 2;
    TRY(format_spec(r, rest, &s));
    TRY(format_value(r, name, args, auto_index, &v));
    if (v->type == JINJA_UNDEFINED && rest.len)
        return jinja_fail_undefined(r, v);
    bool number =
        v->type == JINJA_INT || v->type == JINJA_FLOAT || (v->type == JINJA_BOOL && s.type);
    if (number && !repr && !str && rest.len && s.type != 's') {
        if (v->type == JINJA_FLOAT && !s.type && s.precision < 0)
            return put_text(r, v,
                            &(struct spec){.precision = -1,
                                           .width = s.width,
                                           .fill = s.fill,
                                           .zero = s.zero,
                                           .align = s.align ? s.align : '>'},
                            false, false, o);
        if (!s.type)
            s.type = v->type == JINJA_FLOAT ? 'g' : 'd';
        return put_number(r, v, &s, o);
    }
    if (s.type && s.type != 's')
        return jinja_fail(r, ERR_INVALID, "Unknown format code '%c' for object of type '%s'",
                          s.type, jinja_type_name(v));
    return put_text(r, v, &s, repr, format->markup, o);
}

enum status jinja_format(struct jinja_run *r, const struct jinja_value *format,
                         const struct jinja_args *args, struct jinja_value *out)
{
    struct jinja_str f = format->str;
    struct jinja_out o = {0};
    size_t auto_index = 0;

    for (size_t at = 0; at < f.len; at++) {
        char c = f.p[at];
        bool doubled = at + 1 < f.len && f.p[at + 1] == c;
        if (c != '{' && c != '}') {
            TRY(jinja_put(r, &o, f.p + at, 1));
        } else if (doubled) {
            TRY(jinja_put(r, &o, f.p + at, 1));
            at++;
        } else {
            size_t close = jinja_find(f, (struct jinja_str){"}", 1}, at);
            if (c == '}' || close == SIZE_MAX)
                return jinja_fail(r, ERR_INVALID, "Single '%c' encountered in format string", c);
            struct jinja_str field = {f.p + at + 1, close - at - 1};
            TRY(jinja_charge(r, 1));
            TRY(format_field(r, format, field, args, &auto_index, &o));
            at = close;
        }
    }
    *out = jinja_str_like(format, o.p ? o.p : "", o.len);
    return OK;
}
