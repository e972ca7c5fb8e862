/* pool_inner.h - what the sources of the pool share (docs/design/pool.md).
 *
 *   pool.c            open, close, the thread's loop, watching
 *   pool_engine.c     all calls of the engine thread
 *   pool_peers.c      other instances: list, pauses, measurements
 *   pool_conns.c      connections: handshake, messages, what is being sent
 *   pool_lookup.c     tickets: directory, holders, asks
 *   pool_read.c       reads of found tickets
 *   pool_query.c      queries to peers
 *   pool_lend.c       leases
 *   pool_attend.c     queries of peers, and the query thread
 *   pool_buffer.c     memory of queries, and sleeping threads
 *   pool_offer.c      paths that a leaving instance hands over
 *   pool_note.c       messages of other parts of the program
 *   pool_map.c        device memory of instances on the same machine
 *   pool_balance.c    load of access, copies of what many read
 *   pool_announce.c   inventory to the directory, news to the engine
 *
 * A slot (ticket, read, query, lease, offer) is a preallocated record with one owner at a time: the
 * engine thread, the pool thread or the query thread. A number in a queue passes the slot on.
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
#include "cache/balance/heavy.h"
#include "cache/pool/pool.h"
#include "cache/pool/pool_inventory.h"
#include "cache/pool/transport.h"
#include "cache/pool/wire.h"

#define POOL_NONE UINT32_MAX
#define POOL_OFFERS_MAX 16u                                 /* in each direction */
#define POOL_N_TICKETS (POOL_TICKETS_MAX + POOL_OFFERS_MAX) /* the last ones: of taken offers */
#define POOL_N_READS 512u
#define POOL_N_CONNS 256u
#define POOL_N_MAPS 64u           /* device memory of other instances that is mapped at a time */
#define POOL_N_SENDS 1024u        /* payloads under way to others */
#define POOL_READS_OUT_MAX 16u    /* reads sent to one peer and not answered */
#define POOL_READS_QUEUED_MAX 64u /* reads of one peer that wait here; more is a broken peer */
#define POOL_DATA_OUT_MAX 4u      /* answers under way to one peer */
#define POOL_N_ATTENDS 128u       /* queries of all peers that are here */
#define POOL_QUERY_MEMORY (64u << 20) /* for the queries in each direction */
/* A thread that waits for a message of a query yields for so long before it sleeps: to wake a
 * sleeping thread takes up to 50 us on a virtual machine, and a query is passed on six times. */
#define POOL_SPIN_NS (50 * 1000u)
#define POOL_N_COMMANDS 4096u
#define POOL_MS UINT64_C(1000000)
#define POOL_SECOND UINT64_C(1000000000)

_Static_assert(POOL_PATH_MAX == WIRE_PATH_MAX && POOL_READ_MAX == WIRE_READ_MAX,
               "paths and reads fit into messages");
_Static_assert(POOL_QUERY_ROWS_MAX == WIRE_ROWS_MAX &&
                   POOL_QUERY_SEGMENTS_MAX == WIRE_SEGMENTS_MAX &&
                   POOL_QUERY_BYTES_MAX == WIRE_FLOATS_BYTES_MAX,
               "queries fit into messages");

/* --- from the engine thread --- */

enum pool_command_kind {
    POOL_LOOKUP, /* of ticket `index` */
    POOL_FORGET, /* of ticket `index` */
    POOL_READ,   /* of read `index` */
    POOL_QUERY,  /* of query `index` */
    POOL_DROP,   /* query `index` is forgotten before its answer */
    POOL_LEND,   /* lease `index` is answered */
    POOL_BACK,   /* lease `index` was returned and may be used again */
    POOL_OFFER,  /* offer `index` */
    POOL_LEAVE,
    POOL_LOAD,
    POOL_REGISTER,
    POOL_UNREGISTER,
    POOL_EXPORT,
    POOL_COPIED /* read `index` has been copied from mapped memory */
};
struct pool_command {
    enum pool_command_kind kind;
    uint32_t index;
    union {
        struct pool_load load;
        struct {
            const void *base;
            uint64_t n_bytes;
            uint8_t handle[POOL_HANDLE_BYTES];
        } memory;
        enum status status;
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
    uint64_t disk_ns; /* as struct pool_path */
    bool is_again;    /* the same */
    uint64_t avoid[POOL_AVOID_MAX];
    uint32_t n_avoid;
    struct pool_found found;     /* before `state` says so; so is the next one */
    uint8_t *is_near;            /* [POOL_PATH_MAX] of blocks [n_local, found.n_blocks) */
    _Atomic uint64_t until_ns;   /* of the lease, which queries renew */
    _Atomic bool ends_when_read; /* written by the engine thread */

