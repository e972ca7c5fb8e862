#include "server/api/route.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "server/api/api.h"
#include "server/api/caller.h"
#include "server/auth/admission.h"
#include "server/api/estimates.h"
#include "server/auth/auth.h"
#include "server/http/error.h"
#include "server/http/http.h"
#include "server/server.h"

struct route {
    const char *method; /* GET also answers HEAD */
    const char *path;
    bool is_prefix; /* the path goes on behind it */
    bool open;      /* needs no key */
    bool generates; /* refused while draining */
    bool admin;     /* needs an admin key */
    bool waits;     /* the handler blocks, so it runs on a work thread */
    void (*handle)(struct server *srv, struct http_exchange *x);
};

static const struct route routes[] = {
    {"POST", "/v1/chat/completions", false, false, true, false, false, api_chat},
    {"POST", "/v1/chat/completions/render", false, false, true, false, false, api_chat_render},
    {"POST", "/v1/completions", false, false, true, false, false, api_completions},
    {"POST", "/v1/completions/render", false, false, true, false, false, api_completions_render},
    {"POST", "/inference/v1/generate", false, false, true, false, false, api_generate},
    {"POST", "/generate", false, false, true, false, false, api_native},
    {"POST", "/v1/messages", false, false, true, false, false, api_messages},
    {"POST", "/v1/messages/count_tokens", false, false, true, false, false, api_count_tokens},
    {"POST", "/v1/responses", false, false, true, false, false, api_responses},
    {"POST", "/v1/responses/input_tokens", false, false, true, false, false, api_response_tokens},
    {"POST", "/v1/responses/", true, false, false, false, false, api_response_cancel},
    {"GET", "/v1/responses/", true, false, false, false, true, api_response},
    {"DELETE", "/v1/responses/", true, false, false, false, false, api_response_delete},
    {"POST", "/v1/embeddings", false, false, true, false, false, api_embeddings},
    {"POST", "/v1/rerank", false, false, true, false, false, api_rerank},
    {"POST", "/v2/rerank", false, false, true, false, false, api_rerank},
    {"POST", "/rerank", false, false, true, false, false, api_rerank},
    {"POST", "/v1/score", false, false, true, false, false, api_score},
    {"POST", "/score", false, false, true, false, false, api_score},
    {"POST", "/generative_scoring", false, false, true, false, false, api_labels},
    {"POST", "/v1/classify", false, false, true, false, false, api_classify},
    {"POST", "/classify", false, false, true, false, false, api_classify},
    {"POST", "/v1/audio/speech", false, false, false, false, false, api_media},
    {"POST", "/v1/audio/transcriptions", false, false, false, false, false, api_media},
    {"POST", "/v1/audio/translations", false, false, false, false, false, api_media},
    {"POST", "/v1/images/generations", false, false, false, false, false, api_media},
    {"POST", "/v1/images/edits", false, false, false, false, false, api_media},
    {"POST", "/v1/images/variations", false, false, false, false, false, api_media},
    {"POST", "/v1/load_lora_adapter", false, false, false, true, true, api_adapter_load},
    {"POST", "/v1/unload_lora_adapter", false, false, false, true, true, api_adapter_unload},
    {"POST", "/load_lora_adapter", false, false, false, true, true, api_adapter_load},
    {"POST", "/unload_lora_adapter", false, false, false, true, true, api_adapter_unload},
    {"GET", "/v1/estimate", false, false, false, false, true, api_estimate},
    {"GET", "/v1/models", false, false, false, false, false, api_models},
    {"GET", "/v1/models/", true, false, false, false, false, api_model},
    {"POST", "/tokenize", false, false, false, false, false, api_tokenize},
    {"POST", "/detokenize", false, false, false, false, false, api_detokenize},
    {"POST", "/v1/tokenize", false, false, false, false, false, api_tokenize},
    {"POST", "/v1/detokenize", false, false, false, false, false, api_detokenize},
    {"POST", "/abort_requests", false, false, false, false, false, api_abort},
    {"POST", "/abort_request", false, false, false, false, false, api_abort},
    {"GET", "/v1/documents", false, false, false, false, true, api_documents},
    {"POST", "/v1/documents/bulk", false, false, true, false, true, api_bulk},
    {"PUT", "/v1/documents/", true, false, false, false, true, api_document_put},
    {"GET", "/v1/documents/", true, false, false, false, true, api_document},
    {"POST", "/v1/documents/", true, false, false, false, true, api_document_change},
    {"DELETE", "/v1/documents/", true, false, false, false, true, api_document_delete},
    {"GET", "/v1/preambles", false, false, false, false, true, api_preambles},
    {"PUT", "/v1/preambles/", true, false, false, false, true, api_preamble_put},
    {"GET", "/v1/preambles/", true, false, false, false, true, api_preamble},
    {"DELETE", "/v1/preambles/", true, false, false, false, true, api_preamble_delete},
    {"GET", "/v1/sessions/", true, false, false, false, true, api_session},
    {"POST", "/v1/sessions/", true, false, false, false, true, api_session_close},
    {"GET", "/openapi.json", false, false, false, false, false, api_openapi},
    {"GET", "/v1/instances", false, false, false, true, false, api_instances},
    {"GET", "/health", false, true, false, false, false, api_health_ready},
    {"GET", "/health/live", false, true, false, false, false, api_health_live},
    {"GET", "/health/ready", false, true, false, false, false, api_health_ready},
    {"GET", "/ping", false, true, false, false, false, api_health_ready},
    {"POST", "/ping", false, true, false, false, false, api_health_ready},
    {"GET", "/version", false, false, false, false, false, api_version},
    {"GET", "/metrics", false, false, false, false, false, api_metrics},
    {"GET", "/cache", false, false, false, true, true, api_cache},
    {"DELETE", "/cache", false, false, false, true, true, api_cache_forget},
    {"POST", "/pause", false, false, false, true, false, api_pause},
    {"POST", "/pause_generation", false, false, false, true, false, api_pause},
    {"POST", "/resume", false, false, false, true, false, api_resume},
    {"POST", "/continue_generation", false, false, false, true, false, api_resume},
    {"GET", "/is_paused", false, false, false, true, false, api_is_paused},
    {"POST", "/sleep", false, false, false, true, false, api_sleep},
    {"POST", "/wake_up", false, false, false, true, false, api_wake},
    {"GET", "/is_sleeping", false, false, false, true, false, api_is_sleeping},
    {"POST", "/release_memory_occupation", false, false, false, true, false, api_release},
    {"POST", "/resume_memory_occupation", false, false, false, true, false, api_wake},
    {"POST", "/reset_prefix_cache", false, false, false, true, true, api_cache_reset},
    {"POST", "/flush_cache", false, false, false, true, true, api_cache_reset},
};

