/* The index of cached blocks, as other threads read it. */
#include "cache/tree/key_index.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "cache/tree/knowledge_tree.h"
#include "tests/unit/test.h"

#define N_KEYS 4000u

static struct kv_key key_of(uint32_t i)
{
    struct kv_key key;

    for (uint32_t k = 0; k < sizeof key.bytes / 4; k++) {
        uint32_t word = rng_u32(i, k);
        memcpy(key.bytes + 4 * k, &word, 4);
    }
    return key;
}

static uint32_t count(const struct key_index *x, uint32_t from, uint32_t to)
{
    uint32_t n = 0;

    for (uint32_t i = from; i < to; i++) {
        struct kv_key key = key_of(i);
        n += key_index_has(x, &key);
    }
    return n;
}

static void an_added_key_stays_until_it_is_removed(void **state)
{
    struct key_index *x;

    (void)state;
    assert_ok(key_index_create(&x, N_KEYS));
    for (uint32_t i = 0; i < N_KEYS; i++) {
        struct kv_key key = key_of(i);
        key_index_add(x, &key);
        key_index_add(x, &key);
    }
    assert_true(count(x, 0, N_KEYS) > N_KEYS * 99 / 100); /* a full bucket drops keys */
    assert_int_equal(count(x, N_KEYS, 2 * N_KEYS), 0);
    for (uint32_t i = 0; i < N_KEYS; i += 2) {
        struct kv_key key = key_of(i);
        key_index_remove(x, &key);
    }
    for (uint32_t i = 0; i < N_KEYS; i += 2)
        assert_int_equal(count(x, i, i + 1), 0);
    assert_true(count(x, 0, N_KEYS) > N_KEYS / 2 * 99 / 100);
    key_index_destroy(x);
}

static void an_index_that_is_not_there_knows_nothing(void **state)
{
    struct kv_key key = key_of(1);

    (void)state;
    key_index_add(NULL, &key);
    key_index_remove(NULL, &key);
    assert_false(key_index_has(NULL, &key));
    assert_int_equal(key_index_memory_bytes(NULL), 0);
    key_index_destroy(NULL);
}

/* Blocks enter the index with their node, stay when it is split, and leave with it. */
static void the_index_follows_the_tree(void **state)
{
    struct kv_key keys[6];
    uint32_t slots[6] = {0, 1, 2, 3, 4, 5}, node, more, upper;
    struct key_index *x;
    struct ktree *t;

    (void)state;
    for (uint32_t i = 0; i < 6; i++)
        keys[i] = key_of(i);
    assert_ok(key_index_create(&x, 100));
    assert_ok(ktree_create(&t, 10, 10, 1));
    ktree_share_keys(t, x);
    assert_ok(ktree_add(t, KTREE_ROOT, 0, 0, keys, slots, 3, &node));
    assert_int_equal(count(x, 0, 6), 3);
    assert_ok(ktree_extend(t, node, 0, keys + 3, slots + 3, 1));
    assert_int_equal(count(x, 0, 4), 4);
    assert_ok(ktree_split(t, node, 2, &upper));
    assert_ok(ktree_add(t, upper, 0, 0, keys + 4, slots + 4, 2, &more));
    assert_int_equal(count(x, 0, 6), 6);
    assert_true(ktree_leave(t, node, 0));
    assert_int_equal(count(x, 0, 2), 2);
    assert_int_equal(count(x, 2, 4), 0);
    assert_int_equal(count(x, 4, 6), 2);
    assert_true(ktree_leave(t, more, 0));
    assert_true(ktree_leave(t, upper, 0));
    assert_int_equal(count(x, 0, 6), 0);
    ktree_destroy(t);
    key_index_destroy(x);
}

struct reader {
    const struct key_index *x;
    atomic_bool stop;
    uint32_t n_missed;
};

static void *read_all(void *arg)
{
    struct reader *r = arg;

    while (!atomic_load(&r->stop))
        r->n_missed += 100 - count(r->x, 0, 100);
    return NULL;
}

/* Under TSan: one thread reads while another one writes. Keys that do not change stay visible. */
static void readers_see_unchanged_keys_while_others_change(void **state)
{
    struct reader r = {0};
    struct key_index *x;
    pthread_t thread;

    (void)state;
    assert_ok(key_index_create(&x, N_KEYS));
    for (uint32_t i = 0; i < 100; i++) {
        struct kv_key key = key_of(i);
        key_index_add(x, &key);
    }
    r.x = x;
    assert_int_equal(pthread_create(&thread, NULL, read_all, &r), 0);
    for (uint32_t i = 100; i < 20000; i++) {
        struct kv_key key = key_of(i), old = key_of(i - 50);
        key_index_add(x, &key);
        if (i >= 150)
            key_index_remove(x, &old);
    }
    atomic_store(&r.stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(r.n_missed, 0);
    key_index_destroy(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_added_key_stays_until_it_is_removed),
        cmocka_unit_test(an_index_that_is_not_there_knows_nothing),
        cmocka_unit_test(the_index_follows_the_tree),
        cmocka_unit_test(readers_see_unchanged_keys_while_others_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
