/* pool_inventory.c - blocks and segments of this instance.
 *
 * A segment keeps the number of its blocks per tier and depth. The depth of a block is its distance
 * from the segment's first block: all blocks of a segment but the last are full, so the position
 * tells the depth, also where blocks are listed before their parents. */
#include "cache/pool/pool_inventory.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cache/pool/pool_table.h"

#define N_TIERS 4u /* device, host, disk: fastest first, as enum cache_tier; coming */
#define LIES_IN_MEMORY ((1u << DIRECTORY_TIER_DISK) - 1)
#define LIES_HERE ((1u << CACHE_EVENT_COMING) - 1)
#define N_DEPTHS (KV_SEGMENT_TOKENS_MAX / KV_BLOCK_TOKENS)
#define NONE UINT32_MAX
#define TIER_UNKNOWN UINT8_MAX /* the directory may have lost it */

_Static_assert(DIRECTORY_SEGMENT_BYTES == POOL_TABLE_KEY_BYTES, "segments are found by their name");

enum replica { REPLICA_UNKNOWN, REPLICA_NO, REPLICA_YES };

struct block {
    struct pool_item item; /* the first bytes of its key */
    uint32_t segment;      /* number */
    uint32_t pos0;
    uint8_t tiers; /* bit t: it lies in tier t */
};

struct segment {
    struct pool_item item;
    uint32_t pos0;     /* of the first block in `counts` */
    uint32_t n_blocks; /* of all branches, those without a first block included */
    uint32_t next;     /* in the queue of changes */
    uint16_t counts[N_TIERS][N_DEPTHS];
    uint8_t n_announced, tier_announced; /* 0: the directory has it not */
    bool has_first, is_changed;
    enum replica replica;
};

struct inventory {
    struct pool_table blocks, segments;
    uint32_t first_change, last_change;
    uint32_t n_announced; /* segments */
    uint32_t at_roll;
    bool is_listing; /* since CACHE_CLEARED */
    uint64_t cleared_ns, last_event_ns;
};

enum status inventory_open(struct inventory **out, uint32_t n_blocks_max, uint32_t n_segments_max)
{
    struct inventory *v = calloc(1, sizeof *v);

    *out = v;
    if (!v)
        return ERR_NOMEM;
    pool_table_init(&v->blocks, sizeof(struct block), n_blocks_max);
    pool_table_init(&v->segments, sizeof(struct segment), n_segments_max);
    v->first_change = v->last_change = NONE;
    return OK;
}

void inventory_close(struct inventory *v)
{
    if (!v)
        return;
    pool_table_fini(&v->blocks);
    pool_table_fini(&v->segments);
    free(v);
}

uint32_t inventory_n_in_memory(const struct inventory *v, const struct kv_key *keys, uint32_t n)
{
    uint32_t i = 0;

    for (const struct block *b; i < n && (b = pool_table_find(&v->blocks, keys[i].bytes)); i++)
        if ((b->tiers & LIES_IN_MEMORY) == 0)
            break;
    return i;
}

bool inventory_has(const struct inventory *v, const struct kv_key *key)
{
    const struct block *b = pool_table_find(&v->blocks, key->bytes);

    return b && (b->tiers & LIES_HERE);
}

bool inventory_may_have(const struct inventory *v, const struct kv_key *key)
{
    return v->is_listing || pool_table_find(&v->blocks, key->bytes);
}

const uint8_t *inventory_segment(const struct inventory *v, const struct kv_key *key,
                                 uint32_t *depth)
{
    const struct block *b = pool_table_find(&v->blocks, key->bytes);

    if (!b)
        return NULL;
    const struct segment *s = pool_table_at(&v->segments, b->segment);
    *depth = (b->pos0 - s->pos0) / KV_BLOCK_TOKENS;
    return s->item.key;
}

uint32_t inventory_n_segments(const struct inventory *v)
{
    return v->n_announced;
}

/* --- changes --- */

static void mark(struct inventory *v, struct segment *s)
{
    uint32_t no = pool_table_number(&v->segments, s);

    if (s->is_changed)
        return;
    s->is_changed = true;
    s->next = NONE;
    if (v->last_change == NONE)
        v->first_change = no;
    else
        ((struct segment *)pool_table_at(&v->segments, v->last_change))->next = no;
    v->last_change = no;
}

static struct segment *first_change(const struct inventory *v)
{
    return v->first_change == NONE ? NULL : pool_table_at(&v->segments, v->first_change);
}

/* Take a change out of the queue, behind `before` (NONE: it is the first). A segment of which
 * nothing is left is forgotten. */
