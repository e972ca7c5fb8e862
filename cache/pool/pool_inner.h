/* pool_inner.h - what the sources of the pool share (docs/design/pool.md).
 *
 *   pool.c            open, close, the thread's loop, watching
 *   pool_engine.c     all calls of the engine thread
 *   pool_peers.c      other instances: list, pauses, measurements
 *   pool_conns.c      connections: handshake, messages, what is being sent
 *   pool_lookup.c     tickets: directory, holders, asks
 *   pool_read.c       reads of found tickets
 *   pool_lend.c       leases
 *   pool_offer.c      paths that a leaving instance hands over
 *   pool_announce.c   inventory to the directory, news to the engine
 *
 * A slot (ticket, read, lease, offer) is a preallocated record with one owner at a time: the engine
 * thread or the pool thread. A number in a queue passes the slot on.
 *
 * Owns    nothing of its own.
 * Thread  the pool thread, except where a field says otherwise.
 * Errors  none.
 * Units   blocks, bytes, nanoseconds. */
#ifndef TARN_CACHE_POOL_POOL_INNER_H
#define TARN_CACHE_POOL_POOL_INNER_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "base/map.h"
#include "base/spsc.h"
#include "cache/pool/pool.h"
#include "cache/pool/pool_inventory.h"
#include "cache/pool/transport.h"
#include "cache/pool/wire.h"

#define POOL_NONE UINT32_MAX
#define POOL_OFFERS_MAX 16u                                 /* in each direction */
#define POOL_N_TICKETS (POOL_TICKETS_MAX + POOL_OFFERS_MAX) /* the last ones: of taken offers */
#define POOL_N_READS 512u
#define POOL_N_CONNS 256u
#define POOL_N_SENDS 1024u        /* payloads under way to others */
#define POOL_READS_OUT_MAX 16u    /* reads sent to one peer and not answered */
#define POOL_READS_QUEUED_MAX 64u /* reads of one peer that wait here; more is a broken peer */
#define POOL_DATA_OUT_MAX 4u      /* answers under way to one peer */
#define POOL_N_COMMANDS 4096u
#define POOL_MS UINT64_C(1000000)
#define POOL_SECOND UINT64_C(1000000000)

_Static_assert(POOL_PATH_MAX == WIRE_PATH_MAX && POOL_READ_MAX == WIRE_READ_MAX,
               "paths and reads fit into messages");

/* --- from the engine thread --- */

enum pool_command_kind {
    POOL_LOOKUP, /* of ticket `index` */
    POOL_FORGET, /* of ticket `index` */
    POOL_READ,   /* of read `index` */
    POOL_LEND,   /* lease `index` is answered */
    POOL_BACK,   /* lease `index` was returned and may be used again */
    POOL_OFFER,  /* offer `index` */
    POOL_LEAVE,
    POOL_LOAD,
    POOL_REGISTER
};
struct pool_command {
    enum pool_command_kind kind;
    uint32_t index;
    union {
        struct pool_load load;
        struct {
            const void *base;
            uint64_t n_bytes;
        } memory;
    };
};

/* --- tickets --- */

enum pool_stage {
    POOL_IDLE,       /* free, or its lookup is over without a lease */
    POOL_SEARCHING,  /* the directory was asked */
    POOL_CONNECTING, /* to the chosen holder */
    POOL_ASKING,     /* the holder */
    POOL_HOLDING     /* a lease */
};

#define POOL_LOST (POOL_NOT_FOUND + 1) /* a state: the lease of a found ticket ended early */

struct pool_ticket {
    _Atomic uint32_t state; /* enum pool_look or POOL_LOST; written by the pool thread while the
                               engine has the ticket */
    struct kv_key *keys;    /* [POOL_PATH_MAX] */
    uint32_t n, n_local;
    uint32_t *starts; /* [n_starts + 1] first blocks of the segments with blocks behind the local
                         ones; then the end of the last one */
    uint32_t n_starts;
    struct pool_found found; /* before `state` says so */

    /* the pool thread's */
    enum pool_stage stage;
    uint32_t generation; /* a late answer to an earlier use is recognized */
    bool is_forgotten;
    uint32_t n_sending, n_reads;
    uint64_t began_ns, deadline_ns;
    uint64_t asked_ns, try_until_ns; /* of the ask under way */
    uint32_t at;                     /* the segment whose holders these are */
    uint32_t n_holders;
    struct directory_holder holders[DIRECTORY_HOLDERS_MAX];
    uint32_t tried; /* bits of holders */
    uint32_t n_rounds;
    uint32_t peer, conn;
};

/* --- reads --- */

enum pool_read_stage { POOL_READ_FREE, POOL_READ_WAITS, POOL_READ_SENT, POOL_READ_ARRIVES };

