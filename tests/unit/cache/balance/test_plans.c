/* Copies for a query, matching, and the degree of parallelism, against brute force. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "cache/balance/cover.h"
#include "cache/balance/elastic.h"
#include "cache/balance/matching.h"
#include "tests/unit/test.h"

static uint64_t drawn;

static uint32_t draw(uint32_t n)
{
    return rng_u32(23, drawn++) % n;
}

/* --- cover --- */

#define N_INSTANCES 8u
#define N_SEGMENTS 10u

struct covering {
    struct cover_segment segments[N_SEGMENTS];
    uint32_t holders[N_SEGMENTS][N_INSTANCES];
    double load[N_INSTANCES];
    bool contacted[N_INSTANCES];
    uint32_t n_held[N_INSTANCES];
    struct cover_query q;
};

static void make_covering(struct covering *c)
{
    memset(c, 0, sizeof *c);
    for (uint32_t s = 0; s < N_SEGMENTS; s++) {
        for (uint32_t i = 0; i < N_INSTANCES; i++)
            if (draw(4) == 0)
                c->holders[s][c->segments[s].n++] = i;
        c->segments[s].holders = c->holders[s];
    }
    for (uint32_t i = 0; i < N_INSTANCES; i++)
        c->load[i] = draw(100);
    c->q = (struct cover_query){.segments = c->segments,
                                .n = N_SEGMENTS,
                                .local = COVER_NONE,
                                .load = c->load,
                                .n_held = c->n_held,
                                .n_instances = N_INSTANCES};
}

static bool is_held(const struct covering *c, uint32_t segment, uint32_t instance)
{
    for (uint32_t k = 0; k < c->segments[segment].n; k++)
        if (c->holders[segment][k] == instance)
            return true;
    return false;
}

/* The least number of instances, by all sets of them. */
static uint32_t fewest(const struct covering *c)
{
    uint32_t best = N_INSTANCES;

    for (uint32_t set = 0; set < 1u << N_INSTANCES; set++) {
        bool is_cover = true;
        for (uint32_t s = 0; s < N_SEGMENTS; s++) {
            bool any = c->segments[s].n == 0;
            for (uint32_t k = 0; k < c->segments[s].n; k++)
                any |= set >> c->holders[s][k] & 1;
            is_cover &= any;
        }
        uint32_t n = (uint32_t)__builtin_popcount(set);
        best = is_cover && n < best ? n : best;
    }
    return best;
}

static void a_cover_needs_hardly_more_instances_than_the_best(void **state)
{
    uint32_t n_all = 0, n_best = 0;

    (void)state;
    for (int round = 0; round < 300; round++) {
        struct covering c;
        uint32_t from[N_SEGMENTS], chosen = 0;
        make_covering(&c);
        uint32_t n = cover_choose(&c.q, from);
        for (uint32_t s = 0; s < N_SEGMENTS; s++) {
            assert_true((from[s] == COVER_NONE) == (c.segments[s].n == 0));
            if (from[s] != COVER_NONE) {
                assert_true(is_held(&c, s, from[s]));
                chosen |= 1u << from[s];
            }
        }
        assert_int_equal(n, __builtin_popcount(chosen));
        uint32_t best = fewest(&c);
        assert_true(n >= best && n <= best + 1); /* 1 + ln(10) = 3.3 times is the bound */
        n_all += n;
        n_best += best;
        for (uint32_t i = 0; i < N_INSTANCES; i++)
            assert_int_equal(c.n_held[i], 0);
    }
    assert_true(n_all < 1.08 * n_best);
}

static void local_copies_then_contacted_instances_come_first(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        struct covering c;
        uint32_t from[N_SEGMENTS];
        make_covering(&c);
        c.q.local = draw(N_INSTANCES);
        c.contacted[draw(N_INSTANCES)] = true;
        c.q.contacted = c.contacted;
        (void)cover_choose(&c.q, from);
        for (uint32_t s = 0; s < N_SEGMENTS; s++) {
            if (is_held(&c, s, c.q.local)) {
                assert_int_equal(from[s], c.q.local);
                continue;
            }
            for (uint32_t i = 0; i < N_INSTANCES; i++)
                if (c.contacted[i] && is_held(&c, s, i))
                    assert_true(c.contacted[from[s]]);
        }
    }
}

