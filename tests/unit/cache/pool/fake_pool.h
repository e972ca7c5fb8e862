/* fake_pool.h - pool.h between caches of one process, without threads and without a network.
 *
 * Every cache that is opened with a pool gets one of FAKE_N_POOLS fakes. A lookup asks the others
 * one after the other. fake_step() does what is due: it passes asks on, copies what reads asked
 * for, and ends leases. A query is answered at once, by fake_tile(). Faults are set per fake. Lent
 * blocks must keep their bytes until their lease has ended: the fake checks this. With
 * fake_directory, a lookup asks only the instance that this names.
 *
 * Include it once, behind tests/unit/test.h. Owns the fakes. One thread. A failure ends the test.
 * Units: nanoseconds, blocks. */
#ifndef TARN_TESTS_UNIT_CACHE_POOL_FAKE_POOL_H
#define TARN_TESTS_UNIT_CACHE_POOL_FAKE_POOL_H

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "cache/pool/pool.h"

#define FAKE_N_POOLS 4
#define FAKE_N_TICKETS 32
#define FAKE_N_READS 64
#define FAKE_N_OFFERS 8
#define FAKE_N_QUERIES 64

static uint64_t fake_now = 1;

struct fake_ticket {
    bool is_used, is_found, is_over, is_offered, ends_when_read;
    struct kv_key keys[POOL_PATH_MAX / 8];
    uint32_t n, n_local;
    uint64_t disk_ns;
    uint64_t avoid[POOL_AVOID_MAX];
    uint32_t n_avoid;
    uint32_t peer;  /* being asked, or the lender */
    uint32_t lease; /* of the peer; UINT32_MAX: none */
    struct pool_found found;
    struct pool_block blocks[POOL_PATH_MAX / 8];
    uint32_t crc[POOL_PATH_MAX / 8];
    uint32_t n_reads;   /* under way */
    uint32_t n_queries; /* not forgotten */
};

struct fake_query {
    bool is_used;
    uint32_t ticket;
    enum status status;
    float *tiles;
};

struct fake_read {
    uint32_t ticket, n, at[POOL_READ_MAX];
    void *to[POOL_READ_MAX];
    uint64_t tag;
    bool is_done;
    enum status status;
};

/* The lender's record of a ticket of another fake. */
struct fake_lease {
    bool is_used, is_asked, is_given, is_returned;
    bool is_dead; /* the asker forgot its ticket before the answer */
    uint32_t asker, ticket, n, n_local;
    uint32_t n_lent, n_read;
    uint64_t until_ns, disk_ns;
    struct kv_key keys[POOL_PATH_MAX / 8];
};

struct fake_offer {
    bool is_used, is_taken;
    struct kv_key keys[POOL_PATH_MAX / 8];
    struct pool_meta meta[POOL_PATH_MAX / 8];
    uint32_t n, from, ticket;
};

struct pool {
    bool is_open;
    struct pool_config config;
    struct fake_ticket tickets[FAKE_N_TICKETS];
    struct fake_read reads[FAKE_N_READS];
    uint32_t n_reads;
    struct fake_query queries[FAKE_N_QUERIES];
    struct fake_lease leases[POOL_LEASES_MAX];
    struct pool_news news[8];
    uint32_t n_news;
    struct pool_copy copies[8]; /* what it wants to be offered */
    uint32_t n_copies;
    struct fake_offer offers[FAKE_N_OFFERS]; /* for this fake */
    uint32_t n_offered, n_offers_over;
    bool leaves;
    bool unregisters, is_unregistered;
    /* Faults and figures, for the tests. */
    bool is_away;             /* answers nothing any more */
    bool holds_back;          /* lookups stay unanswered */
    bool stalls;              /* reads stay unanswered */
    enum status read_status;  /* of all reads from now on */
    uint32_t n_reads_good;    /* reads that succeed before read_status holds */
    enum status query_status; /* of all answers from now on */
    uint32_t n_queries_good;  /* answers that arrive before query_status holds */
    bool refuses_queries;     /* they are not even sent */
    double query_s;           /* that a lookup reports */
    double bytes_per_s;       /* that a lookup reports */
    bool names_all;           /* lookups report that others have the whole path */
    uint64_t lease_ns;        /* 0: 1 s */
    uint64_t ask_ns;          /* an ask waits for so long; 0: 50 ms */
    uint32_t n_queries;
    uint32_t n_lookups, n_read_blocks, n_lent_blocks, n_attended;
};

