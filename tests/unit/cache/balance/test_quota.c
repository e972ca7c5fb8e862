/* The quota solver: conservation and limits on random problems, and the distance to the optimum. */
#include "cache/balance/quota.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "tests/unit/test.h"

#define N_MAX 256u

static uint64_t drawn;

static uint32_t draw(uint32_t n)
{
    return rng_u32(11, drawn++) % n;
}

/* Loads with a heavy tail. */
static void make(struct quota_item *items, uint32_t n_items, uint32_t n_instances)
{
    for (uint32_t i = 0; i < n_items; i++)
        items[i] = (struct quota_item){floor(1000 / (1.0 + draw(50))), draw(n_instances)};
}

static double mean_load(const struct quota_problem *p)
{
    double sum = 0;

    for (uint32_t i = 0; i < p->n_items; i++)
        sum += p->items[i].load;
    return sum / p->n_instances;
}

static double solve_checked(const struct quota_problem *p)
{
    struct quota quotas[4 * N_MAX];
    double load[N_MAX] = {0}, served[N_MAX] = {0}, max, largest = 0;
    uint32_t n, used[N_MAX] = {0}, at = 0;

    assert_ok(quota_solve(p, quotas, &n, &max));
    for (uint32_t i = 0; i < p->n_items; i++) {
        assert_int_equal(quotas[at].item, i);
        assert_int_equal(quotas[at].instance, p->items[i].home);
        for (uint32_t first = at; at < n && quotas[at].item == i; at++) {
            assert_true(quotas[at].load >= -1e-9);
            served[i] += quotas[at].load;
            load[quotas[at].instance] += quotas[at].load;
            used[quotas[at].instance] += at > first;
            assert_true(at == first || quotas[at].load >= p->load_min - 1e-9);
            for (uint32_t k = first; k < at; k++)
                assert_int_not_equal(quotas[k].instance, quotas[at].instance);
        }
        assert_true(fabs(served[i] - p->items[i].load) < 1e-6);
    }
    assert_int_equal(at, n);
    for (uint32_t i = 0; i < p->n_instances; i++) {
        assert_true(used[i] <= p->n_slots);
        largest = load[i] > largest ? load[i] : largest;
    }
    assert_true(fabs(largest - max) < 1e-6);
    assert_true(max >= mean_load(p) - 1e-6);
    return max;
}

static void quotas_conserve_loads_and_respect_slots(void **state)
{
    struct quota_item items[N_MAX];

    (void)state;
    for (int round = 0; round < 300; round++) {
        struct quota_problem p = {.items = items,
                                  .n_items = 1 + draw(N_MAX - 1),
                                  .n_instances = 1 + draw(32),
                                  .n_slots = draw(8),
                                  .load_min = draw(3) * 10};
        make(items, p.n_items, p.n_instances);
        double max = solve_checked(&p);
        p.n_slots = 0; /* never worse than no copies */
        assert_true(max <= solve_checked(&p) + 1e-6);
    }
}

static void enough_slots_make_all_instances_equal(void **state)
{
    struct quota_item items[N_MAX];

    (void)state;
    for (int round = 0; round < 100; round++) {
        struct quota_problem p = {
            .items = items, .n_items = 1 + draw(64), .n_instances = 2 + draw(14), .n_slots = 32};
        make(items, p.n_items, p.n_instances);
        assert_true(solve_checked(&p) <= mean_load(&p) * 1.0101);
    }
}

/* 256 experts on 64 instances with two slots each: the shape of UltraEP's evaluation. */
static void experts_of_a_mixture_are_evened_out(void **state)
{
    struct quota_item items[N_MAX];
    double before = 0, after = 0;

    (void)state;
    for (int round = 0; round < 20; round++) {
        struct quota_problem p = {.items = items, .n_items = 256, .n_instances = 64, .n_slots = 2};
        for (uint32_t i = 0; i < 256; i++)
            items[i] = (struct quota_item){exp(2.0 * rng_uniform(5, drawn++)), i / 4};
        double mean = mean_load(&p);
        after += solve_checked(&p) / mean / 20;
        p.n_slots = 0;
        before += solve_checked(&p) / mean / 20;
    }
    print_message("largest over mean: %.3f without copies, %.3f with\n", before, after);
    assert_true(before > 1.3 && after < 1.05);
}

/* --- brute force --- */

/* Whether loads can be split so that no instance is above the limit, given the holders of each item
 * [n_items] as bits: a flow problem, by Hall's condition over all sets of items. */
static bool is_feasible(const struct quota_problem *p, const uint32_t *holders, double limit)
{
    for (uint32_t set = 1; set < 1u << p->n_items; set++) {
        uint32_t at = 0;
        double sum = 0;
        for (uint32_t i = 0; i < p->n_items; i++)
            if (set >> i & 1) {
                sum += p->items[i].load;
                at |= holders[i];
            }
        if (sum > limit * __builtin_popcount(at) + 1e-9)
            return false;
    }
    return true;
}

static double best_limit(const struct quota_problem *p, const uint32_t *holders)
{
    double best = 0;

    for (uint32_t set = 1; set < 1u << p->n_items; set++) {
        uint32_t at = 0;
        double sum = 0;
        for (uint32_t i = 0; i < p->n_items; i++)
            if (set >> i & 1) {
                sum += p->items[i].load;
                at |= holders[i];
            }
        double limit = sum / __builtin_popcount(at);
        best = limit > best ? limit : best;
    }
    assert_true(is_feasible(p, holders, best));
    return best;
}

/* Try every set of copies: for each instance one item, or none. */
static double optimum(const struct quota_problem *p, uint32_t *holders, uint32_t instance)
{
    if (instance == p->n_instances)
        return best_limit(p, holders);
    double best = optimum(p, holders, instance + 1);
    for (uint32_t i = 0; i < p->n_items; i++)
        if (!(holders[i] >> instance & 1)) {
            holders[i] |= 1u << instance;
            double one = optimum(p, holders, instance + 1);
            best = one < best ? one : best;
            holders[i] &= ~(1u << instance);
        }
    return best;
}

static void one_slot_each_comes_near_the_optimum(void **state)
{
    struct quota_item items[6];
    double sum = 0, worst = 0;
    int n_rounds = 200;

    (void)state;
    for (int round = 0; round < n_rounds; round++) {
        uint32_t holders[6];
        struct quota_problem p = {.items = items,
                                  .n_items = 2 + draw(5),
                                  .n_instances = 2 + draw(3),
                                  .n_slots = 1,
                                  .tolerance = 0.001};
        make(items, p.n_items, p.n_instances);
        for (uint32_t i = 0; i < p.n_items; i++)
            holders[i] = 1u << items[i].home;
        double ratio = solve_checked(&p) / optimum(&p, holders, 0);
        assert_true(ratio >= 1 - 1e-9);
        worst = ratio > worst ? ratio : worst;
        sum += ratio;
    }
    print_message("over the optimum: mean %.3f, worst %.3f\n", sum / n_rounds, worst);
    assert_true(sum / n_rounds < 1.1);
    assert_true(worst < 1.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quotas_conserve_loads_and_respect_slots),
        cmocka_unit_test(enough_slots_make_all_instances_equal),
        cmocka_unit_test(experts_of_a_mixture_are_evened_out),
        cmocka_unit_test(one_slot_each_comes_near_the_optimum),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
