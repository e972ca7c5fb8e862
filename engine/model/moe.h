/* moe.h - a mixture of experts as the feed-forward part of decoder.h's layer.
 *
 * A router gives each row a score for every expert. The row goes through its best n_chosen experts,
 * and their outputs are added with weights from the scores. A shared part, where the model has one,
 * takes all rows. No expert has a limit of rows, so a row's answer does not depend on the batch
 * (promise P1).
 *
 * Owns    nothing: struct weights owns what is planned.
 * Thread  as decoder.h.
 * Errors  as weights_plan.h, model.h and layer.h; ERR_UNSUPPORTED from moe_run() in a group of
 *         several devices.
 * Units   elements. */
#ifndef TARN_ENGINE_MODEL_MOE_H
#define TARN_ENGINE_MODEL_MOE_H

#include "engine/model/family.h"

/* Names of tensors, behind "model.layers.N.". */
struct moe_names {
    const char *router;      /* [E, D] */
    const char *experts;     /* before the expert's number */
    const char *gate, *up;   /* of an expert: [F, D] */
    const char *down;        /* [D, F] */
    const char *shared;      /* before gate_proj, up_proj and down_proj of the shared part */
    const char *shared_gate; /* [1, D] */
};

/* The names that most families use, as initializers of struct moe_names. */
#define MOE_USUAL_NAMES                                                                            \
    .router = "mlp.gate", .experts = "mlp.experts", .gate = "gate_proj", .up = "up_proj",          \
    .down = "down_proj"

/* The weights of a layer; zeros in a dense layer. */
struct moe {
    struct weight router;             /* [E, D], f32 */
    struct weight gate_up;            /* [2 F, D] of expert 0 */
    struct weight down;               /* [D, F] of expert 0 */
    size_t gate_up_bytes, down_bytes; /* from expert to expert */
    struct weight shared_gate_up, shared_down;
    struct weight shared_gate; /* [1, D], f32 */
};

/* Buffers of a step: the first two are shared with dense layers. */
enum moe_buffer {
    MOE_GATE_UP = 2, /* [T k, 2 F] or [T, 2 shared_dim] */
    MOE_ACT,         /* [T k, F] or [T, shared_dim] */
    MOE_OUT,         /* [T, D] of a shared part with a gate */
    MOE_LOGITS,      /* [T, E] */
    MOE_ROUTES,      /* weights, experts, rows and places [T k] each, then offsets [E + 1] */
    MOE_SORTED,      /* [T k, D] input (on a host device), then output of the experts */
    MOE_N_BUFFERS
};

/* Keys of config.json. NULL: the family has no such field, and the value is as it was. */
struct moe_keys {
    const char *n_experts, *n_chosen, *expert_dim;
};

/* Read the three shapes into m, which has the family's defaults (0: the field is required). To be
 * called after model_read_common(). */
NODISCARD enum status moe_read(const struct json *j, struct model_config *m,
                               const struct moe_keys *keys, struct buf *why);
/* Read norm_topk_prob into m->renormalize, unless the file leaves it out. */
NODISCARD enum status moe_read_renormalize(const struct json *j, struct model_config *m,
                                           struct buf *why);
/* Read which layers are dense: mlp_only_layers and decoder_sparse_step. */
NODISCARD enum status moe_read_sparse_layers(const struct json *j, struct model_config *m,
                                             struct buf *why);
/* Refuse a bool field of the file that is true, or a number that is above `most`. */
NODISCARD enum status moe_refuse_flag(const struct json *j, const char *name, struct buf *why);
NODISCARD enum status moe_refuse_above(const struct json *j, const char *name, int64_t most,
                                       struct buf *why);

/* Whether a layer has experts. */
static inline bool moe_has_layer(const struct model_config *m, uint32_t layer)
{
    return m->n_experts > 0 && !model_has_layer(m->no_experts, layer);
}

/* Plan the weights of a layer. each [2 E]: memory for their descriptions, which lives as long as
 * the loader. */
NODISCARD enum status moe_plan(struct loader *l, const struct moe_names *names, struct moe *y,
                               const char *prefix, struct weight *each);
/* Set the widths of the buffers from MOE_GATE_UP on, whose first two have those of a dense layer;
 * return MOE_N_BUFFERS. */
uint32_t moe_buffers(const struct model_config *m, uint32_t widths[FAMILY_N_BUFFERS_MAX]);
/* Largest K of the products; 0: no experts. */
uint32_t moe_k_max(const struct model_config *m);
/* Subtract what a step with one row leaves out: the experts that it does not choose. */
void moe_leave_out(const struct model_config *m, const struct moe *w, struct model_work *work);
/* Add the experts' output for the normed rows `in` [T, D] to the residual stream; is_rounded:
 * p->rounded has them for products with w->gate_up, too. */
NODISCARD enum status moe_run(const struct layer_step *p, const struct moe *w, const float *in,
                              bool is_rounded, const struct weight *after);

#endif
