#include "loadgen/bench/cache/index.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "cache/cache.h"
#include "kernels/device.h"
#include "loadgen/bench/engine/memory.h"
#include "loadgen/bench/cache/disk_place.h"

#define PATH_SEGMENTS 8u
#define PATH_BLOCKS (PATH_SEGMENTS * KV_SEGMENT_TOKENS_MAX / KV_BLOCK_TOKENS)
#define PATH_IDS (PATH_SEGMENTS * KV_SEGMENT_TOKENS_MAX)
#define EXTENT_BYTES 4096u
#define HEADER_BYTES 256u
#define N_DEVICE (8u * PATH_BLOCKS)
/* Bookkeeping of a block, about; and the table, which is in memory. */
#define BYTES_PER_RECORD (1024u + HEADER_BYTES)
#define SPARE_BYTES ((uint64_t)256 << 20)
#define WRITE_MAX_NS UINT64_C(120000000000) /* of one path */
#define POLL_STEP_NS 20000u
#define VOCAB 128256u
#define SEED 20260901u

struct index {
    const struct cachebench_options *o;
    struct index_result *out;
    struct device *device;
    struct cache *cache;
    struct disk_place place;
    uint8_t fingerprint[KV_FINGERPRINT_BYTES];
    uint32_t ids[PATH_IDS];
    struct kv_key keys[PATH_BLOCKS];
};

static double seconds_since(uint64_t t0)
{
    return (double)(clock_now_ns() - t0) * 1e-9;
}

static uint32_t n_paths(const struct index *x)
{
    return (uint32_t)((x->o->records + PATH_BLOCKS - 1) / PATH_BLOCKS);
}

/* --- setting up --- */

static enum status open_cache(struct index *x, struct buf *why)
{
    uint64_t n = (uint64_t)n_paths(x) * PATH_BLOCKS;
    struct cache_config c = {
        .group = device_group_of(x->device),
        .pool = {.layout = kv_layout_of(DTYPE_F16),
                 .n_blocks = N_DEVICE,
                 .n_layers = 1,
                 .n_kv_heads = 1,
                 .head_dim = 2},
        .segment_tokens = KV_SEGMENT_TOKENS_MAX,
        .prefix_caching = true,
        .policy = x->o->cache_policy[0] ? x->o->cache_policy : NULL,
        .disk = {.path = x->place.dir,
                 .n_bytes = (n + n / 16 + 256) * (EXTENT_BYTES + HEADER_BYTES),
                 .fingerprint = x->fingerprint,
                 .min_uses = 1,
                 .timeout_ns = WRITE_MAX_NS,
                 .preload = CACHE_PRELOAD_NONE,
                 .threads_only = strcmp(x->o->disk_io, "threads") == 0},
    };

    return cache_create(&x->cache, &c, why);
}

static enum status open_all(struct index *x, struct buf *why)
{
    struct device_config d = {.kind = DEVICE_CPU,
                              .n_threads = 1,
                              .max_rows = 1,
                              .max_k = 32,
                              .max_heads = 1,
                              .max_head_dim = 2};
    uint64_t need = x->o->records * BYTES_PER_RECORD + SPARE_BYTES;

    if (need > memory_available())
        return buf_why(why, ERR_TOO_LARGE,
                       "--records %llu needs about %.1f GiB of memory and %.1f "
                       "GiB are available: ask for fewer",
                       (unsigned long long)x->o->records, (double)need / (1 << 30),
                       (double)memory_available() / (1 << 30));
    enum status s = device_open(&x->device, &d, why);
    if (s == OK)
        s = disk_place_make(&x->place, x->o->disk_path, why);
    return s == OK ? open_cache(x, why) : s;
}

/* --- filling --- */

static struct cache_prompt make_prompt(struct index *x, uint32_t path)
{
    static const struct kv_scope scope;
    struct cache_prompt p = {.ids = x->ids, .n_ids = PATH_IDS, .keys = x->keys};

    for (uint32_t i = 0; i < PATH_IDS; i++)
        x->ids[i] = rng_u32(SEED + path, i) % VOCAB;
    kv_chain_init(&p.chain, x->fingerprint, &scope, KV_SEGMENT_TOKENS_MAX);
    p.n_keys = kv_chain_prompt(&p.chain, x->ids, PATH_IDS, NULL, 0, 0, x->keys);
    ASSERT(p.n_keys == PATH_BLOCKS);
    return p;
}

static enum status put_path(struct index *x, uint32_t path, struct buf *why)
{
    struct cache_prompt prompt = make_prompt(x, path);
    struct cache_seq *seq;
    enum status s = cache_seq_open(x->cache, &prompt, PATH_IDS, &seq);

