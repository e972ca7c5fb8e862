/* Unigram and WordPiece, and the steps that come with them: BertNormalizer, Precompiled, their
 * decoders and post-processors. Ids of real vocabularies were recorded from Hugging Face
 * `tokenizers` 0.23.3; they are in the shared data and skipped without it. */
#include "engine/text/detokenize.h"
#include "tests/unit/engine/text/tokenizer/tokenizer_test.h"

#ifndef TARN_SOURCE_DIR
#define TARN_SOURCE_DIR "."
#endif

#define META "\342\226\201"
#define METASPACE                                                                                  \
    "{\"type\":\"Metaspace\",\"replacement\":\"" META "\",\"prepend_scheme\":\"always\"}"
#define BERT_NORMALIZER "\"normalizer\":{\"type\":\"BertNormalizer\"},"
#define BERT_PRETOK "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"

static struct tokenizer *load_json(const char *json)
{
    struct tokenizer *t = NULL;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (tok_load_text(&t, json, strlen(json), &why) != OK)
        fail_msg("%s", buf_str(&why));
    buf_fini(&why);
    return t;
}

/* Decode one id after the other, as the detokenizer does. */
static const char *text_of(const struct tokenizer *t, const uint32_t *ids, size_t n)
{
    static char shown[4096];
    struct buf out;
    struct detok d;

    buf_init(&out, sizeof shown - 1);
    detok_init(&d, t, NULL, 0, true, false, false);
    for (size_t i = 0; i < n; i++)
        assert_ok(detok_feed(&d, ids[i], &out));
    assert_ok(detok_finish(&d, &out));
    detok_fini(&d);
    memcpy(shown, buf_str(&out), out.len + 1);
    buf_fini(&out);
    return shown;
}

#define IDS(...) (const uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4

/* ---- Unigram ---- */

/* The example in Hugging Face's own documentation: 0 <unk>, 1 a, 2 b, 3 c, 4 d, 5 cd, 6 ab, ... */
static void the_best_sum_of_scores_wins(void **state)
{
    struct tokenizer *t = load_json(
        "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0.0],[\"a\",0.0],"
        "[\"b\",0.0],[\"c\",0.0],[\"d\",0.0],[\"cd\",1.0],[\"ab\",2.0],[\"abc\",5.0],"
        "[\"abcd\",10.0]]}}");

    (void)state;
    assert_ids(t, "abcdacdxx", 0, "8 1 5 0"); /* abcd a cd, and one <unk> for xx */
    assert_ids(t, "abccd", 0, "7 5");
    assert_ids(t, "", 0, "");
    tokenizer_destroy(t);
}

static void of_equal_sums_the_longest_last_token_stays(void **state)
{
    struct tokenizer *t = load_json(
        "{\"model\":{\"vocab\":[[\"u\",-9],[\"a\",-1],[\"aa\",-1],[\"aaa\",-2]],\"unk_id\":0}}");

    (void)state;
    assert_ids(t, "aaa", 0, "3");     /* aaa = a+aa = aa+a: all -2 */
    assert_ids(t, "aaaaa", 0, "2 3"); /* and not aaa+aa or aa+aa+a */
    tokenizer_destroy(t);
}

static void unknown_text_is_one_token_or_bytes(void **state)
{
    static const char format[] =
        "{\"model\":{\"unk_id\":0,\"byte_fallback\":%s,\"vocab\":[[\"<unk>\",0],[\"a\",-1],"
        "[\"<0xC3>\",-9],[\"<0xA9>\",-9],[\"<0x78>\",-9]]}}";
    char json[512];

    (void)state;
    snprintf(json, sizeof json, format, "false");
    struct tokenizer *t = load_json(json);
    assert_ids(t, "a\303\251xa\303\251", 0, "1 0 1 0");
    assert_ids(t, "<unk>a", 0, "0 1");
    assert_ids(t, "<unk><unk>y", 0, "0"); /* the token's own name counts as unknown, too */
    tokenizer_destroy(t);
    snprintf(json, sizeof json, format, "true");
    t = load_json(json);
    assert_ids(t, "a\303\251xa\303\251", 0, "1 2 3 4 1 2 3");
    assert_ids(t, "a\303\251ya", 0, "1 0 1"); /* all bytes of the run or none */
    tokenizer_destroy(t);
}

