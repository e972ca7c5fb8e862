/* gguf_members.h - what the parts of gguf_config.c share while they fill a config.json.
 *
 * Owns    nothing: gguf_config_make() owns the object.
 * Thread  one at a time.
 * Errors  the first one is kept in `status`, with words; later ones are dropped, so that a caller
 *         checks once.
 * Units   elements, tokens. */
#ifndef TARN_ENGINE_MODEL_GGUF_MEMBERS_H
#define TARN_ENGINE_MODEL_GGUF_MEMBERS_H

#include "engine/model/gguf_config.h"

#define KEY_BYTES_MAX 128

struct gguf_members {
    const struct gguf *g;
    const struct gguf_architecture *a;
    const char *architecture; /* in config.json */
    struct json *config;
    struct buf *why;
    enum status status;
    uint64_t n_layers, head_dim;
};

/* Whether the architecture's key is there. */
bool gguf_member_has(const struct gguf_members *m, const char *key);
/* Read the architecture's key as gguf_member_shortest() has it. An absent key leaves *out as it
 * is. */
NODISCARD enum status gguf_member_read(struct gguf_members *m, const char *key, double *out);
/* The number with the shortest decimal that is the same f32 as v; v itself if it is no f32. */
double gguf_member_shortest(double v);
/* Set a member of the configuration, or of another object; append to an array. `value` is taken
 * over. An object, array or value of NULL counts as out of memory. */
void gguf_member_set(struct gguf_members *m, const char *name, struct json *value);
void gguf_member_put(struct gguf_members *m, struct json *object, const char *name,
                     struct json *value);
void gguf_member_push(struct gguf_members *m, struct json *array, struct json *value);
/* Keep the status if it is the first one that is not OK. */
void gguf_member_fail(struct gguf_members *m, enum status s);

/* Add rope_theta, rope_scaling and what belongs to them. */
void gguf_add_rope(struct gguf_members *m);

#endif
