/* expr.h - a grammar while it is written down: expressions over bytes, and rules that name them.
 *
 * A front end (json_schema.c, regex.c, ebnf.c) makes expressions bottom up and gives each rule one.
 * states.h turns the rules into states. Text is UTF-8: a class of characters becomes the byte
 * sequences of its code points, so that nothing behind this header knows of characters.
 *
 * Owns    expressions, byte sets and rules until exprs_fini().
 * Thread  one at a time.
 * Errors  functions that return an expression return EXPR_FAILED when memory or a bound is
 *         exhausted or an argument is EXPR_FAILED; exprs_status() says why. So a front end may
 *         check once, at its end.
 * Units   bytes, code points. */
#ifndef TARN_ENGINE_GRAMMAR_EXPR_H
#define TARN_ENGINE_GRAMMAR_EXPR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

#define EXPR_FAILED UINT32_MAX
#define EXPR_MANY UINT32_MAX /* no upper bound of a repetition */
#define EXPRS_MAX (1u << 18)
#define EXPR_SETS_MAX (1u << 14)
#define EXPR_RULES_MAX (1u << 16)
#define EXPR_CLASSES_MAX (1u << 14)
#define EXPR_SLOTS (1u << 15) /* a power of two, twice the most sets and classes */

struct byte_set {
    uint64_t bits[4];
};

static inline bool byte_set_has(const struct byte_set *s, uint8_t b)
{
    return s->bits[b / 64] >> b % 64 & 1;
}

static inline void byte_set_add(struct byte_set *s, uint8_t b)
{
    s->bits[b / 64] |= UINT64_C(1) << b % 64;
}

enum expr_kind {
    EXPR_EMPTY,  /* the empty text */
    EXPR_NEVER,  /* no text at all */
    EXPR_BYTE,   /* a byte of set a */
    EXPR_SEQ,    /* a, then b */
    EXPR_ALT,    /* a or b */
    EXPR_REPEAT, /* a, min to max times */
    EXPR_RULE    /* the expression of rule a */
};

struct expr {
    enum expr_kind kind;
    uint32_t a, b;
    uint32_t min, max;
    uint32_t n_states; /* an estimate, for deciding what becomes a rule of its own */
};

/* An inclusive range of code points. */
struct code_range {
    uint32_t first, last;
};

struct exprs {
    struct expr *v; /* [n] */
    uint32_t n, cap;
    struct byte_set *sets; /* [n_sets], all different */
    uint32_t n_sets, sets_cap;
    uint32_t *rules; /* [n_rules] expressions; EXPR_FAILED: declared and not defined yet */
    uint32_t n_rules, rules_cap;
    struct code_rule *classes; /* [n_classes] classes that are rules already */
    uint32_t n_classes, classes_cap;
    uint32_t *set_slots, *class_slots; /* [EXPR_SLOTS] numbers by hash, plus 1; 0: none */
    enum status status;
};

void exprs_init(struct exprs *e);
void exprs_fini(struct exprs *e);
/* OK, ERR_NOMEM, or ERR_TOO_LARGE: more expressions, sets or rules than are allowed. */
enum status exprs_status(const struct exprs *e);

/* Note an error; EXPR_FAILED. */
uint32_t expr_fail(struct exprs *e, enum status s);

/* Count the characters of the shortest and the longest text of an expression; EXPR_MANY: no bound.
 * Rules must not name themselves. False: too deep, or an error. */
bool exprs_count_chars(const struct exprs *e, uint32_t x, uint32_t *least, uint32_t *most);

uint32_t expr_empty(struct exprs *e);
uint32_t expr_never(struct exprs *e);
uint32_t expr_byte(struct exprs *e, const struct byte_set *set);
uint32_t expr_text(struct exprs *e, const char *text, size_t len);
uint32_t expr_cstr(struct exprs *e, const char *text);
uint32_t expr_seq(struct exprs *e, uint32_t a, uint32_t b);
uint32_t expr_seq3(struct exprs *e, uint32_t a, uint32_t b, uint32_t c);
uint32_t expr_alt(struct exprs *e, uint32_t a, uint32_t b);
uint32_t expr_repeat(struct exprs *e, uint32_t a, uint32_t min, uint32_t max);
/* A character of the ranges [n], or, negated, any other one. Surrogates are no characters. */
uint32_t expr_class(struct exprs *e, const struct code_range *ranges, size_t n, bool negated);

/* Declare a rule; return its number. */
uint32_t expr_new_rule(struct exprs *e);
void expr_define(struct exprs *e, uint32_t rule, uint32_t expr);
uint32_t expr_rule(struct exprs *e, uint32_t rule);

#endif