static void unknown_text_without_a_token_for_it_is_refused(void **state)
{
    struct tokenizer *t = load_json("{\"model\":{\"vocab\":[[\"a\",-1],[\"bc\",-1],[\"b\",-1]]}}");
    struct buf ids;

    (void)state;
    buf_init(&ids, 1024);
    assert_ids(t, "abca", 0, "0 1 0"); /* c is unknown, but no division needs it */
    assert_int_equal(tokenizer_encode(t, "abx", 3, 0, &ids), ERR_INVALID);
    assert_int_equal(ids.len, 0);
    tokenizer_destroy(t);
    buf_fini(&ids);
}

static void a_piece_that_is_there_twice_has_its_last_id(void **state)
{
    struct tokenizer *t =
        load_json("{\"model\":{\"vocab\":[[\"<unk>\",0],[\"a\",-1],[\"b\",-1],[\"a\",-5]],"
                  "\"unk_id\":0}}");
    size_t n;

    (void)state;
    assert_ids(t, "aba", 0, "3 2 3");
    assert_string_equal(tokenizer_piece(t, 1, &n), "a");
    assert_int_equal(tokenizer_find(t, "a", 1), 3);
    tokenizer_destroy(t);
}

#define N_NAIVE 24
#define NAIVE_LEN_MAX 5

struct naive {
    char pieces[N_NAIVE][NAIVE_LEN_MAX + 1];
    double scores[N_NAIVE];
};

/* The rule over the whole text at once, with every piece tried at every place. Return the number
 * of ids. */
static size_t cut_naively(const struct naive *v, const char *text, size_t len, uint32_t *ids)
{
    double *score = calloc(len + 1, sizeof *score);
    size_t *from = calloc(len + 1, sizeof *from), n = 0;
    uint32_t *id = calloc(len + 1, sizeof *id);
    bool *reached = calloc(len + 1, sizeof *reached);

    assert_true(score && from && id && reached);
    for (size_t at = 0; at < len; at++) {
        for (size_t k = 1; k <= NAIVE_LEN_MAX && at + k <= len; k++) {
            for (uint32_t i = 0; i < N_NAIVE; i++) {
                double sum = v->scores[i] + score[at];
                if (strlen(v->pieces[i]) != k || memcmp(v->pieces[i], text + at, k) != 0 ||
                    (reached[at + k] && sum <= score[at + k]))
                    continue;
                reached[at + k] = true;
                score[at + k] = sum;
                from[at + k] = at;
                id[at + k] = i;
            }
        }
    }
    for (size_t at = len; at > 0; at = from[at])
        ids[n++] = id[at];
    for (size_t i = 0; i < n / 2; i++) {
        uint32_t swap = ids[i];
        ids[i] = ids[n - 1 - i];
        ids[n - 1 - i] = swap;
    }
    free(score);
    free(from);
    free(id);
    free(reached);
    return n;
}

/* Single letters first, then longer ones that are all different; scores with few digits, so that
 * sums are often equal. */
static void make_naive(struct rng *rng, struct naive *v)
{
    for (uint32_t i = 0; i < N_NAIVE; i++) {
        bool seen;
        do {
            size_t len = i < 3 ? 1 : 2 + rng_below(rng, NAIVE_LEN_MAX - 1);
            for (size_t k = 0; k < len; k++)
                v->pieces[i][k] = (char)('a' + (i < 3 ? i : rng_below(rng, 3)));
            v->pieces[i][len] = '\0';
            seen = false;
            for (uint32_t j = 0; j < i; j++)
                seen |= strcmp(v->pieces[i], v->pieces[j]) == 0;
        } while (seen);
        v->scores[i] = -(double)rng_below(rng, 40) / 4;
    }
}

static struct tokenizer *load_naive(const struct naive *v)
{
    struct buf json;

    buf_init(&json, 1 << 16);
    assert_ok(buf_puts(&json, "{\"model\":{\"type\":\"Unigram\",\"vocab\":["));
    for (size_t i = 0; i < N_NAIVE; i++)
        assert_ok(buf_printf(&json, "%s[\"%s\",%.2f]", i ? "," : "", v->pieces[i], v->scores[i]));
    assert_ok(buf_puts(&json, "]}}"));
    struct tokenizer *t = load_json(json.data);
    buf_fini(&json);
    return t;
}

