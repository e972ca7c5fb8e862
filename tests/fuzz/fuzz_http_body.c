/* fuzz_http_body.c - any bytes as the body of a request, through route, handler, answer, stream.
 *
 * The input is the path, a line of "=====", and the body. A test double replaces http.c and
 * libmicrohttpd and runs deferred answers on this thread; the engine is the fake engine,
 * with a fake embedding model.
 *
 * Checks beyond crashes: every error is JSON with a message, none is a 500, every whole answer is
 * JSON, every header is printable, every stream ends with its last frame, close() is called exactly
 * once. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "server/api/embeddings.h"
#include "server/http/http.h"
#include "server/api/route.h"
#include "server/server.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/server/fake_embedder.h"
#include "tests/unit/server/fake_engine.h"

#define MODEL_LEN 512
#define N_TURNS_BEFORE_LEAVING 20
#define N_TURNS_MAX 600000 /* a minute and more */
#define TURN_NS 100000

struct http_exchange {
    char path[128];
    const char *method;
    struct buf body;
    bool replied;
    int status;
    const char *content_type;
    enum http_error_form error_form;
    struct buf reply;
    const struct http_async *async;
    void *ctx;
    void *kept;
    void (*free_kept)(void *p);
    atomic_bool woken;
};

/* --- http.h --- */

const char *http_id(const struct http_exchange *x)
{
    (void)x;
    return "fuzz";
}

const char *http_method(const struct http_exchange *x)
{
    return x->method;
}

const char *http_path(const struct http_exchange *x)
{
    return x->path;
}

const char *http_header(const struct http_exchange *x, const char *name)
{
    (void)x;
    (void)name;
    return NULL;
}

const char *http_query(const struct http_exchange *x, const char *name)
{
    (void)x;
    (void)name;
    return NULL;
}

size_t http_query_all(const struct http_exchange *x, const char *name, const char **out,
                      size_t n_max)
{
    (void)x;
    (void)name;
    (void)out;
    (void)n_max;
    return 0;
}

bool http_has_query(const struct http_exchange *x)
{
    (void)x;
    return false;
}

void http_set_client(struct http_exchange *x, uint64_t client)
{
    (void)x;
    (void)client;
}

bool http_is_surplus(const struct http_exchange *x)
{
    (void)x;
    return false;
}

void http_will_wait(struct http_exchange *x)
{
    (void)x; /* the handler always runs on this thread */
}

const struct buf *http_body(const struct http_exchange *x)
{
    return &x->body;
}

void http_take_body(struct http_exchange *x, struct buf *out)
{
    *out = x->body;
    buf_init(&x->body, out->max);
}

void http_set_stream_type(struct http_exchange *x, const char *content_type)
{
    x->content_type = content_type;
}

void http_set_caller(struct http_exchange *x, const char *key, const char *tenant)
{
    (void)x;
    (void)key;
    (void)tenant;
}

void http_set_error(struct http_exchange *x, const char *code)
{
    (void)x;
    ASSERT(code && code[0]);
}

void http_set_error_form(struct http_exchange *x, enum http_error_form form)
{
    x->error_form = form;
}

enum http_error_form http_error_form(const struct http_exchange *x)
{
    return x->error_form;
}

bool http_replied(const struct http_exchange *x)
{
    return x->replied;
}

void http_add_header(struct http_exchange *x, const char *name, const char *value)
{
    (void)x;
    ASSERT(name);
    for (const char *p = value; *p; p++) /* printable characters only */
        ASSERT(*p >= ' ' && *p <= '~');
}

void http_reply(struct http_exchange *x, int status, const char *content_type, struct buf *body)
{
    if (x->replied) {
        if (body)
            buf_fini(body);
        return;
    }
    x->replied = true;
    x->status = status;
    x->content_type = content_type;
    if (body) {
        x->reply = *body;
        *body = (struct buf){.max = body->max};
    }
}

enum status http_defer(struct http_exchange *x, const struct http_async *async, void *ctx)
{
    ASSERT(!x->async && !x->replied);
    x->async = async;
    x->ctx = ctx;
    return OK;
}

/* The waker is this flag and not the exchange, because a wake-up may come after its end. */
static atomic_bool woken;

void *http_waker(struct http_exchange *x)
{
    ASSERT(x->async);
    return &woken;
}

void http_wake(void *waker)
{
    atomic_store((atomic_bool *)waker, true);
}

void http_wake_at(struct http_exchange *x, uint64_t at_ns)
{
    (void)x; /* a job has ended before its exchange waits */
    (void)at_ns;
}

void http_keep(struct http_exchange *x, void *p, void (*free_kept)(void *p))
{
    x->kept = p;
    x->free_kept = free_kept;
}

void *http_kept(const struct http_exchange *x)
{
    return x->kept;
}

uint64_t http_client(const struct http_exchange *x)
{
    (void)x;
    return 1;
}

enum status http_run(struct http_exchange *x, struct http_job *job)
{
    (void)x;
    job->run(job->arg);
    return OK;
}

/* --- one request --- */

static void check_json(const struct http_exchange *x)
{
    struct json *answer = NULL;

    ASSERT(js_parse(&answer, buf_str(&x->reply), x->reply.len, NULL) == OK);
    if (x->status >= 400)
        ASSERT(js_is(js_get(js_get(answer, "error"), "message"), JS_STRING));
    js_unref(answer);
}

