/* free_text.h - inside of engine/grammar: any text up to the first of several strings.
 *
 * Owns    nothing.
 * Thread  as expr.h.
 * Errors  ERR_TOO_LARGE is noted in the expressions.
 * Units   code points. */
#ifndef TARN_ENGINE_GRAMMAR_FREE_TEXT_H
#define TARN_ENGINE_GRAMMAR_FREE_TEXT_H

#include "engine/grammar/expr.h"

#define FREE_TEXT_CODES_MAX 2048u /* of all strings together */

/* A string and the expression that follows it; EXPR_FAILED: the string may not come at all. */
struct free_text_end {
    const char *text; /* UTF-8, not empty */
    size_t len;
    uint32_t then;
};

/* Define the rule as text in which none of the strings [n] comes, or which ends with the first one
 * that comes, followed by `then`. may_end: the former is allowed. */
void front_free_text(struct exprs *e, uint32_t rule, const struct free_text_end *ends, uint32_t n,
                     bool may_end);

#endif
