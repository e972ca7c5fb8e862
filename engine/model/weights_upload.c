/* weights_upload.c - copy weights to a device with its own memory: a pipeline of N_SLOTS slots.
 *
 * A piece is some rows of one job. It is read from the checkpoint into the first buffer of its
 * slot. The device's host threads compute its CRC and pack it into the second buffer, from which it
 * is copied to the device; meanwhile the next pieces are read and the previous ones copied. Rows
 * that already have the device's layout are copied from the first buffer. Both buffers are pinned,
 * so the device reads them itself. Rows of a tensor with a codec are decoded from the mapped file
 * into the first buffer by the host threads. All buffers together have 2 N_SLOTS PIECE_BYTES, or
 * more if CHUNK_ROWS rows are larger than a piece. */
#include <stdlib.h>
#include <string.h>

#include "base/aio.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "engine/model/weights_load.h"
#include "kernels/pack.h"

#define PIECE_BYTES ((size_t)16 << 20)
#define N_SLOTS 4
/* A read of this size occupies one queue entry of a disk for about a millisecond. A piece needs
 * several reads, which run at the same time. */
#define READ_BYTES ((size_t)2 << 20)
#define SECOND_NS UINT64_C(1000000000)
#define PROGRESS_NS (5 * SECOND_NS)
#define CLOSE_NS (10 * SECOND_NS)

struct slot {
    unsigned char *in, *out;   /* pinned */
    struct device_event *sent; /* the copy is done; both buffers can be filled again */
    const struct job *job;     /* the piece: rows [row, row + n_rows) of it */
    uint32_t row, n_rows;
    uint32_t n_reads; /* in progress */
};

struct upload {
    struct loader *l;
    struct device *device;
    struct stream *stream;
    struct aio *aio;
    struct slot slots[N_SLOTS];
    size_t in_bytes, out_bytes; /* of each buffer */
    size_t read_bytes;
    uint32_t next_job, next_row;    /* of the next piece */
    uint64_t n_bytes, n_bytes_done; /* of the checkpoint */
    uint64_t t_start, t_progress;
    enum status status; /* of a read that failed */
};

/* --- pieces --- */

/* The piece as a weight of its own, in the buffer `out`. */
static struct weight piece_weight(const struct slot *p)
{
    struct weight w = *p->job->w;

    w.n = p->n_rows;
    w.data = p->out;
    return w;
}

static size_t piece_out_bytes(const struct slot *p)
{
    if (p->job->vec)
        return p->n_rows * sizeof(float);
    struct weight w = piece_weight(p);
    return pack_weight_bytes(&w);
}

/* Whether the rows have the same layout in the checkpoint as in the device's memory. */
static bool is_as_stored(const struct job *job)
{
    return job->tensor && !job->tensor->codec && job->w && !job->w->group &&
           job->tensor->dtype == job->w->dtype && job->w->stride == job->k && job->k == job->k_all;
}

/* Fill p with the next piece; false if there is none. */
static bool next_piece(struct upload *u, struct slot *p)
{
    const struct loader *l = u->l;

    if (u->next_job == l->n_jobs)
        return false;
    p->job = &l->jobs[u->next_job];
    p->row = u->next_row;
    p->n_rows = CHUNK_ROWS;
    size_t row_bytes = piece_out_bytes(p) / CHUNK_ROWS, in_bytes = weights_source_row_bytes(p->job);
    size_t n_rows = PIECE_BYTES / (in_bytes > row_bytes ? in_bytes : row_bytes);
    n_rows = n_rows < CHUNK_ROWS ? CHUNK_ROWS : n_rows / CHUNK_ROWS * CHUNK_ROWS;
    uint32_t n_left = p->job->n_rows - p->row;
    p->n_rows = n_left < n_rows ? n_left : (uint32_t)n_rows;
    u->next_row += p->n_rows;
    if (u->next_row == p->job->n_rows) {
        u->next_job++;
        u->next_row = 0;
    }
    return true;
}