static struct pool fakes[FAKE_N_POOLS];

/* The fake that the ticket of fake p asks; FAKE_N_POOLS: none. NULL: all are asked in turn. */
static uint32_t (*fake_directory)(const struct pool *p, const struct fake_ticket *t);

static uint32_t fake_number(const struct pool *p)
{
    return (uint32_t)(p - fakes);
}

static uint32_t fake_crc(const struct pool *p, const void *memory)
{
    return hash_crc32c(0, memory, p->config.block_bytes);
}

/* --- life --- */

enum status pool_open(struct pool **out, const struct pool_config *config, struct buf *why)
{
    (void)why;
    for (uint32_t i = 0; i < FAKE_N_POOLS; i++)
        if (!fakes[i].is_open) {
            fakes[i] = (struct pool){.is_open = true, .config = *config};
            *out = &fakes[i];
            return OK;
        }
    return ERR_NOMEM;
}

static void fake_end_lease(const struct pool *p, struct fake_ticket *t)
{
    if (t->lease == UINT32_MAX)
        return;
    struct pool *lender = &fakes[t->peer];
    for (uint32_t i = t->n_local; t->is_found && i < t->found.n_blocks; i++)
        if (fake_crc(p, t->blocks[i].memory) != t->crc[i])
            fail_msg("a lent block has changed");
    struct fake_lease *l = &lender->leases[t->lease];
    l->is_dead = l->is_asked;
    l->is_returned = !l->is_asked;
    t->lease = UINT32_MAX;
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; i < FAKE_N_TICKETS; i++)
        assert_false(p->tickets[i].is_used);
    for (uint32_t i = 0; i < FAKE_N_QUERIES; i++)
        assert_false(p->queries[i].is_used);
    assert_int_equal(p->n_reads, 0);
    for (uint32_t i = 0; i < POOL_LEASES_MAX; i++)
        assert_false(p->leases[i].is_used && !p->leases[i].is_asked);
    p->is_open = false;
}

void pool_register(struct pool *p, const void *base, uint64_t n_bytes)
{
    assert_true(p && base && n_bytes > 0);
    p->unregisters = p->is_unregistered = false;
}

void pool_unregister(struct pool *p)
{
    for (uint32_t i = 0; i < POOL_LEASES_MAX; i++)
        assert_false(p->leases[i].is_used && !p->leases[i].is_asked);
    p->unregisters = true;
}

bool pool_is_unregistered(const struct pool *p)
{
    return p->is_unregistered;
}

/* --- pull --- */

uint32_t pool_lookup(struct pool *p, const struct pool_path *path)
{
    uint32_t at = 0;

    p->n_lookups++;
    assert_true(path->n > path->n_local && path->n <= POOL_PATH_MAX / 8);
    assert_true(path->n_starts > 0 && path->starts[0] == 0);
    while (at < FAKE_N_TICKETS && p->tickets[at].is_used)
        at++;
    if (at == FAKE_N_TICKETS)
        return POOL_NO_TICKET;
    struct fake_ticket *t = &p->tickets[at];
    t->is_used = true;
    t->is_found = t->is_over = t->is_offered = t->ends_when_read = false;
    memcpy(t->keys, path->keys, path->n * sizeof *t->keys);
    t->n = path->n;
    t->n_local = path->n_local;
    t->disk_ns = path->disk_ns;
    assert_true(path->n_avoid <= POOL_AVOID_MAX);
    for (t->n_avoid = 0; t->n_avoid < path->n_avoid; t->n_avoid++)
        t->avoid[t->n_avoid] = path->avoid[t->n_avoid];
    t->peer = UINT32_MAX;
    t->lease = UINT32_MAX;
    t->n_reads = t->n_queries = 0;
    return at;
}

void pool_end_when_read(struct pool *p, uint32_t ticket, bool ends)
{
    assert_true(p->tickets[ticket].is_used);
    p->tickets[ticket].ends_when_read = ends;
}

enum pool_look pool_look(struct pool *p, uint32_t ticket, struct pool_found *out)
{
    const struct fake_ticket *t = &p->tickets[ticket];

    assert_true(t->is_used);
    if (t->is_over)
        return POOL_NOT_FOUND;
    *out = t->found;
    return t->is_found ? POOL_FOUND : POOL_LOOKING;
}

