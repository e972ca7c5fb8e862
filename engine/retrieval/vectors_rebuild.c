/* vectors_rebuild.c - builds a new index from the live vectors of the old one, in a thread.
 *
 * 1. From now on every change is also written to the journal.
 * 2. Copy the vectors that lived at that moment, some at a time under the lock of readers: a sample
 *    for the k-means first, then all.
 * 3. Repeat the journal's changes in the new index. Changes that come meanwhile make a new journal;
 *    when that is short, repeat it under the lock of writers and take over. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "engine/retrieval/vectors_inner.h"

#define COPY_CHUNK 512
#define SAMPLE_PER_LIST 64 /* vectors for the k-means */
#define N_DEAD_MIN 32      /* fewer tombstones are no reason to rebuild */
#define LAST_ROWS 16       /* of the journal, repeated while searches wait */
#define CATCH_UPS_MAX 50
#define NICE 5 /* requests go first */

/* Write the factory that suits n_live vectors. */
static void choose_factory(const struct vectors *v, uint64_t n_live,
                           char out[VECTORS_FACTORY_BYTES_MAX])
{
    bool is_auto = strcmp(v->factory, "auto") == 0;

    if (is_auto && n_live >= VECTORS_AUTO_FLAT)
        snprintf(out, VECTORS_FACTORY_BYTES_MAX, "IVF%u,Flat",
                 (unsigned)(2 * sqrt((double)n_live)));
    else if (is_auto || n_live < (uint64_t)v->n_lists_wanted * VECTORS_PER_LIST)
        snprintf(out, VECTORS_FACTORY_BYTES_MAX, "Flat");
    else
        memcpy(out, v->factory, VECTORS_FACTORY_BYTES_MAX);
}

static bool is_due(const struct vectors *v)
{
    const struct body *b = v->now;
    uint32_t n_live = body_n_live(b);
    char wanted[VECTORS_FACTORY_BYTES_MAX];

    if (v->n_changes < v->n_changes_retry)
        return false;
    if (b->n_dead >= N_DEAD_MIN && (uint64_t)b->n_dead * 5 > b->n_slots)
        return true;
    choose_factory(v, n_live, wanted);
    if (faiss_index_n_lists(b->ix) == 0)
        return strcmp(wanted, b->factory) != 0;
    return strcmp(v->factory, "auto") == 0 && n_live / 4 >= b->n_built;
}

struct batch {
    int64_t ids[COPY_CHUNK];
    uint64_t marks[COPY_CHUNK];
    uint64_t n;
    float x[]; /* [COPY_CHUNK, dim] */
};

struct rebuild {
    struct vectors *v;
    struct body *to;
    struct batch *batch;
    uint32_t n_start; /* slots when the journal began */
    uint32_t n_live;
    struct faiss_work work;
};

/* Copy the next live vectors; *has_more is false at the end. */
static void copy_some(struct rebuild *r, struct faiss_cursor *cursor, bool *has_more)
{
    struct vectors *v = r->v;
    struct batch *out = r->batch;
    uint64_t n;

    pthread_rwlock_rdlock(&v->lock);
    faiss_index_copy(v->now->ix, cursor, COPY_CHUNK, out->ids, out->x, &n);
    out->n = 0;
    for (uint64_t i = 0; i < n; i++) {
        int64_t slot = out->ids[i];

        if (slot >= r->n_start || v->now->is_dead[slot])
            continue;
        if (out->n != i)
            memcpy(out->x + out->n * v->dim, out->x + i * v->dim, v->dim * sizeof *out->x);
        out->ids[out->n] = v->now->ids[slot];
        out->marks[out->n++] = v->now->marks[slot];
    }
    pthread_rwlock_unlock(&v->lock);
    *has_more = n > 0;
}

static enum status train(struct rebuild *r, struct buf *why)
{
    struct vectors *v = r->v;
    uint64_t n_lists = faiss_index_n_lists(r->to->ix), n = 0, at = 0;
    uint64_t n_max = n_lists * SAMPLE_PER_LIST < r->n_live ? n_lists * SAMPLE_PER_LIST : r->n_live;
    float share = (float)n_max / (float)r->n_live * 1.02f;
    float *sample = malloc(n_max * v->dim * sizeof *sample);
    struct faiss_cursor cursor = {0};
    bool has_more = true;
    enum status s;

