/* responses.h - the responses that the server keeps for previous_response_id and GET.
 *
 * A response belongs to the tenant that made it; for others it does not exist. A turn is what a
 * response read and wrote, and points to the turn before it: a chain of responses keeps every text
 * once. The tenant that keeps most loses its least recently used response first. A turn lives as
 * long as a kept response of its chain, and counts towards the bound as long.
 *
 * Owns    kept responses and their turns; gone with the process.
 * Thread  any, locks itself. A turn is constant.
 * Errors  ERR_NOMEM; ERR_TOO_LARGE: the response alone exceeds the bound, and is not kept.
 * Units   bytes, responses. */
#ifndef TARN_SERVER_API_RESPONSES_H
#define TARN_SERVER_API_RESPONSES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

#define RESPONSE_ID_PREFIX "resp_"
#define RESPONSE_ID_HEX 32
#define RESPONSE_ID_BYTES (sizeof RESPONSE_ID_PREFIX + RESPONSE_ID_HEX)

struct responses;
struct holder;

/* Input and output of one response: items as in input_items, separated by commas. */
struct response_turn {
    char id[RESPONSE_ID_BYTES];     /* of the response */
    char root[RESPONSE_ID_BYTES];   /* of the chain's first response */
    struct response_turn *previous; /* a reference; NULL: the first one */
    struct buf input, output;
    atomic_bool is_final; /* false: the response is in progress, so `output` is not complete */
    /* inside */
    atomic_uint refs;
    struct responses *counted_by; /* NULL: not kept */
    struct holder *holder;        /* the same for one tenant */
    uint64_t n_counted;           /* bytes that count there */
};

/* Write a new id. */
void response_make_id(char id[RESPONSE_ID_BYTES]);

/* A turn without texts. Takes over the reference to previous (may be NULL) in every case. */
NODISCARD enum status response_turn_create(struct response_turn **out, const char *id,
                                           struct response_turn *previous);
struct response_turn *response_turn_ref(struct response_turn *t);
void response_turn_unref(struct response_turn *t); /* NULL is fine */

NODISCARD enum status responses_create(struct responses **out, uint32_t n_max, uint64_t bytes_max);
/* No turn is in use any more. NULL is fine. */
void responses_destroy(struct responses *r);

enum response_state {
    RESPONSE_FINAL,
    RESPONSE_RUNNING,  /* in the background; not forgotten while it runs */
    RESPONSE_STREAMING /* the same; its events are kept too */
};
/* Keep a response: its turn, of which a reference is taken, and its JSON, which is copied. */
NODISCARD enum status responses_keep(struct responses *r, const char *owner,
                                     struct response_turn *turn, const struct buf *json,
                                     enum response_state state);
/* The turn of a response, a reference; NULL: the owner has no such response. */
struct response_turn *responses_turn(struct responses *r, const char *owner, const char *id);
/* Replace the JSON of a response that runs; append events; end the response, when its turn is
 * final. A deleted response stays deleted. */
void responses_update(struct responses *r, const struct response_turn *turn,
                      const struct buf *json);
void responses_append(struct responses *r, const struct response_turn *turn,
                      const struct buf *events);
void responses_end(struct responses *r, const struct response_turn *turn);
/* False: there is no such response. */
bool responses_look(struct responses *r, const char *owner, const char *id,
                    enum response_state *state, bool *was_background);
/* Append the JSON of a response to *out. ERR_NOT_FOUND. */
NODISCARD enum status responses_get(struct responses *r, const char *owner, const char *id,
                                    struct buf *out);
/* Forget a response. False: the owner has no such response. */
bool responses_delete(struct responses *r, const char *owner, const char *id);

/* Follow the events of a response behind the number `after` (-1: all), or wait for its end only.
 * ERR_NOT_FOUND; ERR_UNSUPPORTED: its events are not kept. */
#define RESPONSE_END (-2)
struct response_follower;
NODISCARD enum status responses_follow(struct response_follower **out, struct responses *r,
                                       const char *owner, const char *id, int64_t after);
/* Call wake(arg) when there is more; it must not block. Also called at once. */
void response_follower_wake(struct response_follower *f, void (*wake)(void *arg), void *arg);
/* Nobody follows any more: the next call of _take() is over. From any thread. */
void response_follower_leave(struct response_follower *f);
/* Append what came since the last call, up to max bytes. *is_over: it was the last. */
NODISCARD enum status response_follower_take(struct response_follower *f, struct buf *out,
                                             size_t max, bool *is_over);
void response_follower_close(struct response_follower *f); /* NULL is fine */

/* For /metrics. */
void responses_count(struct responses *r, uint32_t *n, uint64_t *bytes);

#endif
