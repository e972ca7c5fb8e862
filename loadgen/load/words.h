/* words.h - text and token ids made from a number, so that equal ids give equal prompts.
 *
 * The i-th word of id is a function of (id, i): a shorter text of the same id is a prefix of a
 * longer one, so that the last, partial block of a trace shares its beginning with the whole block.
 * Each word is common, short and follows one blank: most tokenizers make one token of it, and none
 * merges two words.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  those of struct buf.
 * Units   words; token ids in [lo, hi). */
#ifndef TARN_LOADGEN_LOAD_WORDS_H
#define TARN_LOADGEN_LOAD_WORDS_H

#include "base/buf.h"

NODISCARD enum status words_write(struct buf *out, uint64_t id, uint32_t n_words);
/* Append n ids with buf_u32(). */
NODISCARD enum status words_write_ids(struct buf *out, uint64_t id, uint32_t n, uint32_t lo,
                                      uint32_t hi);

#endif
