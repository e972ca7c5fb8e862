/* test_draft_model.c - the draft model alone: seats, windows, wrong guesses, refusals. Its guesses
 * are those of plain decoding with its own weights. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "engine/draft_model.h"
#include "engine/sched/drafting.h"
#include "tests/engine_test.h"

#define N_VOCAB 300u
#define N_SLOTS 6
#define N_IDS 4000

static char dir[ENGINE_TEST_DIR_BYTES];
static uint32_t ids[N_SLOTS][N_IDS];
static const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1};
static const struct sampler_state no_state;

struct world {
    struct device *device;
    struct draft_model *model;
};

static struct draft_model_config config(void)
{
    return (struct draft_model_config){
        .dir = dir,
        .opening = {.load_format = "dummy", .dtype = "f32", .quantization = "none", .seed = 1},
        .n_slots = N_SLOTS,
        .n_seqs_max = 4,
        .n_rows_max = 100,
        .max_model_len = 8192};
}

static enum status try_open(struct world *w, const struct draft_model_config *c, uint32_t n_vocab,
                            struct buf *why)
{
    struct device_config d = {.kind = DEVICE_CPU, .n_threads = 1, .max_rows = 100};

    w->device = NULL;
    assert_ok(hash_init());
    enum status s = draft_model_read(&w->model, c, why);
    if (s != OK)
        return s;
    draft_model_fit(w->model, &d);
    assert_ok(device_open(&w->device, &d, NULL));
    return draft_model_open(w->model, w->device, NULL, n_vocab, why);
}

static void shut(struct world *w)
{
    draft_model_close(w->model);
    device_close(w->device);
}

static void open_it(struct world *w)
{
    struct draft_model_config c = config();

    assert_ok(try_open(w, &c, N_VOCAB, NULL));
    for (uint32_t s = 0; s < N_SLOTS; s++)
        for (uint32_t i = 0; i < N_IDS; i++)
            ids[s][i] = (i * 7 + s * 31 + i / 5) % N_VOCAB;
}

static struct draft_seq seq_of(uint32_t slot, uint32_t n_known)
{
    return (struct draft_seq){.slot = slot,
                              .n_known = n_known,
                              .ids = ids[slot],
                              .sampling = &greedy,
                              .state = &no_state};
}

/* Have the model read all and guess n ids behind n_known; returns the ids that it had to read. */
static uint32_t guess(struct world *w, uint32_t slot, uint32_t n_known, uint32_t n)
{
    struct draft_seq q = seq_of(slot, n_known);

    draft_model_step(w->model);
    uint32_t n_unseen = draft_model_unseen(w->model, &q);
    assert_true(n_unseen != DRAFT_UNSEEN && n_unseen > 0);
    q.n_rows = draft_model_rows_max(w->model);
    while (q.n_guessed < n)
        assert_ok(draft_model_run(w->model, &q, 1));
    return n_unseen;
}

static void only_what_is_new_is_read(void **state)
{
    struct world w;

    (void)state;
    open_it(&w);
    assert_int_equal(guess(&w, 0, 150, 4), 150);
    assert_int_equal(guess(&w, 0, 155, 1), 2); /* all four were right, and one more id is known */
    ids[0][155] = (ids[0][155] + 1) % N_VOCAB; /* this guess was wrong */
    ids[0][156] = 5;
    assert_int_equal(guess(&w, 0, 157, 1), 2);
    assert_int_equal(guess(&w, 0, 157, 1), 1); /* the step gave no token */
    draft_model_drop(w.model, 0);
    draft_model_drop(w.model, 0);
    draft_model_drop(NULL, 0);
    assert_int_equal(guess(&w, 0, 157, 1), 157);
    shut(&w);
}

static void wrong_guesses_and_other_sequences_change_no_guess(void **state)
{
    uint32_t want[8];
    struct world w;

    (void)state;
    open_it(&w);
    (void)guess(&w, 0, 90, 8);
    memcpy(want, ids[0] + 90, sizeof want);
    for (uint32_t i = 0; i < 8; i++) { /* others, and a wrong past of its own */
        ids[0][60 + i] ^= 1;
        (void)guess(&w, 0, 70, 3);
        (void)guess(&w, 1 + i % 3, 40 + i, 2);
        ids[0][60 + i] ^= 1;
    }
    for (uint32_t i = 0; i < N_IDS; i++)
        ids[0][i] = i < 90 ? (i * 7 + i / 5) % N_VOCAB : 0;
    (void)guess(&w, 0, 90, 8);
    assert_memory_equal(ids[0] + 90, want, sizeof want);
    shut(&w);
}

