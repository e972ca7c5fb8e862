/* jinja_ast.h - the parsed template: one node struct for expressions and statements.
 *
 * Owns    nothing: nodes are in the template's arena and do not change after parsing.
 * Thread  read-only, any thread.
 * Errors  none.
 * Units   lines count from 1. */
#ifndef TARN_ENGINE_TEXT_JINJA_JINJA_AST_H
#define TARN_ENGINE_TEXT_JINJA_JINJA_AST_H

#include "engine/text/jinja/jinja_value.h"

/* Each kind's comment names the fields that it uses. */
enum jinja_node_kind {
    /* expressions: */
    NODE_CONST,   /* value */
    NODE_NAME,    /* name */
    NODE_LIST,    /* args */
    NODE_TUPLE,   /* args */
    NODE_DICT,    /* args: keys, more: values */
    NODE_GETATTR, /* a.name */
    NODE_GETITEM, /* a[b] */
    NODE_SLICE,   /* a:b:c, each may be NULL; only as b of NODE_GETITEM */
    NODE_CALL,    /* a(args, more: NODE_KEYWORD, *b, **c) */
    NODE_FILTER,  /* a|name(args, more, *b, **c); a is NULL on a captured block; filter */
    NODE_TEST,    /* a is name(args, more, *b, **c); test */
    NODE_KEYWORD, /* name=a */
    NODE_NOT,     /* a */
    NODE_NEG,     /* a */
    NODE_POS,     /* a */
    NODE_AND,     /* a, b */
    NODE_OR,      /* a, b */
    NODE_BINARY,  /* a op b */
    NODE_CONCAT,  /* args */
    NODE_COMPARE, /* a, args: NODE_OPERAND */
    NODE_OPERAND, /* op a */
    NODE_COND,    /* b if a else c; c may be NULL */
    NODE_NSREF,   /* name.attr as an assignment target */
    /* statements: */
    NODE_BLOCK,        /* args: statements in order */
    NODE_DATA,         /* value */
    NODE_OUTPUT,       /* a */
    NODE_IF,           /* args: conditions, more: their bodies; c: else body or NULL */
    NODE_FOR,          /* for a in b if c; body, other: else body or NULL; op: recursive */
    NODE_SET,          /* a = b */
    NODE_SET_BLOCK,    /* a = body; b: filters or NULL */
    NODE_MACRO,        /* name(args: NODE_NAME, more: defaults of the last ones); body; op: flags */
    NODE_CALL_BLOCK,   /* a: NODE_CALL; b: NODE_MACRO, the caller */
    NODE_FILTER_BLOCK, /* a: filters; body */
    NODE_WITH,         /* args: targets, more: values; body */
    NODE_SCOPE,        /* body: {% generation %} */
    NODE_BREAK,
    NODE_CONTINUE,
};

/* NODE_MACRO, op: the special names that the body uses. Only then may a call pass them. */
enum { MACRO_VARARGS = 1, MACRO_KWARGS = 2, MACRO_CALLER = 4 };

struct jinja_node;

struct jinja_nodes {
    struct jinja_node **items;
    size_t n;
    size_t cap;
};

struct jinja_node {
    enum jinja_node_kind kind;
    int line;
    int op; /* enum jinja_tok for operators */
    const char *name;
    const char *attr;
    struct jinja_node *a, *b, *c;
    struct jinja_node *body, *other;
    struct jinja_nodes args;
    struct jinja_nodes more;
    struct jinja_value value;
    const struct jinja_filter *filter; /* NULL: unknown; an error only when evaluated */
    const struct jinja_test *test;
};

#endif
