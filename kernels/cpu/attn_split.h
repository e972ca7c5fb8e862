/* attn_split.h - attention of few tasks: every segment of a task becomes a task of its own.
 *
 * A decode step of one sequence has as many tasks as KV heads, maybe fewer than threads. Then
 * threads compute the tiles of its segments independently, a wave of segments at a time, and merge
 * them in segment order by the code of attn_body.h. So the bits are those of an unsplit task.
 *
 * Owns    nothing; tiles and unfinished results are in the device's scratch memory.
 * Thread  two jobs of the pool for each wave: tiles, then merging.
 * Errors  none.
 * Units   queries, segments, floats. */
#ifndef TARN_KERNELS_CPU_ATTN_SPLIT_H
#define TARN_KERNELS_CPU_ATTN_SPLIT_H

#include "kernels/cpu/attn.h"

/* Tasks of a thread on average from which on they are not split. */
#define ATTN_SPLIT_TASKS 2

struct attn_split {
    struct attn_job job;
    uint32_t n_rows;     /* of all sequences */
    uint32_t wave;       /* segments of a sequence in a wave */
    uint32_t seg0;       /* first segment of this wave, in each sequence */
    size_t query_floats; /* of a tile of one query */
    float *tiles;        /* sequence after sequence, [wave][n_rows, H] of it */
    float *state;        /* [n_rows, H]: results so far, like tiles */
};

/* Segments of a sequence in the running wave. */
static inline uint32_t attn_split_segs(const struct attn_split *a, const struct attn_seq *seq)
{
    return seq->n_segs <= a->seg0 ? 0 : min_u32(seq->n_segs - a->seg0, a->wave);
}

/* Tiles of segment i of the wave of a sequence. */
static inline float *attn_split_tiles(const struct attn_split *a, const struct attn_seq *seq,
                                      uint32_t i)
{
    size_t row = (size_t)a->wave * seq->row0 + (size_t)i * seq->n_rows;

    return a->tiles + row * a->job.p->n_heads * a->query_floats;
}

static void attn_split_tile_tasks(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct attn_split *a = arg;

    for (uint32_t i = begin; i < end; i++) {
        struct attn_task task = {.job = &a->job, .mem = &a->job.cpu->attn[thread]};
        const struct attn_seq *seq = a->job.p->seqs;
        uint32_t at = i, n;

        for (; at >= (n = attn_seq_tasks(&a->job, seq) * attn_split_segs(a, seq)); seq++)
            at -= n;
        uint32_t n_segs = attn_split_segs(a, seq), seg = at % n_segs;
        struct attn_seq part = *seq;

        part.seg0 += a->seg0 + seg;
        part.n_segs = 1;
        attn_task_place(&a->job, seq, at / n_segs, &task);
        task.seq = &part;
        task.tiles = attn_split_tiles(a, seq, seg);
        attn_clear_unseen(&task);
        attn_side_tasks_run((struct attn_side_tasks){&task, 1}, (struct attn_side_tasks){NULL, 0});
    }
}

/* Merge a query's tiles of the wave into its result in the thread's scratch memory. */
static void attn_split_merge(const struct attn_split *a, const struct attn_task *task, uint32_t i)
{
    const struct attn_job *job = &a->job;
    const struct cpu_attn_scratch *mem = task->mem;
    uint32_t query = task->query0 + i, row = query / job->n_shared, dim = job->dim;
    size_t in_seq = (size_t)row * job->p->n_heads + attn_head(task, query);
    float *state =
        a->state + ((size_t)task->seq->row0 * job->p->n_heads + in_seq) * a->query_floats;
    float *out = mem->out + (size_t)i * job->dim_padded;

    mem->sum[i] = 0;
    if (a->seg0 > 0) {
        memcpy(out, state, dim * sizeof(*out));
        mem->max[i] = state[dim];
        mem->sum[i] = state[dim + 1];
    }
    for (uint32_t s = 0; s < attn_split_segs(a, task->seq); s++) {
        const float *tile = attn_split_tiles(a, task->seq, s) + in_seq * a->query_floats;

        if (tile[dim + 1] != 0)
            attn_merge_kept(task, i, tile, job->amx);
    }
    memcpy(state, out, dim * sizeof(*out));
    state[dim] = mem->max[i];
    state[dim + 1] = mem->sum[i];
}

static void attn_split_merge_tasks(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct attn_split *a = arg;

    for (uint32_t i = begin; i < end; i++) {
        struct attn_task task = {.job = &a->job, .mem = &a->job.cpu->attn[thread]};

        attn_task_find(&a->job, i, &task);
        if (a->seg0 > 0 && task.seq->n_segs <= a->seg0)
            continue; /* it ended in an earlier wave */
        for (uint32_t q = 0; q < task.n_queries; q++)
            attn_split_merge(a, &task, q);
        if (task.seq->n_segs <= a->seg0 + a->wave)
            attn_write(&task, attn_unit_of_max(&a->job));
    }
}

/* Split the job if it has too few tasks, and run it. False: nothing was done. */
static bool attn_split_run(const struct attn_job *job)
{
    const struct attention_params *p = job->p;
    struct cpu *c = job->cpu;
    struct attn_split a = {.job = *job, .query_floats = job->dim + 2, .tiles = c->attn_tiles};
    uint32_t n_segs = 0;

    if (job->n_tasks >= ATTN_SPLIT_TASKS * pool_n_threads(c->pool) || p->window > 0)
        return false;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        uint32_t end = p->seqs[i].row0 + p->seqs[i].n_rows;

        a.n_rows = end > a.n_rows ? end : a.n_rows;
        n_segs = p->seqs[i].n_segs > n_segs ? p->seqs[i].n_segs : n_segs;
    }
    size_t segment = (size_t)a.n_rows * p->n_heads * a.query_floats;
    size_t n_fit = c->attn_tile_floats / segment;
    if (n_segs < 2 || n_fit < 3)
        return false;
    a.wave = min_u32(n_segs, n_fit - 1 > UINT32_MAX ? UINT32_MAX : (uint32_t)(n_fit - 1));
    a.state = a.tiles + a.wave * segment;
    for (; a.seg0 < n_segs; a.seg0 += a.wave) {
        uint32_t n = 0;

        for (uint32_t i = 0; i < p->n_seqs; i++)
            n += attn_seq_tasks(job, &p->seqs[i]) * attn_split_segs(&a, &p->seqs[i]);
        pool_run(c->pool, n, 1, attn_split_tile_tasks, &a);
        pool_run(c->pool, job->n_tasks, 1, attn_split_merge_tasks, &a);
    }
    return true;
}

#endif
