/* states.h - the rules of a grammar as states: a nondeterministic machine whose calls form a stack.
 *
 * Every rule has a first state. From a state the machine reads a byte, goes on in two ways, calls a
 * rule and goes on behind the call, or ends its rule.
 *
 * Owns    its arrays until states_fini().
 * Thread  read-only after states_build(): any thread.
 * Errors  ERR_TOO_LARGE too many states, or too deep an expression; ERR_UNSUPPORTED a rule that
 *         begins with itself (left recursion); ERR_INVALID a rule without definition; ERR_NOMEM.
 * Units   states. */
#ifndef TARN_ENGINE_GRAMMAR_STATES_H
#define TARN_ENGINE_GRAMMAR_STATES_H

#include "engine/grammar/expr.h"

#define STATES_MAX (1u << 20)

enum state_kind {
    STATE_END,   /* of a rule */
    STATE_NEVER, /* nothing goes on from here */
    STATE_BYTE,  /* a byte of set a, then b */
    STATE_SPLIT, /* a or b */
    STATE_CALL   /* the rule that begins with a, then b */
};

struct state {
    enum state_kind kind;
    uint32_t a, b;
};

struct states {
    struct state *v; /* [n] */
    uint32_t n, cap;
    struct byte_set *sets; /* [n_sets] */
    uint32_t n_sets;
    uint32_t first;        /* state in which a text begins */
    uint8_t class_of[256]; /* bytes that no set tells apart have the same class */
    uint32_t n_classes;
    uint8_t byte_of[256]; /* a byte of each class */
};

/* Build the states of all rules that rule `first` needs. */
NODISCARD enum status states_build(struct states *st, const struct exprs *e, uint32_t first,
                                   struct buf *why);
void states_fini(struct states *st); /* fine on a zeroed struct */

#endif
