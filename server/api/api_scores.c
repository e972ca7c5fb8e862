/* api_scores.c - POST /rerank, compatible with Jina's, Cohere's and vLLM's, and POST /score and
 * /classify, compatible with vLLM's.
 *
 * A pair's score is what the activation of the model with one label makes of its logit; by the
 * embedding model, the cosine of the two texts' vectors. */
#include <stdlib.h>

#include "base/check.h"
#include "base/json.h"
#include "engine/embedder.h"
#include "server/api/api.h"
#include "server/api/body.h"
#include "server/api/embedding_call.h"
#include "server/api/embeddings.h"
#include "server/api/vector_json.h"

#define ENTRY_BYTES 96  /* of the JSON of a result, without its texts and lists */
#define ESCAPED_BYTES 6 /* of a byte of a label in JSON */

/* --- pairs --- */

/* Compute what the model that classifies says about input i: out [labels]. */
static enum status classify(struct embedding_call *c, uint32_t i, float *out)
{
    const struct embedding_request *r = &c->request;
    struct embedder *e = embeddings_embedder(r->of);
    const uint32_t *ids;
    uint32_t n;
    enum status s = embedding_call_next(c, i, &ids, &n);

    if (s == OK)
        s = embedder_classify_ids(e, ids, n, r->types[i], out, &c->why);
    if (s != OK)
        return s;
    embedding_call_count(c, n);
    embedder_labels_activate(r->activation, out, embedder_labels(e)->n);
    return OK;
}

static enum status embed(struct embedding_call *c, uint32_t i, float *v)
{
    const uint32_t *ids;
    uint32_t n;
    enum status s = embedding_call_next(c, i, &ids, &n);

    if (s == OK)
        s = embedder_encode_ids(embeddings_embedder(c->request.of), ids, n, v, &c->why);
    if (s == OK)
        embedding_call_count(c, n);
    return s;
}

/* The cosine of each pair; v [2 * dim]: vectors of a pair's texts. */
static enum status compare(struct embedding_call *c, float *v, double *scores)
{
    const struct embedding_request *r = &c->request;
    uint32_t input = 0;
    enum status s = OK;

    for (uint32_t i = 0; s == OK && i < r->n_pairs; i++) {
        if (i == 0 || !r->shares_first)
            s = embed(c, input++, v);
        if (s == OK)
            s = embed(c, input++, v + r->dim);
        scores[i] = 0;
        for (uint32_t k = 0; s == OK && k < r->dim; k++)
            scores[i] += (double)v[k] * v[r->dim + k];
    }
    return s;
}

/* scores [n_pairs] */
static enum status score(struct embedding_call *c, double *scores)
{
    const struct embedding_request *r = &c->request;
    float *v = r->types ? NULL : calloc(2 * (size_t)r->dim, sizeof *v);
    float one;
    enum status s = OK;

    if (!r->types && !v)
        return buf_why(&c->why, ERR_NOMEM, "out of memory");
    if (!r->types)
        s = compare(c, v, scores);
    for (uint32_t i = 0; s == OK && r->types && i < r->n_pairs; i++) {
        s = classify(c, i, &one); /* the model has one label: score_request.c */
        scores[i] = (double)one;
    }
    free(v);
    return s;
}

/* --- /rerank --- */

struct ranked {
    uint32_t index;
    double score;
};

