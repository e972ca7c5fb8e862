/* tokenizer_normalize.c - the normalizers of tokenizer.json.
 *
 * Sequences, and BertNormalizer, are flattened into one list of steps. Unicode normalization uses
 * utf8proc's decomposition and composition but sorts combining marks itself: utf8proc's sort is
 * quadratic, and a text may consist of nothing but marks. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/check.h"
#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/tokenizer_utf8.h"

enum step_kind { STEP_PREPEND, STEP_REPLACE, STEP_UNICODE, STEP_STRIP, STEP_MAP, STEP_CHARSMAP };

struct step {
    enum step_kind kind;
    char *text; /* text to prepend, or the replacement */
    size_t text_len;
    struct tok_regex *pattern;
    bool shrinks; /* REPLACE: the content may be shorter than the text it replaces */
    int options;  /* of utf8proc */
    bool left, right;
    unsigned (*map)(uint32_t c, uint32_t *out); /* one of tok_map_* */
    struct tok_charsmap *charsmap;
};

struct tok_normalizer {
    struct step steps[TOK_N_STEPS_MAX];
    size_t n_steps;
};

/* The four forms map a character of at most 4 bytes to at least one byte, and compose at most 4
 * characters into one. Factors up to 4 are known; 8 leaves a margin. */
#define UNICODE_SHRINKS 8

/* ---- loading ---- */

static enum status take_text(struct step *step, const struct json *node, const char *key,
                             const char *where, struct buf *why)
{
    const struct json *text = js_get_set(node, key);

    if (!text || !js_is(text, JS_STRING))
        return buf_why(why, ERR_INVALID, "%s.%s: expected a string", where, key);
    const char *s = js_string(text, &step->text_len);
    step->text = malloc(step->text_len + 1);
    if (!step->text)
        return ERR_NOMEM;
    memcpy(step->text, s, step->text_len + 1);
    return OK;
}

static enum status load_replace(struct step *step, const struct json *node, const char *where,
                                struct buf *why)
{
    step->kind = STEP_REPLACE;
    enum status s = take_text(step, node, "content", where, why);
    if (s != OK)
        return s;
    const struct json *pattern = js_get(node, "pattern"), *literal = js_get(pattern, "String");
    size_t len = SIZE_MAX;
    if (js_is(literal, JS_STRING))
        js_string(literal, &len);
    step->shrinks = len > step->text_len;
    return tok_regex_from_json(&step->pattern, pattern, where, why);
}

static enum status load_strip(struct step *step, const struct json *node, struct buf *why)
{
    *step = (struct step){.kind = STEP_STRIP, .left = true, .right = true};
    enum status s = js_get_bool(node, "strip_left", &step->left, why);
    return s == OK ? js_get_bool(node, "strip_right", &step->right, why) : s;
}

