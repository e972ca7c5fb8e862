/* directory_inner.h - the parts of the directory: URL, records of instances, names, connection.
 *
 * directory.c keeps the connection up and announces, directory_instances.c writes the heartbeat and
 * reads the list, directory_look.c has lookups and counts, directory_url.c the URL,
 * directory_record.c the JSON of an instance, directory_resolve.c names of hosts, and
 * directory_redis.c the connection itself (the only one of them that includes hiredis).
 *
 * Owns    see each part.
 * Thread  the pool thread; a resolver has one helper thread of its own.
 * Errors  as directory.h.
 * Units   as directory.h. */
#ifndef TARN_CACHE_POOL_DIRECTORY_INNER_H
#define TARN_CACHE_POOL_DIRECTORY_INNER_H

#include <stddef.h>

#include "base/map.h"
#include "cache/pool/directory.h"

/* --- URL (directory_url.c) --- */

struct directory_url {
    bool is_unix;
    char host[256]; /* a name or an address without brackets; of a Unix socket its path */
    uint16_t port;
    uint32_t database;
    char user[128], password[256]; /* "": none */
};

/* The words never contain the password. */
NODISCARD enum status directory_url_parse(struct directory_url *out, const char *url,
                                          struct buf *why);

/* --- record of an instance (directory_record.c) --- */

#define RECORD_BYTES_MAX 4096u
#define ID_HEX_BYTES 16u

void directory_id_write(char out[ID_HEX_BYTES + 1], uint64_t id);
/* False: text [n] is not such an id. */
bool directory_id_read(uint64_t *id, const char *text, size_t n);

NODISCARD enum status directory_record_write(struct buf *out, const struct directory_instance *i);
/* Read a record that anyone may have written. ERR_INVALID: it breaks a rule, *out is unchanged. */
NODISCARD enum status directory_record_read(struct directory_instance *out, uint64_t id,
                                            const char *text, size_t n);

/* --- names of hosts (directory_resolve.c) --- */

#define RESOLVED_MAX 8u

struct resolved {
    uint32_t n;
    char address[RESOLVED_MAX][64]; /* numeric */
};

struct resolver;
/* True: the host is numeric, and *out is its address. */
bool directory_resolve_numeric(struct resolved *out, const char *host);
/* Begin to resolve a name in a thread that writes 1 to eventfd `fd` at its end. NULL: no memory or
 * no thread. */
struct resolver *directory_resolve_begin(const char *host, int fd);
/* True: it is done, *out is filled in (n = 0: the name has no address), and the resolver is freed.
 * */
bool directory_resolve_take(struct resolver *r, struct resolved *out);
/* The result is not wanted any more. The thread ends by itself, since getaddrinfo() cannot be
 * interrupted. NULL is fine. */
void directory_resolve_leave(struct resolver *r);

/* --- connection (directory_redis.c) --- */

enum redis_kind { REDIS_NOTHING, REDIS_NUMBER, REDIS_TEXT, REDIS_ERROR, REDIS_LIST };

/* A view of a reply, valid during the callback. */
struct redis_view {
    enum redis_kind kind;
    int64_t number;
    const char *text; /* of REDIS_TEXT and REDIS_ERROR, [n] bytes and a NUL */
    size_t n;         /* bytes, or elements of REDIS_LIST */
    const void *inner;
};
/* Element i < n of a list: never a list itself. */
struct redis_view redis_link_at(const struct redis_view *list, size_t i);

/* Bounds of one reply. The connection ends at a larger one, and at one that was not asked for. */
#define REDIS_ELEMENTS_MAX 2048u
#define REDIS_TEXT_MAX (RECORD_BYTES_MAX + 64u)

#define REDIS_TYPE_WORDS "Redis sent a reply of another type than was asked for"

struct redis_link_hooks {
    void (*connected)(void *arg);
    /* The connection ended; all its commands were answered with NULL before. why is static. */
    void (*lost)(void *arg, const char *why);
};
/* reply: NULL when the connection ended before. */
typedef void redis_link_reply(void *arg, const struct redis_view *reply, uint32_t what);

struct redis_link;
/* Whether this program was built with hiredis. */
bool redis_link_is_built(void);
/* epoll: the descriptor in which the socket is registered, with data.ptr = the link. */
NODISCARD enum status redis_link_open(struct redis_link **out, int epoll,
                                      const struct redis_link_hooks *hooks, void *arg);
void redis_link_close(struct redis_link *l); /* NULL is fine; hooks.lost() is not called */
/* Begin to connect to a numeric address, or to a Unix socket (port 0). A failure at once calls
 * hooks.lost(), too. */
void redis_link_connect(struct redis_link *l, const char *address, uint16_t port);
bool redis_link_is_open(const struct redis_link *l);
/* End the connection with these words; hooks.lost() follows, perhaps after the current callback. */
void redis_link_end(struct redis_link *l, const char *why);
/* Queue a command. False: no connection or no memory, and the callback is not called. */
bool redis_link_send(struct redis_link *l, int argc, const char *const *argv, const size_t *lengths,
                     redis_link_reply *reply, uint32_t what);
