/* tier_near.c - copies from the device memory of another process, and checksums of device memory.
 *
 * A job copies up to a move of blocks into buffers in this device's memory, computes their sums and
 * brings these to the host, all on the peer stream. Or it computes the sums of blocks of the device
 * tier. Buffers are staging: what arrives enters the device tier only after its sums were compared,
 * by one more copy within the device, which costs a hundredth of the first one. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cache/tier/tier_inner.h"
#include "kernels/device.h"

#define N_BUFFERS 32u
#define N_JOBS 96u

_Static_assert(TIER_SUMS_MAX == DEVICE_SUMS_MAX, "a job is one call");
_Static_assert(TIER_SUMS_MAX <= DEVICE_COPIES_MAX, "a job is one call");
_Static_assert(N_BUFFERS >= 2 * TIER_MOVE_BLOCKS_MAX, "two moves at a time");

struct near_job {
    bool is_used;
    uint32_t n;
    struct device_event *event;
};

struct tier_near {
    struct device *device;
    uint64_t block_bytes;
    unsigned char *staging; /* [N_BUFFERS * block_bytes] device memory */
    void *free_buffers[N_BUFFERS];
    uint32_t n_free_buffers;
    uint32_t *sums;      /* [N_JOBS][TIER_SUMS_MAX] device memory */
    uint32_t *host_sums; /* the same, pinned */
    struct device_event *compute_done;
    struct near_job jobs[N_JOBS];
    bool is_broken; /* a copy may be under way that no event marks */
};

/* --- buffers --- */

bool tier_near_stage(struct tier_near *n, void **buffers, uint32_t n_buffers)
{
    if (n->n_free_buffers < n_buffers || n->is_broken)
        return false;
    for (uint32_t i = 0; i < n_buffers; i++)
        buffers[i] = n->free_buffers[--n->n_free_buffers];
    return true;
}

bool tier_near_has(const struct tier_near *n, const void *buffer)
{
    uintptr_t at = (uintptr_t)buffer, base = n ? (uintptr_t)n->staging : 0;

    return n && at >= base && at < base + N_BUFFERS * n->block_bytes;
}

void tier_near_unstage(struct tier_near *n, void *buffer)
{
    ASSERT(n->n_free_buffers < N_BUFFERS && tier_near_has(n, buffer));
    n->free_buffers[n->n_free_buffers++] = buffer;
}

/* --- jobs --- */

static struct stream *peer_stream(const struct tier_near *n)
{
    return device_stream(n->device, DEVICE_COPY_PEER);
}

static enum status enqueue(struct tier_near *n, uint32_t job, const void *const *from,
                           void *const *to, uint32_t n_blocks)
{
    struct stream *s = peer_stream(n);
    uint32_t *sums = n->sums + (size_t)job * TIER_SUMS_MAX;
    uint32_t *host_sums = n->host_sums + (size_t)job * TIER_SUMS_MAX;
    enum status status = OK;

    if (to)
        status = device_copies_async(n->device, s, to, from, n_blocks, n->block_bytes);
    if (status == OK)
        status = device_crc32c_async(n->device, s, to ? (const void *const *)to : from, n_blocks,
                                     n->block_bytes, sums);
    if (status == OK)
        status = device_download_async(n->device, s, host_sums, sums, n_blocks * sizeof *sums);
    if (status == OK)
        status = device_event_record(n->device, n->jobs[job].event, s);
    return status;
}

static enum status begin(struct tier_near *n, const void *const *from, void *const *to,
                         uint32_t n_blocks, uint32_t *job)
{
    enum status s;

    ASSERT(n_blocks >= 1 && n_blocks <= TIER_SUMS_MAX);
    *job = 0;
    while (*job < N_JOBS && n->jobs[*job].is_used)
        ++*job;
    if (*job == N_JOBS || n->is_broken)
        return ERR_BUSY;
    s = enqueue(n, *job, from, to, n_blocks);
    if (s != OK) { /* a part of it may run, and the caller gives the buffers away */
        n->is_broken |= device_stream_wait(n->device, peer_stream(n)) != OK;
        return s;
    }
    n->jobs[*job].is_used = true;
    n->jobs[*job].n = n_blocks;
    return OK;
}

