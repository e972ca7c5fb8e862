#include "engine/retrieval/retrieval.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/retrieval/indexes.h"

#define RRF_K 60.0   /* of reciprocal rank fusion, as published */
#define FUSED_MIN 50 /* length of each list that hybrid search fuses, where there are as many */
#define N_PARTS 2    /* the tenant's index and the public one */

struct retrieval {
    struct catalog *catalog;
    struct indexes *indexes;
    atomic_uint_least64_t n_searches;
};

enum status retrieval_open(struct retrieval **out, const struct retrieval_config *config,
                           struct buf *why)
{
    struct retrieval *r = calloc(1, sizeof *r);
    enum status s;

    *out = NULL;
    if (!r)
        return ERR_NOMEM;
    r->catalog = config->catalog;
    s = indexes_create(&r->indexes, config, why);
    if (s != OK) {
        free(r);
        return s;
    }
    *out = r;
    return OK;
}

void retrieval_close(struct retrieval *r)
{
    if (!r)
        return;
    indexes_destroy(r->indexes);
    free(r);
}

void retrieval_remove(struct retrieval *r, const char *tenant, int64_t row)
{
    struct index_use *use = indexes_get_open(r->indexes, tenant);

    if (use)
        index_remove(use, row);
    indexes_put_back(r->indexes, use);
}

enum status retrieval_put(struct retrieval *r, const struct document *d, int64_t row,
                          struct buf *why)
{
    struct index_use *use;
    enum status s;

    if (d->embedding.len == 0) {
        retrieval_remove(r, d->tenant, row);
        return OK;
    }
    s = indexes_get(&use, r->indexes, d->tenant, why);
    if (s != OK)
        return s;
    s = index_put(r->indexes, use, row, (const float *)(const void *)d->embedding.data,
                  (uint32_t)(d->embedding.len / sizeof(float)), why);
    indexes_put_back(r->indexes, use);
    return s;
}

uint32_t retrieval_dim(struct retrieval *r, const char *tenant)
{
    struct index_use *use;
    uint32_t dim;

    if (indexes_get(&use, r->indexes, tenant, NULL) != OK)
        return 0;
    dim = index_dim(use);
    indexes_put_back(r->indexes, use);
    return dim;
}

void retrieval_stats(struct retrieval *r, struct retrieval_stats *out)
{
    *out = (struct retrieval_stats){.n_searches = atomic_load(&r->n_searches)};
    indexes_stats(r->indexes, out);
}

/* --- one search --- */

/* The search in one index. */
struct part {
    struct index_use *use;
    struct vectors *vectors; /* NULL: the index takes no part */
    struct vectors_scan *scan;
    struct vector_hit *hits; /* [n_max] of the last stage */
    uint32_t n, n_max;
    bool is_last;
};

struct list {
    int64_t *rows;
    double *scores;
    uint32_t n;
};

struct retrieval_search {
    struct retrieval *r;
    struct retrieval_query q;
    float *vector; /* [q.dim] a copy */
    bool has_words, has_vectors;
    uint32_t n_wanted; /* of each list */
    struct part parts[N_PARTS];
    bool is_words_done;
    struct list words, vectors;
};

static enum status allocate_list(struct list *list, uint64_t n)
{
    int64_t *rows = realloc(list->rows, (n + 1) * sizeof *rows);
    double *scores;

    if (!rows)
        return ERR_NOMEM;
    list->rows = rows;
    scores = realloc(list->scores, (n + 1) * sizeof *scores);
    if (!scores)
        return ERR_NOMEM;
    list->scores = scores;
    return OK;
}

/* Decide which lists the search has. */
static enum status choose_mode(struct retrieval_search *s, struct buf *why)
{
    const struct retrieval_query *q = &s->q;
    bool is_there = s->parts[0].vectors || s->parts[1].vectors;

    if (q->top_k == 0 || q->top_k > RETRIEVAL_TOP_K_MAX)
        return buf_why(why, ERR_INVALID, "top_k must be 1 to %d", RETRIEVAL_TOP_K_MAX);
    if ((q->mode == RETRIEVAL_LEXICAL || q->mode == RETRIEVAL_HYBRID) && !q->text)
        return buf_why(why, ERR_INVALID, "a search by words needs a query text");
    if ((q->mode == RETRIEVAL_VECTOR || q->mode == RETRIEVAL_HYBRID) && !q->vector)
        return buf_why(why, ERR_INVALID, "a search by vectors needs the query's embedding");
    if (!q->text && !q->vector)
        return buf_why(why, ERR_INVALID, "a search needs a query text or an embedding");
    if ((q->mode == RETRIEVAL_VECTOR || q->mode == RETRIEVAL_HYBRID || !q->text) &&
        !vectors_are_supported())
        return buf_why(why, ERR_UNSUPPORTED,
                       "this server was built without Faiss and has no vector search");
    s->has_words = q->text && q->mode != RETRIEVAL_VECTOR;
    s->has_vectors = q->vector && q->mode != RETRIEVAL_LEXICAL && is_there;
    s->n_wanted = q->top_k;
    if (s->has_words && s->has_vectors && s->n_wanted < FUSED_MIN)
        s->n_wanted = FUSED_MIN;
    return OK;
}

