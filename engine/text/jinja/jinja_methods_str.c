/* Methods of str. */
#include "engine/text/jinja/jinja_methods.h"
#include "engine/text/jinja/jinja_ops.h"
#include "engine/text/jinja/jinja_text.h"

static enum status need_text(struct jinja_run *r, const struct jinja_value *v, const char *what)
{
    if (v->type == JINJA_STR)
        return OK;
    if (v->type == JINJA_UNDEFINED)
        return jinja_fail_undefined(r, v);
    return jinja_fail(r, ERR_INVALID, "%s() needs a str, not '%s'", what, jinja_type_name(v));
}

static enum status no_args(struct jinja_run *r, const struct jinja_args *args, const char *what)
{
    return jinja_bind(r, args, what, "", 0, NULL);
}

/* str: strip ------------------------------------------------------------------------------- */

static enum status strip_sides(struct jinja_run *r, const struct jinja_value *self,
                               const struct jinja_args *args, bool left, bool right,
                               struct jinja_value *out)
{
    struct jinja_value chars[1] = {0};

    TRY(jinja_bind(r, args, "strip", "chars", 0, chars));
    bool given = chars[0].type != JINJA_MISSING && chars[0].type != JINJA_NONE;
    if (given)
        TRY(need_text(r, &chars[0], "strip"));
    TRY(jinja_charge(r, self->str.len / 64 * (1 + (given ? chars[0].str.len / 8 : 0))));
    struct jinja_str s = jinja_strip(self->str, given ? &chars[0].str : NULL, left, right);
    *out = jinja_str_like(self, s.p, s.len);
    return OK;
}

static enum status str_strip(struct jinja_run *r, const struct jinja_value *self,
                             const struct jinja_args *args, struct jinja_value *out)
{
    return strip_sides(r, self, args, true, true, out);
}

static enum status str_lstrip(struct jinja_run *r, const struct jinja_value *self,
                              const struct jinja_args *args, struct jinja_value *out)
{
    return strip_sides(r, self, args, true, false, out);
}

static enum status str_rstrip(struct jinja_run *r, const struct jinja_value *self,
                              const struct jinja_args *args, struct jinja_value *out)
{
    return strip_sides(r, self, args, false, true, out);
}

static enum status remove_fix(struct jinja_run *r, const struct jinja_value *self,
                              const struct jinja_args *args, bool prefix, struct jinja_value *out)
{
    struct jinja_value fix[1] = {0};
    struct jinja_str s = self->str;

    TRY(jinja_bind(r, args, "removeprefix", "prefix", 1, fix));
    TRY(need_text(r, &fix[0], "removeprefix"));
    size_t n = fix[0].str.len;
    if (n <= s.len && memcmp(prefix ? s.p : s.p + s.len - n, fix[0].str.p, n) == 0) {
        s.p += prefix ? n : 0;
        s.len -= n;
    }
    *out = jinja_str_like(self, s.p, s.len);
    return OK;
}

static enum status str_removeprefix(struct jinja_run *r, const struct jinja_value *self,
                                    const struct jinja_args *args, struct jinja_value *out)
{
    return remove_fix(r, self, args, true, out);
}

static enum status str_removesuffix(struct jinja_run *r, const struct jinja_value *self,
                                    const struct jinja_args *args, struct jinja_value *out)
{
    return remove_fix(r, self, args, false, out);
}

/* str: split ------------------------------------------------------------------------------- */

static enum status push_piece(struct jinja_run *r, struct jinja_list *list,
                              const struct jinja_value *self, const char *p, size_t len)
{
    struct jinja_value piece = jinja_str_like(self, p, len);

    return jinja_list_push(r, list, &piece);
}

static enum status split_at(struct jinja_run *r, const struct jinja_value *self,
                            struct jinja_str sep, int64_t max, struct jinja_list *list)
{
    struct jinja_str s = self->str;
    size_t at = 0;

    for (; max != 0; max--) {
        size_t hit = jinja_find(s, sep, at);
        if (hit == SIZE_MAX)
            break;
        TRY(push_piece(r, list, self, s.p + at, hit - at));
        at = hit + sep.len;
    }
    return push_piece(r, list, self, s.p + at, s.len - at);
}

static enum status rsplit_at(struct jinja_run *r, const struct jinja_value *self,
                             struct jinja_str sep, int64_t max, struct jinja_list *list)
{
    struct jinja_str s = self->str;

