/* disk_table.c - the headers: changed in memory, written by pages, cleared and erased.
 *
 * An extent is erased in three steps, each on the disk before the next begins: write a mark as its
 * header, overwrite the payload with zeros, write zeros as its header. Wherever the process ends,
 * no record comes back, and disk_erase_mark tells the next process to finish the erasure. */
#include <string.h>

#include "base/check.h"
#include "cache/disk/disk_inner.h"

static bool is_zero(const uint8_t *p, size_t n)
{
    return p[0] == 0 && memcmp(p, p + 1, n - 1) == 0;
}

/* --- pages --- */

static void mark_dirty(struct disk *d, uint32_t page)
{
    if (d->pages[page] & DISK_PAGE_DIRTY)
        return;
    d->pages[page] |= DISK_PAGE_DIRTY;
    if (!(d->pages[page] & DISK_PAGE_OUT)) /* one write of a page at a time */
        disk_list_push(&d->dirty_pages, d->page_next, page);
}

static uint8_t *page_at(struct disk *d, uint32_t page)
{
    return disk_header_at(d, page * DISK_HEADERS_PER_PAGE);
}

static uint32_t page_end(const struct disk *d, uint32_t page)
{
    uint32_t end = (page + 1) * DISK_HEADERS_PER_PAGE;

    return end < d->dir.super.n_extents ? end : d->dir.super.n_extents;
}

/* A write of the page has begun: its extents change to the _OUT states. */
static void page_goes_out(struct disk *d, uint32_t page)
{
    for (uint32_t e = page * DISK_HEADERS_PER_PAGE; e < page_end(d, page); e++)
        if (d->extents[e] == DISK_EXTENT_HEADER || d->extents[e] == DISK_EXTENT_MARK ||
            d->extents[e] == DISK_EXTENT_CLEAR)
            d->extents[e]++; /* the _OUT state follows in the enum */
}

static bool begin_page(struct disk *d, uint32_t page)
{
    uint32_t bounce = d->free_bounce[d->n_free_bounce - 1];
    uint8_t *copy = d->bounce + (size_t)bounce * DISK_PAGE_BYTES;
    struct disk_op op = {.kind = DISK_OP_PAGE, .index = page, .bounce = bounce};
    uint32_t i = disk_op_take(d, op);
    struct aio_op request = {.write = true,
                             .fd = d->dir.table_fd,
                             .data = copy,
                             .n_bytes = DISK_PAGE_BYTES,
                             .offset = (1 + (uint64_t)page) * DISK_PAGE_BYTES,
                             .tag = i};

    if (i == DISK_NONE)
        return false;
    memcpy(copy, page_at(d, page), DISK_PAGE_BYTES);
    if (aio_submit(d->aio, &request, 1) != OK) {
        disk_op_give(d, i);
        return false;
    }
    d->n_free_bounce--;
    d->pages[page] = DISK_PAGE_OUT;
    page_goes_out(d, page);
    return true;
}

/* A page of headers has come back. */
static void settle_extent(struct disk *d, uint32_t e, const struct aio_done *done)
{
    bool ok = done->status == OK;

    switch (d->extents[e]) {
    case DISK_EXTENT_HEADER_OUT: {
        uint32_t unit = d->extent_next[e];
        d->extents[e] = DISK_EXTENT_WRITTEN; /* if the write failed, its unit takes it back */
        disk_unit_header_done(d, unit, done->status, done->error);
        break;
    }
    case DISK_EXTENT_MARK_OUT:
        d->extents[e] = ok ? DISK_EXTENT_ERASE : DISK_EXTENT_MARK;
        if (ok)
            disk_list_push(&d->to_erase, d->extent_next, e);
        break;
    case DISK_EXTENT_CLEAR_OUT:
        d->extents[e] = ok ? DISK_EXTENT_CLEARED : DISK_EXTENT_CLEAR;
        if (ok)
            disk_list_push(&d->cleared, d->extent_next, e);
        break;
    default: break;
    }
}

void disk_page_op_done(struct disk *d, const struct disk_op *op, const struct aio_done *done)
{
    uint32_t page = op->index;
    bool dirty = (d->pages[page] & DISK_PAGE_DIRTY) != 0;

    d->free_bounce[d->n_free_bounce++] = op->bounce;
    d->pages[page] = 0;
    if (done->status != OK) { /* the page on the disk is unknown now */
        d->pages[page] = DISK_PAGE_DIRTY;
        disk_list_push(&d->failed_pages, d->page_next, page);
        d->retry_ns = d->now_ns + DISK_RETRY_NS;
    } else if (dirty) {
        mark_dirty(d, page);
    }
    for (uint32_t e = page * DISK_HEADERS_PER_PAGE; e < page_end(d, page); e++)
        settle_extent(d, e, done);
}

