/* tokenizer_test.h - makes small tokenizers in a temporary directory, for tests. */
#ifndef TARN_TESTS_UNIT_ENGINE_TOKENIZER_TEST_H
#define TARN_TESTS_UNIT_ENGINE_TOKENIZER_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/rng.h"
#include "engine/text/tokenizer/tokenizer_internal.h"
#include "engine/text/tokenizer/tokenizer_utf8.h"
#include "tests/unit/test.h"

/* A stream of random numbers. */
struct rng {
    uint64_t seed, n;
};

static inline uint32_t rng_below(struct rng *rng, uint32_t limit)
{
    return rng_u32(rng->seed, rng->n++) % limit;
}

static char temp_dir[64];

static inline void make_temp_dir(void)
{
    strcpy(temp_dir, "/tmp/tarn-tokenizer-XXXXXX");
    assert_non_null(mkdtemp(temp_dir));
}

static inline void temp_path(char *out, size_t size, const char *name)
{
    assert_true(snprintf(out, size, "%s/%s", temp_dir, name) < (int)size);
}

static inline void remove_temp_dir(void)
{
    const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};
    char path[128];

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        temp_path(path, sizeof path, names[i]);
        unlink(path);
    }
    rmdir(temp_dir);
}

static inline void write_temp(const char *name, const char *bytes, size_t len)
{
    char path[128];

    temp_path(path, sizeof path, name);
    unlink(path); /* ext4 syncs a file that is truncated and rewritten, which would be slow */
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

/* The parts of a tokenizer.json; NULL omits a part. `vocab` and `merges` are the text between the
 * brackets; byte_letters puts the 256 byte-level letters first, as ids 0 to 255. */
struct recipe {
    const char *added, *normalizer, *pretok, *post, *decoder, *options, *vocab, *merges;
    bool byte_letters;
};

static inline void write_part(struct buf *b, const char *key, const char *value)
{
    if (value)
        assert_ok(buf_printf(b, "\"%s\":%s,", key, value));
}

static inline void write_recipe(struct buf *b, const struct recipe *r)
{
    assert_ok(buf_puts(b, "{"));
    write_part(b, "added_tokens", r->added);
    write_part(b, "normalizer", r->normalizer);
    write_part(b, "pre_tokenizer", r->pretok);
    write_part(b, "post_processor", r->post);
    write_part(b, "decoder", r->decoder);
    assert_ok(
        buf_printf(b, "\"model\":{\"type\":\"BPE\",%s\"vocab\":{", r->options ? r->options : ""));
    for (unsigned i = 0; r->byte_letters && i < 256; i++) {
        char letter[4];
        size_t n = utf8_put(letter, tok_byte_letter((unsigned char)i));
        assert_ok(i ? buf_putc(b, ',') : OK);
        assert_ok(js_write_string(b, letter, n));
        assert_ok(buf_printf(b, ":%u", i));
    }
    if (r->vocab)
        assert_ok(buf_printf(b, "%s%s", r->byte_letters ? "," : "", r->vocab));
    assert_ok(buf_printf(b, "},\"merges\":[%s]}}", r->merges ? r->merges : ""));
}

static inline struct tokenizer *load_recipe(const struct recipe *r)
{
    struct tokenizer *t = NULL;
    struct buf file, why;

    buf_init(&file, 1 << 24);
    buf_init(&why, BUF_WHY_MAX);
    write_recipe(&file, r);
    write_temp("tokenizer.json", file.data, file.len);
    if (tokenizer_load(&t, temp_dir, &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&file);
    buf_fini(&why);
    return t;
}

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"

/* The 256 letters, and 256 "he", 257 "ll", 258 "hell", 259 "Gh" (a space and h), the special tokens
 * 260 <s> and 261 </s>, and 262 "<tool>", which is added but not special. */
static const struct recipe byte_level_recipe = {
    .byte_letters = true,
    .pretok = BYTE_LEVEL,
    .decoder = BYTE_LEVEL,
    .vocab = "\"he\":256,\"ll\":257,\"hell\":258,\"\304\240h\":259",
    .merges = "\"h e\",\"l l\",[\"he\",\"ll\"],\"\304\240 h\"",
    .added = "[{\"id\":260,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
             "{\"id\":261,\"content\":\"</s>\",\"special\":true,\"normalized\":false},"
             "{\"id\":262,\"content\":\"<tool>\",\"special\":false,\"normalized\":false}]",
    .post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\","
            "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":"
            "{\"id\":\"</s>\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":"
            "\"<s>\",\"ids\":[260],\"tokens\":[\"<s>\"]},\"</s>\":{\"id\":\"</s>\",\"ids\":[261],"
            "\"tokens\":[\"</s>\"]}}}",
};

/* 0 <unk>, 1 <s> special, 2 meta space, 3 a, 4 b, 5 meta+a, 6 <0xC3>, 7 <0xA9>, 8 ab */
static const struct recipe spm_recipe = {
    .options = "\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,",
    .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
                  "\"\342\226\201\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
                  "\"content\":\"\342\226\201\"}]}",
    .decoder = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
               "{\"String\":\"\342\226\201\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},"
               "{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,"
               "\"stop\":0}]}",
    .added = "[{\"id\":1,\"content\":\"<s>\",\"special\":true,\"normalized\":false}]",
    .vocab = "\"<unk>\":0,\"<s>\":1,\"\342\226\201\":2,\"a\":3,\"b\":4,\"\342\226\201a\":5,"
             "\"<0xC3>\":6,\"<0xA9>\":7,\"ab\":8",
    .merges = "\"\342\226\201 a\",\"a b\"",
};

/* The ids of a text, separated by blanks, in a static buffer. */
static inline const char *ids_of(const struct tokenizer *t, const char *text, size_t len,
                                 unsigned flags)
{
    static char shown[4096];
    struct buf ids;
    size_t n = 0;

    buf_init(&ids, 4096);
    assert_ok(tokenizer_encode(t, text, len, flags, &ids));
    shown[0] = '\0';
    for (size_t i = 0; i < ids.len / 4; i++) {
        uint32_t id;
        memcpy(&id, ids.data + 4 * i, 4);
        n += (size_t)snprintf(shown + n, sizeof shown - n, i ? " %u" : "%u", id);
    }
    buf_fini(&ids);
    return shown;
}

#define assert_ids(t, text, flags, want)                                                           \
    assert_string_equal(ids_of(t, text, strlen(text), flags), want)

#endif
