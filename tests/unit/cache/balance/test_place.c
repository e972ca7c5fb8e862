/* Placement of new items and of copies, and rebalancing. */
#include "cache/balance/place.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "cache/balance/heavy.h"
#include "cache/balance/rebalance.h"
#include "tests/unit/test.h"

#define N 64u
#define N_ITEMS 4096u

static double load[N];
static uint64_t room[N];
static bool held[N_ITEMS][N];
static const struct place_instances all = {load, room, N};

static void reset(void)
{
    memset(load, 0, sizeof load);
    memset(held, 0, sizeof held);
    for (uint32_t i = 0; i < N; i++)
        room[i] = 1u << 30;
}

static bool holds(const void *arg, uint32_t item, uint32_t instance)
{
    (void)arg;
    return held[item][instance];
}

static void the_producer_keeps_an_item_while_its_load_is_near_the_mean(void **state)
{
    (void)state;
    reset();
    for (uint32_t i = 0; i < N; i++)
        load[i] = 100;
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(place_new(&all, i * 31, i, -1), i);
    load[3] = 109.9 + 0.1; /* (1 + eps) times a mean that is a little above 100 */
    assert_int_equal(place_new(&all, 1, 3, -1), 3);
    load[3] = 120;
    for (uint32_t i = 0; i < 100; i++)
        assert_int_not_equal(place_new(&all, i, 3, -1), 3);
    load[3] = 100;
    room[3] = 0;
    assert_int_not_equal(place_new(&all, 1, 3, -1), 3);
}

static void full_instances_get_nothing(void **state)
{
    (void)state;
    reset();
    memset(room, 0, sizeof room);
    assert_int_equal(place_new(&all, 7, 5, -1), PLACE_NONE);
    room[41] = 1;
    for (uint32_t i = 0; i < 50; i++)
        assert_int_equal(place_new(&all, i, PLACE_NONE, -1), 41);
}

static void two_choices_keep_the_fullest_near_the_mean(void **state)
{
    double one[N] = {0}, fullest = 0, fullest_one = 0;

    (void)state;
    reset();
    for (uint32_t i = 0; i < 100 * N; i++) {
        load[place_new(&all, rng_u32(3, i), PLACE_NONE, -1)]++;
        one[rng_u32(3, i) % N]++;
    }
    for (uint32_t i = 0; i < N; i++) {
        fullest = load[i] > fullest ? load[i] : fullest;
        fullest_one = one[i] > fullest_one ? one[i] : fullest_one;
    }
    assert_true(fullest <= 105); /* the mean is 100 */
    assert_true(fullest_one > 115);
}

static void copies_go_to_different_instances_within_the_budget(void **state)
{
    struct place_item items[8];
    struct place_copy copies[N];
    struct place_state s = {.in = all, .items = items, .n_items = 8, .holds = holds, .budget = 55};

    (void)state;
    reset();
    for (uint32_t i = 0; i < 8; i++) {
        items[i] =
            (struct place_item){.key = i, .size = 10, .n_copies = i == 2 ? 0 : 1, .n_wanted = 3};
        held[i][i] = i != 2;
    }
    uint32_t n = place_copies(&s, copies, N);
    assert_int_equal(n, 5); /* 5 of size 10 */
    for (uint32_t i = 0; i < n; i++) {
        assert_int_not_equal(copies[i].item, 2); /* nobody has it */
        assert_int_equal(copies[i].from, copies[i].item);
        assert_int_not_equal(copies[i].to, copies[i].item);
        for (uint32_t k = 0; k < i; k++)
            assert_true(copies[k].item != copies[i].item || copies[k].to != copies[i].to);
    }
    assert_int_equal(copies[0].item, 0); /* the most important first */
    s.budget = 1000;
    assert_int_equal(place_copies(&s, copies, 4), 4);
}

/* A loss of an instance leaves holes; repeated plans refill them. */
static void holes_are_refilled_after_a_loss(void **state)
{
    struct place_item items[32];
    struct place_copy copies[N];
    struct place_state s = {
        .in = all, .items = items, .n_items = 32, .holds = holds, .budget = 1000};

    (void)state;
    reset();
    for (uint32_t i = 0; i < 32; i++) {
        items[i] = (struct place_item){.key = i * 97, .size = 1, .n_copies = 2, .n_wanted = 2};
        held[i][9] = held[i][10 + i % 8] = true;
    }
    assert_int_equal(place_copies(&s, copies, N), 0);
    for (uint32_t i = 0; i < 32; i++) { /* instance 9 is lost */
        held[i][9] = false;
        items[i].n_copies = 1;
    }
    room[9] = 0;
    uint32_t n = place_copies(&s, copies, N);
    assert_int_equal(n, 32);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_not_equal(copies[i].to, 9);
        assert_int_equal(copies[i].from, 10 + copies[i].item % 8);
    }
}

/* --- rebalancing --- */

