/* pool.h - KV of other instances, as the store sees it: look up, pull, query, lend, hand over.
 *
 * The pool thread talks to the directory (directory.h) and to other instances (transport.h). The
 * engine thread talks to the pool by the calls below; none of them but pool_query_end() waits or
 * takes a lock, and a pool that is slow, or gone, answers "not found".
 *
 * Pull. The engine asks for a path of keys: pool_lookup(). The pool finds an instance that may hold
 * a longer part of it and asks that instance to lend the path. The other engine thread pins what it
 * has (a lease) between two of its steps, and its pool thread says how many blocks that is. Only
 * then the lookup is POOL_FOUND: what was found is certain until the lease ends, the peer dies, or
 * the deadline passes. The blocks of the ticket can then be read, in any order: pool_read(). A
 * lookup that tries a stale holder goes on with the next one within its deadline.
 *
 * Lend. pool_next_ask() gives the engine thread the path that a peer asks for; pool_lend() answers
 * with addresses. The blocks stay as they are until pool_next_return() gives them back.
 *
 * Query. Instead of reading the blocks of a found ticket, the engine can send a layer's queries to
 * the lender, which attends to the lent segments and returns one unmerged tile per segment
 * (TokenLake's query shipping). The lender computes on a query thread of its own, beside its engine
 * thread. Its kernels are the asker's, because the handshake compared fingerprints, so the tiles
 * have the bits that attention here would have computed (promise P1).
 *
 * Hand over. An instance that leaves offers paths of which it holds the only copy; the pool chooses
 * a peer with room, and that peer's engine gets the path from pool_next_offer(), as if it had
 * looked it up, and pulls it. In the same way KV is handed to one certain peer.
 *
 * Notes. Other parts of the program send messages that the pool does not read: pool_note.h.
 *
 * Every block that arrives is checked: it must have the key that was asked for, its length, and the
 * CRC32C that the lender computed; the handshake has compared fingerprint and block size.
 *
 * Owns    the pool thread, directory, transport, tickets, and the queues between the threads.
 * Thread  open, close: the creator's, while no engine thread runs. pool_stats(), pool_instances():
 *         any. All else: the engine thread.
 * Errors  pool_open(): words that name the flag's field in braces ({pool}, {pool_listen}, ...).
 * Units   blocks, bytes, nanoseconds. */
#ifndef TARN_CACHE_POOL_POOL_H
#define TARN_CACHE_POOL_POOL_H

#include "base/buf.h"
#include "cache/events.h"
#include "cache/key.h"
#include "cache/pool/directory.h"
#include "cache/pool/handshake.h"
#include "cache/pool/pool_note.h"

#define POOL_PATH_MAX 4096u   /* blocks of a path */
#define POOL_TICKETS_MAX 256u /* lookups at a time */
#define POOL_LEASES_MAX 64u   /* paths lent at a time */
#define POOL_READ_MAX 8u      /* blocks of one read */
#define POOL_AVOID_MAX 8u     /* instances that a lookup passes over */
#define POOL_NO_TICKET UINT32_MAX
#define POOL_QUERIES_MAX 128u           /* under way */
#define POOL_QUERY_ROWS_MAX 64u         /* of one query */
#define POOL_QUERY_SEGMENTS_MAX 512u    /* of one query */
#define POOL_QUERY_BYTES_MAX (4u << 20) /* of the queries, and of the tiles of one answer */
#define POOL_NO_QUERY UINT32_MAX

#define POOL_HANDLE_BYTES 64 /* of memory that other processes can map */

struct pool;
struct pool_attend;

