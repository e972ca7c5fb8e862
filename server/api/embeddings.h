/* embeddings.h - a further model of this server, and the threads that compute with it: the
 * embedding model (--embedding-model) for the vectors of POST /v1/embeddings, and the model that
 * classifies (--rerank-model) for POST /rerank, /score and /classify.
 *
 * The threads are not those of http_run(): a request may take minutes, and lookups must not wait
 * for it. Two threads serve requests in the order of work_pool.h, so that a short request passes a
 * long one; the embedder takes one text of each in turn.
 *
 * Owns    the embedder, the threads, and the count of the answers' bytes.
 * Thread  open, close: main. All others: any.
 * Errors  embeddings_open(): words name the flag or the file. embeddings_run(): as work_pool.h.
 * Units   tokens, bytes. */
#ifndef TARN_SERVER_API_EMBEDDINGS_H
#define TARN_SERVER_API_EMBEDDINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

/* 2048 vectors of 4096 numbers take about 100 MB of JSON, and a slow client may leave them unread
 * for a while. */
#define EMBEDDINGS_BYTES_MAX ((size_t)512 << 20)

struct embedder;
struct embeddings;
struct http_job;
struct server;

enum embeddings_kind { EMBEDDINGS_VECTORS, EMBEDDINGS_LABELS };

/* *out is NULL without --embedding-model or --rerank-model. */
NODISCARD enum status embeddings_open(struct embeddings **out, const struct server *srv,
                                      enum embeddings_kind kind, struct buf *why);
/* Finish the queued jobs, and free all. After http_stop(), before http_destroy(). NULL is fine. */
void embeddings_close(struct embeddings *e);

/* NULL: e is NULL. */
struct embedder *embeddings_embedder(const struct embeddings *e);
/* The name in lists and answers: that of --served-embedding-model-name, else the value of
 * --embedding-model; or of the options of the other kind. */
const char *embeddings_name(const struct embeddings *e);
/* The value of --embedding-model or --rerank-model. */
const char *embeddings_path(const struct embeddings *e);
/* The name that a request may give: embeddings_name() or its last part. NULL: the model has no such
 * name, or e is NULL. The result lives as long as *e. */
const char *embeddings_find(const struct embeddings *e, const char *name);

/* Reserve memory for an answer, from before its job until it was sent. False: the answers in flight
 * would take more than EMBEDDINGS_BYTES_MAX; an answer alone always has room. */
bool embeddings_reserve(struct embeddings *e, size_t bytes);
void embeddings_release(struct embeddings *e, size_t bytes);
/* Queue a job that computes n_tokens on behalf of a sender (http_client()). On OK job->run() is
 * called once, also while the server stops. */
NODISCARD enum status embeddings_run(struct embeddings *e, struct http_job *job, uint64_t client,
                                     uint32_t n_tokens);

#endif
