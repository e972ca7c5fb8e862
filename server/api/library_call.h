/* library_call.h - what the handlers of /v1/documents and /v1/preambles share: a request with its
 * caller, the library's parts, and errors.
 *
 * Owns    struct library_call: library_call_end().
 * Thread  work threads.
 * Errors  sent to the client as JSON.
 * Units   none. */
#ifndef TARN_SERVER_API_LIBRARY_CALL_H
#define TARN_SERVER_API_LIBRARY_CALL_H

#include "server/api/library.h"
#include "server/api/writer.h"

struct account;
struct http_exchange;

struct library_call {
    struct server *srv;
    struct http_exchange *x;
    struct account *account;
    struct library_parts parts;
    const char *id; /* in the path; "" without one */
    bool is_admin;
    struct buf body; /* of the answer */
    struct writer w; /* writes it */
    struct buf why;  /* for errors */
};

/* Open the library and check the id behind `prefix` in the path (NULL: there is none). False: the
 * error was answered. Call library_call_end() in both cases. */
bool library_call_begin(struct library_call *c, struct server *srv, struct http_exchange *x,
                        const char *prefix);
/* Name the flag that bounds the documents in the words of ERR_FULL. */
void library_name_bound(enum status s, struct buf *why);
/* Answer: with the written JSON if s is OK, else with the error in c->why. Once at most. */
void library_call_reply(struct library_call *c, enum status s);
void library_call_end(struct library_call *c);

/* Read the query's `public`: whether the public one is meant. *wants unchanged without it. */
NODISCARD enum status library_call_public(struct library_call *c, bool *wants);
/* ERR_FORBIDDEN unless the caller may change what is public. */
NODISCARD enum status library_call_check_admin(struct library_call *c);

#endif
