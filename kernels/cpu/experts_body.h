/* experts_body.h - mixtures of experts: routers, the products of all experts, and the sum of their
 * outputs. Compiled once per variant.
 *
 * The products of an expert are an ordinary gemm_job over its sorted rows, so its rows get the bits
 * of gemm(). Jobs are computed in waves whose packed activations fit into the scratch memory: the
 * panels of all jobs of a wave are one list of tasks, so that threads stay busy although an expert
 * has few rows. Experts without rows have no job, and their weights are not read. */
#ifndef TARN_KERNELS_CPU_EXPERTS_BODY_H
#define TARN_KERNELS_CPU_EXPERTS_BODY_H

#include "kernels/cpu/gemm_body.h"
#include "kernels/cpu/small_body.h"

/* --- routers --- */

/* Insert expert e into the list best [n] of descending logits; return its new length, at most k. */
static uint32_t route_insert(float *best, uint32_t *experts, uint32_t n, uint32_t k, float logit,
                             uint32_t e)
{
    uint32_t at = n < k ? n : k;

    if (n == k && !(logit > best[k - 1]))
        return n;
    if (n == k)
        at--;
    for (; at > 0 && logit > best[at - 1]; at--) {
        best[at] = best[at - 1];
        experts[at] = experts[at - 1];
    }
    best[at] = logit;
    experts[at] = e;
    return n < k ? n + 1 : k;
}

static void sort_ascending(uint32_t *x, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        uint32_t v = x[i], j = i;

        for (; j > 0 && x[j - 1] > v; j--)
            x[j] = x[j - 1];
        x[j] = v;
    }
}

/* Choose the experts of a row in ascending order; return the largest logit. */
static float route_choose(const struct route_params *p, const float *logits, uint32_t *experts)
{
    float best[ROUTE_CHOSEN_MAX];
    uint32_t n = 0;

    for (uint32_t e = 0; e < p->n_experts; e++)
        n = route_insert(best, experts, n, p->n_chosen, isnan(logits[e]) ? -INFINITY : logits[e],
                         e);
    sort_ascending(experts, n);
    return best[0];
}

static void route_row(const struct route_params *p, const float *logits, uint32_t *experts,
                      float *weights)
{
    float score[ROUTE_EXPERTS_MAX], max = route_choose(p, logits, experts), sum = 0;

    for (uint32_t e = 0; e < p->n_experts; e += VW) {
        vf x = v_load_n(logits + e, min_u32(p->n_experts - e, VW));

        v_store(score + e, p->score == ROUTE_SIGMOID ? v_set1(1) / (v_exp(v_set1(0) - x) + 1.0f)
                                                     : v_exp(x - max));
    }
    if (p->renormalize)
        for (uint32_t j = 0; j < p->n_chosen; j++)
            sum += score[experts[j]];
    else if (p->score == ROUTE_SOFTMAX)
        for (uint32_t e = 0; e < p->n_experts; e++)
            sum += score[e];
    else
        sum = 1;
    for (uint32_t j = 0; j < p->n_chosen; j++)
        weights[j] = score[experts[j]] / sum * p->scale;
}

static void route_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct route_params *p = arg;

    (void)thread;
    for (size_t t = begin; t < end; t++)
        route_row(p, p->logits + t * p->n_experts, p->experts + t * p->n_chosen,
                  p->weights + t * p->n_chosen);
}

/* Sort by counting: offsets first has the number of rows, then the next free place of an expert. */
static void route_sort(const struct route_params *p)
{
    uint32_t *next = p->offsets, n = p->n_rows * p->n_chosen, sum = 0;

    memset(next, 0, ((size_t)p->n_experts + 1) * sizeof *next);
    for (uint32_t i = 0; i < n; i++)
        next[p->experts[i]]++;
    for (uint32_t e = 0; e < p->n_experts; e++) {
        uint32_t count = next[e];

        next[e] = sum;
        sum += count;
    }
    for (uint32_t i = 0; i < n; i++) {
        p->at[i] = next[p->experts[i]]++;
        p->rows[p->at[i]] = i / p->n_chosen;
    }
    memmove(next + 1, next, p->n_experts * sizeof *next); /* each has become its expert's end */
    next[0] = 0;
}

