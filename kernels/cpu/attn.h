/* attn.h - the parts that both attention kernels share: the job, its tasks, and writing results.
 *
 * A query is one head of one row. The queries of all heads that share a KV head are computed
 * together, so that a key is read once for all of them. A task is some of these queries.
 *
 * Owns    nothing; results are in the thread's scratch memory until attn_write().
 * Thread  a task runs on one thread of the pool.
 * Errors  none.
 * Units   queries, keys, elements. */
#ifndef TARN_KERNELS_CPU_ATTN_H
#define TARN_KERNELS_CPU_ATTN_H

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "kernels/cpu/chain.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pool.h"

/* Constants of one call. */
struct attn_job {
    const struct attention_params *p;
    struct cpu *cpu;
    struct kv_strides kv;
    uint32_t n_shared; /* query heads per KV head */
    uint32_t dim;
    uint32_t dim_padded; /* dim rounded up to whole panels; the stride of a task's results */
    uint32_t n_tasks;
    uint32_t task_queries; /* most queries of a task */
    size_t scales_at;      /* bytes from a head's elements to its scales, if any */
    uint32_t type;         /* the place of the KV's type among the kernels */
    bool keeps_tiles;      /* attention_tiles(): p->out receives tiles instead of results */
    bool amx;              /* the kernel of matrix tiles, which has no windows and soft caps */
};

/* One task: queries [query0, query0 + n_queries) of one sequence and KV head. Query i is head i %
 * n_shared (of this KV head) of row i / n_shared. */
struct attn_task {
    const struct attn_job *job;
    const struct attn_seq *seq;
    const struct cpu_attn_scratch *mem;
    uint32_t kv_head;
    uint32_t query0;
    uint32_t n_queries;
    float *tiles; /* [n_segs][n_rows, H, d + 2] of the sequence; NULL: tiles are merged */
};

/* A group of queries on one segment. */
struct attn_group {
    const struct attn_task *task;
    const struct attn_segment *seg;
    /* The task in its place behind the segment, to prefetch; NULL: none is known. */
    const struct attn_task *next_task;
    const struct attn_segment *next;
    const float *q;            /* [d][rows] */
    uint32_t first;            /* index of its first query in the task */
    uint32_t n_common;         /* keys that every row sees */
    uint32_t n_any;            /* keys that some row sees */
    uint32_t n_keys[ROWS_MAX]; /* keys that each row sees */
    /* With a window: of these keys, each row does not see the first ones. */
    uint32_t hidden[ROWS_MAX]; /* ascending */
};

/* Groups of at most so many rows come in sides (attn_kernel.h). */
#define ATTN_FEW_ROWS 3
/* Types of KV: the float types, then I8 and F8. */
#define ATTN_TYPES (DTYPE_FLOATS + 2)
/* Kernels of n groups that differ in their KV head only, by the rows of a group, from 1 on, and the
 * type of KV; NULL: no instance. Each variant has a table (attn_groups.h). That of avx512 also
 * serves variants with more instructions: for all types with AMX, for f32 and f16 with pairs of
 * bf16. */
#if VW == 16
extern void (*const attn_groups_avx512[ROWS_MAX][ATTN_TYPES])(const struct attn_group *, uint32_t);
#ifdef HAVE_AMX
#define attn_groups attn_groups_avx512
#endif
#endif

static inline uint32_t attn_head(const struct attn_task *task, uint32_t query)
{
    return task->kv_head * task->job->n_shared + query % task->job->n_shared;
}

static inline const float *attn_query(const struct attn_task *task, uint32_t i)
{
    const struct attention_params *p = task->job->p;
    uint32_t query = task->query0 + i;

    return p->q + (task->seq->row0 + query / task->job->n_shared) * p->q_stride +
           (size_t)attn_head(task, query) * task->job->dim;
}

/* Number of the segment's keys that this query's row sees. */
static uint32_t attn_visible(const struct attn_task *task, const struct attn_segment *seg,
                             uint32_t query)
{
    uint32_t row =
        task->job->p->bidirectional ? task->seq->n_rows - 1 : query / task->job->n_shared;
    uint32_t pos = task->seq->pos0 + row;

    return pos < seg->pos0 ? 0 : min_u32(pos - seg->pos0 + 1, seg->n_tokens);
}

