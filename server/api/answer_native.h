/* answer_native.h - the answer of POST /generate, in SGLang's shape: an object for each answer, with
 * the text, the ids and what is known about the request (meta_info). Each frame of a stream has the
 * whole text so far, as SGLang's have.
 *
 * Owns    struct native_state, which the request's reader makes: native_state_destroy().
 * Thread  the HTTP thread of the exchange.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE.
 * Units   tokens, nats, seconds. */
#ifndef TARN_SERVER_API_ANSWER_NATIVE_H
#define TARN_SERVER_API_ANSWER_NATIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "server/api/shape.h"

struct native_state {
    bool is_list;        /* the answer is a list: the request had a list of prompts, or n */
    bool names_tokens;   /* logprobs have the text of their tokens */
    int64_t prompt_from; /* logprobs of the prompt begin at this token; -1: there are none */
    struct buf *texts;   /* [n_texts] of a stream's answers, so far */
    uint32_t n_texts;
};

void native_state_destroy(void *state);

extern const struct shape answer_native;

#endif
