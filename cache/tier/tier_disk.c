/* tier_disk.c - blocks in the files of cache/disk/: the staging memory, and records that name each
 * block. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "cache/disk/disk.h"
#include "cache/tier/tier_inner.h"
#include "kernels/device.h"

/* Payload that may be between memory and disk at a time, and the buffers for it: enough to keep a
 * fast disk busy, and at least a few moves of large models. */
#define STAGING_BYTES (UINT64_C(64) << 20)
#define N_BUFFERS_MIN (4 * DISK_UNIT_BLOCKS_MAX)
#define N_BUFFERS_MAX 512u
/* Extents beyond the capacity: a write need not wait until others are cleared. */
#define N_SPARE_MAX 64u
/* Events of the disk that are taken at a time. */
#define N_DONE 4u
#define CLOSE_WAIT_NS UINT64_C(5000000000)

struct tier_disk {
    struct tier base;
    struct device *device;
    struct disk *disk;
    const char *path;
    double open_s;
    void *staging_memory;
    unsigned char *staging; /* [n_buffers][extent_bytes] in it, page-aligned */
};

_Static_assert(DISK_UNIT_BLOCKS_MAX == TIER_MOVE_BLOCKS_MAX, "a move is one unit");

static struct tier_disk *of(struct tier *t)
{
    return (struct tier_disk *)t;
}

static const struct tier_disk *of_const(const struct tier *t)
{
    return (const struct tier_disk *)t;
}

/* --- staging --- */

static uint32_t slot_of(const struct tier_disk *d, const void *buffer)
{
    return (uint32_t)((uint64_t)((const unsigned char *)buffer - d->staging) /
                      d->base.extent_bytes);
}

static void slots_of(const struct tier_disk *d, uint32_t *slots, const void *const *buffers,
                     uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        slots[i] = slot_of(d, buffers[i]);
}

static uint32_t disk_tier_n_free_buffers(const struct tier *t)
{
    return disk_n_free_slots(of_const(t)->disk);
}

static bool disk_tier_stage(struct tier *t, void **buffers, uint32_t n)
{
    struct tier_disk *d = of(t);
    uint32_t slots[DISK_UNIT_BLOCKS_MAX];

    if (!disk_take_slots(d->disk, slots, n))
        return false;
    for (uint32_t i = 0; i < n; i++)
        buffers[i] = d->staging + slots[i] * t->extent_bytes;
    return true;
}

static void disk_tier_unstage(struct tier *t, void *const *buffers, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = slot_of(of(t), buffers[i]);
        disk_give_slots(of(t)->disk, &slot, 1);
    }
}

/* --- moves --- */

static enum status disk_tier_read(struct tier *t, const uint32_t *blocks, void *const *to,
                                  uint32_t n, bool drop, uint64_t tag)
{
    const void *buffers[DISK_UNIT_BLOCKS_MAX];
    uint32_t slots[DISK_UNIT_BLOCKS_MAX];

    (void)drop;
    memcpy(buffers, to, n * sizeof *buffers);
    slots_of(of(t), slots, buffers, n);
    return disk_read(of(t)->disk, blocks, slots, n, tag);
}

static void to_disk_record(struct disk_record *out, const struct tier_record *r)
{
    *out = (struct disk_record){.key = r->key,
                                .parent = r->parent,
                                .scope = r->scope,
                                .pos0 = r->pos0,
                                .depth = r->depth,
                                .n_uses = r->n_uses,
                                .n_tokens = r->n_tokens};
    out->flags =
        (r->starts_segment ? DISK_STARTS_SEGMENT : 0) | (r->is_registered ? DISK_REGISTERED : 0);
    memcpy(out->ids, r->ids, r->n_tokens * sizeof *r->ids);
}

static enum status disk_tier_write(struct tier *t, const uint32_t *blocks, const void *const *from,
                                   const struct tier_record *records, uint32_t n, uint64_t tag)
{
    struct disk_record disk_records[DISK_UNIT_BLOCKS_MAX];
    uint32_t slots[DISK_UNIT_BLOCKS_MAX];

    for (uint32_t i = 0; i < n; i++)
        to_disk_record(&disk_records[i], &records[i]);
    slots_of(of(t), slots, from, n);
    return disk_write(of(t)->disk, disk_records, blocks, slots, n, tag);
}

static void disk_tier_drop(struct tier *t, const uint32_t *blocks, uint32_t n, bool erase)
{
    t->n_leaving += n;
    disk_clear(of(t)->disk, blocks, n, erase);
}

