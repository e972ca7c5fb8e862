/* directory.h - who is alive in a pool, and which instance holds which segment: hints in a Redis.
 *
 * A segment is named by the key of its first block. Because a node of the tree never leaves an
 * instance before the nodes behind it, a holder of a prompt's later segment holds all segments
 * before it, too. So the holders of the deepest known segment of a prompt are all that a lookup
 * needs.
 *
 * The directory is a hint, never the truth: every holder is asked before its KV is used. Entries
 * expire by themselves (`segment_ttl_s`) unless they are announced again, so those of instances
 * that died disappear. Nothing here waits: requests go out in pipelines, and answers arrive as
 * events. While Redis is away, announcements are dropped, lookups end with DIRECTORY_NOT_NOW, and a
 * connection is tried again with growing pauses. After every connection, and after Redis lost its
 * data, DIRECTORY_UP asks the owner to announce everything again.
 *
 * In Redis, with P = "tarn:" + the pool's name + ":" (the database number of the URL separates
 * pools, too):
 *
 *   P i:<id>    string, expires after `instance_ttl_ms`: an instance (JSON, at most 4 KiB)
 *   P ids       set of instance ids
 *   P s:<16 bytes of the segment's key>  hash, expires after `segment_ttl_s`:
 *               instance id -> tier, blocks
 *
 * Clocks of instances are never compared: all expiry is by Redis.
 *
 * Owns    its connection and what waits in it.
 * Thread  the pool thread only.
 * Errors  directory_open(): ERR_INVALID with words for a bad URL; ERR_UNSUPPORTED for rediss://
 *         (there is no TLS), and when Tarn was built without hiredis. A Redis that does not answer
 *         is no error. Redis 6.2 or newer is needed; an older one is DIRECTORY_DOWN with words.
 * Units   milliseconds and seconds where a name says so, else nanoseconds. */
#ifndef TARN_CACHE_POOL_DIRECTORY_H
#define TARN_CACHE_POOL_DIRECTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "cache/key.h"

#define DIRECTORY_TIER_DISK 2u     /* as enum cache_tier: from here on, not in memory */
#define DIRECTORY_SEGMENT_BYTES 16 /* the first bytes of the key of a segment's first block */
#define DIRECTORY_HOLDERS_MAX 8u
#define DIRECTORY_INSTANCES_MAX 1024u
#define DIRECTORY_PATH_MAX 512u /* segments of one lookup */

struct directory;

/* An instance. Its id is new at every start, so what an earlier process announced is never taken
 * for this one's. */
struct directory_instance {
    uint64_t id;            /* random, not 0 */
    char name[64];          /* for people: of --pool-name */
    char address[128];      /* of its data plane, as transport_address() */
    char http[128];         /* URL of its HTTP API; "": not said */
    uint8_t fingerprint[8]; /* first bytes: instances with another one are listed and not asked */
    uint32_t n_blocks, n_free_blocks; /* of device and host memory */
    uint32_t n_waiting, n_running;    /* requests */
    uint32_t load;                    /* accesses to its KV: tokens per second, pool_balance.c */
    bool is_leaving;                  /* its segments are being moved away */
    char version[24];
    char documents[17]; /* digest of its catalog, 16 hexadecimal digits; "": it has none */
    char machine[17];   /* where its device memory can be mapped (pool_map.c); "": nowhere */
    char member[17];    /* of the pool's secret: a keyed hash; "": an older version. Words for
                           people: who has the secret is proved by the handshake */
};

struct directory_config {
    const char *url;  /* redis://[user:password@]host[:port][/database], or unix:///path[?db=n] */
    const char *pool; /* name of the pool, [a-z0-9-]; "" = "default" */
    uint64_t id;
    uint32_t instance_ttl_ms; /* 0: 3000 */
    uint32_t segment_ttl_s;   /* 0: 600 */
    uint32_t timeout_ms;      /* an answer that takes longer ends the connection; 0: 500 */
};

NODISCARD enum status directory_open(struct directory **out, const struct directory_config *config,
                                     struct buf *why);
/* Removes this instance from the directory if that takes at most 100 ms. NULL is fine. */
void directory_close(struct directory *d);

