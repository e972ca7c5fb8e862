#include "server/api/librarian.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/ring.h"
#include "engine/engine.h"
#include "server/api/preamble.h"
#include "server/api/prefill.h"
#include "server/api/warm.h"
#include "server/auth/auth.h"
#include "server/server.h"

#define SECOND_NS UINT64_C(1000000000)
#define N_FLIGHTS 4
#define N_NOTES_MAX 1024
#define N_NOTES_A_TURN 256
#define N_CHANGED_MAX 4096
#define N_ROWS_A_TURN 16
#define N_AGAIN 1024
#define N_TAKEN 64
#define N_EXPIRED_A_TURN 256
#define N_RECENT 4096 /* paths whose use was written lately; a power of two */
#define RECENT_S 600
#define AGAIN_NS (60 * SECOND_NS)
#define TICK_NS SECOND_NS
#define CHECK_NS (5 * SECOND_NS)
#define NICE 10

struct note {
    uint32_t n;
    struct library_place places[];
};

/* A preamble behind which documents are prefilled. */
struct before {
    char owner[ACCOUNT_OWNER_BYTES]; /* "": public */
    char id[DOCUMENT_ID_BYTES_MAX + 1];
    char *system; /* [len]; NULL: no system message */
    size_t len;
    uint64_t number;
};

struct flight {
    struct request *request; /* NULL: free */
    uint32_t task;
    bool is_refill;
    struct kv_key first, last;
    uint32_t n_tokens;
    int64_t row;
    uint32_t version;
};

struct librarian {
    const struct server *srv;
    pthread_t thread;
    bool runs;
    atomic_bool stopping;
    sem_t wake;
    _Atomic(struct catalog *) catalog; /* NULL until librarian_give() */
    struct retrieval *retrieval;

    /* Any thread. */
    struct ring notes;   /* of struct note * */
    struct ring changed; /* of rows */
    atomic_bool looks_again, erases;
    _Atomic uint64_t n_notes, n_dropped;

    /* Under lock; the librarian alone writes `warm`. */
    pthread_mutex_t lock;
    bool has_warm;
    struct warm warm;
    struct librarian_stats stats;

    /* The librarian's thread. */
    struct before *before; /* [n_before] */
    uint32_t n_before;
    int64_t day;         /* of their numbers */
    struct buf released; /* of struct kv_key: holds to release */
    int64_t *rows;       /* [n_rows] of a scan */
    uint32_t n_rows, n_rows_max, at_row;
    bool scans;
    struct flight flights[N_FLIGHTS];
    struct warm_room room;
    struct {
        struct kv_key key;
        uint64_t at_ns;
    } again[N_AGAIN];
    uint32_t n_again, at_again; /* a ring */
    struct {
        uint64_t key;
        int64_t s;
    } recent[N_RECENT];
    uint64_t ticked_ns, checked_ns;
    uint32_t at_check;
};

static int64_t unix_s(void)
{
    return (int64_t)(clock_unix_ns() / SECOND_NS);
}

/* Report a failure; the librarian tries again. */
static void warn(const char *what, const struct buf *why, enum status s)
{
    log_event(LOG_WARN, "librarian", "what=\"%s\" why=\"%s\"", what,
              why->len ? buf_str(why) : status_words(s));
}

static struct catalog *catalog_of(const struct librarian *l)
{
    return atomic_load(&l->catalog);
}

/* --- erasing KV --- */

/* Erase the span, and note the key to be erased once more: a request that runs now may leave the
 * same KV behind. */
static void erase(struct librarian *l, const struct kv_key *key, bool again)
{
    uint32_t n = 0;
    enum status s = engine_cache_erase(l->srv->engine, key, &n);

    pthread_mutex_lock(&l->lock);
    l->stats.n_erased_blocks += n;
    pthread_mutex_unlock(&l->lock);
    if ((s == OK && !again) || l->n_again == N_AGAIN)
        return;
    uint32_t at = (l->at_again + l->n_again++) % N_AGAIN;
    l->again[at].key = *key;
    l->again[at].at_ns = clock_now_ns() + AGAIN_NS;
}

static void erase_path(struct librarian *l, const struct document_path *p)
{
    struct kv_key key;

    memcpy(key.bytes, p->key, sizeof key.bytes);
    erase(l, &key, true);
}