/* Compute the sizes of the buffers and the number of bytes to read, from all pieces. */
static void measure(struct upload *u)
{
    struct slot p = {0};

    while (next_piece(u, &p)) {
        size_t in = p.n_rows * weights_source_row_bytes(p.job);
        size_t out = is_as_stored(p.job) ? 0 : piece_out_bytes(&p);
        if (in > u->in_bytes)
            u->in_bytes = in;
        if (out > u->out_bytes)
            u->out_bytes = out;
        u->n_bytes += in;
    }
    u->next_job = u->next_row = 0;
}

/* --- reading --- */

static enum status start_reads(struct upload *u, uint32_t slot)
{
    struct slot *p = &u->slots[slot];
    const struct tensor *t = p->job->tensor;
    size_t row_bytes = weights_source_row_bytes(p->job), n_bytes = p->n_rows * row_bytes;
    uint64_t offset;
    int fd;
    enum status s = checkpoint_file(u->l->w->file, t, &fd, &offset, u->l->why);

    for (size_t at = 0; s == OK && at < n_bytes; at += u->read_bytes) {
        struct aio_op op = {.fd = fd,
                            .data = p->in + at,
                            .n_bytes = n_bytes - at < u->read_bytes ? n_bytes - at : u->read_bytes,
                            .offset = offset + (p->job->row0 + p->row) * row_bytes + at,
                            .tag = slot};
        s = aio_submit(u->aio, &op, 1);
        if (s == OK)
            p->n_reads++;
        else
            buf_why(u->l->why, s, "cannot read the checkpoint in %s", u->l->config->dir);
    }
    return s;
}

static void take_reads(struct upload *u, const struct aio_done *done, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        u->slots[done[i].tag].n_reads--;
        if (done[i].status == OK || u->status != OK)
            continue;
        u->status = done[i].status;
        buf_why(u->l->why, u->status, "cannot read tensor %s in %s: %s",
                u->slots[done[i].tag].job->tensor->name, u->l->config->dir,
                done[i].error ? strerror(done[i].error) : "the file is cut short");
    }
}

static void log_progress(struct upload *u)
{
    uint64_t now = clock_now_ns();

    if (now - u->t_progress < PROGRESS_NS)
        return;
    u->t_progress = now;
    log_event(LOG_INFO, "loading weights", "percent=%.0f gb_per_s=%.2f",
              100.0 * (double)u->n_bytes_done / (double)u->n_bytes,
              (double)u->n_bytes_done / (double)(now - u->t_start));
}

static enum status wait_reads(struct upload *u, const struct slot *p)
{
    struct aio_done done[16];
    uint32_t n;

    while (p->n_reads > 0) {
        enum status s = aio_wait(u->aio, clock_now_ns() + PROGRESS_NS, done, ARRAY_SIZE(done), &n);
        if (s != OK && s != ERR_TIMEOUT)
            return buf_why(u->l->why, s, "cannot read the checkpoint in %s", u->l->config->dir);
        take_reads(u, done, n);
        log_progress(u);
    }
    return u->status;
}

/* --- packing --- */

struct pack_job {
    struct loader *l;
    const struct slot *p;
};

/* Zero the rows' bytes, since elements beyond K are 0. Returns where the elements begin. */
static unsigned char *clear_rows(const struct slot *p, const struct weight *w, uint32_t row,
                                 uint32_t n_rows)
{
    struct pack_range ranges[2];
    uint32_t n_ranges = pack_row_ranges(w, row, n_rows, ranges);

    for (uint32_t i = 0; i < n_ranges; i++)
        memset(p->out + ranges[i].offset, 0, ranges[i].n_bytes);
    return p->out + ranges[0].offset;
}

static void pack_coded(const struct pack_job *j, uint32_t task, uint32_t row, uint32_t n_rows,
                       unsigned char *memory)
{
    const struct job *job = j->p->job;
    struct weight w = piece_weight(j->p);
    struct coded_rows rows = weights_read_codes(job, j->p->row + row, n_rows, memory);

    weights_check_codes(j->l, job, task, &rows, n_rows);
    weights_keep_codes(job, &rows, n_rows);
    clear_rows(j->p, &w, row, n_rows);
    pack_coded_rows(&w, row, rows.codes, rows.scales, rows.offsets, job->tensor->code_group,
                    n_rows);
}

