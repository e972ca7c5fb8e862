#include "cache/tree/key_index.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cache/key.h"

#define BUCKET_KEYS 8 /* one cache line */

struct key_index {
    uint64_t n_buckets;     /* a power of two */
    _Atomic uint64_t *tags; /* [n_buckets * BUCKET_KEYS]; 0: free */
};

enum status key_index_create(struct key_index **out, uint32_t n_keys_max)
{
    struct key_index *x = calloc(1, sizeof *x);

    *out = NULL;
    if (!x)
        return ERR_NOMEM;
    /* At most half full, so that a bucket is almost never full. */
    for (x->n_buckets = 1; x->n_buckets * BUCKET_KEYS < 2 * (uint64_t)n_keys_max;)
        x->n_buckets *= 2;
    x->tags = memory_zeroed(x->n_buckets * BUCKET_KEYS, sizeof *x->tags);
    if (!x->tags) {
        free(x);
        return ERR_NOMEM;
    }
    *out = x;
    return OK;
}

void key_index_destroy(struct key_index *x)
{
    if (!x)
        return;
    free(x->tags);
    free(x);
}

static _Atomic uint64_t *bucket_of(const struct key_index *x, const struct kv_key *key)
{
    return x->tags + (short_key(key) & (x->n_buckets - 1)) * BUCKET_KEYS;
}

/* The tag uses other bits of the key than the choice of the bucket; it is never 0. */
static uint64_t tag_of(const struct kv_key *key)
{
    uint64_t tag;

    memcpy(&tag, key->bytes + sizeof tag, sizeof tag);
    return tag | 1;
}

void key_index_add(struct key_index *x, const struct kv_key *key)
{
    if (!x)
        return;
    _Atomic uint64_t *tags = bucket_of(x, key);
    uint64_t tag = tag_of(key);
    unsigned place = (unsigned)(tag >> 1) % BUCKET_KEYS; /* overwrite one in a full bucket */

    for (unsigned i = 0; i < BUCKET_KEYS; i++) {
        uint64_t there = atomic_load_explicit(&tags[i], memory_order_relaxed);
        if (there == tag)
            return;
        if (there == 0)
            place = i;
    }
    atomic_store_explicit(&tags[place], tag, memory_order_relaxed);
}

void key_index_remove(struct key_index *x, const struct kv_key *key)
{
    if (!x)
        return;
    _Atomic uint64_t *tags = bucket_of(x, key);

    for (unsigned i = 0; i < BUCKET_KEYS; i++)
        if (atomic_load_explicit(&tags[i], memory_order_relaxed) == tag_of(key))
            atomic_store_explicit(&tags[i], 0, memory_order_relaxed);
}

bool key_index_has(const struct key_index *x, const struct kv_key *key)
{
    if (!x)
        return false;
    const _Atomic uint64_t *tags = bucket_of(x, key);

    for (unsigned i = 0; i < BUCKET_KEYS; i++)
        if (atomic_load_explicit(&tags[i], memory_order_relaxed) == tag_of(key))
            return true;
    return false;
}

uint64_t key_index_memory_bytes(const struct key_index *x)
{
    return x ? sizeof *x + x->n_buckets * BUCKET_KEYS * sizeof *x->tags : 0;
}
