/* pool_engine.c - the engine thread's side: fills slots, passes their numbers on, and collects what
 * the pool thread has posted. Nothing here locks; only pool_query_end() waits, and only
 * pool_query() allocates. */
#include <sched.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "cache/pool/pool_inner.h"

/* Post a command that can wait for the next turn of the pool thread, a few ms at most: waking a
 * thread costs more than most commands. Queues have room for every slot, so a push cannot fail. */
static void post_later(struct pool *p, const struct pool_command *c)
{
    bool ok = spsc_push(p->commands, c);

    ASSERT(ok);
}

static void post(struct pool *p, const struct pool_command *c)
{
    post_later(p, c);
    pool_wake(p);
}

static void post_index(struct pool *p, enum pool_command_kind kind, uint32_t index)
{
    post(p, &(struct pool_command){.kind = kind, .index = index});
}

static void post_index_later(struct pool *p, enum pool_command_kind kind, uint32_t index)
{
    post_later(p, &(struct pool_command){.kind = kind, .index = index});
}

void pool_register(struct pool *p, const void *base, uint64_t n_bytes)
{
    post(p, &(struct pool_command){.kind = POOL_REGISTER,
                                   .memory = {.base = base, .n_bytes = n_bytes}});
}

void pool_export(struct pool *p, const uint8_t handle[POOL_HANDLE_BYTES], uint64_t n_bytes)
{
    struct pool_command c = {.kind = POOL_EXPORT, .memory = {.n_bytes = n_bytes}};

    memcpy(c.memory.handle, handle, sizeof c.memory.handle);
    post(p, &c);
}

void pool_unregister(struct pool *p)
{
    atomic_store(&p->is_unregistered, false);
    post_index(p, POOL_UNREGISTER, 0);
}

bool pool_is_unregistered(const struct pool *p)
{
    return atomic_load(&p->is_unregistered);
}

/* Half of the queue is more than all slots need. */
void pool_set_load(struct pool *p, const struct pool_load *load)
{
    if (spsc_room(p->commands) > POOL_N_COMMANDS / 2)
        post_later(p, &(struct pool_command){.kind = POOL_LOAD, .load = *load});
}

void pool_leave(struct pool *p)
{
    post_index(p, POOL_LEAVE, 0);
}

/* --- pull --- */

/* The segments that have blocks behind the local ones, as many as one lookup takes. */
static void set_segments(struct pool_ticket *t, const struct pool_path *path)
{
    uint32_t i = 0, n = 0;

    while (i < path->n_starts &&
           (i + 1 < path->n_starts ? path->starts[i + 1] : t->n) <= path->n_local)
        i++;
    for (; i < path->n_starts && path->starts[i] < t->n && n < DIRECTORY_PATH_MAX; i++)
        t->starts[n++] = path->starts[i];
    t->n_starts = n;
    t->starts[n] = i < path->n_starts && path->starts[i] < t->n ? path->starts[i] : t->n;
}

uint32_t pool_lookup(struct pool *p, const struct pool_path *path)
{
    uint32_t no, n = path->n < POOL_PATH_MAX ? path->n : POOL_PATH_MAX;

    ASSERT(path->n_avoid <= POOL_AVOID_MAX);
    if (path->n_local >= n || path->n_starts == 0 ||
        !atomic_load_explicit(&p->can_look, memory_order_relaxed) ||
        !spsc_pop(p->tickets_free, &no))
        return POOL_NO_TICKET;
    struct pool_ticket *t = &p->tickets[no];
    t->n = n;
    t->n_local = path->n_local;
    t->disk_ns = path->disk_ns;
    t->is_again = path->is_again;
    atomic_store_explicit(&t->ends_when_read, false, memory_order_relaxed);
    t->n_avoid = path->n_avoid;
    if (t->n_avoid > 0)
        memcpy(t->avoid, path->avoid, t->n_avoid * sizeof *t->avoid);
    memcpy(t->keys, path->keys, n * sizeof *t->keys);
    set_segments(t, path);
    atomic_store_explicit(&t->state, POOL_LOOKING, memory_order_relaxed);
    post_index(p, POOL_LOOKUP, no);
    return no;
}

