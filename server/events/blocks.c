#include "server/events/blocks.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/map.h"

#define N_HASHES_MAX ((BLOCKS_TOKENS_MAX + KV_BLOCK_TOKENS) / BLOCKS_TOKENS_MIN)
#define N_ITEMS_MIN 1024u
/* Hashes are below 2^63 and above 2^62: every msgpack library writes them as 8 bytes and reads them
 * into a signed or an unsigned number. */
#define HASH_MASK ((UINT64_C(1) << 62) - 1)
#define HASH_BIT (UINT64_C(1) << 62)

/* A block of the cache, with the reported blocks whose last token lies in it. */
struct record {
    struct kv_key key;
    uint64_t parent; /* the reported block before hashes[0]; 0: none */
    uint64_t salt;   /* of hashes[salted_at] */
    uint8_t tiers;   /* one bit each */
    uint8_t n_hashes;
    uint8_t salted_at; /* n_hashes: none of them has the salt */
    bool is_salted;    /* a block of the path has the salt, up to this record */
    uint16_t n_ids;
    uint64_t hashes[N_HASHES_MAX]; /* [n_hashes] */
    uint32_t end;                  /* position behind the last token */
    uint32_t ids[];                /* [n_ids], from the begin of hashes[0] to `end` */
};

/* Number of a reported block's copies in each tier. */
struct copies {
    uint64_t hash;
    uint32_t n[CACHE_N_TIERS];
};

/* A growing array of items that are found by a hash; removing one moves the last one. */
struct table {
    struct map map; /* hash -> index */
    void *items;
    uint32_t n, n_max;
};

struct blocks {
    uint32_t n_tokens;
    struct blocks_sink sink;
    struct table records; /* of struct record *, by short_key() */
    struct table copies;  /* of struct copies, by hash */
    uint64_t n_reported, n_skipped;
};

/* --- tables --- */

static enum status table_reserve(struct table *t, size_t item_bytes, uint32_t more)
{
    uint32_t n_max = t->n_max;
    struct map bigger;

    while (n_max < t->n + more)
        n_max = n_max ? 2 * n_max : N_ITEMS_MIN;
    if (n_max == t->n_max)
        return OK;
    void *items = realloc(t->items, n_max * item_bytes);
    if (!items)
        return ERR_NOMEM;
    t->items = items; /* not lost if the map cannot grow */
    enum status s = map_init(&bigger, n_max);
    if (s != OK)
        return s;
    for (uint32_t i = 0; t->n > 0 && i <= t->map.mask; i++)
        if (t->map.slots[i].used)
            map_put(&bigger, t->map.slots[i].key, t->map.slots[i].value);
    map_fini(&t->map);
    t->map = bigger;
    t->n_max = n_max;
    return OK;
}

static void table_fini(struct table *t)
{
    map_fini(&t->map);
    free(t->items);
    *t = (struct table){.n = 0};
}

static struct record **record_slot(const struct blocks *b, const struct kv_key *key)
{
    struct record **all = b->records.items;
    uint32_t i;

    if (b->records.n == 0 || !map_get(&b->records.map, short_key(key), &i) ||
        memcmp(all[i]->key.bytes, key->bytes, sizeof key->bytes) != 0)
        return NULL;
    return &all[i];
}

static void record_remove(struct blocks *b, struct record **slot)
{
    struct record **all = b->records.items, *last = all[b->records.n - 1];

    map_remove(&b->records.map, short_key(&(*slot)->key));
    free(*slot);
    b->records.n--;
    if (slot == &all[b->records.n])
        return;
    *slot = last;
    map_put(&b->records.map, short_key(&last->key), (uint32_t)(slot - all));
}

static struct copies *copies_of(struct blocks *b, uint64_t hash)
{
    struct copies *all = b->copies.items;
    uint32_t i;

    if (b->copies.n == 0 || !map_get(&b->copies.map, hash, &i))
        return NULL;
    return &all[i];
}

/* The caller has reserved room. */
static struct copies *copies_add(struct blocks *b, uint64_t hash)
{
    struct copies *c = (struct copies *)b->copies.items + b->copies.n;

    *c = (struct copies){.hash = hash};
    map_put(&b->copies.map, hash, b->copies.n++);
    return c;
}

static void copies_remove(struct blocks *b, struct copies *c)
{
    struct copies *all = b->copies.items, *last = &all[b->copies.n - 1];

    map_remove(&b->copies.map, c->hash);
    b->copies.n--;
    if (c == last)
        return;
    *c = *last;
    map_put(&b->copies.map, c->hash, (uint32_t)(c - all));
}

