#include "tests/unit/test.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "engine/run/sampler.h"

#define V 1000

static float logits[V], raw[V];
static struct sampler_candidate scratch[V];
static struct sampler_state no_state;

static struct sampling params(float temperature)
{
    return (struct sampling){.temperature = temperature,
                             .top_p = 1,
                             .repetition_penalty = 1,
                             .seed = 99,
                             .want_logprob = true};
}

static void fill(uint64_t seed)
{
    for (uint32_t i = 0; i < V; i++)
        logits[i] = 8 * rng_uniform(seed, i) - 4;
}

/* Pick the n-th token over a fresh copy of the logits. */
static struct out_token pick(const struct sampling *sp, const struct sampler_state *st, uint32_t n,
                             struct out_top *top)
{
    static float copy[V];
    struct sampler_row row = {.sampling = sp,
                              .state = st ? st : &no_state,
                              .n = n,
                              .logits = copy,
                              .n_vocab = V,
                              .scratch = scratch,
                              .raw = raw};
    struct out_token out;

    memcpy(copy, logits, sizeof copy);
    sampler_pick(&row, &out, top);
    return out;
}

static void greedy_takes_the_largest_and_the_lowest_id_of_equals(void **state)
{
    struct sampling sp = params(0);

    (void)state;
    fill(1);
    logits[700] = logits[300] = 50;
    assert_int_equal(pick(&sp, NULL, 0, NULL).id, 300);
    logits[0] = NAN; /* a broken row still gives a token */
    assert_int_equal(pick(&sp, NULL, 0, NULL).id, 300);
}

static void logprobs_are_those_of_the_raw_logits(void **state)
{
    struct sampling sp = params(0.5f);
    struct out_top top[5];
    double sum = 0;

    (void)state;
    fill(2);
    sp.n_logprobs = 5;
    for (uint32_t i = 0; i < V; i++)
        sum += exp(logits[i]);
    struct out_token t = pick(&sp, NULL, 3, top);
    assert_true(fabs(t.logprob - (logits[t.id] - log(sum))) < 1e-5);
    for (int i = 0; i < 5; i++) {
        assert_true(fabs(top[i].logprob - (logits[top[i].id] - log(sum))) < 1e-5);
        assert_true(i == 0 || top[i].logprob <= top[i - 1].logprob);
    }
}

/* As for a prompt's tokens: the sampling parameters have no effect. */
static void a_given_token_comes_with_its_raw_logprob(void **state)
{
    struct logit_bias bias = {7, 100};
    struct sampling sp = params(0.5f);
    struct out_token picked, got;
    struct out_top want[5], top[5];
    uint32_t mask[vocab_mask_n_words(V)];

    (void)state;
    fill(2);
    vocab_mask_allow_all(mask, V);
    vocab_mask_forbid(mask, 11);
    sp.n_logprobs = 5;
    picked = pick(&sp, NULL, 3, want);
    sp.logit_bias = &bias;
    sp.n_logit_bias = 1;
    for (uint32_t id = 0; id < V; id += 11) {
        struct sampler_row row = {.sampling = &sp,
                                  .state = &no_state,
                                  .logits = logits,
                                  .n_vocab = V,
                                  .given = &id,
                                  .mask = mask};
        sampler_pick(&row, &got, top);
        assert_int_equal(got.id, id);
        assert_true(fabs(got.logprob - (picked.logprob + logits[id] - logits[picked.id])) < 1e-5);
        assert_memory_equal(top, want, sizeof top);
    }
}

static void a_draw_depends_on_seed_and_index_only(void **state)
{
    struct sampling sp = params(1);
    uint32_t first[50], n_other = 0;

    (void)state;
    fill(3);
    for (uint32_t n = 0; n < 50; n++)
        first[n] = pick(&sp, NULL, n, NULL).id;
    for (uint32_t n = 50; n-- > 0;)
        assert_int_equal(pick(&sp, NULL, n, NULL).id, first[n]);
    sp.seed++;
    for (uint32_t n = 0; n < 50; n++)
        n_other += pick(&sp, NULL, n, NULL).id != first[n];
    assert_true(n_other > 40);
}

