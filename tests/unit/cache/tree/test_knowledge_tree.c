#include "tests/unit/test.h"

#include <string.h>

#include "base/rng.h"
#include "cache/tree/knowledge_tree.h"

#define N_PATH_MAX 12

/* A key made like a hash, from the key before it and a token. */
static struct kv_key chain(const struct kv_key *before, uint32_t token)
{
    struct kv_key key = {{0}};
    uint32_t word[4];
    uint64_t seed = 7;

    if (before)
        memcpy(&seed, before->bytes, sizeof seed);
    for (uint32_t i = 0; i < 2; i++) {
        rng_philox(seed, token, i, word);
        memcpy(key.bytes + 16 * i, word, sizeof word);
    }
    return key;
}

static void path_of(struct kv_key *keys, const char *tokens)
{
    for (size_t i = 0; tokens[i]; i++)
        keys[i] = chain(i ? &keys[i - 1] : NULL, (uint32_t)tokens[i]);
}

static struct ktree *make(uint32_t n_nodes, uint32_t n_blocks, uint32_t n_tiers)
{
    struct ktree *t;

    assert_ok(ktree_create(&t, n_nodes, n_blocks, n_tiers));
    return t;
}

static const uint32_t slots[N_PATH_MAX] = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21};

/* Add the blocks of `tokens` from the n-th on below `parent`. */
static uint32_t add(struct ktree *t, uint32_t parent, uint32_t tier, const char *tokens, uint32_t n)
{
    struct kv_key keys[N_PATH_MAX];
    uint32_t node;

    path_of(keys, tokens);
    assert_ok(
        ktree_add(t, parent, 0, tier, keys + n, slots + n, (uint32_t)strlen(tokens) - n, &node));
    ktree_check(t);
    return node;
}

static struct ktree_match match(const struct ktree *t, const char *tokens)
{
    struct kv_key keys[N_PATH_MAX];

    path_of(keys, tokens);
    return ktree_match(t, keys, (uint32_t)strlen(tokens));
}

static void a_path_is_found_block_by_block(void **state)
{
    struct ktree *t = make(8, 16, 1);
    uint32_t preamble = add(t, KTREE_ROOT, 0, "abc", 0), doc = add(t, preamble, 0, "abcde", 3);
    struct ktree_match m = match(t, "abcdef");
    uint32_t got[2];

    (void)state;
    assert_true(m.node == doc && m.n_in_node == 2 && m.n_blocks == 5);
    m = match(t, "abcdx");
    assert_true(m.node == doc && m.n_in_node == 1 && m.n_blocks == 4);
    m = match(t, "ab");
    assert_true(m.node == preamble && m.n_in_node == 2 && m.n_blocks == 2);
    m = match(t, "de"); /* the same tokens at another position have another key */
    assert_true(m.node == KTREE_ROOT && m.n_blocks == 0);
    ktree_slots(t, doc, 0, got, 2);
    assert_true(got[0] == 13 && got[1] == 14);
    assert_int_equal(ktree_look(t, doc).parent, preamble);
    ktree_destroy(t);
}

static void siblings_share_their_leading_blocks(void **state)
{
    struct ktree *t = make(8, 16, 1);
    uint32_t low = add(t, KTREE_ROOT, 0, "abcd", 0), child = add(t, low, 0, "abcdef", 4), up;
    struct ktree_match m = match(t, "abxy");
    struct ktree_stats stats;

    (void)state;
    ktree_pin(t, low);
    assert_true(m.node == low && m.n_in_node == 2);
    assert_ok(ktree_split(t, low, 2, &up));
    ktree_check(t);
    uint32_t other = add(t, up, 0, "abxy", 2);
    assert_int_equal(match(t, "abxy").node, other);
    assert_int_equal(match(t, "abcdef").node, child);
    assert_int_equal(match(t, "abcdef").n_blocks, 6);
    assert_true(ktree_look(t, low).parent == up && ktree_look(t, up).n_children == 2);
    assert_true(ktree_look(t, low).n_pins == 1 && ktree_look(t, up).n_pins == 0);
    ktree_stats(t, &stats);
    assert_true(stats.n_blocks == 8 && stats.n_nodes == 4 && stats.n_pinned == 1);
    ktree_unpin(t, low);
    ktree_destroy(t);
}