static void pack_matrix(const struct slot *p, uint32_t row, uint32_t n_rows, unsigned char *src)
{
    const struct job *job = p->job;
    struct weight w = piece_weight(p);
    unsigned char *out = clear_rows(p, &w, row, n_rows);

    if (w.group && !job->tensor)
        weights_make_rows(job, p->row + row, n_rows, src, job->k);
    if (w.group)
        pack_quantize_rows(&w, row, job->tensor ? tensor_dtype(job->tensor) : job->dtype, src,
                           n_rows);
    else if (!job->tensor)
        weights_make_rows(job, p->row + row, n_rows, out, w.stride);
    else if (tensor_dtype(job->tensor) != w.dtype)
        weights_convert_rows(job, src, n_rows, out, w.stride);
    else
        pack_rows(&w, row, src, n_rows);
}

static void pack_task(void *arg, uint32_t task)
{
    const struct pack_job *j = arg;
    const struct slot *p = j->p;
    const struct job *job = p->job;
    uint32_t row = task * CHUNK_ROWS;
    uint32_t n_rows = p->n_rows - row < CHUNK_ROWS ? p->n_rows - row : CHUNK_ROWS;
    size_t row_bytes = weights_source_row_bytes(job);
    unsigned char *src = p->in + row * row_bytes;
    uint32_t task_of_all = job->first_task + p->row / CHUNK_ROWS + task;

    if (weights_is_coded(job)) {
        pack_coded(j, task_of_all, row, n_rows, src);
        weights_forget_rows(job, p->row + row, n_rows);
        return;
    }
    if (job->tensor && job->tensor->codec) {
        job->tensor->codec->read_rows(job->tensor, job->row0 + p->row + row, n_rows,
                                      (float *)(void *)src);
        weights_forget_rows(job, p->row + row, n_rows);
    }
    if (job->tensor)
        weights_check_rows(j->l, job, task_of_all, src, n_rows);
    if (job->vec)
        weights_make_vec(job, src, n_rows, (float *)(void *)p->out + row);
    else if (!is_as_stored(job)) {
        if (job->tensor)
            weights_keep_columns(job, src, n_rows);
        pack_matrix(p, row, n_rows, src);
    }
}

/* --- copying --- */

static enum status copy(struct upload *u, void *dst, size_t dst_offset, const void *src,
                        size_t n_bytes)
{
    return device_upload_async(u->device, u->stream, (unsigned char *)dst + dst_offset, src,
                               n_bytes);
}

static enum status send_matrix(struct upload *u, const struct slot *p)
{
    struct pack_range from[2], to[2];
    struct weight w = piece_weight(p);
    uint32_t n_ranges = pack_row_ranges(&w, 0, p->n_rows, from);
    enum status s = OK;

    pack_row_ranges(p->job->w, p->job->n0 + p->row, p->n_rows, to);
    for (uint32_t i = 0; s == OK && i < n_ranges; i++)
        s = copy(u, (void *)(uintptr_t)p->job->w->data, to[i].offset,
                 (is_as_stored(p->job) ? p->in : p->out) + from[i].offset, to[i].n_bytes);
    return s;
}

static enum status send(struct upload *u, const struct slot *p)
{
    enum status s = p->job->vec ? copy(u, p->job->vec, p->row * sizeof(float), p->out,
                                       p->n_rows * sizeof(float))
                                : send_matrix(u, p);

    if (s == OK)
        s = device_event_record(u->device, p->sent, u->stream);
    return s;
}

/* --- all of it --- */

static enum status device_error(struct upload *u, enum status s)
{
    const char *words = device_failure(u->device);

    return buf_why(u->l->why, s, "cannot copy the weights to the device: %s",
                   words ? words : status_name(s));
}