static void erase_taken(struct librarian *l)
{
    struct document_path *paths = calloc(N_TAKEN, sizeof *paths);
    uint32_t n = N_TAKEN;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = paths ? OK : ERR_NOMEM;
    while (s == OK && n == N_TAKEN && !atomic_load(&l->stopping)) {
        s = catalog_take_paths(catalog_of(l), paths, N_TAKEN, &n, &why);
        for (uint32_t i = 0; s == OK && i < n; i++)
            erase_path(l, &paths[i]);
    }
    if (s != OK) {
        atomic_store(&l->erases, true);
        warn("erase the KV of deleted documents", &why, s);
    }
    buf_fini(&why);
    free(paths);
}

static void erase_again(struct librarian *l, uint64_t now_ns)
{
    while (l->n_again > 0 && l->again[l->at_again].at_ns <= now_ns) {
        struct kv_key key = l->again[l->at_again].key;
        l->at_again = (l->at_again + 1) % N_AGAIN;
        l->n_again--;
        erase(l, &key, false);
    }
}

/* --- paths and uses --- */

/* Write a path; erase the one that makes room for it. */
static enum status add_path(struct librarian *l, int64_t row, const struct document_path *p,
                            struct buf *why)
{
    struct document_path oldest;
    bool dropped = false;
    enum status s = catalog_add_path(catalog_of(l), row, p, &oldest, &dropped, why);

    if (s == OK && dropped)
        erase_path(l, &oldest);
    return s;
}

/* The preamble of a warm task with this first block; "" where there is none. */
static const char *preamble_of(struct librarian *l, const struct library_place *p)
{
    const struct warm *w = &l->warm;

    for (uint32_t i = warm_of_row(w, p->row); i != WARM_NONE; i = w->tasks[i].next) {
        if (w->tasks[i].n_blocks == 0 || memcmp(&w->tasks[i].first, &p->key, sizeof p->key) != 0)
            continue;
        w->tasks[i].n_tries = 0; /* it is used: worth being prefilled again */
        for (uint32_t k = 0; k < l->n_before; k++)
            if (l->before[k].number == w->tasks[i].preamble)
                return l->before[k].id;
    }
    return "";
}

/* Whether the use of this path was written lately. */
static bool is_recent(struct librarian *l, const struct library_place *p, int64_t now_s)
{
    uint64_t key = short_key(&p->key) ^ (uint64_t)p->row;
    uint32_t at = (uint32_t)(key >> 32) & (N_RECENT - 1);

    if (l->recent[at].key == key && now_s - l->recent[at].s < RECENT_S)
        return true;
    l->recent[at].key = key;
    l->recent[at].s = now_s;
    return false;
}

static enum status write_place(struct librarian *l, const struct library_place *p, struct buf *why)
{
    struct document_path path = {
        .version = p->version, .place = p->place, .n_tokens = p->n_tokens, .used_s = unix_s()};

    if (is_recent(l, p, path.used_s))
        return OK;
    memcpy(path.key, p->key.bytes, sizeof path.key);
    snprintf(path.preamble, sizeof path.preamble, "%s", preamble_of(l, p));
    return add_path(l, p->row, &path, why);
}

static enum status write_note(struct librarian *l, const struct note *note, struct buf *why)
{
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < note->n; i++) {
        const struct library_place *p = &note->places[i];
        catalog_note_use(catalog_of(l), &p->row, 1);
        s = write_place(l, p, why);
    }
    return s;
}

/* Write what waits, as one change of the catalog. */
static void write_notes(struct librarian *l)
{
    void *notes[N_NOTES_A_TURN];
    uint32_t n = ring_drain(&l->notes, notes, N_NOTES_A_TURN);
    struct buf why;

    if (n == 0)
        return;
    buf_init(&why, BUF_WHY_MAX);
    enum status s = catalog_begin(catalog_of(l), &why);
    bool began = s == OK;
    for (uint32_t i = 0; i < n; i++) {
        if (s == OK)
            s = write_note(l, notes[i], &why);
        free(notes[i]);
    }
    if (began && s == OK)
        s = catalog_commit(catalog_of(l), &why);
    else if (began)
        catalog_rollback(catalog_of(l));
    if (s != OK)
        warn("write uses of documents", &why, s);
    buf_fini(&why);
}

void librarian_note(struct librarian *l, const struct library_place *places, uint32_t n)
{
    struct note *note = catalog_of(l) ? malloc(sizeof *note + n * sizeof *places) : NULL;

    atomic_fetch_add(&l->n_notes, 1);
    if (note) {
        note->n = n;
        memcpy(note->places, places, n * sizeof *places);
        if (ring_push(&l->notes, note) == OK)
            return; /* written within a second: no hurry */
        free(note);
    }
    atomic_fetch_add(&l->n_dropped, 1);
}

