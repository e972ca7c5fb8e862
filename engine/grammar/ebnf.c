/* ebnf.c - grammars as text, in two notations that differ in little: llama.cpp's GBNF
 * (name ::= ..., beginning with "root") and a part of Lark's (name: ..., beginning with "start").
 *
 *   "text"  [a-z]  .  ( ... )  a | b   a? a* a+ a{2} a{2,5}   # comment      both
 *   /regex/  "a".."z"  a~2..5  // comment  %import common.INT  %ignore WS      Lark
 *
 * A rule ends where the next one begins. In Lark, what is ignored may stand before the first
 * terminal and behind each terminal of a rule whose name is in lower case. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/hex.h"
#include "base/utf8.h"
#include "engine/grammar/front.h"

#define DEPTH_MAX 100u
#define NAMES_MAX 4096u
#define NAME_SLOTS (2 * NAMES_MAX) /* a power of two */
#define NAME_BYTES_MAX 128u
#define REPEAT_MAX 100000u
#define CODE_MAX 0x10ffffu

struct name {
    const char *text;
    size_t len;
    uint32_t rule;
    bool is_defined;
};

struct parser {
    struct exprs *e;
    const char *text;
    size_t len, at;
    bool is_lark;
    struct name *names; /* [n_names] */
    uint16_t *slots;    /* [NAME_SLOTS] numbers of names by hash, plus 1; 0: none */
    uint32_t n_names;
    bool ignores;     /* there is an %ignore */
    bool is_terminal; /* of the rule that is read */
    uint32_t gap;     /* rule: what is ignored, any number of times */
    uint32_t ignored; /* so far */
    struct buf *why;
    enum status status;
    uint32_t depth;
};

static uint32_t refuse(struct parser *p, enum status s, const char *what)
{
    uint32_t line = 1;

    for (size_t i = 0; i < p->at && i < p->len; i++)
        line += p->text[i] == '\n';
    if (p->status == OK && exprs_status(p->e) == OK)
        p->status = buf_why(p->why, s, "grammar, line %u: %s", line, what);
    return EXPR_FAILED;
}

static bool is_stopped(const struct parser *p)
{
    return p->status != OK || exprs_status(p->e) != OK;
}

/* --- words --- */

static bool has(const struct parser *p, const char *word)
{
    size_t n = strlen(word);

    return p->len - p->at >= n && memcmp(p->text + p->at, word, n) == 0;
}

static void skip_space(struct parser *p)
{
    while (p->at < p->len) {
        if (isspace((unsigned char)p->text[p->at]))
            p->at++;
        else if (p->text[p->at] == '#' || (p->is_lark && has(p, "//")))
            while (p->at < p->len && p->text[p->at] != '\n')
                p->at++;
        else
            return;
    }
}

static bool take(struct parser *p, const char *word)
{
    skip_space(p);
    if (is_stopped(p) || !has(p, word))
        return false;
    p->at += strlen(word);
    return true;
}

static bool is_name_byte(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-';
}

static size_t name_bytes(const struct parser *p, size_t at)
{
    size_t n = 0;

    while (at + n < p->len && is_name_byte(p->text[at + n]))
        n++;
    return n;
}

/* Whether a rule's name and its sign of definition come next. */
static bool at_definition(struct parser *p)
{
    size_t at, begin;

    skip_space(p);
    at = p->at;
    if (p->is_lark)
        while (at < p->len && at < p->at + 2 && (p->text[at] == '?' || p->text[at] == '!'))
            at++;
    begin = at;
    at += name_bytes(p, at);
    if (at == begin)
        return false;
    if (p->is_lark && at < p->len && p->text[at] == '.') /* a priority */
        at += 1 + name_bytes(p, at + 1);
    while (at < p->len && (p->text[at] == ' ' || p->text[at] == '\t'))
        at++;
    return p->is_lark ? at < p->len && p->text[at] == ':'
                      : p->len - at >= 3 && memcmp(p->text + at, "::=", 3) == 0;
}

/* The rule of a name; the name is noted if it is new. */
static struct name *name_of(struct parser *p, const char *text, size_t len)
{
    uint32_t at = hash_crc32c(0, text, len) % NAME_SLOTS, i;

    while ((i = p->slots[at])) {
        if (p->names[i - 1].len == len && memcmp(p->names[i - 1].text, text, len) == 0)
            return &p->names[i - 1];
        at = (at + 1) % NAME_SLOTS;
    }
    if (p->n_names == NAMES_MAX || len > NAME_BYTES_MAX) {
        refuse(p, ERR_TOO_LARGE, "too many rules, or too long a name");
        return NULL;
    }
    p->names[p->n_names] = (struct name){text, len, expr_new_rule(p->e), false};
    p->slots[at] = (uint16_t)(p->n_names + 1);
    return &p->names[p->n_names++];
}

