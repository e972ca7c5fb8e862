#include "server/http.h"

#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
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
#include "server/watcher.h"

#define LISTEN_BACKLOG 1024
#define N_EXTRA_HEADERS 4
#define HEADER_VALUE_BYTES 128
#define CONNECTION_MEMORY_BYTES (32u << 10) /* bounds the request line and header: 431 beyond */
#define STREAM_BLOCK_BYTES (16u << 10)
#define TICK_IDLE_NS UINT64_C(1000000000)
#define STOP_TURN_NS UINT64_C(2000000)
#define N_STOP_TURNS 1000
/* How much of a refused body is read and dropped, so that its sender gets to see our answer
 * instead of a reset connection. */
#define DISCARD_BYTES_MAX (256u << 20)

/* Where a deferred exchange meets its wake-ups. See the header for why it is never freed early. */
struct slot {
    pthread_mutex_t lock;
    /* Under lock. */
    struct MHD_Connection *connection; /* NULL: free */
    bool suspended;
    bool pending; /* a wake-up came while the connection was running */
    /* Set under lock or before the watcher knows the slot. */
    struct http_exchange *exchange;
    atomic_bool lost;
    atomic_bool streaming;
    _Atomic uint64_t t_last_sent;
    uint32_t index;
    struct slot *next_free; /* under the server's lock */
};

struct http_server {
    struct http_config config;
    struct MHD_Daemon *daemon;
    struct watcher *watcher;
    struct slot *slots; /* [n_connections_max] */
    int listen_fd;
    uint16_t port;
    atomic_bool stopping;
    pthread_mutex_t lock;
    struct slot *free; /* under lock */
    uint32_t n_in_flight; /* under lock */
};

struct extra_header {
    const char *name;
    char value[HEADER_VALUE_BYTES];
};

struct http_exchange {
    struct http_server *server;
    struct MHD_Connection *connection;
    struct slot *slot; /* NULL until deferred */
    const char *method;
    char *path;
    char id[HTTP_ID_BYTES];
    struct buf body;
    size_t n_discarded;
    bool handled;
    bool body_too_large;
    /* the answer */
    bool replied;
    bool queued;
    int status;
    const char *content_type;
    struct buf reply;
    struct extra_header extra[N_EXTRA_HEADERS];
    uint32_t n_extra;
    /* deferred */
    const struct http_async *async;
    void *ctx;
    struct buf out;
    size_t n_out_sent;
    enum http_next stream_end; /* HTTP_WAIT while it goes on */
};

/* --- slots --- */

static struct slot *slot_take(struct http_server *h)
{
    pthread_mutex_lock(&h->lock);
    struct slot *slot = h->free;
    if (slot) {
        h->free = slot->next_free;
        h->n_in_flight++;
    }
    pthread_mutex_unlock(&h->lock);
    return slot;
}

static void slot_give(struct http_server *h, struct slot *slot)
{
    pthread_mutex_lock(&h->lock);
    slot->next_free = h->free;
    h->free = slot;
    h->n_in_flight--;
    pthread_mutex_unlock(&h->lock);
}

/* True: the connection is suspended. False: a wake-up came in between, so look again. */
static bool slot_suspend(struct slot *slot)
{
    pthread_mutex_lock(&slot->lock);
    bool again = slot->pending || atomic_load(&slot->lost);
    slot->pending = false;
    if (!again) {
        slot->suspended = true;
        MHD_suspend_connection(slot->connection);
    }
    pthread_mutex_unlock(&slot->lock);
    return !again;
}

void http_wake(void *waker)
{
    struct slot *slot = waker;

    pthread_mutex_lock(&slot->lock);
    if (slot->suspended) {
        slot->suspended = false;
        MHD_resume_connection(slot->connection);
    } else if (slot->connection) {
        slot->pending = true;
    }
    pthread_mutex_unlock(&slot->lock);
}

static void slot_lost(void *arg)
{
    struct slot *slot = arg;

    atomic_store(&slot->lost, true);
    slot->exchange->async->gone(slot->exchange->ctx);
    http_wake(slot);
}

static void slot_cancel(void *arg)
{
    struct slot *slot = arg;

    slot->exchange->async->gone(slot->exchange->ctx);
    http_wake(slot);
}