struct pool_config {
    struct directory_config directory;
    const char *transport;     /* as transport_config.kind */
    const char *listen;        /* as transport_config.listen */
    const char *announce_host; /* may be NULL */
    const char *name, *http;   /* of this instance, as struct directory_instance */
    uint8_t secret[POOL_SECRET_BYTES];
    uint8_t fingerprint[KV_FINGERPRINT_BYTES];
    uint64_t block_bytes;
    uint32_t lookup_ms;          /* a lookup that takes longer found nothing; 0: 50 */
    uint32_t pull_ms;            /* a lease ends after so long, and so do its reads; 0: 2000 */
    struct cache_events *events; /* what enters and leaves this instance's cache */
    void (*wake)(void *arg);     /* there is something for the engine thread; any thread, must not
                                    block */
    void *wake_arg;
    /* Compute the tiles of a peer's query, on the query thread. NULL: queries are neither sent nor
     * answered. */
    enum status (*attend)(void *arg, const struct pool_attend *a);
    void *attend_arg;
    uint32_t query_floats, tile_floats; /* of one row: H * d, and H * (d + 2) */
    uint32_t n_layers;                  /* a query names a layer below it */
    bool balances; /* readers are spread over holders, and what many read gets copies */
    /* Map the device memory of another process of this machine, named by a handle of
     * pool_export(); on the pool thread. NULL: device memory is neither shared nor mapped. */
    enum status (*map)(void *arg, const uint8_t handle[POOL_HANDLE_BYTES], void **memory);
    void (*unmap)(void *arg, void *memory); /* on the pool thread, or in pool_close() */
    void *map_arg;
    const char *machine; /* tests: instances with other words are on other machines; NULL: none */
};

/* A query as the lender computes it. All keys of the segments are visible to all rows. */
struct pool_attend {
    uint32_t layer;
    uint32_t n_rows;
    const float *q;            /* [n_rows][query_floats] rotated */
    const void *const *blocks; /* [n_blocks] as struct pool_block's memory */
    uint32_t n_blocks;
    const struct pool_segment *segments; /* [n_segments]; `at` counts in blocks */
    uint32_t n_segments;
    float *tiles; /* [n_segments][n_rows][tile_floats] */
};
/* Consecutive blocks that one tile covers. */
struct pool_segment {
    uint32_t at; /* first block; of a query: the index in the ticket's path */
    uint16_t n_blocks, n_tokens;
};

NODISCARD enum status pool_open(struct pool **out, const struct pool_config *config,
                                struct buf *why);
void pool_close(struct pool *p); /* NULL is fine. No read is under way, nothing is lent */
/* Memory from which blocks will be lent. Before the first pool_lend(). */
void pool_register(struct pool *p, const void *base, uint64_t n_bytes);
/* All registered memory is about to be freed; nothing is lent. Once pool_is_unregistered() is true
 * the pool does not know that memory any more, and other memory may be registered. */
void pool_unregister(struct pool *p);
bool pool_is_unregistered(const struct pool *p);
/* Device memory from which blocks will be lent to instances of this machine: n_bytes, named by the
 * handle. It is forgotten by pool_unregister(), which is over when no instance has it mapped, or
 * after pull_ms. Only with config.map. */
void pool_export(struct pool *p, const uint8_t handle[POOL_HANDLE_BYTES], uint64_t n_bytes);

/* --- pull --- */

/* A path of a prompt: keys [n] of its closed blocks from the first on. starts [n_starts]: indices,
 * ascending, of the blocks that start a segment. The first n_local blocks are here. */
struct pool_path {
    const struct kv_key *keys;
    uint32_t n;
    const uint32_t *starts;
    uint32_t n_starts;
    uint32_t n_local;
    bool is_again;         /* asked before: only holders of a later segment are asked */
    uint64_t disk_ns;      /* a peer that reads blocks from its disk may take so long; within the
                         deadline of the lookup; 0: no peer reads */
    const uint64_t *avoid; /* [n_avoid] ids of instances that are not asked */
    uint32_t n_avoid;
};
/* Begin to look for blocks behind the local ones. The path is copied. POOL_NO_TICKET: the directory
 * is away, there is no other instance, or too many lookups are under way. */
uint32_t pool_lookup(struct pool *p, const struct pool_path *path);

