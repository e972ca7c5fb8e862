#include "base/http_timer.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/check.h"

void timer_heap_fini(struct timer_heap *h)
{
    free(h->at);
    *h = (struct timer_heap){0};
}

static bool is_before(const struct http_timer *a, const struct http_timer *b)
{
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->order < b->order;
}

static void put(struct timer_heap *h, size_t i, struct http_timer *t)
{
    h->at[i] = t;
    t->place = i + 1;
}

static void sift_up(struct timer_heap *h, size_t i)
{
    struct http_timer *t = h->at[i];

    for (; i > 0 && is_before(t, h->at[(i - 1) / 2]); i = (i - 1) / 2)
        put(h, i, h->at[(i - 1) / 2]);
    put(h, i, t);
}

static void sift_down(struct timer_heap *h, size_t i)
{
    struct http_timer *t = h->at[i];

    for (size_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && is_before(h->at[child + 1], h->at[child]))
            child++;
        if (!is_before(h->at[child], t))
            break;
        put(h, i, h->at[child]);
    }
    put(h, i, t);
}

enum status timer_heap_insert(struct timer_heap *h, struct http_timer *t)
{
    ASSERT(t->place == 0);
    if (h->n == h->cap) {
        size_t cap = h->cap ? 2 * h->cap : 64;
        struct http_timer **at = realloc(h->at, cap * sizeof(struct http_timer *));
        if (!at)
            return ERR_NOMEM;
        h->at = at;
        h->cap = cap;
    }
    t->order = h->next_order++;
    h->at[h->n++] = t;
    sift_up(h, h->n - 1);
    return OK;
}

void timer_heap_remove(struct timer_heap *h, struct http_timer *t)
{
    if (t->place == 0)
        return;
    size_t i = t->place - 1;
    struct http_timer *last = h->at[--h->n];
    t->place = 0;
    if (last == t)
        return;
    put(h, i, last);
    sift_up(h, i);
    sift_down(h, last->place - 1);
}

void timer_heap_move(struct timer_heap *h, struct http_timer *t, uint64_t due_ns)
{
    ASSERT(t->place > 0);
    t->due_ns = due_ns;
    sift_up(h, t->place - 1);
    sift_down(h, t->place - 1);
}

struct http_timer *timer_heap_first(const struct timer_heap *h)
{
    return h->n > 0 ? h->at[0] : NULL;
}
