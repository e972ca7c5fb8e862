/* The inventory of an instance: cache events in, changes for the directory out. */
#include "tests/unit/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "cache/pool/pool_inventory.h"
#include "cache/pool/pool_table.h"

#define MS UINT64_C(1000000)

static struct inventory *v;
static struct directory_segment out[64];

static int set_up(void **state)
{
    (void)state;
    return inventory_open(&v, 1u << 16, 1u << 12) == OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    inventory_close(v);
    return 0;
}

static struct kv_key key_of(uint32_t segment, uint32_t depth, uint32_t branch)
{
    struct kv_key k;

    for (uint32_t i = 0; i < KV_KEY_BYTES; i += 4) {
        uint32_t r = rng_u32(segment, depth * 1000u + branch * 100000u + i);
        memcpy(k.bytes + i, &r, 4);
    }
    return k;
}

/* Segment s begins at position 1000 s; its block `depth` of a branch enters or leaves a tier. */
static void event(enum cache_event_kind kind, uint32_t s, uint32_t depth, uint32_t branch,
                  uint32_t tier)
{
    struct cache_event e = {.kind = kind,
                            .tier = tier,
                            .key = key_of(s, depth, depth ? branch : 0),
                            .segment = key_of(s, 0, 0),
                            .pos0 = 1000 * s + 32 * depth,
                            .n_tokens = 32,
                            .starts_segment = depth == 0};
    inventory_take(v, &e, 0);
}

static void clear(uint64_t now)
{
    struct cache_event e = {.kind = CACHE_CLEARED};

    inventory_take(v, &e, now);
}

static uint32_t changes(uint64_t now)
{
    uint32_t n = inventory_changes(v, now, out, 64);

    inventory_announced(v, n);
    return n;
}

static void the_longest_branch_and_the_slowest_of_its_tiers_are_announced(void **state)
{
    struct kv_key first = key_of(1, 0, 0);

    (void)state;
    for (uint32_t d = 0; d < 4; d++)
        event(CACHE_STORED, 1, d, 1, d < 3 ? 0 : 1);
    event(CACHE_STORED, 1, 1, 2, 0); /* a shorter branch */
    assert_int_equal(changes(0), 1);
    assert_memory_equal(out[0].key, first.bytes, sizeof out[0].key);
    assert_int_equal(out[0].n_blocks, 4);
    assert_int_equal(out[0].tier, 1);
    assert_int_equal(inventory_n_segments(v), 1);
    event(CACHE_REMOVED, 1, 3, 1, 1);
    assert_int_equal(changes(0), 1);
    assert_int_equal(out[0].n_blocks, 3);
    assert_int_equal(out[0].tier, 0);
    event(CACHE_REMOVED, 1, 2, 1, 0);
    event(CACHE_REMOVED, 1, 1, 1, 0); /* branch 2 is left */
    assert_int_equal(changes(0), 1);
    assert_int_equal(out[0].n_blocks, 2);
}

static void a_segment_that_left_is_withdrawn_once(void **state)
{
    (void)state;
    event(CACHE_STORED, 1, 0, 0, 0);
    assert_int_equal(changes(0), 1);
    event(CACHE_REMOVED, 1, 0, 0, 0);
    event(CACHE_REMOVED, 1, 0, 0, 0); /* repeated: no effect */
    assert_int_equal(changes(0), 1);
    assert_int_equal(out[0].n_blocks, 0);
    assert_int_equal(changes(0), 0);
    assert_int_equal(inventory_n_segments(v), 0);
}

static void what_came_and_went_is_not_announced(void **state)
{
    (void)state;
    event(CACHE_STORED, 1, 0, 0, 0);
    event(CACHE_REMOVED, 1, 0, 0, 0);
    assert_int_equal(changes(0), 0);
}

static void an_event_that_changes_nothing_for_others_is_no_change(void **state)
{
    (void)state;
    event(CACHE_STORED, 1, 0, 0, 0);
    assert_int_equal(changes(0), 1);
    event(CACHE_STORED, 1, 0, 0, 1); /* a copy in a slower tier */
    event(CACHE_STORED, 1, 0, 0, 0); /* repeated */
    assert_int_equal(changes(0), 0);
}

static void what_lies_on_disk_only_is_announced_as_that(void **state)
{
    struct kv_key second = key_of(1, 1, 0);

    (void)state;
    event(CACHE_STORED, 1, 0, 0, 1);
    event(CACHE_STORED, 1, 1, 0, 2);
    assert_int_equal(changes(0), 1);
    assert_true(out[0].n_blocks == 2 && out[0].tier == DIRECTORY_TIER_DISK);
    assert_true(inventory_has(v, &second));
    event(CACHE_STORED, 1, 1, 0, 1);
    assert_int_equal(changes(0), 1);
    assert_true(out[0].n_blocks == 2 && out[0].tier < DIRECTORY_TIER_DISK);
}

