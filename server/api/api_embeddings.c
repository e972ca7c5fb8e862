/* api_embeddings.c - POST /v1/embeddings, compatible with OpenAI's API and vLLM. */
#include <stdlib.h>

#include "engine/embedder.h"
#include "server/api/api.h"
#include "server/api/embedding_call.h"
#include "server/api/embeddings.h"
#include "server/api/vector_json.h"

#define ENTRY_BYTES 64 /* of the JSON around a vector */

static enum status write_input(struct embedding_call *c, struct writer *w, uint32_t i, float *v)
{
    const struct embedding_request *r = &c->request;
    struct embedder *e = embeddings_embedder(r->of);
    const uint32_t *ids;
    uint32_t n;
    enum status s = embedding_call_next(c, i, &ids, &n);

    if (s == OK)
        s = embedder_encode_ids(e, ids, n, v, &c->why);
    if (s != OK)
        return s;
    embedding_call_count(c, n);
    if (!vector_cut(v, embedder_dim(e), r->dim))
        return buf_why(&c->why, ERR_INVALID,
                       "dimensions: the first %u elements of the vector of input[%u] are all zero",
                       r->dim, i);
    write_format(w, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":", i ? "," : "", i);
    if (r->base64)
        vector_write_base64(w, v, r->dim);
    else
        vector_write(w, v, r->dim);
    write_puts(w, "}");
    return embedding_call_end(c, w);
}

static enum status compute(struct embedding_call *c)
{
    const struct embedding_request *r = &c->request;
    uint32_t n_tokens = embedding_request_n_tokens(r);
    float *v = calloc(embedder_dim(embeddings_embedder(r->of)), sizeof *v);
    struct writer w = {&c->answer, OK};
    enum status s = v ? OK : buf_why(&c->why, ERR_NOMEM, "out of memory");

    write_puts(&w, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; s == OK && i < r->n; i++)
        s = write_input(c, &w, i, v);
    free(v);
    if (s != OK)
        return s;
    write_puts(&w, "],\"model\":");
    write_json(&w, r->model, strlen(r->model));
    write_format(&w, ",\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u}}", n_tokens, n_tokens);
    return embedding_call_end(c, &w);
}

static size_t answer_bytes(const struct embedding_request *r)
{
    return r->n * (ENTRY_BYTES + vector_bytes(r->dim, r->base64));
}

void api_embeddings(struct server *srv, struct http_exchange *x)
{
    static const struct embedding_work work = {"embd", embedding_request_read, answer_bytes,
                                               compute};

    embedding_call_serve(srv, x, &work);
}