struct pool_read_slot {
    uint32_t ticket; /* set by the engine */
    uint32_t n;
    uint32_t at[POOL_READ_MAX];
    void *to[POOL_READ_MAX];
    uint64_t tag;

    enum pool_read_stage stage;
    uint32_t generation;
    struct link link; /* of waiting_reads */
    uint32_t crc[POOL_READ_MAX];
    uint64_t sent_ns, head_ns;
    bool is_alone; /* the peer had no other read then */
};
struct pool_read_done {
    uint32_t index;
    enum status status;
};

/* --- leases --- */

enum pool_lease_stage {
    POOL_LEASE_FREE,
    POOL_LEASE_ARRIVES, /* the keys */
    POOL_LEASE_ASKED,   /* the engine */
    POOL_LEASE_LENT,
    POOL_LEASE_ENDS, /* payload is still under way */
    POOL_LEASE_BACK  /* the engine was told */
};

struct pool_lease {
    struct kv_key *keys; /* [POOL_PATH_MAX] */
    uint32_t n, n_there;
    uint64_t until_ns;   /* of the ask, then of the lease */
    const void **memory; /* [POOL_PATH_MAX] of blocks [n_there, n_lent), from entry 0 on */
    uint8_t *n_tokens;   /* the same */
    uint32_t *crc;       /* the same, once has_crc */
    uint8_t *has_crc;
    uint32_t n_lent; /* written by the engine with the answer */
    uint32_t n_read; /* of these, blocks that were sent */

    enum pool_lease_stage stage;
    uint32_t conn; /* POOL_NONE: closed */
    uint64_t ask;
    bool is_closed; /* the asker needs it no more */
    uint32_t n_sending;
};

/* --- offers --- */

enum pool_offer_stage {
    POOL_OFFER_FREE,
    POOL_OFFER_CHECKS, /* whether others hold it */
    POOL_OFFER_CONNECTS,
    POOL_OFFER_WAITS, /* for DONE */
    POOL_OFFER_ENDS   /* its path is still being sent */
};

struct pool_offer_slot {
    _Atomic uint32_t is_used; /* set by the engine, cleared by the pool thread */
    struct kv_key *keys;      /* [POOL_PATH_MAX] */
    uint8_t *meta;            /* [POOL_PATH_MAX * WIRE_META_BYTES] */
    uint32_t n;
    uint32_t last_start; /* first block of its last segment */

    enum pool_offer_stage stage;
    uint32_t generation;
    uint32_t n_sending, n_tries;
    uint64_t deadline_ns;
    uint32_t conn;
    uint64_t tried[3]; /* ids of peers */
};

struct pool_taken {
    struct pool_meta *meta; /* [POOL_PATH_MAX] */
    uint8_t *wire_meta;     /* [POOL_PATH_MAX * WIRE_META_BYTES] */
    uint32_t conn;          /* on which it was offered; POOL_NONE: closed */
    uint64_t id;            /* of the offer */
    bool is_used, is_arriving;
    bool is_pulled_soon;  /* the engine has forgotten the ticket: is the path here? */
    uint64_t deadline_ns; /* of that question */
};

/* --- peers and connections --- */

struct pool_peer {
    struct directory_instance info;
    bool is_used, is_listed;
    uint32_t conn; /* that this instance opened; POOL_NONE */
    uint32_t n_timeouts_row;
    uint64_t pause_ns, paused_until_ns;
    uint32_t n_reads_out;
    uint32_t n_offered_blocks; /* since the list was new */
    double latency_s, bytes_per_s;
    uint64_t last_done_ns;
};

enum pool_conn_stage {
    POOL_CONN_FREE,
    POOL_CONN_OPENS,
    POOL_CONN_SHAKES,
    POOL_CONN_MEMBER,
    POOL_CONN_CLOSES
};

struct pool_lend_read { /* a READ that waits */
    uint64_t read, ask;
    uint32_t n;
    uint32_t at[POOL_READ_MAX];
};

struct pool_conn {
    enum pool_conn_stage stage;
    uint32_t number;     /* of the transport */
    bool is_asker;       /* opened here */
    const char *failure; /* to be closed by pool_conns_sweep(), for this reason; NULL: not */
    bool is_peers_fault;
    struct handshake handshake;
    uint64_t began_ns, used_ns;
    uint32_t peer;                                /* asker: number */
    uint64_t peer_id;                             /* of the other instance, once it is a member */
    uint32_t n_asks_cancelled, n_reads_cancelled; /* whose answers may still come */
    uint32_t n_leases, n_data_out;
    struct pool_lend_read *reads; /* [POOL_READS_QUEUED_MAX] ring; allocated for a member */
    uint32_t reads_first, n_reads;
};

enum pool_payload { POOL_SENDS_TICKET, POOL_SENDS_LEASE, POOL_SENDS_OFFER };
struct pool_send {
    bool is_used;
    enum pool_payload what;
    uint32_t index, conn, next_free;
};