/* --- preambles --- */

static void forget_before(struct librarian *l)
{
    for (uint32_t i = 0; i < l->n_before; i++)
        free(l->before[i].system);
    free(l->before);
    l->before = NULL;
    l->n_before = 0;
}

static uint64_t number_of(const struct librarian *l, const struct before *b)
{
    uint8_t hash[16];
    struct hash_state h;
    uint64_t number;

    hash_begin(&h, sizeof hash, NULL, 0);
    hash_add(&h, b->owner, sizeof b->owner);
    hash_add(&h, b->id, sizeof b->id);
    hash_add(&h, &l->day, sizeof l->day);
    hash_add(&h, b->system ? b->system : "", b->len);
    hash_end(&h, hash, sizeof hash);
    memcpy(&number, hash, sizeof number);
    return number;
}

/* Add a preamble; system NULL: none. Without memory it is left out until the next look. */
static void add_before(struct librarian *l, const char *owner, const char *id, const char *system,
                       size_t len)
{
    struct before *all = realloc(l->before, (l->n_before + 1) * sizeof *all);

    if (!all)
        return;
    l->before = all;
    struct before *b = &all[l->n_before];
    memset(b, 0, sizeof *b);
    snprintf(b->owner, sizeof b->owner, "%s", owner);
    snprintf(b->id, sizeof b->id, "%s", id);
    b->system = system ? malloc(len + 1) : NULL;
    if (system && !b->system)
        return;
    if (system)
        memcpy(b->system, system, len);
    b->len = len;
    b->number = number_of(l, b);
    l->n_before++;
}

static bool add_record(void *arg, const struct preamble_record *p)
{
    struct json *body = NULL;
    size_t len;

    if (js_parse(&body, buf_str(&p->body), p->body.len, NULL) == OK &&
        js_is(js_get(body, "system"), JS_STRING)) {
        const char *system = js_string(js_get(body, "system"), &len);
        add_before(arg, p->tenant, p->id, system, len);
    }
    js_unref(body);
    return true;
}

static void add_file(void *arg, const char *file, const char *text, size_t len)
{
    char id[DOCUMENT_ID_BYTES_MAX + 1];

    preamble_file_name(file, id, sizeof id);
    add_before(arg, "", id, text, len);
}

/* Whether documents of `owner` are prefilled behind b. "-" is no owner: the chat without a system
 * message is there for tenants that see no preamble. */
static bool is_for(const struct before *b, const char *owner)
{
    return b->owner[0] == '\0' || strcmp(b->owner, owner) == 0;
}

#define NO_SYSTEM_OWNER "-"

/* Read all preambles, and begin to look through all documents. */
static enum status begin_scan(struct librarian *l, struct buf *why)
{
    forget_before(l);
    l->day = preambles_have_date(l->srv->preambles) ? unix_s() / 86400 : 0;
    preambles_each_file(l->srv->preambles, add_file, l);
    enum status s = catalog_list_preambles(catalog_of(l), NULL, add_record, l, why);
    add_before(l, NO_SYSTEM_OWNER, "", NULL, 0);
    return s;
}

/* --- documents that are to be warm --- */

static bool collect_row(void *arg, int64_t row)
{
    struct librarian *l = arg;

    if (l->n_rows == l->n_rows_max) {
        uint32_t n = l->n_rows_max ? 2 * l->n_rows_max : 1024;
        int64_t *rows = realloc(l->rows, n * sizeof *rows);
        if (!rows)
            return false;
        l->rows = rows;
        l->n_rows_max = n;
    }
    l->rows[l->n_rows++] = row;
    return true;
}

/* Under lock. The hold is released by release_holds(), which waits for the engine. */
static void note_release(void *arg, const struct warm_task *t)
{
    struct librarian *l = arg;

    if (buf_append(&l->released, &t->first, sizeof t->first) != OK)
        log_event(LOG_WARN, "librarian", "what=\"%s\"", "a document stays held until the end");
}

static void release_holds(struct librarian *l)
{
    uint32_t n;

    for (size_t at = 0; at < l->released.len; at += sizeof(struct kv_key)) {
        struct kv_key key;
        memcpy(&key, l->released.data + at, sizeof key);
        if (engine_cache_release(l->srv->engine, &key, &n) != OK)
            log_event(LOG_WARN, "librarian", "what=\"%s\"", "a document stays held until the end");
    }
    buf_reset(&l->released);
}