void pool_forget(struct pool *p, uint32_t ticket)
{
    struct fake_ticket *t = &p->tickets[ticket];

    assert_true(t->is_used && t->n_reads == 0 && t->n_queries == 0);
    fake_end_lease(p, t);
    if (t->is_offered)
        fakes[t->peer].n_offers_over++;
    t->is_used = false;
}

enum status pool_read(struct pool *p, uint32_t ticket, const uint32_t *at, void *const *to,
                      uint32_t n, uint64_t tag)
{
    struct fake_ticket *t = &p->tickets[ticket];

    assert_true(t->is_used && t->is_found && n > 0 && n <= POOL_READ_MAX);
    if (t->is_over)
        return ERR_UNAVAILABLE;
    if (p->n_reads == FAKE_N_READS)
        return ERR_BUSY;
    struct fake_read *r = &p->reads[p->n_reads++];
    *r = (struct fake_read){.ticket = ticket, .n = n, .tag = tag};
    for (uint32_t i = 0; i < n; i++) {
        assert_true(at[i] >= t->n_local && at[i] < t->found.n_blocks);
        r->at[i] = at[i];
        r->to[i] = to[i];
    }
    t->n_reads++;
    return OK;
}

/* The fake has no device memory. */
bool pool_is_near(const struct pool *p, uint32_t ticket, uint32_t at)
{
    (void)p, (void)ticket, (void)at;
    return false;
}

bool pool_next_places(struct pool *p, struct pool_places *out)
{
    (void)p, (void)out;
    return false;
}

void pool_copied(struct pool *p, uint32_t read, enum status status)
{
    (void)p, (void)read, (void)status;
}

void pool_export(struct pool *p, const uint8_t handle[POOL_HANDLE_BYTES], uint64_t n_bytes)
{
    (void)p, (void)handle, (void)n_bytes;
}

bool pool_next_read(struct pool *p, uint64_t *tag, enum status *status)
{
    for (uint32_t i = 0; i < p->n_reads; i++)
        if (p->reads[i].is_done) {
            *tag = p->reads[i].tag;
            *status = p->reads[i].status;
            p->tickets[p->reads[i].ticket].n_reads--;
            memmove(&p->reads[i], &p->reads[i + 1], (--p->n_reads - i) * sizeof *p->reads);
            return true;
        }
    return false;
}

/* --- query --- */

/* The first float of the tile of a segment and a row; the others are 0. */
static float fake_tile(uint32_t crc, const struct pool_segment *s, uint32_t layer, float q)
{
    return (float)(crc % 65536u) + 256.0f * s->n_tokens + 16.0f * layer + q;
}

/* A segment's blocks, one after the other, are what it has the CRC32C of. */
static uint32_t fake_segment_crc(const struct pool *p, const struct fake_ticket *t,
                                 const struct pool_segment *s)
{
    uint32_t crc = 0, n_tokens = 0;

    for (uint32_t i = s->at; i < s->at + s->n_blocks; i++) {
        crc = hash_crc32c(crc, t->blocks[i].memory, p->config.block_bytes);
        n_tokens += t->blocks[i].n_tokens;
    }
    assert_int_equal(n_tokens, s->n_tokens);
    return crc;
}

static void fake_lengthen(const struct pool *p, struct fake_ticket *t)
{
    t->found.until_ns = fake_now + (p->lease_ns ? p->lease_ns : 1000000000);
}

enum status pool_query(struct pool *p, const struct pool_query *q, uint32_t *query)
{
    struct fake_ticket *t = &p->tickets[q->ticket];
    uint32_t at = 0, n_floats = p->config.tile_floats;

