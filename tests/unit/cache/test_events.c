/* test_events.c - the queue of cache events: what the reader can rely on when it falls behind. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "cache/events.h"
#include "tests/unit/test.h"

#define N_BLOCKS 64u /* of the store that the last test plays */
#define N_CHANGES 200000u

static struct cache_event stored(uint8_t no)
{
    struct cache_event e = {.kind = CACHE_STORED, .n_tokens = 2, .has_ids = true};

    e.key.bytes[0] = no;
    e.ids[0] = no;
    e.ids[1] = no + 1u;
    return e;
}

static void events_come_in_the_order_in_which_they_were_sent(void **state)
{
    struct cache_event e, out;
    struct cache_events *q;

    (void)state;
    assert_ok(cache_events_create(&q, 8, true));
    assert_true(cache_events_want_ids(q));
    assert_false(cache_events_next(q, &out));
    for (uint8_t i = 1; i <= 3; i++) {
        e = stored(i);
        cache_events_send(q, &e);
    }
    for (uint8_t i = 1; i <= 3; i++) {
        e = stored(i);
        assert_true(cache_events_next(q, &out));
        assert_memory_equal(&out, &e, sizeof e);
    }
    assert_false(cache_events_next(q, &out));
    assert_false(cache_events_is_marked(q));
    assert_int_equal(cache_events_n_overflows(q), 0);
    cache_events_destroy(q);
    cache_events_destroy(NULL);
}

static void a_full_queue_is_marked_and_sends_nothing_until_a_listing_begins(void **state)
{
    struct cache_event e = stored(7), out;
    struct cache_events *q;

    (void)state;
    assert_ok(cache_events_create(&q, 4, false));
    assert_false(cache_events_want_ids(q));
    assert_int_equal(cache_events_room(q), 4);
    for (int i = 0; i < 6; i++)
        cache_events_send(q, &e);
    assert_true(cache_events_is_marked(q));
    assert_int_equal(cache_events_n_overflows(q), 1);
    assert_false(cache_events_begin_all(q)); /* no room */
    assert_true(cache_events_next(q, &out));
    cache_events_send(q, &e); /* there is room, but the mark holds */
    assert_int_equal(cache_events_room(q), 1);
    assert_true(cache_events_begin_all(q));
    assert_false(cache_events_is_marked(q));
    for (int i = 0; i < 3; i++) {
        assert_true(cache_events_next(q, &out));
        assert_int_equal(out.kind, CACHE_STORED);
    }
    assert_true(cache_events_next(q, &out));
    assert_int_equal(out.kind, CACHE_CLEARED);
    cache_events_send(q, &e);
    assert_true(cache_events_next(q, &out));
    assert_int_equal(out.kind, CACHE_STORED);
    cache_events_destroy(q);
}

static void a_request_during_a_listing_is_answered_by_another_listing(void **state)
{
    struct cache_event out;
    struct cache_events *q;

    (void)state;
    assert_ok(cache_events_create(&q, 4, false));
    cache_events_request_all(q);
    assert_true(cache_events_is_marked(q));
    assert_int_equal(cache_events_n_overflows(q), 0);
    assert_true(cache_events_begin_all(q));
    cache_events_request_all(q);
    assert_true(cache_events_is_marked(q));
    assert_true(cache_events_next(q, &out));
    assert_int_equal(out.kind, CACHE_CLEARED);
    assert_true(cache_events_begin_all(q));
    assert_true(cache_events_next(q, &out));
    assert_int_equal(out.kind, CACHE_CLEARED);
    cache_events_destroy(q);
}

/* --- a store and a reader that cannot keep up --- */

struct race {
    struct cache_events *queue;
    uint8_t held[N_BLOCKS]; /* by the store; read when it has ended */
    _Atomic bool ended;
};

static void list(struct race *r, uint32_t *next)
{
    for (; *next < N_BLOCKS && cache_events_room(r->queue) > 0; (*next)++) {
        struct cache_event e = stored((uint8_t)*next);
        if (r->held[*next])
            cache_events_send(r->queue, &e);
    }
}

/* Change blocks at random; list all of them, a few per turn, after each overflow. */
static void *play_store(void *arg)
{
    struct race *r = arg;
    uint32_t next = N_BLOCKS, seed = 1;

    for (uint32_t i = 0; i < N_CHANGES || next < N_BLOCKS || cache_events_is_marked(r->queue);
         i++) {
        if (cache_events_is_marked(r->queue) && cache_events_begin_all(r->queue))
            next = 0;
        list(r, &next);
        if (i >= N_CHANGES) {
            sched_yield();
            continue;
        }
        seed = seed * 1664525u + 1013904223u;
        uint8_t no = (uint8_t)(seed >> 26);
        struct cache_event e = stored(no);
        r->held[no] = !r->held[no];
        e.kind = r->held[no] ? CACHE_STORED : CACHE_REMOVED;
        cache_events_send(r->queue, &e);
    }
    atomic_store(&r->ended, true);
    return NULL;
}

static void a_slow_reader_ends_with_exactly_what_the_store_holds(void **state)
{
    struct race r = {.ended = false};
    uint8_t known[N_BLOCKS] = {0};
    struct cache_event e;
    pthread_t store;
    bool ended, any;

    (void)state;
    assert_ok(cache_events_create(&r.queue, 16, true));
    assert_int_equal(pthread_create(&store, NULL, play_store, &r), 0);
    while (cache_events_n_overflows(r.queue) == 0)
        sched_yield();
    do {
        ended = atomic_load(&r.ended);
        any = cache_events_next(r.queue, &e);
        if (!any)
            sched_yield();
        else if (e.kind == CACHE_CLEARED)
            memset(known, 0, sizeof known);
        else
            known[e.key.bytes[0]] = e.kind == CACHE_STORED;
    } while (any || !ended);
    pthread_join(store, NULL);
    assert_memory_equal(known, r.held, sizeof known);
    cache_events_destroy(r.queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_come_in_the_order_in_which_they_were_sent),
        cmocka_unit_test(a_full_queue_is_marked_and_sends_nothing_until_a_listing_begins),
        cmocka_unit_test(a_request_during_a_listing_is_answered_by_another_listing),
        cmocka_unit_test(a_slow_reader_ends_with_exactly_what_the_store_holds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
