#include "base/aio_threads.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"

#define N_THREADS 4
#define N_THREADS_MAX 64
#define NONE UINT32_MAX

/* Linked by index: a request is in one of the lists free, waiting and done, or a thread runs it. */
struct list {
    uint32_t first, last;
};

struct request {
    struct aio_op op;
    struct aio_done done;
    bool cancelled; /* protected by the lock */
    bool running;
    uint32_t next;
};

struct aio_threads {
    pthread_mutex_t lock;
    pthread_cond_t work;      /* signals: a request waits, or closing */
    pthread_cond_t ready;     /* signals: a request is done, or a thread ended */
    struct request *requests; /* [depth] */
    struct list free, waiting, done;
    uint32_t depth, n_free;
    uint32_t n_threads, n_alive;
    bool closing;
    bool abandoned; /* aio_threads_close() gave up waiting: the last thread frees everything */
    pthread_t threads[N_THREADS_MAX];
};

static void push(struct aio_threads *t, struct list *l, uint32_t i)
{
    t->requests[i].next = NONE;
    if (l->first == NONE)
        l->first = i;
    else
        t->requests[l->last].next = i;
    l->last = i;
}

static uint32_t pop(struct aio_threads *t, struct list *l)
{
    uint32_t i = l->first;

    if (i != NONE)
        l->first = t->requests[i].next;
    return i;
}

bool aio_step(const struct aio_op *op, int64_t result, size_t *n_done, enum status *status,
              int *error)
{
    *error = 0;
    if (result > 0) {
        *n_done += (size_t)result;
        *status = OK;
        return *n_done >= op->n_bytes;
    }
    if (result == -EINTR || result == -EAGAIN)
        return false;
    /* A direct read that ended inside a sector had reached the end of its file: continuing from
     * there fails with EINVAL. */
    if (result == 0 || (result == -EINVAL && !op->write && *n_done > 0)) {
        *status = op->write ? ERR_IO : ERR_CORRUPT;
        return true;
    }
    *error = (int)-result;
    *status = result == -ECANCELED ? ERR_CANCELLED : result == -ENOMEM ? ERR_NOMEM : ERR_IO;
    return true;
}

static int64_t call(const struct aio_op *op, size_t n_done)
{
    size_t n = op->n_bytes - n_done;
    char *at = (char *)op->data + n_done;
    off_t offset = (off_t)(op->offset + n_done);

    if (n > AIO_CALL_BYTES_MAX)
        n = AIO_CALL_BYTES_MAX;
    ssize_t r = op->write ? pwrite(op->fd, at, n, offset) : pread(op->fd, at, n, offset);
    return r < 0 ? -errno : r;
}

/* Called without the lock; takes it only to read `cancelled` between two system calls. */
static void run(struct aio_threads *t, struct request *r)
{
    bool over = false;

    while (!over) {
        pthread_mutex_lock(&t->lock);
        bool cancelled = r->cancelled;
        pthread_mutex_unlock(&t->lock);
        if (cancelled) {
            r->done.status = ERR_CANCELLED;
            r->done.error = ECANCELED;
            return;
        }
        over = aio_step(&r->op, call(&r->op, r->done.n_bytes), &r->done.n_bytes, &r->done.status,
                        &r->done.error);
    }
}

static void destroy(struct aio_threads *t)
{
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->work);
    pthread_cond_destroy(&t->ready);
    free(t->requests);
    free(t);
}

static void *thread_main(void *arg)
{
    struct aio_threads *t = arg;

    pthread_mutex_lock(&t->lock);
    for (;;) {
        uint32_t i = pop(t, &t->waiting);
        if (i == NONE) {
            if (t->closing)
                break;
            pthread_cond_wait(&t->work, &t->lock);
            continue;
        }
        t->requests[i].running = true;
        pthread_mutex_unlock(&t->lock);
        run(t, &t->requests[i]);
        pthread_mutex_lock(&t->lock);
        t->requests[i].running = false;
        push(t, &t->done, i);
        pthread_cond_broadcast(&t->ready);
    }
    bool last = --t->n_alive == 0 && t->abandoned;
    pthread_cond_broadcast(&t->ready);
    pthread_mutex_unlock(&t->lock);
    if (last)
        destroy(t);
    return NULL;
}

static void init_conditions(struct aio_threads *t)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC); /* the clock of clock_now_ns() */
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->ready, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&t->lock, NULL);
}

enum status aio_threads_open(struct aio_threads **out, uint32_t depth, uint32_t n_threads)
{
    struct aio_threads *t = calloc(1, sizeof *t);

