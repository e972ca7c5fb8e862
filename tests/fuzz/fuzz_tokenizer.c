/* fuzz_tokenizer.c - any bytes as tokenizer.json, then any bytes as text: load, encode, decode.
 *
 * Checks beyond crashes: ids are in the vocabulary, encoding twice gives the same ids, the work is
 * proportional to the text, and the detokenizer's output is UTF-8. */
#include "base/check.h"
#include "engine/text/detokenize.h"
#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/tokenizer_utf8.h"
#include "tests/fuzz/fuzz.h"

#define TEXT_BYTES_MAX 65536
/* A few lookups per byte of the text and of the longest token; normalization may lengthen a
 * text. */
#define N_STEPS_PER_BYTE_MAX 100000

static void check_detokenizer(const struct tokenizer *t, const struct buf *ids)
{
    struct buf out;
    struct detok d;
    const struct detok_stop stops[] = {{"the", 3}, {"\n\n", 2}};

    buf_init(&out, (size_t)1 << 30);
    detok_init(&d, t, stops, 2, false, false, false);
    for (size_t i = 0; i < ids->len / 4; i++) {
        uint32_t id;
        memcpy(&id, ids->data + 4 * i, 4);
        ASSERT(id < tokenizer_n_vocab(t));
        if (detok_feed(&d, id, &out) != OK)
            break;
    }
    (void)!detok_finish(&d, &out);
    ASSERT(utf8_is_valid(buf_str(&out), out.len));
    detok_fini(&d);
    buf_fini(&out);
}

static void check_text(const struct tokenizer *t, const char *text, size_t len, unsigned flags)
{
    struct buf ids, again;
    uint64_t n_steps;

    buf_init(&ids, (size_t)1 << 26);
    buf_init(&again, (size_t)1 << 26);
    enum status s = tok_encode_counted(t, text, len, flags, NULL, &ids, &n_steps);
    ASSERT(n_steps <= (uint64_t)(len + 1) * N_STEPS_PER_BYTE_MAX);
    ASSERT(s == OK || ids.len == 0);
    if (s == OK && t->token_bytes_max > 0) /* the bound by which long texts are refused */
        ASSERT(len <= ids.len / 4 * (uint64_t)t->token_bytes_max);
    ASSERT(tokenizer_encode(t, text, len, flags, &again) == s);
    ASSERT(ids.len == again.len && memcmp(buf_str(&ids), buf_str(&again), ids.len) == 0);
    check_detokenizer(t, &ids);
    buf_fini(&ids);
    buf_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char usual[] = "Hello, w\303\266rld! \342\226\201 <s>[UNK] don't  12\n\377";
    struct fuzz_input in = fuzz_split(data, size);
    struct tokenizer *t = NULL;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = tok_load_text(&t, in.first, in.first_len, &why);
    ASSERT((s == OK) == (t != NULL));
    if (s == OK) {
        check_text(t, usual, sizeof usual - 1, TOKENIZE_ADD_SPECIAL);
        if (in.second && in.second_len <= TEXT_BYTES_MAX) {
            check_text(t, in.second, in.second_len, TOKENIZE_CONTINUES);
            check_text(t, in.second, in.second_len, TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL);
        }
    }
    tokenizer_destroy(t);
    buf_fini(&why);
    return 0;
}
