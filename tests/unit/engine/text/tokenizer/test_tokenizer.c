/* tokenizer.c on small made-up vocabularies. Real ones: test_tokenizer_golden.c. */
#include "tests/unit/engine/text/tokenizer/tokenizer_test.h"

#define SPECIALS (TOKENIZE_PARSE_SPECIAL)

/* ---- encoding ---- */

static void merges_apply_by_rank_then_from_the_left(void **state)
{
    struct tokenizer *t = load_recipe(&byte_level_recipe);

    (void)state;
    assert_ids(t, "hello", 0, "258 111");
    assert_ids(t, "lll", 0, "257 108");
    assert_ids(t, "a he", 0, "97 32 256"); /* "h e" ranks before "G h" */
    assert_ids(t, "a ha", 0, "97 259 97");
    assert_ids(t, "", 0, "");
    tokenizer_destroy(t);
}

static void the_template_goes_around_only_when_asked(void **state)
{
    struct tokenizer *t = load_recipe(&byte_level_recipe);

    (void)state;
    assert_ids(t, "he", TOKENIZE_ADD_SPECIAL, "260 256 261");
    assert_ids(t, "", TOKENIZE_ADD_SPECIAL, "260 261");
    tokenizer_destroy(t);
}

static void special_tokens_in_text_count_only_when_asked(void **state)
{
    struct tokenizer *t = load_recipe(&byte_level_recipe);

    (void)state;
    assert_ids(t, "he<s>ll</s>", SPECIALS, "256 260 257 261");
    assert_ids(t, "<s>", 0, "60 115 62");
    assert_ids(t, "<tool>", 0, "262");
    assert_ids(t, "<tool<tool>", 0, "60 116 111 111 108 262");
    tokenizer_destroy(t);
}

static void the_longest_added_token_wins(void **state)
{
    struct recipe r = byte_level_recipe;

    (void)state;
    r.post = NULL;
    r.added = "[{\"id\":300,\"content\":\"<a\",\"special\":true},"
              "{\"id\":301,\"content\":\"<a><b>\",\"special\":true},"
              "{\"id\":302,\"content\":\"<a>\",\"special\":true}]";
    struct tokenizer *t = load_recipe(&r);
    assert_ids(t, "<a><b>", SPECIALS, "301");
    assert_ids(t, "<a><c", SPECIALS, "302 60 99");
    assert_ids(t, "<a<a>", SPECIALS, "300 302");
    assert_int_equal(tokenizer_n_vocab(t), 303);
    size_t n;
    assert_null(tokenizer_piece(t, 299, &n)); /* a gap in the ids */
    assert_int_equal(n, 0);
    tokenizer_destroy(t);
}

static void added_tokens_swallow_space_and_keep_to_words(void **state)
{
    struct recipe r = byte_level_recipe;

    (void)state;
    r.post = NULL;
    r.added = "[{\"id\":300,\"content\":\"<l>\",\"special\":true,\"lstrip\":true},"
              "{\"id\":301,\"content\":\"<r>\",\"special\":true,\"rstrip\":true},"
              "{\"id\":302,\"content\":\"word\",\"special\":true,\"single_word\":true}]";
    struct tokenizer *t = load_recipe(&r);
    assert_ids(t, "a \n<l> b", SPECIALS, "97 300 32 98");
    assert_ids(t, "a <r>\302\240 b", SPECIALS, "97 32 301 98");
    assert_ids(t, "a<r> <l>", SPECIALS, "97 301 300");
    assert_ids(t, "word-word", SPECIALS, "302 45 302");
    assert_ids(t, "words", SPECIALS, "119 111 114 100 115");
    assert_ids(t, "\303\251word", SPECIALS, "195 169 119 111 114 100");
    tokenizer_destroy(t);
}

static void normalized_added_tokens_match_after_normalization(void **state)
{
    struct recipe r = byte_level_recipe;

    (void)state;
    r.post = NULL;
    r.normalizer = "{\"type\":\"Lowercase\"}";
    r.added = "[{\"id\":300,\"content\":\"<X>\",\"normalized\":true},"
              "{\"id\":301,\"content\":\"<Y>\",\"normalized\":false}]";
    struct tokenizer *t = load_recipe(&r);
    assert_ids(t, "<x><X>", 0, "300 300");
    assert_ids(t, "<y><Y>", 0, "60 121 62 301");
    tokenizer_destroy(t);
}