struct pool_mean {
    double value;
    uint64_t n;
};

struct pool {
    struct pool_config config;
    uint64_t lookup_ns, pull_ns;
    struct handshake_self self;
    struct directory *directory;
    struct transport *transport;
    struct inventory *inventory;
    pthread_t thread;
    bool has_thread;

    /* between the threads */
    struct spsc *commands;                /* engine -> pool */
    struct spsc *tickets_free;            /* pool -> engine: numbers; so are the next five */
    struct spsc *reads_done;              /* struct pool_read_done */
    struct spsc *asks, *returns, *offers; /* numbers: leases, leases, taken offers */
    struct spsc *news;                    /* struct pool_news */
    _Atomic bool is_asleep, is_stopping;
    _Atomic bool can_look; /* the directory answers, and another instance is alive */
    _Atomic uint32_t n_offers;
    int wake_fd;

    /* the engine thread's */
    uint32_t ask_now; /* POOL_NONE: none */
    uint32_t reads_free[POOL_N_READS], n_reads_free;

    struct pool_ticket tickets[POOL_N_TICKETS];
    struct pool_read_slot reads[POOL_N_READS];
    struct pool_lease leases[POOL_LEASES_MAX];
    struct pool_offer_slot offers_out[POOL_OFFERS_MAX];
    struct pool_taken taken[POOL_OFFERS_MAX];
    void *arenas[8]; /* memory of the slots */
    uint32_t n_arenas;

    /* the pool thread's */
    uint64_t now_ns, due_ns; /* the next deadline */
    uint64_t round_due_ns;   /* the next one that the last round over the slots saw */
    bool has_changed;        /* something happened since that round */
    bool has_posted;         /* something for the engine */
    bool is_busy;            /* something was begun: do not sleep yet */
    uint64_t timers_ns, heartbeat_ns, announce_ns, roll_ns, publish_ns;
    struct pool_conn conns[POOL_N_CONNS];
    uint32_t n_lend_reads; /* READs of all peers that wait */
    uint32_t at_conn;      /* whose turn it is to be served */
    uint32_t n_failed;     /* connections to be closed */
    struct map conn_of_number;
    struct pool_peer *peers; /* [DIRECTORY_INSTANCES_MAX] */
    uint32_t n_peers;        /* ever used */
    struct map peer_of_id;
    struct pool_send sends[POOL_N_SENDS];
    uint32_t first_send;
    struct link waiting_reads;
    double strikes; /* failed handshakes, less what was forgiven since */
    uint64_t strikes_ns;
    struct directory_instance info; /* this instance */
    struct directory_event event;   /* too large for the stack of a small thread */
    struct directory_segment batch[DIRECTORY_PATH_MAX];
    uint8_t counted[DIRECTORY_PATH_MAX][DIRECTORY_SEGMENT_BYTES];
    uint32_t n_counted; /* 0: no count is under way */
    uint32_t count_generation;
    double roll_due;
    uint8_t lookup_keys[DIRECTORY_PATH_MAX][DIRECTORY_SEGMENT_BYTES];
    struct pool_stats live;
    struct pool_mean lookup_s, latency_s, bytes_per_s;

    pthread_mutex_t stats_lock; /* of `shared`; held for as long as copying it takes */
    struct pool_stats shared;
    pthread_mutex_t lock;                 /* of what follows; never taken by the engine thread */
    struct directory_instance *instances; /* [DIRECTORY_INSTANCES_MAX + 1] */
    uint32_t n_instances;
};

/* pool.c */
void pool_due(struct pool *p, uint64_t at_ns); /* wake up at that time, or earlier */
void pool_mean_add(struct pool_mean *m, double value);

/* pool_engine.c: all that pool.h gives the engine thread */

/* pool_peers.c */
void pool_peers_update(struct pool *p);                         /* the directory's list is new */
struct pool_peer *pool_peer_by_id(struct pool *p, uint64_t id); /* NULL: unknown */
bool pool_peer_is_usable(const struct pool *p, const struct pool_peer *peer);
void pool_peer_timed_out(struct pool *p, struct pool_peer *peer);
void pool_peer_answered(struct pool_peer *peer);
void pool_peer_closed(struct pool *p, struct pool_peer *peer, bool is_peers_fault);
/* A connection to the peer, perhaps not open yet. POOL_NONE: impossible now. */
uint32_t pool_peer_connect(struct pool *p, struct pool_peer *peer);

/* pool_conns.c */
void pool_conns_events(struct pool *p, uint32_t *n_events);
void pool_conns_timers(struct pool *p);
uint32_t pool_conn_open(struct pool *p, uint32_t peer); /* POOL_NONE: impossible now */
/* Close the connection at the next sweep; until then nothing more is sent on it. is_peers_fault:
 * the peer is not asked for a while. */