static void check_reply(const struct http_exchange *x)
{
    ASSERT(x->status >= 200 && x->status < 600 && x->status != 500);
    if (x->status >= 400)
        ASSERT(x->content_type && strcmp(x->content_type, "application/json") == 0);
    if (x->content_type && strcmp(x->content_type, "application/json") == 0)
        check_json(x);
}

static bool ends_with(const struct buf *b, const char *end)
{
    size_t n = strlen(end);

    return b->len >= n && memcmp(b->data + b->len - n, end, n) == 0;
}

/* Whether the last frame of a stream is the one that ends it. */
static bool ends_well(const struct http_exchange *x, const struct buf *all)
{
    size_t at = all->len >= 2 ? all->len - 2 : 0;

    if (http_error_form(x) == HTTP_ERRORS_ANTHROPIC)
        return ends_with(all, "data: {\"type\":\"message_stop\"}\n\n") ||
               ends_with(all, "\"request_id\":\"fuzz\"}\n\n");
    if (strcmp(x->path, "/v1/responses") != 0)
        return ends_with(all, "data: [DONE]\n\n");
    while (at > 0 && strncmp(all->data + at, "\n\nevent: ", 9) != 0)
        at--;
    const char *last = buf_str(all) + at;
    return strstr(last, "event: response.completed\n") ||
           strstr(last, "event: response.incomplete\n") || strstr(last, "event: response.failed\n");
}

static void take_stream(struct http_exchange *x, struct buf *all)
{
    enum http_next next = HTTP_WAIT;
    struct buf out;

    buf_init(&out, HTTP_OUT_BYTES_MAX);
    for (int i = 0; next == HTTP_WAIT && i < N_TURNS_MAX; i++) {
        if (i == N_TURNS_BEFORE_LEAVING)
            x->async->gone(x->ctx);
        buf_reset(&out);
        next = x->async->fill(x->ctx, &out, 0);
        ASSERT(buf_append(all, buf_str(&out), out.len) == OK);
        if (next == HTTP_WAIT && out.len == 0)
            clock_sleep_ns(TURN_NS);
    }
    ASSERT(next == HTTP_DONE);
    ASSERT(ends_well(x, all));
    buf_fini(&out);
}

static void run_deferred(struct http_exchange *x)
{
    enum http_next next = x->replied ? HTTP_DONE : HTTP_WAIT;
    struct buf all;

    buf_init(&all, 1u << 30);
    for (int i = 0; next == HTTP_WAIT && i < N_TURNS_MAX; i++) {
        if (i == N_TURNS_BEFORE_LEAVING)
            x->async->gone(x->ctx);
        next = x->async->step(x->ctx, x);
        if (next == HTTP_WAIT)
            clock_sleep_ns(TURN_NS);
    }
    if (next == HTTP_STREAM)
        take_stream(x, &all);
    else
        ASSERT(next == HTTP_DONE && x->replied);
    x->async->close(x->ctx, next == HTTP_STREAM ? 200 : x->status);
    buf_fini(&all);
}

static struct server *the_server(void)
{
    static char program[] = "fuzz", flag[] = "--model", model[] = "fake";
    static char embedding_flag[] = "--embedding-model", embedding_model[] = ".";
    static struct server srv;
    static struct config config;
    static bool ready;
    static char rerank_flag[] = "--rerank-model", name_flag[] = "--served-rerank-model-name";
    static char name[] = "judge";
    char *args[] = {program,         flag,      model, embedding_flag, embedding_model, rerank_flag,
                    embedding_model, name_flag, name};
    char *env[] = {NULL};

    if (!ready) {
        ready = true;
        log_init(LOG_ERROR, false);
        ASSERT(hash_init() == OK);
        ASSERT(config_load(&config, ARRAY_SIZE(args), args, env, NULL) == OK);
        ASSERT(server_init(&srv, &config, fake_engine_create(MODEL_LEN)) == OK);
        atomic_store(&fake_embedder_n_labels, 1);
        ASSERT(embeddings_open(&srv.embeddings, &srv, EMBEDDINGS_VECTORS, NULL) == OK);
        ASSERT(embeddings_open(&srv.classifier, &srv, EMBEDDINGS_LABELS, NULL) == OK);
    }
    return &srv;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = fuzz_split(data, size);
    struct http_exchange x = {.method = "POST"};

    if (!in.second) { /* without a separator the input is a body */
        in.second = in.first;
        in.second_len = in.first_len;
        in.first = "/v1/chat/completions";
        in.first_len = strlen(in.first);
    }
    snprintf(x.path, sizeof x.path, "%.*s", (int)(in.first_len < 100 ? in.first_len : 100),
             in.first);
    buf_init(&x.body, 1u << 20);
    if (buf_append(&x.body, in.second, in.second_len) != OK)
        return 0;
    route_early(the_server(), &x);
    if (!x.replied)
        route_handle(the_server(), &x);
    if (x.async)
        run_deferred(&x);
    else
        ASSERT(x.replied);
    if (x.replied)
        check_reply(&x);
    if (x.kept)
        x.free_kept(x.kept);
    buf_fini(&x.body);
    buf_fini(&x.reply);
    return 0;
}
