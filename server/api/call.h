/* call.h - one HTTP call that generates: its answers, from submission to the last byte.
 *
 * Chat and text completions differ in how the prompt is made (api_*.c) and in the shape of the
 * JSON (answer.h); everything else is here.
 *
 * Owns    its prompts, choices and parameters; one block freed when the exchange closes.
 * Thread  the HTTP thread of the exchange; gone() of http.h only sets cancel flags.
 * Errors  answered to the client as JSON; none is returned.
 * Units   Unix seconds, tokens. */
#ifndef TARN_SERVER_API_CALL_H
#define TARN_SERVER_API_CALL_H

#include <stdbool.h>
#include <stdint.h>

#include "server/http/http.h"
#include "server/api/params.h"
#include "server/api/prompt.h"
#include "server/api/stream.h"

struct server;

#define CALL_ID_BYTES (HTTP_ID_BYTES + 16)

struct call {
    struct server *srv;
    struct account *account; /* who asks; NULL when the key was taken away a moment ago */
    enum params_kind kind;
    struct params params;
    char id[CALL_ID_BYTES];
    const char *http_id; /* the exchange's */
    int64_t created_s;
    uint32_t n_prompts;
    struct prompt *prompts; /* [n_prompts]; the ids are given to the requests, the text stays */
    uint32_t n_choices;
    struct choice *choices; /* [n_choices], prompt by prompt */
    struct buf frame_head;  /* streaming: what every frame begins with */
};

/* Serve one POST: read the body, have `read` fill params and prompts from it (words in `why`),
 * submit, and answer when it is done; or answer with the error. */
void call_serve(struct server *srv, struct http_exchange *x, enum params_kind kind,
                enum status (*read)(struct call *call, const struct json *body, struct buf *why));

#endif
