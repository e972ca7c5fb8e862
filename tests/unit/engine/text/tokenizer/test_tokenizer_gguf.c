/* tokenizer_gguf*.c: small GGUF files with metadata only. test_tokenizer_golden.c has the real
 * vocabularies. */
#include <float.h>

#include "base/check.h"
#include "tests/unit/engine/text/tokenizer/gguf_test.h"

#define G "tokenizer.ggml."
#define META "\342\226\201"
#define PARSE TOKENIZE_PARSE_SPECIAL
#define ADD TOKENIZE_ADD_SPECIAL

/* 0 <unk>, 1 <s>, 2 </s>, 3 meta, 4 a, 5 b, 6 <0x63>, 7 meta+a, 8 ab, 9 <|eot|>, 10 [x] */
static const struct member llama[] = {
    {G "model", 's', "llama"},
    {G "tokens", 'S', "<unk>,<s>,</s>," META ",a,b,<0x63>," META "a,ab,<|eot|>,[x]"},
    {G "scores", 'F', "0,0,0,-5,-6,-7,0,-1,-0.5,0,0"},
    {G "token_type", 'I', "2,3,3,1,1,1,6,1,1,3,4"},
    {G "bos_token_id", 'u', "1"},
    {G "eos_token_id", 'u', "2"},
    {0},
};

/* 0 a, 1 b, 2 the byte-level space, 3 ab, 4 <|end|>, 5 the byte-level space and a */
static const struct member gpt2[] = {
    {G "model", 's', "gpt2"},
    {G "pre", 's', "gpt-2"},
    {G "tokens", 'S', "a,b,\304\240,ab,<|end|>,\304\240a"},
    {G "token_type", 'I', "1,1,1,1,3,1"},
    {G "merges", 'S', "a b,\304\240 a"},
    {G "eos_token_id", 'u', "4"},
    {0},
};

/* 0 [PAD], 1 [UNK], 2 [CLS], 3 [SEP], 4 a, 5 ##b, 6 [, 7 ab */
static const struct member bert[] = {
    {G "model", 's', "bert"},
    {G "tokens", 'S', "[PAD],[UNK],[CLS],[SEP]," META "a,b," META "[," META "ab"},
    {G "token_type", 'I', "3,3,3,3,1,1,1,1"},
    {G "bos_token_id", 'u', "2"},
    {G "unknown_token_id", 'u', "1"},
    {G "seperator_token_id", 'u', "3"},
    {0},
};

/* 0 <pad>, 1 </s>, 2 <unk>, 3 meta, 4 a, 5 b, 6 meta+a, 7 ab */
static const struct member t5[] = {
    {G "model", 's', "t5"},
    {G "tokens", 'S', "<pad>,</s>,<unk>," META ",a,b," META "a,ab"},
    {G "scores", 'F', "0,0,0,-2,-3,-3,-2.5,-2"},
    {G "token_type", 'I', "3,3,2,1,1,1,1,1"},
    {G "add_eos_token", 'b', "1"},
    {G "remove_extra_whitespaces", 'b', "1"},
    {0},
};

