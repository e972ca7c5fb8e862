/* kv_store_index.c - entering the records of the disk into the tree at start.
 *
 * A record describes one block; consecutive records become one node again. A record is dropped if
 * its predecessor is missing or does not end where the record begins, or if a record with the same
 * key was entered before. Predecessors have smaller positions, so records are entered in the order
 * of their positions. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "cache/store/kv_store_slow.h"

#define NO_RECORD UINT32_MAX

/* The part of a record that the index needs. */
struct seen {
    struct kv_key key, parent;
    uint64_t no;
    uint32_t extent, pos0, n_tokens, depth, n_uses;
    uint32_t node, at; /* node and index of its block, once entered */
    bool starts_segment, is_registered;
};

struct indexing {
    struct store *st;
    struct seen *seen; /* [n_seen] */
    uint32_t n_seen;
    uint32_t *of_extent; /* [extents] -> seen, or NO_RECORD */
    uint32_t *order;     /* [n_seen] sorted indexes into seen */
    struct map by_key;   /* short key -> seen, entered records only */
    struct cache_disk_stats *found;
};

/* --- reading the table --- */

static void count_found(struct cache_disk_stats *found, enum tier_found f)
{
    switch (f) {
    case TIER_TORN: found->n_torn++; break;
    case TIER_FOREIGN: found->n_foreign++; break;
    case TIER_IMPOSSIBLE: found->n_impossible++; break;
    case TIER_MISNAMED: found->n_misnamed++; break;
    case TIER_NOTHING:
    case TIER_RECORD:
    case TIER_ERASING: break;
    }
}

static void refuse(struct indexing *x, uint32_t extent)
{
    tier_drop(x->st->disk->slow.t, &extent, 1, false);
}

static void note_record(struct indexing *x, uint32_t extent, const struct tier_record *r)
{
    x->of_extent[extent] = x->n_seen;
    x->seen[x->n_seen++] = (struct seen){.key = r->key,
                                         .parent = r->parent,
                                         .no = r->no,
                                         .extent = extent,
                                         .pos0 = r->pos0,
                                         .n_tokens = r->n_tokens,
                                         .depth = r->depth,
                                         .n_uses = r->n_uses,
                                         .node = KTREE_NONE,
                                         .starts_segment = r->starts_segment,
                                         .is_registered = r->is_registered};
}

static void read_table(struct indexing *x)
{
    struct tier_record record;

    /* From the end, so that low extents are reserved first. */
    for (uint32_t extent = tier_n_blocks(x->st->disk->slow.t); extent-- > 0;) {
        enum tier_found f = tier_look(x->st->disk->slow.t, extent, &record);

        x->of_extent[extent] = NO_RECORD;
        count_found(x->found, f);
        if (f == TIER_RECORD)
            note_record(x, extent, &record);
        else if (f != TIER_NOTHING)
            refuse(x, extent);
    }
}

/* --- entering --- */

static const struct seen *find_seen(const struct indexing *x, const struct kv_key *key)
{
    uint32_t i;

    if (!map_get(&x->by_key, short_key(key), &i) || memcmp(&x->seen[i].key, key, sizeof *key) != 0)
        return NULL;
    return &x->seen[i];
}

static bool is_zero(const struct kv_key *key)
{
    static const struct kv_key zero;

    return memcmp(key, &zero, sizeof zero) == 0;
}

/* Whether r can follow p; NULL: be the first of a path. */
static bool follows(const struct seen *r, const struct seen *p)
{
    if (!p)
        return r->pos0 == 0 && r->starts_segment;
    return r->pos0 == p->pos0 + p->n_tokens && r->depth >= p->depth &&
           (r->starts_segment || (p->n_tokens == KV_BLOCK_TOKENS && r->depth == p->depth));
}

/* Update the places of the blocks of a node that was split: its first n blocks are in `upper`. */
static void note_split(struct indexing *x, uint32_t upper, uint32_t lower, uint32_t n)
{
    uint32_t extents[NODE_N_BLOCKS_MAX], n_lower = ktree_look(x->st->tree, lower).n_blocks;

    ktree_slots(x->st->tree, upper, CACHE_DISK, extents, n);
    for (uint32_t i = 0; i < n; i++)
        x->seen[x->of_extent[extents[i]]].node = upper;
    ktree_slots(x->st->tree, lower, CACHE_DISK, extents, n_lower);
    for (uint32_t i = 0; i < n_lower; i++)
        x->seen[x->of_extent[extents[i]]].at = i;
}

