/* response_read.h - the body of a Responses request as the body of a chat, and what its answer
 * repeats of it.
 *
 * Fields that both protocols have, and Tarn's own, are copied; the others are translated:
 *
 *   input, instructions, previous_response_id   messages
 *   text {format, verbosity}                    response_format, verbosity
 *   tools of type function, tool_choice         tools, tool_choice
 *   tools of type file_search                   retrieval, citations
 *   reasoning {effort}                          reasoning_effort
 *   max_output_tokens                           max_completion_tokens
 *   include, top_logprobs                       logprobs, top_logprobs
 *
 * Owns    struct response_ask: response_ask_fini().
 * Thread  one at a time.
 * Errors  ERR_INVALID, ERR_UNSUPPORTED, ERR_NOT_FOUND: words begin with the name of the field.
 * Units   none. */
#ifndef TARN_SERVER_API_RESPONSE_READ_H
#define TARN_SERVER_API_RESPONSE_READ_H

#include <stdbool.h>

#include "base/json.h"
#include "server/api/params.h"
#include "server/api/responses.h"

struct response_ask {
    struct response_turn *turn; /* with the request's items; not kept yet */
    struct json *body;          /* the request's, a reference */
    struct json *chat;          /* body of a chat; params point into it */
    struct json *file_search;   /* the tool; NULL: no search. Borrowed from body */
    struct buf query;           /* of the search */
    size_t n_instructions;      /* leading messages that truncation keeps: 0 or 1 */
    bool store, background, truncates;
    bool wants_logprobs, wants_results, wants_summary;
    const char *error_code; /* of an error; NULL: the default */
};

/* Read the body, which is referenced. owner: of previous responses. call_id: of the new response.
 * Call response_ask_fini() after errors too. */
NODISCARD enum status response_ask_read(struct response_ask *a, struct responses *responses,
                                        const char *owner, const char *id, const struct json *body,
                                        struct buf *why);
void response_ask_fini(struct response_ask *a);

/* Drop the oldest messages of the chat but those of the instructions: the first n_dropped behind
 * them, and more up to the next message of a user. False: that leaves no message. */
bool response_ask_drop(struct response_ask *a, const struct json *messages, size_t n_dropped);

/* Append what a response repeats of its request, from "background" to "truncation". */
NODISCARD enum status response_ask_write(const struct response_ask *a, const struct params *p,
                                         struct buf *out);

#endif
