#include "loadgen/bench/cache/tree.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/rng.h"
#include "kernels/device.h"
#include "loadgen/bench/engine/median.h"
#include "loadgen/bench/engine/memory.h"

#define BLOCKS_PER_SEGMENT (KV_SEGMENT_TOKENS_MAX / KV_BLOCK_TOKENS)
#define N_HASH_BATCHES 501
#define N_HASHES 200 /* of a batch: short, so that most are not interrupted */
/* Bytes hashed for the key of a full block (key.h): previous key, scope, two bytes, ids. */
#define MESSAGE_BYTES (KV_KEY_BYTES + 3 * KV_BLOCK_TOKENS)
/* Blocks of a small cache: its bookkeeping per block estimates that of the large one. */
#define N_PROBE_BLOCKS 8192u
#define SPARE_BYTES ((uint64_t)256 << 20)
#define SEED 20260801u

struct tree {
    const struct cachebench_options *o;
    struct tree_result *out;
    struct device *device;
    struct cache *cache;
    uint8_t fingerprint[KV_FINGERPRINT_BYTES];
    uint32_t n_ids;      /* of a path: its segments and one token behind them */
    uint32_t n_keys;     /* of a path */
    uint32_t *ids;       /* [n_ids] of the path at hand */
    struct kv_key *keys; /* [n_paths][n_keys] */
};

static double seconds_since(uint64_t t0)
{
    return (double)(clock_now_ns() - t0) * 1e-9;
}

/* --- setting up --- */

static enum status make_cache(struct tree *t, uint32_t n_blocks, struct cache **out,
                              struct buf *why)
{
    struct cache_config c = {
        .group = device_group_of(t->device),
        .pool = {.layout = kv_layout_of(DTYPE_F16),
                 .n_blocks = n_blocks,
                 .n_layers = 1,
                 .n_kv_heads = 1,
                 .head_dim = 2},
        .segment_tokens = KV_SEGMENT_TOKENS_MAX,
        .prefix_caching = true,
        .policy = t->o->cache_policy[0] ? t->o->cache_policy : NULL,
    };

    return cache_create(out, &c, why);
}

/* KV and bookkeeping of n_blocks, the latter as a small cache takes it. */
static enum status bytes_wanted(struct tree *t, uint64_t n_blocks, uint64_t *out, struct buf *why)
{
    struct cache *probe;
    struct cache_stats stats;
    enum status s = make_cache(t, N_PROBE_BLOCKS, &probe, why);

    if (s != OK)
        return s;
    cache_stats(probe, &stats);
    *out = n_blocks * (kv_block_bytes(cache_pool(probe)) + stats.memory_bytes / N_PROBE_BLOCKS + 1);
    cache_destroy(probe);
    return OK;
}

static enum status check_memory(struct tree *t, uint64_t n_blocks, struct buf *why)
{
    uint64_t need, available = memory_available();
    enum status s = bytes_wanted(t, n_blocks, &need, why);

    if (s != OK)
        return s;
    need += (uint64_t)t->out->n_paths * t->n_keys * sizeof *t->keys + SPARE_BYTES;
    if (need <= available)
        return OK;
    return buf_why(why, ERR_TOO_LARGE,
                   "--segments %llu needs about %.1f GiB of memory and %.1f "
                   "GiB are available: ask for fewer",
                   (unsigned long long)t->o->segments, (double)need / (1 << 30),
                   (double)available / (1 << 30));
}

static enum status open_all(struct tree *t, struct buf *why)
{
    struct device_config d = {.kind = DEVICE_CPU,
                              .n_threads = 1,
                              .max_rows = 1,
                              .max_k = 32,
                              .max_heads = 1,
                              .max_head_dim = 2};
    /* One path may be written while all others are there. */
    uint64_t n_blocks = (uint64_t)t->out->n_paths * t->n_keys + t->n_keys + 1;
    enum status s = OK;

    if (n_blocks > UINT32_MAX / 2)
        return buf_why(why, ERR_TOO_LARGE,
                       "--segments %llu is more than block numbers can name: "
                       "at most %u",
                       (unsigned long long)t->o->segments, UINT32_MAX / 2 / BLOCKS_PER_SEGMENT);
    s = device_open(&t->device, &d, why);
    if (s == OK)
        s = check_memory(t, n_blocks, why);
    if (s == OK)
        s = make_cache(t, (uint32_t)n_blocks, &t->cache, why);
    if (s != OK)
        return s;
    t->ids = calloc(t->n_ids, sizeof *t->ids);
    t->keys = calloc((size_t)t->out->n_paths * t->n_keys, sizeof *t->keys);
    if (!t->ids || !t->keys)
        return buf_why(why, ERR_NOMEM, "out of memory for the keys of %u paths", t->out->n_paths);
    return OK;
}

