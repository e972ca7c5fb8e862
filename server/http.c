#include "server/http.h"

#include <microhttpd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "server/cors.h"
#include "server/error.h"
#include "server/http_listen.h"
#include "server/http_slot.h"
#include "server/work_pool.h"

#define N_EXTRA_HEADERS 16
#define HEADER_VALUE_BYTES 128
#define CONNECTION_MEMORY_BYTES (32u << 10) /* bounds the request line and header: 431 beyond */
#define STREAM_BLOCK_BYTES (16u << 10)
#define STOP_TURN_NS UINT64_C(2000000)
#define N_STOP_TURNS 1000
#define SECOND_NS UINT64_C(1000000000)
/* How much of a refused body is read and dropped, so that its sender gets to see our answer
 * instead of a reset connection. */
#define DISCARD_BYTES_MAX (256u << 20)
/* Two, so that a short one need not wait for a very long one; a few more that wait, since each
 * holds its body. */
#define N_WORK_THREADS 2
#define N_WORK_QUEUED_MAX 128 /* of one client half of that */
#define TLS_PRIORITIES "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"

struct http_server {
    struct http_config config;
    struct MHD_Daemon *daemon;
    struct slots *slots;
    struct work_pool *pool;
    int listen_fd;
    uint16_t port;
    struct buf cert, key; /* PEM; MHD wants the bytes as long as the daemon lives */
    _Atomic size_t bodies_bytes;
    pthread_mutex_t lock;
    char mhd_words[256]; /* what MHD said last; under lock */
};

struct extra_header {
    const char *name;
    char value[HEADER_VALUE_BYTES];
};

struct http_exchange {
    struct http_server *server;
    struct MHD_Connection *connection;
    struct slot *slot; /* the connection's */
    const char *method;
    char *path;
    char id[HTTP_ID_BYTES];
    struct buf body;
    size_t n_body; /* bytes that came */
    size_t n_body_counted; /* in bodies_bytes */
    enum status body_status; /* ERR_TOO_LARGE, ERR_UNAVAILABLE: dropped, to be refused */
    uint64_t client; /* http_set_client(); 0: known by its address */
    bool will_wait;
    bool handled;
    /* for done() */
    uint64_t t_begin_ns;
    uint64_t n_sent; /* bytes of the answer's body */
    char key[HTTP_NAME_BYTES], tenant[HTTP_NAME_BYTES];
    const char *error; /* NULL: none */
    /* the answer */
    bool replied;
    bool queued;
    int status;
    const char *content_type;
    struct buf reply;
    struct extra_header extra[N_EXTRA_HEADERS];
    uint32_t n_extra;
    /* deferred */
    const struct http_async *async; /* NULL until then */
    void *ctx;
    struct buf out;
    size_t n_out_sent;
    enum http_next stream_end; /* HTTP_WAIT while it goes on */
};

/* --- what handlers see --- */

const char *http_id(const struct http_exchange *x)
{
    return x->id;
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
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

const char *http_query(const struct http_exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, name);
}

bool http_has_query(const struct http_exchange *x)
{
    return MHD_get_connection_values(x->connection, MHD_GET_ARGUMENT_KIND, NULL, NULL) > 0;
}

const struct buf *http_body(const struct http_exchange *x)
{
    return &x->body;
}

bool http_replied(const struct http_exchange *x)
{
    return x->replied;
}

void http_reply(struct http_exchange *x, int status, const char *content_type, struct buf *body)
{
    if (!x->replied) {
        x->replied = true;
        x->status = status;
        x->content_type = content_type;
        if (body) {
            x->reply = *body;
            *body = (struct buf){.max = body->max};
        }
    } else if (body) {
        buf_fini(body);
    }
}

void http_add_header(struct http_exchange *x, const char *name, const char *value)
{
    ASSERT(x->n_extra < N_EXTRA_HEADERS);
    struct extra_header *e = &x->extra[x->n_extra++];

    e->name = name;
    snprintf(e->value, sizeof e->value, "%s", value);
}

void http_set_caller(struct http_exchange *x, const char *key, const char *tenant)
{
    snprintf(x->key, sizeof x->key, "%s", key);
    snprintf(x->tenant, sizeof x->tenant, "%s", tenant);
}

void http_set_error(struct http_exchange *x, const char *code)
{
    if (!x->error)
        x->error = code;
}

void http_will_wait(struct http_exchange *x)
{
    x->will_wait = true;
}

void http_set_client(struct http_exchange *x, uint64_t client)
{
    x->client = client;
}

void *http_waker(struct http_exchange *x)
{
    return x->slot;
}

void http_wake(void *waker)
{
    slot_wake(waker);
}

