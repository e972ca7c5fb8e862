/* pool_table.c - open addressing with linear probing; removal moves the followers back. */
#include "cache/pool/pool_table.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define N_ITEMS_FIRST 1024u

void pool_table_init(struct pool_table *t, uint32_t item_bytes, uint32_t n_max)
{
    *t = (struct pool_table){
        .item_bytes = item_bytes, .n_max = n_max, .first_free = POOL_TABLE_NONE};
}

void pool_table_fini(struct pool_table *t)
{
    free(t->items);
    free(t->slots);
    pool_table_init(t, t->item_bytes, t->n_max);
}

static struct pool_item *item_at(const struct pool_table *t, uint32_t no)
{
    return (struct pool_item *)(void *)(t->items + (size_t)no * t->item_bytes);
}

void *pool_table_at(const struct pool_table *t, uint32_t no)
{
    ASSERT(no < t->n_items);
    return item_at(t, no)->is_used ? item_at(t, no) : NULL;
}

uint32_t pool_table_number(const struct pool_table *t, const void *item)
{
    return (uint32_t)((size_t)((const unsigned char *)item - t->items) / t->item_bytes);
}

static uint32_t home_of(const struct pool_table *t, const uint8_t *key)
{
    uint32_t first;

    memcpy(&first, key, sizeof first);
    return first & t->mask;
}

/* The slot of the key, or the empty slot where it belongs. */
static uint32_t slot_of(const struct pool_table *t, const uint8_t *key)
{
    uint32_t s = home_of(t, key);

    while (t->slots[s] != 0 &&
           memcmp(item_at(t, t->slots[s] - 1)->key, key, POOL_TABLE_KEY_BYTES) != 0)
        s = (s + 1) & t->mask;
    return s;
}

void *pool_table_find(const struct pool_table *t, const uint8_t key[POOL_TABLE_KEY_BYTES])
{
    if (t->n == 0)
        return NULL;
    uint32_t s = slot_of(t, key);
    return t->slots[s] ? item_at(t, t->slots[s] - 1) : NULL;
}

/* Room for twice as many items; at most half of the slots are used. */
static bool grow(struct pool_table *t)
{
    uint32_t n_cap = t->n_cap ? t->n_cap * 2 : N_ITEMS_FIRST, n_slots = 2;

    n_cap = n_cap < t->n_max ? n_cap : t->n_max;
    if (n_cap <= t->n_cap)
        return false;
    while (n_slots < 2 * n_cap)
        n_slots *= 2;
    uint32_t *slots = calloc(n_slots, sizeof *slots);
    unsigned char *items = slots ? realloc(t->items, (size_t)n_cap * t->item_bytes) : NULL;
    if (!items) {
        free(slots);
        return false;
    }
    free(t->slots);
    t->slots = slots;
    t->items = items;
    t->n_cap = n_cap;
    t->mask = n_slots - 1;
    for (uint32_t i = 0; i < t->n_items; i++)
        if (item_at(t, i)->is_used)
            t->slots[slot_of(t, item_at(t, i)->key)] = i + 1;
    return true;
}

void *pool_table_add(struct pool_table *t, const uint8_t key[POOL_TABLE_KEY_BYTES])
{
    uint32_t no = t->first_free;

    if (no != POOL_TABLE_NONE) {
        t->first_free = item_at(t, no)->next_free;
    } else {
        if (t->n_items == t->n_cap && !grow(t))
            return NULL;
        no = t->n_items++;
    }
    struct pool_item *item = item_at(t, no);
    memset(item, 0, t->item_bytes);
    memcpy(item->key, key, POOL_TABLE_KEY_BYTES);
    item->is_used = true;
    t->slots[slot_of(t, key)] = no + 1;
    t->n++;
    return item;
}

void pool_table_remove(struct pool_table *t, void *removed)
{
    struct pool_item *item = removed;
    uint32_t empty = slot_of(t, item->key), s = empty;

    ASSERT(item->is_used && item_at(t, t->slots[empty] - 1) == item);
    t->slots[empty] = 0;
    for (;;) { /* a follower moves back unless its home lies behind the empty slot */
        s = (s + 1) & t->mask;
        if (t->slots[s] == 0)
            break;
        uint32_t home = home_of(t, item_at(t, t->slots[s] - 1)->key);
        if (((s - home) & t->mask) >= ((s - empty) & t->mask)) {
            t->slots[empty] = t->slots[s];
            t->slots[s] = 0;
            empty = s;
        }
    }
    item->is_used = false;
    item->next_free = t->first_free;
    t->first_free = pool_table_number(t, item);
    t->n--;
}

void pool_table_clear(struct pool_table *t)
{
    if (t->slots)
        memset(t->slots, 0, ((size_t)t->mask + 1) * sizeof *t->slots);
    t->n = t->n_items = 0;
    t->first_free = POOL_TABLE_NONE;
}
