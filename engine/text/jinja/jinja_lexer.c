#include "engine/text/jinja/jinja_lexer.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/hex.h"
#include "engine/text/jinja/jinja_text.h"

#define BALANCE_MAX 256 /* most nested brackets inside one tag */

struct lexer {
    struct jinja_run *r;
    const char *src;
    size_t len;
    size_t pos;
    int line;
    bool line_starting; /* the consumed text ended with a newline, or nothing was consumed */
    struct jinja_tokens *out;
    char closers[BALANCE_MAX];
    size_t n_open;
};

const char *jinja_tok_name(enum jinja_tok t)
{
    static const char *const names[] = {
        [TOK_EOF] = "end of template",
        [TOK_DATA] = "template text",
        [TOK_VAR_BEGIN] = "'{{'",
        [TOK_VAR_END] = "'}}'",
        [TOK_BLOCK_BEGIN] = "'{%'",
        [TOK_BLOCK_END] = "'%}'",
        [TOK_NAME] = "a name",
        [TOK_STRING] = "a string",
        [TOK_INT] = "an integer",
        [TOK_FLOAT] = "a float",
        [TOK_ADD] = "'+'",
        [TOK_SUB] = "'-'",
        [TOK_MUL] = "'*'",
        [TOK_DIV] = "'/'",
        [TOK_FLOORDIV] = "'//'",
        [TOK_MOD] = "'%'",
        [TOK_POW] = "'**'",
        [TOK_TILDE] = "'~'",
        [TOK_EQ] = "'=='",
        [TOK_NE] = "'!='",
        [TOK_LT] = "'<'",
        [TOK_LE] = "'<='",
        [TOK_GT] = "'>'",
        [TOK_GE] = "'>='",
        [TOK_ASSIGN] = "'='",
        [TOK_DOT] = "'.'",
        [TOK_COLON] = "':'",
        [TOK_PIPE] = "'|'",
        [TOK_COMMA] = "','",
        [TOK_SEMICOLON] = "';'",
        [TOK_LPAREN] = "'('",
        [TOK_RPAREN] = "')'",
        [TOK_LBRACKET] = "'['",
        [TOK_RBRACKET] = "']'",
        [TOK_LBRACE] = "'{'",
        [TOK_RBRACE] = "'}'",
        [TOK_IN] = "'in'",
        [TOK_NOTIN] = "'not in'",
    };
    return names[t];
}

static enum status fail(struct lexer *l, const char *message)
{
    l->r->line = l->line;
    return jinja_fail(l->r, ERR_INVALID, "%s", message);
}

static enum status push(struct lexer *l, struct jinja_token t)
{
    struct jinja_tokens *out = l->out;

    t.line = l->line;
    if (out->n == out->cap) {
        size_t cap = out->cap ? out->cap * 2 : 64;
        struct jinja_token *items;
        TRY(jinja_alloc_array(l->r, cap, sizeof *items, &items));
        if (out->n)
            memcpy(items, out->items, out->n * sizeof *items);
        out->items = items;
        out->cap = cap;
    }
    out->items[out->n++] = t;
    return OK;
}

static enum status push_data(struct lexer *l, struct jinja_str text)
{
    if (text.len == 0)
        return OK;
    return push(l, (struct jinja_token){.type = TOK_DATA, .text = text});
}

/* Consume up to `to` and count lines. */
static void advance(struct lexer *l, size_t to)
{
    if (to > l->pos)
        l->line_starting = l->src[to - 1] == '\n';
    for (; l->pos < to; l->pos++)
        l->line += l->src[l->pos] == '\n';
}

static size_t skip_space(const struct lexer *l, size_t at)
{
    uint32_t cp;

    while (at < l->len) {
        size_t n = jinja_utf8_next(l->src + at, l->len - at, &cp);
        if (!jinja_is_space(cp))
            break;
        at += n;
    }
    return at;
}

static bool looking_at(const struct lexer *l, size_t at, const char *text)
{
    size_t n = strlen(text);

    return at <= l->len && l->len - at >= n && memcmp(l->src + at, text, n) == 0;
}

static size_t find_from(const struct lexer *l, const char *text, size_t at)
{
    return jinja_find((struct jinja_str){l->src, l->len}, (struct jinja_str){text, strlen(text)},
                      at);
}

/* The text before a tag. "-" strips its end. Without a sign, the indent before a block or comment
 * that begins its line is removed (lstrip_blocks). */
static struct jinja_str text_before(const struct lexer *l, size_t end, char sign, bool variable)
{
    struct jinja_str text = {l->src + l->pos, end - l->pos};

