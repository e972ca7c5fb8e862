/* tier_device.c - blocks in the memory of the devices that compute.
 *
 * Where several devices compute one model, a block has a part on each, at the same place of its
 * pool, and the host has the parts one behind the other. A move is one move of all parts.
 *
 * Where the host cannot address that memory, kernels run on the compute stream, reads on copy-out
 * and writes on copy-in. A copy begins behind everything that the compute stream has been given so
 * far: it reads what finished steps wrote, and does not overwrite what they still read. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cache/tier/tier_inner.h"
#include "kernels/device.h"

#define N_MOVES 256
_Static_assert(TIER_MOVE_BLOCKS_MAX <= DEVICE_COPIES_MAX, "a move is one call");
/* Pages of host memory are supplied this far ahead of use: hundreds of prompts of a small model,
 * one or two of a large one. A small pool's pages all come soon. */
#define PREFAULT_AHEAD_MAX ((size_t)128 << 20)
#define PREFAULT_BYTES_MIN ((size_t)16 << 20)

struct move {
    uint64_t tag;
    bool is_write;
    bool drops;   /* its blocks become free when it is over, unless that happened before */
    bool is_over; /* the host has waited for it */
    uint32_t n;
    uint32_t blocks[TIER_MOVE_BLOCKS_MAX];
    enum status status;
    struct device_event *events[DEVICE_GROUP_MAX]; /* of each rank */
};

struct tier_device {
    struct tier base;
    struct device_group group;
    unsigned char *pools[DEVICE_GROUP_MAX]; /* of each rank; NULL: asleep */
    size_t part_bytes;                      /* of a block, on each rank */
    size_t pool_bytes;                      /* of each rank */
    /* A ring, oldest move first. */
    struct move moves[N_MOVES];
    uint32_t first, n_moves;
    struct device_event *compute_done[DEVICE_GROUP_MAX]; /* recorded before each copy */
};

static struct tier_device *of(struct tier *t)
{
    return (struct tier_device *)t;
}

static struct stream *stream_of(const struct tier_device *d, uint32_t rank, bool is_write)
{
    return device_stream(d->group.devices[rank], is_write ? DEVICE_COPY_IN : DEVICE_COPY_OUT);
}

static struct stream *compute_stream_of(const struct tier_device *d, uint32_t rank)
{
    return device_stream(d->group.devices[rank], DEVICE_COMPUTE);
}

static struct move *move_at(struct tier_device *d, uint32_t i)
{
    return &d->moves[(d->first + i) % N_MOVES];
}

/* --- order --- */

/* A device that can neither order nor wait is dead, and computes nothing with wrong bytes. */
static void order_behind(struct tier_device *d, const struct move *m, uint32_t rank,
                         struct stream *s)
{
    struct device *device = d->group.devices[rank];

    if (device_event_order(device, m->events[rank], s) != OK &&
        device_event_wait(device, m->events[rank]) != OK)
        d->base.n_failed++;
}

static void device_order(struct tier *t, uint64_t tag, enum tier_order before)
{
    struct tier_device *d = of(t);

    for (uint32_t i = 0; i < d->n_moves; i++)
        for (uint32_t r = 0; move_at(d, i)->tag == tag && r < d->group.n; r++)
            order_behind(d, move_at(d, i), r,
                         before == TIER_BEFORE_KERNELS ? compute_stream_of(d, r)
                                                       : stream_of(d, r, true));
}

static void free_blocks(struct tier_device *d, struct move *m)
{
    if (!m->drops)
        return;
    for (uint32_t i = 0; i < m->n; i++)
        tier_push(&d->base, m->blocks[i]);
    d->base.n_leaving -= m->n;
    m->drops = false;
}

static bool device_reap(struct tier *t)
{
    struct tier_device *d = of(t);

    for (uint32_t i = 0; i < d->n_moves; i++) {
        struct move *m = move_at(d, i);

        if (!m->drops)
            continue;
        for (uint32_t r = 0; r < d->group.n; r++) {
            order_behind(d, m, r, compute_stream_of(d, r));
            order_behind(d, m, r, stream_of(d, r, true));
        }
        free_blocks(d, m);
        return true;
    }
    return false;
}

/* --- moves --- */

