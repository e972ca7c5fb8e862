/* joined_caches.h - caches that are joined by fake_pool.h, and prompts of cache_prompt.h that run
 * in them. The KV of a block is made from its key, so that wrong bytes are seen.
 *
 * Include it once, behind tests/unit/test.h. Owns nothing. One thread. A failure ends the test.
 * Units: tokens, blocks. */
#ifndef TARN_TESTS_UNIT_CACHE_POOL_JOINED_CACHES_H
#define TARN_TESTS_UNIT_CACHE_POOL_JOINED_CACHES_H

#pragma GCC diagnostic ignored "-Wunused-function"
#include "base/clock.h"
#include "tests/unit/cache/cache_run.h"
#include "tests/unit/cache/pool/fake_pool.h"

#define STEP_NS 1000000u

static struct cache *caches[FAKE_N_POOLS];
static uint32_t n_caches;
static uint64_t step_pause_ns; /* of real time, for what a disk does meanwhile */

static struct cache_config pool_config_of(uint32_t n_blocks, uint32_t n_host_blocks, bool copies)
{
    static const uint8_t zero[POOL_SECRET_BYTES];
    struct cache_config config = small_config(n_blocks, n_host_blocks);

    config.always_copy = copies;
    config.remote = (struct cache_remote_config){
        .url = "fake", .listen = "", .secret = zero, .fingerprint = zero, .n_blocks = 256};
    return config;
}

/* The fake answers queries itself: this says only that the instance takes part. */
static enum status attend(void *arg, const struct pool_attend *a)
{
    (void)arg;
    return a->n_rows > 0 ? OK : ERR_INVALID;
}

static struct cache_config query_config_of(uint32_t n_blocks, uint32_t n_host_blocks,
                                           enum cache_query query)
{
    struct cache_config config = pool_config_of(n_blocks, n_host_blocks, false);

    config.remote.query = query;
    config.remote.n_heads = 3;
    config.remote.attend = attend;
    return config;
}

static struct cache *join_with(const struct cache_config *config)
{
    return caches[n_caches++] = make(config);
}

static struct cache *join(uint32_t n_blocks, uint32_t n_host_blocks)
{
    struct cache_config config = pool_config_of(n_blocks, n_host_blocks, false);

    return join_with(&config);
}

static struct pool *fake_of(const struct cache *c)
{
    for (uint32_t i = 0; i < n_caches; i++)
        if (caches[i] == c)
            return &fakes[i];
    return NULL;
}

/* A millisecond passes everywhere. */
static void step_all(void)
{
    fake_now += STEP_NS;
    if (step_pause_ns > 0)
        clock_sleep_ns(step_pause_ns);
    fake_step();
    for (uint32_t i = 0; i < n_caches; i++) {
        (void)cache_poll(caches[i], fake_now);
        cache_check(caches[i]);
    }
}

static void pass_ms(uint32_t n)
{
    while (n-- > 0)
        step_all();
}

static int leave_world(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_caches; i++)
        fakes[i].stalls = fakes[i].holds_back = false;
    pass_ms(1100); /* leases end */
    while (n_caches > 0)
        cache_destroy(caches[--n_caches]);
    return 0;
}

static unsigned char *block_at(const struct cache *c, uint32_t id)
{
    const struct kv_pool *pool = cache_pool(c);

    return (unsigned char *)pool->base + id * kv_block_bytes(pool);
}

static void make_kv(unsigned char *out, const struct kv_key *key, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)(key->bytes[i % KV_KEY_BYTES] ^ i);
}

/* Wait as the engine does, until the sequence loads no more. Returns the milliseconds. */
static uint32_t wait_loaded(struct cache *c, struct cache_seq *s)
{
    uint32_t ms = 0;

    (void)c;
    for (; cache_seq_is_loading(s); ms++) {
        (void)cache_seq_load(s, true);
        if (!cache_seq_is_loading(s))
            break;
        if (ms > 10000)
            fail_msg("the sequence waits for ever");
        step_all();
    }
    return ms;
}

/* Put the cache to sleep: no sequence of it is attached. Returns the milliseconds. */
static uint32_t fall_asleep(struct cache *c)
{
    uint32_t ms = 0;

    for (; !cache_sleep(c); ms++) {
        if (ms > 10000)
            fail_msg("the cache stays awake for ever");
        step_all();
    }
    assert_int_equal(cache_n_available(c), 0);
    return ms;
}

static void sleep_and_wake(struct cache *c)
{
    (void)fall_asleep(c);
    pass_ms(5);
    assert_ok(cache_wake(c));
}