static enum status route(struct device *d, struct stream *s, const struct route_params *p)
{
    (void)s;
    ASSERT(p->n_experts > 0 && p->n_experts <= ROUTE_EXPERTS_MAX);
    ASSERT(p->n_chosen > 0 && p->n_chosen <= ROUTE_CHOSEN_MAX && p->n_chosen <= p->n_experts);
    over_rows(d, p->n_rows, (size_t)p->n_experts * 8, route_rows, p);
    if (p->offsets)
        route_sort(p);
    return OK;
}

/* --- products --- */

/* Most products of a wave. */
#define WAVE_JOBS_MAX 64

struct experts_wave {
    struct cpu *cpu;
    uint32_t n_jobs, n_threads;
    uint64_t n_macs;
    struct gemm_params params[WAVE_JOBS_MAX];
    struct gemm_job jobs[WAVE_JOBS_MAX];
    uint32_t group0[WAVE_JOBS_MAX + 1]; /* number of groups of the jobs before */
    uint32_t task0[WAVE_JOBS_MAX + 1];  /* the same of tasks */
};

/* Add the product of rows [row0, row0 + n_rows) with expert e, unless the scratch memory behind
 * *used is too small; the first product of a wave always fits. */
static bool wave_add(struct experts_wave *w, const struct gemm_experts_params *p, uint32_t e,
                     uint32_t row0, uint32_t n_rows, size_t *used)
{
    struct gemm_params *g = &w->params[w->n_jobs];
    struct gemm_job *j = &w->jobs[w->n_jobs];

    *g = (struct gemm_params){.n_rows = n_rows,
                              .a = p->a + (size_t)row0 * p->w.k,
                              .a_stride = p->w.k,
                              .w = p->w,
                              .out = p->out + (size_t)row0 * p->w.n,
                              .out_stride = p->w.n};
    g->w.data = (const unsigned char *)p->w.data + e * p->expert_bytes;
    *j = gemm_job_of(w->cpu, g, 0, n_rows);
    j->packed += *used;
    if (w->n_jobs > 0 && *used + j->slot_bytes * j->n_groups > w->cpu->packed_bytes)
        return false;
    *used += j->slot_bytes * j->n_groups;
    ASSERT(*used <= w->cpu->packed_bytes);
    w->group0[w->n_jobs + 1] = w->group0[w->n_jobs] + j->n_groups;
    w->task0[w->n_jobs + 1] = w->task0[w->n_jobs] + j->n_panels * j->n_blocks;
    w->n_macs += (uint64_t)n_rows * p->w.n * p->w.k;
    w->n_jobs++;
    return true;
}

/* The job of item i; `starts` are the first items of all jobs. */
static uint32_t wave_job(const struct experts_wave *w, const uint32_t *starts, uint32_t i)
{
    uint32_t low = 0, high = w->n_jobs;

    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;

        if (starts[mid] <= i)
            low = mid;
        else
            high = mid;
    }
    return low;
}

static void wave_pack(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    struct experts_wave *w = arg;

    for (uint32_t i = begin; i < end; i++) {
        uint32_t job = wave_job(w, w->group0, i), group = i - w->group0[job];

        gemm_pack(&w->jobs[job], group, group + 1, thread);
    }
}

/* The panel of a task; tasks of a job go block by block. */
static const unsigned char *wave_panel(const struct experts_wave *w, uint32_t task)
{
    uint32_t job = wave_job(w, w->task0, task);
    const struct gemm_job *j = &w->jobs[job];

    return gemm_panel_data(j, (task - w->task0[job]) % j->n_panels);
}

