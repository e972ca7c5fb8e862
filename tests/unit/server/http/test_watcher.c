/* test_watcher.c - input and lost clients are reported once, and never after a mute or remove. */
#include "tests/unit/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/http/watcher.h"

struct client {
    int ours, theirs;
    atomic_int n_input, n_ends, n_half_closed, n_lost, n_ticks;
    atomic_bool may_read; /* the result of half_closed() */
};

static void on_input(void *arg, bool end)
{
    struct client *c = arg;

    atomic_fetch_add(&c->n_input, 1);
    if (end)
        atomic_fetch_add(&c->n_ends, 1);
}

static bool on_half_closed(void *arg)
{
    struct client *c = arg;

    atomic_fetch_add(&c->n_half_closed, 1);
    return atomic_load(&c->may_read);
}

static void on_lost(void *arg)
{
    atomic_fetch_add(&((struct client *)arg)->n_lost, 1);
}

static void on_tick(void *arg, uint64_t now_ns)
{
    (void)now_ns;
    atomic_fetch_add(&((struct client *)arg)->n_ticks, 1);
}

static const struct watcher_callbacks callbacks = {on_input, on_lost, on_tick, NULL};

static void open_client(struct client *c)
{
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    *c = (struct client){.ours = fds[0], .theirs = fds[1]};
}

static void wait_for(atomic_int *n, int value)
{
    for (int i = 0; i < 60000 && atomic_load(n) != value; i++)
        clock_sleep_ns(1000000);
    assert_int_equal(atomic_load(n), value);
}

static void pause_a_little(void)
{
    clock_sleep_ns(30000000);
}

static void input_is_seen_once_until_asked_again(void **state)
{
    struct watcher *w;
    struct client c;

    (void)state;
    open_client(&c);
    assert_ok(watcher_create(&w, 4, &callbacks));
    assert_ok(watcher_add(w, 2, c.ours, &c));
    pause_a_little();
    assert_int_equal(atomic_load(&c.n_input), 0);
    assert_int_equal(write(c.theirs, "a", 1), 1);
    wait_for(&c.n_input, 1);
    assert_int_equal(write(c.theirs, "b", 1), 1);
    pause_a_little();
    assert_int_equal(atomic_load(&c.n_input), 1);
    watcher_watch(w, 2, WATCH_INPUT); /* unread input is reported again */
    wait_for(&c.n_input, 2);
    assert_int_equal(atomic_load(&c.n_lost), 0);
    watcher_remove(w, 2);
    watcher_destroy(w);
    close(c.ours);
    close(c.theirs);
}

static void leaving_is_seen_and_bytes_are_not_leaving(void **state)
{
    struct watcher *w;
    struct client c;

    (void)state;
    open_client(&c);
    assert_ok(watcher_create(&w, 4, &callbacks));
    assert_ok(watcher_add(w, 0, c.ours, &c));
    watcher_watch(w, 0, WATCH_LEAVE);
    assert_int_equal(write(c.theirs, "a", 1), 1);
    pause_a_little();
    assert_int_equal(atomic_load(&c.n_lost), 0);
    close(c.theirs);
    wait_for(&c.n_lost, 1);
    /* A client that left before the call is reported, too. */
    watcher_watch(w, 0, WATCH_LEAVE);
    wait_for(&c.n_lost, 2);
    assert_int_equal(atomic_load(&c.n_input), 0);
    watcher_remove(w, 0);
    watcher_destroy(w);
    close(c.ours);
}

static void each_tick_is_an_edge_though_nobody_reads(void **state)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    struct watcher *w;
    int fd = epoll_create1(EPOLL_CLOEXEC);

    (void)state;
    assert_ok(watcher_create(&w, 1, &callbacks));
    assert_int_equal(epoll_ctl(fd, EPOLL_CTL_ADD, watcher_tick_fd(w), &event), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(epoll_wait(fd, &event, 1, 60000), 1);
    watcher_destroy(w);
    close(fd);
}

static void an_end_is_told_with_the_input(void **state)
{
    struct watcher *w;
    struct client c;

    (void)state;
    open_client(&c);
    assert_ok(watcher_create(&w, 1, &callbacks));
    assert_int_equal(write(c.theirs, "a", 1), 1);
    assert_int_equal(shutdown(c.theirs, SHUT_WR), 0);
    assert_ok(watcher_add(w, 0, c.ours, &c));
    wait_for(&c.n_ends, 1);
    assert_int_equal(atomic_load(&c.n_input), 1);
    watcher_remove(w, 0);
    watcher_destroy(w);
    close(c.ours);
    close(c.theirs);
}

