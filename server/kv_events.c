#include "server/kv_events.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/config.h"
#include "server/server.h"

#define TOPIC_BYTES_MAX 1024
#define HOST_BYTES 256

enum status kv_events_open(struct publisher **out, const struct config *c, struct buf *why)
{
    const char *replay = c->kv_events_replay_endpoint;
    const struct publisher_config config = {.endpoint = c->kv_events_endpoint,
                                            .replay_endpoint = replay[0] ? replay : NULL,
                                            .block_tokens = (uint32_t)c->kv_events_block_size};

    *out = NULL;
    if (!c->kv_events_endpoint[0] && replay[0])
        return buf_why(why, ERR_INVALID,
                       "{kv_events_replay_endpoint}: needs {kv_events_endpoint} as well: where "
                       "the events are published");
    if (!c->kv_events_endpoint[0])
        return OK;
    if (!c->prefix_caching)
        return buf_why(why, ERR_INVALID,
                       "{kv_events_endpoint}: publishes which prompts are cached, and "
                       "--no-prefix-caching caches none; leave one of the two out");
    return publisher_create(out, &config, why);
}

static bool is_any_address(const char *host)
{
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

/* Write kv@HOST:PORT@MODEL. In Kubernetes the variable POD_IP names the host, as routers know the
 * pod by its address. */
static enum status write_topic(const struct server *srv, uint16_t port, struct buf *out)
{
    const char *pod = getenv("POD_IP"), *host = pod && pod[0] ? pod : srv->config->host;
    char name[HOST_BYTES] = "localhost";

    if (is_any_address(host) || srv->config->uds[0]) {
        (void)!gethostname(name, sizeof name - 1);
        host = name;
    }
    if (port == 0)
        return buf_printf(out, "kv@%s@%s", host, srv->model_names[0]);
    return buf_printf(out, "kv@%s:%u@%s", host, port, srv->model_names[0]);
}

enum status kv_events_start(struct publisher *p, const struct server *srv, uint16_t port,
                            struct buf *why)
{
    const char *given = srv->config->kv_events_topic;
    struct buf topic;

    if (!p)
        return OK;
    buf_init(&topic, TOPIC_BYTES_MAX);
    enum status s = given[0] ? buf_puts(&topic, given) : write_topic(srv, port, &topic);
    if (s == OK)
        s = publisher_start(p, buf_str(&topic), why);
    else
        buf_why(why, s, "{kv_events_topic}: longer than %d bytes", TOPIC_BYTES_MAX);
    buf_fini(&topic);
    return s;
}
