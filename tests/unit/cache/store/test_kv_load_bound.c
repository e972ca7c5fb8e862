/* test_kv_load_bound.c - the bytes that one poll copies on the engine thread are bounded, however
 * many were read from disk. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <stdlib.h>

#include "cache/disk/disk_format.h"
#include "cache/store/kv_store_slow.h"
#include "tests/unit/cache/cache_prompt.h"

#define N_LAYERS 16
#define N_HEADS 8
#define HEAD_DIM 64
#define BLOCK_BYTES (UINT64_C(2) * KV_BLOCK_TOKENS * N_LAYERS * N_HEADS * HEAD_DIM * sizeof(float))
#define N_BLOCKS 32u
#define N_EXTENTS 96u

/* Bytes copied in memory by the tiers since the last poll; counted by wrapped functions
 * (--wrap). */
static uint64_t n_copied;

enum status __real_tier_write(struct tier *t, const uint32_t *blocks, const void *const *from,
                              const struct tier_record *records, uint32_t n, uint64_t tag);
enum status __wrap_tier_write(struct tier *t, const uint32_t *blocks, const void *const *from,
                              const struct tier_record *records, uint32_t n, uint64_t tag);
enum status __real_tier_read(struct tier *t, const uint32_t *blocks, void *const *to, uint32_t n,
                             bool drop, uint64_t tag);
enum status __wrap_tier_read(struct tier *t, const uint32_t *blocks, void *const *to, uint32_t n,
                             bool drop, uint64_t tag);

enum status __wrap_tier_write(struct tier *t, const uint32_t *blocks, const void *const *from,
                              const struct tier_record *records, uint32_t n, uint64_t tag)
{
    n_copied += tier_is_addressable(t) ? n * BLOCK_BYTES : 0;
    return __real_tier_write(t, blocks, from, records, n, tag);
}

enum status __wrap_tier_read(struct tier *t, const uint32_t *blocks, void *const *to, uint32_t n,
                             bool drop, uint64_t tag)
{
    n_copied += tier_is_addressable(t) ? n * BLOCK_BYTES : 0;
    return __real_tier_read(t, blocks, to, n, drop, tag);
}

static char disk_path[64];

static struct cache *open_cache(uint32_t n_host_blocks, bool always_copy)
{
    static const uint8_t fingerprint[KV_FINGERPRINT_BYTES];
    struct cache_config config = small_config(N_BLOCKS, n_host_blocks);
    struct cache *c;

    config.pool.n_layers = N_LAYERS;
    config.pool.n_kv_heads = N_HEADS;
    config.pool.head_dim = HEAD_DIM;
    config.always_copy = always_copy;
    config.prefetch_share = 1;
    config.disk = (struct cache_disk_config){.path = disk_path,
                                             .n_bytes = disk_table_bytes(N_EXTENTS) +
                                                        N_EXTENTS * disk_extent_bytes(BLOCK_BYTES) +
                                                        DISK_PAGE_BYTES,
                                             .fingerprint = fingerprint,
                                             .min_uses = 1,
                                             .timeout_ns = UINT64_C(60000000000)};
    assert_int_equal(kv_block_bytes(&config.pool), BLOCK_BYTES);
    assert_ok(cache_create(&c, &config, NULL));
    return c;
}

static struct cache_seq *open_seq(struct cache *c, struct prompt *q, const char *text)
{
    struct cache_seq *s;

    prompt_of(q, text);
    assert_ok(cache_seq_open(c, &q->p, q->p.n_ids, &s));
    return s;
}

/* Compute all tokens that are not found. Return the tokens that were found. */
static uint32_t compute(struct cache_seq *s, const struct prompt *q, uint32_t *found)
{
    uint32_t hit = cache_seq_attach(s, found);

    assert_ok(cache_seq_grow(s, q->p.n_ids - hit));
    cache_seq_commit(s, q->p.n_ids - hit);
    return hit;
}

static struct cache_stats stats_of(const struct cache *c)
{
    struct cache_stats stats;

    cache_stats(c, &stats);
    return stats;
}

/* Poll once and check the bytes that it copied, which are returned. `most`: by how much they may
 * exceed the budget. */
