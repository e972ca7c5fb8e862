#include "engine/text/jinja/jinja_eval.h"

#include "engine/text/jinja/jinja_filters.h"
#include "engine/text/jinja/jinja_functions.h"
#include "engine/text/jinja/jinja_lexer.h"
#include "engine/text/jinja/jinja_ops.h"
#include "engine/text/jinja/jinja_print.h"
#include "engine/text/jinja/jinja_tests.h"

/* Scopes ---------------------------------------------------------------------------------- */

enum status jinja_scope_new(struct jinja_run *r, struct jinja_scope *parent,
                            struct jinja_scope **out)
{
    struct jinja_scope *s;

    TRY(jinja_alloc(r, sizeof *s, &s));
    s->parent = parent;
    *out = s;
    return OK;
}

enum status jinja_scope_set(struct jinja_run *r, struct jinja_scope *s, const char *name,
                            const struct jinja_value *v)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->items[i].name, name) == 0) {
            s->items[i].value = *v;
            return OK;
        }
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 4;
        struct jinja_binding *items;
        TRY(jinja_alloc_array(r, cap, sizeof *items, &items));
        if (s->n)
            memcpy(items, s->items, s->n * sizeof *items);
        s->items = items;
        s->cap = cap;
    }
    s->items[s->n++] = (struct jinja_binding){name, *v};
    return OK;
}

enum status jinja_scope_get(struct jinja_run *r, const struct jinja_scope *s, const char *name,
                            struct jinja_value *out)
{
    const struct jinja_value *found;
    const struct jinja_function *function;

    for (; s; s = s->parent)
        for (size_t i = 0; i < s->n; i++)
            if (strcmp(s->items[i].name, name) == 0) {
                *out = s->items[i].value;
                return OK;
            }
    TRY(jinja_dict_get_text(r, r->context, name, strlen(name), &found));
    function = found ? NULL : jinja_function_find(name);
    if (found)
        *out = *found;
    else if (function)
        *out = (struct jinja_value){.type = JINJA_FUNCTION, .function = function};
    else
        *out = jinja_undefined(JINJA_UNDEF_VARIABLE, name, NULL);
    return OK;
}

/* Calls ----------------------------------------------------------------------------------- */

static enum status spread_args(struct jinja_run *r, const struct jinja_value *star,
                               struct jinja_args *args)
{
    const struct jinja_seq *seq;
    struct jinja_value *pos;

    TRY(jinja_iterate(r, star, &seq));
    TRY(jinja_alloc_array(r, args->n_pos + seq->n, sizeof *pos, &pos));
    if (args->n_pos)
        memcpy(pos, args->pos, args->n_pos * sizeof *pos);
    if (seq->n)
        memcpy(pos + args->n_pos, seq->items, seq->n * sizeof *pos);
    args->pos = pos;
    args->n_pos += seq->n;
    return OK;
}

static enum status spread_kwargs(struct jinja_run *r, const struct jinja_value *stars,
                                 struct jinja_args *args)
{
    struct jinja_kwarg *kw;

    if (stars->type != JINJA_DICT)
        return jinja_fail(r, ERR_INVALID, "argument after ** must be a mapping, not %s",
                          jinja_type_name(stars));
    TRY(jinja_alloc_array(r, args->n_kw + stars->dict->n, sizeof *kw, &kw));
    if (args->n_kw)
        memcpy(kw, args->kw, args->n_kw * sizeof *kw);
    for (size_t i = 0; i < stars->dict->n; i++) {
        if (stars->dict->pairs[i].key.type != JINJA_STR)
            return jinja_fail(r, ERR_INVALID, "keywords must be strings");
        kw[args->n_kw].name = stars->dict->pairs[i].key.str;
        kw[args->n_kw].value = stars->dict->pairs[i].value;
        args->n_kw++;
    }
    args->kw = kw;
    return OK;
}

/* Evaluate the arguments of a call, filter or test; room for one more keyword is left. */
static enum status eval_args(struct jinja_run *r, struct jinja_scope *s,
                             const struct jinja_node *node, struct jinja_args *args)
{
    struct jinja_value v;

    *args = (struct jinja_args){.n_pos = node->args.n, .n_kw = node->more.n};
    if (args->n_pos)
        TRY(jinja_alloc_array(r, args->n_pos, sizeof *args->pos, &args->pos));
    if (args->n_kw)
        TRY(jinja_alloc_array(r, args->n_kw, sizeof *args->kw, &args->kw));
    for (size_t i = 0; i < args->n_pos; i++)
        TRY(jinja_eval(r, s, node->args.items[i], &args->pos[i]));
    for (size_t i = 0; i < args->n_kw; i++) {
        const struct jinja_node *keyword = node->more.items[i];
        args->kw[i].name = (struct jinja_str){keyword->name, strlen(keyword->name)};
        TRY(jinja_eval(r, s, keyword->a, &args->kw[i].value));
    }
    if (node->b) {
        TRY(jinja_eval(r, s, node->b, &v));
        TRY(spread_args(r, &v, args));
    }
    if (node->c) {
        TRY(jinja_eval(r, s, node->c, &v));
        TRY(spread_kwargs(r, &v, args));
    }
    return OK;
}

