#include "server/api/librarian.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/engine.h"
#include "server/api/librarian_inner.h"
#include "server/api/preamble.h"
#include "server/server.h"

#define N_EXPIRED_A_TURN 256
#define N_NOTES_TURNS 4 /* all that the queue holds */
#define TICK_NS SECOND_NS
#define CHECK_NS (5 * SECOND_NS)
#define NICE 10

/* --- now and then --- */

static void sweep(struct librarian *l)
{
    int64_t rows[N_EXPIRED_A_TURN];
    char tenant[128];
    uint32_t n = 0;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    /* An expired document is hidden at once. Its deletion is written later in a pool, so that a
     * clock that is ahead by less does not delete for the others. */
    int64_t now_s = unix_s() - (l->follow ? CATALOG_EXPIRY_GRACE_S : 0);
    enum status s = catalog_sweep(catalog_of(l), now_s, N_EXPIRED_A_TURN, rows, &n, &why);
    if (s != OK)
        librarian_warn("delete expired documents", &why, s);
    for (uint32_t i = 0; i < n; i++) {
        librarian_refresh_row(l, rows[i]);
        if (catalog_tenant_of(catalog_of(l), rows[i], tenant, &why) == OK)
            retrieval_remove(l->retrieval, tenant, rows[i]);
    }
    if (n > 0)
        atomic_store(&l->erases, true);
    pthread_mutex_lock(&l->lock);
    l->stats.n_expired += n;
    pthread_mutex_unlock(&l->lock);
    buf_fini(&why);
}

static void take_stats(struct librarian *l)
{
    struct catalog_stats catalog;
    struct engine_stats *st = malloc(sizeof *st);

    if (st) {
        engine_stats(l->srv->engine, st);
        const struct cache_tier_stats *tier = st->cache.tier;
        l->room = (struct warm_room){.n_memory = (uint64_t)tier[CACHE_DEVICE].n_blocks +
                                                 tier[CACHE_HOST].n_blocks,
                                     .n_disk = tier[CACHE_DISK].n_blocks,
                                     .n_free = tier[CACHE_DEVICE].n_free};
        free(st);
    }
    if (catalog_stats(catalog_of(l), NULL, &catalog) != OK)
        return;
    pthread_mutex_lock(&l->lock);
    l->stats.catalog = catalog;
    pthread_mutex_unlock(&l->lock);
}

static void tick(struct librarian *l)
{
    uint64_t now_ns = clock_now_ns();

    if (now_ns - l->ticked_ns < TICK_NS && l->ticked_ns)
        return;
    l->ticked_ns = now_ns;
    take_stats(l);
    for (int i = 0; i < N_NOTES_TURNS; i++)
        librarian_write_notes(l);
    librarian_erase_again(l, now_ns);
    sweep(l);
    librarian_forget_deletions(l, now_ns);
    if (preambles_have_date(l->srv->preambles) && l->day != unix_s() / 86400)
        atomic_store(&l->looks_again, true);
    if (now_ns - l->checked_ns < CHECK_NS)
        return;
    l->checked_ns = now_ns;
    librarian_check_ready(l, now_ns);
}

/* --- the thread --- */

static void work(struct librarian *l)
{
    tick(l);
    if (atomic_exchange(&l->erases, false))
        librarian_erase_taken(l);
    librarian_scan(l);
    librarian_refresh_changed(l);
    uint32_t n_flying = librarian_reap(l);
    if (atomic_load(&l->srv->draining) || engine_failed(l->srv->engine))
        librarian_cancel_flights(l);
    else if (n_flying < N_FLIGHTS)
        librarian_start_some(l);
    if (l->scans)
        sem_post(&l->wake);
}

static void wait_for_work(struct librarian *l)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 250000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (sem_timedwait(&l->wake, &until) != 0 && errno == EINTR) {
    }
    while (sem_trywait(&l->wake) == 0) { /* one turn answers all wake-ups until now */
    }
}

static void *librarian_main(void *arg)
{
    struct librarian *l = arg;

    /* Rendering and tokenizing must not take the cores from requests. */
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
    while (!atomic_load(&l->stopping)) {
        wait_for_work(l);
        if (!atomic_load(&l->stopping))
            librarian_follow(l);
        if (catalog_of(l) && !atomic_load(&l->stopping))
            work(l);
    }
    librarian_cancel_flights(l);
    while (catalog_of(l) && librarian_reap(l) > 0)
        wait_for_work(l);
    if (catalog_of(l))
        librarian_write_notes(l);
    return NULL;
}

