#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/retrieval/vectors_inner.h"

struct vectors_scan {
    struct vectors *v;
    uint32_t k, n_stages, stage;
    uint64_t serial; /* of the body that `lists` belong to */
    bool (*fits)(void *arg, int64_t id);
    void *arg;
    uint32_t n_lists;
    int64_t *lists;               /* [n_lists] nearest first */
    float *list_scores;           /* [n_lists] */
    struct faiss_hits best, more; /* so far, of one stage */
    float *memory;                /* of the scores of both, and of the query */
    float *q;                     /* [dim] */
};

static bool fits_slot(void *arg, int64_t slot)
{
    const struct vectors_scan *s = arg;
    const struct body *b = s->v->now;

    return !b->is_dead[slot] && (!s->fits || s->fits(s->arg, b->ids[slot]));
}

/* Visiting 1 / 16 of the lists, and 16 at least, finds 93 to 100 % of the 10 nearest of clustered
 * vectors (loadgen/bench/retrieval/README.md). */
static uint32_t choose_n_probe(const struct vectors *v, uint32_t n_lists)
{
    uint32_t n = v->n_probe ? v->n_probe : n_lists / 16 > 16 ? n_lists / 16 : 16;

    return n < n_lists ? n : n_lists;
}

/* Find the lists to visit. The caller holds the lock. */
static enum status choose_lists(struct vectors_scan *s, struct buf *why)
{
    const struct body *b = s->v->now;
    uint32_t n_lists = faiss_index_n_lists(b->ix);

    s->serial = s->v->serial;
    s->n_lists = n_lists ? choose_n_probe(s->v, n_lists) : 0;
    if (s->n_lists == 0)
        return OK;
    free(s->lists);
    free(s->list_scores);
    s->lists = malloc(s->n_lists * sizeof *s->lists);
    s->list_scores = malloc(s->n_lists * sizeof *s->list_scores);
    if (!s->lists || !s->list_scores)
        return ERR_NOMEM;
    return faiss_index_lists(b->ix, s->q, s->n_lists, s->lists, s->list_scores, why);
}

static enum status allocate(struct vectors_scan *s, uint32_t dim)
{
    s->memory = malloc((2 * (size_t)s->k + dim) * sizeof *s->memory);
    s->best.labels = malloc((2 * (size_t)s->k + 1) * sizeof *s->best.labels);
    if (!s->memory || !s->best.labels)
        return ERR_NOMEM;
    s->best.scores = s->memory;
    s->more.scores = s->memory + s->k;
    s->more.labels = s->best.labels + s->k;
    s->q = s->memory + 2 * (size_t)s->k;
    s->best.k = s->more.k = s->k;
    s->more.fits = fits_slot;
    s->more.arg = s;
    return OK;
}

enum status vectors_scan_begin(struct vectors_scan **out, struct vectors *v, const float *q,
                               uint32_t k, uint32_t n_stages, bool (*fits)(void *arg, int64_t id),
                               void *arg, struct buf *why)
{
    struct vectors_scan *s = calloc(1, sizeof *s);
    enum status status;

    *out = NULL;
    if (!s)
        return ERR_NOMEM;
    s->v = v;
    s->fits = fits;
    s->arg = arg;
    pthread_rwlock_rdlock(&v->lock);
    s->k = k < v->now->n_slots ? k : v->now->n_slots;
    status = allocate(s, v->dim);
    if (status == OK)
        status = vectors_normalize(s->q, q, v->dim, why);
    if (status == OK)
        status = choose_lists(s, why);
    pthread_rwlock_unlock(&v->lock);
    if (status != OK) {
        vectors_scan_end(s);
        return status;
    }
    s->n_stages = n_stages < s->n_lists ? n_stages : s->n_lists;
    if (s->n_stages == 0)
        s->n_stages = 1;
    *out = s;
    return OK;
}