/* Enqueue the copies of a rank's parts of the blocks, and the event behind them. */
static enum status copy_parts(struct tier_device *d, const struct move *m, uint32_t rank,
                              bool is_write, const uint32_t *blocks, void *const *memory,
                              uint32_t n)
{
    struct device *device = d->group.devices[rank];
    struct stream *s = stream_of(d, rank, is_write);
    size_t bytes = d->part_bytes;
    void *to[TIER_MOVE_BLOCKS_MAX];
    const void *from[TIER_MOVE_BLOCKS_MAX];
    enum status status;

    status = device_event_record(device, d->compute_done[rank], compute_stream_of(d, rank));
    if (status == OK)
        status = device_event_order(device, d->compute_done[rank], s);
    for (uint32_t i = 0; i < n; i++) {
        unsigned char *part = d->pools[rank] + blocks[i] * bytes;
        unsigned char *other = (unsigned char *)memory[i] + rank * bytes;

        to[i] = is_write ? part : other;
        from[i] = is_write ? other : part;
    }
    if (status == OK)
        status = device_copies_async(device, s, to, from, n, bytes);
    return status == OK ? device_event_record(device, m->events[rank], s) : status;
}

/* Wait until no copy runs. */
static enum status wait_for_copies(const struct tier_device *d, bool is_write)
{
    enum status status = OK;

    for (uint32_t r = 0; r < d->group.n; r++)
        if (device_stream_wait(d->group.devices[r], stream_of(d, r, is_write)) != OK)
            status = ERR_INTERNAL;
    return status;
}

static enum status begin_move(struct tier_device *d, bool is_write, const uint32_t *blocks,
                              void *const *memory, uint32_t n, bool drop, uint64_t tag)
{
    struct move *m = move_at(d, d->n_moves);
    enum status s = OK;

    if (d->n_moves == N_MOVES)
        return ERR_BUSY;
    for (uint32_t r = 0; s == OK && r < d->group.n; r++)
        s = copy_parts(d, m, r, is_write, blocks, memory, n);
    if (s != OK) {
        d->base.n_failed++;
        /* The caller gives the blocks away again, so no part of the copy may still run. */
        return wait_for_copies(d, is_write) == OK ? s : ERR_INTERNAL;
    }
    m->tag = tag;
    m->is_write = is_write;
    m->drops = drop;
    m->is_over = false;
    m->n = n;
    m->status = OK;
    memcpy(m->blocks, blocks, n * sizeof *blocks);
    d->n_moves++;
    d->base.n_leaving += drop ? n : 0;
    d->base.n_arriving += is_write ? n : 0;
    return OK;
}

static enum status device_read(struct tier *t, const uint32_t *blocks, void *const *to, uint32_t n,
                               bool drop, uint64_t tag)
{
    return begin_move(of(t), false, blocks, to, n, drop, tag);
}

static enum status device_write(struct tier *t, const uint32_t *blocks, const void *const *from,
                                const struct tier_record *records, uint32_t n, uint64_t tag)
{
    void *memory[TIER_MOVE_BLOCKS_MAX];

    (void)records;
    memcpy(memory, from, n * sizeof *memory);
    return begin_move(of(t), true, blocks, memory, n, false, tag);
}

static bool is_over(struct tier_device *d, struct move *m)
{
    bool done = true;

    for (uint32_t r = 0; done && !m->is_over && r < d->group.n; r++)
        /* An error is the end of the device; engine/step.c detects that by itself. */
        if (device_event_query(d->group.devices[r], m->events[r], &done) != OK)
            m->status = ERR_INTERNAL;
    return done;
}

static uint32_t device_poll(struct tier *t, struct tier_done *out, uint32_t n_max)
{
    struct tier_device *d = of(t);
    uint32_t n = 0;

    while (n < n_max && d->n_moves > 0 && is_over(d, move_at(d, 0))) {
        struct move *m = move_at(d, 0);

        t->n_failed += m->status != OK;
        t->n_arriving -= m->is_write ? m->n : 0;
        free_blocks(d, m);
        out[n++] = (struct tier_done){m->is_write, m->status, m->tag, m->n};
        d->first = (d->first + 1) % N_MOVES;
        d->n_moves--;
    }
    return n;
}

static void device_wait(struct tier *t)
{
    struct tier_device *d = of(t);
    struct move *m = move_at(d, 0);

    if (d->n_moves == 0)
        return;
    for (uint32_t r = 0; r < d->group.n; r++)
        if (device_event_wait(d->group.devices[r], m->events[r]) != OK)
            m->status = ERR_INTERNAL;
    m->is_over = true;
}

static bool device_is_busy(const struct tier *t)
{
    return ((const struct tier_device *)t)->n_moves > 0;
}