enum status jinja_call(struct jinja_run *r, const struct jinja_value *callee,
                       const struct jinja_args *args, struct jinja_value *out)
{
    switch (callee->type) {
    case JINJA_UNDEFINED: return jinja_fail_undefined(r, callee);
    case JINJA_FUNCTION: return callee->function->call(r, args, out);
    case JINJA_METHOD: return jinja_call_method(r, callee->method, args, out);
    case JINJA_MACRO: return jinja_call_macro(r, callee->macro, args, out);
    case JINJA_LOOP: return jinja_call_loop(r, callee->loop, args, out);
    default:
        return jinja_fail(r, ERR_INVALID, "'%s' object is not callable", jinja_type_name(callee));
    }
}

enum status jinja_eval_call(struct jinja_run *r, struct jinja_scope *s,
                            const struct jinja_node *node, const struct jinja_value *caller,
                            struct jinja_value *out)
{
    struct jinja_value callee;
    struct jinja_args args;
    struct jinja_kwarg *kw;

    TRY(jinja_eval(r, s, node->a, &callee));
    TRY(eval_args(r, s, node, &args));
    if (caller) {
        TRY(jinja_alloc_array(r, args.n_kw + 1, sizeof *kw, &kw));
        if (args.n_kw)
            memcpy(kw, args.kw, args.n_kw * sizeof *kw);
        kw[args.n_kw++] = (struct jinja_kwarg){{"caller", 6}, *caller};
        args.kw = kw;
    }
    r->line = node->line;
    return jinja_call(r, &callee, &args, out);
}

enum status jinja_eval_filters(struct jinja_run *r, struct jinja_scope *s,
                               const struct jinja_node *node, const struct jinja_value *captured,
                               struct jinja_value *out)
{
    struct jinja_value in;
    struct jinja_args args;

    if (!node || node->kind != NODE_FILTER) {
        *out = *captured;
        return OK;
    }
    if (captured)
        TRY(jinja_eval_filters(r, s, node->a, captured, &in));
    else
        TRY(jinja_eval(r, s, node->a, &in));
    r->line = node->line;
    if (!node->filter)
        return jinja_fail(r, ERR_UNSUPPORTED, "unknown filter '%s'", node->name);
    TRY(eval_args(r, s, node, &args));
    TRY(jinja_charge(r, 1));
    r->line = node->line;
    return node->filter->apply(r, &in, &args, out);
}

static enum status eval_test(struct jinja_run *r, struct jinja_scope *s,
                             const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_value in;
    struct jinja_args args;
    bool yes = false;

    TRY(jinja_eval(r, s, node->a, &in));
    r->line = node->line;
    if (!node->test)
        return jinja_fail(r, ERR_UNSUPPORTED, "unknown test '%s'", node->name);
    TRY(eval_args(r, s, node, &args));
    TRY(node->test->check(r, &in, &args, &yes));
    *out = jinja_bool(yes);
    return OK;
}

/* Literals and operators ------------------------------------------------------------------- */

static enum status eval_items(struct jinja_run *r, struct jinja_scope *s,
                              const struct jinja_node *node, struct jinja_value *out)
{
    TRY(jinja_seq_new(r, node->kind == NODE_LIST ? JINJA_LIST : JINJA_TUPLE, node->args.n, out));
    for (size_t i = 0; i < node->args.n; i++)
        TRY(jinja_eval(r, s, node->args.items[i], &out->seq->items[i]));
    return OK;
}

static enum status eval_dict(struct jinja_run *r, struct jinja_scope *s,
                             const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_value key, value;

    TRY(jinja_dict_new(r, node->args.n, out));
    for (size_t i = 0; i < node->args.n; i++) {
        TRY(jinja_eval(r, s, node->args.items[i], &key));
        TRY(jinja_eval(r, s, node->more.items[i], &value));
        TRY(jinja_dict_set(r, out->dict, &key, &value));
    }
    return OK;
}

static enum status eval_slice(struct jinja_run *r, struct jinja_scope *s,
                              const struct jinja_node *node, const struct jinja_value *on,
                              struct jinja_value *out)
{
    const struct jinja_node *parts[3] = {node->a, node->b, node->c};
    struct jinja_value bounds[3];

    for (int i = 0; i < 3; i++) {
        bounds[i] = jinja_none();
        if (parts[i])
            TRY(jinja_eval(r, s, parts[i], &bounds[i]));
    }
    return jinja_slice(r, on, bounds, out);
}

static enum status eval_getitem(struct jinja_run *r, struct jinja_scope *s,
                                const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_value on, key;

    TRY(jinja_eval(r, s, node->a, &on));
    if (node->b->kind == NODE_SLICE)
        return eval_slice(r, s, node->b, &on, out);
    TRY(jinja_eval(r, s, node->b, &key));
    r->line = node->line;
    return jinja_getitem(r, &on, &key, out);
}