/* Commands without an answer, and all answers of this connection so far. */
uint32_t redis_link_n_pending(const struct redis_link *l);
uint64_t redis_link_n_answers(const struct redis_link *l);
/* Do what epoll reported for the socket. */
void redis_link_progress(struct redis_link *l, uint32_t epoll_events);

/* --- the directory itself --- */

#define LOOKS_MAX 256u              /* lookups and counts at a time */
#define PENDING_ANNOUNCED_MAX 4096u /* commands; lookups may add up to PENDING_MAX */
#define PENDING_MAX 16384u
#define SUSPECTS_MAX 64u
#define KEY_BYTES_MAX 128u /* of a key in Redis */

/* The states of the connection. */
enum directory_state { STATE_PAUSE, STATE_RESOLVING, STATE_CONNECTING, STATE_GREETING, STATE_UP };

/* A lookup or a count. Its commands carry its place in `looks` and the index of a segment. */
struct look {
    bool is_count, is_broken; /* broken: an answer is missing */
    uint64_t tag;
    uint8_t (*keys)[DIRECTORY_SEGMENT_BYTES]; /* [n] */
    uint32_t n, n_waiting;
    /* A lookup has two steps. The first one asks for every stride-th segment, counted from the last
     * one; the second one for those between the deepest hit and the next segment asked for. */
    uint32_t stride;
    bool is_second_step;
    int32_t best; /* the deepest segment with a living holder so far; -1: none */
    uint32_t n_holders;
    struct directory_holder holders[DIRECTORY_HOLDERS_MAX];
    struct directory_count *counts; /* [n] of a count, else NULL */
};

/* An id that a segment has and the list of instances has not, while Redis is asked for its record.
 * */
struct suspect {
    uint64_t id; /* 0: free */
    uint8_t key[DIRECTORY_SEGMENT_BYTES];
};

struct directory {
    struct directory_url url;
    char prefix[80];
    uint64_t id;
    uint32_t instance_ttl_ms, segment_ttl_s;
    uint64_t timeout_ns;
    int epoll, resolved_fd;
    uint64_t now;

    enum directory_state state;
    struct redis_link *link;
    struct resolver *resolver;
    struct resolved addresses;
    bool is_numeric;  /* addresses need not be resolved again */
    uint32_t n_tries; /* since the connection was up for long; the pauses grow with it */
    uint64_t n_draws; /* numbers taken from base/rng.h */
    uint64_t state_since, retry_at;
    bool was_waiting; /* for answers, at the last directory_progress() */
    uint64_t answered_at, n_answers;
    uint32_t n_quiet; /* commands without an answer yet that nobody waits for: announcements */

    struct buf record; /* of this instance; empty before the first heartbeat */
    bool is_beating;   /* a heartbeat is under way */
    bool was_written;  /* the record, on this connection */
    uint64_t beat_at, n_beats;
    uint64_t asked_ids[DIRECTORY_INSTANCES_MAX];
    uint32_t n_asked_ids;
    struct directory_instance *instances; /* [DIRECTORY_INSTANCES_MAX] */
    uint32_t n_instances;
    struct map alive; /* id -> index in instances */
    struct suspect suspects[SUSPECTS_MAX];
    uint32_t next_suspect;

    struct look looks[LOOKS_MAX];
    uint16_t free_looks[LOOKS_MAX], done[LOOKS_MAX]; /* a stack; a queue */
    uint32_t n_free_looks, done_head, n_done;

    const char *why; /* of the last end of a connection */
    bool must_tell_down, must_tell_up, must_tell_instances;
    struct directory_stats stats;
};

/* Queue a command whose words are NUL-terminated, except where lengths [argc] is given. */
bool directory_send(struct directory *d, int argc, const char *const *argv, const size_t *lengths,
                    redis_link_reply *reply, uint32_t what);
/* A callback for commands of which only errors matter. */
void directory_answered(void *arg, const struct redis_view *reply, uint32_t what);
/* Write the key of a segment. Returns its length. */
size_t directory_segment_key(const struct directory *d, char out[KEY_BYTES_MAX],
                             const uint8_t key[DIRECTORY_SEGMENT_BYTES]);
/* A field of a segment: the id, the highest byte first. */
void directory_field(char out[8], uint64_t id);
/* End the connection because of an error that Redis answered. */
void directory_refused(struct directory *d, const struct redis_view *error);
bool directory_is_alive(const struct directory *d, uint64_t id);

/* --- instances (directory_instances.c) --- */

/* Queue this instance's record, without and with the request for the list of all. */
void directory_write_self(struct directory *d);
void directory_beat(struct directory *d);

/* --- lookups (directory_look.c) --- */

void directory_looks_init(struct directory *d);
void directory_looks_fini(struct directory *d);
/* Take the oldest lookup that is done. False: none. */
bool directory_look_next(struct directory *d, struct directory_event *out);

#endif