/* --- lifecycle --- */

enum status librarian_create(struct librarian **out, const struct server *srv)
{
    struct librarian *l = calloc(1, sizeof *l);

    *out = NULL;
    if (!l)
        return ERR_NOMEM;
    l->srv = srv;
    buf_init(&l->released, WARM_N_TASKS_MAX * sizeof(struct kv_key));
    pthread_mutex_init(&l->lock, NULL);
    sem_init(&l->wake, 0, 0);
    enum status s = ring_init(&l->notes, N_NOTES_MAX);
    if (s == OK && (s = ring_init(&l->changed, N_CHANGED_MAX)) != OK)
        ring_fini(&l->notes);
    if (s == OK) {
        *out = l;
        return OK;
    }
    pthread_mutex_destroy(&l->lock);
    sem_destroy(&l->wake);
    free(l);
    return s;
}

enum status librarian_start(struct librarian *l)
{
    enum status s = librarian_follow_begin(l);

    if (s != OK)
        return s;
    l->runs = pthread_create(&l->thread, NULL, librarian_main, l) == 0;
    return l->runs ? OK : ERR_NOMEM;
}

void librarian_stop(struct librarian *l)
{
    atomic_store(&l->stopping, true);
    sem_post(&l->wake);
    if (l->runs)
        pthread_join(l->thread, NULL);
    l->runs = false;
    librarian_follow_end(l);
}

void librarian_destroy(struct librarian *l)
{
    void *note;

    if (!l)
        return;
    librarian_stop(l);
    while (ring_drain(&l->notes, &note, 1) > 0)
        free(note);
    ring_fini(&l->notes);
    ring_fini(&l->changed);
    if (l->has_warm)
        warm_fini(&l->warm);
    librarian_forget_before(l);
    free(l->rows);
    buf_fini(&l->released);
    sem_destroy(&l->wake);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

enum status librarian_give(struct librarian *l, struct catalog *catalog,
                           struct retrieval *retrieval)
{
    enum status s = warm_init(&l->warm);

    if (s != OK)
        return s;
    l->has_warm = true;
    l->retrieval = retrieval;
    atomic_store(&l->looks_again, true);
    atomic_store(&l->erases, true);
    atomic_store(&l->catalog, catalog);
    sem_post(&l->wake);
    return OK;
}

/* --- other threads --- */

void librarian_changed(struct librarian *l, int64_t row)
{
    if (ring_push(&l->changed, (void *)(intptr_t)row) != OK)
        atomic_store(&l->looks_again, true);
    sem_post(&l->wake);
}

void librarian_erase(struct librarian *l)
{
    atomic_store(&l->erases, true);
    sem_post(&l->wake);
}

void librarian_look_again(struct librarian *l)
{
    atomic_store(&l->looks_again, true);
    sem_post(&l->wake);
}

void librarian_look(struct librarian *l, int64_t row, uint32_t version, struct librarian_look *out)
{
    const struct warm *w = &l->warm;

    *out = (struct librarian_look){0};
    pthread_mutex_lock(&l->lock);
    for (uint32_t i = l->has_warm ? warm_of_row(w, row) : WARM_NONE; i != WARM_NONE;
         i = w->tasks[i].next) {
        const struct warm_task *t = &w->tasks[i];
        if (t->version != version)
            continue;
        out->n_ready += t->state == WARM_READY;
        out->n_queued += t->state == WARM_WAITING || t->state == WARM_RUNNING;
        out->n_no_room += t->state == WARM_NO_ROOM || t->state == WARM_EVICTED;
        out->n_failed += t->state == WARM_FAILED;
        if (t->why)
            snprintf(out->why, sizeof out->why, "%s", t->why);
    }
    pthread_mutex_unlock(&l->lock);
}

void librarian_stats(struct librarian *l, struct librarian_stats *out)
{
    pthread_mutex_lock(&l->lock);
    *out = l->stats;
    out->n_queued = (uint64_t)l->warm.n[WARM_WAITING] + l->warm.n[WARM_RUNNING];
    out->n_ready = l->warm.n[WARM_READY];
    out->n_no_room = (uint64_t)l->warm.n[WARM_NO_ROOM] + l->warm.n[WARM_EVICTED];
    out->n_failed = l->warm.n[WARM_FAILED];
    out->n_ready_blocks = l->warm.n_blocks;
    pthread_mutex_unlock(&l->lock);
    out->n_notes = atomic_load(&l->n_notes);
    out->n_notes_dropped = atomic_load(&l->n_dropped);
}
