/* call.c - a call in a loop: turns bytes into events and chunks, and decides which error it had. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/http.h"
#include "clients/c/answer.h"
#include "clients/c/client.h"
#include "clients/c/sse.h"

#define REFUSAL_BYTES_MAX ((size_t)64 << 10) /* kept of the body of an error */
#define URL_BYTES_MAX 4096

struct tarn_call {
    struct http_call *http;
    const struct tarn_client *client;
    struct tarn_handlers handlers;
    void *arg;
    struct answer answer;
    struct sse sse;
    struct buf body; /* of an answer that is not a stream */
    int status;
    enum tarn_error error; /* first error found in the answer; the connection is then closed */
    bool is_raw;           /* the body is the answer, there are no chunks */
    bool wants_stream, is_stream;
    bool done; /* [DONE] was received */
    bool cancelled;
    double retry_after_s;
    char request_id[128];
    uint64_t now_ns; /* arrival of the bytes being parsed */
};

static void emit_chunk(void *arg, const struct tarn_chunk *chunk)
{
    struct tarn_call *c = arg;

    if (c->handlers.on_chunk)
        c->handlers.on_chunk(c->arg, c, chunk);
}

static void fail(struct tarn_call *c, enum tarn_error e)
{
    if (c->error == TARN_OK)
        c->error = e;
    http_call_cancel(c->http); /* after an error the rest of the answer is useless */
}

/* --- the answer's head --- */

static bool is_success(const struct tarn_call *c)
{
    return c->status >= 200 && c->status < 300;
}

static double parse_retry_after(const char *value)
{
    char *end;

    if (!value)
        return -1;
    double s = strtod(value, &end); /* a date instead of seconds gives -1 */
    return end != value && *end == '\0' && s >= 0 && s < 1e9 ? s : -1;
}

static void on_head(void *arg, struct http_call *http, int status, uint64_t time_ns)
{
    struct tarn_call *c = arg;
    const char *type = http_call_header(http, "content-type");
    const char *id = http_call_header(http, "x-request-id");

    c->status = status;
    c->retry_after_s = parse_retry_after(http_call_header(http, "retry-after"));
    snprintf(c->request_id, sizeof c->request_id, "%s", id ? id : "");
    /* A server may answer a request for a stream in one piece; its Content-Type shows that. */
    c->is_stream = c->wants_stream && is_success(c) &&
                   !(type && strncasecmp(type, "application/json", 16) == 0);
    if (!is_success(c) && c->body.max > REFUSAL_BYTES_MAX)
        c->body.max = REFUSAL_BYTES_MAX;
    if (c->handlers.on_head)
        c->handlers.on_head(c->arg, c, status, time_ns);
}

/* --- its body --- */

static enum status on_event(void *arg, const char *name, const char *data, size_t len)
{
    struct tarn_call *c = arg;
    enum tarn_error e;

    if (c->done || c->cancelled)
        return OK; /* events after the end are ignored */
    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        c->done = true;
        return OK;
    }
    if (len == 0)
        return OK; /* some servers send empty events to keep the connection alive */
    e = answer_take_event(&c->answer, data, len, strcmp(name, "error") == 0, c->now_ns);
    if (e == TARN_OK)
        return OK;
    fail(c, e);
    return ERR_CANCELLED;
}

static void take_stream(struct tarn_call *c, const void *bytes, size_t n)
{
    enum status s = sse_feed(&c->sse, bytes, n, on_event, c);

    if (s == ERR_TOO_LARGE) {
        buf_why(&c->answer.words, s, "an event is larger than %zu bytes",
                c->client->config.event_bytes_max);
        fail(c, TARN_ERR_TOO_LARGE);
    } else if (s == ERR_NOMEM) {
        fail(c, TARN_ERR_NOMEM);
    }
}

static void on_body(void *arg, struct http_call *http, const void *bytes, size_t n,
                    uint64_t time_ns)
{
    struct tarn_call *c = arg;

    (void)http;
    if (c->error != TARN_OK || c->cancelled)
        return;
    c->now_ns = time_ns;
    if (c->is_stream) {
        take_stream(c, bytes, n);
        return;
    }
    enum status s = buf_append(&c->body, bytes, n);
    if (s == OK || !is_success(c))
        return; /* an error body beyond REFUSAL_BYTES_MAX is cut */
    buf_why(&c->answer.words, s, "the answer is larger than %zu bytes",
            c->client->config.body_bytes_max);
    fail(c, s == ERR_NOMEM ? TARN_ERR_NOMEM : TARN_ERR_TOO_LARGE);
}