static struct tokenizer *load(const struct member *base, const struct member *change)
{
    struct tokenizer *t = NULL;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (load_members(&t, base, change, &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
    return t;
}

#define WITH(...)                                                                                  \
    (const struct member[])                                                                        \
    {                                                                                              \
        __VA_ARGS__,                                                                               \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }

/* ---- ids ---- */

static void each_kind_of_model_has_its_ids(void **state)
{
    struct tokenizer *t = load(llama, NULL);

    (void)state;
    assert_ids(t, "a ab", 0, "7 3 8");
    assert_ids(t, "a ab", ADD, "1 7 3 8");
    assert_ids(t, "ac", TOKENIZE_CONTINUES, "4 6");
    assert_ids(t, "d", 0, "3 0");
    tokenizer_destroy(t);
    t = load(gpt2, NULL);
    assert_ids(t, "ab a", ADD, "3 5");
    tokenizer_destroy(t);
    t = load(bert, NULL);
    assert_ids(t, "A ab B [aB", ADD, "2 4 7 1 6 7 3");
    tokenizer_destroy(t);
    t = load(t5, NULL);
    assert_ids(t, "a  ab ", ADD, "6 3 7 1");
    assert_ids(t, "a?", 0, "6 2");
    tokenizer_destroy(t);
}

static void the_file_says_what_surrounds_a_text(void **state)
{
    struct tokenizer *t =
        load(llama, WITH({G "add_bos_token", 'b', "0"}, {G "add_eos_token", 'b', "1"},
                         {G "add_space_prefix", 'b', "0"}));
    size_t len;

    (void)state;
    assert_ids(t, "ab", ADD, "8 2");
    tokenizer_first_bytes(t, 3, &len);
    assert_int_equal(len, 1); /* there is no dummy space to drop */
    tokenizer_destroy(t);
    t = load(llama, NULL);
    tokenizer_first_bytes(t, 3, &len);
    assert_int_equal(len, 0);
    tokenizer_destroy(t);
    t = load(gpt2, WITH({G "pre", 's', "llama-bpe"}, {G "bos_token_id", 'u', "4"}));
    assert_ids(t, "ab", ADD, "4 3"); /* the default of this family */
    tokenizer_destroy(t);
    t = load(t5, WITH({G "remove_extra_whitespaces", 0, ""}, {G "add_space_prefix", 'b', "0"}));
    assert_ids(t, "a  ab ", 0, "4 3 3 7 3");
    tokenizer_destroy(t);
    t = load(bert, WITH({G "normalizer.lowercase", 'b', "0"}));
    assert_ids(t, "A a", 0, "1 4");
    tokenizer_destroy(t);
}

static void a_piece_that_is_a_token_is_not_merged_where_the_family_says_so(void **state)
{
    const struct member *c =
        WITH({G "tokens", 'S', "a,b,c,bc,abc,<|end|>"}, {G "token_type", 0, ""},
             {G "merges", 'S', "b c"}, {G "eos_token_id", 0, ""}, {G "pre", 's', "llama-bpe"});
    struct tokenizer *t = load(gpt2, c);

    (void)state;
    assert_ids(t, "abc", 0, "4");
    tokenizer_destroy(t);
    t = load(gpt2, WITH(c[0], c[1], c[2], c[3], {G "pre", 's', "dbrx"}));
    assert_ids(t, "abc", 0, "0 3");
    tokenizer_destroy(t);
}

static void a_character_map_is_applied(void **state)
{
    /* A trie of one entry would be long; a map without entries shows that the bytes are read. */
    struct tokenizer *t = NULL;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(
        load_members(&t, t5, WITH({G "precompiled_charsmap", 'C', "4,0,0,0,0,0"}), &why),
        ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "precompiled_charsmap"));
    buf_fini(&why);
    t = load(t5, WITH({G "precompiled_charsmap", 'C', "4,0,0,0,0,0,0,0,97"}));
    assert_ids(t, "a", 0, "6");
    tokenizer_destroy(t);
}

/* ---- special tokens ---- */

static void control_tokens_are_special_and_user_tokens_are_not(void **state)
{
    struct tokenizer *t = load(llama, NULL);
    struct ranges untrusted = {0};
    struct buf ids;

    (void)state;
    assert_true(tokenizer_is_special(t, 1));
    assert_true(tokenizer_is_special(t, 9));
    assert_false(tokenizer_is_special(t, 10));
    assert_ids(t, "<|eot|>", PARSE | TOKENIZE_CONTINUES, "9");
    assert_ids(t, "<|eot|>", TOKENIZE_CONTINUES, "0");
    assert_ids(t, "a[x]", 0, "7 10");
    assert_string_equal(tokenizer_bos_text(t), "<s>");
    assert_string_equal(tokenizer_eos_text(t), "</s>");
    assert_int_equal(tokenizer_bos(t), 1);
    assert_int_equal(tokenizer_eos(t), 2);
    buf_init(&ids, 4096);
    assert_ok(ranges_add(&untrusted, 0, 7));
    assert_ok(
        tokenizer_encode_mixed(t, "<|eot|>", 7, PARSE | TOKENIZE_CONTINUES, &untrusted, &ids));
    assert_int_equal(ids.len, 4);
    assert_int_equal(*(uint32_t *)(void *)ids.data, 0);
    ranges_fini(&untrusted);
    buf_fini(&ids);
    tokenizer_destroy(t);
}

static void ends_of_texts_are_special_whatever_their_type(void **state)
{
    struct tokenizer *t =
        load(llama, WITH({G "token_type", 'I', "2,1,4,1,1,1,6,1,1,1,1"},
                         {G "eot_token_id", 'u', "9"}, {G "eom_token_id", 'u', "10"}));

    (void)state;
    for (uint32_t id = 0; id < 11; id++)
        assert_int_equal(tokenizer_is_special(t, id), id < 3 || id > 8);
    tokenizer_destroy(t);
    t = load(llama, WITH({G "token_type", 'I', "2,1,1,1,1,1,6,1,1,1,1"}, {G "bos_token_id", 0, ""},
                         {G "eos_token_id", 'u', "4294967295"}));
    assert_int_equal(tokenizer_bos(t), TOKEN_NONE); /* token 1 is no control token here */
    assert_int_equal(tokenizer_eos(t), TOKEN_NONE);
    assert_null(tokenizer_eos_text(t));
    assert_ids(t, "a", ADD, "7");
    tokenizer_destroy(t);
}

static void merges_never_make_special_tokens(void **state)
{
    struct tokenizer *t =
        load(llama, WITH({G "tokens", 'S', "<unk>,<s>,</s>,<,s>,<s"},
                         {G "scores", 'F', "0,0,0,0,0,0"}, {G "token_type", 'I', "2,3,3,1,1,1"}));

    (void)state;
    assert_ids(t, "<s>", TOKENIZE_CONTINUES, "3 0"); /* "s" and ">" are unknown */
    tokenizer_destroy(t);
    t = load(gpt2, WITH({G "tokens", 'S', "a,b,ab"}, {G "token_type", 'I', "1,1,3"},
                        {G "merges", 'S', "a b"}, {G "eos_token_id", 0, ""}));
    assert_ids(t, "ab", 0, "0 1");
    assert_ids(t, "ab", PARSE, "2");
    tokenizer_destroy(t);
}

static void special_tokens_of_phi3_take_the_white_space_behind_them(void **state)
{
    const struct member *c = WITH({"general.architecture", 's', "phi3"});
    struct tokenizer *t = load(llama, c);

    (void)state;
    assert_ids(t, "<|eot|>\n a<s> a", PARSE, "9 7 1 3 7");
    tokenizer_destroy(t);
    t = load(llama, NULL);
    assert_ids(t, "<|eot|> a", PARSE, "9 3 7");
    tokenizer_destroy(t);
}

static void fillers_of_the_vocabulary_are_no_tokens(void **state)
{
    struct tokenizer *t = load(llama, WITH({G "tokens", 'S', "<unk>,<s>,</s>,,a,[PAD5],[PAD7]"},
                                           {G "scores", 'F', "0,0,0,0,0,0,0"},
                                           {G "token_type", 'I', "2,3,3,1,1,5,5"}));
    size_t len;

    (void)state;
    assert_int_equal(tokenizer_n_vocab(t), 7);
    assert_null(tokenizer_piece(t, 3, &len));
    assert_null(tokenizer_piece(t, 5, &len));
    assert_non_null(tokenizer_piece(t, 6, &len)); /* the name of another id */
    tokenizer_destroy(t);
}

/* ---- chat templates ---- */

static void the_chat_template_is_the_default_of_several(void **state)
{
    struct tokenizer *t = load(llama, WITH({"tokenizer.chat_template", 's', "one"}));

    (void)state;
    assert_string_equal(tokenizer_chat_template(t), "one");
    tokenizer_destroy(t);
    t = load(llama, WITH({"tokenizer.chat_templates", 'S', "rag,default,tools"},
                         {"tokenizer.chat_template.rag", 's', "r"},
                         {"tokenizer.chat_template.default", 's', "d"}));
    assert_string_equal(tokenizer_chat_template(t), "d");
    tokenizer_destroy(t);
    t = load(llama, WITH({"tokenizer.chat_templates", 'S', "rag"},
                         {"tokenizer.chat_template.rag", 's', "r"}));
    assert_string_equal(tokenizer_chat_template(t), "r");
    tokenizer_destroy(t);
    t = load(llama, NULL);
    assert_null(tokenizer_chat_template(t));
    tokenizer_destroy(t);
}

/* ---- pre-tokenizers ---- */

static void every_known_name_loads_and_others_list_them(void **state)
{
    struct tokenizer *t = NULL;
    struct buf why;
    int n = 0;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(load_members(&t, gpt2, WITH({G "pre", 's', "unheard-of"}), &why),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(buf_str(&why), "unheard-of"));
    char *names = strstr(why.data, "known names: ");
    assert_non_null(names);
    for (char *name = strtok(names + 13, " "); name; name = strtok(NULL, " "), n++) {
        t = load(gpt2, WITH({G "pre", 's', name}));
        assert_ids(t, "ab a", 0, "3 5");
        tokenizer_destroy(t);
    }
    assert_true(n > 30);
    buf_fini(&why);
}

/* The pieces of a text under a pre-tokenizer, by a vocabulary in which every merge of two letters,
 * digits or a space exists: a piece is one id, and the ids of neighbours are separate. */
static void pre_tokenizers_cut_as_their_families_do(void **state)
{
    static const struct {
        const char *pre, *text, *ids;
    } cases[] = {
        {"gpt-2", "1111", "7"},         {"smollm", "1111", "0 0 0 0"},
        {"qwen2", "1111", "0 0 0 0"},   {"llama-bpe", "1111", "6 0"},
        {"dbrx", "1111", "6 0"},        {"tekken", "1111", "0 0 0 0"},
        {"deepseek-v3", "1111", "6 0"}, {"falcon", "1111", "6 0"},
        {"default", "1111", "6 0"},     {"gpt-4o", "aA", "1 2"},
        {"gpt-2", "aA", "4"},           {"tekken", "aA", "1 2"},
    };
    const struct member vocabulary[] = {
        {G "tokens", 'S', "1,a,A,B,aA,11,111,1111"},
        {G "token_type", 0, ""},
        {G "eos_token_id", 0, ""},
        {G "merges", 'S', "a A,1 1,11 1,11 11"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct tokenizer *t = load(gpt2, WITH(vocabulary[0], vocabulary[1], vocabulary[2],
                                              vocabulary[3], {G "pre", 's', cases[i].pre}));
        print_message("%s: %s\n", cases[i].pre, cases[i].text);
        assert_ids(t, cases[i].text, 0, cases[i].ids);
        tokenizer_destroy(t);
    }
}

static void old_files_have_the_pre_tokenizer_of_their_architecture(void **state)
{
    struct tokenizer *t =
        load(gpt2, WITH({G "pre", 0, ""}, {"general.architecture", 's', "gptneox"}));

    (void)state;
    assert_ids(t, "ab a", 0, "3 5");
    tokenizer_destroy(t);
}

/* ---- SentencePiece by scores ---- */

struct naive {
    char pieces[64][16];
    double scores[64];
    int n;
};

static int find_piece(const struct naive *v, const char *s, size_t len)
{
    for (int i = 3; i < v->n; i++)
        if (strlen(v->pieces[i]) == len && memcmp(v->pieces[i], s, len) == 0)
            return i;
    return -1;
}

/* SentencePiece's rule word by word: join the two neighbours whose joined text has the highest
 * score, the leftmost of equal ones, until no two of them join. */
static void encode_naively(const struct naive *v, const char *text, struct buf *shown)
{
    size_t starts[65], n = strlen(text);

    for (size_t i = 0; i <= n; i++)
        starts[i] = i;
    for (;;) {
        double best = -DBL_MAX;
        size_t at = n;
        for (size_t i = 0; i + 2 <= n; i++) {
            int id = find_piece(v, text + starts[i], starts[i + 2] - starts[i]);
            if (id >= 0 && v->scores[id] > best) {
                best = v->scores[id];
                at = i;
            }
        }
        if (at == n)
            break;
        memmove(starts + at + 1, starts + at + 2, (n - at - 1) * sizeof *starts);
        n--;
    }
    for (size_t i = 0; i < n; i++)
        assert_ok(buf_printf(shown, i ? " %d" : "%d",
                             find_piece(v, text + starts[i], starts[i + 1] - starts[i])));
}

static void make_vocabulary(struct rng *rng, struct naive *v)
{
    static const char *const first[] = {"<unk>", "<s>", "</s>", "a", "b", "c"};

    v->n = 0;
    for (; v->n < 6; v->n++)
        strcpy(v->pieces[v->n], first[v->n]);
    while (v->n < 30) {
        char piece[16] = "";
        for (uint32_t i = 0, n = 2 + rng_below(rng, 5); i < n; i++)
            piece[i] = (char)('a' + rng_below(rng, 3));
        if (find_piece(v, piece, strlen(piece)) < 0)
            strcpy(v->pieces[v->n++], piece);
    }
    for (int i = 0; i < v->n; i++)
        v->scores[i] = -(double)rng_below(rng, 8); /* many are equal */
}

static struct tokenizer *load_vocabulary(const struct naive *v)
{
    struct buf tokens, scores;

    buf_init(&tokens, 4096);
    buf_init(&scores, 4096);
    for (int i = 0; i < v->n; i++) {
        assert_ok(buf_printf(&tokens, i ? ",%s" : "%s", v->pieces[i]));
        assert_ok(buf_printf(&scores, i ? ",%g" : "%g", v->scores[i]));
    }
    struct tokenizer *t =
        load(llama, WITH({G "tokens", 'S', tokens.data}, {G "scores", 'F', scores.data},
                         {G "token_type", 0, ""}, {G "add_space_prefix", 'b', "0"}));
    buf_fini(&tokens);
    buf_fini(&scores);
    return t;
}

static void scores_join_tokens_as_sentencepiece_does(void **state)
{
    struct rng rng = {.seed = 3};
    struct naive v;
    struct buf want;

    (void)state;
    buf_init(&want, 4096);
    for (int round = 0; round < 40; round++) {
        make_vocabulary(&rng, &v);
        struct tokenizer *t = load_vocabulary(&v);
        for (int i = 0; i < 100; i++) {
            char text[64] = "";
            for (uint32_t k = 0, n = rng_below(&rng, 60); k < n; k++)
                text[k] = (char)('a' + rng_below(&rng, 3));
            buf_reset(&want);
            encode_naively(&v, text, &want);
            assert_ids(t, text, 0, buf_str(&want));
        }
        tokenizer_destroy(t);
    }
    buf_fini(&want);
}

/* ---- damaged metadata ---- */

struct bad {
    const struct member *base;
    struct member change;
    const char *words; /* in the message */
};

static const struct bad bad_files[] = {
    {llama, {G "model", 0, ""}, G "model: missing"},
    {llama, {G "model", 'u', "1"}, G "model"},
    {llama, {G "model", 's', "rwkv"}, "\"rwkv\" is not supported"},
    {llama, {G "model", 's', "gemma4"}, "\"gemma4\" is not supported"},
    {llama, {G "tokens", 0, ""}, G "tokens: expected"},
    {llama, {G "tokens", 'S', ""}, G "tokens: expected"},
    {llama, {G "tokens", 'I', "1,2"}, G "tokens: expected"},
    {llama, {G "tokens", 's', "a"}, G "tokens"},
    {llama, {G "tokens", 'S', "<unk>,<s>,</s>,a,a"}, "\"a\" has two ids, 3 and 4"},
    {llama, {G "tokens", 'S', "<unk>,<s>,</s>,a\377"}, G "tokens[3]: not UTF-8"},
    {llama, {G "tokens", 'S', "<unk>,<s>"}, G "eos_token_id: 2 is not one of the 2 tokens"},
    {llama, {G "scores", 0, ""}, G "scores: missing"},
    {llama, {G "scores", 'F', "0,0"}, G "scores: has 2 values for 11 tokens"},
    {llama, {G "scores", 'S', "0,0"}, G "scores: expected an array of numbers"},
    {llama, {G "scores", 'F', "0,0,0,nan,0,0,0,0,0,0,0"}, G "scores[3]: not a finite number"},
    {llama, {G "scores", 's', "0"}, G "scores"},
    {llama, {G "token_type", 'I', "1"}, G "token_type: has 1 values for 11 tokens"},
    {llama, {G "token_type", 'S', "1"}, G "token_type: expected an array of numbers"},
    {llama, {G "bos_token_id", 'u', "11"}, G "bos_token_id: 11 is not one of the 11 tokens"},
    {llama, {G "bos_token_id", 's', "x"}, G "bos_token_id"},
    {llama, {G "eot_token_id", 'u', "99"}, G "eot_token_id: 99"},
    {llama, {G "unknown_token_id", 'u', "99"}, G "unknown_token_id: 99"},
    {llama, {G "add_bos_token", 'u', "1"}, G "add_bos_token"},
    {llama, {G "add_space_prefix", 's', "x"}, G "add_space_prefix"},
    {llama, {"tokenizer.chat_template", 'u', "1"}, "tokenizer.chat_template"},
    {llama, {"tokenizer.chat_template", 's', "\377"}, "tokenizer.chat_template: not UTF-8"},
    {llama, {"tokenizer.chat_templates", 'I', "1"}, "tokenizer.chat_templates: expected"},
    {gpt2, {G "pre", 0, ""}, G "pre: missing"},
    {gpt2, {G "pre", 's', ""}, G "pre: \"\" is not supported"},
    {gpt2, {G "pre", 's', "gpt-2 phi-2"}, "is not supported"},
    {gpt2, {G "merges", 0, ""}, G "merges: expected an array of strings"},
    {gpt2, {G "merges", 'I', "1"}, G "merges: expected an array of strings"},
    {gpt2, {G "merges", 'S', "a b,ab"}, G "merges[1]: expected two tokens and a blank"},
    {gpt2, {G "merges", 'S', "a b,a z"}, G "merges[1]: \"a z\" is not made of tokens"},
    {gpt2, {G "merges", 'S', "b a"}, G "merges[0]: \"b a\" is not made of tokens"},
    {gpt2, {G "merges", 'S', " "}, G "merges[0]: expected two tokens and a blank"},
    {gpt2, {G "add_bos_token", 'b', "1"}, "bos_token_id is missing"},
    {t5, {G "scores", 0, ""}, G "scores: missing"},
    {t5, {G "precompiled_charsmap", 'C', "1,2,3"}, "precompiled_charsmap"},
    {t5, {G "precompiled_charsmap", 'S', "x"}, G "precompiled_charsmap: expected"},
    {t5, {G "tokens", 'S', ",</s>,<unk>,,,,,"}, G "tokens: no normal token"},
    {bert, {G "normalizer.lowercase", 'u', "1"}, G "normalizer.lowercase"},
    {bert, {G "seperator_token_id", 'u', "8"}, G "seperator_token_id: 8"},
};

static void damaged_metadata_are_named(void **state)
{
    struct tokenizer *t;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    for (size_t i = 0; i < ARRAY_SIZE(bad_files); i++) {
        const struct bad *b = &bad_files[i];
        enum status s = load_members(&t, b->base, WITH(b->change), &why);
        if ((s != ERR_INVALID && s != ERR_UNSUPPORTED) || !strstr(buf_str(&why), b->words))
            fail_msg("%s: %s, \"%s\"", b->words, status_name(s), buf_str(&why));
        assert_null(t);
    }
    buf_fini(&why);
}

/* The strings of a file with holes are empty and take no room on the disk. */
static void ten_million_tokens_are_refused(void **state)
{
    static const struct member no_tokens[] = {{G "model", 's', "llama"}, {0}};
    struct tokenizer *t;
    struct buf file, why;
    char path[128];

    (void)state;
    buf_init(&file, 4096);
    buf_init(&why, BUF_WHY_MAX);
    write_members(&file, no_tokens, NULL);
    file.data[16] = 2;
    file.len = 24 + 8 + strlen(G "model") + 4 + 8 + strlen("llama");
    put_text(&file, G "tokens", strlen(G "tokens"));
    put_number(&file, 9, 4);
    put_number(&file, 8, 4);
    put_number(&file, 10000000, 8);
    write_temp("x.gguf", file.data, file.len);
    temp_path(path, sizeof path, "x.gguf");
    assert_int_equal(truncate(path, (off_t)file.len + 80000000 + 64), 0);
    assert_int_equal(tokenizer_load(&t, path, &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), G "tokens: more than"));
    unlink(path);
    buf_fini(&file);
    buf_fini(&why);
}

static void long_tokens_are_refused_unless_text_has_them_whole(void **state)
{
    char *tokens = calloc(1, 200000);
    struct tokenizer *t = NULL;
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    strcpy(tokens, "<unk>,<s>,</s>,");
    memset(tokens + 15, 'a', 1025);
    assert_int_equal(load_members(&t, llama,
                                  WITH({G "tokens", 'S', tokens}, {G "scores", 'F', "0,0,0,0"},
                                       {G "token_type", 'I', "2,3,3,1"}),
                                  &why),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(buf_str(&why), G "tokens[3]"));
    t = load(llama, WITH({G "tokens", 'S', tokens}, {G "scores", 'F', "0,0,0,0"},
                         {G "token_type", 'I', "2,3,3,4"}));
    assert_ids(t, tokens + 15, 0, "3");
    tokenizer_destroy(t);
    memset(tokens + 15, 'a', 70000);
    assert_int_equal(load_members(&t, llama, WITH({G "tokens", 'S', tokens}), &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), G "tokens[3]: longer than"));
    buf_fini(&why);
    free(tokens);
}

