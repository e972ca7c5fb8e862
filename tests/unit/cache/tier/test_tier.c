/* test_tier.c - every tier keeps the written bytes, reserves a block for one owner at a time, and
 * reports when a move ends. */
#include "tests/unit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "cache/disk/disk_format.h"
#include "cache/tier/tier.h"
#include "kernels/device.h"

#define BLOCK_BYTES 5000u
#define N_BLOCKS 16u
#define N_EXTENTS 64u

static struct device *device;
static uint8_t fingerprint[KV_FINGERPRINT_BYTES] = {7};
static char disk_path[64];

/* --- tiers --- */

static struct tier *open_device_tier(bool is_separate)
{
    struct tier_device_config config = {.group = device_group_of(device),
                                        .block_bytes = BLOCK_BYTES,
                                        .n_blocks = N_BLOCKS,
                                        .n_shared = N_BLOCKS,
                                        .is_separate = is_separate,
                                        .has_other_tiers = true};
    struct tier *t;

    assert_ok(tier_device_open(&t, &config));
    return t;
}

static struct tier *open_disk_tier(void)
{
    struct tier_disk_config config = {.device = device,
                                      .block_bytes = BLOCK_BYTES,
                                      .path = disk_path,
                                      .n_bytes = disk_table_bytes(N_EXTENTS) +
                                                 N_EXTENTS * disk_extent_bytes(BLOCK_BYTES) +
                                                 DISK_PAGE_BYTES,
                                      .fingerprint = fingerprint,
                                      .segment_tokens = KV_SEGMENT_TOKENS_MAX,
                                      .timeout_ns = UINT64_C(60000000000)};
    struct tier *t;

    assert_ok(tier_disk_open(&t, &config, NULL));
    return t;
}

/* Poll until a move ends. */
static struct tier_done wait_done(struct tier *t)
{
    struct tier_done done;

    while (tier_poll(t, &done, 1) == 0)
        assert_true(tier_is_busy(t));
    return done;
}

static void fill(unsigned char *memory, uint32_t no)
{
    for (uint32_t i = 0; i < BLOCK_BYTES; i++)
        memory[i] = (unsigned char)(no * 31 + i % 251);
}

static void assert_filled(const unsigned char *memory, uint32_t no)
{
    unsigned char wanted[BLOCK_BYTES];

    fill(wanted, no);
    assert_memory_equal(memory, wanted, BLOCK_BYTES);
}

/* Write n blocks from the test's memory and read them back. */
static void write_and_read(struct tier *t, const uint32_t *blocks, uint32_t n)
{
    static unsigned char memory[TIER_MOVE_BLOCKS_MAX][BLOCK_BYTES];
    const void *from[TIER_MOVE_BLOCKS_MAX];
    void *to[TIER_MOVE_BLOCKS_MAX];

    for (uint32_t i = 0; i < n; i++) {
        fill(memory[i], blocks[i]);
        from[i] = to[i] = memory[i];
    }
    assert_ok(tier_write(t, blocks, from, NULL, n, 1));
    if (!tier_is_addressable(t)) {
        struct tier_done done = wait_done(t);
        assert_true(done.is_write && done.status == OK && done.tag == 1 && done.n == n);
    }
    memset(memory, 0, sizeof memory);
    assert_ok(tier_read(t, blocks, to, n, false, 2));
    if (!tier_is_addressable(t)) {
        struct tier_done done = wait_done(t);
        assert_true(!done.is_write && done.status == OK && done.tag == 2);
    }
    for (uint32_t i = 0; i < n; i++)
        assert_filled(memory[i], blocks[i]);
}

/* --- memory --- */

static void check_memory_tier(struct tier *t)
{
    uint32_t blocks[N_BLOCKS], again[N_BLOCKS], more;

    assert_int_equal(tier_n_free(t), N_BLOCKS);
    assert_int_equal(tier_capacity(t), N_BLOCKS);
    assert_true(tier_reserve(t, blocks, N_BLOCKS - 1));
    assert_false(tier_reserve(t, again, 2)); /* all or nothing */
    assert_int_equal(tier_n_free(t), 1);
    assert_true(tier_reserve(t, &more, 1));
    for (uint32_t i = 0; i + 1 < N_BLOCKS; i++)
        assert_int_not_equal(blocks[i], more);
    tier_unreserve(t, &more, 1);
    tier_unreserve(t, blocks, N_BLOCKS - 1);
    assert_true(tier_reserve(t, again, N_BLOCKS - 1));
    assert_memory_equal(again, blocks, (N_BLOCKS - 1) * sizeof *blocks); /* in the order as if never
                                                                            reserved */
    write_and_read(t, again, TIER_MOVE_BLOCKS_MAX);
    tier_drop(t, again, N_BLOCKS - 1, false);
    assert_int_equal(tier_n_free(t), N_BLOCKS);
    assert_int_equal(tier_n_free_soon(t), N_BLOCKS);
}