/* A file descriptor that is readable when directory_progress() has something to do. */
int directory_fd(const struct directory *d);
/* Read and write what can be, notice timeouts, connect again. Call when the descriptor is readable
 * and at least every 100 ms. */
void directory_progress(struct directory *d, uint64_t now_ns);
/* Whether anything but answers to announcements is expected. If not, it is enough to call
 * directory_progress() now and then, whether the descriptor is readable or not. */
bool directory_is_awaited(const struct directory *d);
bool directory_is_up(const struct directory *d);

/* Write this instance's record, extend its life, and read the list of all. To be called about three
 * times per instance_ttl_ms. DIRECTORY_INSTANCES tells when the list is new. */
void directory_heartbeat(struct directory *d, const struct directory_instance *self);
/* The instances that are alive, without this one: valid until the next directory_progress(). */
const struct directory_instance *directory_instances(const struct directory *d, uint32_t *n);

struct directory_segment {
    uint8_t key[DIRECTORY_SEGMENT_BYTES];
    uint8_t tier;     /* the fastest tier in which all of its blocks lie: enum cache_tier */
    uint8_t n_blocks; /* of its longest branch here; 0: it is not here any more */
};
/* Announce or withdraw segments [n] of this instance, and extend the life of what is announced.
 * Returns how many were taken: fewer when the connection is down or has too much to send; the rest
 * is to be announced again later. */
uint32_t directory_announce(struct directory *d, const struct directory_segment *segments,
                            uint32_t n);

/* Ask for the holders of segments keys [n <= DIRECTORY_PATH_MAX], in the order of the prompt. The
 * answer is an event with this tag. ERR_UNAVAILABLE: Redis is away. ERR_BUSY: too many lookups. */
NODISCARD enum status directory_lookup(struct directory *d,
                                       const uint8_t (*keys)[DIRECTORY_SEGMENT_BYTES], uint32_t n,
                                       uint64_t tag);
/* The same for each of the segments alone: how many instances hold it, this one included. Answers
 * are DIRECTORY_COUNTED events, one per call. */
NODISCARD enum status directory_count(struct directory *d,
                                      const uint8_t (*keys)[DIRECTORY_SEGMENT_BYTES], uint32_t n,
                                      uint64_t tag);
/* Withdraw what an instance that is gone, or that does not have the segment, is said to hold. */
void directory_forget(struct directory *d, uint64_t instance,
                      const uint8_t key[DIRECTORY_SEGMENT_BYTES]);

struct directory_holder {
    uint64_t id;
    uint8_t tier, n_blocks;
};

enum directory_event_kind {
    DIRECTORY_UP,        /* connected, or Redis lost its data: announce everything again */
    DIRECTORY_DOWN,      /* why says what happened */
    DIRECTORY_INSTANCES, /* directory_instances() is new */
    DIRECTORY_FOUND,     /* of a lookup: holders of the deepest segment that has a living one */
    DIRECTORY_COUNTED,   /* of directory_count() */
    DIRECTORY_NOT_NOW    /* a lookup or count ended without an answer */
};

struct directory_event {
    enum directory_event_kind kind;
    uint64_t tag;
    uint32_t at;        /* DIRECTORY_FOUND: index of that segment in the lookup */
    uint32_t n_holders; /* 0: nobody holds any of them. Without this instance and the dead */
    struct directory_holder holders[DIRECTORY_HOLDERS_MAX];
    /* DIRECTORY_COUNTED: for each segment the number of living holders that have it in memory, and
     * the smallest of their hash(id, segment): the instance for which it is the smallest keeps the
     * copy that counts. */
    uint32_t n_counts;
    struct directory_count {
        uint16_t n_holders;
        bool is_first; /* this instance is that one */
    } counts[DIRECTORY_PATH_MAX];
    const char *why; /* static */
};
/* The next event. False: none. */
bool directory_next(struct directory *d, struct directory_event *out);

struct directory_stats {
    bool is_up;
    uint64_t n_connects, n_timeouts, n_lookups, n_announced, n_dropped;
    double round_trip_s; /* a moving mean */
};
void directory_stats(const struct directory *d, struct directory_stats *out);

#endif