static int unicode_options(const char *type)
{
    static const struct {
        const char *name;
        int options;
    } forms[] = {
        {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
        {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
        {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
        {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
    };

    for (size_t i = 0; i < ARRAY_SIZE(forms); i++)
        if (strcmp(type, forms[i].name) == 0)
            return forms[i].options;
    return 0;
}

static enum status add_step(struct tok_normalizer *n, struct step **out, enum step_kind kind,
                            struct buf *why)
{
    if (n->n_steps == TOK_N_STEPS_MAX)
        return buf_why(why, ERR_UNSUPPORTED, "normalizer: more than %d steps", TOK_N_STEPS_MAX);
    *out = &n->steps[n->n_steps++];
    (*out)->kind = kind;
    return OK;
}

static enum status add_map(struct tok_normalizer *n, unsigned (*map)(uint32_t, uint32_t *),
                           struct buf *why)
{
    struct step *step = NULL;
    enum status s = add_step(n, &step, STEP_MAP, why);

    if (s == OK)
        step->map = map;
    return s;
}

static enum status add_unicode(struct tok_normalizer *n, const char *form, struct buf *why)
{
    struct step *step = NULL;
    enum status s = add_step(n, &step, STEP_UNICODE, why);

    if (s == OK)
        step->options = unicode_options(form);
    return s;
}

/* strip_accents null: accents are removed if the text is lowercased. */
static enum status load_bert(struct tok_normalizer *n, const struct json *node, struct buf *why)
{
    bool clean = true, chinese = true, lowercase = true;
    enum status s = js_get_bool(node, "clean_text", &clean, why);

    if (s == OK)
        s = js_get_bool(node, "handle_chinese_chars", &chinese, why);
    if (s == OK)
        s = js_get_bool(node, "lowercase", &lowercase, why);
    bool strip = lowercase;
    if (s == OK)
        s = js_get_bool(node, "strip_accents", &strip, why);
    if (s == OK && clean)
        s = add_map(n, tok_map_clean, why);
    if (s == OK && chinese)
        s = add_map(n, tok_map_chinese, why);
    if (s == OK && strip)
        s = add_unicode(n, "NFD", why);
    if (s == OK && strip)
        s = add_map(n, tok_map_no_accent, why);
    return s == OK && lowercase ? add_map(n, tok_map_lowercase, why) : s;
}

static enum status load_charsmap(struct tok_normalizer *n, const struct json *node, struct buf *why)
{
    const char *base64 = NULL;
    size_t len = 0;
    struct step *step = NULL;
    enum status s = js_get_str(node, "precompiled_charsmap", &base64, &len, why);

    if (s == OK && !base64)
        s = buf_why(why, ERR_INVALID, "normalizer.precompiled_charsmap: expected a string");
    if (s == OK)
        s = add_step(n, &step, STEP_CHARSMAP, why);
    return s == OK ? tok_charsmap_create(&step->charsmap, base64, len, why) : s;
}

/* The types that are one step with fields to read. */
static enum status load_with_fields(struct tok_normalizer *n, const char *type,
                                    const struct json *node, struct buf *why)
{
    static const struct {
        const char *name;
        enum step_kind kind;
    } kinds[] = {{"Prepend", STEP_PREPEND}, {"Replace", STEP_REPLACE}, {"Strip", STEP_STRIP}};
    struct step *step = NULL;

    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        if (strcmp(type, kinds[i].name) != 0)
            continue;
        enum status s = add_step(n, &step, kinds[i].kind, why);
        if (s != OK)
            return s;
        switch (kinds[i].kind) {
        case STEP_PREPEND: return take_text(step, node, "prepend", "normalizer", why);
        case STEP_REPLACE: return load_replace(step, node, "normalizer", why);
        default: return load_strip(step, node, why);
        }
    }
    return buf_why(why, ERR_UNSUPPORTED, "normalizer: type %s is not supported", type);
}

static enum status load_step(struct tok_normalizer *n, const char *type, const struct json *node,
                             struct buf *why)
{
    static const struct {
        const char *name;
        unsigned (*map)(uint32_t c, uint32_t *out);
    } maps[] = {
        {"Lowercase", tok_map_lowercase}, {"StripAccents", tok_map_no_mark}, {"Nmt", tok_map_nmt}};

    for (size_t i = 0; i < ARRAY_SIZE(maps); i++)
        if (strcmp(type, maps[i].name) == 0)
            return add_map(n, maps[i].map, why);
    if (unicode_options(type))
        return add_unicode(n, type, why);
    if (strcmp(type, "BertNormalizer") == 0)
        return load_bert(n, node, why);
    if (strcmp(type, "Precompiled") == 0)
        return load_charsmap(n, node, why);
    return load_with_fields(n, type, node, why);
}

/* The recursion is bounded by the nesting limit of json.h. */
static enum status load_node(struct tok_normalizer *n, const struct json *node, struct buf *why)
{
    const char *type;
    enum status s = tok_node_type(node, "normalizer", &type, why);

    if (s != OK)
        return s;
    if (strcmp(type, "Sequence") == 0) {
        const struct json *list = js_get(node, "normalizers");
        if (!js_is(list, JS_ARRAY))
            return buf_why(why, ERR_INVALID, "normalizer.normalizers: expected an array");
        for (size_t i = 0; i < js_len(list) && s == OK; i++)
            s = load_node(n, js_at(list, i), why);
        return s;
    }
    return load_step(n, type, node, why);
}

enum status tok_normalizer_load(struct tok_normalizer **out, const struct json *node,
                                struct buf *why)
{
    *out = NULL;
    if (js_is(node, JS_NULL))
        return OK;
    struct tok_normalizer *n = calloc(1, sizeof *n);
    if (!n)
        return ERR_NOMEM;
    enum status s = load_node(n, node, why);
    if (s == OK)
        *out = n;
    else
        tok_normalizer_destroy(n);
    return s;
}

void tok_normalizer_destroy(struct tok_normalizer *n)
{
    if (!n)
        return;
    for (size_t i = 0; i < n->n_steps; i++) {
        free(n->steps[i].text);
        tok_regex_destroy(n->steps[i].pattern);
        tok_charsmap_destroy(n->steps[i].charsmap);
    }
    free(n);
}

/* ---- Unicode forms ---- */

/* Whether every character is below U+0300, whose first byte is 0xCC. NFC changes none of these. */
static bool is_surely_nfc(const struct buf *text)
{
    for (size_t i = 0; i < text->len; i++)
        if ((unsigned char)text->data[i] >= 0xcc)
            return false;
    return true;
}

static bool is_ascii(const struct buf *text)
{
    for (size_t i = 0; i < text->len; i++)
        if ((unsigned char)text->data[i] & 0x80)
            return false;
    return true;
}

/* Hugging Face normalizes by the tables of Unicode 9, utf8proc 2.8 by those of Unicode 14. These
 * characters got a combining class or a decomposition in between; models were trained with texts
 * that keep them as they are. */
static const uint32_t newer_than_unicode9[][2] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},
    {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},
    {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x10781, 0x10785}, {0x10787, 0x107b0},
    {0x107b2, 0x107ba}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10f46, 0x10f50},
    {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e},
    {0x11839, 0x1183a}, {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943},
    {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99},
    {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x16ff0, 0x16ff1},
    {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1f16c, 0x1f16c},
    {0x1fbf0, 0x1fbf9},
};

