#include "engine/run/cost_profile.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/run/forward.h"
#include "kernels/device.h"

#define N_MAX COST_MODEL_N_POINTS_MAX
#define N_RUNS_MAX 5
#define N_TOKENS_FIRST 8  /* of the first prefill */
#define N_LEVELS_ALL 10   /* levels of two axes, each with fewer than 2^4 gaps */
#define N_AGAIN 3         /* times that doubtful points are measured again */
#define DOUBTFUL 1.15     /* ratio to the law from which a point is doubtful */
#define PRIOR_WEIGHT 1e-3 /* weight of the estimate relative to a measured point */
#define SECONDS_MIN 1e-9
#define BUDGET_HOST_S 3.0
#define BUDGET_GPU_S 0.3
#define TUNE_ROWS_MIN 16
#define TUNE_BUDGET_S 0.5
/* of the pool's pages, which are written before the measurements */
#define HOST_KV_BYTES_MAX ((size_t)256 << 20)

enum kind { PREFILL, DECODE, N_KINDS };

/* Seconds = sum of term_k(cached, n) * seconds[k]. */
struct law {
    double seconds[3];
};

struct profile {
    const struct cost_profile_shape *shape;
    struct cost_model *m;               /* axes are set first, grids last */
    uint32_t n_columns[N_KINDS];        /* that can be measured: chunks of at most n_rows_max */
    double seen[N_KINDS][N_MAX][N_MAX]; /* [cached][new or batch]; 0: not measured */
    struct law prior[N_KINDS], law[N_KINDS];
    double spent[N_KINDS];
    struct cost_profile_result *result;
};

/* --- axes --- */

/* Make an axis: first, then x, 2 x, 4 x, ... below last, then last; at most n_max points. */
static uint32_t make_axis(uint32_t *axis, uint32_t n, uint32_t x, uint32_t last, uint32_t n_max)
{
    for (uint64_t v = x; v < last && n + 1 < n_max; v *= 2)
        if (n == 0 || v > axis[n - 1])
            axis[n++] = (uint32_t)v;
    if (n == 0 || last > axis[n - 1])
        axis[n++] = last;
    return n;
}

/* An axis needs two points, even if the second one cannot be measured. */
static uint32_t at_least_two(uint32_t *axis, uint32_t n)
{
    if (n == 1)
        axis[n++] = axis[0] + 1;
    return n;
}

static void make_axes(struct profile *p)
{
    const struct cost_profile_shape *s = p->shape;
    struct cost_model *m = p->m;
    uint32_t chunk = s->n_rows_max < s->n_tokens_max ? s->n_rows_max : s->n_tokens_max;
    uint32_t batch = s->n_seqs_max < s->n_rows_max ? s->n_seqs_max : s->n_rows_max;

    *m = (struct cost_model){.n_cached = 1}; /* no cached tokens */
    /* The last axis point leaves room for new tokens; beyond it the law is extrapolated. */
    if (s->n_tokens_max > 1)
        m->n_cached =
            make_axis(m->cached, 1, 256, s->n_tokens_max - (s->n_tokens_max + 7) / 8, N_MAX);
    m->n_cached = at_least_two(m->cached, m->n_cached);
    m->new_tokens[0] = 1;
    p->n_columns[PREFILL] = m->n_new =
        make_axis(m->new_tokens, 1, N_TOKENS_FIRST, chunk, N_MAX - 1);
    if (s->n_tokens_max > chunk)
        m->n_new = make_axis(m->new_tokens, m->n_new, 2 * chunk, s->n_tokens_max, N_MAX);
    m->n_new = at_least_two(m->new_tokens, m->n_new);
    m->n_batch = make_axis(m->batch, 0, 1, batch, N_MAX);
    p->n_columns[DECODE] = m->n_batch;
    m->n_batch = at_least_two(m->batch, m->n_batch);
}

/* --- the law --- */