enum status http_defer(struct http_exchange *x, const struct http_async *async, void *ctx)
{
    ASSERT(!x->async && !x->replied);
    enum status s = slot_defer(x->slot, async->gone, ctx);
    if (s != OK)
        return s;
    x->async = async;
    x->ctx = ctx;
    return OK;
}

/* --- answers --- */

static bool is_allowed_origin(const struct http_exchange *x)
{
    const char *list = x->server->config.allowed_origins;

    return list && list[0] && cors_allows(list, http_header(x, "Origin"));
}

static void add_headers(const struct http_exchange *x, struct MHD_Response *response)
{
    MHD_add_response_header(response, "X-Request-Id", x->id);
    if (x->content_type)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, x->content_type);
    for (uint32_t i = 0; i < x->n_extra; i++)
        MHD_add_response_header(response, x->extra[i].name, x->extra[i].value);
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

/* A long answer goes out block by block, for the write deadline to see each of them taken. */
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
        response = MHD_create_response_from_buffer(x->reply.len, x->reply.data,
                                                   MHD_RESPMEM_MUST_FREE);
        if (response)
            x->reply = (struct buf){0};
    } else {
        response = MHD_create_response_from_buffer(0, (void *)(uintptr_t) "",
                                                   MHD_RESPMEM_PERSISTENT);
    }
    return queue(x, response);
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
            return MHD_CONTENT_READER_END_WITH_ERROR;
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
    x->content_type = "text/event-stream; charset=utf-8";
    http_add_header(x, "Cache-Control", "no-cache");
    slot_set_streaming(x->slot);
    return queue(x, MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES,
                                                      on_read, x, NULL));
}

/* Run a deferred answer until it waits or answers. */
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

static bool id_is_sane(const char *id)
{
    size_t n = id ? strlen(id) : 0;

    if (n == 0 || n >= HTTP_ID_BYTES)
        return false;
    return strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

static void set_id(struct http_exchange *x)
{
    const char *given = http_header(x, "X-Request-Id");
    uint8_t bytes[12];

    if (id_is_sane(given)) {
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
        error_reply(x, x->body_status, NULL, x->body_status == ERR_NOMEM
                                                 ? "out of memory while the body was received"
                                                 : "too many long requests at once");
    }
}

/* A browser asks what another origin's page may do; without a key, which it never sends here. */
static void answer_preflight(struct http_exchange *x)
{
    if (strcmp(x->method, "OPTIONS") != 0 || !http_header(x, "Access-Control-Request-Method") ||
        !is_allowed_origin(x))
        return;
    http_add_header(x, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    http_add_header(x, "Access-Control-Allow-Headers", "*, Authorization");
    http_add_header(x, "Access-Control-Max-Age", "600");
    http_reply(x, 204, NULL, NULL);
}

/* The header is read. */
static enum MHD_Result begin(struct http_server *h, struct http_exchange *x)
{
    const char *length = http_header(x, MHD_HTTP_HEADER_CONTENT_LENGTH);
    uint64_t n_bytes = length ? strtoull(length, NULL, 10) : 0;

    set_id(x);
    if (!slot_enter(x->slot, SLOT_BODY))
        return MHD_NO;
    answer_preflight(x);
    /* Keys first: without one, nobody learns our limits. */
    if (!x->replied && h->config.early)
        h->config.early(h->config.arg, x);
    if (!x->replied && n_bytes > h->config.body_bytes_max) {
        x->body_status = ERR_TOO_LARGE;
        refuse_body(x);
    }
    /* A client that waits for "100 Continue" or would send for long is told at once; MHD then
     * closes the connection. A small body is read first, so the connection stays usable. */
    if (x->replied &&
        (n_bytes > DISCARD_BYTES_MAX || (n_bytes > 0 && http_header(x, MHD_HTTP_HEADER_EXPECT))))
        return queue_reply(x);
    return MHD_YES;
}

static void drop_body(struct http_exchange *x)
{
    buf_fini(&x->body);
    atomic_fetch_sub(&x->server->bodies_bytes, x->n_body_counted);
    x->n_body_counted = 0;
}

/* Under one roof with all other bodies. */
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
                                             const char *path, const char *method)
{
    struct http_exchange *x = calloc(1, sizeof *x);

    if (!x)
        return NULL;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    x->slot = info ? info->socket_context : NULL;
    x->server = h;
    x->connection = c;
    x->t_begin_ns = clock_now_ns();
    x->method = method; /* lives as long as MHD's view of the request */
    x->path = strdup(path);
    buf_init(&x->body, h->config.body_bytes_max);
    buf_init(&x->out, HTTP_OUT_BYTES_MAX);
    if (x->path && x->slot)
        return x;
    free(x->path);
    free(x);
    return NULL;
}

static void exchange_free(struct http_exchange *x)
{
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
    drop_body(x); /* a long prompt is not kept while its answer is made */
}

/* On a work thread. */
static void work(void *item)
{
    struct http_exchange *x = item;

    run_handler(x);
    slot_offload_end(x->slot); /* from here on x is the HTTP thread's */
}

static uint64_t client_of(const struct http_exchange *x)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);

    return x->client ? x->client : work_client_of_address(info ? info->client_addr : NULL);
}

