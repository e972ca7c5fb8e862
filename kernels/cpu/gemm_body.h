/* gemm_body.h - products of activations and packed weights: the choice of the kernel, and the
 * tasks. Compiled once per variant. */
#ifndef TARN_KERNELS_CPU_GEMM_BODY_H
#define TARN_KERNELS_CPU_GEMM_BODY_H

#include "kernels/cpu/gemm_f8.h"
#include "kernels/cpu/gemm_float.h"
#ifdef HAVE_BF16_DOT
#define int_kernel gemm_int_avx512
#else
#include "kernels/cpu/gemm_int.h"
#endif
#if defined(HAVE_AMX)
#include "kernels/cpu/gemm_amx.h"
#elif defined(HAVE_BF16_DOT)
#include "kernels/cpu/gemm_dot.h"
#elif defined(HAVE_NEON_MATRIX)
#include "kernels/cpu/gemm_neonmm.h"
#endif

/* Most bytes of the packed activations of one task: a quarter of a second-level cache of 1 MB. Its
 * other users are the panel, the next one, and the outputs. Processors with AMX have 2 MB and
 * multiply so fast that more walks over the weights would wait for memory. */
#if defined(HAVE_AMX)
#define TASK_A_BYTES (1280u << 10)
#else
#define TASK_A_BYTES (256u << 10)
#endif
/* Least bytes of weights that a thread takes from the queue at once, so that small products do not
 * queue for each panel. */
#define TURN_W_BYTES (64u << 10)
/* Most bytes of the next product that a thread without work prefetches: a quarter of a second-level
 * cache of 1 MB. */
#define FETCH_NEXT_BYTES ((size_t)256 << 10)
/* Multiply-adds below which waking the pool costs more than it saves. */
#define GEMM_ALONE_MAX (64u << 10)

/* The choice may depend on n_rows only between kernels with equal bits (promise P1). */
static const struct gemm_kernel *gemm_kernel_of(const struct weight *w, uint32_t n_rows)
{
    if (w->dtype == DTYPE_F8)
        return &f8_kernel;
#if defined(HAVE_AMX)
    if (w->dtype == DTYPE_BF16)
        return &amx_bf16_kernel;
    if (w->dtype >= DTYPE_FLOATS && n_rows >= AMX_INT_ROWS_MIN && w->k % w->group == 0)
        return amx_int_kernel_of(w);
#elif defined(HAVE_BF16_DOT)
    if (w->dtype == DTYPE_BF16)
        return &dot_kernel;
#elif defined(HAVE_NEON_MATRIX)
    if (w->dtype == DTYPE_BF16)
        return &mm_bf16_kernel;
    if (w->dtype >= DTYPE_FLOATS && n_rows >= MM_INT_ROWS_MIN && w->k % 8 == 0)
        return &mm_int_kernel;
#endif
    (void)n_rows;
    return w->dtype >= DTYPE_FLOATS ? &int_kernel : &float_kernel;
}

static void gemm_pack(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct gemm_job *j = arg;
    const struct gemm_params *p = j->p;

    (void)thread;
    for (uint32_t i = begin; i < end; i++) {
        uint32_t r0 = gemm_group_row(j, i);

        j->kernel->pack(j, i, p->a + (j->row0 + r0) * p->a_stride, gemm_group_row(j, i + 1) - r0);
    }
}

static const unsigned char *quarter(const unsigned char *panel, size_t panel_bytes, uint32_t i)
{
    return panel + i * (panel_bytes / 4 / 64 * 64);
}

/* Four streams, a quarter of the panel each. */
static struct chain_fetch fetch_quarters(const unsigned char *panel, size_t panel_bytes)
{
    struct chain_fetch f = {.stride = FETCH_FOUR_STREAMS};

    for (uint32_t q = 0; q < 4; q++)
        f.from[q] = quarter(panel, panel_bytes, q);
    return f;
}

/* One stream, which runs ahead of the walk over the panel. */
static struct chain_fetch fetch_ahead(const unsigned char *panel)
{
    struct chain_fetch f = {.stride = FETCH_ONE_STREAM};

    for (uint32_t q = 0; q < 4; q++)
        f.from[q] = panel + FETCH_AHEAD_BYTES + q * 64;
    return f;
}