static void unmark(struct inventory *v, uint32_t before, struct segment *s)
{
    s->is_changed = false;
    if (before == NONE)
        v->first_change = s->next;
    else
        ((struct segment *)pool_table_at(&v->segments, before))->next = s->next;
    if (s->next == NONE)
        v->last_change = before;
    if (s->n_blocks == 0 && s->n_announced == 0)
        pool_table_remove(&v->segments, s);
}

/* The longest branch from the first block on, and the fastest tier that has all of it. */
static struct directory_segment describe(const struct segment *s)
{
    struct directory_segment d = {0};

    memcpy(d.key, s->item.key, sizeof d.key);
    for (uint32_t depth = 0; s->has_first && depth < N_DEPTHS; depth++) {
        uint32_t t = 0;
        while (t < N_TIERS && s->counts[t][depth] == 0)
            t++;
        if (t == N_TIERS)
            break;
        d.n_blocks = (uint8_t)(depth + 1);
        d.tier = t > d.tier ? (uint8_t)t : d.tier;
    }
    return d;
}

static bool is_news(const struct segment *s)
{
    struct directory_segment d = describe(s);

    return d.n_blocks != s->n_announced || (d.n_blocks > 0 && d.tier != s->tier_announced);
}

/* --- events --- */

/* Make room in `counts` for a block before the first one seen so far. */
static bool shift(struct segment *s, uint32_t pos0)
{
    uint32_t by = (s->pos0 - pos0) / KV_BLOCK_TOKENS;

    if (by >= N_DEPTHS)
        return false;
    for (uint32_t t = 0; t < N_TIERS; t++)
        for (uint32_t d = N_DEPTHS - by; d < N_DEPTHS; d++)
            if (s->counts[t][d] > 0)
                return false;
    for (uint32_t t = 0; t < N_TIERS; t++) {
        memmove(s->counts[t] + by, s->counts[t], (N_DEPTHS - by) * sizeof s->counts[t][0]);
        memset(s->counts[t], 0, by * sizeof s->counts[t][0]);
    }
    s->pos0 = pos0;
    return true;
}

static struct segment *segment_of(struct inventory *v, const struct cache_event *e)
{
    struct segment *s = pool_table_find(&v->segments, e->segment.bytes);

    if (!s) {
        s = pool_table_add(&v->segments, e->segment.bytes);
        if (!s)
            return NULL;
        s->pos0 = e->pos0;
    }
    if (s->n_blocks == 0 && !s->has_first)
        s->pos0 = e->pos0;
    if (e->pos0 < s->pos0 && !shift(s, e->pos0))
        return NULL;
    return (e->pos0 - s->pos0) / KV_BLOCK_TOKENS < N_DEPTHS ? s : NULL;
}

static struct block *add_block(struct inventory *v, const struct cache_event *e)
{
    struct segment *s = segment_of(v, e);
    struct block *b = s ? pool_table_add(&v->blocks, e->key.bytes) : NULL;

    if (!b) {
        if (s && s->n_blocks == 0)
            mark(v, s); /* to be forgotten */
        return NULL;
    }
    b->segment = pool_table_number(&v->segments, s);
    b->pos0 = e->pos0;
    s->n_blocks++;
    if (memcmp(&e->key, &e->segment, sizeof e->key) == 0)
        s->has_first = true;
    return b;
}

static uint16_t *count_of(struct segment *s, const struct block *b, uint32_t tier)
{
    return &s->counts[tier][(b->pos0 - s->pos0) / KV_BLOCK_TOKENS];
}

static void store(struct inventory *v, const struct cache_event *e)
{
    struct block *b = pool_table_find(&v->blocks, e->key.bytes);

    if (!b)
        b = add_block(v, e);
    if (!b || (b->tiers & 1u << e->tier) != 0)
        return;
    struct segment *s = pool_table_at(&v->segments, b->segment);
    b->tiers |= (uint8_t)(1u << e->tier);
    ++*count_of(s, b, e->tier);
    if (is_news(s))
        mark(v, s);
}

static void remove_from(struct inventory *v, const struct cache_event *e)
{
    struct block *b = pool_table_find(&v->blocks, e->key.bytes);

    if (!b || (b->tiers & 1u << e->tier) == 0)
        return;
    struct segment *s = pool_table_at(&v->segments, b->segment);
    b->tiers &= (uint8_t) ~(1u << e->tier);
    --*count_of(s, b, e->tier);
    if (b->tiers == 0) {
        if (memcmp(b->item.key, s->item.key, sizeof s->item.key) == 0)
            s->has_first = false;
        pool_table_remove(&v->blocks, b);
        s->n_blocks--;
    }
    if (s->n_blocks == 0 || is_news(s))
        mark(v, s);
}

