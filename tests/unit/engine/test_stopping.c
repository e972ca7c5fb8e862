/* stopping.c: each rule ends the answer where it should, and the text has the right length. */
#include "engine/stopping.h"

#include "engine/run/vocab_mask.h"
#include "tests/unit/engine/text/tokenizer/tokenizer_test.h"

/* ids 0..255 are the bytes. */
#define EOS 261u
#define AB 256u
#define N_VOCAB 262u

static const struct recipe recipe = {
    .byte_letters = true,
    .pretok = BYTE_LEVEL,
    .decoder = BYTE_LEVEL,
    .vocab = "\"ab\":256,\"abc\":257,\"ca\":258,\"bcab\":259,\"\303\260\305\201\":260",
    .added = "[{\"id\":261,\"content\":\"</s>\",\"special\":true}]",
};

static struct tokenizer *tok;
static const uint32_t eos[] = {EOS};

static struct stop_watch watch(const struct stopping *rules)
{
    const struct stop_model model = {eos, 1, N_VOCAB, tok};
    struct stop_watch w;

    assert_ok(stop_watch_init(&w, rules, &model, false));
    return w;
}

/* Feed ids until the answer ends; returns how many were fed. */
static uint32_t feed(struct stop_watch *w, const uint32_t *ids, uint32_t n)
{
    uint32_t i = 0;

    while (i < n && w->now.finish == FINISH_NONE) {
        assert_ok(stop_watch_feed(w, i, ids[i]));
        i++;
    }
    return i;
}

static void check(const struct stopping *rules, const uint32_t *ids, uint32_t n, uint32_t n_fed,
                  const struct stop_verdict *want)
{
    struct stop_watch w = watch(rules);

    assert_int_equal(feed(&w, ids, n), n_fed);
    assert_int_equal(w.now.finish, want->finish);
    assert_int_equal(w.now.stop_id, want->stop_id);
    assert_int_equal(w.now.stop_string, want->stop_string);
    assert_int_equal(w.now.n_text_ids, want->n_text_ids);
    assert_true(w.now.n_text_bytes == want->n_text_bytes);
    stop_watch_fini(&w);
}

static const uint32_t to_eos[] = {'x', 'y', EOS, 'z'};

static void an_end_of_sequence_id_ends_the_answer_and_is_no_text(void **state)
{
    struct stopping rules = {.max_tokens = 10};

    (void)state;
    check(&rules, to_eos, 4, 3, &(struct stop_verdict){FINISH_STOP, -1, -1, 2, STOP_TEXT_ALL});
    rules.include_stop = true;
    check(&rules, to_eos, 4, 3, &(struct stop_verdict){FINISH_STOP, -1, -1, 3, STOP_TEXT_ALL});
    rules.ignore_eos = true;
    check(&rules, to_eos, 4, 4, &(struct stop_verdict){FINISH_NONE, -1, -1, 4, STOP_TEXT_ALL});
}

static void a_stop_id_ends_the_answer_and_is_named(void **state)
{
    const uint32_t ids[] = {'z', 'y'};
    struct stopping rules = {
        .max_tokens = 10, .ignore_eos = true, .n_stop_ids = 2, .stop_ids = ids};

    (void)state;
    check(&rules, to_eos, 4, 2, &(struct stop_verdict){FINISH_STOP, 'y', -1, 1, STOP_TEXT_ALL});
}

static void max_tokens_ends_the_answer_and_all_of_it_is_text(void **state)
{
    const struct detok_stop stop = {"zzz", 3};
    struct stopping rules = {.max_tokens = 2};

    (void)state;
    check(&rules, to_eos, 4, 2, &(struct stop_verdict){FINISH_LENGTH, -1, -1, 2, STOP_TEXT_ALL});
    rules.n_stops = 1;
    rules.stops = &stop;
    check(&rules, to_eos, 4, 2, &(struct stop_verdict){FINISH_LENGTH, -1, -1, 2, STOP_TEXT_ALL});
}

static void a_stop_string_ends_the_text_before_itself(void **state)
{
    static const uint32_t ids[] = {'x', AB, 'c', 'd'}; /* "xab" "c": "bc" spans two tokens */
    const struct detok_stop stops[] = {{"q", 1}, {"bc", 2}};
    struct stopping rules = {.max_tokens = 10, .n_stops = 2, .stops = stops};

    (void)state;
    check(&rules, ids, 4, 3, &(struct stop_verdict){FINISH_STOP, -1, 1, 3, 2});
    rules.include_stop = true;
    check(&rules, ids, 4, 3, &(struct stop_verdict){FINISH_STOP, -1, 1, 3, 4});
}