static void a_parent_is_never_in_a_slower_tier_than_its_child(void **state)
{
    struct ktree *t = make(8, 16, 3);
    uint32_t a = add(t, KTREE_ROOT, 0, "ab", 0), b = add(t, a, 0, "abcd", 2);

    (void)state;
    ktree_place(t, a, 2, slots);
    assert_false(ktree_can_leave(t, a, 0)); /* its child would be in a faster tier */
    assert_true(ktree_can_leave(t, a, 2));  /* a copy in the slower tier may leave */
    ktree_place(t, b, 1, slots);
    assert_false(ktree_leave(t, b, 0));
    assert_false(ktree_can_leave(t, a, 0)); /* tier 2 would be slower than the child's tier 1 */
    ktree_place(t, a, 1, slots);
    assert_true(ktree_can_leave(t, a, 0));
    assert_false(ktree_leave(t, a, 0));
    ktree_check(t);
    assert_int_equal(match(t, "abcd").n_blocks, 4);
    assert_true(ktree_leave(t, b, 1)); /* in no tier any more: removed */
    assert_int_equal(match(t, "abcd").n_blocks, 2);
    assert_false(ktree_leave(t, a, 1));
    assert_true(ktree_leave(t, a, 2));
    ktree_check(t);
    assert_int_equal(match(t, "abcd").n_blocks, 0);
    ktree_destroy(t);
}

static void a_pin_holds_the_whole_path(void **state)
{
    struct ktree *t = make(8, 16, 2);
    uint32_t a = add(t, KTREE_ROOT, 0, "ab", 0), b = add(t, a, 0, "abcd", 2);

    (void)state;
    ktree_pin(t, b);
    ktree_place(t, a, 1, slots);
    ktree_place(t, b, 1, slots);
    assert_false(ktree_can_leave(t, b, 0));
    assert_false(ktree_can_leave(t, a, 0));
    assert_true(ktree_can_leave(t, b, 1)); /* a pin holds only the tier that is read */
    ktree_unpin(t, b);
    assert_true(ktree_can_leave(t, b, 0));
    ktree_destroy(t);
}

static void a_tail_grows_in_place(void **state)
{
    struct ktree *t = make(8, 5, 1);
    uint32_t a = add(t, KTREE_ROOT, 0, "ab", 0);
    struct kv_key keys[N_PATH_MAX];

    (void)state;
    path_of(keys, "abcdef");
    assert_ok(ktree_extend(t, a, 0, keys + 2, slots + 2, 3));
    assert_int_equal(match(t, "abcdef").n_blocks, 5);
    assert_memory_equal(ktree_key(t, a), &keys[4], sizeof keys[4]);
    assert_int_equal(ktree_extend(t, a, 0, keys + 5, slots + 5, 1), ERR_NO_BLOCKS);
    ktree_check(t);
    ktree_destroy(t);
}

static void without_room_nothing_changes(void **state)
{
    struct ktree *t = make(1, 4, 1);
    uint32_t a = add(t, KTREE_ROOT, 0, "ab", 0), node;
    struct kv_key keys[N_PATH_MAX];

    (void)state;
    path_of(keys, "xyz");
    assert_int_equal(ktree_add(t, KTREE_ROOT, 0, 0, keys, slots, 3, &node), ERR_NO_BLOCKS);
    assert_int_equal(ktree_add(t, a, 0, 0, keys, slots, 1, &node), ERR_NO_BLOCKS); /* no node is
                                                                                      free */
    assert_int_equal(ktree_split(t, a, 1, &node), ERR_NO_BLOCKS);
    ktree_check(t);
    assert_int_equal(match(t, "ab").n_blocks, 2);
    ktree_destroy(t);
}

/* A collision of 64 bits must never be a hit, nor a key below another parent. */
static void colliding_short_keys_are_no_hit(void **state)
{
    struct ktree *t = make(4, 8, 1);
    struct kv_key key = chain(NULL, 1), like = key, path[2] = {key, chain(NULL, 2)};
    uint32_t node;

    (void)state;
    like.bytes[31] ^= 1;
    assert_ok(ktree_add(t, KTREE_ROOT, 0, 0, &key, slots, 1, &node));
    assert_int_equal(ktree_match(t, &like, 1).n_blocks, 0);
    assert_int_equal(ktree_add(t, KTREE_ROOT, 0, 0, &like, slots, 1, &node), ERR_NO_BLOCKS);
    assert_ok(ktree_add(t, KTREE_ROOT, 0, 0, &path[1], slots, 1, &node));
    assert_int_equal(ktree_match(t, path, 2).n_blocks, 1);
    ktree_check(t);
    ktree_destroy(t);
}

