#include "base/check.h"
#include "engine/text/jinja/jinja_filters.h"
#include "engine/text/jinja/jinja_parser.h"
#include "engine/text/jinja/jinja_tests.h"
#include "engine/text/jinja/jinja_text.h"

static enum status parse_unary(struct jinja_parser *p, bool with_filter, struct jinja_node **out);

static enum status binary(struct jinja_parser *p, enum jinja_node_kind kind, int op,
                          struct jinja_node *a, struct jinja_node *b, struct jinja_node **out)
{
    struct jinja_node *node;

    TRY(jinja_node_new(p, kind, &node));
    node->op = op;
    node->a = a;
    node->b = b;
    node->line = a->line;
    *out = node;
    return OK;
}

static bool at_one_of(const struct jinja_parser *p, const enum jinja_tok *types, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p->tok->type == types[i])
            return true;
    return false;
}

/* Arithmetic ------------------------------------------------------------------------------ */

/* As in jinja2, ** binds tighter than * but looser than a sign, and is left-associative. */
static enum status parse_pow(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *right;

    TRY(parse_unary(p, true, out));
    while (jinja_skip(p, TOK_POW)) {
        TRY(parse_unary(p, true, &right));
        TRY(binary(p, NODE_BINARY, TOK_POW, *out, right, out));
    }
    return OK;
}

static enum status parse_product(struct jinja_parser *p, struct jinja_node **out)
{
    static const enum jinja_tok types[] = {TOK_MUL, TOK_DIV, TOK_FLOORDIV, TOK_MOD};
    struct jinja_node *right;

    TRY(parse_pow(p, out));
    while (at_one_of(p, types, 4)) {
        int op = (int)p->tok->type;
        jinja_next(p);
        TRY(parse_pow(p, &right));
        TRY(binary(p, NODE_BINARY, op, *out, right, out));
    }
    return OK;
}

static enum status parse_concat(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *first, *node;

    TRY(parse_product(p, &first));
    *out = first;
    if (p->tok->type != TOK_TILDE)
        return OK;
    TRY(jinja_node_new(p, NODE_CONCAT, &node));
    TRY(jinja_nodes_push(p, &node->args, first));
    while (jinja_skip(p, TOK_TILDE)) {
        TRY(parse_product(p, &first));
        TRY(jinja_nodes_push(p, &node->args, first));
    }
    *out = node;
    return OK;
}

static enum status parse_sum(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *right;

    TRY(parse_concat(p, out));
    while (p->tok->type == TOK_ADD || p->tok->type == TOK_SUB) {
        int op = (int)p->tok->type;
        jinja_next(p);
        TRY(parse_concat(p, &right));
        TRY(binary(p, NODE_BINARY, op, *out, right, out));
    }
    return OK;
}

/* Comparison and logic --------------------------------------------------------------------- */

/* Consume the comparison operator at the current token and return it; TOK_EOF: there is none. */
static enum jinja_tok compare_operator(struct jinja_parser *p)
{
    static const enum jinja_tok types[] = {TOK_EQ, TOK_NE, TOK_LT, TOK_LE, TOK_GT, TOK_GE};
    enum jinja_tok op = p->tok->type;

    if (at_one_of(p, types, 6)) {
        jinja_next(p);
        return op;
    }
    if (jinja_skip_name(p, "in"))
        return TOK_IN;
    if (jinja_at_name(p, "not") && p->tok[1].type == TOK_NAME &&
        jinja_str_is(p->tok[1].text, "in")) {
        jinja_next(p);
        jinja_next(p);
        return TOK_NOTIN;
    }
    return TOK_EOF;
}

static enum status parse_compare(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *compare = NULL, *operand, *right;
    enum jinja_tok op;

    TRY(parse_sum(p, out));
    while ((op = compare_operator(p)) != TOK_EOF) {
        if (!compare) {
            TRY(jinja_node_new(p, NODE_COMPARE, &compare));
            compare->a = *out;
            *out = compare;
        }
        TRY(parse_sum(p, &right));
        TRY(jinja_node_new(p, NODE_OPERAND, &operand));
        operand->op = (int)op;
        operand->a = right;
        TRY(jinja_nodes_push(p, &compare->args, operand));
    }
    return OK;
}