/* More than one block of groups: a task is one panel times one block, whose activations stay in the
 * cache of the thread. */
static void gemm_blocks(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct gemm_job *j = arg;

    for (uint32_t i = begin; i < end; i++) {
        uint32_t block = i / j->n_panels;
        struct gemm_panel p = {.panel = i % j->n_panels,
                               .begin = even_cut(j->n_groups, j->n_blocks, block),
                               .end = even_cut(j->n_groups, j->n_blocks, block + 1),
                               .thread = thread};
        uint32_t next = p.panel + 1 < j->n_panels ? p.panel + 1 : p.panel;

        p.fetch = fetch_quarters(gemm_panel_data(j, next), j->panel_bytes);
        j->kernel->panel(j, &p);
    }
}

/* Panel number `ahead` of this thread's range in the next product, whose panels have *panel_bytes;
 * NULL: none. */
static const unsigned char *next_panel(const struct gemm_job *j, uint32_t thread, uint32_t ahead,
                                       size_t *panel_bytes)
{
    const struct weight *w = j->next;

    if (!w)
        return NULL;
    uint32_t n_panels = (w->n + PANEL_COLS - 1) / PANEL_COLS;
    uint32_t panel = even_cut(n_panels, j->n_threads, thread) + ahead;

    *panel_bytes = pack_panel_bytes(w->dtype, w->k, w->group);
    return panel < n_panels ? (const unsigned char *)w->data + panel * *panel_bytes : NULL;
}

/* The prefetch of panel i of a range that ends at `end`. CPU_FETCH_QUARTERS: a quarter of each of
 * the next four panels, so that a panel is complete when the walk reaches it; behind the range
 * these are panels of the next product. */
static struct chain_fetch gemm_fetch(const struct gemm_job *j, uint32_t i, uint32_t end,
                                     uint32_t thread)
{
    struct chain_fetch f = {.stride = FETCH_FOUR_STREAMS};

    if (j->cpu->fetch == CPU_FETCH_AHEAD)
        return fetch_ahead(gemm_panel_data(j, i));
    for (uint32_t q = 0; q < 4; q++) {
        uint32_t at = i + 1 + q;
        size_t bytes = j->panel_bytes;
        const unsigned char *panel =
            at < end ? gemm_panel_data(j, at) : next_panel(j, thread, at - end, &bytes);

        f.from[q] = panel ? quarter(panel, bytes, 3 - q) : gemm_panel_data(j, i); /* harmless */
    }
    return f;
}

/* The panel behind panel i of a range that ends at `end`, if the groups share its prefetch. */
static const unsigned char *gemm_shared(const struct gemm_job *j, uint32_t i, uint32_t end,
                                        uint32_t thread)
{
    size_t bytes;

    if (j->n_groups < 2 || !j->kernel->shares || j->cpu->fetch != CPU_FETCH_AHEAD)
        return NULL;
    return i + 1 < end ? gemm_panel_data(j, i + 1) : next_panel(j, thread, 0, &bytes);
}

/* Memory stays busy while threads wait for the end of this product, and for what lies between it
 * and the next one. */
static void fetch_next_product(const struct gemm_job *j, uint32_t thread)
{
    size_t bytes;
    const unsigned char *panel = next_panel(j, thread, 0, &bytes);

    if (!panel)
        return;
    uint32_t n = (j->next->n + PANEL_COLS - 1) / PANEL_COLS;

    n = even_cut(n, j->n_threads, thread + 1) - even_cut(n, j->n_threads, thread);
    pool_fetch_idle(j->cpu->pool, thread, panel,
                    n * bytes < FETCH_NEXT_BYTES ? n * bytes : FETCH_NEXT_BYTES);
}

/* One block of groups. Each thread walks its own range of panels, so it knows what it will read
 * next. Then the thread helps with the ranges of others. */
static void gemm_range(const struct gemm_job *j, struct cpu_range *r, uint32_t thread)
{
    for (uint32_t i; (i = atomic_fetch_add(&r->next, 1)) < r->end;) {
        struct gemm_panel p = {.panel = i,
                               .begin = 0,
                               .end = j->n_groups,
                               .thread = thread,
                               .fetch = gemm_fetch(j, i, r->end, thread),
                               .shared = gemm_shared(j, i, r->end, thread)};

        j->kernel->panel(j, &p);
    }
}

