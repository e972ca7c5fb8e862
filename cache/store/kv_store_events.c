/* kv_store_events.c - cache events: what the readers of the pool and of routers are told.
 *
 * The tree reports each node that comes to lie in a tier or is about to leave one. New blocks are
 * reported by store_append(), which knows their ids. The store keeps no ids: a node whose ids were
 * not sent, because it was read from disk or from another instance, is sent again when a request
 * that knows them attaches. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cache/store/kv_store_slow.h"

#define LISTED_PER_POLL 64 /* nodes */

/* The ids of a node's blocks. */
struct known_ids {
    const uint32_t *ids; /* [n_tokens of the node]; NULL: not known */
    uint64_t salt;
};

static bool is_tail(const struct store *st, uint32_t node)
{
    return st->info[node].tail_of != KTREE_NONE;
}

/* The key of the first block of the node's segment. */
static struct kv_key segment_of(const struct store *st, uint32_t node)
{
    uint32_t parent;

    while (!st->info[node].starts_segment &&
           (parent = ktree_look(st->tree, node).parent) != KTREE_ROOT)
        node = parent;
    return *ktree_key_at(st->tree, node, 0);
}

/* Fill in what is equal for all blocks of the node. */
static void begin_event(const struct store *st, struct cache_event *e, enum cache_event_kind kind,
                        uint32_t node, enum cache_tier tier)
{
    uint32_t parent = ktree_look(st->tree, node).parent;

    *e = (struct cache_event){.kind = kind,
                              .tier = tier,
                              .is_public = st->info[node].is_public,
                              .segment = segment_of(st, node)};
    if (parent != KTREE_ROOT)
        e->parent = *ktree_key(st->tree, parent);
}

/* Fill in block i of the node; *e has block i - 1. */
static void go_to_block(const struct store *st, struct cache_event *e, uint32_t node, uint32_t i)
{
    const struct node_info *info = &st->info[node];
    uint32_t left = info->n_tokens - i * KV_BLOCK_TOKENS;

    if (i > 0)
        e->parent = *ktree_key_at(st->tree, node, i - 1);
    e->key = *ktree_key_at(st->tree, node, i);
    e->pos0 = info->pos0 + i * KV_BLOCK_TOKENS;
    e->n_tokens = left < KV_BLOCK_TOKENS ? left : KV_BLOCK_TOKENS;
    e->starts_segment = i == 0 && info->starts_segment;
}

/* Send the node's blocks from `first` on. */
static void send_stored(const struct store *st, struct cache_events *to, uint32_t node,
                        uint32_t first, enum cache_tier tier, const struct known_ids *known)
{
    uint32_t n = ktree_look(st->tree, node).n_blocks;
    struct cache_event e;

    begin_event(st, &e, CACHE_STORED, node, tier);
    e.has_ids = known && known->ids && cache_events_want_ids(to);
    e.salt = known && !e.is_public ? known->salt : 0;
    for (uint32_t i = first; i < n; i++) {
        go_to_block(st, &e, node, i);
        if (e.has_ids)
            memcpy(e.ids, known->ids + i * KV_BLOCK_TOKENS, e.n_tokens * sizeof *e.ids);
        cache_events_send(to, &e);
    }
}

/* Behind blocks come first, so that no reader has a block without the one before it. */
static void send_removed(const struct store *st, struct cache_events *to, uint32_t node,
                         enum cache_tier tier)
{
    struct cache_event e;

    begin_event(st, &e, CACHE_REMOVED, node, tier);
    for (uint32_t i = ktree_look(st->tree, node).n_blocks; i-- > 0;) {
        go_to_block(st, &e, node, i);
        cache_events_send(to, &e);
    }
}

/* --- what happens in the tree --- */

/* The node is about to leave its last tier: a listing goes on with the next one. */
static void skip_node(const struct store *st, struct store_listing *l, uint32_t node)
{
    if (l->next == node)
        l->next = ktree_next_outside(st->tree, node, KTREE_ROOT);
}

static void on_change(void *arg, uint32_t node, uint32_t tier, bool enters)
{
    struct store *st = arg;
    bool is_last = ktree_look(st->tree, node).tiers == 1u << tier;

    for (uint32_t i = 0; i < STORE_N_LISTINGS; i++) {
        struct store_listing *l = &st->listings[i];
        if (!l->events)
            continue;
        if (!enters && is_last)
            skip_node(st, l, node);
        if (tier > CACHE_DISK || is_tail(st, node))
            continue;
        if (enters)
            send_stored(st, l->events, node, 0, tier, NULL);
        else
            send_removed(st, l->events, node, tier);
    }
}