/* --- reports --- */

static void report(struct blocks *b, uint32_t tier, const struct record *r, uint32_t i)
{
    const struct blocks_block block = {.hash = r->hashes[i],
                                       .parent = i > 0 ? r->hashes[i - 1] : r->parent,
                                       .salt = i == r->salted_at ? r->salt : 0,
                                       .path_salt = r->salt,
                                       .ids = r->ids + i * b->n_tokens};

    b->sink.stored(b->sink.arg, tier, &block);
}

/* Copies of the record's blocks lie in the tier now. */
static enum status enter(struct blocks *b, struct record *r, uint32_t tier)
{
    enum status s = table_reserve(&b->copies, sizeof(struct copies), r->n_hashes);

    if (s != OK)
        return s;
    r->tiers |= (uint8_t)(1u << tier);
    for (uint32_t i = 0; i < r->n_hashes; i++) {
        struct copies *c = copies_of(b, r->hashes[i]);
        if (!c)
            c = copies_add(b, r->hashes[i]);
        if (c->n[tier]++ > 0)
            continue;
        b->n_reported++;
        report(b, tier, r, i);
    }
    return OK;
}

static bool is_nowhere(const struct copies *c)
{
    bool nowhere = true;

    for (int t = 0; t < CACHE_N_TIERS; t++)
        nowhere &= c->n[t] == 0;
    return nowhere;
}

/* The last block goes first, so that no block is ever without the one before it. */
static void leave(struct blocks *b, struct record *r, uint32_t tier)
{
    r->tiers &= (uint8_t) ~(1u << tier);
    for (uint32_t i = r->n_hashes; i-- > 0;) {
        struct copies *c = copies_of(b, r->hashes[i]);
        ASSERT(c && c->n[tier] > 0);
        if (--c->n[tier] > 0)
            continue;
        b->n_reported--;
        b->sink.removed(b->sink.arg, tier, c->hash);
        if (is_nowhere(c))
            copies_remove(b, c);
    }
}

static void report_all_removed(struct blocks *b)
{
    const struct copies *all = b->copies.items;

    for (uint32_t t = 0; t < CACHE_N_TIERS; t++)
        for (uint32_t i = 0; i < b->copies.n; i++)
            if (all[i].n[t] > 0)
                b->sink.removed(b->sink.arg, t, all[i].hash);
    b->sink.cleared(b->sink.arg);
}

/* --- records --- */

static uint64_t hash_of(uint64_t parent, uint64_t salt, const uint32_t *ids, uint32_t n)
{
    uint8_t out[16];
    struct hash_state h;
    uint64_t hash;

    hash_begin(&h, sizeof out, NULL, 0);
    hash_add(&h, &parent, sizeof parent);
    hash_add(&h, &salt, sizeof salt);
    hash_add(&h, ids, n * sizeof *ids);
    hash_end(&h, out, sizeof out);
    memcpy(&hash, out, sizeof hash);
    return (hash & HASH_MASK) | HASH_BIT;
}

/* Cut what the parent's record left over and the event's ids. before: the record of the block
 * before; NULL: none. */
static struct record *record_make(const struct blocks *b, const struct cache_event *e,
                                  const struct record *before)
{
    uint32_t n_left = before ? before->n_ids - before->n_hashes * b->n_tokens : 0;
    uint32_t n_ids = n_left + e->n_tokens;
    struct record *r = malloc(sizeof *r + n_ids * sizeof *r->ids);

    if (!r)
        return NULL;
    *r = (struct record){.key = e->key,
                         .parent = before ? before->parent : 0,
                         .salt = e->is_public ? 0 : e->salt,
                         .n_hashes = (uint8_t)(n_ids / b->n_tokens),
                         .n_ids = (uint16_t)n_ids,
                         .is_salted = before && before->is_salted,
                         .end = e->n_tokens + (before ? before->end : 0)};
    if (before && before->n_hashes > 0)
        r->parent = before->hashes[before->n_hashes - 1];
    if (n_left > 0)
        memcpy(r->ids, before->ids + before->n_ids - n_left, n_left * sizeof *r->ids);
    memcpy(r->ids + n_left, e->ids, e->n_tokens * sizeof *r->ids);
    r->salted_at = r->n_hashes;
    uint64_t parent = r->parent;
    for (uint32_t i = 0; i < r->n_hashes; i++) {
        uint64_t salt = r->is_salted ? 0 : r->salt;
        if (salt)
            r->salted_at = (uint8_t)i;
        r->is_salted |= salt != 0;
        parent = hash_of(parent, salt, r->ids + i * b->n_tokens, b->n_tokens);
        r->hashes[i] = parent;
    }
    return r;
}