    assert_true(t->is_used && t->is_found && q->layer < p->config.n_layers);
    assert_true(q->n_rows > 0 && q->n_rows <= POOL_QUERY_ROWS_MAX);
    assert_true(q->n_segments > 0 && q->n_segments <= POOL_QUERY_SEGMENTS_MAX);
    assert_true(q->q_stride >= p->config.query_floats);
    if (t->is_over || p->refuses_queries)
        return ERR_UNAVAILABLE;
    while (at < FAKE_N_QUERIES && p->queries[at].is_used)
        at++;
    if (at == FAKE_N_QUERIES)
        return ERR_BUSY;
    p->queries[at] =
        (struct fake_query){true, q->ticket, p->n_queries_good > 0 ? OK : p->query_status,
                            calloc((size_t)q->n_segments * q->n_rows * n_floats, sizeof(float))};
    p->n_queries_good -= p->n_queries_good > 0;
    if (fakes[t->peer].is_away || p->stalls)
        p->queries[at].status = ERR_TIMEOUT;
    for (uint32_t i = 0; i < q->n_segments; i++) {
        const struct pool_segment *s = &q->segments[i];
        assert_true(s->at >= t->n_local && s->at + s->n_blocks <= t->found.n_blocks);
        uint32_t crc = fake_segment_crc(p, t, s);
        for (uint32_t r = 0; r < q->n_rows; r++)
            p->queries[at].tiles[(i * q->n_rows + r) * n_floats] =
                fake_tile(crc, s, q->layer, q->q[r * q->q_stride]);
    }
    t->n_queries++;
    p->n_queries++;
    fakes[t->peer].n_attended++;
    fake_lengthen(p, t);
    *query = at;
    return OK;
}

enum status pool_query_end(struct pool *p, uint32_t query, uint64_t until_ns, const float **tiles)
{
    const struct fake_query *q = &p->queries[query];

    assert_true(q->is_used && until_ns > 0);
    *tiles = q->status == OK ? q->tiles : NULL;
    return q->status;
}

void pool_query_forget(struct pool *p, uint32_t query)
{
    struct fake_query *q = &p->queries[query];

    assert_true(q->is_used);
    p->tickets[q->ticket].n_queries--;
    free(q->tiles);
    q->is_used = false;
}

/* --- lend --- */

bool pool_next_ask(struct pool *p, struct pool_ask *out)
{
    for (uint32_t i = 0; i < POOL_LEASES_MAX && !p->is_away; i++)
        if (p->leases[i].is_used && p->leases[i].is_asked && !p->leases[i].is_given) {
            struct fake_lease *l = &p->leases[i];

            l->is_given = true;
            *out = (struct pool_ask){.lease = i,
                                     .keys = l->keys,
                                     .n = l->n,
                                     .n_there = l->n_local,
                                     .until_ns = l->until_ns,
                                     .disk_ns = l->disk_ns,
                                     .yields = l->asker > fake_number(p),
                                     .is_offered = fakes[l->asker].tickets[l->ticket].is_offered};
            return true;
        }
    return false;
}

void pool_lend(struct pool *p, uint32_t lease, const struct pool_block *blocks, uint32_t n,
               uint32_t flags)
{
    struct fake_lease *l = &p->leases[lease];
    struct pool *asker = &fakes[l->asker];
    struct fake_ticket *t = &asker->tickets[l->ticket];

    assert_true(l->is_used && l->is_asked);
    l->is_asked = false;
    l->n_lent = n > l->n_local ? n - l->n_local : 0;
    if (l->is_dead) {
        l->is_returned = n > l->n_local;
        l->is_used = l->is_returned;
        return;
    }
    if (n <= t->n_local) { /* the next step asks another one */
        l->is_used = false;
        t->lease = UINT32_MAX;
        return;
    }
    for (uint32_t i = t->n_local; i < n; i++) {
        t->blocks[i] = blocks[i - t->n_local];
        t->crc[i] = fake_crc(p, t->blocks[i].memory);
        assert_true(t->blocks[i].n_tokens > 0 && t->blocks[i].n_tokens <= KV_BLOCK_TOKENS);
    }
    p->n_lent_blocks += n - t->n_local;
    t->is_found = true;
    t->found = (struct pool_found){.n_blocks = n,
                                   .n_named = asker->names_all ? t->n : n,
                                   .peer = fake_number(p) + 1,
                                   .latency_s = 1e-4,
                                   .bytes_per_s = asker->bytes_per_s,
                                   .was_awaited = (flags & POOL_AWAITED) != 0,
                                   .keeps = (flags & POOL_KEEPS) != 0,
                                   .attends = asker->config.attend && p->config.attend,
                                   .query_s = asker->query_s,
                                   .until_ns =
                                       fake_now + (asker->lease_ns ? asker->lease_ns : 1000000000)};
}

bool pool_next_return(struct pool *p, uint32_t *lease, bool *was_pulled)
{
    for (uint32_t i = 0; i < POOL_LEASES_MAX; i++)
        if (p->leases[i].is_used && p->leases[i].is_returned) {
            p->leases[i].is_used = false;
            *lease = i;
            *was_pulled = p->leases[i].n_read == p->leases[i].n_lent;
            return true;
        }
    return false;
}