/* Append the record's block to the node of its predecessor. */
static bool extend(struct indexing *x, struct seen *r, const struct seen *p)
{
    struct store *st = x->st;
    struct node_info *info = &st->info[p->node];
    uint32_t n = ktree_look(st->tree, p->node).n_blocks;

    if (!replace_grow(st->policy, info->entry, short_key(&r->key),
                      (n + (uint64_t)1) * st->block_bytes))
        return false;
    enum status s = ktree_extend(st->tree, p->node, CACHE_DISK, &r->key, &r->extent, 1);
    ASSERT(s == OK); /* there are as many block records as blocks */
    info->n_tokens += r->n_tokens;
    r->node = p->node;
    r->at = n;
    return true;
}

static bool add(struct indexing *x, struct seen *r, uint32_t parent)
{
    struct store *st = x->st;

    r->at = 0;
    r->node = node_enter(st, &(struct node_birth){.parent = parent,
                                                  .depth = r->depth,
                                                  .pos0 = r->pos0,
                                                  .n_tokens = r->n_tokens,
                                                  .tier = CACHE_DISK,
                                                  .keys = &r->key,
                                                  .slots = &r->extent,
                                                  .n = 1,
                                                  .starts_segment = r->starts_segment,
                                                  .is_public = r->is_registered});
    if (r->node == KTREE_NONE)
        return false;
    replace_insert(st->policy, order_of(st, CACHE_DISK), st->info[r->node].entry);
    return true;
}

static bool can_go_on(const struct indexing *x, const struct seen *r, const struct seen *p)
{
    struct ktree_node look = ktree_look(x->st->tree, p->node);

    return !r->starts_segment && look.n_children == 0 && p->at + 1 == look.n_blocks &&
           look.n_blocks < NODE_N_BLOCKS_MAX;
}

static bool enter(struct indexing *x, struct seen *r)
{
    struct store *st = x->st;
    const struct seen *p = is_zero(&r->parent) ? NULL : find_seen(x, &r->parent);
    uint32_t upper;

    if (find_seen(x, &r->key)) {
        x->found->n_doubled++;
        return false;
    }
    if ((!p && !is_zero(&r->parent)) || !follows(r, p)) {
        x->found->n_orphaned++;
        return false;
    }
    if (!replace_has_room(st->policy, order_of(st, CACHE_DISK), st->block_bytes))
        return false; /* the directory is smaller than it was */
    if (!p)
        return add(x, r, KTREE_ROOT);
    if (can_go_on(x, r, p))
        return extend(x, r, p);
    if (p->at + 1 < ktree_look(st->tree, p->node).n_blocks) {
        uint32_t lower = p->node, n = p->at + 1;

        if (!node_split(st, lower, n, &upper))
            return false;
        note_split(x, upper, lower, n);
    }
    return add(x, r, p->node);
}

static void enter_all(struct indexing *x)
{
    for (uint32_t i = 0; i < x->n_seen; i++) {
        struct seen *r = &x->seen[x->order[i]];

        if (!enter(x, r)) {
            r->node = KTREE_NONE;
            x->of_extent[r->extent] = NO_RECORD;
            refuse(x, r->extent);
            continue;
        }
        map_put(&x->by_key, short_key(&r->key), x->order[i]);
        x->found->n_found++;
    }
}

/* An earlier block of a path was used at least as often as a later one. Its record may say less,
 * because it was written earlier. */
static void raise_uses(struct indexing *x)
{
    for (uint32_t i = x->n_seen; i-- > 0;) {
        const struct seen *r = &x->seen[x->order[i]];
        uint32_t p;

        if (r->node != KTREE_NONE && !is_zero(&r->parent) &&
            map_get(&x->by_key, short_key(&r->parent), &p) && x->seen[p].n_uses < r->n_uses)
            x->seen[p].n_uses = r->n_uses;
    }
}