/* Whether the lease of a found ticket is given back as soon as all its blocks have been read, without
 * waiting for pool_forget(): then the lender can use their memory again while they are placed here.
 * The ticket is POOL_NOT_FOUND from then on. False after pool_lookup(). */
void pool_end_when_read(struct pool *p, uint32_t ticket, bool ends);

enum pool_look { POOL_LOOKING, POOL_FOUND, POOL_NOT_FOUND };
struct pool_found {
    uint32_t n_blocks;  /* of the path, from its beginning on, that the peer lends; more than
                               n_local */
    uint32_t n_named;   /* blocks that the directory says another instance has, at least; of more
                           than n_blocks the peer does not lend the rest */
    uint64_t peer;      /* id of the instance */
    double latency_s;   /* of a read from this peer, before its bytes: a moving mean */
    bool was_awaited;   /* the peer read its disk for the answer, or waited for blocks that it
                           computed: the lookup's time is not usual */
    bool keeps;         /* the peer's copy goes on behind the path: of the two copies, the one that
                           is read is the surplus one */
    double bytes_per_s; /* of reads from this peer; 0: not measured yet */
    bool attends;       /* the peer answers queries */
    double query_s;     /* of a query to this peer: a moving mean; 0: not measured yet */
    uint64_t until_ns;  /* the lease ends, on the clock of base/clock.h */
};
/* A found ticket becomes POOL_NOT_FOUND when its lease ends early: the peer died, or all was read
 * (pool_end_when_read()). */
enum pool_look pool_look(struct pool *p, uint32_t ticket, struct pool_found *out);
/* The ticket is not needed any more, whatever pool_look() says: the lease is given back. Due once
 * for every ticket. No read of it is under way, and all its queries are forgotten. */
void pool_forget(struct pool *p, uint32_t ticket);

/* Read blocks at [n <= POOL_READ_MAX] (indices in the path) of a found ticket into to [n],
 * block_bytes each. tag: as pool_next_read(). ERR_BUSY: too many reads; ERR_UNAVAILABLE: the lease
 * is over. */
NODISCARD enum status pool_read(struct pool *p, uint32_t ticket, const uint32_t *at,
                                void *const *to, uint32_t n, uint64_t tag);
/* Whether this block of a found ticket lies in the peer's device memory. The blocks of a read are
 * all of this kind or none; `to` may be NULL then. */
bool pool_is_near(const struct pool *p, uint32_t ticket, uint32_t at);
/* A read of such blocks that the peer has answered: copy them from `from` and compare their CRC32C.
 * Then call pool_copied(): ERR_CORRUPT where one is another one. The memory stays mapped until
 * then. False: none. */
struct pool_places {
    uint32_t read;
    uint64_t tag; /* of pool_read() */
    uint32_t n;
    const void *from[POOL_READ_MAX]; /* device memory */
    uint32_t crc[POOL_READ_MAX];
};
bool pool_next_places(struct pool *p, struct pool_places *out);
void pool_copied(struct pool *p, uint32_t read, enum status status);
/* A read that is over. status: OK; ERR_TIMEOUT; ERR_NOT_FOUND (the peer lost it, or left);
 * ERR_CORRUPT (a check failed). False: none. */
bool pool_next_read(struct pool *p, uint64_t *tag, enum status *status);

/* --- query --- */

/* Attention of rows to lent segments of a found ticket, in one layer. */
struct pool_query {
    uint32_t ticket;
    uint32_t layer;
    uint32_t n_rows;
    const float *q; /* [n_rows], row stride q_stride floats; copied */
    size_t q_stride;
    /* [n_segments] copied. They ascend, do not overlap, and lie in the lent part of the path. All
     * blocks of a segment but the last one have KV_BLOCK_TOKENS tokens. */
    const struct pool_segment *segments;
    uint32_t n_segments;
    uint64_t until_ns; /* the asker waits no longer, so the peer then does not compute; 0: pull_ms
                          from now on */
};
/* Send the query; *query is its number. The lease lasts pull_ms longer from here on. ERR_BUSY: too
 * many queries; ERR_UNAVAILABLE: the lease is over, or the peer answers no queries; ERR_TOO_LARGE:
 * queries or tiles of more than POOL_QUERY_BYTES_MAX. */
