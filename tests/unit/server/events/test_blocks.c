/* test_blocks.c - blocks of the cache become the blocks that a router cuts. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "server/events/blocks.h"
#include "tests/unit/test.h"

#define N_TOKENS 16u /* of a router's block */
#define N_SEEN_MAX 4096u
#define SALT UINT64_C(0x1122334455667788)

/* A router that believes what it is told, and checks that it can. */
struct router {
    struct {
        uint64_t hash, parent, salt;
        uint32_t tier, ids[BLOCKS_TOKENS_MAX];
    } seen[N_SEEN_MAX];
    uint32_t n, n_stored, n_removed, n_cleared;
};

static int find(const struct router *r, uint64_t hash, uint32_t tier)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (r->seen[i].hash == hash && (tier == CACHE_N_TIERS || r->seen[i].tier == tier))
            return (int)i;
    return -1;
}

static void on_stored(void *arg, uint32_t tier, const struct blocks_block *b)
{
    struct router *r = arg;

    assert_true(b->hash != 0 && r->n < N_SEEN_MAX);
    assert_int_equal(find(r, b->hash, tier), -1);
    assert_true(b->parent == 0 || find(r, b->parent, CACHE_N_TIERS) >= 0);
    r->seen[r->n].hash = b->hash;
    r->seen[r->n].parent = b->parent;
    r->seen[r->n].salt = b->salt;
    r->seen[r->n].tier = tier;
    memcpy(r->seen[r->n++].ids, b->ids, N_TOKENS * sizeof *b->ids);
    r->n_stored++;
}

static void on_removed(void *arg, uint32_t tier, uint64_t hash)
{
    struct router *r = arg;
    int at = find(r, hash, tier);

    assert_true(at >= 0);
    r->seen[at] = r->seen[--r->n];
    r->n_removed++;
}

static void on_cleared(void *arg)
{
    struct router *r = arg;

    assert_int_equal(r->n, 0);
    r->n_cleared++;
}

static struct blocks *start(struct router *r)
{
    const struct blocks_sink sink = {on_stored, on_removed, on_cleared, r};
    struct blocks *b;

    memset(r, 0, sizeof *r);
    assert_ok(hash_init());
    assert_ok(blocks_create(&b, N_TOKENS, &sink));
    return b;
}

/* A block of a path: key number no behind key number before; its ids are first, first + 1, ... */
static struct cache_event block(uint32_t no, uint32_t before, uint32_t first, uint32_t n)
{
    struct cache_event e = {
        .kind = CACHE_STORED, .tier = CACHE_DEVICE, .n_tokens = n, .has_ids = true};

    memcpy(e.key.bytes, &no, sizeof no);
    memcpy(e.parent.bytes, &before, sizeof before);
    for (uint32_t i = 0; i < n; i++)
        e.ids[i] = first + i;
    return e;
}

static void send(struct blocks *b, struct cache_event e)
{
    assert_ok(blocks_apply(b, &e));
}

static void take_away(struct blocks *b, struct cache_event e, uint32_t tier)
{
    e.kind = CACHE_REMOVED;
    e.tier = tier;
    e.has_ids = false;
    send(b, e);
}

static void spans_do_not_change_where_a_router_cuts(void **state)
{
    static struct router r;
    struct blocks *b = start(&r);

    (void)state;
    /* 20 + 32 + 5 + 7 tokens: four blocks of 16, whose last tokens lie in blocks 1, 2, 2, 4. */
    send(b, block(1, 0, 0, 20));
    assert_int_equal(r.n, 1);
    send(b, block(2, 1, 20, 32));
    assert_int_equal(r.n, 3);
    send(b, block(3, 2, 52, 5));
    assert_int_equal(r.n, 3);
    send(b, block(4, 3, 57, 7));
    assert_int_equal(r.n, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(r.seen[i].parent, i > 0 ? r.seen[i - 1].hash : 0);
        for (uint32_t k = 0; k < N_TOKENS; k++)
            assert_int_equal(r.seen[i].ids[k], i * N_TOKENS + k);
    }
    take_away(b, block(4, 3, 0, 0), CACHE_DEVICE);
    take_away(b, block(3, 2, 0, 0), CACHE_DEVICE);
    take_away(b, block(2, 1, 0, 0), CACHE_DEVICE);
    assert_int_equal(r.n, 1);
    assert_int_equal(blocks_n(b), 1);
    blocks_destroy(b);
}