static enum status store(struct blocks *b, const struct cache_event *e)
{
    static const struct kv_key none;
    struct record **slot = record_slot(b, &e->key), **before = NULL;

    if (slot)
        return (*slot)->tiers & (1u << e->tier) ? OK : enter(b, *slot, e->tier);
    bool is_first = memcmp(e->parent.bytes, none.bytes, sizeof none.bytes) == 0;
    if (!is_first)
        before = record_slot(b, &e->parent);
    if (!e->has_ids || (!is_first && !before)) {
        b->n_skipped++;
        return OK;
    }
    struct record *r = record_make(b, e, before ? *before : NULL);
    enum status s = r ? table_reserve(&b->records, sizeof r, 1) : ERR_NOMEM;
    if (s == OK)
        s = enter(b, r, e->tier);
    if (s != OK) {
        free(r);
        return s;
    }
    ((struct record **)b->records.items)[b->records.n] = r;
    map_put(&b->records.map, short_key(&r->key), b->records.n++);
    return OK;
}

/* Nothing lies anywhere, but the listing that follows may have no ids: records stay until the next
 * time. */
static void clear(struct blocks *b)
{
    struct record **all = b->records.items;

    report_all_removed(b);
    for (uint32_t i = b->records.n; i-- > 0;) {
        if (all[i]->tiers == 0)
            record_remove(b, &all[i]);
        else
            all[i]->tiers = 0;
    }
    table_fini(&b->copies);
    b->n_reported = 0;
}

enum status blocks_apply(struct blocks *b, const struct cache_event *e)
{
    struct record **slot;

    if (e->kind == CACHE_CLEARED) {
        clear(b);
        return OK;
    }
    if (e->is_tail || e->tier > CACHE_DISK)
        return OK;
    if (e->kind == CACHE_STORED)
        return store(b, e);
    slot = record_slot(b, &e->key);
    if (!slot)
        return OK;
    if ((*slot)->tiers & (1u << e->tier))
        leave(b, *slot, e->tier);
    if ((*slot)->tiers == 0)
        record_remove(b, slot);
    return OK;
}

/* --- repeating --- */

static int compare_ends(const void *a, const void *b)
{
    const struct record *x = *(struct record *const *)a, *y = *(struct record *const *)b;

    return x->end < y->end ? -1 : x->end > y->end;
}

enum status blocks_repeat(struct blocks *b)
{
    uint32_t n = b->records.n;
    struct record **sorted = n ? malloc(n * sizeof(struct record *)) : NULL;
    struct copies *all = b->copies.items;

    if (n > 0 && !sorted)
        return ERR_NOMEM;
    if (n > 0)
        memcpy(sorted, b->records.items, n * sizeof(struct record *));
    /* A block ends behind the block before it. */
    if (n > 0)
        qsort(sorted, n, sizeof *sorted, compare_ends);
    report_all_removed(b);
    for (uint32_t i = 0; i < b->copies.n; i++)
        memset(all[i].n, 0, sizeof all[i].n);
    b->n_reported = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t t = 0; t < CACHE_N_TIERS; t++)
            if (sorted[i]->tiers & (1u << t))
                (void)!enter(b, sorted[i], t); /* nothing has to grow */
    free(sorted);
    return OK;
}

/* --- lifecycle --- */

enum status blocks_create(struct blocks **out, uint32_t n_tokens, const struct blocks_sink *sink)
{
    struct blocks *b = calloc(1, sizeof *b);

    ASSERT(n_tokens >= BLOCKS_TOKENS_MIN && n_tokens <= BLOCKS_TOKENS_MAX);
    *out = b;
    if (!b)
        return ERR_NOMEM;
    b->n_tokens = n_tokens;
    b->sink = *sink;
    return OK;
}

void blocks_destroy(struct blocks *b)
{
    struct record **all;

    if (!b)
        return;
    all = b->records.items;
    for (uint32_t i = 0; i < b->records.n; i++)
        free(all[i]);
    table_fini(&b->records);
    table_fini(&b->copies);
    free(b);
}

uint64_t blocks_n(const struct blocks *b)
{
    return b->n_reported;
}

uint64_t blocks_n_skipped(const struct blocks *b)
{
    return b->n_skipped;
}
