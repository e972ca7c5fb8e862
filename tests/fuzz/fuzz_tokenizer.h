/* fuzz_tokenizer.h - what the fuzz targets check of a tokenizer that was loaded from any bytes.
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  the functions abort when something is wrong: an id outside of the vocabulary, other ids
 *         at the second time, work out of proportion to the text, output that is not UTF-8.
 * Units   bytes. */
#ifndef TARN_TESTS_FUZZ_FUZZ_TOKENIZER_H
#define TARN_TESTS_FUZZ_FUZZ_TOKENIZER_H

#include "base/check.h"
#include "engine/text/detokenize.h"
#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/tokenizer_utf8.h"
#include "tests/fuzz/fuzz.h"

#define TEXT_BYTES_MAX 65536
/* A few lookups per byte of the text and of the longest token; normalization may lengthen a
 * text. */
#define N_STEPS_PER_BYTE_MAX 100000

static inline void check_detokenizer(const struct tokenizer *t, const struct buf *ids)
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

static inline void check_text(const struct tokenizer *t, const char *text, size_t len,
                              unsigned flags)
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

/* `text` may be NULL. */
static inline void check_tokenizer(const struct tokenizer *t, const char *text, size_t len)
{
    static const char usual[] = "Hello, w\303\266rld! \342\226\201 <s>[UNK] don't  12\n\377";

    check_text(t, usual, sizeof usual - 1, TOKENIZE_ADD_SPECIAL);
    if (text && len <= TEXT_BYTES_MAX) {
        check_text(t, text, len, TOKENIZE_CONTINUES);
        check_text(t, text, len, TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL);
    }
}

#endif