static void short_and_long_texts_are_cut_as_the_rule_says(void **state)
{
    static char text[20000];
    static uint32_t want[20000];
    struct rng rng = {.seed = 3};

    (void)state;
    for (int round = 0; round < 60; round++) {
        struct naive v;
        struct buf ids;
        make_naive(&rng, &v);
        struct tokenizer *t = load_naive(&v);
        size_t len = round % 10 ? rng_below(&rng, 60) : sizeof text; /* long: in several parts */
        for (size_t i = 0; i < len; i++)
            text[i] = (char)('a' + rng_below(&rng, 3));
        size_t n = cut_naively(&v, text, len, want);
        buf_init(&ids, 1 << 20);
        assert_ok(tokenizer_encode(t, text, len, 0, &ids));
        assert_int_equal(ids.len, n * 4);
        if (n)
            assert_memory_equal(ids.data, want, n * 4);
        buf_fini(&ids);
        tokenizer_destroy(t);
    }
}

/* ---- WordPiece ---- */

static const char wordpiece_json[] =
    "{" BERT_NORMALIZER BERT_PRETOK
    "\"added_tokens\":[{\"id\":1,\"content\":\"[CLS]\",\"special\":true},"
    "{\"id\":2,\"content\":\"[SEP]\",\"special\":true}],"
    "\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"[SEP]\",2],\"cls\":[\"[CLS]\",1]},"
    "\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true},"
    "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\","
    "\"continuing_subword_prefix\":\"##\","
    "\"max_input_chars_per_word\":10,\"vocab\":{\"[UNK]\":0,\"[CLS]\":1,\"[SEP]\":2,\"un\":3,"
    "\"##aff\":4,\"##able\":5,\"##a\":6,\"a\":7,\"ab\":8,\"abcd\":9,\"##c\":10,\",\":11,\"!\":12,"
    "\"'\":13,\"m\":14,\"\344\270\255\":15,\"cafe\":16,\"##\":17}}}";

static void the_longest_piece_from_the_left_is_taken(void **state)
{
    struct tokenizer *t = load_json(wordpiece_json);

    (void)state;
    assert_ids(t, "unaffable", 0, "3 4 5");
    assert_ids(t, "abc", 0, "8 10"); /* abcd begins so, but does not end */
    assert_ids(t, "abca abcd", 0, "8 10 6 9");
    assert_ids(t, "unx a", 0, "0 7"); /* an unknown rest makes the whole word unknown */
    assert_ids(t, "aaaaaaaaaa", 0, "7 6 6 6 6 6 6 6 6 6");
    assert_ids(t, "aaaaaaaaaaa", 0, "0"); /* too long */
    assert_ids(t, "a, un!", TOKENIZE_ADD_SPECIAL, "1 7 11 3 12 2");
    assert_ids(t, "", TOKENIZE_ADD_SPECIAL, "1 2");
    tokenizer_destroy(t);
}

static void word_length_counts_characters(void **state)
{
    struct tokenizer *t =
        load_json("{\"model\":{\"type\":\"WordPiece\",\"max_input_chars_per_word\":3,"
                  "\"vocab\":{\"[UNK]\":0,\"\303\251\":1,\"##\303\251\":2}}}");

    (void)state;
    assert_ids(t, "\303\251\303\251\303\251", 0, "1 2 2");
    assert_ids(t, "\303\251\303\251\303\251\303\251", 0, "0");
    tokenizer_destroy(t);
}

static void a_vocabulary_without_inner_pieces_knows_whole_words_only(void **state)
{
    struct tokenizer *t = load_json("{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"[UNK]\":0,"
                                    "\"a\":1,\"aa\":2}}}");

    (void)state;
    assert_ids(t, "aa", 0, "2");
    assert_ids(t, "aaa", 0, "0");
    tokenizer_destroy(t);
    t = load_json("{\"model\":{\"type\":\"WordPiece\",\"continuing_subword_prefix\":\"\","
                  "\"vocab\":{\"a\":1,\"aa\":2}}}");
    assert_ids(t, "aaa", 0, "2 1");
    struct buf ids;
    buf_init(&ids, 1024);
    assert_int_equal(tokenizer_encode(t, "b", 1, 0, &ids), ERR_INVALID); /* no [UNK] */
    buf_fini(&ids);
    tokenizer_destroy(t);
}

