/* publisher.h - publishes KV events over ZeroMQ for routers, as vLLM does.
 *
 * A PUB socket sends each batch (batch.h) as three frames: topic, sequence number (8 bytes, big
 * endian, from 0), payload. The endpoint is bound where it contains "*" or "::" or begins with
 * "ipc:" or "inproc:", else connected to, as in vLLM.
 *
 * A ROUTER socket answers replay requests of three frames: identity, empty, first sequence number.
 * Each batch still kept from there on is sent as (sequence, payload); then (-1, empty).
 *
 * A subscriber that comes late misses what was sent before. A new subscription, and a replay
 * request for batches no longer kept, therefore have everything sent again: each block removed,
 * AllBlocksCleared, each block stored; at most once a second.
 *
 * Events carry token ids in clear and the sockets know no key: only routers may reach them.
 *
 * ONLY module that includes ZeroMQ.
 *
 * Owns    the queue of cache events, sockets, a thread: publisher_destroy(), after the engine.
 * Thread  create, start, destroy: main. publisher_stats(), publisher_note_salt(): any.
 * Errors  publisher_create(): ERR_UNSUPPORTED when Tarn was built without ZeroMQ or msgpack-c;
 *         ERR_INVALID for an endpoint that cannot be used; ERR_NOMEM.
 * Units   tokens, milliseconds. */
#ifndef TARN_SERVER_EVENTS_PUBLISHER_H
#define TARN_SERVER_EVENTS_PUBLISHER_H

#include "base/buf.h"
#include "cache/cache.h"

struct publisher;

/* Words for errors begin with the option's name in braces: {kv_events_endpoint}. */
struct publisher_config {
    const char *endpoint;
    const char *replay_endpoint; /* NULL: no replay */
    uint32_t block_tokens;       /* 8 to 64 */
    uint32_t n_queued_max;       /* cache events that may wait for the thread; 0: 16384 */
    uint32_t n_kept_max;         /* batches kept for replay; 0: 10000 */
};

/* Longest cache_salt, NUL included. */
#define PUBLISHER_SALT_BYTES 1025

/* Counts since the start, but n_blocks. */
struct publisher_stats {
    uint64_t n_batches;
    uint64_t n_blocks; /* reported now; one in two tiers counts twice */
    uint64_t n_skipped, n_overflows, n_replays, n_repeats;
};

/* The sockets are open when this returns; nothing is sent before publisher_start(). */
NODISCARD enum status publisher_create(struct publisher **out, const struct publisher_config *c,
                                       struct buf *why);
/* The queue for the cache. */
struct cache_events *publisher_queue(const struct publisher *p);
/* Blocks with this salt (cache_event.salt) are published with these words as their extra key, as
 * routers expect it, and with the adapter's name; both may be NULL. About 1000 salts are
 * remembered; for others the extra key is the number in hex. p may be NULL. Any thread. */
void publisher_note_salt(struct publisher *p, uint64_t salt, const char *words, size_t len,
                         const char *adapter);
NODISCARD enum status publisher_start(struct publisher *p, const char *topic, struct buf *why);
void publisher_destroy(struct publisher *p); /* NULL is fine */
void publisher_stats(const struct publisher *p, struct publisher_stats *out);

#endif
