/* attn_body.h - attention over tiles that are segments; compiled once per variant.
 *
 * A task (attn.h) walks the segments with up to ATTN_QUERIES queries in register groups:
 *
 *   score[r][j] = q[r] . k[j]          a chain over d, 32 keys in lanes        (chain.h)
 *   max, exp, sum over the tile        lane l has keys l, l + VW, ...
 *   tile[r][i] = sum_j p[r][j] v[j][i] a chain over visible keys, d in lanes   (chain.h)
 *   out = merge(out, tile)             log-sum-exp, segments in order
 *
 * Why a row's bits do not depend on the rest of the batch (promise P1): all four operations treat
 * each query separately. A key's lane is its index in the tile. The score of a key that the row
 * does not see is replaced by -inf before the maximum and by 0 after exp, whatever its slot
 * contains (it may be unwritten). The sum over V begins at the row's first visible key, which a
 * window puts behind the first of the segment, and stops at the last one, instead of multiplying by
 * 0, because 0 * inf is NaN.
 *
 * KV of one byte: the chains run over the numbers without their scales. A score is multiplied by
 * its key's scale before all else, and p[r][j] by the scale of value j once p is summed. Both
 * operations, too, treat each query and key separately.
 *
 * KV in bf16 or of one byte, in the variant avx512bf16: a link of both chains is the instruction
 * that adds two products. Queries and p are rounded to bf16 (p once it is summed and scaled). Links
 * are the dimensions or keys 2 i and 2 i + 1 of a segment for every row; where a row sees one key
 * of a link, the other half of both factors is 0. */
#ifndef TARN_KERNELS_CPU_ATTN_BODY_H
#define TARN_KERNELS_CPU_ATTN_BODY_H

#include "kernels/cpu/attn_load.h"
#ifdef HAVE_AMX
#include "kernels/cpu/attn_amx.h"
#else
#include "kernels/cpu/attn_groups.h"
#endif

/* Multiply-adds below which waking the pool costs more than it saves. */
#define ATTN_ALONE_MAX (64u << 10)
/* Chunks of tasks that a thread gets on average: a task prefetches the first keys of the next one
 * of its chunk, and with few chunks threads end at different times. */
#define ATTN_CHUNKS 8
/* Tasks of a chunk at least, where all of them have few queries: they share a side. */
#define ATTN_CHUNK_SIDE 4
/* Most queries of a task; they walk the segments together. */
#define ATTN_QUERIES 48
/* Most tasks that walk the segments side by side. The scratch memory holds the scores of
 * CPU_ATTN_ROWS_MAX rows. */
#define ATTN_SIDE_MAX 8

static void attn_group_run(uint32_t rows, uint32_t type, const struct attn_group *g, uint32_t n)
{
#if ATTN_HAVE_DOT
    if (type < DTYPE_BF16) {
        attn_groups_avx512[rows - 1][type](g, n);
        return;
    }
#endif
    attn_groups[rows - 1][type](g, n);
}

/* The largest group size with an instance that n queries fill. */
static uint32_t attn_group_rows(uint32_t n)
{
    uint32_t rows = min_u32(n, ROWS_MAX);

    while (!attn_groups[rows - 1][DTYPE_BF16])
        rows--;
    return rows;
}

/* Write x[r][i] * scale to dst[i * rows + r] for 4 rows and i < n, a multiple of 4. */
static void attn_pack_4(float *dst, uint32_t rows, const float *const x[4], uint32_t n, float scale)
{
    typedef float v4 __attribute__((vector_size(16)));
    v4 a[4], b[4];

    for (uint32_t i = 0; i < n; i += 4, dst += 4 * rows) {
        for (int r = 0; r < 4; r++) {
            memcpy(&a[r], x[r] + i, sizeof(a[r]));
            a[r] *= scale;
        }
        b[0] = __builtin_shufflevector(a[0], a[1], 0, 4, 1, 5);
        b[1] = __builtin_shufflevector(a[0], a[1], 2, 6, 3, 7);
        b[2] = __builtin_shufflevector(a[2], a[3], 0, 4, 1, 5);
        b[3] = __builtin_shufflevector(a[2], a[3], 2, 6, 3, 7);
        a[0] = __builtin_shufflevector(b[0], b[2], 0, 1, 4, 5);
        a[1] = __builtin_shufflevector(b[0], b[2], 2, 3, 6, 7);
        a[2] = __builtin_shufflevector(b[1], b[3], 0, 1, 4, 5);
        a[3] = __builtin_shufflevector(b[1], b[3], 2, 3, 6, 7);
        for (uint32_t j = 0; j < 4; j++)
            memcpy(dst + j * rows, &a[j], sizeof(a[j]));
    }
}

