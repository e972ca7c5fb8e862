/* pool_attend.c - queries of peers: checked by the pool thread, computed by the query thread, one
 * at a time, and their tiles sent by the pool thread.
 *
 * A peer's queries are computed in the order in which they came, and peers take turns. A lease does
 * not end while a query of it runs. */
#include <sched.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "cache/pool/pool_inner.h"

#define OUT_MAX 2u /* given to the query thread: one runs, the next one is ready */

static uint64_t q_bytes(const struct pool *p, uint32_t n_rows)
{
    return (uint64_t)n_rows * p->config.query_floats * sizeof(float);
}

static uint64_t tile_bytes(const struct pool *p, uint32_t n_rows, uint32_t n_segments)
{
    return (uint64_t)n_segments * n_rows * p->config.tile_floats * sizeof(float);
}

static void say_refused(struct pool *p, uint32_t conn, uint64_t query, enum wire_reason reason)
{
    p->live.n_queries_refused++;
    pool_conn_say(p, conn,
                  &(struct wire_message){.kind = WIRE_REFUSED, .query = query, .reason = reason});
}

static void free_attend(struct pool *p, struct pool_attend_slot *a)
{
    if (a->conn != POOL_NONE)
        p->conns[a->conn].n_attends--;
    a->conn = POOL_NONE;
    a->stage = POOL_ATTEND_FREE;
}

/* --- a query arrives --- */

/* Every block of the segment is lent in memory that the query thread can read, and has the tokens
 * that the query names: the rest of a block's memory may hold the KV of other prompts. */
static bool is_lent(const struct pool_lease *l, const struct wire_segment *s)
{
    if (s->at < l->n_there || s->at + s->n_blocks > l->n_lent)
        return false;
    for (uint32_t i = 0; i < s->n_blocks; i++) {
        uint32_t n = s->n_tokens - i * KV_BLOCK_TOKENS;
        n = n < KV_BLOCK_TOKENS ? n : KV_BLOCK_TOKENS;
        if (!l->memory[s->at - l->n_there + i] || l->n_tokens[s->at - l->n_there + i] < n)
            return false;
    }
    return true;
}

static bool are_lent(const struct pool_lease *l, const struct wire_message *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        struct wire_segment s = wire_get_segment(m->segments + (size_t)i * WIRE_SEGMENT_BYTES);
        if (!is_lent(l, &s))
            return false;
    }
    return true;
}

/* A free slot with memory for the query. NULL: too much is here already. */
static struct pool_attend_slot *take_slot(struct pool *p, struct pool_conn *c,
                                          const struct wire_message *m)
{
    uint64_t n_bytes = pool_query_bytes(tile_bytes(p, m->n_rows, m->n), m->n_bytes,
                                        m->n * sizeof(struct pool_segment));
    uint32_t no = 0;

    while (no < POOL_N_ATTENDS && p->attends[no].stage != POOL_ATTEND_FREE)
        no++;
    if (no == POOL_N_ATTENDS || c->n_attends >= pool_lend_share(p, POOL_N_ATTENDS))
        return NULL;
    struct pool_attend_slot *a = &p->attends[no];
    if (pool_buffer_fit(&a->buffer, n_bytes, &p->attend_memory_left))
        return a;
    for (uint32_t i = 0; i < POOL_N_ATTENDS; i++)
        if (p->attends[i].stage == POOL_ATTEND_FREE)
            pool_buffer_free(&p->attends[i].buffer, &p->attend_memory_left);
    return pool_buffer_fit(&a->buffer, n_bytes, &p->attend_memory_left) ? a : NULL;
}

static void fill(struct pool *p, struct pool_attend_slot *a, const struct pool_lease *l,
                 const struct wire_message *m)
{
    a->n_q_bytes = m->n_bytes;
    a->n_tile_bytes = (uint32_t)tile_bytes(p, m->n_rows, m->n);
    struct pool_query_parts parts = pool_query_parts(&a->buffer, a->n_tile_bytes, a->n_q_bytes);
    struct pool_segment *segments = parts.segments;
    for (uint32_t i = 0; i < m->n; i++) {
        struct wire_segment s = wire_get_segment(m->segments + (size_t)i * WIRE_SEGMENT_BYTES);
        segments[i] = (struct pool_segment){
            .at = s.at - l->n_there, .n_blocks = s.n_blocks, .n_tokens = s.n_tokens};
    }
    a->query = m->query;
    a->lease = (uint32_t)(l - p->leases);
    a->lease_number = l->number;
    a->until_ns = p->now_ns + m->ms * POOL_MS;
    a->q_crc = m->floats_crc;
    a->job = (struct pool_attend){.layer = m->layer,
                                  .n_rows = m->n_rows,
                                  .q = parts.q,
                                  .blocks = l->memory,
                                  .n_blocks = l->n_lent - l->n_there,
                                  .segments = segments,
                                  .n_segments = m->n,
                                  .tiles = parts.tiles};
}