NODISCARD enum status pool_query(struct pool *p, const struct pool_query *q, uint32_t *query);
/* Wait for the answer until until_ns on the clock of base/clock.h at the latest. *tiles
 * [n_segments][n_rows][tile_floats] is valid until pool_query_forget(). ERR_TIMEOUT;
 * ERR_NOT_FOUND: the peer lost the lease, or left; ERR_BUSY: the peer has too many queries;
 * ERR_CORRUPT: a check failed. */
NODISCARD enum status pool_query_end(struct pool *p, uint32_t query, uint64_t until_ns,
                                     const float **tiles);
/* The query is not needed any more. Due once for each, also after an error. */
void pool_query_forget(struct pool *p, uint32_t query);

/* --- lend --- */

struct pool_ask {
    uint32_t lease;
    const struct kv_key *keys; /* [n] from the first on; valid until the ask is answered */
    uint32_t n;
    uint32_t n_there;  /* blocks that the asker has: no addresses are needed for them */
    uint64_t until_ns; /* the asker waits no longer */
    uint64_t disk_ns;  /* the time that reading from disk may take; 0: only what lies in memory */
    bool is_near;      /* the asker reads the exported device memory, too */
    bool yields;       /* of two instances that ask each other, the asker is the one that waits */
    bool is_offered;   /* this instance has offered the path to the asker, and to no other */
};
/* The oldest ask that was not given yet; it is to be answered by pool_lend(). False: none. */
bool pool_next_ask(struct pool *p, struct pool_ask *out);
struct pool_block {
    const void *memory; /* [block_bytes]; NULL: in the exported memory, */
    uint32_t place;     /* at place * block_bytes, */
    uint32_t crc;       /* with this CRC32C; only for an ask that is near */
    uint32_t n_tokens;
};
/* Answer an ask, in any order: blocks [n_there, n) of the ask's path are lent; blocks [n -
 * n_there], the first one is the path's block n_there. The array is copied. n <= n_there: nothing
 * is lent, and nothing will come back. Otherwise pool_next_return() names the lease once, also when
 * the asker has gone. flags: POOL_KEEPS and POOL_AWAITED, as in struct pool_found. */
enum { POOL_KEEPS = 1, POOL_AWAITED = 2 };
void pool_lend(struct pool *p, uint32_t lease, const struct pool_block *blocks, uint32_t n,
               uint32_t flags);
/* A lease that is over: its blocks are read no more. was_pulled: the peer has read all of them, so
 * it has the whole path now; false for an offered POOL_OFFER_COPY. False: none. */
bool pool_next_return(struct pool *p, uint32_t *lease, bool *was_pulled);

/* --- what other instances hold --- */

/* News about a segment that lies here: whether this instance's copy is one that others can replace.
 * False: none. After a pull the lender's copy is the one that can be replaced: pool_next_return().
 * */
struct pool_news {
    struct kv_key segment; /* its first DIRECTORY_SEGMENT_BYTES bytes; the rest is 0 */
    bool is_replica;
};
bool pool_next_news(struct pool *p, struct pool_news *out);

/* --- hand over --- */

enum pool_offer_why {
    POOL_OFFER_HANDS_OVER, /* nobody else has it in future */
    POOL_OFFER_COPY,       /* both are to have it: many read it */
    POOL_OFFER_MOVE        /* the peer is to serve it: this instance serves too much */
};

