/* api_sessions.c - GET /v1/sessions/{id} and POST /v1/sessions/{id}/close.
 *
 * A session belongs to the tenant whose requests named it in session_id. Another tenant's session
 * of the same name is another session, so the answers say nothing about it. The handlers wait for
 * the engine thread, so they run on a work thread (route.c). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "server/api/api.h"
#include "server/api/params.h"
#include "server/api/caller.h"
#include "server/auth/auth.h"
#include "server/http/error.h"
#include "server/http/http.h"
#include "server/server.h"

#define PATH "/v1/sessions/"
#define CLOSE "/close"
#define BODY_BYTES_MAX (16u << 10)

/* The id in the path, without `suffix`. False: the error was answered. */
static bool get_id(struct http_exchange *x, const char *suffix, const char **id, size_t *len)
{
    size_t n_suffix = strlen(suffix);
    char words[96];

    *id = http_path(x) + strlen(PATH);
    *len = strlen(*id);
    if (*len < n_suffix || strcmp(*id + *len - n_suffix, suffix) != 0) {
        error_reply(x, ERR_NOT_FOUND, NULL, "expected POST /v1/sessions/{id}/close");
        return false;
    }
    *len -= n_suffix;
    if (*len > 0 && *len <= SESSION_BYTES_MAX)
        return true;
    snprintf(words, sizeof words, "session id: expected 1 to %d bytes, got %zu", SESSION_BYTES_MAX,
             *len);
    error_reply(x, ERR_INVALID, NULL, words);
    return false;
}

static double seconds_since(uint64_t then_ns)
{
    uint64_t now_ns = clock_now_ns();

    return now_ns > then_ns ? (double)(now_ns - then_ns) * 1e-9 : 0;
}

static void write_pause(struct writer *w, const struct sched_pause *p)
{
    if (p->mean_s > 0)
        write_format(w, ",\"expected_pause_s\":%.3f,\"pause_spread_s\":%.3f", p->mean_s,
                     p->spread_s);
    else
        write_puts(w, ",\"expected_pause_s\":null,\"pause_spread_s\":null");
}

static void write_received(struct writer *w, const struct engine_session *s)
{
    const struct sched_session *r = &s->received;

    write_format(w,
                 ",\"requests\":%u,\"running\":%u,\"generated_tokens\":%" PRIu64
                 ",\"served_s\":%.3f,\"age_s\":%.3f,\"idle_s\":",
                 r->n_calls, r->n_inside, r->n_generated, r->served_s,
                 s->is_known ? seconds_since(r->first_ns) : 0);
    if (s->is_known && r->n_inside == 0)
        write_format(w, "%.3f", seconds_since(r->ended_ns));
    else
        write_puts(w, "null");
    write_pause(w, &r->pause);
}

static void write_kv(struct writer *w, const struct cache_session *kv, uint32_t n_tiers)
{
    write_format(w, ",\"kv\":{\"tokens\":%u,\"blocks\":%u,\"own_blocks\":%u,\"held\":%s,\"tiers\":",
                 kv->n_tokens, kv->n_blocks, kv->n_own_blocks, kv->is_held ? "true" : "false");
    for (uint32_t t = 0; t < n_tiers; t++)
        write_format(w, "%s\"%s\":%u", t ? "," : "{", cache_tier_name((enum cache_tier)t),
                     kv->n_blocks_in[t]);
    write_puts(w, "}}}");
}

static void reply(struct server *srv, struct http_exchange *x, bool close)
{
    const char *id;
    struct engine_session s;
    struct buf body;
    struct writer w = {&body, OK};
    size_t len;

    if (!get_id(x, close ? CLOSE : "", &id, &len))
        return;
    uint64_t session = account_session(caller_account(x), id, len);
    if (!api_is_answered(x, engine_session(srv->engine, session, close, &s)))
        return;
    if (!close && !s.is_known) {
        error_reply(x, ERR_NOT_FOUND, NULL, "there is no session of this id");
        return;
    }
    buf_init(&body, BODY_BYTES_MAX);
    write_puts(&w, "{\"object\":\"session\",\"id\":");
    write_json(&w, id, len);
    if (close)
        write_format(&w, ",\"closed\":%s,\"released_blocks\":%u", s.is_known ? "true" : "false",
                     s.n_released);
    write_received(&w, &s);
    write_kv(&w, &s.kv, srv->info->n_tiers);
    api_reply(x, &w);
}

void api_session(struct server *srv, struct http_exchange *x)
{
    reply(srv, x, false);
}

void api_session_close(struct server *srv, struct http_exchange *x)
{
    reply(srv, x, true);
}