bool pool_next_news(struct pool *p, struct pool_news *out)
{
    if (p->n_news == 0)
        return false;
    *out = p->news[--p->n_news];
    return true;
}

/* --- leave --- */

bool pool_next_copy(struct pool *p, struct pool_copy *out)
{
    if (p->n_copies == 0)
        return false;
    *out = p->copies[--p->n_copies];
    return true;
}

void pool_leave(struct pool *p)
{
    p->leaves = true;
}

/* The fake that others would choose: the next open one. */
static struct pool *fake_heir(const struct pool *p)
{
    for (uint32_t i = 1; i < FAKE_N_POOLS; i++) {
        struct pool *heir = &fakes[(fake_number(p) + i) % FAKE_N_POOLS];
        if (heir->is_open && !heir->leaves && !heir->is_away)
            return heir;
    }
    return NULL;
}

bool pool_offer(struct pool *p, const struct pool_offer *offer)
{
    struct pool *heir = offer->to ? &fakes[offer->to - 1] : fake_heir(p);

    p->n_offered++;
    if (!heir || heir->is_away) {
        p->n_offers_over++;
        return true;
    }
    for (uint32_t i = 0; i < FAKE_N_OFFERS; i++)
        if (!heir->offers[i].is_used) {
            struct fake_offer *o = &heir->offers[i];
            struct pool_path path = {.keys = offer->keys, .n = offer->n, .n_local = offer->n_there};
            uint32_t zero = 0;

            path.starts = &zero;
            path.n_starts = 1;
            *o = (struct fake_offer){.is_used = true, .n = offer->n, .from = fake_number(p)};
            memcpy(o->keys, offer->keys, offer->n * sizeof *o->keys);
            memcpy(o->meta, offer->meta, offer->n * sizeof *o->meta);
            o->ticket = pool_lookup(heir, &path);
            heir->tickets[o->ticket].is_offered = true;
            heir->tickets[o->ticket].peer = fake_number(p) - 1; /* asked next */
            return true;
        }
    p->n_offered--;
    return false;
}

uint32_t pool_n_offers(const struct pool *p)
{
    return p->n_offered - p->n_offers_over;
}

bool pool_next_offer(struct pool *p, struct pool_offer *out)
{
    for (uint32_t i = 0; i < FAKE_N_OFFERS; i++) {
        struct fake_offer *o = &p->offers[i];
        if (!o->is_used || !p->tickets[o->ticket].is_found)
            continue;
        *out = (struct pool_offer){.keys = o->keys,
                                   .meta = o->meta,
                                   .n = o->n,
                                   .n_there = p->tickets[o->ticket].n_local,
                                   .ticket = o->ticket};
        o->is_used = false;
        return true;
    }
    return false;
}

/* --- watching --- */

void pool_set_load(struct pool *p, const struct pool_load *load)
{
    assert_true(p->is_open && load->n_free_blocks <= load->n_blocks);
}

void pool_stats(struct pool *p, struct pool_stats *out)
{
    *out = (struct pool_stats){.n_lookups = p->n_lookups};
}

struct pool_notes *pool_notes(struct pool *p)
{
    (void)p;
    return NULL;
}

uint32_t pool_instances(struct pool *p, struct directory_instance *out, uint32_t n_max)
{
    assert_true(p->is_open && n_max > 0);
    out[0] = (struct directory_instance){.id = fake_number(p) + 1};
    return 1;
}

/* --- time passes --- */

static bool fake_is_avoided(const struct fake_ticket *t)
{
    for (uint32_t i = 0; i < t->n_avoid; i++)
        if (t->avoid[i] == t->peer + 1)
            return true;
    return false;
}

/* Choose the next peer to ask. False: there is none. */
static bool fake_choose(const struct pool *p, struct fake_ticket *t)
{
    if (fake_directory && !t->is_offered) {
        bool is_first = t->peer == UINT32_MAX;

        t->peer = is_first ? fake_directory(p, t) : FAKE_N_POOLS;
        return t->peer < FAKE_N_POOLS;
    }
    if (!t->is_offered && t->peer == UINT32_MAX)
        t->peer = fake_number(p);
    for (uint32_t tried = 0; tried < FAKE_N_POOLS; tried++) {
        t->peer = (t->peer + 1) % FAKE_N_POOLS;
        if (t->peer == fake_number(p)) /* all were asked */
            return false;
        if (fakes[t->peer].is_open && !fakes[t->peer].is_away && !fake_is_avoided(t))
            break;
    }
    return true;
}

