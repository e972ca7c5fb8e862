/* kv_store_node.c - nodes: the tree, the policy and node_info kept in step. */
#include <string.h>

#include "base/check.h"
#include "cache/store/kv_store_slow.h"

void node_pin(struct store *st, uint32_t node)
{
    ktree_pin(st->tree, node);
    replace_pin(st->policy, CACHE_DEVICE, st->info[node].entry);
}

void node_unpin(struct store *st, uint32_t node)
{
    ktree_unpin(st->tree, node);
    replace_unpin(st->policy, CACHE_DEVICE, st->info[node].entry);
}

void node_left(struct store *st, uint32_t node, uint32_t entry)
{
    struct node_info *info = &st->info[node];

    if (info->tail_of != KTREE_NONE)
        st->info[info->tail_of].n_tails--;
    st->n_orphans -= info->is_orphan;
    info->is_orphan = false;
    replace_expect(st->policy, entry, -(int)replace_n_expected(st->policy, entry));
    replace_leave(st->policy, entry);
}

bool node_split(struct store *st, uint32_t node, uint32_t n_upper, uint32_t *upper)
{
    struct node_info *low = &st->info[node], *up;
    const struct kv_key *key = ktree_key_at(st->tree, node, n_upper - 1);
    uint32_t id, entry;

    if (!replace_is_free_name(st->policy, short_key(key)) ||
        ktree_split(st->tree, node, n_upper, &id) != OK)
        return false;
    entry = replace_split(st->policy, low->entry, short_key(ktree_key(st->tree, id)),
                          n_upper * st->block_bytes);
    ASSERT(entry != REPLACE_NONE); /* the name is free, and there are more entries than nodes */
    tell_split(st, node, id);
    up = &st->info[id];
    *up = *low;
    up->entry = entry;
    up->n_tokens = n_upper * KV_BLOCK_TOKENS; /* only the last block of a segment may have fewer */
    up->n_tails = 0;                          /* children stay with the lower part */
    low->starts_segment = false;
    up->tail_of = KTREE_NONE;
    up->n_hit_tokens = low->n_hit_tokens * up->n_tokens / low->n_tokens;
    low->n_hit_tokens -= up->n_hit_tokens;
    up->saved_s = low->saved_s * up->n_tokens / low->n_tokens;
    up->read_s = low->read_s * up->n_tokens / low->n_tokens;
    low->read_s -= up->read_s;
    low->saved_s -= up->saved_s;
    low->n_tokens -= up->n_tokens;
    low->pos0 += up->n_tokens;
    low->due_is_old = true; /* the request that set it may not reach the lower part */
    st->n_orphans += up->is_orphan;
    if (st->remote)
        st->remote->n_nodes += ktree_look(st->tree, id).tiers == 1u << CACHE_REMOTE;
    st->node_of[entry] = id;
    replace_expect(st->policy, low->entry,
                   (int)n_expected(st, ktree_key_at(st->tree, node, 0)) -
                       (int)replace_n_expected(st->policy, low->entry));
    for (uint32_t i = 0; i < up->n_lent; i++) /* the pins stay with the lower part */
        lent_pin(st, id);
    *upper = id;
    return true;
}

uint32_t node_enter(struct store *st, const struct node_birth *b)
{
    uint32_t node, entry;

    entry = replace_enter(st->policy, short_key(&b->keys[b->n - 1]), st->info[b->parent].entry,
                          b->depth, b->n * st->block_bytes);
    if (entry == REPLACE_NONE)
        return KTREE_NONE;
    if (ktree_add(st->tree, b->parent, b->depth, b->tier, b->keys, b->slots, b->n, &node) != OK) {
        replace_leave(st->policy, entry);
        return KTREE_NONE;
    }
    st->info[node] = (struct node_info){.entry = entry,
                                        .n_tokens = b->n_tokens,
                                        .pos0 = b->pos0,
                                        .starts_segment = b->starts_segment,
                                        .is_public = b->is_public,
                                        .tail_of = KTREE_NONE,
                                        .due_is_old = true};
    st->node_of[entry] = node;
    /* A node behind an orphan is an orphan, too. */
    st->info[node].is_orphan = b->parent != KTREE_ROOT && st->info[b->parent].is_orphan;
    st->n_orphans += st->info[node].is_orphan;
    if (st->remote)
        st->remote->n_nodes += b->tier == CACHE_REMOTE;
    replace_expect(st->policy, entry, (int)n_expected(st, &b->keys[0]));
    return node;
}

/* A difference of two prefills from the begin: the sum over a path is what the whole path saves,
 * and what a step costs without any token is not saved. */
double saved_seconds(const struct store *st, uint32_t node, uint32_t n_tokens)
{
    uint32_t pos0 = st->info[node].pos0;

    if (!st->config.seconds)
        return n_tokens;
    double s = st->config.seconds(st->config.seconds_arg, 0, pos0 + n_tokens) -
               st->config.seconds(st->config.seconds_arg, 0, pos0 > 0 ? pos0 : 1);
    return s > 0 ? s : 0;
}

double own_seconds_per_byte(const struct store *st, uint32_t node)
{
    const struct node_info *info = &st->info[node];
    double s = st->config.seconds
                   ? st->config.seconds(st->config.seconds_arg, info->pos0, info->n_tokens)
                   : info->n_tokens;

    return s / (double)(ktree_look(st->tree, node).n_blocks * st->block_bytes);
}

void lent_pin(struct store *st, uint32_t node)
{
    if (st->info[node].lent_in == CACHE_DEVICE)
        node_pin(st, node);
    else
        replace_pin(st->policy, CACHE_HOST, st->info[node].entry);
}

void lent_unpin(struct store *st, uint32_t node)
{
    if (st->info[node].lent_in == CACHE_DEVICE)
        node_unpin(st, node);
    else
        replace_unpin(st->policy, CACHE_HOST, st->info[node].entry);
}

void move_pin(struct store *st, uint32_t from, uint32_t to)
{
    if (to != KTREE_ROOT)
        node_pin(st, to);
    if (from != KTREE_ROOT)
        node_unpin(st, from);
}

void store_give(struct store *st, uint32_t id)
{
    ASSERT(st->n_private > 0);
    st->n_private--;
    tier_drop(device_tier(st), &id, 1, false);
}
