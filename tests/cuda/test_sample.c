/* test_sample.c - sampling on the device, compared with engine/run/sampler.c.
 *
 * The two samplers round probabilities differently (doubles on the host, fp32 exp and integers on
 * the device). So their tokens may differ if a decision is closer than BORDER, and must be equal
 * otherwise. */
#include "tests/cuda/cuda_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/run/device_sampler.h"

#define BORDER 2e-6
#define N_SEEN_MAX 64
#define N_BIAS_MAX 6

struct row {
    struct sampling sampling;
    struct sampler_state state;
    struct logit_bias bias[N_BIAS_MAX];
    uint32_t *mask; /* NULL: every id may come */
    uint32_t n;
    struct out_token want, got;
    struct out_top want_top[SAMPLING_N_LOGPROBS_MAX], got_top[SAMPLING_N_LOGPROBS_MAX];
};

static float uniform(void)
{
    return (float)random_below(1 << 24) * 0x1p-24f;
}

static float one_of(const float *values, uint32_t n)
{
    return values[random_below(n)];
}

#define ONE_OF(...)                                                                                \
    one_of((const float[]){__VA_ARGS__}, sizeof((float[]){__VA_ARGS__}) / sizeof(float))

/* --- rows --- */

enum kind {
    NORMAL,
    WIDE,
    PEAKED,
    FEW_VALUES,
    EQUAL,
    ZEROS,
    WITH_MINUS_INF,
    WITH_NAN,
    ALL_MINUS_INF,
    ALL_NAN,
    WITH_INF,
    WITH_OUTLIER,
    DENSE,
    N_KINDS
};

static void fill_logits(enum kind kind, float *x, uint32_t n)
{
    float *normal = random_array(n, 1);

    for (uint32_t i = 0; i < n; i++) {
        bool some = random_below(3) == 0;
        switch (kind) {
        case NORMAL: x[i] = 2 * normal[i]; break;
        case WIDE: x[i] = 30 * normal[i]; break;
        case PEAKED: x[i] = 0.3f * normal[i] - (i == n / 2 ? 0 : logf((float)n)); break;
        case FEW_VALUES: x[i] = (float)random_below(3); break;
        case EQUAL: x[i] = 1.25f; break;
        case ZEROS: x[i] = some ? -0.0f : 0.0f; break;
        case WITH_MINUS_INF: x[i] = some ? -INFINITY : normal[i]; break;
        case WITH_NAN: x[i] = some ? NAN : normal[i]; break;
        case ALL_MINUS_INF: x[i] = -INFINITY; break;
        case ALL_NAN: x[i] = NAN; break;
        case WITH_INF: x[i] = random_below(n) < 2 ? INFINITY : normal[i]; break;
        case WITH_OUTLIER: x[i] = i == n / 3 ? -1e30f : normal[i]; break;
        case DENSE: x[i] = i == 0 ? -20 : 1 + (float)(i * 7919u % n) * 0x1p-23f; break;
        case N_KINDS: break;
        }
    }
}

static void random_penalties(struct row *r, uint32_t n_vocab)
{
    uint32_t prompt[N_SEEN_MAX / 2];
    struct sampling *sp = &r->sampling;

    if (random_below(2)) {
        sp->repetition_penalty = ONE_OF(1, 0.7f, 1.3f);
        sp->frequency_penalty = ONE_OF(0, 0.2f, -0.5f);
        sp->presence_penalty = ONE_OF(0, 0.9f);
    }
    for (uint32_t i = 0; i < N_SEEN_MAX / 2; i++)
        prompt[i] = random_below(n_vocab);
    assert_ok(sampler_state_init(&r->state, sp, n_vocab, prompt, N_SEEN_MAX / 2, N_SEEN_MAX / 2));
    for (uint32_t n = random_below(N_SEEN_MAX / 2); n > 0; n--)
        sampler_state_count(&r->state, random_below(n_vocab));
}

/* Without forbidden ids, with a few, with most of them, with all; with few that are allowed. */
static void random_mask(struct row *r, uint32_t n_vocab)
{
    uint32_t kind = random_below(8), n_few = random_below(n_vocab < 5 ? n_vocab : 5);

    if (kind > 4)
        return;
    r->mask = malloc(vocab_mask_n_words(n_vocab) * sizeof *r->mask);
    vocab_mask_allow_all(r->mask, n_vocab);
    for (uint32_t i = 0; i < n_few; i++)
        vocab_mask_forbid(r->mask, random_below(n_vocab));
    for (uint32_t id = 0; kind >= 3 && id < n_vocab; id++)
        if (kind == 4 || random_below(50))
            vocab_mask_forbid(r->mask, id);
    if (kind == 4 && random_below(4) > 0)
        for (uint32_t i = 0; i <= n_few; i++)
            vocab_mask_allow(r->mask, random_below(n_vocab));
    if (random_below(2) && n_vocab % 32) /* these bits have no meaning */
        r->mask[n_vocab / 32] &= (1u << n_vocab % 32) - 1;
}

