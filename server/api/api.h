/* api.h - the endpoints' handlers: one file per endpoint family (api_*.c), and metrics.c.
 *
 * Owns    nothing.
 * Thread  HTTP threads; a handler calls http_reply() or http_defer() and never blocks. Handlers of
 *         /cache and /v1/estimate wait for the engine, so they run on work threads.
 * Errors  sent to the client as JSON.
 * Units   none. */
#ifndef TARN_SERVER_API_API_H
#define TARN_SERVER_API_API_H

struct server;
struct http_exchange;
struct json;

void api_chat(struct server *srv, struct http_exchange *x);
void api_completions(struct server *srv, struct http_exchange *x);
void api_estimate(struct server *srv, struct http_exchange *x);
void api_models(struct server *srv, struct http_exchange *x);
void api_model(struct server *srv, struct http_exchange *x); /* /v1/models/{id} */
void api_tokenize(struct server *srv, struct http_exchange *x);
void api_detokenize(struct server *srv, struct http_exchange *x);
void api_health_live(struct server *srv, struct http_exchange *x);
void api_health_ready(struct server *srv, struct http_exchange *x);
void api_cache(struct server *srv, struct http_exchange *x);
void api_cache_forget(struct server *srv, struct http_exchange *x);
void api_metrics(struct server *srv, struct http_exchange *x);

/* Parse the body, a JSON object; the caller owns a reference: js_unref(). NULL: the exchange has
 * its error answer. */
struct json *api_read_body(struct http_exchange *x);

#endif
