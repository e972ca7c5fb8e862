/* http_check.h - refuses request heads that RFC 9112 forbids and libmicrohttpd (MHD) accepts.
 *
 * MHD 0.9.75 uses the first of two Content-Length fields, joins a folded line to the field's
 * *name*, ends names and values at a NUL, and keeps blanks before a colon as part of the name.
 * Behind a proxy, each of these lets a client hide one request inside another (request smuggling).
 * MHD splits the head in place, so in a well-formed head the names and values follow each other in
 * memory without gaps. Any other layout is refused, for every request of a connection, encrypted or
 * not, before its body is read. Newer versions of MHD make these checks themselves when told to
 * (http_check_strictness()); their layout is not known here and is not checked, everything else is.
 *
 * MHD itself refuses two heads before it calls the handler: a Content-Length that is not a number,
 * and too many cookies. MHD 0.9.75 then continues to process the request and answers it twice. The
 * only sign is a log message, which does not name the request: http_check_refused() finds it, as
 * the head of this thread that is complete and was not given to the handler yet.
 *
 * Owns    nothing; heads are linked to each other between http_head_begin() and http_head_end().
 * Thread  the HTTP thread of the connection.
 * Errors  words for the client, and an HTTP status.
 * Units   bytes. */
#ifndef TARN_SERVER_HTTP_HTTP_CHECK_H
#define TARN_SERVER_HTTP_HTTP_CHECK_H

#include <stdbool.h>
#include <stddef.h>

struct MHD_Connection;

struct http_head {
    struct MHD_Connection *connection;
    void *owner;
    const char *target; /* start of the request target; MHD has since changed the bytes */
    size_t n_target;
    size_t n_origin; /* length of a leading "http://host:port"; 0 for most targets */
    const char *method, *version;
    const char *fault;             /* error in the target; NULL: none */
    struct http_head *next, *prev; /* in the list of begun heads of this thread */
};

/* Begin a head after its first line was read. `target`: as sent by the client. */
void http_head_begin(struct http_head *head, struct MHD_Connection *connection, const char *target,
                     void *owner);
/* Whether there are more query arguments than fit into MHD's memory: MHD answers such requests
 * twice as well. Call it right after http_head_begin(). */
bool http_head_is_too_long(const struct http_head *head);
/* Remove the head from the list: the handler was called, or the connection ended. A second call
 * does nothing. */
void http_head_end(struct http_head *head);

/* Check a complete head whose method and version are set. NULL: it is well-formed; otherwise the
 * error message, and *status is the HTTP status. */
const char *http_check_head(const struct http_head *head, int *status);
/* The head that MHD is refusing on this thread; NULL: none. *words and *status as above. */
struct http_head *http_check_refused(const char **words, int *status);
/* The value of MHD_OPTION_STRICT_FOR_CLIENT for the version of MHD in use. */
int http_check_strictness(void);

#endif