static uint64_t poll_once(struct cache *c, uint64_t now_ns, uint64_t most, bool *busy)
{
    n_copied = 0;
    *busy = cache_poll(c, now_ns);
    cache_check(c);
    assert_true(n_copied < COPY_BYTES_PER_POLL + most);
    return n_copied;
}

/* Compute a path and write it to disk. */
static void save(struct cache *c, const char *text)
{
    struct prompt q;
    struct cache_seq *s = open_seq(c, &q, text);
    bool busy = true;

    (void)compute(s, &q, NULL);
    cache_seq_close(s);
    while (busy)
        poll_once(c, 1, KV_SEGMENT_TOKENS_MAX / KV_BLOCK_TOKENS * BLOCK_BYTES, &busy);
    assert_int_equal(stats_of(c).tier[CACHE_DISK].n_cached, 16);
}

static void settle(struct cache *c)
{
    while (cache_poll(c, UINT64_C(1000000000))) {
    }
    cache_check(c);
}

/* Read a path of two segments from disk. Return the polls that copied. */
static uint32_t load(struct cache *c, const char *text)
{
    uint32_t found[CACHE_N_TIERS], n_polls = 0;
    struct prompt q;
    struct cache_seq *s = open_seq(c, &q, text);
    uint64_t now_ns = 1, n_bytes = 0;
    bool busy;

    assert_int_equal(cache_match(s), 0);
    while (cache_seq_is_loading(s)) {
        (void)cache_seq_load(s, true);
        uint64_t n = poll_once(c, now_ns++, BLOCK_BYTES, &busy);
        n_bytes += n;
        n_polls += n > 0;
    }
    assert_int_equal(n_bytes, 16 * BLOCK_BYTES);
    /* All tokens are found: the sequence waited until the last byte was copied. */
    assert_int_equal(compute(s, &q, found), 16 * KV_BLOCK_TOKENS);
    assert_int_equal(found[CACHE_DISK], 16 * KV_BLOCK_TOKENS);
    cache_seq_close(s);
    return n_polls;
}

static void check_bound(uint32_t n_host_blocks, bool always_copy)
{
    static const char text[] = "AAAAAAAAAAAAAAAA"; /* 16 blocks of 2 MiB */
    struct cache *c = open_cache(n_host_blocks, always_copy);

    save(c, text);
    cache_destroy(c);
    c = open_cache(n_host_blocks, always_copy);
    assert_true(load(c, text) >= 16 * BLOCK_BYTES / (COPY_BYTES_PER_POLL + BLOCK_BYTES));
    settle(c);
    cache_destroy(c);
}

static void a_poll_copies_at_most_its_budget(void **state)
{
    (void)state;
    check_bound(0, false); /* from staging buffers to memory in which the host computes */
}

static void a_host_tier_is_filled_within_the_same_bound(void **state)
{
    (void)state;
    check_bound(2 * N_BLOCKS, true);
}

/* A sequence that does not wait computes the blocks that are still being copied; no block leaks. */
static void a_copy_that_no_sequence_waits_for_is_cancelled(void **state)
{
    static const char text[] = "BBBBBBBBBBBBBBBB";
    struct cache *c = open_cache(0, false);
    struct cache_seq *s;
    struct prompt q;
    bool busy;

    (void)state;
    save(c, text);
    cache_destroy(c);
    c = open_cache(0, false);
    s = open_seq(c, &q, text);
    for (uint64_t n = 0; n == 0;) { /* until some blocks of the path are copied, but not all */
        (void)cache_seq_load(s, true);
        n = poll_once(c, 1, BLOCK_BYTES, &busy);
    }
    cache_seq_stop_loading(s);
    assert_int_equal(compute(s, &q, NULL), 0);
    cache_check(c);
    cache_seq_close(s);
    settle(c);
    assert_int_equal(stats_of(c).tier[CACHE_DEVICE].n_in_transfer, 0);
    cache_destroy(c);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(disk_path, sizeof disk_path, "/tmp/tarn-test-XXXXXX");
    return mkdtemp(disk_path) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[96];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", disk_path);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_poll_copies_at_most_its_budget, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_host_tier_is_filled_within_the_same_bound, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_copy_that_no_sequence_waits_for_is_cancelled, make_folder,
                                        remove_folder),
    };

    if (!open_device())
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return rc;
}
