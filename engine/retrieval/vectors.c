#include "engine/retrieval/vectors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "engine/retrieval/vectors_inner.h"

#define PUT_CHUNK 128 /* vectors added under one lock: searches wait no longer than that */

/* --- a body --- */

uint64_t vector_mark(const float *x, uint32_t dim)
{
    uint8_t digest[16];
    uint64_t mark;

    hash_blake2b(digest, sizeof digest, x, dim * sizeof *x, NULL, 0);
    memcpy(&mark, digest, sizeof mark);
    return mark;
}

enum status body_create(struct body **out, uint32_t dim, const char *factory, uint64_t seed,
                        struct buf *why)
{
    struct body *b = calloc(1, sizeof *b);
    enum status s;

    *out = NULL;
    if (!b)
        return ERR_NOMEM;
    b->dim = dim;
    memcpy(b->factory, factory, strlen(factory) + 1);
    s = faiss_index_create(&b->ix, dim, factory, seed, why);
    if (s == OK)
        s = map_init(&b->slot_of, 0);
    if (s != OK) {
        body_destroy(b);
        return s;
    }
    *out = b;
    return OK;
}

void body_destroy(struct body *b)
{
    if (!b)
        return;
    faiss_index_destroy(b->ix);
    map_fini(&b->slot_of);
    free(b->ids);
    free(b->marks);
    free(b->is_dead);
    free(b);
}

static bool grow(void *array, size_t n, size_t size)
{
    void *old, *new;

    memcpy(&old, array, sizeof old);
    new = realloc(old, n * size);
    if (new)
        memcpy(array, &new, sizeof new);
    return new != NULL;
}

enum status body_reserve(struct body *b, uint64_t n_more, struct buf *why)
{
    uint64_t need = b->n_slots + n_more, cap = b->cap ? b->cap : 64;
    struct map slot_of;

    if (need <= b->cap)
        return OK;
    if (need > INT32_MAX)
        return buf_why(why, ERR_TOO_LARGE, "an index holds at most %d vectors", INT32_MAX);
    while (cap < need)
        cap *= 2;
    if (!grow(&b->ids, cap, sizeof *b->ids) || !grow(&b->marks, cap, sizeof *b->marks) ||
        !grow(&b->is_dead, cap, sizeof *b->is_dead) || map_init(&slot_of, (uint32_t)cap) != OK)
        return buf_why(why, ERR_NOMEM, "no memory for %llu vectors", (unsigned long long)cap);
    for (uint32_t i = 0; i < b->n_slots; i++)
        if (!b->is_dead[i])
            map_put(&slot_of, (uint64_t)b->ids[i], i);
    map_fini(&b->slot_of);
    b->slot_of = slot_of;
    b->cap = (uint32_t)cap;
    return OK;
}

bool body_kill(struct body *b, int64_t id)
{
    uint32_t slot;

    if (!map_get(&b->slot_of, (uint64_t)id, &slot))
        return false;
    map_remove(&b->slot_of, (uint64_t)id);
    b->is_dead[slot] = 1;
    b->n_dead++;
    return true;
}

enum status body_add(struct body *b, const struct faiss_work *work, const int64_t *ids,
                     const uint64_t *marks, const float *x, uint32_t n, struct buf *why)
{
    enum status s = n ? body_reserve(b, n, why) : OK;

    if (s == OK && n)
        s = faiss_index_add(b->ix, work, x, n, why);
    if (s != OK)
        return s;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = b->n_slots++;

        body_kill(b, ids[i]);
        b->ids[slot] = ids[i];
        b->marks[slot] = marks[i];
        b->is_dead[slot] = 0;
        map_put(&b->slot_of, (uint64_t)ids[i], slot);
    }
    return OK;
}

/* --- open and close --- */

bool vectors_are_supported(void)
{
    return faiss_index_is_supported();
}

static bool is_auto(const char *factory)
{
    return strcmp(factory, "auto") == 0;
}

static enum status check_factory(struct vectors *v, const char *factory, struct buf *why)
{
    struct body *made;
    enum status s;

    if (strlen(factory) >= sizeof v->factory)
        return buf_why(why, ERR_INVALID, "factory: at most %zu bytes", sizeof v->factory - 1);
    memcpy(v->factory, factory, strlen(factory) + 1);
    s = body_create(&made, v->dim, is_auto(factory) ? "Flat" : factory, v->seed, why);
    if (s == ERR_INVALID) {
        struct buf words = {0};

        buf_init(&words, BUF_WHY_MAX);
        buf_why(&words, s, "%s", why ? buf_str(why) : "");
        buf_why(why, s, "factory \"%s\": %s", factory, buf_str(&words));
        buf_fini(&words);
    }
    if (s == OK)
        v->n_lists_wanted = faiss_index_n_lists(made->ix);
    if (s == OK && !v->n_lists_wanted)
        v->now = made;
    else
        body_destroy(made);
    return s;
}