static void the_first_key_of_a_node_finds_the_node(void **state)
{
    struct ktree *t = make(8, 16, 1);
    uint32_t a = add(t, KTREE_ROOT, 0, "abcd", 0), b = add(t, a, 0, "abcdef", 4), up;
    struct kv_key keys[N_PATH_MAX], like;

    (void)state;
    path_of(keys, "abcdef");
    assert_int_equal(ktree_find(t, &keys[0]), a);
    assert_int_equal(ktree_find(t, &keys[4]), b);
    assert_int_equal(ktree_find(t, &keys[2]), KTREE_NONE); /* inside a node */
    like = keys[4];
    like.bytes[31] ^= 1; /* equal 64 bits are not an equal key */
    assert_int_equal(ktree_find(t, &like), KTREE_NONE);
    assert_ok(ktree_split(t, a, 2, &up));
    assert_int_equal(ktree_find(t, &keys[0]), up);
    assert_int_equal(ktree_find(t, &keys[2]), a);
    for (uint32_t i = 0; i < 2; i++)
        assert_memory_equal(ktree_key_at(t, a, i), &keys[2 + i], sizeof keys[0]);
    assert_true(ktree_leave(t, b, 0));
    assert_int_equal(ktree_find(t, &keys[4]), KTREE_NONE);
    ktree_destroy(t);
}

static void all_nodes_come_once_and_parents_first(void **state)
{
    struct ktree *t = make(8, 16, 1);
    uint32_t a = add(t, KTREE_ROOT, 0, "ab", 0), b = add(t, a, 0, "abcd", 2);
    uint32_t c = add(t, b, 0, "abcde", 4), d = add(t, a, 0, "abx", 2);
    uint32_t e = add(t, KTREE_ROOT, 0, "z", 0), n = 0;
    uint32_t place[9] = {0};

    (void)state;
    for (uint32_t x = ktree_next(t, KTREE_ROOT, KTREE_ROOT); x != KTREE_NONE;
         x = ktree_next(t, x, KTREE_ROOT)) {
        assert_int_equal(place[x], 0);
        place[x] = ++n;
        assert_true(place[x] > place[ktree_look(t, x).parent]);
    }
    assert_int_equal(n, 5);
    assert_true((place[c] < place[d]) == (place[b] < place[d])); /* blocks below a node follow it at
                                                                    once */
    n = 0;
    for (uint32_t x = ktree_next(t, KTREE_ROOT, KTREE_ROOT); x != KTREE_NONE; n++) {
        assert_true(x == a || x == e);
        x = ktree_next_outside(t, x, KTREE_ROOT);
    }
    assert_int_equal(n, 2);
    assert_int_equal(ktree_next_outside(t, KTREE_ROOT, KTREE_ROOT), KTREE_NONE);
    ktree_destroy(t);
    t = make(1, 1, 1);
    assert_int_equal(ktree_next(t, KTREE_ROOT, KTREE_ROOT), KTREE_NONE);
    ktree_destroy(t);
}

static void a_node_has_the_number_of_blocks_before_it(void **state)
{
    struct ktree *t = make(8, 16, 1);
    uint32_t a = add(t, KTREE_ROOT, 0, "abc", 0), b = add(t, a, 0, "abcde", 3), up;

    (void)state;
    assert_true(ktree_look(t, a).n_before == 0 && ktree_look(t, b).n_before == 3);
    assert_ok(ktree_split(t, a, 1, &up));
    assert_true(ktree_look(t, up).n_before == 0 && ktree_look(t, a).n_before == 1 &&
                ktree_look(t, b).n_before == 3);
    ktree_check(t);
    ktree_destroy(t);
}

static uint32_t n_active(const struct ktree *t)
{
    struct ktree_stats stats;

    ktree_check(t);
    ktree_stats(t, &stats);
    return stats.n_blocks_active;
}

