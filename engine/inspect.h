/* inspect.h - what a model is and needs, and everything for which a server would refuse it, without
 * loading its weights: config, headers of the files, tokenizer and chat template.
 *
 * Owns    texts and tensors' names until inspect_fini().
 * Thread  one.
 * Errors  inspect_model(): ERR_NOMEM, ERR_UNSUPPORTED no such device. A fault of the model is a
 *         reason in the report, and no error.
 * Units   bytes, tokens, elements. */
#ifndef TARN_ENGINE_INSPECT_H
#define TARN_ENGINE_INSPECT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "engine/model/weights_measure.h"

#define INSPECT_N_REASONS_MAX 24
#define INSPECT_N_CONTEXTS_MAX 4
#define INSPECT_N_MEMORIES 4
#define INSPECT_N_KV_MAX 6

/* KV of a token with each --kv-cache-dtype of the device; the first is the chosen one. */
struct inspect_kv {
    const char *type;
    uint32_t token_bytes;
};

/* Memory of a server with one quantization. */
struct inspect_memory {
    const char *quantization;                     /* as stored, bf16, int8, int4 */
    const char *type;                             /* in which the layers' products are kept */
    uint64_t weight_bytes;                        /* those in the mapped file among them */
    uint64_t buffer_bytes;                        /* of steps; on a GPU recorded ones, too */
    uint32_t kv_token_bytes;                      /* of the type that the options choose */
    uint64_t total_bytes[INSPECT_N_CONTEXTS_MAX]; /* with the KV of so many tokens */
    bool fits[INSPECT_N_CONTEXTS_MAX];
    uint64_t n_tokens_fit; /* whose KV fits beside weights and buffers, on a GPU those of the KV
                              pool that a start makes; 0: not even weights and buffers fit */
};

struct inspection {
    char name[512];
    char path[4096];
    bool is_gguf;
    char architecture[128]; /* as config.json has it; "": unknown */
    char stored_as[64];     /* quantization_config.quant_method; "": none */
    uint32_t n_files;       /* of weights */
    uint64_t n_file_bytes;
    bool has_pickles; /* weights in a format that executes code */

    bool is_readable;  /* the config was read: `model` is valid */
    bool is_embedding; /* an encoder, or a decoder without output layer: it makes no tokens */
    struct model_config model;
    bool is_measured; /* `weights` and `memories` are valid */
    struct weights_measure weights;
    uint32_t contexts[INSPECT_N_CONTEXTS_MAX], n_contexts;
    struct inspect_memory memories[INSPECT_N_MEMORIES];
    struct inspect_kv kv[INSPECT_N_KV_MAX]; /* [n_kv] */
    uint32_t n_kv;
    const char *device;
    uint64_t n_free_bytes, n_total_bytes; /* memory of the device */

    bool has_tokenizer, has_chat_template;
    const char *tokenizer; /* its kind */
    uint32_t n_tokens;

    char *reasons[INSPECT_N_REASONS_MAX]; /* for which a server refuses the model */
    uint32_t n_reasons;
    uint32_t n_more; /* reasons without words */

    struct checkpoint *file; /* the names in `weights` are its */
};

struct inspect_config {
    const char *name; /* as hub_resolve() takes it, for the report */
    const char *path; /* what model_config_load() takes */
    /* The options of a start: those of the device, of steps and of KV count. The report is about
     * one GPU without draft model and pool, and its memory without kv_bytes. */
    const struct engine_config *engine;
};

/* Call inspect_fini() in any case. */
NODISCARD enum status inspect_model(struct inspection *out, const struct inspect_config *config,
                                    struct buf *why);
void inspect_fini(struct inspection *i);

/* Append the report: for people, or one JSON object. */
NODISCARD enum status inspect_write(const struct inspection *i, struct buf *out);
NODISCARD enum status inspect_write_json(const struct inspection *i, struct buf *out);

#endif
