/* Every allocation of load, encode and decode fails once: a status is returned and no other harm is
 * done. While loading any error is accepted, because fopen() does not always report missing memory
 * as such.
 *
 * malloc is replaced for this binary; under a sanitizer, which replaces it too, the test is
 * skipped. */
#include "engine/text/detokenize.h"
#include "tests/unit/engine/text/tokenizer/gguf_test.h"
#include "tests/unit/fault.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int main(void)
{
    return 77;
}

#else

static const struct recipe all_parts = {
    .byte_letters = true,
    .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
                  "{\"type\":\"Lowercase\"},"
                  "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x+\"},\"content\":\"y\"},"
                  "{\"type\":\"Strip\"},{\"type\":\"Prepend\",\"prepend\":\" \"}]}",
    .pretok = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"},"
              "{\"type\":\"ByteLevel\"}]}",
    .decoder = BYTE_LEVEL,
    .options = "\"ignore_merges\":true,",
    .vocab = "\"he\":256,\"ll\":257",
    .merges = "\"h e\",\"l l\"",
    .added = "[{\"id\":258,\"content\":\"<s>\",\"special\":true},"
             "{\"id\":259,\"content\":\"<W>\",\"single_word\":true}]",
};

static const char *const other_models[] = {
    "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Precompiled\","
    "\"precompiled_charsmap\":\"BAAAAAAAAABh\"},{\"type\":\"Nmt\"}]},\"decoder\":"
    "{\"type\":\"Metaspace\",\"replacement\":\"e\"},\"model\":{\"unk_id\":0,\"vocab\":"
    "[[\"<unk>\",0],[\"h\",-1],[\"he\",-1],[\"hehe\",-2],[\" \",-2]]}}",
    "{\"normalizer\":{\"type\":\"BertNormalizer\"},\"pre_tokenizer\":{\"type\":"
    "\"BertPreTokenizer\"},\"decoder\":{\"type\":\"WordPiece\"},\"model\":{\"type\":"
    "\"WordPiece\",\"vocab\":{\"[UNK]\":0,\"h\":1,\"he\":2,\"##he\":3,\".\":4}}}",
};

static const struct member gguf_files[][10] = {
    {{"tokenizer.ggml.model", 's', "llama"},
     {"tokenizer.ggml.tokens", 'S', "<unk>,<s>,</s>,h,e,he,l,lo"},
     {"tokenizer.ggml.scores", 'F', "0,0,0,-2,-2,-1,-2,-1"},
     {"tokenizer.chat_template", 's', "x"}},
    {{"tokenizer.ggml.model", 's', "gpt2"},
     {"tokenizer.ggml.pre", 's', "qwen2"},
     {"tokenizer.ggml.tokens", 'S', "h,e,he,<s>"},
     {"tokenizer.ggml.token_type", 'I', "1,1,1,3"},
     {"tokenizer.ggml.merges", 'S', "h e"},
     {"tokenizer.ggml.bos_token_id", 'u', "3"},
     {"tokenizer.chat_templates", 'S', "default"},
     {"tokenizer.chat_template.default", 's', "x"}},
    {{"tokenizer.ggml.model", 's', "t5"},
     {"tokenizer.ggml.tokens", 'S', "<pad>,</s>,<unk>,h,he"},
     {"tokenizer.ggml.scores", 'F', "0,0,0,-1,-1"},
     {"tokenizer.ggml.token_type", 'I', "3,3,2,1,1"},
     {"tokenizer.ggml.precompiled_charsmap", 'C', "4,0,0,0,0,0,0,0,97"},
     {"tokenizer.chat_template", 's', "x"}},
    {{"tokenizer.ggml.model", 's', "bert"},
     {"tokenizer.ggml.tokens", 'S', "[UNK],[CLS],[SEP],\342\226\201h,he"},
     {"tokenizer.ggml.unknown_token_id", 'u', "0"},
     {"tokenizer.ggml.bos_token_id", 'u', "1"},
     {"tokenizer.ggml.seperator_token_id", 'u', "2"},
     {"tokenizer.chat_template", 's', "x"}},
};

static const char *loaded_path; /* a directory or a file */

/* Run everything with allocation k failing. Return the status of the first call that failed. */
static enum status run_with_fault(long k, bool *loaded)
{
    static const char text[] = "Hello <s> e\314\201 xx <w> 12 "
                               "hehehehehehehehehehehehehehehehehehe\377";
    const struct detok_stop stop = {"zz", 2};
    struct tokenizer *t = NULL;
    struct buf ids, out, why;
    struct detok d;

    buf_init(&ids, 1 << 16);
    buf_init(&out, 1 << 16);
    buf_init(&why, BUF_WHY_MAX);
    fail_in = k;
    enum status s = tokenizer_load(&t, loaded_path, &why);
    if (s == OK)
        s = tokenizer_encode(t, text, sizeof text - 1, TOKENIZE_PARSE_SPECIAL, &ids);
    *loaded = s == OK;
    if (s == OK)
        assert_string_equal(tokenizer_chat_template(t), "x"); /* no file was skipped silently */
    detok_init(&d, t, &stop, 1, false, false, false);
    for (size_t i = 0; i < ids.len / 4 && s == OK; i++) {
        uint32_t id;
        memcpy(&id, ids.data + 4 * i, 4);
        s = detok_feed(&d, id, &out);
    }
    if (s == OK)
        s = detok_finish(&d, &out);
    fail_in = 0;
    detok_fini(&d);
    buf_fini(&ids);
    buf_fini(&out);
    buf_fini(&why);
    tokenizer_destroy(t);
    return s;
}

static void check_every_allocation(const char *path)
{
    long k = 1;
    int n_failed = 0;
    bool loaded;

    loaded_path = path;
    write_temp("tokenizer_config.json", "{\"bos_token\":\"<s>\",\"chat_template\":\"x\"}", 39);
    assert_ok(run_with_fault(0, &loaded));
    for (int quiet = 0; quiet < 50; k++) {
        enum status s = run_with_fault(k, &loaded);
        if (loaded && s != OK && s != ERR_NOMEM)
            fail_msg("allocation %ld: status %s", k, status_name(s));
        n_failed += s != OK;
        quiet = s == OK ? quiet + 1 : 0;
    }
    print_message("%d of %ld failed allocations reported\n", n_failed, k - 50);
    assert_true(n_failed > 30);
}

static void every_failed_allocation_is_reported(void **state)
{
    (void)state;
    tokenizer_destroy(load_recipe(&all_parts));
    check_every_allocation(temp_dir);
}

static void also_with_the_other_models(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof other_models / sizeof other_models[0]; i++) {
        write_temp("tokenizer.json", other_models[i], strlen(other_models[i]));
        check_every_allocation(temp_dir);
    }
}

static void also_with_gguf_files(void **state)
{
    char path[128];
    struct buf file;

    (void)state;
    buf_init(&file, 1 << 16);
    temp_path(path, sizeof path, "x.gguf");
    for (size_t i = 0; i < sizeof gguf_files / sizeof gguf_files[0]; i++) {
        buf_reset(&file);
        write_members(&file, gguf_files[i], NULL);
        write_temp("x.gguf", file.data, file.len);
        check_every_allocation(path);
    }
    unlink(path);
    buf_fini(&file);
}

static int set_up(void **state)
{
    (void)state;
    make_temp_dir();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_temp_dir();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_failed_allocation_is_reported, set_up, tear_down),
        cmocka_unit_test_setup_teardown(also_with_the_other_models, set_up, tear_down),
        cmocka_unit_test_setup_teardown(also_with_gguf_files, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
