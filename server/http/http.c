#include "server/http/http.h"

#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "server/http/cors.h"
#include "server/http/error.h"
#include "server/http/http_exchange.h"
#include "server/http/http_private.h"
#include "server/http/http_slot.h"
#include "server/http/request_id.h"
#include "server/http/http_tls.h"
#include "server/http/work_pool.h"

#define STREAM_BLOCK_BYTES (16u << 10)
/* The most bytes of a refused body that are read and dropped. A client that still sends while the
 * connection closes would get a reset and not see the answer. */
#define DISCARD_BYTES_MAX (256u << 20)

/* --- answers --- */

static bool is_allowed_origin(const struct http_exchange *x)
{
    const char *list = x->server->config.allowed_origins;

    return list && list[0] && cors_allows(list, http_header(x, "Origin"));
}

static void add_headers(const struct http_exchange *x, struct MHD_Response *response)
{
    MHD_add_response_header(response, "X-Request-Id", x->id);
    if (x->error_form == HTTP_ERRORS_ANTHROPIC)
        MHD_add_response_header(response, "request-id", x->id);
    if (x->content_type)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, x->content_type);
    for (uint32_t i = 0; i < x->n_extra; i++)
        MHD_add_response_header(response, x->extra[i].name, x->extra[i].value);
    if (x->surplus) /* free the guest's slot for the next health check */
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    if (is_allowed_origin(x)) {
        MHD_add_response_header(response, "Access-Control-Allow-Origin", http_header(x, "Origin"));
        MHD_add_response_header(response, "Access-Control-Expose-Headers",
                                "X-Request-Id, Retry-After");
        MHD_add_response_header(response, "Vary", "Origin");
    }
}

static enum MHD_Result queue(struct http_exchange *x, struct MHD_Response *response)
{
    if (!response)
        return MHD_NO;
    add_headers(x, response);
    enum MHD_Result result = MHD_NO;
    if (slot_enter(x->slot, SLOT_SEND))
        result = MHD_queue_response(x->connection, (unsigned)x->status, response);
    MHD_destroy_response(response);
    x->queued = result == MHD_YES;
    return result;
}

/* Long answers are sent block by block, because the write deadline holds for each block. */
static ssize_t on_read_reply(void *arg, uint64_t pos, char *bytes, size_t n_max)
{
    struct http_exchange *x = arg;
    size_t n = x->reply.len - (size_t)pos < n_max ? x->reply.len - (size_t)pos : n_max;

    memcpy(bytes, x->reply.data + pos, n);
    x->n_sent += n;
    slot_sending(x->slot);
    return (ssize_t)n;
}

static enum MHD_Result queue_reply(struct http_exchange *x)
{
    struct MHD_Response *response;

    if (x->reply.len <= STREAM_BLOCK_BYTES && strcmp(x->method, MHD_HTTP_METHOD_HEAD) != 0)
        x->n_sent = x->reply.len;
    if (x->reply.len > STREAM_BLOCK_BYTES) {
        response = MHD_create_response_from_callback(x->reply.len, STREAM_BLOCK_BYTES,
                                                     on_read_reply, x, NULL);
    } else if (x->reply.data) {
        response =
            MHD_create_response_from_buffer(x->reply.len, x->reply.data, MHD_RESPMEM_MUST_FREE);
        if (response)
            x->reply = (struct buf){0};
    } else {
        response =
            MHD_create_response_from_buffer(0, (void *)(uintptr_t) "", MHD_RESPMEM_PERSISTENT);
    }
    return queue(x, response);
}

/* End the connection in the middle of an answer. MHD 0.9.75 has a return code for that, but keeps
 * the descriptor open until the next event of the connection. A send to a socket that is shut down
 * makes MHD close it at once. */
static ssize_t break_off(struct http_exchange *x, char *bytes)
{
    slot_shut(x->slot);
    bytes[0] = '\n'; /* any byte: MHD's attempt to send it fails */
    return 1;
}

static ssize_t on_read(void *arg, uint64_t pos, char *bytes, size_t n_max)
{
    struct http_exchange *x = arg;

    (void)pos;
    for (;;) {
        if (x->out.len > x->n_out_sent) {
            size_t n = x->out.len - x->n_out_sent;
            if (n > n_max)
                n = n_max;
            memcpy(bytes, x->out.data + x->n_out_sent, n);
            x->n_out_sent += n;
            x->n_sent += n;
            slot_sending(x->slot);
            return (ssize_t)n;
        }
        if (x->stream_end == HTTP_DONE)
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (x->stream_end == HTTP_ABORT || slot_lost(x->slot))
            return break_off(x, bytes);
        buf_reset(&x->out);
        x->n_out_sent = 0;
        enum http_next next = x->async->fill(x->ctx, &x->out, slot_idle_ns(x->slot));
        if (next == HTTP_DONE || next == HTTP_ABORT)
            x->stream_end = next;
        else if (x->out.len == 0 && slot_suspend(x->slot))
            return 0;
    }
}

