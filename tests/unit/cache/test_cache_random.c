/* The whole cache under random life, against a naive model: what is found is what was committed, its
 * bytes are those of the same ids, whichever tiers they went through, and nothing is lost while
 * there is room for all. Copies fail at random where a kind says so.
 *
 * Built twice: for a host device, and (TEST_ON_GPU) for the emulated one, whose copies happen as late
 * as streams and events allow. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/map.h"
#include "base/rng.h"
#include "cache/cache.h"
#include "kernels/device.h"

#define N_SEQS 8
#define N_IDS_MAX 1200
#define N_PROMPT_MAX 900
#define N_SPANS_MAX 4
#ifdef TEST_ON_GPU
#define N_EVENTS 2500
#else
#define N_EVENTS 12000
#endif

static struct device *device;
static uint8_t fingerprint[KV_FINGERPRINT_BYTES];

/* --- copies that fail --- */

static uint32_t fail_one_in; /* 0: none */
static uint64_t n_copies, n_failed;

static bool fails(void)
{
    bool now = fail_one_in && rng_u32(77, n_copies) % fail_one_in == 0;

    n_copies++;
    n_failed += now;
    return now;
}

enum status __real_device_upload_async(struct device *d, struct stream *s, void *dst,
                                       const void *src, size_t n);
enum status __wrap_device_upload_async(struct device *d, struct stream *s, void *dst,
                                       const void *src, size_t n);
enum status __real_device_download_async(struct device *d, struct stream *s, void *dst,
                                         const void *src, size_t n);
enum status __wrap_device_download_async(struct device *d, struct stream *s, void *dst,
                                         const void *src, size_t n);
enum status __real_device_event_record(struct device *d, struct device_event *e, struct stream *s);
enum status __wrap_device_event_record(struct device *d, struct device_event *e, struct stream *s);
enum status __real_device_event_order(struct device *d, struct device_event *e, struct stream *s);
enum status __wrap_device_event_order(struct device *d, struct device_event *e, struct stream *s);

enum status __wrap_device_upload_async(struct device *d, struct stream *s, void *dst,
                                       const void *src, size_t n)
{
    return fails() ? ERR_INTERNAL : __real_device_upload_async(d, s, dst, src, n);
}

enum status __wrap_device_download_async(struct device *d, struct stream *s, void *dst,
                                         const void *src, size_t n)
{
    return fails() ? ERR_INTERNAL : __real_device_download_async(d, s, dst, src, n);
}

enum status __wrap_device_event_record(struct device *d, struct device_event *e, struct stream *s)
{
    return fails() ? ERR_INTERNAL : __real_device_event_record(d, e, s);
}

enum status __wrap_device_event_order(struct device *d, struct device_event *e, struct stream *s)
{
    return fails() ? ERR_INTERNAL : __real_device_event_order(d, e, s);
}

/* --- sequences with ids, and what their KV must hold --- */

struct life {
    uint32_t ids[N_IDS_MAX];
    uint64_t marks[N_IDS_MAX]; /* of each position: a hash of all that its KV depends on */
    uint32_t n_ids, n_prompt;
    uint32_t ends[N_SPANS_MAX];
    struct kv_key keys[N_IDS_MAX / KV_BLOCK_TOKENS + N_SPANS_MAX + 1];
    uint32_t n_keys;           /* of closed blocks, the generated ones included */
    struct kv_chain chain;
    struct cache_prompt prompt;
    struct cache_seq *seq;     /* NULL: none */
    uint32_t n_tokens;
    bool attached;
};

