#include "server/pool_flags.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "server/auth/pool_secret.h"

_Static_assert(CONFIG_POOL_SECRET_BYTES == SECRET_BYTES, "pool_secret_read() fills the config");
_Static_assert(CONFIG_POOL_SECRET_BYTES == POOL_SECRET_BYTES, "the engine takes the config's");

#define HOST_BYTES 256

enum status pool_flags_read_secret(struct config *c, struct buf *why)
{
    return config_has_pool(c) ? pool_secret_read(c->pool_secret, c->pool_member, c->pool_scope, why)
                              : OK;
}

static bool is_wildcard(const char *host)
{
    return host[0] == '\0' || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0 ||
           strcmp(host, "*") == 0;
}

/* Copy the host of HOST:PORT or [HOST]:PORT. */
static void copy_host(char out[HOST_BYTES], const char *address)
{
    const char *colon = strrchr(address, ':');
    int n = colon ? (int)(colon - address) : (int)strlen(address);

    if (address[0] == '[' && n >= 2)
        snprintf(out, HOST_BYTES, "%.*s", n - 2, address + 1);
    else
        snprintf(out, HOST_BYTES, "%.*s", n, address);
}

/* Find the host by which others reach the HTTP API. Where the server listens on all addresses, that
 * is the host that the pool announces, or the machine's name. */
static void find_http_host(char out[HOST_BYTES], const struct config *c)
{
    snprintf(out, HOST_BYTES, "%s", c->host);
    if (is_wildcard(out))
        snprintf(out, HOST_BYTES, "%s", c->pool_announce);
    if (is_wildcard(out))
        copy_host(out, c->pool_listen);
    if (is_wildcard(out) && gethostname(out, HOST_BYTES) != 0)
        snprintf(out, HOST_BYTES, "localhost");
    out[HOST_BYTES - 1] = '\0';
}

/* Write HOST:PORT; the process's id stands for a port that is not known yet. */
static void write_place(char *out, size_t n, const char *host, uint16_t port)
{
    bool is_v6 = strchr(host, ':') != NULL;

    if (port)
        snprintf(out, n, "%s%.90s%s:%u", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
    else
        snprintf(out, n, "%.40s-%ld", host, (long)getpid());
}

void pool_flags_apply(struct engine_config *e, const struct config *c)
{
    static char name[64], http[128], place[128];
    char host[HOST_BYTES];

    if (!config_has_pool(c))
        return;
    find_http_host(host, c);
    write_place(place, sizeof place, host, c->uds[0] ? 0 : (uint16_t)c->port);
    snprintf(name, sizeof name, "%.63s", c->instance_name[0] ? c->instance_name : place);
    http[0] = '\0';
    if (!c->uds[0] && c->port)
        snprintf(http, sizeof http, "http%s://%.110s", c->tls_cert[0] ? "s" : "", place);
    e->pool_url = c->pool;
    e->pool_name = c->pool_name;
    e->pool_listen = c->pool_listen;
    e->pool_announce_host = c->pool_announce[0] ? c->pool_announce : NULL;
    e->pool_transport = c->pool_transport;
    e->pool_instance_name = name;
    e->pool_http = http;
    e->pool_secret = c->pool_member;
    e->pool_lookup_ms = (uint32_t)c->pool_lookup_ms;
    e->pool_pull_ms = (uint32_t)c->pool_pull_ms;
    e->pool_query = c->pool_query;
    e->pool_query_ms = (uint32_t)c->pool_query_ms;
    e->pool_balance = c->pool_balance;
    e->pool_device_ipc = c->pool_device_ipc;
}

void pool_print(FILE *f, const struct config *c, const struct pool_stats *s)
{
    char url[CONFIG_POOL_SHOWN_BYTES];

    if (!config_has_pool(c))
        return;
    config_pool_shown(c, url);
    fprintf(f, "Pool %s at %s: ", c->pool_name, url);
    if (s->directory.is_up)
        fprintf(f, "%u %s, transport %s\n", s->n_instances,
                s->n_instances == 1 ? "instance" : "instances", s->transport);
    else
        fprintf(f, "it does not answer yet, this instance joins later; transport %s\n",
                s->transport);
}

void pool_log_left(const struct pool_stats *s, bool is_all, double seconds)
{
    log_event(is_all ? LOG_INFO : LOG_WARN, is_all ? "left the pool" : "left the pool early",
              "offered=%" PRIu64 " handed_over=%" PRIu64 " lent_bytes=%" PRIu64 " seconds=%.2f",
              s->n_offered, s->n_handed_over, s->n_lent_bytes, seconds);
}
