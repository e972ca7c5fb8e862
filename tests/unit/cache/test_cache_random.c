/* Random operations on the whole cache against a naive model: found tokens are those that were
 * committed, their bytes depend only on the ids, whichever tiers they passed through, and no block
 * is lost while there is room for all. Some kinds have copies that fail at random. Steps run later:
 * the blocks that a step writes and reads are copied on the compute stream and compared when the
 * stream has run the step. Some kinds have a disk, and are closed and reopened now and then.
 *
 * Built twice: for a host device, and (TEST_ON_GPU) for the emulated one, whose copies happen as
 * late as streams and events allow. */
#include "tests/unit/test.h"

#include <ftw.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "cache/disk/disk_format.h"
#include "tests/unit/cache/cache_life.h"
#include "tests/unit/cache/cache_reader.h"

#ifndef N_EVENTS /* sanitizer builds use fewer: see tests/CMakeLists.txt */
#ifdef TEST_ON_GPU
#define N_EVENTS 9000
#else
#define N_EVENTS 12000
#endif
#endif

#define DISK_UNIT_BLOCKS (KV_SEGMENT_TOKENS_MAX / KV_BLOCK_TOKENS)
#define N_EVENTS_IN_TURN (N_EVENTS < 9000 ? 180 : 300)

/* --- events --- */

static void close_life(struct life *l)
{
    cache_seq_close(l->seq);
    l->seq = NULL;
    l->n_tokens = l->n_left = 0;
    l->attached = false;
}

/* A due time: past, now, soon, late or never. */
static uint64_t some_due(const struct world *w, uint32_t r)
{
    return r % 16 == 0 ? 0 : r % 16 == 1 ? UINT64_MAX : w->now_ns + (r >> 4) % 30 * 500000000u;
}

static void open_life(struct world *w, struct life *l, uint64_t seed)
{
    make_life(w, l, seed);
    assert_ok(cache_seq_open(w->cache, &l->prompt, N_IDS_MAX, &l->seq));
    l->n_tokens = l->n_left = 0;
    l->attached = false;
    if (seed % 3)
        cache_seq_expect(l->seq, some_due(w, (uint32_t)seed));
    if (seed % 2)
        (void)cache_seq_prefetch(l->seq);
    if (seed % 5 < 2)
        (void)cache_seq_load(l->seq, seed % 2);
}

/* False if there is no room to continue after the tokens that it would find. */
static bool attach_life(struct world *w, struct life *l)
{
    uint32_t found[CACHE_N_TIERS], want = cache_match(l->seq), naive = naive_match(w, l);

    /* After the last closed block there may be a tail left by another sequence. */
    assert_true(want < naive + KV_BLOCK_TOKENS);
    w->n_tails += want > naive;
    if (w->keeps_all)
        assert_true(want >= naive);
    uint32_t before = cache_n_available(w->cache), need = cache_seq_need(l->seq, 0);

    if (cache_seq_need(l->seq, 1) > before)
        return false; /* a scheduler would not plan it */
    l->n_tokens = cache_seq_attach(l->seq, found);
    l->attached = true;
    assert_true(l->n_tokens <= want);
    assert_int_equal(found[CACHE_DEVICE] + found[CACHE_HOST] + found[CACHE_DISK], l->n_tokens);
    if (!fail_one_in) /* fetching the path may have evicted the tail, but no other block */
        assert_true(l->n_tokens + KV_BLOCK_TOKENS > want &&
                    (!w->keeps_all || l->n_tokens >= naive));
    if (!w->copies && l->n_tokens == want)
        assert_int_equal(cache_n_available(w->cache), before - need);
    w->n_hits += l->n_tokens;
    read_kv(w, l);
    return true;
}

/* Wait until the blocks on disk are loaded, or there is no room for them, and begin. */
static void load_life(struct world *w, struct life *l)
{
    for (uint32_t i = 0; i < 400 && cache_seq_is_loading(l->seq); i++) {
        (void)cache_seq_load(l->seq, l->n_ids % 2 || i > 100);
        (void)cache_poll(w->cache, ++w->now_ns);
        usleep(20);
    }
    cache_check(w->cache);
    w->n_loads += !cache_seq_is_loading(l->seq);
    cache_seq_stop_loading(l->seq);
    assert_false(cache_seq_is_loading(l->seq));
    (void)attach_life(w, l);
}

static void drop_life(struct world *w, struct life *l)
{
    uint32_t before = cache_n_available(w->cache), back = cache_seq_reclaimable(l->seq);

    cache_seq_drop(l->seq);
    assert_int_equal(cache_n_available(w->cache), before + back);
    cache_seq_expect(l->seq, some_due(w, l->n_tokens * 7 + l->n_ids));
    l->n_left = l->n_tokens > l->n_left ? l->n_tokens : l->n_left;
    l->n_tokens = 0;
    l->attached = false;
}

