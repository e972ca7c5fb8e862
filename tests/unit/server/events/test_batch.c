/* test_batch.c - the bytes of a batch equal those that Python's msgpack makes of the same values.
 * */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "server/events/batch.h"
#include "tests/unit/test.h"

#define N_TOKENS 8u
#define HASH(n) ((UINT64_C(1) << 62) + (n))
#define HEX_BYTES_MAX 4096

/* msgpack.packb() of [1700000000.5, EVENTS, 0] begins and ends so. */
#define HEAD "93cb41d954fc40200000"
#define RANK "00"

/* {"type": "BlockStored", "block_hashes": [HASH(1), HASH(2)], "parent_block_hash": None,
 *  "token_ids": IDS + reversed(IDS), "block_size": 8, "lora_id": None, "medium": "GPU",
 *  "lora_name": None, "extra_keys": [["1122334455667788"], None], "group_idx": 0,
 *  "kv_cache_spec_kind": "full_attention"} */
#define STORED_FIRST                                                                               \
    "8ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cf40000000000000"             \
    "01cf4000000000000002b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473dc"             \
    "0010017fcc80ccffcd0100cdffffce00010000ce007fffffce007fffffce00010000cdffffcd0100"             \
    "ccffcc807f01aa626c6f636b5f73697a6508a76c6f72615f6964c0a66d656469756da3475055a96c"             \
    "6f72615f6e616d65c0aa65787472615f6b6579739291b031313232333334343535363637373838c0"             \
    "a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f61747465"             \
    "6e74696f6e"
/* The same with "block_hashes": [HASH(3)], "parent_block_hash": HASH(2), "token_ids": IDS,
 * "medium": "CPU", "extra_keys": [None] */
#define STORED_LATER                                                                               \
    "8ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf40000000000000"             \
    "03b1706172656e745f626c6f636b5f68617368cf4000000000000002a9746f6b656e5f6964739801"             \
    "7fcc80ccffcd0100cdffffce00010000ce007fffffaa626c6f636b5f73697a6508a76c6f72615f69"             \
    "64c0a66d656469756da3435055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a96772"             \
    "6f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e7469"             \
    "6f6e"
/* {"type": "BlockRemoved", "block_hashes": [HASH(3), HASH(1)], "medium": "DISK", "group_idx": 0} */
#define REMOVED                                                                                    \
    "84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657392cf400000000000"             \
    "0003cf4000000000000001a66d656469756da44449534ba967726f75705f69647800"
/* {"type": "AllBlocksCleared"} */
#define CLEARED "81a474797065b0416c6c426c6f636b73436c6561726564"

static const uint32_t ids[N_TOKENS] = {1, 127, 128, 255, 256, 65535, 65536, 8388607};
static const uint32_t reversed[N_TOKENS] = {8388607, 65536, 65535, 256, 255, 128, 127, 1};

static void store(struct batch *b, uint32_t tier, uint64_t hash, uint64_t parent, uint64_t salt,
                  const uint32_t *tokens)
{
    static uint64_t path_salt;

    path_salt = parent == 0 ? salt : path_salt;
    batch_stored(b, tier, &(struct blocks_block){hash, parent, salt, path_salt, tokens});
}

static void assert_packed(struct batch *b, const char *hex)
{
    static char found[HEX_BYTES_MAX];

    assert_ok(batch_pack(b, 1700000000.5));
    assert_true(2 * b->packed.len + 1 <= sizeof found);
    hash_hex(found, (const uint8_t *)b->packed.data, b->packed.len);
    assert_string_equal(found, hex);
}

static void each_event_has_the_bytes_of_pythons_msgpack(void **state)
{
    struct batch b;

    (void)state;
    batch_init(&b, N_TOKENS, NULL, NULL);
    store(&b, CACHE_DEVICE, HASH(1), 0, UINT64_C(0x1122334455667788), ids);
    store(&b, CACHE_DEVICE, HASH(2), HASH(1), 0, reversed);
    store(&b, CACHE_HOST, HASH(3), HASH(2), 0, ids);
    batch_removed(&b, CACHE_DISK, HASH(3));
    batch_removed(&b, CACHE_DISK, HASH(1));
    batch_cleared(&b);
    assert_int_equal(batch_n_blocks(&b), 5);
    assert_packed(&b, HEAD "94" STORED_FIRST STORED_LATER REMOVED CLEARED RANK);
    assert_true(batch_is_empty(&b));
    batch_cleared(&b);
    assert_packed(&b, HEAD "91" CLEARED RANK);
    batch_fini(&b);
}

/* The number of events of a batch with fewer than 16. */
static unsigned n_events(struct batch *b)
{
    assert_ok(batch_pack(b, 0));
    return (unsigned char)b->packed.data[10] & 15u;
}

static void only_blocks_of_one_tier_that_follow_each_other_share_an_event(void **state)
{
    struct batch b;

    (void)state;
    batch_init(&b, N_TOKENS, NULL, NULL);
    store(&b, CACHE_DEVICE, HASH(1), 0, 0, ids);
    store(&b, CACHE_DEVICE, HASH(2), HASH(1), 0, ids); /* one event */
    store(&b, CACHE_DEVICE, HASH(3), HASH(1), 0, ids); /* a sibling */
    store(&b, CACHE_DEVICE, HASH(4), 0, 0, ids);       /* another prompt */
    batch_removed(&b, CACHE_DEVICE, HASH(4));
    batch_removed(&b, CACHE_HOST, HASH(4));
    assert_int_equal(n_events(&b), 5);
    batch_fini(&b);
}

static bool name_it(void *arg, uint64_t salt, struct batch_salt *out)
{
    assert_int_equal(salt, 7);
    snprintf(out->words, sizeof out->words, "%s", (const char *)arg);
    snprintf(out->adapter, sizeof out->adapter, "red");
    return true;
}

static bool is_packed(const struct batch *b, const char *bytes, size_t n)
{
    return memmem(b->packed.data, b->packed.len, bytes, n) != NULL;
}

static void every_block_has_the_name_of_its_adapter(void **state)
{
    struct batch b;
    char words[] = "me";

    (void)state;
    batch_init(&b, N_TOKENS, name_it, words);
    store(&b, CACHE_DEVICE, HASH(1), 0, 7, ids);
    store(&b, CACHE_DEVICE, HASH(2), HASH(1), 0, ids);
    assert_ok(batch_pack(&b, 0));
    assert_true(is_packed(&b, "\xa9lora_name\xa3red", 14));
    assert_true(is_packed(&b,
                          "\xaa"
                          "extra_keys\x92\x92\xa3red\xa2me\x91\xa3red",
                          25));
    words[0] = '\0'; /* no cache_salt */
    store(&b, CACHE_DEVICE, HASH(1), 0, 7, ids);
    assert_ok(batch_pack(&b, 0));
    assert_true(is_packed(&b,
                          "\xaa"
                          "extra_keys\x91\x91\xa3red",
                          17));
    batch_fini(&b);
}

static void long_runs_are_divided(void **state)
{
    struct batch b;

    (void)state;
    batch_init(&b, N_TOKENS, NULL, NULL);
    for (uint64_t i = 1; i <= 2049; i++)
        store(&b, CACHE_DEVICE, HASH(i), i > 1 ? HASH(i - 1) : 0, 0, ids);
    assert_int_equal(n_events(&b), 3);
    batch_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_event_has_the_bytes_of_pythons_msgpack),
        cmocka_unit_test(only_blocks_of_one_tier_that_follow_each_other_share_an_event),
        cmocka_unit_test(every_block_has_the_name_of_its_adapter),
        cmocka_unit_test(long_runs_are_divided),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