/* Open the indexes of the scope that have vectors of the query's dimension. */
static enum status open_parts(struct retrieval_search *s, struct buf *why)
{
    const struct retrieval_query *q = &s->q;
    const char *tenants[N_PARTS] = {q->scope.own && *q->scope.tenant ? q->scope.tenant : NULL,
                                    q->scope.public || (q->scope.own && !*q->scope.tenant) ? ""
                                                                                           : NULL};
    uint32_t other = 0;

    if (!q->vector || q->mode == RETRIEVAL_LEXICAL)
        return OK;
    for (int i = 0; i < N_PARTS; i++) {
        struct part *p = &s->parts[i];
        uint32_t dim;

        if (!tenants[i])
            continue;
        enum status status = indexes_get(&p->use, s->r->indexes, tenants[i], why);
        if (status != OK)
            return status;
        dim = index_dim(p->use);
        if (dim == q->dim)
            p->vectors = index_vectors(p->use);
        else if (dim && (i == 0 || !s->parts[0].vectors))
            other = dim;
    }
    if (other)
        return buf_why(why, ERR_INVALID,
                       "the query's embedding has %u entries, but those of the documents have %u",
                       q->dim, other);
    return OK;
}

/* Search each index for more than is wanted, because documents that have expired or that do not
 * pass the filter are dropped later. */
static enum status begin_scans(struct retrieval_search *s, struct buf *why)
{
    enum status status = OK;

    for (int i = 0; i < N_PARTS && status == OK && s->has_vectors; i++) {
        struct part *p = &s->parts[i];

        if (!p->vectors)
            continue;
        p->n_max = s->n_wanted * (s->q.filter ? 4 : 1) + 8;
        p->hits = malloc(p->n_max * sizeof *p->hits);
        if (!p->hits)
            return ERR_NOMEM;
        status = vectors_scan_begin(&p->scan, p->vectors, s->vector, p->n_max, s->q.n_stages, NULL,
                                    NULL, why);
    }
    return status;
}

enum status retrieval_begin(struct retrieval_search **out, struct retrieval *r,
                            const struct retrieval_query *q, struct buf *why)
{
    struct retrieval_search *s = calloc(1, sizeof *s);
    enum status status = OK;

    *out = NULL;
    if (!s)
        return ERR_NOMEM;
    s->r = r;
    s->q = *q;
    if (q->vector) {
        s->vector = malloc((q->dim + 1) * sizeof *s->vector);
        if (s->vector)
            memcpy(s->vector, q->vector, q->dim * sizeof *s->vector);
        else
            status = ERR_NOMEM;
    }
    if (status == OK && q->filter)
        status = catalog_check_filter(q->filter, why);
    if (status == OK)
        status = open_parts(s, why);
    if (status == OK)
        status = choose_mode(s, why);
    if (status == OK)
        status = begin_scans(s, why);
    if (status != OK) {
        retrieval_end(s);
        return status;
    }
    atomic_fetch_add(&r->n_searches, 1);
    *out = s;
    return OK;
}

static enum status search_words(struct retrieval_search *s, struct buf *why)
{
    struct catalog_hit *hits = malloc(s->n_wanted * sizeof *hits);
    enum status status = hits ? allocate_list(&s->words, s->n_wanted) : ERR_NOMEM;
    uint32_t n = 0;

    if (status == OK)
        status = catalog_search_text(s->r->catalog, &s->q.scope, s->q.text, s->q.text_len,
                                     s->q.filter, s->n_wanted, hits, &n, why);
    for (uint32_t i = 0; status == OK && i < n; i++) {
        s->words.rows[i] = hits[i].row;
        s->words.scores[i] = hits[i].score;
    }
    s->words.n = n;
    free(hits);
    s->is_words_done = status == OK;
    return status;
}

/* Merge the hits of both indexes, and keep those that pass the filter and are not expired. */
static enum status merge_parts(struct retrieval_search *s, struct buf *why)
{
    const struct part *a = &s->parts[0], *b = &s->parts[1];
    struct list *to = &s->vectors;
    uint32_t i = 0, j = 0, n_left, n = 0;
    enum status status = allocate_list(to, (uint64_t)a->n + b->n);

