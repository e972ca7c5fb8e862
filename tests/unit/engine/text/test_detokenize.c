/* detokenize.c: the output has only whole characters, is never taken back, and does not depend on
 * how the text is divided into tokens. */
#include "engine/text/detokenize.h"

#include "tests/unit/engine/text/tokenizer/tokenizer_test.h"

/* ids 0..255 are the bytes; 256 and up are words made of several. */
static const struct recipe words_recipe = {
    .byte_letters = true,
    .pretok = BYTE_LEVEL,
    .decoder = BYTE_LEVEL,
    .vocab = "\"ab\":256,\"abc\":257,\"ca\":258,\"bcab\":259,\"\303\260\305\201\":260",
    .added = "[{\"id\":261,\"content\":\"<s>\",\"special\":true}]",
};

static struct tokenizer *tok;

struct outcome {
    struct buf text;
    int stopped_by;
};

/* Feed all ids. Each piece of output must be valid UTF-8 by itself. */
static struct outcome decode(const struct tokenizer *t, const uint32_t *ids, size_t n,
                             const struct detok_stop *stops, uint32_t n_stops, unsigned flags)
{
    struct outcome o;
    struct detok d;

    buf_init(&o.text, 1 << 20);
    detok_init(&d, t, stops, n_stops, flags & 1, flags & 2, flags & 4);
    for (size_t i = 0; i < n; i++) {
        size_t before = o.text.len;
        assert_ok(detok_feed(&d, ids[i], &o.text));
        assert_true(utf8_is_valid(buf_str(&o.text) + before, o.text.len - before));
        assert_int_equal(d.n_ids, i + 1);
    }
    assert_ok(detok_finish(&d, &o.text));
    assert_true(utf8_is_valid(buf_str(&o.text), o.text.len));
    o.stopped_by = d.stopped_by;
    detok_fini(&d);
    return o;
}

#define SHOW_SPECIAL 1u
#define CONTINUES 2u
#define INCLUDE_STOP 4u

static void check(const struct tokenizer *t, const uint32_t *ids, size_t n, const char *stop,
                  unsigned flags, const char *want, int stopped_by)
{
    struct detok_stop s = {stop, stop ? (uint32_t)strlen(stop) : 0};
    struct outcome o = decode(t, ids, n, stop ? &s : NULL, stop != NULL, flags);

    assert_string_equal(buf_str(&o.text), want);
    assert_int_equal(o.stopped_by, stopped_by);
    buf_fini(&o.text);
}

#define IDS(...) (const uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4

static void half_a_character_is_held_back(void **state)
{
    struct detok d;
    struct buf out;
    static const unsigned char llama[] = {0xf0, 0x9f, 0xa6, 0x99};

    (void)state;
    buf_init(&out, 100);
    detok_init(&d, tok, NULL, 0, false, false, false);
    for (int i = 0; i < 3; i++) {
        assert_ok(detok_feed(&d, llama[i], &out));
        assert_int_equal(out.len, 0);
    }
    assert_ok(detok_feed(&d, llama[3], &out));
    assert_string_equal(buf_str(&out), "\360\237\246\231");
    assert_ok(detok_finish(&d, &out));
    assert_int_equal(out.len, 4);
    detok_fini(&d);
    buf_fini(&out);
}

static void invalid_utf8_is_replaced_as_by_python(void **state)
{
    (void)state;
    check(tok, IDS(0xff, 'a'), NULL, 0, "\357\277\275a", -1);
    check(tok, IDS(0xe2, 0x82), NULL, 0, "\357\277\275", -1);
    check(tok, IDS(0xe2, 0x82, 'a'), NULL, 0, "\357\277\275a", -1);
    check(tok, IDS(0xe2, 0xe2, 0x82, 0xac), NULL, 0, "\357\277\275\342\202\254", -1);
    check(tok, IDS(0xed, 0xa0, 0x80), NULL, 0, "\357\277\275\357\277\275\357\277\275", -1);
    check(tok, IDS(0xf0, 0x9f, 'x', 260, 0xa6, 0x99), NULL, 0, "\357\277\275x\360\237\246\231",
          -1); /* 260 is f0 9f */
}

static void special_tokens_show_only_when_asked(void **state)
{
    (void)state;
    check(tok, IDS(261, 'a', 261, 99999), NULL, 0, "a", -1);
    check(tok, IDS(261, 'a', 261), NULL, SHOW_SPECIAL, "<s>a<s>", -1);
    check(tok, IDS(0xc3, 261, 0xa9), NULL, 0, "\303\251", -1);
}

