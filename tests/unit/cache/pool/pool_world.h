/* pool_world.h - several pools in one process, over sockets and a directory in memory. The test
 * plays their engines in one thread, and may add a peer of its own making that breaks the rules.
 *
 * Nothing depends on the speed of the machine: WAIT_FOR() turns all engines until a condition
 * holds, and fails only after a minute.
 *
 * Owns    all pools that were opened: world_end().
 * Thread  one, the test's.
 * Errors  assertions of cmocka.
 * Units   blocks, bytes. */
#ifndef TARN_TESTS_UNIT_CACHE_POOL_POOL_WORLD_H
#define TARN_TESTS_UNIT_CACHE_POOL_POOL_WORLD_H

#include "tests/unit/test.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/rng.h"
#include "cache/pool/pool.h"
#include "cache/pool/transport.h"
#include "cache/pool/wire.h"
#include "tests/unit/cache/pool/fake_directory.h"

enum { N_SIDES = 4, N_PATH = 24, N_IN_SEGMENT = 8, BLOCK_BYTES = 8192, N_TAGS = 1024 };
enum { QUERY_FLOATS = 12, TILE_FLOATS = 14, N_LAYERS = 5, N_ATTENDED_MAX = 4096 };

struct side {
    struct pool *pool;
    struct cache_events *events;
    uint64_t id;
    uint32_t n_held;        /* blocks of the path, from the first on */
    uint8_t *memory;        /* [N_PATH * BLOCK_BYTES] */
    bool is_deaf;           /* answers no ask */
    bool lends_near;        /* in the exported memory, to whoever has mapped it */
    uint32_t flags;         /* of its answers: as pool_lend() */
    uint32_t n_near;        /* of its asks: the asker had */
    uint32_t n_tokens_last; /* of the last block that it lends; 0: as many as the others */
    uint32_t n_asks, n_lent, n_returned, n_pulled, n_news, n_offers;
    struct pool_news news;
    struct pool_offer offer;
    uint32_t n_done;
    enum status done[N_TAGS]; /* by tag */
    bool is_done[N_TAGS];
    /* Queries of peers. The query thread computes only n_allowed of them, and then waits. */
    _Atomic uint32_t n_allowed, n_begun, n_attended;
    _Atomic bool attend_fails;
    float attended[N_ATTENDED_MAX]; /* first float of each, in order */
};

static struct world {
    struct side sides[N_SIDES];
    struct kv_key keys[N_PATH];
    uint32_t starts[N_PATH / N_IN_SEGMENT];
    void (*more)(void); /* called with every turn */
    const char *kind;   /* of the transport; NULL: tcp */
} world;

/* The KV of block i of the path. */
static inline void world_fill(uint8_t *block, uint32_t i)
{
    for (uint32_t k = 0; k < BLOCK_BYTES; k += 4) {
        uint32_t r = rng_u32(77, i * 100000u + k);
        memcpy(block + k, &r, 4);
    }
}

static inline void world_begin(void)
{
    const char *kind = world.kind;

    memset(&world, 0, sizeof world);
    world.kind = kind;
    fake_directory_reset();
    for (uint32_t i = 0; i < N_PATH; i++)
        for (uint32_t k = 0; k < KV_KEY_BYTES; k++)
            world.keys[i].bytes[k] = (uint8_t)rng_u32(5, i * 32u + k);
    for (uint32_t i = 0; i < N_PATH / N_IN_SEGMENT; i++)
        world.starts[i] = i * N_IN_SEGMENT;
}

static inline struct pool_config side_config(void)
{
    return (struct pool_config){
        .directory = {.url = "redis://x", .instance_ttl_ms = 150, .segment_ttl_s = 3},
        .transport = world.kind ? world.kind : "tcp",
        .listen = "127.0.0.1:0",
        .name = "side",
        .http = "http://side",
        .secret = {1, 2, 3},
        .fingerprint = {9, 9},
        .block_bytes = BLOCK_BYTES,
        .lookup_ms = 20000,
        .pull_ms = 60000};
}

