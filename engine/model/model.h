/* model.h - what config.json and generation_config.json say, or the metadata of a GGUF file.
 *
 * Owns    nothing; plain data.
 * Thread  read-only after model_config_load().
 * Errors  ERR_NOT_FOUND, ERR_INVALID (a field out of range, named), ERR_UNSUPPORTED (another
 *         architecture, activation or RoPE kind, named).
 * Units   elements, tokens. */
#ifndef TARN_ENGINE_MODEL_MODEL_H
#define TARN_ENGINE_MODEL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "engine/model/fields.h"
#include "kernels/params.h"

#define MODEL_N_EOS_MAX 16
#define MODEL_OWN_WORDS 8

#define MODEL_N_LAYERS_MAX 1000
#define MODEL_N_LABELS_MAX 4096
#define MODEL_LAYER_WORDS 32 /* of a set of layers, one bit each */
#define MODEL_ROPE_PAIRS_MAX 128

enum rope_kind { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_LONG };

struct rope_config {
    double theta;
    double factor;               /* linear, llama3, yarn, longrope */
    double low_freq_factor;      /* llama3 */
    double high_freq_factor;     /* llama3 */
    double beta_fast, beta_slow; /* yarn */
    double magnitude;            /* of cosines and sines: yarn, longrope; 0: 1 */
    uint32_t original_max_pos;   /* llama3, yarn, longrope */
    enum rope_kind kind;
};

enum norm_kind {
    NORM_RMS,
    NORM_RMS_PLUS_ONE, /* RMS norm whose weights are stored less 1 */
    NORM_LAYER         /* LayerNorm with bias */
};

struct model_family;

/* No padding: model_config_fields() covers every byte, and a test checks this. */
struct model_config {
    const struct model_family *family;
    struct rope_config rope;
    uint64_t own[MODEL_OWN_WORDS]; /* fields of this family alone, zeros without; in the text as
                                      they are */
    struct rope_config rope_local; /* of layers with a window; theta 0: as the others */
    double rope_factors[2][MODEL_ROPE_PAIRS_MAX]; /* longrope: short, long */
    double rms_eps;
    double attention_scale; /* of scores; 0: 1 / sqrt(d) */
    double attention_cap;   /* soft cap of scores; 0: none, as the next */
    double logit_cap;
    double embed_scale; /* 0: 1, as the next two */
    double residual_scale;
    double logit_scale;
    double expert_scale; /* of the weights of experts; 0: 1 */
    uint32_t n_layers;
    uint32_t dim;        /* D */
    uint32_t n_heads;    /* H */
    uint32_t n_kv_heads; /* G */
    uint32_t head_dim;   /* d */
    uint32_t ffn_dim;    /* F */
    uint32_t n_vocab;    /* V */
    uint32_t max_pos;
    uint32_t tied;           /* 0 or 1, as the next two: the output layer is the embedding */
    uint32_t attention_bias; /* on Q, K, V and O */
    uint32_t mlp_bias;
    uint32_t qkv_bias;  /* on Q, K and V alone */
    uint32_t rot_dim;   /* rotated dimensions of a head; 0: all */
    uint32_t window;    /* keys that a row of a layer in `windowed` sees; 0: all */
    uint32_t rope_long; /* longrope: 1: the long factors */
    enum norm_kind norm;
    enum activation activation;
    uint32_t n_experts;   /* E of a mixture of experts; 0: the model is dense */
    uint32_t n_chosen;    /* experts that a row goes to */
    uint32_t expert_dim;  /* F of an expert */
    uint32_t shared_dim;  /* F of the part that every row goes to; 0: none */
    uint32_t shared_gate; /* 0 or 1: that part has a gate, the sigmoid of one product */
    uint32_t renormalize; /* 0 or 1: weights of a row's experts are divided by their sum */
    uint32_t n_types;     /* token types of an encoder */
    uint32_t n_labels;    /* of a model that classifies texts; 0: another model */
    uint32_t windowed[MODEL_LAYER_WORDS];   /* layers with a window */
    uint32_t no_rope[MODEL_LAYER_WORDS];    /* layers without rotary positions */
    uint32_t no_experts[MODEL_LAYER_WORDS]; /* dense layers of a mixture of experts */
    enum dtype stored_dtype;                /* torch_dtype; F32 when absent */
    uint32_t eos_ids[MODEL_N_EOS_MAX];
    uint32_t n_eos_ids;
    /* generation_config.json, with the usual values for absent fields */
    float temperature, top_p, min_p, repetition_penalty;
    uint32_t top_k;
};

/* Read DIR/config.json and, where it exists, DIR/generation_config.json; or the metadata of a GGUF
 * file at that path. */
NODISCARD enum status model_config_load(struct model_config *m, const char *dir, struct buf *why);

/* The rows of struct model_config. */
struct field_table model_config_fields(void);

/* Append the canonical text of the config: " name=value" for each field, or (only_kv) for each
 * field that the bytes of stored KV depend on. The fingerprint hashes that text. */
NODISCARD enum status model_config_write(const struct model_config *m, bool only_kv,
                                         struct buf *out);

/* Number of rotated dimensions of a head. */
static inline uint32_t model_rot_dim(const struct model_config *m)
{
    return m->rot_dim ? m->rot_dim : m->head_dim;
}

static inline bool model_has_layer(const uint32_t set[MODEL_LAYER_WORDS], uint32_t layer)
{
    return set[layer / 32] >> layer % 32 & 1;
}

static inline void model_add_layer(uint32_t set[MODEL_LAYER_WORDS], uint32_t layer)
{
    set[layer / 32] |= 1u << layer % 32;
}

/* Choose what depends on the longest context that will be computed. LongRoPE has one set of factors
 * for contexts up to original_max_pos and one for longer ones; KV of both cannot be mixed, so the
 * choice holds for the life of the process and is part of the fingerprint. */
void model_set_context(struct model_config *m, uint32_t n_tokens);

/* Write the share that each of n ranks has of the model: 1 / n of the heads, of the KV heads and of
 * the feed-forward part, and all layers. n = 1: the model itself. ERR_UNSUPPORTED, with the name of
 * what cannot be shared. */
NODISCARD enum status model_share(const struct model_config *m, uint32_t n,
                                  struct model_config *share, struct buf *why);

/* Compute the inverse frequencies of the rotary pairs, out [rot_dim / 2], in radians per position;
 * return their number. `local`: of layers with a window. Plain: Su et al., "RoFormer"; linear: Chen
 * et al., "Position interpolation"; llama3: the wavelength bands of the Llama 3.1 release; yarn:
 * Peng et al., "YaRN"; longrope: Ding et al., "LongRoPE". */
uint32_t model_rope_freqs(const struct model_config *m, bool local, double *out);

#endif
