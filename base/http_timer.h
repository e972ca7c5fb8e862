/* http_timer.h - a heap of timers, earliest first; inside of http.c only.
 *
 * Owns    its array; the timers belong to whoever inserts them.
 * Thread  the loop's.
 * Errors  ERR_NOMEM from insert; moving and removing cannot fail.
 * Units   due_ns as the caller's clock; equal times run in the order of insertion. */
#ifndef TARN_BASE_HTTP_TIMER_H
#define TARN_BASE_HTTP_TIMER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct http_timer {
    uint64_t due_ns;
    uint64_t order; /* of insertion */
    size_t place;   /* in the heap, from 1; 0: not in it */
    void (*fn)(void *arg, uint64_t due_ns);
    void *arg;
};

struct timer_heap {
    struct http_timer **at; /* [n] 0-based; place - 1 */
    size_t n, cap;
    uint64_t next_order;
};

void timer_heap_fini(struct timer_heap *h);
NODISCARD enum status timer_heap_insert(struct timer_heap *h, struct http_timer *t);
void timer_heap_remove(struct timer_heap *h, struct http_timer *t); /* fine if it is not in it */
void timer_heap_move(struct timer_heap *h, struct http_timer *t, uint64_t due_ns);
struct http_timer *timer_heap_first(const struct timer_heap *h); /* NULL when empty */

#endif