    for (; max != 0; max--) {
        size_t hit;
        TRY(jinja_find_last(r, s, sep, &hit));
        if (hit == SIZE_MAX)
            break;
        TRY(push_piece(r, list, self, s.p + hit + sep.len, s.len - hit - sep.len));
        s.len = hit;
    }
    return push_piece(r, list, self, s.p, s.len);
}

/* Bytes of `s` up to the first (from_left), or behind the last, white space. */
static size_t word_len(struct jinja_str s, bool from_left)
{
    size_t best = from_left ? s.len : 0;
    uint32_t cp;

    for (size_t at = 0; at < s.len;) {
        size_t n = jinja_utf8_next(s.p + at, s.len - at, &cp);
        if (jinja_is_space(cp) && from_left)
            return at;
        at += n;
        if (jinja_is_space(cp))
            best = at;
    }
    return from_left ? best : s.len - best;
}

static enum status split_words(struct jinja_run *r, const struct jinja_value *self, int64_t max,
                               bool from_left, struct jinja_list *list)
{
    struct jinja_str s = jinja_strip(self->str, NULL, from_left, !from_left);

    for (; s.len && max != 0; max--) {
        TRY(jinja_charge(r, from_left ? 1 : 1 + s.len / 64));
        size_t n = word_len(s, from_left);
        TRY(push_piece(r, list, self, from_left ? s.p : s.p + s.len - n, n));
        s.p += from_left ? n : 0;
        s.len -= n;
        s = jinja_strip(s, NULL, from_left, !from_left);
    }
    return s.len ? push_piece(r, list, self, s.p, s.len) : OK;
}

static void reverse_list(struct jinja_list *list)
{
    for (size_t i = 0; i < list->n / 2; i++) {
        struct jinja_value v = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = v;
    }
}

static enum status split(struct jinja_run *r, const struct jinja_value *self,
                         const struct jinja_args *args, bool from_left, struct jinja_value *out)
{
    struct jinja_value slots[2] = {0};
    struct jinja_list list = {0};
    int64_t max = -1;

    TRY(jinja_bind(r, args, "split", "sep maxsplit", 0, slots));
    if (slots[1].type != JINJA_MISSING && !jinja_as_int(&slots[1], &max))
        return jinja_fail(r, ERR_INVALID, "split(): maxsplit must be an integer");
    TRY(jinja_charge(r, self->str.len / 64));
    if (slots[0].type == JINJA_MISSING || slots[0].type == JINJA_NONE) {
        TRY(split_words(r, self, max, from_left, &list));
    } else {
        TRY(need_text(r, &slots[0], "split"));
        if (slots[0].str.len == 0)
            return jinja_fail(r, ERR_INVALID, "empty separator");
        if (from_left)
            TRY(split_at(r, self, slots[0].str, max, &list));
        else
            TRY(rsplit_at(r, self, slots[0].str, max, &list));
    }
    if (!from_left)
        reverse_list(&list);
    return jinja_list_seq(r, JINJA_LIST, &list, out);
}

static enum status str_split(struct jinja_run *r, const struct jinja_value *self,
                             const struct jinja_args *args, struct jinja_value *out)
{
    return split(r, self, args, true, out);
}

static enum status str_rsplit(struct jinja_run *r, const struct jinja_value *self,
                              const struct jinja_args *args, struct jinja_value *out)
{
    return split(r, self, args, false, out);
}

static enum status str_splitlines(struct jinja_run *r, const struct jinja_value *self,
                                  const struct jinja_args *args, struct jinja_value *out)
{
    struct jinja_value keep[1] = {0};
    struct jinja_list list = {0};

    TRY(jinja_bind(r, args, "splitlines", "keepends", 0, keep));
    TRY(jinja_splitlines(r, self, jinja_truth(&keep[0]), &list));
    return jinja_list_seq(r, JINJA_LIST, &list, out);
}

