/* gguf_config.h - what the metadata of a GGUF file says about the model, in the words of a Hugging
 * Face config.json, so that families read one kind of configuration.
 *
 * Owns    nothing; the caller owns the JSON objects.
 * Thread  any.
 * Errors  ERR_INVALID a key that is missing or has a wrong value; ERR_UNSUPPORTED an architecture
 *         or a setting, by name; ERR_NOMEM.
 * Units   elements, tokens. */
#ifndef TARN_ENGINE_MODEL_GGUF_CONFIG_H
#define TARN_ENGINE_MODEL_GGUF_CONFIG_H

#include <stdbool.h>

#include "base/gguf.h"
#include "base/json.h"

/* An architecture of GGUF files that a family computes. */
struct gguf_architecture {
    const char *name;         /* general.architecture, and the prefix of its keys */
    const char *architecture; /* in config.json */
    bool pairs_side_by_side;  /* the order of the rows of Q and K: gguf_blocks.h */
    bool norms_plus_one;      /* 1 was added to the weights of norms */
    bool four_norms;          /* ffn_norm is the norm before the feed-forward part alone */
    bool norms_shares;        /* of experts: the shares of the chosen ones are made to sum to 1 */
};

/* Find the architecture of the file. ERR_UNSUPPORTED: names those that are known. */
NODISCARD enum status gguf_architecture(const struct gguf *g, const struct gguf_architecture **out,
                                        struct buf *why);
/* Read a whole number of the architecture, such as "attention.head_count". A list of equal numbers,
 * one for each layer, counts as one number. An absent key leaves *out as it is. */
NODISCARD enum status gguf_config_number(const struct gguf *g, const struct gguf_architecture *a,
                                         const char *key, uint64_t max, uint64_t *out,
                                         struct buf *why);
/* Elements of a head of Q and K. */
NODISCARD enum status gguf_head_dim(const struct gguf *g, const struct gguf_architecture *a,
                                    uint64_t *out, struct buf *why);
/* Make what config.json and generation_config.json would say. The caller drops both with
 * js_unref(). */
NODISCARD enum status gguf_config_make(const struct gguf *g, struct json **config,
                                       struct json **generation, struct buf *why);

#endif