static bool path_fits(const struct route *r, const char *path)
{
    size_t n = strlen(r->path);

    return r->is_prefix ? strncmp(path, r->path, n) == 0 && path[n] : strcmp(path, r->path) == 0;
}

static bool method_fits(const struct route *r, const char *method)
{
    return strcmp(r->method, method) == 0 ||
           (strcmp(method, "HEAD") == 0 && strcmp(r->method, "GET") == 0);
}

/* The route with this path and method, else the first route with this path, else NULL. */
static const struct route *find(const char *path, const char *method)
{
    const struct route *first = NULL;

    for (size_t i = 0; i < ARRAY_SIZE(routes); i++) {
        const struct route *r = &routes[i];
        if (!path_fits(r, path))
            continue;
        if (method_fits(r, method))
            return r;
        first = first ? first : r;
    }
    return first;
}

/* --- routes as numbers --- */

uint32_t route_n(void)
{
    return ARRAY_SIZE(routes) + 1;
}

uint32_t route_of(const char *path)
{
    uint32_t i = 0;

    while (i < ARRAY_SIZE(routes) && !path_fits(&routes[i], path))
        i++;
    return i;
}

bool route_name(uint32_t route, char out[ROUTE_NAME_BYTES])
{
    ASSERT(route < route_n());
    if (route == ARRAY_SIZE(routes)) {
        snprintf(out, ROUTE_NAME_BYTES, ROUTE_NAME_OTHER);
        return true;
    }
    const struct route *r = &routes[route];
    snprintf(out, ROUTE_NAME_BYTES, "%s%s", r->path, r->is_prefix ? "{id}" : "");
    for (uint32_t i = 0; i < route; i++)
        if (strcmp(routes[i].path, r->path) == 0)
            return false;
    return true;
}

bool route_is_probe(uint32_t route)
{
    return route < ARRAY_SIZE(routes) &&
           (routes[route].open || routes[route].handle == api_metrics);
}

/* --- what fits a request --- */