static enum status partition(struct jinja_run *r, const struct jinja_value *self,
                             const struct jinja_args *args, bool from_left, struct jinja_value *out)
{
    struct jinja_value sep[1] = {0};
    struct jinja_str s = self->str;

    TRY(jinja_bind(r, args, "partition", "sep", 1, sep));
    TRY(need_text(r, &sep[0], "partition"));
    if (sep[0].str.len == 0)
        return jinja_fail(r, ERR_INVALID, "empty separator");
    TRY(jinja_charge(r, s.len / 64));
    size_t hit = jinja_find(s, sep[0].str, 0);
    if (!from_left)
        TRY(jinja_find_last(r, s, sep[0].str, &hit));
    TRY(jinja_seq_new(r, JINJA_TUPLE, 3, out));
    struct jinja_value *piece = out->seq->items;
    for (int i = 0; i < 3; i++)
        piece[i] = jinja_str("", 0);
    if (hit == SIZE_MAX) {
        piece[from_left ? 0 : 2] = *self;
        return OK;
    }
    size_t end = hit + sep[0].str.len;
    piece[0] = jinja_str_like(self, s.p, hit);
    piece[1] = sep[0];
    piece[2] = jinja_str_like(self, s.p + end, s.len - end);
    return OK;
}

static enum status str_partition(struct jinja_run *r, const struct jinja_value *self,
                                 const struct jinja_args *args, struct jinja_value *out)
{
    return partition(r, self, args, true, out);
}

static enum status str_rpartition(struct jinja_run *r, const struct jinja_value *self,
                                  const struct jinja_args *args, struct jinja_value *out)
{
    return partition(r, self, args, false, out);
}

/* str: search ------------------------------------------------------------------------------ */

/* The window [start:end] of self, in bytes; *base_chars: index of its first code point. */
static enum status window(struct jinja_run *r, const struct jinja_value *self,
                          const struct jinja_value slots[3], struct jinja_str *out,
                          size_t *base_chars)
{
    struct jinja_value whole = *self, piece;
    struct jinja_value bounds[3] = {slots[1], slots[2], jinja_none()};

    for (int i = 0; i < 2; i++)
        if (bounds[i].type == JINJA_MISSING)
            bounds[i] = jinja_none();
    TRY(jinja_slice(r, &whole, bounds, &piece));
    *out = piece.str;
    *base_chars =
        jinja_n_chars((struct jinja_str){self->str.p, (size_t)(piece.str.p - self->str.p)});
    return OK;
}

static enum status affix(struct jinja_run *r, const struct jinja_value *self,
                         const struct jinja_args *args, bool start, struct jinja_value *out)
{
    const char *what = start ? "startswith" : "endswith";
    struct jinja_value slots[3] = {0};
    struct jinja_str s;
    size_t base;
    bool hit = false;

    TRY(jinja_bind(r, args, what, "prefix start end", 1, slots));
    TRY(window(r, self, slots, &s, &base));
    bool tuple = jinja_is_seq(&slots[0], JINJA_TUPLE);
    size_t n = tuple ? slots[0].seq->n : 1;
    for (size_t i = 0; i < n && !hit; i++) {
        const struct jinja_value *fix = tuple ? &slots[0].seq->items[i] : &slots[0];
        TRY(need_text(r, fix, what));
        TRY(jinja_charge(r, fix->str.len / 256));
        hit = fix->str.len <= s.len &&
              memcmp(start ? s.p : s.p + s.len - fix->str.len, fix->str.p, fix->str.len) == 0;
    }
    *out = jinja_bool(hit);
    return OK;
}

static enum status str_startswith(struct jinja_run *r, const struct jinja_value *self,
                                  const struct jinja_args *args, struct jinja_value *out)
{
    return affix(r, self, args, true, out);
}

static enum status str_endswith(struct jinja_run *r, const struct jinja_value *self,
                                const struct jinja_args *args, struct jinja_value *out)
{
    return affix(r, self, args, false, out);
}

static enum status find_text(struct jinja_run *r, const struct jinja_value *self,
                             const struct jinja_args *args, bool first, int64_t *out)
{
    struct jinja_value slots[3] = {0};
    struct jinja_str s;
    size_t base;

    TRY(jinja_bind(r, args, "find", "sub start end", 1, slots));
    TRY(need_text(r, &slots[0], "find"));
    TRY(window(r, self, slots, &s, &base));
    TRY(jinja_charge(r, s.len / 64));
    size_t hit = jinja_find(s, slots[0].str, 0);
    if (!first)
        TRY(jinja_find_last(r, s, slots[0].str, &hit));
    *out = hit == SIZE_MAX ? -1 : (int64_t)(base + jinja_n_chars((struct jinja_str){s.p, hit}));
    return OK;
}