static bool is_left_alone(uint32_t c)
{
    size_t low = 0, high = ARRAY_SIZE(newer_than_unicode9);

    if (c < newer_than_unicode9[0][0])
        return false;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (c > newer_than_unicode9[mid][1])
            low = mid + 1;
        else
            high = mid;
    }
    return low < ARRAY_SIZE(newer_than_unicode9) && c >= newer_than_unicode9[low][0];
}

static enum status decompose(struct tok_vec *out, const struct buf *text, int options)
{
    const char *s = text->data, *end = text->data + text->len;
    utf8proc_int32_t part[64]; /* the longest known decomposition has 18 */
    int boundary = 0;

    while (s < end) {
        utf8proc_int32_t c = (utf8proc_int32_t)utf8_next(&s);
        utf8proc_ssize_t n = 1;
        if (is_left_alone((uint32_t)c))
            part[0] = c;
        else
            n = utf8proc_decompose_char(c, part, 64, (utf8proc_option_t)options, &boundary);
        if (n < 0 || n > 64)
            return ERR_INTERNAL;
        for (utf8proc_ssize_t i = 0; i < n; i++) {
            enum status st = tok_push(out, (uint32_t)part[i]);
            if (st != OK)
                return st;
        }
    }
    return OK;
}

static unsigned combining_class(uint32_t c)
{
    if (c < 0x300 || is_left_alone(c))
        return 0;
    return (unsigned)utf8proc_get_property((utf8proc_int32_t)c)->combining_class;
}

/* Stable counting sort of marks[0..n) by combining class. */
static void sort_marks(uint32_t *marks, uint32_t *spare, size_t n)
{
    size_t first[257] = {0};

    for (size_t i = 0; i < n; i++)
        first[(combining_class(marks[i]) & 0xff) + 1]++;
    for (size_t c = 0; c < 256; c++)
        first[c + 1] += first[c];
    for (size_t i = 0; i < n; i++)
        spare[first[combining_class(marks[i]) & 0xff]++] = marks[i];
    memcpy(marks, spare, n * sizeof *marks);
}