static void one_space_goes_off_the_start_of_sentencepiece_text(void **state)
{
    struct tokenizer *t = load_recipe(&spm_recipe);

    (void)state;
    check(t, IDS(1, 5, 5), NULL, 0, "a a", -1);
    check(t, IDS(2, 5), NULL, 0, " a", -1);
    check(t, IDS(5, 5), NULL, CONTINUES, " a a", -1);
    check(t, IDS(3, 5), NULL, 0, "a a", -1);
    check(t, IDS(1, 5), NULL, SHOW_SPECIAL, "<s> a", -1);
    check(t, IDS(6, 7), NULL, 0, "\303\251", -1);
    tokenizer_destroy(t);
}

static void a_stop_string_ends_the_text_across_tokens(void **state)
{
    (void)state;
    check(tok, IDS('x', 256, 258, 'b'), "bc", 0, "xa", 0);
    check(tok, IDS('x', 256, 258, 'b'), "bc", INCLUDE_STOP, "xabc", 0);
    check(tok, IDS('x', 256, 256), "abx", 0, "xabab", -1);
    check(tok, IDS(257), "a", 0, "", 0);
    check(tok, IDS(0xc3, 0xa9), "\303\251", 0, "", 0);
    check(tok, IDS(0xff), "\357\277\275", 0, "", 0);
    check(tok, IDS('a', 0xc3), "\357\277\275", 0, "a", 0); /* found by the finish */
}

/* As check(), with min_tokens. */
static void check_min(uint32_t n_min, const uint32_t *ids, size_t n, const char *stop,
                      const char *want, int stopped_by)
{
    struct detok_stop s = {stop, (uint32_t)strlen(stop)};
    struct buf text;
    struct detok d;

    buf_init(&text, 100);
    detok_init(&d, tok, &s, 1, false, false, false);
    d.n_ids_without_stop = n_min;
    for (size_t i = 0; i < n; i++)
        assert_ok(detok_feed(&d, ids[i], &text));
    assert_ok(detok_finish(&d, &text));
    assert_string_equal(buf_str(&text), want);
    assert_int_equal(d.stopped_by, stopped_by);
    detok_fini(&d);
    buf_fini(&text);
}

static void a_stop_string_within_the_first_ids_is_text(void **state)
{
    (void)state;
    check_min(0, IDS('x', 256, 'y'), "ab", "x", 0);
    check_min(1, IDS('x', 256, 'y'), "ab", "x", 0);
    check_min(2, IDS('x', 256, 'y'), "ab", "xaby", -1);
    check_min(2, IDS('x', 256, 'y', 256, 'z'), "ab", "xaby", 0); /* the second occurrence counts */
    check_min(2, IDS('x', 'a', 'b', 'c'), "ab", "x", 0);         /* the stop string ends with the
                                                                    third token */
    check_min(2, IDS('a', 'a', 'a'), "aa", "a", 0);              /* its last letter begins the next
                                                                    occurrence */
    check_min(3, IDS('a', 'a', 'a'), "aa", "aaa", -1);
    check_min(2, IDS('x', 0xc3), "\357\277\275", "x\357\277\275", -1);
}

static void no_more_than_needed_is_held_back(void **state)
{
    struct detok_stop stop = {"aab", 3};
    struct detok d;
    struct buf out;

    (void)state;
    buf_init(&out, 100);
    detok_init(&d, tok, &stop, 1, false, false, false);
    assert_ok(detok_feed(&d, 'x', &out));
    assert_string_equal(buf_str(&out), "x");
    assert_ok(detok_feed(&d, 'a', &out));
    assert_ok(detok_feed(&d, 'a', &out));
    assert_string_equal(buf_str(&out), "x");
    assert_ok(detok_feed(&d, 'a', &out)); /* the first a of "aaa" can no longer begin "aab" */
    assert_string_equal(buf_str(&out), "xa");
    assert_ok(detok_feed(&d, 'c', &out));
    assert_string_equal(buf_str(&out), "xaaac");
    detok_fini(&d);
    buf_fini(&out);
}

static void nothing_follows_a_stop(void **state)
{
    check(tok, IDS('a', 'b', 'c', 'd'), "b", 0, "a", 0);
    (void)state;
}

/* ---- any division gives the same ---- */

