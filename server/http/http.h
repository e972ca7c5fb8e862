/* http.h - HTTP/1.1 in front of handlers that must never block.
 *
 * ONLY module that includes libmicrohttpd (MHD): http.c, http_slot.c for suspending, http_check.c
 * for what MHD lets pass, http_tls.c for certificates. http_accept.c accepts; MHD runs n_threads
 * epoll loops; everything that a handler cannot answer at once is deferred: the
 * connection is suspended and waits for http_wake(). A request with a long body has its handler
 * run on a work thread, so that parsing and tokenizing it holds up nobody; the handler does not
 * notice. So has one that says http_will_wait(). Deadlines and lost clients: http_slot.h.
 *
 * MHD answers with a page of its own (400, 414 or 431 in HTML) when it cannot read the header: a
 * line that is none, or a header longer than its buffer. 0.9.75 has no way to change that. This
 * module refuses, in JSON, requests that MHD could read, and ends the connection.
 *
 * Handlers take wake-ups as hints: one may come late or for nothing.
 *
 * Owns    the listening socket, the thread that accepts, MHD's threads, the work threads, every
 *         exchange.
 * Thread  http_create/stop/destroy: main. early/step/fill/close: the HTTP thread of that
 *         connection; handle: that or a work thread; never two at once. gone: any thread.
 *         http_wake(): any thread, does not block.
 * Errors  http_create(): words for an address or a file that cannot be had.
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
/* What one call of fill() may append. */
#define HTTP_OUT_BYTES_MAX (8u << 20)

enum http_next {
    HTTP_WAIT,   /* nothing now: call again after http_wake() */
    HTTP_DONE,   /* step: http_reply() was called; fill: this was the end */
    HTTP_STREAM, /* step only: send the headers now, then ask fill() */
    HTTP_ABORT,  /* close the connection without a proper end */
};

/* A deferred answer. */
struct http_async {
    enum http_next (*step)(void *ctx, struct http_exchange *x);
    /* Append to *out what can be sent now. idle_ns: how long nothing was sent. It is called at
     * least once a second. May be NULL when step() never says HTTP_STREAM. */
    enum http_next (*fill)(void *ctx, struct buf *out, uint64_t idle_ns);
    /* The client left, or the server wants this to end: set flags, do not block or free. */
    void (*gone)(void *ctx);
    /* The exchange is over, `status` was sent (0: nothing); ctx is the handler's to free. */
    void (*close)(void *ctx, int status);
};

/* How an exchange ended. Texts are valid during the call only. */
struct http_done {
    const char *id, *method, *path;
    int status;               /* 0: the client got no answer */
    bool whole;               /* the client's side took all of the answer */
    uint64_t n_in, n_out;     /* bytes of the request's and the answer's body */
    uint64_t duration_ns;     /* since the header was read */
    const char *key, *tenant; /* http_set_caller(), else "" */
    const char *error;        /* http_set_error(), else NULL */
};

struct http_config {
    const char *host;
    uint16_t port;        /* 0: any free one, see http_port() */
    const char *uds_path; /* a Unix socket instead of host and port; NULL or "": none */
    uint32_t uds_mode;
    const char *tls_cert; /* PEM files, both or none (NULL or "") */
    const char *tls_key;
    const char *allowed_origins; /* cors.h; NULL or "": none */
    uint32_t n_threads;
    uint32_t n_connections_max;        /* cut to what the limit on descriptors allows */
    uint32_t n_connections_per_ip_max; /* 0: no limit */
    size_t body_bytes_max;
    size_t bodies_bytes_max; /* all request bodies that are in memory at once; 0: no limit */
    size_t long_body_bytes;  /* a longer body is handled on a work thread; 0: none is */
    /* Seconds, 0: no limit. http_slot.h says what they count; idle: between requests. */
    uint32_t header_timeout_s;
    uint32_t body_timeout_s;
    uint32_t write_timeout_s;
    uint32_t idle_timeout_s;
    /* The header is read, the body is not: may http_reply() to refuse. May be NULL. */
    void (*early)(void *arg, struct http_exchange *x);
    /* The body is there: must http_reply() or http_defer(). */
    void (*handle)(void *arg, struct http_exchange *x);
    /* An exchange is over, on its HTTP thread; must not block. May be NULL. */
    void (*done)(void *arg, const struct http_done *d);
    void *arg;
};

NODISCARD enum status http_create(struct http_server **out, const struct http_config *config,
                                  struct buf *why);
uint16_t http_port(const struct http_server *h); /* 0 for a Unix socket */
uint32_t http_n_connections_max(const struct http_server *h);
/* Connections cut because they missed a deadline, since the start. */
uint64_t http_n_cut(const struct http_server *h);
/* Read the TLS certificate and key again, for new connections; on an error the old ones stay.
 * *changed: there are new ones. Without TLS this does nothing. Main thread only. */
NODISCARD enum status http_reload(struct http_server *h, bool *changed, struct buf *why);
/* Deferred answers that are not finished. */
uint32_t http_n_in_flight(struct http_server *h);
/* Calls gone() of every deferred answer; those still send their end. */
void http_cancel_all(struct http_server *h);
/* Takes no more, cuts what is in flight, joins MHD's threads. Wake-ups may still come. */
void http_stop(struct http_server *h);
/* After the last possible wake-up. NULL is fine; stops first if need be. */
void http_destroy(struct http_server *h);

/* What was asked; valid as long as the exchange, the body only until handle() returns. */
const char *http_id(const struct http_exchange *x); /* the client's X-Request-Id, or a new one */
const char *http_method(const struct http_exchange *x);
const char *http_path(const struct http_exchange *x);
const char *http_header(const struct http_exchange *x, const char *name); /* NULL when absent */
/* "5" for "n" in "/path?n=5"; NULL when absent or without "=". */
const char *http_query(const struct http_exchange *x, const char *name);
bool http_has_query(const struct http_exchange *x); /* any, known or not */
const struct buf *http_body(const struct http_exchange *x);

/* The answer. *body is taken over and left empty; NULL for none. content_type: static text. Only
 * the first reply counts. */
void http_reply(struct http_exchange *x, int status, const char *content_type, struct buf *body);
/* An extra header of the answer, at most 16; name: static text. */
void http_add_header(struct http_exchange *x, const char *name, const char *value);
bool http_replied(const struct http_exchange *x);
/* Set what done() reports: the names of key and tenant, cut to HTTP_NAME_BYTES; the error code, a
 * static text, of which the first one counts. */
void http_set_caller(struct http_exchange *x, const char *key, const char *tenant);
void http_set_error(struct http_exchange *x, const char *code);

/* All connections are busy, and this one was let in beside them: only health is answered. */
bool http_is_surplus(const struct http_exchange *x);
/* From early() only: handle() will wait for something, so run it on a work thread. */
void http_will_wait(struct http_exchange *x);
/* From early() only: name the sender by a number other than 0. Long bodies take turns by sender.
 * Without a name, senders are told apart by their addresses. */
void http_set_client(struct http_exchange *x, uint64_t client);
/* Answer later. On OK close(ctx) will be called once, whatever happens, on an HTTP thread.
 * http_reply() right after it (a refused submission, say) is fine too. */
NODISCARD enum status http_defer(struct http_exchange *x, const struct http_async *async,
                                 void *ctx);
/* The argument of http_wake() for this exchange; after http_defer(). */
void *http_waker(struct http_exchange *x);
void http_wake(void *waker);

#endif
