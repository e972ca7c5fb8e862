/* Every allocation of load, encode and decode fails once: a status is returned and no other harm is
 * done. While loading any error is accepted, because fopen() does not always report missing memory
 * as such.
 *
 * malloc is replaced for this binary; under a sanitizer, which replaces it too, the test is
 * skipped. */
#include "engine/text/detokenize.h"
#include "tests/unit/engine/text/tokenizer/tokenizer_test.h"
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
    enum status s = tokenizer_load(&t, temp_dir, &why);
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

/* Use the files in the temporary directory. */
static void check_every_allocation(void)
{
    long k = 1;
    int n_failed = 0;
    bool loaded;

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
    check_every_allocation();
}

static void also_with_the_other_models(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof other_models / sizeof other_models[0]; i++) {
        write_temp("tokenizer.json", other_models[i], strlen(other_models[i]));
        check_every_allocation();
    }
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
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
