/* api_estimate.c - GET /v1/estimate: when would a request be served if it came now? */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

#include "server/api/api.h"
#include "server/api/caller.h"
#include "server/api/writer.h"
#include "server/auth/auth.h"
#include "server/http/error.h"
#include "server/http/http.h"
#include "server/server.h"

#define BODY_BYTES_MAX 4096

/* Read a whole number from the query; *out stays without one. */
static enum status read_number(const struct http_exchange *x, const char *name, int64_t min,
                               int64_t max, int64_t *out, struct buf *why)
{
    const char *text = http_query(x, name);
    char *end;

    if (!text)
        return OK;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || v < min || v > max)
        return buf_why(why, ERR_INVALID,
                       "%s: expected a whole number from %" PRId64 " to %" PRId64 ", got \"%.40s\"",
                       name, min, max, text);
    *out = v;
    return OK;
}

static enum status read_query(const struct server *srv, const struct http_exchange *x,
                              struct estimate_query *out, struct buf *why)
{
    int64_t max = srv->info->max_model_len, n_prompt = 0, n_cached = 0, n_out = 0, priority = 0;
    enum status s = read_number(x, "prompt_tokens", 1, max, &n_prompt, why);

    if (s == OK && n_prompt == 0)
        s = buf_why(why, ERR_INVALID,
                    "prompt_tokens: required, the number of tokens of the prompt, such as "
                    "?prompt_tokens=200");
    if (s == OK)
        s = read_number(x, "cached_tokens", 0, n_prompt, &n_cached, why);
    if (s == OK)
        s = read_number(x, "max_tokens", 1, UINT32_MAX, &n_out, why);
    if (s == OK)
        s = read_number(x, "priority", INT32_MIN, INT32_MAX, &priority, why);
    *out = (struct estimate_query){.n_prompt = (uint32_t)n_prompt,
                                   .n_cached = (uint32_t)n_cached,
                                   .n_out_max = (uint32_t)n_out,
                                   .priority = (int32_t)priority,
                                   .tenant = caller_account(x)->tenant_id};
    return s;
}

static void write_times(struct writer *w, const char *name, double p50_s, double p90_s)
{
    write_format(w, "\"%s\":{\"p50\":%.3f,\"p90\":%.3f}", name, p50_s * 1e3, p90_s * 1e3);
}

/* null before the first request has finished. */
static void write_error(struct writer *w, const char *name, const struct estimate_factors *error)
{
    if (error->n > 0)
        write_format(w, ",\"%s\":%.3f", name, error->median);
    else
        write_format(w, ",\"%s\":null", name);
}

static void write_estimate(struct writer *w, const struct server *srv,
                           const struct engine_estimate *e)
{
    write_puts(w, "{\"object\":\"estimate\",\"model\":");
    write_json(w, srv->model_names[0], strlen(srv->model_names[0]));
    write_puts(w, ",");
    write_times(w, "ttft_ms", e->estimate.ttft_s, e->estimate.ttft_high_s);
    write_puts(w, ",");
    write_times(w, "e2e_ms", e->estimate.e2e_s, e->estimate.e2e_high_s);
    write_format(w, ",\"queue\":{\"running\":%u,\"waiting\":%u,\"ahead\":%u}", e->n_running,
                 e->n_waiting, e->estimate.n_before);
    write_format(w, ",\"accuracy\":{\"requests\":%" PRIu64, e->accuracy.e2e_error.n);
    write_error(w, "ttft_median_error", &e->accuracy.ttft_error);
    write_error(w, "e2e_median_error", &e->accuracy.e2e_error);
    write_puts(w, "}}");
}

void api_estimate(struct server *srv, struct http_exchange *x)
{
    struct engine_estimate estimate;
    struct estimate_query query;
    struct buf body, why;
    struct writer w = {&body, OK};

    buf_init(&body, BODY_BYTES_MAX);
    buf_init(&why, BUF_WHY_MAX);
    enum status s = read_query(srv, x, &query, &why);
    if (s == OK) {
        s = engine_estimate(srv->engine, &query, &estimate);
        if (s == OK)
            write_estimate(&w, srv, &estimate);
        else
            s = buf_why(&why, ERR_UNAVAILABLE, "the engine is in a long step, try again");
    }
    if (s == OK && w.status == OK)
        http_reply(x, 200, "application/json", &body);
    else
        error_reply(x, s == OK ? w.status : s, NULL, buf_str(&why));
    buf_fini(&body);
    buf_fini(&why);
}
