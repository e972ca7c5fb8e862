/* form.h - the form that a request wants its answer to have, while the answer is generated.
 *
 * Owns    the run of the grammar and a mask of the vocabulary.
 * Thread  one at a time per form; forms of several sequences may compute their masks in parallel.
 * Errors  ERR_NOMEM; ERR_TOO_LARGE the grammar can be read in too many ways; ERR_UNSUPPORTED no
 *         token goes on; ERR_INVALID a token that the mask forbids.
 * Units   ids. */
#ifndef TARN_ENGINE_FORM_H
#define TARN_ENGINE_FORM_H

#include "engine/grammar/grammar.h"
#include "engine/stopping.h"

/* Zeroed: any text. */
struct form {
    struct grammar_run run;
    const struct stop_model *model; /* of the eos ids */
    uint32_t *mask;                 /* [words of the vocabulary] */
    enum status status;             /* of the latest mask */
};

/* grammar NULL: any text. continues: as in detok_init(). The model is borrowed. */
NODISCARD enum status form_open(struct form *f, struct grammar *grammar,
                                const struct stop_model *model, bool continues);
void form_close(struct form *f); /* fine on a zeroed struct */
/* The ids that may come next: those that `also` (NULL: all) allows, too, if there are any. After an
 * error, which form_feed() returns, `also` alone. */
const uint32_t *form_mask(struct form *f, const uint32_t *also);
NODISCARD enum status form_feed(struct form *f, uint32_t id);
const char *form_error(enum status s); /* words for the client */

#endif
