/* http_check.h - what RFC 9112 forbids in the head of a request and the HTTP library lets pass.
 *
 * libmicrohttpd 0.9.75 (MHD) takes the first of two Content-Length fields, joins a folded line to
 * the field's *name*, ends names and values at a NUL, and keeps the blanks before a colon as part
 * of the name. Between a proxy and us, each of them lets a client hide one request in another. All
 * of it shows where MHD leaves the pieces: it cuts the head in place, so names and values must lie
 * one behind the other without a gap. Whatever lies differently is refused, on every request of a
 * connection, encrypted or not, before its body is read. Newer versions of MHD check by themselves
 * when told to (http_check_strictness()); the rest is checked here for them too.
 *
 * MHD refuses two things before the handler's first call: a Content-Length that is no number, and
 * cookies that are too many. 0.9.75 then goes on as if nothing had happened, and answers twice. The
 * only sign is that it logs. The head that it is about is the one that has begun on this thread, is
 * complete, and has not ended: http_check_refused().
 *
 * Owns    nothing; heads are linked to each other between http_head_begin() and http_head_end().
 * Thread  the HTTP thread of the connection.
 * Errors  as words for the client, and an HTTP status.
 * Units   bytes. */
#ifndef TARN_SERVER_HTTP_HTTP_CHECK_H
#define TARN_SERVER_HTTP_HTTP_CHECK_H

#include <stdbool.h>
#include <stddef.h>

struct MHD_Connection;

struct http_head {
    struct MHD_Connection *connection;
    void *owner;
    const char *target; /* where the request target began; MHD has changed it since */
    size_t n_target;
    size_t n_origin; /* "http://host:port" in front of the path; 0 for most */
    const char *method, *version;
    const char *fault;             /* of the target; NULL: none */
    struct http_head *next, *prev; /* those that have begun on this thread */
};

/* The first line was read; `target` as it was sent. */
void http_head_begin(struct http_head *head, struct MHD_Connection *connection, const char *target,
                     void *owner);
/* There are so many query arguments that MHD would run out of memory for them, which it too answers
 * twice. Right after http_head_begin(). */
bool http_head_is_too_long(const struct http_head *head);
/* End the check: the handler has the head, or the connection ended. Again does nothing. */
void http_head_end(struct http_head *head);

/* All of it was read; method and version are set. NULL: fine; else what is wrong, and *status is
 * the answer's. */
const char *http_check_head(const struct http_head *head, int *status);
/* The head that MHD is refusing on this thread; NULL: none. Words and *status as above. */
struct http_head *http_check_refused(const char **words, int *status);
/* The value of MHD_OPTION_STRICT_FOR_CLIENT for the library that we run with. */
int http_check_strictness(void);

#endif