/* --- one path --- */

static struct kv_key *keys_of(const struct tree *t, uint32_t path)
{
    return t->keys + (size_t)path * t->n_keys;
}

static void make_ids(struct tree *t, uint32_t path)
{
    for (uint32_t i = 0; i < t->n_ids; i++)
        t->ids[i] = rng_u32(SEED + path, i) % 128256; /* a usual vocabulary */
}

static struct kv_chain chain_of(const struct tree *t)
{
    static const struct kv_scope scope;
    struct kv_chain c;

    kv_chain_init(&c, t->fingerprint, &scope, KV_SEGMENT_TOKENS_MAX);
    return c;
}

/* Make the prompt of a request; its keys were made when the path was filled in. Of the chain's
 * state only the open block counts: the one token behind the last whole block. */
static struct cache_prompt prompt_of(struct tree *t, uint32_t path)
{
    struct cache_prompt p = {.ids = t->ids,
                             .n_ids = t->n_ids,
                             .keys = keys_of(t, path),
                             .n_keys = t->n_keys,
                             .chain = chain_of(t)};
    struct kv_key none;

    bool closed = kv_chain_push(&p.chain, t->ids[t->n_ids - 1], &none);
    ASSERT(!closed);
    return p;
}

/* --- filling --- */

static enum status hash_path(struct tree *t, uint32_t path, struct figure_series *hash,
                             struct buf *why)
{
    struct kv_chain chain = chain_of(t);

    make_ids(t, path);
    uint64_t t0 = clock_now_ns();
    uint32_t n = kv_chain_prompt(&chain, t->ids, t->n_ids, NULL, 0, 0, keys_of(t, path));
    figure_series_add(hash, seconds_since(t0) / t->out->path_segments);
    return n == t->n_keys
               ? OK
               : buf_why(why, ERR_INTERNAL, "a path has %u keys, expected %u", n, t->n_keys);
}

static enum status fill_path(struct tree *t, uint32_t path, struct buf *why)
{
    struct cache_prompt prompt = prompt_of(t, path);
    struct cache_seq *seq;
    uint64_t t0 = clock_now_ns();
    enum status s;

    cache_poll(t->cache, t0);
    s = cache_seq_open(t->cache, &prompt, t->n_ids, &seq);
    if (s != OK)
        return buf_why(why, s, "out of memory for a sequence");
    if (cache_seq_attach(seq, NULL) != 0)
        s = buf_why(why, ERR_INTERNAL, "a new path was found");
    if (s == OK)
        s = cache_seq_grow(seq, t->n_ids);
    if (s == OK)
        cache_seq_commit(seq, t->n_ids);
    cache_seq_close(seq);
    t->out->fill_s += seconds_since(t0) / t->out->n_segments;
    return s;
}

static enum status fill(struct tree *t, struct buf *why)
{
    struct figure_series hash;
    enum status s = figure_series_init(&hash, t->out->n_paths);

    if (s != OK)
        return buf_why(why, s, "out of memory");
    for (uint32_t i = 0; s == OK && i < t->out->n_paths; i++) {
        s = hash_path(t, i, &hash, why);
        if (s == OK)
            s = fill_path(t, i, why);
    }
    t->out->hash_s = figure_of(&hash);
    figure_series_fini(&hash);
    return s;
}

/* Each message holds the hash before it, as a chain of blocks does. The median of some batches. */
static double hash_one(const struct tree *t)
{
    double batches[N_HASH_BATCHES];
    uint8_t message[MESSAGE_BYTES];

    for (uint32_t i = 0; i < MESSAGE_BYTES; i++)
        message[i] = (uint8_t)rng_u32(SEED, i);
    for (uint32_t k = 0; k < N_HASH_BATCHES; k++) {
        uint64_t t0 = clock_now_ns();
        for (uint32_t i = 0; i < N_HASHES; i++)
            hash_blake2b_domain(message, KV_KEY_BYTES, message, sizeof message, t->fingerprint);
        batches[k] = seconds_since(t0) / N_HASHES;
    }
    return median_of(batches, N_HASH_BATCHES);
}

/* --- looking up --- */

enum call { CALL_OPEN, CALL_MATCH, CALL_ATTACH, CALL_CLOSE, CALL_WALK, CALL_COUNT };

