/* fuzz_tokenizer.c - any bytes as tokenizer.json, then any bytes as text: load, encode, decode.
 *
 * Checks beyond crashes: ids are in the vocabulary, encoding twice gives the same ids, the work is
 * proportional to the text, the detokenizer's output is UTF-8, and the ids of the template of two
 * texts are in the vocabulary. */
#include "tests/fuzz/fuzz_tokenizer.h"

/* The template of two texts, where there is one. */
static void check_pair(const struct tokenizer *t)
{
    struct tokenizer_pair p;

    if (!tokenizer_pair(t, &p))
        return;
    ASSERT(p.n_first <= p.n_between);
    for (size_t i = 0; i < p.n_before; i++)
        ASSERT(p.before[i] < tokenizer_n_vocab(t));
    for (size_t i = 0; i < p.n_between; i++)
        ASSERT(p.between[i] < tokenizer_n_vocab(t));
    for (size_t i = 0; i < p.n_after; i++)
        ASSERT(p.after[i] < tokenizer_n_vocab(t));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = fuzz_split(data, size);
    struct tokenizer *t = NULL;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = tok_load_text(&t, in.first, in.first_len, &why);
    ASSERT((s == OK) == (t != NULL));
    if (s == OK) {
        check_tokenizer(t, in.second, in.second_len);
        check_pair(t);
    }
    tokenizer_destroy(t);
    buf_fini(&why);
    return 0;
}
