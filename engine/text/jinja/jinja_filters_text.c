/* Filters that make text or numbers. Filters of sequences are in jinja_filters.c. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "engine/text/jinja/jinja_filters.h"
#include "engine/text/jinja/jinja_marks.h"
#include "engine/text/jinja/jinja_ops.h"
#include "engine/text/jinja/jinja_print.h"

#define FILTER(fn)                                                                                 \
    static enum status fn(struct jinja_run *r, const struct jinja_value *in,                       \
                          const struct jinja_args *args, struct jinja_value *out)

static bool given(const struct jinja_value *v)
{
    return v->type != JINJA_MISSING && v->type != JINJA_NONE;
}

static enum status int_slot(struct jinja_run *r, const struct jinja_value *v, const char *what,
                            int64_t *out)
{
    if (v->type == JINJA_UNDEFINED)
        return jinja_fail_undefined(r, v);
    if (v->type != JINJA_MISSING && !jinja_as_int(v, out))
        return jinja_fail(r, ERR_INVALID, "%s: '%s' is not an integer", what, jinja_type_name(v));
    return OK;
}

/* For filters that do not call str() first. */
static enum status need_text(struct jinja_run *r, const struct jinja_value *in, const char *what)
{
    if (in->type == JINJA_STR)
        return OK;
    if (in->type == JINJA_UNDEFINED)
        return jinja_fail_undefined(r, in);
    return jinja_fail(r, ERR_INVALID, "%s: '%s' is not a string", what, jinja_type_name(in));
}

/* Case and white space --------------------------------------------------------------------- */

static enum status recase(struct jinja_run *r, const struct jinja_value *in,
                          const struct jinja_args *args, enum jinja_case how,
                          struct jinja_value *out)
{
    struct jinja_value text;

    TRY(jinja_bind(r, args, "filter", "", 0, NULL));
    TRY(jinja_to_str(r, in, &text));
    return jinja_recase(r, &text, how, out);
}

FILTER(filter_upper)
{
    return recase(r, in, args, JINJA_CASE_UPPER, out);
}

FILTER(filter_lower)
{
    return recase(r, in, args, JINJA_CASE_LOWER, out);
}

FILTER(filter_capitalize)
{
    return recase(r, in, args, JINJA_CASE_CAPITALIZE, out);
}

/* Unlike str.title(), only white space, '-' and opening brackets start a word. */
FILTER(filter_title)
{
    struct jinja_value text;
    struct jinja_out o = {0};
    bool start = true;
    uint32_t cp;

    TRY(jinja_bind(r, args, "title", "", 0, NULL));
    TRY(jinja_to_str(r, in, &text));
    TRY(jinja_charge(r, text.str.len / 32));
    for (size_t at = 0, n; at < text.str.len; at += n) {
        size_t n_before = o.len;
        n = jinja_utf8_next(text.str.p + at, text.str.len - at, &cp);
        TRY(jinja_put_cp(r, &o, start ? jinja_upper(cp) : jinja_lower(cp)));
        TRY(jinja_mark_from(r, &o, n_before, text.str.p + at, n));
        start = jinja_is_space(cp) || (cp && cp < 0x80 && strchr("-({[<", (int)cp));
    }
    *out = jinja_str_like(&text, o.p ? o.p : "", o.len);
    return OK;
}

FILTER(filter_trim)
{
    struct jinja_value text, chars[1] = {0};

    TRY(jinja_bind(r, args, "trim", "chars", 0, chars));
    TRY(jinja_to_str(r, in, &text));
    if (given(&chars[0]) && chars[0].type != JINJA_STR)
        return jinja_fail(r, ERR_INVALID, "strip arg must be None or str");
    TRY(jinja_charge(r, text.str.len / 64 * (1 + (given(&chars[0]) ? chars[0].str.len / 8 : 0))));
    struct jinja_str s = jinja_strip(text.str, given(&chars[0]) ? &chars[0].str : NULL, true, true);
    *out = jinja_str_like(&text, s.p, s.len);
    return OK;
}

