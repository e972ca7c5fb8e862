/* lineup.c: plans are carried out on the cache, and scheduler and cache agree after each step. */
#include "engine/lineup.h"

#include "tests/unit/test.h"

#include "tests/unit/cache/cache_prompt.h"

#define N_SLOTS 4
#define STEP_NS 1000000

static struct cache *cache;
static struct lineup lineup;
static struct prompt prompts[N_SLOTS];
static uint64_t now_ns;

static void open_with(uint32_t n_blocks, uint32_t n_running, uint32_t n_tokens_max)
{
    struct cache_config cc = small_config(n_blocks, 0);
    struct lineup_config config = {.cache = NULL,
                                   .scheduler = {.policy = "fcfs",
                                                 .n_slots = N_SLOTS,
                                                 .n_running_max = n_running,
                                                 .n_tokens_max = n_tokens_max}};

    assert_ok(cache_create(&cache, &cc, NULL));
    config.cache = cache;
    assert_ok(lineup_create(&lineup, &config, NULL));
    now_ns = 1;
}

static void open_all(uint32_t n_blocks, uint32_t n_running)
{
    open_with(n_blocks, n_running, 64);
}

static void close_all(void)
{
    for (uint32_t slot = 0; slot < N_SLOTS; slot++)
        if (lineup.seqs[slot].kv)
            lineup_end(&lineup, slot, false, now_ns);
    lineup_destroy(&lineup);
    cache_check(cache);
    cache_destroy(cache);
}

static void submit(uint32_t slot, const char *text, int32_t priority)
{
    struct cache_seq *kv;

    prompt_of(&prompts[slot], text);
    uint32_t n = prompts[slot].p.n_ids;
    assert_ok(cache_seq_open(cache, &prompts[slot].p, n + 40, &kv));
    lineup_submit(&lineup, slot, kv,
                  &(struct sched_request){.n_known = n, .n_out_max = 40, .priority = priority},
                  now_ns);
}

/* End the step; each item that reaches the end of the known ids gets one. */
static void end_step(void)
{
    now_ns += STEP_NS;
    for (uint32_t i = 0; i < lineup.n_items; i++) {
        const struct plan_item *item = &lineup.items[i];
        struct sched_seq q = scheduler_seq(lineup.scheduler, item->slot);
        bool got = q.n_computed + item->n_tokens == q.n_known;

        lineup_ran(&lineup, i, got, STEP_NS, now_ns);
        if (got)
            cache_seq_extend(lineup.seqs[item->slot].kv, 500 + item->slot);
    }
    lineup_check(&lineup);
    cache_check(cache);
}

static uint32_t begin_step(void)
{
    (void)cache_poll(cache, now_ns);
    uint32_t n = lineup_begin(&lineup, now_ns);

    assert_int_equal(lineup.n_failed, 0);
    return n;
}

/* Run one step. Return the items. */
static uint32_t step(void)
{
    uint32_t n = begin_step();

    end_step();
    return n;
}

static struct sched_seq counts(uint32_t slot)
{
    return scheduler_seq(lineup.scheduler, slot);
}

static void a_prompt_is_computed_in_chunks_and_then_decoded(void **state)
{
    (void)state;
    open_all(20, 2);
    submit(0, "ABC", 0); /* 97 tokens, 64 of them in a step */
    assert_true(counts(0).waits && counts(0).n_known == 97 && counts(0).n_computed == 0);
    assert_int_equal(step(), 1);
    assert_true(lineup.items[0].is_first && lineup.items[0].n_tokens == 64);
    assert_true(!counts(0).waits && counts(0).n_known == 97 && counts(0).n_computed == 64);
    assert_int_equal(step(), 1);
    assert_false(lineup.items[0].is_first);
    assert_true(counts(0).n_known == 98 && counts(0).n_computed == 97);
    assert_int_equal(step(), 1);
    assert_true(counts(0).n_known == 99 && counts(0).n_computed == 98);
    lineup_end(&lineup, 0, true, now_ns);
    assert_true(counts(0).n_known == 0 && counts(0).n_computed == 0 && !counts(0).waits);
    close_all();
}

