#include "engine/text/jinja/jinja_eval.h"
#include "engine/text/jinja/jinja_ops.h"
#include "engine/text/jinja/jinja_print.h"

/* Assignment ------------------------------------------------------------------------------- */

static enum status assign(struct jinja_run *r, struct jinja_scope *s,
                          const struct jinja_node *target, const struct jinja_value *v);

static enum status unpack(struct jinja_run *r, struct jinja_scope *s,
                          const struct jinja_node *target, const struct jinja_value *v)
{
    const struct jinja_seq *seq;

    TRY(jinja_iterate(r, v, &seq));
    if (seq->n != target->args.n)
        return jinja_fail(r, ERR_INVALID, "%s values to unpack (expected %zu, got %zu)",
                          seq->n < target->args.n ? "not enough" : "too many", target->args.n,
                          seq->n);
    for (size_t i = 0; i < seq->n; i++)
        TRY(assign(r, s, target->args.items[i], &seq->items[i]));
    return OK;
}

static enum status assign(struct jinja_run *r, struct jinja_scope *s,
                          const struct jinja_node *target, const struct jinja_value *v)
{
    struct jinja_value ns, key;

    if (target->kind == NODE_NAME)
        return jinja_scope_set(r, s, target->name, v);
    if (target->kind != NODE_NSREF)
        return unpack(r, s, target, v);
    TRY(jinja_scope_get(r, s, target->name, &ns));
    if (ns.type != JINJA_NAMESPACE)
        return jinja_fail(r, ERR_INVALID, "cannot assign attribute on non-namespace object '%s'",
                          target->name);
    key = jinja_cstr(target->attr);
    return jinja_dict_set(r, ns.dict, &key, v);
}

static enum status capture(struct jinja_run *r, struct jinja_scope *s,
                           const struct jinja_node *body, struct jinja_value *out)
{
    struct jinja_out text = {0};
    enum jinja_flow flow;

    TRY(jinja_exec(r, s, body, &text, &flow));
    *out = jinja_out_value(&text);
    return OK;
}

static enum status exec_set_block(struct jinja_run *r, struct jinja_scope *s,
                                  const struct jinja_node *node)
{
    struct jinja_scope *inner;
    struct jinja_value text, v;

    TRY(jinja_scope_new(r, s, &inner));
    TRY(capture(r, inner, node->body, &text));
    TRY(jinja_eval_filters(r, inner, node->b, &text, &v));
    return assign(r, s, node->a, &v);
}

/* Loops ------------------------------------------------------------------------------------ */

/* Keep the items that pass "for ... if test". The test sees the target but not `loop`. */
static enum status filter_items(struct jinja_run *r, struct jinja_scope *s,
                                const struct jinja_node *node, const struct jinja_seq **seq)
{
    struct jinja_scope *inner;
    struct jinja_list kept = {0};
    struct jinja_value v;

    TRY(jinja_scope_new(r, s, &inner));
    for (size_t i = 0; i < (*seq)->n; i++) {
        TRY(assign(r, inner, node->a, &(*seq)->items[i]));
        TRY(jinja_eval(r, inner, node->c, &v));
        if (jinja_truth(&v))
            TRY(jinja_list_push(r, &kept, &(*seq)->items[i]));
    }
    TRY(jinja_list_seq(r, JINJA_LIST, &kept, &v));
    *seq = v.seq;
    return OK;
}

/* As in jinja2, each turn begins with the loop's own names only: names set in a turn are lost. */
static enum status fresh_scope(struct jinja_run *r, struct jinja_scope *parent,
                               struct jinja_scope **inner)
{
    if (*inner && !(*inner)->shared) {
        (*inner)->n = 0;
        return OK;
    }
    return jinja_scope_new(r, parent, inner);
}

static enum status run_loop(struct jinja_run *r, struct jinja_scope *s,
                            const struct jinja_node *node, const struct jinja_seq *seq, int depth0,
                            struct jinja_out *out)
{
    struct jinja_scope *inner = NULL;
    struct jinja_loop *loop;
    struct jinja_value v = {.type = JINJA_LOOP};
    enum jinja_flow flow = FLOW_NORMAL;

