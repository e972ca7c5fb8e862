#include "engine/run/step_graphs.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"

struct entry {
    struct step_bucket bucket;
    struct device_graph *graph; /* NULL: the bucket's second step will be recorded */
    uint64_t last_use;          /* 0: the entry is empty */
};

struct step_graphs {
    struct device *d;
    bool broken; /* a recording failed: no further one is tried */
    uint64_t n_uses;
    struct step_graphs_stats stats;
    struct entry table[STEP_GRAPHS_MAX];
};

enum status step_graphs_create(struct step_graphs **out, struct device *d)
{
    struct step_graphs *g = calloc(1, sizeof *g);

    *out = g;
    if (!g)
        return ERR_NOMEM;
    g->d = d;
    return OK;
}

void step_graphs_forget(struct step_graphs *g)
{
    (void)!device_stream_wait(g->d, NULL); /* a graph may be running */
    for (size_t i = 0; i < STEP_GRAPHS_MAX; i++) {
        device_graph_destroy(g->d, g->table[i].graph);
        g->table[i] = (struct entry){0};
    }
}

void step_graphs_destroy(struct step_graphs *g)
{
    if (!g)
        return;
    step_graphs_forget(g);
    free(g);
}

static uint32_t round_up(uint32_t n, uint32_t unit, uint32_t most)
{
    uint32_t up = (n + unit - 1) / unit * unit;

    return up < most ? up : most;
}

/* Units follow the tiles of products: 8 rows and, from 64 on, 32. An eighth of the segments is
 * padding at most: blocks without work cost little, and a growing context needs a new graph rarely.
 */
struct step_bucket step_bucket_for(uint32_t n_rows, uint32_t n_segments, uint32_t n_rows_max,
                                   uint32_t n_segments_max)
{
    uint32_t unit = n_rows <= 2 ? 1 : n_rows <= 4 ? 4 : n_rows <= 64 ? 8 : 32, eighth = 8;

    ASSERT(n_rows > 0 && n_rows <= n_rows_max && n_segments <= n_segments_max);
    while (n_segments / eighth >= 16)
        eighth *= 2;
    return (struct step_bucket){
        .n_rows = round_up(n_rows, unit, n_rows_max),
        .n_segments = round_up(n_segments > 0 ? n_segments : 1, eighth, n_segments_max)};
}

static bool is_same(const struct step_bucket *a, const struct step_bucket *b)
{
    return a->n_rows == b->n_rows && a->n_segments == b->n_segments && a->pool == b->pool;
}

/* The bucket's entry, or an empty or the oldest one. */
static struct entry *find(struct step_graphs *g, const struct step_bucket *bucket)
{
    struct entry *oldest = &g->table[0];

    for (struct entry *e = g->table; e < g->table + STEP_GRAPHS_MAX; e++) {
        if (e->last_use && is_same(&e->bucket, bucket))
            return e;
        if (e->last_use < oldest->last_use)
            oldest = e;
    }
    return oldest;
}

/* Record the step. On an error of the recording, which is no error of the step, e->graph stays
 * NULL. */
static enum status record_step(struct step_graphs *g, struct entry *e,
                               enum status (*record)(void *arg), void *arg)
{
    enum status s = device_graph_begin(g->d);

    if (s == OK) {
        enum status recorded = record(arg);

        s = device_graph_end(g->d, &e->graph);
        if (s == OK && recorded != OK) {
            device_graph_destroy(g->d, e->graph);
            e->graph = NULL;
            s = recorded;
        }
    }
    g->stats.n_recorded += s == OK;
    if (s == OK || device_failure(g->d))
        return s;
    g->broken = true;
    if (s != ERR_UNSUPPORTED)
        log_event(LOG_WARN, "the GPU could not record a step: steps are launched kernel by kernel",
                  "error=%s rows=%u segments=%u", status_name(s), e->bucket.n_rows,
                  e->bucket.n_segments);
    return OK;
}

enum status step_graphs_run(struct step_graphs *g, const struct step_bucket *bucket,
                            enum status (*record)(void *arg), void *arg)
{
    struct entry *e = find(g, bucket);
    bool is_known = e->last_use && is_same(&e->bucket, bucket);
    enum status s = OK;

    if (!is_known) {
        if (e->graph) /* the step that used it last may still run */
            s = device_stream_wait(g->d, NULL);
        device_graph_destroy(g->d, e->graph);
        *e = (struct entry){.bucket = *bucket};
    } else if (!e->graph && !g->broken) {
        s = record_step(g, e, record, arg);
    }
    e->last_use = ++g->n_uses;
    if (s != OK)
        return s;
    if (!e->graph)
        return record(arg);
    g->stats.n_replayed++;
    return device_graph_launch(g->d, e->graph);
}

struct step_graphs_stats step_graphs_stats(const struct step_graphs *g)
{
    return g->stats;
}
