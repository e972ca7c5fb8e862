/* api_health.c - /health/live: the process answers. /health/ready, /health and /ping: the server
 * accepts requests. /version: its version. */
#include "server/api/api.h"
#include "server/http/error.h"
#include "server/http/http.h"
#include "server/server.h"

static void reply_json(struct http_exchange *x, const char *json)
{
    struct buf body;

    buf_init(&body, 256);
    enum status s = buf_puts(&body, json);
    http_reply(x, 200, "application/json", s == OK ? &body : NULL);
    buf_fini(&body);
}

void api_health_live(struct server *srv, struct http_exchange *x)
{
    (void)srv;
    reply_json(x, "{\"status\":\"live\"}");
}

/* A server that sleeps is ready: requests wait, as in vLLM. */
static bool is_asleep(struct server *srv)
{
    struct engine_sleep_state s;

    engine_sleep_state(srv->engine, &s);
    return s.asleep != 0;
}

void api_health_ready(struct server *srv, struct http_exchange *x)
{
    if (engine_failed(srv->engine))
        error_reply(x, ERR_UNAVAILABLE, "device_failed", "the device failed; the server is ending");
    else if (atomic_load(&srv->draining))
        error_reply(x, ERR_UNAVAILABLE, "draining", "the server is shutting down");
    else
        reply_json(x, is_asleep(srv) ? "{\"status\":\"ready\",\"is_sleeping\":true}"
                                     : "{\"status\":\"ready\"}");
}

void api_version(struct server *srv, struct http_exchange *x)
{
    (void)srv;
    reply_json(x, "{\"version\":\"" TARN_VERSION "\"}");
}
