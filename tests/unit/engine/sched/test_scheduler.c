/* The scheduler without time: its view shows a toy cache with a fixed number of blocks. */
#include "tests/unit/test.h"

#include <string.h>

#include "base/rng.h"
#include "engine/sched/scheduler.h"

#define N_SLOTS 64
#define BLOCK 32

struct toy {
    uint32_t n_blocks;
    uint32_t held[N_SLOTS];       /* blocks */
    uint32_t n_slots_of[N_SLOTS]; /* tokens with a slot */
    uint32_t n_known[N_SLOTS];
    uint32_t n_computed[N_SLOTS];
    uint32_t n_match[N_SLOTS];  /* cached tokens that it finds */
    uint32_t n_target[N_SLOTS]; /* finished when n_known reaches it */
    uint32_t n_loading[N_SLOTS];
};

static struct toy toy;
static struct scheduler *sched;

static uint32_t toy_match(void *arg, uint32_t slot)
{
    return ((struct toy *)arg)->n_match[slot];
}

static uint32_t toy_need(void *arg, uint32_t slot, uint32_t n_tokens)
{
    const struct toy *t = arg;
    uint32_t blocks = (t->n_slots_of[slot] + n_tokens + BLOCK - 1) / BLOCK;

    return blocks - t->held[slot];
}

static uint32_t toy_reclaimable(void *arg, uint32_t slot)
{
    return ((struct toy *)arg)->held[slot];
}

/* So often as it is asked. */
static bool toy_is_loading(void *arg, uint32_t slot)
{
    struct toy *t = arg;

    return t->n_loading[slot] > 0 && t->n_loading[slot]-- > 0;
}

static uint32_t toy_available(void)
{
    uint32_t n = toy.n_blocks;

    for (uint32_t i = 0; i < N_SLOTS; i++)
        n -= toy.held[i];
    return n;
}

static void start(uint32_t n_running_max, uint32_t n_tokens_max, uint32_t n_blocks)
{
    struct scheduler_config c = {.policy = "fcfs",
                                 .n_slots = N_SLOTS,
                                 .n_running_max = n_running_max,
                                 .n_tokens_max = n_tokens_max};

    memset(&toy, 0, sizeof toy);
    toy.n_blocks = n_blocks;
    assert_ok(scheduler_create(&sched, &c, NULL));
}

static void submit(uint32_t slot, uint32_t n_prompt, uint32_t n_out, int32_t priority)
{
    toy.n_known[slot] = n_prompt;
    toy.n_target[slot] = n_prompt + n_out;
    toy.n_computed[slot] = toy.n_slots_of[slot] = toy.held[slot] = 0;
    toy.n_loading[slot] = 0;
    scheduler_submit(
        sched, slot,
        &(struct sched_request){.n_known = n_prompt, .n_out_max = n_out, .priority = priority}, 0);
}

static void finish(uint32_t slot)
{
    toy.held[slot] = toy.n_slots_of[slot] = 0;
    scheduler_on_finish(sched, slot, 0);
}

/* Run a step as the engine does, and check the promises of every plan. */
static struct plan step(uint32_t n_tokens_max)
{
    struct sched_view view = {.arg = &toy,
                              .n_available = toy_available(),
                              .match = toy_match,
                              .need = toy_need,
                              .reclaimable = toy_reclaimable,
                              .is_loading = toy_is_loading};
    struct plan plan;
    uint32_t sum = 0;
    bool seen[N_SLOTS] = {0};

    scheduler_plan(sched, 0, &view, &plan);
    scheduler_check(sched);
    scheduler_take(sched, &plan, 0);
    scheduler_check(sched);
    for (uint32_t i = 0; i < plan.n_preempt; i++) {
        uint32_t slot = plan.preempt[i];
        toy.held[slot] = toy.n_slots_of[slot] = toy.n_computed[slot] = 0;
    }
    for (uint32_t i = 0; i < plan.n_items; i++) {
        const struct plan_item *item = &plan.items[i];
        uint32_t need = toy_need(&toy, item->slot, item->n_tokens);
        assert_false(seen[item->slot]);
        seen[item->slot] = true;
        assert_true(item->n_tokens >= 1);
        assert_true(toy.n_computed[item->slot] + item->n_tokens <= toy.n_known[item->slot]);
        assert_true(need <= toy_available()); /* the plan fits into the pool */
        toy.held[item->slot] += need;
        toy.n_slots_of[item->slot] += item->n_tokens;
        sum += item->n_tokens;
    }
    assert_int_equal(sum, plan.n_tokens);
    assert_true(sum <= n_tokens_max);
    for (uint32_t i = 0; i < plan.n_items; i++) {
        uint32_t slot = plan.items[i].slot, n = plan.items[i].n_tokens;
        toy.n_computed[slot] += n;
        bool got = toy.n_computed[slot] == toy.n_known[slot];
        toy.n_known[slot] += got;
        scheduler_on_tokens(sched, slot, n, got, 1000000, 0);
    }
    scheduler_check(sched);
    return plan;
}

