/* http.h - the HTTP/1.1 server: connections, requests, answers. Handlers must never block.
 *
 * ONLY module that includes libmicrohttpd (MHD): http.c for requests, http_exchange.c for what
 * handlers see of a request, http_slot.c for suspending connections, http_check.c for checks that
 * MHD does not make, http_tls.c for certificates. http_accept.c accepts connections, and MHD serves
 * them in n_threads epoll loops. A handler that cannot answer at once defers its answer: the
 * connection is suspended until http_wake(). The handler of a long body runs on a work thread,
 * because parsing and tokenizing it would delay the other connections of its HTTP thread; so does
 * the handler of a request for which early() called http_will_wait(). http_slot.h has the deadlines
 * and the detection of lost clients.
 *
 * MHD answers a header that it cannot parse, or that is longer than its buffer, with an HTML page
 * (400, 414 or 431). MHD 0.9.75 has no option to change that page. Malformed requests that MHD does
 * parse are refused by this module, in JSON, and their connection is closed.
 *
 * A wake-up is a hint: it may come late or without a reason, so handlers look at their state again.
 *
 * Owns    the listening socket, the thread that accepts, MHD's threads, the work threads, every
 *         exchange.
 * Thread  http_create/stop/destroy: main. early/step/fill/close: the HTTP thread of the connection.
 *         handle: the same thread or a work thread. No two of these run at the same time for one
 *         connection. gone: any thread. http_wake(): any thread, does not block.
 * Errors  http_create(): *why names the address or file that cannot be used.
 *         http_defer(): ERR_UNAVAILABLE when the server stops.
 * Units   bytes, seconds, nanoseconds. */
#ifndef TARN_SERVER_HTTP_HTTP_H
#define TARN_SERVER_HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct http_server;
struct http_exchange; /* one request and its answer */

#define HTTP_ID_BYTES 64 /* NUL included */
#define HTTP_NAME_BYTES 72
/* The most bytes that one call of fill() may append. The last events of a response repeat all of
 * its text and logprobs. */
#define HTTP_OUT_BYTES_MAX (256u << 20)

enum http_error_form { HTTP_ERRORS_OPENAI, HTTP_ERRORS_ANTHROPIC };

enum http_next {
    HTTP_WAIT,   /* nothing to send yet: call again after http_wake() */
    HTTP_DONE,   /* step: http_reply() was called; fill: the stream is complete */
    HTTP_STREAM, /* step only: send the headers now, then call fill() */
    HTTP_ABORT,  /* close the connection in the middle of the answer */
};

/* A deferred answer. */
struct http_async {
    enum http_next (*step)(void *ctx, struct http_exchange *x);
    /* Append to *out what can be sent now. idle_ns: time since the last bytes were sent. Called at
     * least once a second. May be NULL when step() never returns HTTP_STREAM. */
    enum http_next (*fill)(void *ctx, struct buf *out, uint64_t idle_ns);
    /* The client left, or the server cancels the request. Set flags; do not block or free. */
    void (*gone)(void *ctx);
    /* The exchange is over and `status` was sent (0: no answer was sent). The callee frees ctx. */
    void (*close)(void *ctx, int status);
};

/* The end of an exchange. Strings are valid during the call only. */
struct http_done {
    const char *id, *method, *path;
    int status;               /* 0: the client got no answer */
    bool whole;               /* the client's kernel accepted the whole answer */
    uint64_t n_in, n_out;     /* bytes of the request's and the answer's body */
    uint64_t duration_ns;     /* since the header was read */
    const char *key, *tenant; /* http_set_caller(), else "" */
    const char *error;        /* http_set_error(), else NULL */
};

struct http_config {
    const char *host;
    uint16_t port;        /* 0: the kernel chooses a free port, see http_port() */
    const char *uds_path; /* a Unix socket instead of host and port; NULL or "": use TCP */
    uint32_t uds_mode;
    const char *tls_cert; /* PEM files, both or none (NULL or "") */
    const char *tls_key;
    const char *allowed_origins; /* cors.h; NULL or "": none */
    uint32_t n_threads;
    uint32_t n_connections_max;        /* lowered where the limit on descriptors demands it */
    uint32_t n_connections_per_ip_max; /* 0: no limit */
    size_t body_bytes_max;
    size_t bodies_bytes_max; /* sum of all request bodies in memory; 0: no limit */
    size_t long_body_bytes;  /* longer bodies are handled on a work thread; 0: none are */
    /* Seconds, 0: no limit. http_slot.h defines header, body and write timeouts; the idle timeout
     * is the pause between two requests of a connection. */
    uint32_t header_timeout_s;
    uint32_t body_timeout_s;
    uint32_t write_timeout_s;
    uint32_t idle_timeout_s;
    /* Called after the header, before the body. May refuse the request by http_reply(). May be
     * NULL. */
    void (*early)(void *arg, struct http_exchange *x);
    /* Called after the whole body. Must call http_reply() or http_defer(). */
    void (*handle)(void *arg, struct http_exchange *x);
    /* Called on the HTTP thread when an exchange is over. Must not block. May be NULL. */
    void (*done)(void *arg, const struct http_done *d);
    void *arg;
};