    /* the pool thread's */
    enum pool_stage stage;
    uint32_t generation; /* a late answer to an earlier use is recognized */
    bool is_forgotten;
    uint32_t n_sending, n_reads;
    uint8_t *was_read;      /* [POOL_PATH_MAX] as is_near */
    uint32_t n_blocks_read; /* of these */
    uint64_t began_ns, deadline_ns;
    uint64_t lease_ns;               /* from each query on */
    uint64_t asked_ns, try_until_ns; /* of the ask under way */
    uint32_t at;                     /* the segment whose holders these are */
    uint32_t n_holders;
    struct directory_holder holders[DIRECTORY_HOLDERS_MAX];
    uint32_t tried;  /* bits of holders */
    bool is_on_disk; /* what the holder that was asked last has */
    uint32_t n_rounds;
    uint32_t n_named; /* as struct pool_found */
    uint32_t peer, conn;
    uint32_t map; /* its memory; POOL_NONE */
};

/* --- reads --- */

enum pool_read_stage {
    POOL_READ_FREE,
    POOL_READ_WAITS,
    POOL_READ_SENT,
    POOL_READ_ARRIVES,
    POOL_READ_COPIES /* the engine copies from mapped memory */
};

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
    const void *from[POOL_READ_MAX]; /* is_near */
    uint64_t sent_ns, head_ns;
    bool is_alone; /* the peer had no other read then */
    bool is_out;   /* counted in the peer's n_reads_out */
    bool is_near;  /* set by the engine */
};
struct pool_read_done {
    uint32_t index;
    enum status status;
};

/* --- queries --- */

/* Memory that grows when it is first needed, and is kept. */
struct pool_buffer {
    void *memory;
    uint64_t n_bytes;
};
/* A query's memory, in this order: tiles, queries, segments. */
struct pool_query_parts {
    float *tiles, *q;
    void *segments; /* as the user of the memory keeps them */
};

enum pool_query_stage { POOL_QUERY_FREE, POOL_QUERY_SENT, POOL_QUERY_ARRIVES };

/* Values of pool_query_slot.state: these, or POOL_QUERY_DONE + status. */
enum { POOL_QUERY_UNDER_WAY, POOL_QUERY_AWAITED, POOL_QUERY_DONE };

/* The engine thread has a query that is not under way, the pool thread all others. */
struct pool_query_slot {
    _Atomic uint32_t state; /* futex of the engine thread, which waits if it is AWAITED */
    uint32_t ticket;        /* set by the engine; so are the next ones */
    uint32_t layer, n_rows, n_segments;
    uint32_t n_q_bytes, n_tile_bytes;
    uint64_t began_ns, until_ns;
    bool is_timed_out;         /* when it was forgotten */
    struct pool_buffer buffer; /* segments: [n_segments * WIRE_SEGMENT_BYTES] */

    enum pool_query_stage stage;
    uint32_t generation, ticket_generation;
    uint32_t conn, peer;
    bool is_sending;   /* the queries */
    bool is_forgotten; /* by the engine, while payload is under way */
    bool is_over;      /* with `status`, once nothing is being sent */
    enum status status;
    uint32_t crc; /* of the tiles */
};

enum pool_attend_stage {
    POOL_ATTEND_FREE,
    POOL_ATTEND_ARRIVES, /* the queries */
    POOL_ATTEND_WAITS,   /* for its turn */
    POOL_ATTEND_RUNS,    /* on the query thread */
    POOL_ATTEND_ENDED,   /* the tiles are to be sent */
    POOL_ATTEND_SENDS
};