static void what_is_cached_is_attached_and_counted(void **state)
{
    (void)state;
    open_all(20, 2);
    submit(0, "AB", 0);
    while (counts(0).n_computed < 65)
        assert_int_equal(step(), 1);
    lineup_end(&lineup, 0, true, now_ns);
    submit(1, "ABC", 0);
    assert_int_equal(step(), 1);
    assert_true(lineup.items[0].is_first && lineup.items[0].n_cached == 64);
    assert_int_equal(lineup.seqs[1].n_cached, 64);
    assert_int_equal(lineup.seqs[1].n_cached_in[CACHE_DEVICE], 64);
    assert_int_equal(counts(1).n_computed, 97);
    close_all();
}

static void a_preempted_sequence_holds_nothing_and_comes_back(void **state)
{
    (void)state;
    open_all(20, 1);
    submit(0, "AB", 5);
    assert_int_equal(step(), 1);
    submit(1, "CD", 0); /* more important, and there is one place */
    uint32_t n = step();
    assert_int_equal(lineup.n_preempted, 1);
    assert_true(counts(0).waits && counts(0).n_computed == 0);
    if (n == 0)
        assert_int_equal(step(), 1);
    assert_int_equal(lineup.items[0].slot, 1);
    lineup_end(&lineup, 1, true, now_ns);
    assert_int_equal(step(), 1);
    assert_true(lineup.items[0].slot == 0 && lineup.items[0].admit && !lineup.items[0].is_first);
    assert_false(counts(0).waits);
    struct scheduler_stats stats;
    scheduler_stats(lineup.scheduler, &stats);
    assert_int_equal(stats.n_preempted_for_place + stats.n_preempted_for_memory, 1);
    close_all();
}

/* --- one computation of what several prompts share --- */

static char long_text[41];

/* A text of n blocks, all different. */
static const char *text_of(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        long_text[i] = (char)('A' + i % 26 + (i / 26) * 32);
    long_text[n] = '\0';
    return long_text;
}

static uint32_t n_run_in_step(void)
{
    uint32_t sum = 0;

    (void)step();
    for (uint32_t i = 0; i < lineup.n_items; i++)
        sum += lineup.items[i].n_tokens;
    return sum;
}

static void prompts_that_begin_alike_are_computed_once(void **state)
{
    uint32_t n_run = 0, n = 0;

    (void)state;
    open_with(100, 4, 1600);
    submit(0, text_of(20), 0);
    submit(1, text_of(20), 0);
    submit(2, text_of(20), 0);
    while (counts(0).n_known + counts(1).n_known + counts(2).n_known < 3 * 641 + 3 && n++ < 100)
        n_run += n_run_in_step();
    assert_in_range(n_run, 641, 641 + 3 * 64);
    close_all();
}

static void a_prompt_goes_on_alone_when_the_other_one_is_cancelled(void **state)
{
    uint32_t n = 0;

    (void)state;
    open_with(100, 4, 200);
    submit(0, text_of(20), 0);
    submit(1, text_of(20), 0);
    for (int i = 0; i < 2; i++)
        (void)step();
    assert_true(counts(1).waits && counts(0).n_computed == 400);
    lineup_end(&lineup, 0, false, now_ns);
    while (counts(1).n_known < 642) {
        assert_in_range(n_run_in_step(), 1, 200); /* no step is empty */
        assert_true(n++ < 20);
    }
    assert_int_equal(lineup.seqs[1].n_cached, 400); /* all that was computed */
    close_all();
}

/* A more important sequence takes all tokens of the steps and overtakes the first one, which then
 * finds what was computed meanwhile. */