/* Scale query r of `rows`, round it to bf16 and write it as words of pairs, rows words apart. */
static void attn_pack_words(float *dst, uint32_t rows, const float *q, uint32_t n, float scale)
{
    for (uint32_t i = 0; i < n; i += 2 * VW) {
        uint32_t part = min_u32(n - i, 2 * VW);
        float x[2 * VW], words[VW];

        for (uint32_t k = 0; k < part; k++)
            x[k] = q[i + k] * scale;
        bf16_pairs(words, x, part, true);
        for (uint32_t k = 0; 2 * k < part; k++)
            memcpy(dst + (size_t)(i / 2 + k) * rows, &words[k], sizeof(*dst));
    }
}

/* Scale the queries and pack them [d][rows], or as words [d / 2][rows], group after group. */
static void attn_pack(const struct attn_task *task)
{
    const struct attention_params *p = task->job->p;
    const bool dot = attn_is_dot(p->pool.layout.dtype);
    uint32_t dim = task->job->dim;
    float scale = p->scale * attn_unit(p->pool.layout.dtype);
    uint32_t rows;

    for (uint32_t first = 0; first < task->n_queries; first += rows) {
        float *dst = task->mem->q + (size_t)first * dim;
        uint32_t r = 0;

        rows = attn_group_rows(task->n_queries - first);
        for (; dot && r < rows; r++)
            attn_pack_words(dst + r, rows, attn_query(task, first + r), dim, scale);
        for (; r + 4 <= rows && dim % 4 == 0; r += 4) {
            const float *x[4] = {attn_query(task, first + r), attn_query(task, first + r + 1),
                                 attn_query(task, first + r + 2), attn_query(task, first + r + 3)};

            attn_pack_4(dst + r, rows, x, dim, scale);
        }
        for (; r < rows; r++) {
            const float *q = attn_query(task, first + r);

            for (uint32_t i = 0; i < dim; i++)
                dst[(size_t)i * rows + r] = q[i] * scale;
        }
    }
}

/* Tasks that walk segments side by side: of one sequence, with equal queries and ascending KV
 * heads. More than one only with few queries. */
struct attn_side_tasks {
    const struct attn_task *tasks;
    uint32_t n;
};

/* The group of n_rows queries from `first` on. */
static void attn_group_init(struct attn_group *g, const struct attn_task *task,
                            const struct attn_segment *seg, uint32_t first, uint32_t n_rows)
{
    g->task = task;
    g->seg = seg;
    g->first = first;
    g->q = task->mem->q + (size_t)first * task->job->dim;
    for (uint32_t r = 0; r < n_rows; r++) {
        g->n_keys[r] = attn_visible(task, seg, task->query0 + first + r);
        g->hidden[r] = attn_hidden(task, seg, task->query0 + first + r);
    }
    g->n_common = g->n_keys[0]; /* rows ascend in position, so the first sees the fewest keys */
    g->n_any = g->n_keys[n_rows - 1];
}

/* `next`: the segment behind it, of next_side; or NULL. */
static void attn_segment(struct attn_side_tasks side, const struct attn_segment *seg,
                         struct attn_side_tasks next_side, const struct attn_segment *next)
{
    const struct attn_task *task = side.tasks;
    struct attn_group g[ATTN_SIDE_MAX];
    uint32_t rows;

    ASSERT(seg->n_tokens <= KV_SEGMENT_TOKENS_MAX);
    for (uint32_t first = 0; first < task->n_queries; first += rows) {
        rows = attn_group_rows(task->n_queries - first);
        for (uint32_t i = 0; i < side.n; i++) {
            attn_group_init(&g[i], &side.tasks[i], seg, first, rows);
            g[i].next_task = i < next_side.n ? &next_side.tasks[i] : NULL;
            g[i].next = g[i].next_task ? next : NULL;
        }
        if (g->n_any > g->hidden[0])
            attn_group_run(rows, task->job->type, g, side.n);
    }
}