static enum MHD_Result queue_stream(struct http_exchange *x)
{
    x->status = 200;
    if (!x->content_type)
        x->content_type = "text/event-stream; charset=utf-8";
    http_add_header(x, "Cache-Control", "no-cache");
    slot_set_streaming(x->slot);
    return queue(x, MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, on_read,
                                                      x, NULL));
}

/* Run a deferred answer until its handler waits or has answered. */
static enum MHD_Result advance(struct http_exchange *x)
{
    for (;;) {
        if (x->replied)
            return queue_reply(x);
        if (slot_lost(x->slot))
            return MHD_NO;
        ASSERT(x->async); /* handle() neither replied nor deferred */
        switch (x->async->step(x->ctx, x)) {
        case HTTP_WAIT:
            if (slot_suspend(x->slot))
                return MHD_YES;
            break;
        case HTTP_DONE: ASSERT(x->replied); break;
        case HTTP_STREAM: return queue_stream(x);
        case HTTP_ABORT: return MHD_NO;
        }
    }
}

/* --- requests --- */

static void set_id(struct http_exchange *x)
{
    const char *given = http_header(x, "X-Request-Id");
    uint8_t bytes[12];

    if (request_id_is_sane(given)) {
        snprintf(x->id, sizeof x->id, "%s", given);
    } else {
        hash_random(bytes, sizeof bytes);
        hash_hex(x->id, bytes, sizeof bytes);
    }
}

static void refuse_body(struct http_exchange *x)
{
    char words[96];

    if (x->body_status == ERR_TOO_LARGE) {
        snprintf(words, sizeof words, "the body is larger than %zu bytes",
                 x->server->config.body_bytes_max);
        error_reply_as(x, 413, ERR_INVALID, "body_too_large", words);
    } else {
        error_reply(x, x->body_status, NULL,
                    x->body_status == ERR_NOMEM ? "out of memory while the body was received"
                                                : "too many long requests at once");
    }
}

/* Answer a browser's CORS preflight. Browsers send no key with it, so this comes before auth. */
static void answer_preflight(struct http_exchange *x)
{
    if (strcmp(x->method, "OPTIONS") != 0 || !http_header(x, "Access-Control-Request-Method") ||
        !is_allowed_origin(x))
        return;
    http_add_header(x, "Access-Control-Allow-Methods", "GET, POST, PUT, DELETE, OPTIONS");
    http_add_header(x, "Access-Control-Allow-Headers", "*, Authorization");
    http_add_header(x, "Access-Control-Max-Age", "600");
    http_reply(x, 204, NULL, NULL);
}

static void refuse_coding(struct http_exchange *x)
{
    const char *coding = http_header(x, MHD_HTTP_HEADER_CONTENT_ENCODING);
    char words[192];

    if (!coding || !coding[0] || strcasecmp(coding, "identity") == 0)
        return;
    snprintf(words, sizeof words,
             "the body has the Content-Encoding \"%.32s\", which is not "
             "supported: send it uncompressed, without that header",
             coding);
    http_add_header(x, MHD_HTTP_HEADER_ACCEPT_ENCODING, "identity");
    error_reply_as(x, 415, ERR_INVALID, "unsupported_content_encoding", words);
}

/* Answer requests that can be answered or refused by their head alone. */
static void answer_head(struct http_exchange *x, uint64_t n_bytes)
{
    struct http_server *h = x->server;

    answer_preflight(x);
    /* The key is checked first, so that clients without one do not learn the limits. */
    if (!x->replied && h->config.early)
        h->config.early(h->config.arg, x);
    if (!x->replied && (n_bytes > 0 || http_header(x, MHD_HTTP_HEADER_TRANSFER_ENCODING)))
        refuse_coding(x);
    if (!x->replied && n_bytes > h->config.body_bytes_max) {
        x->body_status = ERR_TOO_LARGE;
        refuse_body(x);
    }
}

/* The error message for a malformed head; NULL for a good one. */
static const char *check_head(struct http_exchange *x, const char *url, int *status)
{
    const char *words = http_check_head(&x->head, status);
    size_t n_origin = words ? 0 : x->head.n_origin;

    http_head_end(&x->head);
    x->method = x->head.method; /* valid for as long as MHD keeps the request */
    x->path = strdup(url[n_origin] ? url + n_origin : "/");
    return words;
}

