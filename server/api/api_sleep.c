/* api_sleep.c - the engine's rest: POST /sleep and /wake_up, GET /is_sleeping, POST /pause and
 * /resume, GET /is_paused (vLLM); POST /release_memory_occupation and /resume_memory_occupation,
 * /pause_generation and /continue_generation (SGLang). A POST answers when the engine has done
 * it. */
#include "server/api/api.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/json.h"
#include "server/api/running.h"
#include "server/http/error.h"
#include "server/http/http.h"
#include "server/server.h"

#define MEMORY_PARTS ((unsigned)ENGINE_WEIGHTS | ENGINE_KV)
#define TAGS_MAX 8

static const struct part_name {
    const char *name;
    unsigned part;
} part_names[] = {
    {"weights", ENGINE_WEIGHTS}, {"kv_cache", ENGINE_KV}, {"scheduling", ENGINE_STEPS}};

/* --- answers --- */

static void write_sleep(struct writer *w, const struct engine_sleep_state *s)
{
    unsigned level = !(s->asleep & MEMORY_PARTS) ? 0 : s->is_deep ? 2 : 1;
    bool is_first = true;

    write_format(w, "{\"is_sleeping\":%s", s->asleep ? "true" : "false");
    if (s->asleep)
        write_format(w, ",\"level\":%u", level);
    write_puts(w, ",\"asleep\":[");
    for (size_t i = 0; i < ARRAY_SIZE(part_names); i++)
        if (s->asleep & part_names[i].part) {
            write_format(w, "%s\"%s\"", is_first ? "" : ",", part_names[i].name);
            is_first = false;
        }
    write_puts(w, "]}");
}

static void reply_state(struct server *srv, struct http_exchange *x, bool pause_only)
{
    struct engine_sleep_state state;
    struct buf body;
    struct writer w = {&body, OK};

    engine_sleep_state(srv->engine, &state);
    buf_init(&body, 256);
    if (pause_only)
        write_format(&w, "{\"is_paused\":%s}", state.asleep & ENGINE_STEPS ? "true" : "false");
    else
        write_sleep(&w, &state);
    api_reply(x, &w);
}

/* --- waiting for the engine --- */

struct rest {
    struct server *srv;
    void *waker;
    unsigned parts;
    bool sleeps;     /* else they wake */
    bool pause_only; /* the form of the answer */
    atomic_bool is_gone;
};

static void wake_exchange(void *arg)
{
    http_wake(((struct rest *)arg)->waker);
}

/* Over when the parts are as wanted, or another call wants something else. */
static enum http_next on_step(void *ctx, struct http_exchange *x)
{
    struct rest *r = ctx;
    struct engine_sleep_state s;

    engine_sleep_state(r->srv->engine, &s);
    bool is_over = r->sleeps
                       ? (s.asleep & r->parts) == r->parts || (s.wanted & r->parts) != r->parts
                       : !(s.asleep & r->parts) || s.wanted & r->parts;
    if (!r->sleeps && s.error != OK)
        error_reply(x, ERR_UNAVAILABLE, "cannot_wake_up", s.why);
    else if (is_over)
        reply_state(r->srv, x, r->pause_only);
    else if (atomic_load(&r->is_gone))
        error_reply(x, ERR_UNAVAILABLE, "draining", "the server is shutting down");
    else
        return HTTP_WAIT;
    return HTTP_DONE;
}

static void on_gone(void *ctx)
{
    atomic_store(&((struct rest *)ctx)->is_gone, true);
}

static void on_close(void *ctx, int status)
{
    struct rest *r = ctx;

    (void)status;
    engine_sleep_unwatch(r->srv->engine, r);
    free(r);
}

/* Tell the engine, and answer when that is done. s NULL: the parts wake. */
static void begin(struct server *srv, struct http_exchange *x, const struct engine_sleep *s,
                  unsigned parts, bool pause_only, bool aborts)
{
    static const struct http_async async = {.step = on_step, .gone = on_gone, .close = on_close};
    struct rest *r = calloc(1, sizeof *r);
    enum status status = r ? OK : ERR_NOMEM;

    if (r) {
        *r = (struct rest){
            .srv = srv, .parts = parts, .sleeps = s != NULL, .pause_only = pause_only};
        status = http_defer(x, &async, r);
        if (status != OK)
            free(r);
    }
    if (status == OK) {
        r->waker = http_waker(x);
        status = engine_sleep_watch(srv->engine, wake_exchange, r);
    }
    if (status != OK) {
        error_reply(x, status, NULL, status_words(status));
        return;
    }
    if (s)
        engine_sleep(srv->engine, s);
    else
        engine_wake(srv->engine, parts);
    if (aborts)
        (void)running_abort(srv->running, NULL, NULL, false);
}

/* --- what is asked for --- */

/* A parameter of the query (vLLM) or of the body (SGLang). */
struct asked {
    struct http_exchange *x;
    struct json *body; /* NULL: none */
};

static enum status read_asked(struct asked *a, struct http_exchange *x, struct buf *why)
{
    const struct buf *text = http_body(x);

    *a = (struct asked){.x = x};
    enum status s = text->len > 0 ? js_parse(&a->body, buf_str(text), text->len, why) : OK;
    if (s == OK && a->body && !js_is(a->body, JS_OBJECT))
        s = buf_why(why, ERR_INVALID, "the body: expected an object, got %s",
                    js_type_name(js_typeof(a->body)));
    return s;
}

/* Read `mode`: whether the requests that the engine has are aborted, waited for or kept. */
static enum status read_mode(const struct asked *a, const char *usual, bool *aborts, bool *waits,
                             struct buf *why)
{
    static const char *const keeping[] = {"keep", "in_place", "wait"};
    const char *mode = http_query(a->x, "mode");
    enum status s = OK;

