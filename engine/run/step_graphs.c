#include "engine/run/step_graphs.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"

/* Small graphs that are measured: so many kernels that the pieces in which a driver allocates (2 MB
 * or so) do not matter. */
#define N_PROBES 16
#define PROBE_KERNELS 256

/* Where the reserve is full, a graph is replaced if it was not used for so many steps. A recording
 * takes about as long as some ten steps save. */
#define REPLACED_AFTER_STEPS 256

struct entry {
    struct step_bucket bucket;
    struct device_graph *graph; /* NULL: the bucket's second step will be recorded */
    uint64_t last_use;          /* 0: the entry is empty */
};

struct step_graphs {
    struct device *d;
    bool broken; /* a recording failed: no further one is tried */
    uint64_t n_uses;
    uint64_t reserve;         /* bytes */
    uint64_t n_bytes_largest; /* of a recording until now */
    uint32_t n_held_max;      /* graphs for which the reserve suffices, as far as is known */
    struct step_graphs_stats stats;
    struct entry table[STEP_GRAPHS_MAX];
};

enum status step_graphs_create(struct step_graphs **out, struct device *d, uint64_t reserve)
{
    struct step_graphs *g = calloc(1, sizeof *g);

    *out = g;
    if (!g)
        return ERR_NOMEM;
    g->d = d;
    g->reserve = reserve;
    g->n_held_max = STEP_GRAPHS_MAX;
    return OK;
}

/* Free memory of the device; 0: not known. */
static uint64_t free_bytes(struct device *d)
{
    size_t n_free, n_total;

    return device_memory(d, &n_free, &n_total) == OK ? n_free : 0;
}

/* Destroy the entry's graph, if it has one. No launch of it may be running. */
static void destroy_graph(struct step_graphs *g, struct entry *e)
{
    if (!e->graph)
        return;
    uint64_t before = free_bytes(g->d);
    device_graph_destroy(g->d, e->graph);
    uint64_t after = free_bytes(g->d), given = before && after > before ? after - before : 0;
    e->graph = NULL;
    g->stats.n_held--;
    g->stats.n_bytes -= given < g->stats.n_bytes ? given : g->stats.n_bytes;
}

void step_graphs_forget(struct step_graphs *g)
{
    (void)!device_stream_wait(g->d, NULL); /* a graph may be running */
    for (size_t i = 0; i < STEP_GRAPHS_MAX; i++) {
        destroy_graph(g, &g->table[i]);
        g->table[i] = (struct entry){0};
    }
    g->stats.n_bytes = 0; /* later graphs get what the driver has kept */
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

static bool is_full(const struct step_graphs *g)
{
    return g->stats.n_held >= g->n_held_max ||
           (g->stats.n_held > 0 && g->stats.n_bytes + g->n_bytes_largest > g->reserve);
}

/* Say whether one more graph may be recorded. If it might pass the reserve, the one that was used
 * least recently is destroyed, unless it is in use. From then on the number of graphs does not
 * grow, also where the driver keeps the memory for the next one. */
static enum status make_room(struct step_graphs *g, bool *has_room)
{
    struct entry *oldest = NULL;

    *has_room = true;
    if (!is_full(g))
        return OK;
    if (g->stats.n_held < g->n_held_max) {
        g->n_held_max = g->stats.n_held;
        log_event(LOG_INFO, "recorded steps fill their reserve of GPU memory",
                  "recordings=%u bytes=%llu reserve=%llu", g->stats.n_held,
                  (unsigned long long)g->stats.n_bytes, (unsigned long long)g->reserve);
    }
    for (struct entry *e = g->table; e < g->table + STEP_GRAPHS_MAX; e++)
        if (e->graph && (!oldest || e->last_use < oldest->last_use))
            oldest = e;
    ASSERT(oldest);
    *has_room = g->n_uses - oldest->last_use >= REPLACED_AFTER_STEPS;
    enum status s = *has_room ? device_stream_wait(g->d, NULL) : OK; /* it may be running */
    if (s == OK && *has_room)
        destroy_graph(g, oldest);
    return s;
}

/* Count the memory of a new graph. */
static void count_graph(struct step_graphs *g, uint64_t before)
{
    uint64_t after = free_bytes(g->d), n = after && before > after ? before - after : 0;

    g->stats.n_held++;
    g->stats.n_bytes += n;
    g->n_bytes_largest = n > g->n_bytes_largest ? n : g->n_bytes_largest;
}

/* Record the step. On an error of the recording, which is no error of the step, e->graph stays
 * NULL. */
static enum status record_step(struct step_graphs *g, struct entry *e,
                               enum status (*record)(void *arg), void *arg)
{
    uint64_t before = free_bytes(g->d);
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
    if (s == OK) {
        g->stats.n_recorded++;
        count_graph(g, before);
    }
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
        destroy_graph(g, e);
        *e = (struct entry){.bucket = *bucket};
    } else if (!e->graph && !g->broken) {
        bool has_room;

        s = make_room(g, &has_room);
        if (s == OK && has_room)
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

/* --- the reserve --- */

static enum status make_probe(struct device *d, float *x, struct device_graph **out)
{
    const struct scale_params p = {.n_rows = 1, .dim = 1, .scale = 1, .x = x, .out = x};
    enum status recorded = OK, s = device_graph_begin(d);

    if (s != OK)
        return s;
    for (uint32_t i = 0; recorded == OK && i < PROBE_KERNELS; i++)
        recorded = device_ops(d)->scale(d, NULL, &p);
    s = device_graph_end(d, out);
    return s == OK ? recorded : s;
}

void step_graphs_measure(struct device *d, struct step_graphs_cost *out)
{
    struct device_graph *probes[N_PROBES] = {0};
    float *x = device_alloc(d, sizeof *x);
    size_t before = 0, with = 0, after = 0, total = 0;
    enum status s = x ? device_memory(d, &before, &total) : ERR_NOMEM;

    for (int i = 0; s == OK && i < N_PROBES; i++)
        s = make_probe(d, x, &probes[i]);
    bool is_possible = s != ERR_UNSUPPORTED;
    if (s == OK)
        s = device_memory(d, &with, &total);
    for (int i = 0; i < N_PROBES; i++)
        device_graph_destroy(d, probes[i]);
    if (s == OK)
        s = device_memory(d, &after, &total);
    device_free(d, x);
    *out = (struct step_graphs_cost){.is_possible = is_possible, .device_bytes = total};
    if (s != OK || with >= before)
        return;
    out->probe_bytes = before - with;
    out->n_kept = after < before ? before - after : 0;
}

uint64_t step_graphs_reserve(const struct step_graphs_cost *c, uint32_t n_kernels)
{
    double n_probed = (double)N_PROBES * PROBE_KERNELS;
    double n_all = (double)STEP_GRAPHS_MAX * n_kernels;
    uint64_t n = (uint64_t)((double)c->probe_bytes * n_all / n_probed);
    uint64_t most = c->device_bytes / STEP_GRAPHS_SHARE;

    if (!c->is_possible)
        return 0;
    n = n > STEP_GRAPHS_BYTES_MIN ? n : STEP_GRAPHS_BYTES_MIN;
    return n < most ? n : most;
}
