/* tokenizer.h - text to token ids and back, from a Hugging Face tokenizer.json.
 *
 * ONLY module that includes PCRE2 and utf8proc. Knows byte-level BPE (GPT-2, Llama 3, Qwen),
 * SentencePiece-style BPE (Llama 2, Mistral: U+2581 for spaces, byte fallback, dummy prefix),
 * Unigram (T5, XLM-RoBERTa) and WordPiece (BERT).
 *
 * Owns    everything it loaded; tokenizer_destroy() frees it.
 * Thread  read-only after load: any thread, no locks.
 * Errors  ERR_NOT_FOUND no file; ERR_INVALID a damaged or contradictory file; ERR_UNSUPPORTED a
 *         kind of model, normalizer or pre-tokenizer we do not know (the words name it).
 * Units   ids are uint32_t; an `ids` buf holds them back to back (len / 4 ids). */
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
    TOKENIZE_ADD_SPECIAL = 1,   /* what the post-processor adds: BOS, for some models EOS */
    TOKENIZE_PARSE_SPECIAL = 2, /* special tokens written in the text become their ids */
    TOKENIZE_CONTINUES = 4,     /* not position 0 of a prompt: no SentencePiece dummy space */
};

/* Reads DIR/tokenizer.json (required) and DIR/tokenizer_config.json (optional). */
NODISCARD enum status tokenizer_load(struct tokenizer **out, const char *dir, struct buf *why);
void tokenizer_destroy(struct tokenizer *t); /* NULL is fine */

/* Ids of text are appended to *ids. Text that is no UTF-8 is tokenized with U+FFFD in place of
 * each bad byte sequence. ERR_TOO_LARGE when ids->max would be passed. ERR_INVALID: unknown text,
 * and the vocabulary (Unigram, WordPiece) names no token for it. */
NODISCARD enum status tokenizer_encode(const struct tokenizer *t, const char *text, size_t len,
                                       unsigned flags, struct buf *ids);
/* The same, but no special token is recognized that has a byte in the set `untrusted` (may be
 * NULL): there its text is text like any other. A text without such a spelling has the same ids as
 * without the set. */
NODISCARD enum status tokenizer_encode_mixed(const struct tokenizer *t, const char *text,
                                             size_t len, unsigned flags,
                                             const struct ranges *untrusted, struct buf *ids);

/* One more than the largest id. */
uint32_t tokenizer_n_vocab(const struct tokenizer *t);
/* The bytes that a token stands for in output text: byte-level letters decoded, U+2581 as a
 * space, <0x41> as the byte; an added token is its own content. May be half a UTF-8 character.
 * An unknown id gives "" and length 0. */
const char *tokenizer_bytes(const struct tokenizer *t, uint32_t id, size_t *len_out);
/* The same for the first token of a text: without SentencePiece's dummy space, or the space that
 * WordPiece has between words. */
const char *tokenizer_first_bytes(const struct tokenizer *t, uint32_t id, size_t *len_out);
/* The token as the vocabulary writes it (for logs and logprobs); NULL for an unknown id. */
const char *tokenizer_piece(const struct tokenizer *t, uint32_t id, size_t *len_out);
/* True for added tokens marked special: left out of output text unless asked for. */
bool tokenizer_is_special(const struct tokenizer *t, uint32_t id);
/* TOKEN_NONE when absent. */
uint32_t tokenizer_find(const struct tokenizer *t, const char *piece, size_t len);

/* From tokenizer_config.json; NULL / TOKEN_NONE when not given. */
uint32_t tokenizer_bos(const struct tokenizer *t);
uint32_t tokenizer_eos(const struct tokenizer *t);
const char *tokenizer_bos_text(const struct tokenizer *t);
const char *tokenizer_eos_text(const struct tokenizer *t);
/* The chat template's source: DIR/chat_template.jinja, else (as in Hugging Face) the one in
 * tokenizer_config.json, called "default" when there are several; NULL when the model has none. */
const char *tokenizer_chat_template(const struct tokenizer *t);

#endif