static enum status parse_not(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *node;

    if (!jinja_at_name(p, "not"))
        return parse_compare(p, out);
    TRY(jinja_enter(p));
    TRY(jinja_node_new(p, NODE_NOT, &node));
    jinja_next(p);
    TRY(parse_not(p, &node->a));
    *out = node;
    p->depth--;
    return OK;
}

static enum status parse_and(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *right;

    TRY(parse_not(p, out));
    while (jinja_skip_name(p, "and")) {
        TRY(parse_not(p, &right));
        TRY(binary(p, NODE_AND, 0, *out, right, out));
    }
    return OK;
}

static enum status parse_or(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *right;

    TRY(parse_and(p, out));
    while (jinja_skip_name(p, "or")) {
        TRY(parse_and(p, &right));
        TRY(binary(p, NODE_OR, 0, *out, right, out));
    }
    return OK;
}

static enum status parse_cond(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *node;

    TRY(parse_or(p, out));
    while (jinja_skip_name(p, "if")) {
        TRY(jinja_node_new(p, NODE_COND, &node));
        node->b = *out;
        TRY(parse_or(p, &node->a));
        if (jinja_skip_name(p, "else"))
            TRY(jinja_parse_expr(p, true, &node->c));
        *out = node;
    }
    return OK;
}

enum status jinja_parse_expr(struct jinja_parser *p, bool with_cond, struct jinja_node **out)
{
    TRY(jinja_enter(p));
    if (with_cond)
        TRY(parse_cond(p, out));
    else
        TRY(parse_or(p, out));
    p->depth--;
    return OK;
}

/* Primaries -------------------------------------------------------------------------------- */

static int macro_flag(const char *name)
{
    return strcmp(name, "varargs") == 0  ? MACRO_VARARGS
           : strcmp(name, "kwargs") == 0 ? MACRO_KWARGS
           : strcmp(name, "caller") == 0 ? MACRO_CALLER
                                         : 0;
}

static enum status parse_name(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_str text = p->tok->text;
    struct jinja_node *node;

    TRY(jinja_node_new(p, NODE_CONST, &node));
    if (jinja_str_is(text, "true") || jinja_str_is(text, "True")) {
        node->value = jinja_bool(true);
    } else if (jinja_str_is(text, "false") || jinja_str_is(text, "False")) {
        node->value = jinja_bool(false);
    } else if (jinja_str_is(text, "none") || jinja_str_is(text, "None")) {
        node->value = jinja_none();
    } else {
        node->kind = NODE_NAME;
        TRY(jinja_cdup(p->r, text, &node->name));
        p->macro_flags |= macro_flag(node->name);
    }
    jinja_next(p);
    *out = node;
    return OK;
}

static enum status parse_literal(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *node;

    TRY(jinja_node_new(p, NODE_CONST, &node));
    if (p->tok->type == TOK_INT)
        node->value = jinja_int(p->tok->integer);
    else if (p->tok->type == TOK_FLOAT)
        node->value = jinja_float(p->tok->real);
    else
        node->value = jinja_str(p->tok->text.p, p->tok->text.len);
    bool string = p->tok->type == TOK_STRING;
    jinja_next(p);
    while (string && p->tok->type == TOK_STRING) { /* "a" "b" is one string */
        TRY(jinja_concat(p->r, node->value.str, p->tok->text, &node->value.str));
        jinja_next(p);
    }
    *out = node;
    return OK;
}

