#include "base/prefault.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define PIECE_BYTES ((size_t)2 << 20) /* of one call: a huge page */
#define NICE 5                        /* requests go first */

struct prefault {
    char *begin; /* the first whole page */
    size_t n_bytes, ahead_bytes;
    size_t announced; /* of the thread that calls prefault_reach(): wake the thread behind this */
    _Atomic size_t wanted, done;
    _Atomic bool stop;
    sem_t changed;
    pthread_t thread;
};

/* Supply the pages up to `wanted`; false: the kernel does not. */
static bool supply(struct prefault *p)
{
    while (atomic_load(&p->done) < atomic_load(&p->wanted) && !atomic_load(&p->stop)) {
        size_t from = atomic_load(&p->done), left = p->n_bytes - from;
        size_t n = left < PIECE_BYTES ? left : PIECE_BYTES;

        if (madvise(p->begin + from, n, MADV_POPULATE_WRITE) == 0)
            atomic_store(&p->done, from + n);
        else if (errno != EINTR && errno != EAGAIN)
            return false;
    }
    return true;
}

static void *run(void *arg)
{
    struct prefault *p = arg;

    /* On Linux this sets the priority of the thread alone. Without success it stays as it was. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
    while (!atomic_load(&p->stop) && supply(p) && atomic_load(&p->done) < p->n_bytes)
        while (sem_wait(&p->changed) != 0 && errno == EINTR)
            ;
    return NULL;
}

struct prefault *prefault_create(void *memory, size_t n_bytes, size_t ahead_bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t skipped = (page - (uintptr_t)memory % page) % page; /* a page that others share */
    struct prefault *p = calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->begin = (char *)memory + skipped;
    p->n_bytes = n_bytes > skipped ? (n_bytes - skipped) / page * page : 0;
    p->ahead_bytes = ahead_bytes;
    atomic_init(&p->wanted, ahead_bytes < p->n_bytes ? ahead_bytes : p->n_bytes);
    if (sem_init(&p->changed, 0, 0) != 0) {
        free(p);
        return NULL;
    }
    if (pthread_create(&p->thread, NULL, run, p) != 0) {
        sem_destroy(&p->changed);
        free(p);
        return NULL;
    }
    return p;
}

void prefault_destroy(struct prefault *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    sem_post(&p->changed);
    pthread_join(p->thread, NULL);
    sem_destroy(&p->changed);
    free(p);
}

void prefault_reach(struct prefault *p, size_t end)
{
    if (end <= p->announced)
        return;
    size_t left = end < p->n_bytes ? p->n_bytes - end : 0;
    size_t ahead = left < p->ahead_bytes ? left : p->ahead_bytes;

    p->announced = end + p->ahead_bytes / 8; /* not a call for every block */
    atomic_store(&p->wanted, left ? end + ahead : p->n_bytes);
    sem_post(&p->changed);
}

size_t prefault_n_done(const struct prefault *p)
{
    return atomic_load(&p->done);
}
