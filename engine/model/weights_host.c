/* weights_host.c - rows of a weight, from a checkpoint or generated, and packing them in place. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mapfile.h"
#include "engine/model/weights_load.h"
#include "kernels/pack.h"

/* NaN and infinity are the numbers whose exponent has all bits set. The count goes over blocks of a
 * fixed size, so that the compiler uses vector instructions. */
#define N_PER_BLOCK 256
/* A fault maps cached pages around its own, up to this many bytes before and behind. */
#define FAULT_BYTES ((uint64_t)64 << 10)
#define STRETCH_BYTES ((uint64_t)1 << 20)
/* Numbers from here on are infinite in f16. */
#define F16_END 65520.0f

struct any_16 { /* may have any alignment */
    uint16_t v;
} __attribute__((packed, may_alias));

struct any_32 {
    uint32_t v;
} __attribute__((packed, may_alias));

static inline uint32_t count_block_16(const unsigned char *src, uint16_t exponent)
{
    const struct any_16 *x = (const struct any_16 *)src;
    uint16_t count = 0;

    for (int i = 0; i < N_PER_BLOCK; i++)
        count = (uint16_t)(count + ((x[i].v & exponent) == exponent));
    return count;
}

static inline uint32_t count_block_32(const unsigned char *src, uint32_t exponent)
{
    const struct any_32 *x = (const struct any_32 *)src;
    uint32_t count = 0;

    for (int i = 0; i < N_PER_BLOCK; i++)
        count += (x[i].v & exponent) == exponent;
    return count;
}

static uint32_t count_block(enum dtype dtype, const unsigned char *src)
{
    return dtype == DTYPE_F32   ? count_block_32(src, 0x7f800000u)
           : dtype == DTYPE_F16 ? count_block_16(src, 0x7c00u)
                                : count_block_16(src, 0x7f80u);
}

uint64_t weights_count_nonfinite(enum dtype dtype, const unsigned char *src, size_t n_elements)
{
    size_t size = dtype_bytes(dtype), n_whole = n_elements / N_PER_BLOCK * N_PER_BLOCK;
    unsigned char rest[N_PER_BLOCK * sizeof(float)] = {0};
    uint64_t count = 0;

    for (size_t i = 0; i < n_whole; i += N_PER_BLOCK)
        count += count_block(dtype, src + i * size);
    memcpy(rest, src + n_whole * size, (n_elements - n_whole) * size);
    return count + count_block(dtype, rest);
}

void weights_check_rows(const struct loader *l, const struct job *job, uint32_t task,
                        const unsigned char *src, uint32_t n_rows)
{
    size_t n = (size_t)n_rows * (job->k_all ? job->k_all : 1);

    enum dtype dtype = tensor_dtype(job->tensor);

    l->crcs[task] = hash_crc32c(0, src, n * dtype_bytes(dtype));
    l->n_nonfinite[task] = (uint32_t)weights_count_nonfinite(dtype, src, n);
}

struct coded_rows weights_read_codes(const struct job *job, uint32_t row, uint32_t n_rows,
                                     unsigned char *memory)
{
    size_t n = (size_t)n_rows * weights_n_code_groups(job);
    struct coded_rows r = {.scales = (float *)(void *)memory};

    r.offsets = r.scales + n;
    r.codes = (uint8_t *)(r.offsets + n);
    job->tensor->codec->read_codes(job->tensor, job->row0 + row, n_rows, r.codes, r.scales,
                                   r.offsets);
    return r;
}

/* Rows [n_rows] of all_bytes, of which n_bytes from `at` on are kept. */
static void keep_part(void *rows, uint32_t n_rows, size_t all_bytes, size_t at, size_t n_bytes)
{
    unsigned char *p = rows;

    for (size_t r = 0; r < n_rows; r++)
        memmove(p + r * n_bytes, p + r * all_bytes + at, n_bytes);
}

void weights_keep_columns(const struct job *job, unsigned char *src, uint32_t n_rows)
{
    size_t size = dtype_bytes(job->tensor ? tensor_dtype(job->tensor) : job->dtype);

    if (job->k != job->k_all)
        keep_part(src, n_rows, job->k_all * size, job->k0 * size, job->k * size);
}

/* The plan has checked that the columns are whole groups. */
void weights_keep_codes(const struct job *job, struct coded_rows *rows, uint32_t n_rows)
{
    size_t group = job->tensor->code_group, size = sizeof(float);
    size_t all = weights_n_code_groups(job) * size, at = job->k0 / group * size;
    size_t kept = (job->k + group - 1) / group * size;

    if (job->k == job->k_all)
        return;
    keep_part(rows->codes, n_rows, job->k_all, job->k0, job->k);
    keep_part(rows->scales, n_rows, all, at, kept);
    keep_part(rows->offsets, n_rows, all, at, kept);
}