static void a_file_that_is_no_gguf_is_refused(void **state)
{
    struct tokenizer *t;
    struct buf why;
    char path[128];

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    write_temp("x.gguf", "{}", 2);
    temp_path(path, sizeof path, "x.gguf");
    assert_int_equal(tokenizer_load(&t, path, &why), ERR_INVALID);
    assert_null(t);
    unlink(path);
    assert_int_not_equal(tokenizer_load(&t, path, &why), OK);
    buf_fini(&why);
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
        T(each_kind_of_model_has_its_ids),
        T(the_file_says_what_surrounds_a_text),
        T(a_piece_that_is_a_token_is_not_merged_where_the_family_says_so),
        T(a_character_map_is_applied),
        T(control_tokens_are_special_and_user_tokens_are_not),
        T(ends_of_texts_are_special_whatever_their_type),
        T(merges_never_make_special_tokens),
        T(special_tokens_of_phi3_take_the_white_space_behind_them),
        T(fillers_of_the_vocabulary_are_no_tokens),
        T(the_chat_template_is_the_default_of_several),
        T(every_known_name_loads_and_others_list_them),
        T(pre_tokenizers_cut_as_their_families_do),
        T(old_files_have_the_pre_tokenizer_of_their_architecture),
        T(scores_join_tokens_as_sentencepiece_does),
        T(damaged_metadata_are_named),
        T(ten_million_tokens_are_refused),
        T(long_tokens_are_refused_unless_text_has_them_whole),
        T(a_file_that_is_no_gguf_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