static void text_that_is_no_utf8_reads_as_replacement_characters(void **state)
{
    struct tokenizer *t = load_recipe(&byte_level_recipe);
    static const char *const pairs[][2] = {
        {"a\377b", "a\357\277\275b"},
        {"\342\202", "\357\277\275"},                             /* cut short: one */
        {"\355\240\200", "\357\277\275\357\277\275\357\277\275"}, /* a surrogate: three */
        {"\360\237\230a", "\357\277\275a"},
        {"\300\257", "\357\277\275\357\277\275"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        char want[256];
        strcpy(want, ids_of(t, pairs[i][1], strlen(pairs[i][1]), 0));
        assert_ids(t, pairs[i][0], 0, want);
    }
    assert_string_equal(ids_of(t, "a\0b", 3, 0), "97 0 98");
    tokenizer_destroy(t);
}

static void sentencepiece_text_gets_its_dummy_space_unless_it_continues(void **state)
{
    struct tokenizer *t = load_recipe(&spm_recipe);

    (void)state;
    assert_ids(t, "a", 0, "5");
    assert_ids(t, "a", TOKENIZE_CONTINUES, "3");
    assert_ids(t, " a", TOKENIZE_CONTINUES, "5");
    assert_ids(t, "<s>a", SPECIALS | TOKENIZE_CONTINUES, "1 5"); /* each section, as upstream */
    assert_ids(t, "", 0, "");
    size_t n;
    assert_string_equal(tokenizer_bytes(t, 5, &n), " a");
    assert_string_equal(tokenizer_first_bytes(t, 5, &n), "a");
    assert_int_equal(n, 1);
    tokenizer_destroy(t);
}

static void unknown_characters_fall_back_to_bytes_then_to_one_unk(void **state)
{
    struct tokenizer *t = load_recipe(&spm_recipe);

    (void)state;
    assert_ids(t, "a\303\251", 0, "5 6 7"); /* e acute: both byte tokens exist */
    assert_ids(t, "axyzb", 0, "5 0 4");     /* fused */
    tokenizer_destroy(t);

    struct recipe r = spm_recipe;
    r.options = "\"unk_token\":\"<unk>\",";
    t = load_recipe(&r);
    assert_ids(t, "axyzb", 0, "5 0 0 0 4");
    tokenizer_destroy(t);
    r.options = "";
    t = load_recipe(&r);
    assert_ids(t, "axyzb", 0, "5 4"); /* no unk_token: unknown letters are dropped */
    tokenizer_destroy(t);
}

static void ignore_merges_takes_whole_pieces(void **state)
{
    struct recipe r = byte_level_recipe;

    (void)state;
    r.options = "\"ignore_merges\":true,";
    r.vocab = "\"he\":256,\"ll\":257,\"hell\":258,\"\304\240h\":259,\"\304\240odd\":263";
    struct tokenizer *t = load_recipe(&r);
    assert_ids(t, "he odd", 0, "256 263");
    assert_ids(t, "he odds", 0, "256 32 111 100 100 115");
    tokenizer_destroy(t);
}

static void too_many_ids_leave_the_buffer_unchanged(void **state)
{
    struct tokenizer *t = load_recipe(&byte_level_recipe);
    struct buf ids;

    (void)state;
    buf_init(&ids, 12);
    assert_ok(buf_u32(&ids, 7));
    assert_int_equal(tokenizer_encode(t, "a b c", 5, 0, &ids), ERR_TOO_LARGE);
    assert_int_equal(ids.len, 4);
    assert_ok(tokenizer_encode(t, "ab", 2, 0, &ids));
    assert_int_equal(ids.len, 12);
    buf_fini(&ids);
    tokenizer_destroy(t);
}

static void a_text_that_cannot_fit_is_refused_by_its_length(void **state)
{
    struct tokenizer *t = load_recipe(&byte_level_recipe);
    uint32_t longest = t->token_bytes_max;
    char text[1000];
    struct buf ids;
    uint64_t n_steps = 1;

    (void)state;
    memset(text, 'a', sizeof text);
    assert_in_range(longest, 1, 99);
    buf_init(&ids, 10 * sizeof(uint32_t));
    assert_int_equal(tok_encode_counted(t, text, 11 * longest, 0, NULL, &ids, &n_steps),
                     ERR_TOO_LARGE);
    assert_int_equal(n_steps, 0);
    assert_int_equal(tok_encode_counted(t, text, 10 * longest, 0, NULL, &ids, &n_steps),
                     ERR_TOO_LARGE);
    assert_true(n_steps > 0);
    buf_fini(&ids);
    tokenizer_destroy(t);
}

/* Tokenizers that may turn a text of any length into one token, or none, have no such bound. */
static void a_tokenizer_that_drops_text_has_no_longest_token(void **state)
{
    static const struct {
        const char *normalizer, *pretok, *added;
        uint32_t shrinks; /* 0: not known */
    } cases[] = {
        {NULL, BYTE_LEVEL, NULL, 1},
        {"{\"type\":\"NFC\"}", BYTE_LEVEL, NULL, 8},
        {"{\"type\":\"Prepend\",\"prepend\":\"x\"}", BYTE_LEVEL, NULL, 1},
        {"{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"b\"}", BYTE_LEVEL,
         NULL, 1},
        {"{\"type\":\"Replace\",\"pattern\":{\"String\":\"aa\"},\"content\":\"b\"}", BYTE_LEVEL,
         NULL, 0},
        {"{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a+\"},\"content\":\"b\"}", BYTE_LEVEL,
         NULL, 0},
        {"{\"type\":\"Strip\"}", BYTE_LEVEL, NULL, 0},
        {"{\"type\":\"Lowercase\"}", BYTE_LEVEL, NULL, 0},
        {NULL,
         "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"}," BYTE_LEVEL
         "]}",
         NULL, 0},
        {NULL, BYTE_LEVEL, "[{\"id\":300,\"content\":\"<s>\",\"special\":true}]", 1},
        {NULL, BYTE_LEVEL, "[{\"id\":300,\"content\":\"<s>\",\"lstrip\":true}]", 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct recipe r = byte_level_recipe;
        r.normalizer = cases[i].normalizer;
        r.pretok = cases[i].pretok;
        r.added = cases[i].added;
        r.post = NULL;
        struct tokenizer *t = load_recipe(&r);
        /* "hell"; every added token here is shorter */
        assert_int_equal(t->token_bytes_max, cases[i].shrinks * t->vocab.piece_len_max);
        tokenizer_destroy(t);
    }
}

/* ---- merging against the rule, written down naively ---- */

#define N_MERGES 60

struct naive_merge {
    uint32_t left, right, joined;
};

/* Random merges over the letters a, b, c: ids 97.. and 256... */
static size_t random_merges(struct rng *rng, struct naive_merge *m, struct buf *vocab,
                            struct buf *merges)
{
    char names[N_MERGES + 3][64] = {"a", "b", "c"};
    uint32_t ids[N_MERGES + 3] = {97, 98, 99};
    size_t n = 3, n_merges = 0;

    for (int tries = 0; tries < 2000 && n_merges < N_MERGES; tries++) {
        size_t l = rng_below(rng, (uint32_t)n), r = rng_below(rng, (uint32_t)n);
        char name[130];
        bool seen = false;
        snprintf(name, sizeof name, "%s%s", names[l], names[r]);
        for (size_t i = 0; i < n; i++)
            seen |= strcmp(names[i], name) == 0;
        if (seen || strlen(name) > 12)
            continue;
        ids[n] = (uint32_t)(256 + n_merges);
        strcpy(names[n], name);
        m[n_merges] = (struct naive_merge){ids[l], ids[r], ids[n]};
        assert_ok(buf_printf(vocab, "%s\"%s\":%u", n_merges ? "," : "", name, ids[n]));
        assert_ok(buf_printf(merges, "%s\"%s %s\"", n_merges ? "," : "", names[l], names[r]));
        n++;
        n_merges++;
    }
    return n_merges;
}

static size_t merge_naively(const struct naive_merge *m, size_t n_merges, uint32_t *ids, size_t n)
{
    for (size_t k = 0; k < n_merges;) {
        bool joined = false;
        for (size_t i = 0; i + 1 < n && !joined; i++) {
            if (ids[i] == m[k].left && ids[i + 1] == m[k].right) {
                ids[i] = m[k].joined;
                memmove(ids + i + 1, ids + i + 2, (n - i - 2) * sizeof *ids);
                n--;
                joined = true;
            }
        }
        k = joined ? 0 : k + 1; /* a join can make a pair of lower rank */
    }
    return n;
}

static void check_against_rule(const struct tokenizer *t, const struct naive_merge *m,
                               size_t n_merges, struct rng *rng, size_t len)
{
    char *text = malloc(len + 1);
    uint32_t *want = malloc((len + 1) * sizeof *want);
    struct buf ids;

    buf_init(&ids, 1 << 20);
    for (size_t i = 0; i < len; i++)
        want[i] = (uint32_t)(unsigned char)(text[i] = (char)('a' + rng_below(rng, 3)));
    size_t n = merge_naively(m, n_merges, want, len);
    assert_ok(tokenizer_encode(t, text, len, 0, &ids));
    assert_int_equal(ids.len, n * 4);
    if (n)
        assert_memory_equal(ids.data, want, n * 4);
    buf_fini(&ids);
    free(text);
    free(want);
}

static void short_and_long_runs_merge_as_the_rule_says(void **state)
{
    struct rng rng = {.seed = 1};

    (void)state;
    for (int round = 0; round < 20; round++) {
        struct naive_merge m[N_MERGES];
        struct buf vocab, merges;
        buf_init(&vocab, 1 << 16);
        buf_init(&merges, 1 << 16);
        size_t n = random_merges(&rng, m, &vocab, &merges);
        struct recipe r = {
            .byte_letters = true, .pretok = BYTE_LEVEL, .vocab = vocab.data, .merges = merges.data};
        struct tokenizer *t = load_recipe(&r);
        for (size_t len = 0; len < 80; len++)
            check_against_rule(t, m, n, &rng, len);
        check_against_rule(t, m, n, &rng, 700);
        tokenizer_destroy(t);
        buf_fini(&vocab);
        buf_fini(&merges);
    }
}

static uint64_t work_of(const struct tokenizer *t, const char *unit, size_t len)
{
    char *text = malloc(len);
    uint64_t n_steps;
    struct buf ids;

    for (size_t i = 0; i < len; i++)
        text[i] = unit[i % strlen(unit)];
    buf_init(&ids, (size_t)1 << 30);
    assert_ok(tok_encode_counted(t, text, len, 0, NULL, &ids, &n_steps));
    buf_fini(&ids);
    free(text);
    return n_steps;
}

static void work_on_the_worst_texts_grows_almost_linearly(void **state)
{
    static const char *const units[] = {"a", "ab", "l", " ", "=-", "hel"};
    const struct recipe chain = {
        .byte_letters = true,
        .pretok = BYTE_LEVEL,
        .vocab = "\"aa\":256,\"aaaa\":257,\"ab\":258,\"abab\":259,\"aaaaaaaa\":260",
        .merges = "\"a a\",\"aa aa\",\"a b\",\"ab ab\",\"aaaa aaaa\""};
    struct tokenizer *tokenizers[] = {load_recipe(&byte_level_recipe), load_recipe(&chain),
                                      load_recipe(&spm_recipe)};

    (void)state;
    for (size_t k = 0; k < 3; k++) {
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
            uint64_t half = work_of(tokenizers[k], units[i], 1 << 19);
            uint64_t whole = work_of(tokenizers[k], units[i], 1 << 20);
            assert_in_range(whole, half, half * 22 / 10);
            assert_in_range(whole, 0, (uint64_t)64 << 20); /* under 64 steps per byte */
        }
        tokenizer_destroy(tokenizers[k]);
    }
}

