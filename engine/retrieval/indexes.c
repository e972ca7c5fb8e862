#include "engine/retrieval/indexes.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/list.h"
#include "base/log.h"

#define READ_CHUNK 256 /* vectors of the catalog put at once */

enum index_state { INDEX_OPEN, INDEX_BUSY /* is being opened or closed */ };

struct index_use {
    struct link link; /* in indexes.all, least recently used first */
    char tenant[sizeof((struct document *)0)->tenant];
    enum index_state state;
    uint32_t n_users;
    pthread_rwlock_t lock;   /* of `vectors`: written to change the dimension */
    struct vectors *vectors; /* NULL: no vector was ever put */
    uint32_t dim;
    struct vectors **retired; /* empty ones of another dimension, which a search may still use */
    uint32_t n_retired;
};

struct indexes {
    struct catalog *catalog;
    char *dir, *factory; /* may be NULL */
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a state, or a number of users */
    struct link all;
    uint32_t n_open;
    uint64_t n_rebuilds; /* of indexes that were closed */
};

enum status indexes_create(struct indexes **out, const struct retrieval_config *config,
                           struct buf *why)
{
    struct indexes *x = calloc(1, sizeof *x);

    *out = NULL;
    if (!x)
        return ERR_NOMEM;
    x->catalog = config->catalog;
    x->dir = config->dir ? strdup(config->dir) : NULL;
    x->factory = config->factory ? strdup(config->factory) : NULL;
    link_init(&x->all);
    pthread_mutex_init(&x->mutex, NULL);
    pthread_cond_init(&x->changed, NULL);
    if ((config->dir && !x->dir) || (config->factory && !x->factory)) {
        indexes_destroy(x);
        return ERR_NOMEM;
    }
    if (x->dir && mkdir(x->dir, 0700) != 0 && errno != EEXIST) {
        enum status s = buf_why(why, ERR_IO, "%s: %s", x->dir, strerror(errno));

        indexes_destroy(x);
        return s;
    }
    *out = x;
    return OK;
}

/* --- one index --- */

/* A tenant's name may have any characters, so the file is named after its hash. */
static void name_file(const struct indexes *x, const char *tenant, char *out, size_t size)
{
    uint8_t digest[16];
    char hex[2 * sizeof digest + 1];

    hash_blake2b(digest, sizeof digest, tenant, strlen(tenant), NULL, 0);
    hash_hex(hex, digest, sizeof digest);
    snprintf(out, size, "%s/vectors-%s", x->dir, hex);
}

static enum status open_vectors(struct indexes *x, struct index_use *use, uint32_t dim,
                                bool *is_loaded, struct buf *why)
{
    char file[4096];
    const struct vectors_config config = {
        .dim = dim, .factory = x->factory, .file = x->dir ? file : NULL};

    if (x->dir)
        name_file(x, use->tenant, file, sizeof file);
    enum status s = vectors_open(&use->vectors, &config, is_loaded, why);
    use->dim = s == OK ? dim : 0;
    return s;
}

/* Reads a tenant's vectors from the catalog. */
struct reader {
    struct indexes *x;
    struct index_use *use;
    float *chunk; /* [READ_CHUNK, dim] */
    int64_t ids[READ_CHUNK];
    uint32_t n;
    int64_t *seen; /* all ids */
    uint64_t n_seen, cap;
    uint64_t n_skipped;
    bool is_loaded;
    enum status status;
    struct buf *why;
};

static void flush(struct reader *r)
{
    if (r->status == OK && r->n)
        r->status = vectors_put_many(r->use->vectors, r->ids, r->chunk, r->n, r->why);
    r->n = 0;
}

static enum status start_reading(struct reader *r, uint32_t dim)
{
    enum status s = open_vectors(r->x, r->use, dim, &r->is_loaded, r->why);

    if (s != OK)
        return s;
    r->chunk = malloc((size_t)READ_CHUNK * dim * sizeof *r->chunk);
    return r->chunk ? OK : ERR_NOMEM;
}

static bool read_one(void *arg, int64_t row, const float *v, uint32_t dim)
{
    struct reader *r = arg;

    if (!r->use->vectors)
        r->status = start_reading(r, dim);
    if (r->status != OK)
        return false;
    if (dim != r->use->dim) {
        r->n_skipped++;
        return true;
    }
    if (r->n_seen == r->cap) {
        uint64_t cap = r->cap ? 2 * r->cap : 1024;
        int64_t *seen = realloc(r->seen, cap * sizeof *seen);

        if (!seen) {
            r->status = ERR_NOMEM;
            return false;
        }
        r->seen = seen;
        r->cap = cap;
    }
    r->seen[r->n_seen++] = row;
    memcpy(r->chunk + (size_t)r->n * dim, v, dim * sizeof *v);
    r->ids[r->n++] = row;
    if (r->n == READ_CHUNK)
        flush(r);
    return r->status == OK;
}