/* True: *out is to be reported. */
static bool take_done(struct tier_disk *d, const struct disk_done *done, struct tier_done *out)
{
    bool is_write = done->event == DISK_WRITE_DONE;

    if (done->event == DISK_CLEARED) {
        d->base.n_leaving--;
        tier_push(&d->base, done->extents[0]);
        return false;
    }
    if (is_write && done->status != OK) { /* the disk clears each extent, later or at once */
        d->base.n_leaving += done->n;
        log_event(LOG_WARN, "KV could not be written to disk", "error=%s errno=%d path=\"%s\"",
                  status_name(done->status), done->error, d->path);
    }
    *out = (struct tier_done){is_write, done->status, done->tag, done->n};
    return true;
}

static uint32_t disk_tier_poll(struct tier *t, struct tier_done *out, uint32_t n_max)
{
    struct disk_done done[N_DONE];
    uint32_t n_out = 0, n, n_asked;

    do {
        n_asked = n_max - n_out < N_DONE ? n_max - n_out : N_DONE;
        n = disk_poll(of(t)->disk, clock_now_ns(), done, n_asked);
        for (uint32_t i = 0; i < n; i++)
            n_out += take_done(of(t), &done[i], &out[n_out]);
    } while (n == n_asked && n_out < n_max);
    return n_out;
}

static bool disk_tier_is_busy(const struct tier *t)
{
    return disk_is_busy(of_const(t)->disk);
}

static bool disk_tier_is_hung(const struct tier *t)
{
    return disk_is_hung(of_const(t)->disk);
}

/* --- at start --- */

static bool is_being_erased(const struct tier_disk *d, uint32_t extent)
{
    const uint8_t *table = disk_directory(d->disk)->table;

    return memcmp(table + DISK_PAGE_BYTES + (size_t)extent * DISK_HEADER_BYTES, disk_erase_mark,
                  DISK_HEADER_BYTES) == 0;
}

static void from_disk_record(struct tier_record *out, const struct disk_record *r)
{
    *out = (struct tier_record){.key = r->key,
                                .parent = r->parent,
                                .scope = r->scope,
                                .no = r->no,
                                .n_tokens = r->n_tokens,
                                .pos0 = r->pos0,
                                .depth = r->depth,
                                .n_uses = r->n_uses,
                                .starts_segment = r->flags & DISK_STARTS_SEGMENT,
                                .is_registered = r->flags & DISK_REGISTERED};
    memcpy(out->ids, r->ids, r->n_tokens * sizeof *r->ids);
}

static enum tier_found disk_tier_look(struct tier *t, uint32_t block, struct tier_record *out)
{
    struct disk_record record;

    switch (disk_look(of(t)->disk, block, &record)) {
    case DISK_EMPTY: return TIER_NOTHING;
    case DISK_VALID: from_disk_record(out, &record); return TIER_RECORD;
    case DISK_FOREIGN: return TIER_FOREIGN;
    case DISK_IMPOSSIBLE: return TIER_IMPOSSIBLE;
    case DISK_MISNAMED: return TIER_MISNAMED;
    case DISK_TORN:
    case DISK_N_VERDICTS: break;
    }
    return is_being_erased(of(t), block) ? TIER_ERASING : TIER_TORN;
}

/* --- life --- */

static void disk_tier_stats(const struct tier *t, struct tier_stats *out)
{
    const struct tier_disk *d = of_const(t);
    struct disk_stats stats;

    disk_stats(d->disk, &stats);
    out->open_s = d->open_s;
    out->io = disk_io_name(d->disk);
    out->is_direct = disk_directory(d->disk)->is_direct;
    out->n_read_bytes = stats.n_read_bytes;
    out->n_written_bytes = stats.n_written_bytes;
    out->n_reads_failed = stats.n_reads_failed;
    out->n_writes_failed = stats.n_writes_failed;
    out->n_timeouts = stats.n_timeouts;
    out->n_corrupt = stats.n_corrupt;
}

/* After a timeout the kernel may still write into the staging memory, so it is never freed. */
static void disk_tier_close(struct tier *t)
{
    struct tier_disk *d = of(t);

    if (disk_close(d->disk, clock_now_ns() + CLOSE_WAIT_NS) != OK)
        log_event(LOG_WARN, "the disk did not answer in time, writes may be lost", "path=\"%s\"",
                  d->path);
    else
        device_free_pinned(d->device, d->staging_memory);
    free(d);
}

static const struct tier_ops disk_ops = {.close = disk_tier_close,
                                         .drop = disk_tier_drop,
                                         .read = disk_tier_read,
                                         .write = disk_tier_write,
                                         .poll = disk_tier_poll,
                                         .is_busy = disk_tier_is_busy,
                                         .is_hung = disk_tier_is_hung,
                                         .n_free_buffers = disk_tier_n_free_buffers,
                                         .stage = disk_tier_stage,
                                         .unstage = disk_tier_unstage,
                                         .look = disk_tier_look,
                                         .stats = disk_tier_stats};