/* ---- asking ---- */

static void bytes_are_what_a_token_stands_for(void **state)
{
    struct tokenizer *t = load_recipe(&byte_level_recipe);
    size_t n;

    (void)state;
    assert_memory_equal(tokenizer_bytes(t, 259, &n), " h", 2);
    assert_int_equal(n, 2);
    assert_memory_equal(tokenizer_bytes(t, 0xff, &n), "\377", 1);
    assert_int_equal(n, 1);
    assert_string_equal(tokenizer_piece(t, 259, &n), "\304\240h");
    assert_string_equal(tokenizer_bytes(t, 260, &n), "<s>");
    assert_string_equal(tokenizer_bytes(t, 999, &n), "");
    assert_int_equal(n, 0);
    assert_true(tokenizer_is_special(t, 260));
    assert_false(tokenizer_is_special(t, 262));
    assert_false(tokenizer_is_special(t, UINT32_MAX));
    assert_int_equal(tokenizer_find(t, "<tool>", 6), 262);
    assert_int_equal(tokenizer_find(t, "nope", 4), TOKEN_NONE);
    tokenizer_destroy(t);

    t = load_recipe(&spm_recipe);
    assert_memory_equal(tokenizer_bytes(t, 6, &n), "\303", 1);
    assert_int_equal(n, 1);
    assert_string_equal(tokenizer_bytes(t, 5, &n), " a");
    tokenizer_destroy(t);
}