static enum status start_piece(struct upload *u, uint32_t slot)
{
    enum status s = device_event_wait(u->device, u->slots[slot].sent);

    if (s != OK)
        return device_error(u, s);
    const struct tensor *t = u->slots[slot].job->tensor;
    return t && !t->codec ? start_reads(u, slot) : OK;
}

static enum status finish_piece(struct upload *u, const struct slot *p)
{
    struct pack_job pack = {u->l, p};
    enum status s = wait_reads(u, p);

    if (s != OK)
        return s;
    device_parallel(u->device, (p->n_rows + CHUNK_ROWS - 1) / CHUNK_ROWS, pack_task, &pack);
    s = send(u, p);
    u->n_bytes_done += p->n_rows * weights_source_row_bytes(p->job);
    log_progress(u);
    return s == OK ? OK : device_error(u, s);
}

/* N_SLOTS - 1 slots are being read, so the copy out of the last slot may take as long as one
 * piece. */
static enum status run(struct upload *u)
{
    uint64_t n_started = 0, n_finished = 0;
    bool more = true;
    enum status s = OK;

    while (s == OK) {
        while (s == OK && more && n_started - n_finished < N_SLOTS - 1) {
            more = next_piece(u, &u->slots[n_started % N_SLOTS]);
            if (more)
                s = start_piece(u, n_started++ % N_SLOTS);
        }
        if (s != OK || n_finished == n_started)
            break;
        s = finish_piece(u, &u->slots[n_finished++ % N_SLOTS]);
    }
    if (s == OK && (s = device_stream_wait(u->device, u->stream)) != OK)
        s = device_error(u, s);
    return s;
}

static enum status open_slots(struct upload *u)
{
    uint32_t n_reads = (uint32_t)((u->in_bytes + READ_BYTES - 1) / READ_BYTES);
    struct aio_region regions[N_SLOTS];

    if (n_reads > AIO_DEPTH_MAX / N_SLOTS)
        n_reads = AIO_DEPTH_MAX / N_SLOTS;
    u->read_bytes = (u->in_bytes + n_reads - 1) / n_reads;
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        struct slot *p = &u->slots[i];
        enum status s = device_event_create(u->device, &p->sent);
        if (s != OK)
            return device_error(u, s);
        p->in = device_alloc_pinned(u->device, u->in_bytes);
        p->out = device_alloc_pinned(u->device, u->out_bytes ? u->out_bytes : 1);
        if (!p->in || !p->out)
            return buf_why(u->l->why, ERR_NOMEM, "out of pinned memory for loading the weights");
        regions[i] = (struct aio_region){p->in, u->in_bytes};
    }
    if (u->l->config->dummy)
        return OK;
    struct aio_config aio = {.depth = N_SLOTS * n_reads, .regions = regions, .n_regions = N_SLOTS};
    return aio_open(&u->aio, &aio, u->l->why);
}

static void close_slots(struct upload *u)
{
    bool hung = aio_close(u->aio, clock_now_ns() + CLOSE_NS) != OK;

    /* After a failure, copies may still be reading the buffers. */
    (void)!device_stream_wait(u->device, u->stream);
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        device_event_destroy(u->device, u->slots[i].sent);
        if (!hung) /* else the kernel may still write to it */
            device_free_pinned(u->device, u->slots[i].in);
        device_free_pinned(u->device, u->slots[i].out);
    }
}

enum status weights_load_upload(struct loader *l)
{
    struct upload u = {.l = l, .device = l->config->device, .t_start = clock_now_ns()};
    enum status s;

    u.stream = device_stream(u.device, DEVICE_COPY_IN);
    u.t_progress = u.t_start;
    measure(&u);
    s = open_slots(&u);
    /* device_alloc() zeroes memory on the compute stream, which is not ordered with the copies. */
    if (s == OK && (s = device_stream_wait(u.device, NULL)) != OK)
        s = device_error(&u, s);
    if (s == OK)
        s = run(&u);
    close_slots(&u);
    return s;
}