/* Suspended first: a work thread may be done before we return. */
static void offload(struct http_exchange *x)
{
    slot_offload_begin(x->slot);
    enum status s = work_pool_push(x->server->pool, x, client_of(x), x->body.len);
    if (s == OK)
        return;
    error_reply(x, s, NULL, "too many long requests at once");
    slot_offload_end(x->slot);
}

/* The body is there. */
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

static enum MHD_Result on_access(void *arg, struct MHD_Connection *connection, const char *url,
                                 const char *method, const char *version, const char *upload,
                                 size_t *n_upload, void **memory)
{
    struct http_server *h = arg;
    struct http_exchange *x = *memory;

    (void)version;
    if (!x) {
        x = exchange_create(h, connection, url, method);
        if (!x)
            return MHD_NO;
        *memory = x;
        return begin(h, x);
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

static void report_done(const struct http_exchange *x, bool whole)
{
    const struct http_config *c = &x->server->config;
    const struct http_done done = {.id = x->id, .method = x->method, .path = x->path,
                                   .status = x->queued ? x->status : 0, .whole = whole,
                                   .n_in = x->n_body, .n_out = x->n_sent,
                                   .duration_ns = clock_now_ns() - x->t_begin_ns,
                                   .key = x->key, .tenant = x->tenant, .error = x->error};

    if (c->done)
        c->done(c->arg, &done);
}

static void on_completed(void *arg, struct MHD_Connection *connection, void **memory,
                         enum MHD_RequestTerminationCode why)
{
    struct http_exchange *x = *memory;

    (void)arg;
    (void)connection;
    if (!x)
        return;
    *memory = NULL;
    slot_finish(x->slot); /* then the handler may free what gone() would touch */
    if (x->async)
        x->async->close(x->ctx, x->queued ? x->status : 0);
    report_done(x, why == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    exchange_free(x);
}

static void on_connection(void *arg, struct MHD_Connection *connection, void **memory,
                          enum MHD_ConnectionNotificationCode what)
{
    struct http_server *h = arg;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    int on = 1;

    if (what != MHD_CONNECTION_NOTIFY_STARTED) {
        if (*memory)
            slot_close(*memory);
        *memory = NULL;
    } else if (info) {
        /* A token must not wait for the acknowledgement of the one before. */
        setsockopt(info->connect_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        *memory = slot_open(h->slots, connection, info->connect_fd);
        if (!*memory) /* nobody would watch over it */
            shutdown(info->connect_fd, SHUT_RDWR);
    }
}

static void on_mhd_log(void *arg, const char *format, va_list ap)
{
    struct http_server *h = arg;
    char text[512];

    vsnprintf(text, sizeof text, format, ap);
    for (char *p = text; *p; p++) /* one event is one line, and quotes end a value */
        if (*p == '\n' || *p == '"')
            *p = ' ';
    log_event(LOG_DEBUG, "http library", "text=\"%s\"", text);
    pthread_mutex_lock(&h->lock);
    snprintf(h->mhd_words, sizeof h->mhd_words, "%.255s", text);
    pthread_mutex_unlock(&h->lock);
}

/* --- lifecycle --- */

static bool is_set(const char *text)
{
    return text && text[0];
}

static enum status listen_somewhere(struct http_server *h, struct buf *why)
{
    const struct http_config *c = &h->config;

    if (is_set(c->uds_path))
        return listen_unix(&h->listen_fd, c->uds_path, c->uds_mode, why);
    return listen_tcp(&h->listen_fd, c->host, c->port, &h->port, why);
}

static enum status read_tls_files(struct http_server *h, struct buf *why)
{
    const struct http_config *c = &h->config;

    if (!is_set(c->tls_cert) && !is_set(c->tls_key))
        return OK;
    if (!is_set(c->tls_cert) || !is_set(c->tls_key))
        return buf_why(why, ERR_INVALID, "tls-cert and tls-key: one needs the other");
    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        return buf_why(why, ERR_UNSUPPORTED, "tls-cert: this libmicrohttpd was built without TLS");
    enum status s = listen_read_pem(&h->cert, "tls-cert", c->tls_cert, "BEGIN CERTIFICATE", why);
    if (s == OK)
        s = listen_read_pem(&h->key, "tls-key", c->tls_key, "PRIVATE KEY", why);
    return s;
}

static enum status start_daemon(struct http_server *h, struct buf *why)
{
    const struct http_config *c = &h->config;
    bool tls = h->cert.len > 0;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                     (tls ? MHD_USE_TLS : 0u);
    /* MHD wants no pool of one. */
    unsigned n_pool = c->n_threads > 1 ? c->n_threads : 0;
    struct MHD_OptionItem tls_options[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, h->cert.data},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, h->key.data},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)TLS_PRIORITIES},
        {MHD_OPTION_END, 0, NULL}};
    const struct MHD_OptionItem *extra = tls ? tls_options : &tls_options[3];

    h->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_access, h, MHD_OPTION_EXTERNAL_LOGGER, on_mhd_log, h,
        MHD_OPTION_LISTEN_SOCKET, h->listen_fd, MHD_OPTION_THREAD_POOL_SIZE, n_pool,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)c->n_connections_max,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)c->n_connections_per_ip_max,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)c->idle_timeout_s,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY_BYTES,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, h, MHD_OPTION_ARRAY, extra, MHD_OPTION_END);
    if (h->daemon)
        return OK;
    if (!tls)
        return buf_why(why, ERR_IO, "cannot start the HTTP threads: %s", h->mhd_words);
    return buf_why(why, ERR_INVALID,
                   "tls-cert, tls-key: %s and %s cannot be used together, is the key that of the "
                   "certificate? (%s)", c->tls_cert, c->tls_key, h->mhd_words);
}

