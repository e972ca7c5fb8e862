#include "engine/text/jinja/jinja_parser.h"

#include "engine/text/jinja/jinja_text.h"

static enum status parse_statement(struct jinja_parser *p, struct jinja_node **out);

/* Tools of both parsers -------------------------------------------------------------------- */

enum status jinja_node_new(struct jinja_parser *p, enum jinja_node_kind kind,
                           struct jinja_node **out)
{
    struct jinja_node *node;

    TRY(jinja_alloc(p->r, sizeof *node, &node));
    node->kind = kind;
    node->line = p->tok->line;
    *out = node;
    return OK;
}

enum status jinja_nodes_push(struct jinja_parser *p, struct jinja_nodes *list,
                             struct jinja_node *node)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 4;
        struct jinja_node **items;
        TRY(jinja_alloc_array(p->r, cap, sizeof *items, &items));
        if (list->n)
            memcpy(items, list->items, list->n * sizeof *items);
        list->items = items;
        list->cap = cap;
    }
    list->items[list->n++] = node;
    return OK;
}

void jinja_next(struct jinja_parser *p)
{
    if (p->tok->type != TOK_EOF)
        p->tok++;
    p->r->line = p->tok->line;
}

bool jinja_at_name(const struct jinja_parser *p, const char *name)
{
    return p->tok->type == TOK_NAME && jinja_str_is(p->tok->text, name);
}

bool jinja_skip_name(struct jinja_parser *p, const char *name)
{
    if (!jinja_at_name(p, name))
        return false;
    jinja_next(p);
    return true;
}

bool jinja_skip(struct jinja_parser *p, enum jinja_tok t)
{
    if (p->tok->type != t)
        return false;
    jinja_next(p);
    return true;
}

enum status jinja_unexpected(struct jinja_parser *p, const char *expected)
{
    const struct jinja_token *t = p->tok;
    bool name = t->type == TOK_NAME;

    return jinja_fail(p->r, ERR_INVALID, "expected %s, got %s%.*s%s", expected,
                      name ? "'" : jinja_tok_name(t->type), name ? (int)t->text.len : 0,
                      name ? t->text.p : "", name ? "'" : "");
}

enum status jinja_expect(struct jinja_parser *p, enum jinja_tok t)
{
    return jinja_skip(p, t) ? OK : jinja_unexpected(p, jinja_tok_name(t));
}

enum status jinja_expect_name(struct jinja_parser *p, const char **out)
{
    if (p->tok->type != TOK_NAME)
        return jinja_unexpected(p, "a name");
    TRY(jinja_cdup(p->r, p->tok->text, out));
    jinja_next(p);
    return OK;
}

enum status jinja_enter(struct jinja_parser *p)
{
    if (++p->depth > JINJA_PARSE_DEPTH_MAX)
        return jinja_fail(p->r, ERR_TOO_LARGE, "nested deeper than %u levels",
                          JINJA_PARSE_DEPTH_MAX);
    return OK;
}

/* Bodies ----------------------------------------------------------------------------------- */

/* Whether the current token is one of the names, which are separated by spaces. */
static bool at_end_tag(const struct jinja_parser *p, const char *names)
{
    while (names && *names) {
        size_t len = strcspn(names, " ");
        if (p->tok->type == TOK_NAME && p->tok->text.len == len &&
            memcmp(p->tok->text.p, names, len) == 0)
            return true;
        names += len;
        names += *names == ' ';
    }
    return false;
}

static enum status parse_output(struct jinja_parser *p, struct jinja_node **out)
{
    TRY(jinja_node_new(p, NODE_OUTPUT, out));
    TRY(jinja_expect(p, TOK_VAR_BEGIN));
    TRY(jinja_parse_tuple(p, true, false, NULL, &(*out)->a));
    return jinja_expect(p, TOK_VAR_END);
}