/* --- its end --- */

static enum tarn_error error_of_status(int status)
{
    if (status == 429)
        return TARN_ERR_BUSY;
    if (status >= 400 && status < 500)
        return TARN_ERR_HTTP_4XX;
    return status >= 500 && status < 600 ? TARN_ERR_HTTP_5XX : TARN_ERR_HTTP;
}

static enum tarn_error error_of_end(const struct http_done *done)
{
    switch (done->end) {
    case HTTP_END_OK: return TARN_OK;
    case HTTP_END_INVALID: return TARN_ERR_INVALID;
    case HTTP_END_NOMEM: return TARN_ERR_NOMEM;
    case HTTP_END_CONNECT: return TARN_ERR_CONNECT;
    case HTTP_END_TLS: return TARN_ERR_TLS;
    case HTTP_END_RESET: return TARN_ERR_RESET;
    /* The server closed the connection: in the middle of an answer, or without one. */
    case HTTP_END_CLOSED: return done->head_ns ? TARN_ERR_TRUNCATED : TARN_ERR_RESET;
    case HTTP_END_TIMEOUT: return TARN_ERR_TIMEOUT;
    case HTTP_END_PROTOCOL: return TARN_ERR_PARSE;
    case HTTP_END_TOO_LARGE: return TARN_ERR_TOO_LARGE;
    case HTTP_END_CANCELLED: return TARN_ERR_CANCELLED;
    case HTTP_END_INTERNAL:
    case HTTP_END_COUNT: break;
    }
    return TARN_ERR_INTERNAL;
}

static enum tarn_error judge_whole(struct tarn_call *c)
{
    if (c->is_raw)
        return TARN_OK;
    if (!c->is_stream)
        return answer_take_whole(&c->answer, buf_str(&c->body), c->body.len, c->now_ns);
    if (c->done)
        return TARN_OK;
    buf_why(&c->answer.words, OK, "the stream ended without [DONE]%s",
            sse_is_inside(&c->sse) ? ", inside an event" : "");
    return TARN_ERR_TRUNCATED;
}

/* The call's result. An error in the answer's content comes first, then the HTTP status, then an
 * error of the connection, since each of these may cause the following ones. */
static enum tarn_error judge(struct tarn_call *c, const struct http_done *done)
{
    if (c->cancelled)
        return TARN_ERR_CANCELLED;
    if (c->error != TARN_OK)
        return c->error;
    if (done->head_ns && !is_success(c)) {
        answer_take_refusal(&c->answer, c->status, buf_str(&c->body), c->body.len);
        return error_of_status(c->status);
    }
    if (done->end == HTTP_END_OK)
        return judge_whole(c);
    if (c->is_stream && c->done) /* the answer is complete, however the connection ended */
        return TARN_OK;
    buf_why(&c->answer.words, OK, "%s", done->message);
    return error_of_end(done);
}

static void free_call(struct tarn_call *c)
{
    answer_fini(&c->answer);
    sse_fini(&c->sse);
    buf_fini(&c->body);
    free(c);
}

static void on_end(void *arg, struct http_call *http, const struct http_done *done)
{
    struct tarn_call *c = arg;
    struct tarn_result r = {.http_status = done->status,
                            .start_ns = done->start_ns,
                            .ready_ns = done->ready_ns,
                            .head_ns = done->head_ns,
                            .end_ns = done->end_ns,
                            .reused = done->reused};

    (void)http;
    r.error = judge(c, done); /* calls on_chunk for an answer in one piece */
    if (c->cancelled)
        r.error = TARN_ERR_CANCELLED;
    r.message = r.error == TARN_OK              ? ""
                : r.error == TARN_ERR_CANCELLED ? "cancelled"
                : c->answer.words.len           ? buf_str(&c->answer.words)
                                                : tarn_error_name(r.error);
    r.code = c->answer.code;
    r.retry_after_s = c->retry_after_s;
    r.request_id = c->request_id;
    r.usage = c->answer.usage;
    r.sources = c->answer.sources;
    r.n_sources = c->answer.n_sources;
    memcpy(r.finish_reason, c->answer.finish_reason, sizeof r.finish_reason);
    r.n_chunks = c->answer.n_chunks;
    r.n_deltas = c->answer.n_deltas;
    r.body = buf_str(&c->body);
    r.body_len = c->body.len;
    r.first_ns = c->answer.first_ns;
    r.last_ns = c->answer.last_ns;
    c->http = NULL;
    if (c->handlers.on_end)
        c->handlers.on_end(c->arg, c, &r);
    free_call(c);
}