/* Number of the segment's first keys that lie before the window of this query's row. */
static uint32_t attn_hidden(const struct attn_task *task, const struct attn_segment *seg,
                            uint32_t query)
{
    uint32_t end = task->seq->pos0 + query / task->job->n_shared + 1;
    uint32_t window = task->job->p->window;
    uint32_t first = window > 0 && end > window ? end - window : 0;

    return first < seg->pos0 ? 0 : min_u32(first - seg->pos0, seg->n_tokens);
}

/* Place of the tile of query i of the task on one segment. */
static inline float *attn_tile(const struct attn_task *task, const struct attn_segment *seg,
                               uint32_t i)
{
    const struct attn_job *job = task->job;
    uint32_t query = task->query0 + i;
    size_t segment = (size_t)(seg - (job->p->segments + task->seq->seg0));
    size_t row = segment * task->seq->n_rows + query / job->n_shared;

    return task->tiles + (row * job->p->n_heads + attn_head(task, query)) * (job->dim + 2);
}

/* Write zeros as the tiles of queries that see no key of a segment. */
static void attn_clear_unseen(const struct attn_task *task)
{
    const struct attn_segment *segs = task->job->p->segments + task->seq->seg0;

    for (uint32_t s = 0; s < task->seq->n_segs; s++)
        for (uint32_t i = 0; i < task->n_queries; i++)
            if (attn_visible(task, &segs[s], task->query0 + i) == 0)
                memset(attn_tile(task, &segs[s], i), 0, (task->job->dim + 2) * sizeof(float));
}

/* Write the results and their log-sum-exp. `unit`: nats per unit of the running maxima (ln 2 if exp
 * is to base 2). */
static void attn_write(const struct attn_task *task, float unit)
{
    const struct attn_job *job = task->job;

    for (uint32_t i = 0; i < task->n_queries; i++) {
        uint32_t query = task->query0 + i;
        size_t row = task->seq->row0 + query / job->n_shared;
        float *out = job->p->out + (row * job->p->n_heads + attn_head(task, query)) * job->dim;
        const float *src = task->mem->out + (size_t)i * job->dim_padded;
        float sum = task->mem->sum[i];
        vf inv = v_set1(1.0f / sum);

        if (job->p->lse)
            job->p->lse[row * job->p->n_heads + attn_head(task, query)] =
                sum == 0 ? -INFINITY : task->mem->max[i] * unit + logf(sum);
        if (sum == 0) { /* partial attention, and this part has no visible key */
            memset(out, 0, job->dim * sizeof(*out));
            continue;
        }
        for (uint32_t k = 0; k < job->dim; k += VW)
            v_store_n(out + k, v_load(src + k) * inv, min_u32(job->dim - k, VW));
    }
}

/* Merge the tile into the row's running result by log-sum-exp. */
static void attn_merge(const struct attn_task *task, uint32_t query, const float *tile,
                       float tile_max, float tile_sum)
{
    uint32_t n = task->job->dim_padded;
    float *out = task->mem->out + (size_t)query * n;
    float *max = &task->mem->max[query];
    float *sum = &task->mem->sum[query];

    if (*sum == 0) { /* the first tile; later the sum is at least 1, or NaN */
        for (uint32_t i = 0; i < n; i += VW)
            v_store(out + i, v_load(tile + i));
        *max = tile_max;
        *sum = tile_sum;
        return;
    }
    float both = *max > tile_max ? *max : tile_max;
    vf old_scale = v_exp(v_set1(*max - both));
    vf new_scale = v_exp(v_set1(tile_max - both));

    for (uint32_t i = 0; i < n; i += VW)
        v_store(out + i, v_fma(v_load(tile + i), new_scale, v_load(out + i) * old_scale));
    *sum = *sum * old_scale[0] + tile_sum * new_scale[0];
    *max = both;
}

#endif
