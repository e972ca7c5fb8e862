#include "cache/disk/disk.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "cache/disk/disk_inner.h"

/* The most that the kernel registers in one piece. */
#define REGION_BYTES_MAX ((uint64_t)1 << 30)
#define N_REGIONS_MAX 64u
#define N_REAP 32u
#define N_LAST_TRIES 4u /* retries of failed writes at close */

/* --- open --- */

static uint32_t n_pages(const struct disk *d)
{
    uint32_t n = d->dir.super.n_extents;

    return n / DISK_HEADERS_PER_PAGE + (n % DISK_HEADERS_PER_PAGE != 0);
}

static enum status open_queue(struct disk *d, enum aio_backend backend, struct buf *why)
{
    struct aio_region regions[N_REGIONS_MAX];
    uint64_t extent_bytes = d->dir.super.extent_bytes;
    uint64_t region = REGION_BYTES_MAX / extent_bytes * extent_bytes;
    uint64_t n_left = d->n_slots * extent_bytes;
    struct aio_config config = {.backend = backend, .depth = d->n_ops, .regions = regions};

    regions[config.n_regions++] = (struct aio_region){d->bounce, DISK_N_BOUNCE * DISK_PAGE_BYTES};
    for (uint8_t *at = d->staging; n_left && region && config.n_regions < N_REGIONS_MAX;) {
        uint64_t n = n_left < region ? n_left : region;
        regions[config.n_regions++] = (struct aio_region){at, n};
        at += n;
        n_left -= n;
    }
    return aio_open(&d->aio, &config, why);
}

/* Zeroed memory at a page boundary, in whole pages. */
static uint8_t *pages_of_zeros(uint64_t n_bytes)
{
    uint8_t *p = aligned_alloc(DISK_PAGE_BYTES, n_bytes);

    if (p)
        memset(p, 0, n_bytes);
    return p;
}

static bool allocate(struct disk *d)
{
    uint32_t n_extents = d->dir.super.n_extents;

    d->n_ops = d->n_slots + DISK_N_BOUNCE + DISK_N_ERASING;
    if (d->n_ops > AIO_DEPTH_MAX)
        d->n_ops = AIO_DEPTH_MAX;
    d->slots = calloc(d->n_slots, 1);
    d->ops = calloc(d->n_ops, sizeof *d->ops);
    d->free_ops = calloc(d->n_ops, sizeof *d->free_ops);
    d->units = calloc(DISK_N_UNITS, sizeof *d->units);
    d->extents = calloc(n_extents, 1);
    d->extent_next = calloc(n_extents, sizeof *d->extent_next);
    d->pages = calloc(n_pages(d), 1);
    d->page_next = calloc(n_pages(d), sizeof *d->page_next);
    d->zeros = pages_of_zeros(d->dir.super.extent_bytes);
    d->bounce = pages_of_zeros(DISK_N_BOUNCE * DISK_PAGE_BYTES);
    d->stats.memory_bytes =
        disk_table_bytes(n_extents) + (uint64_t)n_extents * (1 + sizeof *d->extent_next) +
        n_pages(d) * (1 + sizeof *d->page_next) + d->dir.super.extent_bytes +
        DISK_N_BOUNCE * DISK_PAGE_BYTES + DISK_N_UNITS * sizeof *d->units + d->n_slots +
        d->n_ops * (sizeof *d->ops + sizeof *d->free_ops) + sizeof *d;
    return d->slots && d->ops && d->free_ops && d->units && d->extents && d->extent_next &&
           d->pages && d->page_next && d->zeros && d->bounce;
}

static void fill_lists(struct disk *d)
{
    const struct disk_list empty = {DISK_NONE, DISK_NONE};

    d->free_units = d->waiting_reads = d->waiting_writes = d->done_units = empty;
    d->to_erase = d->failed_erases = d->cleared = d->dirty_pages = d->failed_pages = empty;
    for (uint32_t i = 0; i < DISK_N_UNITS; i++)
        disk_list_push(&d->free_units, d->unit_next, i);
    for (uint32_t i = d->n_ops; i-- > 0;)
        d->free_ops[d->n_free_ops++] = i;
    for (uint32_t i = DISK_N_BOUNCE; i-- > 0;)
        d->free_bounce[d->n_free_bounce++] = i;
    d->n_free_slots = d->n_slots;
    d->next_no = 1;
}

/* Free all but the memory and files that a hung kernel may still use: bounce, zeros, the directory.
 */