static void an_unknown_policy_is_named(void **state)
{
    struct scheduler_config c = {
        .policy = "lifo", .n_slots = 1, .n_running_max = 1, .n_tokens_max = 1};
    struct buf why;

    (void)state;
    buf_init(&why, BUF_WHY_MAX);
    assert_int_equal(scheduler_create(&sched, &c, &why), ERR_INVALID);
    assert_non_null(strstr(buf_str(&why), "lifo"));
    assert_non_null(strstr(buf_str(&why), "fcfs"));
    buf_fini(&why);
}

static void first_come_is_first_served(void **state)
{
    (void)state;
    start(2, 100, 1000);
    submit(5, 10, 3, 0);
    submit(1, 10, 3, 0);
    submit(9, 10, 3, 0);
    struct plan p = step(100);
    assert_int_equal(p.n_items, 2);
    assert_int_equal(p.items[0].slot, 5);
    assert_int_equal(p.items[1].slot, 1);
    finish(5);
    p = step(100);
    assert_int_equal(p.items[0].slot, 1); /* its decode first */
    assert_int_equal(p.items[1].slot, 9);
    assert_int_equal(scheduler_n_running(sched), 2);
    scheduler_destroy(sched);
}

static void lower_priority_numbers_go_first(void **state)
{
    (void)state;
    start(1, 100, 1000);
    submit(1, 10, 3, 5);
    submit(2, 10, 3, 0);
    submit(3, 10, 3, -5);
    assert_int_equal(step(100).items[0].slot, 3);
    finish(3);
    assert_int_equal(step(100).items[0].slot, 2);
    scheduler_destroy(sched);
}

static void a_long_prefill_never_holds_up_decodes(void **state)
{
    (void)state;
    start(8, 64, 1000);
    submit(2, 20, 50, 0);
    step(64);                /* it decodes from here on */
    submit(1, 10000, 5, -1); /* long, and before it in the order of service */
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t before = toy.n_known[2], chunk = toy.n_computed[1];
        step(64);
        assert_int_equal(toy.n_known[2], before + 1);
        assert_int_equal(toy.n_computed[1], chunk + 63); /* and the budget is used up */
    }
    scheduler_destroy(sched);
}

static void a_full_pool_preempts_the_last_in_line(void **state)
{
    (void)state;
    start(8, 1000, 5);
    submit(1, 60, 100, 0);
    submit(2, 60, 100, 0);
    step(1000); /* two blocks each, and one in reserve */
    for (int i = 0; i < 8; i++) {
        struct plan p = step(1000);
        if (p.n_preempt) {
            assert_int_equal(p.n_preempt, 1);
            assert_int_equal(p.preempt[0], 2);
            assert_int_equal(p.n_items, 1);
            assert_int_equal(p.items[0].slot, 1);
            assert_int_equal(scheduler_n_waiting(sched), 1);
            scheduler_destroy(sched);
            return;
        }
    }
    fail_msg("nobody was preempted");
}

/* A short request runs first, and is preempted as soon as the long one fits. */
static void a_request_that_does_not_fit_runs_as_soon_as_it_fits(void **state)
{
    (void)state;
    start(8, 1000, 10);
    submit(1, 200, 10, 0); /* 7 blocks */
    submit(2, 300, 10, 0); /* all 10 */
    submit(3, 10, 10, 0);
    struct plan p = step(1000);
    assert_int_equal(p.n_items, 2);
    assert_true(p.items[0].slot == 1 && p.items[1].slot == 3);
    assert_int_equal(step(1000).n_preempt, 0); /* for nothing: it would not be enough */
    finish(1);
    p = step(1000);
    assert_int_equal(p.n_preempt, 1);
    assert_int_equal(p.preempt[0], 3);
    p = step(1000); /* once it is known what that gave back */
    assert_int_equal(p.n_items, 1);
    assert_int_equal(p.items[0].slot, 2);
    scheduler_destroy(sched);
}