/* Name the tasks of a document. Under lock. */
static void want(struct librarian *l, const struct document *d)
{
    bool any = false, full = false;

    for (uint32_t i = 0; i < l->n_before; i++) {
        if (!is_for(&l->before[i], d->tenant))
            continue;
        any = true;
        full |= !warm_want(&l->warm, d->row, d->version, l->before[i].number, d->is_pinned);
    }
    for (uint32_t i = 0; !any && d->tenant[0] && i < l->n_before; i++)
        if (strcmp(l->before[i].owner, NO_SYSTEM_OWNER) == 0)
            full |= !warm_want(&l->warm, d->row, d->version, l->before[i].number, d->is_pinned);
    if (full)
        log_event(LOG_WARN, "librarian", "what=\"too many documents are to be warm\" limit=%u",
                  WARM_N_TASKS_MAX);
}

/* Look at one document: it may be new, changed or gone. */
static void refresh_row(struct librarian *l, int64_t row)
{
    struct document d;
    struct buf why;

    document_init(&d);
    buf_init(&why, BUF_WHY_MAX);
    enum status s = catalog_get_row(catalog_of(l), row, &d, &why);
    if (s != OK && s != ERR_NOT_FOUND) {
        warn("read a document", &why, s);
    } else {
        pthread_mutex_lock(&l->lock);
        for (uint32_t i = warm_of_row(&l->warm, row); i != WARM_NONE; i = l->warm.tasks[i].next)
            if (l->warm.tasks[i].is_pinned && !d.is_pinned && l->warm.tasks[i].n_blocks > 0)
                note_release(l, &l->warm.tasks[i]);
        warm_row_begin(&l->warm, row);
        if (s == OK && (d.is_pinned || d.prefill == DOCUMENT_PREFILL_NOW))
            want(l, &d);
        warm_row_end(&l->warm, row, note_release, l);
        pthread_mutex_unlock(&l->lock);
        release_holds(l);
    }
    document_fini(&d);
    buf_fini(&why);
}

/* Begin a scan if one is wanted, and look at some rows of it. */
static void scan(struct librarian *l)
{
    struct buf why;

    if (atomic_exchange(&l->looks_again, false)) {
        buf_init(&why, BUF_WHY_MAX);
        l->n_rows = l->at_row = 0;
        enum status s = begin_scan(l, &why);
        if (s == OK)
            s = catalog_each_prefill(catalog_of(l), collect_row, l, &why);
        if (s != OK)
            warn("look through all documents", &why, s);
        buf_fini(&why);
        pthread_mutex_lock(&l->lock);
        warm_scan_begin(&l->warm);
        pthread_mutex_unlock(&l->lock);
        l->scans = s == OK;
    }
    for (uint32_t i = 0; l->scans && i < N_ROWS_A_TURN && l->at_row < l->n_rows; i++)
        refresh_row(l, l->rows[l->at_row++]);
    if (!l->scans || l->at_row < l->n_rows)
        return;
    l->scans = false;
    pthread_mutex_lock(&l->lock);
    warm_scan_end(&l->warm, note_release, l);
    pthread_mutex_unlock(&l->lock);
    release_holds(l);
}

static void refresh_changed(struct librarian *l)
{
    void *rows[N_ROWS_A_TURN];
    uint32_t n = ring_drain(&l->changed, rows, N_ROWS_A_TURN);

    for (uint32_t i = 0; i < n; i++)
        refresh_row(l, (int64_t)(intptr_t)rows[i]);
    if (n == N_ROWS_A_TURN)
        sem_post(&l->wake); /* there are more */
}

/* --- prefills --- */

static const struct before *find_before(const struct librarian *l, uint64_t number)
{
    for (uint32_t i = 0; i < l->n_before; i++)
        if (l->before[i].number == number)
            return &l->before[i];
    return NULL;
}

static void set_state(struct librarian *l, uint32_t task, enum warm_state state, const char *why)
{
    pthread_mutex_lock(&l->lock);
    (void)warm_set(&l->warm, task, state, why, clock_now_ns());
    pthread_mutex_unlock(&l->lock);
}

/* Make the request of a task. */
static enum status make(struct librarian *l, const struct warm_task *t, struct document *d,
                        struct prefill *p, struct buf *why)
{
    const struct before *b = find_before(l, t->preamble);
    struct account *a = NULL;
    enum status s = catalog_get_row(catalog_of(l), t->row, d, why);