/* --- records --- */

void disk_table_commit(struct disk *d, uint32_t unit)
{
    const struct disk_unit *u = &d->units[unit];

    for (uint32_t i = 0; i < u->n; i++) {
        uint32_t e = u->extents[i];
        memcpy(disk_header_at(d, e), u->headers[i], DISK_HEADER_BYTES);
        d->extents[e] = DISK_EXTENT_HEADER;
        d->extent_next[e] = unit;
        mark_dirty(d, e / DISK_HEADERS_PER_PAGE);
    }
}

/* Begin to overwrite the extent's header with zeros; it is, or may be, on the disk. */
static void clear_header(struct disk *d, uint32_t extent)
{
    memset(disk_header_at(d, extent), 0, DISK_HEADER_BYTES);
    d->extents[extent] = DISK_EXTENT_CLEAR;
    mark_dirty(d, extent / DISK_HEADERS_PER_PAGE);
}

void disk_table_take_back(struct disk *d, uint32_t extent)
{
    if (d->extents[extent] == DISK_EXTENT_PAYLOAD &&
        is_zero(disk_header_at(d, extent), DISK_HEADER_BYTES)) {
        d->extents[extent] = DISK_EXTENT_CLEARED;
        disk_list_push(&d->cleared, d->extent_next, extent);
        return;
    }
    clear_header(d, extent);
}

static void clear_one(struct disk *d, uint32_t extent, bool erase)
{
    uint8_t *header = disk_header_at(d, extent);

    ASSERT(extent < d->dir.super.n_extents && d->extents[extent] == DISK_EXTENT_IDLE);
    if (erase || memcmp(header, disk_erase_mark, DISK_HEADER_BYTES) == 0) {
        memcpy(header, disk_erase_mark, DISK_HEADER_BYTES);
        d->extents[extent] = DISK_EXTENT_MARK;
        mark_dirty(d, extent / DISK_HEADERS_PER_PAGE);
    } else if (!is_zero(header, DISK_HEADER_BYTES)) {
        clear_header(d, extent);
    } else {
        d->extents[extent] = DISK_EXTENT_CLEARED;
        disk_list_push(&d->cleared, d->extent_next, extent);
    }
}

void disk_clear(struct disk *d, const uint32_t *extents, uint32_t n, bool erase)
{
    for (uint32_t i = 0; i < n; i++)
        clear_one(d, extents[i], erase);
}

/* --- erasing --- */

static bool begin_erase(struct disk *d, uint32_t extent)
{
    struct disk_op op = {.kind = DISK_OP_ERASE, .index = extent};
    uint32_t i = disk_op_take(d, op);
    uint64_t n = d->dir.super.extent_bytes;
    struct aio_op request = {.write = true,
                             .fd = d->dir.data_fd,
                             .data = d->zeros,
                             .n_bytes = n,
                             .offset = extent * n,
                             .tag = i};

    if (i == DISK_NONE)
        return false;
    if (aio_submit(d->aio, &request, 1) != OK) {
        disk_op_give(d, i);
        return false;
    }
    d->n_erasing++;
    return true;
}

void disk_erase_op_done(struct disk *d, const struct disk_op *op, const struct aio_done *done)
{
    d->n_erasing--;
    if (done->status == OK) {
        clear_header(d, op->index);
    } else {
        disk_list_push(&d->failed_erases, d->extent_next, op->index);
        d->retry_ns = d->now_ns + DISK_RETRY_NS;
    }
}

/* --- waiting work --- */

void disk_table_begin(struct disk *d)
{
    if (d->now_ns >= d->retry_ns) {
        disk_list_move(&d->dirty_pages, &d->failed_pages, d->page_next);
        disk_list_move(&d->to_erase, &d->failed_erases, d->extent_next);
    }
    while (d->dirty_pages.first != DISK_NONE && d->n_free_bounce > 0) {
        /* Take it off its list first: the result of the write decides the next list. */
        uint32_t page = d->dirty_pages.first, next = d->page_next[page];
        if (!begin_page(d, page))
            break;
        d->dirty_pages.first = next;
    }
    while (d->to_erase.first != DISK_NONE && d->n_erasing < DISK_N_ERASING &&
           begin_erase(d, d->to_erase.first))
        disk_list_pop(&d->to_erase, d->extent_next);
}

bool disk_cleared_report(struct disk *d, struct disk_done *out)
{
    uint32_t e = disk_list_pop(&d->cleared, d->extent_next);

    if (e == DISK_NONE)
        return false;
    d->extents[e] = DISK_EXTENT_IDLE;
    *out = (struct disk_done){.event = DISK_CLEARED, .status = OK, .n = 1};
    out->extents[0] = e;
    return true;
}
