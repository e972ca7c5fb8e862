/* tier_remote.c - blocks that other instances of the pool lend: handles, and the staging memory
 * into which they are read.
 *
 * Blocks in the device memory of an instance on this machine are copied by this side: the pool says
 * where they lie, and the copy is checked before the read is over. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cache/pool/pool.h"
#include "cache/tier/tier_inner.h"
#include "kernels/device.h"

/* Payload that may be on its way at a time, and the buffers for it: as of the disk. */
#define STAGING_BYTES (UINT64_C(64) << 20)
#define N_BUFFERS_MIN (4 * TIER_MOVE_BLOCKS_MAX)
#define N_BUFFERS_MAX 512u
#define PAGE_BYTES 4096u /* buffers begin at a page: the transport may register them */
#define N_READS_MAX 64u

struct handle {
    uint32_t lookup, at;
};

struct source {
    uint32_t ticket;
    uint32_t n_uses; /* handles, and reads under way */
    struct pool_found found;
};

struct reading {
    bool is_used;
    uint64_t tag;
    uint32_t lookup, n;
    void *buffers[TIER_MOVE_BLOCKS_MAX];
    bool copies; /* from mapped memory, in `job` */
    uint32_t job;
    struct pool_places places;
};

struct tier_remote {
    struct tier base;
    struct device *device;
    struct pool *pool;
    struct tier_near *near; /* may be NULL */
    struct handle *handles; /* [n_blocks] */
    struct source sources[POOL_TICKETS_MAX];
    struct reading reads[N_READS_MAX];
    uint32_t n_reads;
    void *staging_memory;
    uint64_t buffer_bytes;
    void **free_buffers; /* stack */
    uint32_t n_free_buffers;
};

_Static_assert(POOL_READ_MAX >= TIER_MOVE_BLOCKS_MAX, "a move is one read");

static struct tier_remote *of(struct tier *t)
{
    return (struct tier_remote *)t;
}

static const struct tier_remote *of_const(const struct tier *t)
{
    return (const struct tier_remote *)t;
}

/* --- staging --- */

static uint32_t remote_tier_n_free_buffers(const struct tier *t)
{
    return of_const(t)->n_free_buffers;
}

static bool remote_tier_stage(struct tier *t, void **buffers, uint32_t n)
{
    struct tier_remote *r = of(t);

    if (r->n_free_buffers < n)
        return false;
    for (uint32_t i = 0; i < n; i++)
        buffers[i] = r->free_buffers[--r->n_free_buffers];
    return true;
}

static void remote_tier_unstage(struct tier *t, void *const *buffers, uint32_t n)
{
    struct tier_remote *r = of(t);

    for (uint32_t i = 0; i < n; i++) {
        if (tier_near_has(r->near, buffers[i])) {
            tier_near_unstage(r->near, buffers[i]);
            continue;
        }
        ASSERT(r->n_free_buffers < t->n_buffers);
        r->free_buffers[r->n_free_buffers++] = buffers[i];
    }
}

bool tier_remote_stage_near(struct tier *t, void **buffers, uint32_t n)
{
    return tier_near_stage(of(t)->near, buffers, n);
}

/* --- handles --- */

void tier_remote_begin(struct tier *t, uint32_t lookup, uint32_t ticket,
                       const struct pool_found *found)
{
    struct source *source = &of(t)->sources[lookup];

    ASSERT(lookup < POOL_TICKETS_MAX && source->n_uses == 0);
    *source = (struct source){.ticket = ticket, .found = *found};
}

void tier_remote_name(struct tier *t, const uint32_t *blocks, uint32_t n, uint32_t lookup,
                      uint32_t at)
{
    for (uint32_t i = 0; i < n; i++)
        of(t)->handles[blocks[i]] = (struct handle){lookup, at + i};
    of(t)->sources[lookup].n_uses += n;
}

uint32_t tier_remote_n_uses(const struct tier *t, uint32_t lookup)
{
    return of_const(t)->sources[lookup].n_uses;
}

uint32_t tier_remote_lookup(const struct tier *t, uint32_t block)
{
    return of_const(t)->handles[block].lookup;
}

bool tier_remote_is_near(const struct tier *t, uint32_t block)
{
    const struct tier_remote *r = of_const(t);
    const struct handle *h = &r->handles[block];

    return r->near && pool_is_near(r->pool, r->sources[h->lookup].ticket, h->at);
}

void tier_remote_found(const struct tier *t, uint32_t block, struct pool_found *out)
{
    *out = of_const(t)->sources[of_const(t)->handles[block].lookup].found;
}

static void remote_tier_drop(struct tier *t, const uint32_t *blocks, uint32_t n, bool erase)
{
    (void)erase; /* the blocks are the other instance's */
    for (uint32_t i = 0; i < n; i++) {
        struct source *source = &of(t)->sources[of(t)->handles[blocks[i]].lookup];

        ASSERT(source->n_uses > 0);
        source->n_uses--;
        tier_push(t, blocks[i]);
    }
}

/* --- reads --- */

static enum status remote_tier_read(struct tier *t, const uint32_t *blocks, void *const *to,
                                    uint32_t n, bool drop, uint64_t tag)
{
    struct tier_remote *r = of(t);
    uint32_t at[TIER_MOVE_BLOCKS_MAX], lookup = r->handles[blocks[0]].lookup, i = 0;
    enum status s;

    ASSERT(!drop && n > 0 && n <= TIER_MOVE_BLOCKS_MAX);
    if (r->n_reads == N_READS_MAX)
        return ERR_BUSY;
    for (uint32_t k = 0; k < n; k++) {
        ASSERT(r->handles[blocks[k]].lookup == lookup);
        at[k] = r->handles[blocks[k]].at;
    }
    while (r->reads[i].is_used)
        i++;
    s = pool_read(r->pool, r->sources[lookup].ticket, at, to, n, i);
    if (s != OK)
        return s;
    r->reads[i] = (struct reading){.is_used = true, .tag = tag, .lookup = lookup, .n = n};
    memcpy(r->reads[i].buffers, to, n * sizeof *to);
    r->sources[lookup].n_uses++;
    r->n_reads++;
    return OK;
}