static void a_half_closed_client_is_lost_after_its_close(void **state)
{
    static const struct watcher_callbacks with_half = {on_input, on_lost, on_tick, on_half_closed};
    struct watcher *w;
    struct client c;

    (void)state;
    assert_ok(watcher_create(&w, 1, &with_half));
    for (int may_read = 0; may_read < 2; may_read++) {
        open_client(&c);
        atomic_store(&c.may_read, may_read);
        assert_ok(watcher_add(w, 0, c.ours, &c));
        watcher_watch(w, 0, WATCH_LEAVE);
        assert_int_equal(shutdown(c.theirs, SHUT_WR), 0);
        wait_for(&c.n_half_closed, 1);
        if (may_read) {
            pause_a_little();
            assert_int_equal(atomic_load(&c.n_lost), 0);
            close(c.theirs);
        }
        wait_for(&c.n_lost, 1);
        assert_int_equal(atomic_load(&c.n_half_closed), 1);
        watcher_remove(w, 0);
        close(c.ours);
        if (!may_read)
            close(c.theirs);
    }
    /* On a Unix socket a close is certain, so half_closed() is not called. */
    open_client(&c);
    atomic_store(&c.may_read, true);
    assert_ok(watcher_add(w, 0, c.ours, &c));
    watcher_watch(w, 0, WATCH_LEAVE);
    close(c.theirs);
    wait_for(&c.n_lost, 1);
    assert_int_equal(atomic_load(&c.n_half_closed), 0);
    watcher_remove(w, 0);
    watcher_destroy(w);
    close(c.ours);
}

static void events_do_not_come_after_a_mute(void **state)
{
    struct watcher *w;
    struct client c;

    (void)state;
    assert_ok(watcher_create(&w, 1, &callbacks));
    for (int i = 0; i < 300; i++) {
        open_client(&c);
        assert_ok(watcher_add(w, 0, c.ours, &c));
        assert_int_equal(write(c.theirs, "a", 1), 1);
        watcher_mute(w, 0);
        int n = atomic_load(&c.n_input);
        if (i % 2)
            watcher_watch(w, 0, WATCH_LEAVE);
        clock_sleep_ns(200000);
        assert_int_equal(atomic_load(&c.n_input), n);
        close(c.theirs);
        watcher_remove(w, 0);
        n = atomic_load(&c.n_lost);
        clock_sleep_ns(200000);
        assert_int_equal(atomic_load(&c.n_lost), n);
        close(c.ours);
    }
    watcher_destroy(w);
}

static void only_living_entries_tick(void **state)
{
    struct client a, b;
    struct watcher *w;

    (void)state;
    open_client(&a);
    open_client(&b);
    assert_ok(watcher_create(&w, 2, &callbacks));
    assert_ok(watcher_add(w, 0, a.ours, &a));
    assert_ok(watcher_add(w, 1, b.ours, &b));
    watcher_mute(w, 0); /* ticks continue */
    watcher_remove(w, 1);
    int n = atomic_load(&b.n_ticks);
    while (atomic_load(&a.n_ticks) < 3)
        clock_sleep_ns(1000000);
    assert_int_equal(atomic_load(&b.n_ticks), n);
    watcher_for_each(w, NULL);
    assert_int_equal(atomic_load(&a.n_lost), 1);
    assert_int_equal(atomic_load(&b.n_lost), 0);
    watcher_destroy(w);
    close(a.ours);
    close(a.theirs);
    close(b.ours);
    close(b.theirs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(input_is_seen_once_until_asked_again),
        cmocka_unit_test(leaving_is_seen_and_bytes_are_not_leaving),
        cmocka_unit_test(each_tick_is_an_edge_though_nobody_reads),
        cmocka_unit_test(an_end_is_told_with_the_input),
        cmocka_unit_test(a_half_closed_client_is_lost_after_its_close),
        cmocka_unit_test(events_do_not_come_after_a_mute),
        cmocka_unit_test(only_living_entries_tick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