static void free_tables(struct disk *d)
{
    free(d->slots);
    free(d->ops);
    free(d->free_ops);
    free(d->units);
    free(d->extents);
    free(d->extent_next);
    free(d->pages);
    free(d->page_next);
    free(d);
}

enum status disk_open(struct disk **out, const struct disk_config *config, struct buf *why)
{
    struct disk *d = calloc(1, sizeof *d);
    enum status s = ERR_NOMEM;

    *out = NULL;
    ASSERT(config->n_slots >= DISK_UNIT_BLOCKS_MAX);
    ASSERT((uintptr_t)config->staging % DISK_PAGE_BYTES == 0);
    if (!d)
        return buf_why(why, ERR_NOMEM, "out of memory");
    d->staging = config->staging;
    d->n_slots = config->n_slots;
    d->timeout_ns = config->timeout_ns;
    s = disk_dir_open(&d->dir, &config->dir, why);
    if (s == OK && !allocate(d))
        s = buf_why(why, ERR_NOMEM, "out of memory for the table of the disk tier");
    if (s == OK)
        s = open_queue(d, config->backend, why);
    if (s != OK) {
        free(d->zeros);
        free(d->bounce);
        disk_dir_close(&d->dir);
        free_tables(d);
        return s;
    }
    fill_lists(d);
    disk_reader_init(&d->reader, d->dir.super.fingerprint);
    *out = d;
    return OK;
}

/* --- requests --- */

uint32_t disk_op_take(struct disk *d, struct disk_op op)
{
    if (d->n_free_ops == 0)
        return DISK_NONE;
    uint32_t i = d->free_ops[--d->n_free_ops];
    op.is_used = true;
    op.began_ns = d->now_ns;
    d->ops[i] = op;
    return i;
}

void disk_op_give(struct disk *d, uint32_t i)
{
    struct disk_op *op = &d->ops[i];

    ASSERT(op->is_used);
    d->n_late -= op->is_late;
    op->is_used = op->is_late = false;
    d->free_ops[d->n_free_ops++] = i;
}

void disk_op_is_late(struct disk *d, struct disk_op *op)
{
    d->n_late += !op->is_late;
    op->is_late = true;
}

static void op_done(struct disk *d, const struct aio_done *done)
{
    ASSERT(done->tag < d->n_ops && d->ops[done->tag].is_used);
    struct disk_op op = d->ops[done->tag];

    disk_op_give(d, (uint32_t)done->tag);
    switch (op.kind) {
    case DISK_OP_PAYLOAD: disk_unit_op_done(d, &op, done); break;
    case DISK_OP_PAGE: disk_page_op_done(d, &op, done); break;
    case DISK_OP_ERASE: disk_erase_op_done(d, &op, done); break;
    }
}

/* --- poll --- */

static void reap(struct disk *d)
{
    struct aio_done done[N_REAP];
    uint32_t n;

    do {
        n = aio_reap(d->aio, done, N_REAP);
        for (uint32_t i = 0; i < n; i++)
            op_done(d, &done[i]);
    } while (n == N_REAP);
}

static void begin(struct disk *d)
{
    if (disk_is_hung(d))
        return;
    disk_units_begin(d);
    disk_table_begin(d);
}

/* Ops that belong to no unit have a deadline of their own. */
static void expire(struct disk *d)
{
    disk_units_expire(d);
    for (uint32_t i = 0; i < d->n_ops && d->n_free_ops < d->n_ops; i++) {
        struct disk_op *op = &d->ops[i];
        if (op->is_used && d->now_ns > op->began_ns && d->now_ns - op->began_ns >= d->timeout_ns)
            disk_op_is_late(d, op);
    }
}

uint32_t disk_poll(struct disk *d, uint64_t now_ns, struct disk_done *out, uint32_t n_max)
{
    uint32_t n = 0;

    d->now_ns = now_ns;
    reap(d);
    expire(d);
    begin(d);
    /* Units first: the failure of a write is reported before its extents are. */
    while (n < n_max && disk_unit_report(d, &out[n]))
        n++;
    while (n < n_max && disk_cleared_report(d, &out[n]))
        n++;
    return n;
}

bool disk_is_busy(const struct disk *d)
{
    return d->n_free_ops < d->n_ops || d->n_units > 0 || d->dirty_pages.first != DISK_NONE ||
           d->failed_pages.first != DISK_NONE || d->to_erase.first != DISK_NONE ||
           d->failed_erases.first != DISK_NONE || d->cleared.first != DISK_NONE;
}

bool disk_is_hung(const struct disk *d)
{
    return d->n_late > 0;
}