static void a_pin_makes_its_path_active_and_nothing_else(void **state)
{
    struct ktree *t = make(8, 16, 1);
    uint32_t a = add(t, KTREE_ROOT, 0, "ab", 0), b = add(t, a, 0, "abcd", 2);
    uint32_t c = add(t, a, 0, "abx", 2), up;
    struct kv_key keys[N_PATH_MAX];

    (void)state;
    ktree_pin(t, b);
    assert_true(ktree_is_active(t, a) && ktree_is_active(t, b) && !ktree_is_active(t, c));
    assert_int_equal(n_active(t), 4);
    ktree_pin(t, c);
    ktree_pin(t, c);
    assert_int_equal(ktree_look(t, a).n_active_children, 2);
    assert_int_equal(n_active(t), 5);
    assert_ok(ktree_split(t, b, 1, &up)); /* the pin stays below, so the upper part is active */
    assert_true(ktree_is_active(t, up) && ktree_look(t, up).n_active_children == 1);
    assert_int_equal(n_active(t), 5);
    path_of(keys, "abcde");
    assert_ok(ktree_extend(t, b, 0, keys + 4, slots + 4, 1));
    assert_int_equal(n_active(t), 6);
    ktree_unpin(t, b);
    assert_int_equal(n_active(t), 3); /* c and its path */
    assert_false(ktree_is_active(t, up));
    ktree_unpin(t, c);
    assert_int_equal(n_active(t), 3);
    ktree_unpin(t, c);
    assert_int_equal(n_active(t), 0);
    ktree_destroy(t);
}

/* --- random operations against a model that searches --- */

#define N_TIERS 3
#define N_NODES 40
#define N_BLOCKS 90
#define N_STEPS 40000

struct model_node {
    bool used;
    uint32_t parent, tiers, n_pins, n_blocks;
    struct kv_key keys[N_PATH_MAX];
    uint32_t slots[N_TIERS][N_PATH_MAX];
};

struct model {
    struct ktree *t;
    struct model_node nodes[N_NODES + 1]; /* indexed by the tree's ids */
    uint64_t n_drawn;
    uint32_t next_slot;
};

static uint32_t draw(struct model *m, uint32_t n)
{
    return rng_u32(11, m->n_drawn++) % n;
}

static uint32_t fastest(uint32_t tiers)
{
    for (uint32_t tier = 0; tier < N_TIERS; tier++)
        if (tiers >> tier & 1)
            return tier;
    return N_TIERS;
}

static struct ktree_match naive_match(const struct model *m, const struct kv_key *keys, uint32_t n)
{
    struct ktree_match got = {.node = KTREE_ROOT};

    for (uint32_t id = 1; id <= N_NODES && got.n_blocks < n; id++) {
        const struct model_node *x = &m->nodes[id];
        uint32_t k = 0;

        if (!x->used || x->parent != got.node)
            continue;
        while (k < x->n_blocks && got.n_blocks + k < n &&
               !memcmp(&x->keys[k], &keys[got.n_blocks + k], sizeof *keys))
            k++;
        if (k == 0)
            continue;
        got = (struct ktree_match){id, k, got.n_blocks + k};
        if (k < x->n_blocks)
            break;
        id = 0; /* continue with its children */
    }
    return got;
}

static bool naive_can_leave(const struct model *m, uint32_t id, uint32_t tier)
{
    const struct model_node *x = &m->nodes[id];

    if (!x->used || !(x->tiers >> tier & 1) || (x->n_pins && fastest(x->tiers) == tier))
        return false;
    for (uint32_t c = 1; c <= N_NODES; c++)
        if (m->nodes[c].used && m->nodes[c].parent == id &&
            fastest(m->nodes[c].tiers) < fastest(x->tiers & ~(1u << tier)))
            return false;
    return true;
}

static bool lies_within(const struct model *m, uint32_t id, uint32_t tier)
{
    return id == KTREE_ROOT || fastest(m->nodes[id].tiers) <= tier;
}

static void split(struct model *m, uint32_t id, uint32_t n_upper)
{
    struct model_node *low = &m->nodes[id], *up;
    uint32_t upper;

    if (ktree_split(m->t, id, n_upper, &upper) != OK)
        return;
    up = &m->nodes[upper];
    assert_false(up->used);
    *up = *low;
    up->n_blocks = n_upper;
    up->n_pins = 0;
    low->parent = upper;
    low->n_blocks -= n_upper;
    memmove(low->keys, low->keys + n_upper, low->n_blocks * sizeof low->keys[0]);
    for (uint32_t tier = 0; tier < N_TIERS; tier++)
        memmove(low->slots[tier], low->slots[tier] + n_upper, low->n_blocks * sizeof(uint32_t));
}

