/* metrics.h - the parts of GET /metrics; api_metrics() of api.h puts them together.
 *
 * A page that an admin sees (without keys: every process of this machine) has all of it. Another
 * key sees the lines of its own tenant and key and nothing else: figures of the whole server, read
 * before and after another tenant's request, would tell the length of its prompt and answer.
 *
 * Owns    nothing.
 * Thread  HTTP threads.
 * Errors  in page->w.status; a figure that the system does not tell is left out.
 * Units   base units of Prometheus: seconds, bytes. */
#ifndef TARN_SERVER_API_METRICS_H
#define TARN_SERVER_API_METRICS_H

#include <stdbool.h>

struct account;
struct page;
struct server;

/* process_* by the names of Prometheus' own libraries, and tarn:build_info. */
void metrics_write_process(struct page *p, const struct server *srv);
/* http_requests_total and http_request_duration_seconds. */
void metrics_write_http(struct page *p, const struct server *srv);
/* Tenants and keys: all of them, or only those of `asks`. */
void metrics_write_tenants(struct page *p, const struct server *srv, const struct account *asks,
                           bool all);

#endif
