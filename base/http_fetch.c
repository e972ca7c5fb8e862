/* http_fetch.c - runs one call in a loop of its own and waits for its end. */
#include <stdio.h>
#include <string.h>

#include "base/http.h"

#define BODY_BYTES_MAX ((size_t)64 << 20)

static void keep_body(void *arg, struct http_call *call, const void *bytes, size_t n,
                      uint64_t time_ns)
{
    struct http_answer *a = arg;

    (void)time_ns;
    if (a->end != HTTP_END_OK)
        return;
    enum status s = buf_append(&a->body, bytes, n);
    if (s != OK) {
        a->end = s == ERR_NOMEM ? HTTP_END_NOMEM : HTTP_END_TOO_LARGE;
        http_call_cancel(call);
    }
}

static void keep_end(void *arg, struct http_call *call, const struct http_done *done)
{
    struct http_answer *a = arg;

    (void)call;
    a->status = done->status;
    if (a->end == HTTP_END_OK)
        a->end = done->end;
    snprintf(a->message, sizeof a->message, "%s",
             done->end == a->end ? done->message : http_end_name(a->end));
}

static enum status status_of(enum http_end end)
{
    switch (end) {
    case HTTP_END_OK: return OK;
    case HTTP_END_INVALID: return ERR_INVALID;
    case HTTP_END_NOMEM: return ERR_NOMEM;
    case HTTP_END_TIMEOUT: return ERR_TIMEOUT;
    case HTTP_END_TOO_LARGE: return ERR_TOO_LARGE;
    default: return ERR_IO;
    }
}

enum status http_fetch(struct http_answer *out, const struct http_request *request)
{
    static const struct http_handlers handlers = {.on_body = keep_body, .on_end = keep_end};
    struct http_loop *loop;
    struct buf why;

    *out = (struct http_answer){.end = HTTP_END_OK};
    buf_init(&out->body, request->body_bytes_max ? request->body_bytes_max : BODY_BYTES_MAX);
    buf_init(&why, sizeof out->message - 1);
    enum status s = http_loop_create(&loop, NULL);
    if (s == OK)
        s = http_call_start(NULL, loop, request, &handlers, out, &why);
    if (s != OK) {
        out->end = s == ERR_NOMEM     ? HTTP_END_NOMEM
                   : s == ERR_INVALID ? HTTP_END_INVALID
                                      : HTTP_END_INTERNAL;
        snprintf(out->message, sizeof out->message, "%s", why.len ? buf_str(&why) : status_name(s));
    } else {
        s = http_loop_run(loop);
        s = s == OK ? status_of(out->end) : s;
    }
    http_loop_destroy(loop);
    buf_fini(&why);
    return s;
}

enum status http_get(struct http_answer *out, const char *url)
{
    return http_fetch(out, &(struct http_request){.url = url});
}

enum status http_post(struct http_answer *out, const char *url, const void *body, size_t n)
{
    return http_fetch(out, &(struct http_request){.url = url, .body = body, .body_len = n});
}

void http_answer_fini(struct http_answer *a)
{
    buf_fini(&a->body);
}