/* Words for what is wrong with the query, whatever is lent. NULL: nothing. */
static const char *wrong_with(const struct pool *p, const struct wire_message *m)
{
    if (!p->config.attend)
        return "a query to an instance that answers none";
    if (m->layer >= p->config.n_layers)
        return "a query of an unknown layer";
    if (m->n_bytes != q_bytes(p, m->n_rows) ||
        tile_bytes(p, m->n_rows, m->n) > POOL_QUERY_BYTES_MAX)
        return "a query of a wrong size";
    return NULL;
}

void pool_attend_query(struct pool *p, uint32_t conn, const struct wire_message *m)
{
    struct pool_conn *c = &p->conns[conn];
    struct pool_lease *l = pool_lend_find(p, conn, m->id);
    const char *wrong = wrong_with(p, m);
    bool is_over = !l || l->stage != POOL_LEASE_LENT;

    if (!wrong && !is_over && !are_lent(l, m))
        wrong = "a query of blocks that are not lent";
    if (wrong) {
        pool_conn_fail(p, conn, true, wrong);
        return;
    }
    c->query_ns = p->now_ns;
    pool_stay_alert(p);
    struct pool_attend_slot *a = is_over ? NULL : take_slot(p, c, m);
    if (!is_over)
        pool_lend_renew(p, l);
    if (!a) {
        transport_receive(p->transport, c->number, NULL, 0, 0);
        say_refused(p, conn, m->query, is_over ? WIRE_STALE : WIRE_BUSY);
        return;
    }
    fill(p, a, l, m);
    a->stage = POOL_ATTEND_ARRIVES;
    a->conn = conn;
    c->n_attends++;
    struct iovec to = {.iov_base = (void *)(uintptr_t)a->job.q, .iov_len = a->n_q_bytes};
    transport_receive(p->transport, c->number, &to, 1,
                      pool_tag(POOL_TAG_ATTEND, (uint32_t)(a - p->attends), 0));
}

void pool_attend_received(struct pool *p, uint32_t attend)
{
    struct pool_attend_slot *a = &p->attends[attend];
    struct pool_conn *c = &p->conns[a->conn];

    ASSERT(a->stage == POOL_ATTEND_ARRIVES);
    if (hash_crc32c(0, a->job.q, a->n_q_bytes) != a->q_crc) {
        pool_conn_fail(p, a->conn, true, "wrong queries");
        free_attend(p, a);
        return;
    }
    a->stage = POOL_ATTEND_WAITS;
    if (link_is_empty(&c->attends))
        link_append(&p->attend_turns, &c->turn);
    link_append(&c->attends, &a->link);
}

/* --- the query thread --- */

/* Wait for the next query. False: the pool closes. */
static bool next(struct pool *p, uint32_t *no)
{
    uint64_t spin_until_ns = clock_now_ns() + POOL_SPIN_NS;

    for (;;) {
        if (atomic_load_explicit(&p->is_stopping, memory_order_acquire))
            return false;
        if (spsc_pop(p->attend_in, no))
            return true;
        if (clock_now_ns() < spin_until_ns) {
            sched_yield();
            continue;
        }
        atomic_store(&p->attend_sleeps, 1);
        atomic_thread_fence(memory_order_seq_cst);
        if (spsc_is_empty(p->attend_in) && !atomic_load(&p->is_stopping))
            pool_futex_wait(&p->attend_sleeps, 1, UINT64_MAX);
        atomic_store(&p->attend_sleeps, 0);
    }
}

void *pool_attend_main(void *arg)
{
    struct pool *p = arg;
    uint32_t no;

    while (next(p, &no)) {
        struct pool_attend_slot *a = &p->attends[no];
        a->status = p->config.attend(p->config.attend_arg, &a->job);
        if (a->status == OK)
            a->tiles_crc = hash_crc32c(0, a->job.tiles, a->n_tile_bytes);
        bool ok = spsc_push(p->attend_out, &no);
        ASSERT(ok);
        pool_wake(p);
    }
    return NULL;
}

static void wake_attend(struct pool *p)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_exchange(&p->attend_sleeps, 0) != 0)
        pool_futex_wake(&p->attend_sleeps);
}