static void clear(struct inventory *v, uint64_t now_ns)
{
    pool_table_clear(&v->blocks);
    for (uint32_t i = 0; i < v->segments.n_items; i++) {
        struct segment *s = pool_table_at(&v->segments, i);
        if (!s)
            continue;
        memset(s->counts, 0, sizeof s->counts);
        s->n_blocks = 0;
        s->has_first = false;
    }
    v->is_listing = true;
    v->cleared_ns = now_ns;
}

void inventory_take(struct inventory *v, const struct cache_event *event, uint64_t now_ns)
{
    v->last_event_ns = now_ns;
    if (event->kind == CACHE_CLEARED)
        clear(v, now_ns);
    else if (event->is_tail || event->tier >= N_TIERS)
        return; /* paths consist of closed blocks */
    else if (event->kind == CACHE_STORED)
        store(v, event);
    else
        remove_from(v, event);
}

/* --- announcing --- */

/* The listing is over: what is not listed again is a change. */
static void end_listing(struct inventory *v, uint64_t now_ns)
{
    if (now_ns < v->last_event_ns + INVENTORY_QUIET_NS &&
        now_ns < v->cleared_ns + INVENTORY_LISTING_NS)
        return;
    v->is_listing = false;
    for (uint32_t i = 0; i < v->segments.n_items; i++) {
        struct segment *s = pool_table_at(&v->segments, i);
        if (s && (s->n_blocks == 0 || is_news(s)))
            mark(v, s);
    }
}

/* While the cache is listed, a segment of which less is listed than was announced has not shrunk,
 * and one of which as much is listed is no change. */
static bool is_unlisted(const struct inventory *v, const struct segment *s)
{
    uint32_t n_blocks = describe(s).n_blocks;

    if (v->is_listing)
        return n_blocks == 0 || n_blocks < s->n_announced || !is_news(s);
    return n_blocks == 0 && s->n_announced == 0;
}

uint32_t inventory_changes(struct inventory *v, uint64_t now_ns, struct directory_segment *out,
                           uint32_t n_max)
{
    uint32_t n = 0;

    if (v->is_listing)
        end_listing(v, now_ns);
    for (uint32_t before = NONE, next, no = v->first_change; no != NONE && n < n_max; no = next) {
        struct segment *s = pool_table_at(&v->segments, no);
        next = s->next;
        if (is_unlisted(v, s)) {
            unmark(v, before, s);
            continue;
        }
        out[n++] = describe(s);
        before = no;
    }
    return n;
}

void inventory_announced(struct inventory *v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct segment *s = first_change(v);
        struct directory_segment d = describe(s);
        v->n_announced += d.n_blocks > 0;
        v->n_announced -= s->n_announced > 0;
        s->n_announced = d.n_blocks;
        s->tier_announced = d.tier;
        if (d.n_blocks == 0)
            s->replica = REPLICA_UNKNOWN;
        unmark(v, NONE, s);
    }
}

void inventory_announce_all(struct inventory *v)
{
    for (uint32_t i = 0; i < v->segments.n_items; i++) {
        struct segment *s = pool_table_at(&v->segments, i);
        if (!s)
            continue;
        s->tier_announced = TIER_UNKNOWN;
        mark(v, s);
    }
}

uint32_t inventory_roll(struct inventory *v, struct directory_segment *out, uint32_t n_max)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < v->segments.n_items && n < n_max; i++) {
        if (v->at_roll >= v->segments.n_items)
            v->at_roll = 0;
        struct segment *s = pool_table_at(&v->segments, v->at_roll++);
        if (s && s->n_announced > 0 && !s->is_changed && describe(s).n_blocks > 0)
            out[n++] = describe(s);
    }
    return n;
}

/* --- copies elsewhere --- */

bool inventory_set_replica(struct inventory *v, const uint8_t key[DIRECTORY_SEGMENT_BYTES],
                           bool is_replica)
{
    struct segment *s = pool_table_find(&v->segments, key);
    enum replica now = is_replica ? REPLICA_YES : REPLICA_NO;

    if (!s || s->replica == now)
        return false;
    s->replica = now;
    return true;
}

void inventory_forget_replica(struct inventory *v, const uint8_t key[DIRECTORY_SEGMENT_BYTES])
{
    struct segment *s = pool_table_find(&v->segments, key);

    if (s)
        s->replica = REPLICA_UNKNOWN;
}