static void bert_text_is_cleaned_and_folded(void **state)
{
    struct tokenizer *t = load_json(wordpiece_json);

    (void)state;
    assert_ids(t, "CAF\303\211", 0, "16"); /* lower case, accent off */
    assert_ids(t, "cafe\314\201", 0, "16");
    assert_ids(t, "u\000n\342\200\213\357\277\275\001", 0, "0"); /* ends at the NUL here */
    assert_string_equal(ids_of(t, "u\000n\342\200\213\357\277\275\001", 9, 0), "3");
    assert_ids(t, "a\344\270\255a", 0, "7 15 7"); /* CJK stands alone */
    assert_ids(t, "a\302\240a\342\200\250a", 0, "7 7 7");
    assert_ids(t, "I'M", 0, "0 13 14");
    tokenizer_destroy(t);
}

static void word_pieces_join_as_bert_joins_them(void **state)
{
    struct tokenizer *t = load_json(wordpiece_json);

    (void)state;
    assert_string_equal(text_of(t, IDS(3, 4, 5, 11, 7)), "unaffable, a");
    assert_string_equal(text_of(t, IDS(11, 11, 12)), ",,!");
    assert_string_equal(text_of(t, IDS(7, 13, 14)), "a ' m"); /* cleaned up token by token */
    assert_string_equal(text_of(t, IDS(4, 4)), "##affaff");   /* the first one stays as it is */
    assert_string_equal(text_of(t, IDS(17, 17, 7)), "## a");
    assert_string_equal(text_of(t, IDS(1, 7, 2)), "[CLS] a [SEP]");
    tokenizer_destroy(t);
}

/* ---- Precompiled ---- */

static size_t put_base64(char *out, const unsigned char *bytes, size_t n)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t len = 0;

    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)bytes[i] << 16 | (i + 1 < n ? (uint32_t)bytes[i + 1] << 8 : 0) |
                     (i + 2 < n ? bytes[i + 2] : 0);
        out[len++] = letters[v >> 18];
        out[len++] = letters[v >> 12 & 63];
        out[len++] = i + 1 < n ? letters[v >> 6 & 63] : '=';
        out[len++] = i + 2 < n ? letters[v & 63] : '=';
    }
    out[len] = '\0';
    return len;
}

struct map_entry {
    unsigned char byte;
    const char *text;
};

/* A double array that maps single bytes: all children of the root, 256 ^ byte. */
static void make_charsmap(char *base64, const struct map_entry *entries, size_t n)
{
    unsigned char blob[4 + 4 * 512 + 64] = {0};
    uint32_t units[512] = {256u << 10}, text_len = 0, size = sizeof units;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = 256u ^ entries[i].byte, value_at = 128 + i;
        units[at] = entries[i].byte | 1u << 8 | (at ^ value_at) << 10;
        units[value_at] = 1u << 31 | text_len;
        strcpy((char *)blob + 4 + sizeof units + text_len, entries[i].text);
        text_len += (uint32_t)strlen(entries[i].text) + 1;
    }
    memcpy(blob, &size, 4); /* tests run on little-endian machines only */
    memcpy(blob + 4, units, sizeof units);
    put_base64(base64, blob, 4 + sizeof units + text_len);
}

static void assert_maps_to(const struct tok_charsmap *m, const char *text, const char *want)
{
    struct buf b;

    buf_init(&b, 1 << 16);
    assert_ok(buf_puts(&b, text));
    assert_ok(tok_charsmap_run(m, &b, &(struct range_map){0}));
    assert_string_equal(buf_str(&b), want);
    buf_fini(&b);
}

