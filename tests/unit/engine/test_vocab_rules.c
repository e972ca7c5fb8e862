/* test_vocab_rules.c - allowed ids and bad words in an engine: they are kept, they change nothing
 * else, and promise P1 holds. With TEST_ON_GPU the emulated GPU computes the logits and samples. */
#include "tests/unit/test.h"

#include <string.h>

#include "base/rng.h"
#include "engine/run/vocab_mask.h"
#include "tests/engine_test.h"

#define N_VOCAB 300u
#define N_PROMPT 9u
#define N_COMPANY 5u
#define N_TRIES 2000u
#define BLOCK_BYTES (2u * 2 * 2 * 12 * 32 * 2) /* of the small Llama: 2 layers, 2 KV heads of 12 */
#ifdef TEST_ON_GPU
#define N_OUT 4u
#define N_PROMPTS 2u
#else
#define N_OUT 40u
#define N_PROMPTS 6u
#endif

static struct engine_test t;
static const struct vocab_rules no_rules;

static void configure(struct engine_config *c)
{
    engine_config_init(c);
#ifdef TEST_ON_GPU
    c->device = "cuda";
#endif
    c->profile_cost = false;
    c->batch_invariant = true;
    c->n_threads = 1;
    c->max_num_seqs = N_COMPANY;
    c->max_model_len = 64;
    c->kv_bytes = (uint64_t)4 << 20;
}

static int open_engine(void **state)
{
    struct engine_config c;

    (void)state;
    configure(&c);
    engine_test_open(&t, NULL, &c);
    return 0;
}

static int close_engine(void **state)
{
    (void)state;
    engine_test_close(&t);
    return 0;
}

static struct request *submit(uint64_t prompt, float temperature, const struct vocab_rules *rules)
{
    struct sampling sp;
    struct stopping st;
    uint32_t ids[N_PROMPT];

    for (uint32_t i = 0; i < N_PROMPT; i++)
        ids[i] = rng_u32(prompt, i) % N_VOCAB;
    engine_test_params(&sp, &st, N_OUT);
    sp.temperature = temperature;
    sp.seed = 99;
    sp.rules = *rules;
    return engine_test_submit(&t, ids, N_PROMPT, NULL, 0, &sp, &st);
}

static void keep(struct request *r, struct out_token out[N_OUT])
{
    engine_test_wait(r);
    assert_int_equal(request_finish(r), FINISH_LENGTH);
    memcpy(out, r->out, N_OUT * sizeof *out);
    request_unref(r);
}

static void answer(uint64_t prompt, float temperature, const struct vocab_rules *rules,
                   struct out_token out[N_OUT])
{
    keep(submit(prompt, temperature, rules), out);
}

static void only_allowed_ids_come(void **state)
{
    uint32_t allowed[10] = {0};
    struct vocab_rules rules = {.allowed = allowed};
    struct out_token out[N_OUT];

    (void)state;
    vocab_mask_allow(allowed, 7);
    vocab_mask_allow(allowed, 131);
    vocab_mask_allow(allowed, N_VOCAB - 1);
    for (uint64_t prompt = 0; prompt < N_PROMPTS; prompt++) {
        answer(prompt, prompt % 2 ? 1.5f : 0, &rules, out);
        for (uint32_t i = 0; i < N_OUT; i++)
            assert_true(vocab_mask_allows(allowed, out[i].id));
    }
}

static void a_rule_that_allows_all_ids_changes_no_bit(void **state)
{
    uint32_t all[10], ends[] = {3}, ids[] = {1, 1, 1};
    struct vocab_rules rules = {all, 1, ends, ids}; /* a word that does not come */
    struct out_token want[N_OUT], got[N_OUT];

    (void)state;
    vocab_mask_allow_all(all, N_VOCAB);
    for (uint64_t prompt = 0; prompt < N_PROMPTS; prompt++) {
        answer(prompt, prompt % 2 ? 1.5f : 0, &no_rules, want);
        answer(prompt, prompt % 2 ? 1.5f : 0, &rules, got);
        assert_memory_equal(want, got, sizeof want);
    }
}