static void terms_of(const struct profile *p, enum kind kind, uint32_t i, uint32_t j,
                     double terms[3])
{
    double cached = p->m->cached[i];
    double n = kind == PREFILL ? p->m->new_tokens[j] : p->m->batch[j];

    terms[0] = 1;
    terms[1] = n;
    terms[2] = kind == PREFILL ? n * (cached + n / 2) : n * cached;
}

static double law_seconds(const struct profile *p, enum kind kind, const struct law *law,
                          uint32_t i, uint32_t j)
{
    double terms[3], sum = 0;

    terms_of(p, kind, i, j, terms);
    for (int k = 0; k < 3; k++)
        sum += terms[k] * law->seconds[k];
    return fmax(sum, SECONDS_MIN);
}

static void make_priors(struct profile *p)
{
    const struct cost_estimate *e = &p->shape->estimate;
    double floor = e->weight_bytes / e->bytes_per_s, token = e->flops_per_token / e->flops_per_s;
    double pair = e->flops_per_pair / e->flops_per_s;

    p->prior[PREFILL] = (struct law){{floor, token, pair}};
    p->prior[DECODE] =
        (struct law){{floor, token, fmax(e->kv_bytes_per_token / e->bytes_per_s, pair)}};
    p->law[PREFILL] = p->prior[PREFILL];
    p->law[DECODE] = p->prior[DECODE];
}

/* Solve a x = b in the unknowns of `mask`; the others are 0. The matrix is positive definite, so no
 * pivoting is needed. */
static void solve(double a[3][3], const double b[3], unsigned mask, double x[3])
{
    double rows[3][4];

    for (int i = 0; i < 3; i++) {
        bool in = mask >> i & 1;

        for (int j = 0; j < 3; j++)
            rows[i][j] = in && (mask >> j & 1) ? a[i][j] : i == j;
        rows[i][3] = in ? b[i] : 0;
    }
    for (int i = 0; i < 3; i++)
        for (int r = i + 1; r < 3; r++) {
            double f = rows[r][i] / rows[i][i];

            for (int j = i; j < 4; j++)
                rows[r][j] -= f * rows[i][j];
        }
    for (int i = 2; i >= 0; i--) {
        x[i] = rows[i][3];
        for (int j = i + 1; j < 3; j++)
            x[i] -= rows[i][j] * x[j];
        x[i] /= rows[i][i];
    }
}

/* No part of the work takes negative time: terms that would be negative are left out. */
static void solve_positive(double a[3][3], const double b[3], double x[3])
{
    for (unsigned mask = 7;;) {
        int worst = -1;

        solve(a, b, mask, x);
        for (int i = 0; i < 3; i++)
            if (x[i] < 0 && (worst < 0 || x[i] < x[worst]))
                worst = i;
        if (worst < 0)
            return;
        mask &= ~(1u << worst);
    }
}

/* The geometric mean of the ratios of measured points to the prior. */
static double scale_of(const struct profile *p, enum kind kind)
{
    double sum = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->m->n_cached; i++)
        for (uint32_t j = 0; j < p->n_columns[kind]; j++)
            if (p->seen[kind][i][j] > 0) {
                sum += log(p->seen[kind][i][j] / law_seconds(p, kind, &p->prior[kind], i, j));
                n++;
            }
    return n ? exp(sum / n) : 1;
}

/* Least squares of the relative errors. Where the points do not determine the law, the scaled prior
 * does. */
static void fit_law(struct profile *p, enum kind kind)
{
    double scale = scale_of(p, kind), terms[3], x[3];
    double a[3][3] = {{PRIOR_WEIGHT, 0, 0}, {0, PRIOR_WEIGHT, 0}, {0, 0, PRIOR_WEIGHT}};
    double b[3] = {PRIOR_WEIGHT, PRIOR_WEIGHT, PRIOR_WEIGHT};

    for (uint32_t i = 0; i < p->m->n_cached; i++)
        for (uint32_t j = 0; j < p->n_columns[kind]; j++) {
            if (p->seen[kind][i][j] <= 0)
                continue;
            terms_of(p, kind, i, j, terms);
            for (int k = 0; k < 3; k++)
                terms[k] *= scale * p->prior[kind].seconds[k] / p->seen[kind][i][j];
            for (int k = 0; k < 3; k++) {
                for (int l = 0; l < 3; l++)
                    a[k][l] += terms[k] * terms[l];
                b[k] += terms[k];
            }
        }
    solve_positive(a, b, x);
    for (int k = 0; k < 3; k++)
        p->law[kind].seconds[k] = x[k] * scale * p->prior[kind].seconds[k];
}

