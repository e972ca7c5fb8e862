/* lineup.c in a pool under random faults, in simulated time: no request is slower than computing
 * everything itself plus the deadline, to the millisecond, and all bytes that it finds are right.
 *
 * Each of three servers computes a block per millisecond, in steps of up to two blocks. A client
 * of a server sends the next request when it has the answer. No time of the machine is measured. */
#include "engine/lineup.h"

#include "base/rng.h"
#include "tests/unit/test.h"
#include "tests/unit/cache/pool/joined_caches.h"

#ifndef N_REQUESTS
#define N_REQUESTS 500
#endif
#define N_SERVERS 3
#define N_SLOTS_MAX 3
#define N_OUT 3
#define STEP_TOKENS (2 * KV_BLOCK_TOKENS)
#define CACHE_BLOCKS 72
#define N_BLOCKS_MIN 4
#define N_BLOCKS_MAX 14
#define N_FAMILIES 6 /* of prompts that begin alike */
#define DEADLINE_MS 25

struct question {
    bool is_open;
    struct prompt q;
    uint32_t n_answered, n_computed;
    uint64_t began_ms;
    uint32_t idle_ms; /* of its server, while it was inside */
};

struct server {
    struct cache *cache;
    struct lineup lineup;
    struct question requests[N_SLOTS_MAX];
    uint32_t n_items; /* of the step that runs */
    uint64_t busy_until_ms;
};

static struct server servers[N_SERVERS];
static uint64_t seed, n_draws, now_ms;
static uint32_t n_submitted, n_found, n_waited, n_late;

static uint32_t draw(uint32_t below)
{
    return rng_u32(seed, n_draws++) % below;
}

/* --- what is computed --- */

/* The milliseconds of a step. */
static uint32_t step_ms(uint32_t n_tokens)
{
    return 1 + n_tokens / KV_BLOCK_TOKENS;
}

/* The time of a request alone on a server without a pool and without KV. */
static uint32_t alone_ms(uint32_t n_tokens)
{
    uint32_t ms = (N_OUT - 1) * step_ms(1);

    for (; n_tokens > STEP_TOKENS; n_tokens -= STEP_TOKENS)
        ms += step_ms(STEP_TOKENS);
    return ms + step_ms(n_tokens);
}

/* Compare the blocks that were found, and write those that the item computes. */
static void run_item(struct server *s, const struct plan_item *item)
{
    struct question *r = &s->requests[item->slot];
    size_t bytes = kv_block_bytes(cache_pool(s->cache));
    uint32_t n_before = scheduler_seq(s->lineup.scheduler, item->slot).n_computed;
    unsigned char kv[4096];
    struct cache_view v;

    cache_seq_view(s->lineup.seqs[item->slot].kv, &v);
    for (uint32_t k = 0; k < r->q.p.n_keys; k++) {
        make_kv(kv, &r->q.keys[k], bytes);
        if ((k + 1) * KV_BLOCK_TOKENS <= n_before)
            assert_memory_equal(block_at(s->cache, v.blocks[k]), kv, bytes);
        else if (k * KV_BLOCK_TOKENS < n_before + item->n_tokens)
            memcpy(block_at(s->cache, v.blocks[k]), kv, bytes);
    }
    n_found += item->n_cached;
    r->n_computed += item->n_tokens;
}

/* --- a server --- */

static void open_server(struct server *s, uint32_t n_slots)
{
    struct cache_config config = pool_config_of(CACHE_BLOCKS, 0, false);
    struct lineup_config lineup = {.load_timeout_ns = (uint64_t)DEADLINE_MS * STEP_NS,
                                   .scheduler = {.policy = "fcfs",
                                                 .n_slots = n_slots,
                                                 .n_running_max = n_slots,
                                                 .n_tokens_max = STEP_TOKENS}};

    *s = (struct server){0};
    config.always_copy = false;
    lineup.cache = s->cache = join_with(&config);
    fake_of(s->cache)->names_all = true;
    assert_ok(lineup_create(&s->lineup, &lineup, NULL));
}

static void submit(struct server *s, uint32_t slot)
{
    struct question *r = &s->requests[slot];
    uint32_t n = N_BLOCKS_MIN + draw(N_BLOCKS_MAX - N_BLOCKS_MIN + 1), i, family = draw(N_FAMILIES);
    uint32_t n_alike = draw(n + 1);
    char text[N_BLOCKS_MAX + 1] = "";
    struct cache_seq *kv;

    for (i = 0; i < n; i++)
        text[i] = (char)('A' + (i < n_alike ? family : draw(26)));
    *r = (struct question){.is_open = true, .began_ms = now_ms};
    prompt_of(&r->q, text);
    assert_ok(cache_seq_open(s->cache, &r->q.p, r->q.p.n_ids + N_OUT, &kv));
    lineup_submit(&s->lineup, slot, kv,
                  &(struct sched_request){.n_known = r->q.p.n_ids, .n_out_max = N_OUT}, fake_now);
    n_submitted++;
}

