/* disk_unit.c - units of reads and writes: payloads, checksums, deadlines. */
#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "cache/disk/disk_inner.h"

static uint32_t number_of(const struct disk *d, const struct disk_unit *u)
{
    return (uint32_t)(u - d->units);
}

static void free_unit(struct disk *d, struct disk_unit *u)
{
    u->state = DISK_UNIT_FREE;
    disk_list_push(&d->free_units, d->unit_next, number_of(d, u));
    d->n_units--;
}

/* --- beginning --- */

static void find_runs(struct disk_unit *u)
{
    u->n_runs = 0;
    for (uint32_t i = 0; i < u->n; i++) {
        bool goes_on =
            i > 0 && u->extents[i] == u->extents[i - 1] + 1 && u->slots[i] == u->slots[i - 1] + 1;
        if (!goes_on)
            u->runs[u->n_runs++] = (struct disk_run){(uint8_t)i, 0};
        u->runs[u->n_runs - 1].n++;
    }
}

/* Take a unit; NULL: none is free. */
static struct disk_unit *take_unit(struct disk *d, const uint32_t *extents, const uint32_t *slots,
                                   uint32_t n, uint64_t tag)
{
    ASSERT(n >= 1 && n <= DISK_UNIT_BLOCKS_MAX);
    if (disk_is_hung(d) || d->free_units.first == DISK_NONE)
        return NULL;
    struct disk_unit *u = &d->units[disk_list_pop(&d->free_units, d->unit_next)];
    d->n_units++;
    d->now_ns = clock_now_ns();
    u->state = DISK_UNIT_WAITING;
    u->is_write = u->is_reported = false;
    u->status = OK;
    u->error = 0;
    u->n = n;
    u->n_pending = 0;
    u->tag = tag;
    u->began_ns = d->now_ns;
    u->took_ns = 0;
    for (uint32_t i = 0; i < n; i++) {
        ASSERT(extents[i] < d->dir.super.n_extents && slots[i] < d->n_slots);
        ASSERT(d->slots[slots[i]] == DISK_SLOT_TAKEN);
        d->slots[slots[i]] = DISK_SLOT_IN_UNIT;
        u->extents[i] = extents[i];
        u->slots[i] = slots[i];
    }
    find_runs(u);
    return u;
}

/* Begin all requests of the unit, or none. False: the queue has no room now. */
static bool begin_unit(struct disk *d, struct disk_unit *u)
{
    struct aio_op ops[DISK_UNIT_BLOCKS_MAX];
    uint64_t extent_bytes = d->dir.super.extent_bytes;

    if (d->n_free_ops < u->n_runs)
        return false;
    for (uint32_t i = 0; i < u->n_runs; i++) {
        const struct disk_run *r = &u->runs[i];
        struct disk_op op = {.kind = DISK_OP_PAYLOAD, .index = number_of(d, u)};
        ops[i] = (struct aio_op){.write = u->is_write,
                                 .fd = d->dir.data_fd,
                                 .data = disk_slot_at(d, u->slots[r->first]),
                                 .n_bytes = r->n * extent_bytes,
                                 .offset = u->extents[r->first] * extent_bytes,
                                 .tag = disk_op_take(d, op)};
    }
    if (aio_submit(d->aio, ops, u->n_runs) != OK) {
        for (uint32_t i = u->n_runs; i-- > 0;)
            disk_op_give(d, (uint32_t)ops[i].tag);
        return false;
    }
    u->state = DISK_UNIT_PAYLOAD;
    u->n_pending = u->n_runs;
    return true;
}

static void begin_list(struct disk *d, struct disk_list *l)
{
    while (l->first != DISK_NONE && begin_unit(d, &d->units[l->first]))
        disk_list_pop(l, d->unit_next);
}

void disk_units_begin(struct disk *d)
{
    begin_list(d, &d->waiting_reads); /* reads first: requests wait for them */
    begin_list(d, &d->waiting_writes);
}

/* Begin the unit, or append it to the waiting units of its kind. */
static void queue(struct disk *d, struct disk_unit *u)
{
    struct disk_list *l = u->is_write ? &d->waiting_writes : &d->waiting_reads;

    if (l->first != DISK_NONE || !begin_unit(d, u))
        disk_list_push(l, d->unit_next, number_of(d, u));
}

static void finish_unit(struct disk *d, struct disk_unit *u);