static void equal_prompts_with_other_spans_are_one_block(void **state)
{
    static struct router r;
    struct blocks *b = start(&r);

    (void)state;
    send(b, block(1, 0, 0, 32));
    send(b, block(2, 0, 0, 10)); /* the same ids as 10 + 22 tokens */
    send(b, block(3, 2, 10, 22));
    assert_int_equal(r.n_stored, 2);
    take_away(b, block(1, 0, 0, 0), CACHE_DEVICE);
    assert_int_equal(r.n, 2);
    take_away(b, block(3, 2, 0, 0), CACHE_DEVICE);
    assert_int_equal(r.n, 0);
    blocks_destroy(b);
}

static void a_block_is_reported_for_each_tier_and_repeated_events_have_no_effect(void **state)
{
    static struct router r;
    struct blocks *b = start(&r);
    struct cache_event e = block(1, 0, 0, 32);

    (void)state;
    send(b, e);
    send(b, e);
    e.tier = CACHE_HOST;
    e.has_ids = false; /* the ids are known by now */
    send(b, e);
    assert_int_equal(r.n_stored, 4);
    take_away(b, e, CACHE_DEVICE);
    take_away(b, e, CACHE_DEVICE);
    take_away(b, e, CACHE_DISK);
    assert_int_equal(r.n, 2);
    assert_true(r.seen[0].tier == CACHE_HOST && r.seen[1].tier == CACHE_HOST);
    take_away(b, e, CACHE_HOST);
    take_away(b, block(99, 0, 0, 0), CACHE_HOST);
    assert_int_equal(r.n, 0);
    blocks_destroy(b);
}

static void the_salt_belongs_to_the_first_block_that_is_not_public(void **state)
{
    static struct router r;
    struct blocks *b = start(&r);
    struct cache_event open = block(1, 0, 0, 20), mine = block(2, 1, 20, 32),
                       other = block(3, 1, 20, 32);

    (void)state;
    open.is_public = true;
    open.salt = mine.salt = SALT;
    other.salt = SALT + 1;
    send(b, open);
    send(b, mine);
    send(b, other);
    assert_int_equal(r.n, 5);
    assert_int_equal(r.seen[0].salt, 0);
    assert_int_equal(r.seen[1].salt, SALT);
    assert_int_equal(r.seen[2].salt, 0);
    assert_int_equal(r.seen[3].salt, SALT + 1);
    assert_int_equal(r.seen[3].parent, r.seen[0].hash);
    blocks_destroy(b);
}

static void blocks_without_ids_are_skipped_until_the_ids_are_known(void **state)
{
    static struct router r;
    struct blocks *b = start(&r);
    struct cache_event first = block(1, 0, 0, 32), second = block(2, 1, 32, 32),
                       tail = block(3, 2, 64, 16);

    (void)state;
    first.has_ids = false;
    first.tier = CACHE_DISK;
    send(b, first);
    send(b, second);
    tail.is_tail = true;
    send(b, tail);
    assert_int_equal(r.n, 0);
    assert_int_equal(blocks_n_skipped(b), 2);
    first.has_ids = true;
    send(b, first);
    send(b, second);
    assert_int_equal(r.n, 4);
    blocks_destroy(b);
}

static void clearing_removes_each_block_and_then_says_so(void **state)
{
    static struct router r;
    struct blocks *b = start(&r);
    const struct cache_event cleared = {.kind = CACHE_CLEARED};

    (void)state;
    send(b, block(1, 0, 0, 32));
    send(b, block(2, 1, 32, 32));
    send(b, cleared);
    assert_int_equal(r.n_removed, 4);
    assert_int_equal(r.n_cleared, 1);
    assert_int_equal(blocks_n(b), 0);
    struct cache_event again = block(1, 0, 0, 32);
    again.has_ids = false; /* a listing has none */
    send(b, again);
    assert_int_equal(r.n, 2);
    send(b, cleared);
    send(b, cleared); /* block 2 is forgotten by now, and so is block 1 */
    again = block(2, 1, 32, 32);
    again.has_ids = false;
    send(b, again);
    assert_int_equal(r.n, 0);
    blocks_destroy(b);
}

