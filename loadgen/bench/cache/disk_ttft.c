#include "loadgen/bench/cache/disk_ttft.h"

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "loadgen/bench/engine/memory.h"
#include "loadgen/bench/cache/asker.h"
#include "loadgen/bench/cache/disk_place.h"
#include "loadgen/bench/cache/disk_rate.h"
#include "loadgen/bench/cache/shape.h"

/* Dummy weights are made, then packed; buffers of a step; code. */
#define SPARE_BYTES ((uint64_t)512 << 20)
#define HEADER_BYTES 256u /* of a record, beside its extent: cache/disk/DISK_FORMAT.md */
#define TABLE_SPARE_BYTES ((uint64_t)16 << 20)
#define N_SEQS 4
#define N_PREFIXES 2u
#define N_PREFIXES_ROOM 4u /* on disk: nothing is pushed out */

/* A request that counts, and the least time that reading its prefix can take. */
struct pair {
    enum disk_kind kind;
    double ttft_s, read_s;
};

struct measurement {
    const struct cachebench_options *o;
    struct disk_ttft_result *out;
    struct model_files files;
    const char *model_dir;
    struct disk_place place;
    struct disk_rate *rate;
    struct asker *asker;
    struct bench_shape shape;
    uint32_t *ids; /* [prefix + n_new] */
    uint64_t n_asked;
    double bytes_per_s; /* the latest */
    struct pair *pairs; /* [disk_pairs + restarts] */
    uint32_t n_pairs;
    struct figure_series ttft[DISK_N_KINDS], ratio[DISK_N_KINDS], rates, reads, floors;
};

const char *disk_kind_name(enum disk_kind k)
{
    static const char *const names[] = {"cold", "step", "disk", "restart"};

    return names[k];
}

/* --- setting up --- */

static enum status check_memory(const struct measurement *t, bool tied, struct buf *why)
{
    const struct bench_shape *m = &t->shape;
    struct bench_work w;

    counts_step(m, 1, t->o->prefix, 1, 1, &w);
    uint64_t table = tied ? 0 : (uint64_t)m->n_vocab * m->dim * dtype_bytes(m->output);
    uint64_t need =
        w.weight_bytes + table + SPARE_BYTES + t->out->n_device_blocks * shape_block_bytes(m);
    uint64_t available = memory_available();
    if (need <= available)
        return OK;
    return buf_why(why, ERR_TOO_LARGE,
                   "part disk needs about %.1f GiB of memory and %.1f GiB are "
                   "available: a smaller --prefix or --model",
                   (double)need / (1 << 30), (double)available / (1 << 30));
}

static enum status open_engine(struct measurement *t, struct buf *why)
{
    const struct cachebench_options *o = t->o;
    struct engine_config c;

    shape_engine_config(&c, o, t->model_dir);
    c.max_model_len = (uint32_t)(o->prefix + o->n_new + 1);
    c.max_num_seqs = N_SEQS;
    c.kv_bytes = t->out->n_device_blocks * shape_block_bytes(&t->shape);
    c.kv_disk_path = t->place.dir;
    c.kv_disk_bytes = t->out->file_bytes_max;
    c.kv_disk_min_uses = 1;
    c.kv_preload = "none";
    c.kv_disk_threads_only = strcmp(o->disk_io, "threads") == 0;
    return asker_open(&t->asker, &c, why);
}

