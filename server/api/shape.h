/* shape.h - the form in which an endpoint answers: whole, as frames of a stream, as an error.
 *
 * A call (call.h) generates; its shape writes what was generated. Each protocol is one table.
 *
 * Owns    call->shape_state, where a shape has one: its destroy().
 * Thread  the HTTP thread of the exchange.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE.
 * Units   none. */
#ifndef TARN_SERVER_API_SHAPE_H
#define TARN_SERVER_API_SHAPE_H

#include "base/buf.h"
#include "server/api/params.h"
#include "server/http/http.h"

struct call;
struct choice;
struct http_exchange;

/* Calls that go on without their connection (background.h). */
struct shape_background {
    /* The call was submitted: keep what clients ask for later, and answer this client: a reply, or
     * with call->params.stream a stream, which follow() fills. ERR_TOO_LARGE, ERR_NOMEM. */
    enum status (*accept)(struct call *call, struct http_exchange *x);
    /* As fill() of struct http_async, for the client that made the call. */
    enum http_next (*follow)(struct call *call, struct buf *out);
    void (*left)(struct call *call); /* the client's exchange is over */
    /* Take the bytes that the call wrote in one turn; background.h's thread calls, as all below. */
    void (*written)(struct call *call, const struct buf *out, bool is_last);
};

struct shape {
    const char *name; /* in log lines */
    const char *id_prefix;
    enum params_kind kind; /* which parameters and logprobs */
    /* The client may name the call, and an aborted answer ends with what the answer has. */
    bool takes_id;
    const char *keep_alive; /* a frame that says nothing */

    /* The whole answer; every choice has finished. */
    enum status (*whole)(struct call *call, struct buf *out);

    /* A stream. open() is called once the choices exist; it may write the beginning of every frame
     * into call->frame_head. Then for each choice begin(), any number of delta(), end(); and once
     * finish(), or error() instead of all that was left. */
    enum status (*open)(struct call *call);
    enum status (*begin)(struct call *call, const struct choice *c, struct buf *out);
    /* The contents of the choice's bufs (choice_has_delta()). */
    enum status (*delta)(struct call *call, const struct choice *c, struct buf *out);
    enum status (*end)(struct call *call, const struct choice *c, struct buf *out);
    enum status (*finish)(struct call *call, struct buf *out);
    enum status (*error)(struct call *call, enum status s, const char *words, struct buf *out);

    /* The answer of call_render(): what the prompts are. */
    enum status (*prompts)(const struct call *call, struct buf *out);

    const struct shape_background *background; /* NULL: the protocol has no such calls */
    void (*destroy)(void *state);              /* NULL: the shape has no state */
};

#endif
