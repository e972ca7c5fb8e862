/* pool_table.h - a growing array of items that are found by 16 bytes of a key.
 *
 * Items keep their numbers, but move in memory when the table grows: a pointer is valid until the
 * next pool_table_add(). Keys are hashes already (key.h), so their first bytes choose the slot.
 *
 * Owns    its memory.
 * Thread  one at a time.
 * Errors  a table that is full, or out of memory, adds nothing.
 * Units   items. */
#ifndef TARN_CACHE_POOL_POOL_TABLE_H
#define TARN_CACHE_POOL_POOL_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#define POOL_TABLE_KEY_BYTES 16
#define POOL_TABLE_NONE UINT32_MAX

/* The beginning of every item. */
struct pool_item {
    uint8_t key[POOL_TABLE_KEY_BYTES];
    uint32_t next_free; /* while it is not used */
    bool is_used;
};

struct pool_table {
    unsigned char *items;
    uint32_t item_bytes;
    uint32_t n;            /* used */
    uint32_t n_items;      /* numbers that were ever used: [0, n_items) */
    uint32_t n_cap, n_max; /* items that have memory, that may have */
    uint32_t first_free;
    uint32_t *slots; /* [mask + 1] item number + 1; 0: empty */
    uint32_t mask;
};

/* item_bytes: of a struct that begins with a struct pool_item. Allocates nothing yet. */
void pool_table_init(struct pool_table *t, uint32_t item_bytes, uint32_t n_max);
void pool_table_fini(struct pool_table *t);
/* NULL: there is none. */
void *pool_table_find(const struct pool_table *t, const uint8_t key[POOL_TABLE_KEY_BYTES]);
/* A new item, all zero but its key, which is not in the table. NULL: full. */
void *pool_table_add(struct pool_table *t, const uint8_t key[POOL_TABLE_KEY_BYTES]);
void pool_table_remove(struct pool_table *t, void *item);
/* Remove all items and keep the memory. */
void pool_table_clear(struct pool_table *t);
/* Item no < n_items; NULL: it is not used. */
void *pool_table_at(const struct pool_table *t, uint32_t no);
uint32_t pool_table_number(const struct pool_table *t, const void *item);

#endif
