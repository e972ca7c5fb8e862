/* jinja_eval.h - walks the tree: expressions (jinja_eval.c) and statements (jinja_exec.c).
 *
 * Owns    nothing: scopes and values live in the run's arena.
 * Thread  the run's; nodes are only read.
 * Errors  those of the template, with the line; ERR_TOO_LARGE over steps, depth or output.
 * Units   none. */
#ifndef TARN_ENGINE_TEXT_JINJA_JINJA_EVAL_H
#define TARN_ENGINE_TEXT_JINJA_JINJA_EVAL_H

#include "engine/text/jinja/jinja_ast.h"
#include "engine/text/jinja/jinja_text.h"

struct jinja_binding {
    const char *name;
    struct jinja_value value;
};

/* Names of one level. Lookup goes to the parents, then to the context, then to the functions. */
struct jinja_scope {
    struct jinja_scope *parent;
    struct jinja_binding *items;
    size_t n;
    size_t cap;
    bool shared; /* a macro was defined here: outlives the block */
};

struct jinja_macro {
    const struct jinja_node *node;
    struct jinja_scope *scope; /* where it was defined */
};

enum jinja_flow { FLOW_NORMAL, FLOW_BREAK, FLOW_CONTINUE };

NODISCARD enum status jinja_scope_new(struct jinja_run *r, struct jinja_scope *parent,
                                      struct jinja_scope **out);
NODISCARD enum status jinja_scope_set(struct jinja_run *r, struct jinja_scope *s, const char *name,
                                      const struct jinja_value *v);
/* Undefined when nobody knows the name. */
NODISCARD enum status jinja_scope_get(struct jinja_run *r, const struct jinja_scope *s,
                                      const char *name, struct jinja_value *out);

NODISCARD enum status jinja_eval(struct jinja_run *r, struct jinja_scope *s,
                                 const struct jinja_node *node, struct jinja_value *out);
/* The filters of a captured block: `captured` stands at the head of the chain `node`. */
NODISCARD enum status jinja_eval_filters(struct jinja_run *r, struct jinja_scope *s,
                                         const struct jinja_node *node,
                                         const struct jinja_value *captured,
                                         struct jinja_value *out);
/* A NODE_CALL; `caller` (may be NULL) is passed on as the keyword "caller". */
NODISCARD enum status jinja_eval_call(struct jinja_run *r, struct jinja_scope *s,
                                      const struct jinja_node *node,
                                      const struct jinja_value *caller, struct jinja_value *out);
NODISCARD enum status jinja_call(struct jinja_run *r, const struct jinja_value *callee,
                                 const struct jinja_args *args, struct jinja_value *out);

NODISCARD enum status jinja_exec(struct jinja_run *r, struct jinja_scope *s,
                                 const struct jinja_node *node, struct jinja_out *out,
                                 enum jinja_flow *flow);
NODISCARD enum status jinja_call_macro(struct jinja_run *r, const struct jinja_macro *m,
                                       const struct jinja_args *args, struct jinja_value *out);
/* loop(children) in a loop marked recursive. */
NODISCARD enum status jinja_call_loop(struct jinja_run *r, const struct jinja_loop *l,
                                      const struct jinja_args *args, struct jinja_value *out);

#endif
