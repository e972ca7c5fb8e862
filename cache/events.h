/* events.h - what enters and leaves the cache, block by block, for another thread.
 *
 * The store sends an event for each block that enters or leaves a tier. Two readers exist: the pool
 * (cache/pool/), which tells other instances what lies here, and the publisher of KV events for
 * routers (server/). Each has a queue of its own.
 *
 * The engine thread never waits. When a queue is full, events are dropped and the queue is marked:
 * from then on the store sends nothing but one CACHE_CLEARED, then one CACHE_STORED for every block
 * of the tree, a bounded number per poll and as the queue has room, and then goes on as usual. The
 * reader therefore needs no other call: after CACHE_CLEARED it has nothing, and what follows is
 * complete. An event may be repeated, and a CACHE_REMOVED may name a block that the reader does not
 * know; both have no effect.
 *
 * Owns    the queue: cache_events_destroy(), after the cache that sends into it.
 * Thread  cache_events_next() and cache_events_request_all(): the reader's. The rest as noted.
 * Errors  ERR_NOMEM at create.
 * Units   events, tokens. */
#ifndef TARN_CACHE_EVENTS_H
#define TARN_CACHE_EVENTS_H

#include "cache/key.h"

enum cache_event_kind {
    CACHE_STORED,  /* the block lies in the tier now */
    CACHE_REMOVED, /* the block has left the tier */
    CACHE_CLEARED  /* nothing lies in any tier; the other fields are 0 */
};

/* As a tier, for the pool only: a sequence here is about to compute the block. A listing does not
 * repeat it. */
#define CACHE_EVENT_COMING 3u

struct cache_event {
    enum cache_event_kind kind;
    uint32_t tier;         /* enum cache_tier, but not CACHE_REMOTE; or CACHE_EVENT_COMING */
    struct kv_key key;     /* of the block */
    struct kv_key parent;  /* of the block before it; zero for the first of a prompt */
    struct kv_key segment; /* of the first block of its segment */
    uint32_t pos0, n_tokens;
    bool starts_segment;
    bool is_public;                /* it lies in the public scope */
    bool is_tail;                  /* the first tokens of a block that is not closed */
    bool has_ids;                  /* ids are known, and the queue was created with ids */
    uint32_t ids[KV_BLOCK_TOKENS]; /* [n_tokens] of CACHE_STORED */
    uint64_t salt;                 /* cache_salt of the request, hashed; 0: none */
};

struct cache_events;

/* n_max: events that may wait. wants_ids: CACHE_STORED carries token ids where they are known. */
NODISCARD enum status cache_events_create(struct cache_events **out, uint32_t n_max,
                                          bool wants_ids);
void cache_events_destroy(struct cache_events *e); /* NULL is fine */

/* --- the reader --- */

/* The oldest event. False: none waits. */
bool cache_events_next(struct cache_events *e, struct cache_event *out);
/* Have everything sent again, beginning with CACHE_CLEARED. */
void cache_events_request_all(struct cache_events *e);

/* --- the store, on the engine thread --- */

bool cache_events_want_ids(const struct cache_events *e);
/* Send, or mark the queue when it is full. No effect while the queue is marked: the listing of all
 * blocks will contain the change. */
void cache_events_send(struct cache_events *e, const struct cache_event *event);
/* Whether everything is to be sent again. */
bool cache_events_is_marked(const struct cache_events *e);
/* The listing begins: sends CACHE_CLEARED and removes the mark, or returns false when there is no
 * room yet. From now on cache_events_send() sends. */
NODISCARD bool cache_events_begin_all(struct cache_events *e);
/* Events that can be sent now, at least. */
uint32_t cache_events_room(const struct cache_events *e);
/* Times that the queue was full. Any thread. */
uint64_t cache_events_n_overflows(const struct cache_events *e);

#endif