    if (a->body && !mode)
        s = js_get_str(a->body, "mode", &mode, NULL, why);
    mode = mode ? mode : usual;
    *aborts = strcmp(mode, "abort") == 0;
    *waits = strcmp(mode, "wait") == 0;
    bool is_known = *aborts;
    for (size_t i = 0; i < ARRAY_SIZE(keeping); i++)
        is_known |= strcmp(mode, keeping[i]) == 0;
    if (s == OK && !is_known)
        s = buf_why(why, ERR_UNSUPPORTED,
                    "mode: \"%.40s\" is not supported; \"abort\", \"wait\", \"keep\" and "
                    "\"in_place\" are",
                    mode);
    return s;
}

static enum status add_tag(const char *tag, unsigned *parts, struct buf *why)
{
    if (strcmp(tag, "cuda_graph") == 0) /* SGLang's: those of weights that sleep are dropped */
        return OK;
    for (size_t i = 0; i < ARRAY_SIZE(part_names); i++)
        if (strcmp(tag, part_names[i].name) == 0) {
            *parts |= part_names[i].part;
            return OK;
        }
    return buf_why(why, ERR_UNSUPPORTED,
                   "tags: \"%.40s\" is unknown; \"weights\", \"kv_cache\" and \"scheduling\" are "
                   "known",
                   tag);
}

/* The parts that the tags name; `all` without tags. */
static enum status read_tags(const struct asked *a, unsigned all, unsigned *parts, struct buf *why)
{
    const struct json *list = a->body ? js_get_set(a->body, "tags") : NULL;
    const char *tags[TAGS_MAX], *tag;
    size_t n = http_query_all(a->x, "tags", tags, TAGS_MAX), n_listed = js_len(list);
    enum status s = OK;

    *parts = n + n_listed > 0 ? 0 : all;
    if (n > TAGS_MAX || n_listed > TAGS_MAX)
        return buf_why(why, ERR_INVALID, "tags: at most %d are taken", TAGS_MAX);
    if (list && !js_is(list, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "tags: expected an array, got %s",
                       js_type_name(js_typeof(list)));
    for (size_t i = 0; s == OK && i < n; i++)
        s = add_tag(tags[i] ? tags[i] : "", parts, why);
    for (size_t i = 0; s == OK && i < n_listed; i++) {
        s = js_read_cstr(js_at(list, i), "tags", &tag, why);
        if (s == OK)
            s = add_tag(tag, parts, why);
    }
    return s;
}

static enum status read_level(const struct asked *a, unsigned *level, struct buf *why)
{
    const char *text = http_query(a->x, "level");

    *level = 1;
    if (!text)
        return OK;
    if (strlen(text) != 1 || text[0] < '0' || text[0] > '2')
        return buf_why(why, ERR_INVALID, "level: must be 0, 1 or 2, got \"%.40s\"", text);
    *level = (unsigned)(text[0] - '0');
    return OK;
}

static void refuse(struct http_exchange *x, enum status s, struct asked *a, struct buf *why)
{
    if (s != OK)
        error_reply(x, s, NULL, buf_str(why));
    js_unref(a->body);
    buf_fini(why);
}

/* --- endpoints --- */

void api_sleep(struct server *srv, struct http_exchange *x)
{
    struct engine_sleep sleep = {0};
    struct asked a;
    struct buf why;
    unsigned level = 1;
    bool aborts = false;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = read_asked(&a, x, &why);
    if (s == OK)
        s = read_level(&a, &level, &why);
    if (s == OK)
        s = read_mode(&a, "abort", &aborts, &sleep.waits, &why);
    if (s == OK) {
        sleep.parts = level > 0 ? MEMORY_PARTS : (unsigned)ENGINE_STEPS;
        sleep.forgets = level == 2;
        begin(srv, x, &sleep, sleep.parts, false, aborts);
    }
    refuse(x, s, &a, &why);
}

void api_release(struct server *srv, struct http_exchange *x)
{
    struct engine_sleep sleep = {0};
    struct asked a;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = read_asked(&a, x, &why);
    if (s == OK)
        s = read_tags(&a, MEMORY_PARTS, &sleep.parts, &why);
    if (s == OK)
        begin(srv, x, &sleep, sleep.parts, false, false);
    refuse(x, s, &a, &why);
}

void api_wake(struct server *srv, struct http_exchange *x)
{
    struct asked a;
    struct buf why;
    unsigned parts = 0;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = read_asked(&a, x, &why);
    if (s == OK)
        s = read_tags(&a, ENGINE_PARTS, &parts, &why);
    if (s == OK)
        begin(srv, x, NULL, parts, false, false);
    refuse(x, s, &a, &why);
}

void api_is_sleeping(struct server *srv, struct http_exchange *x)
{
    reply_state(srv, x, false);
}

void api_pause(struct server *srv, struct http_exchange *x)
{
    struct engine_sleep pause = {.parts = ENGINE_STEPS};
    struct asked a;
    struct buf why;
    bool aborts = false;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = read_asked(&a, x, &why);
    if (s == OK)
        s = read_mode(&a, "abort", &aborts, &pause.waits, &why);
    if (s == OK)
        begin(srv, x, &pause, pause.parts, true, aborts);
    refuse(x, s, &a, &why);
}

void api_resume(struct server *srv, struct http_exchange *x)
{
    begin(srv, x, NULL, ENGINE_STEPS, true, false);
}

void api_is_paused(struct server *srv, struct http_exchange *x)
{
    reply_state(srv, x, true);
}