FILTER(filter_center)
{
    struct jinja_value text, slots[1] = {0};
    bool unused;

    TRY(jinja_bind(r, args, "center", "width", 0, slots));
    TRY(jinja_to_str(r, in, &text));
    if (slots[0].type == JINJA_MISSING)
        slots[0] = jinja_int(80);
    ASSERT(jinja_has_method(&text, "center", &unused));
    return jinja_call_method(r, &(struct jinja_method){text, "center"},
                             &(struct jinja_args){.pos = slots, .n_pos = 1}, out);
}

FILTER(filter_string)
{
    TRY(jinja_bind(r, args, "string", "", 0, NULL));
    return jinja_to_str(r, in, out);
}

FILTER(filter_replace)
{
    struct jinja_value slots[3] = {0}, text, from, to;
    int64_t count = -1;

    TRY(jinja_bind(r, args, "replace", "old new count", 2, slots));
    if (given(&slots[2]))
        TRY(int_slot(r, &slots[2], "replace", &count));
    TRY(jinja_to_str(r, in, &text));
    TRY(jinja_to_str(r, &slots[0], &from));
    TRY(jinja_to_str(r, &slots[1], &to));
    *out = jinja_str("", 0); /* str(s).replace(): the result is plain text, even of Markup */
    return jinja_replace(r, text.str, from.str, to.str, count, &out->str);
}

/* Append every line, each but the first behind `indent`; empty lines only if `blank`. */
static enum status put_indented(struct jinja_run *r, const struct jinja_list *lines,
                                struct jinja_str indent, bool blank, struct jinja_out *o)
{
    for (size_t i = 0; i < lines->n; i++) {
        struct jinja_str line = lines->items[i].str;
        if (i) {
            TRY(jinja_puts(r, o, "\n"));
            if (line.len || blank)
                TRY(jinja_put(r, o, indent.p, indent.len));
        }
        TRY(jinja_put(r, o, line.p, line.len));
    }
    return OK;
}

FILTER(filter_indent)
{
    struct jinja_value slots[3] = {0}, text;
    struct jinja_list lines = {0};
    struct jinja_out indent = {0}, o = {0};
    int64_t width = 4;

    TRY(jinja_bind(r, args, "indent", "width first blank", 0, slots));
    TRY(need_text(r, in, "indent"));
    text = *in;
    if (slots[0].type == JINJA_STR) {
        TRY(jinja_put(r, &indent, slots[0].str.p, slots[0].str.len));
    } else {
        TRY(int_slot(r, &slots[0], "indent", &width));
        TRY(jinja_put_spaces(r, &indent, width > 0 ? (size_t)width : 0));
    }
    struct jinja_str space = jinja_out_value(&indent).str;
    struct jinja_value with_end = text; /* the newline preserves a last empty line */
    TRY(jinja_concat(r, text.str, (struct jinja_str){"\n", 1}, &with_end.str));
    TRY(jinja_splitlines(r, &with_end, false, &lines));
    if (jinja_truth(&slots[1]))
        TRY(jinja_put(r, &o, space.p, space.len));
    TRY(put_indented(r, &lines, space, jinja_truth(&slots[2]), &o));
    *out = jinja_str_like(&text, o.p ? o.p : "", o.len);
    return OK;
}

FILTER(filter_truncate)
{
    struct jinja_value slots[4] = {0}, text;
    struct jinja_str end = {"...", 3};
    int64_t length = 255, leeway = 5;

    TRY(jinja_bind(r, args, "truncate", "length killwords end leeway", 0, slots));
    TRY(int_slot(r, &slots[0], "truncate", &length));
    if (given(&slots[3]))
        TRY(int_slot(r, &slots[3], "truncate", &leeway));
    TRY(need_text(r, in, "truncate"));
    text = *in;
    if (slots[2].type == JINJA_STR)
        end = slots[2].str;
    int64_t keep = length - (int64_t)jinja_n_chars(end);
    if (keep < 0 || leeway < 0)
        return jinja_fail(r, ERR_INVALID, "truncate: the length is too small");
    *out = text;
    if ((int64_t)jinja_n_chars(text.str) <= length + leeway)
        return OK;
    struct jinja_str cut = {text.str.p, jinja_char_offset(text.str, (size_t)keep)};
    size_t space;
    TRY(jinja_find_last(r, cut, (struct jinja_str){" ", 1}, &space));
    if (!jinja_truth(&slots[1]) && space != SIZE_MAX)
        cut.len = space;
    return jinja_concat(r, cut, end, &out->str);
}