    if (status != OK)
        return status;
    int64_t *kept = malloc(((size_t)a->n + b->n + 1) * sizeof *kept);
    if (!kept)
        return ERR_NOMEM;
    for (to->n = 0; i < a->n || j < b->n; to->n++) {
        bool is_a = j == b->n || (i < a->n && a->hits[i].score >= b->hits[j].score);
        const struct vector_hit *hit = is_a ? &a->hits[i++] : &b->hits[j++];

        to->rows[to->n] = hit->id;
        to->scores[to->n] = hit->score;
    }
    memcpy(kept, to->rows, to->n * sizeof *kept);
    status = catalog_filter_rows(s->r->catalog, s->q.filter, kept, to->n, &n_left, why);
    for (uint32_t at = 0; status == OK && at < to->n && n < n_left; at++)
        if (to->rows[at] == kept[n]) { /* the order stayed */
            to->rows[n] = to->rows[at];
            to->scores[n++] = to->scores[at];
        }
    to->n = status == OK ? n : 0;
    free(kept);
    return status;
}

static enum status grow_hits(struct part *p)
{
    struct vector_hit *hits = realloc(p->hits, (size_t)p->n_max * 4 * sizeof *hits);

    if (!hits)
        return ERR_NOMEM;
    p->hits = hits;
    p->n_max *= 4;
    return OK;
}

/* Search for more while the filter leaves fewer than top_k and an index has more to offer. */
static enum status fill_up(struct retrieval_search *s, struct buf *why)
{
    enum status status = OK;
    bool has_more = true;

    while (status == OK && s->vectors.n < s->q.top_k && has_more) {
        has_more = false;
        for (int i = 0; i < N_PARTS && status == OK; i++) {
            struct part *p = &s->parts[i];

            if (!p->vectors || p->n < p->n_max || p->n_max > UINT32_MAX / 8)
                continue;
            has_more = true;
            status = grow_hits(p);
            if (status == OK)
                status = vectors_search(p->vectors, s->vector, p->n_max, NULL, NULL, p->hits, &p->n,
                                        why);
        }
        if (status == OK && has_more)
            status = merge_parts(s, why);
    }
    return status;
}

static enum status search_vectors(struct retrieval_search *s, bool *is_last, struct buf *why)
{
    enum status status = OK;

    for (int i = 0; i < N_PARTS && status == OK; i++) {
        struct part *p = &s->parts[i];

        if (!p->scan || p->is_last)
            continue;
        status = vectors_scan_next(p->scan, p->hits, &p->n, &p->is_last, why);
        *is_last &= p->is_last;
    }
    if (status == OK)
        status = merge_parts(s, why);
    if (status == OK && *is_last)
        status = fill_up(s, why);
    return status;
}

static struct retrieval_hit *find_hit(struct retrieval_hit *hits, uint32_t n, int64_t row)
{
    for (uint32_t i = 0; i < n; i++)
        if (hits[i].row == row)
            return &hits[i];
    return NULL;
}

static int compare_hits(const void *a, const void *b)
{
    const struct retrieval_hit *x = a, *y = b;

    if (x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return (x->row > y->row) - (x->row < y->row);
}

/* Join the lists by reciprocal rank; a single list keeps its scores. */
static enum status fuse(const struct retrieval_search *s, struct retrieval_hit *hits, uint32_t *n)
{
    const struct list *lists[2] = {&s->words, &s->vectors};
    bool is_fused = s->has_words && s->has_vectors;
    struct retrieval_hit *all = calloc((size_t)s->words.n + s->vectors.n + 1, sizeof *all);
    uint32_t n_all = 0;

    if (!all)
        return ERR_NOMEM;
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < lists[k]->n && i < s->n_wanted; i++) {
            struct retrieval_hit *hit = find_hit(all, n_all, lists[k]->rows[i]);

            if (!hit) {
                hit = &all[n_all++];
                hit->row = lists[k]->rows[i];
            }
            *(k ? &hit->vector_rank : &hit->lexical_rank) = i + 1;
            hit->score += is_fused ? 1 / (RRF_K + i + 1) : lists[k]->scores[i];
        }
    if (is_fused)
        qsort(all, n_all, sizeof *all, compare_hits);
    *n = n_all < s->q.top_k ? n_all : s->q.top_k;
    memcpy(hits, all, *n * sizeof *hits);
    free(all);
    return OK;
}

enum status retrieval_next(struct retrieval_search *s, struct retrieval_hit *hits, uint32_t *n,
                           bool *is_last, struct buf *why)
{
    enum status status = OK;

    *n = 0;
    *is_last = true;
    if (s->has_words && !s->is_words_done)
        status = search_words(s, why);
    if (status == OK && s->has_vectors)
        status = search_vectors(s, is_last, why);
    return status == OK ? fuse(s, hits, n) : status;
}

void retrieval_end(struct retrieval_search *s)
{
    if (!s)
        return;
    for (int i = 0; i < N_PARTS; i++) {
        vectors_scan_end(s->parts[i].scan);
        indexes_put_back(s->r->indexes, s->parts[i].use);
        free(s->parts[i].hits);
    }
    free(s->words.rows);
    free(s->words.scores);
    free(s->vectors.rows);
    free(s->vectors.scores);
    free(s->vector);
    free(s);
}