static enum status parse_data(struct jinja_parser *p, struct jinja_node **out)
{
    TRY(jinja_node_new(p, NODE_DATA, out));
    (*out)->value = jinja_str(p->tok->text.p, p->tok->text.len);
    jinja_next(p);
    return OK;
}

/* Parse statements up to "{% <one of names>", or to the end of the template if `names` is NULL. The
 * current token is then the name. */
static enum status parse_block(struct jinja_parser *p, const char *names, struct jinja_node **out)
{
    struct jinja_node *block, *node = NULL;

    TRY(jinja_enter(p));
    TRY(jinja_node_new(p, NODE_BLOCK, &block));
    while (p->tok->type != TOK_EOF) {
        if (p->tok->type == TOK_DATA) {
            TRY(parse_data(p, &node));
        } else if (p->tok->type == TOK_VAR_BEGIN) {
            TRY(parse_output(p, &node));
        } else {
            TRY(jinja_expect(p, TOK_BLOCK_BEGIN));
            if (at_end_tag(p, names))
                break;
            TRY(parse_statement(p, &node));
            TRY(jinja_expect(p, TOK_BLOCK_END));
        }
        TRY(jinja_nodes_push(p, &block->args, node));
    }
    if (names && p->tok->type == TOK_EOF)
        return jinja_fail(p->r, ERR_INVALID, "the template ends where '%.*s' was expected",
                          (int)strcspn(names, " "), names);
    p->depth--;
    *out = block;
    return OK;
}

/* Parse the body of an opening tag; the current token is before its "%}". */
static enum status parse_body(struct jinja_parser *p, const char *names, struct jinja_node **out)
{
    jinja_skip(p, TOK_COLON);
    TRY(jinja_expect(p, TOK_BLOCK_END));
    return parse_block(p, names, out);
}

/* Parse a body with one possible end tag, and consume the tag. */
static enum status parse_whole_body(struct jinja_parser *p, const char *end,
                                    struct jinja_node **out)
{
    TRY(parse_body(p, end, out));
    jinja_next(p);
    return OK;
}

/* Targets ---------------------------------------------------------------------------------- */

static enum status check_target(struct jinja_parser *p, const struct jinja_node *target)
{
    if (target->kind == NODE_NAME || target->kind == NODE_NSREF)
        return OK;
    if (target->kind != NODE_TUPLE && target->kind != NODE_LIST)
        return jinja_fail(p->r, ERR_INVALID, "cannot assign to this expression");
    for (size_t i = 0; i < target->args.n; i++)
        TRY(check_target(p, target->args.items[i]));
    return OK;
}

static enum status parse_target_item(struct jinja_parser *p, bool with_namespace,
                                     struct jinja_node **out)
{
    TRY(jinja_parse_primary(p, out));
    if (with_namespace && (*out)->kind == NODE_NAME && jinja_skip(p, TOK_DOT)) {
        (*out)->kind = NODE_NSREF;
        TRY(jinja_expect_name(p, &(*out)->attr));
    }
    return OK;
}

static enum status parse_target(struct jinja_parser *p, bool with_namespace, const char *end_name,
                                struct jinja_node **out)
{
    struct jinja_node *tuple, *item;

    TRY(parse_target_item(p, with_namespace, out));
    if (p->tok->type == TOK_COMMA) {
        TRY(jinja_node_new(p, NODE_TUPLE, &tuple));
        TRY(jinja_nodes_push(p, &tuple->args, *out));
        while (jinja_skip(p, TOK_COMMA)) {
            if (p->tok->type == TOK_ASSIGN || (end_name && jinja_at_name(p, end_name)))
                break;
            TRY(parse_target_item(p, with_namespace, &item));
            TRY(jinja_nodes_push(p, &tuple->args, item));
        }
        *out = tuple;
    }
    return check_target(p, *out);
}

/* Statements. The current token is behind the tag's name; node has the tag's line. ---------- */

