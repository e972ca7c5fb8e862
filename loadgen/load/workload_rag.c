/* workload_rag.c - requests with documents: which, in what order, and a question.
 *
 * Three ways to say which documents a request has:
 *   the data's lists     each question has its own; questions are asked in a shuffled order or in
 *                        the data's, all once before any twice, or drawn by Zipf
 *   drawn from the data  one by one, by how often the lists name each (measured) or by Zipf
 *   made documents       without data: drawn by Zipf, texts from ids */
#include <stdlib.h>
#include <string.h>

#include "loadgen/load/workload_inner.h"

#define N_MADE_DOCUMENTS 1000

static bool uses_lists(const struct workload *w)
{
    return w->config.data && !w->config.draw_documents;
}

static enum status open_order(struct workload *w)
{
    uint32_t n = w->corpus.n_questions;
    struct draw d;

    w->order = malloc((n ? n : 1) * sizeof *w->order);
    if (!w->order)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < n; i++)
        w->order[i] = i;
    w->n_order = n;
    if (w->config.keeps_order)
        return OK;
    draw_init(&d, w->config.seed, DRAW_SHUFFLE, 0);
    draw_shuffle_u32(&d, w->order, n);
    return OK;
}

/* Weights: how many lists name each document. */
static enum status open_measured(struct workload *w, struct buf *why)
{
    uint32_t n = w->corpus.n_documents;
    double *counts = calloc(n, sizeof *counts);

    if (!counts)
        return ERR_NOMEM;
    for (uint32_t q = 0; q < w->corpus.n_questions; q++)
        for (uint32_t i = 0; i < w->corpus.questions[q].n_docs; i++)
            counts[w->corpus.questions[q].docs[i]]++;
    enum status s = weighted_init(&w->popularity, counts, n);
    free(counts);
    return s == ERR_INVALID ? buf_why(why, s,
                                      "%s: no question's list names these documents: use "
                                      "--popularity zipf",
                                      w->config.data)
                            : s;
}

/* Give each document or question a rank that the seed draws; the skew is the same for all seeds. */
static enum status open_zipf(struct workload *w, uint32_t n)
{
    struct draw d;

    if (!w->order) {
        w->order = malloc(n * sizeof *w->order);
        if (!w->order)
            return ERR_NOMEM;
        for (uint32_t i = 0; i < n; i++)
            w->order[i] = i;
        draw_init(&d, w->config.seed, DRAW_SHUFFLE, 1);
        draw_shuffle_u32(&d, w->order, n);
        w->n_order = n;
    }
    return weighted_init_zipf(&w->popularity, n, w->config.zipf);
}

enum status workload_rag_open(struct workload *w, struct buf *why)
{
    const struct workload_config *c = &w->config;
    enum status s = OK;

    if (c->n_retrieved == 0 || c->n_retrieved > CORPUS_LIST_MAX)
        return buf_why(why, ERR_INVALID, "a request needs 1 to %d documents", CORPUS_LIST_MAX);
    if (!c->data)
        return open_zipf(w, c->n_documents ? c->n_documents : N_MADE_DOCUMENTS);
    s = corpus_load(&w->corpus, c->data, c->n_documents, why);
    if (s == OK && uses_lists(w) && w->corpus.n_questions == 0)
        s = buf_why(why, ERR_INVALID,
                    "%s: no question's list lies wholly in the first %u "
                    "documents: use --retrieval draw, or more documents",
                    c->data, w->corpus.n_documents);
    if (s == OK && uses_lists(w))
        s = open_order(w);
    if (s != OK)
        return s;
    if (c->popularity == POPULARITY_ZIPF)
        return open_zipf(w, uses_lists(w) ? w->corpus.n_questions : w->corpus.n_documents);
    return uses_lists(w) ? OK : open_measured(w, why);
}

/* Choose the request's documents and question; *question is UINT32_MAX for a made question. */
static enum status choose(struct workload *w, struct load_request *r, struct draw *d,
                          uint32_t docs[CORPUS_LIST_MAX], uint32_t *n, uint32_t *question)
{
    const struct workload_config *c = &w->config;
    bool zipf = c->popularity == POPULARITY_ZIPF || !c->data;
    enum status s = OK;

    *question = UINT32_MAX;
    if (uses_lists(w)) {
        uint32_t k = zipf ? weighted_draw(&w->popularity, d) : (uint32_t)(r->index % w->n_order);
        const struct corpus_question *q = &w->corpus.questions[w->order[k]];
        *question = w->order[k];
        *n = q->n_docs < c->n_retrieved ? q->n_docs : c->n_retrieved;
        memcpy(docs, q->docs, *n * sizeof *docs);
        return OK;
    }
    *n = c->n_retrieved;
    s = weighted_draw_distinct(&w->popularity, d, docs, n);
    for (uint32_t i = 0; s == OK && zipf && i < *n; i++)
        docs[i] = w->order[docs[i]];
    if (w->corpus.n_questions)
        *question = (uint32_t)draw_below(d, w->corpus.n_questions);
    return s;
}

static enum status add_document(struct workload *w, struct load_request *r, uint32_t doc)
{
    struct part *p;
    struct draw d;

    if (!w->config.data) {
        draw_init(&d, w->config.seed, DRAW_DOCUMENT, doc);
        return workload_add(r, PART_DOCUMENT, workload_id(w, ID_DOCUMENT, doc),
                            dist_draw(&w->config.document_len, doc, &d));
    }
    /* Real text is the same whatever the seed is. */
    p = load_request_add(r, PART_DOCUMENT, draw_mix(ID_DOCUMENT, doc), 0);
    if (!p)
        return ERR_NOMEM;
    p->title = w->corpus.documents[doc].title;
    p->text = w->corpus.documents[doc].text;
    p->text_len = w->corpus.documents[doc].text_len;
    return OK;
}

static enum status add_question(struct workload *w, struct load_request *r, uint32_t question,
                                uint32_t n_tokens)
{
    if (question == UINT32_MAX)
        return workload_add(r, PART_USER, workload_id(w, ID_OWN, r->index), n_tokens);
    struct part *p = load_request_add(r, PART_USER, draw_mix(ID_QUESTION, question), 0);
    if (!p)
        return ERR_NOMEM;
    p->text = w->corpus.questions[question].text;
    p->text_len = w->corpus.questions[question].text_len;
    return OK;
}

enum status workload_rag_fill(struct workload *w, struct load_request *r)
{
    const struct workload_config *c = &w->config;
    uint32_t docs[CORPUS_LIST_MAX], n = 0, question;
    struct draw d, of_system;

    draw_init(&d, c->seed, DRAW_LENGTH, r->index);
    uint32_t n_input = workload_draw_input(w, r, &d);
    r->n_output_tokens = workload_draw_output(w, r, &d);
    draw_init(&d, c->seed, DRAW_RETRIEVAL, r->index);
    enum status s = choose(w, r, &d, docs, &n, &question);
    if (s == OK && c->shuffle_documents)
        draw_shuffle_u32(&d, docs, n);
    if (s == OK && c->has_system) {
        draw_init(&of_system, c->seed, DRAW_PREFIX, 0);
        s = workload_add(r, PART_SYSTEM, workload_id(w, ID_SYSTEM, 0),
                         dist_draw(&c->system_len, 0, &of_system));
    }
    for (uint32_t i = 0; s == OK && i < n; i++)
        s = add_document(w, r, docs[i]);
    return s == OK ? add_question(w, r, question, n_input) : s;
}
