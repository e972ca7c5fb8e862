/* pool_note.c - notes: carried between members for other parts of the program.
 *
 * Notes go over connections that this instance opened, one at a time on each, so that they do not
 * delay questions about KV for long. */
#include "cache/pool/pool_note.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "cache/pool/pool_inner.h"

#define N_NOTES 512u              /* in each direction */
#define N_BYTES (32u << 20)       /* in each direction */
#define N_OF_PEER 16u             /* that wait here */
#define N_OUT 128u                /* taken from the queue: each waits for its connection */
#define N_IN 64u                  /* that arrive now */
#define SEND_NS (5 * POOL_SECOND) /* a note that could not be sent by then is dropped */
#define PEERS_NS (100 * POOL_MS)

_Static_assert(POOL_NOTE_BYTES_MAX == WIRE_NOTE_MAX, "notes fit into messages");

enum out_stage { OUT_FREE, OUT_WAITS, OUT_SENT };

struct out {
    enum out_stage stage;
    struct pool_note *note; /* peer: the receiver */
    uint32_t conn;
    uint64_t until_ns, number;
};

struct in {
    struct pool_note *note; /* NULL: free */
    uint32_t crc;
};

struct pool_notes {
    struct pool *pool;
    struct spsc *to_send, *arrived; /* of struct pool_note * */
    _Atomic uint32_t n_out, n_out_bytes, n_in, n_in_bytes;
    _Atomic uint32_t n_of_conn[POOL_N_CONNS];
    _Atomic uint64_t digest;
    _Atomic bool has_digest, is_heard;

    pthread_mutex_t lock; /* of the next ones */
    void (*wake)(void *arg);
    void *wake_arg;
    uint64_t peers[DIRECTORY_INSTANCES_MAX];
    uint32_t n_peers;

    /* the pool thread's */
    struct out out[N_OUT];
    struct in in[N_IN];
    uint32_t n_used; /* of out */
    uint64_t number; /* of the last note that was taken */
    bool is_sending[POOL_N_CONNS];
    uint64_t peers_ns;
};

enum status pool_notes_open(struct pool *p)
{
    struct pool_notes *notes = calloc(1, sizeof *notes);

    if (!notes)
        return ERR_NOMEM;
    p->notes = notes;
    notes->pool = p;
    pthread_mutex_init(&notes->lock, NULL);
    enum status s = spsc_create(&notes->to_send, sizeof(struct pool_note *), N_NOTES);
    return s == OK ? spsc_create(&notes->arrived, sizeof(struct pool_note *), N_NOTES) : s;
}

void pool_notes_close(struct pool *p)
{
    struct pool_notes *notes = p->notes;
    struct pool_note *note;

    if (!notes)
        return;
    while (notes->to_send && spsc_pop(notes->to_send, &note))
        free(note);
    while (notes->arrived && spsc_pop(notes->arrived, &note))
        free(note);
    for (uint32_t i = 0; i < N_OUT; i++)
        free(notes->out[i].note);
    for (uint32_t i = 0; i < N_IN; i++)
        free(notes->in[i].note);
    spsc_destroy(notes->to_send);
    spsc_destroy(notes->arrived);
    pthread_mutex_destroy(&notes->lock);
    free(notes);
    p->notes = NULL;
}

/* --- the user's side --- */

struct pool_notes *pool_notes(struct pool *p)
{
    return p->notes;
}

void pool_notes_listen(struct pool_notes *notes, void (*wake)(void *arg), void *arg)
{
    pthread_mutex_lock(&notes->lock);
    notes->wake = wake;
    notes->wake_arg = arg;
    atomic_store(&notes->is_heard, wake != NULL);
    pthread_mutex_unlock(&notes->lock);
}

uint32_t pool_note_peers(struct pool_notes *notes, uint64_t *ids, uint32_t n_max)
{
    pthread_mutex_lock(&notes->lock);
    uint32_t n = notes->n_peers < n_max ? notes->n_peers : n_max;
    memcpy(ids, notes->peers, n * sizeof *ids);
    pthread_mutex_unlock(&notes->lock);
    return n;
}

enum status pool_note_send(struct pool_notes *notes, uint64_t peer, const void *bytes, uint32_t n)
{
    struct pool_note *note;