/* List the methods of a path: all as "GET, HEAD, DELETE, OPTIONS", else those with a route of their
 * own as "GET or DELETE". */
static void list_methods(const char *path, bool all, char *out, size_t n_out)
{
    size_t n = 0;

    for (size_t i = 0; i < ARRAY_SIZE(routes) && n < n_out; i++) {
        const struct route *r = &routes[i];
        if (path_fits(r, path))
            n += (size_t)snprintf(out + n, n_out - n, "%s%s%s",
                                  n == 0 ? ""
                                  : all  ? ", "
                                         : " or ",
                                  r->method, all && r->method[0] == 'G' ? ", HEAD" : "");
    }
    if (all && n < n_out)
        snprintf(out + n, n_out - n, ", OPTIONS");
}

static void unref_account(void *a)
{
    account_unref(a);
}

/* Anthropic's clients send their version to every path. */
static enum http_error_form error_form(const struct http_exchange *x)
{
    static const char path[] = "/v1/messages";

    return strncmp(http_path(x), path, sizeof path - 1) == 0 || http_header(x, "anthropic-version")
               ? HTTP_ERRORS_ANTHROPIC
               : HTTP_ERRORS_OPENAI;
}

/* The account, which the exchange keeps. NULL when a refusal was answered. r may be NULL: no such
 * path. */
static struct account *check_key(struct server *srv, struct http_exchange *x, const struct route *r)
{
    struct account *a;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = auth_find(srv->auth, http_header(x, "Authorization"),
                              http_header(x, "x-api-key"), &a, &why);
    if (s == OK)
        http_set_caller(x, a->name, a->tenant_name);
    if (s == OK && r && r->admin)
        s = caller_check_admin(srv, a, &why);
    if (a)
        http_keep(x, a, unref_account);
    if (s != OK) {
        error_reply(x, s, NULL, buf_str(&why));
        a = NULL;
    }
    buf_fini(&why);
    return a;
}

/* Check path, method and the server's state, and answer a refusal. */
static void check_request(const struct server *srv, struct http_exchange *x, const struct route *r)
{
    char words[192], methods[64]; /* all five methods take 39 bytes */

    if (!r) {
        snprintf(words, sizeof words, "there is no %.16s %.120s here", http_method(x),
                 http_path(x));
        error_reply(x, ERR_NOT_FOUND, NULL, words);
    } else if (strcmp(http_method(x), "OPTIONS") == 0) {
        list_methods(http_path(x), true, methods, sizeof methods);
        http_add_header(x, "Allow", methods);
        http_reply(x, 204, NULL, NULL);
    } else if (!method_fits(r, http_method(x))) {
        list_methods(http_path(x), false, methods, sizeof methods);
        snprintf(words, sizeof words, "%.16s is not allowed here, use %s", http_method(x), methods);
        list_methods(http_path(x), true, methods, sizeof methods);
        http_add_header(x, "Allow", methods);
        error_reply_as(x, 405, ERR_INVALID, "method_not_allowed", words);
    } else if (r->generates && atomic_load(&srv->draining)) {
        error_reply(x, ERR_UNAVAILABLE, "draining", "the server is shutting down");
    } else if (!r->open && http_is_surplus(x)) {
        error_reply_later(x, ERR_UNAVAILABLE, "too_many_connections",
                          "all connections of the server "
                          "are in use (--max-connections): try again, or elsewhere",
                          estimates_retry_s(srv, NULL));
    }
}

void route_early(void *arg, struct http_exchange *x)
{
    struct server *srv = arg;
    const struct route *r = find(http_path(x), http_method(x));
    struct account *a = NULL;

    http_set_error_form(x, error_form(x));
    /* The key is checked first: a client without a key must not learn which paths exist. */
    if (!(r && r->open) && !(a = check_key(srv, x, r)))
        return;
    check_request(srv, x, r);
    if (!http_replied(x) && a && !r->admin && r->method[0] == 'P') /* POST, PUT */
        (void)admission_request(a, x);                             /* answers when it says no */
    if (!http_replied(x) && r->waits)
        http_will_wait(x);
    if (a && auth_needs_key(srv->auth))
        http_set_client(x, a->tenant_id);
}

void route_handle(void *arg, struct http_exchange *x)
{
    const struct route *r = find(http_path(x), http_method(x));

    ASSERT(r); /* route_early() answered otherwise */
    r->handle(arg, x);
}
