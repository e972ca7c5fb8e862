/* lookup.h - prompt lookup: guesses how an answer goes on from text that the request has already.
 *
 * Answers quote documents, repeat code and repeat themselves. A lookup keeps the ids of one
 * sequence: first those of a predicted answer (OpenAI's `prediction`), if the client sent one, then
 * those of the prompt and of the answer so far. The match is an earlier place of these ids whose
 * latest ids equal the latest ids of the sequence; the ids behind that place are the guess. (The
 * method: Saxena, "Prompt lookup decoding", 2023; Yang et al., "Inference with reference", 2023.)
 *
 * Two tables, of runs of 4 and of 2 ids, map the hash of a run to the latest place behind it, and
 * each place links to the one before. While the guess is right, the match just moves on. After a
 * wrong guess at most LOOKUP_N_PLACES_MAX places of a table are compared, and the longest match
 * wins. So an id costs a bounded time, however long the sequence is.
 *
 * Guesses are checked for every id, also for ids that nobody drafted: lookup_push() answers whether
 * the guess was right. How reliable matches of a length are is thus learned for nothing.
 *
 * Owns    16 bytes per id that the sequence may have, and two tables of at most 256 KiB each.
 * Thread  one at a time.
 * Errors  ERR_NOMEM.
 * Units   ids. */
#ifndef TARN_ENGINE_RUN_LOOKUP_H
#define TARN_ENGINE_RUN_LOOKUP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define LOOKUP_N_ORDERS 2       /* tables */
#define LOOKUP_N_PLACES_MAX 16u /* compared in one table after a wrong guess */
#define LOOKUP_MATCH_MAX 32u    /* longer matches count as so long */

struct lookup {
    const uint32_t *first;  /* [n_first] ids of the prediction, borrowed */
    const uint32_t *second; /* [n - n_first] ids of prompt and answer, borrowed */
    uint32_t n_first, n, n_max;
    uint32_t n_bits;                  /* of a table's index */
    uint32_t *heads[LOOKUP_N_ORDERS]; /* [2^n_bits] the latest place behind a run; 0: none */
    uint32_t *links[LOOKUP_N_ORDERS]; /* [n_max + 1] the place before with the same hash; 0: none */
    uint32_t at;                      /* place of the match: index of the guessed id; 0 also with
                                        is_start */
    uint32_t n_match;                 /* ids before it that match; 0: there is no match */
    bool is_start;                    /* the guess is the beginning of the prediction */
};

/* A guess that was checked. */
struct lookup_guess {
    uint32_t n_match; /* length of the match that it came from */
    bool was_made, was_right;
};

/* Keep up to n_second_max ids behind the prediction's. `second` may grow in place. */
NODISCARD enum status lookup_init(struct lookup *l, const uint32_t *first, uint32_t n_first,
                                  const uint32_t *second, uint32_t n_second_max);
void lookup_fini(struct lookup *l); /* fine on a zeroed struct */
/* Add the ids of the prompt: the first n ids of `second`. */
void lookup_add_prompt(struct lookup *l, uint32_t n);
/* The next id of `second` is known: check the guess for it, add it, and match anew. */
struct lookup_guess lookup_push(struct lookup *l);
/* Whether there is a guess, and the length of its match. */
bool lookup_has_guess(const struct lookup *l);
/* Write the guessed ids [n]; returns their number, which is less at the end of a prediction. A
 * guess that reaches the sequence's end goes on with the guess itself, as in a repetition. */
uint32_t lookup_guess(const struct lookup *l, uint32_t *ids, uint32_t n);

#endif