/* Walk a range of tasks as gemm_range() walks panels. */
static void wave_range(const struct experts_wave *w, struct cpu_range *r, uint32_t thread)
{
    for (uint32_t i; (i = atomic_fetch_add(&r->next, 1)) < r->end;) {
        uint32_t job = wave_job(w, w->task0, i), task = i - w->task0[job];
        const struct gemm_job *j = &w->jobs[job];
        uint32_t block = task / j->n_panels;
        struct gemm_panel p = {.panel = task % j->n_panels,
                               .begin = even_cut(j->n_groups, j->n_blocks, block),
                               .end = even_cut(j->n_groups, j->n_blocks, block + 1),
                               .thread = thread};

        p.fetch = fetch_ahead(gemm_panel_data(j, p.panel));
        if (w->cpu->fetch == CPU_FETCH_QUARTERS) {
            p.fetch.stride = FETCH_FOUR_STREAMS;
            for (uint32_t q = 0; q < 4; q++) /* behind the range: a harmless address */
                p.fetch.from[q] = i + 1 + q < r->end
                                      ? quarter(wave_panel(w, i + 1 + q), j->panel_bytes, 3 - q)
                                      : gemm_panel_data(j, p.panel);
        }
        j->kernel->panel(j, &p);
    }
}

static void wave_ranges(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct experts_wave *w = arg;

    (void)begin; /* each call walks ranges until no task is left, whatever its indices */
    (void)end;
    for (uint32_t t = 0; t < w->n_threads; t++)
        wave_range(w, &w->cpu->ranges[(thread + t) % w->n_threads], thread);
}

static void wave_run(struct experts_wave *w)
{
    uint32_t n_groups = w->group0[w->n_jobs], n_tasks = w->task0[w->n_jobs], n = w->n_threads;
    bool alone = w->n_macs <= GEMM_ALONE_MAX;

    for (uint32_t t = 0; t < n; t++) {
        atomic_store_explicit(&w->cpu->ranges[t].next, even_cut(n_tasks, n, t),
                              memory_order_relaxed);
        w->cpu->ranges[t].end = even_cut(n_tasks, n, t + 1);
    }
    pool_run(w->cpu->pool, n_groups, alone ? n_groups : n_groups / (2 * n) + 1, wave_pack, w);
    pool_run(w->cpu->pool, n, alone ? n : 1, wave_ranges, w);
    w->n_jobs = 0;
    w->n_macs = 0;
}

static enum status gemm_experts(struct device *d, struct stream *s,
                                const struct gemm_experts_params *p)
{
    struct cpu *c = device_cpu(d);
    struct experts_wave w = {.cpu = c, .n_threads = pool_n_threads(c->pool)};
    size_t used = 0;

    (void)s;
    gemm_check(c, &p->w);
    for (uint32_t e = 0; e < p->n_experts; e++)
        for (uint32_t row = p->offsets[e]; row < p->offsets[e + 1];) {
            uint32_t n_rows = min_u32(p->offsets[e + 1] - row, c->packed_rows);

            if (w.n_jobs < WAVE_JOBS_MAX && wave_add(&w, p, e, row, n_rows, &used)) {
                row += n_rows;
                continue;
            }
            wave_run(&w);
            used = 0;
        }
    if (w.n_jobs > 0)
        wave_run(&w);
    return OK;
}

/* --- the sum of the experts' outputs --- */

static void combine_rows(void *arg, uint32_t begin, uint32_t end, uint32_t thread)
{
    const struct combine_params *p = arg;

    (void)thread;
    for (size_t t = begin; t < end; t++) {
        float *out = p->out + t * p->dim;

        for (uint32_t i = 0; i < p->dim; i += VW) {
            uint32_t n = min_u32(p->dim - i, VW);
            vf sum = v_set1(0);

            for (size_t j = t * p->n_chosen; j < (t + 1) * p->n_chosen; j++)
                sum = v_fma(v_set1(p->weights[j]),
                            v_load_n(p->y + (p->at ? p->at[j] : j) * p->dim + i, n), sum);
            v_store_n(out + i, v_load_n(out + i, n) + sum, n);
        }
    }
}

static enum status combine(struct device *d, struct stream *s, const struct combine_params *p)
{
    (void)s;
    over_rows(d, p->n_rows, (size_t)p->dim * p->n_chosen, combine_rows, p);
    return OK;
}

#endif
