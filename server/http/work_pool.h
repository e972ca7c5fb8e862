/* work_pool.h - a few threads and a bounded queue, for work too long for an HTTP thread.
 *
 * The queue is fair between clients, so that an expensive body delays its own sender. Each client
 * has a service time: the time that its items took so far. The next item is the oldest one of the
 * client with the least service, where clients that have no item running come first. A client that
 * comes back after a pause starts with the service of the client served last, so pauses earn no
 * credit. Heavy items, above WORK_HEAVY_COST, run on all threads but one: short ones never wait for
 * a heavy one to end. A client may have as many items queued as places are left free, so one
 * client alone fills half of the queue, and places remain for others.
 *
 * Owns    its threads and the queue; not what the items point to.
 * Thread  work_pool_push(): any. create and destroy: the owner's.
 * Errors  ERR_BUSY when the queue is full or the client's share of it is used up, ERR_UNAVAILABLE
 *         after work_pool_close(), ERR_NOMEM.
 * Units   items; cost in bytes of a request's body; service in nanoseconds. */
#ifndef TARN_SERVER_HTTP_WORK_POOL_H
#define TARN_SERVER_HTTP_WORK_POOL_H

#include <stdint.h>

#include "base/status.h"

struct work_pool;
struct sockaddr;

/* A body of 1 MiB takes some 50 ms to parse, render and tokenize. */
#define WORK_HEAVY_COST (UINT64_C(1) << 20)

/* `work` runs once for every item that was taken in, on one of the threads. */
NODISCARD enum status work_pool_create(struct work_pool **out, uint32_t n_threads,
                                       uint32_t n_queued_max, void (*work)(void *item));
/* client: any number that names the sender. */
NODISCARD enum status work_pool_push(struct work_pool *p, void *item, uint64_t client,
                                     uint64_t cost);
/* Takes no more, works off what is queued, joins the threads. */
void work_pool_close(struct work_pool *p);
void work_pool_destroy(struct work_pool *p); /* NULL is fine; closes first if need be */

/* The number of a client known by its address only: an IPv4 address, or the first 64 bits of an
 * IPv6 address, which one host can choose the rest of. 0: a Unix socket, or NULL. */
uint64_t work_client_of_address(const struct sockaddr *address);

#endif