static void characters_and_small_clusters_are_replaced(void **state)
{
    const struct map_entry entries[] = {{'A', "a"}, {'&', "and"}, {'-', ""}, {'\r', "R"}};
    struct tok_charsmap *m = NULL;
    char base64[4096];

    (void)state;
    make_charsmap(base64, entries, 4);
    assert_ok(tok_charsmap_create(&m, base64, strlen(base64), NULL));
    assert_maps_to(m, "", "");
    assert_maps_to(m, "unchanged \303\251", "unchanged \303\251");
    assert_maps_to(m, "xA & A-y", "xa and ay");
    assert_maps_to(m, "A\314\201x", "ax"); /* the whole cluster, by the entry that its first
                                              character begins */
    assert_maps_to(m, "A\314\201\314\201x", "ax");
    assert_maps_to(m, "A\314\201\314\201\314\201x", /* over 5 bytes */
                   "a\314\201\314\201\314\201x");
    assert_maps_to(m, "a\r\nb\rc", "aRbRc"); /* CR LF is a cluster */
    tok_charsmap_destroy(m);
}

static void damaged_maps_are_refused_or_harmless(void **state)
{
    static const char *const bad[] = {
        "", "AAAA", "AA=A", "====", "A", "not base64!", "BAAAAA==", "BAAAAAAAAAD/", "/////wAA"};
    const struct map_entry entries[] = {{'A', "a"}, {'b', "B"}};
    struct rng rng = {.seed = 9};
    struct tok_charsmap *m = NULL;
    char base64[4096];

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(tok_charsmap_create(&m, bad[i], strlen(bad[i]), NULL), ERR_INVALID);
        assert_null(m);
    }
    for (int round = 0; round < 3000; round++) {
        struct buf b;
        make_charsmap(base64, entries, 2);
        for (int i = 0; i < 20; i++)
            base64[8 + rng_below(&rng, 2500)] = "ABCDQgw/89"[rng_below(&rng, 10)];
        if (tok_charsmap_create(&m, base64, strlen(base64), NULL) != OK)
            continue;
        buf_init(&b, 1 << 20);
        assert_ok(buf_puts(&b, "AbAb A\314\201 xyz \303\251"));
        assert_ok(tok_charsmap_run(m, &b, &(struct range_map){0}));
        assert_true(utf8_is_valid(buf_str(&b), b.len));
        buf_fini(&b);
        tok_charsmap_destroy(m);
    }
}

/* ---- around the models ---- */

static void metaspace_vanishes_in_the_first_token_only(void **state)
{
    struct tokenizer *t = load_json(
        "{\"pre_tokenizer\":" METASPACE ",\"decoder\":" METASPACE ",\"model\":{\"unk_id\":0,"
        "\"vocab\":[[\"<unk>\",0],[\"" META "\",-2],[\"a\",-2],[\"" META "a\",-3],"
        "[\"" META META "b" META "\",-3]]}}");

    (void)state;
    assert_ids(t, "a a", 0, "3 3");
    assert_string_equal(text_of(t, IDS(3, 3)), "a a");
    assert_string_equal(text_of(t, IDS(1, 3)), " a");
    assert_string_equal(text_of(t, IDS(4, 4)), "b  b ");
    tokenizer_destroy(t);
}

static void post_processors_put_their_ids_around(void **state)
{
    struct tokenizer *t =
        load_json("{\"post_processor\":{\"type\":\"RobertaProcessing\",\"sep\":[\"</s>\",2],"
                  "\"cls\":[\"<s>\",1],\"trim_offsets\":true},\"model\":{\"unk_id\":0,"
                  "\"vocab\":[[\"<unk>\",0],[\"<s>\",0],[\"</s>\",0],[\"a\",-1]]}}");

    (void)state;
    assert_ids(t, "a", TOKENIZE_ADD_SPECIAL, "1 3 2");
    assert_ids(t, "a", 0, "3");
    tokenizer_destroy(t);
}