static void slot_tick(void *arg, uint64_t now_ns)
{
    struct slot *slot = arg;

    /* t_last_sent may be newer than now_ns, which was read before. */
    if (atomic_load(&slot->streaming) &&
        (int64_t)(now_ns - atomic_load(&slot->t_last_sent)) >= (int64_t)TICK_IDLE_NS)
        http_wake(slot);
}

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

void *http_waker(struct http_exchange *x)
{
    ASSERT(x->slot);
    return x->slot;
}

static void slot_detach(struct http_exchange *x)
{
    struct slot *slot = x->slot;

    pthread_mutex_lock(&slot->lock);
    slot->connection = NULL;
    slot->suspended = slot->pending = false;
    pthread_mutex_unlock(&slot->lock);
    x->slot = NULL;
    slot_give(x->server, slot);
}

enum status http_defer(struct http_exchange *x, const struct http_async *async, void *ctx)
{
    struct http_server *h = x->server;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);

    ASSERT(!x->slot && !x->replied);
    if (!info || atomic_load(&h->stopping))
        return ERR_UNAVAILABLE;
    struct slot *slot = slot_take(h);
    if (!slot)
        return ERR_UNAVAILABLE;
    x->slot = slot;
    x->async = async;
    x->ctx = ctx;
    atomic_store(&slot->lost, false);
    atomic_store(&slot->streaming, false);
    atomic_store(&slot->t_last_sent, clock_now_ns());
    slot->exchange = x;
    pthread_mutex_lock(&slot->lock);
    slot->connection = x->connection;
    slot->suspended = slot->pending = false;
    pthread_mutex_unlock(&slot->lock);
    if (watcher_add(h->watcher, slot->index, info->connect_fd, slot) != OK) {
        slot_detach(x);
        x->async = NULL;
        return ERR_UNAVAILABLE;
    }
    return OK;
}

/* --- answers --- */

static void add_headers(const struct http_exchange *x, struct MHD_Response *response)
{
    MHD_add_response_header(response, "X-Request-Id", x->id);
    if (x->content_type)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, x->content_type);
    for (uint32_t i = 0; i < x->n_extra; i++)
        MHD_add_response_header(response, x->extra[i].name, x->extra[i].value);
}

static enum MHD_Result queue(struct http_exchange *x, struct MHD_Response *response)
{
    if (!response)
        return MHD_NO;
    add_headers(x, response);
    enum MHD_Result result =
        MHD_queue_response(x->connection, (unsigned)x->status, response);
    MHD_destroy_response(response);
    x->queued = result == MHD_YES;
    return result;
}

static enum MHD_Result queue_reply(struct http_exchange *x)
{
    struct MHD_Response *response;

    if (x->reply.data) {
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
            atomic_store(&x->slot->t_last_sent, clock_now_ns());
            return (ssize_t)n;
        }
        if (x->stream_end == HTTP_DONE)
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (x->stream_end == HTTP_ABORT || atomic_load(&x->slot->lost))
            return MHD_CONTENT_READER_END_WITH_ERROR;
        buf_reset(&x->out);
        x->n_out_sent = 0;
        uint64_t idle_ns = clock_now_ns() - atomic_load(&x->slot->t_last_sent);
        enum http_next next = x->async->fill(x->ctx, &x->out, idle_ns);
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
    atomic_store(&x->slot->streaming, true);
    return queue(x, MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES,
                                                      on_read, x, NULL));
}

