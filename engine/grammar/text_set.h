/* text_set.h - inside of engine/grammar: strings by what they match and what they do not match.
 *
 * A set has conditions. Each is a regular expression, or a list of texts; a string of the set meets
 * the wanted ones and not the forbidden ones, and has a length between bounds. Open conditions
 * divide the set: a class of them is a word whose bit i says whether the strings meet open
 * condition i. The product of the conditions' machines is a deterministic one, without the states
 * from which nothing is reached.
 *
 * Owns    its machines until text_set_destroy().
 * Thread  one at a time.
 * Errors  front_regex()'s, with words; ERR_TOO_LARGE more states than TEXT_SET_STATES_MAX, or no
 *         work is left; ERR_NOMEM.
 * Units   code points for lengths; bytes; work: states of machines, some 25 ns each. */
#ifndef TARN_ENGINE_GRAMMAR_TEXT_SET_H
#define TARN_ENGINE_GRAMMAR_TEXT_SET_H

#include "engine/grammar/expr.h"

#define TEXT_SET_CONDITIONS_MAX 24u
#define TEXT_SET_STATES_MAX 16384u
#define TEXT_SET_CLASSES_MAX 64u

enum text_condition { TEXT_WANTED, TEXT_FORBIDDEN, TEXT_OPEN };

struct text_set;

/* All strings; NULL: no memory. *n_left: work that is left. */
struct text_set *text_set_create(uint32_t *n_left);
void text_set_destroy(struct text_set *t); /* NULL is fine */
/* flags: REGEX_SEARCH or 0 (front.h). */
NODISCARD enum status text_set_add_regex(struct text_set *t, enum text_condition c,
                                         const char *regex, size_t len, unsigned flags,
                                         struct buf *why);
/* An expression over bytes, UTF-8. */
NODISCARD enum status text_set_add_expr(struct text_set *t, enum text_condition c, struct exprs *e,
                                        uint32_t x, struct buf *why);
/* Add the condition that the string is one of texts [n], UTF-8. */
NODISCARD enum status text_set_add_texts(struct text_set *t, enum text_condition c,
                                         const char *const *texts, size_t n, struct buf *why);
/* At least min characters and at most max (EXPR_MANY: no bound), beside earlier bounds. */
void text_set_bound(struct text_set *t, uint32_t min, uint32_t max);
/* Whether a string is in the set; *class: of its open conditions. */
NODISCARD enum status text_set_has(struct text_set *t, const char *text, size_t len, bool *yes,
                                   uint32_t *class);
/* Find all states, after the last condition; then classes [*n] are those that occur. */
NODISCARD enum status text_set_explore(struct text_set *t, uint32_t classes[TEXT_SET_CLASSES_MAX],
                                       uint32_t *n);
/* The strings of one class, as they are written inside of a JSON string, each character in the
 * shortest way; as expr.h. */
uint32_t text_set_in_json(struct text_set *t, struct exprs *e, uint32_t class);

#endif