FILTER(filter_wordcount)
{
    struct jinja_value text;
    int64_t n = 0;
    bool inside = false;
    uint32_t cp;

    TRY(jinja_bind(r, args, "wordcount", "", 0, NULL));
    TRY(jinja_to_str(r, in, &text));
    for (size_t at = 0; at < text.str.len;) {
        at += jinja_utf8_next(text.str.p + at, text.str.len - at, &cp);
        bool word = jinja_is_alnum(cp) || cp == '_';
        n += word && !inside;
        inside = word;
    }
    *out = jinja_int(n);
    return OK;
}

FILTER(filter_format)
{
    struct jinja_value text, values;

    TRY(jinja_to_str(r, in, &text));
    if (args->n_pos && args->n_kw)
        return jinja_fail(r, ERR_INVALID, "format: positional and keyword arguments together");
    if (args->n_kw) {
        TRY(jinja_dict_new(r, args->n_kw, &values));
        for (size_t i = 0; i < args->n_kw; i++) {
            struct jinja_value key = jinja_str(args->kw[i].name.p, args->kw[i].name.len);
            TRY(jinja_dict_set(r, values.dict, &key, &args->kw[i].value));
        }
        return jinja_percent(r, &text, &values, out);
    }
    TRY(jinja_seq_new(r, JINJA_TUPLE, args->n_pos, &values));
    for (size_t i = 0; i < args->n_pos; i++)
        values.seq->items[i] = args->pos[i];
    return jinja_percent(r, &text, &values, out);
}

/* Markup ----------------------------------------------------------------------------------- */

FILTER(filter_safe)
{
    TRY(jinja_bind(r, args, "safe", "", 0, NULL));
    TRY(jinja_to_str(r, in, out));
    out->markup = true;
    return OK;
}

static enum status escape(struct jinja_run *r, const struct jinja_value *in, bool force,
                          struct jinja_value *out)
{
    struct jinja_out o = {0};

    TRY(jinja_to_str(r, in, out));
    if (out->markup && !force)
        return OK;
    TRY(jinja_put_escaped(r, &o, out->str));
    *out = jinja_out_value(&o);
    out->markup = true;
    return OK;
}

FILTER(filter_escape)
{
    TRY(jinja_bind(r, args, "escape", "", 0, NULL));
    return escape(r, in, false, out);
}

FILTER(filter_forceescape)
{
    TRY(jinja_bind(r, args, "forceescape", "", 0, NULL));
    return escape(r, in, true, out);
}

/* Numbers ---------------------------------------------------------------------------------- */

/* A stripped copy without '_', NUL-terminated. False: too long or empty. */
static bool number_text(struct jinja_str s, char out[128])
{
    size_t n = 0;

    s = jinja_strip(s, NULL, true, true);
    for (size_t i = 0; i < s.len; i++) {
        if (s.p[i] == '_' && n && i + 1 < s.len && isalnum((unsigned char)s.p[i + 1]))
            continue;
        if (n + 1 >= 128 || s.p[i] == '\0')
            return false;
        out[n++] = s.p[i];
    }
    out[n] = '\0';
    return n > 0;
}

static bool text_to_int(struct jinja_str s, int64_t base, int64_t *out)
{
    char text[128];
    char *end;

    if (!number_text(s, text) || base < 0 || base == 1 || base > 36)
        return false;
    char *digits = text + (text[0] == '-' || text[0] == '+');
    char prefix = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : '\0';
    if (prefix && digits[0] == '0' && (digits[1] | 32) == prefix)
        memmove(digits, digits + 2, strlen(digits + 2) + 1);
    if (!isalnum((unsigned char)digits[0]))
        return false;
    errno = 0;
    long long v = strtoll(text, &end, (int)base);
    *out = v;
    return *end == '\0' && errno == 0;
}

