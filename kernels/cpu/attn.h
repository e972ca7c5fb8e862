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
};

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
    uint32_t pos = task->seq->pos0 + query / task->job->n_shared;

    return pos < seg->pos0 ? 0 : min_u32(pos - seg->pos0 + 1, seg->n_tokens);
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

#endif