/* --- characters --- */

static uint32_t hex(struct parser *p, uint32_t n)
{
    uint32_t code = 0;

    for (; n > 0; n--) {
        int digit = p->at < p->len ? hex_value(p->text[p->at]) : -1;
        if (digit < 0) {
            refuse(p, ERR_INVALID, "a hexadecimal number is wrong");
            return 0;
        }
        code = code * 16 + (uint32_t)digit;
        p->at++;
    }
    if (code > CODE_MAX)
        refuse(p, ERR_INVALID, "a number is no code point");
    return code;
}

/* The next character of a text or class, where a backslash escapes; there is one. */
static uint32_t next_code(struct parser *p)
{
    static const char from[] = "nrtfv0", to[] = "\n\r\t\f\v";
    uint32_t code = 0;

    if (p->text[p->at] == '\\' && p->at + 1 < p->len) {
        char letter = p->text[++p->at];
        const char *found = letter ? strchr(from, letter) : NULL;
        p->at += found || isalnum((unsigned char)letter);
        if (found)
            return (unsigned char)to[found - from];
        if (letter == 'x' || letter == 'u' || letter == 'U')
            return hex(p, letter == 'x' ? 2 : letter == 'u' ? 4 : 8);
        if (isalnum((unsigned char)letter))
            return refuse(p, ERR_UNSUPPORTED, "an escape that is not known");
    }
    size_t n = utf8_decode(p->text + p->at, p->len - p->at, &code);
    if (n == 0)
        refuse(p, ERR_INVALID, "no UTF-8");
    p->at += n ? n : 1;
    return code;
}

static uint32_t one_code(struct parser *p, uint32_t code, bool any_case)
{
    struct code_range r[2] = {{code, code}, {code, code}};

    if (any_case && code < 0x80 && isalpha((int)code))
        r[1].first = r[1].last = code ^ 32;
    return expr_class(p->e, r, 2, false);
}

/* Behind the opening quote. A single character may begin a range "a".."z". */
static uint32_t parse_text(struct parser *p)
{
    uint32_t codes[1024], n = 0, x = expr_empty(p->e);

    while (p->at < p->len && p->text[p->at] != '"' && p->text[p->at] != '\n') {
        if (n == ARRAY_SIZE(codes))
            return refuse(p, ERR_TOO_LARGE, "a text is longer than 1024 characters");
        codes[n++] = next_code(p);
    }
    if (!has(p, "\""))
        return refuse(p, ERR_INVALID, "a text has no closing quote");
    p->at++;
    if (p->is_lark && n == 1 && has(p, "..\"")) {
        p->at += 3;
        struct code_range r = {codes[0], p->at < p->len ? next_code(p) : 0};
        return take(p, "\"") && r.first <= r.last ? expr_class(p->e, &r, 1, false)
                                                  : refuse(p, ERR_INVALID, "a range is wrong");
    }
    bool any_case =
        p->is_lark && has(p, "i") && !is_name_byte(p->at + 1 < p->len ? p->text[p->at + 1] : ' ');
    p->at += any_case;
    for (uint32_t i = 0; i < n; i++)
        x = expr_seq(p->e, x, one_code(p, codes[i], any_case));
    return x;
}

/* Behind the [ of a class. */
static uint32_t parse_class(struct parser *p)
{
    struct code_range r[256];
    size_t n = 0;
    bool negated = has(p, "^");

    p->at += negated;
    while (p->at < p->len && p->text[p->at] != ']') {
        if (n == ARRAY_SIZE(r))
            return refuse(p, ERR_TOO_LARGE, "a class has too many ranges");
        r[n].first = r[n].last = next_code(p);
        if (has(p, "-") && p->at + 1 < p->len && p->text[p->at + 1] != ']') {
            p->at++;
            r[n].last = next_code(p);
        }
        if (r[n].last < r[n].first)
            return refuse(p, ERR_INVALID, "a range of a class ends before it begins");
        n++;
    }
    return take(p, "]") ? expr_class(p->e, r, n, negated) : refuse(p, ERR_INVALID, "] is missing");
}