static void a_cancelled_slot_is_forgotten_in_every_state(void **state)
{
    (void)state;
    start(1, 10, 100);
    submit(1, 50, 5, 0);
    submit(2, 50, 5, 0);
    step(10);
    scheduler_on_cancel(sched, 1, 0); /* in its prefill */
    toy.held[1] = toy.n_slots_of[1] = 0;
    scheduler_on_cancel(sched, 2, 0); /* waiting */
    assert_int_equal(step(10).n_items, 0);
    submit(1, 5, 5, 0);
    assert_int_equal(step(10).items[0].slot, 1);
    scheduler_destroy(sched);
}

static void waiting_requests_are_listed_in_the_order_of_service(void **state)
{
    static const uint32_t order[] = {7, 2, 9, 1};

    (void)state;
    start(1, 100, 4);
    submit(4, 60, 100, -9); /* runs */
    step(100);
    submit(1, 10, 3, 5);
    submit(2, 10, 3, 0);
    submit(7, 10, 3, -5);
    submit(9, 10, 3, 0);
    assert_int_equal(scheduler_n_waiting(sched), 4);
    uint32_t slot = UINT32_MAX;
    for (uint32_t i = 0; i < 4; i++)
        assert_true(scheduler_next_waiting(sched, &slot) && slot == order[i]);
    assert_false(scheduler_next_waiting(sched, &slot));
    finish(4);
    assert_int_equal(step(100).items[0].slot, 7);
    scheduler_on_cancel(sched, 9, 0);
    assert_int_equal(scheduler_n_waiting(sched), 2);
    slot = UINT32_MAX;
    assert_true(scheduler_next_waiting(sched, &slot) && slot == 2);
    assert_true(scheduler_next_waiting(sched, &slot) && slot == 1);
    scheduler_destroy(sched);
}

static void a_preempted_job_waits_at_its_old_place(void **state)
{
    (void)state;
    start(2, 1000, 4);
    submit(1, 60, 100, 0);
    submit(2, 60, 100, 0);
    submit(3, 60, 100, 0);
    step(1000); /* two blocks each: the pool is full */
    for (int i = 0; i < 8 && scheduler_n_waiting(sched) < 2; i++)
        step(1000);
    assert_int_equal(scheduler_n_waiting(sched), 2);
    uint32_t slot = UINT32_MAX;
    assert_true(scheduler_next_waiting(sched, &slot) && slot == 2);
    assert_true(scheduler_next_waiting(sched, &slot) && slot == 3);
    scheduler_destroy(sched);
}

/* After a failed copy, tokens that were planned as cached are computed. */
static void tokens_that_were_not_attached_are_computed(void **state)
{
    struct sched_view view = {.arg = &toy,
                              .n_available = 100,
                              .match = toy_match,
                              .need = toy_need,
                              .reclaimable = toy_reclaimable};
    struct plan plan;
    uint32_t n = 0;

    (void)state;
    start(4, 50, 100);
    submit(3, 200, 5, 0);
    toy.n_match[3] = toy.n_slots_of[3] = 96;
    scheduler_plan(sched, 0, &view, &plan);
    assert_true(plan.n_items == 1 && plan.items[0].admit);
    assert_int_equal(plan.items[0].n_cached, 96);
    assert_int_equal(plan.items[0].n_tokens, 50);
    scheduler_take(sched, &plan, 0);
    scheduler_on_attach(sched, 3, 32, 50);
    scheduler_on_tokens(sched, 3, 50, 0, 1, 0); /* at 82, not at 146 */
    while (n < 200 - 82) {
        scheduler_plan(sched, 0, &view, &plan);
        assert_true(plan.n_items == 1 && !plan.items[0].admit);
        n += plan.items[0].n_tokens;
        scheduler_take(sched, &plan, 0);
        scheduler_on_tokens(sched, 3, plan.items[0].n_tokens, n == 200 - 82, 1, 0);
    }
    assert_int_equal(n, 200 - 82);
    scheduler_plan(sched, 0, &view, &plan);
    assert_int_equal(plan.items[0].n_tokens, 1); /* it decodes */
    scheduler_destroy(sched);
}