static void draw_path(struct model *m, struct kv_key *keys, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        keys[i] = chain(i ? &keys[i - 1] : NULL, draw(m, 2));
}

/* Look up a path, split the node where it diverges, and add the rest. */
static void do_add(struct model *m)
{
    struct kv_key keys[N_PATH_MAX];
    uint32_t n = 1 + draw(m, N_PATH_MAX), tier = draw(m, N_TIERS), id, at[N_PATH_MAX];

    draw_path(m, keys, n);
    struct ktree_match got = ktree_match(m->t, keys, n), want = naive_match(m, keys, n);
    assert_memory_equal(&got, &want, sizeof got);
    if (got.node != KTREE_ROOT && got.n_in_node < m->nodes[got.node].n_blocks) {
        split(m, got.node, got.n_in_node);
        got = naive_match(m, keys, n);
        if (got.n_in_node < m->nodes[got.node].n_blocks)
            return; /* no node was free */
    }
    if (got.n_blocks == n || !lies_within(m, got.node, tier))
        return;
    for (uint32_t i = 0; i < N_PATH_MAX; i++)
        at[i] = m->next_slot++;
    if (ktree_add(m->t, got.node, 0, tier, keys + got.n_blocks, at, n - got.n_blocks, &id) != OK)
        return;
    assert_false(m->nodes[id].used);
    m->nodes[id] = (struct model_node){
        .used = true, .parent = got.node, .tiers = 1u << tier, .n_blocks = n - got.n_blocks};
    memcpy(m->nodes[id].keys, keys + got.n_blocks, (n - got.n_blocks) * sizeof keys[0]);
    memcpy(m->nodes[id].slots[tier], at, sizeof at);
}

static void do_place(struct model *m, uint32_t id, uint32_t tier)
{
    struct model_node *x = &m->nodes[id];

    if (!x->used || x->tiers >> tier & 1 || !lies_within(m, x->parent, tier))
        return;
    for (uint32_t i = 0; i < x->n_blocks; i++)
        x->slots[tier][i] = m->next_slot++;
    ktree_place(m->t, id, tier, x->slots[tier]);
    x->tiers |= 1u << tier;
}

static void do_leave(struct model *m, uint32_t id, uint32_t tier)
{
    struct model_node *x = &m->nodes[id];

    if (!x->used)
        return;
    assert_int_equal(ktree_can_leave(m->t, id, tier), naive_can_leave(m, id, tier));
    if (!naive_can_leave(m, id, tier))
        return;
    x->tiers &= ~(1u << tier);
    assert_int_equal(ktree_leave(m->t, id, tier), x->tiers == 0);
    x->used = x->tiers != 0;
}

static void do_pin(struct model *m, uint32_t id, bool pin)
{
    struct model_node *x = &m->nodes[id];

    if (!x->used || (!pin && !x->n_pins))
        return;
    if (pin)
        ktree_pin(m->t, id);
    else
        ktree_unpin(m->t, id);
    x->n_pins += pin ? 1 : UINT32_MAX;
}

static bool naive_is_active(const struct model *m, uint32_t id)
{
    if (m->nodes[id].n_pins)
        return true;
    for (uint32_t c = 1; c <= N_NODES; c++)
        if (m->nodes[c].used && m->nodes[c].parent == id && naive_is_active(m, c))
            return true;
    return false;
}

static uint32_t naive_n_before(const struct model *m, uint32_t id)
{
    uint32_t n = 0;

    for (id = m->nodes[id].parent; id != KTREE_ROOT; id = m->nodes[id].parent)
        n += m->nodes[id].n_blocks;
    return n;
}

/* Extend a node at its end if it has no child and lies in one tier. */
static void do_extend(struct model *m, uint32_t id)
{
    struct model_node *x = &m->nodes[id];

    if (!x->used || x->n_blocks == N_PATH_MAX || (x->tiers & (x->tiers - 1)))
        return;
    for (uint32_t c = 1; c <= N_NODES; c++)
        if (m->nodes[c].used && m->nodes[c].parent == id)
            return;
    struct kv_key key = chain(&x->keys[x->n_blocks - 1], draw(m, 2));
    uint32_t tier = fastest(x->tiers), slot = m->next_slot++;
    if (ktree_extend(m->t, id, tier, &key, &slot, 1) != OK)
        return;
    x->keys[x->n_blocks] = key;
    x->slots[tier][x->n_blocks++] = slot;
}