    ASSERT(n >= 1 && n <= POOL_NOTE_BYTES_MAX);
    if (atomic_load(&notes->n_out) >= N_NOTES || atomic_load(&notes->n_out_bytes) + n > N_BYTES)
        return ERR_BUSY;
    if (!(note = malloc(sizeof *note + n)))
        return ERR_NOMEM;
    *note = (struct pool_note){.peer = peer, .n = n};
    memcpy(note->bytes, bytes, n);
    atomic_fetch_add(&notes->n_out, 1);
    atomic_fetch_add(&notes->n_out_bytes, n);
    bool ok = spsc_push(notes->to_send, &note);
    ASSERT(ok);
    pool_wake(notes->pool);
    return OK;
}

struct pool_note *pool_note_next(struct pool_notes *notes)
{
    struct pool_note *note;

    return spsc_pop(notes->arrived, &note) ? note : NULL;
}

/* Give back the room of a note that arrived. */
static void free_arrived(struct pool_notes *notes, struct pool_note *note)
{
    atomic_fetch_sub(&notes->n_in, 1);
    atomic_fetch_sub(&notes->n_in_bytes, note->n);
    atomic_fetch_sub(&notes->n_of_conn[note->conn], 1);
    free(note);
}

void pool_note_free(struct pool_notes *notes, struct pool_note *note)
{
    free_arrived(notes, note);
}

void pool_notes_set_digest(struct pool_notes *notes, uint64_t digest)
{
    atomic_store(&notes->digest, digest);
    atomic_store(&notes->has_digest, true);
}

/* --- sending --- */

static void end_out(struct pool *p, struct out *o, bool is_dropped)
{
    struct pool_notes *notes = p->notes;

    p->live.n_notes_dropped += is_dropped;
    atomic_fetch_sub(&notes->n_out, 1);
    atomic_fetch_sub(&notes->n_out_bytes, o->note->n);
    free(o->note);
    *o = (struct out){0};
    notes->n_used--;
}

static void take_notes(struct pool *p)
{
    struct pool_notes *notes = p->notes;
    struct pool_note *note;

    for (uint32_t i = 0; i < N_OUT && notes->n_used < N_OUT; i++) {
        if (notes->out[i].stage != OUT_FREE)
            continue;
        if (!spsc_pop(notes->to_send, &note))
            return;
        notes->out[i] = (struct out){.stage = OUT_WAITS,
                                     .note = note,
                                     .until_ns = p->now_ns + SEND_NS,
                                     .number = ++notes->number};
        notes->n_used++;
    }
}

/* Whether an older note to the same peer still waits. */
static bool is_behind(const struct pool_notes *notes, const struct out *o)
{
    for (uint32_t i = 0; i < N_OUT; i++)
        if (notes->out[i].stage == OUT_WAITS && notes->out[i].note->peer == o->note->peer &&
            notes->out[i].number < o->number)
            return true;
    return false;
}

/* The connection to the note's peer, if it is open and carries no other note. */
static uint32_t find_conn(struct pool *p, const struct out *o)
{
    struct pool_peer *peer = pool_peer_by_id(p, o->note->peer);

    if (!peer || (peer->conn == POOL_NONE && !pool_peer_is_usable(p, peer)))
        return POOL_NONE;
    uint32_t conn = pool_peer_connect(p, peer);
    return pool_conn_is_member(p, conn) && !p->notes->is_sending[conn] ? conn : POOL_NONE;
}

static void send_one(struct pool *p, struct out *o)
{
    uint32_t conn = is_behind(p->notes, o) ? POOL_NONE : find_conn(p, o);

    if (conn == POOL_NONE)
        return;
    struct wire_message m = {.kind = WIRE_NOTE,
                             .n_bytes = o->note->n,
                             .crc = {hash_crc32c(0, o->note->bytes, o->note->n)}};
    struct iovec payload = {.iov_base = o->note->bytes, .iov_len = o->note->n};
    /* Set first: the connection may fail, and close, within the call. */
    o->stage = OUT_SENT;
    o->conn = conn;
    p->notes->is_sending[conn] = true;
    if (pool_conn_send(p, conn, &m, &payload, 1, POOL_SENDS_NOTE, (uint32_t)(o - p->notes->out)) ==
        OK) {
        p->live.n_notes_sent++;
        return;
    }
    p->notes->is_sending[conn] = false;
    o->stage = OUT_WAITS;
}

void pool_note_sent(struct pool *p, uint32_t out)
{
    struct out *o = &p->notes->out[out];

    ASSERT(out < N_OUT && o->stage == OUT_SENT);
    p->notes->is_sending[o->conn] = false;
    end_out(p, o, false);
}

