/* mask.h - inside of engine/grammar: the tokens that may come in one configuration of a machine.
 *
 * Owns    the mask's lists until mask_fini(); a loop is the vocabulary's.
 * Thread  as the machine.
 * Errors  as machine.h. ERR_BUSY also where a set of the vocabulary is to be built first:
 *         vocab_build_loops().
 * Units   ids. */
#ifndef TARN_ENGINE_GRAMMAR_MASK_H
#define TARN_ENGINE_GRAMMAR_MASK_H

#include "engine/grammar/machine.h"
#include "engine/grammar/vocab.h"

/* A set of ids: the ids of a loop set and of a list, or the words of a mask. */
struct mask {
    const struct vocab_loop *loop; /* may be NULL */
    uint32_t *ids;                 /* [n] */
    uint32_t n;
    uint32_t *words; /* [n_words], instead of both; NULL: none */
    uint32_t work;   /* machine_work() */
    bool is_known;
};

/* Compute the mask as one question to the machine (machine_ask()). */
NODISCARD enum status mask_compute(struct mask *k, struct grammar_vocab *v, struct machine *m,
                                   uint32_t config, bool is_first);
/* The most of a slice that mask_compute() spends again each time it is asked again. */
uint32_t mask_walk_work(const struct grammar_vocab *v);
void mask_fini(struct mask *k);
/* Memory of the lists. */
size_t mask_bytes(const struct mask *k, const struct grammar_vocab *v);
/* Write the words [n_words of the vocabulary]. */
void mask_write(const struct mask *k, const struct grammar_vocab *v, uint32_t *words);
/* Whether no token may come. */
bool mask_is_empty(const struct mask *k);

#endif