/* A query of a peer. The query thread has one that runs, the pool thread all others. */
struct pool_attend_slot {
    enum pool_attend_stage stage;
    uint32_t conn; /* POOL_NONE: closed */
    uint64_t query, until_ns;
    uint32_t lease;
    uint64_t lease_number; /* of that lease, whose slot may have another one meanwhile */
    uint32_t q_crc, n_q_bytes, n_tile_bytes;
    struct link link; /* of its connection's queries that wait, or of attends_ended */
    struct pool_buffer buffer;
    struct pool_attend job;
    enum status status; /* of the computation; written by the query thread */
    uint32_t tiles_crc; /* the same */
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
    uint64_t disk_ns;    /* of the ask */
    const void **memory; /* [POOL_PATH_MAX] of blocks [n_there, n_lent), from entry 0 on; NULL: */
    uint32_t *place;     /* in the exported memory */
    uint8_t *n_tokens;   /* the same; with WIRE_ON_DEVICE */
    uint32_t *crc;       /* the same, once has_crc */
    uint8_t *has_crc;    /* or it comes with the block; once it was sent */
    uint32_t n_lent;     /* written by the engine with the answer */
    uint32_t n_read;     /* of these, blocks that were sent */

    enum pool_lease_stage stage;
    uint64_t number; /* no other lease has it */
    uint32_t conn;   /* POOL_NONE: closed */
    uint64_t ask;
    bool is_closed;                  /* the asker needs it no more */
    bool is_copy;                    /* the path was offered as POOL_OFFER_COPY */
    bool is_near;                    /* the asker reads device memory, too */
    bool yields, is_offered;         /* as struct pool_ask */
    uint32_t flags;                  /* of pool_lend(); written by the engine with the answer */
    uint32_t n_sending, n_attending; /* payloads, and queries that run */
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
    uint64_t to;         /* as struct pool_offer */
    enum pool_offer_why why;

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
    uint64_t read, lease_number;
    uint32_t lease, n;
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
    uint32_t peer;    /* asker: number */
    uint64_t peer_id; /* of the other instance, once it is a member */
    /* whose answers may still come */
    uint32_t n_asks_cancelled, n_reads_cancelled, n_queries_cancelled;
    uint32_t n_leases, n_data_out;
    uint32_t n_attends;  /* queries of the peer that are here */
    struct link attends; /* those that wait */
    struct link turn;    /* of attend_turns, if there are any */
    uint64_t query_ns;   /* when the last one came */
    /* Device memory (pool_map.c). */
    uint32_t map;                 /* asker: the peer's; POOL_NONE */
    bool asked_memory;            /* asker: MAP was sent, */
    bool is_mapping;              /* and not answered yet */
    bool wants_memory;            /* lender: the peer runs on this machine, and has sent MAP */
    bool was_handed;              /* lender: the peer has the handle, and has not unmapped it */
    bool reads_device;            /* lender: the peer has mapped it */
    struct pool_lend_read *reads; /* [POOL_READS_QUEUED_MAX] ring; allocated for a member */
    uint32_t reads_first, n_reads;
};

enum pool_payload {
    POOL_SENDS_TICKET,
    POOL_SENDS_LEASE,
    POOL_SENDS_OFFER,
    POOL_SENDS_QUERY,
    POOL_SENDS_TILES,
    POOL_SENDS_NOTE
};
struct pool_send {
    bool is_used;
    enum pool_payload what;
    uint32_t index, conn, next_free;
};

/* Device memory of another instance. */
struct pool_map {
    void *memory; /* NULL: free */
    uint64_t n_bytes;
    uint32_t n_uses; /* found tickets that the engine has not forgotten */
    uint32_t conn;   /* POOL_NONE: closed */
    bool is_over;    /* no more tickets: unmap it when n_uses is 0 */
};

/* --- balance --- */

#define POOL_CANDIDATES_MAX 8u /* paths of one round that may get copies */
#define POOL_COPIES_MAX 16u    /* that the engine has not offered yet */

struct pool_candidate {
    uint8_t segment[DIRECTORY_SEGMENT_BYTES]; /* the last one of the path */
    struct kv_key last;                       /* its last block */
    uint32_t n_blocks;                        /* of that segment */
};

