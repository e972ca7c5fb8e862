/* A prompt that is complete with a step does not wait for a chunk of another prompt, where one more
 * step is cheap. */
#include "tests/unit/test.h"

#include "engine/sched/scheduler.h"
#include "tests/unit/engine/sched/costs.h"

#define N_SLOTS 80
#define TOKENS_MAX 500
#define TOKEN_S 0.001

struct lot {
    struct scheduler *s;
    struct cost_model cost;
    uint32_t n_known[N_SLOTS], n_computed[N_SLOTS];
    uint64_t now_ns;
};

static uint32_t match(void *arg, uint32_t slot)
{
    return ((struct lot *)arg)->n_computed[slot];
}

static void open_lot(struct lot *w, double fixed_s, double starvation_s)
{
    struct scheduler_config config = {.policy = "fcfs",
                                      .n_slots = N_SLOTS,
                                      .n_running_max = 70,
                                      .n_tokens_max = TOKENS_MAX,
                                      .starvation_s = starvation_s,
                                      .cost = &w->cost};

    *w = (struct lot){.now_ns = 1, .cost = cost_of_lines(fixed_s, TOKEN_S, fixed_s, fixed_s)};
    assert_ok(scheduler_create(&w->s, &config, NULL));
}

static void submit_before(struct lot *w, uint32_t slot, uint32_t n_prompt, int32_t priority)
{
    const struct sched_request r = {.n_known = n_prompt, .n_out_max = 50, .priority = priority};

    w->n_known[slot] = n_prompt;
    scheduler_submit(w->s, slot, &r, w->now_ns);
}

static void submit(struct lot *w, uint32_t slot, uint32_t n_prompt)
{
    submit_before(w, slot, n_prompt, 0);
}

/* Tokens of the slot in the next step. */
static uint32_t step(struct lot *w, uint32_t slot)
{
    const struct sched_view view = {.arg = w,
                                    .n_available = AMPLE_BLOCKS,
                                    .match = match,
                                    .need = one_block_needed,
                                    .reclaimable = one_block_reclaimable};
    uint32_t n_of_slot = 0;
    struct plan plan;

    scheduler_plan(w->s, w->now_ns, &view, &plan);
    assert_int_equal(plan.n_preempt, 0);
    assert_true(plan.n_items > 0);
    scheduler_take(w->s, &plan, w->now_ns);
    w->now_ns += (uint64_t)(plan.step_s * 1e9);
    for (uint32_t i = 0; i < plan.n_items; i++) {
        const struct plan_item *item = &plan.items[i];
        bool got = (w->n_computed[item->slot] += item->n_tokens) == w->n_known[item->slot];

        w->n_known[item->slot] += got;
        n_of_slot += item->slot == slot ? item->n_tokens : 0;
        scheduler_on_tokens(w->s, item->slot, item->n_tokens, got, 1000000, w->now_ns);
    }
    scheduler_check(w->s);
    return n_of_slot;
}

static void a_complete_prompt_does_not_wait_for_a_chunk_of_another(void **state)
{
    struct lot w;

    (void)state;
    open_lot(&w, 0.01, 1e9);
    submit(&w, 0, 30);
    submit(&w, 1, 2000);
    assert_int_equal(step(&w, 1), 0);
    assert_int_equal(step(&w, 1), TOKENS_MAX - 1); /* beside decodes there is nothing to gain */
    submit(&w, 2, 20);
    assert_int_equal(step(&w, 2), 0); /* behind it in the order; the step is full */
    scheduler_destroy(w.s);
}

static void a_costly_step_is_shared(void **state)
{
    struct lot w;

    (void)state;
    open_lot(&w, 1, 1e9); /* one more step costs more than the chunk */
    submit(&w, 0, 30);
    submit(&w, 1, 2000);
    assert_int_equal(step(&w, 1), TOKENS_MAX - 30);
    scheduler_destroy(w.s);
}

static void many_that_wait_share_steps(void **state)
{
    struct lot w;

    (void)state;
    open_lot(&w, 0.01, 1e9);
    submit(&w, 0, 30);
    for (uint32_t i = 1; i < 60; i++) /* each would wait 0.01 s, the first one 0.47 s */
        submit(&w, i, 2000);
    assert_int_equal(step(&w, 1), TOKENS_MAX - 30);
    scheduler_destroy(w.s);
}

static void prompts_that_end_in_the_same_step_are_computed_together(void **state)
{
    struct lot w;

    (void)state;
    open_lot(&w, 0.01, 1e9);
    submit(&w, 0, 30);
    submit(&w, 1, 400);
    assert_int_equal(step(&w, 1), 400);
    scheduler_destroy(w.s);
}

static void a_starving_prompt_is_not_put_off(void **state)
{
    struct lot w;

    (void)state;
    open_lot(&w, 0.01, 0.5);
    submit(&w, 0, 2000);
    for (uint32_t i = 1; i < 4; i++) { /* each goes first, and is complete with its step */
        submit_before(&w, i, 30, -1);
        assert_int_equal(step(&w, 0), 0);
    }
    w.now_ns += 1000000000;
    for (uint32_t i = 4; i < 7; i++) {
        submit_before(&w, i, 30, -1);
        assert_true(step(&w, 0) > 0);
    }
    scheduler_destroy(w.s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_complete_prompt_does_not_wait_for_a_chunk_of_another),
        cmocka_unit_test(a_costly_step_is_shared),
        cmocka_unit_test(many_that_wait_share_steps),
        cmocka_unit_test(prompts_that_end_in_the_same_step_are_computed_together),
        cmocka_unit_test(a_starving_prompt_is_not_put_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
