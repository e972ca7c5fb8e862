/* api_models.c - GET /v1/models, GET /v1/models/{id}. Anthropic's clients, which the exchange's
 * form of errors tells, get the models that answer in that API's form. */
#include <inttypes.h>
#include <time.h>

#include "engine/adapters.h"
#include "engine/embedder.h"
#include "server/api/api.h"
#include "server/api/embeddings.h"
#include "server/http/error.h"
#include "server/http/http.h"
#include "server/server.h"
#include "server/api/writer.h"

/* A name, a path and the name of a base for each adapter, escaped. */
#define BODY_BYTES_MAX (32u << 20)

/* The entry that Anthropic's clients read. */
static void write_messages_entry(struct writer *w, const struct server *srv, const char *name)
{
    time_t created = (time_t)srv->created_s;
    char text[32];
    struct tm tm;

    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&created, &tm));
    write_puts(w, "{\"type\":\"model\",\"id\":");
    write_json(w, name, strlen(name));
    write_puts(w, ",\"display_name\":");
    write_json(w, name, strlen(name));
    write_format(w, ",\"created_at\":\"%s\",\"max_input_tokens\":%u}", text,
                 srv->info->max_model_len);
}

/* parent: of an adapter; else NULL. */
static void write_entry(struct writer *w, const struct server *srv, const char *name,
                        const char *root, const char *parent, uint32_t max_len)
{
    write_puts(w, "{\"id\":");
    write_json(w, name, strlen(name));
    write_format(w, ",\"object\":\"model\",\"created\":%" PRId64 ",\"owned_by\":\"tarn\",\"root\":",
                 srv->created_s);
    write_json(w, root, strlen(root));
    write_puts(w, ",\"parent\":");
    if (parent)
        write_json(w, parent, strlen(parent));
    else
        write_puts(w, "null");
    write_format(w, ",\"max_model_len\":%u}", max_len);
}

static void write_model(struct writer *w, const struct server *srv, const char *name)
{
    write_entry(w, srv, name, srv->config->model, NULL, srv->info->max_model_len);
}

static void write_adapter(struct writer *w, const struct server *srv, const struct adapter *a)
{
    const char *base = adapter_base(a);

    write_entry(w, srv, adapter_name(a), adapter_path(a), base ? base : srv->model_names[0],
                srv->info->max_model_len);
}

/* List the adapters, in Anthropic's form or in OpenAI's. Return the name of the last one. */
static void list_adapters(struct writer *w, const struct server *srv, bool is_anthropic,
                          char last[ADAPTER_NAME_BYTES])
{
    struct adapter *list[ADAPTERS_MAX];
    uint32_t n = adapters_list(engine_adapters(srv->engine), list, ADAPTERS_MAX);

    for (uint32_t i = 0; i < n; i++) {
        write_puts(w, ",");
        if (is_anthropic)
            write_messages_entry(w, srv, adapter_name(list[i]));
        else
            write_adapter(w, srv, list[i]);
        snprintf(last, ADAPTER_NAME_BYTES, "%s", adapter_name(list[i]));
        adapter_unref(list[i]);
    }
}

static void reply_messages_list(const struct server *srv, struct http_exchange *x)
{
    uint32_t n = srv->n_model_names;
    char last[ADAPTER_NAME_BYTES] = "";
    struct buf body;
    struct writer w = {&body, OK};

    buf_init(&body, BODY_BYTES_MAX);
    write_puts(&w, "{\"data\":[");
    for (uint32_t i = 0; i < n; i++) {
        write_puts(&w, i ? "," : "");
        write_messages_entry(&w, srv, srv->model_names[i]);
    }
    list_adapters(&w, srv, true, last);
    write_puts(&w, "],\"has_more\":false,\"first_id\":");
    write_json(&w, srv->model_names[0], strlen(srv->model_names[0]));
    write_puts(&w, ",\"last_id\":");
    const char *last_name = last[0] ? last : srv->model_names[n - 1];
    write_json(&w, last_name, strlen(last_name));
    write_puts(&w, "}");
    api_reply(x, &w);
}

static void write_further_model(struct writer *w, const struct server *srv,
                                const struct embeddings *e, const char *name)
{
    write_entry(w, srv, name, embeddings_path(e), NULL,
                embedder_max_tokens(embeddings_embedder(e)));
}

/* List a further model, unless a name of the first one hides its own. */
static void list_further_model(struct writer *w, const struct server *srv,
                               const struct embeddings *e)
{
    const char *name = e ? embeddings_name(e) : NULL;

    if (!name || server_find_model(srv, name))
        return;
    write_puts(w, ",");
    write_further_model(w, srv, e, name);
}

void api_models(struct server *srv, struct http_exchange *x)
{
    char last[ADAPTER_NAME_BYTES];
    struct buf body;
    struct writer w = {&body, OK};

    if (http_error_form(x) == HTTP_ERRORS_ANTHROPIC) {
        reply_messages_list(srv, x);
        return;
    }
    buf_init(&body, BODY_BYTES_MAX);
    write_puts(&w, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < srv->n_model_names; i++) {
        write_puts(&w, i ? "," : "");
        write_model(&w, srv, srv->model_names[i]);
    }
    list_adapters(&w, srv, false, last);
    list_further_model(&w, srv, srv->embeddings);
    if (!srv->classifier || !embeddings_find(srv->embeddings, embeddings_name(srv->classifier)))
        list_further_model(&w, srv, srv->classifier);
    write_puts(&w, "]}");
    api_reply(x, &w);
}

void api_model(struct server *srv, struct http_exchange *x)
{
    const char *given = http_path(x) + strlen("/v1/models/");
    const char *name = server_find_model(srv, given);
    const struct embeddings *e =
        embeddings_find(srv->embeddings, given) ? srv->embeddings : srv->classifier;
    struct adapter *adapter = name ? NULL : adapters_find(engine_adapters(srv->engine), given);
    const char *further = name || adapter ? NULL : embeddings_find(e, given);
    bool is_anthropic = http_error_form(x) == HTTP_ERRORS_ANTHROPIC;
    struct buf body;
    struct writer w = {&body, OK};

    if (!name && !adapter && !further) {
        error_reply(x, ERR_NOT_FOUND, "model_not_found",
                    "model: this server has no model of that name");
        return;
    }
    buf_init(&body, BODY_BYTES_MAX);
    if (!further && is_anthropic)
        write_messages_entry(&w, srv, name ? name : adapter_name(adapter));
    else if (adapter)
        write_adapter(&w, srv, adapter);
    else if (name)
        write_model(&w, srv, name);
    else
        write_further_model(&w, srv, e, further);
    adapter_unref(adapter);
    api_reply(x, &w);
}