void pool_end_when_read(struct pool *p, uint32_t ticket, bool ends)
{
    ASSERT(ticket < POOL_TICKETS_MAX);
    atomic_store_explicit(&p->tickets[ticket].ends_when_read, ends, memory_order_relaxed);
}

enum pool_look pool_look(struct pool *p, uint32_t ticket, struct pool_found *out)
{
    struct pool_ticket *t = &p->tickets[ticket];
    uint32_t state = atomic_load_explicit(&t->state, memory_order_acquire);

    ASSERT(ticket < POOL_N_TICKETS);
    if (state == POOL_FOUND && out) {
        *out = t->found;
        out->until_ns = atomic_load_explicit(&t->until_ns, memory_order_relaxed);
        out->query_s =
            (double)atomic_load_explicit(&p->query_ns[t->peer], memory_order_relaxed) / 1e9;
    }
    return state == POOL_LOST ? POOL_NOT_FOUND : (enum pool_look)state;
}

void pool_forget(struct pool *p, uint32_t ticket)
{
    ASSERT(ticket < POOL_N_TICKETS);
    post_index_later(p, POOL_FORGET, ticket);
}

enum status pool_read(struct pool *p, uint32_t ticket, const uint32_t *at, void *const *to,
                      uint32_t n, uint64_t tag)
{
    struct pool_ticket *t = &p->tickets[ticket];

    ASSERT(ticket < POOL_N_TICKETS && n >= 1 && n <= POOL_READ_MAX);
    if (atomic_load_explicit(&t->state, memory_order_acquire) != POOL_FOUND)
        return ERR_UNAVAILABLE;
    if (p->n_reads_free == 0)
        return ERR_BUSY;
    uint32_t no = p->reads_free[--p->n_reads_free];
    struct pool_read_slot *r = &p->reads[no];
    r->ticket = ticket;
    r->n = n;
    r->tag = tag;
    r->is_near = t->is_near[at[0]];
    for (uint32_t i = 0; i < n; i++) {
        ASSERT(at[i] >= t->n_local && at[i] < t->found.n_blocks);
        ASSERT(t->is_near[at[i]] == r->is_near);
        r->at[i] = at[i];
        r->to[i] = r->is_near ? NULL : to[i];
    }
    post_index(p, POOL_READ, no);
    return OK;
}

bool pool_is_near(const struct pool *p, uint32_t ticket, uint32_t at)
{
    const struct pool_ticket *t = &p->tickets[ticket];

    ASSERT(ticket < POOL_N_TICKETS && at >= t->n_local && at < t->found.n_blocks);
    return t->is_near[at];
}

bool pool_next_places(struct pool *p, struct pool_places *out)
{
    uint32_t no;

    if (!spsc_pop(p->places, &no))
        return false;
    const struct pool_read_slot *r = &p->reads[no];
    *out = (struct pool_places){.read = no, .tag = r->tag, .n = r->n};
    memcpy(out->from, r->from, sizeof out->from);
    memcpy(out->crc, r->crc, sizeof out->crc);
    return true;
}

void pool_copied(struct pool *p, uint32_t read, enum status status)
{
    post(p, &(struct pool_command){.kind = POOL_COPIED, .index = read, .status = status});
}

bool pool_next_read(struct pool *p, uint64_t *tag, enum status *status)
{
    struct pool_read_done done;

    if (!spsc_pop(p->reads_done, &done))
        return false;
    *tag = p->reads[done.index].tag;
    *status = done.status;
    p->reads_free[p->n_reads_free++] = done.index;
    return true;
}

/* --- query --- */

/* A free query with memory for so many bytes. NULL: there are too many. */
static struct pool_query_slot *take_query(struct pool *p, uint64_t n_bytes)
{
    uint32_t no;

    while (spsc_pop(p->queries_free, &no))
        p->query_stack[p->n_query_stack++] = no;
    if (p->n_query_stack == 0)
        return NULL;
    struct pool_query_slot *s = &p->queries[p->query_stack[p->n_query_stack - 1]];
    if (!pool_buffer_fit(&s->buffer, n_bytes, &p->query_memory_left)) {
        for (uint32_t i = 0; i < p->n_query_stack; i++)
            pool_buffer_free(&p->queries[p->query_stack[i]].buffer, &p->query_memory_left);
        if (!pool_buffer_fit(&s->buffer, n_bytes, &p->query_memory_left))
            return NULL;
    }
    p->n_query_stack--;
    return s;
}