/* The frequencies of many draws against the softmax that they should follow. */
static void draws_follow_the_distribution(void **state)
{
    enum { N = 40000 };
    static uint32_t counts[V];
    double p[V], sum = 0, worst = 0;

    (void)state;
    for (int filtered = 0; filtered < 2; filtered++) {
        struct sampling sp = params(0.7f);
        memset(counts, 0, sizeof counts);
        for (uint32_t i = 0; i < V; i++)
            logits[i] = i < 6 ? (float)i * 0.4f : -30;
        sp.top_p = filtered ? 0.999f : 1;
        for (uint32_t n = 0; n < N; n++)
            counts[pick(&sp, NULL, n, NULL).id]++;
        sum = worst = 0;
        for (uint32_t i = 0; i < 6; i++)
            sum += p[i] = exp(logits[i] / 0.7);
        for (uint32_t i = 0; i < 6; i++) {
            double sigma = sqrt(N * p[i] / sum * (1 - p[i] / sum));
            double z = fabs(counts[i] - N * p[i] / sum) / sigma;
            worst = z > worst ? z : worst;
        }
        assert_true(worst < 4.5);
    }
}

static void top_k_keeps_the_k_best(void **state)
{
    struct sampling sp = params(2);
    struct sampling greedy = params(0);
    struct out_top best[20];

    (void)state;
    fill(5);
    sp.top_k = 20;
    greedy.n_logprobs = 20;
    pick(&greedy, NULL, 0, best);
    bool seen[20] = {0};
    for (uint32_t n = 0; n < 3000; n++) {
        uint32_t id = pick(&sp, NULL, n, NULL).id, i = 0;
        while (i < 20 && best[i].id != id)
            i++;
        assert_true(i < 20);
        seen[i] = true;
    }
    for (int i = 0; i < 20; i++)
        assert_true(seen[i]);
    sp.top_k = 1;
    assert_int_equal(pick(&sp, NULL, 7, NULL).id, best[0].id);
    sp.top_k = 5000; /* more than there are */
    pick(&sp, NULL, 7, NULL);
}

static void top_p_keeps_the_smallest_set_that_reaches_it(void **state)
{
    struct sampling sp = params(1);

    (void)state;
    for (uint32_t i = 0; i < V; i++)
        logits[i] = -40;
    logits[10] = logf(0.5f);
    logits[20] = logf(0.3f);
    logits[30] = logf(0.15f);
    logits[40] = logf(0.05f);
    sp.top_p = 0.79f;
    for (uint32_t n = 0; n < 500; n++) {
        uint32_t id = pick(&sp, NULL, n, NULL).id;
        assert_true(id == 10 || id == 20);
    }
    sp.top_p = 0.01f; /* the best one always stays */
    assert_int_equal(pick(&sp, NULL, 1, NULL).id, 10);
    sp.top_p = 1;
    sp.min_p = 0.25f; /* of the largest: 0.125 and above */
    uint32_t n30 = 0;
    for (uint32_t n = 0; n < 500; n++) {
        uint32_t id = pick(&sp, NULL, n, NULL).id;
        assert_true(id == 10 || id == 20 || id == 30);
        n30 += id == 30;
    }
    assert_true(n30 > 30);
}

