/* drafting.h - how many guessed tokens a decoding sequence verifies in a step: pure.
 *
 * A step may run the guessed next tokens of a sequence as further rows. A right guess saves a
 * decode; a wrong one has cost its row. Two parts decide:
 *
 * Acceptance. The chance that a guess is right is learned for each length of the match that it
 * came from, over all requests and for each one, with decay. A request's chances are the server's
 * until it has its own.
 *
 * Gain. A step that decodes n sequences in T seconds yields n / T tokens a second. A draft is taken
 * where its rows are expected to yield at least DRAFT_GAIN_MIN times as many tokens a second; of
 * several lengths the one with which the whole step yields most. The rows' time is what the cost
 * model expects of so many further rows behind those that the step has already: little while the
 * step waits for weights, much in a full batch or beside a chunk of a prompt.
 *
 * Owns    nothing: plain numbers.
 * Thread  one at a time.
 * Errors  none.
 * Units   tokens, rows, seconds. */
#ifndef TARN_ENGINE_SCHED_DRAFTING_H
#define TARN_ENGINE_SCHED_DRAFTING_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/sched/cost_model.h"

#define DRAFT_TOKENS_MAX 32u /* of one sequence in one step */
#define DRAFT_GAIN_MIN 1.25
#define ACCEPTANCE_N 7 /* classes of match length */

/* Zeroed: nothing was seen. */
struct acceptance {
    double n_guesses[ACCEPTANCE_N], n_right[ACCEPTANCE_N];
};

/* A guess of a match of n_match ids was right or wrong: learn it for the server and the request. */
void acceptance_note(struct acceptance *server, struct acceptance *request, uint32_t n_match,
                     bool was_right);
/* The chance that a guess of a match of n_match ids is right. */
double acceptance_chance(const struct acceptance *server, const struct acceptance *request,
                         uint32_t n_match);

/* The step so far. */
struct draft_step {
    const struct cost_model *cost;
    uint32_t n_rows; /* of decodes, chunks and drafts */
    double row_s;    /* of picking a row's token */
    double tokens;   /* expected of decodes and drafts */
    double seconds;  /* without chunks */
    double drafts_s; /* of those: what drafts add */
};

/* A step whose n_decodes decodes are behind n_cached tokens each, with n_rows rows in all. */
void draft_step_begin(struct draft_step *step, const struct cost_model *cost, uint32_t n_decodes,
                      uint32_t n_cached, uint32_t n_rows, double row_s);
/* The best length, up to n_max, of the draft of a sequence behind n_cached tokens, whose guesses
 * are right with chances[n_max], each if those before it are. 0: none is worth its rows. */
uint32_t draft_step_length(const struct draft_step *step, uint32_t n_cached, const double *chances,
                           uint32_t n_max);
/* The draft of that length is part of the step. */
void draft_step_add(struct draft_step *step, uint32_t n_cached, const double *chances, uint32_t n);

#endif