static void load_with_config(struct tokenizer **t, const char *config, enum status want,
                             const char *word)
{
    struct buf file, why;

    buf_init(&file, 1 << 20);
    buf_init(&why, BUF_WHY_MAX);
    write_recipe(&file, &byte_level_recipe);
    write_temp("tokenizer.json", file.data, file.len);
    write_temp("tokenizer_config.json", config, strlen(config));
    assert_int_equal(tokenizer_load(t, temp_dir, &why), want);
    if (word)
        assert_non_null(strstr(buf_str(&why), word));
    buf_fini(&file);
    buf_fini(&why);
}

static void config_gives_bos_eos_and_template(void **state)
{
    struct tokenizer *t = NULL;

    (void)state;
    load_with_config(&t,
                     "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"},"
                     "\"chat_template\":\"hi {{ x }}\"}",
                     OK, NULL);
    assert_int_equal(tokenizer_bos(t), 260);
    assert_int_equal(tokenizer_eos(t), 261);
    assert_string_equal(tokenizer_bos_text(t), "<s>");
    assert_string_equal(tokenizer_eos_text(t), "</s>");
    assert_string_equal(tokenizer_chat_template(t), "hi {{ x }}");
    tokenizer_destroy(t);

    load_with_config(&t,
                     "{\"bos_token\":null,\"chat_template\":[{\"name\":\"rag\",\"template\":"
                     "\"r\"},{\"name\":\"default\",\"template\":\"d\"}]}",
                     OK, NULL);
    assert_int_equal(tokenizer_bos(t), TOKEN_NONE);
    assert_null(tokenizer_bos_text(t));
    assert_string_equal(tokenizer_chat_template(t), "d");
    tokenizer_destroy(t);

    write_temp("chat_template.jinja", "file", 4);
    load_with_config(&t, "{}", OK, NULL);
    assert_string_equal(tokenizer_chat_template(t), "file");
    tokenizer_destroy(t);
}