NODISCARD enum status http_create(struct http_server **out, const struct http_config *config,
                                  struct buf *why);
uint16_t http_port(const struct http_server *h); /* 0 for a Unix socket */
/* Count of connections closed since the start because they missed a deadline. */
uint64_t http_n_cut(const struct http_server *h);
/* Read the TLS certificate and key files again. New connections use the new pair; on an error the
 * old pair stays in use. *changed: the files held a new pair. Does nothing without TLS. Main thread
 * only. */
NODISCARD enum status http_reload(struct http_server *h, bool *changed, struct buf *why);
/* Count of requests that are deferred or on a work thread. */
uint32_t http_n_in_flight(struct http_server *h);
/* Call gone() of every deferred answer. Their handlers still send the end of the answer. */
void http_cancel_all(struct http_server *h);
/* Accept no more connections, close all connections, join MHD's threads. http_wake() may still be
 * called. */
void http_stop(struct http_server *h);
/* Free the server, stopping it first if necessary. Only after the last possible http_wake(). NULL
 * is fine. */
void http_destroy(struct http_server *h);

/* Parts of the request. Valid until close() or done(); the body only until handle() returns. */
const char *http_id(const struct http_exchange *x); /* the client's X-Request-Id, or a new one */
const char *http_method(const struct http_exchange *x);
const char *http_path(const struct http_exchange *x);
const char *http_header(const struct http_exchange *x, const char *name); /* NULL when absent */
/* "5" for "n" in "/path?n=5"; NULL when absent or without "=". */
const char *http_query(const struct http_exchange *x, const char *name);
/* List the values of an argument that may come several times, at most n_max; NULL: without "=".
 * Returns how many there are. */
size_t http_query_all(const struct http_exchange *x, const char *name, const char **out,
                      size_t n_max);
bool http_has_query(const struct http_exchange *x); /* whether there is any query argument */
const struct buf *http_body(const struct http_exchange *x);
/* Move the body to *out, which need not be initialized: for work that goes on behind handle(). The
 * body counts towards bodies_bytes_max until the end of the exchange. */
void http_take_body(struct http_exchange *x, struct buf *out);

/* Set the answer. Takes ownership of the bytes of *body (NULL: no body) and leaves it empty.
 * content_type: a static string. Only the first call has an effect. */
void http_reply(struct http_exchange *x, int status, const char *content_type, struct buf *body);
/* Add a header to the answer; at most 16. name: a static string. */
void http_add_header(struct http_exchange *x, const char *name, const char *value);
/* Set the type of a streamed answer, a static string; without this call text/event-stream. Before
 * step() returns HTTP_STREAM. */
void http_set_stream_type(struct http_exchange *x, const char *content_type);
bool http_replied(const struct http_exchange *x);
/* Set what done() reports: the names of key and tenant, cut to HTTP_NAME_BYTES, and the error code,
 * a static string. Only the first error code has an effect. */
void http_set_caller(struct http_exchange *x, const char *key, const char *tenant);
void http_set_error(struct http_exchange *x, const char *code);
/* The form of the exchange's errors (error.h); from early() on. An exchange with Anthropic's form
 * also has the header request-id. */
void http_set_error_form(struct http_exchange *x, enum http_error_form form);
enum http_error_form http_error_form(const struct http_exchange *x);

/* Whether the connection is a guest: admitted although all n_connections_max are busy. Guests get
 * answers about health only. */
bool http_is_surplus(const struct http_exchange *x);
/* From early() only: run handle() on a work thread, because it will block. */
void http_will_wait(struct http_exchange *x);
/* From early() only: identify the sender by a number other than 0. Work threads share their time
 * fairly between senders (work_pool.h). Without this call, the client's address identifies it. */
void http_set_client(struct http_exchange *x, uint64_t client);
/* Answer later. On OK, close(ctx) will be called exactly once, on an HTTP thread. http_reply() may
 * follow at once, as when the engine's queue is full. */
NODISCARD enum status http_defer(struct http_exchange *x, const struct http_async *async,
                                 void *ctx);
/* The argument of http_wake() for this exchange; after http_defer(). */
void *http_waker(struct http_exchange *x);
void http_wake(void *waker);
/* Have step() called at that time as if by http_wake(), within 0.2 s; 0: not any more. */
void http_wake_at(struct http_exchange *x, uint64_t at_ns);

/* Keep p with the exchange, which calls free_kept(p) at its end. At most one per exchange. */
void http_keep(struct http_exchange *x, void *p, void (*free_kept)(void *p));
void *http_kept(const struct http_exchange *x); /* NULL: nothing */

/* run(arg) for a work thread. The caller owns the struct, and keeps it until run() is called. */
struct http_job {
    void (*run)(void *arg);
    void *arg;
};
/* The number of the sender: that of http_set_client(), else one of its address. */
uint64_t http_client(const struct http_exchange *x);
/* Queue a job on behalf of the sender of x, for threads that serve such jobs only; from handle() or
 * step(). On OK job->run() is called once, also when the server stops. ERR_BUSY as in
 * work_pool.h. */
NODISCARD enum status http_run(struct http_exchange *x, struct http_job *job);

#endif