void tell_split(struct store *st, uint32_t node, uint32_t upper)
{
    for (uint32_t i = 0; i < STORE_N_LISTINGS; i++)
        if (st->listings[i].next == node)
            st->listings[i].next = upper;
}

/* Where the ids of the node begin in those of the request. */
static struct known_ids ids_of(const struct store *st, uint32_t node, const struct store_use *use)
{
    const struct node_info *info = &st->info[node];
    bool known = use->event_ids && info->pos0 + info->n_tokens <= use->n_event_ids;

    return (struct known_ids){known ? use->event_ids + info->pos0 : NULL, use->salt};
}

void tell_appended(struct store *st, uint32_t node, uint32_t n, const struct store_use *use)
{
    struct known_ids known = ids_of(st, node, use);
    uint32_t first = ktree_look(st->tree, node).n_blocks - n;

    for (uint32_t i = 0; i < STORE_N_LISTINGS; i++) {
        struct cache_events *to = st->listings[i].events;
        if (!to)
            continue;
        send_stored(st, to, node, first, CACHE_DEVICE, &known);
        if (cache_events_want_ids(to))
            st->info[node].has_named_ids = known.ids && !cache_events_is_marked(to) &&
                                           (first == 0 || st->info[node].has_named_ids);
    }
}

static void name_node(struct store *st, struct cache_events *to, uint32_t node,
                      const struct store_use *use)
{
    struct ktree_node look = ktree_look(st->tree, node);
    struct known_ids known = ids_of(st, node, use);

    if (st->info[node].has_named_ids || !known.ids || is_tail(st, node))
        return;
    for (uint32_t tier = 0; tier <= CACHE_DISK; tier++)
        if (lies_in(&look, (enum cache_tier)tier))
            send_stored(st, to, node, 0, (enum cache_tier)tier, &known);
    st->info[node].has_named_ids = !cache_events_is_marked(to);
}

void tell_path(struct store *st, const uint32_t *path, uint32_t n, const struct store_use *use)
{
    struct cache_events *to = st->listings[STORE_LIST_ROUTERS].events;

    for (uint32_t i = 0; to && use->event_ids && i < n; i++)
        name_node(st, to, path[i], use);
}

/* --- listings --- */

/* Whether the events of all tiers of one more node have room. */
static bool has_room(const struct store_listing *l)
{
    return cache_events_room(l->events) >= (CACHE_DISK + 1) * NODE_N_BLOCKS_MAX;
}

static void list_node(struct store *st, const struct store_listing *l, uint32_t node)
{
    struct ktree_node look = ktree_look(st->tree, node);

    for (uint32_t tier = 0; tier <= CACHE_DISK; tier++)
        if (lies_in(&look, (enum cache_tier)tier) && !is_tail(st, node))
            send_stored(st, l->events, node, 0, (enum cache_tier)tier, NULL);
}

/* Go on with the listing. True: it can go on at once. A reader that does not read must not keep the
 * engine awake: the listing then goes on at a later poll. */
static bool list_more(struct store *st, struct store_listing *l)
{
    if (cache_events_is_marked(l->events)) {
        if (!cache_events_begin_all(l->events))
            return false;
        l->next = ktree_next(st->tree, KTREE_ROOT, KTREE_ROOT);
    }
    for (uint32_t n = 0; l->next != KTREE_NONE && n < LISTED_PER_POLL && has_room(l); n++) {
        list_node(st, l, l->next);
        l->next = ktree_next(st->tree, l->next, KTREE_ROOT);
    }
    return l->next != KTREE_NONE && has_room(l);
}

bool poll_events(struct store *st)
{
    bool more = false;

    for (uint32_t i = 0; i < STORE_N_LISTINGS; i++)
        if (st->listings[i].events)
            more |= list_more(st, &st->listings[i]);
    return more;
}

void store_send_events(struct store *st, struct cache_events *pool, struct cache_events *routers)
{
    st->listings[STORE_LIST_POOL] = (struct store_listing){pool, KTREE_NONE};
    st->listings[STORE_LIST_ROUTERS] = (struct store_listing){routers, KTREE_NONE};
    if (!pool && !routers)
        return;
    ktree_watch(st->tree, on_change, st);
    for (uint32_t i = 0; i < STORE_N_LISTINGS; i++) /* the disk's records have entered already */
        if (st->listings[i].events)
            cache_events_request_all(st->listings[i].events);
}
