/* api_models.c - GET /v1/models, GET /v1/models/{id}. */
#include <inttypes.h>

#include "engine/embedder.h"
#include "server/api/api.h"
#include "server/api/embeddings.h"
#include "server/http/error.h"
#include "server/http/http.h"
#include "server/server.h"
#include "server/api/writer.h"

#define BODY_BYTES_MAX (1u << 20)

static void write_entry(struct writer *w, const struct server *srv, const char *name,
                        const char *root, uint32_t max_len)
{
    write_puts(w, "{\"id\":");
    write_json(w, name, strlen(name));
    write_format(w, ",\"object\":\"model\",\"created\":%" PRId64 ",\"owned_by\":\"tarn\",\"root\":",
                 srv->created_s);
    write_json(w, root, strlen(root));
    write_format(w, ",\"parent\":null,\"max_model_len\":%u}", max_len);
}

static void write_model(struct writer *w, const struct server *srv, const char *name)
{
    write_entry(w, srv, name, srv->config->model, srv->info->max_model_len);
}

static void write_embedding_model(struct writer *w, const struct server *srv, const char *name)
{
    write_entry(w, srv, name, srv->config->embedding_model,
                embedder_max_tokens(embeddings_embedder(srv->embeddings)));
}

static void reply(struct http_exchange *x, struct writer *w)
{
    if (w->status == OK)
        http_reply(x, 200, "application/json", w->out);
    else
        error_reply(x, w->status, NULL, "out of memory");
    buf_fini(w->out);
}

void api_models(struct server *srv, struct http_exchange *x)
{
    struct buf body;
    struct writer w = {&body, OK};

    buf_init(&body, BODY_BYTES_MAX);
    write_puts(&w, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < srv->n_model_names; i++) {
        write_puts(&w, i ? "," : "");
        write_model(&w, srv, srv->model_names[i]);
    }
    const char *embedding = srv->embeddings ? embeddings_name(srv->embeddings) : NULL;
    if (embedding && !server_find_model(srv, embedding)) {
        write_puts(&w, ",");
        write_embedding_model(&w, srv, embedding);
    }
    write_puts(&w, "]}");
    reply(x, &w);
}

void api_model(struct server *srv, struct http_exchange *x)
{
    const char *given = http_path(x) + strlen("/v1/models/");
    const char *name = server_find_model(srv, given);
    const char *embedding = name ? NULL : embeddings_find(srv->embeddings, given);
    struct buf body;
    struct writer w = {&body, OK};

    if (!name && !embedding) {
        error_reply(x, ERR_NOT_FOUND, "model_not_found",
                    "model: this server has no model of that name");
        return;
    }
    buf_init(&body, BODY_BYTES_MAX);
    if (name)
        write_model(&w, srv, name);
    else
        write_embedding_model(&w, srv, embedding);
    reply(x, &w);
}