static void fake_ask_next(struct pool *p, uint32_t ticket)
{
    struct fake_ticket *t = &p->tickets[ticket];

    if (t->lease != UINT32_MAX || t->is_found || t->is_over || p->holds_back)
        return;
    if (!fake_choose(p, t)) {
        t->is_over = true;
        return;
    }
    for (uint32_t i = 0; i < POOL_LEASES_MAX; i++) {
        struct fake_lease *l = &fakes[t->peer].leases[i];
        if (l->is_used)
            continue;
        l->is_used = l->is_asked = true;
        l->is_returned = l->is_dead = l->is_given = false;
        l->until_ns = fake_now + (p->ask_ns ? p->ask_ns : 50000000);
        l->disk_ns = t->disk_ns;
        l->n_lent = l->n_read = 0;
        l->asker = fake_number(p);
        l->ticket = ticket;
        l->n = t->n;
        l->n_local = t->n_local;
        memcpy(l->keys, t->keys, t->n * sizeof *l->keys);
        t->lease = i;
        return;
    }
    t->is_over = true;
}

/* A lease that ends when all has been read ends now if it has. */
static void fake_end_read_lease(struct pool *p, struct fake_ticket *t)
{
    uint32_t n_reads = 0;

    if (t->lease == UINT32_MAX || !t->ends_when_read)
        return;
    for (uint32_t i = 0; i < p->n_reads; i++)
        n_reads += !p->reads[i].is_done && &p->tickets[p->reads[i].ticket] == t;
    const struct fake_lease *l = &fakes[t->peer].leases[t->lease];
    if (n_reads > 0 || l->n_read < l->n_lent)
        return;
    fake_end_lease(p, t);
    t->is_over = true;
}

static void fake_finish_read(struct pool *p, struct fake_read *r)
{
    struct fake_ticket *t = &p->tickets[r->ticket];

    r->is_done = true;
    r->status = p->n_reads_good > 0 ? OK : p->read_status;
    p->n_reads_good -= p->n_reads_good > 0;
    if (t->is_over || fakes[t->peer].is_away)
        r->status = ERR_NOT_FOUND;
    for (uint32_t i = 0; i < r->n; i++) {
        if (r->status == OK)
            memcpy(r->to[i], t->blocks[r->at[i]].memory, p->config.block_bytes);
        else
            memset(r->to[i], 0xdb, p->config.block_bytes); /* half of it arrived */
    }
    if (r->status != OK)
        return;
    p->n_read_blocks += r->n;
    if (t->lease == UINT32_MAX)
        return;
    fakes[t->peer].leases[t->lease].n_read += r->n;
    fake_end_read_lease(p, t);
}

/* An offer that nobody can have is over; its ticket was never the heir's engine's. */
static void fake_drop_offers(struct pool *p)
{
    for (uint32_t i = 0; i < FAKE_N_OFFERS; i++) {
        struct fake_offer *o = &p->offers[i];

        if (!o->is_used || !p->tickets[o->ticket].is_over)
            continue;
        o->is_used = false;
        p->tickets[o->ticket].is_offered = false;
        fakes[o->from].n_offers_over++;
        pool_forget(p, o->ticket);
    }
}

static void fake_step(void)
{
    for (uint32_t k = 0; k < FAKE_N_POOLS; k++) {
        struct pool *p = &fakes[k];

        if (!p->is_open)
            continue;
        p->is_unregistered = p->unregisters;
        for (uint32_t i = 0; i < p->n_reads && !p->stalls; i++)
            if (!p->reads[i].is_done)
                fake_finish_read(p, &p->reads[i]);
        for (uint32_t i = 0; i < FAKE_N_TICKETS; i++) {
            struct fake_ticket *t = &p->tickets[i];

            if (!t->is_used)
                continue;
            if (t->is_found && t->n_reads == 0 &&
                (fake_now >= t->found.until_ns || fakes[t->peer].is_away)) {
                t->is_over = true;
                fake_end_lease(p, t);
            }
            fake_ask_next(p, i);
        }
        fake_drop_offers(p);
    }
}

#endif
