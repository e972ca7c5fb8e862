/* vectors_inner.h - what the vectors*.c files share: the index with its ids, and the journal.
 *
 * Faiss numbers vectors by slots: 0, 1, ... in the order of their addition. A body is a Faiss index
 * with the id of every slot. A rebuild fills a second body while changes go to the first one and,
 * as rows of the journal, are repeated in the second one before it takes over.
 *
 * Owns    see vectors.h.
 * Thread  a body in use: under the lock; a body that is being built: the thread that builds it.
 * Errors  as vectors.h.
 * Units   none. */
#ifndef TARN_ENGINE_RETRIEVAL_VECTORS_INNER_H
#define TARN_ENGINE_RETRIEVAL_VECTORS_INNER_H

#include <pthread.h>

#include "base/map.h"
#include "engine/retrieval/faiss_index.h"
#include "engine/retrieval/vectors.h"

struct body {
    struct faiss_index *ix;
    char factory[VECTORS_FACTORY_BYTES_MAX];
    uint32_t dim;
    uint32_t n_slots, n_dead, cap;
    uint32_t n_built;   /* live vectors when its lists were chosen */
    int64_t *ids;       /* [cap] */
    uint64_t *marks;    /* [cap] vector_mark() */
    uint8_t *is_dead;   /* [cap] */
    struct map slot_of; /* id of a live vector -> slot */
};

struct change {
    int64_t id;
    uint64_t mark;
    uint64_t is_put; /* else the id was removed; dim floats follow in both cases */
};

struct vectors {
    uint32_t dim;
    char factory[VECTORS_FACTORY_BYTES_MAX]; /* of the configuration */
    uint32_t n_lists_wanted;                 /* of an explicit inverted file; else 0 */
    char *file;                              /* NULL: not saved */
    uint64_t generation;
    uint32_t n_probe, n_threads;
    uint64_t seed;

    pthread_rwlock_t lock; /* of what follows; taken before `mutex` */
    struct body *now;
    uint64_t serial;                     /* counts bodies */
    struct buf journal;                  /* rows of struct change, while is_journaled */
    bool is_journaled;                   /* a rebuild has begun to copy */
    bool is_journal_bad;                 /* a row found no memory: the rebuild must not take over */
    uint64_t n_changes, n_changes_retry; /* after a failure, the next rebuild waits for changes */

    pthread_mutex_t saving;                 /* one save at a time; taken before `lock` */
    uint64_t n_changes_saved, serial_saved; /* the file's; read and set while saving */
    pthread_mutex_t mutex;                  /* of what follows */
    pthread_cond_t ended;
    pthread_t thread;
    bool has_thread; /* to be joined */
    bool is_rebuilding;
    bool is_due_again; /* became due while the thread was about to end */
    uint64_t n_rebuilds;
    bool stop; /* the index is being closed; atomic, without the mutex */
};

#define JOURNAL_BYTES_MAX ((size_t)1 << 40)

/* Hash of a normalized vector, to recognize the same vector. */
uint64_t vector_mark(const float *x, uint32_t dim);

NODISCARD enum status body_create(struct body **out, uint32_t dim, const char *factory,
                                  uint64_t seed, struct buf *why);
void body_destroy(struct body *b); /* NULL is fine */
NODISCARD enum status body_reserve(struct body *b, uint64_t n_more, struct buf *why);
/* Add normalized vectors, replacing those of the same ids. */
NODISCARD enum status body_add(struct body *b, const struct faiss_work *work, const int64_t *ids,
                               const uint64_t *marks, const float *x, uint32_t n, struct buf *why);
bool body_kill(struct body *b, int64_t id); /* false: the id has no live vector */
static inline uint32_t body_n_live(const struct body *b)
{
    return b->n_slots - b->n_dead;
}

static inline bool vectors_is_stopped(const struct vectors *v)
{
    return __atomic_load_n(&v->stop, __ATOMIC_RELAXED);
}

/* Write q / |q| to out. */
NODISCARD enum status vectors_normalize(float *out, const float *q, uint32_t dim, struct buf *why);
/* Start a rebuild if one is due and none runs. The caller holds no lock. */
void vectors_rebuild_if_due(struct vectors *v);
/* Read the file into v->now; anything but OK leaves v->now as it was. */
NODISCARD enum status vectors_load(struct vectors *v);

#endif
