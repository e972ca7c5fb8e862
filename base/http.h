/* http.h - outgoing HTTP/1.1: thousands of calls at once, driven by one thread.
 *
 * ONLY module that includes libcurl. A loop waits for sockets and timers and calls back; a call is
 * one request and its answer. Redirects are not followed, proxies of the environment are not
 * used, names are resolved once per loop.
 *
 * Owns    a loop owns its connections, calls and timers; a call is valid until its on_end returns.
 * Thread  a loop belongs to the thread that runs it; only http_loop_stop() may come from another
 *         thread or from a signal handler. Distinct loops are independent.
 * Errors  how a call ended is an enum http_end with words. Functions that start something say
 *         ERR_INVALID (url, header), ERR_NOMEM, ERR_IO; then no callback comes.
 * Units   _ns is CLOCK_MONOTONIC in nanoseconds, _ms a span in milliseconds, sizes in bytes.
 *
 * No callback is ever called from inside of a function declared here but http_loop_run(),
 * http_loop_step() and http_fetch(); in a callback every function is allowed but those three and
 * http_loop_destroy(). So callbacks need not expect to be entered twice. */
#ifndef TARN_BASE_HTTP_H
#define TARN_BASE_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/hist.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct http_loop;
struct http_call;
struct http_timer;

/* --- the loop --- */

struct http_loop_options {
    /* While so many calls run, a further one gets a fresh connection that is closed after it. 0:
     * 2048. libcurl looks through all connections when a call takes or leaves one that is kept:
     * with ten thousand that costs more than all else. */
    uint32_t n_reusing_max;
};

/* `options` may be NULL. On OK *out is the caller's: http_loop_destroy(). */
NODISCARD enum status http_loop_create(struct http_loop **out,
                                       const struct http_loop_options *options);
/* Calls that still run are dropped without on_end, timers without their function. NULL is fine. */
void http_loop_destroy(struct http_loop *loop);

/* Until http_loop_stop(), or until there is neither a call nor a timer. */
NODISCARD enum status http_loop_run(struct http_loop *loop);
/* One turn: waits at most max_wait_ns (UINT64_MAX: until something happens), then handles all that
 * is due. */
NODISCARD enum status http_loop_step(struct http_loop *loop, uint64_t max_wait_ns);
/* Makes http_loop_run() return soon; the next run goes on where this one ended. Any thread, and
 * async-signal-safe. */
void http_loop_stop(struct http_loop *loop);
/* The time at which the loop last woke up or called back: cheaper than the clock. */
uint64_t http_loop_now_ns(const struct http_loop *loop);

struct http_loop_stats {
    uint32_t n_calls; /* started and not ended */
    uint32_t n_calls_peak;
    uint64_t n_started, n_ended;
    uint64_t n_connections; /* opened since the stats were reset */
    uint64_t n_bytes_in;    /* of bodies */
    uint64_t n_turns;
    uint64_t busy_ns;     /* not asleep: near the wall time means that the loop is the limit */
    uint64_t turn_ns_max; /* longest time between two looks at the sockets */
    uint64_t lag_ns_max, lag_ns_sum, n_lags; /* how late timers ran */
    struct hist lag_s;                       /* the same in seconds; hist_quantile() */
};

void http_loop_stats(const struct http_loop *loop, struct http_loop_stats *out);
void http_loop_reset_stats(struct http_loop *loop); /* all but n_calls */

/* --- timers --- */

/* Calls fn(arg, due_ns) once at due_ns or as soon after as the loop can (in the order of due_ns,
 * then of starting). A time that has passed is fine. *out, which may be NULL, is valid until fn
 * is called or the timer is cancelled. */
NODISCARD enum status http_timer_start(struct http_timer **out, struct http_loop *loop,
                                       uint64_t due_ns, void (*fn)(void *arg, uint64_t due_ns),
                                       void *arg);
void http_timer_cancel(struct http_loop *loop, struct http_timer *timer); /* NULL is fine */

/* --- calls --- */

/* Whatever is 0 or NULL has the default that is named. */
struct http_request {
    const char *method;         /* GET without a body, POST with one */
    const char *url;            /* http:// or https:// */
    const char *unix_path;      /* connect to this Unix socket; the url still names the Host */
    const char *api_key;        /* sent as `Authorization: Bearer KEY` */
    const char *const *headers; /* [n_headers] "Name: value"; "Name:" removes a default one */
    size_t n_headers;
    const void *body; /* [body_len] borrowed until on_end; all else is copied */
    size_t body_len;
    const char *content_type; /* of the body; application/json */