/* Begin the copies of reads that the pool has answered. */
static void begin_copies(struct tier_remote *r)
{
    struct pool_places places;

    while (pool_next_places(r->pool, &places)) {
        struct reading *read = &r->reads[places.tag];
        enum status s;

        ASSERT(places.tag < N_READS_MAX && read->is_used && !read->copies && places.n == read->n);
        read->places = places;
        s = tier_near_pull(r->near, places.from, read->buffers, read->n, &read->job);
        read->copies = s == OK;
        if (s != OK)
            pool_copied(r->pool, places.read, s);
    }
}

/* Check what was copied. */
static void end_copies(struct tier_remote *r)
{
    uint32_t sums[TIER_SUMS_MAX];
    enum status s;

    for (uint32_t i = 0; i < N_READS_MAX; i++) {
        struct reading *read = &r->reads[i];

        if (!read->is_used || !read->copies || !tier_near_end(r->near, read->job, &s, sums))
            continue;
        if (s == OK && memcmp(sums, read->places.crc, read->n * sizeof *sums) != 0)
            s = ERR_CORRUPT;
        read->copies = false;
        pool_copied(r->pool, read->places.read, s);
    }
}

static uint32_t remote_tier_poll(struct tier *t, struct tier_done *out, uint32_t n_max)
{
    struct tier_remote *r = of(t);
    uint32_t n = 0;
    uint64_t i;
    enum status s;

    if (r->near && r->n_reads > 0) {
        begin_copies(r);
        end_copies(r);
    }
    while (n < n_max && r->n_reads > 0 && pool_next_read(r->pool, &i, &s)) {
        struct reading *read = &r->reads[i];

        ASSERT(i < N_READS_MAX && read->is_used);
        read->is_used = false;
        r->n_reads--;
        r->sources[read->lookup].n_uses--;
        if (s != OK)
            remote_tier_unstage(t, read->buffers, read->n);
        out[n++] = (struct tier_done){.status = s, .tag = read->tag, .n = read->n};
    }
    return n;
}

static bool remote_tier_is_busy(const struct tier *t)
{
    return of_const(t)->n_reads > 0;
}

/* --- life --- */

/* The owner has waited for reads. If one did not end by its deadline, its buffer is never freed. */
static void remote_tier_close(struct tier *t)
{
    struct tier_remote *r = of(t);

    if (r->n_reads == 0)
        device_free_pinned(r->device, r->staging_memory);
    free(r->free_buffers);
    free(r->handles);
    free(r);
}

static const struct tier_ops remote_ops = {.close = remote_tier_close,
                                           .drop = remote_tier_drop,
                                           .read = remote_tier_read,
                                           .poll = remote_tier_poll,
                                           .is_busy = remote_tier_is_busy,
                                           .n_free_buffers = remote_tier_n_free_buffers,
                                           .stage = remote_tier_stage,
                                           .unstage = remote_tier_unstage};

static enum status allocate_staging(struct tier_remote *r)
{
    uint64_t n = STAGING_BYTES / r->buffer_bytes;
    uintptr_t at;

    n = n < N_BUFFERS_MIN ? N_BUFFERS_MIN : n > N_BUFFERS_MAX ? N_BUFFERS_MAX : n;
    r->free_buffers = calloc(n, sizeof *r->free_buffers);
    r->staging_memory = device_alloc_pinned(r->device, n * r->buffer_bytes + PAGE_BYTES);
    if (!r->free_buffers || !r->staging_memory)
        return ERR_NOMEM;
    at = (uintptr_t)r->staging_memory;
    at += (PAGE_BYTES - at % PAGE_BYTES) % PAGE_BYTES;
    for (uint64_t i = n; i-- > 0;) /* the first buffer on top */
        r->free_buffers[r->n_free_buffers++] = (unsigned char *)at + i * r->buffer_bytes;
    r->base.n_buffers = (uint32_t)n;
    r->base.memory_bytes += n * r->buffer_bytes + PAGE_BYTES + n * sizeof *r->free_buffers;
    return OK;
}

static enum status init(struct tier_remote *r, uint32_t n_blocks)
{
    enum status s = tier_init(&r->base, &remote_ops, r->base.block_bytes, n_blocks);

    if (s != OK)
        return s;
    tier_fill(&r->base, 0);
    r->handles = calloc(n_blocks, sizeof *r->handles);
    r->base.memory_bytes += sizeof *r + n_blocks * sizeof *r->handles;
    return r->handles ? allocate_staging(r) : ERR_NOMEM;
}

enum status tier_remote_open(struct tier **out, const struct tier_remote_config *c, struct buf *why)
{
    struct tier_remote *r = calloc(1, sizeof *r);
    enum status s = ERR_NOMEM;

    *out = NULL;
    if (r) {
        r->device = c->device;
        r->pool = c->pool;
        r->near = c->near;
        r->base.ops = &remote_ops;
        r->base.block_bytes = c->block_bytes;
        r->buffer_bytes = (c->block_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
        s = init(r, c->n_blocks);
    }
    if (s != OK) {
        if (r)
            tier_close(&r->base);
        return buf_why(why, s,
                       "out of memory for the buffers through which KV of other instances is read; "
                       "lower {kv_device_bytes}, or leave out {pool}");
    }
    *out = &r->base;
    return OK;
}