static enum status str_find(struct jinja_run *r, const struct jinja_value *self,
                            const struct jinja_args *args, struct jinja_value *out)
{
    *out = jinja_int(0);
    return find_text(r, self, args, true, &out->integer);
}

static enum status str_rfind(struct jinja_run *r, const struct jinja_value *self,
                             const struct jinja_args *args, struct jinja_value *out)
{
    *out = jinja_int(0);
    return find_text(r, self, args, false, &out->integer);
}

static enum status str_index(struct jinja_run *r, const struct jinja_value *self,
                             const struct jinja_args *args, struct jinja_value *out)
{
    TRY(str_find(r, self, args, out));
    return out->integer < 0 ? jinja_fail(r, ERR_INVALID, "substring not found") : OK;
}

static enum status str_rindex(struct jinja_run *r, const struct jinja_value *self,
                              const struct jinja_args *args, struct jinja_value *out)
{
    TRY(str_rfind(r, self, args, out));
    return out->integer < 0 ? jinja_fail(r, ERR_INVALID, "substring not found") : OK;
}

static enum status str_count(struct jinja_run *r, const struct jinja_value *self,
                             const struct jinja_args *args, struct jinja_value *out)
{
    struct jinja_value slots[3] = {0};
    struct jinja_str s;
    size_t base;
    int64_t n = 0;

    TRY(jinja_bind(r, args, "count", "sub start end", 1, slots));
    TRY(need_text(r, &slots[0], "count"));
    TRY(window(r, self, slots, &s, &base));
    TRY(jinja_charge(r, s.len / 64));
    if (slots[0].str.len == 0) {
        *out = jinja_int((int64_t)jinja_n_chars(s) + 1);
        return OK;
    }
    for (size_t at = 0; (at = jinja_find(s, slots[0].str, at)) != SIZE_MAX; at += slots[0].str.len)
        n++;
    *out = jinja_int(n);
    return OK;
}

/* str: new text ---------------------------------------------------------------------------- */

static enum status str_replace(struct jinja_run *r, const struct jinja_value *self,
                               const struct jinja_args *args, struct jinja_value *out)
{
    struct jinja_value slots[3] = {0};
    int64_t count = -1;
    struct jinja_str from, to;

    TRY(jinja_bind(r, args, "replace", "old new count", 2, slots));
    TRY(need_text(r, &slots[0], "replace"));
    TRY(need_text(r, &slots[1], "replace"));
    if (slots[2].type != JINJA_MISSING && !jinja_as_int(&slots[2], &count))
        return jinja_fail(r, ERR_INVALID, "replace(): count must be an integer");
    TRY(jinja_escape_for(r, &slots[0], self->markup, &from));
    TRY(jinja_escape_for(r, &slots[1], self->markup, &to));
    *out = *self;
    return jinja_replace(r, self->str, from, to, count, &out->str);
}

static enum status recase(struct jinja_run *r, const struct jinja_value *self,
                          const struct jinja_args *args, enum jinja_case how,
                          struct jinja_value *out)
{
    TRY(no_args(r, args, "upper"));
    return jinja_recase(r, self, how, out);
}

static enum status str_upper(struct jinja_run *r, const struct jinja_value *self,
                             const struct jinja_args *args, struct jinja_value *out)
{
    return recase(r, self, args, JINJA_CASE_UPPER, out);
}

static enum status str_lower(struct jinja_run *r, const struct jinja_value *self,
                             const struct jinja_args *args, struct jinja_value *out)
{
    return recase(r, self, args, JINJA_CASE_LOWER, out);
}

static enum status str_capitalize(struct jinja_run *r, const struct jinja_value *self,
                                  const struct jinja_args *args, struct jinja_value *out)
{
    return recase(r, self, args, JINJA_CASE_CAPITALIZE, out);
}

static enum status str_title(struct jinja_run *r, const struct jinja_value *self,
                             const struct jinja_args *args, struct jinja_value *out)
{
    return recase(r, self, args, JINJA_CASE_TITLE, out);
}