static uint32_t count_buffers(uint64_t extent_bytes)
{
    uint64_t n = STAGING_BYTES / extent_bytes;

    return n < N_BUFFERS_MIN ? N_BUFFERS_MIN : n > N_BUFFERS_MAX ? N_BUFFERS_MAX : (uint32_t)n;
}

static enum status allocate_staging(struct tier_disk *d, struct buf *why)
{
    uint64_t used = d->base.n_buffers * d->base.extent_bytes;
    size_t n_bytes = used + DISK_PAGE_BYTES; /* to align it, whatever the allocator gives */
    uintptr_t at;

    d->staging_memory = device_alloc_pinned(d->device, n_bytes);
    if (!d->staging_memory)
        return buf_why(why, ERR_NOMEM,
                       "out of memory for the %zu bytes through which the disk "
                       "tier reads and writes; lower {kv_device_bytes}, or leave out "
                       "{kv_disk_path}",
                       n_bytes);
    at = (uintptr_t)d->staging_memory;
    d->staging = (unsigned char *)d->staging_memory +
                 (DISK_PAGE_BYTES - at % DISK_PAGE_BYTES) % DISK_PAGE_BYTES;
    memset(d->staging, 0, used); /* the padding of an extent is zero */
    d->base.memory_bytes += n_bytes;
    return OK;
}

static enum status open_directory(struct tier_disk *d, const struct tier_disk_config *c,
                                  struct buf *why)
{
    struct disk_config config = {.dir = {.path = c->path,
                                         .n_bytes_max = c->n_bytes,
                                         .fingerprint = c->fingerprint,
                                         .block_bytes = c->block_bytes,
                                         .segment_tokens = c->segment_tokens},
                                 .staging = d->staging,
                                 .n_slots = d->base.n_buffers,
                                 .timeout_ns = c->timeout_ns,
                                 .backend = c->threads_only ? AIO_THREADS : AIO_AUTO};

    return disk_open(&d->disk, &config, why);
}

/* No extent is free before tier_look() has seen it. */
static enum status init_extents(struct tier_disk *d, struct buf *why)
{
    uint32_t n = disk_directory(d->disk)->super.n_extents, n_buffers = d->base.n_buffers;
    uint64_t extent_bytes = d->base.extent_bytes;
    struct disk_stats stats;

    if (tier_init(&d->base, &disk_ops, d->base.block_bytes, n) != OK)
        return buf_why(why, ERR_NOMEM,
                       "out of memory for the books of %u extents; lower "
                       "{kv_disk_bytes}",
                       n);
    d->base.extent_bytes = extent_bytes;
    d->base.n_buffers = n_buffers;
    d->base.n_capacity = n - (n / 8 < N_SPARE_MAX ? n / 8 : N_SPARE_MAX);
    disk_stats(d->disk, &stats);
    d->base.memory_bytes += stats.memory_bytes + sizeof *d;
    return OK;
}

/* Stored KV that is gone, which the operator may not expect. */
static void log_opened(const struct tier_disk *d)
{
    const struct disk_dir *dir = disk_directory(d->disk);

    if (dir->n_removed_dirs > 0)
        log_event(LOG_WARN, "KV of other models made room on disk",
                  "path=\"%s\" directories=%u bytes=%llu", d->path, dir->n_removed_dirs,
                  (unsigned long long)dir->n_removed_bytes);
    if (dir->is_new && dir->why_new[0])
        log_event(LOG_WARN, "the KV on disk cannot be used and begins anew",
                  "path=\"%s\" why=\"%s\"", d->path, dir->why_new);
}

enum status tier_disk_open(struct tier **out, const struct tier_disk_config *c, struct buf *why)
{
    uint64_t began_ns = clock_now_ns();
    struct tier_disk *d = calloc(1, sizeof *d);
    enum status s;

    *out = NULL;
    if (!d)
        return buf_why(why, ERR_NOMEM,
                       "out of memory for the disk tier; lower {kv_device_bytes}, "
                       "or leave out {kv_disk_path}");
    d->device = c->device;
    d->path = c->path;
    d->base.ops = &disk_ops;
    d->base.block_bytes = c->block_bytes;
    d->base.extent_bytes = disk_extent_bytes(c->block_bytes);
    d->base.n_buffers = count_buffers(d->base.extent_bytes);
    if ((s = allocate_staging(d, why)) != OK || (s = open_directory(d, c, why)) != OK ||
        (s = init_extents(d, why)) != OK) {
        tier_close(&d->base);
        return s;
    }
    d->open_s = (double)(clock_now_ns() - began_ns) * 1e-9;
    log_opened(d);
    *out = &d->base;
    return OK;
}