static void compare_all(const struct model *m)
{
    uint32_t n_used = 0, n_blocks_active = 0, n_seen = 0;
    bool seen[N_NODES + 1] = {true};
    struct ktree_stats stats;

    for (uint32_t id = 1; id <= N_NODES; id++) {
        n_used += m->nodes[id].used;
        if (m->nodes[id].used && naive_is_active(m, id))
            n_blocks_active += m->nodes[id].n_blocks;
    }
    for (uint32_t x = ktree_next(m->t, KTREE_ROOT, KTREE_ROOT); x != KTREE_NONE;
         x = ktree_next(m->t, x, KTREE_ROOT)) {
        assert_true(m->nodes[x].used && !seen[x] && seen[m->nodes[x].parent]);
        seen[x] = true;
        n_seen++;
    }
    ktree_stats(m->t, &stats);
    assert_int_equal(n_seen, n_used);
    assert_int_equal(stats.n_blocks_active, n_blocks_active);
}

static void compare(const struct model *m, uint32_t id)
{
    const struct model_node *x = &m->nodes[id];
    uint32_t got[N_PATH_MAX];

    if (!x->used)
        return;
    struct ktree_node n = ktree_look(m->t, id);
    assert_true(n.parent == x->parent && n.n_blocks == x->n_blocks && n.tiers == x->tiers &&
                n.n_pins == x->n_pins && n.fastest == fastest(x->tiers));
    assert_int_equal(n.n_before, naive_n_before(m, id));
    assert_int_equal(ktree_is_active(m->t, id), naive_is_active(m, id));
    assert_int_equal(ktree_find(m->t, &x->keys[0]), id);
    assert_memory_equal(ktree_key(m->t, id), &x->keys[x->n_blocks - 1], sizeof x->keys[0]);
    for (uint32_t tier = 0; tier < N_TIERS; tier++)
        if (x->tiers >> tier & 1) {
            ktree_slots(m->t, id, tier, got, x->n_blocks);
            assert_memory_equal(got, x->slots[tier], x->n_blocks * sizeof got[0]);
        }
}

static void random_operations_agree_with_a_search(void **state)
{
    static struct model m;
    struct ktree_stats stats;
    uint32_t n_most = 0;

    (void)state;
    m.t = make(N_NODES, N_BLOCKS, N_TIERS);
    for (int i = 0; i < N_STEPS; i++) {
        uint32_t what = draw(&m, 100), id = 1 + draw(&m, N_NODES), tier = draw(&m, N_TIERS);

        if (what < 35)
            do_add(&m);
        else if (what < 50)
            do_place(&m, id, tier);
        else if (what < 85)
            do_leave(&m, id, tier);
        else if (what < 97)
            do_pin(&m, id, what < 91);
        else
            do_extend(&m, id);
        ktree_check(m.t);
        compare_all(&m);
        compare(&m, 1 + draw(&m, N_NODES));
        ktree_stats(m.t, &stats);
        n_most = stats.n_nodes > n_most ? stats.n_nodes : n_most;
    }
    assert_int_equal(n_most, N_NODES); /* the tree was full at times */
    ktree_destroy(m.t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_path_is_found_block_by_block),
        cmocka_unit_test(siblings_share_their_leading_blocks),
        cmocka_unit_test(a_parent_is_never_in_a_slower_tier_than_its_child),
        cmocka_unit_test(a_pin_holds_the_whole_path),
        cmocka_unit_test(a_tail_grows_in_place),
        cmocka_unit_test(without_room_nothing_changes),
        cmocka_unit_test(colliding_short_keys_are_no_hit),
        cmocka_unit_test(the_first_key_of_a_node_finds_the_node),
        cmocka_unit_test(all_nodes_come_once_and_parents_first),
        cmocka_unit_test(a_node_has_the_number_of_blocks_before_it),
        cmocka_unit_test(a_pin_makes_its_path_active_and_nothing_else),
        cmocka_unit_test(random_operations_agree_with_a_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