/* Run a deferred answer until it waits or answers. */
static enum MHD_Result advance(struct http_exchange *x)
{
    for (;;) {
        if (x->replied)
            return queue_reply(x);
        ASSERT(x->slot); /* handle() neither replied nor deferred */
        if (atomic_load(&x->slot->lost))
            return MHD_NO;
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

static void reply_too_large(struct http_exchange *x)
{
    struct buf body;

    buf_init(&body, 512);
    enum status s = buf_printf(&body,
                               "{\"error\":{\"message\":\"the body is larger than %zu bytes\","
                               "\"type\":\"invalid_request_error\",\"param\":null,"
                               "\"code\":\"body_too_large\"}}",
                               x->server->config.body_bytes_max);
    http_reply(x, 413, "application/json", s == OK ? &body : NULL);
    buf_fini(&body);
}

/* The header is read. */
static enum MHD_Result begin(struct http_server *h, struct http_exchange *x)
{
    const char *length = http_header(x, MHD_HTTP_HEADER_CONTENT_LENGTH);
    uint64_t n_bytes = length ? strtoull(length, NULL, 10) : 0;

    set_id(x);
    if (n_bytes > h->config.body_bytes_max)
        reply_too_large(x);
    else if (h->config.early)
        h->config.early(h->config.arg, x);
    /* A client that waits for "100 Continue" or would send for long is told at once; MHD then
     * closes the connection. A small body is read first, so the connection stays usable. */
    if (x->replied &&
        (n_bytes > DISCARD_BYTES_MAX || (n_bytes > 0 && http_header(x, MHD_HTTP_HEADER_EXPECT))))
        return queue_reply(x);
    return MHD_YES;
}

static enum MHD_Result take_body(struct http_exchange *x, const char *bytes, size_t n)
{
    if (!x->replied && !x->body_too_large) {
        enum status s = buf_append(&x->body, bytes, n);
        if (s == OK)
            return MHD_YES;
        if (s != ERR_TOO_LARGE)
            return MHD_NO;
        x->body_too_large = true;
        buf_fini(&x->body);
    }
    x->n_discarded += n;
    return x->n_discarded <= DISCARD_BYTES_MAX ? MHD_YES : MHD_NO;
}

static struct http_exchange *exchange_create(struct http_server *h, struct MHD_Connection *c,
                                             const char *path, const char *method)
{
    struct http_exchange *x = calloc(1, sizeof *x);

    if (!x)
        return NULL;
    x->server = h;
    x->connection = c;
    x->method = method; /* lives as long as MHD's view of the request */
    x->path = strdup(path);
    buf_init(&x->body, h->config.body_bytes_max);
    buf_init(&x->out, HTTP_OUT_BYTES_MAX);
    if (x->path)
        return x;
    free(x);
    return NULL;
}

static void exchange_free(struct http_exchange *x)
{
    buf_fini(&x->body);
    buf_fini(&x->out);
    buf_fini(&x->reply);
    free(x->path);
    free(x);
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
    if (!x->handled) {
        x->handled = true;
        if (x->body_too_large)
            reply_too_large(x);
        if (!x->replied)
            h->config.handle(h->config.arg, x);
        buf_fini(&x->body); /* a long prompt is not kept while its answer is made */
    }
    return advance(x);
}

static void on_completed(void *arg, struct MHD_Connection *connection, void **memory,
                         enum MHD_RequestTerminationCode why)
{
    struct http_exchange *x = *memory;

    (void)arg;
    (void)connection;
    (void)why;
    if (!x)
        return;
    *memory = NULL;
    if (x->slot) {
        /* In this order: then nobody can call gone(), then nobody can resume, then the handler
         * may free what both would touch. */
        watcher_remove(x->server->watcher, x->slot->index);
        void (*close_fn)(void *, int) = x->async->close;
        slot_detach(x);
        close_fn(x->ctx, x->queued ? x->status : 0);
    }
    exchange_free(x);
}

static void on_connection(void *arg, struct MHD_Connection *connection, void **memory,
                          enum MHD_ConnectionNotificationCode what)
{
    const union MHD_ConnectionInfo *info;
    int on = 1;

    (void)arg;
    (void)memory;
    if (what != MHD_CONNECTION_NOTIFY_STARTED)
        return;
    info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info) /* a token must not wait for the acknowledgement of the one before */
        setsockopt(info->connect_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static void on_mhd_log(void *arg, const char *format, va_list ap)
{
    char text[512];

    (void)arg;
    vsnprintf(text, sizeof text, format, ap);
    for (char *p = text; *p; p++) /* one event is one line, and quotes end a value */
        if (*p == '\n' || *p == '"')
            *p = ' ';
    log_event(LOG_DEBUG, "http library", "text=\"%s\"", text);
}

/* --- lifecycle --- */

static int listen_at(const struct addrinfo *a)
{
    int on = 1;
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, LISTEN_BACKLOG) == 0)
        return fd;
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

static enum status listen_on(struct http_server *h, struct buf *why)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    struct sockaddr_storage bound;
    socklen_t n_bound = sizeof bound;
    char port[8];

    snprintf(port, sizeof port, "%u", h->config.port);
    int rc = getaddrinfo(h->config.host, port, &hints, &list);
    if (rc != 0)
        return buf_why(why, ERR_INVALID, "host: cannot resolve \"%s\": %s", h->config.host,
                       gai_strerror(rc));
    for (struct addrinfo *a = list; a && h->listen_fd < 0; a = a->ai_next)
        h->listen_fd = listen_at(a);
    freeaddrinfo(list);
    if (h->listen_fd < 0)
        return buf_why(why, ERR_IO, "cannot listen on %s port %s: %s", h->config.host, port,
                       strerror(errno));
    if (getsockname(h->listen_fd, (struct sockaddr *)&bound, &n_bound) != 0)
        return buf_why(why, ERR_IO, "getsockname: %s", strerror(errno));
    h->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                : ((struct sockaddr_in *)&bound)->sin_port);
    return OK;
}