/* --- the grids --- */

/* The correction of the law near a point: the geometric mean of measured / law, in which nearer
 * points count more. */
static double bend(const struct profile *p, enum kind kind, uint32_t i, uint32_t j)
{
    double sum = 0, weights = 0;

    for (uint32_t a = 0; a < p->m->n_cached; a++)
        for (uint32_t b = 0; b < p->n_columns[kind]; b++) {
            double da = (double)a - i, db = (double)b - j;

            if (p->seen[kind][a][b] <= 0)
                continue;
            double w = 1 / (da * da + db * db);
            sum += w * log(p->seen[kind][a][b] / law_seconds(p, kind, &p->law[kind], a, b));
            weights += w;
        }
    return weights > 0 ? exp(sum / weights) : 1;
}

static void fill_grid(struct profile *p, enum kind kind, double at[][N_MAX], uint32_t n_columns)
{
    for (uint32_t i = 0; i < p->m->n_cached; i++)
        for (uint32_t j = 0; j < n_columns; j++) {
            double seen = j < p->n_columns[kind] ? p->seen[kind][i][j] : 0;

            at[i][j] =
                seen > 0 ? seen : law_seconds(p, kind, &p->law[kind], i, j) * bend(p, kind, i, j);
        }
}

/* A prefill longer than a chunk is computed in chunks. */
static double sum_of_chunks(const struct cost_model *m, uint32_t n_cached, uint32_t n_new,
                            uint32_t chunk)
{
    double sum = 0;

    for (uint32_t n = 0; n_new > 0; n_cached += n, n_new -= n) {
        n = n_new < chunk ? n_new : chunk;
        sum += cost_model_seconds(m, n_cached, n);
    }
    return sum;
}

static void make_grids(struct profile *p)
{
    struct cost_model *m = p->m;
    uint32_t n_single = p->n_columns[PREFILL], chunk = m->new_tokens[n_single - 1];

    fill_grid(p, DECODE, m->decode, m->n_batch);
    fill_grid(p, PREFILL, m->seconds, n_single);
    for (uint32_t i = 0; i < m->n_cached; i++)
        m->seconds[i][0] = m->decode[i][0]; /* the same step */
    for (uint32_t j = n_single; j < m->n_new; j++)
        for (uint32_t i = 0; i < m->n_cached; i++)
            m->seconds[i][j] = sum_of_chunks(m, m->cached[i], m->new_tokens[j], chunk);
    cost_model_smooth(m);
    for (uint32_t i = 0; i < m->n_cached; i++) /* one decode never takes longer than a prefill
                                                  chunk */
        m->decode[i][0] = fmin(m->decode[i][0], m->seconds[i][0]);
}

/* --- running --- */

