/* call.h - one HTTP call that generates: its answers, from the body to the last byte.
 *
 * Chat and text completions differ in how the prompt is made (api_*.c) and in the shape of the
 * JSON (shape.h); everything else is here. A call goes through three states:
 *
 *   CALL_READ       the body is being read into params and prompts
 *   CALL_WAITING    optional: the prompts become final when work on another thread ends (wait.h).
 *                   Meanwhile the connection is suspended. At the deadline
 *                   (server.wait_timeout_ns) the call answers 503. If the client leaves, the call
 *                   ends, and nothing is submitted
 *   CALL_SUBMITTED  the engine has the requests; answers are written as tokens come. A call that
 *                   renders answers instead, and is over
 *
 * Owns    its prompts, choices and parameters; freed when the exchange closes, or later when the
 *         call goes on in the background.
 * Thread  the thread that has the exchange; gone() of http.h only sets flags.
 * Errors  answered to the client as JSON; none is returned.
 * Units   Unix seconds, tokens. */
#ifndef TARN_SERVER_API_CALL_H
#define TARN_SERVER_API_CALL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/http/http.h"
#include "server/api/params.h"
#include "server/api/prompt.h"
#include "server/api/shape.h"
#include "server/api/stream.h"

struct server;
struct speculation;
struct wait;

enum call_state { CALL_READ, CALL_WAITING, CALL_SUBMITTED };

/* The part of an answer about the search for documents. */
struct retrieval_report {
    const char *mode; /* "lexical", "vector", "hybrid"; NULL: there was no search */
    const char *order;
    uint32_t n_found, n_stages;
    double ms, embedding_ms;
    const char *speculation; /* outcome: "none", "confirmed", "dropped" */
};

#define CALL_ID_BYTES (HTTP_ID_BYTES + 16)

struct call;
/* Fill params and prompts from the body: see call_serve(). */
typedef enum status call_read_fn(struct call *call, const struct json *body, struct buf *why);

struct call {
    struct server *srv;
    atomic_uint refs;        /* the exchange's, and that of background.h */
    struct account *account; /* caller_account(), a reference */
    _Atomic int state;       /* enum call_state */
    atomic_bool is_gone;     /* the client left, or the server ends */
    struct wait *wait;       /* a reference: call_wait_for(); NULL: nothing to wait for */
    uint64_t wait_until_ns;
    const struct json
        *preamble_tools; /* while read() reads the body with a preamble; may be NULL */
    const struct shape *shape;
    call_read_fn *read;
    struct json *made;      /* the body that read() made of the client's; NULL: none. A
                               reference, since params point into it */
    void *shape_state;      /* the shape's own; NULL: none */
    bool renders;           /* answers its prompts instead of submitting them: render.h */
    bool wants_found_texts; /* the search keeps the texts of what it found */
    const char *error_code; /* of an error of read(); NULL: the default */
    /* Set by read(): go on without the connection once the engine has the requests. Then the
     * exchange only sees in_background, which never changes back. */
    bool wants_background;
    atomic_bool in_background;
    atomic_bool is_cancelled; /* by background_cancel() */
    atomic_bool is_aborted;   /* by running_abort() */
    bool is_running;          /* running.h owns this and the two below */
    struct call *next_running, *prev_running;
    struct params params;
    char id[CALL_ID_BYTES];
    char http_id[HTTP_ID_BYTES]; /* the exchange's */
    int64_t created_s;
    uint32_t n_prompts;
    struct prompt *prompts; /* [n_prompts]; the ids are given to the requests, the text stays */
    uint32_t n_choices;
    struct choice *choices; /* [n_choices], prompt by prompt */
    struct buf frame_head;  /* streaming: what every frame begins with */
    struct retrieval_report retrieval;
    struct speculation *speculation; /* of the search; NULL: none */
};

/* Serve one POST: parse the body, have `read` fill params and prompts from it (words in `why`),
 * wait where read() called call_wait_for(), submit, and write the answer; or answer with the error.
 * The body is valid during read(); strings of params point into it, so a wait that read() begins
 * holds a reference to the body. read() runs again with the body that such a wait makes. */
void call_serve(struct server *srv, struct http_exchange *x, const struct shape *shape,
                call_read_fn *read);
/* The same up to submitting: answer what the prompts are. */
void call_render(struct server *srv, struct http_exchange *x, const struct shape *shape,
                 call_read_fn *read);

/* For background.h: write what was published since the last call; the number of tokens taken so
 * far; have the engine end the requests, from any thread. */
enum http_next call_fill(struct call *call, struct buf *out);
uint32_t call_n_taken(const struct call *call);
void call_cancel(struct call *call);
/* A submitted call is over: charge its account, count it, log it. status: the HTTP answer's. */
void call_end(const struct call *call, int status);
void call_unref(struct call *call); /* NULL is fine */

/* From read() only: submit when w is over, with what w->resumed() makes of the prompts. Takes over
 * the reference. */
void call_wait_for(struct call *call, struct wait *w);

#endif
