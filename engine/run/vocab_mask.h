/* vocab_mask.h - which ids of the vocabulary the next token may be: one bit per id.
 *
 * A mask is an array of vocab_mask_n_words(V) words. Bit id % 32 of word id / 32 is 1 where the id
 * is allowed. Bits from V on have no meaning. A sampler takes NULL for a mask that allows all ids,
 * which costs nothing.
 *
 * Owns    nothing.
 * Thread  pure functions.
 * Errors  none.
 * Units   ids; words of 32 bits. */
#ifndef TARN_ENGINE_RUN_VOCAB_MASK_H
#define TARN_ENGINE_RUN_VOCAB_MASK_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t vocab_mask_n_words(uint32_t n_vocab)
{
    return (uint32_t)(((uint64_t)n_vocab + 31) / 32);
}

static inline void vocab_mask_allow_all(uint32_t *mask, uint32_t n_vocab)
{
    memset(mask, 0xff, vocab_mask_n_words(n_vocab) * sizeof *mask);
}

static inline void vocab_mask_forbid(uint32_t *mask, uint32_t id)
{
    mask[id / 32] &= ~(1u << id % 32);
}

static inline void vocab_mask_allow(uint32_t *mask, uint32_t id)
{
    mask[id / 32] |= 1u << id % 32;
}

static inline bool vocab_mask_allows(const uint32_t *mask, uint32_t id)
{
    return mask[id / 32] >> id % 32 & 1;
}

/* The bits of word i that have a meaning. */
static inline uint32_t vocab_mask_meant(uint32_t n_vocab, uint32_t i)
{
    uint32_t n_ids = n_vocab - 32 * i;

    return n_ids < 32 ? (1u << n_ids) - 1 : UINT32_MAX;
}

/* The forbidden ids of word i, as bits. */
static inline uint32_t vocab_mask_forbidden(const uint32_t *mask, uint32_t n_vocab, uint32_t i)
{
    return ~mask[i] & vocab_mask_meant(n_vocab, i);
}

/* Whether an id is allowed by both masks. */
static inline bool vocab_mask_allows_any(const uint32_t *a, const uint32_t *b, uint32_t n_vocab)
{
    for (uint32_t i = 0; i < vocab_mask_n_words(n_vocab); i++)
        if (a[i] & b[i] & vocab_mask_meant(n_vocab, i))
            return true;
    return false;
}

/* Forbid what `rule` forbids, unless no id would be left. */
static inline void vocab_mask_narrow(uint32_t *mask, const uint32_t *rule, uint32_t n_vocab)
{
    if (!vocab_mask_allows_any(mask, rule, n_vocab))
        return;
    for (uint32_t i = 0; i < vocab_mask_n_words(n_vocab); i++)
        mask[i] &= rule[i];
}

#endif
