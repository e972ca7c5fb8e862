#include "loadgen/bench/cache/writes.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "loadgen/bench/engine/memory.h"
#include "loadgen/bench/cache/asker.h"
#include "loadgen/bench/cache/disk_place.h"
#include "loadgen/bench/cache/shape.h"

#define WRITE_MAX_MS 60000u /* a disk that is busy with other work is slow, not broken */
#define N_ENGINES 3u
#define N_WAVES 2u
#define N_LAST 4u         /* tokens behind the prompt, in each request others */
#define N_FIT 3u          /* batches that the device tier holds */
#define N_DISK_BATCHES 8u /* and a disk: from then on each one pushes another out */
#define SPARE_BYTES ((uint64_t)256 << 20)

static const struct {
    const char *name;
    uint32_t engine;   /* sides with one engine differ in nothing */
    uint32_t min_uses; /* 0: no disk */
} sides[WRITES_N_SIDES] = {
    [WRITES_NONE] = {"no_disk", 0, 0},
    [WRITES_CONTROL] = {"no_disk_again", 0, 0},
    [WRITES_FIRST] = {"min_uses_1", 1, 1},
    [WRITES_SECOND] = {"min_uses_2", 2, 2},
};

struct measurement {
    const struct cachebench_options *o;
    struct writes_result *out;
    struct model_files files;
    const char *model_dir;
    struct disk_place place[N_ENGINES];
    struct asker *asker[N_ENGINES];
    struct bench_shape shape;
    uint32_t *ids; /* [n_requests][n_prompt + N_LAST] */
    uint64_t n_batches;
    uint64_t n_meanwhile[WRITES_N_SIDES]; /* bytes written when a batch ended */
    struct figure_series rate[WRITES_N_SIDES], cost[WRITES_N_SIDES];
};

const char *writes_side_name(enum writes_side side)
{
    return sides[side].name;
}

/* --- setting up --- */

static uint64_t batch_kv_bytes(const struct measurement *t)
{
    uint32_t n = cache_blocks_max(t->out->n_prompt + N_LAST, 1, t->out->n_out);

    return t->o->write_requests * n * shape_block_bytes(&t->shape);
}

static enum status check_memory(const struct measurement *t, bool tied, struct buf *why)
{
    const struct bench_shape *m = &t->shape;
    struct bench_work w;

    counts_step(m, 1, 0, 1, 1, &w);
    uint64_t table = tied ? 0 : (uint64_t)m->n_vocab * m->dim * dtype_bytes(m->output);
    uint64_t need = N_ENGINES * (w.weight_bytes + table + N_FIT * batch_kv_bytes(t)) +
                    w.weight_bytes + SPARE_BYTES; /* dummy weights are made, then packed */
    uint64_t available = memory_available();
    if (need <= available)
        return OK;
    return buf_why(why, ERR_TOO_LARGE,
                   "part writes needs about %.1f GiB of memory for %u engines "
                   "and %.1f GiB are available: a smaller --model, or fewer --write-requests",
                   (double)need / (1 << 30), N_ENGINES, (double)available / (1 << 30));
}

static enum status open_engine(struct measurement *t, enum writes_side side, struct buf *why)
{
    uint32_t e = sides[side].engine;
    struct engine_config c;

    if (t->asker[e])
        return OK;
    shape_engine_config(&c, t->o, t->model_dir);
    c.max_model_len = t->out->n_prompt + N_LAST + t->out->n_out;
    c.max_num_seqs = (uint32_t)t->o->write_requests;
    c.kv_bytes = N_FIT * batch_kv_bytes(t);
    /* The second wave must find the first one's prompts; another policy may rather keep older ones
     * that were used more often. */
    c.cache_policy = "lru";
    if (sides[side].min_uses) {
        enum status s = disk_place_make(&t->place[e], t->o->disk_path, why);
        if (s != OK)
            return s;
        c.kv_disk_path = t->place[e].dir;
        c.kv_disk_bytes = N_DISK_BATCHES * batch_kv_bytes(t) + ((uint64_t)16 << 20);
        c.kv_disk_min_uses = sides[side].min_uses;
        c.kv_disk_timeout_ms = WRITE_MAX_MS;
        c.kv_disk_threads_only = strcmp(t->o->disk_io, "threads") == 0;
    }
    return asker_open(&t->asker[e], &c, why);
}