void weights_check_codes(const struct loader *l, const struct job *job, uint32_t task,
                         const struct coded_rows *rows, uint32_t n_rows)
{
    uint32_t n_groups = weights_n_code_groups(job), group = job->tensor->code_group, n_bad = 0;
    float end = job->tensor->code_is_f8 ? INFINITY : F16_END;
    size_t n = (size_t)n_rows * n_groups;
    uint32_t crc = hash_crc32c(0, rows->codes, (size_t)n_rows * job->k_all);

    crc = hash_crc32c(crc, rows->scales, n * sizeof(float));
    l->crcs[task] = hash_crc32c(crc, rows->offsets, n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(rows->scales[i]) < end && fabsf(rows->offsets[i]) < end)) {
            uint32_t k = (uint32_t)(i % n_groups) * group;

            n_bad += job->k_all - k < group ? job->k_all - k : group;
        }
    l->n_nonfinite[task] = n_bad;
}

static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* The sum of four uniform 16-bit numbers is close to a normal distribution, and depends only on
 * (seed, row, column). */
void weights_make_rows(const struct job *job, uint32_t row, uint32_t n_rows, void *dst,
                       size_t dst_stride)
{
    const float unit = job->scale * sqrtf(3.0f) / 65536.0f;

    for (uint64_t r = 0; r < n_rows; r++)
        for (uint64_t c = 0; c < job->k; c++) {
            uint64_t x = mix(job->seed + (job->row0 + row + r) * job->k_all + job->k0 + c);
            int sum = (int)(x & 0xffff) + (int)(x >> 16 & 0xffff) + (int)(x >> 32 & 0xffff) +
                      (int)(x >> 48) - 2 * 65535;
            dtype_store(job->dtype, dst, r * dst_stride + c, (float)sum * unit);
        }
}

void weights_convert_rows(const struct job *job, const unsigned char *src, uint32_t n_rows,
                          void *dst, size_t dst_stride)
{
    enum dtype from = tensor_dtype(job->tensor);
    size_t size = dtype_bytes(job->dtype);

    for (size_t r = 0; r < n_rows; r++, src += job->k * dtype_bytes(from))
        dtype_convert(job->dtype, (char *)dst + r * dst_stride * size, from, src, job->k);
}

void weights_make_vec(const struct job *job, const unsigned char *src, uint32_t n_rows, float *dst)
{
    for (uint32_t i = 0; i < n_rows; i++) {
        unsigned char element[4];
        if (!job->tensor) {
            dst[i] = job->fill;
            continue;
        }
        enum dtype from = tensor_dtype(job->tensor);
        size_t size = dtype_bytes(from);
        memcpy(element, src + i * size, size);
        dst[i] = dtype_load(from, element, 0) + job->offset;
    }
}

/* Whether `data` has the rows one behind the other, and all that is read of them. */
static bool has_rows_apart(const struct tensor *t)
{
    return t->data && !t->parts[0] && t->n_bytes % t->shape[0] == 0;
}

void weights_forget_rows(const struct job *job, uint32_t row, uint32_t n_rows)
{
    const struct tensor *t = job->tensor;

    if (!t || (!job->w && !job->table && !job->vec)) /* the embedding is used in the mapped file */
        return;
    if (!has_rows_apart(t)) {
        for (uint32_t i = 0; row + n_rows == job->n_rows && i < TENSOR_N_PARTS_MAX; i++)
            if (t->parts[i])
                mapfile_forget(t->parts[i]->data, t->parts[i]->n_bytes);
        return;
    }
    uint64_t row_bytes = t->n_bytes / t->shape[0];
    uint64_t begin = (job->row0 + (uint64_t)row) * row_bytes, end = begin + n_rows * row_bytes;
    /* A codec that puts rows in order reads neighbours, too. */
    uint64_t around = FAULT_BYTES + (uint64_t)CHUNK_ROWS * row_bytes;
    begin -= begin < around ? begin : around;
    end += t->n_bytes - end < around ? t->n_bytes - end : around;
    mapfile_forget((const unsigned char *)t->data + begin, end - begin);
}

static enum status run_matrix(const struct job *job, uint32_t row, uint32_t n_rows,
                              const unsigned char *src)
{
    size_t row_bytes = (size_t)job->k * dtype_bytes(job->dtype);
    bool quantized = job->w && job->w->group;
    /* The format promises no alignment: unaligned rows are copied, like rows of another dtype. The
     * quantizer reads any alignment. */
    enum dtype from = job->tensor ? tensor_dtype(job->tensor) : job->dtype;
    bool as_is =
        job->tensor &&
        (quantized || (from == job->dtype && (uintptr_t)src % dtype_bytes(job->dtype) == 0));
    unsigned char *to = NULL, *scratch = NULL;

    if (!job->table && !job->w)
        return OK; /* the embedding is used in place; only its CRC is needed */
    if (job->table)
        to = (unsigned char *)job->table + row * row_bytes;
    else if (!as_is && !(to = scratch = malloc(n_rows * row_bytes)))
        return ERR_NOMEM;
    if (!job->tensor)
        weights_make_rows(job, row, n_rows, to, job->k);
    else if (to)
        weights_convert_rows(job, src, n_rows, to, job->k);
    if (quantized)
        pack_quantize_rows(job->w, job->n0 + row, to ? job->dtype : from, to ? to : src, n_rows);
    else if (job->w)
        pack_rows(job->w, job->n0 + row, to ? to : src, n_rows);
    free(scratch);
    return OK;
}

