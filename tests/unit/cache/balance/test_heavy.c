/* Heavy hitters: threshold, number of copies, hysteresis, decay, a full table. */
#include "cache/balance/heavy.h"

#include <math.h>

#include "base/rng.h"
#include "tests/unit/test.h"

static struct heavy *made(uint32_t n_instances, uint32_t n_items_max)
{
    struct heavy_config config = {.n_instances = n_instances, .n_items_max = n_items_max};
    struct heavy *h;

    assert_ok(heavy_create(&h, &config));
    return h;
}

static void no_copy_carries_more_than_the_threshold(void **state)
{
    struct heavy *h = made(8, 4096);
    struct heavy_item list[4096];

    (void)state;
    for (uint32_t i = 0; i < 1000; i++) /* Zipf */
        heavy_add(h, i, 1000.0 / (1 + i));
    double tau = heavy_threshold(h);
    assert_true(fabs(tau - heavy_total(h) / (8 * HEAVY_C * log(8))) < 1e-9 * tau);
    uint32_t n = heavy_list(h, list, 4096);
    assert_true(n > 0 && n <= 8 * HEAVY_C * log(8));
    for (uint32_t i = 0; i < n; i++) {
        assert_true(list[i].load > tau);
        assert_true(list[i].n_copies == 8 || list[i].load / list[i].n_copies <= tau);
        assert_true(list[i].n_copies == 1 || list[i].load / (list[i].n_copies - 1) > tau);
        assert_true(i == 0 || list[i].load <= list[i - 1].load);
    }
    for (uint32_t i = 0; i < 1000; i++)
        assert_true(heavy_load(h, i) <= tau || i < n); /* the list has all of them */
    heavy_destroy(h);
}

static void the_list_is_cut_to_the_heaviest(void **state)
{
    struct heavy *h = made(16, 4096);
    struct heavy_item all[512], few[5];

    (void)state;
    for (uint32_t i = 0; i < 300; i++)
        heavy_add(h, i * 7919u % 300, 1 + rng_u32(1, i) % 1000 * (i % 10 == 0 ? 100.0 : 1.0));
    uint32_t n = heavy_list(h, all, 512);
    assert_true(n > 5);
    assert_int_equal(heavy_list(h, few, 5), 5);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(few[i].key, all[i].key);
    assert_int_equal(heavy_list(h, few, 0), 0);
    heavy_destroy(h);
}

static void load_is_halved_by_a_half_life(void **state)
{
    struct heavy *h = made(4, 16);

    (void)state;
    heavy_add(h, 1, 8);
    heavy_tick(h, HEAVY_HALF_LIFE);
    assert_true(fabs(heavy_load(h, 1) - 4) < 1e-9);
    heavy_add(h, 2, 4);
    assert_true(fabs(heavy_total(h) - 8) < 1e-9);
    for (int i = 0; i < 1000; i++) /* beyond the largest scale */
        heavy_tick(h, HEAVY_HALF_LIFE);
    heavy_add(h, 3, 1);
    assert_true(fabs(heavy_total(h) - 1) < 1e-9);
    heavy_forget(h, 3);
    assert_true(heavy_load(h, 3) == 0);
    assert_true(heavy_total(h) < 1e-9);
    heavy_destroy(h);
}

static uint32_t copies_of(struct heavy *h, uint64_t key)
{
    struct heavy_item list[64];
    uint32_t n = heavy_list(h, list, 64);

    for (uint32_t i = 0; i < n; i++)
        if (list[i].key == key)
            return list[i].n_copies;
    return 1;
}

static void a_copy_is_given_up_only_well_below_its_threshold(void **state)
{
    struct heavy *h = made(16, 4096);

    (void)state;
    for (uint32_t i = 0; i < 2000; i++)
        heavy_add(h, 100 + i, 1);
    heavy_add(h, 1, 60);
    uint32_t n = copies_of(h, 1);
    assert_true(n > 2);
    for (uint32_t i = 0; i < 2000; i += 8) /* tau rises by an eighth: n copies are too many now */
        heavy_add(h, 100 + i, 1);
    assert_true(heavy_load(h, 1) / heavy_threshold(h) < n);
    assert_int_equal(copies_of(h, 1), n);
    for (uint32_t i = 0; i < 4000; i++)
        heavy_add(h, 100 + i % 2000, 1);
    uint32_t fewer = copies_of(h, 1);
    assert_true(fewer < n);
    double load = heavy_load(h, 1), tau = heavy_threshold(h);
    assert_true(fewer == 1 || load >= 0.5 * tau * (fewer - 1));
    heavy_destroy(h);
}

static void fewer_instances_mean_fewer_copies(void **state)
{
    struct heavy *h = made(16, 64);

    (void)state;
    heavy_add(h, 1, 100);
    assert_int_equal(copies_of(h, 1), 16);
    heavy_set_instances(h, 3);
    assert_int_equal(copies_of(h, 1), 3);
    heavy_set_instances(h, 1);
    assert_true(isinf(heavy_threshold(h)));
    assert_int_equal(copies_of(h, 1), 1);
    heavy_destroy(h);
}

static void a_full_table_forgets_light_items_only(void **state)
{
    struct heavy *h = made(8, 1024);
    struct heavy_item list[64];

    (void)state;
    for (uint32_t i = 0; i < 200000; i++) {
        heavy_add(h, 1 + i % 10, 50);
        heavy_add(h, 1000 + i, 1);
        heavy_tick(h, 0.01);
    }
    uint32_t n = heavy_list(h, list, 64);
    assert_int_equal(n, 10);
    for (uint32_t i = 0; i < n; i++)
        assert_true(list[i].key >= 1 && list[i].key <= 10);
    heavy_destroy(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_copy_carries_more_than_the_threshold),
        cmocka_unit_test(the_list_is_cut_to_the_heaviest),
        cmocka_unit_test(load_is_halved_by_a_half_life),
        cmocka_unit_test(a_copy_is_given_up_only_well_below_its_threshold),
        cmocka_unit_test(fewer_instances_mean_fewer_copies),
        cmocka_unit_test(a_full_table_forgets_light_items_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