    TRY(jinja_alloc(r, sizeof *loop, &loop));
    *loop = (struct jinja_loop){
        .seq = seq, .recursive = node->op ? node : NULL, .scope = s, .depth0 = depth0};
    v.loop = loop;
    for (size_t i = 0; i < seq->n && flow != FLOW_BREAK; i++) {
        TRY(jinja_charge(r, 1));
        TRY(fresh_scope(r, s, &inner));
        loop->index0 = i;
        TRY(jinja_scope_set(r, inner, "loop", &v));
        TRY(assign(r, inner, node->a, &seq->items[i]));
        TRY(jinja_exec(r, inner, node->body, out, &flow));
    }
    return OK;
}

static enum status loop_over(struct jinja_run *r, struct jinja_scope *s,
                             const struct jinja_node *node, const struct jinja_value *iterable,
                             int depth0, struct jinja_out *out)
{
    const struct jinja_seq *seq;
    struct jinja_scope *inner;
    enum jinja_flow flow;

    TRY(jinja_iterate(r, iterable, &seq));
    if (node->c)
        TRY(filter_items(r, s, node, &seq));
    if (seq->n || !node->other)
        return run_loop(r, s, node, seq, depth0, out);
    TRY(jinja_scope_new(r, s, &inner));
    return jinja_exec(r, inner, node->other, out, &flow);
}

static enum status exec_for(struct jinja_run *r, struct jinja_scope *s,
                            const struct jinja_node *node, struct jinja_out *out)
{
    struct jinja_value iterable;

    TRY(jinja_eval(r, s, node->b, &iterable));
    return loop_over(r, s, node, &iterable, 0, out);
}

enum status jinja_call_loop(struct jinja_run *r, const struct jinja_loop *l,
                            const struct jinja_args *args, struct jinja_value *out)
{
    struct jinja_out text = {0};
    struct jinja_value slots[1] = {0};

    if (!l->recursive)
        return jinja_fail(r, ERR_INVALID, "a loop must be marked 'recursive' to be called");
    TRY(jinja_bind(r, args, "loop", "iterable", 1, slots));
    if (++r->depth > JINJA_DEPTH_MAX)
        return jinja_fail(r, ERR_TOO_LARGE, "nested deeper than %u levels", JINJA_DEPTH_MAX);
    TRY(loop_over(r, l->scope, l->recursive, &slots[0], l->depth0 + 1, &text));
    r->depth--;
    *out = jinja_out_value(&text);
    return OK;
}

/* Macros ----------------------------------------------------------------------------------- */

static enum status make_macro(struct jinja_run *r, struct jinja_scope *s,
                              const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_macro *m;

    TRY(jinja_alloc(r, sizeof *m, &m));
    *m = (struct jinja_macro){node, s};
    for (; s; s = s->parent)
        s->shared = true;
    *out = (struct jinja_value){.type = JINJA_MACRO, .macro = m};
    return OK;
}

/* Take the keyword `name` out of args (its name becomes empty); NULL: it is not there. */
static const struct jinja_value *take_keyword(struct jinja_args *args, const char *name)
{
    for (size_t i = 0; i < args->n_kw; i++)
        if (jinja_str_is(args->kw[i].name, name)) {
            args->kw[i].name.len = 0;
            return &args->kw[i].value;
        }
    return NULL;
}

static enum status missing_parameter(struct jinja_run *r, const char *name, struct jinja_value *out)
{
    struct jinja_out text = {0};

    TRY(jinja_puts(r, &text, "parameter '"));
    TRY(jinja_puts(r, &text, name));
    TRY(jinja_puts(r, &text, "' was not provided"));
    TRY(jinja_put(r, &text, "", 1));
    *out = jinja_undefined(JINJA_UNDEF_TEXT, text.p, NULL);
    return OK;
}

static enum status bind_parameters(struct jinja_run *r, struct jinja_scope *s,
                                   const struct jinja_node *node, struct jinja_args *args)
{
    size_t first_default = node->args.n - node->more.n;
    struct jinja_value v;

    for (size_t i = 0; i < node->args.n; i++) {
        const char *name = node->args.items[i]->name;
        const struct jinja_value *given =
            i < args->n_pos ? &args->pos[i] : take_keyword(args, name);
        if (given)
            v = *given;
        else if (i >= first_default)
            TRY(jinja_eval(r, s, node->more.items[i - first_default], &v));
        else
            TRY(missing_parameter(r, name, &v));
        TRY(jinja_scope_set(r, s, name, &v));
    }
    return OK;
}