static void a_prefill_that_was_overtaken_finds_what_others_computed(void **state)
{
    uint32_t n_run = 0, n = 0;

    (void)state;
    open_all(100, 4);
    submit(0, text_of(20), 5);
    n_run += n_run_in_step();
    submit(1, text_of(20), 0);
    while (counts(0).n_known < 642 && n++ < 60)
        n_run += n_run_in_step();
    assert_int_equal(counts(0).n_known, 642);
    assert_in_range(n_run, 641, 641 + 200 + n);
    close_all();
}

/* Begin a step in which sequence `lost` loses a query, and the others run. */
static void step_that_loses(uint32_t lost)
{
    uint32_t n = lineup_begin(&lineup, now_ns);

    now_ns += STEP_NS;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = lineup.items[i].slot;
        struct sched_seq q = scheduler_seq(lineup.scheduler, slot);
        bool got = q.n_computed + lineup.items[i].n_tokens == q.n_known;

        if (slot == lost) {
            lineup_lost(&lineup, i, now_ns);
            continue;
        }
        lineup_ran(&lineup, i, got, STEP_NS, now_ns);
        if (got)
            cache_seq_extend(lineup.seqs[slot].kv, 500 + slot);
    }
    lineup_check(&lineup);
    cache_check(cache);
}

static void a_sequence_that_lost_its_step_waits_and_computes_it_again(void **state)
{
    (void)state;
    open_all(20, 2);
    submit(0, "A", 0);
    submit(1, "BC", 0);
    while (counts(0).n_computed < 34 || counts(1).n_computed < 67)
        assert_int_equal(step() > 0, 1);
    uint32_t known = counts(0).n_known, computed = counts(1).n_computed;
    step_that_loses(0);
    assert_true(counts(0).waits && counts(0).n_computed == 0 && counts(0).n_known == known);
    assert_true(!counts(1).waits && counts(1).n_computed == computed + 1);
    assert_int_equal(step(), 2);
    assert_true(!counts(0).waits && counts(0).n_known == known + 1);
    for (uint32_t i = 0; i < lineup.n_items; i++)
        if (lineup.items[i].slot == 0)
            assert_true(lineup.items[i].admit && !lineup.items[i].is_first);
    close_all();
}

static void a_prompt_that_lost_its_first_chunk_is_admitted_again(void **state)
{
    (void)state;
    open_all(20, 1);
    submit(0, "ABC", 0);
    step_that_loses(0);
    assert_true(counts(0).waits && counts(0).n_computed == 0);
    assert_int_equal(step(), 1);
    assert_int_equal(counts(0).n_computed, 64);
    close_all();
}

static void a_plan_made_ahead_is_used_unless_somebody_came(void **state)
{
    (void)state;
    open_all(20, 2);
    submit(0, "AB", 0);
    assert_int_equal(step(), 1);
    lineup_ahead(&lineup, now_ns);
    assert_int_equal(step(), 1);
    assert_int_equal(lineup.n_planned_ahead, 1);
    lineup_ahead(&lineup, now_ns);
    submit(1, "C", 0);
    assert_int_equal(step(), 2);
    assert_int_equal(lineup.n_planned_ahead, 1);
    close_all();
}

/* --- a step that follows --- */

/* arg: the slot that may not, or NULL. */
static bool may(const void *arg, uint32_t slot)
{
    return !arg || *(const uint32_t *)arg != slot;
}

/* Plan the next step, and begin it before the one under way has ended. */
static bool follow(const uint32_t *but)
{
    lineup_ahead(&lineup, now_ns);
    return lineup_follow(&lineup, may, but, now_ns);
}

static uint32_t n_slots_of(uint32_t slot)
{
    struct cache_view view;

    cache_seq_view(lineup.seqs[slot].kv, &view);
    return view.n_slots;
}