static void random_row(struct row *r, uint32_t n_vocab)
{
    const uint32_t ks[] = {0, 0, 0, 1, 2, 5, 40, n_vocab, n_vocab + 5, 1 + random_below(n_vocab)};
    struct sampling *sp = &r->sampling;

    memset(r, 0, sizeof *r);
    *sp = (struct sampling){.temperature = ONE_OF(0, 0.02f, 0.7f, 1, 1, 2, 100, 1e4f),
                            .top_k = ks[random_below(10)],
                            .top_p = ONE_OF(1, 1, 0.01f, 0.5f, 0.9f, 0.999f, 0.01f + uniform()),
                            .min_p = ONE_OF(0, 0, 0, 0.05f, 0.5f, 1, uniform()),
                            .repetition_penalty = 1,
                            .seed = random_below(1u << 31),
                            .n_logprobs = random_below(3) ? 0 : random_below(21),
                            .want_logprob = random_below(2)};
    sp->top_p = fminf(sp->top_p, 1);
    r->n = random_below(1000);
    random_penalties(r, n_vocab);
    sp->logit_bias = r->bias;
    sp->n_logit_bias = random_below(3) ? 0 : random_below(N_BIAS_MAX + 1);
    for (uint32_t i = 0; i < sp->n_logit_bias; i++) /* an id may come twice */
        r->bias[i] = (struct logit_bias){random_below(n_vocab < 4 ? n_vocab : 4),
                                         ONE_OF(20, 4 * uniform() - 2)};
    random_mask(r, n_vocab);
}

static struct sampler_row view(struct row *r, uint32_t n_vocab)
{
    return (struct sampler_row){.sampling = &r->sampling,
                                .state = &r->state,
                                .n = r->n,
                                .mask = r->mask,
                                .n_vocab = n_vocab};
}

/* --- both samplers --- */

/* Sample on the host, with penalties and bias applied to `logits`. */
static void sample_on_host(struct row *rows, uint32_t n, float *logits, uint32_t n_vocab)
{
    struct sampler_candidate *scratch = malloc(n_vocab * sizeof *scratch);
    float *raw = malloc(n_vocab * sizeof *raw);

    for (uint32_t i = 0; i < n; i++) {
        struct sampler_row row = view(&rows[i], n_vocab);
        row.logits = logits + (size_t)i * n_vocab;
        row.scratch = scratch;
        row.raw = raw;
        sampler_pick(&row, &rows[i].want, rows[i].want_top);
    }
    free(scratch);
    free(raw);
}

static struct device *device_for(uint32_t n_rows)
{
    struct device_config config = {
        .kind = DEVICE_CUDA, .max_rows = n_rows, .max_k = 64, .max_heads = 1, .max_head_dim = 64};

    return cuda_device_for(&config);
}

/* Sample on the device. Return the changed logits, in device memory. */
static const float *sample_on_device(struct device *d, struct row *rows, uint32_t n,
                                     const float *logits, uint32_t n_vocab, size_t list_bytes_max)
{
    struct device_sampler_config config = {.device = d,
                                           .n_vocab = n_vocab,
                                           .n_rows_max = n,
                                           .n_known_max = N_SEEN_MAX,
                                           .list_bytes_max = list_bytes_max};
    struct device_sampler *ds;
    struct out_token *tokens = malloc(n * sizeof *tokens);
    float *changed = on_device(d, logits, (size_t)n * n_vocab * sizeof *logits);

    assert_ok(device_sampler_create(&ds, &config));
    device_sampler_begin(ds, 0, changed, tokens);
    for (uint32_t i = 0; i < n; i++) {
        struct sampler_row row = view(&rows[i], n_vocab);
        assert_ok(device_sampler_add(ds, &row, rows[i].got_top));
    }
    assert_ok(device_sampler_launch(ds));
    assert_ok(device_sampler_finish(ds, 0));
    for (uint32_t i = 0; i < n; i++)
        rows[i].got = tokens[i];
    device_sampler_destroy(ds);
    free(tokens);
    return changed;
}

