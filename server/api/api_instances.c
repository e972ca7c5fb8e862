/* api_instances.c - GET /v1/instances: the instances of the pool, as this one sees them. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "server/api/api.h"
#include "server/api/writer.h"
#include "server/config.h"
#include "server/http/error.h"
#include "server/http/http.h"
#include "server/server.h"

#define BODY_BYTES_MAX (2u << 20)

static void write_text(struct writer *w, const char *name, const char *text)
{
    write_format(w, ",\"%s\":", name);
    if (text[0])
        write_json(w, text, strlen(text));
    else
        write_puts(w, "null");
}

/* An instance with another secret or model can be listed, but neither lends nor borrows KV. */
static const char *state_of(const struct directory_instance *i,
                            const struct directory_instance *self)
{
    if (i->member[0] && self->member[0] && strcmp(i->member, self->member) != 0)
        return "other_secret";
    if (memcmp(i->fingerprint, self->fingerprint, sizeof i->fingerprint) != 0)
        return "other_model";
    return i->is_leaving ? "leaving" : "ready";
}

static void write_instance(struct writer *w, const struct directory_instance *i,
                           const struct directory_instance *self)
{
    char fingerprint[2 * sizeof i->fingerprint + 1];

    hash_hex(fingerprint, i->fingerprint, sizeof i->fingerprint);
    write_format(w, "{\"id\":\"%016llx\",\"object\":\"instance\"", (unsigned long long)i->id);
    write_text(w, "name", i->name);
    write_format(w, ",\"state\":\"%s\",\"self\":%s", state_of(i, self),
                 i == self ? "true" : "false");
    write_text(w, "address", i->address);
    write_text(w, "http", i->http);
    write_format(w,
                 ",\"kv_blocks\":{\"total\":%u,\"free\":%u},\"running\":%u,\"waiting\":%u,"
                 "\"load\":%u,\"fingerprint\":\"%s\"",
                 i->n_blocks, i->n_free_blocks, i->n_running, i->n_waiting, i->load, fingerprint);
    write_text(w, "version", i->version);
    write_text(w, "documents", i->documents);
    write_puts(w, "}");
}

static bool is_directory_up(const struct server *srv)
{
    struct engine_stats stats;

    engine_stats(srv->engine, &stats);
    return stats.cache.pool.directory.is_up;
}

void api_instances(struct server *srv, struct http_exchange *x)
{
    struct directory_instance *all = malloc((DIRECTORY_INSTANCES_MAX + 1) * sizeof *all);
    struct buf body;
    struct writer w = {&body, OK};

    if (!all) {
        error_reply(x, ERR_NOMEM, NULL, status_words(ERR_NOMEM));
        return;
    }
    uint32_t n = engine_pool_instances(srv->engine, all, DIRECTORY_INSTANCES_MAX + 1);
    buf_init(&body, BODY_BYTES_MAX);
    write_puts(&w, "{\"object\":\"list\"");
    write_text(&w, "pool", n > 0 ? srv->config->pool_name : "");
    if (n > 0)
        write_format(&w, ",\"directory_up\":%s", is_directory_up(srv) ? "true" : "false");
    write_puts(&w, ",\"data\":[");
    for (uint32_t i = 0; i < n; i++) {
        write_puts(&w, i ? "," : "");
        write_instance(&w, &all[i], &all[0]);
    }
    write_puts(&w, "]}");
    free(all);
    api_reply(x, &w);
}
