#include "engine/run/vocab_rules.h"

#include <string.h>

#include "engine/run/vocab_mask.h"

bool vocab_rules_are_valid(const struct vocab_rules *r, uint32_t n_vocab)
{
    if (r->allowed && !vocab_mask_allows_any(r->allowed, r->allowed, n_vocab))
        return false;
    if (r->n_words > VOCAB_N_WORDS_MAX)
        return false;
    for (uint32_t i = 0, begin = 0; i < r->n_words; begin = r->word_ends[i++])
        if (r->word_ends[i] <= begin || r->word_ends[i] > VOCAB_N_WORD_IDS_MAX)
            return false;
    for (uint32_t i = 0; i < vocab_rules_n_word_ids(r); i++)
        if (r->word_ids[i] >= n_vocab)
            return false;
    return true;
}

void vocab_rules_forbid(const struct vocab_rules *r, const uint32_t *ids, uint32_t n,
                        uint32_t *mask)
{
    for (uint32_t i = 0, begin = 0; i < r->n_words; begin = r->word_ends[i++]) {
        uint32_t last = r->word_ends[i] - 1, n_before = last - begin;
        if (n_before <= n && (n_before == 0 || memcmp(r->word_ids + begin, ids + n - n_before,
                                                      n_before * sizeof *ids) == 0))
            vocab_mask_forbid(mask, r->word_ids[last]);
    }
}