static enum status open_all(struct measurement *t, struct buf *why)
{
    bool tied = false;
    enum status s = shape_open(&t->shape, &tied, &t->model_dir, &t->files, t->o, why);

    if (s == OK)
        s = check_memory(t, tied, why);
    for (int i = 0; s == OK && i < WRITES_N_SIDES; i++)
        s = open_engine(t, (enum writes_side)i, why);
    return s;
}

static enum status make_series(struct measurement *t)
{
    enum status s = figure_series_init_all(t->rate, WRITES_N_SIDES, t->out->n_rounds);

    if (s == OK)
        s = figure_series_init_all(t->cost, WRITES_N_SIDES, t->out->n_rounds);
    t->ids = calloc(t->o->write_requests * (t->o->write_prompt + N_LAST), sizeof *t->ids);
    return t->ids ? s : ERR_NOMEM;
}

/* --- batches --- */

/* Make the prompts of batch number `batch`, each followed by tokens of this wave. */
static void make_wave(struct measurement *t, uint64_t batch, uint32_t wave, struct ask *asks)
{
    uint32_t n_vocab = t->shape.n_vocab, n_prompt = t->out->n_prompt;

    for (uint32_t r = 0; r < t->out->n_requests; r++) {
        uint32_t *ids = t->ids + (size_t)r * (n_prompt + N_LAST);
        uint64_t seed = batch * ASKER_N_MAX + r;

        for (uint32_t i = 0; i < n_prompt; i++)
            ids[i] = rng_u32(seed, i) % n_vocab;
        for (uint32_t i = 0; i < N_LAST; i++)
            ids[n_prompt + i] = rng_u32(seed, ((uint64_t)wave + 1) << 32 | i) % n_vocab;
        asks[r] = (struct ask){ids, n_prompt + N_LAST, &t->out->n_prompt, 1, t->out->n_out};
    }
}

/* *seconds: of both waves. */
static enum status run_batch(struct measurement *t, enum writes_side side, double *seconds,
                             struct buf *why)
{
    struct asker *a = t->asker[sides[side].engine];
    uint64_t batch = t->n_batches++, took = 0;
    struct answer answers[ASKER_N_MAX];
    struct ask asks[ASKER_N_MAX];
    enum status s = OK;

    for (uint32_t wave = 0; s == OK && wave < N_WAVES; wave++) {
        make_wave(t, batch, wave, asks);
        uint64_t t0 = clock_now_ns();
        s = asker_ask_all(a, asks, t->out->n_requests, answers, why);
        took += clock_now_ns() - t0;
        for (uint32_t r = 0; s == OK && r < t->out->n_requests; r++)
            if (answers[r].n_cached != (wave ? t->out->n_prompt : 0))
                s = buf_why(why, ERR_INTERNAL,
                            "%s: %u tokens were found of a prompt of %u that "
                            "was asked for %u times before",
                            sides[side].name, answers[r].n_cached, t->out->n_prompt, wave);
    }
    *seconds = (double)took * 1e-9;
    return s;
}

static uint64_t written_bytes(struct asker *a, struct engine_stats *stats)
{
    engine_stats(asker_engine(a), stats);
    return stats->cache.disk.n_written_bytes;
}

static enum status run_side(struct measurement *t, enum writes_side side, double *seconds,
                            struct engine_stats *stats, struct buf *why)
{
    struct asker *a = t->asker[sides[side].engine];
    uint64_t before = written_bytes(a, stats);
    struct cache_stats after;
    enum status s = run_batch(t, side, seconds, why);

    if (s != OK)
        return s;
    t->n_meanwhile[side] += written_bytes(a, stats) - before;
    s = asker_rest(a, &after, why);
    if (s == OK)
        t->out->row[side].n_written_bytes += after.disk.n_written_bytes - before;
    return s;
}