static void gemm_ranges(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct gemm_job *j = arg;

    (void)begin; /* each call walks ranges until no panel is left, whatever its indices */
    (void)end;
    for (uint32_t t = 0; t < j->n_threads; t++)
        gemm_range(j, &j->cpu->ranges[(thread + t) % j->n_threads], thread);
    if (j->cpu->fetch == CPU_FETCH_AHEAD)
        fetch_next_product(j, thread);
}

static void gemm_run_ranges(struct gemm_job *j)
{
    uint64_t macs = (uint64_t)j->n_rows * j->p->w.n * j->p->w.k;
    uint32_t n = j->n_threads;

    for (uint32_t t = 0; t < n; t++) {
        atomic_store_explicit(&j->cpu->ranges[t].next, even_cut(j->n_panels, n, t),
                              memory_order_relaxed);
        j->cpu->ranges[t].end = even_cut(j->n_panels, n, t + 1);
    }
    pool_run(j->cpu->pool, n, macs > GEMM_ALONE_MAX ? 1 : n, gemm_ranges, j);
}

/* Number of tasks that a thread takes from the queue at once. */
static uint32_t gemm_chunk(const struct gemm_job *j)
{
    uint32_t chunk = (uint32_t)(TURN_W_BYTES / (j->panel_bytes + 1)) + 1;

    return min_u32(chunk, j->n_panels * j->n_blocks / (4 * j->n_threads) + 1);
}

static struct gemm_job gemm_job_of(struct cpu *c, const struct gemm_params *p, uint32_t row0,
                                   uint32_t n_rows)
{
    const struct gemm_kernel *kernel = gemm_kernel_of(&p->w, n_rows);
    struct gemm_job j = {
        .p = p,
        .kernel = kernel,
        .cpu = c,
        .row0 = row0,
        .n_rows = n_rows,
        .n_groups = (n_rows + kernel->rows_max - 1) / kernel->rows_max,
        .n_panels = (p->w.n + PANEL_COLS - 1) / PANEL_COLS,
        .panel_bytes = pack_panel_bytes(p->w.dtype, p->w.k, p->w.group),
        .slot_bytes = kernel->slot_bytes(&p->w, min_u32(kernel->rows_max, n_rows)),
        .packed = c->packed,
        .next = p->next,
        .n_threads = pool_n_threads(c->pool),
    };
    uint32_t groups_per_block = (uint32_t)(TASK_A_BYTES / j.slot_bytes);

    groups_per_block = groups_per_block ? groups_per_block : 1;
    j.n_blocks = (j.n_groups + groups_per_block - 1) / groups_per_block;
    return j;
}

static void gemm_rows(struct cpu *c, const struct gemm_params *p, uint32_t row0, uint32_t n_rows)
{
    struct gemm_job j = gemm_job_of(c, p, row0, n_rows);

    ASSERT(j.slot_bytes * j.n_groups <= c->packed_bytes);
    pool_run(c->pool, j.n_groups, j.n_groups > 1 ? (j.n_groups - 1) / j.n_threads / 2 + 1 : 1,
             gemm_pack, &j);
    if (j.n_blocks == 1)
        gemm_run_ranges(&j);
    else
        pool_run(c->pool, j.n_panels * j.n_blocks, gemm_chunk(&j), gemm_blocks, &j);
}

static void gemm_check(const struct cpu *c, const struct weight *w)
{
    ASSERT(w->dtype < DTYPE_COUNT && w->k > 0 && w->k <= c->max_k);
    ASSERT(w->dtype < DTYPE_FLOATS || (w->group > 0 && w->group % QUANT_CHUNK == 0));
    ASSERT(w->dtype != DTYPE_F8 || w->group == F8_GROUP);
}

static enum status gemm(struct device *d, struct stream *s, const struct gemm_params *p)
{
    struct cpu *c = device_cpu(d);

    (void)s;
    gemm_check(c, &p->w);
    for (uint32_t r = 0; r < p->n_rows; r += c->packed_rows)
        gemm_rows(c, p, r, min_u32(p->n_rows - r, c->packed_rows));
    return OK;
}

#endif
