/* embedding_call.h - a request whose answer a further model of the server computes: the course of
 * it that POST /v1/embeddings, /rerank, /score and /classify share.
 *
 * The handler turns the inputs into token ids, so that mistakes and limits are answered at once. A
 * job on the threads of embeddings.h computes and writes the answer. If the client leaves, the job
 * ends behind the input that it computes.
 *
 * Owns    the request, the answer and the error's words; exchange and job share it.
 * Thread  embedding_call_serve(): HTTP; the others: the job.
 * Errors  embedding_call_next(): ERR_CANCELLED: the client left.
 * Units   bytes, tokens. */
#ifndef TARN_SERVER_API_EMBEDDING_CALL_H
#define TARN_SERVER_API_EMBEDDING_CALL_H

#include <stdatomic.h>

#include "server/api/embedding_request.h"
#include "server/api/writer.h"
#include "server/http/http.h"

struct embedding_call;
struct tenant;

/* The purpose of a call. */
struct embedding_work {
    const char *id_prefix;
    enum status (*read)(struct embedding_request *r, const struct server *srv,
                        const struct json *body, struct buf *why);
    /* The most bytes of the answer, without the text of the request. */
    size_t (*answer_bytes)(const struct embedding_request *r);
    /* Write c->answer; words of an error go into c->why. */
    enum status (*compute)(struct embedding_call *c);
};

struct embedding_call {
    struct server *srv;
    struct tenant *tenant;
    const struct embedding_work *work;
    struct embedding_request request;
    struct http_job job;
    void *waker;
    atomic_uint refs;
    char id[HTTP_ID_BYTES + 16];
    int64_t created_s;
    size_t n_reserved;   /* embeddings_reserve(); the exchange's */
    atomic_bool is_gone; /* the client left, or the server cancels */
    /* Of the job; of the exchange once is_over is set. */
    atomic_bool is_over;
    enum status status;
    struct buf answer, why;
};

void embedding_call_serve(struct server *srv, struct http_exchange *x,
                          const struct embedding_work *work);

/* Get the ids of input i, which is about to be computed. */
NODISCARD enum status embedding_call_next(struct embedding_call *c, uint32_t i,
                                          const uint32_t **ids, uint32_t *n);
/* Count an input of n tokens that was computed. */
void embedding_call_count(struct embedding_call *c, uint32_t n);
/* Write "id", "object": "list", "created" and "model". */
void embedding_call_write_head(const struct embedding_call *c, struct writer *w);
/* The status of an answer that was written. */
NODISCARD enum status embedding_call_end(struct embedding_call *c, const struct writer *w);

#endif