static void the_end_of_a_bad_word_does_not_follow_its_beginning(void **state)
{
    struct out_token plain[N_OUT], got[N_OUT];

    (void)state;
    answer(5, 0, &no_rules, plain);
    for (uint32_t at = 0; at < N_PROMPTS / 2; at++) {
        uint32_t ids[] = {plain[at].id, plain[at + 1].id}, ends[] = {2};
        struct vocab_rules rules = {NULL, 1, ends, ids};
        answer(5, 0, &rules, got);
        uint32_t n_same = 0;
        while (n_same < N_OUT && plain[n_same].id == got[n_same].id)
            n_same++;
        assert_true(n_same >= 1 && n_same <= at + 1);
        for (uint32_t i = 1; i < N_OUT; i++)
            assert_false(got[i - 1].id == ids[0] && got[i].id == ids[1]);
        rules = (struct vocab_rules){NULL, 1, (uint32_t[]){1}, ids};
        answer(5, 0, &rules, got);
        for (uint32_t i = 0; i < N_OUT; i++)
            assert_int_not_equal(got[i].id, ids[0]);
    }
}

static void company_does_not_change_a_bit(void **state)
{
    uint32_t allowed[10], ends[] = {1, 2, 4};
    struct out_token plain[N_OUT], want[N_OUT], got[N_OUT];
    struct request *r[N_COMPANY];

    (void)state;
    answer(3, 0.9f, &no_rules, plain);
    uint32_t ids[] = {plain[0].id, plain[1].id, plain[2].id, plain[3].id};
    struct vocab_rules rules = {allowed, 3, ends, ids};
    vocab_mask_allow_all(allowed, N_VOCAB);
    for (uint32_t id = 0; id < N_VOCAB; id += 3)
        vocab_mask_forbid(allowed, id);
    answer(3, 0.9f, &rules, want);
    assert_memory_not_equal(plain, want, sizeof want);
    for (uint32_t b = 0; b < N_COMPANY; b++)
        r[b] = submit(b == 2 ? 3 : 10 + b, 0.9f, b == 2 ? &rules : &no_rules);
    for (uint32_t b = 0; b < N_COMPANY; b++)
        keep(r[b], b == 2 ? got : plain);
    assert_memory_equal(want, got, sizeof want);
}

#ifndef TEST_ON_GPU /* an answer on the emulated GPU is too short for a preemption */
/* The pool has room for three blocks, and each of two answers needs two. A bad word's beginning was
 * generated before the preemption. */
static void preemptions_do_not_change_a_bit(void **state)
{
    struct out_token plain[N_OUT], want[N_OUT], got[N_OUT], other[N_OUT];
    struct engine_test usual = t;
    struct engine_config c;
    struct engine_stats st;

    (void)state;
    answer(4, 1.5f, &no_rules, plain);
    uint32_t ids[N_OUT], ends[N_OUT / 2];
    for (uint32_t i = 0; i < N_OUT; i++)
        ids[i] = plain[i].id;
    for (uint32_t i = 0; i < N_OUT / 2; i++)
        ends[i] = 2 * (i + 1);
    struct vocab_rules rules = {NULL, N_OUT / 2, ends, ids};
    answer(4, 1.5f, &rules, want);
    assert_memory_not_equal(plain, want, sizeof want);
    configure(&c);
    c.kv_bytes = 3 * BLOCK_BYTES;
    c.prefix_caching = false;
    c.mlfq_variant = "tarn"; /* by default the second request waits for the first */
    engine_test_open(&t, NULL, &c);
    uint32_t n_tries = 0;
    do { /* on a slow machine the first may end before the second is submitted */
        struct request *first = submit(6, 0, &no_rules), *second = submit(4, 1.5f, &rules);
        keep(first, other);
        keep(second, got);
        assert_memory_equal(want, got, sizeof want);
        engine_stats(t.engine, &st);
    } while (st.n_preemptions == 0 && ++n_tries < N_TRIES);
    assert_true(st.n_preemptions > 0);
    engine_test_close(&t);
    t = usual;
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_allowed_ids_come),
        cmocka_unit_test(a_rule_that_allows_all_ids_changes_no_bit),
        cmocka_unit_test(the_end_of_a_bad_word_does_not_follow_its_beginning),
        cmocka_unit_test(company_does_not_change_a_bit),
#ifndef TEST_ON_GPU
        cmocka_unit_test(preemptions_do_not_change_a_bit),
#endif
    };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