    if (sign == '-')
        return jinja_strip(text, NULL, false, true);
    if (sign == '+' || variable)
        return text;
    const char *newline = memrchr(text.p, '\n', text.len);
    size_t start = newline ? (size_t)(newline - text.p) + 1 : 0;
    if (start == 0 && !l->line_starting)
        return text;
    struct jinja_str indent = {text.p + start, text.len - start};
    if (jinja_strip(indent, NULL, true, false).len == 0)
        text.len = start;
    return text;
}

/* The end of a tag that closes at `close` (2 bytes). "-" consumes white space; without a sign one
 * newline is consumed. */
static size_t tag_end(const struct lexer *l, size_t close, char sign, bool trim_newline)
{
    size_t end = close + 2;

    if (sign == '-')
        return skip_space(l, end);
    if (sign != '+' && trim_newline && looking_at(l, end, "\n"))
        end++;
    return end;
}

static char sign_at(const struct lexer *l, size_t at)
{
    if (at < l->len && (l->src[at] == '-' || l->src[at] == '+'))
        return l->src[at];
    return '\0';
}

/* Comments and raw ------------------------------------------------------------------------- */

static enum status lex_comment(struct lexer *l, size_t tag)
{
    char sign = sign_at(l, tag + 2);
    size_t body = tag + 2 + (sign != '\0');
    size_t close = find_from(l, "#}", body);

    if (close == SIZE_MAX) {
        advance(l, tag);
        return fail(l, "a comment is not closed");
    }
    TRY(push_data(l, text_before(l, tag, sign, false)));
    advance(l, tag_end(l, close, close > body ? sign_at(l, close - 1) : '\0', true));
    return OK;
}

/* Whether there is a `{% word %}` at `tag`; *inner_end: where it was consumed to. */
static bool word_tag(const struct lexer *l, size_t tag, const char *word, bool trim_newline,
                     char *sign, size_t *inner_end)
{
    *sign = sign_at(l, tag + 2);
    size_t at = skip_space(l, tag + 2 + (*sign != '\0'));
    if (!looking_at(l, at, word))
        return false;
    at = skip_space(l, at + strlen(word));
    char end_sign = sign_at(l, at);
    if (end_sign == '+' && !trim_newline)
        return false;
    at += end_sign != '\0';
    if (!looking_at(l, at, "%}"))
        return false;
    *inner_end = tag_end(l, at, end_sign, trim_newline);
    return true;
}

static enum status lex_raw(struct lexer *l, size_t tag, char sign, size_t body)
{
    size_t end = 0;

    TRY(push_data(l, text_before(l, tag, sign, false)));
    advance(l, body);
    for (size_t at = find_from(l, "{%", body);; at = find_from(l, "{%", at + 2)) {
        if (at == SIZE_MAX)
            return fail(l, "a raw block is not closed");
        if (!word_tag(l, at, "endraw", true, &sign, &end))
            continue;
        TRY(push_data(l, text_before(l, at, sign, false)));
        advance(l, end);
        return OK;
    }
}

/* Tokens inside a tag ---------------------------------------------------------------------- */

static bool is_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           (unsigned char)c >= 0x80;
}

/* Append the character of \xHH, \uHHHH or \UHHHHHHHH; *at is at the letter. */
static enum status hex_escape(struct lexer *l, struct jinja_str s, size_t *at, int n_digits,
                              struct jinja_out *o)
{
    uint32_t cp = 0;

    for (int i = 0; i < n_digits; i++) {
        int digit = *at < s.len ? hex_value(s.p[*at]) : -1;
        if (digit < 0)
            return fail(l, "a string holds a truncated \\x or \\u escape");
        cp = cp << 4 | (uint32_t)digit;
        (*at)++;
    }
    return jinja_put_cp(l->r, o, cp);
}

static enum status octal_escape(struct lexer *l, struct jinja_str s, size_t *at,
                                struct jinja_out *o)
{
    uint32_t cp = 0;

    for (int i = 0; i < 3 && *at < s.len && s.p[*at] >= '0' && s.p[*at] <= '7'; i++)
        cp = cp << 3 | (uint32_t)(s.p[(*at)++] - '0');
    return jinja_put_cp(l->r, o, cp);
}

/* Append one escape; s.p[*at] is the character behind the backslash. */
static enum status put_escape(struct lexer *l, struct jinja_str s, size_t *at, struct jinja_out *o)
{
    static const char from[] = "\\'\"abfnrtv";
    static const char to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = s.p[*at];
    const char *hit = c ? strchr(from, c) : NULL;

    if (c >= '0' && c <= '7')
        return octal_escape(l, s, at, o);
    (*at)++;
    if (hit)
        return jinja_put(l->r, o, &to[hit - from], 1);
    if (c == '\n') /* a line continuation */
        return OK;
    if (c == 'x' || c == 'u' || c == 'U')
        return hex_escape(l, s, at, c == 'x' ? 2 : c == 'u' ? 4 : 8, o);
    TRY(jinja_puts(l->r, o, "\\")); /* Python keeps unknown escapes */
    return jinja_put(l->r, o, &c, 1);
}