static void penalties_follow_their_formulas(void **state)
{
    struct sampling sp = params(0);
    struct sampler_state st;
    const uint32_t prompt[] = {7};

    (void)state;
    for (uint32_t i = 0; i < V; i++)
        logits[i] = 0;
    logits[7] = 3;
    logits[8] = 2;
    sp.repetition_penalty = 2; /* 3 / 2 < 2: the prompt's token loses */
    assert_ok(sampler_state_init(&st, &sp, V, prompt, 1, 8));
    assert_int_equal(pick(&sp, &st, 0, NULL).id, 8);
    sampler_state_fini(&st);

    sp.repetition_penalty = 1;
    sp.presence_penalty = 0.4f;
    sp.frequency_penalty = 0.3f;
    assert_ok(sampler_state_init(&st, &sp, V, prompt, 1, 8));
    assert_int_equal(pick(&sp, &st, 0, NULL).id, 7); /* a prompt token is not penalized */
    sampler_state_count(&st, 7);                     /* 3 - 0.4 - 0.3 = 2.3 */
    assert_int_equal(pick(&sp, &st, 1, NULL).id, 7);
    sampler_state_count(&st, 7); /* 3 - 0.4 - 0.6 = 2.0: equal, the lower id wins */
    sampler_state_count(&st, 7); /* 1.7 */
    assert_int_equal(pick(&sp, &st, 2, NULL).id, 8);
    sampler_state_fini(&st);
}

/* The list for a device contains the same ids as the counts. */
static void the_seen_list_has_each_id_once(void **state)
{
    const uint32_t prompt[] = {7, 9, 7, 7};
    struct sampling sp = params(0);
    struct sampler_state st;
    struct sample_seen list[8];

    (void)state;
    sp.repetition_penalty = 2;
    assert_ok(sampler_state_init(&st, &sp, V, prompt, 4, 4));
    sampler_state_count(&st, 9);
    sampler_state_count(&st, 11);
    sampler_state_count(&st, 11);
    assert_int_equal(st.n_seen, 3);
    sampler_state_list(&st, list);
    assert_memory_equal(list, ((struct sample_seen[]){{7, 0, 1}, {9, 1, 1}, {11, 2, 0}}),
                        3 * sizeof *list);
    sampler_state_fini(&st);

    sp.repetition_penalty = 1; /* then the prompt is of no interest */
    assert_ok(sampler_state_init(&st, &sp, V, prompt, 4, 1));
    assert_int_equal(st.n_seen, 0);
    assert_int_equal(st.n_seen_max, 0); /* no penalty, no list */
    sp.presence_penalty = 1;
    assert_ok(sampler_state_init(&st, &sp, V, prompt, 4, 1));
    sampler_state_count(&st, 7);
    sampler_state_count(&st, 7);
    assert_int_equal(st.n_seen, 1);
    sampler_state_list(&st, list);
    assert_memory_equal(list, (&(struct sample_seen){7, 2, 0}), sizeof *list);
    sampler_state_fini(&st);
}

static void a_nan_is_never_drawn_nor_among_the_best(void **state)
{
    struct out_top top[4];

    (void)state;
    for (uint32_t i = 0; i < V; i++)
        logits[i] = i % 400 == 3 ? 1 : NAN; /* 3, 403, 803 */
    for (int filtered = 0; filtered < 2; filtered++) {
        struct sampling sp = params(1);
        uint32_t n_first = 0;
        sp.top_p = filtered ? 0.9f : 1;
        sp.n_logprobs = 4;
        for (uint32_t n = 0; n < 60; n++) {
            uint32_t id = pick(&sp, NULL, n, top).id;
            assert_int_equal(id % 400, 3);
            n_first += id == 3;
        }
        assert_in_range(n_first, 8, 35);
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(top[i].id, 400 * i + 3);
        assert_true(top[3].id == 0 && isinf(top[3].logprob));
    }
}

static void logit_bias_moves_the_choice(void **state)
{
    const struct logit_bias bias[] = {{123, 100}, {5, -100}};
    struct sampling sp = params(1);

    (void)state;
    fill(6);
    sp.logit_bias = bias;
    sp.n_logit_bias = 2;
    for (uint32_t n = 0; n < 20; n++)
        assert_int_equal(pick(&sp, NULL, n, NULL).id, 123);
}

/* Pick from a fresh copy of the logits under a mask. */
static struct out_token pick_masked(const struct sampling *sp, const uint32_t *mask, uint32_t n)
{
    static float copy[V];
    struct sampler_row row = {.sampling = sp,
                              .state = &no_state,
                              .n = n,
                              .mask = mask,
                              .logits = copy,
                              .n_vocab = V,
                              .scratch = scratch,
                              .raw = raw};
    struct out_token out;

