/* embedder.h - a further model that turns texts into vectors (--embedding-model), or that gives
 * texts and pairs of texts labels (--rerank-model).
 *
 * Encoders (BERT, RoBERTa, XLM-RoBERTa), and any decoder of a family that loads, also a checkpoint
 * without output layer ("LlamaModel", "MistralModel"). The vector is a hidden state behind the last
 * norm, or the mean over the text's tokens, normalized to length 1. The last token is the
 * end-of-sequence id where the tokenizer's own template adds one. Pooling, longest text and the
 * prompts in front of queries and documents are those of the model's files
 * (engine/embedder_files.h).
 *
 * A model that classifies is an encoder with a head (BertForSequenceClassification and those of
 * RoBERTa). Two texts are read together, as the tokenizer's template of pairs says; with one label
 * the model is a cross-encoder, whose logit says how well the texts fit.
 *
 * Equal texts give equal bits, whatever the number of threads and the size of the steps.
 *
 * Owns    model, weights, tokenizer and buffers of its own; no KV of it is cached. All on the CPU.
 * Thread  any. One text or pair is computed at a time, in the order of the calls, so that a caller
 *         with many texts delays others by one text at most.
 * Errors  embedder_open(): as engine_open(), words begin with "{embedding_model}" or
 *         "{rerank_model}";
 *         ERR_UNSUPPORTED: a pooling or a module of sentence-transformers that is not supported.
 *         embedder_encode(), embedder_tokenize(), embedder_encode_ids(): ERR_TOO_LARGE: a text
 *         above EMBEDDER_TEXT_BYTES_MAX; ERR_INVALID: a text without tokens, or one that the
 *         tokenizer cannot represent; ERR_NOMEM; ERR_CORRUPT: the model gave no finite vector.
 *         embedder_join(): ERR_UNSUPPORTED: the tokenizer has no template of two texts.
 * Units   tokens. */
#ifndef TARN_ENGINE_EMBEDDER_H
#define TARN_ENGINE_EMBEDDER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "engine/embedder_labels.h"

#define EMBEDDER_TEXT_BYTES_MAX ((size_t)16 << 20)
/* The ids of such a text: a byte makes at most one. */
#define EMBEDDER_IDS_BYTES_MAX ((EMBEDDER_TEXT_BYTES_MAX + 64) * sizeof(uint32_t))

struct embedder;

struct embedder_config {
    const char *model_dir;
    const char *cpu_variant;  /* NULL: see `measure` */
    const char *dtype;        /* as engine_config; NULL: auto */
    const char *quantization; /* as engine_config; NULL: auto */
    bool classifies;          /* the model must give labels; else it must give vectors */
    bool measure;             /* without cpu_variant, measure which is best; else the first of the
                                 machine's list */
    uint32_t n_threads;       /* 0: one */
    uint32_t max_tokens;      /* of a text; 0: what the model's files say, else its context, at
                                 most 8192. Of longer texts the end is cut, the tokenizer's closing
                                 tokens stay */
    uint32_t step_tokens;     /* of one step of a decoder; 0: 256. An encoder has one step */
};

/* The role of a text. The model's files may have a prompt for documents and one for queries; a
 * plain text has none. */
enum embedder_role { EMBEDDER_DOCUMENT, EMBEDDER_QUERY, EMBEDDER_PLAIN };

NODISCARD enum status embedder_open(struct embedder **out, const struct embedder_config *config,
                                    struct buf *why);
void embedder_close(struct embedder *e); /* NULL is fine */
uint32_t embedder_dim(const struct embedder *e);
const char *embedder_name(const struct embedder *e);    /* last part of the model's path */
uint32_t embedder_max_tokens(const struct embedder *e); /* of a text */
uint32_t embedder_n_vocab(const struct embedder *e);
/* Embed a text, cut where it is too long: out [dim]. *n_tokens (may be NULL): tokens computed. */
NODISCARD enum status embedder_encode(struct embedder *e, enum embedder_role role, const char *text,
                                      size_t len, float *out, uint32_t *n_tokens, struct buf *why);

/* embedder_encode() in three parts. */
/* Append the ids (uint32_t) of the whole text behind its prompt, at least one. add_special: with
 * the tokenizer's opening and closing tokens, as embedder_encode() has them. */
NODISCARD enum status embedder_tokenize(const struct embedder *e, enum embedder_role role,
                                        const char *text, size_t len, bool add_special,
                                        struct buf *ids, struct buf *why);
/* Cut the end of ids [n] to n_max ids. has_special: the tokenizer's closing tokens are at the end,
 * and stay there. Return the number of ids. */
uint32_t embedder_cut(const struct embedder *e, uint32_t *ids, size_t n, uint32_t n_max,
                      bool has_special);
/* Embed 1 to max_tokens ids, each below n_vocab: out [dim]. */
NODISCARD enum status embedder_encode_ids(struct embedder *e, const uint32_t *ids, uint32_t n,
                                          float *out, struct buf *why);

/* Of a model that classifies; the labels are NULL for another. */
const struct embedder_labels *embedder_labels(const struct embedder *e);
/* Append the ids of two texts that are read together, from the ids of each without special tokens.
 * Where they would be more than n_max, the longer text loses its end until both are equally long,
 * then both. n_max 0: nothing is cut. *n_first: the ids before the first one of type 1.
 * ERR_INVALID: n_max leaves no room for the template's own tokens. */
NODISCARD enum status embedder_join(const struct embedder *e, const struct buf *a,
                                    const struct buf *b, uint32_t n_max, struct buf *ids,
                                    uint32_t *n_first, struct buf *why);
/* Compute the logits of 1 to max_tokens ids, each below n_vocab: out [labels]. The ids from n_first
 * on have type 1. */
NODISCARD enum status embedder_classify_ids(struct embedder *e, const uint32_t *ids, uint32_t n,
                                            uint32_t n_first, float *out, struct buf *why);

#endif
