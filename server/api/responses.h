/* responses.h - the responses that the server keeps for previous_response_id and GET.
 *
 * A response belongs to the tenant that made it; for others it does not exist. What a response read
 * and wrote is a turn, which points to the turn before it: a chain of responses keeps every text
 * once. The least recently used responses are forgotten first. A turn lives as long as a kept
 * response of its chain, and counts towards the bound as long.
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

/* What one response read and wrote: items as in input_items, separated by commas. */
struct response_turn {
    char id[RESPONSE_ID_BYTES];     /* of the response */
    char root[RESPONSE_ID_BYTES];   /* of the chain's first response */
    struct response_turn *previous; /* a reference; NULL: the first one */
    struct buf input, output;
    atomic_bool is_final; /* false: the response is in progress, so `output` is not complete */
    /* inside */
    atomic_uint refs;
    struct responses *counted_by; /* NULL: not kept */
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

/* Keep a response: its turn, of which a reference is taken, and its JSON, which is copied. */
NODISCARD enum status responses_keep(struct responses *r, const char *owner,
                                     struct response_turn *turn, const struct buf *json);
/* The turn of a response, a reference; NULL: the owner has no such response. */
struct response_turn *responses_turn(struct responses *r, const char *owner, const char *id);
/* Append the JSON of a response to *out. ERR_NOT_FOUND. */
NODISCARD enum status responses_get(struct responses *r, const char *owner, const char *id,
                                    struct buf *out);
/* Forget a response. False: the owner has no such response. */
bool responses_delete(struct responses *r, const char *owner, const char *id);

/* For /metrics. */
void responses_count(struct responses *r, uint32_t *n, uint64_t *bytes);

#endif
