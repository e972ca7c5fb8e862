/* librarian_paths.c - uses and paths of documents, and erasing the KV of deleted ones. */
#include "server/api/librarian_inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "server/server.h"

#define N_NOTES_A_TURN 256
#define N_TAKEN 64
#define RECENT_S 600
#define AGAIN_NS (60 * SECOND_NS)

/* --- erasing KV --- */

/* Erase the span, and note the key to be erased once more: a request that runs now may leave the
 * same KV behind. */
static void erase_here(struct librarian *l, const struct kv_key *key, bool again)
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

void librarian_erase_span(struct librarian *l, const struct kv_key *key, bool again)
{
    erase_here(l, key, again);
    librarian_follow_erased(l, key);
}

static void erase_path(struct librarian *l, const struct document_path *p)
{
    struct kv_key key;

    memcpy(key.bytes, p->key, sizeof key.bytes);
    librarian_erase_span(l, &key, true);
}

void librarian_erase_taken(struct librarian *l)
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
        librarian_warn("erase the KV of deleted documents", &why, s);
    }
    buf_fini(&why);
    free(paths);
}

/* Whether a present document has this path: its text has come back, or another one is equal. */
static bool is_used(struct librarian *l, const struct kv_key *key)
{
    struct document d;

    document_init(&d);
    bool is_used = catalog_find_path(catalog_of(l), key->bytes, &d) == OK;
    document_fini(&d);
    return is_used;
}

void librarian_erase_told(struct librarian *l, const struct kv_key *key)
{
    if (!is_used(l, key))
        erase_here(l, key, true);
}

void librarian_erase_again(struct librarian *l, uint64_t now_ns)
{
    while (l->n_again > 0 && l->again[l->at_again].at_ns <= now_ns) {
        struct kv_key key = l->again[l->at_again].key;
        l->at_again = (l->at_again + 1) % N_AGAIN;
        l->n_again--;
        if (!is_used(l, &key))
            librarian_erase_span(l, &key, false);
    }
}

/* --- paths and uses --- */

/* An erasure waits for the engine, which a change of the catalog must not: other writers wait. */
static void erase_later(struct librarian *l, const struct document_path *p)
{
    if (l->n_again == N_AGAIN) {
        erase_path(l, p);
        return;
    }
    uint32_t at = (l->at_again + l->n_again++) % N_AGAIN;
    memcpy(l->again[at].key.bytes, p->key, sizeof p->key);
    l->again[at].at_ns = clock_now_ns();
}

/* Write a path; erase the one that makes room for it. */
enum status librarian_add_path(struct librarian *l, int64_t row, const struct document_path *p,
                               struct buf *why)
{
    struct document_path oldest;
    bool dropped = false;
    enum status s = catalog_add_path(catalog_of(l), row, p, &oldest, &dropped, why);

    if (s == OK && dropped)
        erase_later(l, &oldest);
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
    /* The version, too: a text may come back, and its old path is gone. */
    uint64_t key = short_key(&p->key) ^ (uint64_t)p->row ^ (uint64_t)p->version << 40;
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
    return librarian_add_path(l, p->row, &path, why);
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

void librarian_write_notes(struct librarian *l)
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
    if (s != OK) {
        librarian_warn("write uses of documents", &why, s);
        memset(l->recent, 0, sizeof l->recent);
    }
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
