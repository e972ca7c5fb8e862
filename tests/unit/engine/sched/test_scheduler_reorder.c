/* Cache-aware reordering: waiting sequences with more of their prompt cached go first, inside the
 * policy's order and within bounds. */
#include "tests/unit/test.h"

#include <math.h>

#include "base/check.h"
#include "tests/unit/engine/sched/sched_world.h"

#define N_SLOTS 24

/* One sequence runs at a time, its whole prompt in one step. */
static void open_one(struct world *w, const char *policy, const char *variant, uint32_t window)
{
    world_init(w, policy, N_SLOTS);
    w->config.variant = variant;
    w->config.n_running_max = 1;
    w->config.reorder_window = window;
    world_open(w);
}

static void submit_cached(struct world *w, uint32_t slot, uint32_t n_cached)
{
    world_submit_as(w, slot, 200, 1, &(struct sched_request){.n_cached = n_cached});
}

/* Set the number of the prompt's tokens that are cached now; at the arrival it may have been
 * another one. */
static void cache_now(struct world *w, uint32_t slot, uint32_t n_cached)
{
    w->jobs[slot].n_kept = n_cached;
}

static void the_largest_cached_share_goes_first_among_equals(void **state)
{
    static const struct {
        const char *policy, *variant;
    } orders[] = {{"fcfs", ""},       {"mlfq", "tarn"},
                  {"mlfq", "paper"},  {"skip-join-mlfq", "learned"},
                  {"sjf-prompt", ""}, {"srpt", ""}};

    for (size_t i = 0; i < ARRAY_SIZE(orders); i++)
        for (uint32_t window = 0; window <= 8; window += 8) {
            struct world w;

            (void)state;
            open_one(&w, orders[i].policy, orders[i].variant, window);
            world_submit(&w, 0, 200, 1);
            world_step(&w);
            for (uint32_t slot = 1; slot < 5; slot++)
                submit_cached(&w, slot, 0);
            cache_now(&w, 3, 128); /* slot 0 or another has left it there */
            cache_now(&w, 4, 64);
            world_step(&w);
            assert_true(world_is_planned(&w, window ? 3 : 1));
            world_step(&w);
            assert_true(world_is_planned(&w, window ? 4 : 2));
            world_run_until_empty(&w, 100);
            world_close(&w);
        }
}

static void levels_and_priorities_stay_apart(void **state)
{
    struct world w;

    (void)state;
    open_one(&w, "skip-join-mlfq", "tarn", 8);
    world_submit(&w, 0, 200, 1);
    world_step(&w);
    world_submit(&w, 1, 9, 1); /* the top level */
    submit_cached(&w, 2, 0);   /* a lower one */
    cache_now(&w, 2, 190);
    world_submit_as(&w, 3, 9, 1, &(struct sched_request){.priority = 1});
    cache_now(&w, 3, 8);
    world_step(&w);
    assert_true(world_is_planned(&w, 1));
    world_step(&w);
    assert_true(world_is_planned(&w, 2));
    world_run_until_empty(&w, 100);
    world_close(&w);
}

/* Slot 0 has nothing cached, and there are always others that have. */
static void a_sequence_is_passed_at_most_as_often_as_the_window_says(void **state)
{
    static const char *const policies[] = {"fcfs", "mlfq"};

    for (size_t i = 0; i < ARRAY_SIZE(policies); i++)
        for (uint32_t window = 1; window <= 16; window *= 4) {
            uint32_t n_before = 0;
            struct world w;

            (void)state;
            open_one(&w, policies[i], "", window);
            world_submit(&w, 1, 200, 1);
            world_step(&w);
            submit_cached(&w, 0, 0);
            while (w.jobs[0].is_live) {
                for (uint32_t slot = 1; slot < N_SLOTS; slot++)
                    if (!w.jobs[slot].is_live) {
                        submit_cached(&w, slot, 0);
                        cache_now(&w, slot, 128);
                    }
                world_step(&w);
                n_before++;
                assert_true(n_before <= window + 1);
            }
            assert_int_equal(n_before, window + 1);
            world_close(&w);
        }
}

/* Prompts of two documents in turn, and memory for one of them: the paper's example. */
static void requests_for_one_document_run_one_after_the_other(void **state)
{
    static const char *const policies[] = {"fcfs", "mlfq", "sjf-prompt", "srpt"};

    for (size_t i = 0; i < ARRAY_SIZE(policies); i++)
        for (uint32_t window = 0; window <= 8; window += 8) {
            uint32_t n_hits = 0, document = 0;
            struct world w;

            (void)state;
            open_one(&w, policies[i], "", window);
            world_submit(&w, 8, 200, 1);
            world_step(&w);
            for (uint32_t slot = 0; slot < 8; slot++)
                submit_cached(&w, slot, 0);
            while (w.n_live) {
                for (uint32_t slot = 0; slot < 8; slot++)
                    cache_now(&w, slot, w.now_ns && slot % 2 == document ? 192 : 0);
                world_step(&w);
                if (!w.plan.n_items)
                    continue;
                n_hits += w.plan.items[0].n_cached > 0;
                document = w.plan.items[0].slot % 2;
            }
            assert_int_equal(n_hits, window ? 7 : 1);
            world_close(&w);
        }
}

/* The match of a waiting sequence may shrink as well: its place follows. */
static void evicted_prompts_go_back_behind_others(void **state)
{
    static const char *const policies[] = {"sjf-prompt", "srpt"};

    for (size_t i = 0; i < ARRAY_SIZE(policies); i++) {
        struct world w;

        (void)state;
        open_one(&w, policies[i], "", 8);
        world_submit(&w, 0, 200, 1);
        world_step(&w);
        submit_cached(&w, 1, 128);
        submit_cached(&w, 2, 64);
        cache_now(&w, 1, 0);
        world_step(&w);
        assert_true(world_is_planned(&w, 2));
        world_run_until_empty(&w, 100);
        world_close(&w);
    }
}

static void the_authors_code_is_not_reordered(void **state)
{
    struct world w;

    (void)state;
    open_one(&w, "mlfq", "released", 8);
    world_submit(&w, 0, 200, 1);
    world_step(&w);
    submit_cached(&w, 1, 0);
    submit_cached(&w, 2, 0);
    cache_now(&w, 2, 128);
    world_step(&w);
    assert_true(world_is_planned(&w, 1));
    world_run_until_empty(&w, 100);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_cached_share_goes_first_among_equals),
        cmocka_unit_test(levels_and_priorities_stay_apart),
        cmocka_unit_test(a_sequence_is_passed_at_most_as_often_as_the_window_says),
        cmocka_unit_test(requests_for_one_document_run_one_after_the_other),
        cmocka_unit_test(evicted_prompts_go_back_behind_others),
        cmocka_unit_test(the_authors_code_is_not_reordered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
