/* api_admin.c - /cache: what the KV pool holds, and forgetting it. */
#include <inttypes.h>

#include "server/api.h"
#include "server/error.h"
#include "server/http.h"
#include "server/server.h"
#include "server/writer.h"

#define BODY_BYTES_MAX 4096

static void reply(struct http_exchange *x, struct writer *w)
{
    if (w->status == OK)
        http_reply(x, 200, "application/json", w->out);
    else
        error_reply(x, w->status, NULL, "out of memory");
    buf_fini(w->out);
}

void api_cache(struct server *srv, struct http_exchange *x)
{
    struct engine_stats st;
    const struct cache_stats *c = &st.cache;
    struct buf body;
    struct writer w = {&body, OK};

    buf_init(&body, BODY_BYTES_MAX);
    engine_stats(srv->engine, &st);
    write_format(&w, "{\"object\":\"cache\",\"block_tokens\":%d,\"bytes\":%" PRIu64
                 ",\"blocks\":{\"total\":%u,\"free\":%u,\"cached\":%u,\"in_use\":%u,"
                 "\"in_transfer\":%u,\"leaked\":%u}", KV_BLOCK_TOKENS, srv->info->kv_bytes,
                 c->n_blocks, c->n_free, c->n_cached, c->n_in_use, c->n_in_transfer, c->n_leaked);
    write_format(&w, ",\"query_tokens\":%" PRIu64 ",\"hit_tokens\":%" PRIu64
                 ",\"evicted_blocks\":%" PRIu64 ",\"format_version\":%d,\"fingerprint\":\"%s\"}",
                 c->n_query_tokens, c->n_hit_tokens, c->n_evicted, KV_FORMAT_VERSION,
                 srv->info->fingerprint_hex);
    reply(x, &w);
}

/* The engine thread does it before it looks at any request that is sent after this answer. */
void api_cache_reset(struct server *srv, struct http_exchange *x)
{
    struct buf body;
    struct writer w = {&body, OK};

    engine_reset_cache(srv->engine);
    buf_init(&body, BODY_BYTES_MAX);
    write_puts(&w, "{\"object\":\"cache.reset\",\"status\":\"ok\"}");
    reply(x, &w);
}