static void publish_peers(struct pool *p)
{
    struct pool_notes *notes = p->notes;

    if (p->now_ns < notes->peers_ns)
        return;
    notes->peers_ns = p->now_ns + PEERS_NS;
    pthread_mutex_lock(&notes->lock);
    notes->n_peers = 0;
    for (uint32_t i = 0; i < p->n_peers; i++) {
        const struct pool_peer *peer = &p->peers[i];
        if (peer->is_used &&
            memcmp(peer->info.fingerprint, p->info.fingerprint, sizeof p->info.fingerprint) == 0)
            notes->peers[notes->n_peers++] = peer->info.id;
    }
    pthread_mutex_unlock(&notes->lock);
    if (atomic_load(&notes->has_digest))
        snprintf(p->info.documents, sizeof p->info.documents, "%016llx",
                 (unsigned long long)atomic_load(&notes->digest));
}

bool pool_note_waits(const struct pool *p)
{
    return !spsc_is_empty(p->notes->to_send) && p->notes->n_used < N_OUT;
}

void pool_note_turn(struct pool *p)
{
    struct pool_notes *notes = p->notes;

    if (!atomic_load_explicit(&notes->is_heard, memory_order_relaxed) && notes->n_used == 0 &&
        spsc_is_empty(notes->to_send))
        return;
    publish_peers(p);
    take_notes(p);
    for (uint32_t i = 0; i < N_OUT && notes->n_used > 0; i++) {
        struct out *o = &notes->out[i];
        if (o->stage != OUT_WAITS)
            continue;
        if (p->now_ns >= o->until_ns)
            end_out(p, o, true);
        else
            send_one(p, o);
    }
}

/* --- receiving --- */

/* Room for a note of n bytes. NULL: none. */
static struct in *make_room(struct pool_notes *notes, uint32_t conn, uint32_t n)
{
    uint32_t no = 0;

    while (no < N_IN && notes->in[no].note)
        no++;
    if (no == N_IN || !atomic_load(&notes->is_heard) || atomic_load(&notes->n_in) >= N_NOTES ||
        atomic_load(&notes->n_in_bytes) + n > N_BYTES ||
        atomic_load(&notes->n_of_conn[conn]) >= N_OF_PEER)
        return NULL;
    notes->in[no].note = malloc(sizeof(struct pool_note) + n);
    return notes->in[no].note ? &notes->in[no] : NULL;
}

void pool_note_take(struct pool *p, uint32_t conn, const struct wire_message *m)
{
    struct pool_notes *notes = p->notes;
    struct in *in = make_room(notes, conn, m->n_bytes);

    if (!in) {
        p->live.n_notes_dropped++;
        transport_receive(p->transport, p->conns[conn].number, NULL, 0, 0);
        return;
    }
    *in->note = (struct pool_note){.peer = p->conns[conn].peer_id, .n = m->n_bytes, .conn = conn};
    in->crc = m->crc[0];
    atomic_fetch_add(&notes->n_in, 1);
    atomic_fetch_add(&notes->n_in_bytes, m->n_bytes);
    atomic_fetch_add(&notes->n_of_conn[conn], 1);
    struct iovec to = {.iov_base = in->note->bytes, .iov_len = m->n_bytes};
    transport_receive(p->transport, p->conns[conn].number, &to, 1,
                      pool_tag(POOL_TAG_NOTE, (uint32_t)(in - notes->in), 0));
}

void pool_note_received(struct pool *p, uint32_t in)
{
    struct pool_notes *notes = p->notes;
    struct pool_note *note = notes->in[in].note;

    ASSERT(in < N_IN && note);
    notes->in[in].note = NULL;
    if (hash_crc32c(0, note->bytes, note->n) != notes->in[in].crc) {
        pool_conn_fail(p, note->conn, true, "a note with wrong bytes");
        free_arrived(notes, note);
        return;
    }
    p->live.n_notes_received++;
    bool ok = spsc_push(notes->arrived, &note);
    ASSERT(ok);
    pthread_mutex_lock(&notes->lock);
    if (notes->wake)
        notes->wake(notes->wake_arg);
    pthread_mutex_unlock(&notes->lock);
}

void pool_note_closed(struct pool *p, uint32_t conn)
{
    struct pool_notes *notes = p->notes;

    for (uint32_t i = 0; i < N_IN; i++) {
        if (!notes->in[i].note || notes->in[i].note->conn != conn)
            continue;
        free_arrived(notes, notes->in[i].note);
        notes->in[i].note = NULL;
    }
}
