/* http_inner.h - declarations shared by http.c (the loop) and http_call.c (a call) only.
 *
 * Owns    see http.h.
 * Thread  the loop's.
 * Errors  see http.h.
 * Units   see http.h. */
#ifndef TARN_BASE_HTTP_INNER_H
#define TARN_BASE_HTTP_INNER_H

#include <curl/curl.h>
#include <stdatomic.h>

#include "base/http.h"
#include "base/http_timer.h"
#include "base/list.h"

#define NS_PER_MS 1000000ull
#define NS_PER_S 1000000000ull

struct http_loop {
    unsigned owner; /* its thread */
    CURLM *multi;
    int epoll_fd, timer_fd, stop_fd;
    atomic_bool stop;
    bool in_step;
    uint64_t now_ns;   /* the clock when it was last read */
    uint64_t curl_ns;  /* when libcurl asked to be called; UINT64_MAX: never */
    uint64_t armed_ns; /* setting of timer_fd; UINT64_MAX: not set */
    struct timer_heap timers;
    struct link calls, chores;
    uint32_t n_reusing_max;
    uint32_t n_idle; /* upper bound of the idle connections; at 0 libcurl is spared the search for
                        one */
    struct http_loop_stats stats;
};

struct http_call {
    struct link all, chore; /* in the lists of all calls, and of those with a chore */
    struct http_loop *loop;
    CURL *easy;
    struct curl_slist *headers;
    struct http_handlers handlers;
    void *arg;
    struct http_done done;
    struct buf head; /* header lines of the answer, each ends with a NUL */
    size_t n_header_bytes, header_bytes_max;
    uint64_t body_bytes_max;
    uint64_t total_ns, idle_ns; /* 0: no limit */
    uint64_t last_byte_ns;
    struct http_timer deadline;
    enum http_end verdict; /* reason of a refusal by our callbacks; OK: none */
    bool added, cancelled, ended, head_done;
    bool want_pause, is_paused;
    bool keeps; /* its connection is kept for reuse */
    char words[160];
    char error[CURL_ERROR_SIZE];
};

/* Functions of http_call.c that the loop calls. The first two may end the call and free `c`. */
void http_call_do_chore(struct http_call *c);
void http_call_finish(struct http_call *c, CURLcode code);
void http_call_free(struct http_call *c); /* does not call on_end */

#endif