static void of_equal_instances_the_least_loaded_is_chosen(void **state)
{
    uint32_t holders[] = {2, 5, 6}, from[1], n_held[N_INSTANCES] = {0};
    double load[N_INSTANCES] = {0, 0, 3, 0, 0, 1, 2};
    struct cover_segment segment = {holders, 3};
    struct cover_query q = {&segment, 1, COVER_NONE, NULL, load, n_held, N_INSTANCES};

    (void)state;
    assert_int_equal(cover_choose(&q, from), 1);
    assert_int_equal(from[0], 5);
}

/* --- matching --- */

static double brute_force(const double *gain, uint32_t n_rows, uint32_t n_columns, uint32_t row,
                          uint32_t used)
{
    double best = -INFINITY;

    if (row == n_rows)
        return 0;
    for (uint32_t j = 0; j < n_columns; j++)
        if (!(used >> j & 1)) {
            double one = gain[row * n_columns + j] +
                         brute_force(gain, n_rows, n_columns, row + 1, used | 1u << j);
            best = one > best ? one : best;
        }
    return best;
}

static void matching_finds_the_best_assignment(void **state)
{
    double gain[49];

    (void)state;
    for (int round = 0; round < 500; round++) {
        uint32_t n_rows = 1 + draw(6), n_columns = n_rows + draw(2), column[7], used = 0;
        double sum = 0;
        for (uint32_t i = 0; i < n_rows * n_columns; i++)
            gain[i] = (double)draw(round % 2 ? 5 : 1000) - (round % 3 ? 0 : 400);
        double best = matching_best(gain, n_rows, n_columns, column);
        for (uint32_t i = 0; i < n_rows; i++) {
            assert_true(column[i] < n_columns && !(used >> column[i] & 1));
            used |= 1u << column[i];
            sum += gain[i * n_columns + column[i]];
        }
        assert_true(fabs(sum - best) < 1e-9);
        assert_true(fabs(best - brute_force(gain, n_rows, n_columns, 0, 0)) < 1e-9);
    }
}

static void sixty_four_rows_are_matched(void **state)
{
    static double gain[MATCHING_MAX * MATCHING_MAX];
    uint32_t column[MATCHING_MAX];

    (void)state;
    for (uint32_t i = 0; i < MATCHING_MAX; i++) /* the best is known: a permutation of tens */
        for (uint32_t j = 0; j < MATCHING_MAX; j++)
            gain[i * MATCHING_MAX + j] = j == (i * 37 + 5) % 64 ? 10 : (double)draw(10);
    assert_true(matching_best(gain, 64, 64, column) == 640);
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(column[i], (i * 37 + 5) % 64);
}

static void batches_get_as_many_instances_as_they_need(void **state)
{
    double gain[3 * 6], doubled[5 * 6];
    const uint32_t n_each[] = {2, 1, 2}, batch[] = {0, 0, 1, 2, 2};

    (void)state;
    for (int round = 0; round < 200; round++) {
        uint32_t batch_of[6], n[3] = {0}, n_idle = 0;
        for (uint32_t i = 0; i < 18; i++)
            gain[i] = draw(100);
        for (uint32_t r = 0; r < 5; r++)
            memcpy(&doubled[r * 6], &gain[batch[r] * 6], 6 * sizeof *gain);
        double best = matching_dispatch(gain, n_each, 3, 6, batch_of), sum = 0;
        for (uint32_t i = 0; i < 6; i++) {
            if (batch_of[i] == UINT32_MAX) {
                n_idle++;
                continue;
            }
            n[batch_of[i]]++;
            sum += gain[batch_of[i] * 6 + i];
        }
        assert_int_equal(n_idle, 1);
        assert_memory_equal(n, n_each, sizeof n);
        assert_true(fabs(sum - best) < 1e-9);
        assert_true(fabs(best - brute_force(doubled, 5, 6, 0, 0)) < 1e-9);
    }
}

/* --- degree of parallelism --- */

static const double lengths[] = {100, 150, 400, 900, 2000, 5000};