static bool device_can_move(const struct tier *t)
{
    return ((const struct tier_device *)t)->n_moves < N_MOVES;
}

/* --- life --- */

static void free_pools(struct tier_device *d)
{
    for (uint32_t r = 0; r < d->group.n; r++) {
        device_free(d->group.devices[r], d->pools[r]);
        d->pools[r] = NULL;
    }
}

static void device_close_tier(struct tier *t)
{
    struct tier_device *d = of(t);
    struct tier_done done;

    while (d->n_moves > 0) {
        device_wait(t);
        (void)device_poll(t, &done, 1);
    }
    for (uint32_t r = 0; r < d->group.n; r++) {
        device_event_destroy(d->group.devices[r], d->compute_done[r]);
        for (uint32_t i = 0; i < N_MOVES; i++)
            device_event_destroy(d->group.devices[r], d->moves[i].events[r]);
    }
    free_pools(d);
    free(d);
}

/* Without the thread, pages come when they are written. */
static void start_prefault(struct tier_device *d)
{
    size_t n_bytes = d->base.block_bytes * d->base.n_blocks, ahead = n_bytes / 8;

    if (n_bytes >= PREFAULT_BYTES_MIN)
        d->base.prefault = prefault_create(d->pools[0], n_bytes,
                                           ahead < PREFAULT_AHEAD_MAX ? ahead : PREFAULT_AHEAD_MAX);
}

static enum status device_wake(struct tier *t)
{
    struct tier_device *d = of(t);

    for (uint32_t r = 0; r < d->group.n; r++) {
        d->pools[r] = device_alloc(d->group.devices[r], d->pool_bytes);
        if (!d->pools[r]) {
            free_pools(d);
            return ERR_NOMEM;
        }
        device_place(d->group.devices[r], d->pools[r], d->pool_bytes, DEVICE_INTERLEAVED);
    }
    if (!t->is_addressable)
        return OK;
    t->memory = d->pools[0];
    start_prefault(d);
    return OK;
}

static void device_sleep(struct tier *t)
{
    struct tier_device *d = of(t);

    ASSERT(d->n_moves == 0);
    free_pools(d);
    t->memory = NULL;
}

static const struct tier_ops separate_ops = {.close = device_close_tier,
                                             .read = device_read,
                                             .write = device_write,
                                             .poll = device_poll,
                                             .is_busy = device_is_busy,
                                             .order = device_order,
                                             .reap = device_reap,
                                             .can_move = device_can_move,
                                             .wait = device_wait,
                                             .sleep = device_sleep,
                                             .wake = device_wake};

static const struct tier_ops addressable_ops = {.close = device_close_tier,
                                                .read = tier_copy_out,
                                                .write = tier_copy_in,
                                                .sleep = device_sleep,
                                                .wake = device_wake};

static enum status init_moves(struct tier_device *d)
{
    enum status s = OK;

    for (uint32_t r = 0; s == OK && r < d->group.n; r++) {
        struct device *device = d->group.devices[r];

        s = device_event_create(device, &d->compute_done[r]);
        for (uint32_t i = 0; s == OK && i < N_MOVES; i++)
            s = device_event_create(device, &d->moves[i].events[r]);
    }
    return s;
}

enum status tier_device_open(struct tier **out, const struct tier_device_config *c)
{
    struct tier_device *d = calloc(1, sizeof *d);
    enum status s;

    *out = NULL;
    if (!d)
        return ERR_NOMEM;
    ASSERT(c->block_bytes % c->group.n == 0 && (c->is_separate || c->group.n == 1));
    d->group = c->group;
    d->part_bytes = c->block_bytes / c->group.n;
    d->pool_bytes = d->part_bytes * ((size_t)c->n_blocks + c->n_shared);
    d->base.is_addressable = !c->is_separate;
    s = tier_init(&d->base, c->is_separate ? &separate_ops : &addressable_ops, c->block_bytes,
                  c->n_blocks);
    if (s == OK && c->is_separate && c->has_other_tiers)
        s = init_moves(d);
    if (s == OK)
        s = device_wake(&d->base);
    if (s != OK) {
        tier_close(&d->base);
        return s;
    }
    d->base.memory_bytes += sizeof *d;
    tier_fill(&d->base, 0);
    *out = &d->base;
    return OK;
}

void *tier_device_memory(const struct tier *t, uint32_t rank)
{
    return ((const struct tier_device *)t)->pools[rank];
}
