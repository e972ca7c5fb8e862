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
    return kv_chain_prompt(&c, ids, n, ends, n_ends, 0, keys);
}

static void a_key_is_the_documented_hash(void **state)
{
    uint32_t ids[32];
    uint8_t message[32 + 3 * 32] = {0}, domain[32], want[32];
    struct kv_key key;

    (void)state;
    for (uint32_t i = 0; i < 32; i++) {
        ids[i] = i * 70001;
        memcpy(message + 32 + 3 * i, &ids[i], 3); /* little-endian machine */
    }
    message[34] |= 0x80; /* starts a segment */
    hash_blake2b(domain, 32, public_scope.bytes, 32, fingerprint, 32);
    hash_blake2b_domain(want, 32, message, sizeof message, domain);
    assert_int_equal(hash_ids(ids, 32, NULL, 0, &public_scope, fingerprint, &key), 1);
    assert_memory_equal(key.bytes, want, 32);
}

/* Computed with Python's hashlib, to test that our library computes BLAKE2b:
 *   fp = b"fingerprint of a model in a test"
 *   d = blake2b(bytes(32), digest_size=32, key=fp).digest()
 *   m = bytes(32) + (5 | 1 << 23).to_bytes(3, "little") + (8388607).to_bytes(3, "little")
 *   blake2b(m, digest_size=32, salt=d[:16], person=d[16:]).hexdigest() */
static void a_key_is_blake2b(void **state)
{
    const uint32_t ids[] = {5, KV_ID_MAX}, end = 2;
    struct kv_key key;
    char hex[65];

    (void)state;
    assert_int_equal(hash_ids(ids, 2, &end, 1, &public_scope, fingerprint, &key), 1);
    hash_hex(hex, key.bytes, 32);
    assert_string_equal(hex, "54c37c8d02357c60835c475d7e26b3d563d81624d8b608cd464528a97a6b75aa");
}

static void keys_do_not_depend_on_what_follows(void **state)
{
    uint32_t ids[1000];
    struct kv_key all[40], some[40];

    (void)state;
    for (uint32_t i = 0; i < 1000; i++)
        ids[i] = rng_u32(3, i) & KV_ID_MAX;
    uint32_t n_all = hash_ids(ids, 1000, NULL, 0, &public_scope, fingerprint, all);
    assert_int_equal(n_all, 1000 / 32);
    for (uint32_t n = 0; n <= 1000; n += 37) {
        uint32_t n_some = hash_ids(ids, n, NULL, 0, &public_scope, fingerprint, some);
        assert_int_equal(n_some, n / 32);
        assert_memory_equal(all, some, n_some * sizeof *all);
    }
}