void pool_attend_stop(struct pool *p)
{
    wake_attend(p);
    pthread_join(p->attend_thread, NULL);
}

/* --- turns --- */

/* Give the query to the query thread, unless its lease has ended or its time is over. */
static void run(struct pool *p, struct pool_attend_slot *a)
{
    struct pool_lease *l = &p->leases[a->lease];
    uint32_t no = (uint32_t)(a - p->attends);
    bool is_over = l->number != a->lease_number || l->stage != POOL_LEASE_LENT;

    if (is_over || p->now_ns >= a->until_ns) {
        say_refused(p, a->conn, a->query, is_over ? WIRE_STALE : WIRE_BUSY);
        free_attend(p, a);
        return;
    }
    l->n_attending++;
    a->stage = POOL_ATTEND_RUNS;
    p->n_attends_out++;
    bool ok = spsc_push(p->attend_in, &no);
    ASSERT(ok);
    wake_attend(p);
}

/* Each layer counts its part of an access. */
static void count(struct pool *p, const struct pool_attend_slot *a)
{
    const struct pool_lease *l = &p->leases[a->lease];

    for (uint32_t i = 0; i < a->job.n_segments; i++) {
        const struct pool_segment *s = &a->job.segments[i];
        pool_balance_count(p, &l->keys[l->n_there + s->at],
                           (double)s->n_tokens / p->config.n_layers);
    }
}

/* The query thread is done with it. */
static void take_back(struct pool *p, struct pool_attend_slot *a)
{
    p->n_attends_out--;
    if (a->status == OK)
        count(p, a);
    pool_lend_attended(p, a->lease);
    p->is_busy = true;
    if (a->conn == POOL_NONE) {
        free_attend(p, a);
    } else if (a->status != OK) {
        say_refused(p, a->conn, a->query, WIRE_BUSY);
        free_attend(p, a);
    } else {
        a->stage = POOL_ATTEND_ENDED;
        link_append(&p->attends_ended, &a->link);
    }
}

/* False: later. */
static bool send_tiles(struct pool *p, struct pool_attend_slot *a)
{
    struct iovec tiles = {.iov_base = a->job.tiles, .iov_len = a->n_tile_bytes};
    struct wire_message m = {.kind = WIRE_TILES,
                             .query = a->query,
                             .n_bytes = a->n_tile_bytes,
                             .floats_crc = a->tiles_crc};

    if (pool_conn_send(p, a->conn, &m, &tiles, 1, POOL_SENDS_TILES, (uint32_t)(a - p->attends)) !=
        OK)
        return false;
    link_remove(&a->link);
    a->stage = POOL_ATTEND_SENDS;
    p->live.n_attended++;
    p->live.n_attended_rows += a->job.n_rows;
    pool_stay_alert(p);
    return true;
}

void pool_attend_pump(struct pool *p)
{
    uint32_t no;

    if (!p->attend_out)
        return;
    while (spsc_pop(p->attend_out, &no))
        take_back(p, &p->attends[no]);
    for (struct link *l = p->attends_ended.next, *after; l != &p->attends_ended; l = after) {
        after = l->next;
        send_tiles(p, LINK_ITEM(l, pool_attend_slot, link));
    }
    while (p->n_attends_out < OUT_MAX && !link_is_empty(&p->attend_turns)) {
        struct pool_conn *c = LINK_ITEM(p->attend_turns.next, pool_conn, turn);
        struct pool_attend_slot *a = LINK_ITEM(c->attends.next, pool_attend_slot, link);
        link_remove(&c->turn);
        link_remove(&a->link);
        if (!link_is_empty(&c->attends))
            link_append(&p->attend_turns, &c->turn);
        run(p, a);
    }
}

/* --- the end of a connection --- */

void pool_attend_sent(struct pool *p, uint32_t attend)
{
    ASSERT(p->attends[attend].stage == POOL_ATTEND_SENDS);
    free_attend(p, &p->attends[attend]);
}

void pool_attend_closed(struct pool *p, uint32_t conn)
{
    for (uint32_t i = 0; i < POOL_N_ATTENDS; i++) {
        struct pool_attend_slot *a = &p->attends[i];
        if (a->stage == POOL_ATTEND_FREE || a->conn != conn)
            continue;
        if (a->stage == POOL_ATTEND_WAITS || a->stage == POOL_ATTEND_ENDED)
            link_remove(&a->link);
        if (a->stage == POOL_ATTEND_RUNS)
            a->conn = POOL_NONE; /* take_back() frees it */
        else
            free_attend(p, a);
    }
    link_remove(&p->conns[conn].turn);
}