/* Behind the opening slash of Lark's /regex/. */
static uint32_t parse_regex(struct parser *p)
{
    size_t begin = p->at;
    uint32_t x = EXPR_FAILED;

    while (p->at < p->len && p->text[p->at] != '/' && p->text[p->at] != '\n')
        p->at += p->text[p->at] == '\\' && p->at + 1 < p->len ? 2 : 1;
    if (p->at >= p->len || p->text[p->at] != '/')
        return refuse(p, ERR_INVALID, "a regular expression has no closing slash");
    enum status s = front_regex(p->e, p->text + begin, p->at - begin, 0, &x, p->why);
    p->at++;
    if (s != OK && p->status == OK)
        p->status = s;
    if (p->at < p->len && isalpha((unsigned char)p->text[p->at]))
        return refuse(p, ERR_UNSUPPORTED, "flags of a regular expression are not supported");
    return x;
}

/* --- structure --- */

static uint32_t parse_alternatives(struct parser *p);

static uint32_t parse_group(struct parser *p, const char *close)
{
    if (++p->depth > DEPTH_MAX)
        return refuse(p, ERR_TOO_LARGE, "groups are nested too deeply");
    uint32_t x = parse_alternatives(p);
    p->depth--;
    return take(p, close) ? x : refuse(p, ERR_INVALID, "a group is not closed");
}

/* A terminal of a rule; what is ignored may follow. */
static uint32_t with_gap(struct parser *p, uint32_t x)
{
    return p->ignores && !p->is_terminal ? expr_seq(p->e, x, expr_rule(p->e, p->gap)) : x;
}

static bool is_terminal_name(const char *name, size_t len)
{
    size_t i = 0;

    while (i < len && name[i] == '_')
        i++;
    return i < len && isupper((unsigned char)name[i]);
}

static uint32_t parse_name(struct parser *p, size_t len)
{
    const char *text = p->text + p->at;
    struct name *name = name_of(p, text, len);

    p->at += len;
    if (p->is_lark && has(p, "{"))
        return refuse(p, ERR_UNSUPPORTED, "templates, name{...}, are not supported");
    if (!name)
        return EXPR_FAILED;
    uint32_t x = expr_rule(p->e, name->rule);
    return is_terminal_name(text, len) ? with_gap(p, x) : x;
}

/* Notations of users of other servers; false: the text has none of them. */
static bool refuse_extension(struct parser *p)
{
    static const struct {
        const char *begin, *what;
    } rows[] = {{"<", "special tokens, <name> or <[id]>, are not supported; write their spelling"},
                {"!", "negation is not supported"},
                {"~", "negation is not supported"},
                {"&", "intersection is not supported"},
                {"%json", "%json is not supported; use a structural tag"},
                {"%regex", "%regex is not supported; write /expression/"},
                {"%lark", "%lark is not supported"},
                {"TagDispatch", "TagDispatch is not supported; use a structural tag"}};

    skip_space(p);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (has(p, rows[i].begin)) {
            refuse(p, ERR_UNSUPPORTED, rows[i].what);
            return true;
        }
    return false;
}

static uint32_t parse_atom(struct parser *p)
{
    static const struct code_range none[1];

    if (take(p, "\""))
        return with_gap(p, parse_text(p));
    if (take(p, "(")) {
        if (has(p, "="))
            return refuse(p, ERR_UNSUPPORTED, "look-ahead, (= ...), is not supported");
        return parse_group(p, ")");
    }
    if (p->is_lark && take(p, "[")) /* Lark: an optional group */
        return expr_repeat(p->e, parse_group(p, "]"), 0, 1);
    if (take(p, "["))
        return parse_class(p);
    if (p->is_lark && take(p, "/"))
        return with_gap(p, parse_regex(p));
    if (take(p, "."))
        return expr_class(p->e, none, 0, true);
    if (refuse_extension(p))
        return EXPR_FAILED;
    size_t len = name_bytes(p, p->at);
    return len ? parse_name(p, len)
               : refuse(p, ERR_INVALID, "a name, a text, a class or a group is expected");
}

static bool number(struct parser *p, uint32_t *out)
{
    skip_space(p);
    size_t begin = p->at;
    uint64_t n = 0;

    while (p->at < p->len && isdigit((unsigned char)p->text[p->at]) && n <= REPEAT_MAX)
        n = n * 10 + (uint64_t)(p->text[p->at++] - '0');
    *out = (uint32_t)n;
    return p->at > begin;
}

static uint32_t parse_bounds(struct parser *p, const char *between, const char *close, uint32_t x)
{
    uint32_t min = 0, max;
    bool has_min = number(p, &min);

    max = min;
    if (take(p, between) && !number(p, &max))
        max = EXPR_MANY;
    else if (!has_min && max == min)
        return refuse(p, ERR_INVALID, "a repetition has no bounds");
    if (!take(p, close) || min > REPEAT_MAX || (max != EXPR_MANY && max > REPEAT_MAX) || max < min)
        return refuse(p, ERR_INVALID, "the bounds of a repetition are wrong or too large");
    return expr_repeat(p->e, x, min, max);
}

