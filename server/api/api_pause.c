/* api_pause.c - POST /pause and /resume (vLLM), /pause_generation and /continue_generation
 * (SGLang): stop and start the engine's steps. GET /is_paused. */
#include "server/api/api.h"

#include <string.h>

#include "base/check.h"
#include "base/json.h"
#include "server/api/running.h"
#include "server/http/error.h"
#include "server/http/http.h"
#include "server/server.h"

static void reply_state(struct server *srv, struct http_exchange *x)
{
    struct buf body;
    struct writer w = {&body, OK};

    buf_init(&body, 64);
    write_format(&w, "{\"is_paused\":%s}", engine_is_paused(srv->engine) ? "true" : "false");
    api_reply(x, &w);
}

/* The mode of the query (vLLM) or of the body (SGLang). */
static enum status read_mode(struct http_exchange *x, bool *aborts, struct buf *why)
{
    static const char *const keeping[] = {"keep", "in_place"};
    const struct buf *text = http_body(x);
    const char *mode = http_query(x, "mode");
    struct json *body = NULL;
    enum status s = text->len > 0 ? js_parse(&body, buf_str(text), text->len, why) : OK;

    if (s == OK && body && !mode)
        s = js_get_str(body, "mode", &mode, NULL, why);
    mode = mode ? mode : "abort";
    *aborts = strcmp(mode, "abort") == 0;
    bool keeps = false;
    for (size_t i = 0; i < ARRAY_SIZE(keeping); i++)
        keeps |= strcmp(mode, keeping[i]) == 0;
    if (s == OK && !*aborts && !keeps)
        s = buf_why(why, ERR_UNSUPPORTED,
                    "mode: \"%.40s\" is not supported; \"abort\", the default, \"keep\" and "
                    "\"in_place\" are",
                    mode);
    js_unref(body);
    return s;
}

void api_pause(struct server *srv, struct http_exchange *x)
{
    bool aborts = false;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = read_mode(x, &aborts, &why);
    if (s == OK) {
        engine_pause(srv->engine, true);
        if (aborts)
            (void)running_abort(srv->running, NULL, NULL, false);
        reply_state(srv, x);
    } else {
        error_reply(x, s, NULL, buf_str(&why));
    }
    buf_fini(&why);
}

void api_resume(struct server *srv, struct http_exchange *x)
{
    engine_pause(srv->engine, false);
    reply_state(srv, x);
}

void api_is_paused(struct server *srv, struct http_exchange *x)
{
    reply_state(srv, x);
}