    if (s != OK)
        return buf_why(why, s, "out of memory for a sequence");
    cache_seq_stop_loading(seq);
    if (cache_seq_attach(seq, NULL) != 0)
        s = buf_why(why, ERR_INTERNAL, "a new path was found");
    if (s == OK)
        s = cache_seq_grow(seq, PATH_IDS);
    if (s == OK)
        cache_seq_commit(seq, PATH_IDS);
    cache_seq_close(seq);
    return s;
}

/* Wait until n blocks are on disk. */
static enum status wait_written(struct index *x, uint32_t n_want, struct buf *why)
{
    uint64_t t0 = clock_now_ns();
    struct cache_stats stats;

    for (;;) {
        cache_poll(x->cache, clock_now_ns());
        cache_stats(x->cache, &stats);
        if (stats.tier[CACHE_DISK].n_cached >= n_want)
            return OK;
        if (clock_now_ns() - t0 > WRITE_MAX_NS)
            return buf_why(why, ERR_TIMEOUT,
                           "of %u records %u are on disk, %llu writes have "
                           "failed: has the file system of --disk-path room?",
                           n_want, stats.tier[CACHE_DISK].n_cached,
                           (unsigned long long)stats.disk.n_writes_failed);
        clock_sleep_ns(POLL_STEP_NS);
    }
}

static enum status fill(struct index *x, struct buf *why)
{
    uint64_t t0 = clock_now_ns();
    enum status s = OK;

    if (!x->o->quiet)
        fprintf(stderr, "index: writing %u records\n", n_paths(x) * PATH_BLOCKS);
    for (uint32_t i = 0; s == OK && i < n_paths(x); i++) {
        s = put_path(x, i, why);
        if (s == OK)
            s = wait_written(x, (i + 1) * PATH_BLOCKS, why);
    }
    x->out->write_s = seconds_since(t0);
    return s;
}

/* --- opening --- */

static enum status open_again(struct index *x, bool cold, struct figure_series *index_s,
                              struct figure_series *open_s, struct buf *why)
{
    uint32_t n_want = n_paths(x) * PATH_BLOCKS;
    struct cache_stats stats;

    cache_destroy(x->cache);
    x->cache = NULL;
    if (cold)
        disk_place_forget(&x->place);
    uint64_t t0 = clock_now_ns();
    enum status s = open_cache(x, why);
    if (s != OK)
        return s;
    figure_series_add(open_s, seconds_since(t0));
    cache_stats(x->cache, &stats);
    figure_series_add(index_s, stats.disk.index_s);
    x->out->n_records = stats.disk.n_found;
    x->out->n_extents = stats.tier[CACHE_DISK].n_blocks;
    x->out->is_direct = stats.disk.is_direct;
    snprintf(x->out->io, sizeof x->out->io, "%s", stats.disk.io);
    return stats.disk.n_found == n_want ? OK
                                        : buf_why(why, ERR_INTERNAL, "of %u records %u were found",
                                                  n_want, stats.disk.n_found);
}

static enum status open_many(struct index *x, struct buf *why)
{
    struct figure_series cold = {0}, warm = {0}, open = {0};
    uint32_t n = (uint32_t)x->o->opens;
    enum status s = figure_series_init(&cold, n);

    if (s == OK)
        s = figure_series_init(&warm, n);
    if (s == OK)
        s = figure_series_init(&open, n);
    if (s != OK)
        buf_why(why, s, "out of memory");
    for (uint32_t i = 0; s == OK && i < n; i++) {
        s = open_again(x, i % 2 == 0, i % 2 == 0 ? &cold : &warm, &open, why);
        if (s == OK && i == 0)
            x->out->first_s = cold.values[0];
    }
    x->out->cold_s = figure_of(&cold);
    x->out->warm_s = figure_of(&warm);
    x->out->open_s = figure_of(&open);
    figure_series_fini(&cold);
    figure_series_fini(&warm);
    figure_series_fini(&open);
    return s;
}

enum status index_run(struct index_result *out, const struct cachebench_options *o, struct buf *why)
{
    struct index *x = calloc(1, sizeof *x);
    struct steal steal;

    *out = (struct index_result){.n_records = 0};
    if (!x)
        return buf_why(why, ERR_NOMEM, "out of memory");
    x->o = o;
    x->out = out;
    for (uint32_t i = 0; i < sizeof x->fingerprint; i++)
        x->fingerprint[i] = (uint8_t)i;
    steal_begin(&steal);
    enum status s = open_all(x, why);
    if (s == OK)
        s = fill(x, why);
    if (s == OK)
        s = open_many(x, why);
    out->steal_share = steal_share(&steal);
    cache_destroy(x->cache);
    device_close(x->device);
    disk_place_remove(&x->place);
    free(x);
    return s;
}
