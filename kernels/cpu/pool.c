/* pool.c - worker threads that spin briefly, then sleep.
 *
 * A 64-bit ticket has the job's number in its upper half and the count of indices not yet handed
 * out in its lower half. A thread takes a chunk by a compare-and-swap on the whole ticket.
 *
 * Why the job's fields (fn, arg, n, chunk) need no lock: pool_run() changes them only when the
 * lower half is 0. So a thread whose compare-and-swap succeeds has read the fields of that job, and
 * a thread that wakes up late finds 0 or another number and touches nothing.
 *
 * The caller waits until all indices are done, not until every worker reports: a worker that the
 * operating system holds back delays nobody. */
#include "kernels/cpu/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"
#include "kernels/cpu/numa.h"

/* Turns of the waiting loop before a thread sleeps: about 50 us, longer than the gap between two
 * ops of a forward pass but short compared with a step. */
#define SPIN_TURNS 1500

/* Lines that a waiting thread prefetches before it looks for a job again. */
#define FETCH_LINES 8

/* The memory that a thread prefetches while it waits; each thread has its own. */
struct pool_idle {
    _Alignas(64) const char *at;
    size_t n_lines;
};

struct pool {
    /* Each word that several threads write has its own cache line. */
    _Alignas(64) _Atomic uint64_t ticket;   /* job number << 32 | indices not handed out */
    _Alignas(64) _Atomic uint32_t n_done;   /* indices finished; the caller sleeps on this word */
    _Alignas(64) _Atomic uint32_t wake_seq; /* the workers sleep on this word */
    _Atomic uint32_t n_sleeping;
    _Atomic bool caller_sleeps;
    _Atomic bool stop;

    /* The job. Atomic, because a late worker may read the fields while the next job is set up; it
     * then discards them. */
    _Alignas(64) void (*_Atomic fn)(void *, uint32_t, uint32_t, uint32_t);
    void *_Atomic arg;
    _Atomic uint32_t n;
    _Atomic uint32_t chunk;

    uint32_t spin_turns;
    uint32_t n_threads;
    struct pool_idle *idle; /* [n_threads] */
    cpu_set_t *cpus;        /* [n_threads] those of each thread; NULL: the system chooses */
    uint32_t n_started;
    pthread_t *threads; /* [n_threads - 1] */
    struct pool_worker {
        struct pool *pool;
        uint32_t thread;
    } * workers;
};

static void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* A turn of a waiting loop: a few lines of what the thread may prefetch, if any are left. */
static void wait_turn(struct pool_idle *idle)
{
    if (idle->n_lines == 0) {
        cpu_relax();
        return;
    }
    for (uint32_t i = 0; i < FETCH_LINES && idle->n_lines > 0; i++, idle->n_lines--, idle->at += 64)
        __builtin_prefetch(idle->at, 0, 2);
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    /* Any return is fine: every caller checks its condition again. */
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0);
}

/* Run chunks of job `number` until none is left. */
static void work(struct pool *p, uint32_t number, uint32_t thread)
{
    for (;;) {
        uint64_t t = atomic_load_explicit(&p->ticket, memory_order_acquire);
        uint32_t left = (uint32_t)t;

        if ((uint32_t)(t >> 32) != number || left == 0)
            return;
        void (*fn)(void *, uint32_t, uint32_t, uint32_t) =
            atomic_load_explicit(&p->fn, memory_order_relaxed);
        void *arg = atomic_load_explicit(&p->arg, memory_order_relaxed);
        uint32_t n = atomic_load_explicit(&p->n, memory_order_relaxed);
        uint32_t chunk = atomic_load_explicit(&p->chunk, memory_order_relaxed);
        uint32_t take = left < chunk ? left : chunk;

        if (!atomic_compare_exchange_weak_explicit(&p->ticket, &t, t - take, memory_order_acq_rel,
                                                   memory_order_relaxed))
            continue;
        fn(arg, n - left, n - left + take, thread);
        if (atomic_fetch_add(&p->n_done, take) + take == n && atomic_load(&p->caller_sleeps))
            futex_wake_all(&p->n_done);
    }
}

/* Wait for a job other than *number and store its number. False: the pool stops. */
static bool wait_for_job(struct pool *p, uint32_t *number, struct pool_idle *idle)
{
    for (uint32_t turn = 0;; turn++) {
        uint32_t seq = atomic_load(&p->wake_seq);

        if (atomic_load_explicit(&p->stop, memory_order_relaxed))
            return false;
        uint32_t now = (uint32_t)(atomic_load_explicit(&p->ticket, memory_order_acquire) >> 32);
        if (now != *number) {
            *number = now;
            idle->n_lines = 0;
            return true;
        }
        if (turn < p->spin_turns) {
            wait_turn(idle);
            continue;
        }
        /* Announce the sleep, then check once more: either the caller sees the announcement and
         * changes wake_seq, or this thread sees the new ticket. All four accesses are sequentially
         * consistent. */
        atomic_fetch_add(&p->n_sleeping, 1);
        if ((uint32_t)(atomic_load(&p->ticket) >> 32) == *number && !atomic_load(&p->stop))
            futex_wait(&p->wake_seq, seq);
        atomic_fetch_sub(&p->n_sleeping, 1);
    }
}