struct world {
    struct cache *cache;
    struct life lives[N_SEQS];
    struct map known;          /* short keys of all closed blocks ever committed */
    uint64_t n_hits, n_tails, now_ns;
    bool copies;               /* tiers are different memories */
    bool keeps_all;            /* there is room for everything: nothing may be lost */
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

/* Few families with common beginnings; some cut into spans, the same way within a family. */
static void make_life(struct world *w, struct life *l, uint64_t seed)
{
    uint32_t family = rng_u32(1, seed) % 5, branch = rng_u32(2, seed) % 4;
    uint32_t fork = 40 + family * 130, n = 1 + rng_u32(3, seed) % N_PROMPT_MAX, n_ends = 0;
    struct kv_scope scope = {{0}};

    (void)w;
    for (uint32_t i = 0; i < n; i++)
        l->ids[i] = rng_u32(10 + family * 8 + (i >= fork ? branch + 1 : 0), i) % 1000;
    for (uint32_t e = 0; family % 2 && e < N_SPANS_MAX; e++)
        if (37 + e * (150 + family) <= n)
            l->ends[n_ends++] = 37 + e * (150 + family);
    l->n_ids = l->n_prompt = n;
    l->prompt = (struct cache_prompt){.ids = l->ids, .n_ids = n, .span_ends = l->ends,
                                      .n_span_ends = n_ends, .keys = l->keys};
    kv_chain_init(&l->chain, fingerprint, &scope, KV_SEGMENT_TOKENS_MAX);
    l->n_keys = kv_chain_prompt(&l->chain, l->ids, n, l->ends, n_ends, 0, l->keys);
    l->prompt.n_keys = l->n_keys;
    l->prompt.chain = l->chain;
    mark_from(l, 0);
}

#define BLOCK_BYTES (KV_BLOCK_TOKENS * 2 * 2 * sizeof(float)) /* one layer and head, d = 2 */
#define TOKEN_BYTES (BLOCK_BYTES / KV_BLOCK_TOKENS)

static unsigned char *block_of(const struct world *w, const struct life *l, uint32_t pos,
                               uint32_t *offset)
{
    const struct kv_pool *pool = cache_pool(w->cache);
    uint32_t block;

    cache_seq_slot(l->seq, pos, &block, offset);
    assert_true(block < pool->n_blocks && kv_block_bytes(pool) == BLOCK_BYTES);
    return (unsigned char *)pool->base + block * BLOCK_BYTES;
}

/* What a step does: the KV of tokens [from, to) is computed. */
static void compute(const struct world *w, const struct life *l, uint32_t from, uint32_t to)
{
    for (uint32_t pos = from; pos < to; pos++) {
        uint32_t offset;
        unsigned char *at = block_of(w, l, pos, &offset) + offset * TOKEN_BYTES;

        assert_ok(device_upload(device, at, &l->marks[pos], sizeof l->marks[pos]));
    }
}

/* What a step reads. */
static void assert_holds_its_kv(const struct world *w, const struct life *l)
{
    unsigned char bytes[BLOCK_BYTES];

    for (uint32_t pos = 0; pos < l->n_tokens; pos++) {
        uint32_t offset;
        const unsigned char *block = block_of(w, l, pos, &offset);

        if (offset == 0)
            assert_ok(device_download(device, bytes, block, sizeof bytes));
        if (memcmp(bytes + offset * TOKEN_BYTES, &l->marks[pos], sizeof l->marks[pos]))
            fail_msg("position %u of %u holds another KV", pos, l->n_tokens);
    }
}

/* Tokens in the longest chain of committed blocks, as cache_match() should count them. */
static uint32_t naive_match(const struct world *w, const struct life *l)
{
    uint32_t pos = 0, unused;

    for (uint32_t k = 0; k < l->n_keys; k++) {
        uint32_t end = pos + KV_BLOCK_TOKENS;

        for (uint32_t e = 0; e < l->prompt.n_span_ends; e++)
            if (l->ends[e] > pos && l->ends[e] < end)
                end = l->ends[e];
        if (end >= l->n_ids || !map_get(&w->known, short_of(&l->keys[k]), &unused))
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

/* --- events --- */

static void close_life(struct life *l)
{
    cache_seq_close(l->seq);
    l->seq = NULL;
    l->n_tokens = 0;
    l->attached = false;
}

static void open_life(struct world *w, struct life *l, uint64_t seed)
{
    make_life(w, l, seed);
    assert_ok(cache_seq_open(w->cache, &l->prompt, N_IDS_MAX, &l->seq));
    l->n_tokens = 0;
    l->attached = false;
    if (seed % 3)
        cache_seq_expect(l->seq);
}

static void attach_life(struct world *w, struct life *l)
{
    uint32_t found[CACHE_N_TIERS], want = cache_match(l->seq), naive = naive_match(w, l);

    /* Behind the last closed block there may be a tail that somebody left. */
    assert_true(want < naive + KV_BLOCK_TOKENS);
    w->n_tails += want > naive;
    if (w->keeps_all)
        assert_true(want >= naive);
    if (cache_seq_need(l->seq, 1) > cache_n_available(w->cache))
        return; /* a scheduler would not plan it */
    l->n_tokens = cache_seq_attach(l->seq, found);
    l->attached = true;
    assert_true(l->n_tokens <= want);
    assert_int_equal(found[CACHE_DEVICE] + found[CACHE_HOST], l->n_tokens);
    if (!fail_one_in) /* fetching the path may have made room of the tail, and of nothing else */
        assert_true(l->n_tokens + KV_BLOCK_TOKENS > want && (!w->keeps_all ||
                                                             l->n_tokens >= naive));
    w->n_hits += l->n_tokens;
    assert_holds_its_kv(w, l);
}

static void grow_life(struct world *w, struct life *l, uint32_t r)
{
    if (l->n_tokens == 0)
        attach_life(w, l); /* what others committed since, or nothing */
    uint32_t left = l->n_ids - l->n_tokens, n = 1 + r % 90;
    uint32_t before = cache_n_available(w->cache);
    uint32_t need;

    n = n < left ? n : left;
    need = cache_seq_need(l->seq, n);
    enum status s = cache_seq_grow(l->seq, n);
    if (l->n_tokens > 0 || !fail_one_in) /* a failed attach is counted as one to come */
        assert_int_equal(s, need <= before ? OK : ERR_NO_BLOCKS);
    if (s != OK)
        return;
    if (w->copies) /* one that ended meanwhile let go of its node */
        assert_true(cache_n_available(w->cache) + need >= before);
    else
        assert_int_equal(cache_n_available(w->cache), before - need);
    uint32_t n_commit = (r >> 8) % 4 ? n : n / 2;
    compute(w, l, l->n_tokens, l->n_tokens + n_commit);
    cache_seq_commit(l->seq, n_commit);
    cache_seq_shrink(l->seq);
    l->n_tokens += n_commit;
    note_committed(w, l);
}

static void generate(struct life *l, uint32_t r)
{
    struct kv_key key;

    if (l->n_ids == N_IDS_MAX || l->n_tokens != l->n_ids)
        return;
    l->ids[l->n_ids++] = r % 3; /* few, so that generated texts meet too */
    mark_from(l, l->n_ids - 1);
    cache_seq_extend(l->seq, l->ids[l->n_ids - 1]);
    if (kv_chain_push(&l->chain, l->ids[l->n_ids - 1], &key))
        l->keys[l->n_keys++] = key;
}

static void drop_life(struct world *w, struct life *l)
{
    uint32_t before = cache_n_available(w->cache), back = cache_seq_reclaimable(l->seq);

    cache_seq_drop(l->seq);
    assert_int_equal(cache_n_available(w->cache), before + back);
    cache_seq_expect(l->seq);
    l->n_tokens = 0;
    l->attached = false;
}

static void one_event(struct world *w, uint64_t e)
{
    uint32_t r = rng_u32(21, e), what = (r >> 8) % 32;
    struct life *l = &w->lives[r % N_SEQS];

    if (!l->seq)
        open_life(w, l, e);
    else if (what == 0 || l->n_ids > N_IDS_MAX - 40)
        close_life(l);
    else if (what == 1)
        drop_life(w, l);
    else if (what == 2)
        (void)cache_seq_prefetch(l->seq);
    else if (what == 3)
        (void)cache_seq_hold(l->seq, l->n_prompt / 2, w->now_ns + (r >> 13) % 2000);
    else if (l->n_tokens == 0 && !l->attached) /* as in an engine: attach, then grow at once */
        attach_life(w, l);
    else if (l->n_tokens == l->n_ids && (r >> 13) % 40 == 0)
        close_life(l);
    else if (l->n_tokens == l->n_ids)
        generate(l, r >> 13);
    else
        grow_life(w, l, r >> 13);
}

/* --- one kind of cache --- */

struct kind {
    const char *name;
    uint32_t n_device, n_host;
    bool always_copy, keeps_all, resets;
    const char *policy;
    uint32_t fail_one_in;
};

static double seconds(const void *arg, uint32_t n_cached, uint32_t n_new)
{
    (void)arg;
    return 0.01 + n_new * (1e-3 + 1e-6 * n_cached);
}

static void live(const struct kind *k)
{
    static struct world w;
    struct cache_config config = {
        .device = device,
        .pool = {.dtype = DTYPE_F32, .n_blocks = k->n_device, .n_layers = 1, .n_kv_heads = 1,
                 .head_dim = 2},
        .segment_tokens = KV_SEGMENT_TOKENS_MAX, .prefix_caching = true, .policy = k->policy,
        .n_host_blocks = k->n_host, .prefetch_share = 0.3, .hold_share = 0.2,
        .always_copy = k->always_copy, .seconds = seconds};
    struct cache_stats st;
    struct cache_span spans[8];
    uint32_t n_all;

    w = (struct world){.keeps_all = k->keeps_all,
                       .copies = k->n_host && (k->always_copy || !device_is_host(device))};
    fail_one_in = 0;
    assert_ok(cache_create(&w.cache, &config, NULL));
    assert_ok(map_init(&w.known, 1 << 16));
    fail_one_in = k->fail_one_in;
    n_failed = 0;
    for (uint64_t e = 0; e < N_EVENTS; e++) {
        w.now_ns += 100;
        (void)cache_poll(w.cache, w.now_ns);
        one_event(&w, e);
        if (k->resets && e % 997 == 0)
            cache_reset(w.cache);
        cache_check(w.cache);
        for (uint32_t i = 0; i < N_SEQS && e % 16 == 0; i++)
            if (w.lives[i].seq)
                assert_holds_its_kv(&w, &w.lives[i]);
    }
    cache_stats(w.cache, &st);
    (void)cache_top_spans(w.cache, spans, 8, &n_all);
    printf("%s: %llu tokens hit, %llu tails, evicted %llu / %llu, moved in %llu / %llu, failed %llu\n", k->name,
           (unsigned long long)w.n_hits, (unsigned long long)w.n_tails, (unsigned long long)st.tier[0].n_evicted,
           (unsigned long long)st.tier[1].n_evicted, (unsigned long long)st.tier[0].n_moved_in,
           (unsigned long long)st.tier[1].n_moved_in, (unsigned long long)n_failed);
    assert_true(w.n_hits > 1000 && w.n_tails > 10);
    assert_true(k->n_host == 0 || st.tier[CACHE_DEVICE].n_moved_in > 0);
    assert_true(!k->fail_one_in || n_failed > 0);
    fail_one_in = 0;
    for (uint32_t i = 0; i < N_SEQS; i++)
        if (w.lives[i].seq)
            close_life(&w.lives[i]);
    cache_reset(w.cache);
    cache_check(w.cache);
    assert_int_equal(cache_n_available(w.cache), k->n_device);
    cache_stats(w.cache, &st);
    assert_int_equal(st.tier[CACHE_DEVICE].n_free, k->n_device);
    assert_int_equal(st.tier[CACHE_HOST].n_free, k->n_host);
    cache_destroy(w.cache);
    map_fini(&w.known);
}

static const struct kind kinds[] = {
    {"device only", 60, 0, false, false, true, "contest", 0},
    {"device only, lru", 60, 0, false, false, false, "lru", 0},
    {"room for all", 3000, 0, false, true, false, "contest", 0},
    {"host", 60, 90, false, false, true, "contest", 0},
    {"host keeps all", 60, 3000, false, true, false, "contest", 0},
    {"host keeps all, pgdsf", 60, 3000, false, true, false, "pgdsf", 0},
    {"copies", 60, 90, true, false, true, "contest", 0},
    {"copies, gdsf", 60, 90, true, false, false, "gdsf", 0},
    {"copies keep all", 60, 3000, true, true, false, "lfu", 0},
    {"copies fail", 60, 90, true, false, true, "contest", 9},
    {"copies fail often", 60, 200, true, false, false, "lru", 4},
};

static void nothing_is_lost_and_nothing_is_wrong(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        live(&kinds[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_lost_and_nothing_is_wrong)};
    struct device_config config = {.kind = DEVICE_REF, .n_threads = 1, .max_rows = 1, .max_k = 1,
                                   .max_heads = 1, .max_head_dim = 2};

#ifdef TEST_ON_GPU
    config.kind = DEVICE_CUDA;
#endif
    if (hash_init() != OK || device_open(&device, &config, NULL) != OK)
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return rc;
}