    memcpy(copy, logits, sizeof copy);
    sampler_pick(&row, &out, NULL);
    return out;
}

static void only_allowed_ids_come(void **state)
{
    uint32_t mask[vocab_mask_n_words(V)], n_words = vocab_mask_n_words(V);

    (void)state;
    for (int kind = 0; kind < 3; kind++) { /* greedy, a free draw, a filtered draw */
        struct sampling sp = params(kind ? 1 : 0);
        sp.top_k = kind == 2 ? 50 : 0;
        for (uint32_t n = 0; n < 40; n++) {
            fill(7 + n);
            memset(mask, 0, n_words * sizeof *mask);
            for (uint32_t k = 0; k < 5; k++)
                mask[(n * 7 + k * 211) % V / 32] |= 1u << (n * 7 + k * 211) % 32;
            assert_true(vocab_mask_allows(mask, pick_masked(&sp, mask, n).id));
        }
    }
}

static void a_mask_that_forbids_nothing_changes_nothing(void **state)
{
    uint32_t mask[vocab_mask_n_words(V)];
    struct sampling sp = params(0.9f);

    (void)state;
    vocab_mask_allow_all(mask, V);
    for (uint32_t n = 0; n < 40; n++) {
        fill(60 + n);
        struct out_token want = pick_masked(&sp, NULL, n), got = pick_masked(&sp, mask, n);
        assert_memory_equal(&got, &want, sizeof got);
    }
}

/* V is no multiple of 32: the last word has bits that stand for no id. */
static void bits_behind_the_vocabulary_have_no_meaning(void **state)
{
    uint32_t n_words = vocab_mask_n_words(V), mask[vocab_mask_n_words(V)];

    (void)state;
    assert_int_not_equal(V % 32, 0);
    vocab_mask_allow_all(mask, V);
    mask[n_words - 1] = 0;
    assert_int_equal(vocab_mask_forbidden(mask, V, n_words - 1), (1u << V % 32) - 1);
    assert_int_equal(vocab_mask_forbidden(mask, V, 0), 0);
    assert_int_equal(vocab_mask_n_words(32), 1);
    mask[0] = 0;
    assert_int_equal(vocab_mask_forbidden(mask, 32, 0), UINT32_MAX);
}

/* Where nothing is left the lowest id comes, with the logprob of its raw logit. */
static void a_mask_that_forbids_all_gives_the_lowest_id(void **state)
{
    uint32_t mask[vocab_mask_n_words(V)];
    struct sampling greedy = params(0), free = params(1);

    (void)state;
    memset(mask, 0, sizeof mask);
    fill(7);
    struct out_token a = pick_masked(&greedy, mask, 0), b = pick_masked(&free, mask, 0);
    assert_int_equal(a.id, 0);
    assert_int_equal(b.id, 0);
    assert_true(isfinite(a.logprob) && a.logprob == b.logprob);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_largest_and_the_lowest_id_of_equals),
        cmocka_unit_test(logprobs_are_those_of_the_raw_logits),
        cmocka_unit_test(a_given_token_comes_with_its_raw_logprob),
        cmocka_unit_test(a_draw_depends_on_seed_and_index_only),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(top_k_keeps_the_k_best),
        cmocka_unit_test(top_p_keeps_the_smallest_set_that_reaches_it),
        cmocka_unit_test(penalties_follow_their_formulas),
        cmocka_unit_test(the_seen_list_has_each_id_once),
        cmocka_unit_test(a_nan_is_never_drawn_nor_among_the_best),
        cmocka_unit_test(logit_bias_moves_the_choice),
        cmocka_unit_test(only_allowed_ids_come),
        cmocka_unit_test(a_mask_that_forbids_nothing_changes_nothing),
        cmocka_unit_test(bits_behind_the_vocabulary_have_no_meaning),
        cmocka_unit_test(a_mask_that_forbids_all_gives_the_lowest_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