/* Two sequences that decode. */
static void open_decodes(uint32_t n_blocks)
{
    open_all(n_blocks, 3);
    submit(0, "A", 0);
    submit(1, "B", 0);
    assert_int_equal(step(), 2);
    assert_int_equal(step(), 2);
    assert_true(counts(0).n_known == 35 && counts(1).n_known == 34);
}

static void a_step_follows_before_the_other_has_ended(void **state)
{
    (void)state;
    open_decodes(20);
    assert_int_equal(begin_step(), 2);
    for (uint32_t i = 0; i < 70; i++) { /* across ends of blocks */
        uint32_t known = counts(0).n_known;
        if (i == 37) { /* the 40 tokens of cache_seq_open() */
            lineup_end(&lineup, 0, true, now_ns);
            break;
        }
        assert_true(follow(NULL));
        assert_int_equal(lineup.n_next, 2);
        assert_true(counts(0).n_known == known && n_slots_of(0) == known + 1);
        end_step();
        assert_int_equal(counts(0).n_known, known + 1);
        lineup_resume(&lineup);
        assert_true(lineup.n_items == 2 && lineup.n_next == 0);
    }
    assert_true(lineup.n_planned_ahead == 37);
    close_all();
}

static void an_end_takes_a_sequence_out_of_the_step_that_follows(void **state)
{
    (void)state;
    open_decodes(20);
    assert_int_equal(begin_step(), 2);
    assert_true(follow(NULL));
    end_step();
    lineup_end(&lineup, 0, true, now_ns);
    assert_true(lineup.n_next == 1 && lineup.next[0].slot == 1);
    submit(0, "C", 0); /* another one in the same slot */
    lineup_check(&lineup);
    lineup_resume(&lineup);
    assert_int_equal(lineup.n_items, 1);
    assert_false(follow(NULL)); /* it is to be admitted */
    end_step();
    assert_true(counts(0).waits && counts(1).n_known == 36);
    assert_int_equal(step(), 2);
    lineup_end(&lineup, 1, false, now_ns);
    close_all();
}

static void a_step_that_needs_more_than_ids_waits(void **state)
{
    const uint32_t first = 0;

    (void)state;
    open_decodes(5); /* one is left */
    assert_int_equal(begin_step(), 2);
    assert_false(follow(&first)); /* the owner says no */
    submit(2, "C", -1);
    assert_false(follow(NULL)); /* it takes the place of others */
    lineup_end(&lineup, 2, false, now_ns);
    end_step();
    while (counts(0).n_known < 64) { /* the next but one needs a block, and so does 1 */
        assert_int_equal(begin_step(), 2);
        end_step();
    }
    assert_int_equal(begin_step(), 2);
    bool follows = follow(NULL); /* takes the last block */
    assert_true(follows);
    end_step();
    lineup_resume(&lineup);
    assert_false(follow(NULL)); /* it preempts one of the two */
    end_step();
    close_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_is_computed_in_chunks_and_then_decoded),
        cmocka_unit_test(what_is_cached_is_attached_and_counted),
        cmocka_unit_test(a_preempted_sequence_holds_nothing_and_comes_back),
        cmocka_unit_test(prompts_that_begin_alike_are_computed_once),
        cmocka_unit_test(a_prompt_goes_on_alone_when_the_other_one_is_cancelled),
        cmocka_unit_test(a_prefill_that_was_overtaken_finds_what_others_computed),
        cmocka_unit_test(a_sequence_that_lost_its_step_waits_and_computes_it_again),
        cmocka_unit_test(a_prompt_that_lost_its_first_chunk_is_admitted_again),
        cmocka_unit_test(a_plan_made_ahead_is_used_unless_somebody_came),
        cmocka_unit_test(a_step_follows_before_the_other_has_ended),
        cmocka_unit_test(an_end_takes_a_sequence_out_of_the_step_that_follows),
        cmocka_unit_test(a_step_that_needs_more_than_ids_waits),
    };

    if (!open_device())
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return rc;
}
