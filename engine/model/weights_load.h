/* weights_load.h - what the parts of weights.c share while a checkpoint is loaded.
 *
 * A job is one source tensor on its way into a weight, a table or a vector of floats; jobs are made
 * by weights.c in a fixed order. A task is CHUNK_ROWS rows of a job. On a host device tasks run in
 * any order and pack from the mapped file straight into place (weights_host.c); for a GPU they run
 * in pieces through buffers (weights_upload.c).
 *
 * Owns    jobs, CRCs and counts: weights_load(), for as long as it runs.
 * Thread  tasks run on the device's host threads; all else on the caller's.
 * Errors  as weights.h.
 * Units   rows, elements, bytes. */
#ifndef TARN_ENGINE_MODEL_WEIGHTS_LOAD_H
#define TARN_ENGINE_MODEL_WEIGHTS_LOAD_H

#include <stdatomic.h>

#include "engine/model/safetensors.h"
#include "engine/model/weights.h"

/* Rows that one task converts, sums and packs: fixed, because the list of their CRCs is hashed. */
#define CHUNK_ROWS 64

/* One source tensor on its way into a weight (w), a table or a vector of floats (vec). */
struct job {
    const struct tensor *tensor; /* NULL: dummy */
    struct weight *w;
    void *table; /* row-major copy in `dtype` instead of packing (embedding) */
    float *vec;
    enum dtype dtype;       /* of table, and of w unless that is quantized */
    uint32_t n0, n_rows, k; /* a vector has k = 0 */
    uint64_t seed;
    float scale; /* dummy: standard deviation; 0: all ones (norms) or zeros */
    float fill;  /* dummy vectors */
    bool again;  /* its tensor is a later job's too: counted and hashed there */
    uint32_t first_task;
};

struct loader {
    const struct weights_config *config;
    struct weights *w;
    struct buf *why;
    const char *embedding; /* name of its tensor, once planned */
    struct job *jobs;
    uint32_t n_jobs, cap;
    uint32_t n_tasks;
    uint32_t *crcs;        /* [n_tasks] */
    uint32_t *n_nonfinite; /* [n_tasks] */
    atomic_int failed;     /* enum status */
};

/* Rows [row, row + n_rows) of a dummy job, made up in job->dtype; rows of dst are dst_stride
 * elements apart. */
void weights_make_rows(const struct job *job, uint32_t row, uint32_t n_rows, void *dst,
                       size_t dst_stride);
/* The same from rows of the checkpoint, at any alignment. */
void weights_convert_rows(const struct job *job, const unsigned char *src, uint32_t n_rows,
                          void *dst, size_t dst_stride);
/* Elements [row, row + n_rows) of a vector job as floats; src is its tensor's element `row`. */
void weights_make_vec(const struct job *job, const unsigned char *src, uint32_t n_rows, float *dst);

/* Count the elements that are NaN or infinite; src has any alignment. */
uint64_t weights_count_nonfinite(enum dtype dtype, const unsigned char *src, size_t n_elements);
/* Take the CRC of a task's source rows, and count what is not finite in them. */
void weights_check_rows(const struct loader *l, const struct job *job, uint32_t task,
                        const unsigned char *src, uint32_t n_rows);

/* Bytes of one row in the checkpoint, also of a dummy tensor if it were in one. */
static inline size_t weights_source_row_bytes(const struct job *job)
{
    return (job->k ? job->k : 1) * dtype_bytes(job->tensor ? job->tensor->dtype : job->dtype);
}

static inline uint32_t weights_n_tasks(const struct job *job)
{
    return (job->n_rows + CHUNK_ROWS - 1) / CHUNK_ROWS;
}

/* Run all jobs, CRCs included; words on failure. */
NODISCARD enum status weights_load_host(struct loader *l);
NODISCARD enum status weights_load_upload(struct loader *l);

#endif
