/* weights_plan.h - the calls with which a family says which tensor goes where.
 *
 * A plan allocates device memory for each weight and lists the tensors that fill it. Nothing is
 * read yet. The order of the calls is part of the content hash, so a family keeps it for good.
 *
 * Owns    planned memory belongs to the struct weights that is loaded.
 * Thread  the caller of weights_load().
 * Errors  as weights.h, with words in the loader's buffer.
 * Units   elements, rows. */
#ifndef TARN_ENGINE_MODEL_WEIGHTS_PLAN_H
#define TARN_ENGINE_MODEL_WEIGHTS_PLAN_H

#include "engine/model/weights.h"

struct loader;

const struct model_config *plan_model(const struct loader *l);

/* Ranks that share the weights; 1: each weight is whole. Shapes of all calls are a rank's. */
uint32_t plan_n_ranks(const struct loader *l);
/* Refuse to share the model between ranks, because of `what`; OK where there is one rank only. */
NODISCARD enum status plan_refuses_ranks(struct loader *l, const char *what);

/* Allocate the family's layer structs [n_layers], zeroed, as weights->layers. NULL: out of memory,
 * with words. */
void *plan_layers(struct loader *l, size_t layer_bytes);

/* Division of a tensor between ranks. */
enum plan_split {
    PLAN_WHOLE = 0, /* each rank has all of it */
    PLAN_ROWS,      /* rank r has the r-th of n equal ranges of rows, and of the bias */
    PLAN_K /* the same of columns: the ranks' products are summed. Each has the whole bias */
};

/* Rows of a fused weight that come from tensors NAME.weight and NAME.bias. Parts of one name are
 * ranges of one tensor, in their order. */
struct plan_part {
    const char *name; /* behind the prefix of the layer */
    uint32_t rows;
    enum plan_split split;
};

/* Plan a product's weight: its parts in row order, each [rows, k]. bias NULL: the model has
 * none. */
NODISCARD enum status plan_product(struct loader *l, struct weight *w, float **bias, uint32_t k,
                                   const char *prefix, const struct plan_part *parts,
                                   uint32_t n_parts);
/* Plan a product that decides, such as a router's: tensor PREFIX NAME.weight [rows, k]. Its weight
 * is f32, whatever the others are. */
NODISCARD enum status plan_router(struct loader *l, struct weight *w, uint32_t k,
                                  const char *prefix, const struct plan_part *part);
/* Experts whose parts are tensors PREFIX EXPERTS.i.NAME.weight, for each expert i, of shape
 * [rows, k]. */
struct plan_experts {
    uint32_t n; /* experts */
    uint32_t k;
    const char *prefix, *experts;
    const struct plan_part *parts;
    uint32_t n_parts;
};
/* Plan the weights of experts: of one type, one behind the other in one allocation, *expert_bytes
 * apart. each [n] gets them, and must live as long as the loader. */
NODISCARD enum status plan_experts(struct loader *l, const struct plan_experts *p,
                                   struct weight *each, size_t *expert_bytes);
/* Plan the weights [n] of a norm: tensor PREFIX NAME.weight. */
NODISCARD enum status plan_norm(struct loader *l, float **vec, uint32_t n, const char *prefix,
                                const char *name);
/* Plan the bias [n] of a norm: tensor PREFIX NAME.bias. */
NODISCARD enum status plan_norm_bias(struct loader *l, float **vec, uint32_t n, const char *prefix,
                                     const char *name);
/* Plan weights->embedding [V, D]. */
NODISCARD enum status plan_embedding(struct loader *l, const char *tensor);
/* Plan weights->final_norm, its bias if the model's norms have one, and weights->output [V, D]; a
 * tied model has no tensor `head`. Ranks share the output layer where its rows can be divided: then
 * weights->output has V / n of them. */
NODISCARD enum status plan_output(struct loader *l, const char *norm, const char *head);
/* The next three are for encoders on a host device; ERR_UNSUPPORTED on another. */
/* Plan weights->positions [n, D]: the rows of a tensor [first + n, D] behind the first ones. */
NODISCARD enum status plan_positions(struct loader *l, uint32_t first, uint32_t n,
                                     const char *tensor);
/* Plan weights->types [n, D]. */
NODISCARD enum status plan_types(struct loader *l, uint32_t n, const char *tensor);
/* Plan weights->embedding_norm and its bias. */
NODISCARD enum status plan_embedding_norm(struct loader *l, const char *prefix, const char *name);
/* Plan the two products that turn the first hidden state into logits of labels: weights->pooler
 * from tensors POOLER.weight and .bias, weights->labels from LABELS.weight and .bias. Any
 * device. */
NODISCARD enum status plan_labels(struct loader *l, const char *pooler, const char *labels);
/* Name the weight that a step multiplies first: the output product of the step before fetches it
 * early. */
void plan_first_product(struct loader *l, const struct weight *w);

#endif