/* The last job with first_task <= task. */
static const struct job *find_job(const struct loader *l, uint32_t task)
{
    uint32_t low = 0, high = l->n_jobs;

    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (l->jobs[mid].first_task <= task)
            low = mid;
        else
            high = mid;
    }
    return &l->jobs[low];
}

static enum status run_rows(struct loader *l, const struct job *job, uint32_t task, uint32_t row,
                            uint32_t n_rows, const unsigned char *src)
{
    if (job->tensor)
        weights_check_rows(l, job, task, src, n_rows);
    if (!job->vec)
        return run_matrix(job, row, n_rows, src);
    weights_make_vec(job, src, n_rows, job->vec + row);
    return OK;
}

static enum status run_coded(struct loader *l, const struct job *job, uint32_t task, uint32_t row,
                             uint32_t n_rows)
{
    unsigned char *memory = malloc(n_rows * weights_source_row_bytes(job));

    if (!memory)
        return ERR_NOMEM;
    struct coded_rows rows = weights_read_codes(job, row, n_rows, memory);
    weights_check_codes(l, job, task, &rows, n_rows);
    pack_coded_rows(job->w, job->n0 + row, rows.codes, rows.scales, rows.offsets,
                    job->tensor->code_group, n_rows);
    free(memory);
    return OK;
}

static enum status run_decoded(struct loader *l, const struct job *job, uint32_t task, uint32_t row,
                               uint32_t n_rows)
{
    float *rows = malloc(n_rows * weights_source_row_bytes(job));
    enum status s = rows ? OK : ERR_NOMEM;

    if (s == OK) {
        job->tensor->codec->read_rows(job->tensor, job->row0 + row, n_rows, rows);
        s = run_rows(l, job, task, row, n_rows, (const unsigned char *)rows);
    }
    free(rows);
    return s;
}

/* Tasks of a stretch: rows whose mapped memory is released together, since each release interrupts
 * the other threads. */
static uint32_t stretch_tasks(const struct job *job)
{
    const struct tensor *t = job->tensor;
    uint32_t n_tasks = weights_n_tasks(job);

    if (!has_rows_apart(t))
        return n_tasks;
    uint64_t n = STRETCH_BYTES / (t->n_bytes / t->shape[0] * CHUNK_ROWS + 1) + 1;
    return n < n_tasks ? (uint32_t)n : n_tasks;
}

/* A task is done: the last one of a stretch releases its memory. */
static void forget_task(struct loader *l, const struct job *job, uint32_t task)
{
    if (!job->tensor)
        return;
    uint32_t per_stretch = stretch_tasks(job), n_tasks = weights_n_tasks(job);
    uint32_t first = (task - job->first_task) / per_stretch * per_stretch;
    uint32_t n = n_tasks - first < per_stretch ? n_tasks - first : per_stretch;
    uint32_t row = first * CHUNK_ROWS, n_rows = job->n_rows - row;

    if (atomic_fetch_add(&l->n_done[job->first_task + first], 1) + 1 == n)
        weights_forget_rows(job, row, n * CHUNK_ROWS < n_rows ? n * CHUNK_ROWS : n_rows);
}

static void run_task(void *arg, uint32_t task)
{
    struct loader *l = arg;
    const struct job *job = find_job(l, task);
    uint32_t row = (task - job->first_task) * CHUNK_ROWS;
    uint32_t n_rows = job->n_rows - row < CHUNK_ROWS ? job->n_rows - row : CHUNK_ROWS;
    const unsigned char *data = job->tensor ? job->tensor->data : NULL;
    enum status s;

    if (weights_is_coded(job))
        s = run_coded(l, job, task, row, n_rows);
    else if (job->tensor && job->tensor->codec)
        s = run_decoded(l, job, task, row, n_rows);
    else
        s = run_rows(l, job, task, row, n_rows,
                     data ? data + (job->row0 + row) * weights_source_row_bytes(job) : NULL);
    forget_task(l, job, task);
    if (s != OK)
        atomic_store(&l->failed, (int)s);
}

enum status weights_load_host(struct loader *l)
{
    l->n_done = calloc(l->n_tasks + 1, sizeof *l->n_done);
    if (!l->n_done)
        return buf_why(l->why, ERR_NOMEM, "out of memory");
    device_parallel(l->config->device, l->n_tasks, run_task, l);
    free(l->n_done);
    enum status s = (enum status)atomic_load(&l->failed);
    return s == OK ? OK : buf_why(l->why, s, "out of memory while packing the weights");
}
