#include "server/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "server/auth.h"
#include "server/documents.h"

#define N_MODEL_NAMES_MAX 64

static enum status add_name(struct server *srv, const char *name, size_t n)
{
    if (n == 0 || srv->n_model_names == N_MODEL_NAMES_MAX)
        return OK;
    char *copy = strndup(name, n);
    if (!copy)
        return ERR_NOMEM;
    srv->model_names[srv->n_model_names++] = copy;
    return OK;
}

static enum status split_names(struct server *srv, const char *list)
{
    enum status s = OK;

    while (s == OK && *list) {
        size_t n = strcspn(list, ",");
        s = add_name(srv, list, n);
        list += n + (list[n] == ',');
    }
    return s;
}

enum status server_init(struct server *srv, const struct config *config, struct engine *engine)
{
    const char *names = config->served_model_name[0] ? config->served_model_name : config->model;

    *srv = (struct server){.config = config, .engine = engine, .info = engine_info(engine),
                           .tokenizer = engine_tokenizer(engine),
                           .template = engine_chat_template(engine),
                           .created_s = (int64_t)(clock_unix_ns() / 1000000000u)};
    snprintf(srv->system_fingerprint, sizeof srv->system_fingerprint, "tarn-%.8s",
             srv->info->fingerprint_hex);
    srv->model_names = calloc(N_MODEL_NAMES_MAX, sizeof *srv->model_names);
    enum status s = srv->model_names ? split_names(srv, names) : ERR_NOMEM;
    if (s == OK)
        s = span_marks_create(&srv->span_marks, srv->tokenizer);
    srv->documents_lead = documents_lead(srv->template);
    chat_traits_find(&srv->chat_traits, srv->template);
    if (s == OK)
        s = auth_create(&srv->auth, config, NULL);
    if (s != OK)
        server_fini(srv);
    return s;
}

void server_fini(struct server *srv)
{
    for (uint32_t i = 0; i < srv->n_model_names; i++)
        free(srv->model_names[i]);
    free(srv->model_names);
    auth_destroy(srv->auth);
    srv->auth = NULL;
    span_marks_destroy(srv->span_marks);
    srv->span_marks = NULL;
    srv->model_names = NULL;
    srv->n_model_names = 0;
}

const char *server_find_model(const struct server *srv, const char *name)
{
    for (uint32_t i = 0; i < srv->n_model_names; i++)
        if (strcmp(srv->model_names[i], name) == 0)
            return srv->model_names[i];
    return NULL;
}
