/* tokenizer_regex.c - patterns of tokenizer.json on PCRE2, with the meaning Oniguruma gives them.
 *
 * Hugging Face runs these patterns on Oniguruma in Ruby syntax. Where the two differ for patterns
 * that occur, the pattern is rewritten before PCRE2 sees it:
 *   \s \S   White_Space; PCRE2 would add U+180E
 *   \w \W   letters, marks, digits and connectors; PCRE2 10.42 knows no marks
 *   \h \H   a hex digit; for PCRE2 a horizontal space
 * and what has no equal is refused: nested classes, && in a class, {n,m}+. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer_internal.h"
#include "engine/tokenizer_utf8.h"

#define PATTERN_BYTES_MAX 65536
/* PCRE2's own default. Known patterns need a few steps per byte of a match; past it, the text is
 * refused rather than waited for. */
#define MATCH_LIMIT 10000000
#define HEAP_LIMIT_KIB 65536
#define JIT_STACK_BYTES_MAX (64u << 20)

#define SPACE_CLASS "\\p{Z}\\x{9}-\\x{d}\\x{85}"
#define WORD_CLASS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define HEX_CLASS "0-9A-Fa-f"

struct tok_regex {
    pcre2_code *code; /* NULL: a literal */
    bool jit;
    char *literal;
    size_t literal_len;
};

static enum status refuse(const char *where, const char *what, struct buf *why)
{
    return buf_why(why, ERR_UNSUPPORTED, "%s: %s is not supported in a pattern", where, what);
}

/* The class a shorthand stands for, or NULL to leave it to PCRE2. */
static const char *shorthand(char c)
{
    switch (c) {
    case 's': case 'S': return SPACE_CLASS;
    case 'w': case 'W': return WORD_CLASS;
    case 'h': case 'H': return HEX_CLASS;
    default: return NULL;
    }
}

static enum status rewrite_escape(struct buf *out, char c, bool in_class, const char *where,
                                  struct buf *why)
{
    const char *class = shorthand(c);

    if (!class) {
        enum status s = buf_putc(out, '\\');
        return s == OK ? buf_putc(out, c) : s;
    }
    bool negated = c >= 'A' && c <= 'Z';
    if (!in_class)
        return buf_printf(out, negated ? "[^%s]" : "[%s]", class);
    if (!negated)
        return buf_puts(out, class);
    /* A negated shorthand inside a class cannot be spelled out; [\s\S] and the like do not
     * depend on the one code point in question. */
    if (c == 'H')
        return refuse(where, "\\H inside [...]", why);
    return buf_printf(out, "\\%c", c);
}

/* p[i] is '[' inside a class: POSIX classes are common to both, nesting is Oniguruma's own. */
static bool is_posix_class(const char *p, size_t len, size_t i)
{
    return i + 1 < len && p[i + 1] == ':';
}

/* p[i] is '{' of a {n,m}+: possessive for PCRE2, a repeated repeat for Ruby. */
static bool is_possessive_count(const char *p, size_t len, size_t i)
{
    for (i++; i < len && ((p[i] >= '0' && p[i] <= '9') || p[i] == ','); i++)
        ;
    return i + 1 < len && p[i] == '}' && p[i + 1] == '+';
}

static enum status rewrite(struct buf *out, const char *p, size_t len, const char *where,
                           struct buf *why)
{
    bool in_class = false;
    size_t class_start = 0;
    enum status s = OK;

    if (len >= 2 && p[0] == '(' && p[1] == '*')
        return refuse(where, "(*VERB)", why);
    for (size_t i = 0; i < len && s == OK; i++) {
        char c = p[i];
        if (c == '\\' && i + 1 < len) {
            s = rewrite_escape(out, p[++i], in_class, where, why);
            continue;
        }
        if (in_class) {
            if (c == '[' && !is_posix_class(p, len, i))
                return refuse(where, "a class inside a class", why);
            if (c == '&' && i + 1 < len && p[i + 1] == '&')
                return refuse(where, "&& inside a class", why);
            if (c == '[') { /* copy [:name:] whole, so that its ] does not end the class */
                const char *end = memmem(p + i, len - i, ":]", 2);
                size_t n = end ? (size_t)(end - (p + i)) + 2 : 1;
                s = buf_append(out, p + i, n);
                i += n - 1;
                continue;
            }
            if (c == ']' && i > class_start)
                in_class = false;
        } else if (c == '[') {
            in_class = true;
            class_start = i + 1 < len && p[i + 1] == '^' ? i + 2 : i + 1;
        } else if (c == '{' && is_possessive_count(p, len, i)) {
            return refuse(where, "{n,m}+", why);
        }
        s = buf_putc(out, c);
    }
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
    /* Ruby's ^ and $ hold at every line, its only newline is \n. */
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
        s = buf_why(why, ERR_INVALID, "%s: pattern longer than %d bytes", where,
                    PATTERN_BYTES_MAX);
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
        return buf_why(why, ERR_INVALID, "%s.pattern: expected {\"String\": ...} or "
                       "{\"Regex\": ...}", where);
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
    /* The text was repaired before, so the UTF-8 check would only cost time. */
    if (f->re->jit)
        return pcre2_jit_match(f->re->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK,
                               f->match_data, f->match_ctx);
    return pcre2_match(f->re->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK,
                       f->match_data, f->match_ctx);
}

/* JIT code starts on 32 KiB of the machine stack; only odd texts need more, so it is made late. */
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
    const char *at = from < len ? memmem(text + from, len - from, re->literal, re->literal_len)
                                : NULL;

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
    /* \K in a lookahead can give an end before the start; nothing sensible can follow. */
    return *start <= *end && *start >= from ? OK : ERR_INVALID;
}
