/* client.c - the configuration of a client, and the names of errors and tiers. */
#include "clients/c/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define BODY_BYTES_MAX ((size_t)64 << 20)
#define EVENT_BYTES_MAX ((size_t)4 << 20)
#define URL_BYTES_MAX 2048

const char *tarn_error_name(enum tarn_error e)
{
    static const char *const names[TARN_N_ERRORS] = {
        "ok",           "invalid",   "nomem",     "connect",   "tls",        "reset",
        "timeout",      "http_429",  "http_4xx",  "http_5xx",  "http_other", "parse",
        "stream_error", "truncated", "too_large", "cancelled", "internal"};

    return (unsigned)e < TARN_N_ERRORS ? names[e] : "?";
}

const char *tarn_tier_name(enum tarn_tier t)
{
    static const char *const names[TARN_N_TIERS] = {"device", "host", "disk", "remote"};

    return (unsigned)t < TARN_N_TIERS ? names[t] : "?";
}

static enum tarn_error refuse(char *why, size_t why_size, enum tarn_error e, const char *words)
{
    if (why && why_size > 0)
        snprintf(why, why_size, "%s", words);
    return e;
}

/* A copy of `from`, which may be NULL. Set *failed when memory is short. */
static char *copy(const char *from, bool *failed)
{
    char *to = from ? strdup(from) : NULL;

    *failed |= from && !to;
    return to;
}

/* Remove a trailing slash and /v1, because users write http://host:8000/, .../v1 and .../v1/, and
 * not all paths that are appended begin with /v1. */
static void trim_url(char *url)
{
    size_t n = strlen(url);

    while (n > 0 && url[n - 1] == '/')
        n--;
    if (n >= 3 && memcmp(url + n - 3, "/v1", 3) == 0)
        n -= 3;
    while (n > 0 && url[n - 1] == '/')
        n--;
    url[n] = '\0';
}

static bool copy_headers(struct tarn_client_config *to, const struct tarn_client_config *from)
{
    bool failed = false;
    char **lines = calloc(from->n_headers + 1, sizeof *lines);

    to->headers = (const char *const *)lines;
    to->n_headers = lines ? from->n_headers : 0;
    for (size_t i = 0; lines && i < from->n_headers; i++)
        lines[i] = copy(from->headers[i], &failed);
    return lines && !failed;
}

static bool copy_config(struct tarn_client_config *to, const struct tarn_client_config *from)
{
    bool failed = false;

    *to = *from;
    to->url = copy(from->url, &failed);
    to->unix_path = copy(from->unix_path, &failed);
    to->api_key = copy(from->api_key, &failed);
    to->admin_key = copy(from->admin_key, &failed);
    to->ca_file = copy(from->ca_file, &failed);
    to->headers = NULL;
    to->n_headers = 0;
    if (!copy_headers(to, from) || failed)
        return false;
    if (to->body_bytes_max == 0)
        to->body_bytes_max = BODY_BYTES_MAX;
    if (to->event_bytes_max == 0)
        to->event_bytes_max = EVENT_BYTES_MAX;
    trim_url((char *)(uintptr_t)to->url);
    return true;
}

static const char *find_fault(const struct tarn_client_config *c)
{
    if (!c->url)
        return "url: is required";
    if (strncasecmp(c->url, "http://", 7) != 0 && strncasecmp(c->url, "https://", 8) != 0)
        return "url: must begin with http:// or https://";
    if (strchr(c->url, '?') || strchr(c->url, '#') || strlen(c->url) > URL_BYTES_MAX)
        return "url: only scheme, host, port and path";
    if (c->n_headers > 0 && !c->headers)
        return "headers: NULL";
    return NULL;
}

enum tarn_error tarn_client_create(struct tarn_client **out,
                                   const struct tarn_client_config *config, char *why,
                                   size_t why_size)
{
    const char *fault = find_fault(config);
    struct tarn_client *c;

    *out = NULL;
    if (fault)
        return refuse(why, why_size, TARN_ERR_INVALID, fault);
    c = calloc(1, sizeof *c);
    if (!c || !copy_config(&c->config, config)) {
        tarn_client_destroy(c);
        return refuse(why, why_size, TARN_ERR_NOMEM, "out of memory");
    }
    *out = c;
    return refuse(why, why_size, TARN_OK, "");
}

static void drop(const char *copied)
{
    free((char *)(uintptr_t)copied);
}

void tarn_client_destroy(struct tarn_client *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->config.n_headers; i++)
        drop(c->config.headers[i]);
    free((void *)(uintptr_t)c->config.headers);
    drop(c->config.url);
    drop(c->config.unix_path);
    drop(c->config.api_key);
    drop(c->config.admin_key);
    drop(c->config.ca_file);
    free(c);
}