/* The best first; equal scores in the order of the request. */
static int by_score(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

static void write_document(struct writer *w, const struct json *d)
{
    write_puts(w, js_is(d, JS_OBJECT) ? ",\"document\":" : ",\"document\":{\"text\":");
    if (w->status == OK)
        w->status = js_write(w->out, d);
    write_puts(w, js_is(d, JS_OBJECT) ? "" : "}");
}

static enum status write_ranking(struct embedding_call *c, const struct ranked *ranked)
{
    const struct embedding_request *r = &c->request;
    uint32_t n_tokens = embedding_request_n_tokens(r);
    struct writer w = {&c->answer, OK};

    write_puts(&w, "{\"id\":");
    write_json(&w, c->id, strlen(c->id));
    write_puts(&w, ",\"model\":");
    write_json(&w, r->model, strlen(r->model));
    write_puts(&w, ",\"results\":[");
    for (uint32_t i = 0; i < r->top_n; i++) {
        const struct json *d = js_at(r->documents, ranked[i].index);
        write_format(&w, "%s{\"index\":%u,\"relevance_score\":", i ? "," : "", ranked[i].index);
        write_number(&w, ranked[i].score);
        if (d)
            write_document(&w, d);
        write_puts(&w, "}");
    }
    write_format(&w, "],\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u}}", n_tokens, n_tokens);
    return embedding_call_end(c, &w);
}

static enum status rank(struct embedding_call *c)
{
    uint32_t n = c->request.n_pairs;
    struct ranked *ranked = calloc(n, sizeof *ranked);
    double *scores = calloc(n, sizeof *scores);
    enum status s =
        ranked && scores ? score(c, scores) : buf_why(&c->why, ERR_NOMEM, "out of memory");

    for (uint32_t i = 0; s == OK && i < n; i++)
        ranked[i] = (struct ranked){i, scores[i]};
    if (s == OK) {
        qsort(ranked, n, sizeof *ranked, by_score);
        s = write_ranking(c, ranked);
    }
    free(ranked);
    free(scores);
    return s;
}

/* --- /score --- */

static void write_usage(struct writer *w, const struct embedding_request *r)
{
    uint32_t n = embedding_request_n_tokens(r);

    write_format(w,
                 "],\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u,"
                 "\"completion_tokens\":0,\"prompt_tokens_details\":null}}",
                 n, n);
}

static enum status score_all(struct embedding_call *c)
{
    const struct embedding_request *r = &c->request;
    double *scores = calloc(r->n_pairs, sizeof *scores);
    struct writer w = {&c->answer, OK};
    enum status s = scores ? score(c, scores) : buf_why(&c->why, ERR_NOMEM, "out of memory");

    embedding_call_write_head(c, &w);
    write_puts(&w, ",\"data\":[");
    for (uint32_t i = 0; s == OK && i < r->n_pairs; i++) {
        write_format(&w, "%s{\"index\":%u,\"object\":\"score\",\"score\":", i ? "," : "", i);
        write_number(&w, scores[i]);
        write_puts(&w, "}");
    }
    write_usage(&w, r);
    free(scores);
    return s == OK ? embedding_call_end(c, &w) : s;
}

/* --- /classify --- */

static enum status write_class(struct embedding_call *c, struct writer *w, uint32_t i, float *probs)
{
    const struct embedder_labels *l = embedder_labels(embeddings_embedder(c->request.of));
    enum status s = classify(c, i, probs);
    uint32_t best = 0;

    if (s != OK)
        return s;
    for (uint32_t k = 1; k < l->n; k++)
        best = probs[k] > probs[best] ? k : best;
    write_format(w, "%s{\"index\":%u,\"label\":", i ? "," : "", i);
    if (l->names[best])
        write_json(w, l->names[best], strlen(l->names[best]));
    else
        write_puts(w, "null");
    write_puts(w, ",\"probs\":");
    vector_write(w, probs, l->n);
    write_format(w, ",\"num_classes\":%u}", l->n);
    return embedding_call_end(c, w);
}

static enum status classify_all(struct embedding_call *c)
{
    const struct embedding_request *r = &c->request;
    float *probs = calloc(embedder_labels(embeddings_embedder(r->of))->n, sizeof *probs);
    struct writer w = {&c->answer, OK};
    enum status s = probs ? OK : buf_why(&c->why, ERR_NOMEM, "out of memory");

    embedding_call_write_head(c, &w);
    write_puts(&w, ",\"data\":[");
    for (uint32_t i = 0; s == OK && i < r->n; i++)
        s = write_class(c, &w, i, probs);
    write_usage(&w, r);
    free(probs);
    return s == OK ? embedding_call_end(c, &w) : s;
}

/* --- endpoints --- */

static size_t pairs_bytes(const struct embedding_request *r)
{
    return (size_t)r->n_pairs * ENTRY_BYTES;
}

static size_t classes_bytes(const struct embedding_request *r)
{
    const struct embedder_labels *l = embedder_labels(embeddings_embedder(r->of));
    size_t longest = 0;

    for (uint32_t i = 0; i < l->n; i++)
        if (l->names[i] && strlen(l->names[i]) > longest)
            longest = strlen(l->names[i]);
    return r->n * (ENTRY_BYTES + vector_bytes(l->n, false) + longest * ESCAPED_BYTES);
}

void api_rerank(struct server *srv, struct http_exchange *x)
{
    static const struct embedding_work work = {"rerank", rerank_request_read, pairs_bytes, rank};

    embedding_call_serve(srv, x, &work);
}

void api_score(struct server *srv, struct http_exchange *x)
{
    static const struct embedding_work work = {"score", score_request_read, pairs_bytes, score_all};
    static const char *const of_labels[] = {"label_token_ids", "query", "apply_softmax",
                                            "item_first"};

    if (body_has(x, of_labels, ARRAY_SIZE(of_labels)))
        api_scoring(srv, x);
    else
        embedding_call_serve(srv, x, &work);
}

void api_classify(struct server *srv, struct http_exchange *x)
{
    static const struct embedding_work work = {"classify", classify_request_read, classes_bytes,
                                               classify_all};

    embedding_call_serve(srv, x, &work);
}