/* The rule, naively: the stop string that is complete first; of several, the longest. */
static size_t find_stop(const char *text, const struct detok_stop *stops, uint32_t n, int *met)
{
    *met = -1;
    for (size_t end = 1; end <= strlen(text); end++) {
        for (uint32_t i = 0; i < n; i++)
            if (stops[i].len <= end &&
                memcmp(text + end - stops[i].len, stops[i].text, stops[i].len) == 0 &&
                (*met < 0 || stops[i].len > stops[*met].len))
                *met = (int)i;
        if (*met >= 0)
            return end - stops[*met].len;
    }
    return strlen(text);
}

static size_t random_cut(struct rng *rng, const char *text, uint32_t *ids)
{
    static const struct {
        const char *text;
        uint32_t id;
    } words[] = {{"bcab", 259}, {"abc", 257}, {"ca", 258}, {"ab", 256}};
    size_t n = 0;

    while (*text) {
        uint32_t pick = rng_below(rng, 6);
        size_t len = pick < 4 ? strlen(words[pick].text) : 1;
        if (pick < 4 && strncmp(text, words[pick].text, len) != 0)
            continue;
        ids[n++] = pick < 4 ? words[pick].id : (unsigned char)*text;
        text += len;
    }
    return n;
}

static void how_text_is_cut_into_tokens_makes_no_difference(void **state)
{
    struct rng rng = {.seed = 3};

    (void)state;
    for (int round = 0; round < 5000; round++) {
        char text[41] = {0}, stop_text[3][8] = {{0}};
        struct detok_stop stops[3];
        uint32_t n_stops = rng_below(&rng, 4), ids[64];
        int met;
        for (uint32_t i = 0; i < n_stops; i++) {
            stops[i] = (struct detok_stop){stop_text[i], 1 + rng_below(&rng, 6)};
            for (uint32_t k = 0; k < stops[i].len; k++)
                stop_text[i][k] = (char)('a' + rng_below(&rng, 3));
        }
        for (uint32_t i = 0, n = rng_below(&rng, 41); i < n; i++)
            text[i] = (char)('a' + rng_below(&rng, 3));
        size_t want = find_stop(text, stops, n_stops, &met);
        struct outcome o = decode(tok, ids, random_cut(&rng, text, ids), stops, n_stops, 0);
        assert_int_equal(o.text.len, want);
        assert_memory_equal(buf_str(&o.text), text, want);
        if (met >= 0)
            assert_int_equal(stops[o.stopped_by].len, stops[met].len);
        else
            assert_int_equal(o.stopped_by, -1);
        buf_fini(&o.text);
    }
}

static void random_bytes_decode_as_if_at_once(void **state)
{
    struct rng rng = {.seed = 4};
    static const unsigned char few[] = {0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xf0, 0x9f, 0x80, 'a', 0xed};

    (void)state;
    for (int round = 0; round < 5000; round++) {
        uint32_t ids[24];
        char bytes[24];
        struct buf want;
        size_t n = rng_below(&rng, 25);
        for (size_t i = 0; i < n; i++)
            ids[i] = (unsigned char)(bytes[i] = (char)few[rng_below(&rng, sizeof few)]);
        buf_init(&want, 200);
        assert_ok(utf8_repair(&want, bytes, n));
        struct outcome o = decode(tok, ids, n, NULL, 0, 0);
        assert_string_equal(buf_str(&o.text), buf_str(&want));
        buf_fini(&o.text);
        buf_fini(&want);
    }
}

static int set_up(void **state)
{
    (void)state;
    make_temp_dir();
    tok = load_recipe(&words_recipe);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tokenizer_destroy(tok);
    remove_temp_dir();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_a_character_is_held_back),
        cmocka_unit_test(invalid_utf8_is_replaced_as_by_python),
        cmocka_unit_test(special_tokens_show_only_when_asked),
        cmocka_unit_test(one_space_goes_off_the_start_of_sentencepiece_text),
        cmocka_unit_test(a_stop_string_ends_the_text_across_tokens),
        cmocka_unit_test(a_stop_string_within_the_first_ids_is_text),
        cmocka_unit_test(no_more_than_needed_is_held_back),
        cmocka_unit_test(nothing_follows_a_stop),
        cmocka_unit_test(how_text_is_cut_into_tokens_makes_no_difference),
        cmocka_unit_test(random_bytes_decode_as_if_at_once),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