static uint32_t parse_repeated(struct parser *p)
{
    uint32_t x = parse_atom(p);

    while (!is_stopped(p)) {
        if (take(p, "*"))
            x = expr_repeat(p->e, x, 0, EXPR_MANY);
        else if (take(p, "+"))
            x = expr_repeat(p->e, x, 1, EXPR_MANY);
        else if (!at_definition(p) && take(p, "?"))
            x = expr_repeat(p->e, x, 0, 1);
        else if (!p->is_lark && take(p, "{"))
            x = parse_bounds(p, ",", "}", x);
        else if (p->is_lark && take(p, "~"))
            x = parse_bounds(p, "..", "", x);
        else
            break;
    }
    return x;
}

/* Lark's lines that are no rules; a % elsewhere is an extension. */
static bool at_directive(const struct parser *p)
{
    static const char *const words[] = {"%import", "%ignore",  "%declare",   "%override",
                                        "%extend", "%grammar", "%llguidance"};

    for (size_t i = 0; p->is_lark && i < ARRAY_SIZE(words); i++)
        if (has(p, words[i]))
            return true;
    return false;
}

static bool ends_sequence(struct parser *p)
{
    skip_space(p);
    return is_stopped(p) || p->at >= p->len || strchr("|)]", p->text[p->at]) || has(p, "->") ||
           at_directive(p) || at_definition(p);
}

static uint32_t parse_sequence(struct parser *p)
{
    uint32_t x = expr_empty(p->e);

    while (!ends_sequence(p))
        x = expr_seq(p->e, x, parse_repeated(p));
    if (p->is_lark && take(p, "->")) { /* an alias: it names a tree, which nobody builds here */
        skip_space(p);
        p->at += name_bytes(p, p->at);
    }
    return x;
}

static uint32_t parse_alternatives(struct parser *p)
{
    uint32_t x = parse_sequence(p);

    while (take(p, "|"))
        x = expr_alt(p->e, x, parse_sequence(p));
    return x;
}

/* --- directives of Lark --- */

/* The terminals of Lark's own grammar `common`. */
static const struct {
    const char *name, *regex;
} common[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[a-fA-F0-9]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"NUMBER", "([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\[^\\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"},
    {"WORD", "[a-zA-Z]+"},
    {"CNAME", "[a-zA-Z_][a-zA-Z_0-9]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"SQL_COMMENT", "--[^\\n]*"},
    {"C_COMMENT", "/\\*([^*]|\\*+[^*/])*\\*+/"},
};

/* Define the name of a rule or an alias. */
static void define(struct parser *p, const char *text, size_t len, uint32_t x)
{
    struct name *name = name_of(p, text, len);

    if (name && name->is_defined)
        refuse(p, ERR_INVALID, "a rule is defined twice");
    if (!name || is_stopped(p))
        return;
    name->is_defined = true;
    expr_define(p->e, name->rule, x);
}

/* At a name of `common`; an alias may follow where may_alias. */
static void import_one(struct parser *p, bool may_alias)
{
    size_t len, i = 0;
    uint32_t x = EXPR_FAILED;

    skip_space(p);
    len = name_bytes(p, p->at);
    const char *name = p->text + p->at;
    while (i < ARRAY_SIZE(common) &&
           (strlen(common[i].name) != len || memcmp(common[i].name, name, len) != 0))
        i++;
    if (i == ARRAY_SIZE(common)) {
        refuse(p, ERR_UNSUPPORTED, "%import: no such terminal of `common` is known");
        return;
    }
    p->at += len;
    if (may_alias && take(p, "->")) {
        skip_space(p);
        name = p->text + p->at;
        len = name_bytes(p, p->at);
        p->at += len;
    }
    enum status s = front_regex(p->e, common[i].regex, strlen(common[i].regex), 0, &x, p->why);
    if (s != OK && p->status == OK)
        p->status = s;
    if (len == 0)
        refuse(p, ERR_INVALID, "%import: a name is expected behind ->");
    else
        define(p, name, len, x);
}

static void parse_import(struct parser *p)
{
    if (!take(p, "common")) {
        refuse(p, ERR_UNSUPPORTED, "%import: only terminals of `common` are supported");
    } else if (take(p, ".")) {
        import_one(p, true);
    } else if (take(p, "(")) {
        do
            import_one(p, false);
        while (take(p, ","));
        if (!take(p, ")"))
            refuse(p, ERR_INVALID, "%import: ) is missing");
    } else {
        refuse(p, ERR_INVALID, "%import: a name of `common` is expected");
    }
}

