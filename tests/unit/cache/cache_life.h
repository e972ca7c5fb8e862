/* cache_life.h - sequences with random ids, the KV expected for them, and steps that write and read
 * KV when the emulated device runs them.
 *
 * Include it once, behind tests/unit/test.h, in a binary linked as failing_copies.h describes. Owns
 * the steps' memory between open_steps() and close_steps(). One thread. A failure ends the test.
 * Units: tokens. */
#ifndef TARN_TESTS_UNIT_CACHE_LIFE_H
#define TARN_TESTS_UNIT_CACHE_LIFE_H

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/map.h"
#include "base/rng.h"
#include "cache/cache.h"
#include "kernels/device.h"
#include "tests/unit/cache/failing_copies.h"

#define N_SEQS 8
#define N_IDS_MAX 1200
#define N_PROMPT_MAX 900
#define N_SPANS_MAX 4
#define N_READS 1024  /* blocks read by steps and not compared yet */
#define N_WRITES 8192 /* tokens written by steps that have not run yet */
static struct device *device;
static uint8_t fingerprint[KV_FINGERPRINT_BYTES];

/* --- sequences with ids, and what their KV must hold --- */

struct life {
    uint32_t ids[N_IDS_MAX];
    uint64_t marks[N_IDS_MAX]; /* for each position: a hash of everything that its KV depends on */
    uint32_t n_ids, n_prompt;
    uint32_t ends[N_SPANS_MAX];
    struct kv_key keys[N_IDS_MAX / KV_BLOCK_TOKENS + N_SPANS_MAX + 1];
    uint32_t n_keys; /* of closed blocks, including generated ones */
    struct kv_chain chain;
    struct cache_prompt prompt;
    struct cache_seq *seq; /* NULL: none */
    uint32_t n_tokens;
    uint32_t n_left; /* the most tokens that it held when it was preempted */
    bool attached;
};

/* A block read by a step; compared when the compute stream has run the step. */
struct reading {
    uint64_t marks[KV_BLOCK_TOKENS]; /* expected content: [n] tokens from offset 0 on */
    uint32_t n, pos0, n_of;
};

struct world {
    struct cache *cache;
    struct life lives[N_SEQS];
    struct map known; /* short keys of all closed blocks ever committed */
    uint64_t n_hits, n_tails, now_ns;
    uint64_t n_loads, n_found, n_erased, n_left_behind; /* of the disk tier */
    uint64_t n_sleeps;
    struct cache_stats sum; /* totals of the caches that were closed */
    struct kv_key many_keys[2][N_IDS_MAX];
    uint32_t segment_tokens;
    bool has_disk;
    bool copies;     /* the tiers have separate memories */
    bool is_private; /* no prefix caching: a sequence finds only its own blocks */
    bool keeps_all;  /* all KV fits, so nothing may be lost */
};

static uint64_t mix(uint64_t a, uint64_t b)
{
    a = (a ^ b) * 0x9e3779b97f4a7c15u;
    return a ^ a >> 29;
}

static uint64_t short_of(const struct kv_key *key)
{
    uint64_t k;

    memcpy(&k, key->bytes, sizeof k);
    return k;
}

static void mark_from(struct life *l, uint32_t from)
{
    for (uint32_t i = from; i < l->n_ids; i++) {
        uint64_t h = i ? l->marks[i - 1] : 1;

        for (uint32_t e = 0; e < l->prompt.n_span_ends; e++)
            h = l->ends[e] == i ? mix(h, 0x5eed) : h;
        l->marks[i] = mix(h, l->ids[i] + 1);
    }
}

/* Few families with common prefixes; some are cut into spans, the same way within a family. */
static void make_life(struct world *w, struct life *l, uint64_t seed)
{
    uint32_t family = rng_u32(1, seed) % 5, branch = rng_u32(2, seed) % 4;
    uint32_t fork = 40 + family * 130, n = 1 + rng_u32(3, seed) % N_PROMPT_MAX, n_ends = 0;
    struct kv_scope scope = {{0}};

    /* Some end with the first block of a segment, which must be computed although it is cached. */
    if (rng_u32(4, seed) % 4 == 0)
        n = n / w->segment_tokens * w->segment_tokens + KV_BLOCK_TOKENS;
    for (uint32_t i = 0; i < n; i++)
        l->ids[i] = rng_u32(10 + family * 8 + (i >= fork ? branch + 1 : 0), i) % 1000;
    for (uint32_t e = 0; family % 2 && e < N_SPANS_MAX; e++)
        if (37 + e * (150 + family) <= n)
            l->ends[n_ends++] = 37 + e * (150 + family);
    l->n_ids = l->n_prompt = n;
    l->prompt = (struct cache_prompt){
        .ids = l->ids, .n_ids = n, .span_ends = l->ends, .n_span_ends = n_ends, .keys = l->keys};
    kv_chain_init(&l->chain, fingerprint, &scope, w->segment_tokens);
    l->n_keys = kv_chain_prompt(&l->chain, l->ids, n, l->ends, n_ends, 0, l->keys);
    l->prompt.n_keys = l->n_keys;
    l->prompt.chain = l->chain;
    mark_from(l, 0);
}