static enum status start_daemon(struct http_server *h, struct buf *why)
{
    const struct http_config *c = &h->config;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    /* MHD wants no pool of one. */
    unsigned n_pool = c->n_threads > 1 ? c->n_threads : 0;

    h->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_access, h, MHD_OPTION_EXTERNAL_LOGGER, on_mhd_log, NULL,
        MHD_OPTION_LISTEN_SOCKET, h->listen_fd, MHD_OPTION_THREAD_POOL_SIZE, n_pool,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)c->n_connections_max,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)c->idle_timeout_s,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY_BYTES,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, NULL, MHD_OPTION_END);
    return h->daemon ? OK : buf_why(why, ERR_IO, "cannot start the HTTP threads");
}

static enum status make_slots(struct http_server *h)
{
    uint32_t n = h->config.n_connections_max;

    h->slots = calloc(n, sizeof *h->slots);
    if (!h->slots)
        return ERR_NOMEM;
    for (uint32_t i = n; i-- > 0;) {
        pthread_mutex_init(&h->slots[i].lock, NULL);
        h->slots[i].index = i;
        h->slots[i].next_free = h->free;
        h->free = &h->slots[i];
    }
    return OK;
}

enum status http_create(struct http_server **out, const struct http_config *config,
                        struct buf *why)
{
    static const struct watcher_callbacks callbacks = {.lost = slot_lost, .tick = slot_tick};
    struct http_server *h = calloc(1, sizeof *h);

    *out = NULL;
    if (!h)
        return ERR_NOMEM;
    h->config = *config;
    h->listen_fd = -1;
    pthread_mutex_init(&h->lock, NULL);
    enum status s = make_slots(h);
    if (s == OK)
        s = listen_on(h, why);
    if (s == OK)
        s = watcher_create(&h->watcher, config->n_connections_max, &callbacks);
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

uint32_t http_n_in_flight(struct http_server *h)
{
    pthread_mutex_lock(&h->lock);
    uint32_t n = h->n_in_flight;
    pthread_mutex_unlock(&h->lock);
    return n;
}

void http_cancel_all(struct http_server *h)
{
    watcher_for_each(h->watcher, slot_cancel);
}

void http_stop(struct http_server *h)
{
    if (!h->daemon)
        return;
    atomic_store(&h->stopping, true);
    int fd = MHD_quiesce_daemon(h->daemon);
    if (fd >= 0)
        close(fd);
    h->listen_fd = -1;
    /* Everything suspended must run again before MHD may be stopped. One that was deferred while
     * we looked is found on the next turn. What then still stands is a client that reads nothing:
     * not suspended, so MHD may cut it. */
    for (int i = 0; i < N_STOP_TURNS && http_n_in_flight(h) > 0; i++) {
        watcher_for_each(h->watcher, NULL);
        clock_sleep_ns(STOP_TURN_NS);
    }
    MHD_stop_daemon(h->daemon);
    h->daemon = NULL;
    watcher_destroy(h->watcher);
    h->watcher = NULL;
}

void http_destroy(struct http_server *h)
{
    if (!h)
        return;
    http_stop(h);
    watcher_destroy(h->watcher);
    if (h->listen_fd >= 0)
        close(h->listen_fd);
    for (uint32_t i = 0; h->slots && i < h->config.n_connections_max; i++)
        pthread_mutex_destroy(&h->slots[i].lock);
    pthread_mutex_destroy(&h->lock);
    free(h->slots);
    free(h);
}