static enum status run_round(struct measurement *t, uint32_t round, struct engine_stats *stats,
                             bool counts, struct buf *why)
{
    double seconds[WRITES_N_SIDES];
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < WRITES_N_SIDES; i++) {
        uint32_t side = (round + i) % WRITES_N_SIDES; /* first in turns */
        if (round / WRITES_N_SIDES % 2)
            side = WRITES_N_SIDES - 1 - side; /* and behind each other in turns */
        s = run_side(t, (enum writes_side)side, &seconds[side], stats, why);
    }
    for (int i = 0; s == OK && counts && i < WRITES_N_SIDES; i++) {
        figure_series_add(&t->rate[i], t->out->n_batch_tokens / seconds[i]);
        figure_series_add(&t->cost[i], 100 * (seconds[i] / seconds[WRITES_NONE] - 1));
    }
    return s;
}

/* The first round is a warm-up and does not count. */
static enum status run_rounds(struct measurement *t, struct buf *why)
{
    struct engine_stats *stats = malloc(sizeof *stats);
    enum status s =
        stats ? run_round(t, 0, stats, false, why) : buf_why(why, ERR_NOMEM, "out of memory");

    for (int i = 0; i < WRITES_N_SIDES; i++)
        t->out->row[i].n_written_bytes = t->n_meanwhile[i] = 0;
    for (uint32_t i = 0; s == OK && i < t->out->n_rounds; i++) {
        if (!t->o->quiet)
            fprintf(stderr, "writes: round %u of %u\n", i + 1, t->out->n_rounds);
        s = run_round(t, i, stats, true, why);
    }
    free(stats);
    return s;
}

/* --- */

static enum status finish(struct measurement *t, struct buf *why)
{
    const struct engine_info *info = engine_info(asker_engine(t->asker[0]));
    struct writes_result *r = t->out;

    snprintf(r->ops_name, sizeof r->ops_name, "%s", info->ops_name);
    r->n_threads = info->n_threads;
    r->n_params = info->n_params;
    for (int i = 0; i < WRITES_N_SIDES; i++) {
        struct writes_row *row = &r->row[i];

        row->tokens_per_s = figure_of(&t->rate[i]);
        row->cost_percent = figure_of(&t->cost[i]);
        if (sides[i].min_uses && row->n_written_bytes == 0)
            return buf_why(why, ERR_INTERNAL,
                           "nothing was written with %s: has the file system of "
                           "--disk-path room?",
                           sides[i].name);
        if (row->n_written_bytes)
            row->written_meanwhile = (double)t->n_meanwhile[i] / (double)row->n_written_bytes;
    }
    return OK;
}

enum status writes_run(struct writes_result *out, const struct cachebench_options *o,
                       struct buf *why)
{
    struct measurement t = {.o = o, .out = out};
    struct steal steal;

    *out = (struct writes_result){.n_rounds = (uint32_t)o->write_rounds,
                                  .n_requests = (uint32_t)o->write_requests,
                                  .n_prompt = (uint32_t)o->write_prompt,
                                  .n_out = (uint32_t)o->write_tokens};
    out->n_batch_tokens = N_WAVES * out->n_requests * (out->n_prompt + N_LAST + out->n_out);
    steal_begin(&steal);
    enum status s = make_series(&t);
    if (s != OK)
        s = buf_why(why, s, "out of memory");
    if (s == OK)
        s = open_all(&t, why);
    if (s == OK)
        s = run_rounds(&t, why);
    if (s == OK)
        s = finish(&t, why);
    out->steal_share = steal_share(&steal);
    for (uint32_t e = 0; e < N_ENGINES; e++) {
        asker_close(t.asker[e]);
        disk_place_remove(&t.place[e]);
    }
    model_files_remove(&t.files);
    figure_series_fini_all(t.rate, WRITES_N_SIDES);
    figure_series_fini_all(t.cost, WRITES_N_SIDES);
    free(t.ids);
    return s;
}
