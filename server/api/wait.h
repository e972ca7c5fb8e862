/* wait.h - work that a call waits for between reading and submitting: a lookup, a retrieval.
 *
 * The work runs on another thread while the call's connection is suspended. Work and call share the
 * struct wait, which is the first member of whatever the work reads and writes. The client may
 * leave or the deadline may pass before the work ends: the call then drops its reference, and the
 * work ends on memory of its own.
 *
 * Owns    itself: the last reference frees it.
 * Thread  wait_resume(): any, once. job, resumed, free: set before the call waits. status, why:
 *         written by the work before wait_resume(), read by the call after wait_is_over().
 * Errors  none.
 * Units   none. */
#ifndef TARN_SERVER_API_WAIT_H
#define TARN_SERVER_API_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/buf.h"
#include "server/http/http.h"

struct call;
struct json;

struct wait {
    struct http_job job; /* the work; ends with wait_resume() */
    /* Take the work's result into the call. On the thread of the exchange, when status is OK. The
     * call may wait again then. */
    enum status (*resumed)(struct call *call, struct wait *w, struct buf *why);
    void (*free)(struct wait *w); /* the whole struct that w begins; wait_fini() first */
    const char *name;             /* for words: "documents_order" */
    const char *not_found;        /* code of an ERR_NOT_FOUND */
    bool makes_body;              /* the work makes `body`, and there is no resumed() */
    struct json *body;            /* a reference; the call is to be read from it */
    struct json *tools;           /* a reference: of the preamble in the body; NULL: none */

    enum status status;
    struct buf why;
    /* inside */
    void *waker;
    atomic_uint refs;
    atomic_bool is_over;
};

/* One reference, the caller's. The fields above `status` are the caller's to set. */
void wait_init(struct wait *w);
void wait_fini(struct wait *w);
void wait_unref(struct wait *w); /* NULL is fine */

/* Queue the job for the exchange, which is deferred. As http_run(). */
NODISCARD enum status wait_begin(struct wait *w, struct http_exchange *x);
/* The work is done: resume the call. Drops the work's reference. */
void wait_resume(struct wait *w, enum status s);
bool wait_is_over(const struct wait *w);
/* From the work: whether the call has ended, so that nobody needs the result. */
bool wait_is_left(const struct wait *w);

#endif