/* The last token is there: the request has been quick enough. */
static void answer(struct server *s, uint32_t slot, bool is_alone)
{
    struct question *r = &s->requests[slot];
    uint64_t took_ms = now_ms - r->began_ms;

    assert_true(r->n_computed <= r->q.p.n_ids + N_OUT - 1);
    assert_true(r->idle_ms <= DEADLINE_MS);
    if (is_alone)
        assert_true(took_ms <= alone_ms(r->q.p.n_ids) + DEADLINE_MS);
    n_waited += r->idle_ms > 0;
    n_late += r->idle_ms == DEADLINE_MS;
    lineup_end(&s->lineup, slot, true, fake_now);
    r->is_open = false;
}

static void end_step(struct server *s, uint32_t n_slots)
{
    struct lineup *l = &s->lineup;

    for (uint32_t i = 0; i < s->n_items; i++) {
        uint32_t slot = l->items[i].slot;
        struct sched_seq q = scheduler_seq(l->scheduler, slot);
        bool got = q.n_computed + l->items[i].n_tokens == q.n_known;

        lineup_ran(l, i, got, STEP_NS, fake_now);
        if (got && ++s->requests[slot].n_answered < N_OUT)
            cache_seq_extend(l->seqs[slot].kv, 500);
        else if (got)
            answer(s, slot, n_slots == 1);
    }
    s->n_items = 0;
}

static void begin_step(struct server *s)
{
    uint32_t n_tokens = 0;

    s->n_items = lineup_begin(&s->lineup, fake_now);
    assert_int_equal(s->lineup.n_preempted, 0);
    for (uint32_t i = 0; i < s->n_items; i++) {
        run_item(s, &s->lineup.items[i]);
        n_tokens += s->lineup.items[i].n_tokens;
    }
    if (s->n_items > 0)
        s->busy_until_ms = now_ms + step_ms(n_tokens);
}

static void turn(struct server *s, uint32_t n_slots)
{
    if (now_ms < s->busy_until_ms)
        return;
    end_step(s, n_slots);
    (void)cache_poll(s->cache, fake_now);
    for (uint32_t slot = 0; slot < n_slots; slot++)
        if (!s->requests[slot].is_open && n_submitted < N_REQUESTS)
            submit(s, slot);
    begin_step(s);
    for (uint32_t slot = 0; slot < n_slots; slot++)
        s->requests[slot].idle_ms += s->n_items == 0;
    cache_check(s->cache);
    lineup_check(&s->lineup);
}

/* --- faults --- */

/* Every fault holds until another one of the same instance ends all of them, or not. */
static void draw_fault(struct pool *p)
{
    static const enum status ends[] = {ERR_TIMEOUT, ERR_NOT_FOUND, ERR_CORRUPT};

    if (draw(2)) {
        p->stalls = p->holds_back = p->is_away = false;
        p->read_status = OK;
        p->lease_ns = p->ask_ns = 0;
    }
    switch (draw(7)) {
    case 0: p->stalls = true; break;
    case 1: p->holds_back = true; break;
    case 2: p->is_away = true; break;
    case 3: p->lease_ns = (1 + draw(40)) * STEP_NS; break;
    case 4: p->read_status = ends[draw(3)]; break;
    case 5: p->n_reads_good = draw(4); break;
    default: p->ask_ns = (1 + draw(60)) * STEP_NS; break;
    }
}

static bool is_over(uint32_t n_slots)
{
    for (uint32_t i = 0; i < N_SERVERS; i++)
        for (uint32_t slot = 0; slot < n_slots; slot++)
            if (servers[i].requests[slot].is_open)
                return false;
    return n_submitted == N_REQUESTS;
}

static void run_all(uint32_t n_slots)
{
    seed = 700 + n_slots;
    n_draws = n_submitted = n_found = n_waited = n_late = 0;
    now_ms = 0;
    for (uint32_t i = 0; i < N_SERVERS; i++)
        open_server(&servers[i], n_slots);
    do {
        now_ms++;
        fake_now += STEP_NS;
        if (draw(30) == 0)
            draw_fault(&fakes[draw(N_SERVERS)]);
        fake_step();
        for (uint32_t i = 0; i < N_SERVERS; i++)
            turn(&servers[i], n_slots);
        assert_true(now_ms < 1000u * N_REQUESTS);
    } while (!is_over(n_slots));
    for (uint32_t i = 0; i < N_SERVERS; i++)
        lineup_destroy(&servers[i].lineup);
    print_message("%u requests, %u tokens found, %u requests waited, %u until the deadline\n",
                  n_submitted, n_found, n_waited, n_late);
    assert_true(n_found > N_REQUESTS * KV_BLOCK_TOKENS);
    assert_true(n_waited > N_REQUESTS / 20);
    if (n_slots == 1)
        assert_true(n_late > N_REQUESTS / 100); /* so the bound is tight */
}

static void no_request_is_slower_than_alone_plus_the_deadline(void **state)
{
    (void)state;
    run_all(1);
}

/* Several requests share a server here. The time that a server computes for the other requests is
 * not counted as waiting, because a server without a pool would spend that time, too. */
static void no_request_waits_beyond_the_deadline_while_nothing_is_computed(void **state)
{
    (void)state;
    run_all(N_SLOTS_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(no_request_is_slower_than_alone_plus_the_deadline, leave_world),
        cmocka_unit_test_teardown(no_request_waits_beyond_the_deadline_while_nothing_is_computed,
                                  leave_world),
    };

    if (!open_device())
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return failed;
}