static void text_that_may_become_a_stop_string_is_not_certain(void **state)
{
    static const uint32_t ids[] = {'x', 'a', 'a', 'b', 'y'};
    static const uint64_t n_certain[] = {1, 1, 1, 4, 5};
    const struct detok_stop stop = {"aac", 3};
    struct stopping rules = {.max_tokens = 10, .n_stops = 1, .stops = &stop};
    struct stop_watch w = watch(&rules);

    (void)state;
    for (uint32_t i = 0; i < 5; i++) {
        assert_ok(stop_watch_feed(&w, i, ids[i]));
        assert_int_equal(w.now.n_text_bytes, n_certain[i]);
        assert_int_equal(w.now.n_text_ids, i + 1);
    }
    stop_watch_fini(&w);
}

static void no_rule_but_length_ends_the_first_min_tokens(void **state)
{
    static const uint32_t ids[] = {EOS, 'y', 'b', 'c', 'b', 'c', 'y'};
    const uint32_t y[] = {'y'};
    const struct detok_stop stop = {"bc", 2};
    struct stopping rules = {.max_tokens = 10,
                             .min_tokens = 4,
                             .n_stop_ids = 1,
                             .stop_ids = y,
                             .n_stops = 1,
                             .stops = &stop};

    (void)state;
    check(&rules, ids, 7, 6, &(struct stop_verdict){FINISH_STOP, -1, 0, 6, 3});
    rules.n_stops = 0;
    check(&rules, ids, 7, 7, &(struct stop_verdict){FINISH_STOP, 'y', -1, 6, STOP_TEXT_ALL});
    rules.max_tokens = 3;
    check(&rules, ids, 7, 3, &(struct stop_verdict){FINISH_LENGTH, -1, -1, 3, STOP_TEXT_ALL});
}

static void the_mask_forbids_ending_ids_for_min_tokens_tokens(void **state)
{
    const uint32_t stop_ids[] = {'y', N_VOCAB + 5}; /* one is outside of the vocabulary */
    struct stopping rules = {
        .max_tokens = 10, .min_tokens = 2, .n_stop_ids = 2, .stop_ids = stop_ids};
    struct stop_watch w = watch(&rules);

    (void)state;
    for (uint32_t n = 0; n < 2; n++)
        for (uint32_t id = 0; id < N_VOCAB; id++)
            assert_int_equal(vocab_mask_allows(stop_watch_mask(&w, n), id), id != EOS && id != 'y');
    assert_null(stop_watch_mask(&w, 2));
    stop_watch_fini(&w);
    rules.min_tokens = 0;
    w = watch(&rules);
    assert_null(stop_watch_mask(&w, 0));
    stop_watch_fini(&w);
}

static void without_a_tokenizer_stop_strings_are_not_met(void **state)
{
    const struct detok_stop stop = {"y", 1};
    struct stopping rules = {.max_tokens = 2, .n_stops = 1, .stops = &stop};
    const struct stop_model model = {eos, 1, N_VOCAB, NULL};
    struct stop_watch w;

    (void)state;
    assert_ok(stop_watch_init(&w, &rules, &model, false));
    assert_int_equal(feed(&w, to_eos, 4), 2);
    assert_int_equal(w.now.finish, FINISH_LENGTH);
    stop_watch_fini(&w);
}

static int set_up(void **state)
{
    (void)state;
    make_temp_dir();
    tok = load_recipe(&recipe);
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
        cmocka_unit_test(an_end_of_sequence_id_ends_the_answer_and_is_no_text),
        cmocka_unit_test(a_stop_id_ends_the_answer_and_is_named),
        cmocka_unit_test(max_tokens_ends_the_answer_and_all_of_it_is_text),
        cmocka_unit_test(a_stop_string_ends_the_text_before_itself),
        cmocka_unit_test(text_that_may_become_a_stop_string_is_not_certain),
        cmocka_unit_test(no_rule_but_length_ends_the_first_min_tokens),
        cmocka_unit_test(the_mask_forbids_ending_ids_for_min_tokens_tokens),
        cmocka_unit_test(without_a_tokenizer_stop_strings_are_not_met),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