/* --- close --- */

static void drop_reports(struct disk *d)
{
    struct disk_done done;

    while (disk_unit_report(d, &done) || disk_cleared_report(d, &done))
        ;
}

/* Run until nothing more begins or ends. False: stop_ns has passed. */
static bool run_dry(struct disk *d, uint64_t stop_ns)
{
    struct aio_done done[N_REAP];
    uint32_t n;

    disk_list_move(&d->dirty_pages, &d->failed_pages, d->page_next);
    disk_list_move(&d->to_erase, &d->failed_erases, d->extent_next);
    for (;;) {
        begin(d);
        drop_reports(d);
        enum status s = aio_wait(d->aio, stop_ns, done, N_REAP, &n);
        d->now_ns = clock_now_ns();
        for (uint32_t i = 0; i < n; i++)
            op_done(d, &done[i]);
        if (s != OK || d->now_ns >= stop_ns)
            return s == ERR_NOT_FOUND;
    }
}

/* Begin waiting work for half of the time only: else the last erasures would leave no time to end
 * and look like a hung disk. Failed writes are retried N_LAST_TRIES times. */
static void finish(struct disk *d, uint64_t deadline_ns)
{
    uint64_t now = clock_now_ns();
    uint64_t stop_ns = deadline_ns > now ? now + (deadline_ns - now) / 2 : now;

    for (uint32_t i = 0; i < N_LAST_TRIES && run_dry(d, stop_ns) && disk_is_busy(d); i++)
        ;
}

enum status disk_close(struct disk *d, uint64_t deadline_ns)
{
    if (!d)
        return OK;
    finish(d, deadline_ns);
    enum status s = aio_close(d->aio, deadline_ns);
    /* Requests that hang may still use the files. These stay open and locked, so that their
     * descriptors are not reused and no other server takes the directory. */
    if (s == OK) {
        free(d->zeros);
        free(d->bounce);
        disk_dir_close(&d->dir);
    }
    free_tables(d);
    return s;
}

/* --- staging --- */

uint32_t disk_n_free_slots(const struct disk *d)
{
    return d->n_free_slots;
}

/* The first of n adjacent free slots, or DISK_NONE. Adjacent slots to adjacent extents are one
 * request. */
static uint32_t find_row(const struct disk *d, uint32_t n)
{
    uint32_t n_row = 0;

    for (uint32_t i = 0; i < d->n_slots; i++) {
        n_row = d->slots[i] == DISK_SLOT_FREE ? n_row + 1 : 0;
        if (n_row == n)
            return i + 1 - n;
    }
    return DISK_NONE;
}

bool disk_take_slots(struct disk *d, uint32_t *slots, uint32_t n)
{
    uint32_t taken = 0;

    if (n > d->n_free_slots)
        return false;
    uint32_t at = find_row(d, n);
    for (uint32_t i = at == DISK_NONE ? 0 : at; taken < n; i++) {
        if (d->slots[i] != DISK_SLOT_FREE)
            continue;
        d->slots[i] = DISK_SLOT_TAKEN;
        slots[taken++] = i;
    }
    d->n_free_slots -= n;
    return true;
}

static void give(struct disk *d, const uint32_t *slots, uint32_t n, int was)
{
    for (uint32_t i = 0; i < n; i++) {
        ASSERT(slots[i] < d->n_slots && d->slots[slots[i]] == was);
        d->slots[slots[i]] = DISK_SLOT_FREE;
    }
    d->n_free_slots += n;
}

void disk_give_slots(struct disk *d, const uint32_t *slots, uint32_t n)
{
    give(d, slots, n, DISK_SLOT_TAKEN);
}

void disk_release_slots(struct disk *d, const struct disk_unit *u)
{
    give(d, u->slots, u->n, DISK_SLOT_IN_UNIT);
}

/* --- looking --- */

const struct disk_dir *disk_directory(const struct disk *d)
{
    return &d->dir;
}

enum disk_verdict disk_look(struct disk *d, uint32_t extent, struct disk_record *out)
{
    ASSERT(extent < d->dir.super.n_extents);
    enum disk_verdict v = disk_header_decode(&d->reader, out, disk_header_at(d, extent), extent);

    if (v == DISK_VALID && out->no >= d->next_no)
        d->next_no = out->no + 1;
    return v;
}

const char *disk_io_name(const struct disk *d)
{
    return aio_name(d->aio);
}

void disk_stats(const struct disk *d, struct disk_stats *out)
{
    *out = d->stats;
}