static void insert_marks(uint32_t *marks, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        uint32_t c = marks[i];
        size_t j = i;
        for (; j > 0 && combining_class(marks[j - 1]) > combining_class(c); j--)
            marks[j] = marks[j - 1];
        marks[j] = c;
    }
}

/* Put the text in canonical order: sort each run of marks (class not 0) by class. */
static enum status order_marks(struct tok_vec *text)
{
    uint32_t *spare = NULL;
    enum status s = OK;

    for (size_t i = 0; i < text->n && s == OK; i++) {
        size_t run = i;
        while (run < text->n && combining_class(text->v[run]) != 0)
            run++;
        if (run - i > 1 && run - i <= 16) {
            insert_marks(text->v + i, run - i);
        } else if (run - i > 16) {
            spare = spare ? spare : malloc(text->n * sizeof *spare);
            if (spare)
                sort_marks(text->v + i, spare, run - i);
            else
                s = ERR_NOMEM;
        }
        i = run;
    }
    free(spare);
    return s;
}

static enum status write_text(struct buf *text, const uint32_t *v, size_t n)
{
    buf_reset(text);
    enum status s = buf_reserve(text, n);
    for (size_t i = 0; i < n && s == OK; i++) {
        char utf8[4];
        s = buf_append(text, utf8, utf8_put(utf8, v[i]));
    }
    return s;
}

static enum status run_unicode(const struct step *step, struct buf *text);

/* ---- Unicode forms of a text with marked bytes ----
 *
 * An ASCII character never changes the text before it, so the text is normalized in chunks that
 * begin at one. Inside a chunk, the pieces between the borders of the marks are normalized
 * separately. If that gives another text than normalizing the chunk as a whole, characters on both
 * sides of a border were combined, and the whole chunk counts as marked. */

struct marked_text {
    const struct step *step;
    const char *text;
    struct buf out;
    struct range_map *map;
};

/* Append the normal form of s[0..len) to *out. */
static enum status append_normalized(const struct step *step, const char *s, size_t len,
                                     struct buf *out)
{
    struct buf piece;

    buf_init(&piece, out->max);
    enum status st = buf_append(&piece, s, len);
    if (st == OK)
        st = run_unicode(step, &piece);
    if (st == OK)
        st = buf_append(out, buf_str(&piece), piece.len);
    buf_fini(&piece);
    return st;
}

/* The end of the piece at text[at]: the next border of a mark, at most `end`. *i: index of the
 * first mark that ends behind `at`. */
static size_t piece_end(const struct ranges *marks, size_t *i, size_t at, size_t end)
{
    while (*i < marks->n && marks->v[*i].end <= at)
        (*i)++;
    if (*i == marks->n || marks->v[*i].begin >= end)
        return end;
    if (marks->v[*i].begin > at)
        return marks->v[*i].begin;
    return marks->v[*i].end < end ? marks->v[*i].end : end;
}

static enum status run_unicode_chunk(struct marked_text *m, size_t from, size_t to)
{
    size_t n_before = m->out.len, mark = m->map->i;
    struct tok_vec ends = {0}; /* pairs: a piece's end in the text, and its end in `apart` */
    struct buf apart;
    enum status s = append_normalized(m->step, m->text + from, to - from, &m->out);

    buf_init(&apart, m->out.max);
    for (size_t at = from, end; s == OK && at < to; at = end) {
        end = piece_end(m->map->from, &mark, at, to);
        s = append_normalized(m->step, m->text + at, end - at, &apart);
        if (s == OK)
            s = tok_push(&ends, (uint32_t)end);
        if (s == OK)
            s = tok_push(&ends, (uint32_t)apart.len);
    }
    bool same = s == OK && apart.len == m->out.len - n_before &&
                memcmp(buf_str(&apart), m->out.data + n_before, apart.len) == 0;
    for (size_t i = 0; s == OK && same && i < ends.n; i += 2)
        s = range_map_replace(m->map, ends.v[i], ends.v[i + 1] - (i ? ends.v[i - 1] : 0));
    if (s == OK && !same)
        s = range_map_replace(m->map, to, m->out.len - n_before);
    buf_fini(&apart);
    tok_vec_fini(&ends);
    return s;
}