struct pool_balance {
    struct heavy *heavy; /* by the first 8 bytes of a segment's name */
    double load;         /* decayed sum of all accesses */
    uint64_t decayed_ns, round_ns;
    double budget; /* bytes; below 0 nothing is offered */
    uint64_t n_draws;
    struct pool_candidate candidates[POOL_CANDIDATES_MAX];
    uint32_t generation; /* of the round: late answers of the directory are recognized */
    /* [DIRECTORY_INSTANCES_MAX + 1] scratch of a plan; entry 0 is this instance */
    double *loads;
    uint64_t *free;
    uint64_t *ids;
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
    struct pool_notes *notes;
    pthread_t thread, attend_thread;
    bool has_thread, has_attend_thread;

    /* between the threads */
    struct spsc *commands;                /* engine -> pool */
    struct spsc *tickets_free;            /* pool -> engine: numbers; so are the next five */
    struct spsc *reads_done;              /* struct pool_read_done */
    struct spsc *places;                  /* pool -> engine: numbers of reads */
    struct spsc *asks, *returns, *offers; /* numbers: leases, leases, taken offers */
    struct spsc *news;                    /* struct pool_news */
    struct spsc *queries_free;            /* pool -> engine: numbers */
    struct spsc *copies;                  /* struct pool_copy */
    struct spsc *attend_in, *attend_out;  /* pool -> query thread, and back: numbers */
    _Atomic bool is_asleep, is_stopping;
    _Atomic bool can_look; /* the directory answers, and another instance is alive */
    _Atomic bool is_unregistered;
    _Atomic uint32_t n_offers;
    _Atomic uint32_t attend_sleeps; /* futex of the query thread: 1 while it sleeps */
    _Atomic uint64_t query_ns[DIRECTORY_INSTANCES_MAX]; /* of peers: the mean time of a query */
    int wake_fd;

    /* the engine thread's */
    uint32_t reads_free[POOL_N_READS], n_reads_free;
    uint32_t query_stack[POOL_QUERIES_MAX], n_query_stack; /* free ones */
    uint64_t query_memory_left;

    struct pool_ticket tickets[POOL_N_TICKETS];
    struct pool_read_slot reads[POOL_N_READS];
    struct pool_query_slot queries[POOL_QUERIES_MAX];
    struct pool_lease leases[POOL_LEASES_MAX];
    struct pool_attend_slot attends[POOL_N_ATTENDS];
    struct pool_offer_slot offers_out[POOL_OFFERS_MAX];
    struct pool_taken taken[POOL_OFFERS_MAX];
    void *arenas[10]; /* memory of the slots */
    uint32_t n_arenas;

    /* the pool thread's */
    uint64_t now_ns, due_ns;  /* the next deadline */
    uint64_t round_due_ns;    /* the next one that the last round over the slots saw */
    bool has_changed;         /* something happened since that round */
    bool has_posted;          /* something for the engine */
    bool has_posted_later;    /* the same, but it need not wake the engine at once */
    uint64_t posted_later_ns; /* when the engine is woken for that; 0: not decided */
    bool is_busy;             /* something was begun: do not sleep yet */
    uint64_t timers_ns, heartbeat_ns, announce_ns, roll_ns, publish_ns;
    struct pool_conn conns[POOL_N_CONNS];
    uint64_t n_leases_ever;
    uint32_t n_lend_reads; /* READs of all peers that wait */
    uint32_t at_conn;      /* whose turn it is to be served */
    uint32_t n_failed;     /* connections to be closed */
    struct pool_map maps[POOL_N_MAPS];
    bool can_map; /* `machine` is known, and config.map */
    uint8_t machine[WIRE_MACHINE_BYTES];
    uint8_t handle[POOL_HANDLE_BYTES]; /* of this instance's memory, */
    uint64_t n_exported;               /* and its bytes; 0: none */
    bool is_revoking;                  /* pool_unregister() waits for peers to unmap it */
    uint64_t revoke_until_ns;
    uint64_t left_until_ns; /* so long, peers whose connection was closed may still copy */
    uint64_t attend_memory_left;
    uint32_t n_attends_out;    /* given to the query thread */
    struct link attend_turns;  /* connections with queries that wait, by turn */
    struct link attends_ended; /* queries whose tiles are to be sent */
    uint64_t alert_until_ns;   /* the thread does not sleep before: messages of queries are near */
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
    struct pool_balance balance;
    uint8_t lookup_keys[DIRECTORY_PATH_MAX][DIRECTORY_SEGMENT_BYTES];
    struct pool_stats live;
    struct pool_mean lookup_s, latency_s, bytes_per_s, query_s;

