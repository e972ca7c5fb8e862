/* tokenizer.h - text to token ids and back, from a Hugging Face tokenizer.json or a GGUF file.
 *
 * ONLY module that includes PCRE2 and utf8proc. Supports byte-level BPE (GPT-2, Llama 3, Qwen),
 * SentencePiece-style BPE (Llama 2, Mistral: U+2581 for spaces, byte fallback, dummy prefix),
 * Unigram (T5, XLM-RoBERTa) and WordPiece (BERT).
 *
 * Owns    everything it loaded; tokenizer_destroy() frees it.
 * Thread  read-only after load: any thread, no locks.
 * Errors  ERR_NOT_FOUND: no file; ERR_INVALID: a damaged or contradictory file; ERR_UNSUPPORTED: a
 *         kind of model, normalizer or pre-tokenizer that is not supported (the message names it).
 * Units   ids are uint32_t; an `ids` buf has them one after the other (len / 4 ids). */
#ifndef TARN_ENGINE_TEXT_TOKENIZER_TOKENIZER_H
#define TARN_ENGINE_TEXT_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "engine/text/ranges.h"

struct tokenizer;

#define TOKEN_NONE UINT32_MAX

enum tokenizer_flags {
    TOKENIZE_ADD_SPECIAL = 1,   /* add the post-processor's tokens: BOS, for some models EOS */
    TOKENIZE_PARSE_SPECIAL = 2, /* special tokens spelled in the text become their ids */
    TOKENIZE_CONTINUES = 4,     /* the text is not at position 0 of a prompt: no SentencePiece dummy
                                   space */
};

/* Load DIR/tokenizer.json (required) and DIR/tokenizer_config.json (optional), or, if `path` is a
 * file, the metadata "tokenizer.*" of a GGUF file, which has all of that. */
NODISCARD enum status tokenizer_load(struct tokenizer **out, const char *path, struct buf *why);
void tokenizer_destroy(struct tokenizer *t); /* NULL is fine */

/* Append the ids of text to *ids. Each sequence of bytes that is not UTF-8 is read as U+FFFD.
 * ERR_TOO_LARGE: ids->max would be exceeded. ERR_INVALID: the text has unknown parts, and the
 * vocabulary (Unigram, WordPiece) has no token for them. */
NODISCARD enum status tokenizer_encode(const struct tokenizer *t, const char *text, size_t len,
                                       unsigned flags, struct buf *ids);
/* tokenizer_encode(), except that a special token is not recognized where one of its bytes is in
 * the set `untrusted` (may be NULL): that spelling is plain text. A text without spellings of
 * special tokens has the same ids with and without the set. */
NODISCARD enum status tokenizer_encode_mixed(const struct tokenizer *t, const char *text,
                                             size_t len, unsigned flags,
                                             const struct ranges *untrusted, struct buf *ids);

/* The tokens around two texts that a model reads together: before, text A, between, text B, after.
 * The texts are encoded each by itself. Tokens have type 0; with has_types, those behind the first
 * n_first ids of `between` have type 1. The tokenizer owns the ids. */
struct tokenizer_pair {
    const uint32_t *before, *between, *after;
    size_t n_before, n_between, n_after;
    size_t n_first;
    bool has_types;
};

/* False: the file has no template of two texts, or one of another shape. */
bool tokenizer_pair(const struct tokenizer *t, struct tokenizer_pair *out);

/* Return the kind of tokenizer in words, such as "byte-level BPE". */
const char *tokenizer_kind(const struct tokenizer *t);
/* Return the largest id plus one. */
uint32_t tokenizer_n_vocab(const struct tokenizer *t);
/* The bytes of a token in output text: byte-level letters are decoded, U+2581 is a space, <0x41> is
 * the byte; an added token is its own content. They may end inside a UTF-8 character. An unknown id
 * gives "" and length 0. */
const char *tokenizer_bytes(const struct tokenizer *t, uint32_t id, size_t *len_out);
/* tokenizer_bytes() of the first token of a text: without SentencePiece's dummy space, and without
 * the space that WordPiece puts between words. */
const char *tokenizer_first_bytes(const struct tokenizer *t, uint32_t id, size_t *len_out);
/* The token as spelled in the vocabulary (for logs and logprobs); NULL: unknown id. */
const char *tokenizer_piece(const struct tokenizer *t, uint32_t id, size_t *len_out);
/* Whether the id is an added token marked special; output text omits these unless they are asked
 * for. */
bool tokenizer_is_special(const struct tokenizer *t, uint32_t id);
/* TOKEN_NONE: absent. */
uint32_t tokenizer_find(const struct tokenizer *t, const char *piece, size_t len);

/* From tokenizer_config.json or GGUF; NULL / TOKEN_NONE: not given. */
uint32_t tokenizer_bos(const struct tokenizer *t);
uint32_t tokenizer_eos(const struct tokenizer *t);
const char *tokenizer_bos_text(const struct tokenizer *t);
const char *tokenizer_eos_text(const struct tokenizer *t);
/* The source of the chat template: DIR/chat_template.jinja, else, as in Hugging Face, the one in
 * tokenizer_config.json ("default" if there are several); of GGUF, tokenizer.chat_template, else
 * the one named "default", else the first. NULL: the model has none. */
const char *tokenizer_chat_template(const struct tokenizer *t);

#endif