static enum status parse_list(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *node, *item;

    TRY(jinja_node_new(p, NODE_LIST, &node));
    TRY(jinja_expect(p, TOK_LBRACKET));
    while (p->tok->type != TOK_RBRACKET) {
        if (node->args.n)
            TRY(jinja_expect(p, TOK_COMMA));
        if (p->tok->type == TOK_RBRACKET)
            break;
        TRY(jinja_parse_expr(p, true, &item));
        TRY(jinja_nodes_push(p, &node->args, item));
    }
    *out = node;
    return jinja_expect(p, TOK_RBRACKET);
}

static enum status parse_dict(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *node, *item;

    TRY(jinja_node_new(p, NODE_DICT, &node));
    TRY(jinja_expect(p, TOK_LBRACE));
    while (p->tok->type != TOK_RBRACE) {
        if (node->args.n)
            TRY(jinja_expect(p, TOK_COMMA));
        if (p->tok->type == TOK_RBRACE)
            break;
        TRY(jinja_parse_expr(p, true, &item));
        TRY(jinja_nodes_push(p, &node->args, item));
        TRY(jinja_expect(p, TOK_COLON));
        TRY(jinja_parse_expr(p, true, &item));
        TRY(jinja_nodes_push(p, &node->more, item));
    }
    *out = node;
    return jinja_expect(p, TOK_RBRACE);
}

enum status jinja_parse_primary(struct jinja_parser *p, struct jinja_node **out)
{
    switch (p->tok->type) {
    case TOK_NAME: return parse_name(p, out);
    case TOK_STRING:
    case TOK_INT:
    case TOK_FLOAT: return parse_literal(p, out);
    case TOK_LPAREN:
        jinja_next(p);
        TRY(jinja_parse_tuple(p, true, true, NULL, out));
        return jinja_expect(p, TOK_RPAREN);
    case TOK_LBRACKET: return parse_list(p, out);
    case TOK_LBRACE: return parse_dict(p, out);
    default: return jinja_unexpected(p, "an expression");
    }
}

static bool tuple_end(const struct jinja_parser *p, const char *end_name)
{
    return p->tok->type == TOK_VAR_END || p->tok->type == TOK_BLOCK_END ||
           p->tok->type == TOK_RPAREN || (end_name && jinja_at_name(p, end_name));
}

enum status jinja_parse_tuple(struct jinja_parser *p, bool with_cond, bool parentheses,
                              const char *end_name, struct jinja_node **out)
{
    struct jinja_node *tuple, *item = NULL;
    bool comma = false;

    TRY(jinja_node_new(p, NODE_TUPLE, &tuple));
    while (!tuple_end(p, end_name)) {
        TRY(jinja_parse_expr(p, with_cond, &item));
        TRY(jinja_nodes_push(p, &tuple->args, item));
        if (!jinja_skip(p, TOK_COMMA))
            break;
        comma = true;
    }
    if (!comma && !item && !parentheses)
        return jinja_unexpected(p, "an expression");
    *out = comma || !item ? tuple : item;
    return OK;
}

/* Postfix: subscripts, calls, filters, tests ------------------------------------------------ */

/* Parse a:b:c, each part optional. The current token is behind '[' or behind the first part. */
static enum status parse_slice(struct jinja_parser *p, struct jinja_node **out)
{
    struct jinja_node *slice, *start = NULL;

    if (p->tok->type != TOK_COLON) {
        TRY(jinja_parse_expr(p, true, &start));
        *out = start;
        if (p->tok->type != TOK_COLON)
            return OK;
    }
    TRY(jinja_node_new(p, NODE_SLICE, &slice));
    slice->a = start;
    TRY(jinja_expect(p, TOK_COLON));
    if (p->tok->type != TOK_COLON && p->tok->type != TOK_RBRACKET)
        TRY(jinja_parse_expr(p, true, &slice->b));
    if (jinja_skip(p, TOK_COLON) && p->tok->type != TOK_RBRACKET)
        TRY(jinja_parse_expr(p, true, &slice->c));
    *out = slice;
    return OK;
}

static enum status parse_dot(struct jinja_parser *p, struct jinja_node *on, struct jinja_node **out)
{
    struct jinja_node *node, *index;

