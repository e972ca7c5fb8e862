#include "server/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/flags.h"
#include "server/auth/auth.h"
#include "server/api/background.h"
#include "server/api/documents.h"
#include "server/api/route.h"
#include "server/api/responses.h"
#include "server/api/router.h"
#include "server/api/running.h"
#include "server/api/search.h"
#include "server/api/structured.h"
#include "server/api/tally.h"

/* A lookup of cached documents takes some 10 ms; a call that waits for long has lost its client. */
#define WAIT_TIMEOUT_NS UINT64_C(10000000000)

/* The least time of a search, with --retrieval-stage-ms. */
static uint64_t search_ns(const struct config *config)
{
    return (uint64_t)(config->retrieval_stage_ms * 1e6) * SEARCH_N_STAGES;
}

/* Copy the names. config_load() has checked the list. */
static enum status split_names(struct server *srv, const char *list)
{
    enum status s = OK;
    const char *name;
    size_t n;

    while (s == OK && srv->n_model_names < CONFIG_N_MODEL_NAMES_MAX &&
           flag_list_next(&list, &name, &n)) {
        char *copy = strndup(name, n);
        if (copy)
            srv->model_names[srv->n_model_names++] = copy;
        s = copy ? OK : ERR_NOMEM;
    }
    return s;
}

/* Set the names of the model. Without --served-model-name the whole value of --model is its name: a
 * path may hold commas. */
static enum status set_names(struct server *srv, const struct config *config)
{
    srv->model_names = calloc(CONFIG_N_MODEL_NAMES_MAX, sizeof *srv->model_names);
    if (!srv->model_names)
        return ERR_NOMEM;
    if (config->served_model_name[0])
        return split_names(srv, config->served_model_name);
    srv->model_names[0] = strdup(config->model);
    srv->n_model_names = srv->model_names[0] ? 1 : 0;
    return srv->model_names[0] ? OK : ERR_NOMEM;
}

enum status server_init(struct server *srv, const struct config *config, struct engine *engine)
{
    *srv = (struct server){.config = config,
                           .engine = engine,
                           .info = engine_info(engine),
                           .tokenizer = engine_tokenizer(engine),
                           .template = engine_chat_template(engine),
                           .created_s = (int64_t)(clock_unix_ns() / 1000000000u),
                           .wait_timeout_ns = WAIT_TIMEOUT_NS + search_ns(config)};
    unknown_log_init(&srv->unknown_log);
    snprintf(srv->system_fingerprint, sizeof srv->system_fingerprint, "tarn-%.8s",
             srv->info->fingerprint_hex);
    enum status s = set_names(srv, config);
    if (s == OK)
        s = span_marks_create(&srv->span_marks, srv->tokenizer);
    chat_kit_fill(&srv->kit, srv->template, config);
    if (s == OK)
        s = chat_kits_create(&srv->chat_kits);
    if (s == OK)
        s = auth_create(&srv->auth, config, NULL);
    if (s == OK)
        s = tally_create(&srv->tally, route_n(), route_name);
    if (s == OK)
        s = router_flows_create(&srv->router_flows);
    if (s == OK)
        s = structured_create(&srv->structured, srv->tokenizer, srv->info->n_vocab);
    if (s == OK)
        s = running_create(&srv->running);
    if (s == OK)
        s = background_create(&srv->background, config->background_responses);
    if (s == OK)
        s = responses_create(&srv->responses, config->stored_responses,
                             config->stored_responses_bytes);
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
    tally_destroy(srv->tally);
    srv->tally = NULL;
    router_flows_destroy(srv->router_flows);
    chat_kits_destroy(srv->chat_kits);
    structured_destroy(srv->structured);
    background_destroy(srv->background);
    srv->background = NULL;
    responses_destroy(srv->responses);
    srv->responses = NULL;
    running_destroy(srv->running);
    srv->running = NULL;
    srv->router_flows = NULL;
    span_marks_destroy(srv->span_marks);
    srv->span_marks = NULL;
    srv->model_names = NULL;
    srv->n_model_names = 0;
    unknown_log_fini(&srv->unknown_log);
}

const char *server_find_model(const struct server *srv, const char *name)
{
    for (uint32_t i = 0; i < srv->n_model_names; i++)
        if (strcmp(srv->model_names[i], name) == 0)
            return srv->model_names[i];
    return NULL;
}
