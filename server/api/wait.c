#include "server/api/wait.h"

#include "base/json.h"

void wait_init(struct wait *w)
{
    buf_init(&w->why, BUF_WHY_MAX);
    atomic_init(&w->refs, 1);
    atomic_init(&w->is_over, false);
}

void wait_fini(struct wait *w)
{
    buf_fini(&w->why);
    js_unref(w->body);
    js_unref(w->tools);
}

void wait_unref(struct wait *w)
{
    if (w && atomic_fetch_sub(&w->refs, 1) == 1)
        w->free(w);
}

enum status wait_begin(struct wait *w, struct http_exchange *x)
{
    w->waker = http_waker(x);
    atomic_fetch_add(&w->refs, 1);
    enum status s = http_run(x, &w->job);
    if (s != OK)
        atomic_fetch_sub(&w->refs, 1);
    return s;
}

void wait_resume(struct wait *w, enum status s)
{
    w->status = s;
    atomic_store(&w->is_over, true);
    http_wake(w->waker); /* a late wake-up is harmless: http_slot.h */
    wait_unref(w);
}

bool wait_is_left(const struct wait *w)
{
    return atomic_load(&w->refs) == 1;
}

bool wait_is_over(const struct wait *w)
{
    return atomic_load(&w->is_over);
}
