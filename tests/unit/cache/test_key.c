#include "tests/unit/test.h"

#include <string.h>

#include "base/hash.h"
#include "base/rng.h"
#include "cache/cache.h"
#include "cache/key.h"

static uint8_t fingerprint[KV_FINGERPRINT_BYTES] = "fingerprint of a model in a test";
static struct kv_scope public_scope;

static uint32_t hash_ids(const uint32_t *ids, uint32_t n, const uint32_t *ends, uint32_t n_ends,
                         const struct kv_scope *scope, const uint8_t *fp, struct kv_key *keys)
{
    struct kv_chain c;

    kv_chain_init(&c, fp, scope, KV_SEGMENT_TOKENS_MAX);
    return kv_chain_prompt(&c, ids, n, ends, n_ends, keys);
}

static void a_key_is_the_documented_hash(void **state)
{
    uint32_t ids[32];
    uint8_t message[66 + 4 * 32] = {0}, want[32];
    struct kv_key key;

    (void)state;
    message[64] = 1;
    message[65] = 32;
    for (uint32_t i = 0; i < 32; i++) {
        ids[i] = i * 70001;
        memcpy(message + 66 + 4 * i, &ids[i], 4); /* little-endian machine */
    }
    hash_blake2b(want, 32, message, sizeof message, fingerprint, 32);
    assert_int_equal(hash_ids(ids, 32, NULL, 0, &public_scope, fingerprint, &key), 1);
    assert_memory_equal(key.bytes, want, 32);
}

static void keys_do_not_depend_on_what_follows(void **state)
{
    uint32_t ids[1000];
    struct kv_key all[40], some[40];

    (void)state;
    for (uint32_t i = 0; i < 1000; i++)
        ids[i] = rng_u32(3, i);
    uint32_t n_all = hash_ids(ids, 1000, NULL, 0, &public_scope, fingerprint, all);
    assert_int_equal(n_all, 1000 / 32);
    for (uint32_t n = 0; n <= 1000; n += 37) {
        uint32_t n_some = hash_ids(ids, n, NULL, 0, &public_scope, fingerprint, some);
        assert_int_equal(n_some, n / 32);
        assert_memory_equal(all, some, n_some * sizeof *all);
    }
}

static void feeding_on_later_gives_the_same_keys(void **state)
{
    uint32_t ids[700], ends[] = {45, 300};
    struct kv_key all[40], some[40];
    struct kv_chain c;

    (void)state;
    for (uint32_t i = 0; i < 700; i++)
        ids[i] = rng_u32(4, i);
    uint32_t n_all = hash_ids(ids, 700, ends, 2, &public_scope, fingerprint, all);
    for (uint32_t split = 301; split < 700; split += 41) {
        kv_chain_init(&c, fingerprint, &public_scope, KV_SEGMENT_TOKENS_MAX);
        uint32_t n = kv_chain_prompt(&c, ids, split, ends, 2, some);
        for (uint32_t i = split; i < 700; i++)
            n += kv_chain_push(&c, ids[i], &some[n]);
        assert_int_equal(n, n_all);
        assert_memory_equal(all, some, n * sizeof *all);
    }
}

static void every_part_of_the_message_changes_the_key(void **state)
{
    uint32_t ids[64] = {0}, ends[] = {32};
    uint8_t other_fingerprint[KV_FINGERPRINT_BYTES];
    struct kv_scope other_scope = {{1}};
    struct kv_key base[4], keys[4];

    (void)state;
    memcpy(other_fingerprint, fingerprint, sizeof fingerprint);
    other_fingerprint[31] ^= 1;
    hash_ids(ids, 64, NULL, 0, &public_scope, fingerprint, base);
    hash_ids(ids, 64, NULL, 0, &public_scope, other_fingerprint, keys);
    assert_memory_not_equal(base, keys, sizeof *keys);
    hash_ids(ids, 64, NULL, 0, &other_scope, fingerprint, keys);
    assert_memory_not_equal(base, keys, sizeof *keys);
    ids[0] = 1; /* the first block's ids reach the second block's key */
    hash_ids(ids, 64, NULL, 0, &public_scope, fingerprint, keys);
    assert_memory_not_equal(base + 1, keys + 1, sizeof *keys);
    ids[0] = 0; /* a span boundary changes only what comes after it: the segment flag */
    hash_ids(ids, 64, ends, 1, &public_scope, fingerprint, keys);
    assert_memory_equal(base, keys, sizeof *keys);
    assert_memory_not_equal(base + 1, keys + 1, sizeof *keys);
}

static void a_span_end_closes_the_open_block(void **state)
{
    uint32_t ids[100] = {0}, ends[] = {10, 11, 75, 100};
    struct kv_key keys[12];

    (void)state;
    /* blocks: 10 | 1 | 32 32 | 25 */
    assert_int_equal(hash_ids(ids, 100, ends, 4, &public_scope, fingerprint, keys), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_the_documented_hash),
        cmocka_unit_test(keys_do_not_depend_on_what_follows),
        cmocka_unit_test(feeding_on_later_gives_the_same_keys),
        cmocka_unit_test(every_part_of_the_message_changes_the_key),
        cmocka_unit_test(a_span_end_closes_the_open_block),
    };
    if (hash_init() != OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