static void *worker_main(void *arg)
{
    struct pool_worker *w = arg;
    uint32_t number = 0;

    while (wait_for_job(w->pool, &number, &w->pool->idle[w->thread]))
        work(w->pool, number, w->thread);
    return NULL;
}

static void wait_done(struct pool *p, uint32_t n)
{
    for (uint32_t turn = 0; turn < p->spin_turns; turn++) {
        if (atomic_load_explicit(&p->n_done, memory_order_acquire) == n)
            return;
        wait_turn(&p->idle[0]);
    }
    atomic_store(&p->caller_sleeps, true);
    for (;;) {
        uint32_t done = atomic_load(&p->n_done);

        if (done == n)
            break;
        futex_wait(&p->n_done, done);
    }
    atomic_store(&p->caller_sleeps, false);
}

static void wake_workers(struct pool *p)
{
    atomic_fetch_add(&p->wake_seq, 1);
    futex_wake_all(&p->wake_seq);
}

void pool_run(struct pool *p, uint32_t n, uint32_t chunk,
              void (*fn)(void *arg, uint32_t begin, uint32_t end, uint32_t thread), void *arg)
{
    ASSERT(chunk > 0);
    if (n == 0)
        return;
    if (p->n_threads == 1 || n <= chunk) {
        for (uint32_t i = 0; i < n;) {
            uint32_t take = n - i < chunk ? n - i : chunk;

            fn(arg, i, i + take, 0);
            i += take;
        }
        return;
    }
    uint32_t number = (uint32_t)(atomic_load_explicit(&p->ticket, memory_order_relaxed) >> 32) + 1;

    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&p->n, n, memory_order_relaxed);
    atomic_store_explicit(&p->chunk, chunk, memory_order_relaxed);
    atomic_store_explicit(&p->n_done, 0, memory_order_relaxed);
    atomic_store(&p->ticket, (uint64_t)number << 32 | n);
    if (atomic_load(&p->n_sleeping) > 0)
        wake_workers(p);
    p->idle[0].n_lines = 0;
    work(p, number, 0);
    wait_done(p, n);
}

void pool_fetch_idle(struct pool *p, uint32_t thread, const void *from, size_t n_bytes)
{
    p->idle[thread] = (struct pool_idle){from, p->n_threads > 1 ? n_bytes / 64 : 0};
}

static void pin(const struct pool *p, pthread_t thread, uint32_t i)
{
    if (p->cpus)
        (void)pthread_setaffinity_np(thread, sizeof p->cpus[i], &p->cpus[i]); /* best effort */
}

/* Choose the CPUs of all threads. Without pinning, Linux was seen to keep a worker on its caller's
 * core for seconds when the other cores had a small load. With fewer threads than cores of a node,
 * the choice of single cores would be a guess, and other processes may use the same ones. */
static enum status choose_cpus(struct pool *p, const struct numa *numa)
{
    struct numa one;

    if (!numa || numa->n_nodes <= 1) {
        numa_read_one(&one);
        numa = &one;
    }
    if (p->n_threads == 1 || (numa->n_nodes == 1 && numa->n_cpus != p->n_threads))
        return OK;
    p->cpus = calloc(p->n_threads, sizeof *p->cpus);
    if (!p->cpus)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < p->n_threads; i++)
        numa_cpus_of(numa, i, p->n_threads, &p->cpus[i]);
    return OK;
}

void pool_pin_caller(struct pool *p)
{
    pin(p, pthread_self(), 0);
}

static enum status start_threads(struct pool *p)
{
    p->threads = calloc(p->n_threads - 1, sizeof(*p->threads));
    p->workers = calloc(p->n_threads - 1, sizeof(*p->workers));
    if (!p->threads || !p->workers)
        return ERR_NOMEM;
    for (uint32_t i = 0; i + 1 < p->n_threads; i++) {
        p->workers[i] = (struct pool_worker){.pool = p, .thread = i + 1};
        if (pthread_create(&p->threads[i], NULL, worker_main, &p->workers[i]) != 0)
            return ERR_NOMEM;
        pin(p, p->threads[i], i + 1);
        p->n_started++;
    }
    return OK;
}

enum status pool_create(struct pool **out, uint32_t n_threads, const struct numa *numa)
{
    struct pool *p = aligned_alloc(64, sizeof(*p));
    long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);

    ASSERT(n_threads > 0);
    if (!p)
        return ERR_NOMEM;
    *p = (struct pool){.n_threads = n_threads};
    /* With more threads than cores, a spinning thread keeps a working one from running. */
    p->spin_turns = n_cpus > 0 && n_threads <= (unsigned long)n_cpus ? SPIN_TURNS : 0;
    p->idle = aligned_alloc(64, n_threads * sizeof *p->idle);
    if (p->idle)
        memset(p->idle, 0, n_threads * sizeof *p->idle);
    if (!p->idle || choose_cpus(p, numa) != OK || (n_threads > 1 && start_threads(p) != OK)) {
        pool_destroy(p);
        return ERR_NOMEM;
    }
    *out = p;
    return OK;
}

void pool_destroy(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    wake_workers(p);
    for (uint32_t i = 0; i < p->n_started; i++)
        pthread_join(p->threads[i], NULL);
    free(p->threads);
    free(p->workers);
    free(p->idle);
    free(p->cpus);
    free(p);
}

uint32_t pool_n_threads(const struct pool *p)
{
    return p->n_threads;
}
