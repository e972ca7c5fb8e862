#include "server/http_flags.h"

#include <stdlib.h>

#include "server/api/access.h"
#include "server/config.h"
#include "server/http/http.h"
#include "server/api/route.h"

#define LONG_BODY_BYTES (64u << 10) /* an HTTP thread parses it in 15 ms at 5 MB/s */
/* Limit on request bodies in memory at once: 16 of the largest, and at least 64 MiB. */
#define N_LARGEST_BODIES 16
#define BODIES_BYTES_LEAST (size_t)(64u << 20)

void http_flags_apply(struct http_config *out, const struct config *c, struct server *srv)
{
    size_t bodies = N_LARGEST_BODIES * (size_t)c->max_body_bytes;

    *out = (struct http_config){.host = c->host,
                                .port = (uint16_t)c->port,
                                .uds_path = c->uds,
                                .uds_mode = (uint32_t)strtoul(c->uds_mode, NULL, 8),
                                .tls_cert = c->tls_cert,
                                .tls_key = c->tls_key,
                                .allowed_origins = c->allowed_origins,
                                .n_threads = (uint32_t)c->http_threads,
                                .n_connections_max = (uint32_t)c->max_connections,
                                .n_connections_per_ip_max = (uint32_t)c->max_connections_per_ip,
                                .body_bytes_max = c->max_body_bytes,
                                .bodies_bytes_max =
                                    bodies > BODIES_BYTES_LEAST ? bodies : BODIES_BYTES_LEAST,
                                .long_body_bytes = LONG_BODY_BYTES,
                                .header_timeout_s = (uint32_t)c->header_timeout_s,
                                .body_timeout_s = (uint32_t)c->body_timeout_s,
                                .write_timeout_s = (uint32_t)c->write_timeout_s,
                                .idle_timeout_s = (uint32_t)c->idle_timeout_s,
                                .early = route_early,
                                .handle = route_handle,
                                .done = access_done,
                                .arg = srv};
}