/* The CRC32C of a segment of this sequence, as its KV is where it was computed. */
static uint32_t segment_crc(const struct cache *c, const struct open_seq *o,
                            const struct pool_segment *segment)
{
    size_t bytes = kv_block_bytes(cache_pool(c));
    unsigned char kv[4096];
    uint32_t crc = 0;

    assert_true(bytes <= sizeof kv);
    for (uint32_t i = segment->at; i < segment->at + segment->n_blocks; i++) {
        make_kv(kv, &o->q.keys[i], bytes);
        crc = hash_crc32c(crc, kv, bytes);
    }
    return crc;
}

/* Send queries of n_rows rows to the remote part of a sequence, and compare the tiles. */
static enum status query_kv(const struct cache *c, const struct open_seq *o, uint32_t n_rows)
{
    enum { D = 2, H = 3, STRIDE = H * D + 1 }; /* as query_config_of() */
    float q[POOL_QUERY_ROWS_MAX * STRIDE];
    const float *tiles[POOL_QUERY_SEGMENTS_MAX];
    struct cache_view v;
    enum status s;

    for (uint32_t r = 0; r < n_rows; r++)
        q[r * STRIDE] = (float)r;
    cache_seq_view(o->s, &v);
    s = cache_seq_query(o->s, 0, q, STRIDE, n_rows);
    if (s == OK)
        s = cache_seq_answer(o->s, tiles);
    for (uint32_t i = 0; s == OK && i < v.n_remote; i++) {
        const struct attn_segment *x = &v.segments[v.remote0 + i];
        uint32_t end = v.remote0 + i + 1 < v.n_segments ? x[1].block0 : v.n_blocks;
        struct pool_segment segment = {x->block0, (uint16_t)(end - x->block0),
                                       (uint16_t)x->n_tokens};
        uint32_t crc = segment_crc(c, o, &segment);

        for (uint32_t b = x->block0; b < end; b++)
            assert_int_equal(v.blocks[b], CACHE_NO_BLOCK);
        for (uint32_t r = 0; r < n_rows; r++)
            assert_true(tiles[i][r * H * (D + 2)] == fake_tile(crc, &segment, 0, (float)r));
    }
    return s;
}

/* Attach, compare the KV that was found, write the rest, without committing it. Returns the tokens
 * that were found; UINT32_MAX: there was no room. */
static uint32_t attach_kv(struct cache *c, const struct open_seq *o, uint32_t *found)
{
    size_t bytes = kv_block_bytes(cache_pool(c));
    unsigned char kv[4096];
    uint32_t hit = cache_seq_attach(o->s, found), pos = 0;
    struct cache_view v;

    if (cache_seq_grow(o->s, o->q.p.n_ids - hit) != OK)
        return UINT32_MAX;
    cache_seq_view(o->s, &v);
    assert_true(bytes <= sizeof kv);
    for (uint32_t k = 0; k < o->q.p.n_keys; k++) {
        uint32_t n = KV_BLOCK_TOKENS;
        for (uint32_t e = 0; e < o->q.p.n_span_ends; e++)
            if (o->q.ends[e] > pos && o->q.ends[e] < pos + n)
                n = o->q.ends[e] - pos;
        make_kv(kv, &o->q.keys[k], bytes);
        if (v.blocks[k] == CACHE_NO_BLOCK)
            assert_true(pos + n <= hit);
        else if (pos + n <= hit)
            assert_memory_equal(block_at(c, v.blocks[k]), kv, bytes);
        else
            memcpy(block_at(c, v.blocks[k]), kv, bytes);
        pos += n;
    }
    return hit;
}

/* The same, and commit the rest. */
static uint32_t compute_kv(struct cache *c, const struct open_seq *o, uint32_t *found)
{
    uint32_t hit = attach_kv(c, o, found);

    if (hit != UINT32_MAX)
        cache_seq_commit(o->s, o->q.p.n_ids - hit);
    return hit;
}

/* A request: wait, compute, end. Returns the tokens that were found. */
static uint32_t ask_found(struct cache *c, const char *text, uint32_t *found)
{
    struct open_seq o;

    seq(c, &o, text);
    (void)wait_loaded(c, o.s);
    uint32_t hit = compute_kv(c, &o, found);
    cache_check(c);
    cache_seq_close(o.s);
    cache_check(c);
    return hit;
}

static uint32_t ask(struct cache *c, const char *text)
{
    return ask_found(c, text, NULL);
}

/* Blocks of the whole cache in a tier. */
static uint32_t n_in(const struct cache *c, enum cache_tier tier)
{
    struct cache_stats stats = stats_of(c);

    return tier == CACHE_REMOTE ? stats.tier[tier].n_blocks - stats.tier[tier].n_free
                                : stats.tier[tier].n_cached + stats.tier[tier].n_in_use;
}

/* For struct cache_config: *arg seconds a token, whatever is cached. */
static inline double slow_seconds(const void *arg, uint32_t n_cached, uint32_t n_new)
{
    (void)n_cached;
    return *(const double *)arg * n_new;
}

#endif