static void memory_tiers_keep_what_was_written(void **state)
{
    struct tier *separate = open_device_tier(true), *addressable = open_device_tier(false), *host;

    (void)state;
    check_memory_tier(separate);
    check_memory_tier(addressable);
    assert_ok(tier_host_open(&host, device, NULL, BLOCK_BYTES, N_BLOCKS));
    check_memory_tier(host);
    tier_close(host);
    assert_ok(tier_host_open(&host, device, addressable, BLOCK_BYTES, N_BLOCKS));
    check_memory_tier(host);
    tier_close(host);
    tier_close(addressable);
    tier_close(separate);
}

static void shared_memory_is_two_sets_of_blocks(void **state)
{
    struct tier *t = open_device_tier(false), *host;
    uint32_t a[N_BLOCKS], b[N_BLOCKS];

    (void)state;
    assert_ok(tier_host_open(&host, device, t, BLOCK_BYTES, N_BLOCKS));
    assert_true(tier_reserve(t, a, N_BLOCKS) && tier_reserve(host, b, N_BLOCKS));
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        fill(tier_memory(t, a[i]), a[i]);
        fill(tier_memory(host, b[i]), b[i]);
    }
    /* The tiers exchange half of their block numbers; every block still has its content. */
    tier_drop(t, b, N_BLOCKS / 2, false);
    tier_drop(host, a, N_BLOCKS / 2, false);
    assert_true(tier_reserve(t, b, N_BLOCKS / 2) && tier_reserve(host, a, N_BLOCKS / 2));
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        assert_filled(tier_memory(host, a[i]), a[i]);
        assert_filled(tier_memory(t, b[i]), b[i]);
    }
    tier_close(host);
    tier_close(t);
}

static void blocks_of_a_read_with_drop_are_free_when_it_is_over(void **state)
{
    static unsigned char memory[4][BLOCK_BYTES];
    void *to[4] = {memory[0], memory[1], memory[2], memory[3]};
    struct tier *t = open_device_tier(true);
    uint32_t blocks[4];

    (void)state;
    assert_true(tier_reserve(t, blocks, 4));
    assert_ok(tier_read(t, blocks, to, 2, true, 1));
    assert_ok(tier_read(t, blocks + 2, to + 2, 2, true, 2));
    assert_int_equal(tier_n_free(t), N_BLOCKS - 4);
    assert_int_equal(tier_n_free_soon(t), N_BLOCKS);
    /* Reaping frees the oldest move's blocks before the move ends; the end then frees no block
     * again. */
    assert_true(tier_reap(t));
    assert_int_equal(tier_n_free(t), N_BLOCKS - 2);
    tier_wait(t);
    assert_int_equal(wait_done(t).tag, 1);
    assert_int_equal(tier_n_free(t), N_BLOCKS - 2);
    assert_int_equal(wait_done(t).tag, 2);
    assert_int_equal(tier_n_free(t), N_BLOCKS);
    assert_false(tier_reap(t));
    assert_false(tier_is_busy(t));
    tier_close(t);
}

static void too_many_moves_are_refused_and_end_in_order(void **state)
{
    static unsigned char memory[BLOCK_BYTES];
    struct tier *t = open_device_tier(true);
    uint64_t n = 0;
    uint32_t block;
    void *to = memory;

    (void)state;
    assert_true(tier_reserve(t, &block, 1));
    while (tier_can_move(t))
        assert_ok(tier_read(t, &block, &to, 1, false, ++n));
    assert_int_equal(tier_read(t, &block, &to, 1, false, n + 1), ERR_BUSY);
    for (uint64_t i = 1; i <= n; i++)
        assert_int_equal(wait_done(t).tag, i);
    tier_close(t);
}

