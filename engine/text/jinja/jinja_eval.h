/* jinja_eval.h - evaluates the tree: expressions (jinja_eval.c) and statements (jinja_exec.c).
 *
 * Owns    nothing: scopes and values are in the run's arena.
 * Thread  the run's; nodes are only read.
 * Errors  those of the template, with the line; ERR_TOO_LARGE: too many steps, too deep, too much
 *         output.
 * Units   none. */
#ifndef TARN_ENGINE_TEXT_JINJA_JINJA_EVAL_H
#define TARN_ENGINE_TEXT_JINJA_JINJA_EVAL_H

#include "engine/text/jinja/jinja_ast.h"
#include "engine/text/jinja/jinja_text.h"

struct jinja_binding {
    const char *name;
    struct jinja_value value;
};

/* The names of one level. A lookup continues in the parents, the context and the functions. */
struct jinja_scope {
    struct jinja_scope *parent;
    struct jinja_binding *items;
    size_t n;
    size_t cap;
    bool shared; /* a macro was defined here and keeps the scope alive after the block */
};

struct jinja_macro {
    const struct jinja_node *node;
    struct jinja_scope *scope; /* of the definition */
};

enum jinja_flow { FLOW_NORMAL, FLOW_BREAK, FLOW_CONTINUE };

NODISCARD enum status jinja_scope_new(struct jinja_run *r, struct jinja_scope *parent,
                                      struct jinja_scope **out);
NODISCARD enum status jinja_scope_set(struct jinja_run *r, struct jinja_scope *s, const char *name,
                                      const struct jinja_value *v);
/* Undefined if the name is unknown. */
NODISCARD enum status jinja_scope_get(struct jinja_run *r, const struct jinja_scope *s,
                                      const char *name, struct jinja_value *out);

NODISCARD enum status jinja_eval(struct jinja_run *r, struct jinja_scope *s,
                                 const struct jinja_node *node, struct jinja_value *out);
/* Apply the chain of filters `node` to a captured block. */
NODISCARD enum status jinja_eval_filters(struct jinja_run *r, struct jinja_scope *s,
                                         const struct jinja_node *node,
                                         const struct jinja_value *captured,
                                         struct jinja_value *out);
/* Evaluate a NODE_CALL; `caller` (may be NULL) is passed as the keyword "caller". */
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
/* Evaluate loop(children) in a loop marked recursive. */
NODISCARD enum status jinja_call_loop(struct jinja_run *r, const struct jinja_loop *l,
                                      const struct jinja_args *args, struct jinja_value *out);

#endif
