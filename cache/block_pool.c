#include "cache/block_pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/map.h"

struct block {
    uint32_t n_refs;
    uint32_t older, newer; /* neighbours in the recency list while cached; newer links the stack
                              of free blocks too */
    bool has_key;
    struct kv_key key;
};

struct block_pool {
    uint32_t n_blocks;
    uint32_t free_head;           /* stack of free blocks */
    uint32_t oldest, newest;      /* recency list of cached blocks */
    uint32_t n_free, n_cached, n_in_use;
    uint64_t n_evicted;
    struct map by_key;            /* first 8 bytes of a key -> block */
    struct block blocks[];
};

enum status block_pool_create(struct block_pool **out, uint32_t n_blocks)
{
    struct block_pool *bp = calloc(1, sizeof *bp + (size_t)n_blocks * sizeof bp->blocks[0]);

    *out = NULL;
    if (!bp)
        return ERR_NOMEM;
    if (map_init(&bp->by_key, n_blocks) != OK) {
        free(bp);
        return ERR_NOMEM;
    }
    bp->n_blocks = bp->n_free = n_blocks;
    bp->oldest = bp->newest = bp->free_head = BLOCK_NONE;
    for (uint32_t i = n_blocks; i-- > 0;) { /* low ids are handed out first */
        bp->blocks[i].newer = bp->free_head;
        bp->free_head = i;
    }
    *out = bp;
    return OK;
}

void block_pool_destroy(struct block_pool *bp)
{
    if (!bp)
        return;
    map_fini(&bp->by_key);
    free(bp);
}

/* A keyed hash is uniform: any 8 bytes of it name a block; the full key decides. */
static uint64_t short_key(const struct kv_key *key)
{
    uint64_t k;

    memcpy(&k, key->bytes, sizeof k);
    return k;
}

static void list_append(struct block_pool *bp, uint32_t id)
{
    struct block *b = &bp->blocks[id];

    b->older = bp->newest;
    b->newer = BLOCK_NONE;
    if (bp->newest != BLOCK_NONE)
        bp->blocks[bp->newest].newer = id;
    else
        bp->oldest = id;
    bp->newest = id;
    bp->n_cached++;
}

static void list_remove(struct block_pool *bp, uint32_t id)
{
    struct block *b = &bp->blocks[id];

    if (b->older != BLOCK_NONE)
        bp->blocks[b->older].newer = b->newer;
    else
        bp->oldest = b->newer;
    if (b->newer != BLOCK_NONE)
        bp->blocks[b->newer].older = b->older;
    else
        bp->newest = b->older;
    bp->n_cached--;
}

static void push_free(struct block_pool *bp, uint32_t id)
{
    bp->blocks[id].newer = bp->free_head;
    bp->free_head = id;
    bp->n_free++;
}

static void evict_oldest(struct block_pool *bp)
{
    uint32_t id = bp->oldest;
    struct block *b = &bp->blocks[id];

    ASSERT(id != BLOCK_NONE && b->n_refs == 0 && b->has_key);
    list_remove(bp, id);
    ASSERT(map_remove(&bp->by_key, short_key(&b->key)));
    b->has_key = false;
    bp->n_evicted++;
    push_free(bp, id);
}

enum status block_pool_alloc(struct block_pool *bp, uint32_t *ids, uint32_t n)
{
    if (n > bp->n_free + bp->n_cached)
        return ERR_NO_BLOCKS;
    while (bp->n_free < n)
        evict_oldest(bp);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = bp->free_head;
        struct block *b = &bp->blocks[id];
        ASSERT(b->n_refs == 0 && !b->has_key);
        bp->free_head = b->newer;
        b->n_refs = 1;
        ids[i] = id;
    }
    bp->n_free -= n;
    bp->n_in_use += n;
    return OK;
}

void block_pool_ref(struct block_pool *bp, uint32_t id)
{
    struct block *b = &bp->blocks[id];

    ASSERT(id < bp->n_blocks && (b->n_refs > 0 || b->has_key));
    if (b->n_refs++ == 0) {
        list_remove(bp, id);
        bp->n_in_use++;
    }
}

void block_pool_unref(struct block_pool *bp, uint32_t id)
{
    struct block *b = &bp->blocks[id];

    ASSERT(id < bp->n_blocks && b->n_refs > 0);
    if (--b->n_refs > 0)
        return;
    bp->n_in_use--;
    if (b->has_key)
        list_append(bp, id);
    else
        push_free(bp, id);
}

uint32_t block_pool_n_refs(const struct block_pool *bp, uint32_t id)
{
    ASSERT(id < bp->n_blocks);
    return bp->blocks[id].n_refs;
}

uint32_t block_pool_find(const struct block_pool *bp, const struct kv_key *key)
{
    uint32_t id;

    if (!map_get(&bp->by_key, short_key(key), &id))
        return BLOCK_NONE;
    return memcmp(&bp->blocks[id].key, key, sizeof *key) == 0 ? id : BLOCK_NONE;
}

void block_pool_name(struct block_pool *bp, uint32_t id, const struct kv_key *key)
{
    struct block *b = &bp->blocks[id];
    uint32_t other;

    ASSERT(id < bp->n_blocks && b->n_refs > 0 && !b->has_key);
    /* Two different keys with equal first 8 bytes: the newcomer stays unnamed, which costs a hit
     * once in 2^64 and nothing else. */
    if (map_get(&bp->by_key, short_key(key), &other))
        return;
    b->key = *key;
    b->has_key = true;
    map_put(&bp->by_key, short_key(key), id);
}

void block_pool_forget(struct block_pool *bp)
{
    while (bp->n_cached > 0)
        evict_oldest(bp);
}

void block_pool_stats(const struct block_pool *bp, struct cache_stats *out)
{
    out->n_blocks = bp->n_blocks;
    out->n_free = bp->n_free;
    out->n_cached = bp->n_cached;
    out->n_in_use = bp->n_in_use;
    out->n_in_transfer = 0;
    out->n_leaked = bp->n_blocks - bp->n_free - bp->n_cached - bp->n_in_use;
    out->n_evicted = bp->n_evicted;
}

uint32_t block_pool_n_available(const struct block_pool *bp)
{
    return bp->n_free + bp->n_cached;
}

void block_pool_check(const struct block_pool *bp)
{
    uint32_t n_free = 0, n_cached = 0, n_in_use = 0, n_keys = 0, found;

    for (uint32_t id = bp->free_head; id != BLOCK_NONE; id = bp->blocks[id].newer) {
        ASSERT(bp->blocks[id].n_refs == 0 && !bp->blocks[id].has_key);
        ASSERT(++n_free <= bp->n_blocks);
    }
    for (uint32_t id = bp->oldest, older = BLOCK_NONE; id != BLOCK_NONE;
         older = id, id = bp->blocks[id].newer) {
        ASSERT(bp->blocks[id].n_refs == 0 && bp->blocks[id].has_key);
        ASSERT(bp->blocks[id].older == older);
        ASSERT(++n_cached <= bp->n_blocks);
    }
    for (uint32_t id = 0; id < bp->n_blocks; id++) {
        n_in_use += bp->blocks[id].n_refs > 0;
        if (bp->blocks[id].has_key) {
            n_keys++;
            ASSERT(map_get(&bp->by_key, short_key(&bp->blocks[id].key), &found) && found == id);
        }
    }
    ASSERT(n_keys == bp->by_key.n);
    ASSERT(n_free == bp->n_free && n_cached == bp->n_cached && n_in_use == bp->n_in_use);
    ASSERT(n_free + n_cached + n_in_use == bp->n_blocks);
}