static bool can_run(const struct profile *p, enum kind kind, uint32_t i, uint32_t j)
{
    const struct cost_profile_shape *s = p->shape;
    uint32_t n_new = kind == PREFILL ? p->m->new_tokens[j] : 1;
    uint64_t n_seqs = kind == PREFILL ? 1 : p->m->batch[j];
    uint64_t n_tokens = (uint64_t)p->m->cached[i] + n_new;
    uint64_t n_blocks = (n_tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;

    return n_tokens <= s->n_tokens_max && n_new <= s->n_rows_max && n_seqs <= s->n_rows_max &&
           n_seqs <= s->n_seqs_max && n_blocks * n_seqs * KV_BLOCK_TOKENS <= s->n_kv_tokens_max;
}

/* Measure a point as the minimum of several runs, because other load on the machine can only delay
 * them. The number of runs is limited to a small share of the budget. The very first point gets at
 * least two runs, because the first one finds empty CPU caches. */
static enum status run_point(struct profile *p, enum kind kind, uint32_t i, uint32_t j)
{
    const struct cost_profile_shape *s = p->shape;
    uint32_t n_new = kind == PREFILL ? p->m->new_tokens[j] : 1;
    uint32_t n_seqs = kind == PREFILL ? 1 : p->m->batch[j];
    uint32_t n_least = p->result->n_prefill + p->result->n_decode == 0 ? 2 : 1, n = 0;
    double least = p->seen[kind][i][j], sum = 0, seconds;

    while (n < n_least || (n < N_RUNS_MAX && sum < s->budget_s / 100)) {
        enum status status = s->run(s->arg, p->m->cached[i], n_new, n_seqs, &seconds);

        if (status != OK)
            return status;
        if (!(seconds >= SECONDS_MIN))
            seconds = SECONDS_MIN;
        if (least == 0 || seconds < least)
            least = seconds;
        sum += seconds;
        n++;
    }
    p->result->seconds += sum;
    p->spent[kind] += sum;
    if (p->seen[kind][i][j] == 0)
        *(kind == PREFILL ? &p->result->n_prefill : &p->result->n_decode) += 1;
    p->seen[kind][i][j] = least;
    if (kind == DECODE && j == 0)
        p->seen[PREFILL][i][0] = p->seen[DECODE][i][0]; /* the same step */
    p->result->is_measured = true;
    fit_law(p, PREFILL);
    fit_law(p, DECODE);
    return OK;
}

/* 0: an end of the axis, 1: its middle, 2: a quarter, ... */
static uint32_t level_of(uint32_t i, uint32_t n)
{
    uint32_t low = 0, high = n - 1, level = 1;

    if (i == low || i == high)
        return 0;
    for (;; level++) {
        uint32_t middle = low + (high - low) / 2;

        if (i == middle)
            return level;
        *(i < middle ? &high : &low) = middle;
    }
}

/* Decodes are measured first, but get at most half of the budget. */
static double seconds_left(const struct profile *p, enum kind kind)
{
    double left = p->shape->budget_s - p->result->seconds;

    return kind == DECODE ? fmin(left, p->shape->budget_s / 2 - p->spent[DECODE]) : left;
}

/* Levels from N_LEVELS_ALL on measure again the points that took much longer than the law. */
static bool is_due(const struct profile *p, enum kind kind, uint32_t i, uint32_t j, uint32_t level)
{
    double left = seconds_left(p, kind), seen = p->seen[kind][i][j];
    double expected = law_seconds(p, kind, &p->law[kind], i, j);

    if (!can_run(p, kind, i, j))
        return false;
    if (level >= N_LEVELS_ALL)
        return seen > DOUBTFUL * expected && 2 * seen <= left;
    return seen == 0 && 2 * expected <= left &&
           level_of(i, p->m->n_cached) + level_of(j, p->n_columns[kind]) == level;
}

static enum status run_level(struct profile *p, uint32_t level)
{
    enum status s = OK;

    for (int kind = DECODE; kind >= PREFILL; kind--)
        for (uint32_t i = 0; s == OK && i < p->m->n_cached; i++)
            for (uint32_t j = 0; s == OK && j < p->n_columns[kind]; j++)
                if (is_due(p, (enum kind)kind, i, j, level))
                    s = run_point(p, (enum kind)kind, i, j);
    return s;
}

static enum status run_all(struct profile *p)
{
    enum status s = OK;

    if (can_run(p, DECODE, 0, 0))
        s = run_point(p, DECODE, 0, 0);
    if (s == OK && p->n_columns[PREFILL] > 1 && can_run(p, PREFILL, 0, 1))
        s = run_point(p, PREFILL, 0, 1);
    for (uint32_t level = 0; s == OK && level < N_LEVELS_ALL + N_AGAIN; level++)
        s = run_level(p, level);
    return s;
}

enum status cost_profile_measure(struct cost_model *m, const struct cost_profile_shape *shape,
                                 struct cost_profile_result *result)
{
    struct profile p = {.shape = shape, .m = m, .result = result};
    enum status s;

    ASSERT(shape->n_rows_max > 0 && shape->n_seqs_max > 0 && shape->n_tokens_max > 0);
    *result = (struct cost_profile_result){0};
    make_axes(&p);
    make_priors(&p);
    s = run_all(&p);
    if (result->is_measured)
        make_grids(&p);
    else
        cost_model_estimate(m, &shape->estimate);
    return s;
}

/* --- through the engine --- */

struct runner {
    const struct cost_profile_config *c;
    uint32_t n_written; /* blocks written */
};

/* On a host device all untouched pages of the pool are the same page of zeros, which is read faster
 * than real KV. A GPU's memory has all its pages from the start. */
static void write_blocks(struct runner *r, uint32_t n)
{
    const struct kv_pool *pool = r->c->pool;
    size_t bytes = kv_block_bytes(pool);

    if (n <= r->n_written || !device_is_host(r->c->device))
        return;
    memset((unsigned char *)pool->base + r->n_written * bytes, 0, (n - r->n_written) * bytes);
    r->n_written = n;
}

static enum status run_step(void *arg, uint32_t n_cached, uint32_t n_new, uint32_t n_seqs,
                            double *seconds)
{
    struct runner *r = arg;
    const struct cost_profile_config *c = r->c;
    uint32_t n_blocks = (n_cached + n_new + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    float *logits;

    write_blocks(r, n_seqs * n_blocks);
    uint64_t began = clock_now_ns();
    batch_reset(c->batch);
    /* Block k of the step is block k of the pool. */
    for (uint32_t i = 0; i < n_seqs; i++)
        batch_add_blocks(c->batch, c->batch->n_blocks, c->segment_tokens, NULL, n_cached, n_new, 1);
    for (uint32_t row = 0; row < c->batch->n_rows; row++)
        c->batch->ids[row] = (uint32_t)((uint64_t)row * 7919 % c->n_vocab);
    enum status s = forward_run(c->forward, c->batch, c->pool, &logits);
    if (s == OK)
        s = device_stream_wait(c->device, NULL);
    *seconds = (double)(clock_now_ns() - began) * 1e-9;
    batch_reset(c->batch);
    return s;
}

static uint64_t n_kv_tokens_max(const struct cost_profile_config *c)
{
    uint64_t n =
        c->pool->n_blocks < c->batch->n_blocks_max ? c->pool->n_blocks : c->batch->n_blocks_max;
    uint64_t n_touched = HOST_KV_BYTES_MAX / kv_block_bytes(c->pool);

    if (device_is_host(c->device) && n > n_touched)
        n = n_touched;
    return n * KV_BLOCK_TOKENS;
}

static enum status measure(struct cost_model *m, const struct cost_profile_config *c,
                           struct cost_profile_result *result, struct buf *why)
{
    bool is_host = device_is_host(c->device);
    struct runner r = {.c = c};
    struct cost_profile_shape shape = {.n_rows_max = c->n_rows_max,
                                       .n_seqs_max = c->n_seqs_max,
                                       .n_tokens_max = c->n_tokens_max,
                                       .n_kv_tokens_max = n_kv_tokens_max(c),
                                       .estimate = c->estimate,
                                       .budget_s = c->budget_s > 0 ? c->budget_s
                                                   : is_host       ? BUDGET_HOST_S
                                                                   : BUDGET_GPU_S,
                                       .run = run_step,
                                       .arg = &r};

    log_event(LOG_INFO, "measuring how long steps take", "budget_s=%.1f", shape.budget_s);
    enum status s = cost_profile_measure(m, &shape, result);
    if (s != OK)
        buf_why(why, s, "a step of the cost profile failed (%s); %u points were measured",
                status_name(s), result->n_prefill + result->n_decode);
    return s;
}

/* Create the missing folders of the path. Errors are reported when the file is opened. */
static void make_folders(const char *dir)
{
    char path[PATH_MAX];
    size_t n = strlen(dir);

    if (n >= sizeof path)
        return;
    memcpy(path, dir, n + 1);
    for (size_t i = 1; i < n; i++)
        if (path[i] == '/') {
            path[i] = '\0';
            (void)mkdir(path, 0755);
            path[i] = '/';
        }
    (void)mkdir(path, 0755);
}

static void log_result(const struct cost_model *m, const struct cost_profile_config *c,
                       const struct cost_profile_result *r)
{
    uint32_t batch = c->n_seqs_max < c->n_rows_max ? c->n_seqs_max : c->n_rows_max;
    uint32_t chunk = c->n_rows_max < c->n_tokens_max ? c->n_rows_max : c->n_tokens_max;

    log_event(LOG_INFO, "cost profile",
              "source=%s prefill_points=%u decode_points=%u seconds=%.2f floor_ms=%.2f "
              "decode_tokens_per_s=%.0f prefill_tokens_per_s=%.0f",
              r->is_loaded     ? "file"
              : r->is_measured ? "measured"
                               : "estimate",
              r->n_prefill, r->n_decode, r->seconds, 1e3 * cost_model_decode_seconds(m, 0, 1),
              batch / cost_model_decode_seconds(m, 0, batch),
              chunk / cost_model_seconds(m, 0, chunk));
}

static bool load(struct cost_model *m, const struct cost_profile_config *c)
{
    struct buf words;
    enum status s;

    buf_init(&words, BUF_WHY_MAX);
    s = cost_model_load(m, c->dir, c->subject, &words);
    if (s != OK)
        log_event(s == ERR_NOT_FOUND ? LOG_INFO : LOG_WARN, "no cost profile to go on with",
                  "why=\"%s\"", buf_str(&words));
    buf_fini(&words);
    return s == OK;
}

/* Let a GPU time its matrix products, in prefills of 16, 24, 32, 48 ... tokens: the numbers of rows
 * that differ in algorithms (kernels/cuda/gemm_cublas.cu). The walk stops where the budget would
 * not hold the next one. */
static enum status tune(const struct cost_profile_config *c)
{
    struct runner r = {.c = c};
    uint64_t n_most = n_kv_tokens_max(c), n = TUNE_ROWS_MIN;
    double left = TUNE_BUDGET_S, seconds = 0;
    enum status s = OK;

    if (device_is_host(c->device))
        return OK;
    n_most = n_most < c->n_rows_max ? n_most : c->n_rows_max;
    n_most = n_most < c->n_tokens_max ? n_most : c->n_tokens_max;
    forward_tune(c->forward, true);
    for (bool is_half = false; s == OK && left > 2 * seconds; is_half = !is_half) {
        s = run_step(&r, 0, (uint32_t)(n < n_most ? n : n_most), 1, &seconds);
        left -= seconds;
        if (n >= n_most)
            break;
        n = is_half ? n / 3 * 4 : n / 2 * 3;
    }
    forward_tune(c->forward, false);
    return s;
}

enum status cost_profile_obtain(struct cost_model *m, const struct cost_profile_config *c,
                                struct cost_profile_result *result, struct buf *why)
{
    enum status s = OK;

    *result = (struct cost_profile_result){0};
    enum status tuned = tune(c);
    if (tuned != OK)
        log_event(LOG_WARN, "the GPU's matrix products are not timed", "error=%s",
                  status_name(tuned));
    if (c->dir && load(m, c)) {
        result->is_measured = result->is_loaded = result->is_kept = true;
    } else {
        s = measure(m, c, result, why);
        if (s == OK && c->dir && result->is_measured) {
            make_folders(c->dir);
            s = cost_model_save(m, c->dir, c->subject, why);
            result->is_kept = s == OK;
        }
    }
    log_result(m, c, result);
    return s;
}

void cost_profile_subject(struct cost_model_subject *out, const uint8_t *fingerprint,
                          const struct cost_profile_config *c)
{
    memcpy(out->fingerprint, fingerprint, sizeof out->fingerprint);
    snprintf(out->device, sizeof out->device, "%s, %u threads, %u tokens, %u of %u a step",
             device_ops(c->device)->name, device_n_threads(c->device), c->n_tokens_max,
             c->n_seqs_max, c->n_rows_max);
}
