/* work_pool.h - a few threads and a bounded queue, for work too long for an HTTP thread.
 *
 * Owns    its threads and the queue; not what the items point to.
 * Thread  work_pool_push(): any. create and destroy: the owner's.
 * Errors  ERR_BUSY when the queue is full, ERR_UNAVAILABLE after work_pool_close(), ERR_NOMEM.
 * Units   items. */
#ifndef TARN_SERVER_WORK_POOL_H
#define TARN_SERVER_WORK_POOL_H

#include <stdint.h>

#include "base/status.h"

struct work_pool;

/* `work` runs once for every item that was taken in, oldest first, on one of the threads. */
NODISCARD enum status work_pool_create(struct work_pool **out, uint32_t n_threads,
                                       uint32_t n_queued_max, void (*work)(void *item));
NODISCARD enum status work_pool_push(struct work_pool *p, void *item);
/* Takes no more, works off what is queued, joins the threads. */
void work_pool_close(struct work_pool *p);
void work_pool_destroy(struct work_pool *p); /* NULL is fine; closes first if need be */

#endif
