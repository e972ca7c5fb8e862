/* encoder.h - a text through an encoder: each token sees all others, so a text is never split.
 *
 * The sum of the embeddings of token, position and type, its norm, then the layers of the model's
 * family (engine/model/family.h, is_encoder). K and V are those of one layer at a time.
 *
 * Owns    its activations and KV, sized once for n_tokens_max; borrows model, weights, device.
 * Thread  one caller at a time.
 * Errors  encoder_create(): ERR_NOMEM; ERR_UNSUPPORTED: not a host device. encoder_run(): errors of
 *         the device.
 * Units   tokens, elements. */
#ifndef TARN_ENGINE_RUN_ENCODER_H
#define TARN_ENGINE_RUN_ENCODER_H

#include "engine/model/weights.h"

struct encoder;

struct encoder_config {
    struct device_group group; /* of one device */
    const struct model_config *model;
    const struct weights *weights;
    uint32_t n_tokens_max; /* of a text; at most the model's max_pos */
};

NODISCARD enum status encoder_create(struct encoder **out, const struct encoder_config *config);
void encoder_destroy(struct encoder *e); /* NULL is fine */
/* Compute the last hidden states [n, D] of ids [n], 1 to n_tokens_max, each below n_vocab. The
 * first n_first ids have type 0, the others type 1, if the model has two types. The states are
 * valid until the next run. */
NODISCARD enum status encoder_run(struct encoder *e, const uint32_t *ids, uint32_t n,
                                  uint32_t n_first, const float **hidden);
/* encoder_run(), then the logits of the model's labels; logits [n_labels]. */
NODISCARD enum status encoder_classify(struct encoder *e, const uint32_t *ids, uint32_t n,
                                       uint32_t n_first, float *logits);

#endif
