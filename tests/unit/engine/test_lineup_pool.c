/* lineup.c in a pool: what a request finds that had to wait for its turn, and which of those that
 * wait ask the pool. */
#include "engine/lineup.h"

#include "tests/unit/test.h"

#include "tests/unit/cache/pool/joined_caches.h"

#define N_SLOTS 12
#define B KV_BLOCK_TOKENS

static struct lineup lineup;
static struct prompt prompts[N_SLOTS];

static void open_lineup(struct cache *c)
{
    struct lineup_config config = {
        .cache = c,
        .load_timeout_ns = UINT64_C(1000) * STEP_NS,
        .scheduler = {
            .policy = "fcfs", .n_slots = N_SLOTS, .n_running_max = 1, .n_tokens_max = 64}};

    assert_ok(lineup_create(&lineup, &config, NULL));
}

static void submit(struct cache *c, uint32_t slot, const char *text)
{
    struct cache_seq *kv;

    prompt_of(&prompts[slot], text);
    uint32_t n = prompts[slot].p.n_ids;
    assert_ok(cache_seq_open(c, &prompts[slot].p, n + 40, &kv));
    lineup_submit(&lineup, slot, kv, &(struct sched_request){.n_known = n, .n_out_max = 40},
                  fake_now);
}

/* A millisecond passes, in which the lineup plans and computes a step. */
static void step(void)
{
    step_all();
    uint32_t n = lineup_begin(&lineup, fake_now);
    for (uint32_t i = 0; i < n; i++) {
        const struct plan_item *item = &lineup.items[i];
        struct sched_seq q = scheduler_seq(lineup.scheduler, item->slot);
        bool got = q.n_computed + item->n_tokens == q.n_known;

        lineup_ran(&lineup, i, got, STEP_NS, fake_now);
        if (got)
            cache_seq_extend(lineup.seqs[item->slot].kv, 500 + item->slot);
    }
    lineup_check(&lineup);
}

static void end_all(void)
{
    for (uint32_t slot = 0; slot < N_SLOTS; slot++)
        if (lineup.seqs[slot].kv)
            lineup_end(&lineup, slot, false, fake_now);
    lineup_destroy(&lineup);
}

static bool runs(uint32_t slot)
{
    return !scheduler_seq(lineup.scheduler, slot).waits;
}

static void a_request_that_waited_finds_what_was_computed_elsewhere_meanwhile(void **state)
{
    struct cache *a = join(32, 0), *b = join(32, 0);

    (void)state;
    open_lineup(b);
    submit(b, 0, "XYZ");
    submit(b, 1, "ABCDEF");
    for (int i = 0; i < 20; i++)
        step();
    assert_true(runs(0) && !cache_seq_is_loading(lineup.seqs[1].kv)); /* nothing was found */
    ask(a, "ABCD");
    lineup_end(&lineup, 0, true, fake_now);
    for (int i = 0; i < 100 && !runs(1); i++)
        step();
    assert_int_equal(lineup.seqs[1].n_cached, 4 * B);
    end_all();
}

/* One request runs. Of the eleven that wait only the next ones ask the pool; in the end all have
 * asked. */
static void a_request_far_behind_does_not_ask_yet(void **state)
{
    static const char *const texts[N_SLOTS] = {"AA", "BB", "CC", "DD", "EE", "FF",
                                               "GG", "HH", "II", "JJ", "KK", "LL"};
    struct cache *b = join(64, 0);
    uint32_t n_ahead = cache_n_load_ahead(b, 1);

    (void)state;
    assert_true(n_ahead < N_SLOTS - 1);
    open_lineup(b);
    for (uint32_t slot = 0; slot < N_SLOTS; slot++)
        submit(b, slot, texts[slot]);
    for (int i = 0; i < 20; i++)
        step();
    assert_true(runs(0));
    for (uint32_t slot = 1; slot < N_SLOTS; slot++)
        assert_int_equal(cache_seq_is_loading(lineup.seqs[slot].kv), slot > n_ahead);
    for (uint32_t slot = 0; slot < N_SLOTS; slot++) {
        for (int i = 0; i < 100 && !runs(slot); i++)
            step();
        assert_true(runs(slot));
        lineup_end(&lineup, slot, true, fake_now);
    }
    end_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_request_that_waited_finds_what_was_computed_elsewhere_meanwhile,
                                  leave_world),
        cmocka_unit_test_teardown(a_request_far_behind_does_not_ask_yet, leave_world),
    };

    if (!open_device())
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return failed;
}
