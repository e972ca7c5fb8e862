/* draft_model.h - a second, small model that guesses how answers go on.
 *
 * The model has the tokenizer of the large one, and runs on the same device between the large
 * model's forward passes. draft_model_run() is one forward pass over several sequences: the ids of
 * each that the draft model has not computed, and a guess of the next id behind them. A guess is
 * drawn with the random number that the large model's pick of that token will use (sampler.h), so
 * that two models with similar probabilities agree often at any temperature.
 *
 * KV. The draft model's KV is private: neither cached nor shared, and no part of cache/. A store of
 * a fixed size has a number of seats, each for one sequence and `window` tokens. A sequence takes a
 * free seat, or that of a sequence that asked for no guess in a while (preempted ones, and those
 * whose guesses come from their own text). Where all are in use, sequences take turns: from time to
 * time the one that waits for longest takes the seat that was held for longest. The ids of a seat
 * are compared with those of the sequence at each use, so wrong guesses, preemptions and cache hits
 * need no call: KV of other ids is computed again. A sequence that outgrows the window goes on with
 * its latest window / 2 tokens: the draft model does not see what was before.
 *
 * Owns    the model's weights, the KV store, the buffers of its forward pass. Borrows the device.
 * Thread  draft_model_open() on the engine's opening thread; then the engine thread.
 * Errors  draft_model_read(), draft_model_open(): words that begin with {draft_model}: ERR_INVALID
 *         for another vocabulary or a store that holds no sequence, ERR_NOMEM, and those of loading
 *         a model. draft_model_run(): errors of the device.
 * Units   tokens, rows, bytes. */
#ifndef TARN_ENGINE_DRAFT_MODEL_H
#define TARN_ENGINE_DRAFT_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "engine/opening.h"
#include "engine/run/sampler.h"
#include "engine/run/step_graphs.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "kernels/device.h"

/* Tokens of a seat, and seats that the store has unless its size is given. */
#define DRAFT_WINDOW_MAX 2048u
#define DRAFT_WINDOW_MIN 128u
#define DRAFT_SEATS_DEFAULT 16u
/* Rows of one forward pass. */
#define DRAFT_ROWS_MAX 256u

struct draft_model;

struct draft_model_config {
    const char *dir;        /* or a GGUF file */
    struct opening opening; /* of the weights */
    uint32_t n_slots;       /* ids of sequences are below it */
    uint32_t n_seqs_max;    /* in one forward pass */
    uint32_t n_rows_max;    /* of the device: max_rows in struct device_config */
    uint32_t max_model_len; /* no sequence is longer */
    uint64_t kv_bytes;      /* of the store at most; 0: what DRAFT_SEATS_DEFAULT sequences need */
};

/* Read the model's configuration: what decides how the device is opened. */
NODISCARD enum status draft_model_read(struct draft_model **out,
                                       const struct draft_model_config *config, struct buf *why);
/* Raise the fields of *d to what this model needs. */
void draft_model_fit(const struct draft_model *m, struct device_config *d);
/* Record steps, before draft_model_open(). Returns the memory that is reserved for that. */
uint64_t draft_model_record(struct draft_model *m, const struct step_graphs_cost *cost);
/* Load the weights, and check that ids mean the same to both models. t, n_vocab: of the large
 * model; t NULL: the models have random weights and no tokenizers. */
NODISCARD enum status draft_model_open(struct draft_model *m, struct device *device,
                                       const struct tokenizer *t, uint32_t n_vocab,
                                       struct buf *why);
void draft_model_close(struct draft_model *m); /* NULL is fine */

/* Free weights and KV of the open model; draft_model_wake() loads the weights again. Between the
 * two, draft_model_drop() alone may be called. */
void draft_model_sleep(struct draft_model *m);
/* Errors: as draft_model_open(); the model sleeps on. */
NODISCARD enum status draft_model_wake(struct draft_model *m, struct buf *why);

uint64_t draft_model_weight_bytes(const struct draft_model *m);
uint64_t draft_model_kv_bytes(const struct draft_model *m);
uint32_t draft_model_rows_max(const struct draft_model *m); /* of one forward pass */

/* A sequence in forward passes: the caller sets the fields up to `state`. */
struct draft_seq {
    uint32_t slot;
    uint32_t n_known;
    uint32_t n_out; /* of those: of the answer */
    uint32_t *ids;  /* [n_known + n_guessed], and room for one more; guesses are appended */
    const struct sampling *sampling;
    const struct sampler_state *state;
    uint32_t n_rows; /* most rows of the next forward pass; 0: the sequence is not part of it */
    bool is_trial;   /* its guesses are made to learn how often they are right */

    uint32_t n_guessed;
    float lead; /* of the latest guess: its logit less the best other one */
};

#define DRAFT_UNSEEN UINT32_MAX
/* Find or give the sequence a seat. Returns how many of its ids have to be computed before the next
 * guess; DRAFT_UNSEEN: there is no seat, or the draft model lacks one of its ids. */
uint32_t draft_model_unseen(struct draft_model *m, const struct draft_seq *q);
/* Run one forward pass over those of seqs [n] that have rows, which draft_model_unseen() gave a
 * seat in this step. The sum of their rows is at most draft_model_rows_max(). A sequence all of
 * whose ids are computed then has one more guess. */
NODISCARD enum status draft_model_run(struct draft_model *m, struct draft_seq *seqs, uint32_t n);
/* A step of the engine begins: a seat may change hands. */
void draft_model_step(struct draft_model *m);
/* The sequence has left. No effect where it has no seat, or on NULL. */
void draft_model_drop(struct draft_model *m, uint32_t slot);

#endif