    *out = NULL;
    if (!t)
        return ERR_NOMEM;
    init_conditions(t);
    t->free = t->waiting = t->done = (struct list){NONE, NONE};
    t->requests = calloc(depth, sizeof *t->requests);
    if (!t->requests) {
        destroy(t);
        return ERR_NOMEM;
    }
    for (t->depth = 0; t->depth < depth; t->depth++)
        push(t, &t->free, t->depth);
    t->n_free = depth;
    if (n_threads == 0)
        n_threads = N_THREADS;
    if (n_threads > N_THREADS_MAX)
        n_threads = N_THREADS_MAX;
    for (; t->n_threads < n_threads && t->n_threads < depth; t->n_threads++) {
        pthread_mutex_lock(&t->lock);
        t->n_alive++;
        pthread_mutex_unlock(&t->lock);
        if (pthread_create(&t->threads[t->n_threads], NULL, thread_main, t) == 0)
            continue;
        pthread_mutex_lock(&t->lock);
        t->n_alive--;
        pthread_mutex_unlock(&t->lock);
        (void)aio_threads_close(t, UINT64_MAX); /* no request yet: returns at once */
        return ERR_NOMEM;
    }
    *out = t;
    return OK;
}

/* Under the lock. False: the deadline has passed. */
static bool wait_ready(struct aio_threads *t, uint64_t deadline_ns)
{
    struct timespec at = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                          .tv_nsec = (long)(deadline_ns % 1000000000u)};

    if (deadline_ns == UINT64_MAX)
        return pthread_cond_wait(&t->ready, &t->lock) == 0;
    return pthread_cond_timedwait(&t->ready, &t->lock, &at) != ETIMEDOUT;
}

/* Under the lock. Cancel the requests with *tag; NULL: all of them. */
static void cancel(struct aio_threads *t, const uint64_t *tag)
{
    struct list kept = {NONE, NONE};
    uint32_t i;

    while ((i = pop(t, &t->waiting)) != NONE) {
        struct request *r = &t->requests[i];
        if (tag && r->op.tag != *tag) {
            push(t, &kept, i);
            continue;
        }
        r->done.status = ERR_CANCELLED;
        r->done.error = ECANCELED;
        push(t, &t->done, i);
    }
    t->waiting = kept;
    for (i = 0; i < t->depth; i++)
        if (t->requests[i].running && (!tag || t->requests[i].op.tag == *tag))
            t->requests[i].cancelled = true;
}

enum status aio_threads_close(struct aio_threads *t, uint64_t deadline_ns)
{
    uint32_t n = t->n_threads;
    pthread_t threads[N_THREADS_MAX];

    pthread_mutex_lock(&t->lock);
    cancel(t, NULL);
    t->closing = true;
    pthread_cond_broadcast(&t->work);
    while (t->n_alive > 0 && wait_ready(t, deadline_ns))
        ;
    bool hung = t->n_alive > 0;
    t->abandoned = hung;
    for (uint32_t i = 0; i < n; i++)
        threads[i] = t->threads[i]; /* the last thread frees an abandoned *t */
    pthread_mutex_unlock(&t->lock);
    for (uint32_t i = 0; i < n; i++) {
        if (hung)
            pthread_detach(threads[i]);
        else
            pthread_join(threads[i], NULL);
    }
    if (hung)
        return ERR_TIMEOUT;
    destroy(t);
    return OK;
}

enum status aio_threads_submit(struct aio_threads *t, const struct aio_op *ops, uint32_t n)
{
    pthread_mutex_lock(&t->lock);
    if (n > t->n_free) {
        pthread_mutex_unlock(&t->lock);
        return ERR_BUSY;
    }
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = pop(t, &t->free);
        ASSERT(ops[k].n_bytes > 0);
        t->requests[i] = (struct request){.op = ops[k], .done = {.tag = ops[k].tag}};
        push(t, &t->waiting, i);
    }
    t->n_free -= n;
    if (n > 1)
        pthread_cond_broadcast(&t->work);
    else
        pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->lock);
    return OK;
}

static uint32_t take_done(struct aio_threads *t, struct aio_done *out, uint32_t n_max)
{
    uint32_t n = 0;

    while (n < n_max && t->done.first != NONE) {
        uint32_t i = pop(t, &t->done);
        out[n++] = t->requests[i].done;
        push(t, &t->free, i);
        t->n_free++;
    }
    return n;
}

uint32_t aio_threads_reap(struct aio_threads *t, struct aio_done *out, uint32_t n_max)
{
    pthread_mutex_lock(&t->lock);
    uint32_t n = take_done(t, out, n_max);
    pthread_mutex_unlock(&t->lock);
    return n;
}

enum status aio_threads_wait(struct aio_threads *t, uint64_t deadline_ns, struct aio_done *out,
                             uint32_t n_max, uint32_t *n)
{
    enum status s = OK;

    pthread_mutex_lock(&t->lock);
    if (t->n_free == t->depth)
        s = ERR_NOT_FOUND;
    while (s == OK && t->done.first == NONE)
        if (!wait_ready(t, deadline_ns) && t->done.first == NONE)
            s = ERR_TIMEOUT;
    *n = take_done(t, out, n_max);
    pthread_mutex_unlock(&t->lock);
    return s;
}

void aio_threads_cancel(struct aio_threads *t, uint64_t tag)
{
    pthread_mutex_lock(&t->lock);
    cancel(t, &tag);
    pthread_cond_broadcast(&t->ready);
    pthread_mutex_unlock(&t->lock);
}

uint32_t aio_threads_n_pending(struct aio_threads *t)
{
    pthread_mutex_lock(&t->lock);
    uint32_t n = t->depth - t->n_free;
    pthread_mutex_unlock(&t->lock);
    return n;
}
