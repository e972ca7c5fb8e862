/* ring.h - a bounded queue of pointers between threads.
 *
 * Owns    its array; not the objects behind the pointers.
 * Thread  any number of senders, one receiver. ring_wait() sleeps on a condition variable.
 * Errors  ERR_BUSY when full, ERR_UNAVAILABLE after ring_close().
 * Units   items; nanoseconds. */
#ifndef TARN_BASE_RING_H
#define TARN_BASE_RING_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct ring {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    void **items;
    uint32_t n_max;
    uint32_t head; /* index of the oldest item */
    uint32_t n;
    bool closed;
    bool poked;
};

NODISCARD enum status ring_init(struct ring *r, uint32_t n_max);
void ring_fini(struct ring *r);
NODISCARD enum status ring_push(struct ring *r, void *item);
/* Take up to n_max items, oldest first, without waiting. */
uint32_t ring_drain(struct ring *r, void **out, uint32_t n_max);
/* Sleep until there is an item, a poke, the close or the timeout. */
void ring_wait(struct ring *r, uint64_t timeout_ns);
/* Wake the receiver without an item. */
void ring_poke(struct ring *r);
void ring_close(struct ring *r); /* later pushes are refused */

#endif
