#include "server/api/responses.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/list.h"
#include "server/auth/auth.h"

#define N_BUCKETS_MAX (1u << 16)

struct kept {
    struct link by_use, by_id;
    char owner[ACCOUNT_OWNER_BYTES];
    struct response_turn *turn; /* a reference */
    struct buf json;
};

struct responses {
    pthread_mutex_t lock;
    uint32_t n, n_max;
    _Atomic uint64_t n_bytes; /* kept responses and their turns */
    uint64_t bytes_max;
    struct link by_use; /* least recently used first */
    uint32_t n_buckets; /* a power of 2 */
    struct link *buckets;
};

void response_make_id(char id[RESPONSE_ID_BYTES])
{
    uint8_t bytes[RESPONSE_ID_HEX / 2];

    hash_random(bytes, sizeof bytes);
    memcpy(id, RESPONSE_ID_PREFIX, sizeof RESPONSE_ID_PREFIX);
    hash_hex(id + sizeof RESPONSE_ID_PREFIX - 1, bytes, sizeof bytes);
}

/* --- turns --- */

static uint64_t turn_bytes(const struct response_turn *t)
{
    return sizeof *t + t->input.cap + t->output.cap;
}

enum status response_turn_create(struct response_turn **out, const char *id,
                                 struct response_turn *previous)
{
    struct response_turn *t = calloc(1, sizeof *t);

    *out = t;
    if (!t) {
        response_turn_unref(previous);
        return ERR_NOMEM;
    }
    memcpy(t->id, id, strnlen(id, sizeof t->id - 1));
    memcpy(t->root, previous ? previous->root : t->id, sizeof t->root);
    t->previous = previous;
    atomic_init(&t->refs, 1);
    buf_init(&t->input, SIZE_MAX / 2);
    buf_init(&t->output, SIZE_MAX / 2);
    return OK;
}

struct response_turn *response_turn_ref(struct response_turn *t)
{
    atomic_fetch_add(&t->refs, 1);
    return t;
}

void response_turn_unref(struct response_turn *t)
{
    /* A loop, because a chain may be long. */
    while (t && atomic_fetch_sub(&t->refs, 1) == 1) {
        struct response_turn *previous = t->previous;
        if (t->counted_by)
            atomic_fetch_sub(&t->counted_by->n_bytes, turn_bytes(t));
        buf_fini(&t->input);
        buf_fini(&t->output);
        free(t);
        t = previous;
    }
}

/* --- lifecycle --- */

enum status responses_create(struct responses **out, uint32_t n_max, uint64_t bytes_max)
{
    struct responses *r = calloc(1, sizeof *r);

    *out = r;
    if (!r)
        return ERR_NOMEM;
    pthread_mutex_init(&r->lock, NULL);
    link_init(&r->by_use);
    r->n_max = n_max;
    r->bytes_max = bytes_max;
    for (r->n_buckets = 1; r->n_buckets < n_max && r->n_buckets < N_BUCKETS_MAX;)
        r->n_buckets *= 2;
    r->buckets = calloc(r->n_buckets, sizeof *r->buckets);
    for (uint32_t i = 0; r->buckets && i < r->n_buckets; i++)
        link_init(&r->buckets[i]);
    if (r->buckets)
        return OK;
    responses_destroy(r);
    *out = NULL;
    return ERR_NOMEM;
}

static uint64_t kept_bytes(const struct kept *k)
{
    return sizeof *k + k->json.cap;
}

/* Under the lock. */
static void forget(struct responses *r, struct kept *k)
{
    link_remove(&k->by_use);
    link_remove(&k->by_id);
    r->n--;
    atomic_fetch_sub(&r->n_bytes, kept_bytes(k));
    response_turn_unref(k->turn);
    buf_fini(&k->json);
    free(k);
}

void responses_destroy(struct responses *r)
{
    if (!r)
        return;
    while (!link_is_empty(&r->by_use))
        forget(r, LINK_ITEM(r->by_use.next, kept, by_use));
    free(r->buckets);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* --- use --- */

/* Ids are random, but a client may look up any text. */
static struct link *bucket_of(struct responses *r, const char *id)
{
    uint32_t hash = 2166136261u;

    for (; *id; id++)
        hash = (hash ^ (unsigned char)*id) * 16777619u;
    return &r->buckets[hash & (r->n_buckets - 1)];
}

/* Under the lock: the owner's response, which is now the latest used one; NULL: there is none. */
static struct kept *find(struct responses *r, const char *owner, const char *id)
{
    struct link *bucket = bucket_of(r, id);

    for (struct link *l = bucket->next; l != bucket; l = l->next) {
        struct kept *k = LINK_ITEM(l, kept, by_id);
        if (strcmp(k->turn->id, id) != 0 || strcmp(k->owner, owner) != 0)
            continue;
        link_remove(&k->by_use);
        link_append(&r->by_use, &k->by_use);
        return k;
    }
    return NULL;
}

/* Under the lock: forget responses until the bounds hold; `k` is forgotten last. */
static void shrink(struct responses *r)
{
    while (r->n > r->n_max || (r->n > 0 && atomic_load(&r->n_bytes) > r->bytes_max))
        forget(r, LINK_ITEM(r->by_use.next, kept, by_use));
}

enum status responses_keep(struct responses *r, const char *owner, struct response_turn *turn,
                           const struct buf *json)
{
    struct kept *k = calloc(1, sizeof *k);

    if (!k)
        return ERR_NOMEM;
    buf_init(&k->json, json->len);
    enum status s = buf_append(&k->json, buf_str(json), json->len);
    if (s == OK && kept_bytes(k) + turn_bytes(turn) > r->bytes_max)
        s = ERR_TOO_LARGE;
    if (s != OK) {
        buf_fini(&k->json);
        free(k);
        return s;
    }
    memcpy(k->owner, owner, strnlen(owner, sizeof k->owner - 1));
    k->turn = response_turn_ref(turn);
    turn->counted_by = r;
    pthread_mutex_lock(&r->lock);
    atomic_fetch_add(&r->n_bytes, kept_bytes(k) + turn_bytes(turn));
    link_append(&r->by_use, &k->by_use);
    link_append(bucket_of(r, turn->id), &k->by_id);
    r->n++;
    shrink(r);
    pthread_mutex_unlock(&r->lock);
    return OK;
}

struct response_turn *responses_turn(struct responses *r, const char *owner, const char *id)
{
    pthread_mutex_lock(&r->lock);
    struct kept *k = find(r, owner, id);
    struct response_turn *t = k ? response_turn_ref(k->turn) : NULL;
    pthread_mutex_unlock(&r->lock);
    return t;
}

enum status responses_get(struct responses *r, const char *owner, const char *id, struct buf *out)
{
    pthread_mutex_lock(&r->lock);
    const struct kept *k = find(r, owner, id);
    enum status s = k ? buf_append(out, buf_str(&k->json), k->json.len) : ERR_NOT_FOUND;
    pthread_mutex_unlock(&r->lock);
    return s;
}

bool responses_delete(struct responses *r, const char *owner, const char *id)
{
    pthread_mutex_lock(&r->lock);
    struct kept *k = find(r, owner, id);
    if (k)
        forget(r, k);
    pthread_mutex_unlock(&r->lock);
    return k != NULL;
}

void responses_count(struct responses *r, uint32_t *n, uint64_t *bytes)
{
    pthread_mutex_lock(&r->lock);
    *n = r->n;
    *bytes = atomic_load(&r->n_bytes);
    pthread_mutex_unlock(&r->lock);
}