static enum status parse_set(struct jinja_parser *p, struct jinja_node *node)
{
    node->kind = NODE_SET;
    TRY(parse_target(p, true, NULL, &node->a));
    if (jinja_skip(p, TOK_ASSIGN))
        return jinja_parse_tuple(p, true, false, NULL, &node->b);
    node->kind = NODE_SET_BLOCK;
    TRY(jinja_parse_filters(p, NULL, false, &node->b));
    return parse_whole_body(p, "endset", &node->body);
}

static enum status parse_if(struct jinja_parser *p, struct jinja_node *node)
{
    struct jinja_node *child;

    node->kind = NODE_IF;
    p->soft++;
    do {
        TRY(jinja_parse_tuple(p, false, false, NULL, &child));
        TRY(jinja_nodes_push(p, &node->args, child));
        TRY(parse_body(p, "endif elif else", &child));
        TRY(jinja_nodes_push(p, &node->more, child));
    } while (jinja_skip_name(p, "elif"));
    if (jinja_skip_name(p, "else"))
        TRY(parse_body(p, "endif", &node->c));
    p->soft--;
    jinja_next(p); /* endif */
    return OK;
}

static enum status parse_for(struct jinja_parser *p, struct jinja_node *node)
{
    node->kind = NODE_FOR;
    TRY(parse_target(p, false, "in", &node->a));
    if (!jinja_skip_name(p, "in"))
        return jinja_unexpected(p, "'in'");
    TRY(jinja_parse_tuple(p, false, false, "recursive", &node->b));
    if (jinja_skip_name(p, "if"))
        TRY(jinja_parse_expr(p, true, &node->c));
    node->op = jinja_skip_name(p, "recursive");
    p->loops++;
    TRY(parse_body(p, "endfor else", &node->body));
    p->loops--;
    if (jinja_skip_name(p, "else"))
        TRY(parse_body(p, "endfor", &node->other));
    jinja_next(p); /* endfor */
    return OK;
}

static enum status parse_signature(struct jinja_parser *p, struct jinja_node *macro)
{
    struct jinja_node *child;

    TRY(jinja_expect(p, TOK_LPAREN));
    while (p->tok->type != TOK_RPAREN) {
        if (macro->args.n)
            TRY(jinja_expect(p, TOK_COMMA));
        TRY(jinja_node_new(p, NODE_NAME, &child));
        TRY(jinja_expect_name(p, &child->name));
        TRY(jinja_nodes_push(p, &macro->args, child));
        if (jinja_skip(p, TOK_ASSIGN)) {
            TRY(jinja_parse_expr(p, true, &child));
            TRY(jinja_nodes_push(p, &macro->more, child));
        } else if (macro->more.n) {
            return jinja_fail(p->r, ERR_INVALID, "a parameter without default follows one with");
        }
    }
    return jinja_expect(p, TOK_RPAREN);
}

/* The body of a macro: break cannot leave it, and the special names are collected for it alone. */
static enum status parse_macro_body(struct jinja_parser *p, struct jinja_node *macro,
                                    const char *end)
{
    unsigned loops = p->loops;
    int flags = p->macro_flags;

    p->loops = 0;
    p->macro_flags = 0;
    TRY(parse_whole_body(p, end, &macro->body));
    macro->op = p->macro_flags;
    p->macro_flags = flags;
    p->loops = loops;
    return OK;
}

static enum status parse_macro(struct jinja_parser *p, struct jinja_node *node)
{
    node->kind = NODE_MACRO;
    TRY(jinja_expect_name(p, &node->name));
    TRY(parse_signature(p, node));
    return parse_macro_body(p, node, "endmacro");
}

static enum status parse_call_block(struct jinja_parser *p, struct jinja_node *node)
{
    node->kind = NODE_CALL_BLOCK;
    TRY(jinja_node_new(p, NODE_MACRO, &node->b));
    node->b->name = "caller";
    if (p->tok->type == TOK_LPAREN)
        TRY(parse_signature(p, node->b));
    TRY(jinja_parse_expr(p, true, &node->a));
    if (node->a->kind != NODE_CALL)
        return jinja_fail(p->r, ERR_INVALID, "a call block needs a call");
    return parse_macro_body(p, node->b, "endcall");
}