enum status tier_near_pull(struct tier_near *n, const void *const *from, void *const *to,
                           uint32_t n_blocks, uint32_t *job)
{
    ASSERT(n_blocks <= TIER_MOVE_BLOCKS_MAX);
    return begin(n, from, to, n_blocks, job);
}

enum status tier_near_sum(struct tier_near *n, const struct tier *t, const uint32_t *blocks,
                          uint32_t n_blocks, uint32_t *job)
{
    const unsigned char *base = tier_device_memory(t, 0);
    const void *from[TIER_SUMS_MAX];
    struct stream *compute = device_stream(n->device, DEVICE_COMPUTE);
    enum status s = device_event_record(n->device, n->compute_done, compute);

    if (s == OK)
        s = device_event_order(n->device, n->compute_done, peer_stream(n));
    for (uint32_t i = 0; i < n_blocks; i++)
        from[i] = base + blocks[i] * n->block_bytes;
    return s == OK ? begin(n, from, NULL, n_blocks, job) : s;
}

bool tier_near_end(struct tier_near *n, uint32_t job, enum status *status, uint32_t *sums)
{
    struct near_job *j = &n->jobs[job];
    bool done = true;

    ASSERT(job < N_JOBS && j->is_used);
    *status = device_event_query(n->device, j->event, &done);
    if (*status == OK && !done)
        return false;
    if (*status != OK) /* the copy may still run */
        n->is_broken |= device_stream_wait(n->device, peer_stream(n)) != OK;
    else
        memcpy(sums, n->host_sums + (size_t)job * TIER_SUMS_MAX, j->n * sizeof *sums);
    j->is_used = false;
    return true;
}

/* --- life --- */

void tier_near_wait(struct tier_near *n)
{
    if (n && device_stream_wait(n->device, peer_stream(n)) != OK)
        n->is_broken = true;
}

void tier_near_close(struct tier_near *n)
{
    if (!n)
        return;
    tier_near_wait(n);
    for (uint32_t i = 0; i < N_JOBS; i++)
        device_event_destroy(n->device, n->jobs[i].event);
    device_event_destroy(n->device, n->compute_done);
    device_free(n->device, n->staging);
    device_free(n->device, n->sums);
    device_free_pinned(n->device, n->host_sums);
    free(n);
}

static size_t sums_bytes(void)
{
    return (size_t)N_JOBS * TIER_SUMS_MAX * sizeof(uint32_t);
}

uint64_t tier_near_device_bytes(uint64_t block_bytes)
{
    return N_BUFFERS * block_bytes + sums_bytes();
}

static enum status allocate(struct tier_near *n)
{
    enum status s = device_event_create(n->device, &n->compute_done);

    for (uint32_t i = 0; i < N_JOBS && s == OK; i++)
        s = device_event_create(n->device, &n->jobs[i].event);
    if (s != OK)
        return s;
    n->staging = device_alloc(n->device, N_BUFFERS * n->block_bytes);
    n->sums = device_alloc(n->device, sums_bytes());
    n->host_sums = device_alloc_pinned(n->device, sums_bytes());
    if (!n->staging || !n->sums || !n->host_sums)
        return ERR_NOMEM;
    for (uint32_t i = N_BUFFERS; i-- > 0;)
        n->free_buffers[n->n_free_buffers++] = n->staging + i * n->block_bytes;
    return OK;
}

enum status tier_near_open(struct tier_near **out, struct device *device, uint64_t block_bytes)
{
    struct tier_near *n = calloc(1, sizeof *n);
    enum status s;

    *out = NULL;
    if (!n)
        return ERR_NOMEM;
    if (block_bytes > DEVICE_SUM_BYTES_MAX || block_bytes % sizeof(uint32_t) != 0) {
        free(n);
        return ERR_UNSUPPORTED;
    }
    n->device = device;
    n->block_bytes = block_bytes;
    s = allocate(n);
    if (s != OK) {
        tier_near_close(n);
        return s;
    }
    *out = n;
    return OK;
}
