/* fuzz_tokenizer.c - any bytes as tokenizer.json, then any bytes as text: load, encode, decode.
 *
 * Checks beyond crashes: ids are in the vocabulary, encoding twice gives the same ids, the work is
 * proportional to the text, and the detokenizer's output is UTF-8. */
#include "tests/fuzz/fuzz_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = fuzz_split(data, size);
    struct tokenizer *t = NULL;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = tok_load_text(&t, in.first, in.first_len, &why);
    ASSERT((s == OK) == (t != NULL));
    if (s == OK)
        check_tokenizer(t, in.second, in.second_len);
    tokenizer_destroy(t);
    buf_fini(&why);
    return 0;
}
