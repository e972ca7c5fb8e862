/* tokenizer_regex.c - the patterns of tokenizer.json on PCRE2, with their meaning in Oniguruma.
 *
 * Hugging Face runs these patterns on Oniguruma in Ruby syntax. Where the two engines differ for
 * patterns that occur, the pattern is rewritten before PCRE2 compiles it:
 *   \s \S   White_Space; PCRE2 would add U+180E
 *   \w \W   letters, marks, digits and connectors; PCRE2 10.42 has no marks
 *   \h \H   a hex digit; in PCRE2 a horizontal space
 *   {n,m}+  a repeated repeat, as is {n}?; in PCRE2 a possessive and a lazy count
 *   {,m}    {0,m}
 * Constructs without an equivalent are refused: nested classes, && in a class. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/tokenizer_utf8.h"

#define PATTERN_BYTES_MAX 65536
#define N_GROUPS_MAX 250 /* open at the same time; PCRE2's own limit */
/* PCRE2's own default. Known patterns need a few steps per byte of a match. Beyond the limit the
 * text is refused, so that it cannot block a thread. */
#define MATCH_LIMIT 10000000
#define HEAP_LIMIT_KIB 65536
#define JIT_STACK_BYTES_MAX (64u << 20)

#define SPACE_CLASS "\\p{Z}\\x{9}-\\x{d}\\x{85}"
#define WORD_CLASS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define HEX_CLASS "0-9A-Fa-f"

struct tok_regex {
    pcre2_code *code; /* NULL: a literal pattern */
    bool jit;
    char *literal;
    size_t literal_len;
};

static enum status refuse(const char *where, const char *what, struct buf *why)
{
    return buf_why(why, ERR_UNSUPPORTED, "%s: %s is not supported in a pattern", where, what);
}

/* The class of a shorthand, or NULL: PCRE2's meaning is right. */
static const char *shorthand(char c)
{
    switch (c) {
    case 's':
    case 'S': return SPACE_CLASS;
    case 'w':
    case 'W': return WORD_CLASS;
    case 'h':
    case 'H': return HEX_CLASS;
    default: return NULL;
    }
}

/* One pass over a pattern. */
struct rewriter {
    const char *p;
    size_t len, i; /* i: index of the next character */
    struct buf *out;
    bool in_class;
    size_t class_start;
    size_t atom;                           /* offset in `out` of what a quantifier would repeat */
    size_t groups[N_GROUPS_MAX], n_groups; /* offsets in `out` of the open groups */
    const char *where;
    struct buf *why;
};

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* The end of the escape with the letter p[i]: \p{..}, \x{..}, \k<..>, \x41. */
static size_t escape_end(const char *p, size_t len, size_t i)
{
    char letter = p[i++], close = i < len && p[i] == '{' ? '}' : i < len && p[i] == '<' ? '>' : 0;

    if (!strchr("pPxokg", letter))
        return i;
    const char *end = close ? memchr(p + i, close, len - i) : NULL;
    if (end)
        return (size_t)(end - p) + 1;
    for (size_t n = 0; letter == 'x' && n < 2 && i < len && is_hex(p[i]); n++)
        i++;
    return i;
}

static enum status rewrite_escape(struct rewriter *r)
{
    char c = r->p[r->i + 1];
    const char *class = shorthand(c);

    if (!class) {
        size_t end = escape_end(r->p, r->len, r->i + 1), from = r->i;
        r->i = end;
        return buf_append(r->out, r->p + from, end - from);
    }
    bool negated = c >= 'A' && c <= 'Z';
    r->i += 2;
    if (!r->in_class)
        return buf_printf(r->out, negated ? "[^%s]" : "[%s]", class);
    if (!negated)
        return buf_puts(r->out, class);
    /* A negated shorthand inside a class cannot be written out, so PCRE2's meaning stays. [\s\S]
     * and the like do not depend on the one code point that differs. */
    if (c == 'H')
        return refuse(r->where, "\\H inside [...]", r->why);
    return buf_printf(r->out, "\\%c", c);
}

/* For '[' at p[i] inside a class: POSIX classes exist in both engines, nested classes only in
 * Oniguruma. */
static bool is_posix_class(const char *p, size_t len, size_t i)
{
    return i + 1 < len && p[i + 1] == ':';
}

static enum status rewrite_in_class(struct rewriter *r)
{
    const char *p = r->p + r->i;
    size_t left = r->len - r->i, n = 1;

    if (*p == '[' && !is_posix_class(r->p, r->len, r->i))
        return refuse(r->where, "a class inside a class", r->why);
    if (*p == '&' && left > 1 && p[1] == '&')
        return refuse(r->where, "&& inside a class", r->why);
    if (*p == '[') { /* copy [:name:] whole, so that its ] does not end the class */
        const char *end = memmem(p, left, ":]", 2);
        n = end ? (size_t)(end - p) + 2 : 1;
    } else if (*p == ']' && r->i > r->class_start) {
        r->in_class = false;
    }
    r->i += n;
    return buf_append(r->out, p, n);
}