static void characters_newer_than_the_patterns_count_as_what_they_are(void **state)
{
    struct tokenizer *t = load_recipe(&byte_level_recipe);
    struct tok_pretok *p = NULL;
    struct tok_pieces pieces;
    struct json *node = NULL;
    static const char json[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}";
    /* a U+A7DA b, U+16130 1, ! U+1B4E */
    static const char text[] = "a\352\237\232b\360\226\204\260"
                               "1!\341\255\216";

    (void)state;
    assert_ok(js_parse(&node, json, strlen(json), NULL));
    assert_ok(tok_pretok_load(&p, node, true, NULL));
    tok_pieces_init(&pieces);
    assert_ok(tok_pretok_run(p, &pieces, text, strlen(text), true, false));
    assert_int_equal(pieces.spans.n, 6); /* letters, digits, the rest */
    assert_int_equal(pieces.spans.v[1], 5);
    assert_int_equal(pieces.spans.v[3], 10);
    assert_ptr_equal(pieces.text, text);
    tok_pieces_fini(&pieces);
    tok_pretok_destroy(p);
    js_unref(node);
    tokenizer_destroy(t);
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

static void work_on_the_worst_texts_grows_linearly(void **state)
{
    static const char *const units[] = {"a", "ab", "abcd", " ", "x", "un", "\314\201"};
    struct tokenizer *tokenizers[] = {
        load_json("{\"model\":{\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"a\",-1],[\"aa\",-1],"
                  "[\"aaaaaaaa\",-2],[\"ab\",-1],[\"abab\",-1],[\"abcdabcd\",-1],[\" \",-1]]}}"),
        load_json(wordpiece_json),
        load_json("{\"model\":{\"type\":\"WordPiece\",\"max_input_chars_per_word\":1000000000,"
                  "\"vocab\":{\"[UNK]\":0,\"a\":1,\"##a\":2,\"##aaaa\":3,\"##ab\":4,\"##b\":5}}}")};

    (void)state;
    for (size_t k = 0; k < 3; k++) {
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
            uint64_t half = work_of(tokenizers[k], units[i], 1 << 18);
            uint64_t whole = work_of(tokenizers[k], units[i], 1 << 19);
            assert_in_range(whole, 0, half * 21 / 10 + 100);
            assert_in_range(whole, 0, (uint64_t)16 << 19); /* at most 16 steps per byte */
        }
        tokenizer_destroy(tokenizers[k]);
    }
}

/* ---- damaged files ---- */

static void a_wrong_file_is_refused_by_field(void **state)
{
    static const struct {
        const char *file, *word;
        enum status want;
    } cases[] = {
        {"{\"model\":{\"type\":\"Unigram\"}}", "model.vocab", ERR_INVALID},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":{}}}", "an array", ERR_INVALID},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "model.vocab", ERR_INVALID},
        {"{\"model\":{\"vocab\":[[\"a\",1],[\"b\"]]}}", "model.vocab[1]", ERR_INVALID},
        {"{\"model\":{\"vocab\":[[1,\"a\"]]}}", "model.vocab[0]", ERR_INVALID},
        {"{\"model\":{\"vocab\":[[\"\",1]]}}", "model.vocab", ERR_INVALID},
        {"{\"model\":{\"vocab\":[[\"a\",1]],\"unk_id\":1}}", "unk_id", ERR_INVALID},
        {"{\"model\":{\"vocab\":[[\"a\",1]],\"unk_id\":-1}}", "unk_id", ERR_INVALID},
        {"{\"model\":{\"vocab\":[[\"a\",1]],\"byte_fallback\":0}}", "byte_fallback", ERR_INVALID},
        {"{\"model\":{\"type\":\"WordPiece\"}}", "model.vocab", ERR_INVALID},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":[]}}", "an object", ERR_INVALID},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"\":0}}}", "model.vocab", ERR_INVALID},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0},\"unk_token\":1}}", "unk_token",
         ERR_INVALID},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0},"
         "\"max_input_chars_per_word\":-1}}",
         "max_input_chars_per_word", ERR_INVALID},
        {"{\"normalizer\":{\"type\":\"Precompiled\"},\"model\":{\"vocab\":[[\"a\",1]]}}",
         "precompiled_charsmap", ERR_INVALID},
        {"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"},"
         "\"model\":{\"vocab\":[[\"a\",1]]}}",
         "precompiled_charsmap", ERR_INVALID},
        {"{\"normalizer\":{\"type\":\"BertNormalizer\",\"lowercase\":1},\"model\":{\"vocab\":"
         "[[\"a\",1]]}}",
         "lowercase", ERR_INVALID},
        {"{\"decoder\":{\"type\":\"WordPiece\",\"prefix\":1},\"model\":{\"vocab\":[[\"a\",1]]}}",
         "prefix", ERR_INVALID},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tokenizer *t = NULL;
        struct buf why;
        buf_init(&why, BUF_WHY_MAX);
        enum status s = tok_load_text(&t, cases[i].file, strlen(cases[i].file), &why);
        if (s != cases[i].want || !strstr(buf_str(&why), cases[i].word))
            fail_msg("%s: status %d, \"%s\"", cases[i].file, s, buf_str(&why));
        assert_null(t);
        buf_fini(&why);
    }
}