    if (s == OK && (!b || d->version != t->version))
        s = buf_why(why, ERR_NOT_FOUND, "the document or the preamble has changed");
    if (s == OK && d->tenant[0] && !(a = auth_find_owner(l->srv->auth, d->tenant)))
        s = buf_why(why, ERR_NOT_FOUND, "no API key belongs to the tenant of the document now");
    if (s == OK)
        s = prefill_create(p, l->srv, d, b->system, b->len, a, why);
    account_unref(a);
    return s;
}

/* Whether the task must run: its KV is not cached, or is to be held. Writes its path. */
static enum status note_blocks(struct librarian *l, uint32_t task, const struct prefill *p,
                               enum warm_state *state, struct buf *why)
{
    struct document_path path = {.n_tokens = p->n_tokens, .used_s = unix_s()};
    struct warm_task *t = &l->warm.tasks[task];
    const struct before *b = find_before(l, t->preamble);

    pthread_mutex_lock(&l->lock);
    t->first = p->first;
    t->last = p->last;
    t->n_blocks = p->n_blocks;
    *state = engine_cache_knows(l->srv->engine, &p->last) && !t->is_pinned ? WARM_READY
             : warm_has_room(&l->warm, t, &l->room)                        ? WARM_RUNNING
             : t->state == WARM_EVICTED                                    ? WARM_EVICTED
                                                                           : WARM_NO_ROOM;
    pthread_mutex_unlock(&l->lock);
    if (*state != WARM_RUNNING && *state != WARM_READY)
        return OK;
    path.version = t->version;
    memcpy(path.key, p->first.bytes, sizeof path.key);
    snprintf(path.preamble, sizeof path.preamble, "%s", b->id);
    /* Before the KV is there: whatever happens, deleting the document erases it. */
    return add_path(l, t->row, &path, why);
}

static void wake(void *semaphore)
{
    sem_post(semaphore);
}

static enum status submit(struct librarian *l, struct flight *f, uint32_t task, struct prefill *p,
                          struct buf *why)
{
    const struct warm_task *t = &l->warm.tasks[task];
    struct request *r = p->request;

    snprintf(r->id, sizeof r->id, "document-%lld-%u", (long long)t->row, t->version);
    /* Even the shortest hold has the KV written to disk, if there is a disk tier. */
    r->cache_ttl_s = t->is_pinned ? CACHE_TTL_FOREVER : 1;
    r->wake = wake;
    r->wake_arg = &l->wake;
    r->wake_at_end = true;
    enum status s = engine_submit(l->srv->engine, r, why);
    if (s != OK)
        return s;
    *f = (struct flight){.request = r,
                         .task = task,
                         .is_refill = t->state == WARM_EVICTED,
                         .first = p->first,
                         .last = p->last,
                         .n_tokens = p->n_tokens,
                         .row = t->row,
                         .version = t->version};
    p->request = NULL;
    return OK;
}

/* Start the task. ERR_BUSY, ERR_UNAVAILABLE: not now, the task stays as it is. */
static enum status start(struct librarian *l, struct flight *f, uint32_t task, struct buf *why)
{
    enum warm_state state = WARM_FAILED;
    struct prefill p = {0};
    struct document d;

    document_init(&d);
    enum status s = make(l, &l->warm.tasks[task], &d, &p, why);
    if (s == OK)
        s = note_blocks(l, task, &p, &state, why);
    if (s == OK && state == WARM_RUNNING)
        s = submit(l, f, task, &p, why);
    if (s == OK && state != WARM_EVICTED)
        set_state(l, task, state, NULL);
    else if (s != OK && s != ERR_BUSY && s != ERR_UNAVAILABLE)
        set_state(l, task, WARM_FAILED, why->len ? buf_str(why) : status_words(s));
    prefill_fini(&p);
    document_fini(&d);
    return s;
}

static void start_some(struct librarian *l)
{
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    for (uint32_t i = 0; i < N_FLIGHTS; i++) {
        if (l->flights[i].request)
            continue;
        pthread_mutex_lock(&l->lock);
        uint32_t task = warm_next(&l->warm, &l->room, clock_now_ns());
        pthread_mutex_unlock(&l->lock);
        if (task == WARM_NONE)
            break;
        buf_reset(&why);
        enum status s = start(l, &l->flights[i], task, &why);
        if (s == ERR_BUSY || s == ERR_UNAVAILABLE)
            break; /* at the next turn */
        if (!l->flights[i].request)
            sem_post(&l->wake); /* it is ready or failed: there may be more */
    }
    buf_fini(&why);
}

