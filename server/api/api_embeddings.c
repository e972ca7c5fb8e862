/* api_embeddings.c - POST /v1/embeddings, compatible with OpenAI's API and vLLM, and POST
 * /v1/rerank, compatible with Jina's, Cohere's and vLLM's: documents in the order of their vectors'
 * similarity to that of the query.
 *
 * The handler turns the inputs into token ids, so that mistakes and limits are answered at once. A
 * job on the threads of embeddings.h computes the vectors and writes the answer. If the client
 * leaves, the job ends behind the input that it computes. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "engine/embedder.h"
#include "server/api/api.h"
#include "server/api/body.h"
#include "server/api/caller.h"
#include "server/api/embedding_request.h"
#include "server/api/embeddings.h"
#include "server/api/tally.h"
#include "server/api/vector_json.h"
#include "server/auth/admission.h"
#include "server/auth/auth.h"
#include "server/http/error.h"
#include "server/http/http.h"
#include "server/server.h"

#define ANSWER_BYTES_MAX (1u << 30)
#define ENTRY_BYTES 64    /* of the JSON around a vector */
#define RANKED_BYTES 96   /* of the JSON of a result, without its text */
#define TEXT_FACTOR 3     /* a text of the answer may have more escapes than in the request */
#define AROUND_BYTES 8192 /* around the list; the model's name has at most 4096 bytes */

/* Exchange and job share it; the last reference frees it. */
struct embedding_call {
    struct server *srv;
    struct tenant *tenant;
    struct embedding_request request;
    struct http_job job;
    void *waker;
    atomic_uint refs;
    char id[HTTP_ID_BYTES + 8];
    size_t n_reserved;   /* embeddings_reserve(); the exchange's */
    atomic_bool is_gone; /* the client left, or the server cancels */
    /* Of the job; of the exchange once is_over is set. */
    atomic_bool is_over;
    enum status status;
    struct buf answer, why;
};

static struct embedding_call *call_create(struct server *srv, struct http_exchange *x)
{
    struct embedding_call *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->srv = srv;
    c->tenant = caller_account(x)->tenant;
    snprintf(c->id, sizeof c->id, "rerank-%s", http_id(x));
    atomic_init(&c->refs, 1);
    buf_init(&c->answer, ANSWER_BYTES_MAX);
    buf_init(&c->why, BUF_WHY_MAX);
    return c;
}

static void call_unref(struct embedding_call *c)
{
    if (!c || atomic_fetch_sub(&c->refs, 1) > 1)
        return;
    embedding_request_fini(&c->request);
    buf_fini(&c->answer);
    buf_fini(&c->why);
    free(c);
}

/* --- the job --- */

/* Compute the vector of input i, and count it. */
static enum status embed(struct embedding_call *c, uint32_t i, float *v)
{
    uint32_t n;
    const uint32_t *ids = embedding_request_ids(&c->request, i, &n);
    enum status s = atomic_load(&c->is_gone) ? ERR_CANCELLED : OK;

    if (s == OK)
        s = embedder_encode_ids(embeddings_embedder(c->srv->embeddings), ids, n, v, &c->why);
    if (s != OK)
        return s;
    tally_add(c->srv->tally, TALLY_EMBEDDED_INPUTS, 1);
    tally_add(c->srv->tally, TALLY_EMBEDDED_TOKENS, n);
    atomic_fetch_add(&c->tenant->n_prompt_tokens, n);
    return OK;
}

static enum status write_input(struct embedding_call *c, struct writer *w, uint32_t i, float *v)
{
    const struct embedding_request *r = &c->request;
    enum status s = embed(c, i, v);

    if (s != OK)
        return s;
    if (!vector_cut(v, embedder_dim(embeddings_embedder(c->srv->embeddings)), r->dim))
        return buf_why(&c->why, ERR_INVALID,
                       "dimensions: the first %u elements of the vector of input[%u] are all zero",
                       r->dim, i);
    write_format(w, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":", i ? "," : "", i);
    if (r->base64)
        vector_write_base64(w, v, r->dim);
    else
        vector_write(w, v, r->dim);
    write_puts(w, "}");
    return w->status == OK ? OK
                           : buf_why(&c->why, w->status, "the answer does not fit into memory");
}

struct ranked {
    uint32_t index;
    double score; /* cosine */
};

/* The best first; equal scores in the order of the request. */
static int by_score(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

static void write_ranking(struct embedding_call *c, const struct ranked *ranked)
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
        if (d) {
            write_puts(&w, js_is(d, JS_OBJECT) ? ",\"document\":" : ",\"document\":{\"text\":");
            if (w.status == OK)
                w.status = js_write(w.out, d);
            write_puts(&w, js_is(d, JS_OBJECT) ? "" : "}");
        }
        write_puts(&w, "}");
    }
    write_format(&w, "],\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u}}", n_tokens, n_tokens);
    c->status =
        w.status == OK ? OK : buf_why(&c->why, w.status, "the answer does not fit into memory");
}

/* Rank the documents. v [dim]: for the query. */
static enum status rank(struct embedding_call *c, float *v)
{
    const struct embedding_request *r = &c->request;
    uint32_t n = r->n - 1;
    struct ranked *ranked = calloc(n, sizeof *ranked);
    float *document = calloc(r->dim, sizeof *document);
    enum status s =
        v && ranked && document ? embed(c, 0, v) : buf_why(&c->why, ERR_NOMEM, "out of memory");

    for (uint32_t i = 0; s == OK && i < n; i++) {
        s = embed(c, i + 1, document);
        ranked[i].index = i;
        for (uint32_t k = 0; s == OK && k < r->dim; k++)
            ranked[i].score += (double)v[k] * document[k];
    }
    if (s == OK) {
        qsort(ranked, n, sizeof *ranked, by_score);
        write_ranking(c, ranked);
        s = c->status;
    }
    free(ranked);
    free(document);
    return s;
}

