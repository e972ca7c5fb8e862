/* vocab_rules.h - which tokens a request allows in its answer, and which words it forbids.
 *
 * A bad word is a sequence of ids. Its last id is forbidden where the ids before it are the latest
 * ones of the answer, as in vLLM. A word of one id is forbidden everywhere. The prompt's ids do not
 * count. The rules of a token therefore depend on the request and its answer so far (promise P1).
 *
 * Owns    nothing: request_create() copies the arrays.
 * Thread  plain data; pure functions.
 * Errors  none.
 * Units   ids. */
#ifndef TARN_ENGINE_RUN_VOCAB_RULES_H
#define TARN_ENGINE_RUN_VOCAB_RULES_H

#include <stdbool.h>
#include <stdint.h>

#define VOCAB_N_WORDS_MAX 1024
#define VOCAB_N_WORD_IDS_MAX 16384 /* of all words together */

/* Zeroed: any token. */
struct vocab_rules {
    const uint32_t *allowed; /* vocab_mask.h, at least one id; NULL: every id */
    uint32_t n_words;
    const uint32_t *word_ends; /* [n_words] ascending: word i has the ids from word_ends[i - 1] */
    const uint32_t *word_ids;  /* [word_ends[n_words - 1]] */
};

static inline uint32_t vocab_rules_n_word_ids(const struct vocab_rules *r)
{
    return r->n_words ? r->word_ends[r->n_words - 1] : 0;
}

/* Whether the arrays are within the bounds above and name ids below n_vocab only. */
bool vocab_rules_are_valid(const struct vocab_rules *r, uint32_t n_vocab);
/* Forbid in the mask what would complete a bad word behind the answer's ids [n]. */
void vocab_rules_forbid(const struct vocab_rules *r, const uint32_t *ids, uint32_t n,
                        uint32_t *mask);

#endif