/* The end of a count {n}, {n,}, {n,m} or {,m} at p[i]; 0: the brace is a plain character. */
static size_t count_end(const char *p, size_t len, size_t i, bool *is_range)
{
    size_t n_digits = 0;

    *is_range = false;
    for (i++; i < len && ((p[i] >= '0' && p[i] <= '9') || (p[i] == ',' && !*is_range)); i++) {
        *is_range |= p[i] == ',';
        n_digits += p[i] != ',';
    }
    return i < len && p[i] == '}' && n_digits > 0 ? i + 1 : 0;
}

/* Rewrite a count. In Ruby a + behind a count, and a ? behind {n}, is not part of the count but
 * repeats the counted expression. So X{1,3}+ becomes (?:X{1,3})+; PCRE2 would read it as
 * possessive, and X{3}? as lazy. */
static enum status rewrite_count(struct rewriter *r, size_t end, bool is_range)
{
    enum status s = buf_putc(r->out, '{');

    if (s == OK && r->p[r->i + 1] == ',')
        s = buf_putc(r->out, '0');
    end += is_range && end < r->len && r->p[end] == '?'; /* lazy in both engines */
    if (s == OK)
        s = buf_append(r->out, r->p + r->i + 1, end - r->i - 1);
    r->i = end;
    if (s != OK || end == r->len || !strchr("+*?{", r->p[end]))
        return s;
    s = buf_puts(r->out, "(?:)"); /* makes room; the counted atom then moves into the group */
    if (s == OK) {
        char *atom = r->out->data + r->atom;
        memmove(atom + 3, atom, r->out->len - r->atom - 4);
        memcpy(atom, "(?:", 3);
        r->out->data[r->out->len - 1] = ')';
    }
    return s;
}

/* Whether p[i] begins something that a quantifier can repeat and is not a quantifier itself. */
static bool begins_atom(char c)
{
    return !strchr("+*?{)", c) && ((unsigned char)c & 0xc0) != 0x80;
}

static enum status rewrite_one(struct rewriter *r)
{
    char c = r->p[r->i];
    bool is_range;
    size_t end = c == '{' ? count_end(r->p, r->len, r->i, &is_range) : 0;

    if (r->in_class)
        return c == '\\' && r->i + 1 < r->len ? rewrite_escape(r) : rewrite_in_class(r);
    if (end > 0)
        return rewrite_count(r, end, is_range);
    if (begins_atom(c) || c == '{')
        r->atom = r->out->len;
    if (c == '\\' && r->i + 1 < r->len)
        return rewrite_escape(r);
    if (c == '(' && r->n_groups == N_GROUPS_MAX)
        return refuse(r->where, "a group nested so deep", r->why);
    if (c == '(')
        r->groups[r->n_groups++] = r->out->len;
    if (c == ')' && r->n_groups > 0)
        r->atom = r->groups[--r->n_groups];
    if (c == '[') {
        r->in_class = true;
        r->class_start = r->i + 1 < r->len && r->p[r->i + 1] == '^' ? r->i + 2 : r->i + 1;
    }
    r->i++;
    return buf_putc(r->out, c);
}

static enum status rewrite(struct buf *out, const char *p, size_t len, const char *where,
                           struct buf *why)
{
    struct rewriter r = {.p = p, .len = len, .out = out, .where = where, .why = why};
    enum status s = OK;

    if (len >= 2 && p[0] == '(' && p[1] == '*')
        return refuse(where, "(*VERB)", why);
    while (s == OK && r.i < len)
        s = rewrite_one(&r);
    return s;
}

static enum status compile(struct tok_regex *re, const struct buf *pattern, const char *where,
                           struct buf *why)
{
    int code;
    PCRE2_SIZE at;
    pcre2_compile_context *ctx = pcre2_compile_context_create(NULL);

    if (!ctx)
        return ERR_NOMEM;
    /* In Ruby, ^ and $ match at every line, and the only newline is \n. */
    pcre2_set_newline(ctx, PCRE2_NEWLINE_LF);
    pcre2_set_max_pattern_length(ctx, PATTERN_BYTES_MAX);
    re->code = pcre2_compile((PCRE2_SPTR)buf_str(pattern), pattern->len,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                             &code, &at, ctx);
    pcre2_compile_context_free(ctx);
    if (re->code) {
        re->jit = pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE) == 0;
        return OK;
    }
    PCRE2_UCHAR words[128];
    pcre2_get_error_message(code, words, sizeof words);
    return buf_why(why, ERR_INVALID, "%s: bad pattern: %s", where, (char *)words);
}