static void copy_query(struct pool_query_slot *s, const struct pool_query *q)
{
    struct pool_query_parts parts = pool_query_parts(&s->buffer, s->n_tile_bytes, s->n_q_bytes);
    uint8_t *bytes = parts.segments;
    size_t n_floats = s->n_q_bytes / sizeof(float) / q->n_rows;

    for (uint32_t i = 0; i < q->n_rows; i++)
        memcpy(parts.q + i * n_floats, q->q + i * q->q_stride, n_floats * sizeof(float));
    for (uint32_t i = 0; i < q->n_segments; i++)
        wire_put_segment(&(struct wire_segment){.at = q->segments[i].at,
                                                .n_blocks = q->segments[i].n_blocks,
                                                .n_tokens = q->segments[i].n_tokens},
                         bytes + (size_t)i * WIRE_SEGMENT_BYTES);
}

enum status pool_query(struct pool *p, const struct pool_query *q, uint32_t *query)
{
    struct pool_ticket *t = &p->tickets[q->ticket];
    uint64_t n_q = (uint64_t)q->n_rows * p->config.query_floats * sizeof(float);
    uint64_t n_tiles = (uint64_t)q->n_segments * q->n_rows * p->config.tile_floats * sizeof(float);

    *query = POOL_NO_QUERY;
    ASSERT(q->ticket < POOL_N_TICKETS && q->n_rows >= 1 && q->n_rows <= POOL_QUERY_ROWS_MAX);
    ASSERT(q->n_segments >= 1 && q->n_segments <= POOL_QUERY_SEGMENTS_MAX);
    ASSERT(q->layer < p->config.n_layers);
    if (atomic_load_explicit(&t->state, memory_order_acquire) != POOL_FOUND || !t->found.attends)
        return ERR_UNAVAILABLE;
    if (n_q > POOL_QUERY_BYTES_MAX || n_tiles > POOL_QUERY_BYTES_MAX)
        return ERR_TOO_LARGE;
    struct pool_query_slot *s =
        take_query(p, pool_query_bytes(n_tiles, n_q, q->n_segments * WIRE_SEGMENT_BYTES));
    if (!s)
        return ERR_BUSY;
    s->ticket = q->ticket;
    s->layer = q->layer;
    s->n_rows = q->n_rows;
    s->n_segments = q->n_segments;
    s->n_q_bytes = (uint32_t)n_q;
    s->n_tile_bytes = (uint32_t)n_tiles;
    s->began_ns = clock_now_ns();
    s->until_ns = q->until_ns ? q->until_ns : s->began_ns + p->pull_ns;
    s->is_timed_out = false;
    copy_query(s, q);
    atomic_store_explicit(&s->state, POOL_QUERY_UNDER_WAY, memory_order_relaxed);
    *query = (uint32_t)(s - p->queries);
    post_index(p, POOL_QUERY, *query);
    return OK;
}

enum status pool_query_end(struct pool *p, uint32_t query, uint64_t until_ns, const float **tiles)
{
    struct pool_query_slot *s = &p->queries[query];
    uint64_t now = clock_now_ns(), spin_until_ns = now + POOL_SPIN_NS;
    uint32_t state;

    ASSERT(query < POOL_QUERIES_MAX);
    while ((state = atomic_load_explicit(&s->state, memory_order_acquire)) < POOL_QUERY_DONE) {
        uint32_t seen = POOL_QUERY_UNDER_WAY;
        if (now >= until_ns) {
            s->is_timed_out = true;
            return ERR_TIMEOUT;
        }
        if (now < spin_until_ns)
            sched_yield();
        else if (state == POOL_QUERY_AWAITED ||
                 atomic_compare_exchange_strong(&s->state, &seen, POOL_QUERY_AWAITED))
            pool_futex_wait(&s->state, POOL_QUERY_AWAITED, until_ns);
        now = clock_now_ns();
    }
    *tiles = s->buffer.memory;
    return (enum status)(state - POOL_QUERY_DONE);
}

/* The slot of a finished query is free at once. The pool thread has the others. */
void pool_query_forget(struct pool *p, uint32_t query)
{
    ASSERT(query < POOL_QUERIES_MAX);
    if (atomic_load_explicit(&p->queries[query].state, memory_order_acquire) >= POOL_QUERY_DONE)
        p->query_stack[p->n_query_stack++] = query;
    else
        post_index(p, POOL_DROP, query);
}