    if (!sample)
        return buf_why(why, ERR_NOMEM, "no memory for a sample of vectors");
    while (has_more && n < n_max && !vectors_is_stopped(v)) {
        copy_some(r, &cursor, &has_more);
        for (uint64_t i = 0; i < r->batch->n && n < n_max; i++)
            if (rng_uniform(v->seed, at++) < share)
                memcpy(sample + n++ * v->dim, r->batch->x + i * v->dim, v->dim * sizeof *sample);
    }
    s = n < n_lists ? buf_why(why, ERR_CANCELLED, "too few vectors are left for %llu lists",
                              (unsigned long long)n_lists)
                    : faiss_index_train(r->to->ix, &r->work, sample, n, why);
    free(sample);
    return s;
}

static enum status copy_all(struct rebuild *r, struct buf *why)
{
    struct faiss_cursor cursor = {0};
    bool has_more = true;
    enum status s = body_reserve(r->to, r->n_live, why);

    while (s == OK && has_more) {
        if (vectors_is_stopped(r->v))
            return ERR_CANCELLED;
        copy_some(r, &cursor, &has_more);
        s = body_add(r->to, &r->work, r->batch->ids, r->batch->marks, r->batch->x,
                     (uint32_t)r->batch->n, why);
    }
    return s;
}

/* Repeat the changes of the rows in the new index. */
static enum status repeat(struct rebuild *r, const struct buf *rows, struct buf *why)
{
    size_t x_bytes = r->v->dim * sizeof(float), row = sizeof(struct change) + x_bytes;
    struct batch *b = r->batch;
    enum status s = OK;

    b->n = 0;
    for (size_t at = 0; s == OK && at < rows->len; at += row) {
        struct change c;

        memcpy(&c, rows->data + at, sizeof c);
        if (c.is_put) {
            b->ids[b->n] = c.id;
            b->marks[b->n] = c.mark;
            memcpy(b->x + b->n++ * r->v->dim, rows->data + at + sizeof c, x_bytes);
        }
        if (b->n && (!c.is_put || b->n == COPY_CHUNK || at + row == rows->len)) {
            s = body_add(r->to, &r->work, b->ids, b->marks, b->x, (uint32_t)b->n, why);
            b->n = 0;
        }
        if (s == OK && !c.is_put)
            body_kill(r->to, c.id);
        if (vectors_is_stopped(r->v))
            s = ERR_CANCELLED;
    }
    return s;
}

static void end_journal(struct vectors *v)
{
    buf_fini(&v->journal);
    buf_init(&v->journal, JOURNAL_BYTES_MAX);
    v->is_journaled = false;
    v->is_journal_bad = false;
}

/* Repeat the journal until it is short, then the rest under the lock, and take over. */
static enum status take_over(struct rebuild *r, struct body **old, struct buf *why)
{
    struct vectors *v = r->v;
    size_t last = LAST_ROWS * (sizeof(struct change) + v->dim * sizeof(float));
    enum status s = OK;

    for (int i = 0; s == OK; i++) {
        struct buf rows;

        pthread_rwlock_wrlock(&v->lock);
        if (v->journal.len <= last || i == CATCH_UPS_MAX)
            break;
        rows = v->journal;
        buf_init(&v->journal, JOURNAL_BYTES_MAX);
        pthread_rwlock_unlock(&v->lock);
        s = repeat(r, &rows, why);
        buf_fini(&rows);
    }
    if (s != OK)
        return s;
    s = v->is_journal_bad ? buf_why(why, ERR_NOMEM, "no memory for the changes of the meantime")
                          : repeat(r, &v->journal, why);
    if (s == OK) {
        *old = v->now;
        v->now = r->to;
        v->serial++;
        r->to->n_built = r->n_live; /* its lists were chosen for these */
        r->to = NULL;
        end_journal(v);
    }
    pthread_rwlock_unlock(&v->lock);
    return s;
}