static enum status str_join(struct jinja_run *r, const struct jinja_value *self,
                            const struct jinja_args *args, struct jinja_value *out)
{
    struct jinja_value slots[1] = {0};
    const struct jinja_seq *seq;
    struct jinja_out o = {0};
    struct jinja_str piece;

    TRY(jinja_bind(r, args, "join", "iterable", 1, slots));
    TRY(jinja_iterate(r, &slots[0], &seq));
    TRY(jinja_charge(r, seq->n));
    for (size_t i = 0; i < seq->n; i++) {
        if (seq->items[i].type != JINJA_STR)
            return jinja_fail(r, ERR_INVALID, "sequence item %zu: expected str instance, %s found",
                              i, jinja_type_name(&seq->items[i]));
        if (i)
            TRY(jinja_put(r, &o, self->str.p, self->str.len));
        TRY(jinja_escape_for(r, &seq->items[i], self->markup, &piece));
        TRY(jinja_put(r, &o, piece.p, piece.len));
    }
    *out = jinja_str_like(self, o.p ? o.p : "", o.len);
    return OK;
}

/* Pad to `width` code points. side < 0: behind the text, > 0: before it, 0: both. */
static enum status pad(struct jinja_run *r, const struct jinja_value *self,
                       const struct jinja_args *args, int side, struct jinja_value *out)
{
    struct jinja_value slots[2] = {0};
    struct jinja_str fill = {" ", 1};
    struct jinja_out o = {0};
    int64_t width;

    const char *name = side < 0 ? "ljust" : side > 0 ? "rjust" : "center";
    TRY(jinja_bind(r, args, name, "width fillchar", 1, slots));
    if (!jinja_as_int(&slots[0], &width))
        return jinja_fail(r, ERR_INVALID, "%s(): width must be an integer", name);
    if (slots[1].type == JINJA_STR && jinja_n_chars(slots[1].str) == 1)
        fill = slots[1].str;
    int64_t n = (int64_t)jinja_n_chars(self->str);
    int64_t more = width > n ? width - n : 0;
    if (more > (int64_t)r->out_max_bytes)
        return jinja_fail(r, ERR_TOO_LARGE, "the text would be padded to %lld characters",
                          (long long)width);
    /* CPython's str.center() puts an odd one left if the width is odd */
    int64_t before = side < 0 ? 0 : side > 0 ? more : more / 2 + (more & width & 1);
    for (int64_t i = 0; i < before; i++)
        TRY(jinja_put(r, &o, fill.p, fill.len));
    TRY(jinja_put(r, &o, self->str.p, self->str.len));
    for (int64_t i = before; i < more; i++)
        TRY(jinja_put(r, &o, fill.p, fill.len));
    *out = jinja_str_like(self, o.p ? o.p : "", o.len);
    return OK;
}

static enum status str_ljust(struct jinja_run *r, const struct jinja_value *self,
                             const struct jinja_args *args, struct jinja_value *out)
{
    return pad(r, self, args, -1, out);
}

static enum status str_rjust(struct jinja_run *r, const struct jinja_value *self,
                             const struct jinja_args *args, struct jinja_value *out)
{
    return pad(r, self, args, 1, out);
}

static enum status str_center(struct jinja_run *r, const struct jinja_value *self,
                              const struct jinja_args *args, struct jinja_value *out)
{
    return pad(r, self, args, 0, out);
}

static enum status str_zfill(struct jinja_run *r, const struct jinja_value *self,
                             const struct jinja_args *args, struct jinja_value *out)
{
    struct jinja_value slots[2] = {0};
    bool sign = self->str.len && (self->str.p[0] == '-' || self->str.p[0] == '+');
    struct jinja_value digits = jinja_str_like(self, self->str.p + sign, self->str.len - sign);
    int64_t width;

    TRY(jinja_bind(r, args, "zfill", "width", 1, slots));
    if (!jinja_as_int(&slots[0], &width))
        return jinja_fail(r, ERR_INVALID, "zfill(): width must be an integer");
    slots[0] = jinja_int(width - sign);
    slots[1] = jinja_str("0", 1);
    TRY(pad(r, &digits, &(struct jinja_args){.pos = slots, .n_pos = 2}, 1, out));
    if (!sign)
        return OK;
    return jinja_concat(r, (struct jinja_str){self->str.p, 1}, out->str, &out->str);
}

static enum status str_format(struct jinja_run *r, const struct jinja_value *self,
                              const struct jinja_args *args, struct jinja_value *out)
{
    return jinja_format(r, self, args, out);
}

/* str: classes ----------------------------------------------------------------------------- */

static bool is_digit(uint32_t cp)
{
    return cp >= '0' && cp <= '9';
}

static bool is_letter(uint32_t cp)
{
    return jinja_is_alnum(cp) && !is_digit(cp);
}

