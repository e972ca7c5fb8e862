#include "loadgen/bench/retrieval/data.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/retrieval/dot.h"

#define TILE 256

/* Add numbers from -1 to 1 of one stream of random numbers to x [dim]. */
static void add_noise(float *x, uint32_t dim, uint64_t seed, uint64_t stream)
{
    for (uint32_t i = 0; i < dim; i += 4) {
        uint32_t four[4];

        rng_philox(seed, i, stream, four);
        for (uint32_t k = 0; k < 4 && i + k < dim; k++)
            x[i + k] += (float)(int32_t)four[k] * 0x1p-31f;
    }
}

static void normalize(float *x, uint32_t dim)
{
    double sum = 0;

    for (uint32_t i = 0; i < dim; i++)
        sum += (double)x[i] * x[i];
    for (uint32_t i = 0; i < dim; i++)
        x[i] = (float)(x[i] / sqrt(sum));
}

static void make_vector(float *x, const struct retrievalbench_options *o, uint64_t stream)
{
    uint32_t dim = (uint32_t)o->dim;

    memset(x, 0, dim * sizeof *x);
    add_noise(x, dim, o->seed + 1, rng_u32(o->seed, stream) % o->clusters);
    add_noise(x, dim, o->seed + 2, stream);
    normalize(x, dim);
}

/* Keep the k largest of the scores seen so far, in descending order. */
static void insert(float *best, uint32_t k, float score)
{
    uint32_t i = k - 1;

    if (score <= best[i])
        return;
    for (; i > 0 && best[i - 1] < score; i--)
        best[i] = best[i - 1];
    best[i] = score;
}

static enum status find_exact(struct data *d)
{
    uint32_t n_q = d->n_queries;
    float *best = malloc((size_t)n_q * d->k * sizeof *best);
    float *scores = malloc((size_t)n_q * TILE * sizeof *scores);

    if (!best || !scores) {
        free(best);
        free(scores);
        return ERR_NOMEM;
    }
    for (size_t i = 0; i < (size_t)n_q * d->k; i++)
        best[i] = -2;
    for (uint32_t from = 0; from < d->n; from += TILE) {
        uint32_t some = d->n - from < TILE ? d->n - from : TILE;

        dot_many(scores, d->q, n_q, d->x + (size_t)from * d->dim, some, d->dim);
        for (uint32_t i = 0; i < n_q; i++)
            for (uint32_t j = 0; j < some; j++)
                insert(best + (size_t)i * d->k, d->k, scores[(size_t)i * some + j]);
    }
    for (uint32_t i = 0; i < n_q; i++)
        d->kth[i] = best[(size_t)(i + 1) * d->k - 1];
    free(best);
    free(scores);
    return OK;
}

enum status data_make(struct data *d, const struct retrievalbench_options *o, struct buf *why)
{
    *d = (struct data){.dim = (uint32_t)o->dim,
                       .n = (uint32_t)o->vectors,
                       .n_queries = (uint32_t)o->queries,
                       .k = (uint32_t)o->top_k};
    d->x = malloc((size_t)d->n * d->dim * sizeof *d->x);
    d->q = malloc((size_t)d->n_queries * d->dim * sizeof *d->q);
    d->kth = malloc(d->n_queries * sizeof *d->kth);
    if (!d->x || !d->q || !d->kth)
        return buf_why(why, ERR_NOMEM, "no memory for %u vectors", d->n);
    for (uint32_t i = 0; i < d->n; i++)
        make_vector(d->x + (size_t)i * d->dim, o, i);
    for (uint32_t i = 0; i < d->n_queries; i++)
        make_vector(d->q + (size_t)i * d->dim, o, (uint64_t)1 << 40 | i);
    return find_exact(d);
}

void data_fini(struct data *d)
{
    free(d->x);
    free(d->q);
    free(d->kth);
}

enum status data_write(const struct data *d, const char *path, struct buf *why)
{
    size_t n = (size_t)d->n * d->dim, n_q = (size_t)d->n_queries * d->dim;
    FILE *f = fopen(path, "w");
    bool good = f && fprintf(f, "{\"dim\": %u, \"n\": %u, \"n_queries\": %u}\n", d->dim, d->n,
                             d->n_queries) > 0;

    good =
        good && fwrite(d->x, sizeof *d->x, n, f) == n && fwrite(d->q, sizeof *d->q, n_q, f) == n_q;
    if (f && fclose(f) != 0)
        good = false;
    return good ? OK : buf_why(why, ERR_IO, "%s: %s", path, strerror(errno));
}