/* --- disk --- */

static void look_at_all(struct tier *t, struct tier_record *records, uint32_t *n_records)
{
    struct tier_record r;

    *n_records = 0;
    for (uint32_t i = tier_n_blocks(t); i-- > 0;) {
        enum tier_found found = tier_look(t, i, &r);

        assert_true(found == TIER_NOTHING || found == TIER_RECORD);
        if (found == TIER_RECORD)
            records[i] = r;
        *n_records += found == TIER_RECORD;
    }
}

/* A record with a correct key, because the disk tier checks it. */
static struct tier_record a_record(uint32_t no)
{
    struct tier_record r = {.n_tokens = KV_BLOCK_TOKENS, .n_uses = 3, .starts_segment = true};
    uint8_t domain[KV_DOMAIN_BYTES];

    for (uint32_t i = 0; i < KV_BLOCK_TOKENS; i++)
        r.ids[i] = no * 100 + i;
    key_domain(domain, fingerprint, &r.scope);
    key_of_block(&r.key, domain, &r.parent, true, r.ids, r.n_tokens);
    return r;
}

static void a_disk_tier_keeps_blocks_and_records_beyond_its_end(void **state)
{
    static struct tier_record records[N_EXTENTS], found[N_EXTENTS];
    void *buffers[3];
    const void *from[3];
    uint32_t blocks[3], n_found;
    struct tier *t = open_disk_tier();

    (void)state;
    look_at_all(t, found, &n_found);
    assert_int_equal(n_found, 0);
    assert_true(tier_n_free(t) == tier_n_blocks(t) && tier_capacity(t) < tier_n_blocks(t));
    assert_true(tier_stage(t, buffers, 3) && tier_reserve(t, blocks, 3));
    for (uint32_t i = 0; i < 3; i++) {
        records[i] = a_record(i + 1);
        fill(buffers[i], blocks[i]);
        from[i] = buffers[i];
    }
    assert_ok(tier_write(t, blocks, from, records, 3, 9));
    struct tier_done done = wait_done(t);
    assert_true(done.is_write && done.status == OK && done.tag == 9 && done.n == 3);
    assert_int_equal(tier_n_free_buffers(t), tier_n_buffers(t)); /* the tier released them */
    tier_close(t);

    t = open_disk_tier();
    look_at_all(t, found, &n_found);
    assert_int_equal(n_found, 3);
    assert_true(tier_stage(t, buffers, 3));
    assert_ok(tier_read(t, blocks, buffers, 3, false, 4));
    done = wait_done(t);
    assert_true(!done.is_write && done.status == OK && done.tag == 4);
    for (uint32_t i = 0; i < 3; i++) {
        assert_filled(buffers[i], blocks[i]);
        assert_memory_equal(&found[blocks[i]].key, &records[i].key, sizeof records[i].key);
        assert_memory_equal(found[blocks[i]].ids, records[i].ids, sizeof records[i].ids);
        assert_true(found[blocks[i]].n_uses == 3 && found[blocks[i]].starts_segment);
    }
    tier_unstage(t, buffers, 3);
    /* A dropped block is free only after its record was erased. */
    uint32_t n_free = tier_n_free(t);
    tier_drop(t, blocks, 3, true);
    assert_true(tier_n_free(t) == n_free && tier_n_free_soon(t) == n_free + 3);
    while (tier_is_busy(t))
        assert_int_equal(tier_poll(t, &done, 1), 0);
    assert_int_equal(tier_n_free(t), n_free + 3);
    tier_close(t);

    t = open_disk_tier();
    look_at_all(t, found, &n_found);
    assert_int_equal(n_found, 0);
    tier_close(t);
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
    struct device_config config = {.kind = DEVICE_REF, .n_threads = 1, .max_rows = 1};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_tiers_keep_what_was_written),
        cmocka_unit_test(shared_memory_is_two_sets_of_blocks),
        cmocka_unit_test(blocks_of_a_read_with_drop_are_free_when_it_is_over),
        cmocka_unit_test(too_many_moves_are_refused_and_end_in_order),
        cmocka_unit_test_setup_teardown(a_disk_tier_keeps_blocks_and_records_beyond_its_end,
                                        make_folder, remove_folder),
    };

    if (device_open(&device, &config, NULL) != OK)
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(device);
    return rc;
}