/* A sequence whose KV is being read does not delay others, and keeps its place in the order. */
static void a_loading_sequence_does_not_delay_others(void **state)
{
    struct plan plan;

    (void)state;
    start(2, 1000, 100);
    for (uint32_t slot = 0; slot < 4; slot++)
        submit(slot, 40, 3, 0);
    toy.n_loading[0] = 2;
    plan = step(1000);
    assert_int_equal(plan.n_items, 2);
    assert_true(plan.items[0].slot == 1 && plan.items[1].slot == 2);
    assert_int_equal(toy.n_loading[0], 1);
    finish(1);
    plan = step(1000); /* 3 comes, since 0 is not ready yet */
    assert_int_equal(plan.n_items, 2);
    assert_true(plan.items[0].slot == 3 || plan.items[1].slot == 3);
    plan = step(1000); /* it is, and stands before those that run */
    assert_int_equal(plan.n_items, 2);
    assert_true(plan.items[0].slot == 0 || plan.items[1].slot == 0);
    assert_true(plan.n_preempt == 1 && plan.preempt[0] == 3);
    scheduler_destroy(sched);
}

/* A plan examines only a few loading sequences, however many there are. */
static void a_plan_examines_few_loading_sequences(void **state)
{
    uint32_t n_asked = 0;

    (void)state;
    start(2, 1000, 100);
    for (uint32_t slot = 0; slot < N_SLOTS; slot++) {
        submit(slot, 10, 3, 0);
        toy.n_loading[slot] = 1000;
    }
    assert_int_equal(step(1000).n_items, 0);
    for (uint32_t slot = 0; slot < N_SLOTS; slot++)
        n_asked += 1000 - toy.n_loading[slot];
    assert_true(n_asked > 0 && n_asked <= 64);
    scheduler_destroy(sched);
}

/* Random loads on random pools: every plan fits, and all sequences finish. */
static void every_sequence_finishes_under_random_load(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 60; round++) {
        uint32_t budget = 1 + rng_u32(1, round) % 200, n_blocks = 40 + rng_u32(2, round) % 100;
        uint32_t n_done = 0, n_sent = 0, steps = 0;
        bool live[N_SLOTS] = {0};
        start(1 + rng_u32(3, round) % 16, budget, n_blocks);
        while (n_done < 200) {
            for (uint32_t slot = 0; slot < N_SLOTS && n_sent < 200; slot++)
                if (!live[slot] && rng_u32(4, round * 1000003 + steps * 64 + slot) % 8 == 0) {
                    uint32_t r = rng_u32(5, round * 1000 + n_sent++);
                    submit(slot, 1 + r % 900, 1 + (r >> 16) % 100, (int32_t)(r >> 28) % 3);
                    toy.n_loading[slot] = r % 5 == 0 ? r % 7 : 0;
                    live[slot] = true;
                }
            step(budget);
            for (uint32_t slot = 0; slot < N_SLOTS; slot++)
                if (live[slot] && toy.n_known[slot] >= toy.n_target[slot]) {
                    finish(slot);
                    live[slot] = false;
                    n_done++;
                }
            assert_true(++steps < 400000);
        }
        assert_int_equal(toy_available(), n_blocks);
        scheduler_destroy(sched);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_policy_is_named),
        cmocka_unit_test(first_come_is_first_served),
        cmocka_unit_test(lower_priority_numbers_go_first),
        cmocka_unit_test(a_long_prefill_never_holds_up_decodes),
        cmocka_unit_test(a_full_pool_preempts_the_last_in_line),
        cmocka_unit_test(a_request_that_does_not_fit_runs_as_soon_as_it_fits),
        cmocka_unit_test(a_cancelled_slot_is_forgotten_in_every_state),
        cmocka_unit_test(waiting_requests_are_listed_in_the_order_of_service),
        cmocka_unit_test(a_preempted_job_waits_at_its_old_place),
        cmocka_unit_test(tokens_that_were_not_attached_are_computed),
        cmocka_unit_test(a_loading_sequence_does_not_delay_others),
        cmocka_unit_test(a_plan_examines_few_loading_sequences),
        cmocka_unit_test(every_sequence_finishes_under_random_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