static enum status parse_filter_block(struct jinja_parser *p, struct jinja_node *node)
{
    node->kind = NODE_FILTER_BLOCK;
    TRY(jinja_parse_filters(p, NULL, true, &node->a));
    return parse_whole_body(p, "endfilter", &node->body);
}

static enum status parse_with(struct jinja_parser *p, struct jinja_node *node)
{
    struct jinja_node *child;

    node->kind = NODE_WITH;
    while (p->tok->type != TOK_BLOCK_END) {
        if (node->args.n)
            TRY(jinja_expect(p, TOK_COMMA));
        TRY(parse_target_item(p, false, &child));
        TRY(check_target(p, child));
        TRY(jinja_nodes_push(p, &node->args, child));
        TRY(jinja_expect(p, TOK_ASSIGN));
        TRY(jinja_parse_expr(p, true, &child));
        TRY(jinja_nodes_push(p, &node->more, child));
    }
    return parse_whole_body(p, "endwith", &node->body);
}

/* {% generation %} marks the model's text for training. In a server it is only a scope. */
static enum status parse_generation(struct jinja_parser *p, struct jinja_node *node)
{
    unsigned loops = p->loops;

    node->kind = NODE_SCOPE;
    p->loops = 0;
    TRY(parse_whole_body(p, "endgeneration", &node->body));
    p->loops = loops;
    return OK;
}

static enum status parse_print(struct jinja_parser *p, struct jinja_node *node)
{
    struct jinja_node *item;

    node->kind = NODE_BLOCK;
    while (p->tok->type != TOK_BLOCK_END) {
        if (node->args.n)
            TRY(jinja_expect(p, TOK_COMMA));
        TRY(jinja_node_new(p, NODE_OUTPUT, &item));
        TRY(jinja_parse_expr(p, true, &item->a));
        TRY(jinja_nodes_push(p, &node->args, item));
    }
    return OK;
}

static enum status parse_jump(struct jinja_parser *p, struct jinja_node *node, const char *name)
{
    node->kind = name[0] == 'b' ? NODE_BREAK : NODE_CONTINUE;
    if (p->loops == 0)
        return jinja_fail(p->r, ERR_INVALID, "'%s' outside of a loop", name);
    return OK;
}

static enum status parse_statement(struct jinja_parser *p, struct jinja_node **out)
{
    static const struct {
        const char *name;
        enum status (*parse)(struct jinja_parser *p, struct jinja_node *node);
    } tags[] = {
        {"set", parse_set},     {"if", parse_if},           {"for", parse_for},
        {"macro", parse_macro}, {"call", parse_call_block}, {"filter", parse_filter_block},
        {"with", parse_with},   {"print", parse_print},     {"generation", parse_generation},
    };
    const char *name;

    TRY(jinja_node_new(p, NODE_BLOCK, out));
    TRY(jinja_expect_name(p, &name));
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++)
        if (strcmp(name, tags[i].name) == 0)
            return tags[i].parse(p, *out);
    if (strcmp(name, "break") == 0 || strcmp(name, "continue") == 0)
        return parse_jump(p, *out, name);
    p->r->line = (*out)->line;
    if (strncmp(name, "end", 3) == 0 || strcmp(name, "else") == 0 || strcmp(name, "elif") == 0)
        return jinja_fail(p->r, ERR_INVALID, "'%s' has no opening tag", name);
    return jinja_fail(p->r, ERR_UNSUPPORTED, "unknown tag '%s'", name);
}

enum status jinja_parse(struct jinja_run *r, const struct jinja_tokens *tokens,
                        struct jinja_node **out)
{
    struct jinja_parser p = {.r = r, .tok = tokens->items};

    r->line = p.tok->line;
    return parse_block(&p, NULL, out);
}