static enum status all_of(struct jinja_run *r, const struct jinja_value *self,
                          const struct jinja_args *args, bool (*is)(uint32_t),
                          struct jinja_value *out)
{
    bool all = self->str.len > 0;
    uint32_t cp;

    TRY(no_args(r, args, "isdigit"));
    TRY(jinja_charge(r, self->str.len / 64));
    for (size_t at = 0; at < self->str.len && all;) {
        at += jinja_utf8_next(self->str.p + at, self->str.len - at, &cp);
        all = is(cp);
    }
    *out = jinja_bool(all);
    return OK;
}

static enum status str_isdigit(struct jinja_run *r, const struct jinja_value *self,
                               const struct jinja_args *args, struct jinja_value *out)
{
    return all_of(r, self, args, is_digit, out);
}

static enum status str_isalpha(struct jinja_run *r, const struct jinja_value *self,
                               const struct jinja_args *args, struct jinja_value *out)
{
    return all_of(r, self, args, is_letter, out);
}

static enum status str_isalnum(struct jinja_run *r, const struct jinja_value *self,
                               const struct jinja_args *args, struct jinja_value *out)
{
    return all_of(r, self, args, jinja_is_alnum, out);
}

static enum status str_isspace(struct jinja_run *r, const struct jinja_value *self,
                               const struct jinja_args *args, struct jinja_value *out)
{
    return all_of(r, self, args, jinja_is_space, out);
}

/* Whether all cased letters have one case, and there is at least one. */
static enum status one_case(struct jinja_run *r, const struct jinja_value *self,
                            const struct jinja_args *args, bool upper, struct jinja_value *out)
{
    bool cased = false;
    uint32_t cp;

    TRY(no_args(r, args, upper ? "isupper" : "islower"));
    TRY(jinja_charge(r, self->str.len / 64));
    *out = jinja_bool(false);
    for (size_t at = 0; at < self->str.len;) {
        at += jinja_utf8_next(self->str.p + at, self->str.len - at, &cp);
        if ((upper ? jinja_upper(cp) : jinja_lower(cp)) != cp)
            return OK;
        cased |= (upper ? jinja_lower(cp) : jinja_upper(cp)) != cp;
    }
    *out = jinja_bool(cased);
    return OK;
}

static enum status str_isupper(struct jinja_run *r, const struct jinja_value *self,
                               const struct jinja_args *args, struct jinja_value *out)
{
    return one_case(r, self, args, true, out);
}

static enum status str_islower(struct jinja_run *r, const struct jinja_value *self,
                               const struct jinja_args *args, struct jinja_value *out)
{
    return one_case(r, self, args, false, out);
}

/* Table ------------------------------------------------------------------------------------ */

const struct jinja_method_row jinja_str_methods[] = {
    {"capitalize", str_capitalize},
    {"casefold", str_lower},
    {"center", str_center},
    {"count", str_count},
    {"encode", NULL},
    {"endswith", str_endswith},
    {"expandtabs", NULL},
    {"find", str_find},
    {"format", str_format},
    {"format_map", NULL},
    {"index", str_index},
    {"isalnum", str_isalnum},
    {"isalpha", str_isalpha},
    {"isascii", NULL},
    {"isdecimal", str_isdigit},
    {"isdigit", str_isdigit},
    {"isidentifier", NULL},
    {"islower", str_islower},
    {"isnumeric", str_isdigit},
    {"isprintable", NULL},
    {"isspace", str_isspace},
    {"istitle", NULL},
    {"isupper", str_isupper},
    {"join", str_join},
    {"ljust", str_ljust},
    {"lower", str_lower},
    {"lstrip", str_lstrip},
    {"maketrans", NULL},
    {"partition", str_partition},
    {"removeprefix", str_removeprefix},
    {"removesuffix", str_removesuffix},
    {"replace", str_replace},
    {"rfind", str_rfind},
    {"rindex", str_rindex},
    {"rjust", str_rjust},
    {"rpartition", str_rpartition},
    {"rsplit", str_rsplit},
    {"rstrip", str_rstrip},
    {"split", str_split},
    {"splitlines", str_splitlines},
    {"startswith", str_startswith},
    {"strip", str_strip},
    {"swapcase", NULL},
    {"title", str_title},
    {"translate", NULL},
    {"upper", str_upper},
    {"zfill", str_zfill},
    {NULL, NULL},
};