    TRY(jinja_node_new(p, NODE_GETATTR, &node));
    TRY(jinja_expect(p, TOK_DOT));
    node->a = on;
    *out = node;
    if (p->tok->type != TOK_INT)
        return jinja_expect_name(p, &node->name);
    TRY(parse_literal(p, &index));
    node->kind = NODE_GETITEM;
    node->b = index;
    return OK;
}

static enum status parse_subscript(struct jinja_parser *p, struct jinja_node *on,
                                   struct jinja_node **out)
{
    struct jinja_node *node;

    if (p->tok->type == TOK_DOT)
        return parse_dot(p, on, out);
    TRY(jinja_node_new(p, NODE_GETITEM, &node));
    TRY(jinja_expect(p, TOK_LBRACKET));
    node->a = on;
    TRY(parse_slice(p, &node->b));
    *out = node;
    return jinja_expect(p, TOK_RBRACKET);
}

static enum status parse_keyword(struct jinja_parser *p, struct jinja_node *call)
{
    struct jinja_node *keyword;

    TRY(jinja_node_new(p, NODE_KEYWORD, &keyword));
    TRY(jinja_expect_name(p, &keyword->name));
    TRY(jinja_expect(p, TOK_ASSIGN));
    TRY(jinja_parse_expr(p, true, &keyword->a));
    return jinja_nodes_push(p, &call->more, keyword);
}

static enum status parse_arg(struct jinja_parser *p, struct jinja_node *call)
{
    struct jinja_node *arg;

    if (p->tok->type == TOK_NAME && p->tok[1].type == TOK_ASSIGN && !call->c)
        return parse_keyword(p, call);
    if (p->tok->type == TOK_MUL && !call->b && !call->c) {
        jinja_next(p);
        return jinja_parse_expr(p, true, &call->b);
    }
    if (p->tok->type == TOK_POW && !call->c) {
        jinja_next(p);
        return jinja_parse_expr(p, true, &call->c);
    }
    if (call->b || call->c || call->more.n)
        return jinja_unexpected(p, "a keyword argument");
    TRY(jinja_parse_expr(p, true, &arg));
    return jinja_nodes_push(p, &call->args, arg);
}

/* Parse "(args)" into the args, more, b and c of `call`. */
static enum status parse_args(struct jinja_parser *p, struct jinja_node *call)
{
    TRY(jinja_expect(p, TOK_LPAREN));
    while (p->tok->type != TOK_RPAREN) {
        TRY(parse_arg(p, call));
        if (!jinja_skip(p, TOK_COMMA))
            break;
    }
    return jinja_expect(p, TOK_RPAREN);
}

static enum status parse_call(struct jinja_parser *p, struct jinja_node *on,
                              struct jinja_node **out)
{
    struct jinja_node *node;

    TRY(jinja_node_new(p, NODE_CALL, &node));
    node->a = on;
    *out = node;
    return parse_args(p, node);
}

/* Names such as "a.b" exist only for filters of extensions; they are read so that the error can
 * name them. */
static enum status parse_dotted_name(struct jinja_parser *p, const char **out)
{
    struct jinja_str name;
    const char *part;

    TRY(jinja_expect_name(p, out));
    while (jinja_skip(p, TOK_DOT)) {
        TRY(jinja_expect_name(p, &part));
        name = (struct jinja_str){*out, strlen(*out)};
        TRY(jinja_concat(p->r, name, (struct jinja_str){".", 1}, &name));
        TRY(jinja_concat(p->r, name, (struct jinja_str){part, strlen(part)}, &name));
        TRY(jinja_cdup(p->r, name, out));
    }
    return OK;
}

enum status jinja_parse_filters(struct jinja_parser *p, struct jinja_node *in, bool inline_start,
                                struct jinja_node **out)
{
    struct jinja_node *node;