#define BLOCK_BYTES (KV_BLOCK_TOKENS * 2 * 2 * sizeof(float)) /* one layer and head, d = 2 */
#define TOKEN_BYTES (BLOCK_BYTES / KV_BLOCK_TOKENS)

/* --- steps, which run when the device comes to them --- */

static struct reading readings[N_READS];
static uint32_t n_readings, n_writes;
static unsigned char *read_bytes;  /* [N_READS][BLOCK_BYTES] pinned */
static unsigned char *write_bytes; /* [N_WRITES][TOKEN_BYTES] pinned */

static void open_steps(void)
{
    read_bytes = device_alloc_pinned(device, N_READS * BLOCK_BYTES);
    write_bytes = device_alloc_pinned(device, N_WRITES * TOKEN_BYTES);
    assert_true(read_bytes && write_bytes);
    n_readings = n_writes = 0;
}

static void close_steps(void)
{
    device_free_pinned(device, read_bytes);
    device_free_pinned(device, write_bytes);
}

/* Wait for all steps, then compare the blocks that they read. */
static void finish_steps(void)
{
    assert_ok(device_stream_wait(device, device_stream(device, DEVICE_COMPUTE)));
    for (uint32_t i = 0; i < n_readings; i++)
        for (uint32_t k = 0; k < readings[i].n; k++)
            if (memcmp(read_bytes + i * BLOCK_BYTES + k * TOKEN_BYTES, &readings[i].marks[k],
                       sizeof readings[i].marks[k]))
                fail_msg("position %u of %u holds another KV", readings[i].pos0 + k,
                         readings[i].n_of);
    n_readings = n_writes = 0;
}

static unsigned char *block_of(const struct world *w, const struct life *l, uint32_t pos,
                               uint32_t *offset)
{
    const struct kv_pool *pool = cache_pool(w->cache);
    uint32_t block;

    cache_seq_slot(l->seq, pos, &block, offset);
    assert_true(block < pool->n_blocks && kv_block_bytes(pool) == BLOCK_BYTES);
    return (unsigned char *)pool->base + block * BLOCK_BYTES;
}

/* One step: compute the KV of tokens [from, to). */
static void compute(const struct world *w, const struct life *l, uint32_t from, uint32_t to)
{
    for (uint32_t pos = from; pos < to;) {
        uint32_t first, offset, n = 1, at;
        unsigned char *block = block_of(w, l, pos, &first);

        while (pos + n < to && block_of(w, l, pos + n, &offset) == block)
            n++;
        if (n_writes + n > N_WRITES)
            finish_steps();
        at = n_writes;
        n_writes += n;
        for (uint32_t i = 0; i < n; i++)
            memcpy(write_bytes + (at + i) * TOKEN_BYTES, &l->marks[pos + i], sizeof l->marks[0]);
        assert_ok(__real_device_upload_async(device, device_stream(device, DEVICE_COMPUTE),
                                             block + first * TOKEN_BYTES,
                                             write_bytes + at * TOKEN_BYTES, n * TOKEN_BYTES));
        pos += n;
    }
}

/* One step reads all blocks of the sequence, the last one first, because it was written last. */
static void read_kv(const struct world *w, const struct life *l)
{
    for (uint32_t end = l->n_tokens, offset; end > 0; end -= offset + 1) {
        const unsigned char *block = block_of(w, l, end - 1, &offset);
        struct reading *r;

        if (n_readings == N_READS)
            finish_steps();
        assert_ok(__real_device_download_async(device, device_stream(device, DEVICE_COMPUTE),
                                               read_bytes + n_readings * BLOCK_BYTES, block,
                                               BLOCK_BYTES));
        r = &readings[n_readings++];
        *r = (struct reading){.n = offset + 1, .pos0 = end - 1 - offset, .n_of = l->n_tokens};
        memcpy(r->marks, l->marks + r->pos0, r->n * sizeof *r->marks);
    }
}

/* Tokens in the longest chain of committed blocks, the expected result of cache_match(). */
static uint32_t naive_match(const struct world *w, const struct life *l)
{
    uint32_t pos = 0, unused;

    for (uint32_t k = 0; k < l->n_keys; k++) {
        uint32_t end = pos + KV_BLOCK_TOKENS;

        for (uint32_t e = 0; e < l->prompt.n_span_ends; e++)
            if (l->ends[e] > pos && l->ends[e] < end)
                end = l->ends[e];
        if (end >= l->n_ids)
            break;
        if (w->is_private ? end > l->n_left : !map_get(&w->known, short_of(&l->keys[k]), &unused))
            break;
        pos = end;
    }
    return pos;
}

static void note_committed(struct world *w, const struct life *l)
{
    uint32_t pos = 0;

    for (uint32_t k = 0; k < l->n_keys; k++) {
        uint32_t end = pos + KV_BLOCK_TOKENS;

        for (uint32_t e = 0; e < l->prompt.n_span_ends; e++)
            if (l->ends[e] > pos && l->ends[e] < end)
                end = l->ends[e];
        if (end > l->n_tokens)
            return;
        map_put(&w->known, short_of(&l->keys[k]), 1);
        pos = end;
    }
}

#endif