static void a_wrong_config_is_refused_by_field(void **state)
{
    struct tokenizer *t = NULL;

    (void)state;
    load_with_config(&t, "{\"bos_token\":7}", ERR_INVALID, "bos_token");
    load_with_config(&t, "{\"eos_token\":{\"x\":1}}", ERR_INVALID, "eos_token");
    load_with_config(&t, "{\"chat_template\":{}}", ERR_INVALID, "chat_template");
    load_with_config(&t, "{\"chat_template\":[1]}", ERR_INVALID, "chat_template[0]");
    load_with_config(&t, "[]", ERR_INVALID, "tokenizer_config.json");
    load_with_config(&t, "{", ERR_INVALID, "tokenizer_config.json");
    assert_null(t);
}

/* ---- damaged files ---- */

static void a_wrong_file_is_refused_by_field(void **state)
{
    static const struct {
        const char *file, *word;
        enum status want;
    } cases[] = {
        {"", "tokenizer.json", ERR_INVALID},
        {"[]", "model", ERR_INVALID},
        {"{}", "model", ERR_INVALID},
        {"{\"model\":{\"type\":\"WordLevel\"}}", "WordLevel", ERR_UNSUPPORTED},
        {"{\"model\":{\"vocab\":[]}}", "model.vocab", ERR_INVALID},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":[]}}", "model.vocab", ERR_INVALID},
        {"{\"model\":{\"vocab\":{}}}", "model.vocab", ERR_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":-1}}}", "-1", ERR_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":4194304}}}", "4194304", ERR_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":99999999999999999999}}}", "", ERR_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":1.5}}}", "model.vocab", ERR_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0}}}", "id 0", ERR_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":0}}}", "model.merges", ERR_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", "merges[0]", ERR_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", "\"aa\"", ERR_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", "merges[0]", ERR_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}}", "merges[0]", ERR_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", "merges[0]", ERR_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"u\"}}", "unk_token",
         ERR_INVALID},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"</w>\"}}",
         "end_of_word_suffix", ERR_UNSUPPORTED},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}", "dropout",
         ERR_UNSUPPORTED},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"byte_fallback\":1}}", "byte_fallback",
         ERR_INVALID},
        {"{\"added_tokens\":{},\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}", "added_tokens",
         ERR_INVALID},
        {"{\"added_tokens\":[1],\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}", "added_tokens",
         ERR_INVALID},
        {"{\"added_tokens\":[{\"id\":0,\"content\":\"b\"}],\"model\":{\"vocab\":{\"a\":0},"
         "\"merges\":[]}}",
         "id 0", ERR_INVALID},
        {"{\"added_tokens\":[{\"id\":1,\"content\":\"a\"}],\"model\":{\"vocab\":{\"a\":0},"
         "\"merges\":[]}}",
         "two ids", ERR_INVALID},
        {"{\"decoder\":{\"type\":\"CTC\"},\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}", "CTC",
         ERR_UNSUPPORTED},
        {"{\"post_processor\":{\"type\":\"Odd\"},\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}",
         "Odd", ERR_UNSUPPORTED},
        {"{\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"x\",9]},\"model\":"
         "{\"vocab\":{\"a\":0},\"merges\":[]}}",
         "post_processor", ERR_INVALID},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tokenizer *t = NULL;
        struct buf why;
        buf_init(&why, BUF_WHY_MAX);
        write_temp("tokenizer.json", cases[i].file, strlen(cases[i].file));
        enum status s = tokenizer_load(&t, temp_dir, &why);
        if (s != cases[i].want || !strstr(buf_str(&why), cases[i].word))
            fail_msg("%s: status %d, \"%s\"", cases[i].file, s, buf_str(&why));
        assert_null(t);
        buf_fini(&why);
    }
    struct tokenizer *t = NULL;
    assert_int_equal(tokenizer_load(&t, "/nonexistent", NULL), ERR_NOT_FOUND);
}