static enum status lex_string(struct lexer *l)
{
    char quote = l->src[l->pos];
    size_t end = l->pos + 1;
    bool escaped = false;
    struct jinja_out o = {0};

    for (; end < l->len && l->src[end] != quote; end++)
        if (l->src[end] == '\\') {
            escaped = true;
            end++;
        }
    if (end >= l->len)
        return fail(l, "a string is not closed");

    struct jinja_str s = {l->src + l->pos + 1, end - l->pos - 1};
    for (size_t at = 0; escaped && at < s.len;) {
        size_t run = at;
        while (run < s.len && s.p[run] != '\\')
            run++;
        TRY(jinja_put(l->r, &o, s.p + at, run - at));
        at = run + 1;
        if (run < s.len)
            TRY(put_escape(l, s, &at, &o));
    }
    if (escaped)
        s = jinja_out_value(&o).str;
    TRY(push(l, (struct jinja_token){.type = TOK_STRING, .text = s}));
    advance(l, end + 1);
    return OK;
}

static size_t skip_digits(const struct lexer *l, size_t at)
{
    while (at < l->len && ((l->src[at] >= '0' && l->src[at] <= '9') ||
                           (l->src[at] == '_' && at + 1 < l->len && l->src[at + 1] >= '0' &&
                            l->src[at + 1] <= '9')))
        at++;
    return at;
}

static bool digit_at(const struct lexer *l, size_t at)
{
    return at < l->len && l->src[at] >= '0' && l->src[at] <= '9';
}

/* End of the number at pos as a float; int_end: it is not a float. */
static size_t float_end(const struct lexer *l, size_t int_end)
{
    size_t end = int_end;

    if (l->pos > 0 && l->src[l->pos - 1] == '.') /* a.0.1: subscripts, not a float */
        return int_end;
    if (end < l->len && l->src[end] == '.' && digit_at(l, end + 1))
        end = skip_digits(l, end + 1);
    if (end < l->len && (l->src[end] | 32) == 'e') {
        size_t exp = end + 1;
        exp += exp < l->len && (l->src[exp] == '+' || l->src[exp] == '-');
        if (digit_at(l, exp))
            end = skip_digits(l, exp);
    }
    return end;
}

static enum status lex_number(struct lexer *l)
{
    char text[80];
    size_t n = 0;
    size_t int_end = skip_digits(l, l->pos);
    size_t end = float_end(l, int_end);
    int base = 10;

    if (end == int_end && l->src[l->pos] == '0' && l->pos + 2 < l->len) {
        char kind = l->src[l->pos + 1] | 32;
        base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
        if (base != 10)
            for (end = l->pos + 2; end < l->len && is_name_byte(l->src[end]);)
                end++;
    }
    for (size_t at = l->pos + (base == 10 ? 0 : 2); at < end; at++) {
        if (n + 1 >= sizeof text)
            return fail(l, "a number is too long");
        if (l->src[at] != '_')
            text[n++] = l->src[at];
    }
    text[n] = '\0';

    struct jinja_token t = {.type = end > int_end && base == 10 ? TOK_FLOAT : TOK_INT};
    char *rest;
    if (t.type == TOK_FLOAT) {
        t.real = strtod(text, &rest);
    } else {
        unsigned long long v = strtoull(text, &rest, base);
        if (v > INT64_MAX)
            return fail(l, "an integer is out of range");
        t.integer = (int64_t)v;
    }
    if (n == 0 || *rest)
        return fail(l, "a malformed number");
    TRY(push(l, t));
    advance(l, end);
    return OK;
}

static enum status lex_name(struct lexer *l)
{
    size_t end = l->pos;

    while (end < l->len && is_name_byte(l->src[end]))
        end++;
    struct jinja_str name = {l->src + l->pos, end - l->pos};
    TRY(push(l, (struct jinja_token){.type = TOK_NAME, .text = name}));
    advance(l, end);
    return OK;
}

static enum status balance(struct lexer *l, char c)
{
    static const char open[] = "([{";
    static const char close[] = ")]}";
    const char *hit = strchr(open, c);

    if (hit) {
        if (l->n_open == BALANCE_MAX) {
            l->r->line = l->line;
            return jinja_fail(l->r, ERR_TOO_LARGE, "more than %d brackets are open", BALANCE_MAX);
        }
        l->closers[l->n_open++] = close[hit - open];
    } else if (strchr(close, c)) {
        if (l->n_open == 0 || l->closers[--l->n_open] != c)
            return fail(l, "brackets do not match");
    }
    return OK;
}