static void begin_result(struct measurement *t)
{
    struct disk_ttft_result *r = t->out;
    uint64_t block = shape_block_bytes(&t->shape);
    uint64_t n_blocks = (r->prefix + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    struct bench_work w;

    counts_step(&t->shape, 1, r->prefix, r->n_new, 1, &w);
    r->kv_bytes = w.kv_bytes;
    r->payload_bytes = n_blocks * block;
    /* Extents are whole pages. */
    r->file_bytes_max =
        N_PREFIXES_ROOM * (n_blocks + 2) * (block + 4096 + HEADER_BYTES) + TABLE_SPARE_BYTES;
}

static enum status open_all(struct measurement *t, struct buf *why)
{
    bool tied = false;
    enum status s = shape_open(&t->shape, &tied, &t->model_dir, &t->files, t->o, why);

    if (s == OK)
        s = check_memory(t, tied, why);
    if (s == OK)
        s = disk_place_make(&t->place, t->o->disk_path, why);
    if (s != OK)
        return s;
    begin_result(t);
    s = disk_rate_create(&t->rate, t->place.dir, t->out->kv_bytes, why);
    return s == OK ? open_engine(t, why) : s;
}

static enum status make_series(struct measurement *t)
{
    uint32_t n = (uint32_t)(t->o->disk_pairs + t->o->restarts) + N_PREFIXES;
    struct figure_series *others[] = {&t->rates, &t->reads, &t->floors};
    enum status s = figure_series_init_all(t->ttft, DISK_N_KINDS, n);

    if (s == OK)
        s = figure_series_init_all(t->ratio, DISK_N_KINDS, n);
    for (int i = 0; s == OK && i < 3; i++)
        s = figure_series_init(others[i], 2 * n);
    t->ids = calloc(t->o->prefix + t->o->n_new, sizeof *t->ids);
    t->pairs = calloc(n, sizeof *t->pairs);
    return t->ids && t->pairs ? s : ERR_NOMEM;
}

/* --- asking --- */

static enum status ask(struct measurement *t, uint64_t prefix_seed, struct answer *a,
                       struct buf *why)
{
    uint32_t n_vocab = t->shape.n_vocab, prefix = t->out->prefix, n_new = t->out->n_new;
    uint64_t asked = t->n_asked++;

    for (uint32_t i = 0; i < prefix; i++)
        t->ids[i] = rng_u32(prefix_seed, i) % n_vocab;
    t->ids[prefix] = (uint32_t)(asked % n_vocab); /* no two prompts continue alike */
    for (uint32_t i = 1; i < n_new; i++)
        t->ids[prefix + i] = rng_u32(asked, (uint64_t)i << 32) % n_vocab;
    return asker_ask(t->asker, t->ids, prefix + n_new, &prefix, 1, 1, a, why);
}

/* Tokens of another prefix that the device tier can hold beside one prompt. */
static uint32_t slack_tokens(const struct measurement *t)
{
    uint32_t used = (t->out->prefix + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS +
                    (t->out->n_new + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;

    return t->out->n_device_blocks > used ? (t->out->n_device_blocks - used) * KV_BLOCK_TOKENS : 0;
}

/* Whether the prefix was found in the tier that this kind of request measures. */
static bool lies_right(const struct measurement *t, enum disk_kind k, const struct answer *a)
{
    uint32_t prefix = t->out->prefix, on_disk = a->n_cached_in[CACHE_DISK];

    switch (k) {
    case DISK_COLD: return a->n_cached == 0;
    case DISK_STEP: return a->n_cached_in[CACHE_DEVICE] == prefix;
    case DISK_READ: return a->n_cached == prefix && on_disk + slack_tokens(t) >= prefix;
    case DISK_RESTART: return on_disk == prefix;
    case DISK_N_KINDS: break;
    }
    return false;
}

/* Count a request. False: its prefix was in another tier. */
static bool count(struct measurement *t, enum disk_kind k, const struct answer *a)
{
    struct disk_row *row = &t->out->row[k];

    if (!lies_right(t, k, a)) {
        row->n_elsewhere++;
        return false;
    }
    if (t->ttft[k].n == 0 || a->n_cached_in[CACHE_DISK] < row->n_on_disk_min)
        row->n_on_disk_min = a->n_cached_in[CACHE_DISK];
    figure_series_add(&t->ttft[k], (double)a->ttft_ns * 1e-9);
    return true;
}

static enum status measure_rate(struct measurement *t, struct buf *why)
{
    enum status s = disk_rate_measure(t->rate, &t->bytes_per_s, why);

    if (s == OK)
        figure_series_add(&t->rates, t->bytes_per_s);
    return s;
}

static enum status ask_pair(struct measurement *t, enum disk_kind kind, uint64_t prefix_seed,
                            struct buf *why)
{
    struct answer from_disk, step;
    double rate = t->bytes_per_s;
    enum status s = ask(t, prefix_seed, &from_disk, why);

    if (s == OK)
        s = ask(t, prefix_seed, &step, why);
    if (s == OK)
        s = measure_rate(t, why);
    if (s != OK)
        return s;
    rate = t->bytes_per_s > rate ? t->bytes_per_s : rate;
    struct pair pair = {kind, (double)from_disk.ttft_ns * 1e-9, (double)t->out->kv_bytes / rate};
    figure_series_add(&t->reads, pair.read_s);
    (void)count(t, DISK_STEP, &step);
    if (count(t, kind, &from_disk))
        t->pairs[t->n_pairs++] = pair;
    return OK;
}

/* Request each prefix for the first time; afterwards both are on disk. */
static enum status compute_prefixes(struct measurement *t, struct buf *why)
{
    enum status s = OK;

    for (uint32_t p = 0; s == OK && p < N_PREFIXES; p++) {
        struct cache_stats stats;
        struct answer a;

        if (!t->o->quiet)
            fprintf(stderr, "disk: computing prefix %u of %u\n", p + 1, N_PREFIXES);
        s = ask(t, p, &a, why);
        if (s == OK)
            s = asker_rest(t->asker, &stats, why);
        if (s != OK)
            break;
        (void)count(t, DISK_COLD, &a);
        t->out->disk_bytes =
            stats.tier[CACHE_DISK].n_cached * (stats.disk.extent_bytes + HEADER_BYTES) / (p + 1);
        if (t->out->disk_bytes < t->out->payload_bytes)
            s = buf_why(why, ERR_INTERNAL,
                        "of %llu bytes of KV %llu are on disk, %llu writes have "
                        "failed: has the file system of --disk-path room?",
                        (unsigned long long)t->out->payload_bytes,
                        (unsigned long long)t->out->disk_bytes,
                        (unsigned long long)stats.disk.n_writes_failed);
    }
    return s;
}

static enum status restart(struct measurement *t, struct buf *why)
{
    asker_close(t->asker);
    t->asker = NULL;
    disk_place_forget(&t->place);
    return open_engine(t, why);
}

static enum status run_all(struct measurement *t, struct buf *why)
{
    struct cache_stats stats;
    enum status s = compute_prefixes(t, why);

    if (s == OK)
        s = measure_rate(t, why);
    for (uint64_t i = 0; s == OK && i < t->o->disk_pairs; i++) {
        if (!t->o->quiet)
            fprintf(stderr, "disk: pair %llu of %llu\n", (unsigned long long)i + 1,
                    (unsigned long long)t->o->disk_pairs);
        s = ask_pair(t, DISK_READ, i % N_PREFIXES, why);
    }
    if (s == OK)
        s = asker_rest(t->asker, &stats, why);
    if (s == OK)
        t->out->tier = stats.disk;
    for (uint64_t i = 0; s == OK && i < t->o->restarts; i++) {
        s = restart(t, why);
        if (s == OK)
            s = ask_pair(t, DISK_RESTART, i % N_PREFIXES, why);
    }
    return s;
}

/* --- */

static enum status finish(struct measurement *t, struct buf *why)
{
    struct disk_ttft_result *r = t->out;
    const struct engine_info *i = engine_info(asker_engine(t->asker));

    snprintf(r->ops_name, sizeof r->ops_name, "%s", i->ops_name);
    snprintf(r->io, sizeof r->io, "%s", r->tier.io);
    snprintf(r->rate_pattern, sizeof r->rate_pattern, "%s", disk_rate_pattern(t->rate));
    r->is_direct = r->tier.is_direct;
    r->rate_is_direct = disk_rate_is_direct(t->rate);
    r->n_threads = i->n_threads;
    r->n_params = i->n_params;
    r->file_bytes = disk_place_bytes(&t->place);
    r->disk_bytes_per_s = figure_of(&t->rates);
    r->read_s = figure_of(&t->reads);
    for (int k = 0; k < DISK_N_KINDS; k++)
        r->row[k].ttft_s = figure_of(&t->ttft[k]);
    for (uint32_t p = 0; p < t->n_pairs; p++) {
        double floor_s = t->pairs[p].read_s + r->row[DISK_STEP].ttft_s.median;
        figure_series_add(&t->floors, floor_s);
        figure_series_add(&t->ratio[t->pairs[p].kind], t->pairs[p].ttft_s / floor_s);
    }
    r->floor_s = figure_of(&t->floors);
    for (int k = 0; k < DISK_N_KINDS; k++)
        r->row[k].ratio = figure_of(&t->ratio[k]);
    if (r->row[DISK_READ].ttft_s.n > 0)
        return OK;
    return buf_why(why, ERR_INTERNAL,
                   "of %u requests none found its prefix on disk: %llu reads "
                   "failed, %llu took longer than the timeout, %llu times it was thought that "
                   "computing is faster",
                   r->row[DISK_READ].n_elsewhere, (unsigned long long)r->tier.n_reads_failed,
                   (unsigned long long)r->tier.n_timeouts, (unsigned long long)r->tier.n_not_worth);
}

static void close_all(struct measurement *t)
{
    asker_close(t->asker);
    disk_rate_destroy(t->rate);
    disk_place_remove(&t->place);
    model_files_remove(&t->files);
    figure_series_fini_all(t->ttft, DISK_N_KINDS);
    figure_series_fini_all(t->ratio, DISK_N_KINDS);
    figure_series_fini(&t->rates);
    figure_series_fini(&t->reads);
    figure_series_fini(&t->floors);
    free(t->ids);
    free(t->pairs);
}

enum status disk_ttft_run(struct disk_ttft_result *out, const struct cachebench_options *o,
                          struct buf *why)
{
    struct measurement t = {.o = o, .out = out};
    struct steal steal;

    *out = (struct disk_ttft_result){.prefix = (uint32_t)o->prefix, .n_new = (uint32_t)o->n_new};
    out->n_device_blocks = cache_blocks_max((uint32_t)(o->prefix + o->n_new), 1, 1);
    steal_begin(&steal);
    enum status s = make_series(&t);
    if (s != OK)
        s = buf_why(why, s, "out of memory");
    if (s == OK)
        s = open_all(&t, why);
    if (s == OK)
        s = run_all(&t, why);
    if (s == OK)
        s = finish(&t, why);
    out->steal_share = steal_share(&steal);
    close_all(&t);
    return s;
}