static enum status run_unicode_marked(const struct step *step, struct buf *text,
                                      struct range_map *map)
{
    struct marked_text m = {.step = step, .text = buf_str(text), .map = map};
    const char *t = m.text;
    size_t len = text->len;
    enum status s = OK;

    buf_init(&m.out, text->max);
    for (size_t at = 0, end; s == OK && at < len; at = end) {
        for (end = at; end < len && !(t[end] & 0x80) && (end + 1 == len || !(t[end + 1] & 0x80));)
            end++; /* ASCII followed by ASCII does not change */
        if (end > at) {
            s = buf_append(&m.out, t + at, end - at);
            if (s == OK)
                s = range_map_copy(map, end);
            continue;
        }
        for (end = at + 1; end < len && (t[end] & 0x80);)
            end++;
        s = run_unicode_chunk(&m, at, end);
    }
    if (s == OK) {
        struct buf old = *text;
        *text = m.out;
        m.out = old;
    }
    buf_fini(&m.out);
    return s;
}

static enum status run_unicode(const struct step *step, struct buf *text)
{
    struct tok_vec chars = {0};
    bool composes = step->options & UTF8PROC_COMPOSE, compat = step->options & UTF8PROC_COMPAT;

    if (is_ascii(text) || (composes && !compat && is_surely_nfc(text)))
        return OK;
    enum status s = decompose(&chars, text, step->options);
    if (s == OK)
        s = order_marks(&chars);
    if (s == OK && composes) {
        utf8proc_ssize_t n =
            utf8proc_normalize_utf32((utf8proc_int32_t *)chars.v, (utf8proc_ssize_t)chars.n,
                                     (utf8proc_option_t)step->options);
        if (n < 0)
            s = ERR_INTERNAL;
        else
            chars.n = (size_t)n;
    }
    if (s == OK)
        s = write_text(text, chars.v, chars.n);
    tok_vec_fini(&chars);
    return s;
}

/* ---- the other steps ---- */

static enum status run_prepend(const struct step *step, struct buf *text, struct range_map *map)
{
    if (text->len == 0)
        return OK;
    enum status s = buf_reserve(text, step->text_len);
    if (s == OK)
        s = range_map_replace(map, 0, step->text_len);
    if (s != OK)
        return s;
    memmove(text->data + step->text_len, text->data, text->len + 1);
    memcpy(text->data, step->text, step->text_len);
    text->len += step->text_len;
    return OK;
}

static enum status replace_all(const struct step *step, struct tok_find *find,
                               const struct buf *text, struct buf *out, struct range_map *map)
{
    size_t copied = 0, from = 0, start, end;
    enum status s = OK;

    while (s == OK && from <= text->len) {
        s = tok_find_next(find, buf_str(text), text->len, from, &start, &end);
        if (s == ERR_NOT_FOUND)
            break;
        if (s == OK)
            s = buf_append(out, text->data + copied, start - copied);
        if (s == OK)
            s = buf_append(out, step->text, step->text_len);
        if (s == OK)
            s = range_map_copy(map, start);
        if (s == OK)
            s = range_map_replace(map, end, step->text_len);
        if (s != OK)
            return s;
        copied = end;
        from = end;
        if (start == end) /* an empty match: skip one character */
            from = end < text->len ? end + utf8_size(text->data[end]) : text->len + 1;
    }
    if (s != OK && s != ERR_NOT_FOUND)
        return s;
    return buf_append(out, text->data + copied, text->len - copied);
}

static enum status run_replace(const struct step *step, struct buf *text, struct range_map *map)
{
    struct tok_find find;
    struct buf out;

    if (text->len == 0)
        return OK;
    enum status s = tok_find_init(&find, step->pattern);
    if (s != OK)
        return s;
    buf_init(&out, text->max);
    s = buf_reserve(&out, text->len);
    if (s == OK)
        s = replace_all(step, &find, text, &out, map);
    tok_find_fini(&find);
    if (s != OK) {
        buf_fini(&out);
        return s;
    }
    buf_fini(text);
    *text = out;
    return OK;
}