static enum status lex_operator(struct lexer *l)
{
    static const struct {
        const char *text;
        enum jinja_tok type;
    } operators[] = {
        {"//", TOK_FLOORDIV}, {"**", TOK_POW},   {"==", TOK_EQ},      {"!=", TOK_NE},
        {">=", TOK_GE},       {"<=", TOK_LE},    {"+", TOK_ADD},      {"-", TOK_SUB},
        {"*", TOK_MUL},       {"/", TOK_DIV},    {"%", TOK_MOD},      {"~", TOK_TILDE},
        {"<", TOK_LT},        {">", TOK_GT},     {"=", TOK_ASSIGN},   {".", TOK_DOT},
        {":", TOK_COLON},     {"|", TOK_PIPE},   {",", TOK_COMMA},    {";", TOK_SEMICOLON},
        {"(", TOK_LPAREN},    {")", TOK_RPAREN}, {"[", TOK_LBRACKET}, {"]", TOK_RBRACKET},
        {"{", TOK_LBRACE},    {"}", TOK_RBRACE},
    };

    for (size_t i = 0; i < ARRAY_SIZE(operators); i++)
        if (looking_at(l, l->pos, operators[i].text)) {
            TRY(balance(l, l->src[l->pos]));
            TRY(push(l, (struct jinja_token){.type = operators[i].type}));
            advance(l, l->pos + strlen(operators[i].text));
            return OK;
        }
    l->r->line = l->line;
    return jinja_fail(l->r, ERR_INVALID, "unexpected character '%c'", l->src[l->pos]);
}

/* Consume the end of the tag if it is at pos; *done: it was. */
static enum status lex_tag_end(struct lexer *l, bool variable, bool *done)
{
    char sign = sign_at(l, l->pos);
    const char *close = variable ? "}}" : "%}";

    *done = false;
    if (l->n_open > 0)
        return OK;
    if (variable && sign == '+')
        sign = '\0';
    if (!looking_at(l, l->pos + (sign != '\0'), close))
        return OK;
    *done = true;
    TRY(push(l, (struct jinja_token){.type = variable ? TOK_VAR_END : TOK_BLOCK_END}));
    advance(l, tag_end(l, l->pos + (sign != '\0'), sign, !variable));
    return OK;
}

static enum status lex_tag(struct lexer *l, size_t tag, bool variable)
{
    char sign = sign_at(l, tag + 2);
    bool done;

    TRY(push_data(l, text_before(l, tag, sign, variable)));
    advance(l, tag + 2 + (sign != '\0'));
    TRY(push(l, (struct jinja_token){.type = variable ? TOK_VAR_BEGIN : TOK_BLOCK_BEGIN}));
    l->n_open = 0;
    for (;;) {
        advance(l, skip_space(l, l->pos));
        if (l->pos >= l->len)
            return fail(l, variable ? "'{{' is not closed" : "'{%' is not closed");
        TRY(lex_tag_end(l, variable, &done));
        if (done)
            return OK;
        char c = l->src[l->pos];
        if (c == '"' || c == '\'')
            TRY(lex_string(l));
        else if (c >= '0' && c <= '9')
            TRY(lex_number(l));
        else if (is_name_byte(c))
            TRY(lex_name(l));
        else
            TRY(lex_operator(l));
    }
}

/* Offset of the next "{{", "{%" or "{#" at or behind pos, or the end. */
static size_t next_tag(const struct lexer *l)
{
    for (size_t at = l->pos; at + 1 < l->len; at++)
        if (l->src[at] == '{' &&
            (l->src[at + 1] == '{' || l->src[at + 1] == '%' || l->src[at + 1] == '#'))
            return at;
    return l->len;
}

enum status jinja_lex(struct jinja_run *r, const char *source, size_t len, struct jinja_tokens *out)
{
    struct lexer l = {
        .r = r, .src = source, .len = len, .line = 1, .line_starting = true, .out = out};
    size_t body;
    char sign;

    *out = (struct jinja_tokens){0};
    while (l.pos < len) {
        size_t tag = next_tag(&l);
        if (tag == len) {
            TRY(push_data(&l, (struct jinja_str){source + l.pos, len - l.pos}));
            advance(&l, len);
        } else if (source[tag + 1] == '#') {
            TRY(lex_comment(&l, tag));
        } else if (source[tag + 1] == '%' && word_tag(&l, tag, "raw", false, &sign, &body)) {
            TRY(lex_raw(&l, tag, sign, body));
        } else {
            TRY(lex_tag(&l, tag, source[tag + 1] == '{'));
        }
    }
    return push(&l, (struct jinja_token){.type = TOK_EOF});
}