static void free_rows(struct row *rows, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        sampler_state_fini(&rows[i].state);
        free(rows[i].mask);
    }
}

/* --- comparison --- */

static int descending(const void *a, const void *b)
{
    const float *x = a, *y = b;

    return *x > *y ? -1 : *x < *y;
}

static bool near(double a, double b, double scale)
{
    return fabs(a - b) < BORDER * scale;
}

/* Whether a decision of a filtered draw is closer than BORDER; p [n]: descending probabilities. */
static bool is_filtered_border(const struct sampling *sp, const double *p, uint32_t n, double u)
{
    uint32_t k = sp->top_k && sp->top_k < n ? sp->top_k : n, m = 0;
    double whole = 0, kept = 0, seen = 0;

    for (uint32_t i = 0; i < n && (sp->top_k == 0 || i < k); i++)
        whole += sp->top_k && p[i] < sp->min_p ? 0 : p[i];
    for (uint32_t i = 0; i < k; i++)
        if (p[i] < 1 && near(p[i], sp->min_p, sp->min_p)) /* 1 is exact in both samplers */
            return true;
    for (; m < k && (m == 0 || (p[m] >= sp->min_p && kept < sp->top_p * whole)); m++) {
        if (sp->top_p < 1 && near(kept, sp->top_p * whole, whole))
            return true;
        kept += p[m];
    }
    if (sp->top_p < 1 && near(kept, sp->top_p * whole, whole))
        return true;
    for (uint32_t i = 0; i < m; i++) {
        seen += p[i];
        if (near(seen, u * kept, kept))
            return true;
    }
    return false;
}

static bool is_unfiltered_border(const double *p, uint32_t n, double u)
{
    double total = 0, seen = 0;

    for (uint32_t i = 0; i < n; i++)
        total += p[i];
    for (uint32_t i = 0; i < n; i++) {
        seen += p[i];
        if (near(seen, u * total, total))
            return true;
    }
    return false;
}

/* Whether a decision is closer than BORDER. changed [n_vocab]: logits after bias and penalties. */
static bool is_border(const struct row *r, const float *changed, uint32_t n_vocab)
{
    const struct sampling *sp = &r->sampling;
    bool filtered = sp->top_k || sp->top_p < 1 || sp->min_p > 0, border;
    float *x = malloc(n_vocab * sizeof *x), max = -INFINITY;
    double *p = malloc(n_vocab * sizeof *p), u = rng_uniform(sp->seed, r->n);

    for (uint32_t i = 0; i < n_vocab; i++) {
        x[i] = isnan(changed[i]) ? -INFINITY : changed[i];
        max = fmaxf(max, x[i]);
    }
    if (filtered)
        qsort(x, n_vocab, sizeof *x, descending);
    for (uint32_t i = 0; i < n_vocab; i++)
        p[i] = exp(((double)x[i] - max) / sp->temperature);
    border = filtered ? is_filtered_border(sp, p, n_vocab, u) : is_unfiltered_border(p, n_vocab, u);
    free(x);
    free(p);
    return border && sp->temperature > 0;
}

static void assert_logprob(const char *what, float got, float want)
{
    if (isnan(want) ? isnan(got) : got == want || fabsf(got - want) <= 1e-5f + 1e-6f * fabsf(want))
        return;
    fail_msg("%s: %.9g instead of %.9g", what, (double)got, (double)want);
}

/* Bias, penalties and masks are the same few operations in both samplers, so the bits are equal. */
static void assert_same_changes(const float *got, const float *want, uint32_t n_vocab, uint32_t i)
{
    for (uint32_t id = 0; id < n_vocab; id++)
        if (!(isnan(want[id]) ? isnan(got[id]) : !memcmp(&got[id], &want[id], sizeof *got)))
            fail_msg("row %u, V %u: logit %u became %.9g instead of %.9g", i, n_vocab, id,
                     (double)got[id], (double)want[id]);
}