/* --- orders --- */

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* Records of one position: last written first, so that of two with one key the newer is kept. */
static int by_position(const void *a, const void *b, void *seen)
{
    const struct seen *all = seen, *x = &all[*(const uint32_t *)a], *y = &all[*(const uint32_t *)b];

    return x->pos0 != y->pos0 ? compare(x->pos0, y->pos0) : compare(y->no, x->no);
}

static int by_time(const void *a, const void *b, void *seen)
{
    const struct seen *all = seen;

    return compare(all[*(const uint32_t *)a].no, all[*(const uint32_t *)b].no);
}

/* Registered nodes first, then by use count; of equals, earlier positions first. */
static int by_worth(const void *a, const void *b)
{
    const struct preload *x = a, *y = b;

    if (x->is_registered != y->is_registered)
        return y->is_registered - x->is_registered;
    if (x->n_uses != y->n_uses)
        return compare(y->n_uses, x->n_uses);
    return compare(x->pos0, y->pos0);
}

static void sort(struct indexing *x, int (*before)(const void *, const void *, void *))
{
    qsort_r(x->order, x->n_seen, sizeof *x->order, before, x->seen);
}

/* --- uses for the policy; preloading --- */

/* Report a use of each node in the order in which the nodes were written, so that the policy sees
 * the same order of age as before the restart. */
static void tell_policy(struct indexing *x)
{
    struct store *st = x->st;

    sort(x, by_time);
    for (uint32_t i = 0; i < x->n_seen; i++) {
        const struct seen *r = &x->seen[x->order[i]];

        if (r->node == KTREE_NONE || r->at > 0)
            continue;
        struct node_info *info = &st->info[r->node];
        double own = own_seconds_per_byte(st, r->node);
        struct replace_access access = {.miss_s_per_byte = own, .own_s_per_byte = own};
        replace_accessed(st->policy, info->entry, &access);
        access.was_cached = true;
        if (r->n_uses > 1)
            replace_accessed(st->policy, info->entry, &access);
        info->n_uses = r->n_uses;
    }
}

static enum status list_preload(struct indexing *x)
{
    struct store_disk *d = x->st->disk;
    enum cache_preload which = x->st->config.disk.preload;

    if (which == CACHE_PRELOAD_NONE || x->found->n_found == 0)
        return OK;
    d->preload = calloc(x->found->n_found, sizeof *d->preload);
    if (!d->preload)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < x->n_seen; i++) {
        const struct seen *r = &x->seen[i];

        if (r->node == KTREE_NONE || r->at > 0 ||
            (which == CACHE_PRELOAD_REGISTERED && !r->is_registered))
            continue;
        d->preload[d->n_preload++] = (struct preload){r->key, r->n_uses, r->pos0, r->is_registered};
    }
    qsort(d->preload, d->n_preload, sizeof *d->preload, by_worth);
    return OK;
}

/* --- all of it --- */

static enum status allocate(struct indexing *x, uint32_t n)
{
    x->seen = calloc(n, sizeof *x->seen);
    x->of_extent = calloc(n, sizeof *x->of_extent);
    x->order = calloc(n, sizeof *x->order);
    return x->seen && x->of_extent && x->order ? map_init(&x->by_key, n) : ERR_NOMEM;
}

enum status store_index_disk(struct store *st, struct buf *why)
{
    uint64_t began = clock_now_ns();
    struct indexing x = {.st = st, .found = &st->disk->found};
    enum status s = allocate(&x, tier_n_blocks(st->disk->slow.t));

    if (s == OK) {
        read_table(&x);
        for (uint32_t i = 0; i < x.n_seen; i++)
            x.order[i] = i;
        sort(&x, by_position);
        enter_all(&x);
        raise_uses(&x);
        tell_policy(&x);
        s = list_preload(&x);
    }
    map_fini(&x.by_key);
    free(x.seen);
    free(x.of_extent);
    free(x.order);
    x.found->index_s += (double)(clock_now_ns() - began) * 1e-9;
    return s == OK ? OK
                   : buf_why(why, s,
                             "out of memory to read the directory of %s; lower "
                             "{kv_disk_bytes}",
                             st->config.disk.path);
}