/* --- lend --- */

bool pool_next_ask(struct pool *p, struct pool_ask *out)
{
    uint32_t no;

    if (!spsc_pop(p->asks, &no))
        return false;
    const struct pool_lease *l = &p->leases[no];
    *out = (struct pool_ask){.lease = no,
                             .keys = l->keys,
                             .n = l->n,
                             .n_there = l->n_there,
                             .until_ns = l->until_ns,
                             .disk_ns = l->disk_ns,
                             .is_near = l->is_near,
                             .yields = l->yields,
                             .is_offered = l->is_offered};
    return true;
}

void pool_lend(struct pool *p, uint32_t lease, const struct pool_block *blocks, uint32_t n,
               uint32_t flags)
{
    struct pool_lease *l = &p->leases[lease];

    ASSERT(lease < POOL_LEASES_MAX && n <= l->n);
    l->n_lent = n > l->n_there ? n : 0;
    l->flags = flags;
    for (uint32_t i = 0; i + l->n_there < l->n_lent; i++) {
        bool is_near = blocks[i].memory == NULL;

        ASSERT(!is_near || l->is_near);
        l->memory[i] = blocks[i].memory;
        l->place[i] = blocks[i].place;
        l->crc[i] = blocks[i].crc;
        l->n_tokens[i] = (uint8_t)(blocks[i].n_tokens | (is_near ? WIRE_ON_DEVICE : 0));
    }
    post_index(p, POOL_LEND, lease);
}

bool pool_next_return(struct pool *p, uint32_t *lease, bool *was_pulled)
{
    const struct pool_lease *l;

    if (!spsc_pop(p->returns, lease))
        return false;
    l = &p->leases[*lease];
    *was_pulled = !l->is_copy && l->n_read == l->n_lent - l->n_there;
    post_index_later(p, POOL_BACK, *lease);
    return true;
}

bool pool_next_news(struct pool *p, struct pool_news *out)
{
    return spsc_pop(p->news, out);
}

/* --- hand over --- */

bool pool_offer(struct pool *p, const struct pool_offer *offer)
{
    uint32_t no = 0;

    ASSERT(offer->n >= 1 && offer->n <= POOL_PATH_MAX);
    while (no < POOL_OFFERS_MAX &&
           atomic_load_explicit(&p->offers_out[no].is_used, memory_order_acquire))
        no++;
    if (no == POOL_OFFERS_MAX)
        return false;
    struct pool_offer_slot *o = &p->offers_out[no];
    o->n = offer->n;
    o->to = offer->to;
    o->why = offer->why;
    o->last_start = 0;
    memcpy(o->keys, offer->keys, offer->n * sizeof *o->keys);
    for (uint32_t i = 0; i < offer->n; i++) {
        const struct pool_meta *m = &offer->meta[i];
        wire_put_meta(&(struct wire_meta){.n_tokens = m->n_tokens,
                                          .starts_segment = m->starts_segment,
                                          .is_public = m->is_public,
                                          .is_registered = m->is_registered,
                                          .depth = m->depth},
                      o->meta + (size_t)i * WIRE_META_BYTES);
        if (m->starts_segment)
            o->last_start = i;
    }
    atomic_store_explicit(&o->is_used, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->n_offers, 1, memory_order_relaxed);
    post_index(p, POOL_OFFER, no);
    return true;
}

uint32_t pool_n_offers(const struct pool *p)
{
    return atomic_load_explicit(&p->n_offers, memory_order_acquire);
}

bool pool_next_copy(struct pool *p, struct pool_copy *out)
{
    return spsc_pop(p->copies, out);
}

bool pool_next_offer(struct pool *p, struct pool_offer *out)
{
    uint32_t no;

    if (!spsc_pop(p->offers, &no))
        return false;
    const struct pool_ticket *t = &p->tickets[POOL_TICKETS_MAX + no];
    *out = (struct pool_offer){.keys = t->keys,
                               .meta = p->taken[no].meta,
                               .n = t->n,
                               .n_there = t->n_local,
                               .ticket = POOL_TICKETS_MAX + no};
    return true;
}