enum status disk_read(struct disk *d, const uint32_t *extents, const uint32_t *slots, uint32_t n,
                      uint64_t tag)
{
    struct disk_unit *u = take_unit(d, extents, slots, n, tag);
    struct disk_record record;

    if (!u)
        return ERR_BUSY;
    for (uint32_t i = 0; i < n; i++) {
        /* The checksum of now counts, even if the extent is cleared or written again meanwhile. */
        if (disk_look(d, extents[i], &record) == DISK_VALID)
            u->crc[i] = record.payload_crc;
        else
            u->status = ERR_CORRUPT;
    }
    if (u->status == OK)
        queue(d, u);
    else
        finish_unit(d, u);
    return OK;
}

static void prepare_block(struct disk *d, struct disk_unit *u, uint32_t i,
                          const struct disk_record *record)
{
    uint64_t block_bytes = d->dir.super.block_bytes;
    uint8_t *payload = disk_slot_at(d, u->slots[i]);
    struct disk_record r = *record, old;

    ASSERT(d->extents[u->extents[i]] == DISK_EXTENT_IDLE &&
           disk_look(d, u->extents[i], &old) != DISK_VALID);
    d->extents[u->extents[i]] = DISK_EXTENT_PAYLOAD;
    memset(payload + block_bytes, 0, d->dir.super.extent_bytes - block_bytes);
    r.payload_crc = hash_crc32c(0, payload, block_bytes);
    r.no = d->next_no++;
    disk_header_encode(u->headers[i], &r, d->dir.super.fingerprint, u->extents[i]);
}

enum status disk_write(struct disk *d, const struct disk_record *records, const uint32_t *extents,
                       const uint32_t *slots, uint32_t n, uint64_t tag)
{
    struct disk_unit *u = take_unit(d, extents, slots, n, tag);

    if (!u)
        return ERR_BUSY;
    u->is_write = true;
    for (uint32_t i = 0; i < n; i++)
        prepare_block(d, u, i, &records[i]);
    queue(d, u);
    return OK;
}

/* --- ending --- */

static uint64_t age(const struct disk *d, const struct disk_unit *u)
{
    return d->now_ns > u->began_ns ? d->now_ns - u->began_ns : 0;
}

/* Clear the extents of a failed write; no request of it is under way. */
static void take_back(struct disk *d, struct disk_unit *u)
{
    for (uint32_t i = 0; u->is_write && i < u->n; i++)
        disk_table_take_back(d, u->extents[i]);
}

/* End a unit without requests under way: it waits to be reported. Only the slots of a read are not
 * given back yet. */
static void finish_unit(struct disk *d, struct disk_unit *u)
{
    u->took_ns = age(d, u);
    u->state = DISK_UNIT_DONE;
    disk_list_push(&d->done_units, d->unit_next, number_of(d, u));
    if (u->status != OK)
        take_back(d, u);
    for (uint32_t i = 0; u->is_write && u->status == OK && i < u->n; i++)
        d->extents[u->extents[i]] = DISK_EXTENT_IDLE;
}

static void note_failure(struct disk_unit *u, enum status status, int error)
{
    if (status == OK || u->status != OK)
        return; /* the first failure is reported */
    u->status = status == ERR_CORRUPT ? ERR_CORRUPT : ERR_IO;
    u->error = error;
}

void disk_unit_op_done(struct disk *d, const struct disk_op *op, const struct aio_done *done)
{
    struct disk_unit *u = &d->units[op->index];

    ASSERT(u->n_pending > 0);
    if (u->state == DISK_UNIT_PAYLOAD)
        note_failure(u, done->status, done->error);
    if (--u->n_pending > 0)
        return;
    if (u->state == DISK_UNIT_GIVEN_UP) { /* the kernel has ended it */
        disk_release_slots(d, u);
        take_back(d, u);
        if (u->is_reported)
            free_unit(d, u);
        return;
    }
    if (u->is_write)
        disk_release_slots(d, u);
    if (u->is_write && u->status == OK) {
        u->state = DISK_UNIT_HEADERS;
        u->n_pending = u->n;
        disk_table_commit(d, op->index);
    } else {
        finish_unit(d, u);
    }
}

void disk_unit_header_done(struct disk *d, uint32_t unit, enum status status, int error)
{
    struct disk_unit *u = &d->units[unit];

    ASSERT(u->state == DISK_UNIT_HEADERS && u->n_pending > 0);
    note_failure(u, status, error);
    if (--u->n_pending == 0)
        finish_unit(d, u);
}

/* --- deadlines --- */

static void unlink_waiting(struct disk *d, uint32_t unit)
{
    struct disk_list *l = d->units[unit].is_write ? &d->waiting_writes : &d->waiting_reads;
    struct disk_list kept = {DISK_NONE, DISK_NONE};

    for (uint32_t i; (i = disk_list_pop(l, d->unit_next)) != DISK_NONE;)
        if (i != unit)
            disk_list_push(&kept, d->unit_next, i);
    *l = kept;
}