static enum status look_up(struct tree *t, uint32_t path, struct figure_series *calls,
                           struct buf *why)
{
    struct cache_prompt prompt = prompt_of(t, path);
    uint32_t wanted = t->out->path_segments * KV_SEGMENT_TOKENS_MAX;
    uint64_t at[CALL_COUNT];
    struct cache_seq *seq;

    make_ids(t, path);
    cache_poll(t->cache, clock_now_ns());
    at[CALL_OPEN] = clock_now_ns();
    enum status s = cache_seq_open(t->cache, &prompt, t->n_ids, &seq);
    if (s != OK)
        return buf_why(why, s, "out of memory for a sequence");
    at[CALL_MATCH] = clock_now_ns();
    uint32_t n_match = cache_match(seq);
    at[CALL_ATTACH] = clock_now_ns();
    uint32_t n_attached = cache_seq_attach(seq, NULL);
    at[CALL_CLOSE] = clock_now_ns();
    cache_seq_close(seq);
    at[CALL_CLOSE + 1] = clock_now_ns();
    if (n_match != wanted || n_attached != wanted)
        return buf_why(why, ERR_INTERNAL,
                       "%u tokens of a path were found and %u pinned, expected "
                       "%u",
                       n_match, n_attached, wanted);
    for (int i = 0; i < CALL_WALK; i++)
        figure_series_add(&calls[i], (double)(at[i + 1] - at[i]) * 1e-9);
    figure_series_add(&calls[CALL_WALK], (double)(at[CALL_CLOSE] - at[CALL_MATCH]) * 1e-9);
    return OK;
}

static enum status look_up_many(struct tree *t, bool cold, struct tree_calls *out, struct buf *why)
{
    struct figure_series calls[CALL_COUNT] = {{0}};
    uint32_t n = (uint32_t)t->o->lookups;
    enum status s = OK;

    for (int i = 0; s == OK && i < CALL_COUNT; i++)
        s = figure_series_init(&calls[i], n);
    if (s != OK)
        buf_why(why, s, "out of memory");
    for (uint32_t i = 0; s == OK && i < n; i++)
        s = look_up(t, cold ? rng_u32(SEED, i) % t->out->n_paths : 0, calls, why);
    *out = (struct tree_calls){figure_of(&calls[CALL_OPEN]), figure_of(&calls[CALL_MATCH]),
                               figure_of(&calls[CALL_ATTACH]), figure_of(&calls[CALL_CLOSE]),
                               figure_of(&calls[CALL_WALK])};
    for (int i = 0; i < CALL_COUNT; i++)
        figure_series_fini(&calls[i]);
    return s;
}

/* --- */

static void read_stats(struct tree *t)
{
    struct cache_stats stats;

    cache_stats(t->cache, &stats);
    t->out->n_nodes = stats.n_nodes;
    t->out->memory_bytes = stats.memory_bytes;
    t->out->policy = stats.policy; /* constant text of replace.h: outlives the cache */
}

static enum status run(struct tree *t, struct buf *why)
{
    bool quiet = t->o->quiet;
    enum status s = open_all(t, why);

    if (s != OK)
        return s;
    if (!quiet)
        fprintf(stderr, "tree: filling in %u segments\n", t->out->n_segments);
    t->out->hash_one_s = hash_one(t);
    s = fill(t, why);
    if (s == OK)
        read_stats(t);
    if (s == OK && !quiet)
        fprintf(stderr, "tree: looking up\n");
    if (s == OK)
        s = look_up_many(t, true, &t->out->cold, why);
    if (s == OK)
        s = look_up_many(t, false, &t->out->warm, why);
    return s;
}

enum status tree_run(struct tree_result *out, const struct cachebench_options *o, struct buf *why)
{
    struct tree t = {.o = o, .out = out};

    *out = (struct tree_result){.path_segments = (uint32_t)o->path_segments,
                                .n_paths = (uint32_t)(o->segments / o->path_segments)};
    out->n_segments = out->n_paths * out->path_segments;
    t.n_ids = out->path_segments * KV_SEGMENT_TOKENS_MAX + 1;
    t.n_keys = out->path_segments * BLOCKS_PER_SEGMENT;
    for (uint32_t i = 0; i < sizeof t.fingerprint; i++)
        t.fingerprint[i] = (uint8_t)i;
    enum status s = run(&t, why);
    cache_destroy(t.cache);
    device_close(t.device);
    free(t.ids);
    free(t.keys);
    return s;
}
