/* api.h - the endpoints' handlers: one file per endpoint family (api_*.c), and metrics.c.
 *
 * Owns    nothing.
 * Thread  HTTP threads; a handler calls http_reply() or http_defer() and never blocks. Handlers of
 *         adapters, /cache, /v1/sessions, /v1/estimate, /v1/documents and /v1/preambles wait for
 *         the engine or the disk, so they run on work threads.
 * Errors  sent to the client as JSON.
 * Units   none. */
#ifndef TARN_SERVER_API_API_H
#define TARN_SERVER_API_API_H

#include "server/api/writer.h"

struct server;
struct http_exchange;

void api_chat(struct server *srv, struct http_exchange *x);
void api_chat_render(struct server *srv, struct http_exchange *x);
void api_completions(struct server *srv, struct http_exchange *x);
void api_completions_render(struct server *srv, struct http_exchange *x);
void api_generate(struct server *srv, struct http_exchange *x);
void api_native(struct server *srv, struct http_exchange *x);
void api_labels(struct server *srv, struct http_exchange *x);
void api_scoring(struct server *srv, struct http_exchange *x); /* /score by labels */
void api_messages(struct server *srv, struct http_exchange *x);
void api_count_tokens(struct server *srv, struct http_exchange *x);
void api_responses(struct server *srv, struct http_exchange *x);
void api_response_tokens(struct server *srv, struct http_exchange *x);
void api_response(struct server *srv, struct http_exchange *x); /* /v1/responses/{id} */
void api_response_cancel(struct server *srv, struct http_exchange *x);
void api_response_delete(struct server *srv, struct http_exchange *x);
void api_abort(struct server *srv, struct http_exchange *x);
void api_embeddings(struct server *srv, struct http_exchange *x);
void api_rerank(struct server *srv, struct http_exchange *x);
void api_score(struct server *srv, struct http_exchange *x);
void api_classify(struct server *srv, struct http_exchange *x);
void api_adapter_load(struct server *srv, struct http_exchange *x);
void api_adapter_unload(struct server *srv, struct http_exchange *x);
void api_media(struct server *srv, struct http_exchange *x); /* 501 */
void api_estimate(struct server *srv, struct http_exchange *x);
void api_models(struct server *srv, struct http_exchange *x);
void api_model(struct server *srv, struct http_exchange *x); /* /v1/models/{id} */
void api_tokenize(struct server *srv, struct http_exchange *x);
void api_detokenize(struct server *srv, struct http_exchange *x);
void api_health_live(struct server *srv, struct http_exchange *x);
void api_health_ready(struct server *srv, struct http_exchange *x);
void api_version(struct server *srv, struct http_exchange *x);
void api_cache(struct server *srv, struct http_exchange *x);
void api_pause(struct server *srv, struct http_exchange *x);
void api_resume(struct server *srv, struct http_exchange *x);
void api_is_paused(struct server *srv, struct http_exchange *x);
void api_sleep(struct server *srv, struct http_exchange *x);
void api_release(struct server *srv, struct http_exchange *x);
void api_wake(struct server *srv, struct http_exchange *x);
void api_is_sleeping(struct server *srv, struct http_exchange *x);
void api_cache_reset(struct server *srv, struct http_exchange *x);
void api_cache_forget(struct server *srv, struct http_exchange *x);
void api_instances(struct server *srv, struct http_exchange *x);
void api_documents(struct server *srv, struct http_exchange *x); /* the list */
void api_bulk(struct server *srv, struct http_exchange *x);
void api_document_put(struct server *srv, struct http_exchange *x); /* /v1/documents/{id} */
void api_document(struct server *srv, struct http_exchange *x);
void api_document_change(struct server *srv, struct http_exchange *x);
void api_document_delete(struct server *srv, struct http_exchange *x);
void api_preambles(struct server *srv, struct http_exchange *x);    /* the list */
void api_preamble_put(struct server *srv, struct http_exchange *x); /* /v1/preambles/{id} */
void api_preamble(struct server *srv, struct http_exchange *x);
void api_preamble_delete(struct server *srv, struct http_exchange *x);
void api_session(struct server *srv, struct http_exchange *x); /* /v1/sessions/{id} */
void api_session_close(struct server *srv, struct http_exchange *x);
void api_openapi(struct server *srv, struct http_exchange *x);
void api_metrics(struct server *srv, struct http_exchange *x);

/* Whether the engine's answer is OK. If not, the exchange has its error answer. */
bool api_is_answered(struct http_exchange *x, enum status s);
/* Answer with the written JSON, or with an error if writing failed. Frees w->out. */
void api_reply(struct http_exchange *x, struct writer *w);

#endif