void pool_conn_fail(struct pool *p, uint32_t conn, bool is_peers_fault, const char *why);
/* Close what has failed, and end what depends on it. */
void pool_conns_sweep(struct pool *p);
/* Send a message without payload. False: the connection has failed. */
bool pool_conn_say(struct pool *p, uint32_t conn, const struct wire_message *m);
bool pool_conn_is_member(const struct pool *p, uint32_t conn);
/* Send with a payload that belongs to slot `index`. ERR_BUSY: later. */
NODISCARD enum status pool_conn_send(struct pool *p, uint32_t conn, const struct wire_message *m,
                                     const struct iovec *payload, uint32_t n_payload,
                                     enum pool_payload what, uint32_t index);

/* pool_lookup.c */
void pool_lookup_begin(struct pool *p, uint32_t ticket);
void pool_lookup_forget(struct pool *p, uint32_t ticket);
void pool_lookup_found(struct pool *p, const struct directory_event *e);
void pool_lookup_not_now(struct pool *p, uint64_t tag);
void pool_lookup_lent(struct pool *p, uint32_t conn, const struct wire_message *m);
void pool_lookup_member(struct pool *p, uint32_t conn);
void pool_lookup_closed(struct pool *p, uint32_t conn);
void pool_lookup_sent(struct pool *p, uint32_t ticket);
void pool_lookup_release(struct pool *p, uint32_t ticket); /* of a taken offer that is over */
void pool_lookup_timers(struct pool *p);
/* The lease of the ticket is over: at the peer, or the peer is gone. */
void pool_lookup_lost(struct pool *p, uint32_t ticket);
/* Ask this peer for the path of a taken offer. */
void pool_lookup_ask(struct pool *p, uint32_t ticket, struct pool_peer *peer);

/* pool_read.c */
void pool_read_begin(struct pool *p, uint32_t read);
void pool_read_data(struct pool *p, uint32_t conn, const struct wire_message *m);
void pool_read_gone(struct pool *p, uint32_t conn, const struct wire_message *m);
void pool_read_received(struct pool *p, uint32_t read);
/* End all reads of a ticket. */
void pool_read_end_all(struct pool *p, uint32_t ticket, enum status status);
void pool_read_pump(struct pool *p);

/* pool_lend.c */
void pool_lend_ask(struct pool *p, uint32_t conn, const struct wire_message *m);
void pool_lend_received(struct pool *p, uint32_t lease);
void pool_lend_answer(struct pool *p, uint32_t lease);
void pool_lend_read(struct pool *p, uint32_t conn, const struct wire_message *m);
void pool_lend_close(struct pool *p, uint32_t conn, const struct wire_message *m);
void pool_lend_closed(struct pool *p, uint32_t conn);
void pool_lend_sent(struct pool *p, uint32_t lease);
void pool_lend_back(struct pool *p, uint32_t lease);
void pool_lend_pump(struct pool *p);
void pool_lend_timers(struct pool *p);

/* pool_offer.c */
void pool_offer_begin(struct pool *p, uint32_t offer);
void pool_offer_checked(struct pool *p, const struct directory_event *e);
void pool_offer_member(struct pool *p, uint32_t conn);
void pool_offer_done(struct pool *p, uint32_t conn, const struct wire_message *m);
void pool_offer_sent(struct pool *p, uint32_t offer);
void pool_offer_closed(struct pool *p, uint32_t conn);
void pool_offer_timers(struct pool *p);
void pool_take_offer(struct pool *p, uint32_t conn, const struct wire_message *m);
void pool_take_received(struct pool *p, uint32_t taken);
/* The lookup of its ticket is over. */
void pool_take_looked(struct pool *p, uint32_t taken, bool is_found);
void pool_take_forgotten(struct pool *p, uint32_t taken);

/* pool_announce.c */
void pool_announce_events(struct pool *p);
void pool_announce_timers(struct pool *p);
void pool_announce_all(struct pool *p);
void pool_announce_counted(struct pool *p, const struct directory_event *e);

/* Tags: of directory calls, and of payload that arrives. */
enum pool_tag {
    POOL_TAG_TICKET = 1,
    POOL_TAG_OFFER,
    POOL_TAG_COUNT,
    POOL_TAG_READ,
    POOL_TAG_LEASE,
    POOL_TAG_TAKEN
};
static inline uint64_t pool_tag(enum pool_tag kind, uint32_t index, uint32_t generation)
{
    return (uint64_t)kind << 56 | (uint64_t)(index & 0xffffffu) << 32 | generation;
}
static inline enum pool_tag pool_tag_kind(uint64_t tag)
{
    return (enum pool_tag)(tag >> 56);
}
static inline uint32_t pool_tag_index(uint64_t tag)
{
    return (uint32_t)(tag >> 32) & 0xffffffu;
}

#endif
