#include "engine/text/jinja/jinja_text.h"

#include "engine/text/jinja/jinja_marks.h"

/* UTF-8 ----------------------------------------------------------------------------------- */

size_t jinja_utf8_next(const char *p, size_t left, uint32_t *cp)
{
    const unsigned char *s = (const unsigned char *)p;
    size_t n = s[0] < 0x80 ? 1 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;

    if (n > left) { /* impossible in valid text; stay inside the text anyway */
        *cp = 0xFFFD;
        return left;
    }
    switch (n) {
    case 1: *cp = s[0]; break;
    case 2: *cp = (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3F); break;
    case 3:
        *cp = (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 | (s[2] & 0x3F);
        break;
    default:
        *cp = (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3F) << 12 |
              (uint32_t)(s[2] & 0x3F) << 6 | (s[3] & 0x3F);
    }
    return n;
}

bool jinja_utf8_valid(const char *text, size_t len)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *s = (const unsigned char *)text;

    for (size_t i = 0; i < len;) {
        uint32_t cp;
        if (s[i] >= 0x80 && (s[i] < 0xC2 || s[i] > 0xF4))
            return false;
        size_t n = s[i] < 0x80 ? 1 : s[i] < 0xE0 ? 2 : s[i] < 0xF0 ? 3 : 4;
        if (n > len - i)
            return false;
        for (size_t k = 1; k < n; k++)
            if ((s[i + k] & 0xC0) != 0x80)
                return false;
        jinja_utf8_next(text + i, len - i, &cp);
        if (cp < least[n] || cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
            return false;
        i += n;
    }
    return true;
}

size_t jinja_utf8_put(char out[4], uint32_t cp)
{
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
        cp = 0xFFFD; /* a lone surrogate has no UTF-8 */
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

size_t jinja_n_chars(struct jinja_str s)
{
    size_t n = 0;

    for (size_t i = 0; i < s.len; i++)
        n += ((unsigned char)s.p[i] & 0xC0) != 0x80;
    return n;
}

size_t jinja_char_offset(struct jinja_str s, size_t char_index)
{
    size_t at = 0;

    for (; at < s.len; at++)
        if (((unsigned char)s.p[at] & 0xC0) != 0x80 && char_index-- == 0)
            break;
    return at;
}

/* Classes of code points ------------------------------------------------------------------- */

bool jinja_is_space(uint32_t cp)
{
    if (cp < 0x80)
        return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x1F);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool jinja_is_alnum(uint32_t cp)
{
    if (cp < 0x80)
        return (cp >= '0' && cp <= '9') || (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z');
    if (cp < 0xC0)
        return cp == 0xAA || cp == 0xB5 || cp == 0xBA;
    return cp != 0xD7 && cp != 0xF7 && !(cp >= 0x2000 && cp <= 0x2BFF) &&
           !(cp >= 0x3000 && cp <= 0x3004) && !(cp >= 0x1F000 && cp <= 0x1FAFF);
}

/* Lower case for Latin, Greek and Cyrillic, the scripts with case that templates may contain. */
uint32_t jinja_lower(uint32_t cp)
{
    if (cp >= 'A' && cp <= 'Z')
        return cp + 32;
    if (cp < 0xC0)
        return cp;
    if (cp <= 0xDE)
        return cp == 0xD7 ? cp : cp + 32;
    if ((cp >= 0x100 && cp <= 0x12F) || (cp >= 0x132 && cp <= 0x137) ||
        (cp >= 0x14A && cp <= 0x177) || (cp >= 0x460 && cp <= 0x481) ||
        (cp >= 0x48A && cp <= 0x4BF) || (cp >= 0x4D0 && cp <= 0x52F) ||
        (cp >= 0x1E00 && cp <= 0x1E95) || (cp >= 0x1EA0 && cp <= 0x1EFF))
        return cp | 1;
    if ((cp >= 0x139 && cp <= 0x148) || (cp >= 0x179 && cp <= 0x17E))
        return cp + (cp & 1);
    if (cp == 0x178)
        return 0xFF;
    if (cp >= 0x391 && cp <= 0x3AB && cp != 0x3A2)
        return cp + 32;
    if (cp >= 0x410 && cp <= 0x42F)
        return cp + 32;
    if (cp >= 0x400 && cp <= 0x40F)
        return cp + 80;
    return cp;
}

uint32_t jinja_upper(uint32_t cp)
{
    if (cp >= 'a' && cp <= 'z')
        return cp - 32;
    if (cp < 0xB5)
        return cp;
    if (cp == 0xB5)
        return 0x39C;
    if (cp == 0xFF)
        return 0x178;
    if (cp == 0x131)
        return 'I';
    if (cp == 0x17F)
        return 'S';
    if (cp == 0x3C2)
        return 0x3A3;
    for (uint32_t step = 1; step <= 80; step = step == 1 ? 32 : step + 48)
        if (cp > step && cp - step >= 0xC0 && jinja_lower(cp - step) == cp)
            return cp - step;
    return cp;
}

/* Slices ---------------------------------------------------------------------------------- */

static bool strip_this(uint32_t cp, const struct jinja_str *chars)
{
    uint32_t other;

    if (!chars)
        return jinja_is_space(cp);
    for (size_t at = 0; at < chars->len;) {
        at += jinja_utf8_next(chars->p + at, chars->len - at, &other);
        if (other == cp)
            return true;
    }
    return false;
}

struct jinja_str jinja_strip(struct jinja_str s, const struct jinja_str *chars, bool left,
                             bool right)
{
    uint32_t cp;

    while (left && s.len) {
        size_t n = jinja_utf8_next(s.p, s.len, &cp);
        if (!strip_this(cp, chars))
            break;
        s.p += n;
        s.len -= n;
    }
    while (right && s.len) {
        size_t at = s.len - 1;
        while (at > 0 && ((unsigned char)s.p[at] & 0xC0) == 0x80)
            at--;
        jinja_utf8_next(s.p + at, s.len - at, &cp);
        if (!strip_this(cp, chars))
            break;
        s.len = at;
    }
    return s;
}

size_t jinja_find(struct jinja_str hay, struct jinja_str needle, size_t from)
{
    if (from > hay.len)
        return SIZE_MAX;
    if (needle.len == 0)
        return from;
    const char *p = memmem(hay.p + from, hay.len - from, needle.p, needle.len);
    return p ? (size_t)(p - hay.p) : SIZE_MAX;
}

enum status jinja_find_last(struct jinja_run *r, struct jinja_str hay, struct jinja_str needle,
                            size_t *out)
{
    *out = SIZE_MAX;
    if (needle.len > hay.len)
        return OK;
    for (size_t at = hay.len - needle.len, n = 0;; at--, n++) {
        if (memcmp(hay.p + at, needle.p, needle.len) == 0) {
            *out = at;
            return OK;
        }
        if (n % 64 == 63)
            TRY(jinja_charge(r, 1 + needle.len / 64));
        if (at == 0)
            return OK;
    }
}

/* Growing text ---------------------------------------------------------------------------- */

static enum status make_room(struct jinja_run *r, struct jinja_out *o, size_t n)
{
    if (n > r->out_max_bytes || o->len > r->out_max_bytes - n)
        return jinja_fail(r, ERR_TOO_LARGE, "the text is longer than %zu bytes", r->out_max_bytes);
    if (o->cap - o->len >= n)
        return OK;
    size_t cap = o->cap ? o->cap * 2 : 64;
    if (cap < o->len + n)
        cap = o->len + n;
    char *p;
    TRY(jinja_alloc(r, cap, &p));
    if (o->len)
        memcpy(p, o->p, o->len);
    TRY(jinja_marks_copy(r, p, o->p, o->len));
    o->p = p;
    o->cap = cap;
    return OK;
}

enum status jinja_put(struct jinja_run *r, struct jinja_out *o, const char *p, size_t len)
{
    TRY(make_room(r, o, len));
    if (len)
        memcpy(o->p + o->len, p, len);
    TRY(jinja_marks_copy(r, o->p + o->len, p, len));
    o->len += len;
    return jinja_charge(r, len / 256);
}

enum status jinja_puts(struct jinja_run *r, struct jinja_out *o, const char *text)
{
    return jinja_put(r, o, text, strlen(text));
}

enum status jinja_put_cp(struct jinja_run *r, struct jinja_out *o, uint32_t cp)
{
    char bytes[4];

    return jinja_put(r, o, bytes, jinja_utf8_put(bytes, cp));
}

enum status jinja_put_spaces(struct jinja_run *r, struct jinja_out *o, size_t n)
{
    TRY(make_room(r, o, n));
    if (n)
        memset(o->p + o->len, ' ', n);
    o->len += n;
    return OK;
}

enum status jinja_concat(struct jinja_run *r, struct jinja_str a, struct jinja_str b,
                         struct jinja_str *out)
{
    char *p;

    if (a.len == 0 || b.len == 0) {
        *out = a.len ? a : b;
        return OK;
    }
    if (b.len > r->out_max_bytes || a.len > r->out_max_bytes - b.len)
        return jinja_fail(r, ERR_TOO_LARGE, "the text is longer than %zu bytes", r->out_max_bytes);
    TRY(jinja_charge(r, (a.len + b.len) / 256));
    TRY(jinja_alloc(r, a.len + b.len, &p));
    memcpy(p, a.p, a.len);
    memcpy(p + a.len, b.p, b.len);
    TRY(jinja_marks_copy(r, p, a.p, a.len));
    TRY(jinja_marks_copy(r, p + a.len, b.p, b.len));
    *out = (struct jinja_str){p, a.len + b.len};
    return OK;
}

enum status jinja_cdup(struct jinja_run *r, struct jinja_str s, const char **out)
{
    char *p;

    TRY(jinja_alloc(r, s.len + 1, &p));
    if (s.len)
        memcpy(p, s.p, s.len);
    *out = p;
    return jinja_marks_copy(r, p, s.p, s.len);
}

enum status jinja_put_escaped(struct jinja_run *r, struct jinja_out *o, struct jinja_str s)
{
    for (size_t i = 0; i < s.len; i++) {
        const char *entity = NULL;
        switch (s.p[i]) {
        case '&': entity = "&amp;"; break;
        case '<': entity = "&lt;"; break;
        case '>': entity = "&gt;"; break;
        case '\'': entity = "&#39;"; break;
        case '"': entity = "&#34;"; break;
        default: break;
        }
        size_t n_before = o->len;
        if (entity)
            TRY(jinja_puts(r, o, entity));
        else
            TRY(jinja_put(r, o, s.p + i, 1));
        TRY(jinja_mark_from(r, o, n_before, s.p + i, 1));
    }
    return jinja_charge(r, s.len / 256);
}

enum status jinja_escape_for(struct jinja_run *r, const struct jinja_value *s, bool markup,
                             struct jinja_str *out)
{
    struct jinja_out o = {0};

    *out = s->str;
    if (!markup || s->markup)
        return OK;
    TRY(jinja_put_escaped(r, &o, s->str));
    *out = jinja_out_value(&o).str;
    return OK;
}

/* Derived text ---------------------------------------------------------------------------- */

static enum status put_recased(struct jinja_run *r, struct jinja_out *o, uint32_t cp, bool upper)
{
    if (upper && cp == 0xDF) /* sharp s has no single capital in Python */
        return jinja_puts(r, o, "SS");
    return jinja_put_cp(r, o, upper ? jinja_upper(cp) : jinja_lower(cp));
}

enum status jinja_recase(struct jinja_run *r, const struct jinja_value *s, enum jinja_case how,
                         struct jinja_value *out)
{
    struct jinja_out o = {0};
    bool start = true;
    uint32_t cp;

    TRY(jinja_charge(r, s->str.len / 32));
    for (size_t at = 0, n; at < s->str.len; at += n) {
        size_t n_before = o.len;
        n = jinja_utf8_next(s->str.p + at, s->str.len - at, &cp);
        bool upper = how == JINJA_CASE_UPPER || (how != JINJA_CASE_LOWER && start);
        TRY(put_recased(r, &o, cp, upper));
        TRY(jinja_mark_from(r, &o, n_before, s->str.p + at, n));
        /* str.title(): a letter behind a character that is not a letter starts a word */
        start = how == JINJA_CASE_TITLE && (!jinja_is_alnum(cp) || (cp >= '0' && cp <= '9'));
    }
    *out = jinja_str_like(s, o.p ? o.p : "", o.len);
    return OK;
}

/* An empty `from` matches between all code points and at both ends. */
static enum status replace_empty(struct jinja_run *r, struct jinja_str s, struct jinja_str to,
                                 int64_t count, struct jinja_out *o)
{
    uint32_t cp;

    for (size_t at = 0;;) {
        if (count != 0) {
            TRY(jinja_put(r, o, to.p, to.len));
            count--;
        }
        if (at >= s.len)
            return OK;
        size_t n = jinja_utf8_next(s.p + at, s.len - at, &cp);
        TRY(jinja_put(r, o, s.p + at, n));
        at += n;
    }
}

enum status jinja_replace(struct jinja_run *r, struct jinja_str s, struct jinja_str from,
                          struct jinja_str to, int64_t count, struct jinja_str *out)
{
    struct jinja_out o = {0};
    size_t at = 0;

    TRY(jinja_charge(r, s.len / 64));
    if (from.len == 0) {
        TRY(replace_empty(r, s, to, count, &o));
        *out = jinja_out_value(&o).str;
        return OK;
    }
    while (count != 0) {
        size_t hit = jinja_find(s, from, at);
        if (hit == SIZE_MAX)
            break;
        TRY(jinja_put(r, &o, s.p + at, hit - at));
        TRY(jinja_put(r, &o, to.p, to.len));
        at = hit + from.len;
        count--;
    }
    if (at == 0) {
        *out = s;
        return OK;
    }
    TRY(jinja_put(r, &o, s.p + at, s.len - at));
    *out = jinja_out_value(&o).str;
    return OK;
}

static bool is_line_end(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

enum status jinja_splitlines(struct jinja_run *r, const struct jinja_value *s, bool keep_ends,
                             struct jinja_list *out)
{
    const char *p = s->str.p;
    size_t len = s->str.len;
    size_t start = 0;
    uint32_t cp;

    TRY(jinja_charge(r, len / 64));
    for (size_t at = 0; at < len;) {
        size_t n = jinja_utf8_next(p + at, len - at, &cp);
        size_t end = at;
        at += n;
        if (!is_line_end(cp))
            continue;
        if (cp == '\r' && at < len && p[at] == '\n')
            at++;
        struct jinja_value line = jinja_str_like(s, p + start, (keep_ends ? at : end) - start);
        TRY(jinja_list_push(r, out, &line));
        start = at;
    }
    if (start < len) {
        struct jinja_value line = jinja_str_like(s, p + start, len - start);
        TRY(jinja_list_push(r, out, &line));
    }
    return OK;
}