/* ---- real vocabularies ---- */

struct recorded {
    const char *text, *ids;
};

static char data_dir[1024];

static bool load_shared(struct tokenizer **t, const char *command, const char *file)
{
    struct buf line, why;
    char path[2048];

    snprintf(path, sizeof path, "%s/%s", data_dir, file);
    if (access(path, R_OK) != 0) {
        print_message("left out: no %s\n", path);
        return false;
    }
    buf_init(&line, 1 << 16);
    buf_init(&why, BUF_WHY_MAX);
    assert_ok(buf_printf(&line, command, path, temp_dir));
    assert_int_equal(system(line.data), 0);
    if (tokenizer_load(t, temp_dir, &why) != OK)
        fail_msg("%s: %s", file, buf_str(&why));
    buf_fini(&line);
    buf_fini(&why);
    return true;
}

static void check_recorded(const char *command, const char *file, const struct recorded *r,
                           size_t n)
{
    struct tokenizer *t = NULL;

    if (!load_shared(&t, command, file))
        return;
    for (size_t i = 0; i < n; i++)
        assert_ids(t, r[i].text, TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL, r[i].ids);
    tokenizer_destroy(t);
}

#define COPY "cp '%s' '%s/tokenizer.json'"
#define CONVERT "python3 '" TARN_SOURCE_DIR "/tests/tools/gguf_vocab_to_hf.py' '%s' '%s'"

static void bert_ids_are_the_recorded_ones(void **state)
{
    static const struct recorded r[] = {
        {"Hello, World! I'm here; don't.", "101 6598 16 1094 5 51 11 55 1188 31 1129 11 62 18 102"},
        {"na\303\257ve CAF\303\211 \302\275 \357\254\201 \303\234n\303\257code",
         "101 14749 6674 98 990 26266 102"},
        {"\346\227\245\346\234\254\350\252\236 \344\270\255\346\226\207\345\255\227\347\254\246"
         " \355\225\234\352\265\255\354\226\264",
         "101 870 882 956 752 867 1 1 475 29012 29027 28997 29020 29026 29005 29014 102"},
        {"The quick  brown\011fox\012jumped 12,345.67 times",
         "101 1002 3254 1835 3425 4604 1266 16 22791 18 5169 1341 102"},
        {"e\314\201 \341\204\200\341\205\241\341\206\250 x\342\200\213y \357\273\277z",
         "101 47 461 29012 29026 66 1106 68 102"},
        {"[UNK] supercalifragilisticexpialidocious <unk> </s>",
         "101 1 2571 8295 9134 28187 23417 3594 9294 18318 20279 9091 5319 32 3901 1249 34 32 1"
         "9 61 34 102"},
        {"\360\237\231\202 \360\237\221\250\342\200\215\360\237\221\251\342\200\215\360\237\221"
         "\247 \342\204\242 \342\205\247 \357\275\201\357\275\202\357\275\203",
         "101 1 1 586 1 1 102"},
        {"   ", "101 102"},
        {"", "101 102"},
    };

    (void)state;
    check_recorded(COPY, "embed-model2vec-fixtures/test-model-float32/tokenizer.json", r,
                   sizeof r / sizeof r[0]);
}

