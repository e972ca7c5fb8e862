/* jinja_parser.h - tokens to a tree of nodes.
 *
 * Owns    nothing: nodes are in the run's arena.
 * Thread  any.
 * Errors  ERR_INVALID: syntax, with the line; ERR_UNSUPPORTED: an unknown tag, filter or test, by
 *         name (inside an `if`, as in jinja2, only when evaluated); ERR_TOO_LARGE: nesting.
 * Units   lines count from 1. */
#ifndef TARN_ENGINE_TEXT_JINJA_JINJA_PARSER_H
#define TARN_ENGINE_TEXT_JINJA_JINJA_PARSER_H

#include "engine/text/jinja/jinja_ast.h"
#include "engine/text/jinja/jinja_lexer.h"

#define JINJA_PARSE_DEPTH_MAX 150u /* nested tags and parentheses */

/* On OK *out is the NODE_BLOCK of the whole template. */
NODISCARD enum status jinja_parse(struct jinja_run *r, const struct jinja_tokens *tokens,
                                  struct jinja_node **out);

/* Shared by the statement parser (jinja_parser.c) and the expression parser
 * (jinja_parse_expr.c). */
struct jinja_parser {
    struct jinja_run *r;
    const struct jinja_token *tok; /* the current token; never moves past TOK_EOF, the last one */
    unsigned depth;
    unsigned soft;   /* > 0 inside if bodies: unknown filters are errors only when evaluated */
    unsigned loops;  /* enclosing for loops, up to the next macro */
    int macro_flags; /* special names used since the macro began */
};

NODISCARD enum status jinja_node_new(struct jinja_parser *p, enum jinja_node_kind kind,
                                     struct jinja_node **out);
NODISCARD enum status jinja_nodes_push(struct jinja_parser *p, struct jinja_nodes *list,
                                       struct jinja_node *node);
void jinja_next(struct jinja_parser *p);
bool jinja_at_name(const struct jinja_parser *p, const char *name);
bool jinja_skip_name(struct jinja_parser *p, const char *name);
bool jinja_skip(struct jinja_parser *p, enum jinja_tok t);
NODISCARD enum status jinja_expect(struct jinja_parser *p, enum jinja_tok t);
/* Read a name into an arena string. */
NODISCARD enum status jinja_expect_name(struct jinja_parser *p, const char **out);
NODISCARD enum status jinja_enter(struct jinja_parser *p);
/* Fail with "unexpected X, expected Y" at the current token. */
enum status jinja_unexpected(struct jinja_parser *p, const char *expected);

NODISCARD enum status jinja_parse_expr(struct jinja_parser *p, bool with_cond,
                                       struct jinja_node **out);
NODISCARD enum status jinja_parse_primary(struct jinja_parser *p, struct jinja_node **out);
/* Parse an expression, or several with commas as a tuple. `end_name` (may be NULL) is a name that
 * ends the list, e.g. "in". */
NODISCARD enum status jinja_parse_tuple(struct jinja_parser *p, bool with_cond, bool parentheses,
                                        const char *end_name, struct jinja_node **out);
/* Parse "| name(...) | ..." applied to `in` (NULL: captured text). inline_start: the first filter
 * has no pipe before it. */
NODISCARD enum status jinja_parse_filters(struct jinja_parser *p, struct jinja_node *in,
                                          bool inline_start, struct jinja_node **out);

#endif
