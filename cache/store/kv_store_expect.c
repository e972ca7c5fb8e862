/* kv_store_expect.c - the nodes that waiting requests expect to use.
 *
 * They, and the holds of kv_store_hold.c, are counted per block key, whether or not the tree has
 * the block. So when several requests
 * wait for a document that none has computed yet, its nodes are expected as soon as they enter the
 * tree. The count of a node is the count of its first block.
 *
 * The policy keeps one due time per node: the earliest that a waiting request reported. The request
 * that reported it is not recorded. When that request starts or reports a later time while others
 * wait, the next time that any of them reports is taken. Held nodes, and nodes that entered the
 * tree after the requests reported, are due now. */
#include "base/check.h"
#include "cache/store/kv_store_inner.h"

enum status init_expect(struct store *st)
{
    enum status s = map_init(&st->expected, N_EXPECTED_MAX);

    if (s == OK)
        s = map_init(&st->held, N_EXPECTED_MAX);
    st->memory_bytes += ((uint64_t)st->expected.mask + st->held.mask + 2) * sizeof(struct map_slot);
    return s;
}

void fini_expect(struct store *st)
{
    map_fini(&st->expected);
    map_fini(&st->held);
}

static uint32_t count_of(const struct map *m, const struct kv_key *key)
{
    uint32_t n;

    return map_get(m, short_key(key), &n) ? n : 0;
}

uint32_t n_expected(const struct store *st, const struct kv_key *first)
{
    return count_of(&st->expected, first) + count_of(&st->held, first);
}

bool is_held(const struct store *st, const struct kv_key *first)
{
    return count_of(&st->held, first) > 0;
}

bool is_awaited(const struct store *st, const struct kv_key *first)
{
    return count_of(&st->expected, first) > 0;
}

double store_now_s(const struct store *st)
{
    return (double)st->now_ns * 1e-9;
}

bool count_key(struct store *st, struct map *m, const struct kv_key *key, int delta)
{
    uint32_t n = count_of(m, key), node;

    if (n == 0 && m->n == m->n_max)
        return false;
    ASSERT(delta > 0 || n > 0);
    if (n + (uint32_t)delta == 0)
        map_remove(m, short_key(key));
    else
        map_put(m, short_key(key), n + (uint32_t)delta);
    node = ktree_find(st->tree, key);
    if (node == KTREE_NONE)
        return true;
    replace_expect(st->policy, st->info[node].entry, delta);
    if (m == &st->held && replace_n_expected(st->policy, st->info[node].entry) > 0) {
        replace_due(st->policy, st->info[node].entry, 0);
        st->info[node].due_is_old = true;
    }
    return true;
}

/* A waiting request reports its due time of a node. */
static void tell_node(struct store *st, uint32_t node, const struct kv_key *first, double was_s,
                      double due_s)
{
    struct node_info *info = &st->info[node];
    uint32_t n_waiting = replace_n_expected(st->policy, info->entry);
    double now_told = replace_due_s(st->policy, info->entry);

    if (n_waiting == 0 || (st->n_holds > 0 && is_held(st, first)))
        return;
    if (n_waiting == 1 || info->due_is_old || due_s < now_told || now_told == was_s) {
        now_told = due_s;
        info->due_is_old = false;
    }
    replace_due(st->policy, info->entry, now_told);
}

void store_expect_at(struct store *st, const struct kv_key *keys, uint32_t n, double was_s,
                     double due_s)
{
    uint32_t node;

    for (uint32_t i = 0; i < n && (node = ktree_find(st->tree, &keys[i])) != KTREE_NONE;
         i += ktree_look(st->tree, node).n_blocks)
        tell_node(st, node, &keys[i], was_s, due_s);
}

uint32_t store_expect(struct store *st, const struct kv_key *keys, uint32_t n, double due_s)
{
    uint32_t i = 0;

    while (i < n && count_key(st, &st->expected, &keys[i], 1))
        i++;
    store_expect_at(st, keys, i, -1, due_s);
    return i;
}

void store_unexpect(struct store *st, const struct kv_key *keys, uint32_t n, double was_s)
{
    uint32_t node;

    for (uint32_t i = 0; i < n && (node = ktree_find(st->tree, &keys[i])) != KTREE_NONE;
         i += ktree_look(st->tree, node).n_blocks)
        st->info[node].due_is_old |= replace_due_s(st->policy, st->info[node].entry) == was_s;
    for (uint32_t i = 0; i < n; i++)
        (void)count_key(st, &st->expected, &keys[i], -1);
}
