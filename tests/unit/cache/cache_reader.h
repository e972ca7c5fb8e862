/* cache_reader.h - a reader of cache events that cannot always keep up, and what it must know.
 *
 * Include it once, behind cache_life.h. Owns its queue: reader_close(). One thread. A failure ends
 * the test. */
#ifndef TARN_TESTS_UNIT_CACHE_READER_H
#define TARN_TESTS_UNIT_CACHE_READER_H

#include "cache/cache_inner.h"
#include "cache/store/kv_store_inner.h"

#define READER_N_EVENTS 64u /* in its queue: a burst overflows it */
#define READER_N_BLOCKS_MAX (1u << 14)

struct reader {
    struct cache_events *events;
    struct map blocks; /* short key -> a bit per tier */
    uint64_t n_stored, n_named, n_cleared;
};

static void reader_open(struct reader *r)
{
    *r = (struct reader){.n_stored = 0};
    assert_ok(cache_events_create(&r->events, READER_N_EVENTS, true));
    assert_ok(map_init(&r->blocks, READER_N_BLOCKS_MAX));
}

static void reader_close(struct reader *r)
{
    cache_events_destroy(r->events);
    map_fini(&r->blocks);
}

/* The ids are those of the key. All prompts of these tests are in the public scope. */
static void check_ids(struct reader *r, const struct cache_event *e)
{
    struct kv_scope scope = {{0}};
    uint8_t domain[KV_DOMAIN_BYTES];
    struct kv_key key;

    key_domain(domain, fingerprint, &scope);
    key_of_block(&key, domain, &e->parent, e->starts_segment, e->ids, e->n_tokens);
    assert_memory_equal(&key, &e->key, sizeof key);
    r->n_named++;
}

static void reader_take(struct reader *r, const struct cache_event *e)
{
    uint32_t tiers = 0;

    if (e->kind == CACHE_CLEARED) {
        map_fini(&r->blocks);
        assert_ok(map_init(&r->blocks, READER_N_BLOCKS_MAX));
        r->n_cleared++;
        return;
    }
    assert_true(e->tier <= CACHE_DISK && e->n_tokens > 0 && !e->is_tail);
    assert_int_equal(e->salt, 0);
    (void)map_get(&r->blocks, short_key(&e->key), &tiers);
    if (e->kind == CACHE_STORED) {
        map_put(&r->blocks, short_key(&e->key), tiers | 1u << e->tier);
        r->n_stored++;
        if (e->has_ids)
            check_ids(r, e);
    } else if ((tiers & ~(1u << e->tier)) != 0) {
        map_put(&r->blocks, short_key(&e->key), tiers & ~(1u << e->tier));
    } else {
        (void)map_remove(&r->blocks, short_key(&e->key));
    }
}

static void reader_take_all(struct reader *r)
{
    struct cache_event e;

    while (cache_events_next(r->events, &e))
        reader_take(r, &e);
}

static void check_node(const struct reader *r, const struct ktree *tree, uint32_t node, uint32_t *n)
{
    struct ktree_node look = ktree_look(tree, node);

    for (uint32_t i = 0; i < look.n_blocks; i++) {
        uint32_t tiers = 0;
        assert_true(map_get(&r->blocks, short_key(ktree_key_at(tree, node, i)), &tiers));
        assert_int_equal(tiers, look.tiers & ((1u << (CACHE_DISK + 1)) - 1));
        (*n)++;
    }
}

/* Read everything, listings included: the reader then knows exactly the tree without its tails. */
static void reader_check(struct reader *r, struct cache *c, uint64_t now_ns)
{
    const struct store *st = c->store;
    const struct store_listing *l = &st->listings[STORE_LIST_ROUTERS];
    uint32_t n = 0;

    if (!l->events)
        return;
    do {
        reader_take_all(r);
        (void)cache_poll(c, now_ns);
    } while (cache_events_is_marked(r->events) || l->next != KTREE_NONE);
    reader_take_all(r);
    for (uint32_t node = ktree_next(st->tree, KTREE_ROOT, KTREE_ROOT); node != KTREE_NONE;
         node = ktree_next(st->tree, node, KTREE_ROOT))
        if (st->info[node].tail_of == KTREE_NONE)
            check_node(r, st->tree, node, &n);
    assert_int_equal(r->blocks.n, n);
}

#endif