    const char *ca_file;   /* PEM; the system's authorities */
    bool tls_no_verify;    /* accept any certificate: for tests */
    bool fresh_connection; /* open one, and close it at the end */

    uint32_t connect_timeout_ms; /* until connected, TLS included; 10000 */
    uint32_t total_timeout_ms;   /* start to end; none */
    uint32_t idle_timeout_ms;    /* without a byte from the server, once connected; none. A paused
                                  * call is not idle. */
    size_t header_bytes_max;     /* 64 KB */
    size_t body_bytes_max;       /* unlimited: on_body bounds what it keeps */
};

enum http_end {
    HTTP_END_OK,      /* an answer came whole, whatever its status */
    HTTP_END_INVALID, /* libcurl refuses what was asked */
    HTTP_END_NOMEM,
    HTTP_END_CONNECT, /* no such host, refused, no descriptor left */
    HTTP_END_TLS,
    HTTP_END_RESET,     /* the connection broke */
    HTTP_END_CLOSED,    /* the peer closed it in order, but before its answer was whole */
    HTTP_END_TIMEOUT,   /* which one, the words say */
    HTTP_END_PROTOCOL,  /* what came is no HTTP/1.1 */
    HTTP_END_TOO_LARGE, /* over header_bytes_max or body_bytes_max */
    HTTP_END_CANCELLED, /* http_call_cancel() */
    HTTP_END_INTERNAL,
    HTTP_END_COUNT
};

/* "ok", "connect", ...: one word for logs and reports. Never NULL. */
const char *http_end_name(enum http_end e);

struct http_done {
    enum http_end end;
    int status;          /* of the answer; 0: none came */
    const char *message; /* for a human; "" when OK. Valid during on_end. */
    uint64_t start_ns;   /* http_call_start() */
    uint64_t ready_ns;   /* connected, the request goes out; 0: never came so far */
    uint64_t head_ns;    /* end of the answer's headers; 0: never */
    uint64_t end_ns;
    uint64_t n_body_bytes;
    bool reused; /* an older connection carried it */
};

/* Each may be NULL. on_head at most once, on_body only after it, on_end exactly once and last. */
struct http_handlers {
    /* The headers are there: http_call_header(). Interim answers (1xx) are skipped. */
    void (*on_head)(void *arg, struct http_call *call, int status, uint64_t time_ns);
    /* time_ns: the clock right before these bytes were read from the socket, so never before
     * they arrived, and later by at most what the loop did since it woke up. */
    void (*on_body)(void *arg, struct http_call *call, const void *bytes, size_t n,
                    uint64_t time_ns);
    void (*on_end)(void *arg, struct http_call *call, const struct http_done *done);
};

/* On OK *out, which may be NULL, is valid until on_end returns. `handlers` is copied. */
NODISCARD enum status http_call_start(struct http_call **out, struct http_loop *loop,
                                      const struct http_request *request,
                                      const struct http_handlers *handlers, void *arg,
                                      struct buf *why /* may be NULL */);
/* Hang up. on_end comes soon, with HTTP_END_CANCELLED, and no other callback before it. */
void http_call_cancel(struct http_call *call);
/* A paused call reads nothing from its socket, so that the peer's writes stall in the end; what
 * was read already is kept back (at most about 32 KB). */
void http_call_pause(struct http_call *call, bool paused);
/* A header of the answer, from on_head on; any case; NULL when absent. Of several the last. */
const char *http_call_header(const struct http_call *call, const char *name);
struct http_loop *http_call_loop(const struct http_call *call);

/* --- one call, waiting for it --- */

struct http_answer {
    enum http_end end;
    int status;
    struct buf body; /* NUL-terminated beyond its length */
    char message[256];
};

/* Runs `request` in a loop of its own. OK whenever an answer came whole, whatever its status; else
 * ERR_TIMEOUT, ERR_TOO_LARGE, ERR_NOMEM, ERR_INVALID, ERR_IO with `end` and `message` set. Without
 * body_bytes_max at most 64 MB are taken. http_answer_fini() in any case. */
NODISCARD enum status http_fetch(struct http_answer *out, const struct http_request *request);
NODISCARD enum status http_get(struct http_answer *out, const char *url);
NODISCARD enum status http_post(struct http_answer *out, const char *url, const void *body,
                                size_t n); /* JSON */
void http_answer_fini(struct http_answer *a);

/* Raises the soft limit on open descriptors to the hard one; gives what holds then. */
uint64_t http_raise_descriptor_limit(void);

#ifdef __cplusplus
}
#endif
#endif