/* A document that was changed or deleted while its prefill ran: what the prefill left must go. */
static void check_version(struct librarian *l, const struct flight *f)
{
    struct document d;
    struct buf why;

    document_init(&d);
    buf_init(&why, BUF_WHY_MAX);
    enum status s = catalog_get_row(catalog_of(l), f->row, &d, &why);
    if (s == ERR_NOT_FOUND || (s == OK && d.version != f->version))
        erase(l, &f->first, false);
    document_fini(&d);
    buf_fini(&why);
}

static void end_flight(struct librarian *l, struct flight *f)
{
    struct request *r = f->request;
    enum finish_reason finish = request_finish(r);
    bool is_done = finish == FINISH_LENGTH || finish == FINISH_STOP;
    bool is_cached = is_done && engine_cache_knows(l->srv->engine, &f->last);

    pthread_mutex_lock(&l->lock);
    if (is_done) {
        l->stats.n_prefilled++;
        l->stats.n_refilled += f->is_refill;
        l->stats.n_prefilled_tokens += r->prompt.n_ids - atomic_load(&r->n_cached);
    }
    (void)warm_set(&l->warm, f->task,
                   is_cached                    ? WARM_READY
                   : is_done                    ? WARM_EVICTED
                   : finish == FINISH_CANCELLED ? WARM_WAITING
                                                : WARM_FAILED,
                   is_done || finish == FINISH_CANCELLED ? NULL
                   : r->error_words                      ? r->error_words
                                                         : "the prefill failed",
                   clock_now_ns());
    pthread_mutex_unlock(&l->lock);
    check_version(l, f);
    request_unref(r);
    f->request = NULL;
}

static uint32_t reap(struct librarian *l)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < N_FLIGHTS; i++) {
        struct flight *f = &l->flights[i];
        if (!f->request)
            continue;
        request_poll(f->request);
        if (request_finish(f->request) != FINISH_NONE)
            end_flight(l, f);
        else
            n++;
    }
    return n;
}

static void cancel_flights(struct librarian *l)
{
    for (uint32_t i = 0; i < N_FLIGHTS; i++)
        if (l->flights[i].request)
            request_cancel(l->flights[i].request);
}

/* --- now and then --- */

/* Notice evictions. A lookup is cheap: key_index.h. */
static void check_ready(struct librarian *l, uint64_t now_ns)
{
    pthread_mutex_lock(&l->lock);
    for (uint32_t i = 0; i < l->warm.n_all; i++) {
        const struct warm_task *t = &l->warm.tasks[i];
        if (t->state == WARM_READY && !engine_cache_knows(l->srv->engine, &t->last))
            (void)warm_set(&l->warm, i, t->is_pinned ? WARM_WAITING : WARM_EVICTED, NULL, now_ns);
    }
    pthread_mutex_unlock(&l->lock);
}

static void sweep(struct librarian *l)
{
    int64_t rows[N_EXPIRED_A_TURN];
    char tenant[128];
    uint32_t n = 0;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = catalog_sweep(catalog_of(l), unix_s(), N_EXPIRED_A_TURN, rows, &n, &why);
    if (s != OK)
        warn("delete expired documents", &why, s);
    for (uint32_t i = 0; i < n; i++) {
        refresh_row(l, rows[i]);
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
    write_notes(l);
    erase_again(l, now_ns);
    sweep(l);
    if (preambles_have_date(l->srv->preambles) && l->day != unix_s() / 86400)
        atomic_store(&l->looks_again, true);
    if (now_ns - l->checked_ns < CHECK_NS)
        return;
    l->checked_ns = now_ns;
    check_ready(l, now_ns);
}

/* --- the thread --- */

static void work(struct librarian *l)
{
    tick(l);
    if (atomic_exchange(&l->erases, false))
        erase_taken(l);
    scan(l);
    refresh_changed(l);
    uint32_t n_flying = reap(l);
    if (atomic_load(&l->srv->draining) || engine_failed(l->srv->engine))
        cancel_flights(l);
    else if (n_flying < N_FLIGHTS)
        start_some(l);
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
        if (catalog_of(l) && !atomic_load(&l->stopping))
            work(l);
    }
    cancel_flights(l);
    while (catalog_of(l) && reap(l) > 0)
        wait_for_work(l);
    if (catalog_of(l))
        write_notes(l);
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
    forget_before(l);
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
