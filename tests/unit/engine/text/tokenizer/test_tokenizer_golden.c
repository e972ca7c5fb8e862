/* tokenizer.c and detokenize.c on real vocabularies and recorded ids of shared data.
 *
 * Found by the environment variable TARN_SHARED, else ../shared beside the source tree; exit code
 * 77 (skipped) without it. tests/tools/gguf_vocab_to_hf.py writes the Hugging Face files. */
#include "base/check.h"
#include "engine/text/detokenize.h"
#include "tests/unit/engine/text/tokenizer/tokenizer_test.h"

#ifndef TARN_SOURCE_DIR
#define TARN_SOURCE_DIR "."
#endif

#define SEPARATOR "\n__ggml_vocab_test__\n"
#define N_CASES 46
#define ALL_FLAGS (TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL | TOKENIZE_CONTINUES)

static char data_dir[1024];

static struct tokenizer *convert_and_load(const char *file, const char *options)
{
    struct tokenizer *t = NULL;
    struct buf command, why;

    buf_init(&command, 1 << 16);
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(buf_printf(&command, "python3 '%s/tests/tools/gguf_vocab_to_hf.py' '%s/%s' '%s' %s",
                         TARN_SOURCE_DIR, data_dir, file, temp_dir, options));
    assert_int_equal(system(command.data), 0);
    if (tokenizer_load(&t, temp_dir, &why) != OK)
        fail_msg("%s: %s", file, buf_str(&why));
    buf_fini(&command);
    buf_fini(&why);
    return t;
}

static void read_data(struct buf *out, const char *file)
{
    char path[2048], chunk[4096];
    size_t n;

    buf_init(out, 1 << 24);
    assert_true(snprintf(path, sizeof path, "%s/%s", data_dir, file) < (int)sizeof path);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
        assert_ok(buf_append(out, chunk, n));
    fclose(f);
}

/* ---- decoding ---- */

static void decode_streaming(const struct tokenizer *t, const struct buf *ids, struct buf *out)
{
    struct detok d;

    buf_reset(out);
    detok_init(&d, t, NULL, 0, false, false, false);
    for (size_t i = 0; i < ids->len / 4; i++) {
        uint32_t id;
        size_t before = out->len;
        memcpy(&id, ids->data + 4 * i, 4);
        assert_ok(detok_feed(&d, id, out));
        assert_true(utf8_is_valid(buf_str(out) + before, out->len - before));
    }
    assert_ok(detok_finish(&d, out));
    detok_fini(&d);
}

/* All bytes at once, then repaired: the expected result of streaming. */
static void decode_whole(const struct tokenizer *t, const struct buf *ids, struct buf *out)
{
    struct buf bytes;
    bool begun = false;

    buf_init(&bytes, 1 << 24);
    for (size_t i = 0; i < ids->len / 4; i++) {
        uint32_t id;
        size_t len;
        memcpy(&id, ids->data + 4 * i, 4);
        const char *piece = tokenizer_bytes(t, id, &len);
        if (tokenizer_is_special(t, id) || len == 0)
            continue;
        if (!begun)
            piece = tokenizer_first_bytes(t, id, &len);
        begun = true;
        assert_ok(buf_append(&bytes, piece, len));
    }
    buf_reset(out);
    assert_ok(utf8_repair(out, buf_str(&bytes), bytes.len));
    buf_fini(&bytes);
}

static void check_round_trip(const struct tokenizer *t, const char *text, size_t len,
                             unsigned flags)
{
    struct buf ids, back;

    buf_init(&ids, 1 << 24);
    buf_init(&back, 1 << 24);
    assert_ok(tokenizer_encode(t, text, len, flags, &ids));
    decode_streaming(t, &ids, &back);
    assert_int_equal(back.len, len);
    if (len)
        assert_memory_equal(back.data, text, len);
    buf_fini(&ids);
    buf_fini(&back);
}

static void check_random_ids(const struct tokenizer *t)
{
    struct rng rng = {.seed = 5};
    struct buf ids, streamed, whole;

    buf_init(&ids, 1 << 16);
    buf_init(&streamed, 1 << 20);
    buf_init(&whole, 1 << 20);
    for (int round = 0; round < 300; round++) {
        buf_reset(&ids);
        for (uint32_t i = 0, n = rng_below(&rng, 40); i < n; i++) /* half of them single bytes */
            assert_ok(buf_u32(&ids, rng_below(&rng, i % 2 ? 300 : tokenizer_n_vocab(t))));
        decode_streaming(t, &ids, &streamed);
        decode_whole(t, &ids, &whole);
        assert_string_equal(buf_str(&streamed), buf_str(&whole));
    }
    buf_fini(&ids);
    buf_fini(&streamed);
    buf_fini(&whole);
}