static uint32_t attn_seq_tasks(const struct attn_job *job, const struct attn_seq *seq)
{
    uint64_t n_queries = (uint64_t)seq->n_rows * job->n_shared;

    return (uint32_t)((n_queries + job->task_queries - 1) / job->task_queries) *
           job->p->pool.n_kv_heads;
}

/* Fill in the i-th task of a sequence. Tasks of one KV head follow each other, so that its keys and
 * values stay in the second-level cache. */
static void attn_task_place(const struct attn_job *job, const struct attn_seq *seq, uint32_t i,
                            struct attn_task *task)
{
    uint32_t n_blocks = attn_seq_tasks(job, seq) / job->p->pool.n_kv_heads;

    task->seq = seq;
    task->kv_head = i / n_blocks;
    task->query0 = i % n_blocks * job->task_queries;
    task->n_queries = min_u32(seq->n_rows * job->n_shared - task->query0, job->task_queries);
}

/* Find the sequence, KV head and queries of task i. */
static void attn_task_find(const struct attn_job *job, uint32_t i, struct attn_task *task)
{
    const struct attn_seq *seq = job->p->seqs;
    size_t n_tiles = 0;

    for (uint32_t n; i >= (n = attn_seq_tasks(job, seq)); seq++) {
        i -= n;
        n_tiles += (size_t)seq->n_segs * seq->n_rows * job->p->n_heads;
    }
    attn_task_place(job, seq, i, task);
    task->tiles = job->keeps_tiles ? job->p->out + n_tiles * (job->dim + 2) : NULL;
}

/* Nats per unit of the running maxima, for attn_write(). */
static float attn_unit_of_max(const struct attn_job *job)
{
    return job->amx ? 0.693147180559945f : 1;
}

static const struct attn_segment *attn_first_segment(const struct attn_task *task)
{
    return task->job->p->segments + task->seq->seg0;
}

/* Tasks segment by segment. `next`: those behind them, or none. */
static void attn_walk(struct attn_side_tasks side, struct attn_side_tasks next)
{
    const struct attn_segment *segs = attn_first_segment(side.tasks), *behind = NULL;
    uint32_t n_segs = side.tasks->seq->n_segs;

    if (next.n > 0 && next.tasks->seq->n_segs > 0)
        behind = attn_first_segment(next.tasks);
    for (uint32_t i = 0; i < side.n; i++)
        attn_pack(&side.tasks[i]);
    for (uint32_t s = 0; s + 1 < n_segs; s++)
        attn_segment(side, &segs[s], side, &segs[s + 1]);
    if (n_segs > 0)
        attn_segment(side, &segs[n_segs - 1], next, behind);
}

static void attn_side_tasks_run(struct attn_side_tasks side, struct attn_side_tasks next)
{
#ifdef HAVE_AMX
    if (side.tasks->job->amx) {
        attn_amx_task(side.tasks);
        return;
    }
#endif
    attn_walk(side, next);
}

/* Their memory. */
struct attn_side {
    struct attn_task tasks[ATTN_SIDE_MAX]; /* the last n; KV heads ascend */
    struct cpu_attn_scratch mem[ATTN_SIDE_MAX];
    uint32_t n;
};

static struct attn_side_tasks attn_side_all(const struct attn_side *side)
{
    return (struct attn_side_tasks){side->tasks + ATTN_SIDE_MAX - side->n, side->n};
}