    *out = in;
    while (inline_start || jinja_skip(p, TOK_PIPE)) {
        inline_start = false;
        TRY(jinja_node_new(p, NODE_FILTER, &node));
        TRY(parse_dotted_name(p, &node->name));
        node->filter = jinja_filter_find(node->name);
        if (!node->filter && !p->soft)
            return jinja_fail(p->r, ERR_UNSUPPORTED, "unknown filter '%s'", node->name);
        if (p->tok->type == TOK_LPAREN)
            TRY(parse_args(p, node));
        node->a = *out;
        *out = node;
    }
    return OK;
}

/* Whether an argument without parentheses follows, as in "x is divisibleby 3". More lenient than
 * jinja2, which takes the `if` of "a is defined if b" as the argument and then fails. */
static bool at_test_argument(const struct jinja_parser *p)
{
    static const char *const keywords[] = {"else", "or", "and", "is", "if", "in", "not"};
    static const enum jinja_tok types[] = {TOK_NAME,  TOK_STRING,   TOK_INT,
                                           TOK_FLOAT, TOK_LBRACKET, TOK_LBRACE};

    for (size_t i = 0; i < ARRAY_SIZE(keywords); i++)
        if (jinja_at_name(p, keywords[i]))
            return false;
    return at_one_of(p, types, ARRAY_SIZE(types));
}

static enum status parse_postfix(struct jinja_parser *p, struct jinja_node **node);

static enum status parse_test(struct jinja_parser *p, struct jinja_node *on,
                              struct jinja_node **out)
{
    struct jinja_node *node, *not_node, *arg;

    jinja_next(p); /* is */
    bool negated = jinja_skip_name(p, "not");
    TRY(jinja_node_new(p, NODE_TEST, &node));
    TRY(parse_dotted_name(p, &node->name));
    node->test = jinja_test_find(node->name);
    if (!node->test && !p->soft)
        return jinja_fail(p->r, ERR_UNSUPPORTED, "unknown test '%s'", node->name);
    node->a = on;
    *out = node;
    if (p->tok->type == TOK_LPAREN) {
        TRY(parse_args(p, node));
    } else if (at_test_argument(p)) {
        TRY(jinja_parse_primary(p, &arg));
        TRY(parse_postfix(p, &arg));
        TRY(jinja_nodes_push(p, &node->args, arg));
    }
    if (!negated)
        return OK;
    TRY(jinja_node_new(p, NODE_NOT, &not_node));
    not_node->a = node;
    *out = not_node;
    return OK;
}

static enum status parse_postfix(struct jinja_parser *p, struct jinja_node **node)
{
    for (;;) {
        if (p->tok->type == TOK_DOT || p->tok->type == TOK_LBRACKET)
            TRY(parse_subscript(p, *node, node));
        else if (p->tok->type == TOK_LPAREN)
            TRY(parse_call(p, *node, node));
        else
            return OK;
    }
}

static enum status parse_filter_expr(struct jinja_parser *p, struct jinja_node **node)
{
    for (;;) {
        if (p->tok->type == TOK_PIPE)
            TRY(jinja_parse_filters(p, *node, false, node));
        else if (jinja_at_name(p, "is"))
            TRY(parse_test(p, *node, node));
        else if (p->tok->type == TOK_LPAREN)
            TRY(parse_call(p, *node, node));
        else
            return OK;
    }
}

static enum status parse_unary(struct jinja_parser *p, bool with_filter, struct jinja_node **out)
{
    struct jinja_node *node;

    TRY(jinja_enter(p));
    if (p->tok->type == TOK_SUB || p->tok->type == TOK_ADD) {
        TRY(jinja_node_new(p, p->tok->type == TOK_SUB ? NODE_NEG : NODE_POS, &node));
        jinja_next(p);
        TRY(parse_unary(p, false, &node->a));
        *out = node;
    } else {
        TRY(jinja_parse_primary(p, out));
    }
    TRY(parse_postfix(p, out));
    if (with_filter)
        TRY(parse_filter_expr(p, out));
    p->depth--;
    return OK;
}