static void parse_directive(struct parser *p)
{
    if (take(p, "%import")) {
        parse_import(p);
    } else if (take(p, "%ignore")) {
        p->is_terminal = true;
        p->ignored = expr_alt(p->e, p->ignored, parse_alternatives(p));
    } else {
        refuse(p, ERR_UNSUPPORTED,
               "directives other than %import of `common` and %ignore are not supported");
    }
}

static void parse_rule(struct parser *p)
{
    if (p->is_lark && has(p, "%")) {
        parse_directive(p);
        return;
    }
    if (!at_definition(p)) {
        size_t n = name_bytes(p, p->at);
        bool has_more = p->is_lark && n > 0 && p->at + n < p->len;
        if (has_more && p->text[p->at + n] == '[')
            refuse(p, ERR_UNSUPPORTED, "attributes of rules, name[...], are not supported");
        else if (has_more && p->text[p->at + n] == '{')
            refuse(p, ERR_UNSUPPORTED, "templates, name{...}, are not supported");
        else
            refuse(p, ERR_INVALID,
                   p->is_lark ? "a rule `name: ...` is expected"
                              : "a rule `name ::= ...` is expected");
        return;
    }
    while (p->is_lark && (has(p, "?") || has(p, "!")))
        p->at++;
    size_t len = name_bytes(p, p->at);
    const char *text = p->text + p->at;
    struct name *name = name_of(p, text, len);
    if (name && name->is_defined)
        refuse(p, ERR_INVALID, "a rule is defined twice");
    p->is_terminal = is_terminal_name(text, len);
    p->at = (size_t)((const char *)memchr(p->text + p->at, ':', p->len - p->at) - p->text);
    p->at += p->is_lark ? 1 : 3;
    if (!name || is_stopped(p))
        return;
    name->is_defined = true;
    uint32_t rule = name->rule;
    expr_define(p->e, rule, parse_alternatives(p));
}

static void check_names(struct parser *p, const char *first, uint32_t *out)
{
    const struct name *root = name_of(p, first, strlen(first));

    for (uint32_t i = 0; !is_stopped(p) && i < p->n_names; i++)
        if (!p->names[i].is_defined)
            p->status = buf_why(p->why, ERR_INVALID, "grammar: rule %.*s is not defined",
                                (int)p->names[i].len, p->names[i].text);
    if (p->status != OK || !root)
        return;
    *out = expr_rule(p->e, root->rule);
    if (p->ignores) {
        expr_define(p->e, p->gap, expr_repeat(p->e, p->ignored, 0, EXPR_MANY));
        *out = expr_seq(p->e, expr_rule(p->e, p->gap), *out);
    }
}

enum status front_ebnf(struct exprs *e, const char *text, size_t len, uint32_t *out,
                       struct buf *why)
{
    struct parser p = {.e = e, .text = text, .len = len, .why = why};

    p.is_lark = memmem(text, len, "::=", 3) == NULL;
    p.names = calloc(NAMES_MAX, sizeof *p.names);
    p.slots = calloc(NAME_SLOTS, sizeof *p.slots);
    p.ignores = p.is_lark && memmem(text, len, "%ignore", 7) != NULL;
    p.ignored = expr_never(e);
    p.gap = p.ignores ? expr_new_rule(e) : 0;
    if (!p.names || !p.slots)
        p.status = buf_why(why, ERR_NOMEM, "out of memory for the grammar");
    for (skip_space(&p); !is_stopped(&p) && p.at < p.len; skip_space(&p))
        parse_rule(&p);
    if (!is_stopped(&p))
        check_names(&p, p.is_lark ? "start" : "root", out);
    free(p.names);
    free(p.slots);
    return p.status;
}

enum status front_choice(struct exprs *e, const struct json *list, uint32_t *out, struct buf *why)
{
    uint32_t x = expr_never(e);

    if (!js_is(list, JS_ARRAY) || js_len(list) == 0)
        return buf_why(why, ERR_INVALID, "a choice is a list of at least one string");
    for (size_t i = 0; i < js_len(list); i++) {
        size_t len = 0;
        if (!js_is(js_at(list, i), JS_STRING))
            return buf_why(why, ERR_INVALID, "a choice has something else than strings");
        const char *s = js_string(js_at(list, i), &len);
        x = expr_alt(e, x, expr_text(e, s, len));
    }
    *out = x;
    return OK;
}