static void rebalancing_stops_below_its_cv_and_moves_no_more_than_the_budget(void **state)
{
    static struct rebalance_item items[N_ITEMS];
    struct rebalance_move moves[N_ITEMS];

    (void)state;
    for (uint32_t round = 0; round < 20; round++) {
        double sums[N] = {0};
        reset();
        for (uint32_t i = 0; i < 1000; i++) {
            uint32_t at = rng_u32(round, i) % N;
            at = at < N / 2 ? at / 4 : at; /* crowded at the beginning */
            items[i] = (struct rebalance_item){1 + rng_u32(round, 5000 + i) % 20, 3, at};
            load[at] += items[i].load;
        }
        struct rebalance_state s = {.load = load,
                                    .free = room,
                                    .n_instances = N,
                                    .items = items,
                                    .n_items = 1000,
                                    .budget = 30 + 300 * round};
        double before = rebalance_cv(load, N);
        assert_true(before > 0.5);
        uint32_t n = rebalance_plan(&s, moves, N_ITEMS);
        assert_true(n * 3 <= s.budget);
        assert_true(rebalance_cv(load, N) < before);
        assert_true((n + 1) * 3 > s.budget || rebalance_cv(load, N) < REBALANCE_CV_STOP);
        for (uint32_t i = 0; i < 1000; i++)
            sums[items[i].instance] += items[i].load;
        for (uint32_t i = 0; i < N; i++)
            assert_true(fabs(sums[i] - load[i]) < 1e-6);
        assert_true(round < 19 || rebalance_cv(load, N) < REBALANCE_CV_STOP);
    }
}

static void even_loads_are_left_alone(void **state)
{
    struct rebalance_item items[2] = {{10, 1, 0}, {10.5, 1, 1}};
    double two[2] = {10, 10.5};
    uint64_t free_two[2] = {9, 9};
    struct rebalance_move moves[4];
    struct rebalance_state s = {
        .load = two, .free = free_two, .n_instances = 2, .items = items, .n_items = 2, .budget = 9};

    (void)state;
    assert_int_equal(rebalance_plan(&s, moves, 4), 0);
    two[0] = 40; /* one item that is the whole gap or more helps nobody */
    items[0].load = 40;
    assert_int_equal(rebalance_plan(&s, moves, 4), 0);
}

static void a_place_that_holds_the_item_or_is_full_gets_no_copy(void **state)
{
    struct rebalance_item items[1] = {{10, 1, 0}};
    double three[3] = {50, 20, 21};
    uint64_t free_three[3] = {9, 0, 9};
    struct rebalance_move moves[4];
    struct rebalance_state s = {.load = three,
                                .free = free_three,
                                .n_instances = 3,
                                .items = items,
                                .n_items = 1,
                                .budget = 9};

    (void)state;
    assert_int_equal(rebalance_plan(&s, moves, 4), 0); /* the emptiest is full */
    free_three[1] = 9;
    reset();
    held[0][1] = true;
    s.holds = holds;
    assert_int_equal(rebalance_plan(&s, moves, 4), 0);
    held[0][1] = false;
    assert_int_equal(rebalance_plan(&s, moves, 4), 1);
    assert_int_equal(moves[0].to, 1);
}

/* The whole chain: loads of a Zipf, copies of the heavy ones, two-choice placement. */
static void heavy_copies_and_two_choices_even_out_a_zipf(void **state)
{
    struct heavy_config config = {.n_instances = N, .n_items_max = 8192};
    static struct heavy_item list[N_ITEMS];
    struct heavy *h;
    double alone[N] = {0};

    (void)state;
    reset();
    assert_ok(heavy_create(&h, &config));
    for (uint32_t i = 0; i < N_ITEMS; i++) {
        double w = 1e6 / (1 + i);
        heavy_add(h, i, w);
        alone[rng_u32(1, i) % N] += w;
    }
    uint32_t n = heavy_list(h, list, N_ITEMS);
    static uint32_t copies[N_ITEMS];
    for (uint32_t i = 0; i < N_ITEMS; i++)
        copies[i] = 1;
    for (uint32_t i = 0; i < n; i++)
        copies[list[i].key] = list[i].n_copies;
    for (uint32_t i = 0; i < N_ITEMS; i++)
        for (uint32_t c = 0; c < copies[i]; c++)
            load[place_new(&all, i * 1000003ull + c, PLACE_NONE, -1)] +=
                heavy_load(h, i) / copies[i];
    assert_true(rebalance_cv(load, N) < 0.15);
    assert_true(rebalance_cv(alone, N) > 0.5);
    heavy_destroy(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_producer_keeps_an_item_while_its_load_is_near_the_mean),
        cmocka_unit_test(full_instances_get_nothing),
        cmocka_unit_test(two_choices_keep_the_fullest_near_the_mean),
        cmocka_unit_test(copies_go_to_different_instances_within_the_budget),
        cmocka_unit_test(holes_are_refilled_after_a_loss),
        cmocka_unit_test(rebalancing_stops_below_its_cv_and_moves_no_more_than_the_budget),
        cmocka_unit_test(even_loads_are_left_alone),
        cmocka_unit_test(a_place_that_holds_the_item_or_is_full_gets_no_copy),
        cmocka_unit_test(heavy_copies_and_two_choices_even_out_a_zipf),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