static enum status bind_rest(struct jinja_run *r, struct jinja_scope *s,
                             const struct jinja_node *node, const struct jinja_args *args)
{
    struct jinja_value v;
    size_t n = args->n_pos > node->args.n ? args->n_pos - node->args.n : 0;

    if (n && !(node->op & MACRO_VARARGS))
        return jinja_fail(r, ERR_INVALID, "macro '%s' takes not more than %zu argument(s)",
                          node->name, node->args.n);
    TRY(jinja_seq_new(r, JINJA_TUPLE, n, &v));
    for (size_t i = 0; i < n; i++)
        v.seq->items[i] = args->pos[node->args.n + i];
    if (node->op & MACRO_VARARGS)
        TRY(jinja_scope_set(r, s, "varargs", &v));

    TRY(jinja_dict_new(r, 0, &v));
    for (size_t i = 0; i < args->n_kw; i++) {
        const struct jinja_kwarg *kw = &args->kw[i];
        struct jinja_value key = jinja_str(kw->name.p, kw->name.len);
        if (kw->name.len == 0)
            continue;
        if (!(node->op & MACRO_KWARGS))
            return jinja_fail(r, ERR_INVALID, "macro '%s' takes no keyword argument '%.*s'",
                              node->name, (int)kw->name.len, kw->name.p);
        TRY(jinja_dict_set(r, v.dict, &key, &kw->value));
    }
    if (node->op & MACRO_KWARGS)
        TRY(jinja_scope_set(r, s, "kwargs", &v));
    return OK;
}

static enum status bind_caller(struct jinja_run *r, struct jinja_scope *s,
                               const struct jinja_node *node, struct jinja_args *args)
{
    const struct jinja_value *caller;
    struct jinja_value none = jinja_undefined(JINJA_UNDEF_TEXT, "No caller defined", NULL);

    if (!(node->op & MACRO_CALLER))
        return OK;
    caller = take_keyword(args, "caller");
    return jinja_scope_set(r, s, "caller", caller ? caller : &none);
}

enum status jinja_call_macro(struct jinja_run *r, const struct jinja_macro *m,
                             const struct jinja_args *given, struct jinja_value *out)
{
    struct jinja_args args = *given;
    struct jinja_scope *s;

    if (args.n_kw) { /* on a copy, because take_keyword() changes it */
        TRY(jinja_alloc_array(r, args.n_kw, sizeof *args.kw, &args.kw));
        memcpy(args.kw, given->kw, args.n_kw * sizeof *args.kw);
    }
    if (++r->depth > JINJA_DEPTH_MAX)
        return jinja_fail(r, ERR_TOO_LARGE, "macros are nested deeper than %u levels",
                          JINJA_DEPTH_MAX);
    TRY(jinja_scope_new(r, m->scope, &s));
    TRY(bind_parameters(r, s, m->node, &args));
    TRY(bind_caller(r, s, m->node, &args));
    TRY(bind_rest(r, s, m->node, &args));
    TRY(capture(r, s, m->node->body, out));
    r->depth--;
    return OK;
}

static enum status exec_macro(struct jinja_run *r, struct jinja_scope *s,
                              const struct jinja_node *node)
{
    struct jinja_value v;

    TRY(make_macro(r, s, node, &v));
    return jinja_scope_set(r, s, node->name, &v);
}

static enum status exec_call_block(struct jinja_run *r, struct jinja_scope *s,
                                   const struct jinja_node *node, struct jinja_out *out)
{
    struct jinja_value caller, v;

    TRY(make_macro(r, s, node->b, &caller));
    TRY(jinja_eval_call(r, s, node->a, &caller, &v));
    return jinja_put_str(r, out, &v);
}

/* Blocks ----------------------------------------------------------------------------------- */

static enum status exec_filter_block(struct jinja_run *r, struct jinja_scope *s,
                                     const struct jinja_node *node, struct jinja_out *out)
{
    struct jinja_scope *inner;
    struct jinja_value text, v;

    TRY(jinja_scope_new(r, s, &inner));
    TRY(capture(r, inner, node->body, &text));
    TRY(jinja_eval_filters(r, inner, node->a, &text, &v));
    return jinja_put_str(r, out, &v);
}