static enum status eval_getattr(struct jinja_run *r, struct jinja_scope *s,
                                const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_value on;

    TRY(jinja_eval(r, s, node->a, &on));
    r->line = node->line;
    return jinja_getattr(r, &on, node->name, out);
}

static enum status eval_binary(struct jinja_run *r, struct jinja_scope *s,
                               const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_value a, b;

    TRY(jinja_eval(r, s, node->a, &a));
    TRY(jinja_eval(r, s, node->b, &b));
    r->line = node->line;
    return jinja_binary(r, node->op, &a, &b, out);
}

/* "and" and "or" return one of their operands, as in Python. */
static enum status eval_logic(struct jinja_run *r, struct jinja_scope *s,
                              const struct jinja_node *node, struct jinja_value *out)
{
    TRY(jinja_eval(r, s, node->a, out));
    if (jinja_truth(out) == (node->kind == NODE_OR))
        return OK;
    return jinja_eval(r, s, node->b, out);
}

static enum status eval_concat(struct jinja_run *r, struct jinja_scope *s,
                               const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_out text = {0};
    struct jinja_value v;

    for (size_t i = 0; i < node->args.n; i++) {
        TRY(jinja_eval(r, s, node->args.items[i], &v));
        TRY(jinja_put_str(r, &text, &v));
    }
    *out = jinja_out_value(&text);
    return OK;
}

/* a < b < c: compare each pair in turn; evaluate each operand once. */
static enum status eval_compare(struct jinja_run *r, struct jinja_scope *s,
                                const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_value left, right;
    bool holds = true;

    TRY(jinja_eval(r, s, node->a, &left));
    for (size_t i = 0; i < node->args.n && holds; i++) {
        TRY(jinja_eval(r, s, node->args.items[i]->a, &right));
        r->line = node->line;
        TRY(jinja_relate(r, node->args.items[i]->op, &left, &right, &holds));
        left = right;
    }
    *out = jinja_bool(holds);
    return OK;
}

static enum status eval_cond(struct jinja_run *r, struct jinja_scope *s,
                             const struct jinja_node *node, struct jinja_value *out)
{
    TRY(jinja_eval(r, s, node->a, out));
    if (jinja_truth(out))
        return jinja_eval(r, s, node->b, out);
    if (node->c)
        return jinja_eval(r, s, node->c, out);
    *out = jinja_undefined(JINJA_UNDEF_TEXT,
                           "an inline if-expression evaluated to false and has "
                           "no else",
                           NULL);
    return OK;
}

static enum status eval_unary(struct jinja_run *r, struct jinja_scope *s,
                              const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_value v;

    TRY(jinja_eval(r, s, node->a, &v));
    r->line = node->line;
    if (node->kind == NODE_NOT) {
        *out = jinja_bool(!jinja_truth(&v));
        return OK;
    }
    TRY(jinja_negate(r, &v, out));
    return node->kind == NODE_POS ? jinja_negate(r, out, out) : OK;
}

static enum status eval_node(struct jinja_run *r, struct jinja_scope *s,
                             const struct jinja_node *node, struct jinja_value *out)
{
    switch (node->kind) {
    case NODE_CONST: *out = node->value; return OK;
    case NODE_NAME: return jinja_scope_get(r, s, node->name, out);
    case NODE_LIST:
    case NODE_TUPLE: return eval_items(r, s, node, out);
    case NODE_DICT: return eval_dict(r, s, node, out);
    case NODE_GETATTR: return eval_getattr(r, s, node, out);
    case NODE_GETITEM: return eval_getitem(r, s, node, out);
    case NODE_CALL: return jinja_eval_call(r, s, node, NULL, out);
    case NODE_FILTER: return jinja_eval_filters(r, s, node, NULL, out);
    case NODE_TEST: return eval_test(r, s, node, out);
    case NODE_NOT:
    case NODE_NEG:
    case NODE_POS: return eval_unary(r, s, node, out);
    case NODE_AND:
    case NODE_OR: return eval_logic(r, s, node, out);
    case NODE_BINARY: return eval_binary(r, s, node, out);
    case NODE_CONCAT: return eval_concat(r, s, node, out);
    case NODE_COMPARE: return eval_compare(r, s, node, out);
    case NODE_COND: return eval_cond(r, s, node, out);
    default: return jinja_fail(r, ERR_INTERNAL, "no expression");
    }
}

enum status jinja_eval(struct jinja_run *r, struct jinja_scope *s, const struct jinja_node *node,
                       struct jinja_value *out)
{
    r->line = node->line;
    TRY(jinja_charge(r, 1));
    if (++r->depth > JINJA_DEPTH_MAX)
        return jinja_fail(r, ERR_TOO_LARGE, "nested deeper than %u levels", JINJA_DEPTH_MAX);
    TRY(eval_node(r, s, node, out));
    r->depth--;
    return OK;
}