/* Compare the results of a row. Return whether the tokens differ because of a close decision. */
static bool compare(const struct row *r, const float *changed, uint32_t n_vocab, uint32_t i)
{
    const struct sampling *sp = &r->sampling;

    for (uint32_t t = 0; t < sp->n_logprobs; t++) {
        if (r->got_top[t].id != r->want_top[t].id)
            fail_msg("row %u, V %u: top %u of %u is id %u instead of %u", i, n_vocab, t,
                     sp->n_logprobs, r->got_top[t].id, r->want_top[t].id);
        assert_logprob("top", r->got_top[t].logprob, r->want_top[t].logprob);
    }
    if (r->got.id == r->want.id) {
        assert_logprob("logprob", r->got.logprob, r->want.logprob);
        return false;
    }
    if (!is_border(r, changed, n_vocab))
        fail_msg("row %u, V %u: id %u instead of %u; temperature %g top_k %u top_p %.9g min_p %g "
                 "seen %u bias %u masked %d seed %llu n %u",
                 i, n_vocab, r->got.id, r->want.id, (double)sp->temperature, sp->top_k,
                 (double)sp->top_p, (double)sp->min_p, r->state.n_seen, sp->n_logit_bias,
                 r->mask != NULL, (unsigned long long)sp->seed, r->n);
    return true;
}

/* Check random rows of all kinds in one launch; at most one in 200 may differ by a close
 * decision. */
static void check_rows(uint32_t n, uint32_t n_vocab, size_t list_bytes_max)
{
    struct device *d = device_for(n);
    struct row *rows = calloc(n, sizeof *rows);
    float *logits = host_array((size_t)n * n_vocab * sizeof *logits);
    uint32_t n_border = 0;

    for (uint32_t i = 0; i < n; i++) {
        fill_logits(random_below(3) == 0 ? NORMAL : random_below(N_KINDS),
                    logits + (size_t)i * n_vocab, n_vocab);
        random_row(&rows[i], n_vocab);
    }
    const float *changed = sample_on_device(d, rows, n, logits, n_vocab, list_bytes_max);
    changed = from_device(d, changed, (size_t)n * n_vocab * sizeof *changed);
    sample_on_host(rows, n, logits, n_vocab);
    for (uint32_t i = 0; i < n; i++) {
        size_t at = (size_t)i * n_vocab;
        assert_same_changes(changed + at, logits + at, n_vocab, i);
        n_border += compare(&rows[i], logits + at, n_vocab, i);
    }
    assert_true(n_border <= 1 + n / 200);
    free_rows(rows, n);
    free(rows);
    cuda_test_free_all(d);
}

static void tokens_are_those_of_the_host(void **state)
{
    (void)state;
    seed_random(1);
    check_rows(20, 1, 0);
    check_rows(40, 2, 0);
    check_rows(160, 31, 0);
    check_rows(200, 100, 0);
    check_rows(160, 1000, 0);
    check_rows(20, 1025, 0);
    check_rows(30, 5003, 0);
    check_rows(2, 50257, 0);
    if (full_size()) {
        check_rows(1024, 50257, 0);
        check_rows(256, 128256, 0);
        check_rows(16, 262144, 0);
    }
}

static void lists_beyond_the_buffer_run_in_rounds(void **state)
{
    (void)state;
    seed_random(2);
    check_rows(30, 300, 1); /* the smallest list, so that rows are sampled in several rounds */
}

/* --- more elements in one range than are compared side by side --- */

static void check_one(struct row *r, enum kind kind, uint32_t n_vocab)
{
    struct device *d = device_for(1);
    float *logits = host_array(n_vocab * sizeof *logits);

    fill_logits(kind, logits, n_vocab);
    assert_ok(sampler_state_init(&r->state, &r->sampling, n_vocab, NULL, 0, 1));
    sample_on_device(d, r, 1, logits, n_vocab, 0);
    sample_on_host(r, 1, logits, n_vocab);
    compare(r, logits, n_vocab, 0);
    cuda_test_free_all(d);
}

static void crowded_ranges_are_cut_until_few_or_equals_are_left(void **state)
{
    static const enum kind kinds[] = {EQUAL, FEW_VALUES, WITH_OUTLIER, DENSE, PEAKED};

    (void)state;
    seed_random(3);
    for (uint32_t i = 0; i < 30; i++) {
        struct row r = {.sampling = {.temperature = i % 2 ? 1 : 1e4f,
                                     .top_p = i % 3 ? 1 : 0.8037f,
                                     .top_k = i % 3 ? 3000 : 0,
                                     .repetition_penalty = 1,
                                     .seed = i,
                                     .n_logprobs = i % 7,
                                     .want_logprob = true}};
        check_one(&r, kinds[i % 5], 4500);
    }
    for (uint32_t i = 0; i < 3; i++) { /* min_p = 1 keeps the tokens that equal the best one */
        struct row r = {
            .sampling = {
                .temperature = 1, .top_p = 1, .min_p = 1, .seed = i, .repetition_penalty = 1}};
        check_one(&r, FEW_VALUES, 700);
    }
}

