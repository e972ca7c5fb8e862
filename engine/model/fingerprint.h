/* fingerprint.h - the name of everything that the bytes of stored KV depend on.
 *
 * Two engines may share KV exactly when their fingerprints are equal. The fingerprint is a hash of
 * one canonical text: the model's config (model_config_write()), the terms below, the kernel set
 * and the content hash of the weights. Every part of the text comes from a table that covers its
 * struct, so a new field counts without further code.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  ERR_NOMEM.
 * Units   bytes. */
#ifndef TARN_ENGINE_MODEL_FINGERPRINT_H
#define TARN_ENGINE_MODEL_FINGERPRINT_H

#include "engine/model/weights.h"

#define FINGERPRINT_BYTES 32

/* Stored KV depends on these fields and on the model. No padding, as in struct model_config. */
struct fingerprint_terms {
    uint32_t format_version; /* KV_FORMAT_VERSION */
    uint32_t segment_tokens;
    uint32_t ops_version;
    enum dtype weights_dtype;
    struct quantization quantization;
    struct kv_layout kv;
};

/* The rows of struct fingerprint_terms. */
struct field_table fingerprint_fields(void);

struct fingerprint_config {
    struct fingerprint_terms terms;
    const struct model_config *model;
    const char *ops_name;
    const uint8_t *content_hash; /* [32], struct weights' */
};

NODISCARD enum status fingerprint_make(uint8_t out[FINGERPRINT_BYTES],
                                       const struct fingerprint_config *config);
/* Append the text whose hash is the fingerprint; two fingerprints can be compared by eye with
 * it. */
NODISCARD enum status fingerprint_write(const struct fingerprint_config *config, struct buf *out);

#endif