static enum status make_slots(struct http_server *h)
{
    const struct http_config *c = &h->config;
    struct slots_config config = {.n_max = c->n_connections_max, .plain = h->cert.len == 0,
                                  .header_timeout_ns = c->header_timeout_s * SECOND_NS,
                                  .body_timeout_ns = c->body_timeout_s * SECOND_NS,
                                  .write_timeout_ns = c->write_timeout_s * SECOND_NS};

    return slots_create(&h->slots, &config);
}

enum status http_create(struct http_server **out, const struct http_config *config,
                        struct buf *why)
{
    struct http_server *h = calloc(1, sizeof *h);

    *out = NULL;
    if (!h)
        return ERR_NOMEM;
    h->config = *config;
    h->config.n_connections_max = listen_fit_files(config->n_connections_max);
    h->listen_fd = -1;
    pthread_mutex_init(&h->lock, NULL);
    enum status s = read_tls_files(h, why);
    if (s == OK)
        s = make_slots(h);
    if (s == OK)
        s = work_pool_create(&h->pool, N_WORK_THREADS, N_WORK_QUEUED_MAX, work);
    if (s == OK)
        s = listen_somewhere(h, why);
    if (s == OK)
        s = start_daemon(h, why);
    if (s != OK) {
        http_destroy(h);
        return s;
    }
    *out = h;
    return OK;
}

uint16_t http_port(const struct http_server *h)
{
    return h->port;
}

uint32_t http_n_connections_max(const struct http_server *h)
{
    return h->config.n_connections_max;
}

uint64_t http_n_cut(const struct http_server *h)
{
    return slots_n_cut(h->slots);
}

uint32_t http_n_in_flight(struct http_server *h)
{
    return slots_n_in_flight(h->slots);
}

void http_cancel_all(struct http_server *h)
{
    slots_cancel(h->slots, false);
}

/* New clients are refused; MHD's threads may still look at the descriptor. */
static void stop_listening(struct http_server *h)
{
    if (h->listen_fd < 0)
        return;
    if (is_set(h->config.uds_path))
        listen_unix_remove(h->listen_fd, h->config.uds_path);
    else
        shutdown(h->listen_fd, SHUT_RDWR);
}

void http_stop(struct http_server *h)
{
    if (!h->daemon)
        return;
    slots_stop(h->slots);
    MHD_quiesce_daemon(h->daemon); /* gives the listening socket back */
    stop_listening(h);
    slots_cancel(h->slots, true); /* what waits for a work thread is skipped */
    work_pool_close(h->pool);
    /* Everything suspended must run again before MHD may be stopped. One that was deferred while
     * we looked is found on the next turn. What then still stands is a client that reads nothing:
     * not suspended, so MHD may cut it. */
    for (int i = 0; i < N_STOP_TURNS && http_n_in_flight(h) > 0; i++) {
        slots_cancel(h->slots, true);
        clock_sleep_ns(STOP_TURN_NS);
    }
    MHD_stop_daemon(h->daemon);
    h->daemon = NULL;
    close(h->listen_fd);
    h->listen_fd = -1;
}

void http_destroy(struct http_server *h)
{
    if (!h)
        return;
    http_stop(h);
    stop_listening(h); /* it never came to serve */
    if (h->listen_fd >= 0)
        close(h->listen_fd);
    work_pool_destroy(h->pool);
    slots_destroy(h->slots);
    pthread_mutex_destroy(&h->lock);
    buf_fini(&h->cert);
    buf_fini(&h->key);
    free(h);
}