static enum status create(struct tok_regex *re, const char *pattern, size_t len, bool literal,
                          const char *where, struct buf *why)
{
    struct buf rewritten;

    if (literal) {
        if (len == 0)
            return buf_why(why, ERR_INVALID, "%s: empty pattern", where);
        re->literal = malloc(len);
        re->literal_len = len;
        if (re->literal)
            memcpy(re->literal, pattern, len);
        return re->literal ? OK : ERR_NOMEM;
    }
    buf_init(&rewritten, PATTERN_BYTES_MAX);
    enum status s = rewrite(&rewritten, pattern, len, where, why);
    if (s == ERR_TOO_LARGE)
        s = buf_why(why, ERR_INVALID, "%s: pattern longer than %d bytes", where, PATTERN_BYTES_MAX);
    if (s == OK)
        s = compile(re, &rewritten, where, why);
    buf_fini(&rewritten);
    return s;
}

enum status tok_regex_create(struct tok_regex **out, const char *pattern, size_t len, bool literal,
                             const char *where, struct buf *why)
{
    struct tok_regex *re = calloc(1, sizeof *re);

    *out = NULL;
    if (!re)
        return ERR_NOMEM;
    enum status s = create(re, pattern, len, literal, where, why);
    if (s == OK)
        *out = re;
    else
        tok_regex_destroy(re);
    return s;
}

enum status tok_regex_from_json(struct tok_regex **out, const struct json *pattern,
                                const char *where, struct buf *why)
{
    const struct json *regex = js_get_set(pattern, "Regex");
    const struct json *literal = js_get_set(pattern, "String");
    const struct json *text = regex ? regex : literal;
    size_t len;

    *out = NULL;
    if (!text || !js_is(text, JS_STRING))
        return buf_why(why, ERR_INVALID,
                       "%s.pattern: expected {\"String\": ...} or "
                       "{\"Regex\": ...}",
                       where);
    const char *s = js_string(text, &len);
    return tok_regex_create(out, s, len, !regex, where, why);
}

void tok_regex_destroy(struct tok_regex *re)
{
    if (!re)
        return;
    pcre2_code_free(re->code);
    free(re->literal);
    free(re);
}

enum status tok_find_init(struct tok_find *f, const struct tok_regex *re)
{
    *f = (struct tok_find){.re = re};
    if (!re->code)
        return OK;
    f->match_data = pcre2_match_data_create_from_pattern(re->code, NULL);
    f->match_ctx = pcre2_match_context_create(NULL);
    if (!f->match_data || !f->match_ctx) {
        tok_find_fini(f);
        return ERR_NOMEM;
    }
    pcre2_set_match_limit(f->match_ctx, MATCH_LIMIT);
    pcre2_set_heap_limit(f->match_ctx, HEAP_LIMIT_KIB);
    return OK;
}

void tok_find_fini(struct tok_find *f)
{
    pcre2_match_data_free(f->match_data);
    pcre2_match_context_free(f->match_ctx);
    pcre2_jit_stack_free(f->jit_stack);
    *f = (struct tok_find){0};
}

static int match(const struct tok_find *f, const char *text, size_t len, size_t from)
{
    /* The text was repaired before, so a UTF-8 check would only cost time. */
    if (f->re->jit)
        return pcre2_jit_match(f->re->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK,
                               f->match_data, f->match_ctx);
    return pcre2_match(f->re->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, f->match_data,
                       f->match_ctx);
}

/* JIT code starts with 32 KiB of the machine stack. Only unusual texts need more, so a larger stack
 * is created on demand. */
static enum status grow_jit_stack(struct tok_find *f)
{
    f->jit_stack = pcre2_jit_stack_create(32768, JIT_STACK_BYTES_MAX, NULL);
    if (!f->jit_stack)
        return ERR_NOMEM;
    pcre2_jit_stack_assign(f->match_ctx, NULL, f->jit_stack);
    return OK;
}

static enum status find_literal(const struct tok_regex *re, const char *text, size_t len,
                                size_t from, size_t *start, size_t *end)
{
    const char *at =
        from < len ? memmem(text + from, len - from, re->literal, re->literal_len) : NULL;

    if (!at)
        return ERR_NOT_FOUND;
    *start = (size_t)(at - text);
    *end = *start + re->literal_len;
    return OK;
}

enum status tok_find_next(struct tok_find *f, const char *text, size_t len, size_t from,
                          size_t *start, size_t *end)
{
    if (!f->re->code)
        return find_literal(f->re, text, len, from, start, end);
    int n = match(f, text, len, from);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT && !f->jit_stack) {
        enum status s = grow_jit_stack(f);
        if (s != OK)
            return s;
        n = match(f, text, len, from);
    }
    if (n == PCRE2_ERROR_NOMATCH)
        return ERR_NOT_FOUND;
    if (n == PCRE2_ERROR_NOMEMORY)
        return ERR_NOMEM;
    if (n < 0)
        return ERR_INVALID;
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(f->match_data);
    *start = at[0];
    *end = at[1];
    /* \K in a lookahead can give an end before the start; no useful match can follow. */
    return *start <= *end && *start >= from ? OK : ERR_INVALID;
}