/* Begin the exchange: the header was read. */
static enum MHD_Result begin(struct http_exchange *x, const char *url)
{
    int status;
    const char *words = check_head(x, url, &status);

    if (!x->path)
        return MHD_NO; /* out of memory */
    x->begun = true;
    x->t_begin_ns = clock_now_ns();
    set_id(x);
    x->surplus = slot_is_surplus(x->slot);
    slot_set_interim(x->slot, strcmp(x->head.version, "HTTP/1.0") != 0);
    if (!slot_enter(x->slot, SLOT_BODY))
        return MHD_NO;
    if (words) { /* an answer before the body was read makes MHD close the connection */
        error_reply_as(x, status, ERR_INVALID,
                       status == 413 ? "body_too_large" : "malformed_request", words);
        return queue_reply(x);
    }
    const char *length = http_header(x, MHD_HTTP_HEADER_CONTENT_LENGTH);
    uint64_t n_bytes = length ? strtoull(length, NULL, 10) : 0;
    answer_head(x, n_bytes);
    /* A client that waits for "100 Continue", or that would send a very long body, gets the answer
     * at once, and MHD closes the connection. A shorter body is read first, so that the connection
     * stays usable. */
    if (x->replied &&
        (n_bytes > DISCARD_BYTES_MAX || (n_bytes > 0 && http_header(x, MHD_HTTP_HEADER_EXPECT))))
        return queue_reply(x);
    return MHD_YES;
}

void exchange_refuse_at_once(struct http_exchange *x, int status, const char *words)
{
    struct buf body, text;

    http_head_end(&x->head);
    buf_init(&body, 4096);
    buf_init(&text, 4096);
    const char *code = status == 413 ? "body_too_large" : "malformed_request";
    enum status s = error_write(&body, ERR_INVALID, code, words);
    size_t body_len = body.len;
    if (s == OK)
        s = buf_printf(&text,
                       "HTTP/1.1 %d %s\r\nConnection: close\r\n"
                       "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                       status, MHD_get_reason_phrase_for((unsigned)status), body.len,
                       buf_str(&body));
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (s == OK && x->server->tls)
        tls_send_last(x->connection, text.data, text.len);
    else if (s == OK && info)
        (void)!send(info->connect_fd, text.data, text.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    slot_shut(x->slot);
    buf_fini(&body);
    buf_fini(&text);
    x->refused = x->queued = true;
    x->status = status;
    x->n_sent = body_len;
    http_set_error(x, code);
    if (x->begun)
        return;
    x->method = "-"; /* MHD has not passed the method yet */
    x->path = strdup(x->head.target);
    x->begun = x->path != NULL;
    set_id(x);
}

static void drop_body(struct http_exchange *x)
{
    buf_fini(&x->body);
    atomic_fetch_sub(&x->server->bodies_bytes, x->n_body_counted);
    x->n_body_counted = 0;
}

/* Append to the body. ERR_UNAVAILABLE: all bodies together exceed bodies_bytes_max. */
static enum status keep_body(struct http_exchange *x, const char *bytes, size_t n)
{
    struct http_server *h = x->server;
    enum status s = buf_append(&x->body, bytes, n);

    if (s != OK)
        return s;
    size_t grown = x->body.cap - x->n_body_counted;
    x->n_body_counted = x->body.cap;
    size_t total = atomic_fetch_add(&h->bodies_bytes, grown) + grown;
    return h->config.bodies_bytes_max && total > h->config.bodies_bytes_max ? ERR_UNAVAILABLE : OK;
}

static enum MHD_Result take_body(struct http_exchange *x, const char *bytes, size_t n)
{
    x->n_body += n;
    slot_body_came(x->slot, x->n_body);
    if (!x->replied && x->body_status == OK) {
        x->body_status = keep_body(x, bytes, n);
        if (x->body_status == OK)
            return MHD_YES;
        drop_body(x);
    }
    return x->n_body <= DISCARD_BYTES_MAX ? MHD_YES : MHD_NO;
}

static struct http_exchange *exchange_create(struct http_server *h, struct MHD_Connection *c,
                                             const char *target)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct http_exchange *x = info && info->socket_context ? calloc(1, sizeof *x) : NULL;

    if (!x)
        return NULL;
    x->slot = info->socket_context;
    x->server = h;
    x->connection = c;
    x->t_begin_ns = clock_now_ns();
    buf_init(&x->body, h->config.body_bytes_max);
    buf_init(&x->out, HTTP_OUT_BYTES_MAX);
    http_head_begin(&x->head, c, target, x);
    return x;
}

