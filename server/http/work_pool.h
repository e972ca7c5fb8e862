/* work_pool.h - a few threads and a bounded queue, for work too long for an HTTP thread.
 *
 * The queue is fair between clients, so that an expensive body delays only its own sender. Each
 * client has a service time: the run time of its items so far. The next item is the oldest item of
 * the client with the least service; clients without a running item come first. A client that
 * returns after a pause starts at least at the service of the client served last, so a pause earns
 * no credit. Heavy items, above WORK_HEAVY_COST, may run on all threads but one, so that short
 * items never wait for a heavy one to end. A client may queue an item only while it has fewer items
 * queued than there are free places. So one client alone fills half of the queue at most.
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

/* work(item) is called once for every accepted item, on one of the threads. */
NODISCARD enum status work_pool_create(struct work_pool **out, uint32_t n_threads,
                                       uint32_t n_queued_max, void (*work)(void *item));
/* Queue an item. client: any number that identifies the sender. */
NODISCARD enum status work_pool_push(struct work_pool *p, void *item, uint64_t client,
                                     uint64_t cost);
/* Accept no more items, finish the queued ones, join the threads. */
void work_pool_close(struct work_pool *p);
void work_pool_destroy(struct work_pool *p); /* NULL is fine; closes first if necessary */

/* The number of a client that is known by its address only: the IPv4 address, or the first 64 bits
 * of an IPv6 address, because a host is free to choose the other 64. 0: a Unix socket, or NULL. */
uint64_t work_client_of_address(const struct sockaddr *address);

#endif
