/* metrics.h - the parts of GET /metrics, which api_metrics() of api.h assembles.
 *
 * An admin key (without any keys: every client on this machine) gets the whole page. Any other key
 * gets only the lines of its own tenant and key. Counters of the whole server, read before and
 * after a request of another tenant, would reveal the length of its prompt and answer.
 *
 * Owns    nothing.
 * Thread  HTTP threads.
 * Errors  in page->w.status; a figure that the kernel does not provide is left out.
 * Units   base units of Prometheus: seconds, bytes. */
#ifndef TARN_SERVER_API_METRICS_H
#define TARN_SERVER_API_METRICS_H

#include <stdbool.h>

struct account;
struct cache_stats;
struct engine_stats;
struct page;
struct server;

/* Write KV events and the flows of routers. */
void metrics_write_routers(struct page *p, const struct server *srv);
void metrics_write_adapters(struct page *p, const struct server *srv);
/* Write process_*, named as in Prometheus' client libraries, and tarn:build_info. */
void metrics_write_process(struct page *p, const struct server *srv);
/* Write the pool of instances. */
void metrics_write_pool(struct page *p, const struct cache_stats *c);
/* Write predictions and targets. */
void metrics_write_estimates(struct page *p, const struct engine_stats *st);
/* Write the searches for documents, and the inputs of /v1/embeddings. */
void metrics_write_searches(struct page *p, const struct server *srv);
void metrics_write_embeddings(struct page *p, const struct server *srv);
/* Write requests by class of service, and speculative prefills. */
void metrics_write_classes(struct page *p, const struct server *srv, const struct engine_stats *st);
/* Write http_requests_total and http_request_duration_seconds. */
void metrics_write_http(struct page *p, const struct server *srv);
/* Write the lines of all tenants and keys, or only those of the account `asks`. */
void metrics_write_tenants(struct page *p, const struct server *srv, const struct account *asks,
                           bool all);

/* Write the families about documents. */
void metrics_write_documents(struct page *p, const struct server *srv);

#endif