static int compare_rows(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* Bring the index up to the catalog. Vectors that the file had already are left as they are. */
static enum status open_index(struct indexes *x, struct index_use *use, struct buf *why)
{
    struct reader r = {.x = x, .use = use, .why = why};
    enum status s;

    if (!vectors_are_supported())
        return OK;
    s = catalog_each_embedding(x->catalog, use->tenant, read_one, &r, why);
    flush(&r);
    if (s == OK)
        s = r.status;
    if (s == OK && r.is_loaded) {
        qsort(r.seen, r.n_seen, sizeof *r.seen, compare_rows);
        vectors_retain(use->vectors, r.seen, r.n_seen);
    }
    if (r.n_skipped)
        log_event(LOG_WARN, "embeddings of another dimension left out",
                  "tenant=\"%s\" dim=%u n=%llu", use->tenant, use->dim,
                  (unsigned long long)r.n_skipped);
    free(r.chunk);
    free(r.seen);
    return s;
}

static uint64_t close_index(struct index_use *use)
{
    struct vectors_stats stats = {0};
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (use->vectors) {
        vectors_stats(use->vectors, &stats);
        if (vectors_save(use->vectors, &why) != OK)
            log_event(LOG_WARN, "vector index not saved", "why=\"%s\"", buf_str(&why));
    }
    vectors_close(use->vectors);
    for (uint32_t i = 0; i < use->n_retired; i++)
        vectors_close(use->retired[i]);
    free(use->retired);
    pthread_rwlock_destroy(&use->lock);
    free(use);
    buf_fini(&why);
    return stats.n_rebuilds;
}

void indexes_destroy(struct indexes *x)
{
    if (!x)
        return;
    for (struct link *l = x->all.next, *next; l != &x->all; l = next) {
        next = l->next;
        close_index(LINK_ITEM(l, index_use, link));
    }
    pthread_mutex_destroy(&x->mutex);
    pthread_cond_destroy(&x->changed);
    free(x->dir);
    free(x->factory);
    free(x);
}

/* --- the open ones; the caller holds the mutex --- */

static struct index_use *find(struct indexes *x, const char *tenant)
{
    for (struct link *l = x->all.next; l != &x->all; l = l->next) {
        struct index_use *use = LINK_ITEM(l, index_use, link);

        if (strcmp(use->tenant, tenant) == 0)
            return use;
    }
    return NULL;
}

/* Close the least recently used index that nobody uses; all may be in use, then more are open. */
static void make_room(struct indexes *x)
{
    struct index_use *use = NULL;

    for (struct link *l = x->all.next; l != &x->all && !use; l = l->next) {
        use = LINK_ITEM(l, index_use, link);
        if (use->state != INDEX_OPEN || use->n_users > 0)
            use = NULL;
    }
    if (!use)
        return;
    use->state = INDEX_BUSY;
    pthread_mutex_unlock(&x->mutex);
    if (use->vectors) { /* saved before the entry goes, so that nobody reads an old file */
        struct buf why;

        buf_init(&why, BUF_WHY_MAX);
        if (vectors_save(use->vectors, &why) != OK)
            log_event(LOG_WARN, "vector index not saved", "why=\"%s\"", buf_str(&why));
        buf_fini(&why);
    }
    pthread_mutex_lock(&x->mutex);
    link_remove(&use->link);
    x->n_open--;
    x->n_rebuilds += close_index(use);
    pthread_cond_broadcast(&x->changed);
}

static struct index_use *add(struct indexes *x, const char *tenant)
{
    struct index_use *use = calloc(1, sizeof *use);

    if (!use || pthread_rwlock_init(&use->lock, NULL) != 0) {
        free(use);
        return NULL;
    }
    snprintf(use->tenant, sizeof use->tenant, "%s", tenant);
    use->state = INDEX_BUSY;
    link_append(&x->all, &use->link);
    x->n_open++;
    return use;
}

static enum status open_new(struct index_use **out, struct indexes *x, const char *tenant,
                            struct buf *why)
{
    struct index_use *use = add(x, tenant);
    enum status s;

    if (!use)
        return ERR_NOMEM;
    pthread_mutex_unlock(&x->mutex);
    s = open_index(x, use, why);
    pthread_mutex_lock(&x->mutex);
    if (s == OK) {
        use->state = INDEX_OPEN;
        use->n_users++;
        *out = use;
    } else {
        link_remove(&use->link);
        x->n_open--;
        close_index(use);
    }
    pthread_cond_broadcast(&x->changed);
    return s;
}

/* Find the tenant's index, waiting while it is opened or closed. */
static struct index_use *find_and_use(struct indexes *x, const char *tenant)
{
    struct index_use *use;

    while ((use = find(x, tenant)) && use->state == INDEX_BUSY)
        pthread_cond_wait(&x->changed, &x->mutex);
    if (use) {
        use->n_users++;
        link_remove(&use->link);
        link_append(&x->all, &use->link);
    }
    return use;
}

enum status indexes_get(struct index_use **out, struct indexes *x, const char *tenant,
                        struct buf *why)
{
    enum status s = OK;

    pthread_mutex_lock(&x->mutex);
    *out = find_and_use(x, tenant);
    if (!*out && x->n_open >= RETRIEVAL_N_OPEN_MAX) {
        make_room(x);
        *out = find_and_use(x, tenant); /* another thread may have opened it meanwhile */
    }
    if (!*out)
        s = open_new(out, x, tenant, why);
    pthread_mutex_unlock(&x->mutex);
    return s;
}

struct index_use *indexes_get_open(struct indexes *x, const char *tenant)
{
    struct index_use *use;

    pthread_mutex_lock(&x->mutex);
    use = find_and_use(x, tenant);
    pthread_mutex_unlock(&x->mutex);
    return use;
}

void indexes_put_back(struct indexes *x, struct index_use *use)
{
    if (!use)
        return;
    pthread_mutex_lock(&x->mutex);
    use->n_users--;
    pthread_mutex_unlock(&x->mutex);
}

/* --- vectors of one index --- */

struct vectors *index_vectors(struct index_use *use)
{
    struct vectors *v;

    pthread_rwlock_rdlock(&use->lock);
    v = use->vectors;
    pthread_rwlock_unlock(&use->lock);
    return v;
}

static uint64_t n_live(struct vectors *v)
{
    struct vectors_stats stats;

    vectors_stats(v, &stats);
    return stats.n_live;
}

uint32_t index_dim(struct index_use *use)
{
    uint32_t dim = 0;

    pthread_rwlock_rdlock(&use->lock);
    if (use->vectors && n_live(use->vectors) > 0)
        dim = use->dim;
    pthread_rwlock_unlock(&use->lock);
    return dim;
}

/* Make the index one of `dim` entries: it has no vectors yet, or none that live. */
static enum status set_dim(struct indexes *x, struct index_use *use, uint32_t dim, struct buf *why)
{
    struct vectors **retired;
    bool is_loaded;

    if (use->vectors && use->dim == dim)
        return OK; /* another thread was faster */
    if (use->vectors && n_live(use->vectors) > 0)
        return buf_why(why, ERR_INVALID,
                       "the embedding has %u entries, but those of the other documents have %u",
                       dim, use->dim);
    if (use->vectors) {
        retired = realloc(use->retired, (use->n_retired + 1) * sizeof(struct vectors *));
        if (!retired)
            return ERR_NOMEM;
        use->retired = retired;
        retired[use->n_retired++] = use->vectors;
        use->vectors = NULL;
    }
    if (x->dir) {
        char file[4096];

        name_file(x, use->tenant, file, sizeof file);
        unlink(file); /* whatever it has is none of the catalog's now */
    }
    return open_vectors(x, use, dim, &is_loaded, why);
}

enum status index_put(struct indexes *x, struct index_use *use, int64_t row, const float *v,
                      uint32_t dim, struct buf *why)
{
    enum status s = OK;

    if (!vectors_are_supported())
        return OK;
    pthread_rwlock_rdlock(&use->lock);
    while (s == OK && (!use->vectors || use->dim != dim)) {
        pthread_rwlock_unlock(&use->lock);
        pthread_rwlock_wrlock(&use->lock);
        if (use->vectors && use->dim != dim)
            vectors_remove(use->vectors, row); /* the document no longer has this vector */
        s = set_dim(x, use, dim, why);
        pthread_rwlock_unlock(&use->lock);
        pthread_rwlock_rdlock(&use->lock);
    }
    if (s == OK)
        s = vectors_put(use->vectors, row, v, why);
    pthread_rwlock_unlock(&use->lock);
    return s;
}

void index_remove(struct index_use *use, int64_t row)
{
    pthread_rwlock_rdlock(&use->lock);
    if (use->vectors)
        vectors_remove(use->vectors, row);
    pthread_rwlock_unlock(&use->lock);
}

void indexes_stats(struct indexes *x, struct retrieval_stats *out)
{
    pthread_mutex_lock(&x->mutex);
    out->n_rebuilds += x->n_rebuilds;
    for (struct link *l = x->all.next; l != &x->all; l = l->next) {
        struct index_use *use = LINK_ITEM(l, index_use, link);
        struct vectors_stats stats = {0};

        if (use->state != INDEX_OPEN || !index_vectors(use))
            continue;
        vectors_stats(index_vectors(use), &stats);
        out->n_vectors += stats.n_live;
        out->n_tombstones += stats.n_tombstones;
        out->n_rebuilds += stats.n_rebuilds;
        out->memory_bytes += stats.memory_bytes;
    }
    pthread_mutex_unlock(&x->mutex);
}