/* --- starting --- */

static enum tarn_error start(struct tarn_call **out, struct http_loop *loop,
                             const struct tarn_client *client, const char *method,
                             const char *content_type, const char *path,
                             const struct tarn_body *body, bool is_raw,
                             const struct tarn_handlers *handlers, void *arg)
{
    static const struct http_handlers http_handlers = {on_head, on_body, on_end};
    const struct tarn_client_config *cf = &client->config;
    bool is_admin = strncmp(path, "/cache", 6) == 0 && cf->admin_key;
    struct http_request request = {.method = method,
                                   .unix_path = cf->unix_path,
                                   .api_key = is_admin ? cf->admin_key : cf->api_key,
                                   .headers = cf->headers,
                                   .n_headers = cf->n_headers,
                                   .body = body->data,
                                   .body_len = body->len,
                                   .content_type = content_type,
                                   .ca_file = cf->ca_file,
                                   .tls_no_verify = cf->tls_no_verify,
                                   .fresh_connection = cf->fresh_connections,
                                   .connect_timeout_ms = cf->connect_timeout_ms,
                                   .total_timeout_ms = cf->total_timeout_ms,
                                   .idle_timeout_ms = cf->idle_timeout_ms};
    struct tarn_call *c = calloc(1, sizeof *c);
    char url[URL_BYTES_MAX];

    if (out)
        *out = NULL;
    if (!c)
        return TARN_ERR_NOMEM;
    *c = (struct tarn_call){.client = client,
                            .handlers = *handlers,
                            .arg = arg,
                            .is_raw = is_raw,
                            .wants_stream = !is_raw && body->stream,
                            .retry_after_s = -1};
    answer_init(&c->answer, body->kind, emit_chunk, c);
    sse_init(&c->sse, cf->event_bytes_max);
    buf_init(&c->body, cf->body_bytes_max);
    request.url = url;
    enum status s = ERR_INVALID;
    if (path[0] == '/' && snprintf(url, sizeof url, "%s%s", cf->url, path) < (int)sizeof url)
        s = http_call_start(&c->http, loop, &request, &http_handlers, c, NULL);
    if (s != OK) {
        free_call(c);
        return s == ERR_NOMEM ? TARN_ERR_NOMEM : TARN_ERR_INVALID;
    }
    if (out)
        *out = c;
    return TARN_OK;
}

enum tarn_error tarn_call_start(struct tarn_call **out, struct http_loop *loop,
                                const struct tarn_client *client, const struct tarn_body *body,
                                const struct tarn_handlers *handlers, void *arg)
{
    const char *path = body->kind == TARN_CHAT ? "/v1/chat/completions" : "/v1/completions";

    return start(out, loop, client, NULL, NULL, path, body, false, handlers, arg);
}

enum tarn_error tarn_call_start_raw(struct tarn_call **out, struct http_loop *loop,
                                    const struct tarn_client *client, const char *path,
                                    const char *body, size_t body_len,
                                    const struct tarn_handlers *handlers, void *arg)
{
    return call_start_method(out, loop, client, NULL, NULL, path, body, body_len, handlers, arg);
}

enum tarn_error call_start_method(struct tarn_call **out, struct http_loop *loop,
                                  const struct tarn_client *client, const char *method,
                                  const char *content_type, const char *path, const char *body,
                                  size_t body_len, const struct tarn_handlers *handlers, void *arg)
{
    struct tarn_body raw = {.data = (char *)(uintptr_t)body, .len = body_len};

    return start(out, loop, client, method, content_type, path, &raw, true, handlers, arg);
}

void tarn_call_cancel(struct tarn_call *c)
{
    c->cancelled = true;
    c->answer.stopped = true;
    if (c->http)
        http_call_cancel(c->http);
}

void tarn_call_pause(struct tarn_call *c, bool paused)
{
    if (c->http)
        http_call_pause(c->http, paused);
}