/* ---- recorded ids ---- */

static bool equals_line(const struct tokenizer *t, const char *text, size_t len, const char *line)
{
    struct buf ids, shown;

    buf_init(&ids, 1 << 20);
    buf_init(&shown, 1 << 20);
    assert_ok(tokenizer_encode(t, text, len, 0, &ids));
    for (size_t i = 0; i < ids.len / 4; i++) {
        uint32_t id;
        memcpy(&id, ids.data + 4 * i, 4);
        assert_ok(buf_printf(&shown, i ? " %u" : "%u", id));
    }
    size_t line_len = strcspn(line, "\n");
    while (line_len > 0 && line[line_len - 1] == ' ')
        line_len--;
    while (line_len > 0 && *line == ' ') {
        line++;
        line_len--;
    }
    bool equal = shown.len == line_len && memcmp(buf_str(&shown), line, line_len) == 0;
    if (!equal)
        print_error("want %.*s\ngot  %s\n", (int)line_len, line, buf_str(&shown));
    buf_fini(&ids);
    buf_fini(&shown);
    return equal;
}

static struct tokenizer *load_gguf(const char *file)
{
    struct tokenizer *t = NULL;
    struct buf path, why;

    buf_init(&path, 1 << 16);
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(buf_printf(&path, "%s/%s", data_dir, file));
    if (tokenizer_load(&t, path.data, &why) != OK)
        fail_msg("%s: %s", file, buf_str(&why));
    buf_fini(&path);
    buf_fini(&why);
    return t;
}

static void check_recorded(const struct tokenizer *t, const char *name)
{
    struct buf in, out;
    char file[256];
    int n = 0, n_equal = 0;

    snprintf(file, sizeof file, "tok-llamacpp-vocabs/ggml-vocab-%s.gguf.inp", name);
    read_data(&in, file);
    snprintf(file, sizeof file, "tok-llamacpp-vocabs/ggml-vocab-%s.gguf.out", name);
    read_data(&out, file);
    const char *text = in.data, *line = out.data;
    for (const char *end; (end = strstr(text, SEPARATOR)); text = end + strlen(SEPARATOR)) {
        n_equal += equals_line(t, text, (size_t)(end - text), line);
        check_round_trip(t, text, (size_t)(end - text), 0);
        check_round_trip(t, text, (size_t)(end - text), TOKENIZE_ADD_SPECIAL);
        line = strchr(line, '\n') ? strchr(line, '\n') + 1 : "";
        n++;
    }
    print_message("%s: %d of %d equal\n", name, n_equal, n);
    assert_int_equal(n, N_CASES);
    assert_int_equal(n_equal, n);
    check_random_ids(t);
    buf_fini(&in);
    buf_fini(&out);
}

/* The text is made of pieces of the vocabulary, so that merges, special tokens and white space
 * meet in every order, and of random bytes. */
static void make_text(struct rng *rng, const struct tokenizer *t, struct buf *text)
{
    static const char *const others[] = {" ", "  ", "\n", "\r\n", "\t", "1", "'s", "\303\251", "."};

    buf_reset(text);
    for (uint32_t i = 0, n = rng_below(rng, 12); i < n; i++) {
        size_t len;
        const char *piece = tokenizer_bytes(t, rng_below(rng, tokenizer_n_vocab(t)), &len);
        if (rng_below(rng, 4) == 0) {
            piece = others[rng_below(rng, ARRAY_SIZE(others))];
            len = strlen(piece);
        } else if (rng_below(rng, 20) == 0)
            len = len > 1 ? len - 1 : len; /* may end inside a character */
        assert_ok(buf_append(text, piece, len));
    }
}

static void check_same_ids(const struct tokenizer *a, const struct tokenizer *b, const char *text,
                           size_t len, unsigned flags)
{
    struct buf x, y;

    buf_init(&x, 1 << 20);
    buf_init(&y, 1 << 20);
    assert_int_equal(tokenizer_encode(a, text, len, flags, &x),
                     tokenizer_encode(b, text, len, flags, &y));
    if (x.len != y.len || memcmp(buf_str(&x), buf_str(&y), x.len) != 0)
        fail_msg("flags %u: other ids for \"%.*s\"", flags, (int)len, text);
    buf_fini(&x);
    buf_fini(&y);
}