static void children_may_be_listed_before_their_parents(void **state)
{
    (void)state;
    event(CACHE_STORED, 3, 2, 0, 0);
    event(CACHE_STORED, 3, 1, 0, 0);
    assert_int_equal(changes(0), 0);
    event(CACHE_STORED, 3, 0, 0, 0);
    assert_int_equal(changes(0), 1);
    assert_int_equal(out[0].n_blocks, 3);
}

static void what_is_not_taken_is_a_change_again(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < 10; s++)
        event(CACHE_STORED, s, 0, 0, 0);
    assert_int_equal(inventory_changes(v, 0, out, 64), 10);
    inventory_announced(v, 4);
    assert_int_equal(changes(0), 6);
    assert_int_equal(changes(0), 0);
    inventory_announce_all(v);
    assert_int_equal(changes(0), 10);
}

static void after_a_listing_only_what_is_gone_is_withdrawn(void **state)
{
    struct kv_key gone = key_of(2, 0, 0);

    (void)state;
    for (uint32_t s = 0; s < 5; s++)
        for (uint32_t d = 0; d < 3; d++)
            event(CACHE_STORED, s, d, 0, 0);
    assert_int_equal(changes(0), 5);
    clear(1);
    assert_int_equal(changes(2), 0); /* nothing is listed yet, which means nothing */
    for (uint32_t s = 0; s < 5; s++)
        for (uint32_t d = 0; d < 3 && s != 2; d++)
            event(CACHE_STORED, s, d, 0, 0);
    event(CACHE_STORED, 0, 3, 0, 0);
    assert_int_equal(changes(3), 1); /* longer than before */
    assert_int_equal(out[0].n_blocks, 4);
    assert_int_equal(changes(INVENTORY_QUIET_NS + 4), 1);
    assert_memory_equal(out[0].key, gone.bytes, sizeof out[0].key);
    assert_int_equal(out[0].n_blocks, 0);
    assert_int_equal(inventory_n_segments(v), 4);
}

static void the_rolling_pass_visits_every_announced_segment(void **state)
{
    uint32_t n_seen = 0;
    bool seen[40] = {false};

    (void)state;
    for (uint32_t s = 0; s < 40; s++)
        event(CACHE_STORED, s, 0, 0, 0);
    assert_int_equal(inventory_roll(v, out, 7), 0); /* nothing is announced */
    assert_int_equal(changes(0), 40);
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t n = inventory_roll(v, out, 5);
        assert_int_equal(n, 5);
        for (uint32_t k = 0; k < n; k++)
            for (uint32_t s = 0; s < 40; s++) {
                struct kv_key key = key_of(s, 0, 0);
                if (memcmp(out[k].key, key.bytes, sizeof out[k].key) != 0)
                    continue;
                assert_false(seen[s]);
                seen[s] = true;
                n_seen++;
            }
    }
    assert_int_equal(n_seen, 40);
}

static void news_about_replicas_come_once(void **state)
{
    struct kv_key k = key_of(1, 0, 0);

    (void)state;
    event(CACHE_STORED, 1, 0, 0, 0);
    assert_int_equal(changes(0), 1);
    assert_true(inventory_set_replica(v, k.bytes, false));
    assert_false(inventory_set_replica(v, k.bytes, false));
    assert_true(inventory_set_replica(v, k.bytes, true));
    inventory_forget_replica(v, k.bytes);
    assert_true(inventory_set_replica(v, k.bytes, true));
    k = key_of(2, 0, 0);
    assert_false(inventory_set_replica(v, k.bytes, true)); /* not here */
}

/* Random events against a plain array of blocks; a directory that is kept by changes alone is
 * equal to it. */
