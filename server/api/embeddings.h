/* embeddings.h - the embedding model of this server (--embedding-model), and the threads that
 * compute the vectors of POST /v1/embeddings.
 *
 * The threads are not those of http_run(): a request may take minutes, and lookups must not wait
 * for it. Two threads serve requests in the order of work_pool.h, so that a short request passes a
 * long one; the embedder takes one text of each in turn.
 *
 * Owns    the embedder and the threads.
 * Thread  open, close: main. All others: any.
 * Errors  embeddings_open(): words name the flag or the file. embeddings_run(): as work_pool.h.
 * Units   tokens. */
#ifndef TARN_SERVER_API_EMBEDDINGS_H
#define TARN_SERVER_API_EMBEDDINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

struct embedder;
struct embeddings;
struct http_job;
struct server;

/* *out is NULL without --embedding-model. */
NODISCARD enum status embeddings_open(struct embeddings **out, const struct server *srv,
                                      struct buf *why);
/* Finish the queued jobs, and free all. After http_stop(), before http_destroy(). NULL is fine. */
void embeddings_close(struct embeddings *e);

/* NULL: e is NULL. */
struct embedder *embeddings_embedder(const struct embeddings *e);
/* The name in lists and answers: that of --served-embedding-model-name, else the value of
 * --embedding-model. */
const char *embeddings_name(const struct embeddings *e);
/* The name that a request may give: embeddings_name() or its last part. NULL: the embedding model
 * has no such name, or e is NULL. The result lives as long as *e. */
const char *embeddings_find(const struct embeddings *e, const char *name);

/* Queue a job that computes n_tokens on behalf of a sender (http_client()). On OK job->run() is
 * called once, also while the server stops. */
NODISCARD enum status embeddings_run(struct embeddings *e, struct http_job *job, uint64_t client,
                                     uint32_t n_tokens);

#endif