static void a_long_text_is_seen_in_part(void **state)
{
    struct world w;

    (void)state;
    open_it(&w);
    assert_int_equal(guess(&w, 0, 3900, 1), DRAFT_WINDOW_MAX / 2);
    assert_int_equal(guess(&w, 1, 1500, 1), 1500);
    for (uint32_t n = 1532; n < 3500; n += 32) /* the window moves on */
        assert_true(guess(&w, 1, n, DRAFT_TOKENS_MAX) <= DRAFT_WINDOW_MAX / 2 + 32);
    shut(&w);
}

static void seats_are_taken_from_the_idle_only(void **state)
{
    struct world w;

    (void)state;
    open_it(&w);
    for (uint32_t i = 0; i < 4; i++)
        (void)guess(&w, i, 20, 1);
    struct draft_seq q = seq_of(4, 20);
    assert_int_equal(draft_model_unseen(w.model, &q), DRAFT_UNSEEN);
    for (uint32_t i = 0; i < 200; i++) {
        draft_model_step(w.model);
        for (uint32_t k = 1; k < 4; k++) {
            q = seq_of(k, 20);
            assert_int_equal(draft_model_unseen(w.model, &q), 1);
        }
    }
    assert_int_equal(guess(&w, 4, 20, 1), 20); /* the seat of 0 */
    q = seq_of(0, 20);
    assert_int_equal(draft_model_unseen(w.model, &q), DRAFT_UNSEEN);
    draft_model_drop(w.model, 2);
    assert_int_equal(guess(&w, 0, 20, 1), 20);
    shut(&w);
}

/* Six sequences that always want one of four seats. */
static void sequences_take_turns_on_the_seats(void **state)
{
    uint32_t n_seated[6] = {0}, n_changes = 0;
    bool had[6] = {false};
    struct world w;

    (void)state;
    open_it(&w);
    for (uint32_t step = 0; step < 3000; step++) {
        uint32_t n = 0;

        draft_model_step(w.model);
        for (uint32_t k = 0; k < 6; k++) {
            struct draft_seq q = seq_of(k, 20);
            bool has = draft_model_unseen(w.model, &q) != DRAFT_UNSEEN;
            n += has;
            n_seated[k] += has;
            n_changes += has && !had[k] && step > 0;
            had[k] = has;
        }
        assert_int_equal(n, 4);
    }
    for (uint32_t k = 0; k < 6; k++)
        assert_in_range(n_seated[k], 1700, 2300); /* two thirds of the steps */
    assert_in_range(n_changes, 20, 60);           /* each of them costs a reading */
    shut(&w);
}

static void an_id_that_the_model_lacks_is_not_read(void **state)
{
    struct world w;

    (void)state;
    open_it(&w);
    ids[0][10] = N_VOCAB;
    struct draft_seq q = seq_of(0, 20);
    assert_int_equal(draft_model_unseen(w.model, &q), DRAFT_UNSEEN);
    assert_int_equal(draft_model_unseen(w.model, &q), DRAFT_UNSEEN);
    shut(&w);
}

static void refuse(const struct draft_model_config *c, uint32_t n_vocab, enum status want,
                   const char *words)
{
    struct world w = {0};
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status got = try_open(&w, c, n_vocab, &why);
    if (got != want || !strstr(buf_str(&why), words) ||
        strncmp(buf_str(&why), "{draft_model}", 13) != 0)
        fail_msg("%s \"%s\" instead of %s \"%s\"", status_name(got), buf_str(&why),
                 status_name(want), words);
    shut(&w);
    buf_fini(&why);
}

static void what_cannot_guess_is_refused_by_name(void **state)
{
    struct draft_model_config c = config();

    (void)state;
    refuse(&c, N_VOCAB + 1, ERR_INVALID, "vocab_size is 300, and that of {model} is 301");
    refuse(&c, N_VOCAB - 1, ERR_INVALID, "vocab_size is 300");
    c.kv_bytes = 1000;
    refuse(&c, N_VOCAB, ERR_INVALID, "{draft_kv_bytes} is less than the");
    c = config();
    c.dir = "/nonexistent/model";
    refuse(&c, N_VOCAB, ERR_NOT_FOUND, "/nonexistent/model");
    c = config();
    c.opening.load_format = "auto";
    refuse(&c, N_VOCAB, ERR_NOT_FOUND, "safetensors");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_is_new_is_read),
        cmocka_unit_test(wrong_guesses_and_other_sequences_change_no_guess),
        cmocka_unit_test(a_long_text_is_seen_in_part),
        cmocka_unit_test(seats_are_taken_from_the_idle_only),
        cmocka_unit_test(sequences_take_turns_on_the_seats),
        cmocka_unit_test(an_id_that_the_model_lacks_is_not_read),
        cmocka_unit_test(what_cannot_guess_is_refused_by_name),
    };
    engine_test_make_model(dir, NULL);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    engine_test_remove_model(dir);
    return rc;
}