    pthread_mutex_t stats_lock; /* of `shared`; held for as long as copying it takes */
    struct pool_stats shared;
    pthread_mutex_t lock;                 /* of what follows; never taken by the engine thread */
    struct directory_instance *instances; /* [DIRECTORY_INSTANCES_MAX + 1] */
    uint32_t n_instances;
};

/* pool.c */
void pool_due(struct pool *p, uint64_t at_ns); /* wake up at that time, or earlier */
void pool_mean_add(struct pool_mean *m, double value);
void pool_wake(struct pool *p); /* another thread has something for the pool thread */
/* A message of a query came or went: the next one may follow soon. */
void pool_stay_alert(struct pool *p);

/* pool_engine.c: all that pool.h gives the engine thread */

/* pool_peers.c */
void pool_peers_update(struct pool *p);                         /* the directory's list is new */
struct pool_peer *pool_peer_by_id(struct pool *p, uint64_t id); /* NULL: unknown */
bool pool_peer_is_usable(const struct pool *p, const struct pool_peer *peer);
void pool_peer_timed_out(struct pool *p, struct pool_peer *peer);
void pool_peer_answered(struct pool_peer *peer);
/* The rate of reads from the peer; 0: not known. One that was measured long ago is forgotten: if it
 * was low, no read would be worth it that shows that the peer has become faster. */
double pool_peer_rate(const struct pool *p, struct pool_peer *peer);
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
/* Blocks at [n] have been read well: a lease that ends when all are read may be over. */
void pool_lookup_read(struct pool *p, uint32_t ticket, const uint32_t *at, uint32_t n);
/* Ask this peer for the path of a taken offer. */
void pool_lookup_ask(struct pool *p, uint32_t ticket, struct pool_peer *peer);

/* pool_read.c */
void pool_read_begin(struct pool *p, uint32_t read);
void pool_read_data(struct pool *p, uint32_t conn, const struct wire_message *m);
void pool_read_places(struct pool *p, uint32_t conn, const struct wire_message *m);
void pool_read_copied(struct pool *p, uint32_t read, enum status status);
void pool_read_gone(struct pool *p, uint32_t conn, const struct wire_message *m);
void pool_read_received(struct pool *p, uint32_t read);
/* End all reads of a ticket. */
void pool_read_end_all(struct pool *p, uint32_t ticket, enum status status);
void pool_read_pump(struct pool *p);

/* pool_query.c */
void pool_query_begin(struct pool *p, uint32_t query);
void pool_query_drop(struct pool *p, uint32_t query);
void pool_query_tiles(struct pool *p, uint32_t conn, const struct wire_message *m);
void pool_query_refused(struct pool *p, uint32_t conn, const struct wire_message *m);
void pool_query_received(struct pool *p, uint32_t query);
void pool_query_sent(struct pool *p, uint32_t query);
void pool_query_closed(struct pool *p, uint32_t conn);
/* The lease of the ticket is over. */
void pool_query_lost(struct pool *p, uint32_t ticket, enum status status);

/* pool_attend.c */
void *pool_attend_main(void *arg); /* the query thread */
void pool_attend_query(struct pool *p, uint32_t conn, const struct wire_message *m);
void pool_attend_received(struct pool *p, uint32_t attend);
void pool_attend_sent(struct pool *p, uint32_t attend);
void pool_attend_closed(struct pool *p, uint32_t conn);
void pool_attend_pump(struct pool *p);
void pool_attend_stop(struct pool *p);

/* pool_buffer.c */
/* Make the buffer n_bytes long at least; *left is what all buffers of a kind may still take. Its
 * content is lost. False: too much, or no memory. */