/* All masses are equal and u * V is an integer, so the sum of masses reaches u * total exactly.
 * Both samplers must then take the next token. */
static void a_draw_on_a_boundary_takes_the_next(void **state)
{
    enum { V = 512 };
    uint32_t n = 1;

    (void)state;
    while ((rng_u32(5, n) >> 8) % ((1 << 24) / V) != 0)
        n++;
    for (uint32_t i = 0; i < 2; i++) {
        struct row r = {.sampling = {.temperature = 1,
                                     .top_p = 1,
                                     .top_k = i * V,
                                     .seed = 5,
                                     .repetition_penalty = 1},
                        .n = n};
        check_one(&r, EQUAL, V);
        assert_int_equal(r.got.id, (rng_u32(5, n) >> 8) / ((1 << 24) / V));
        assert_int_equal(r.got.id, r.want.id);
    }
}

/* For the logprobs of a prompt the token is given, and sampling parameters have no effect. */
static void a_given_token_comes_with_its_raw_logprob(void **state)
{
    enum { N = 40, V = 777 };
    struct device *d = device_for(N);
    struct row *rows = calloc(N, sizeof *rows);
    uint32_t given[N];
    float *logits = host_array((size_t)N * V * sizeof *logits);
    struct device_sampler_config config = {
        .device = d, .n_vocab = V, .n_rows_max = N, .n_known_max = N_SEEN_MAX};
    struct device_sampler *ds;
    struct out_token tokens[N];

    (void)state;
    seed_random(4);
    for (uint32_t i = 0; i < N; i++) {
        fill_logits(i % 4 == 3 ? WITH_MINUS_INF : NORMAL, logits + (size_t)i * V, V);
        random_row(&rows[i], V);
        rows[i].sampling.want_logprob = true;
        given[i] = random_below(V);
    }
    assert_ok(device_sampler_create(&ds, &config));
    device_sampler_begin(ds, 0, on_device(d, logits, (size_t)N * V * sizeof *logits), tokens);
    for (uint32_t i = 0; i < N; i++) {
        struct sampler_row row = view(&rows[i], V);
        row.given = i % 5 == 4 ? NULL : &given[i];
        assert_ok(device_sampler_add(ds, &row, rows[i].got_top));
    }
    assert_ok(device_sampler_launch(ds));
    assert_ok(device_sampler_finish(ds, 0));
    device_sampler_destroy(ds);
    for (uint32_t i = 0; i < N; i++) {
        if (i % 5 == 4)
            continue;
        struct sampler_row row = view(&rows[i], V);
        row.given = &given[i];
        row.logits = logits + (size_t)i * V;
        sampler_pick(&row, &rows[i].want, rows[i].want_top);
        rows[i].got = tokens[i];
        assert_int_equal(rows[i].got.id, given[i]);
        assert_false(compare(&rows[i], logits + (size_t)i * V, V, i));
    }
    free_rows(rows, N);
    free(rows);
    cuda_test_free_all(d);
}

/* --- properties --- */

/* The chi-square test of many draws. The seeds are fixed, so it passes always or never. */
static void draws_follow_the_distribution(void **state)
{
    enum { V = 8 };
    uint32_t n = full_size() ? 1024 : 250, counts[V] = {0};
    struct device *d = device_for(n);
    struct row *rows = calloc(n, sizeof *rows);
    float *logits = host_array((size_t)n * V * sizeof *logits);
    double sum = 0, chi2 = 0;

    (void)state;
    for (uint32_t i = 0; i < n; i++) {
        rows[i].sampling =
            (struct sampling){.temperature = 0.7f, .top_p = 1, .seed = 42, .repetition_penalty = 1};
        rows[i].n = i;
        for (uint32_t j = 0; j < V; j++)
            logits[i * V + j] = 0.2f * (float)j;
    }
    sample_on_device(d, rows, n, logits, V, 0);
    for (uint32_t i = 0; i < n; i++)
        counts[rows[i].got.id]++;
    for (uint32_t j = 0; j < V; j++)
        sum += exp(0.2 * j / 0.7);
    for (uint32_t j = 0; j < V; j++) {
        double expected = n * exp(0.2 * j / 0.7) / sum;
        chi2 += (counts[j] - expected) * (counts[j] - expected) / expected;
    }
    assert_true(chi2 < 24.3); /* 7 degrees of freedom: 1 in 1000 */
    free(rows);
    cuda_test_free_all(d);
}