static void grow_life(struct world *w, struct life *l, uint32_t r)
{
    if (l->n_tokens == 0 && !attach_life(w, l)) /* finds what other sequences committed since, or no
                                                   block */
        return;
    uint32_t left = l->n_ids - l->n_tokens, n = 1 + r % 90;
    uint32_t before = cache_n_available(w->cache);
    uint32_t need;

    n = n < left ? n : left;
    need = cache_seq_need(l->seq, n);
    enum status s = cache_seq_grow(l->seq, n);
    if (l->n_tokens > 0 || !fail_one_in) /* after a failed attach, need counts it again */
        assert_int_equal(s, need <= before ? OK : ERR_NO_BLOCKS);
    if (s != OK)
        return;
    if (w->copies) /* a sequence that ended meanwhile released its node */
        assert_true(cache_n_available(w->cache) + need >= before);
    else
        assert_int_equal(cache_n_available(w->cache), before - need);
    uint32_t n_commit = (r >> 8) % 4 ? n : n / 2;
    compute(w, l, l->n_tokens, l->n_tokens + n_commit);
    cache_seq_commit(l->seq, n_commit);
    l->n_tokens += n_commit;
    note_committed(w, l);
    if ((r >> 10) % 16 == 0) { /* it ends with slots that were never written */
        drop_life(w, l);
        return;
    }
    cache_seq_shrink(l->seq);
    read_kv(w, l); /* the next step, with the blocks that the commit exchanged */
}

static void generate(struct life *l, uint32_t r)
{
    struct kv_key key;

    if (l->n_ids == N_IDS_MAX || l->n_tokens != l->n_ids)
        return;
    l->ids[l->n_ids++] = r % 3; /* few ids, so that generated texts are shared too */
    mark_from(l, l->n_ids - 1);
    cache_seq_extend(l->seq, l->ids[l->n_ids - 1]);
    if (kv_chain_push(&l->chain, l->ids[l->n_ids - 1], &key))
        l->keys[l->n_keys++] = key;
}

/* Spilling loses no block. With one memory, or no tier to spill to, it has no effect. */
static void spill_ahead(struct world *w, uint32_t n_blocks)
{
    uint32_t before = cache_n_available(w->cache);
    struct cache_stats a, b;

    cache_stats(w->cache, &a);
    cache_spill_ahead(w->cache, n_blocks);
    cache_stats(w->cache, &b);
    if (fail_one_in) /* after a failed copy all others are waited for, and their pins end */
        assert_true(cache_n_available(w->cache) >= before);
    else
        assert_int_equal(cache_n_available(w->cache), before);
    assert_true(b.n_spilled_on_demand == a.n_spilled_on_demand);
    if (!w->copies)
        assert_true(b.tier[CACHE_DEVICE].n_evicted == a.tier[CACHE_DEVICE].n_evicted);
    if (!fail_one_in)
        assert_true(b.n_expected_lost == a.n_expected_lost || !w->keeps_all);
}

static void hold_life(struct world *w, const struct life *l, uint32_t r)
{
    struct cache_hold hold = {.owner = r % 3,
                              .n_bytes_max = r % 3 * 6 * kv_block_bytes(cache_pool(w->cache)),
                              .until_ns = r % 7 == 0 ? CACHE_HOLD_FOREVER
                                                     : w->now_ns + r % 500 * 32000000u};

    (void)cache_seq_hold(l->seq, l->n_prompt / 2, &hold, NULL);
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
    else if (what == 4)
        spill_ahead(w, (r >> 13) % 24);
    else if (what == 5 && l->n_tokens == 0 && !l->attached)
        cache_seq_expect(l->seq, some_due(w, r >> 13));
    else if (what >= 6 && what < 10 && l->n_tokens == 0 && !l->attached)
        load_life(w, l);
    else if (what == 10 && w->has_disk && (r >> 13) % 8 == 0)
        w->n_erased += cache_erase(w->cache, &l->keys[(r >> 13) % (l->n_keys ? l->n_keys : 1)]);
    else if (what == 3)
        hold_life(w, l, r >> 13);
    else if (what == 11)
        (void)cache_release(w->cache, &l->keys[(r >> 13) % (l->n_keys ? l->n_keys : 1)]);
    else if (l->n_tokens == 0 && !l->attached) /* as in an engine: attach, then grow at once */
        (void)attach_life(w, l);
    else if (l->n_tokens == l->n_ids && (r >> 13) % 40 == 0)
        close_life(l);
    else if (l->n_tokens == l->n_ids)
        generate(l, r >> 13);
    else
        grow_life(w, l, r >> 13);
}