/* Fill `side` with tasks from number `begin` on; returns the number behind them. */
static uint32_t attn_side_fill(struct attn_side *side, const struct attn_job *job, uint32_t begin,
                               uint32_t end, uint32_t thread)
{
    uint32_t i = begin, n_queries = 0;

    side->n = 0;
    for (; i < end && side->n < ATTN_SIDE_MAX; i++) {
        uint32_t at = ATTN_SIDE_MAX - 1 - side->n;
        struct attn_task *task = &side->tasks[at];
        struct cpu_attn_scratch *mem = &side->mem[at];

        *mem = job->cpu->attn[thread];
        *task = (struct attn_task){.job = job, .mem = mem};
        /* Last rows first: they see the most keys, and a long task at the end would leave the other
         * threads idle. */
        attn_task_find(job, job->n_tasks - 1 - i, task);
        if (side->n > 0 && (job->amx || task->seq != task[1].seq ||
                            task->n_queries > ATTN_FEW_ROWS || task[1].n_queries > ATTN_FEW_ROWS))
            break;
        mem->q += (size_t)n_queries * job->dim;
        mem->out += (size_t)n_queries * job->dim_padded;
        mem->max += n_queries;
        mem->sum += n_queries;
        mem->score += (size_t)n_queries * KV_SEGMENT_TOKENS_MAX;
        mem->tile += (size_t)n_queries * job->dim_padded;
        n_queries += task->n_queries;
        side->n++;
    }
    return i;
}

static void attn_side_run(const struct attn_side *side, const struct attn_side *next)
{
    const struct attn_task *tasks = attn_side_all(side).tasks;

    for (uint32_t i = 0; i < side->n; i++) {
        if (tasks[i].tiles)
            attn_clear_unseen(&tasks[i]);
        for (uint32_t q = 0; q < tasks[i].n_queries; q++)
            tasks[i].mem->sum[q] = 0;
    }
    attn_side_tasks_run(attn_side_all(side), attn_side_all(next));
    for (uint32_t i = 0; i < side->n; i++)
        if (!tasks[i].tiles)
            attn_write(&tasks[i], attn_unit_of_max(tasks->job));
}

static void attn_tasks(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct attn_job *job = arg;
    struct attn_side sides[2];
    uint32_t now = 0;

    begin = attn_side_fill(&sides[now], job, begin, end, thread);
    for (; sides[now].n > 0; now ^= 1) {
        begin = attn_side_fill(&sides[now ^ 1], job, begin, end, thread);
        attn_side_run(&sides[now], &sides[now ^ 1]);
    }
}

/* Merge a tile that was kept into query i of the task. */
static void attn_merge_kept(const struct attn_task *task, uint32_t i, const float *tile, bool amx)
{
    uint32_t dim = task->job->dim;

#ifdef HAVE_AMX
    if (amx) {
        for (uint32_t k = 0; k < dim; k += 32)
            memcpy(task->mem->tile + (size_t)k * AMX_GROUP_ROWS, tile + k, 32 * sizeof(*tile));
        attn_amx_merge(task, i, task->mem->tile, tile[dim], tile[dim + 1]);
        return;
    }
#endif
    (void)amx;
    memcpy(task->mem->tile, tile, dim * sizeof(*tile)); /* whole vectors can be read there */
    attn_merge(task, i, task->mem->tile, tile[dim], tile[dim + 1]);
}

#include "kernels/cpu/attn_split.h"

static void attn_run(struct device *d, const struct attention_params *p, bool keeps_tiles)
{
    struct cpu *c = device_cpu(d);
    uint32_t dim = p->pool.head_dim;
    uint64_t macs = 0;
    bool few = true;
    struct attn_job job = {
        .p = p,
        .cpu = c,
        .kv = kv_strides_of(&p->pool),
        .n_shared = p->n_heads / p->pool.n_kv_heads,
        .dim = dim,
        .dim_padded = (dim + PANEL_COLS - 1) / PANEL_COLS * PANEL_COLS,
        .task_queries = ATTN_QUERIES,
        .scales_at = kv_elements_bytes(&p->pool),
        .type = p->pool.layout.dtype == DTYPE_F8 ? DTYPE_FLOATS + 1 : p->pool.layout.dtype,
        .keeps_tiles = keeps_tiles,
    };

    ASSERT(p->n_heads % p->pool.n_kv_heads == 0 && !(p->bidirectional && p->window));
    ASSERT(dim > 0 && dim <= c->max_head_dim && p->layer < p->pool.n_layers);
#ifdef HAVE_AMX
    job.amx = attn_amx_fits(&p->pool) && p->window == 0 && !(p->soft_cap > 0);
    if (job.amx)
        job.task_queries = ATTN_AMX_QUERIES;
#endif
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct attn_seq *seq = &p->seqs[i];

        job.n_tasks += attn_seq_tasks(&job, seq);
        few = few && seq->n_rows * job.n_shared <= ATTN_FEW_ROWS;
        macs += (uint64_t)seq->n_rows * (seq->pos0 + seq->n_rows) * p->n_heads * dim * 2;
    }
    if (macs > ATTN_ALONE_MAX && !keeps_tiles && attn_split_run(&job))
        return;
    uint32_t per_thread = job.n_tasks / pool_n_threads(c->pool), chunk = per_thread / ATTN_CHUNKS;

    if (few && chunk < ATTN_CHUNK_SIDE)
        chunk = min_u32(per_thread, ATTN_CHUNK_SIDE);
    if (macs <= ATTN_ALONE_MAX)
        chunk = job.n_tasks;
    pool_run(c->pool, job.n_tasks, chunk > 0 ? chunk : 1, attn_tasks, &job);
}

