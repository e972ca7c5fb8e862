/* tokenizer_gguf.h - shared by tokenizer_gguf*.c: what is known of a GGUF file while its tokenizer
 * is made.
 *
 * Owns    the scratch buffers; the file and the tokenizer are the caller's.
 * Thread  one at a time.
 * Errors  ERR_INVALID: the metadata are contradictory (the message names the key). */
#ifndef TARN_ENGINE_TEXT_TOKENIZER_TOKENIZER_GGUF_H
#define TARN_ENGINE_TEXT_TOKENIZER_TOKENIZER_GGUF_H

#include "base/gguf.h"
#include "engine/text/tokenizer/tokenizer_internal.h"

#define GGUF_KEY "tokenizer.ggml."

/* Kinds of tokenizers; values of tokenizer.ggml.model. */
enum gguf_tokens { TOKENS_GPT2, TOKENS_LLAMA, TOKENS_BERT, TOKENS_T5 };

/* Values of tokenizer.ggml.token_type. */
enum gguf_token_type {
    TYPE_NORMAL = 1,
    TYPE_UNKNOWN,
    TYPE_CONTROL,
    TYPE_USER,
    TYPE_UNUSED,
    TYPE_BYTE
};

struct gguf_source {
    struct tokenizer *t;
    const struct gguf *g;
    struct buf *why;
    enum gguf_tokens kind;
    const struct tok_pre *pre; /* of gpt2 */
    struct gguf_array tokens, scores, types;
    uint32_t bos, eos, eot, eom, unk, sep; /* TOKEN_NONE: none */
    bool add_bos, add_eos, add_space, joins_spaces;
    struct buf piece; /* scratch */
    struct buf json;  /* members of a tokenizer.json */
};

/* The type of a token, considering that the tokens by which texts begin and end are control tokens
 * whatever the file says. */
enum gguf_token_type tok_gguf_type(const struct gguf_source *f, uint32_t id);

static inline bool tok_gguf_is_special(const struct gguf_source *f, uint32_t id)
{
    enum gguf_token_type type = tok_gguf_type(f, id);

    return type == TYPE_CONTROL || type == TYPE_UNKNOWN;
}

/* Fill the model of a tokenizer that has its vocabulary and its pre-tokenizer. */
NODISCARD enum status tok_gguf_model_load(struct gguf_source *f);

#endif
