/* family.h - a model family: how to read its config, load its weights and run its layer.
 *
 * A new family is one file that defines a `struct model_family`, and one line in families.c. The
 * shared parts (model.c, weights*.c, engine/run/forward.c) call the descriptor and know neither
 * tensor names nor layers.
 *
 * Owns    nothing: descriptors are constants.
 * Thread  any.
 * Errors  as the functions that call a descriptor: model_config_load(), weights_load(),
 *         forward_run().
 * Units   elements, floats, floating-point operations. */
#ifndef TARN_ENGINE_MODEL_FAMILY_H
#define TARN_ENGINE_MODEL_FAMILY_H

#include "engine/model/layer.h"
#include "engine/model/weights_plan.h"

/* Buffers of a step that a family has beside those of struct layer_step. */
#define FAMILY_N_BUFFERS_MAX LAYER_N_BUFFERS_MAX

/* Work of a model, for the first estimate of step times and for scratch memory. */
struct model_work {
    uint32_t k_max;         /* largest K of any product */
    double flops_per_pair;  /* of attention, per query token and key, all layers */
    double flops_per_token; /* of everything else; 0 before the weights are loaded */
    double weight_bytes;    /* that a step with one token reads; 0 before they are loaded */
};

struct model_family {
    const char *name;                 /* in the fingerprint and in messages */
    const char *const *architectures; /* config.json's `architectures`; ends with NULL */
    const char *const *model_types;   /* `model_type`, where there are none; ends with NULL */
    const char *embedding;            /* tensor whose type counts as the checkpoint's */
    bool is_encoder; /* engine/run/encoder.h runs it instead of forward.h: it makes no tokens */

    /* Read config.json into m, usually with model_read_common(); refuse what run_layer() cannot
     * compute. Fields that no other family has go into m->own. */
    enum status (*read_config)(const struct json *j, struct model_config *m, struct buf *why);
    /* Plan all weights with weights_plan.h. */
    enum status (*plan_weights)(struct loader *l);
    /* Fill widths [n] with the floats per row of each further buffer; return n. */
    uint32_t (*plan_buffers)(const struct model_config *m, uint32_t widths[FAMILY_N_BUFFERS_MAX]);
    /* Add one layer to the residual stream s->x. */
    enum status (*run_layer)(const struct layer_step *s, uint32_t layer);
    /* w is NULL before the weights are loaded. */
    void (*count_work)(const struct model_config *m, const struct weights *w,
                       struct model_work *out);
};

/* Every family that this program knows; ends with NULL. */
extern const struct model_family *const model_families[];

extern const struct model_family family_llama;
extern const struct model_family family_mistral;
extern const struct model_family family_qwen2;
extern const struct model_family family_qwen3;
extern const struct model_family family_phi3;
extern const struct model_family family_gemma2;
extern const struct model_family family_gemma3;
extern const struct model_family family_smollm3;
extern const struct model_family family_olmo2;
extern const struct model_family family_granite;
extern const struct model_family family_stablelm;
extern const struct model_family family_bert;
extern const struct model_family family_bert_labels;
extern const struct model_family family_roberta;
extern const struct model_family family_roberta_labels;
extern const struct model_family family_mixtral;
extern const struct model_family family_qwen2_moe;
extern const struct model_family family_qwen3_moe;
extern const struct model_family family_olmoe;
extern const struct model_family family_bailing_moe;

/* Read the fields that Hugging Face configs of most families share: shapes, RoPE, type, end of
 * sequence. For read_config(). */
NODISCARD enum status model_read_common(const struct json *j, struct model_config *m,
                                        struct buf *why);
/* Read rope_theta, rope_scaling, rope_parameters and partial_rotary_factor; part of the above. A
 * theta above 0 in m->rope is the family's default. */
NODISCARD enum status model_read_rope(const struct json *j, struct model_config *m,
                                      struct buf *why);
/* Read the number `window` of visible keys, which has the family's default before, and, where the
 * file lists layer_types, the layers with a window; *listed: it does. To be called after
 * model_read_common(). */
NODISCARD enum status model_read_window(const struct json *j, struct model_config *m, bool *listed,
                                        struct buf *why);
/* The labels of a model that classifies texts: what id2label or num_labels says, else 2. */
NODISCARD enum status model_read_labels(const struct json *j, struct model_config *m,
                                        struct buf *why);
/* Check that the activation (hidden_act) is `name`. */
NODISCARD enum status model_check_activation(const struct json *j, const char *name,
                                             struct buf *why);

#endif