/* --- at random --- */

#define N_NODES 400u

/* Node i is a block behind an earlier node; a tier holds it only if some tier holds that one. */
struct node {
    uint32_t before, pos, n;
    bool in[CACHE_DISK + 1];
};

static uint32_t chance(uint32_t n)
{
    return (uint32_t)rand() % n;
}

static bool is_anywhere(const struct node *n)
{
    return n->in[CACHE_DEVICE] || n->in[CACHE_HOST] || n->in[CACHE_DISK];
}

static bool has_child(const struct node *nodes, uint32_t no)
{
    for (uint32_t i = no + 1; i < N_NODES; i++)
        if (nodes[i].before == no && is_anywhere(&nodes[i]))
            return true;
    return false;
}

static void change(struct blocks *b, struct node *nodes, uint32_t no)
{
    struct node *n = &nodes[no];
    uint32_t tier = chance(CACHE_DISK + 1);
    struct cache_event e = block(no, n->before, no * 64, n->n);

    e.tier = tier;
    if (!n->in[tier] && (n->before == 0 || is_anywhere(&nodes[n->before]))) {
        n->in[tier] = true;
        send(b, e);
    } else if (n->in[tier]) {
        n->in[tier] = false;
        if (!is_anywhere(n) && has_child(nodes, no))
            n->in[tier] = true; /* nodes behind it are there */
        else
            take_away(b, e, tier);
    }
}

/* Whole router's blocks whose last token lies in blocks that are there. */
static uint32_t count_expected(const struct node *nodes)
{
    uint32_t sum = 0;

    for (uint32_t i = 1; i < N_NODES; i++)
        for (uint32_t t = 0; t <= CACHE_DISK; t++)
            if (nodes[i].in[t])
                sum += (nodes[i].pos + nodes[i].n) / N_TOKENS - nodes[i].pos / N_TOKENS;
    return sum;
}

static void a_router_knows_exactly_what_is_held_after_random_changes(void **state)
{
    static struct router r;
    static struct node nodes[N_NODES];
    struct blocks *b = start(&r);

    (void)state;
    srand(1);
    memset(nodes, 0, sizeof nodes);
    for (uint32_t i = 1; i < N_NODES; i++) {
        struct node *n = &nodes[i];
        n->before = chance(3) ? chance(i) : 0;
        n->n = 1 + chance(KV_BLOCK_TOKENS);
        n->pos = n->before ? nodes[n->before].pos + nodes[n->before].n : 0;
    }
    for (uint32_t step = 0; step < 40000; step++)
        change(b, nodes, 1 + chance(N_NODES - 1));
    assert_int_equal(r.n, count_expected(nodes));
    assert_int_equal(blocks_n(b), r.n);
    assert_ok(blocks_repeat(b));
    assert_int_equal(r.n_cleared, 1);
    assert_int_equal(r.n, count_expected(nodes));
    for (uint32_t i = N_NODES - 1; i > 0; i--)
        for (uint32_t t = 0; t <= CACHE_DISK; t++)
            take_away(b, block(i, 0, 0, 0), t);
    assert_int_equal(r.n, 0);
    assert_int_equal(r.n_stored, r.n_removed);
    blocks_destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_do_not_change_where_a_router_cuts),
        cmocka_unit_test(equal_prompts_with_other_spans_are_one_block),
        cmocka_unit_test(a_block_is_reported_for_each_tier_and_repeated_events_have_no_effect),
        cmocka_unit_test(the_salt_belongs_to_the_first_block_that_is_not_public),
        cmocka_unit_test(blocks_without_ids_are_skipped_until_the_ids_are_known),
        cmocka_unit_test(clearing_removes_each_block_and_then_says_so),
        cmocka_unit_test(a_router_knows_exactly_what_is_held_after_random_changes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
