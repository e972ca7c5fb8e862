/* weights_load.h - jobs and tasks, which the parts of the weight loader share.
 *
 * A job copies one source tensor into a weight, a table or a vector of floats; the family's plan
 * makes the jobs in a fixed order. A task is CHUNK_ROWS rows of a job. On a host device, tasks run
 * in any order and pack from the mapped file into place (weights_host.c). For a GPU, pieces of jobs
 * pass through buffers (weights_upload.c).
 *
 * Owns    jobs, CRCs and counts: weights_load(), for as long as it runs.
 * Thread  tasks run on the device's host threads; all else on the caller's.
 * Errors  as weights.h.
 * Units   rows, elements, bytes. */
#ifndef TARN_ENGINE_MODEL_WEIGHTS_LOAD_H
#define TARN_ENGINE_MODEL_WEIGHTS_LOAD_H

#include <stdatomic.h>
#include <sys/stat.h>

#include "engine/model/checkpoint.h"
#include "engine/model/weights.h"

/* Rows of one task. Fixed, because the content hash covers the list of the tasks' CRCs. */
#define CHUNK_ROWS 64

/* One source tensor, and its destination: a weight (w), a table or a vector of floats (vec). */
struct job {
    const struct tensor *tensor; /* NULL: dummy */
    struct weight *w;
    void *table; /* row-major copy in `dtype` instead of packing (embedding) */
    float *vec;
    enum dtype dtype;       /* of table, and of w unless that is quantized */
    uint32_t n0, n_rows, k; /* a vector has k = 0 */
    uint32_t row0;          /* the tensor's row that is the first one, */
    uint32_t k0, k_all;     /* and its first column, of k_all; k0 = 0 and k_all = k: all of a row */
    uint32_t n_shares;      /* ranks that have other parts of the tensor, this one included */
    uint64_t seed;
    float scale;  /* dummy: standard deviation; 0: all ones (norms) or zeros */
    float fill;   /* dummy vectors */
    float offset; /* is added to a vector's elements */
    bool again;   /* a later job reads the same tensor, and is counted and hashed for it */
    uint32_t first_task;
};

struct weights_measure;

struct loader {
    const struct weights_config *config;
    struct weights *w;
    struct weights_measure *measure; /* NULL: load; else nothing is allocated or read */
    struct buf *why;
    struct stat config_file; /* config.json before checkpoint_open(); zeros: a GGUF file */
    const char *embedding;   /* name of its tensor, once planned */
    bool uses_file;          /* a weight lies in the mapped file */
    struct job *jobs;
    uint32_t n_jobs, cap;
    uint32_t n_tasks;
    uint32_t *crcs;        /* [n_tasks] */
    uint32_t *n_nonfinite; /* [n_tasks] */
    atomic_uint *n_done;   /* [n_tasks] of a stretch, at its first task: weights_host.c */
    atomic_int failed;     /* enum status */
};

/* Write random rows [row, row + n_rows) of a dummy job in job->dtype; rows of dst are dst_stride
 * elements apart. */
void weights_make_rows(const struct job *job, uint32_t row, uint32_t n_rows, void *dst,
                       size_t dst_stride);
/* Convert rows of the checkpoint (tensor_dtype()), at any alignment, to job->dtype. */
void weights_convert_rows(const struct job *job, const unsigned char *src, uint32_t n_rows,
                          void *dst, size_t dst_stride);
/* Write elements [row, row + n_rows) of a vector job as floats; src is the tensor's element
 * `row`. */
void weights_make_vec(const struct job *job, const unsigned char *src, uint32_t n_rows, float *dst);

/* Count the elements that are NaN or infinite; src has any alignment. */
uint64_t weights_count_nonfinite(enum dtype dtype, const unsigned char *src, size_t n_elements);
/* Compute the CRC of a task's source rows; count their values that are not finite. */
void weights_check_rows(const struct loader *l, const struct job *job, uint32_t task,
                        const unsigned char *src, uint32_t n_rows);

/* Whether a job's rows are read as codes. */
static inline bool weights_is_coded(const struct job *job)
{
    const struct weight *w = job->w;

    return w && (dtype_is_affine(w->dtype) ||
                 (w->dtype == DTYPE_F8 && job->tensor && job->tensor->code_is_f8));
}

/* Rows of a coded job, in memory of n_rows * weights_source_row_bytes(). */
struct coded_rows {
    float *scales, *offsets; /* [n_rows, groups] */
    uint8_t *codes;          /* [n_rows, k] */
};
struct coded_rows weights_read_codes(const struct job *job, uint32_t row, uint32_t n_rows,
                                     unsigned char *memory);
/* weights_check_rows() for codes: the count is of elements whose scale or offset is not finite. */
void weights_check_codes(const struct loader *l, const struct job *job, uint32_t task,
                         const struct coded_rows *rows, uint32_t n_rows);

/* Keep columns [k0, k0 + k) of rows [n_rows, k_all] that were read and checked: move them together,
 * in place. No effect on whole rows. */
void weights_keep_columns(const struct job *job, unsigned char *src, uint32_t n_rows);
void weights_keep_codes(const struct job *job, struct coded_rows *rows, uint32_t n_rows);

/* Release the mapped memory of rows that were read, so that a load takes little more memory than
 * the weights. A tensor whose codec reads other parts than `data` is released with all its parts,
 * and only by its last row. */
void weights_forget_rows(const struct job *job, uint32_t row, uint32_t n_rows);

static inline uint32_t weights_n_code_groups(const struct job *job)
{
    return (job->k_all - 1) / job->tensor->code_group + 1;
}

/* Bytes of one row as the loader reads it, with all columns: decoded, where the tensor has a codec;
 * of a dummy tensor, as if it were stored in job->dtype. Coded rows are multiples of 4 bytes. */
static inline size_t weights_source_row_bytes(const struct job *job)
{
    if (weights_is_coded(job))
        return ((size_t)job->k_all + 3) / 4 * 4 + weights_n_code_groups(job) * 2 * sizeof(float);
    return (job->k_all ? job->k_all : 1) *
           dtype_bytes(job->tensor ? tensor_dtype(job->tensor) : job->dtype);
}

static inline uint32_t weights_n_tasks(const struct job *job)
{
    return (job->n_rows + CHUNK_ROWS - 1) / CHUNK_ROWS;
}

/* Let the output layer of a tied model, which was loaded whole because it is the embedding, too, be
 * this rank's rows of it: no memory is taken for them. Scales lie behind the rows of a quantized
 * weight, which stays whole. */
void weights_share_output(struct loader *l);

/* Run all jobs, CRCs included. Errors have words. */
NODISCARD enum status weights_load_host(struct loader *l);
NODISCARD enum status weights_load_upload(struct loader *l);

#endif