bool pool_buffer_fit(struct pool_buffer *b, uint64_t n_bytes, uint64_t *left);
void pool_buffer_free(struct pool_buffer *b, uint64_t *left);
uint64_t pool_query_bytes(uint64_t n_tile_bytes, uint64_t n_q_bytes, uint64_t n_segment_bytes);
struct pool_query_parts pool_query_parts(const struct pool_buffer *b, uint64_t n_tile_bytes,
                                         uint64_t n_q_bytes);
/* Sleep while *word is `seen`, until until_ns at the latest; UINT64_MAX: without an end. May return
 * early. */
void pool_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t until_ns);
void pool_futex_wake(_Atomic uint32_t *word);

/* pool_lend.c */
struct pool_lease *pool_lend_find(struct pool *p, uint32_t conn, uint64_t ask);
/* The largest number of slots of one peer, of n_all that askers share. */
uint32_t pool_lend_share(const struct pool *p, uint32_t n_all);
void pool_lend_renew(struct pool *p, struct pool_lease *l);
void pool_lend_attended(struct pool *p, uint32_t lease); /* a query of it runs no more */
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
/* Whether this path is offered to one certain instance: its blocks are in no inventory. */
bool pool_offer_has(const struct pool *p, const struct kv_key *keys, uint32_t n);
void pool_take_offer(struct pool *p, uint32_t conn, const struct wire_message *m);
void pool_take_received(struct pool *p, uint32_t taken);
/* The lookup of its ticket is over. */
void pool_take_looked(struct pool *p, uint32_t taken, bool is_found);
void pool_take_forgotten(struct pool *p, uint32_t taken);

/* Whether this path is offered to the instance as POOL_OFFER_COPY. */
bool pool_offer_is_copy(const struct pool *p, uint64_t to, const struct kv_key *keys, uint32_t n);
/* Whether a copy or a move is under way. */
bool pool_offer_balances(const struct pool *p);

/* pool_balance.c */
NODISCARD enum status pool_balance_open(struct pool *p);
void pool_balance_close(struct pool *p);
/* Count accesses to a block here, or to its segment from this block on, by others. */
void pool_balance_count(struct pool *p, const struct kv_key *block, double n_accesses);
/* Count accesses by this instance itself. */
void pool_balance_count_own(struct pool *p, double n_accesses);
/* The loads of the instances are so uneven that something is to be done. */
bool pool_balance_is_due(const struct pool *p);
/* Draw one of two numbers with these loads: the less loaded one more often. */
bool pool_balance_draws_second(struct pool *p, double first, double second);
uint32_t pool_balance_draw(struct pool *p, uint32_t n); /* below n */
void pool_balance_found(struct pool *p, const struct directory_event *e);
void pool_balance_timers(struct pool *p);

/* pool_note.c */
NODISCARD enum status pool_notes_open(struct pool *p);
void pool_notes_close(struct pool *p);
void pool_note_turn(struct pool *p);
bool pool_note_waits(const struct pool *p); /* the queue of notes is not empty */
void pool_note_take(struct pool *p, uint32_t conn, const struct wire_message *m);
void pool_note_received(struct pool *p, uint32_t in);
void pool_note_sent(struct pool *p, uint32_t out);
void pool_note_closed(struct pool *p, uint32_t conn);

/* pool_map.c */
void pool_map_open(struct pool *p); /* before the thread runs */
void pool_map_close(struct pool *p);
/* Ask the lender of a new connection for its device memory, if it runs on this machine. */
void pool_map_begin(struct pool *p, uint32_t conn);
void pool_map_asked(struct pool *p, uint32_t conn, const struct wire_message *m);
void pool_map_handle(struct pool *p, uint32_t conn, const struct wire_message *m);
void pool_map_answered(struct pool *p, uint32_t conn, const struct wire_message *m);
void pool_map_closed(struct pool *p, uint32_t conn);
void pool_map_use(struct pool *p, struct pool_ticket *t);
void pool_map_release(struct pool *p, struct pool_ticket *t); /* the engine has forgotten it */
void pool_map_export(struct pool *p, const struct pool_command *c);
void pool_map_revoke(struct pool *p);
void pool_map_timers(struct pool *p);

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
    POOL_TAG_TAKEN,
    POOL_TAG_QUERY,
    POOL_TAG_ATTEND,
    POOL_TAG_NOTE,
    POOL_TAG_BALANCE
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