static enum status init_locks(struct vectors *v)
{
    pthread_rwlockattr_t attr;

    if (pthread_rwlockattr_init(&attr) != 0)
        return ERR_NOMEM;
    /* With the default, a steady stream of searches would keep puts out for ever. */
    pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    int bad = pthread_rwlock_init(&v->lock, &attr);
    pthread_rwlockattr_destroy(&attr);
    if (bad)
        return ERR_NOMEM;
    pthread_mutex_init(&v->mutex, NULL);
    pthread_mutex_init(&v->saving, NULL);
    pthread_cond_init(&v->ended, NULL);
    return OK;
}

enum status vectors_open(struct vectors **out, const struct vectors_config *config, bool *is_loaded,
                         struct buf *why)
{
    struct vectors *v;
    enum status s;

    *out = NULL;
    *is_loaded = false;
    if (config->dim == 0 || config->dim > VECTORS_DIM_MAX)
        return buf_why(why, ERR_INVALID, "a vector has 1 to %u entries", VECTORS_DIM_MAX);
    v = calloc(1, sizeof *v);
    if (!v || init_locks(v) != OK) {
        free(v);
        return ERR_NOMEM;
    }
    v->dim = config->dim;
    v->generation = config->generation;
    v->n_probe = config->n_probe;
    v->n_threads = config->n_threads ? config->n_threads : 1;
    v->seed = config->seed;
    buf_init(&v->journal, JOURNAL_BYTES_MAX);
    s = check_factory(v, config->factory ? config->factory : "auto", why);
    if (s == OK && !v->now)
        s = body_create(&v->now, v->dim, "Flat", v->seed, why);
    if (s == OK && config->file && !(v->file = strdup(config->file)))
        s = ERR_NOMEM;
    if (s != OK) {
        vectors_close(v);
        return s;
    }
    if (v->file)
        *is_loaded = vectors_load(v) == OK;
    *out = v;
    return OK;
}

void vectors_close(struct vectors *v)
{
    if (!v)
        return;
    __atomic_store_n(&v->stop, true, __ATOMIC_RELAXED);
    vectors_wait(v);
    if (v->has_thread)
        pthread_join(v->thread, NULL);
    body_destroy(v->now);
    buf_fini(&v->journal);
    pthread_rwlock_destroy(&v->lock);
    pthread_mutex_destroy(&v->mutex);
    pthread_mutex_destroy(&v->saving);
    pthread_cond_destroy(&v->ended);
    free(v->file);
    free(v);
}

/* --- changes --- */

enum status vectors_normalize(float *out, const float *x, uint32_t dim, struct buf *why)
{
    double sum = 0;

    for (uint32_t i = 0; i < dim; i++)
        sum += (double)x[i] * x[i];
    if (!isfinite(sum))
        return buf_why(why, ERR_INVALID, "the vector has an entry that is not a finite number");
    if (sum < 1e-60)
        return buf_why(why, ERR_INVALID, "the vector is zero, so it has no direction");
    for (uint32_t i = 0; i < dim; i++)
        out[i] = (float)(x[i] / sqrt(sum));
    return OK;
}

static void journal(struct vectors *v, int64_t id, uint64_t mark, const float *x)
{
    struct change c = {.id = id, .mark = mark, .is_put = x != NULL};
    size_t row = sizeof c + v->dim * sizeof *x;

    if (!v->is_journaled || v->is_journal_bad)
        return;
    if (buf_reserve(&v->journal, row) != OK || buf_append(&v->journal, &c, sizeof c) != OK) {
        v->is_journal_bad = true;
        return;
    }
    memset(v->journal.data + v->journal.len, 0, v->dim * sizeof *x);
    if (x)
        memcpy(v->journal.data + v->journal.len, x, v->dim * sizeof *x);
    v->journal.len += v->dim * sizeof *x;
}

struct chunk {
    int64_t ids[PUT_CHUNK];
    uint64_t marks[PUT_CHUNK];
    uint32_t n;
    float x[]; /* [PUT_CHUNK, dim] */
};