static void assert_same_results(const struct row *a, const struct row *b)
{
    assert_same_bits("token", &a->got, &b->got, sizeof a->got);
    assert_same_bits("tops", a->got_top, b->got_top, sizeof a->got_top);
}

static void bits_repeat_and_do_not_depend_on_other_rows(void **state)
{
    enum { N = 16, V = 777 };
    struct device *d = device_for(N);
    struct row rows[N], again[N], alone;
    float *logits = host_array(N * V * sizeof *logits);

    (void)state;
    seed_random(4);
    for (uint32_t i = 0; i < N; i++) {
        fill_logits(NORMAL, logits + i * V, V);
        random_row(&rows[i], V);
        rows[i].sampling.want_logprob = true;
        rows[i].sampling.logit_bias = rows[i].bias;
    }
    sample_on_device(d, rows, N, logits, V, 0);
    memcpy(again, rows, sizeof rows);
    sample_on_device(d, again, N, logits, V, 0);
    for (uint32_t i = 0; i < N; i++) {
        alone = rows[i];
        sample_on_device(d, &alone, 1, logits + i * V, V, 0);
        assert_same_results(&again[i], &rows[i]);
        assert_same_results(&alone, &rows[i]);
    }
    free_rows(rows, N);
    cuda_test_free_all(d);
}

/* Two steps under way: the second is laid out before the first one's tokens are read. A row that is
 * forgotten writes no alternatives, whose memory may be gone. */
static void two_steps_take_turns(void **state)
{
    enum { N = 5, V = 300 };
    struct device *d = device_for(N);
    struct row *rows[2] = {calloc(N, sizeof **rows), calloc(N, sizeof **rows)};
    float *logits[2];
    struct device_sampler_config config = {
        .device = d, .n_vocab = V, .n_rows_max = N, .n_known_max = N_SEEN_MAX};
    struct device_sampler *ds;
    struct out_token tokens[2][N];
    uint32_t left[N];

    (void)state;
    seed_random(9);
    assert_ok(device_sampler_create(&ds, &config));
    for (uint32_t turn = 0; turn < 2; turn++) {
        logits[turn] = host_array((size_t)N * V * sizeof(float));
        for (uint32_t i = 0; i < N; i++) {
            fill_logits(NORMAL, logits[turn] + (size_t)i * V, V);
            random_row(&rows[turn][i], V);
            rows[turn][i].sampling.temperature = 0;
            rows[turn][i].sampling.n_logprobs = 4;
        }
        device_sampler_begin(ds, turn, on_device(d, logits[turn], (size_t)N * V * sizeof(float)),
                             tokens[turn]);
        for (uint32_t i = 0; i < N; i++) {
            struct sampler_row row = view(&rows[turn][i], V);
            assert_ok(device_sampler_add(ds, &row, rows[turn][i].got_top));
        }
        assert_ok(device_sampler_launch(ds));
        assert_true(device_sampler_is_whole(ds, turn));
    }
    rows[1][2].got_top[0].id = 12345;
    device_sampler_forget(ds, 1, 2);
    for (uint32_t turn = 0; turn < 2; turn++) {
        assert_ok(device_sampler_finish(ds, turn));
        sample_on_host(rows[turn], N, logits[turn], V);
        for (uint32_t i = 0; i < N; i++) {
            const struct row *r = &rows[turn][i];
            assert_int_equal(tokens[turn][i].id, r->want.id);
            assert_int_equal(r->got_top[0].id, turn == 1 && i == 2 ? 12345 : r->want_top[0].id);
        }
    }
    assert_ok(device_download(d, left, device_sampler_ids(ds), sizeof left));
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(left[i], tokens[1][i].id);
    device_sampler_destroy(ds);
    for (uint32_t turn = 0; turn < 2; turn++) {
        free_rows(rows[turn], N);
        free(rows[turn]);
    }
    cuda_test_free_all(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_those_of_the_host),
        cmocka_unit_test(lists_beyond_the_buffer_run_in_rounds),
        cmocka_unit_test(crowded_ranges_are_cut_until_few_or_equals_are_left),
        cmocka_unit_test(a_given_token_comes_with_its_raw_logprob),
        cmocka_unit_test(a_draw_on_a_boundary_takes_the_next),
        cmocka_unit_test(two_steps_take_turns),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(bits_repeat_and_do_not_depend_on_other_rows),
    };

    return cmocka_run_group_tests_name("cuda_sample", tests, NULL, NULL);
}