static void unigram_over_bert_text_ids_are_the_recorded_ones(void **state)
{
    static const struct recorded r[] = {
        {"Hello, World! I'm here; don't.", "6594 13 1091 2 48 8 52 1184 28 1126 8 59 15"},
        {"na\303\257ve CAF\303\211 \302\275 \357\254\201 \303\234n\303\257code",
         "14745 6670 95 987 26262"},
        {"\346\227\245\346\234\254\350\252\236 \344\270\255\346\226\207\345\255\227\347\254\246"
         " \355\225\234\352\265\255\354\226\264",
         "867 879 953 749 864 1 472 29008 29023 28993 29016 29022 29001 29010"},
        {"The quick  brown\011fox\012jumped 12,345.67 times",
         "999 3250 1831 3421 4600 1262 13 22787 15 5165 1337"},
        {"e\314\201 \341\204\200\341\205\241\341\206\250 x\342\200\213y \357\273\277z",
         "44 458 29008 29022 63 1103 65"},
        {"[UNK] supercalifragilisticexpialidocious <unk> </s>",
         "1 2567 8291 9130 28183 17624 9076 9290 18314 20275 9087 5315 29 60 7952 31 29 16 58 31"},
        {"\360\237\231\202 \360\237\221\250\342\200\215\360\237\221\251\342\200\215\360\237\221"
         "\247 \342\204\242 \342\205\247 \357\275\201\357\275\202\357\275\203",
         "1 583 1"},
        {"   ", ""},
        {"", ""},
    };

    (void)state;
    check_recorded(COPY, "embed-model2vec-fixtures/test-model-vocab-quantized/tokenizer.json", r,
                   sizeof r / sizeof r[0]);
}

static void sentencepiece_ids_are_the_recorded_ones(void **state)
{
    static const struct recorded r[] = {
        {"Hello, World! I'm here; don't.",
         "151 88 21 5 4 321 54 31 17 147 9 32 26 348 113 274 32 15 6 2"},
        {"na\303\257ve CAF\303\211 \302\275 \357\254\201 \303\234n\303\257code",
         "4 24 19 0 125 408 194 362 0 4 357 0 596 74 25 4 0 24 0 28 21 17 16 2"},
        {"\346\227\245\346\234\254\350\252\236 \344\270\255\346\226\207\345\255\227\347\254\246"
         " \355\225\234\352\265\255\354\226\264",
         "4 0 4 0 4 0 2"},
        {"The quick  brown\011fox\012jumped 12,345.67 times",
         "69 932 80 30 127 24 0 57 21 297 0 999 156 29 12 4 357 596 5 0 556 6 0 171 8 2"},
        {"e\314\201 \341\204\200\341\205\241\341\206\250 x\342\200\213y \357\273\277z",
         "4 0 4 0 4 297 0 34 4 0 997 2"},
        {"[UNK] supercalifragilisticexpialidocious <unk> </s>",
         "446 352 199 401 259 51 322 40 28 73 270 30 19 37 128 129 15 107 16 297 29 25 73 140 2"
         "1 28 25 196 0 2 2"},
        {"\360\237\231\202 \360\237\221\250\342\200\215\360\237\221\251\342\200\215\360\237\221"
         "\247 \342\204\242 \342\205\247 \357\275\201\357\275\202\357\275\203",
         "4 0 4 0 243 431 4 0 100 100 100 11 66 28 2"},
        {"   ", "2"},
        {"", "2"},
    };

    (void)state;
    check_recorded(CONVERT, "tok-sentencepiece-test/test_model.model", r, sizeof r / sizeof r[0]);
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
        T(the_best_sum_of_scores_wins),
        T(of_equal_sums_the_longest_last_token_stays),
        T(unknown_text_is_one_token_or_bytes),
        T(unknown_text_without_a_token_for_it_is_refused),
        T(a_piece_that_is_there_twice_has_its_last_id),
        T(short_and_long_texts_are_cut_as_the_rule_says),
        T(the_longest_piece_from_the_left_is_taken),
        T(word_length_counts_characters),
        T(a_vocabulary_without_inner_pieces_knows_whole_words_only),
        T(bert_text_is_cleaned_and_folded),
        T(word_pieces_join_as_bert_joins_them),
        T(characters_and_small_clusters_are_replaced),
        T(damaged_maps_are_refused_or_harmless),
        T(metaspace_vanishes_in_the_first_token_only),
        T(post_processors_put_their_ids_around),
        T(characters_newer_than_the_patterns_count_as_what_they_are),
        T(work_on_the_worst_texts_grows_linearly),
        T(a_wrong_file_is_refused_by_field),
        T(bert_ids_are_the_recorded_ones),
        T(unigram_over_bert_text_ids_are_the_recorded_ones),
        T(sentencepiece_ids_are_the_recorded_ones),
    };

    snprintf(data_dir, sizeof data_dir, "%s/data", shared ? shared : TARN_SOURCE_DIR "/../shared");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