static void try_file(const char *bytes, size_t len)
{
    struct tokenizer *t = NULL;
    struct buf ids;

    write_temp("tokenizer.json", bytes, len);
    if (tokenizer_load(&t, temp_dir, NULL) != OK) {
        assert_null(t);
        return;
    }
    buf_init(&ids, 1 << 16);
    (void)!tokenizer_encode(t, "hello <s> a\303\251", 13, SPECIALS | TOKENIZE_ADD_SPECIAL, &ids);
    buf_fini(&ids);
    tokenizer_destroy(t);
}

static void truncated_and_flipped_files_never_crash(void **state)
{
    const struct recipe *recipes[] = {&byte_level_recipe, &spm_recipe};
    struct rng rng = {.seed = 7};

    (void)state;
    for (size_t k = 0; k < 2; k++) {
        struct buf file;
        struct tokenizer *t = NULL;
        buf_init(&file, 1 << 20);
        write_recipe(&file, recipes[k]);
        for (size_t i = 0; i < 200; i++) {
            write_temp("tokenizer.json", file.data, i * file.len / 200);
            assert_int_equal(tokenizer_load(&t, temp_dir, NULL), ERR_INVALID);
            assert_null(t);
        }
        for (int i = 0; i < 500; i++) {
            size_t at = rng_below(&rng, (uint32_t)file.len);
            char old = file.data[at];
            file.data[at] =
                i % 2 ? (char)rng_below(&rng, 256) : "{}[]\",:0-9eanut\\"[rng_below(&rng, 16)];
            try_file(file.data, file.len);
            file.data[at] = old;
        }
        buf_fini(&file);
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

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(merges_apply_by_rank_then_from_the_left),
        T(the_template_goes_around_only_when_asked),
        T(special_tokens_in_text_count_only_when_asked),
        T(the_longest_added_token_wins),
        T(added_tokens_swallow_space_and_keep_to_words),
        T(normalized_added_tokens_match_after_normalization),
        T(text_that_is_no_utf8_reads_as_replacement_characters),
        T(sentencepiece_text_gets_its_dummy_space_unless_it_continues),
        T(unknown_characters_fall_back_to_bytes_then_to_one_unk),
        T(ignore_merges_takes_whole_pieces),
        T(too_many_ids_leave_the_buffer_unchanged),
        T(a_text_that_cannot_fit_is_refused_by_its_length),
        T(a_tokenizer_that_drops_text_has_no_longest_token),
        T(short_and_long_runs_merge_as_the_rule_says),
        T(work_on_the_worst_texts_grows_almost_linearly),
        T(bytes_are_what_a_token_stands_for),
        T(config_gives_bos_eos_and_template),
        T(a_wrong_config_is_refused_by_field),
        T(a_wrong_file_is_refused_by_field),
        T(truncated_and_flipped_files_never_crash),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