static enum status attention(struct device *d, struct stream *s, const struct attention_params *p)
{
    (void)s;
    if (!kv_layout_is_native(&p->pool.layout))
        return ERR_UNSUPPORTED;
    attn_run(d, p, false);
    return OK;
}

static enum status attention_tiles(struct device *d, struct stream *s,
                                   const struct attention_params *p)
{
    (void)s;
    if (!kv_layout_is_native(&p->pool.layout) || p->window > 0 || p->soft_cap > 0 ||
        p->bidirectional)
        return ERR_UNSUPPORTED;
    attn_run(d, p, true);
    return OK;
}

/* --- merging tiles that were kept --- */

struct attn_merge_job {
    const struct merge_tiles_params *p;
    struct attn_job job;
    bool amx; /* the tiles' maxima are in base 2 */
};

static void attn_merge_tasks(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct attn_merge_job *m = arg;
    const struct attn_seq all = {.n_rows = m->p->n_rows};
    uint32_t dim = m->p->head_dim, n_all = m->p->n_rows * m->p->n_heads;
    struct attn_task task = {.job = &m->job, .seq = &all, .mem = &m->job.cpu->attn[thread]};

    for (uint32_t t = begin; t < end; t++) {
        task.query0 = t * ATTN_QUERIES;
        task.n_queries = min_u32(n_all - task.query0, ATTN_QUERIES);
        for (uint32_t i = 0; i < task.n_queries; i++) {
            task.mem->sum[i] = 0;
            for (uint32_t part = 0; part < m->p->n_parts; part++) {
                const float *tile = m->p->parts[part] + (size_t)(task.query0 + i) * (dim + 2);

                if (tile[dim + 1] != 0)
                    attn_merge_kept(&task, i, tile, m->amx);
            }
        }
        attn_write(&task, 1);
    }
}

static enum status merge_tiles(struct device *d, struct stream *s,
                               const struct merge_tiles_params *p)
{
    struct cpu *c = device_cpu(d);
    /* As if all heads shared one KV head: query i is head i % H of row i / H. */
    const struct attention_params out = {.n_heads = p->n_heads, .out = p->out};
    struct attn_merge_job m = {
        .p = p,
        .job = {.p = &out,
                .cpu = c,
                .n_shared = p->n_heads,
                .dim = p->head_dim,
                .dim_padded = (p->head_dim + PANEL_COLS - 1) / PANEL_COLS * PANEL_COLS},
    };
    uint32_t n_tasks = (p->n_rows * p->n_heads + ATTN_QUERIES - 1) / ATTN_QUERIES;
    uint64_t work = (uint64_t)p->n_rows * p->n_heads * p->n_parts * p->head_dim;

    (void)s;
    ASSERT(p->head_dim > 0 && p->head_dim <= c->max_head_dim);
#ifdef HAVE_AMX
    const struct kv_pool kv = {.layout = kv_layout_of(p->kv_dtype), .head_dim = p->head_dim};
    m.amx = attn_amx_fits(&kv);
#endif
    pool_run(c->pool, n_tasks, work > ATTN_ALONE_MAX ? 1 : n_tasks + 1, attn_merge_tasks, &m);
    return OK;
}

#endif