static void exchange_free(struct http_exchange *x)
{
    if (x->kept)
        x->free_kept(x->kept);
    http_head_end(&x->head);
    drop_body(x);
    buf_fini(&x->out);
    buf_fini(&x->reply);
    free(x->path);
    free(x);
}

static void run_handler(struct http_exchange *x)
{
    if (!x->replied && !slot_lost(x->slot))
        x->server->config.handle(x->server->config.arg, x);
    if (!x->body_taken)
        drop_body(x); /* free a long prompt's JSON before the answer is computed */
}

void exchange_work(void *item)
{
    struct http_job *job = item;

    job->run(job->arg);
}

static void run_offloaded(void *arg)
{
    struct http_exchange *x = arg;

    run_handler(x);
    slot_offload_end(x->slot); /* the HTTP thread may free x from here on */
}

uint64_t http_client(const struct http_exchange *x)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);

    return x->client ? x->client : work_client_of_address(info ? info->client_addr : NULL);
}

enum status http_run(struct http_exchange *x, struct http_job *job)
{
    return work_pool_push(x->server->jobs, job, http_client(x), x->body.len);
}

/* Suspend before the push: a work thread may have resumed the connection before push returns. */
static void offload(struct http_exchange *x)
{
    slot_offload_begin(x->slot);
    x->job = (struct http_job){run_offloaded, x};
    enum status s = work_pool_push(x->server->pool, &x->job, http_client(x), x->body.len);
    if (s == OK)
        return;
    error_reply(x, s, NULL, "too many long requests at once");
    slot_offload_end(x->slot);
}

/* Call the handler, here or on a work thread: the body is complete. */
static enum MHD_Result handle(struct http_exchange *x)
{
    size_t long_bytes = x->server->config.long_body_bytes;

    x->handled = true;
    if (!slot_enter(x->slot, SLOT_WORK))
        return MHD_NO;
    if (x->body_status != OK)
        refuse_body(x);
    if (!x->replied && (x->will_wait || (long_bytes && x->body.len > long_bytes))) {
        offload(x);
        return MHD_YES;
    }
    run_handler(x);
    return advance(x);
}

/* Called after the first line of a request. */
void *exchange_on_target(void *arg, const char *target, struct MHD_Connection *connection)
{
    struct http_exchange *x = exchange_create(arg, connection, target);

    if (!x)
        return NULL; /* exchange_on_access() then closes the connection */
    slot_input(x->slot);
    if (http_head_is_too_long(&x->head))
        exchange_refuse_at_once(x, 431, "there are too many query arguments");
    return x;
}

enum MHD_Result exchange_on_access(void *arg, struct MHD_Connection *connection, const char *url,
                                   const char *method, const char *version, const char *upload,
                                   size_t *n_upload, void **memory)
{
    struct http_exchange *x = *memory;

    (void)arg;
    (void)connection;
    if (!x || x->refused)
        return MHD_NO;
    if (!x->begun) {
        x->head.method = method;
        x->head.version = version;
        return begin(x, url);
    }
    if (*n_upload > 0) {
        size_t n = *n_upload;
        *n_upload = 0;
        return take_body(x, upload, n);
    }
    if (x->queued)
        return MHD_YES;
    return x->handled ? advance(x) : handle(x);
}

/* Report a request that is over. If its head never became complete, its method is "-" and its path
 * the raw target. */
static void report_done(const struct http_exchange *x, bool whole)
{
    const struct http_config *c = &x->server->config;
    int status = x->queued ? x->status : slot_told_late(x->slot) ? 408 : 0;
    const struct http_done done = {.id = x->id,
                                   .method = x->method ? x->method : "-",
                                   .path = x->path ? x->path : x->head.target,
                                   .status = status,
                                   .whole = whole,
                                   .n_in = x->n_body,
                                   .n_out = x->n_sent,
                                   .duration_ns = clock_now_ns() - x->t_begin_ns,
                                   .key = x->key,
                                   .tenant = x->tenant,
                                   .error = status == 408 ? "request_timeout" : x->error};

    if (c->done)
        c->done(c->arg, &done);
}

void exchange_on_completed(void *arg, struct MHD_Connection *connection, void **memory,
                           enum MHD_RequestTerminationCode why)
{
    struct http_exchange *x = *memory;

    (void)arg;
    (void)connection;
    if (!x)
        return;
    *memory = NULL;
    slot_finish(x->slot); /* no gone() after this, so close() may free ctx */
    if (x->async)
        x->async->close(x->ctx, x->queued ? x->status : 0);
    /* A client that left before its head was complete made no request: nothing to report. */
    if (x->begun || slot_told_late(x->slot)) {
        if (!x->id[0])
            set_id(x);
        report_done(x, x->refused || why == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    }
    exchange_free(x);
}