/* Copy the vectors that differ from the index's, the last one of each id. */
static void fill_chunk(const struct vectors *v, struct chunk *c, const int64_t *ids, const float *x,
                       const uint64_t *marks, uint32_t n)
{
    c->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool is_same = false;
        uint32_t slot;

        if (map_get(&v->now->slot_of, (uint64_t)ids[i], &slot))
            is_same = v->now->marks[slot] == marks[i];
        for (uint32_t j = i + 1; j < n; j++)
            is_same |= ids[j] == ids[i]; /* a later one of the chunk replaces this one */
        if (is_same)
            continue;
        c->ids[c->n] = ids[i];
        c->marks[c->n] = marks[i];
        memcpy(c->x + (size_t)c->n++ * v->dim, x + (size_t)i * v->dim, v->dim * sizeof *x);
    }
}

static enum status put_chunk(struct vectors *v, struct chunk *c, float *x, const int64_t *ids,
                             uint32_t n, struct buf *why)
{
    uint64_t marks[PUT_CHUNK];
    enum status s = OK;

    for (uint32_t i = 0; i < n; i++)
        marks[i] = vector_mark(x + (size_t)i * v->dim, v->dim);
    pthread_rwlock_wrlock(&v->lock);
    fill_chunk(v, c, ids, x, marks, n);
    if (c->n)
        s = body_add(v->now, NULL, c->ids, c->marks, c->x, c->n, why);
    for (uint32_t i = 0; s == OK && i < c->n; i++)
        journal(v, c->ids[i], c->marks[i], c->x + (size_t)i * v->dim);
    v->n_changes += c->n;
    pthread_rwlock_unlock(&v->lock);
    return s;
}

enum status vectors_put_many(struct vectors *v, const int64_t *ids, const float *x, uint32_t n,
                             struct buf *why)
{
    size_t bytes = (size_t)PUT_CHUNK * v->dim * sizeof(float);
    struct chunk *c = malloc(sizeof *c + bytes);
    float *normal = malloc(bytes);
    enum status s = c && normal ? OK : ERR_NOMEM;

    for (uint32_t i = 0; s == OK && i < n; i++)
        if (ids[i] < 0)
            s = buf_why(why, ERR_INVALID, "an id below 0");
        else
            s = vectors_normalize(normal, x + (size_t)i * v->dim, v->dim, why);
    for (uint32_t from = 0; s == OK && from < n; from += PUT_CHUNK) {
        uint32_t some = n - from < PUT_CHUNK ? n - from : PUT_CHUNK;

        for (uint32_t i = 0; s == OK && i < some; i++)
            s = vectors_normalize(normal + (size_t)i * v->dim, x + (size_t)(from + i) * v->dim,
                                  v->dim, why);
        if (s == OK)
            s = put_chunk(v, c, normal, ids + from, some, why);
    }
    free(c);
    free(normal);
    vectors_rebuild_if_due(v);
    return s;
}

enum status vectors_put(struct vectors *v, int64_t id, const float *x, struct buf *why)
{
    return vectors_put_many(v, &id, x, 1, why);
}

void vectors_remove(struct vectors *v, int64_t id)
{
    pthread_rwlock_wrlock(&v->lock);
    if (body_kill(v->now, id)) {
        journal(v, id, 0, NULL);
        v->n_changes++;
    }
    pthread_rwlock_unlock(&v->lock);
    vectors_rebuild_if_due(v);
}

static int compare_ids(const void *a, const void *b)
{
    int64_t x, y;

    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

void vectors_retain(struct vectors *v, const int64_t *ids, uint64_t n)
{
    struct body *b;

    pthread_rwlock_wrlock(&v->lock);
    b = v->now;
    for (uint32_t i = 0; i < b->n_slots; i++)
        if (!b->is_dead[i] && !(n && bsearch(&b->ids[i], ids, n, sizeof *ids, compare_ids))) {
            journal(v, b->ids[i], 0, NULL);
            body_kill(b, b->ids[i]);
            v->n_changes++;
        }
    pthread_rwlock_unlock(&v->lock);
    vectors_rebuild_if_due(v);
}

void vectors_stats(struct vectors *v, struct vectors_stats *out)
{
    const struct body *b;

    pthread_rwlock_rdlock(&v->lock);
    b = v->now;
    *out = (struct vectors_stats){
        .n_live = body_n_live(b),
        .n_tombstones = b->n_dead,
        .memory_bytes = faiss_index_bytes(b->ix) + v->journal.cap +
                        (uint64_t)b->cap * (sizeof *b->ids + sizeof *b->marks + 1) +
                        ((uint64_t)b->slot_of.mask + 1) * sizeof *b->slot_of.slots,
    };
    memcpy(out->factory, b->factory, sizeof out->factory);
    pthread_mutex_lock(&v->mutex);
    out->n_rebuilds = v->n_rebuilds;
    out->is_rebuilding = v->is_rebuilding;
    pthread_mutex_unlock(&v->mutex);
    pthread_rwlock_unlock(&v->lock);
}