/* --- one kind of cache --- */

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path);
}

static void remove_tree(const char *path)
{
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

struct kind {
    const char *name;
    uint32_t n_device, n_host;
    bool always_copy, keeps_all, resets;
    const char *policy;
    uint32_t fail_one_in;
    uint32_t segment_tokens; /* 0: the largest */
    bool is_private;         /* no prefix caching */
    uint32_t n_disk;         /* extents; 0: no disk */
    uint32_t min_uses;
    uint32_t reopens; /* reopened after so many events; 0: never */
};

static double seconds(const void *arg, uint32_t n_cached, uint32_t n_new)
{
    (void)arg;
    return 0.01 + n_new * (1e-3 + 1e-6 * n_cached);
}

static char disk_path[64];
static struct reader reader; /* of the cache that is open */

static void create_cache(struct world *w, const struct kind *k)
{
    uint32_t segment_tokens = k->segment_tokens ? k->segment_tokens : KV_SEGMENT_TOKENS_MAX;
    struct cache_config config = {.group = device_group_of(device),
                                  .pool = {.layout = kv_layout_of(DTYPE_F32),
                                           .n_blocks = k->n_device,
                                           .n_layers = 1,
                                           .n_kv_heads = 1,
                                           .head_dim = 2},
                                  .segment_tokens = segment_tokens,
                                  .prefix_caching = !k->is_private,
                                  .policy = k->policy,
                                  .n_host_blocks = k->n_host,
                                  .prefetch_share = 0.3,
                                  .hold_share = 0.6,
                                  .always_copy = k->always_copy,
                                  .kv_events = reader.events,
                                  .seconds = seconds};

    if (k->n_disk > 0)
        config.disk = (struct cache_disk_config){
            .path = disk_path,
            .fingerprint = fingerprint,
            .min_uses = k->min_uses,
            .n_bytes = disk_table_bytes(k->n_disk) + k->n_disk * disk_extent_bytes(BLOCK_BYTES),
            .timeout_ns = UINT64_C(60000000000),
            .preload = CACHE_PRELOAD_ALL};
    assert_ok(cache_create(&w->cache, &config, NULL));
}

static void open_world(struct world *w, const struct kind *k)
{
    uint32_t segment_tokens = k->segment_tokens ? k->segment_tokens : KV_SEGMENT_TOKENS_MAX;

    *w = (struct world){.keeps_all = k->keeps_all,
                        .is_private = k->is_private,
                        .segment_tokens = segment_tokens,
                        .has_disk = k->n_disk > 0,
                        .copies = (k->n_host || k->n_disk) &&
                                  (k->always_copy || !device_is_host(device))};
    fail_one_in = 0;
    snprintf(disk_path, sizeof disk_path, "/tmp/tarn-test-XXXXXX");
    assert_true(k->n_disk == 0 || mkdtemp(disk_path));
    open_steps();
    reader_open(&reader);
    create_cache(w, k);
    assert_ok(map_init(&w->known, 1 << 16));
}

/* Add the counts of a cache that is closed. */
static void add_stats(struct cache_stats *sum, const struct cache_stats *st)
{
    for (int t = 0; t < CACHE_N_TIERS; t++) {
        sum->tier[t].n_evicted += st->tier[t].n_evicted;
        sum->tier[t].n_moved_in += st->tier[t].n_moved_in;
        sum->tier[t].n_hit_tokens += st->tier[t].n_hit_tokens;
    }
    sum->n_spilled_ahead += st->n_spilled_ahead;
    sum->n_fetched_ahead += st->n_fetched_ahead;
    sum->n_expected_lost += st->n_expected_lost;
}

/* The process ends and another one begins: no sequence is open, and the disk keeps its records. */
static void reopen(struct world *w, const struct kind *k)
{
    struct cache_stats before, after;

    for (uint32_t i = 0; i < N_SEQS; i++)
        if (w->lives[i].seq)
            close_life(&w->lives[i]);
    finish_steps();
    cache_stats(w->cache, &before);
    add_stats(&w->sum, &before);
    cache_destroy(w->cache);
    create_cache(w, k);
    cache_stats(w->cache, &after);
    assert_true(after.disk.n_found >= before.tier[CACHE_DISK].n_cached);
    /* Orphaned: blocks that were being written while their parent was evicted. Doubled: blocks that
     * were evicted and computed again meanwhile. Both are few. */
    assert_true(after.disk.n_orphaned + after.disk.n_doubled <= 4 * DISK_UNIT_BLOCKS);
    assert_int_equal(after.disk.n_torn, 0);
    assert_int_equal(after.disk.n_foreign + after.disk.n_impossible + after.disk.n_misnamed, 0);
    w->n_left_behind += after.disk.n_orphaned + after.disk.n_doubled;
    cache_check(w->cache);
    w->n_found += after.disk.n_found;
}

/* Check that all blocks are released. */
static void close_world(struct world *w, const struct kind *k)
{
    struct cache_stats st;

    for (uint32_t i = 0; i < N_SEQS; i++)
        if (w->lives[i].seq)
            close_life(&w->lives[i]);
    finish_steps();
    while (k->is_private && cache_poll(w->cache, w->now_ns)) {
    }
    cache_stats(w->cache, &st);
    assert_true(!k->is_private || st.n_nodes == 0); /* no sequence is left to find it */
    cache_reset(w->cache);
    cache_check(w->cache);
    while (k->n_disk && cache_poll(w->cache, ++w->now_ns))
        usleep(20);
    cache_check(w->cache);
    assert_int_equal(cache_n_available(w->cache), k->n_device);
    cache_stats(w->cache, &st);
    assert_int_equal(st.n_holds, 0);
    assert_int_equal(st.n_held_blocks, 0);
    assert_int_equal(st.tier[CACHE_DEVICE].n_free, k->n_device);
    assert_int_equal(st.tier[CACHE_HOST].n_free, k->n_host);
    assert_int_equal(st.tier[CACHE_DISK].n_free, st.tier[CACHE_DISK].n_blocks);
    assert_true(!k->n_disk == !st.tier[CACHE_DISK].n_blocks);
    reader_check(&reader, w->cache, w->now_ns);
    assert_true(k->is_private || reader.blocks.n == 0);
    cache_destroy(w->cache);
    reader_close(&reader);
    map_fini(&w->known);
    close_steps();
    if (k->n_disk > 0)
        remove_tree(disk_path);
}

/* Compute n_tokens of it at once. */
static void run_life(struct world *w, struct life *l, uint32_t n_tokens)
{
    (void)cache_seq_attach(l->seq, NULL);
    assert_ok(cache_seq_grow(l->seq, n_tokens));
    compute(w, l, 0, n_tokens);
    cache_seq_commit(l->seq, n_tokens);
    l->n_tokens = n_tokens;
}

/* After any operations, with an empty cache no part of the prefetch share is in use. */
static void assert_prefetches(struct world *w, const struct kind *k)
{
    uint32_t share = (uint32_t)(0.3 * k->n_device);
    struct cache_stats before, after;
    struct life *l = &w->lives[0];

    for (uint32_t i = 0; i < N_SEQS; i++)
        if (w->lives[i].seq)
            close_life(&w->lives[i]);
    cache_reset(w->cache);
    cache_spill_ahead(w->cache, 0); /* reserve off */
    for (uint64_t seed = 0;
         !l->seq || l->n_prompt <= share * KV_BLOCK_TOKENS || l->prompt.n_span_ends; seed++) {
        if (l->seq)
            close_life(l);
        make_life(w, l, seed);
        assert_ok(cache_seq_open(w->cache, &l->prompt, N_IDS_MAX, &l->seq));
    }
    run_life(w, l, share * KV_BLOCK_TOKENS);
    cache_seq_drop(l->seq);
    l->n_tokens = 0;
    /* Compute other sequences, which evict all blocks to the host. */
    for (uint64_t i = 1, seed = 1; seed < 1000 && cache_n_available(w->cache) > 0; seed++) {
        struct life *other = &w->lives[i];
        uint32_t n;

        make_life(w, other, seed);
        n = other->n_prompt;
        if (other->ids[0] == l->ids[0] || n < 600)
            continue;
        assert_ok(cache_seq_open(w->cache, &other->prompt, N_IDS_MAX, &other->seq));
        if (cache_match(other->seq) > 0) {
            close_life(other);
            continue;
        }
        while (cache_seq_need(other->seq, n) > cache_n_available(w->cache))
            n--;
        run_life(w, other, n);
        i++;
    }
    assert_int_equal(cache_n_available(w->cache), 0);
    for (uint32_t i = 1; i < N_SEQS; i++)
        if (w->lives[i].seq)
            close_life(&w->lives[i]);
    cache_stats(w->cache, &before);
    assert_int_equal(cache_match(l->seq), share * KV_BLOCK_TOKENS);
    assert_true(cache_seq_prefetch(l->seq));
    cache_stats(w->cache, &after);
    assert_int_equal(after.tier[CACHE_DEVICE].n_moved_in - before.tier[CACHE_DEVICE].n_moved_in,
                     share);
    bool refused = false; /* no later sequence gets room */
    for (uint32_t i = 1; i < N_SEQS && w->lives[i].n_prompt >= 600; i++) {
        assert_ok(cache_seq_open(w->cache, &w->lives[i].prompt, N_IDS_MAX, &w->lives[i].seq));
        refused |= !cache_seq_prefetch(w->lives[i].seq);
        close_life(&w->lives[i]);
    }
    cache_stats(w->cache, &before);
    assert_true(refused);
    assert_int_equal(after.tier[CACHE_DEVICE].n_moved_in, before.tier[CACHE_DEVICE].n_moved_in);
    cache_check(w->cache);
}

static void print_life(const struct world *w, const struct kind *k, const struct cache_stats *st)
{
    const struct cache_tier_stats *t = st->tier;

    printf("%s: %llu tokens hit, %llu tails, evicted %llu / %llu, moved in %llu / %llu, "
           "ahead %llu / %llu, lost %llu, failed %llu\n",
           k->name, (unsigned long long)w->n_hits, (unsigned long long)w->n_tails,
           (unsigned long long)t[0].n_evicted, (unsigned long long)t[1].n_evicted,
           (unsigned long long)t[0].n_moved_in, (unsigned long long)t[1].n_moved_in,
           (unsigned long long)st->n_spilled_ahead, (unsigned long long)st->n_fetched_ahead,
           (unsigned long long)st->n_expected_lost, (unsigned long long)n_failed);
}

/* Sleep and wake with sequences open, as an engine does between two steps. */
static void sleep_and_wake(struct world *w, const struct kind *k, uint64_t e)
{
    struct life *one = &w->lives[e % N_SEQS];
    struct cache_stats st;

    for (uint32_t i = 0; i < N_SEQS; i++)
        if (w->lives[i].seq) {
            struct life *l = &w->lives[i];
            cache_seq_sleep(l->seq);
            l->n_left = l->n_tokens > l->n_left ? l->n_tokens : l->n_left;
            l->n_tokens = 0;
            l->attached = false;
        }
    finish_steps();
    while (!cache_sleep(w->cache)) {
        w->now_ns += 1000000; /* writes to disk are waited for by this clock */
        (void)cache_poll(w->cache, w->now_ns);
        usleep(20);
    }
    assert_true(cache_sleep(w->cache));
    for (uint32_t i = 0; i < 20; i++) {
        (void)cache_poll(w->cache, ++w->now_ns);
        cache_check(w->cache);
    }
    if (one->seq)
        close_life(one);
    else
        open_life(w, one, e);
    cache_stats(w->cache, &st);
    assert_int_equal(cache_n_available(w->cache), 0);
    assert_int_equal(st.tier[CACHE_DEVICE].n_free, k->n_device);
    assert_int_equal(st.tier[CACHE_HOST].n_free, k->n_host);
    assert_true(k->n_disk > 0 || st.n_nodes == 0);
    assert_int_equal(st.tier[CACHE_DEVICE].n_leaked + st.tier[CACHE_HOST].n_leaked, 0);
    assert_ok(cache_wake(w->cache));
    assert_int_equal(cache_n_available(w->cache), k->n_device);
    w->n_sleeps++;
}

static void live_through(struct world *w, const struct kind *k, uint64_t n_events)
{
    for (uint64_t e = 0; e < n_events; e++) {
        w->now_ns += 100 + rng_u32(31, e) % 64 * 1000000; /* 3 % of a second */
        (void)cache_poll(w->cache, w->now_ns);
        one_event(w, e);
        if (k->resets && e % 997 == 0)
            cache_reset(w->cache);
        if (!k->keeps_all && e % 331 == 330)
            sleep_and_wake(w, k, e);
        if (k->reopens && e % k->reopens == k->reopens - 1)
            reopen(w, k);
        cache_check(w->cache);
        if (e % 64 < 48) /* it sleeps now and then, and falls behind */
            reader_take_all(&reader);
        if (e % 256 == 255)
            reader_check(&reader, w->cache, w->now_ns);
        for (uint32_t i = 0; i < N_SEQS && e % 16 == 0; i++)
            if (w->lives[i].seq)
                read_kv(w, &w->lives[i]);
    }
}

/* Count over all kinds, because a short run of one kind may not reach every case. */
static struct {
    uint64_t n_loads, n_found, n_hits;
} of_disk;

static uint64_t n_overflows;     /* of events, over all kinds */
static uint64_t n_fetched_ahead; /* blocks, over all kinds */

static void live(const struct kind *k)
{
    static struct world w;
    struct cache_stats st;
    struct cache_span spans[8];
    uint32_t n_all;

    open_world(&w, k);
    fail_one_in = k->fail_one_in;
    n_failed = 0;
    live_through(&w, k, k->n_disk ? N_EVENTS / 2 : N_EVENTS);
    cache_stats(w.cache, &st);
    add_stats(&st, &w.sum);
    (void)cache_top_spans(w.cache, spans, 8, &n_all);
    print_life(&w, k, &st);
    printf("    events: %llu stored, %llu with ids, %llu listings\n",
           (unsigned long long)reader.n_stored, (unsigned long long)reader.n_named,
           (unsigned long long)reader.n_cleared);
    assert_true(k->is_private || (reader.n_named > 0 && reader.n_cleared > 0));
    n_overflows += cache_events_n_overflows(reader.events);
    assert_true(w.n_hits > 1000 && w.n_tails > N_EVENTS / 2000);
    assert_true(k->n_host == 0 || st.tier[CACHE_DEVICE].n_moved_in > 0);
    assert_true(k->keeps_all || w.n_sleeps > N_EVENTS / 2 / 331 - 1);
    assert_true(!k->fail_one_in || n_failed > 0);
    if (k->n_disk > 0) {
        printf("    disk: %llu loads, %llu tokens of it hit, %llu blocks found again, %llu left "
               "behind, %llu evicted\n",
               (unsigned long long)w.n_loads, (unsigned long long)st.tier[CACHE_DISK].n_hit_tokens,
               (unsigned long long)w.n_found, (unsigned long long)w.n_left_behind,
               (unsigned long long)st.tier[CACHE_DISK].n_evicted);
        of_disk.n_loads += w.n_loads;
        of_disk.n_found += w.n_found;
        of_disk.n_hits += st.tier[CACHE_DISK].n_hit_tokens;
    }
    assert_true(!w.copies || k->n_host == 0 || k->fail_one_in || st.n_spilled_ahead > 0);
    n_fetched_ahead += st.n_fetched_ahead; /* few of a kind between two sleeps */
    fail_one_in = 0;
    if (w.copies && !k->is_private && k->n_disk == 0)
        assert_prefetches(&w, k);
    close_world(&w, k);
}

/* Each call of a copy fails in turn: every block enqueued, every event recorded or waited for. */
static void any_one_copy_may_fail(void **state)
{
    const struct kind k = {.name = "one fails",
                           .n_device = 40,
                           .n_host = 60,
                           .always_copy = true,
                           .policy = "contest"};
    static struct world w;
    uint64_t nth = 0;

    (void)state;
    do {
        open_world(&w, &k);
        fail_one_in = UINT32_MAX; /* no random failures, but the checks allow for failed copies */
        fail_nth = ++nth;
        n_copies = 0;
        live_through(&w, &k, N_EVENTS_IN_TURN);
        fail_one_in = 0;
        close_world(&w, &k);
    } while (n_copies >= nth);
    fail_nth = 0;
    printf("%llu calls failed in turn\n", (unsigned long long)nth - 1);
    assert_true(nth > 20);
}

static const struct kind kinds[] = {
    {"device only", 60, 0, false, false, true, "contest", 0, 0, false, 0, 0, 0},
    {"device only, lru", 60, 0, false, false, false, "lru", 0, 0, false, 0, 0, 0},
    {"room for all", 3000, 0, false, true, false, "contest", 0, 0, false, 0, 0, 0},
    {"host", 60, 90, false, false, true, "contest", 0, 0, false, 0, 0, 0},
    {"host keeps all", 60, 3000, false, true, false, "contest", 0, 0, false, 0, 0, 0},
    {"host keeps all, pgdsf", 60, 3000, false, true, false, "pgdsf", 0, 0, false, 0, 0, 0},
    {"copies", 60, 90, true, false, true, "contest", 0, 0, false, 0, 0, 0},
    {"copies, gdsf", 60, 90, true, false, false, "gdsf", 0, 0, false, 0, 0, 0},
    {"copies keep all", 60, 3000, true, true, false, "lfu", 0, 0, false, 0, 0, 0},
    {"copies fail", 60, 90, true, false, true, "contest", 9, 0, false, 0, 0, 0},
    {"copies fail often", 60, 200, true, false, false, "lru", 4, 0, false, 0, 0, 0},
    {"segments of a block", 60, 90, true, false, true, "contest", 0, 32, false, 0, 0, 0},
    {"private", 60, 0, false, false, false, "contest", 0, 0, true, 0, 0, 0},
    {"private, host keeps all", 60, 3000, false, true, false, "contest", 0, 0, true, 0, 0, 0},
    {"private, copies", 60, 90, true, false, false, "contest", 0, 0, true, 0, 0, 0},
    {"private, copies fail", 60, 90, true, false, true, "lru", 9, 0, true, 0, 0, 0},
    {"disk", 60, 0, false, false, false, "contest", 0, 0, false, 150, 1, 1100},
    {"disk, second use", 60, 0, false, false, true, "contest", 0, 0, false, 3000, 2, 900},
    {"disk, host", 60, 90, false, false, true, "contest", 0, 0, false, 110, 1, 800},
    {"disk, copies", 60, 0, true, false, false, "contest", 0, 0, false, 400, 1, 1000},
    {"disk, host, copies", 60, 90, true, false, true, "contest", 0, 0, false, 300, 1, 700},
    {"disk, copies fail", 60, 90, true, false, true, "lru", 9, 0, false, 100, 1, 700},
    {"disk, blocks", 60, 0, false, false, false, "gdsf", 0, 32, false, 200, 1, 900},
};

static void nothing_is_lost_and_nothing_is_wrong(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        live(&kinds[i]);
    assert_true(of_disk.n_loads > 0 && of_disk.n_found > 0 && of_disk.n_hits > 0);
    assert_true(n_overflows > 0); /* the reader fell behind */
    assert_true(n_fetched_ahead > 0);
}

/* --- blocks in transfer that another sequence computes too --- */

/* Open a prompt of these ids; its first span ends at `end`, or 0: uncut. */
static void open_cut(struct world *w, struct life *l, uint32_t n, uint32_t first_id, uint32_t end)
{
    struct kv_scope scope = {{0}};

    l->ends[0] = end;
    for (uint32_t i = 0; i < n; i++)
        l->ids[i] = first_id + i;
    l->n_ids = l->n_prompt = n;
    l->prompt = (struct cache_prompt){
        .ids = l->ids, .n_ids = n, .span_ends = l->ends, .n_span_ends = end > 0, .keys = l->keys};
    kv_chain_init(&l->chain, fingerprint, &scope, w->segment_tokens);
    l->prompt.n_keys = kv_chain_prompt(&l->chain, l->ids, n, l->ends, end > 0, 0, l->keys);
    l->prompt.chain = l->chain;
    mark_from(l, 0);
    l->n_tokens = 0;
    assert_ok(cache_seq_open(w->cache, &l->prompt, N_IDS_MAX, &l->seq));
}

static void open_plain(struct world *w, struct life *l, uint32_t n, uint32_t first_id)
{
    open_cut(w, l, n, first_id, 0);
}

/* A tail is a closed block for a prompt whose span ends there. While that prompt uses the block, or
 * has blocks after it, no sequence may write to it. */
static void a_tail_in_use_is_not_taken(void **state)
{
    static const struct kind kind = {"tails", 30, 30,    false, true, false, "lru",
                                     0,       0,  false, 0,     0,    0};
    static struct world w;
    struct life *first = &w.lives[0], *cut = &w.lives[1], *again = &w.lives[2];

    (void)state;
    open_world(&w, &kind);
    open_plain(&w, first, 60, 0);
    run_life(&w, first, 40);
    close_life(first);
    open_cut(&w, cut, 80, 0, 40);
    open_plain(&w, again, 60, 0);
    assert_int_equal(cache_match(again->seq), 40);
    assert_int_equal(cache_seq_attach(cut->seq, NULL), 40);
    assert_int_equal(cache_match(again->seq), 32); /* in use */
    assert_int_equal(cache_seq_attach(again->seq, NULL), 32);
    cache_check(w.cache);
    cache_seq_drop(again->seq);
    assert_ok(cache_seq_grow(cut->seq, 40));
    compute(&w, cut, 40, 80);
    cache_seq_commit(cut->seq, 40);
    close_life(cut);
    assert_int_equal(cache_match(again->seq), 32); /* another sequence has a block after it */
    assert_int_equal(cache_seq_attach(again->seq, NULL), 32);
    cache_check(w.cache);
    close_world(&w, &kind);
}

/* The last block of a prompt is computed although it is in the tree, while it is prefetched for
 * another, waiting sequence. The block that the commit gives in exchange is not loaded yet. */
static void a_block_on_its_way_is_waited_for(void **state)
{
    static const struct kind kind = {"on its way", 30, 200, true, true, false, "lru", 0, 0,
                                     false,        0,  0,   0};
    const uint32_t n = KV_SEGMENT_TOKENS_MAX + KV_BLOCK_TOKENS; /* the last block has its own
                                                                   node */
    static struct world w;
    struct life *longer = &w.lives[0], *exact = &w.lives[1], *other = &w.lives[2];
    struct cache_stats before, after;

    (void)state;
    for (uint32_t round = 0; round < 20; round++) {
        open_world(&w, &kind);
        open_plain(&w, longer, n + 8, 0);
        run_life(&w, longer, n);
        cache_seq_drop(longer->seq);
        longer->n_tokens = 0;
        open_plain(&w, other, kind.n_device * KV_BLOCK_TOKENS, 2000);
        run_life(&w, other, other->n_prompt); /* the other sequence's blocks are evicted to the
                                                 host */
        close_life(other);

        open_plain(&w, exact, n, 0);
        exact->n_tokens = cache_seq_attach(exact->seq, NULL);
        assert_int_equal(exact->n_tokens, KV_SEGMENT_TOKENS_MAX);
        assert_ok(cache_seq_grow(exact->seq, KV_BLOCK_TOKENS));
        compute(&w, exact, exact->n_tokens, n);
        finish_steps();
        cache_stats(w.cache, &before);
        assert_true(cache_seq_prefetch(longer->seq));
        cache_stats(w.cache, &after);
        if (w.copies)
            assert_int_equal(after.tier[CACHE_DEVICE].n_moved_in,
                             before.tier[CACHE_DEVICE].n_moved_in + 1);
        cache_seq_commit(exact->seq, KV_BLOCK_TOKENS);
        exact->n_tokens = n;
        read_kv(&w, exact);
        close_world(&w, &kind);
    }
}

/* --- more copies at once than are tracked one by one --- */

#define N_MANY 600 /* blocks, and nodes: each a span of one token */

static void make_many(struct world *w, struct life *l, uint32_t *ends, uint32_t first_id)
{
    struct kv_scope scope = {{0}};

    for (uint32_t i = 0; i <= N_MANY; i++) {
        l->ids[i] = first_id + i;
        ends[i] = i + 1;
    }
    l->n_ids = l->n_prompt = N_MANY + 1; /* the last one is never found */
    l->prompt = (struct cache_prompt){.ids = l->ids,
                                      .n_ids = N_MANY + 1,
                                      .span_ends = ends,
                                      .n_span_ends = N_MANY,
                                      .keys = w->many_keys[first_id > 0]};
    kv_chain_init(&l->chain, fingerprint, &scope, w->segment_tokens);
    l->prompt.n_keys =
        kv_chain_prompt(&l->chain, l->ids, N_MANY + 1, ends, N_MANY, 0, w->many_keys[first_id > 0]);
    assert_int_equal(l->prompt.n_keys, N_MANY);
    l->prompt.chain = l->chain;
    for (uint32_t i = 0; i < l->n_ids; i++)
        l->marks[i] = mix(first_id + 1, i);
    assert_ok(cache_seq_open(w->cache, &l->prompt, N_IDS_MAX, &l->seq));
}

static void more_copies_at_once_than_are_watched(void **state)
{
    static const struct kind kind = {"many", N_MANY, 3 * N_MANY, true, true, false, "lru",
                                     0,      0,      false,      0,    0,    0};
    static struct world w;
    static uint32_t ends[2][N_MANY + 1];
    struct life *a = &w.lives[0], *b = &w.lives[1];
    uint32_t found[CACHE_N_TIERS];

    (void)state;
    open_world(&w, &kind);
    make_many(&w, a, ends[0], 0);
    make_many(&w, b, ends[1], 1000);
    for (uint32_t round = 0; round < 4; round++) {
        struct life *l = round % 2 ? b : a;

        if (round < 2) {
            run_life(&w, l, N_MANY);
        } else {
            while (cache_poll(w.cache, 0)) /* a block in transfer cannot be evicted */
                ;
            l->n_tokens = cache_seq_attach(l->seq, found);
            assert_int_equal(l->n_tokens, N_MANY);
            assert_int_equal(found[CACHE_HOST], N_MANY);
        }
        cache_check(w.cache);
        read_kv(&w, l);
        cache_seq_drop(l->seq);
        l->n_tokens = 0;
    }
    close_world(&w, &kind);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_lost_and_nothing_is_wrong),
        cmocka_unit_test(any_one_copy_may_fail),
        cmocka_unit_test(a_tail_in_use_is_not_taken),
        cmocka_unit_test(a_block_on_its_way_is_waited_for),
        cmocka_unit_test(more_copies_at_once_than_are_watched),
    };
    struct device_config config = {.kind = DEVICE_REF,
                                   .n_threads = 1,
                                   .max_rows = 1,
                                   .max_k = 1,
                                   .max_heads = 1,
                                   .max_head_dim = 2};

#ifdef TEST_ON_GPU
    config.kind = DEVICE_CUDA;
#endif
    if (hash_init() != OK || device_open(&device, &config, NULL) != OK)
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return rc;
}