static enum status run_strip(const struct step *step, struct buf *text, struct range_map *map)
{
    const char *s = buf_str(text), *end = s + text->len, *stop = s;
    size_t left = 0, n_before = text->len;

    for (const char *p = s; step->left && p < end;) {
        if (!utf8_is_space(utf8_next(&p)))
            break;
        left = (size_t)(p - s);
    }
    buf_consume(text, left);
    if (step->right && text->len > 0) {
        s = stop = text->data;
        for (const char *p = s; p < s + text->len;)
            if (!utf8_is_space(utf8_next(&p)))
                stop = p;
        text->len = (size_t)(stop - s);
        text->data[text->len] = '\0';
    }
    enum status st = range_map_replace(map, left, 0);
    if (st == OK)
        st = range_map_copy(map, left + text->len);
    return st == OK ? range_map_replace(map, n_before, 0) : st;
}

static enum status run_map(const struct step *step, struct buf *text, struct range_map *map)
{
    const char *begin = buf_str(text);
    struct buf out;

    buf_init(&out, 2 * text->max + 1);
    enum status s = buf_reserve(&out, 2 * text->len);
    if (s != OK)
        return s;
    for (const char *p = begin, *end = p + text->len; s == OK && p < end;) {
        uint32_t chars[TOK_MAP_N_MAX];
        size_t n_before = out.len;
        unsigned n = step->map(utf8_next(&p), chars);
        for (unsigned i = 0; i < n; i++)
            out.len += utf8_put(out.data + out.len, chars[i]);
        s = range_map_replace(map, (size_t)(p - begin), out.len - n_before);
    }
    ASSERT(out.len <= 2 * text->len);
    buf_reset(text);
    if (s == OK)
        s = buf_append(text, buf_str(&out), out.len);
    buf_fini(&out);
    return s;
}

static enum status run_step(const struct step *step, struct buf *text, bool no_prefix,
                            struct range_map *map)
{
    switch (step->kind) {
    case STEP_PREPEND: return no_prefix ? OK : run_prepend(step, text, map);
    case STEP_REPLACE: return run_replace(step, text, map);
    case STEP_UNICODE:
        return map->to ? run_unicode_marked(step, text, map) : run_unicode(step, text);
    case STEP_STRIP: return run_strip(step, text, map);
    case STEP_MAP: return run_map(step, text, map);
    case STEP_CHARSMAP: return tok_charsmap_run(step->charsmap, text, map);
    }
    return ERR_INTERNAL;
}

static uint32_t step_shrinks(const struct step *step)
{
    switch (step->kind) {
    case STEP_PREPEND: return 1;
    case STEP_REPLACE: return step->shrinks ? 0 : 1;
    case STEP_UNICODE: return UNICODE_SHRINKS;
    case STEP_STRIP:
    case STEP_MAP:
    case STEP_CHARSMAP: break;
    }
    return 0;
}

uint32_t tok_normalizer_shrinks(const struct tok_normalizer *n)
{
    uint32_t all = 1;

    for (size_t i = 0; n && i < n->n_steps && all > 0; i++) {
        uint32_t one = step_shrinks(&n->steps[i]);
        if (__builtin_mul_overflow(all, one, &all))
            return 0;
    }
    return all;
}

enum status tok_normalize(const struct tok_normalizer *n, struct buf *text, bool no_prefix,
                          struct ranges *marked)
{
    struct ranges next = {0};
    enum status s = OK;

    for (size_t i = 0; n && i < n->n_steps && s == OK; i++) {
        bool maps = marked && marked->n > 0;
        struct range_map map = range_map(marked, maps ? &next : NULL);
        size_t n_before = text->len;
        s = run_step(&n->steps[i], text, no_prefix, &map);
        if (!maps || s != OK)
            continue;
        s = range_map_copy(&map, n_before); /* the rest is unchanged */
        struct ranges old = *marked;
        *marked = next;
        next = old;
        ranges_reset(&next);
    }
    ranges_fini(&next);
    return s;
}