/* Both files of a model are the same tokenizer: ids, texts of ids, special tokens. Texts are
 * encoded with the flags `always` and some of `any`. A directory without tokenizer_config.json
 * names no tokens. */
static void check_same(const struct tokenizer *a, const struct tokenizer *b, unsigned always,
                       unsigned any)
{
    struct rng rng = {.seed = 77};
    struct buf text;

    if (tokenizer_bos_text(a))
        assert_string_equal(tokenizer_bos_text(a), tokenizer_bos_text(b));
    if (tokenizer_eos_text(a))
        assert_int_equal(tokenizer_eos(a), tokenizer_eos(b));
    for (uint32_t id = 0; id < tokenizer_n_vocab(b); id++) {
        size_t a_len, b_len;
        const char *x = tokenizer_bytes(a, id, &a_len), *y = tokenizer_bytes(b, id, &b_len);
        assert_int_equal(a_len, b_len);
        assert_memory_equal(x, y, a_len);
        x = tokenizer_first_bytes(a, id, &a_len);
        y = tokenizer_first_bytes(b, id, &b_len);
        assert_int_equal(a_len, b_len);
        assert_memory_equal(x, y, a_len);
        assert_int_equal(tokenizer_is_special(a, id), tokenizer_is_special(b, id));
    }
    buf_init(&text, 1 << 20);
    for (int round = 0; round < 2000; round++) {
        make_text(&rng, b, &text);
        check_same_ids(a, b, buf_str(&text), text.len, always | (any & rng_below(&rng, 8)));
    }
    buf_fini(&text);
}

/* Write the GGUF file of the directory's tokenizer, load it and compare. */
static void check_written(const struct tokenizer *t, const char *dir, unsigned always, unsigned any)
{
    char path[128];
    struct tokenizer *gguf = NULL;
    struct buf command, why;

    temp_path(path, sizeof path, "x.gguf");
    buf_init(&command, 1 << 16);
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(buf_printf(&command, "python3 '%s/tests/tools/gguf_tokenizer.py' '%s' '%s'",
                         TARN_SOURCE_DIR, dir, path));
    assert_int_equal(system(command.data), 0);
    if (tokenizer_load(&gguf, path, &why) != OK)
        fail_msg("%s: %s", dir, buf_str(&why));
    unlink(path);
    check_same(t, gguf, always, any);
    if (tokenizer_chat_template(t))
        assert_string_equal(tokenizer_chat_template(t), tokenizer_chat_template(gguf));
    tokenizer_destroy(gguf);
    buf_fini(&command);
    buf_fini(&why);
}

static void check_family(const char *name, const char *vocabulary, const char *options)
{
    struct tokenizer *t = convert_and_load(vocabulary, options);

    check_recorded(t, name);
    if (strstr(vocabulary, ".gguf")) {
        struct tokenizer *gguf = load_gguf(vocabulary);
        check_recorded(gguf, name);
        check_same(t, gguf, 0, ALL_FLAGS);
        tokenizer_destroy(gguf);
    } else
        check_written(t, temp_dir, 0, ALL_FLAGS);
    tokenizer_destroy(t);
}

static void gpt2_ids_are_the_recorded_ones(void **state)
{
    (void)state;
    check_family("gpt-2", "tok-llamacpp-vocabs/ggml-vocab-gpt-2.gguf", "");
    check_family("gpt-2", "tok-gpt2/encoder.json", "--pair-merges");
}

static void qwen2_ids_are_the_recorded_ones(void **state)
{
    (void)state;
    check_family("qwen2", "tok-qwen2/merges.txt", "");
}

static void llama_spm_ids_are_the_recorded_ones(void **state)
{
    (void)state;
    check_family("llama-spm", "tok-llamacpp-vocabs/ggml-vocab-llama-spm.gguf", "");
}

static void starcoder_ids_are_the_recorded_ones(void **state)
{
    (void)state;
    check_family("starcoder", "tok-llamacpp-vocabs/ggml-vocab-starcoder.gguf", "");
}

static void falcon_ids_are_the_recorded_ones(void **state)
{
    (void)state;
    check_family("falcon", "tok-llamacpp-vocabs/ggml-vocab-falcon.gguf", "");
}

static void neox_of_gguf_is_that_of_tokenizer_json(void **state)
{
    const char *file = "tok-llamacpp-vocabs/ggml-vocab-gpt-neox.gguf";
    struct tokenizer *t = convert_and_load(file, ""), *gguf = load_gguf(file);

    (void)state;
    check_same(t, gguf, 0, ALL_FLAGS);
    tokenizer_destroy(t);
    tokenizer_destroy(gguf);
}