/* Whether the op belongs to the unit: to its payload, or to a page with a header of it. */
static bool carries(const struct disk *d, const struct disk_op *op, const struct disk_unit *u)
{
    if (!op->is_used || op->kind == DISK_OP_ERASE)
        return false;
    if (op->kind == DISK_OP_PAYLOAD)
        return op->index == number_of(d, u);
    for (uint32_t i = 0; u->state == DISK_UNIT_HEADERS && i < u->n; i++)
        if (u->extents[i] / DISK_HEADERS_PER_PAGE == op->index &&
            d->extents[u->extents[i]] == DISK_EXTENT_HEADER_OUT)
            return true;
    return false;
}

static void give_up(struct disk *d, uint32_t unit)
{
    struct disk_unit *u = &d->units[unit];

    for (uint32_t i = 0; i < d->n_ops; i++) {
        if (!carries(d, &d->ops[i], u))
            continue;
        disk_op_is_late(d, &d->ops[i]);
        if (d->ops[i].kind == DISK_OP_PAYLOAD)
            aio_cancel(d->aio, i); /* requests that have not begun are cancelled */
    }
    u->status = ERR_TIMEOUT;
    u->error = 0;
    if (u->state == DISK_UNIT_PAYLOAD) {
        u->state = DISK_UNIT_GIVEN_UP;
        u->took_ns = age(d, u);
        disk_list_push(&d->done_units, d->unit_next, unit);
        return;
    }
    if (u->state == DISK_UNIT_WAITING) {
        unlink_waiting(d, unit);
        if (u->is_write)
            disk_release_slots(d, u);
    }
    finish_unit(d, u);
}

void disk_units_expire(struct disk *d)
{
    for (uint32_t i = 0; i < DISK_N_UNITS && d->n_units > 0; i++) {
        enum disk_unit_state state = d->units[i].state;
        bool runs =
            state == DISK_UNIT_WAITING || state == DISK_UNIT_PAYLOAD || state == DISK_UNIT_HEADERS;
        if (runs && age(d, &d->units[i]) >= d->timeout_ns)
            give_up(d, i);
    }
}

/* --- reporting --- */

static void check_payloads(struct disk *d, struct disk_unit *u)
{
    uint64_t n = d->dir.super.block_bytes;

    for (uint32_t i = 0; i < u->n && u->status == OK; i++)
        if (hash_crc32c(0, disk_slot_at(d, u->slots[i]), n) != u->crc[i])
            u->status = ERR_CORRUPT;
}

static void count(struct disk *d, const struct disk_unit *u)
{
    struct disk_stats *s = &d->stats;

    if (u->status == OK)
        *(u->is_write ? &s->n_written_bytes : &s->n_read_bytes) += u->n * d->dir.super.block_bytes;
    else if (u->status == ERR_TIMEOUT)
        s->n_timeouts++;
    else if (u->status == ERR_CORRUPT && !u->is_write)
        s->n_corrupt++;
    else
        *(u->is_write ? &s->n_writes_failed : &s->n_reads_failed) += 1;
}

/* Give the slots of a finished read to the caller, or free them. */
static void settle_read(struct disk *d, const struct disk_unit *u)
{
    if (u->status != OK) {
        disk_release_slots(d, u);
        return;
    }
    for (uint32_t i = 0; i < u->n; i++)
        d->slots[u->slots[i]] = DISK_SLOT_TAKEN;
}

bool disk_unit_report(struct disk *d, struct disk_done *out)
{
    uint32_t unit = disk_list_pop(&d->done_units, d->unit_next);

    if (unit == DISK_NONE)
        return false;
    struct disk_unit *u = &d->units[unit];
    if (!u->is_write && u->status == OK)
        check_payloads(d, u);
    count(d, u);
    out->event = u->is_write ? DISK_WRITE_DONE : DISK_READ_DONE;
    out->status = u->status;
    out->error = u->error;
    out->tag = u->tag;
    out->n = u->n;
    out->took_ns = u->took_ns;
    memcpy(out->extents, u->extents, sizeof u->extents);
    memcpy(out->slots, u->slots, sizeof u->slots);
    u->is_reported = true;
    if (u->state == DISK_UNIT_DONE && !u->is_write)
        settle_read(d, u);
    if (u->state == DISK_UNIT_DONE || u->n_pending == 0)
        free_unit(d, u);
    return true;
}