static void hashing_in_pieces_gives_the_same_keys(void **state)
{
    uint32_t ids[700], ends[] = {45, 300};
    struct kv_key all[40], some[40];
    struct kv_chain c;

    (void)state;
    for (uint32_t i = 0; i < 700; i++)
        ids[i] = rng_u32(4, i) & KV_ID_MAX;
    uint32_t n_all = hash_ids(ids, 700, ends, 2, &public_scope, fingerprint, all);
    for (uint32_t split = 301; split < 700; split += 41) {
        kv_chain_init(&c, fingerprint, &public_scope, KV_SEGMENT_TOKENS_MAX);
        uint32_t n = kv_chain_prompt(&c, ids, split, ends, 2, 0, some);
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
    ids[0] = 0; /* a span boundary sets the segment flag, so only later keys change */
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

#define N_SHARED 300
#define N_MORE 40 /* generated ids after the prompt */

/* Hash spans of 70, 130 and 100 ids, then generated ids. Return the number of keys;
 * *n_public_keys: the number of keys that the first n_public ids close. */
static uint32_t hash_shared(const struct kv_scope *scope, uint32_t n_public, struct kv_key *keys,
                            uint32_t *n_public_keys)
{
    static const uint32_t ends[] = {70, 200, N_SHARED};
    uint32_t ids[N_SHARED + N_MORE];
    struct kv_chain c;

    for (uint32_t i = 0; i < N_SHARED + N_MORE; i++)
        ids[i] = rng_u32(5, i) & KV_ID_MAX;
    kv_chain_init(&c, fingerprint, scope, KV_SEGMENT_TOKENS_MAX);
    uint32_t n = kv_chain_prompt(&c, ids, N_SHARED, ends, 3, n_public, keys);
    for (uint32_t i = N_SHARED; i < N_SHARED + N_MORE; i++)
        n += kv_chain_push(&c, ids[i], &keys[n]);
    *n_public_keys = 0;
    for (uint32_t k = 0, from = 0; k < 3 && ends[k] <= n_public; from = ends[k++])
        *n_public_keys += (ends[k] - from + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    return n;
}

static uint32_t n_equal(const struct kv_key *a, const struct kv_key *b, uint32_t n)
{
    uint32_t same = 0;

    for (uint32_t i = 0; i < n; i++)
        same += memcmp(&a[i], &b[i], sizeof *a) == 0;
    return same;
}

static void two_tenants_share_exactly_the_public_blocks(void **state)
{
    static const uint32_t n_public[] = {0, 70, 200, N_SHARED};
    const struct kv_scope tenants[] = {{{1}}, {{2}}};
    struct kv_key keys[2][20], all_public[20];
    uint32_t n_shared, none;

    (void)state;
    for (int i = 0; i < 4; i++) {
        uint32_t n = hash_shared(&tenants[0], n_public[i], keys[0], &n_shared);
        assert_int_equal(hash_shared(&tenants[1], n_public[i], keys[1], &n_shared), n);
        assert_int_equal(n, 3 + 5 + 4 + N_MORE / KV_BLOCK_TOKENS);
        assert_memory_equal(keys[0], keys[1], n_shared * sizeof *keys[0]);
        assert_int_equal(n_equal(keys[0], keys[1], n), n_shared);
        /* A scope that reads only public blocks finds the same keys. */
        assert_int_equal(hash_shared(&public_scope, 0, all_public, &none), n);
        assert_int_equal(n_equal(keys[0], all_public, n), n_shared);
    }
}

static void blocks_generated_after_a_public_prompt_are_private(void **state)
{
    const struct kv_scope tenants[] = {{{1}}, {{2}}};
    struct kv_key keys[2][20];
    uint32_t n_shared;

    (void)state;
    uint32_t n = hash_shared(&tenants[0], N_SHARED, keys[0], &n_shared);
    hash_shared(&tenants[1], N_SHARED, keys[1], &n_shared);
    assert_int_equal(n_shared, n - 1);
    assert_memory_not_equal(&keys[0][n - 1], &keys[1][n - 1], sizeof keys[0][0]);
}

static void a_salt_separates_private_blocks_only(void **state)
{
    const struct kv_scope plain = {{1}}, salted = {{1, 9}}; /* as account_scope() computes them */
    struct kv_key a[20], b[20];
    uint32_t n_shared;

    (void)state;
    uint32_t n = hash_shared(&plain, 70, a, &n_shared);
    hash_shared(&salted, 70, b, &n_shared);
    assert_int_equal(n_shared, 3);
    assert_int_equal(n_equal(a, b, n), n_shared);
    assert_memory_equal(a, b, n_shared * sizeof *a);
    hash_shared(&plain, 0, a, &n_shared);
    hash_shared(&salted, 0, b, &n_shared);
    assert_int_equal(n_equal(a, b, n), 0);
}

static void the_public_end_changes_all_later_keys(void **state)
{
    const struct kv_scope tenant = {{1}};
    struct kv_key a[20], b[20];
    uint32_t n_a, n_b;

    (void)state;
    /* The same ids and spans with different public ends: keys are equal up to the smaller end, and
     * all later keys differ, so no block is found in another scope. */
    uint32_t n = hash_shared(&tenant, 70, a, &n_a);
    hash_shared(&tenant, 200, b, &n_b);
    assert_true(n_a < n_b);
    assert_memory_equal(a, b, n_a * sizeof *a);
    assert_int_equal(n_equal(a, b, n), n_a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_the_documented_hash),
        cmocka_unit_test(a_key_is_blake2b),
        cmocka_unit_test(keys_do_not_depend_on_what_follows),
        cmocka_unit_test(hashing_in_pieces_gives_the_same_keys),
        cmocka_unit_test(every_part_of_the_message_changes_the_key),
        cmocka_unit_test(a_span_end_closes_the_open_block),
        cmocka_unit_test(two_tenants_share_exactly_the_public_blocks),
        cmocka_unit_test(blocks_generated_after_a_public_prompt_are_private),
        cmocka_unit_test(a_salt_separates_private_blocks_only),
        cmocka_unit_test(the_public_end_changes_all_later_keys),
    };
    if (hash_init() != OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
