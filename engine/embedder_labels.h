/* embedder_labels.h - what the files of a model that classifies texts say about its labels.
 *
 *     config.json                          id2label, problem_type; sentence_transformers or
 *                                          sbert_ce_default_activation_function
 *     config_sentence_transformers.json    activation_fn, which goes before that of config.json
 *     tokenizer_config.json                whether texts of a pair have different token types
 *
 * A model that classifies a text answers with probabilities: the sigmoid of each logit where
 * problem_type is multi_label_classification or there is one label, the logits themselves for a
 * regression, else their softmax. A cross-encoder says by activation_fn what its score is; without
 * that field the score is the sigmoid of the logit.
 *
 * Owns    the names.
 * Thread  any.
 * Errors  ERR_INVALID, ERR_UNSUPPORTED: words name the file and the field; ERR_NOMEM.
 * Units   none. */
#ifndef TARN_ENGINE_EMBEDDER_LABELS_H
#define TARN_ENGINE_EMBEDDER_LABELS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

/* The function that turns logits into scores. */
enum label_activation { LABELS_PLAIN, LABELS_SIGMOID, LABELS_SOFTMAX };

struct embedder_labels {
    char **names; /* [n]; NULL: the file has no name for that label */
    uint32_t n;
    enum label_activation of_texts, of_pairs;
    bool has_types; /* the second text of a pair has tokens of type 1 */
};

/* Read the files of a model with n labels, 1 to MODEL_N_LABELS_MAX. */
NODISCARD enum status embedder_labels_load(struct embedder_labels *out, const char *dir, uint32_t n,
                                           struct buf *why);
void embedder_labels_fini(struct embedder_labels *l); /* also fine on a zeroed struct */
/* Replace logits [n] by what the activation makes of them. */
void embedder_labels_activate(enum label_activation activation, float *logits, uint32_t n);

#endif
