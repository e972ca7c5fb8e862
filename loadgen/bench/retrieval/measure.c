#include "loadgen/bench/retrieval/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

#define PUT_CHUNK 4096

static enum status put_all(struct vectors *v, const struct data *d, struct buf *why)
{
    int64_t ids[PUT_CHUNK];
    enum status s = OK;

    for (uint32_t from = 0; s == OK && from < d->n; from += PUT_CHUNK) {
        uint32_t some = d->n - from < PUT_CHUNK ? d->n - from : PUT_CHUNK;

        for (uint32_t i = 0; i < some; i++)
            ids[i] = from + i;
        s = vectors_put_many(v, ids, d->x + (size_t)from * d->dim, some, why);
    }
    return s;
}

static double cpu_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int compare_doubles(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static enum status search_all(struct measure_result *out, struct vectors *v, const struct data *d,
                              struct vector_hit *hits, double *us, struct buf *why)
{
    uint64_t n_found = 0;
    double before_us = cpu_us();

    for (uint32_t i = 0; i < d->n_queries; i++) {
        uint64_t begin = clock_now_ns();
        uint32_t n;
        enum status s =
            vectors_search(v, d->q + (size_t)i * d->dim, d->k, NULL, NULL, hits, &n, why);

        us[i] = (double)(clock_now_ns() - begin) * 1e-3;
        if (s != OK)
            return s;
        for (uint32_t j = 0; j < n; j++)
            n_found += hits[j].score >= d->kth[i] - 1e-5f; /* rounding of equal neighbours */
    }
    out->cpu_us = (cpu_us() - before_us) / d->n_queries;
    qsort(us, d->n_queries, sizeof *us, compare_doubles);
    out->recall = (double)n_found / ((double)d->n_queries * d->k);
    out->median_us = us[d->n_queries / 2];
    out->p99_us = us[(uint64_t)d->n_queries * 99 / 100];
    return OK;
}

/* Count in *out for each stage whether its list is the last one already. */
static enum status search_staged(struct measure_result *out, struct vectors *v, const float *q,
                                 uint32_t k, uint32_t n_stages, struct vector_hit *hits,
                                 struct buf *why)
{
    struct vectors_scan *scan;
    uint32_t n_run = 0, n = 0;
    bool is_last = false;
    enum status s = vectors_scan_begin(&scan, v, q, k, n_stages, NULL, NULL, why);

    while (s == OK && !is_last) {
        s = vectors_scan_next(scan, hits + (size_t)n_run * k, &n, &is_last, why);
        n_run++;
    }
    vectors_scan_end(scan);
    if (s != OK)
        return s;
    for (uint32_t i = n_run; i < n_stages; i++)
        out->final_after[i]++;
    for (uint32_t i = n_run; i-- > 0;) {
        const struct vector_hit *at = hits + (size_t)i * k, *last = hits + (size_t)(n_run - 1) * k;

        for (uint32_t j = 0; j < n; j++)
            if (at[j].id != last[j].id)
                return OK;
        out->final_after[i]++;
    }
    return OK;
}

static enum status measure_stages(struct measure_result *out, struct vectors *v,
                                  const struct data *d, uint32_t n_stages, struct vector_hit *hits,
                                  struct buf *why)
{
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < d->n_queries; i++)
        s = search_staged(out, v, d->q + (size_t)i * d->dim, d->k, n_stages, hits, why);
    for (uint32_t i = 0; i < n_stages; i++)
        out->final_after[i] /= d->n_queries;
    return s;
}

/* DIR/<factory>.index; NULL: no memory. */
static char *index_path(const char *dir, const char *factory)
{
    size_t n = strlen(dir) + strlen(factory) + sizeof "/.index";
    char *path = malloc(n);

    if (!path)
        return NULL;
    snprintf(path, n, "%s/%s.index", dir, factory);
    for (char *c = path + strlen(dir) + 1; *c; c++)
        if (*c == '/' || *c == ',')
            *c = '_';
    return path;
}

enum status measure_index(struct measure_result *out, const char *factory, const struct data *d,
                          const struct retrievalbench_options *o, struct buf *why)
{
    char *file = *o->keep ? index_path(o->keep, factory) : NULL;
    const struct vectors_config config = {.dim = d->dim,
                                          .factory = factory,
                                          .file = file,
                                          .generation = o->seed,
                                          .n_probe = (uint32_t)o->n_probe,
                                          .n_threads = (uint32_t)o->threads,
                                          .seed = o->seed};
    struct vector_hit *hits = calloc((size_t)d->k * o->stages, sizeof *hits);
    double *us = malloc(d->n_queries * sizeof *us);
    struct vectors *v = NULL;
    uint64_t begin;
    enum status s = hits && us && (file || !*o->keep) ? OK : ERR_NOMEM;

    *out = (struct measure_result){0};
    snprintf(out->wanted, sizeof out->wanted, "%s", factory);
    begin = clock_now_ns();
    if (s == OK)
        s = vectors_open(&v, &config, &out->is_loaded, why);
    if (s == OK && !out->is_loaded)
        s = put_all(v, d, why);
    if (s == OK) {
        vectors_wait(v);
        out->build_s = (double)(clock_now_ns() - begin) * 1e-9;
        vectors_stats(v, &out->stats);
        if (file)
            s = vectors_save(v, why);
    }
    if (s == OK)
        s = search_all(out, v, d, hits, us, why);
    if (s == OK)
        s = measure_stages(out, v, d, (uint32_t)o->stages, hits, why);
    vectors_close(v);
    free(file);
    free(hits);
    free(us);
    return s;
}