static enum status compute(struct embedding_call *c, float *v)
{
    const struct embedding_request *r = &c->request;
    uint32_t n_tokens = embedding_request_n_tokens(r);
    struct writer w = {&c->answer, OK};
    enum status s = v ? OK : buf_why(&c->why, ERR_NOMEM, "out of memory");

    write_puts(&w, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; s == OK && i < r->n; i++)
        s = write_input(c, &w, i, v);
    if (s != OK)
        return s;
    write_puts(&w, "],\"model\":");
    write_json(&w, r->model, strlen(r->model));
    write_format(&w, ",\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u}}", n_tokens, n_tokens);
    return w.status == OK ? OK : buf_why(&c->why, w.status, "the answer does not fit into memory");
}

static void run(void *arg)
{
    struct embedding_call *c = arg;
    uint32_t dim = embedder_dim(embeddings_embedder(c->srv->embeddings));
    float *v = calloc(dim, sizeof *v);

    c->status = c->request.ranks ? rank(c, v) : compute(c, v);
    free(v);
    atomic_store(&c->is_over, true);
    http_wake(c->waker); /* a late wake-up is harmless: http_slot.h */
    call_unref(c);
}

/* --- the exchange --- */

static enum http_next on_step(void *ctx, struct http_exchange *x)
{
    struct embedding_call *c = ctx;
    bool is_over = atomic_load(&c->is_over);

    if (!is_over && !atomic_load(&c->is_gone))
        return HTTP_WAIT;
    if (!is_over || c->status == ERR_CANCELLED)
        error_reply(x, ERR_UNAVAILABLE, NULL, "the server is shutting down");
    else if (c->status == OK)
        http_reply(x, 200, "application/json", &c->answer);
    else
        error_reply(x, c->status, NULL, buf_str(&c->why));
    return HTTP_DONE;
}

static void on_gone(void *ctx)
{
    atomic_store(&((struct embedding_call *)ctx)->is_gone, true);
}

static void on_close(void *ctx, int status)
{
    struct embedding_call *c = ctx;

    (void)status;
    on_gone(c);
    embeddings_release(c->srv->embeddings, c->n_reserved);
    call_unref(c);
}

static const struct http_async async = {.step = on_step, .gone = on_gone, .close = on_close};

/* Reserve memory for the answer; false: an error was answered. */
static bool reserve(struct embedding_call *c, struct http_exchange *x)
{
    const struct embedding_request *r = &c->request;
    size_t each = r->ranks ? RANKED_BYTES : ENTRY_BYTES + vector_bytes(r->dim, r->base64);
    size_t texts = r->documents ? TEXT_FACTOR * http_body(x)->len : 0;
    size_t bytes = AROUND_BYTES + r->n * each + texts;

    if (!embeddings_reserve(c->srv->embeddings, bytes)) {
        error_reply(x, ERR_BUSY, NULL, "too many vectors wait to be sent, try again later");
        return false;
    }
    c->n_reserved = bytes;
    return true;
}

/* Take the call over: once the exchange is deferred, on_close() drops its reference. */
static void start(struct embedding_call *c, struct http_exchange *x)
{
    uint32_t n_tokens = embedding_request_n_tokens(&c->request);

    if (!admission_prompt(caller_account(x), x, n_tokens)) {
        call_unref(c);
        return;
    }
    enum status s = http_defer(x, &async, c);
    if (s != OK) {
        error_reply(x, s, NULL, "the server is shutting down");
        call_unref(c);
        return;
    }
    if (!reserve(c, x))
        return;
    c->job = (struct http_job){run, c};
    c->waker = http_waker(x);
    atomic_fetch_add(&c->refs, 1);
    atomic_fetch_add(&c->tenant->n_requests, 1);
    s = embeddings_run(c->srv->embeddings, &c->job, http_client(x), n_tokens);
    if (s != OK) {
        error_reply(x, s, NULL, "too many requests wait for the embedding model, try again");
        call_unref(c);
    }
}

static void reply_error(struct http_exchange *x, enum status s, const struct buf *why)
{
    if (s == ERR_TOO_LARGE)
        error_reply_too_long(x, buf_str(why));
    else
        error_reply(x, s, s == ERR_NOT_FOUND ? "model_not_found" : NULL, buf_str(why));
}

typedef enum status read_fn(struct embedding_request *r, const struct embeddings *e,
                            const struct json *body, struct buf *why);

static void serve(struct server *srv, struct http_exchange *x, read_fn *read)
{
    struct embedding_call *c;
    struct json *body;

    if (!srv->embeddings) {
        error_reply(x, ERR_NOT_FOUND, "model_not_found",
                    "this server embeds no texts: start it with --embedding-model");
        return;
    }
    body = body_read(x);
    if (!body)
        return; /* body_read() has answered */
    c = call_create(srv, x);
    enum status s = c ? read(&c->request, srv->embeddings, body, &c->why) : ERR_NOMEM;
    js_unref(body);
    if (!c) {
        error_reply(x, s, NULL, "out of memory");
        return;
    }
    unknown_fields_report(&c->request.unknown, &srv->unknown_log, x);
    if (s == OK) {
        start(c, x);
    } else {
        reply_error(x, s, &c->why);
        call_unref(c);
    }
}

void api_embeddings(struct server *srv, struct http_exchange *x)
{
    serve(srv, x, embedding_request_read);
}

void api_rerank(struct server *srv, struct http_exchange *x)
{
    serve(srv, x, rerank_request_read);
}