static enum status build(struct rebuild *r, struct buf *why)
{
    struct vectors *v = r->v;
    struct body *old = NULL;
    char factory[VECTORS_FACTORY_BYTES_MAX];
    enum status s;

    pthread_rwlock_wrlock(&v->lock);
    v->is_journaled = true;
    r->n_start = v->now->n_slots;
    r->n_live = body_n_live(v->now);
    pthread_rwlock_unlock(&v->lock);
    choose_factory(v, r->n_live, factory);
    r->batch = malloc(sizeof *r->batch + (size_t)COPY_CHUNK * v->dim * sizeof(float));
    s = r->batch ? body_create(&r->to, v->dim, factory, v->seed, why) : ERR_NOMEM;
    if (s == OK && faiss_index_n_lists(r->to->ix))
        s = train(r, why);
    if (s == OK)
        s = copy_all(r, why);
    if (s == OK) {
        faiss_index_trim(r->to->ix);
        s = take_over(r, &old, why);
    }
    body_destroy(old);
    return s;
}

static bool rebuild(struct vectors *v)
{
    struct rebuild r = {.v = v, .work = {.n_threads = v->n_threads, .stop = &v->stop}};
    uint64_t begin = clock_now_ns();
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = build(&r, &why);
    pthread_rwlock_wrlock(&v->lock);
    if (s != OK) {
        end_journal(v);
        v->n_changes_retry = v->n_changes + 1000;
    }
    uint32_t n_live = body_n_live(v->now);
    char factory[VECTORS_FACTORY_BYTES_MAX];
    memcpy(factory, v->now->factory, sizeof factory);
    pthread_rwlock_unlock(&v->lock);
    if (s == OK)
        log_event(LOG_INFO, "vector index rebuilt", "factory=%s vectors=%u seconds=%.3f", factory,
                  n_live, (double)(clock_now_ns() - begin) * 1e-9);
    else if (!vectors_is_stopped(v))
        log_event(LOG_WARN, "vector index not rebuilt", "factory=%s vectors=%u why=\"%s\"", factory,
                  n_live, why.len ? buf_str(&why) : status_words(s));
    body_destroy(r.to);
    free(r.batch);
    if (s == OK && !vectors_is_stopped(v) && vectors_save(v, &why) != OK)
        log_event(LOG_WARN, "vector index not saved", "why=\"%s\"", buf_str(&why));
    buf_fini(&why);
    return s == OK;
}

static bool is_due_now(struct vectors *v)
{
    bool is;

    pthread_rwlock_rdlock(&v->lock);
    is = is_due(v);
    pthread_rwlock_unlock(&v->lock);
    return is;
}

static void *run(void *arg)
{
    struct vectors *v = arg;
    uint64_t n = 0;

    /* On Linux this sets the priority of the thread alone. Without success it stays as it was. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
    pthread_mutex_lock(&v->mutex);
    do {
        v->is_due_again = false;
        pthread_mutex_unlock(&v->mutex);
        while (!vectors_is_stopped(v) && is_due_now(v))
            n += rebuild(v);
        pthread_mutex_lock(&v->mutex);
    } while (v->is_due_again && !vectors_is_stopped(v));
    v->n_rebuilds += n;
    v->is_rebuilding = false;
    pthread_cond_broadcast(&v->ended);
    pthread_mutex_unlock(&v->mutex);
    return NULL;
}

void vectors_rebuild_if_due(struct vectors *v)
{
    if (!is_due_now(v))
        return;
    pthread_mutex_lock(&v->mutex);
    v->is_due_again = true;
    if (!v->is_rebuilding && !vectors_is_stopped(v)) {
        if (v->has_thread)
            pthread_join(v->thread, NULL);
        v->has_thread = pthread_create(&v->thread, NULL, run, v) == 0;
        v->is_rebuilding = v->has_thread;
    }
    pthread_mutex_unlock(&v->mutex);
}

void vectors_wait(struct vectors *v)
{
    pthread_mutex_lock(&v->mutex);
    while (v->is_rebuilding)
        pthread_cond_wait(&v->ended, &v->mutex);
    pthread_mutex_unlock(&v->mutex);
}
