/* api.h - the handlers, one file per endpoint family (api_*.c), and metrics.c.
 *
 * Owns    nothing.
 * Thread  HTTP threads; a handler answers with http_reply() or http_defer() and never blocks.
 * Errors  answered as JSON.
 * Units   none. */
#ifndef TARN_SERVER_API_API_H
#define TARN_SERVER_API_API_H

struct server;
struct http_exchange;
struct json;

void api_chat(struct server *srv, struct http_exchange *x);
void api_completions(struct server *srv, struct http_exchange *x);
void api_models(struct server *srv, struct http_exchange *x);
void api_model(struct server *srv, struct http_exchange *x); /* /v1/models/{id} */
void api_tokenize(struct server *srv, struct http_exchange *x);
void api_detokenize(struct server *srv, struct http_exchange *x);
void api_health_live(struct server *srv, struct http_exchange *x);
void api_health_ready(struct server *srv, struct http_exchange *x);
void api_cache(struct server *srv, struct http_exchange *x);
void api_cache_forget(struct server *srv, struct http_exchange *x);
void api_metrics(struct server *srv, struct http_exchange *x);

/* The body as a JSON object, to be js_unref()ed; NULL when an error was answered. */
struct json *api_read_body(struct http_exchange *x);

#endif