static inline struct side *side_open_with(uint32_t no, struct pool_config c)
{
    struct side *s = &world.sides[no];

    s->id = c.directory.id = 100 + no;
    s->memory = malloc((size_t)N_PATH * BLOCK_BYTES);
    for (uint32_t i = 0; i < N_PATH; i++)
        world_fill(s->memory + (size_t)i * BLOCK_BYTES, i);
    assert_ok(cache_events_create(&s->events, 256, false));
    c.events = s->events;
    c.attend_arg = s;
    s->n_allowed = UINT32_MAX;
    assert_ok(pool_open(&s->pool, &c, NULL));
    return s;
}

static inline struct side *side_open(uint32_t no)
{
    return side_open_with(no, side_config());
}

static inline void side_close(struct side *s)
{
    pool_close(s->pool);
    cache_events_destroy(s->events);
    free(s->memory);
    memset(s, 0, sizeof *s);
}

static inline void world_end(void)
{
    for (uint32_t i = 0; i < N_SIDES; i++)
        if (world.sides[i].pool)
            side_close(&world.sides[i]);
}

/* --- queries --- */

/* Fill the tiles of a query. The first float of a row's tile is 24 bits of a checksum of the
 * segment's bytes; the others are made of the row's queries. */
static inline void world_tiles(const struct pool_attend *a)
{
    float *tile = a->tiles;

    for (uint32_t s = 0; s < a->n_segments; s++) {
        const struct pool_segment *g = &a->segments[s];
        uint32_t crc = a->layer * 1000u + g->n_tokens;
        if (g->at + g->n_blocks > a->n_blocks)
            abort();
        for (uint32_t i = 0; i < g->n_blocks; i++)
            crc = hash_crc32c(crc, a->blocks[g->at + i], BLOCK_BYTES);
        for (uint32_t r = 0; r < a->n_rows; r++, tile += TILE_FLOATS) {
            tile[0] = (float)(crc & 0xffffff);
            for (uint32_t k = 1; k < TILE_FLOATS; k++)
                tile[k] = a->q[(size_t)r * QUERY_FLOATS + k % QUERY_FLOATS] + (float)k;
        }
    }
}

static inline enum status side_attend(void *arg, const struct pool_attend *a)
{
    struct side *s = arg;
    uint32_t no = atomic_fetch_add(&s->n_begun, 1);

    while (atomic_load(&s->n_allowed) <= no)
        clock_sleep_ns(100000);
    if (atomic_load(&s->attend_fails))
        return ERR_NOMEM;
    world_tiles(a);
    s->attended[no % N_ATTENDED_MAX] = a->q[0];
    atomic_fetch_add(&s->n_attended, 1);
    return OK;
}

static inline struct pool_config query_config(void)
{
    struct pool_config c = side_config();

    c.attend = side_attend;
    c.query_floats = QUERY_FLOATS;
    c.tile_floats = TILE_FLOATS;
    c.n_layers = N_LAYERS;
    return c;
}

/* --- an engine --- */

static inline void side_send(struct side *s, enum cache_event_kind kind, uint32_t i)
{
    if (i >= N_PATH)
        abort();
    struct cache_event e = {.kind = kind,
                            .key = world.keys[i],
                            .segment = world.keys[i / N_IN_SEGMENT * N_IN_SEGMENT],
                            .pos0 = i * KV_BLOCK_TOKENS,
                            .n_tokens = KV_BLOCK_TOKENS,
                            .starts_segment = i % N_IN_SEGMENT == 0};
    cache_events_send(s->events, &e);
}

/* The side's cache has the first n blocks of the path from now on. */
static inline void side_hold(struct side *s, uint32_t n)
{
    for (; s->n_held < n; s->n_held++)
        side_send(s, CACHE_STORED, s->n_held);
    while (s->n_held > n)
        side_send(s, CACHE_REMOVED, --s->n_held);
}