/* A path with what a tree needs to know about its blocks. */
struct pool_offer {
    const struct kv_key *keys; /* [n] */
    const struct pool_meta {
        uint8_t n_tokens; /* 1..32 */
        bool starts_segment, is_public, is_registered;
        uint32_t depth; /* spans before the block */
    } * meta;           /* [n] */
    uint32_t n;
    uint32_t n_there; /* blocks that the receiver has: they are not lent */
    uint64_t to;      /* the only instance that is offered the path; 0: the pool chooses */
    enum pool_offer_why why;
    uint32_t ticket; /* for the receiver: a found ticket that covers the path */
};
/* From now on this instance is leaving: others look up nothing here that they find elsewhere. */
void pool_leave(struct pool *p);
/* Offer a path; a peer with room, or `to`, pulls it. False: too many offers are under way, try
 * again later. A path that others hold, too, is not offered: that counts as done. */
bool pool_offer(struct pool *p, const struct pool_offer *offer);
/* Offers that no peer has finished or refused yet. */
uint32_t pool_n_offers(const struct pool *p);
/* A path that the pool wants to be offered to `to`, to balance load: the path that ends with this
 * block. False: none. */
struct pool_copy {
    struct kv_key last;
    uint64_t to;
    enum pool_offer_why why;
};
bool pool_next_copy(struct pool *p, struct pool_copy *out);
/* For a peer: a path that another instance offers; keys and meta are valid until the next call.
 * The ticket is this engine's to forget. False: none. */
bool pool_next_offer(struct pool *p, struct pool_offer *out);

/* --- watching --- */

/* The load of this instance, for the directory. The engine sets it at most once per 100 ms. */
struct pool_load {
    uint32_t n_blocks, n_free_blocks, n_waiting, n_running;
    double n_accesses; /* to KV here by this instance itself, since the last call: as pool_stats */
};
void pool_set_load(struct pool *p, const struct pool_load *load);

struct pool_stats {
    struct directory_stats directory;
    char transport[8];
    uint32_t n_instances, n_peers; /* alive in the directory; connected */
    uint32_t n_segments;           /* announced */
    uint32_t n_lent;               /* blocks */
    uint64_t n_lookups, n_found, n_stale, n_lookup_timeouts;
    uint64_t n_pulled_blocks, n_pulled_bytes, n_lent_blocks, n_lent_bytes;
    /* Reads that failed, each counted once: the peer has lost the blocks or is gone; no answer
     * before the end of the lease; a check failed. */
    uint64_t n_reads_lost, n_reads_timed_out, n_reads_corrupt;
    uint64_t n_peer_timeouts;  /* asks, reads and queries that a peer did not answer in time */
    uint64_t n_lease_timeouts; /* leases of blocks of this instance that no peer has closed */
    uint32_t n_mapped;         /* instances whose device memory is mapped */
    uint64_t n_near_bytes;     /* of n_pulled_bytes: read from it */
    uint64_t n_queries, n_queries_failed, n_query_bytes; /* asked: bytes both ways */
    uint64_t n_attended, n_attended_rows;                /* answered for peers */
    uint64_t n_queries_refused;                          /* of peers: too many, or too late */
    uint64_t n_refused;                                  /* connections without the secret */
    uint64_t n_offered, n_handed_over;                   /* paths */
    /* Paths offered so that others serve them, too, or instead; of these, paths that were taken. */
    uint64_t n_copies_offered, n_copies, n_moves;
    double n_accesses;      /* to KV here: tokens sent, or read by attention in one step */
    double load_cv;         /* standard deviation over mean of the loads of all instances */
    uint64_t n_events_lost; /* times that the queue of events was full */
    uint64_t n_notes_sent, n_notes_received, n_notes_dropped;   /* dropped: in both directions */
    double lookup_s, read_latency_s, read_bytes_per_s, query_s; /* moving means */
};
void pool_stats(struct pool *p, struct pool_stats *out);
/* All instances of the pool, this one first. Returns their number. */
uint32_t pool_instances(struct pool *p, struct directory_instance *out, uint32_t n_max);

#endif
