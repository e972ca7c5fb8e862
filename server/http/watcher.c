#include "server/http/watcher.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

#define TICK_MS 200
#define N_EVENTS 64
#define STOP_EVENT UINT64_MAX

struct entry {
    void *arg;
    int fd;
    uint32_t generation; /* counts arm() and mute; events of an older generation are stale */
    enum watch_kind kind;
    bool active;
};

struct watcher {
    struct watcher_callbacks callbacks;
    pthread_t thread;
    int epoll_fd;
    int stop_fd;
    int tick_fd;
    uint32_t n_max;
    pthread_mutex_t lock;
    struct entry *entries; /* [n_max], under lock */
};

/* Register the events of `kind`. Under lock. One-shot, because the states watched for last and one
 * report is enough. epoll reports EPOLLHUP and EPOLLERR unasked. */
static enum status arm(struct watcher *w, uint32_t index, int operation, enum watch_kind kind)
{
    struct entry *e = &w->entries[index];
    uint32_t events = kind == WATCH_INPUT   ? EPOLLIN | EPOLLRDHUP
                      : kind == WATCH_LEAVE ? EPOLLRDHUP
                                            : 0u;

    e->generation++;
    e->kind = kind;
    struct epoll_event event = {
        .events = EPOLLONESHOT | events,
        .data.u64 = (uint64_t)e->generation << 32 | index,
    };
    return epoll_ctl(w->epoll_fd, operation, e->fd, &event) == 0 ? OK : ERR_IO;
}

/* Handle a FIN, a reset or a close. Under lock. */
static void on_leave(struct watcher *w, uint32_t index, uint32_t events)
{
    struct entry *e = &w->entries[index];
    bool certain = (events & (EPOLLHUP | EPOLLERR)) != 0;

    if (!certain && w->callbacks.half_closed && w->callbacks.half_closed(e->arg) &&
        arm(w, index, EPOLL_CTL_MOD, WATCH_LOSS) == OK)
        return;
    w->callbacks.lost(e->arg);
}

static void on_event(struct watcher *w, uint64_t data, uint32_t events)
{
    uint32_t index = (uint32_t)data, generation = (uint32_t)(data >> 32);

    pthread_mutex_lock(&w->lock);
    struct entry *e = &w->entries[index];
    if (e->active && e->generation == generation) {
        if (e->kind == WATCH_INPUT)
            w->callbacks.input(e->arg, (events & EPOLLRDHUP) != 0);
        else
            on_leave(w, index, events);
    }
    pthread_mutex_unlock(&w->lock);
}

static void tick_all(struct watcher *w, uint64_t now_ns)
{
    uint64_t one = 1;

    /* The write fails when the count is full, after 10^11 years. */
    (void)!write(w->tick_fd, &one, sizeof one);
    pthread_mutex_lock(&w->lock);
    for (uint32_t i = 0; i < w->n_max; i++)
        if (w->entries[i].active)
            w->callbacks.tick(w->entries[i].arg, now_ns);
    pthread_mutex_unlock(&w->lock);
}

static void *watch(void *arg)
{
    struct watcher *w = arg;
    struct epoll_event events[N_EVENTS];
    uint64_t t_tick = 0;

    for (;;) {
        int n = epoll_wait(w->epoll_fd, events, N_EVENTS, TICK_MS);
        if (n < 0 && errno != EINTR)
            log_event(LOG_ERROR, "watcher cannot wait", "errno=%d", errno);
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == STOP_EVENT)
                return NULL;
            on_event(w, events[i].data.u64, events[i].events);
        }
        uint64_t now_ns = clock_now_ns();
        if (now_ns - t_tick >= TICK_MS * UINT64_C(1000000)) {
            t_tick = now_ns;
            tick_all(w, now_ns);
        }
    }
}

static enum status start(struct watcher *w)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = STOP_EVENT};

    w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    w->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    w->tick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->epoll_fd < 0 || w->stop_fd < 0 || w->tick_fd < 0 ||
        epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, w->stop_fd, &event) != 0)
        return ERR_IO;
    return pthread_create(&w->thread, NULL, watch, w) == 0 ? OK : ERR_NOMEM;
}

static void free_all(struct watcher *w)
{
    if (w->epoll_fd >= 0)
        close(w->epoll_fd);
    if (w->stop_fd >= 0)
        close(w->stop_fd);
    if (w->tick_fd >= 0)
        close(w->tick_fd);
    pthread_mutex_destroy(&w->lock);
    free(w->entries);
    free(w);
}

enum status watcher_create(struct watcher **out, uint32_t n_max,
                           const struct watcher_callbacks *callbacks)
{
    struct watcher *w = calloc(1, sizeof *w);

    *out = NULL;
    if (!w)
        return ERR_NOMEM;
    w->callbacks = *callbacks;
    w->n_max = n_max;
    w->epoll_fd = w->stop_fd = w->tick_fd = -1;
    pthread_mutex_init(&w->lock, NULL);
    w->entries = calloc(n_max, sizeof *w->entries);
    enum status s = w->entries ? start(w) : ERR_NOMEM;
    if (s != OK) {
        free_all(w);
        return s;
    }
    *out = w;
    return OK;
}

void watcher_destroy(struct watcher *w)
{
    uint64_t one = 1;

    if (!w)
        return;
    /* The write cannot fail: the eventfd is at zero, and nothing else writes to it. */
    ASSERT(write(w->stop_fd, &one, sizeof one) == sizeof one);
    pthread_join(w->thread, NULL);
    free_all(w);
}

int watcher_tick_fd(const struct watcher *w)
{
    return w->tick_fd;
}

enum status watcher_add(struct watcher *w, uint32_t index, int fd, void *arg)
{
    ASSERT(index < w->n_max);
    pthread_mutex_lock(&w->lock);
    struct entry *e = &w->entries[index];
    ASSERT(!e->active);
    e->arg = arg;
    e->fd = fd;
    enum status s = arm(w, index, EPOLL_CTL_ADD, WATCH_INPUT);
    e->active = s == OK;
    pthread_mutex_unlock(&w->lock);
    return s;
}

void watcher_watch(struct watcher *w, uint32_t index, enum watch_kind kind)
{
    ASSERT(index < w->n_max);
    pthread_mutex_lock(&w->lock);
    if (w->entries[index].active && arm(w, index, EPOLL_CTL_MOD, kind) != OK)
        log_event(LOG_ERROR, "watcher cannot watch", "errno=%d", errno);
    pthread_mutex_unlock(&w->lock);
}

void watcher_mute(struct watcher *w, uint32_t index)
{
    ASSERT(index < w->n_max);
    pthread_mutex_lock(&w->lock);
    w->entries[index].generation++; /* makes an event that still comes stale */
    pthread_mutex_unlock(&w->lock);
}

void watcher_remove(struct watcher *w, uint32_t index)
{
    ASSERT(index < w->n_max);
    pthread_mutex_lock(&w->lock);
    struct entry *e = &w->entries[index];
    if (e->active)
        epoll_ctl(w->epoll_fd, EPOLL_CTL_DEL, e->fd, NULL);
    e->active = false;
    pthread_mutex_unlock(&w->lock);
}

void watcher_for_each(struct watcher *w, void (*fn)(void *arg))
{
    pthread_mutex_lock(&w->lock);
    for (uint32_t i = 0; i < w->n_max; i++)
        if (w->entries[i].active)
            (fn ? fn : w->callbacks.lost)(w->entries[i].arg);
    pthread_mutex_unlock(&w->lock);
}