static bool text_to_float(struct jinja_str s, double *out)
{
    char text[128];
    char *end;

    if (!number_text(s, text) || strpbrk(text, "xXpP("))
        return false;
    *out = strtod(text, &end);
    return end != text && *end == '\0';
}

static bool float_to_int(double f, int64_t *out)
{
    if (!(f > -9.2e18 && f < 9.2e18))
        return false;
    *out = (int64_t)f;
    return true;
}

FILTER(filter_int)
{
    struct jinja_value slots[2] = {0};
    int64_t base = 10, v = 0;
    double f;

    TRY(jinja_bind(r, args, "int", "default base", 0, slots));
    TRY(int_slot(r, &slots[1], "int", &base));
    if (in->type == JINJA_UNDEFINED)
        return jinja_fail_undefined(r, in);
    bool ok =
        in->type == JINJA_STR
            ? text_to_int(in->str, base, &v) || (text_to_float(in->str, &f) && float_to_int(f, &v))
            : jinja_as_int(in, &v) || (in->type == JINJA_FLOAT && float_to_int(in->real, &v));
    *out = ok ? jinja_int(v) : slots[0].type == JINJA_MISSING ? jinja_int(0) : slots[0];
    return OK;
}

FILTER(filter_float)
{
    struct jinja_value slots[1] = {0};
    double f = 0;

    TRY(jinja_bind(r, args, "float", "default", 0, slots));
    if (in->type == JINJA_UNDEFINED)
        return jinja_fail_undefined(r, in);
    bool ok = in->type == JINJA_STR ? text_to_float(in->str, &f) : jinja_as_number(in, &f);
    *out = ok ? jinja_float(f) : slots[0].type == JINJA_MISSING ? jinja_float(0) : slots[0];
    return OK;
}

FILTER(filter_abs)
{
    int64_t i;

    TRY(jinja_bind(r, args, "abs", "", 0, NULL));
    if (in->type == JINJA_FLOAT) {
        *out = jinja_float(fabs(in->real));
        return OK;
    }
    if (jinja_as_int(in, &i) && i >= 0) {
        *out = jinja_int(i);
        return OK;
    }
    return jinja_negate(r, in, out);
}

/* Round half to even on the exact binary value, as Python's round() does; printf() does the
 * same. */
static double round_half_even(double v, int64_t precision)
{
    char text[512];

    if (precision < 0) {
        double scale = pow(10, (double)-precision);
        return nearbyint(v / scale) * scale;
    }
    if (precision > 300 || !isfinite(v) || fabs(v) > 1e15)
        return v;
    snprintf(text, sizeof text, "%.*f", (int)(precision > 100 ? 100 : precision), v);
    return strtod(text, NULL);
}

FILTER(filter_round)
{
    struct jinja_value slots[2] = {0};
    int64_t precision = 0, i = 0;
    double v;

    TRY(jinja_bind(r, args, "round", "precision method", 0, slots));
    TRY(int_slot(r, &slots[0], "round", &precision));
    if (in->type == JINJA_UNDEFINED)
        return jinja_fail_undefined(r, in);
    if (!jinja_as_number(in, &v))
        return jinja_fail(r, ERR_INVALID, "type %s doesn't define __round__ method",
                          jinja_type_name(in));
    jinja_as_int(in, &i);
    bool common = slots[1].type == JINJA_MISSING ||
                  (slots[1].type == JINJA_STR && jinja_str_is(slots[1].str, "common"));
    if (common) {
        *out = in->type == JINJA_FLOAT ? jinja_float(round_half_even(v, precision))
               : precision >= 0        ? jinja_int(i)
                                       : jinja_int((int64_t)round_half_even(v, precision));
        return OK;
    }
    double scale = pow(10, (double)precision);
    if (slots[1].type == JINJA_STR && jinja_str_is(slots[1].str, "ceil"))
        *out = jinja_float(ceil(v * scale) / scale);
    else if (slots[1].type == JINJA_STR && jinja_str_is(slots[1].str, "floor"))
        *out = jinja_float(floor(v * scale) / scale);
    else
        return jinja_fail(r, ERR_INVALID, "method must be common, ceil or floor");
    return OK;
}