/* In tokenizer.json a special token is also a piece, which plain text may spell; in GGUF it never
 * is. */
static void unigram_of_gguf_is_that_of_tokenizer_json(void **state)
{
    struct tokenizer *t = convert_and_load("tok-sentencepiece-test/test_model.model", "");

    (void)state;
    check_written(t, temp_dir, TOKENIZE_PARSE_SPECIAL, ALL_FLAGS);
    tokenizer_destroy(t);
}

/* The file's post-processor names ids that are words here. */
static void wordpiece_of_gguf_is_that_of_tokenizer_json(void **state)
{
    char dir[2048];
    struct tokenizer *t = NULL;

    (void)state;
    snprintf(dir, sizeof dir, "%s/embed-model2vec-fixtures/test-model-float32", data_dir);
    assert_ok(tokenizer_load(&t, dir, NULL));
    check_written(t, dir, 0, ALL_FLAGS & ~TOKENIZE_ADD_SPECIAL);
    tokenizer_destroy(t);
}

static void the_demo_model_of_gguf_is_that_of_tokenizer_json(void **state)
{
    struct tokenizer *t = NULL;

    (void)state;
    assert_ok(tokenizer_load(&t, TARN_SOURCE_DIR "/deploy/demo-model", NULL));
    check_written(t, TARN_SOURCE_DIR "/deploy/demo-model", 0, ALL_FLAGS);
    tokenizer_destroy(t);
}

static void check_stories(const struct tokenizer *t)
{
    struct buf prompts, tokens;
    int n = 0;

    read_data(&prompts, "model-stories260K/golden-llama2c/prompts.tsv");
    for (const char *line = prompts.data; *line; n++) {
        size_t len = strcspn(line, "\n");
        const char *text = memchr(line, '\t', len);
        char file[256], want[4096];
        assert_non_null(text);
        snprintf(file, sizeof file, "model-stories260K/golden-llama2c/%.*s.tokens.txt",
                 (int)(text - line), line);
        read_data(&tokens, file);
        assert_int_equal(sscanf(tokens.data, "# prompt_ids: %4095[0-9 ]", want), 1);
        assert_string_equal(
            ids_of(t, text + 1, (size_t)(line + len - text - 1), TOKENIZE_ADD_SPECIAL), want);
        buf_fini(&tokens);
        line += len + (line[len] == '\n');
    }
    assert_int_equal(n, 5);
    buf_fini(&prompts);
}

static void stories_prompts_are_as_llama2c_cuts_them(void **state)
{
    struct tokenizer *t = convert_and_load("model-stories260K/tok512.bin", "");
    struct tokenizer *gguf = load_gguf("model-stories260K/stories260K.gguf");

    (void)state;
    check_stories(t);
    check_stories(gguf);
    check_same(t, gguf, 0, ALL_FLAGS);
    tokenizer_destroy(t);
    tokenizer_destroy(gguf);
}

static void a_whole_book_comes_back(void **state)
{
    struct tokenizer *t = convert_and_load("tok-qwen2/merges.txt", "");
    struct buf book;

    (void)state;
    read_data(&book, "text-war-and-peace/war-and-peace.txt");
    check_round_trip(t, book.data, book.len, 0);
    buf_fini(&book);
    tokenizer_destroy(t);
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

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const char *shared = getenv("TARN_SHARED");
    const struct CMUnitTest tests[] = {
        T(gpt2_ids_are_the_recorded_ones),
        T(qwen2_ids_are_the_recorded_ones),
        T(llama_spm_ids_are_the_recorded_ones),
        T(starcoder_ids_are_the_recorded_ones),
        T(falcon_ids_are_the_recorded_ones),
        T(neox_of_gguf_is_that_of_tokenizer_json),
        T(unigram_of_gguf_is_that_of_tokenizer_json),
        T(wordpiece_of_gguf_is_that_of_tokenizer_json),
        T(the_demo_model_of_gguf_is_that_of_tokenizer_json),
        T(stories_prompts_are_as_llama2c_cuts_them),
        T(a_whole_book_comes_back),
    };

    snprintf(data_dir, sizeof data_dir, "%s/data", shared ? shared : TARN_SOURCE_DIR "/../shared");
    if (access(data_dir, R_OK) != 0) {
        printf("skipped: no %s\n", data_dir);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