static enum status exec_with(struct jinja_run *r, struct jinja_scope *s,
                             const struct jinja_node *node, struct jinja_out *out,
                             enum jinja_flow *flow)
{
    struct jinja_scope *inner;
    struct jinja_value v;

    TRY(jinja_scope_new(r, s, &inner));
    for (size_t i = 0; i < node->args.n; i++) {
        TRY(jinja_eval(r, s, node->more.items[i], &v));
        TRY(assign(r, inner, node->args.items[i], &v));
    }
    return jinja_exec(r, inner, node->body, out, flow);
}

static enum status exec_scope(struct jinja_run *r, struct jinja_scope *s,
                              const struct jinja_node *node, struct jinja_out *out,
                              enum jinja_flow *flow)
{
    struct jinja_scope *inner;

    TRY(jinja_scope_new(r, s, &inner));
    return jinja_exec(r, inner, node->body, out, flow);
}

static enum status exec_if(struct jinja_run *r, struct jinja_scope *s,
                           const struct jinja_node *node, struct jinja_out *out,
                           enum jinja_flow *flow)
{
    struct jinja_value v;

    for (size_t i = 0; i < node->args.n; i++) {
        TRY(jinja_eval(r, s, node->args.items[i], &v));
        if (jinja_truth(&v))
            return jinja_exec(r, s, node->more.items[i], out, flow);
    }
    return node->c ? jinja_exec(r, s, node->c, out, flow) : OK;
}

static enum status exec_block(struct jinja_run *r, struct jinja_scope *s,
                              const struct jinja_node *node, struct jinja_out *out,
                              enum jinja_flow *flow)
{
    for (size_t i = 0; i < node->args.n && *flow == FLOW_NORMAL; i++)
        TRY(jinja_exec(r, s, node->args.items[i], out, flow));
    return OK;
}

static enum status exec_value(struct jinja_run *r, struct jinja_scope *s,
                              const struct jinja_node *node, struct jinja_out *out)
{
    struct jinja_value v;

    TRY(jinja_eval(r, s, node->kind == NODE_SET ? node->b : node->a, &v));
    r->line = node->line;
    return node->kind == NODE_SET ? assign(r, s, node->a, &v) : jinja_put_str(r, out, &v);
}

static enum status exec_node(struct jinja_run *r, struct jinja_scope *s,
                             const struct jinja_node *node, struct jinja_out *out,
                             enum jinja_flow *flow)
{
    switch (node->kind) {
    case NODE_BLOCK: return exec_block(r, s, node, out, flow);
    case NODE_DATA: return jinja_put(r, out, node->value.str.p, node->value.str.len);
    case NODE_SET:
    case NODE_OUTPUT: return exec_value(r, s, node, out);
    case NODE_IF: return exec_if(r, s, node, out, flow);
    case NODE_FOR: return exec_for(r, s, node, out);
    case NODE_SET_BLOCK: return exec_set_block(r, s, node);
    case NODE_MACRO: return exec_macro(r, s, node);
    case NODE_CALL_BLOCK: return exec_call_block(r, s, node, out);
    case NODE_FILTER_BLOCK: return exec_filter_block(r, s, node, out);
    case NODE_WITH: return exec_with(r, s, node, out, flow);
    case NODE_SCOPE: return exec_scope(r, s, node, out, flow);
    case NODE_BREAK: *flow = FLOW_BREAK; return OK;
    case NODE_CONTINUE: *flow = FLOW_CONTINUE; return OK;
    default: return jinja_fail(r, ERR_INTERNAL, "no statement");
    }
}

enum status jinja_exec(struct jinja_run *r, struct jinja_scope *s, const struct jinja_node *node,
                       struct jinja_out *out, enum jinja_flow *flow)
{
    *flow = FLOW_NORMAL;
    r->line = node->line;
    TRY(jinja_charge(r, 1));
    if (++r->depth > JINJA_DEPTH_MAX)
        return jinja_fail(r, ERR_TOO_LARGE, "nested deeper than %u levels", JINJA_DEPTH_MAX);
    TRY(exec_node(r, s, node, out, flow));
    r->depth--;
    return OK;
}
