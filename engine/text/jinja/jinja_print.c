#include "engine/text/jinja/jinja_print.h"

#include "engine/text/jinja/jinja_marks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Numbers --------------------------------------------------------------------------------- */

/* Digits and exponent of the shortest text that reads back as f, e.g. "12345" and 3 for 1234.5. */
static int shortest_digits(double f, char digits[20], int *n_digits)
{
    char text[40];
    int precision = 0;

    do
        snprintf(text, sizeof text, "%.*e", precision, f);
    while (strtod(text, NULL) != f && ++precision < 17);

    char *e = strchr(text, 'e');
    int n = 0;
    for (char *p = text; p < e; p++)
        if (*p >= '0' && *p <= '9' && n < 18)
            digits[n++] = *p;
    digits[n] = '\0';
    *n_digits = n;
    return atoi(e + 1);
}

void jinja_float_repr(double f, char out[40])
{
    char digits[20];
    int n;

    if (isnan(f) || isinf(f)) {
        snprintf(out, 40, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    int exp = shortest_digits(fabs(f), digits, &n);
    const char *sign = signbit(f) ? "-" : "";
    if (exp < -4 || exp >= 16)
        snprintf(out, 40, "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "", digits + 1,
                 exp < 0 ? '-' : '+', abs(exp));
    else if (exp < 0)
        snprintf(out, 40, "%s0.%.*s%s", sign, -exp - 1, "0000", digits);
    else if (n <= exp + 1)
        snprintf(out, 40, "%s%s%.*s.0", sign, digits, exp + 1 - n, "0000000000000000");
    else
        snprintf(out, 40, "%s%.*s.%s", sign, exp + 1, digits, digits + exp + 1);
}

static enum status put_number(struct jinja_run *r, struct jinja_out *o, const struct jinja_value *v)
{
    char text[40];

    if (v->type == JINJA_FLOAT)
        jinja_float_repr(v->real, text);
    else
        snprintf(text, sizeof text, "%lld", (long long)v->integer);
    return jinja_puts(r, o, text);
}

/* repr ------------------------------------------------------------------------------------ */

static bool printable(uint32_t cp)
{
    if (cp < 0x7F)
        return cp >= 0x20;
    return cp > 0xA0 && cp != 0xAD && !(jinja_is_space(cp)) && !(cp >= 0x200B && cp <= 0x200F) &&
           !(cp >= 0x202A && cp <= 0x202E) && !(cp >= 0x2060 && cp <= 0x206F) && cp != 0xFEFF &&
           !(cp >= 0xE000 && cp <= 0xF8FF) && !(cp >= 0xFFF0 && cp <= 0xFFFB);
}

static enum status put_repr_cp(struct jinja_run *r, struct jinja_out *o, uint32_t cp, char quote)
{
    char text[16];

    if (cp == (uint32_t)quote || cp == '\\')
        snprintf(text, sizeof text, "\\%c", (char)cp);
    else if (cp == '\n' || cp == '\r' || cp == '\t')
        snprintf(text, sizeof text, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
    else if (printable(cp))
        return jinja_put_cp(r, o, cp);
    else if (cp < 0x100)
        snprintf(text, sizeof text, "\\x%02x", cp);
    else if (cp < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", cp);
    else
        snprintf(text, sizeof text, "\\U%08x", cp);
    return jinja_puts(r, o, text);
}

static enum status put_str_repr(struct jinja_run *r, struct jinja_out *o,
                                const struct jinja_value *v)
{
    struct jinja_str s = v->str;
    bool single = s.len && memchr(s.p, '\'', s.len);
    bool both = single && memchr(s.p, '"', s.len);
    char quote = single && !both ? '"' : '\'';
    uint32_t cp;

    TRY(jinja_charge(r, s.len / 32));
    if (v->markup)
        TRY(jinja_puts(r, o, "Markup("));
    TRY(jinja_put(r, o, &quote, 1));
    for (size_t at = 0, n; at < s.len; at += n) {
        size_t n_before = o->len;
        n = jinja_utf8_next(s.p + at, s.len - at, &cp);
        TRY(put_repr_cp(r, o, cp, quote));
        TRY(jinja_mark_from(r, o, n_before, s.p + at, n));
    }
    TRY(jinja_put(r, o, &quote, 1));
    return v->markup ? jinja_puts(r, o, ")") : OK;
}

static enum status put_items(struct jinja_run *r, struct jinja_out *o, const struct jinja_seq *seq,
                             const char *open, const char *close)
{
    TRY(jinja_puts(r, o, open));
    for (size_t i = 0; i < seq->n; i++) {
        if (i)
            TRY(jinja_puts(r, o, ", "));
        TRY(jinja_put_repr(r, o, &seq->items[i]));
    }
    return jinja_puts(r, o, close);
}

static enum status put_range(struct jinja_run *r, struct jinja_out *o, const struct jinja_seq *seq)
{
    char text[96];

    if (seq->step == 1)
        snprintf(text, sizeof text, "range(%lld, %lld)", (long long)seq->start,
                 (long long)seq->stop);
    else
        snprintf(text, sizeof text, "range(%lld, %lld, %lld)", (long long)seq->start,
                 (long long)seq->stop, (long long)seq->step);
    return jinja_puts(r, o, text);
}

static enum status put_seq(struct jinja_run *r, struct jinja_out *o, const struct jinja_seq *seq)
{
    switch (seq->kind) {
    case JINJA_LIST: return put_items(r, o, seq, "[", "]");
    case JINJA_TUPLE: return put_items(r, o, seq, "(", seq->n == 1 ? ",)" : ")");
    case JINJA_RANGE: return put_range(r, o, seq);
    case JINJA_KEYS: return put_items(r, o, seq, "dict_keys([", "])");
    case JINJA_VALUES: return put_items(r, o, seq, "dict_values([", "])");
    case JINJA_ITEMS: return put_items(r, o, seq, "dict_items([", "])");
    case JINJA_GENERATOR: return jinja_puts(r, o, "<generator object>");
    }
    return OK;
}

static enum status put_dict(struct jinja_run *r, struct jinja_out *o, const struct jinja_dict *d)
{
    TRY(jinja_puts(r, o, "{"));
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            TRY(jinja_puts(r, o, ", "));
        TRY(jinja_put_repr(r, o, &d->pairs[i].key));
        TRY(jinja_puts(r, o, ": "));
        TRY(jinja_put_repr(r, o, &d->pairs[i].value));
    }
    return jinja_puts(r, o, "}");
}

static enum status put_object(struct jinja_run *r, struct jinja_out *o, const struct jinja_value *v)
{
    if (v->type == JINJA_UNDEFINED)
        return jinja_puts(r, o, "Undefined");
    if (v->type == JINJA_NAMESPACE) {
        TRY(jinja_puts(r, o, "<Namespace "));
        TRY(put_dict(r, o, v->dict));
        return jinja_puts(r, o, ">");
    }
    TRY(jinja_puts(r, o, "<"));
    TRY(jinja_puts(r, o, jinja_type_name(v)));
    return jinja_puts(r, o, ">");
}

static enum status put_repr(struct jinja_run *r, struct jinja_out *o, const struct jinja_value *v)
{
    switch (v->type) {
    case JINJA_NONE: return jinja_puts(r, o, "None");
    case JINJA_BOOL: return jinja_puts(r, o, v->boolean ? "True" : "False");
    case JINJA_INT:
    case JINJA_FLOAT: return put_number(r, o, v);
    case JINJA_STR: return put_str_repr(r, o, v);
    case JINJA_SEQ: return put_seq(r, o, v->seq);
    case JINJA_DICT: return put_dict(r, o, v->dict);
    default: return put_object(r, o, v);
    }
}

static enum status nest(struct jinja_run *r)
{
    if (++r->depth > JINJA_DEPTH_MAX)
        return jinja_fail(r, ERR_TOO_LARGE, "nested deeper than %u levels", JINJA_DEPTH_MAX);
    return jinja_charge(r, 1);
}

enum status jinja_put_repr(struct jinja_run *r, struct jinja_out *o, const struct jinja_value *v)
{
    TRY(nest(r));
    TRY(put_repr(r, o, v));
    r->depth--;
    return OK;
}

enum status jinja_put_str(struct jinja_run *r, struct jinja_out *o, const struct jinja_value *v)
{
    if (v->type == JINJA_STR)
        return jinja_put(r, o, v->str.p, v->str.len);
    return v->type == JINJA_UNDEFINED ? OK : jinja_put_repr(r, o, v); /* Undefined prints nothing */
}

enum status jinja_to_str(struct jinja_run *r, const struct jinja_value *v, struct jinja_value *out)
{
    struct jinja_out o = {0};

    if (v->type == JINJA_STR) {
        *out = *v;
        return OK;
    }
    TRY(jinja_put_str(r, &o, v));
    *out = jinja_out_value(&o);
    return OK;
}

/* JSON ------------------------------------------------------------------------------------ */

static enum status put_json_cp(struct jinja_run *r, struct jinja_out *o, uint32_t cp, bool ascii)
{
    static const char short_from[] = "\"\\\n\r\t\f\b";
    static const char short_to[] = "\"\\nrtfb";
    char text[16];
    const char *hit = cp && cp < 0x80 ? strchr(short_from, (int)cp) : NULL;

    if (hit)
        snprintf(text, sizeof text, "\\%c", short_to[hit - short_from]);
    else if (cp < 0x20 || (ascii && cp >= 0x7F && cp < 0x10000 && cp != 0x7F))
        snprintf(text, sizeof text, "\\u%04x", cp);
    else if (ascii && cp >= 0x10000)
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                 0xDC00 + ((cp - 0x10000) & 0x3FF));
    else
        return jinja_put_cp(r, o, cp);
    return jinja_puts(r, o, text);
}

static enum status put_json_str(struct jinja_run *r, struct jinja_out *o, struct jinja_str s,
                                bool ascii)
{
    uint32_t cp;

    TRY(jinja_charge(r, s.len / 32));
    TRY(jinja_puts(r, o, "\""));
    for (size_t at = 0; at < s.len;) {
        size_t run = at; /* ASCII without escapes is copied in one piece */
        while (run < s.len && s.p[run] >= 0x20 && s.p[run] != '"' && s.p[run] != '\\')
            run++;
        TRY(jinja_put(r, o, s.p + at, run - at));
        at = run;
        if (at < s.len) {
            size_t n_before = o->len, n = jinja_utf8_next(s.p + at, s.len - at, &cp);
            TRY(put_json_cp(r, o, cp, ascii));
            TRY(jinja_mark_from(r, o, n_before, s.p + at, n));
            at += n;
        }
    }
    return jinja_puts(r, o, "\"");
}

static enum status put_json_number(struct jinja_run *r, struct jinja_out *o,
                                   const struct jinja_value *v)
{
    if (v->type == JINJA_FLOAT && isnan(v->real))
        return jinja_puts(r, o, "NaN");
    if (v->type == JINJA_FLOAT && isinf(v->real))
        return jinja_puts(r, o, v->real < 0 ? "-Infinity" : "Infinity");
    return put_number(r, o, v);
}

static enum status put_json(struct jinja_run *r, struct jinja_out *o, const struct jinja_value *v,
                            const struct jinja_json_style *style, size_t level);

static enum status put_json_break(struct jinja_run *r, struct jinja_out *o,
                                  const struct jinja_json_style *style, size_t level)
{
    if (!style->pretty)
        return OK;
    TRY(jinja_puts(r, o, "\n"));
    for (size_t i = 0; i < level; i++)
        TRY(jinja_put(r, o, style->indent.p, style->indent.len));
    return OK;
}

static enum status put_json_seq(struct jinja_run *r, struct jinja_out *o,
                                const struct jinja_seq *seq, const struct jinja_json_style *style,
                                size_t level)
{
    if (seq->n == 0)
        return jinja_puts(r, o, "[]");
    TRY(jinja_puts(r, o, "["));
    for (size_t i = 0; i < seq->n; i++) {
        if (i)
            TRY(jinja_put(r, o, style->item_separator.p, style->item_separator.len));
        TRY(put_json_break(r, o, style, level + 1));
        TRY(put_json(r, o, &seq->items[i], style, level + 1));
    }
    TRY(put_json_break(r, o, style, level));
    return jinja_puts(r, o, "]");
}

static enum status put_json_key(struct jinja_run *r, struct jinja_out *o,
                                const struct jinja_value *key, const struct jinja_json_style *style)
{
    if (key->type == JINJA_STR)
        return put_json_str(r, o, key->str, style->ascii);
    if (key->type > JINJA_FLOAT || key->type < JINJA_NONE)
        return jinja_fail(r, ERR_INVALID, "JSON keys must be str, int, float, bool or None, not %s",
                          jinja_type_name(key));
    TRY(jinja_puts(r, o, "\""));
    TRY(put_json(r, o, key, style, 0));
    return jinja_puts(r, o, "\"");
}

/* Sort the keys for json.dumps(sort_keys=True): insertion sort over pointers, since schemas have
 * few keys. */
static enum status sorted_pairs(struct jinja_run *r, const struct jinja_dict *d,
                                const struct jinja_pair ***out)
{
    const struct jinja_pair **p;

    TRY(jinja_alloc_array(r, d->n, sizeof *p, &p));
    for (size_t i = 0; i < d->n; i++) {
        size_t at = i;
        int order;
        bool unordered;
        for (; at > 0; at--) {
            TRY(jinja_compare(r, &p[at - 1]->key, &d->pairs[i].key, "<", &order, &unordered));
            if (order <= 0)
                break;
            p[at] = p[at - 1];
        }
        p[at] = &d->pairs[i];
    }
    *out = p;
    return OK;
}

static enum status put_json_dict(struct jinja_run *r, struct jinja_out *o,
                                 const struct jinja_dict *d, const struct jinja_json_style *style,
                                 size_t level)
{
    const struct jinja_pair **sorted = NULL;

    if (d->n == 0)
        return jinja_puts(r, o, "{}");
    if (style->sort_keys)
        TRY(sorted_pairs(r, d, &sorted));
    TRY(jinja_puts(r, o, "{"));
    for (size_t i = 0; i < d->n; i++) {
        const struct jinja_pair *pair = sorted ? sorted[i] : &d->pairs[i];
        if (i)
            TRY(jinja_put(r, o, style->item_separator.p, style->item_separator.len));
        TRY(put_json_break(r, o, style, level + 1));
        TRY(put_json_key(r, o, &pair->key, style));
        TRY(jinja_put(r, o, style->key_separator.p, style->key_separator.len));
        TRY(put_json(r, o, &pair->value, style, level + 1));
    }
    TRY(put_json_break(r, o, style, level));
    return jinja_puts(r, o, "}");
}

static enum status put_json_value(struct jinja_run *r, struct jinja_out *o,
                                  const struct jinja_value *v, const struct jinja_json_style *style,
                                  size_t level)
{
    switch (v->type) {
    case JINJA_NONE: return jinja_puts(r, o, "null");
    case JINJA_BOOL: return jinja_puts(r, o, v->boolean ? "true" : "false");
    case JINJA_INT:
    case JINJA_FLOAT: return put_json_number(r, o, v);
    case JINJA_STR: return put_json_str(r, o, v->str, style->ascii);
    case JINJA_DICT: return put_json_dict(r, o, v->dict, style, level);
    case JINJA_SEQ:
        if (v->seq->kind <= JINJA_TUPLE)
            return put_json_seq(r, o, v->seq, style, level);
        break;
    default: break;
    }
    return jinja_fail(r, ERR_INVALID, "Object of type %s is not JSON serializable",
                      jinja_type_name(v));
}

static enum status put_json(struct jinja_run *r, struct jinja_out *o, const struct jinja_value *v,
                            const struct jinja_json_style *style, size_t level)
{
    TRY(nest(r));
    TRY(put_json_value(r, o, v, style, level));
    r->depth--;
    return OK;
}

enum status jinja_put_json(struct jinja_run *r, struct jinja_out *o, const struct jinja_value *v,
                           const struct jinja_json_style *style)
{
    return put_json(r, o, v, style, 0);
}
