/* model.h - what config.json and generation_config.json say.
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

enum rope_kind { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3 };

struct rope_config {
    double theta;
    double factor;             /* linear, llama3 */
    double low_freq_factor;    /* llama3 */
    double high_freq_factor;   /* llama3 */
    uint32_t original_max_pos; /* llama3 */
    enum rope_kind kind;
};

struct model_family;

/* No padding: model_config_fields() covers every byte, and a test checks this. */
struct model_config {
    const struct model_family *family;
    struct rope_config rope;
    uint64_t own[MODEL_OWN_WORDS]; /* fields of this family alone, zeros without; in the text as
                                      they are */
    double rms_eps;
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
    enum dtype stored_dtype; /* torch_dtype; F32 when absent */
    uint32_t eos_ids[MODEL_N_EOS_MAX];
    uint32_t n_eos_ids;
    /* generation_config.json, with the usual values for absent fields */
    float temperature, top_p, min_p, repetition_penalty;
    uint32_t top_k;
};

/* Read DIR/config.json and, where it exists, DIR/generation_config.json. */
NODISCARD enum status model_config_load(struct model_config *m, const char *dir, struct buf *why);

/* The rows of struct model_config. */
struct field_table model_config_fields(void);

/* Append the canonical text of the config: " name=value" for each field, or (only_kv) for each
 * field that the bytes of stored KV depend on. The fingerprint hashes that text. */
NODISCARD enum status model_config_write(const struct model_config *m, bool only_kv,
                                         struct buf *out);

/* Compute the inverse frequencies of the rotary pairs, out [head_dim / 2], in radians per position.
 * Plain: Su et al., "RoFormer"; linear: Chen et al., "Position interpolation"; llama3: the
 * wavelength bands of the Llama 3.1 release. */
void model_rope_freqs(const struct model_config *m, double *out);

#endif