/* Anything --------------------------------------------------------------------------------- */

FILTER(filter_default)
{
    struct jinja_value slots[2] = {0};

    TRY(jinja_bind(r, args, "default", "default_value boolean", 0, slots));
    *out = *in;
    if (in->type == JINJA_UNDEFINED || (jinja_truth(&slots[1]) && !jinja_truth(in)))
        *out = slots[0].type == JINJA_MISSING ? jinja_str("", 0) : slots[0];
    return OK;
}

FILTER(filter_attr)
{
    struct jinja_value slots[1] = {0};
    const char *name;

    TRY(jinja_bind(r, args, "attr", "name", 1, slots));
    if (slots[0].type != JINJA_STR)
        return jinja_fail(r, ERR_INVALID, "attr: the name must be a string");
    TRY(jinja_cdup(r, slots[0].str, &name));
    if (in->type != JINJA_DICT) /* items are not attributes */
        return jinja_getattr(r, in, name, out);
    *out = jinja_undefined(JINJA_UNDEF_ATTR, name, "dict");
    return OK;
}

static enum status json_separators(struct jinja_run *r, const struct jinja_value *v,
                                   struct jinja_json_style *style)
{
    const struct jinja_seq *seq;

    if (!given(v))
        return OK;
    TRY(jinja_iterate(r, v, &seq));
    if (seq->n != 2 || seq->items[0].type != JINJA_STR || seq->items[1].type != JINJA_STR)
        return jinja_fail(r, ERR_INVALID, "tojson: separators must be two strings");
    style->item_separator = seq->items[0].str;
    style->key_separator = seq->items[1].str;
    return OK;
}

/* Hugging Face's tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False),
 * without escapes for HTML. */
FILTER(filter_tojson)
{
    struct jinja_value slots[4] = {0};
    struct jinja_json_style style = {{", ", 2}, {": ", 2}, {"", 0}, false, false, false};
    struct jinja_out indent = {0}, o = {0};
    int64_t n = 0;

    TRY(jinja_bind(r, args, "tojson", "ensure_ascii indent separators sort_keys", 0, slots));
    style.ascii = jinja_truth(&slots[0]);
    style.sort_keys = jinja_truth(&slots[3]);
    if (slots[1].type == JINJA_STR) {
        style.indent = slots[1].str;
        style.pretty = true;
    } else if (given(&slots[1])) {
        TRY(int_slot(r, &slots[1], "tojson", &n));
        TRY(jinja_put_spaces(r, &indent, n > 0 ? (size_t)n : 0));
        style.indent = jinja_out_value(&indent).str;
        style.pretty = true;
    }
    if (style.pretty)
        style.item_separator.len = 1; /* "," only: the newline follows */
    TRY(json_separators(r, &slots[2], &style));
    TRY(jinja_put_json(r, &o, in, &style));
    *out = jinja_out_value(&o);
    return OK;
}

const struct jinja_filter jinja_filters_text[] = {
    {"upper", filter_upper},
    {"lower", filter_lower},
    {"capitalize", filter_capitalize},
    {"title", filter_title},
    {"trim", filter_trim},
    {"center", filter_center},
    {"string", filter_string},
    {"replace", filter_replace},
    {"indent", filter_indent},
    {"truncate", filter_truncate},
    {"wordcount", filter_wordcount},
    {"format", filter_format},
    {"safe", filter_safe},
    {"escape", filter_escape},
    {"e", filter_escape},
    {"forceescape", filter_forceescape},
    {"int", filter_int},
    {"float", filter_float},
    {"abs", filter_abs},
    {"round", filter_round},
    {"default", filter_default},
    {"d", filter_default},
    {"attr", filter_attr},
    {"tojson", filter_tojson},
};
const size_t jinja_n_filters_text = ARRAY_SIZE(jinja_filters_text);