static void the_directory_follows_random_events(void **state)
{
    enum { N_SEGMENTS = 50, N_DEPTHS = 8, N_EVENTS = 40000 };
    static uint8_t tiers[N_SEGMENTS][N_DEPTHS];
    static struct directory_segment known[N_SEGMENTS];

    (void)state;
    for (uint32_t i = 0; i < N_EVENTS; i++) {
        uint32_t s = rng_u32(5, i * 4u) % N_SEGMENTS, t = rng_u32(5, i * 4u + 1) % 3, d = 0;
        while (d < N_DEPTHS && tiers[s][d])
            d++; /* the first depth that is not here */
        if (rng_u32(5, i * 4u + 2) % 2 && d < N_DEPTHS) {
            tiers[s][d] |= (uint8_t)(1u << t);
            event(CACHE_STORED, s, d, 0, t);
        } else if (d > 0 && (tiers[s][d - 1] & 1u << t)) {
            tiers[s][d - 1] &= (uint8_t) ~(1u << t);
            event(CACHE_REMOVED, s, d - 1, 0, t);
        }
        if (i % 7)
            continue;
        uint32_t n = changes(0);
        for (uint32_t k = 0; k < n; k++)
            for (uint32_t j = 0; j < N_SEGMENTS; j++) {
                struct kv_key key = key_of(j, 0, 0);
                if (memcmp(out[k].key, key.bytes, sizeof out[k].key) == 0)
                    known[j] = out[k];
            }
        for (uint32_t j = 0; j < N_SEGMENTS; j++) {
            uint32_t n_blocks = 0, tier = 0;
            while (n_blocks < N_DEPTHS && tiers[j][n_blocks]) {
                uint32_t fastest = (uint32_t)__builtin_ctz(tiers[j][n_blocks++]);
                tier = fastest > tier ? fastest : tier;
            }
            assert_int_equal(known[j].n_blocks, n_blocks);
            if (n_blocks)
                assert_int_equal(known[j].tier, tier);
        }
    }
}

/* --- the table --- */

static void a_table_finds_what_is_in_it(void **state)
{
    enum { N = 3000 };
    struct pool_table t;
    struct entry {
        struct pool_item item;
        uint32_t value;
    };
    static bool here[N];

    (void)state;
    pool_table_init(&t, sizeof(struct entry), 2000);
    for (uint32_t i = 0; i < 60000; i++) {
        uint32_t no = rng_u32(9, i) % N;
        uint8_t key[16] = {0};
        uint32_t home = no / 8; /* neighbours collide */
        memcpy(key, &home, 4);
        memcpy(key + 8, &no, 4);
        struct entry *e = pool_table_find(&t, key);
        assert_int_equal(e != NULL, here[no]);
        if (e) {
            assert_int_equal(e->value, no);
            pool_table_remove(&t, e);
            here[no] = false;
        } else if ((e = pool_table_add(&t, key))) {
            e->value = no;
            here[no] = true;
        } else {
            assert_int_equal(t.n, 2000);
        }
    }
    pool_table_clear(&t);
    assert_int_equal(t.n, 0);
    pool_table_fini(&t);
}

static void what_is_about_to_be_computed_is_announced_and_does_not_lie_here(void **state)
{
    struct kv_key key = key_of(1, 0, 0);

    (void)state;
    event(CACHE_STORED, 1, 0, 0, CACHE_EVENT_COMING);
    event(CACHE_STORED, 1, 1, 0, CACHE_EVENT_COMING);
    assert_int_equal(inventory_changes(v, 0, out, 64), 1);
    assert_true(out[0].n_blocks == 2 && out[0].tier == CACHE_EVENT_COMING);
    inventory_announced(v, 1);
    assert_true(inventory_may_have(v, &key) && !inventory_has(v, &key));
    for (uint32_t i = 0; i < 2; i++) {
        event(CACHE_STORED, 1, i, 0, 0);
        event(CACHE_REMOVED, 1, i, 0, CACHE_EVENT_COMING);
    }
    assert_int_equal(inventory_changes(v, 0, out, 64), 1);
    assert_true(out[0].n_blocks == 2 && out[0].tier == 0);
    assert_true(inventory_has(v, &key));
    event(CACHE_REMOVED, 1, 1, 0, 0);
    event(CACHE_REMOVED, 1, 0, 0, 0);
    assert_false(inventory_may_have(v, &key));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        T(the_longest_branch_and_the_slowest_of_its_tiers_are_announced),
        T(a_segment_that_left_is_withdrawn_once),
        T(what_came_and_went_is_not_announced),
        T(an_event_that_changes_nothing_for_others_is_no_change),
        T(what_lies_on_disk_only_is_announced_as_that),
        T(children_may_be_listed_before_their_parents),
        T(what_is_not_taken_is_a_change_again),
        T(after_a_listing_only_what_is_gone_is_withdrawn),
        T(the_rolling_pass_visits_every_announced_segment),
        T(news_about_replicas_come_once),
        T(the_directory_follows_random_events),
        T(what_is_about_to_be_computed_is_announced_and_does_not_lie_here),
        cmocka_unit_test(a_table_finds_what_is_in_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