static inline void side_answer(struct side *s)
{
    struct pool_ask ask;
    struct pool_block blocks[N_PATH];
    uint32_t n = 0;

    if (s->is_deaf || !pool_next_ask(s->pool, &ask))
        return;
    s->n_asks++;
    s->n_near += ask.is_near;
    while (n < ask.n && n < s->n_held && memcmp(&ask.keys[n], &world.keys[n], KV_KEY_BYTES) == 0)
        n++;
    for (uint32_t i = ask.n_there; i < n; i++)
        blocks[i - ask.n_there] =
            (struct pool_block){.memory = s->memory + (size_t)i * BLOCK_BYTES, .n_tokens = 32};
    for (uint32_t i = ask.n_there; i < n && ask.is_near && s->lends_near; i++) {
        struct pool_block *b = &blocks[i - ask.n_there];
        b->crc = hash_crc32c(0, b->memory, BLOCK_BYTES);
        b->place = i;
        b->memory = NULL;
    }
    if (s->n_tokens_last > 0 && n > ask.n_there)
        blocks[n - 1 - ask.n_there].n_tokens = s->n_tokens_last;
    s->n_lent += n > ask.n_there;
    pool_lend(s->pool, ask.lease, blocks, n, s->flags);
}

static inline void side_turn(struct side *s)
{
    uint64_t tag;
    enum status status;
    uint32_t lease;
    bool was_pulled;

    if (cache_events_is_marked(s->events) && cache_events_begin_all(s->events))
        for (uint32_t i = 0; i < s->n_held; i++)
            side_send(s, CACHE_STORED, i);
    side_answer(s);
    while (pool_next_return(s->pool, &lease, &was_pulled))
        s->n_returned++, s->n_pulled += was_pulled;
    while (pool_next_read(s->pool, &tag, &status)) {
        assert_true(tag < N_TAGS && !s->is_done[tag]);
        s->is_done[tag] = true;
        s->done[tag] = status;
        s->n_done++;
    }
    if (pool_next_news(s->pool, &s->news))
        s->n_news++;
    if (s->n_offers == 0 && pool_next_offer(s->pool, &s->offer))
        s->n_offers++;
}

static inline void world_turn(void)
{
    for (uint32_t i = 0; i < N_SIDES; i++)
        if (world.sides[i].pool)
            side_turn(&world.sides[i]);
    if (world.more)
        world.more();
    clock_sleep_ns(100000);
}

#define WAIT_FOR(condition)                                                                        \
    do {                                                                                           \
        uint64_t until_ = clock_now_ns() + UINT64_C(60000000000);                                  \
        while (!(condition)) {                                                                     \
            if (clock_now_ns() > until_)                                                           \
                fail_msg("waited for a minute: %s", #condition);                                   \
            world_turn();                                                                          \
        }                                                                                          \
    } while (0)

/* Whether the directory says what the side holds. */
static inline bool is_announced(const struct side *s)
{
    for (uint32_t i = 0; i < N_PATH; i += N_IN_SEGMENT) {
        uint32_t n = s->n_held > i ? s->n_held - i : 0;
        if (fake_directory_blocks(s->id, &world.keys[i]) != (n < N_IN_SEGMENT ? n : N_IN_SEGMENT))
            return false;
    }
    return true;
}

/* Whether every pool knows so many instances. */
static inline bool all_know(uint32_t n_instances)
{
    struct pool_stats stats;

    for (uint32_t i = 0; i < N_SIDES; i++) {
        if (!world.sides[i].pool)
            continue;
        pool_stats(world.sides[i].pool, &stats);
        if (stats.n_instances != n_instances)
            return false;
    }
    return true;
}

/* A ticket for the whole path. The pool may learn late that the directory answers: try again. */
static inline uint32_t side_lookup(struct side *s, uint32_t n_local)
{
    struct pool_path path = {.keys = world.keys,
                             .n = N_PATH,
                             .starts = world.starts,
                             .n_starts = N_PATH / N_IN_SEGMENT,
                             .n_local = n_local};
    uint32_t ticket;

    WAIT_FOR((ticket = pool_lookup(s->pool, &path)) != POOL_NO_TICKET);
    return ticket;
}

static inline enum pool_look side_look(struct side *s, uint32_t ticket, struct pool_found *found)
{
    WAIT_FOR(pool_look(s->pool, ticket, found) != POOL_LOOKING);
    return pool_look(s->pool, ticket, found);
}

#endif