/* Time that grows with the square of the length, and is shared with a loss by instances. */
static double seconds(const void *arg, uint32_t first, uint32_t end, uint32_t n)
{
    double s = 0.01;

    (void)arg;
    for (uint32_t i = first; i < end; i++)
        s += 1e-4 * lengths[i] + 1e-8 * lengths[i] * lengths[i];
    return s / n + 0.002 * n;
}

/* All ways to cut [first, n) into batches and give them instances. */
static double best_plan(const struct elastic_problem *p, uint32_t first, uint32_t left,
                        bool with_slo)
{
    double best = INFINITY, slo_s = INFINITY;

    if (first == p->n_requests)
        return 0;
    for (uint32_t end = first + 1; end <= p->n_requests; end++) {
        if (p->slo_s && p->slo_s[end - 1] < slo_s)
            slo_s = p->slo_s[end - 1];
        for (uint32_t n = 1; n <= left; n++) {
            double s = seconds(NULL, first, end, n);
            if (with_slo && s > slo_s)
                continue;
            double one = (end - first) * s + best_plan(p, end, left - n, with_slo);
            best = one < best ? one : best;
        }
    }
    return best;
}

static void the_plan_has_the_least_sum_of_latencies(void **state)
{
    int n_kept = 0, n_dropped = 0;

    (void)state;
    for (int round = 0; round < 200; round++) {
        double slo_s[6], sum_s, sum = 0;
        struct elastic_batch batches[6];
        uint32_t n, n_used = 0, at = 0;
        bool keeps_slo;
        struct elastic_problem p = {.n_requests = 1 + draw(6),
                                    .n_instances = 1 + draw(6),
                                    .seconds = seconds,
                                    .slo_s = slo_s};
        for (uint32_t i = 0; i < 6; i++)
            slo_s[i] = (1 + draw(20)) * 0.05 + lengths[i] * 1e-4;
        assert_ok(elastic_plan(&p, batches, &n, &sum_s, &keeps_slo));
        for (uint32_t b = 0; b < n; b++) {
            double s = seconds(NULL, batches[b].first, batches[b].end, batches[b].n_instances);
            assert_int_equal(batches[b].first, at);
            at = batches[b].end;
            n_used += batches[b].n_instances;
            sum += s * (batches[b].end - batches[b].first);
            for (uint32_t i = batches[b].first; keeps_slo && i < at; i++)
                assert_true(s <= slo_s[i]);
        }
        assert_int_equal(at, p.n_requests);
        assert_true(n_used <= p.n_instances);
        assert_true(fabs(sum - sum_s) < 1e-9);
        double best = best_plan(&p, 0, p.n_instances, true);
        assert_int_equal(keeps_slo, isfinite(best));
        n_kept += keeps_slo;
        n_dropped += !keeps_slo;
        if (!keeps_slo)
            best = best_plan(&p, 0, p.n_instances, false);
        assert_true(fabs(best - sum_s) < 1e-9);
    }
    assert_true(n_kept > 20 && n_dropped > 20);
}

static void a_long_prefill_gets_more_instances_than_a_short_one(void **state)
{
    struct elastic_batch batches[6];
    struct elastic_problem p = {.n_requests = 6, .n_instances = 16, .seconds = seconds};
    uint32_t n;
    double sum_s;
    bool keeps_slo;

    (void)state;
    assert_ok(elastic_plan(&p, batches, &n, &sum_s, &keeps_slo));
    assert_true(keeps_slo);
    assert_true(n > 1);
    assert_true(batches[n - 1].n_instances > batches[0].n_instances);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cover_needs_hardly_more_instances_than_the_best),
        cmocka_unit_test(local_copies_then_contacted_instances_come_first),
        cmocka_unit_test(of_equal_instances_the_least_loaded_is_chosen),
        cmocka_unit_test(matching_finds_the_best_assignment),
        cmocka_unit_test(sixty_four_rows_are_matched),
        cmocka_unit_test(batches_get_as_many_instances_as_they_need),
        cmocka_unit_test(the_plan_has_the_least_sum_of_latencies),
        cmocka_unit_test(a_long_prefill_gets_more_instances_than_a_short_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
