/* http_timer.h - a heap of timers, earliest first. Only http.c and http_call.c use it.
 *
 * Owns    its array; each timer belongs to the caller that inserted it.
 * Thread  the loop's.
 * Errors  ERR_NOMEM from insert; moving and removing cannot fail.
 * Units   due_ns in the caller's clock; equal times run in the order of insertion. */
#ifndef TARN_BASE_HTTP_TIMER_H
#define TARN_BASE_HTTP_TIMER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct http_timer {
    uint64_t due_ns;
    uint64_t order; /* number of the insertion */
    size_t place;   /* position in the heap, from 1; 0: not in the heap */
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
void timer_heap_remove(struct timer_heap *h, struct http_timer *t); /* no effect if it is not in the
                                                                       heap */
void timer_heap_move(struct timer_heap *h, struct http_timer *t, uint64_t due_ns);
struct http_timer *timer_heap_first(const struct timer_heap *h); /* NULL when empty */

#endif
