#include "loadgen/bench/retrieval/data.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
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

static enum status find_exact(const struct data *d, float *kth)
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
        kth[i] = best[(size_t)(i + 1) * d->k - 1];
    free(best);
    free(scores);
    return OK;
}

static size_t n_floats(const struct data *d)
{
    return ((size_t)d->n + d->n_queries) * d->dim + d->n_queries;
}

static void point_to(struct data *d, const float *floats)
{
    d->x = floats;
    d->q = d->x + (size_t)d->n * d->dim;
    d->kth = d->q + (size_t)d->n_queries * d->dim;
}

static enum status make(struct data *d, const struct retrievalbench_options *o, struct buf *why)
{
    d->made = malloc(n_floats(d) * sizeof *d->made);
    if (!d->made)
        return buf_why(why, ERR_NOMEM, "no memory for %u vectors", d->n);
    point_to(d, d->made);
    for (uint32_t i = 0; i < d->n; i++)
        make_vector(d->made + (size_t)i * d->dim, o, i);
    for (uint32_t i = 0; i < d->n_queries; i++)
        make_vector(d->made + ((size_t)d->n + i) * d->dim, o, (uint64_t)1 << 40 | i);
    return find_exact(d, d->made + ((size_t)d->n + d->n_queries) * d->dim);
}

static void write_head(char head[DATA_HEAD_BYTES], const struct data *d,
                       const struct retrievalbench_options *o)
{
    int n = snprintf(head, DATA_HEAD_BYTES,
                     "{\"dim\": %u, \"n\": %u, \"n_queries\": %u, \"top_k\": %u, "
                     "\"clusters\": %" PRIu64 ", \"seed\": %" PRIu64 "}",
                     d->dim, d->n, d->n_queries, d->k, o->clusters, o->seed);

    ASSERT(n > 0 && n < DATA_HEAD_BYTES);
    memset(head + n, ' ', DATA_HEAD_BYTES - (size_t)n);
    head[DATA_HEAD_BYTES - 1] = '\n';
}

static bool read_file(struct data *d, const struct retrievalbench_options *o)
{
    char head[DATA_HEAD_BYTES];

    if (mapfile_open(&d->file, o->file, NULL) != OK)
        return false;
    write_head(head, d, o);
    if (d->file.n_bytes != sizeof head + n_floats(d) * sizeof(float) ||
        memcmp(d->file.data, head, sizeof head) != 0) {
        mapfile_close(&d->file);
        return false;
    }
    point_to(d, (const void *)(d->file.data + sizeof head));
    return true;
}

static enum status write_file(const struct data *d, const struct retrievalbench_options *o,
                              struct buf *why)
{
    char head[DATA_HEAD_BYTES];
    FILE *f = fopen(o->file, "w");
    bool good = f != NULL;

    write_head(head, d, o);
    good = good && fwrite(head, 1, sizeof head, f) == sizeof head &&
           fwrite(d->made, sizeof *d->made, n_floats(d), f) == n_floats(d);
    if (f && fclose(f) != 0)
        good = false;
    return good ? OK : buf_why(why, ERR_IO, "%s: %s", o->file, strerror(errno));
}

enum status data_open(struct data *d, const struct retrievalbench_options *o, struct buf *why)
{
    enum status s;

    *d = (struct data){.dim = (uint32_t)o->dim,
                       .n = (uint32_t)o->vectors,
                       .n_queries = (uint32_t)o->queries,
                       .k = (uint32_t)o->top_k};
    if (*o->file && read_file(d, o))
        return OK;
    s = make(d, o, why);
    return s == OK && *o->file ? write_file(d, o, why) : s;
}

void data_fini(struct data *d)
{
    if (!d->made && d->x)
        mapfile_close(&d->file);
    free(d->made);
}