/* Drop hits that have been removed since they were found. */
static void drop_dead(struct vectors_scan *s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->best.n; i++)
        if (!s->v->now->is_dead[s->best.labels[i]]) {
            s->best.labels[n] = s->best.labels[i];
            s->best.scores[n++] = s->best.scores[i];
        }
    s->best.n = n;
}

static bool is_better(const struct faiss_hits *a, uint32_t i, const struct faiss_hits *b,
                      uint32_t j)
{
    return a->scores[i] > b->scores[j] ||
           (a->scores[i] == b->scores[j] && a->labels[i] > b->labels[j]);
}

/* Merge the hits of a stage into the best, which are filled from the end, so that none is
 * overwritten before it is read. */
static void merge(struct vectors_scan *s)
{
    struct faiss_hits *best = &s->best, *more = &s->more;
    uint32_t i = 0, j = 0, n;

    while (i + j < s->k && (i < best->n || j < more->n))
        if (j == more->n || (i < best->n && is_better(best, i, more, j)))
            i++;
        else
            j++;
    n = i + j; /* i of the best so far and j of the stage are left */
    for (uint32_t at = n; at-- > 0;) {
        bool from_more = i == 0 || (j > 0 && is_better(best, i - 1, more, j - 1));
        const struct faiss_hits *from = from_more ? more : best;
        uint32_t index = from_more ? --j : --i;

        best->scores[at] = from->scores[index];
        best->labels[at] = from->labels[index];
    }
    best->n = n;
}

/* Visit the lists of this stage; the caller holds the lock. */
static enum status run_stage(struct vectors_scan *s, struct buf *why)
{
    const struct body *b = s->v->now;
    uint32_t from, to;

    if (s->serial != s->v->serial) { /* rebuilt since: slots and lists are others */
        enum status status = choose_lists(s, why);

        if (status != OK)
            return status;
        s->best.n = 0;
        s->stage = 0;
        s->n_stages = 1;
    }
    if (s->n_lists == 0)
        return faiss_index_search(b->ix, s->q, &s->more, why);
    from = (uint32_t)((uint64_t)s->n_lists * s->stage / s->n_stages);
    to = (uint32_t)((uint64_t)s->n_lists * (s->stage + 1) / s->n_stages);
    return faiss_index_search_lists(b->ix, s->q, s->lists + from, s->list_scores + from, to - from,
                                    &s->more, why);
}

enum status vectors_scan_next(struct vectors_scan *s, struct vector_hit *hits, uint32_t *n,
                              bool *is_last, struct buf *why)
{
    struct vectors *v = s->v;
    enum status status = OK;

    pthread_rwlock_rdlock(&v->lock);
    s->more.n = 0;
    if (s->stage < s->n_stages || s->serial != v->serial)
        status = run_stage(s, why);
    if (status == OK) {
        drop_dead(s);
        merge(s);
        for (uint32_t i = 0; i < s->best.n; i++)
            hits[i] = (struct vector_hit){.id = v->now->ids[s->best.labels[i]],
                                          .score = s->best.scores[i]};
    }
    pthread_rwlock_unlock(&v->lock);
    s->stage += s->stage < s->n_stages;
    *n = s->best.n;
    *is_last = s->stage == s->n_stages;
    return status;
}

void vectors_scan_end(struct vectors_scan *s)
{
    if (!s)
        return;
    free(s->lists);
    free(s->list_scores);
    free(s->best.labels);
    free(s->memory);
    free(s);
}

enum status vectors_search(struct vectors *v, const float *q, uint32_t k,
                           bool (*fits)(void *arg, int64_t id), void *arg, struct vector_hit *hits,
                           uint32_t *n, struct buf *why)
{
    struct vectors_scan *scan;
    bool is_last;
    enum status s = vectors_scan_begin(&scan, v, q, k, 1, fits, arg, why);

    *n = 0;
    if (s == OK)
        s = vectors_scan_next(scan, hits, n, &is_last, why);
    vectors_scan_end(scan);
    return s;
}
