/* stream.h - one answer's tokens to text, logprobs and ids, as they come.
 *
 * The engine publishes tokens in the request; a choice remembers how far it has read. What was read
 * but not yet sent stands in its bufs: a streamed answer sends and empties them, a whole answer
 * lets them grow.
 *
 * Owns    its reference to the request, the detok, the bufs: choice_fini().
 * Thread  the HTTP thread of the exchange.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE.
 * Units   tokens. */
#ifndef TARN_SERVER_STREAM_H
#define TARN_SERVER_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "server/params.h"

struct server;

/* Logprobs in the shape of completions are four lists; of chat, one. */
enum logprob_list { LP_CONTENT, LP_TOKENS = 0, LP_VALUES, LP_TOPS, LP_OFFSETS, LP_N };

struct choice {
    struct request *request;
    uint32_t index;              /* of the answer in the response */
    uint32_t prompt_index;
    struct detok detok;
    bool has_detok;              /* without a tokenizer there is no text */
    uint32_t n_taken;            /* tokens read */
    enum finish_reason finish;   /* FINISH_NONE until the last token was taken */
    bool began;                  /* streaming: the first frame was written */
    bool ended;                  /* streaming: the last frame was written */
    struct buf text;
    struct buf ids;              /* "1,2,3", if wanted */
    struct buf lp[LP_N];         /* list members, separated by commas, if wanted */
    uint64_t n_chars;            /* characters of all tokens so far, for text_offset */
};

/* Takes over the reference. */
void choice_init(struct choice *c, struct request *request, const struct tokenizer *tokenizer);
void choice_fini(struct choice *c);

/* Read up to n_max more tokens. Answers the engine's wake-up first, so whatever is published
 * later wakes again. */
NODISCARD enum status choice_take(struct choice *c, const struct server *srv,
                                  const struct params *p, enum params_kind kind, uint32_t n_max);
/* Something to send. */
bool choice_has_delta(const struct choice *c);
/* It was sent. */
void choice_reset_delta(struct choice *c);

#endif
