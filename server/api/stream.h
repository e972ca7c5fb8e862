/* stream.h - one answer's tokens to text, logprobs and ids, while the engine publishes them.
 *
 * The engine publishes tokens in the request, and with each token its verdict (engine/stopping.h):
 * which tokens and how many bytes are text. A choice counts the tokens that it has read, and
 * follows the verdict. Its bufs hold what was read and not yet sent: a streamed answer sends and
 * empties them, a whole answer lets them grow.
 *
 * Owns    its reference to the request, the detok, the bufs: choice_fini().
 * Thread  the HTTP thread of the exchange.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE.
 * Units   tokens. */
#ifndef TARN_SERVER_API_STREAM_H
#define TARN_SERVER_API_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "engine/text/reasoning.h"
#include "server/api/params.h"

struct citations;
struct server;
struct tool_answer;

/* Logprobs in the shape of completions are four lists; of chat, one. */
enum logprob_list { LP_CONTENT, LP_TOKENS = 0, LP_VALUES, LP_TOPS, LP_OFFSETS, LP_N };

struct choice {
    struct request *request;
    uint32_t index; /* of the request in the call */
    uint32_t place; /* of the answer in the response; CHOICE_LEFT_OUT */
    uint32_t prompt_index;
    struct detok detok;        /* knows no stop strings */
    struct buf held;           /* with stop strings: text that is not certain yet */
    uint64_t n_released;       /* bytes moved from held to text */
    bool has_detok;            /* without a tokenizer there is no text */
    uint32_t n_taken;          /* tokens read */
    enum finish_reason finish; /* FINISH_NONE until the last token was taken */
    bool began;                /* streaming: the first frame was written */
    bool ended;                /* streaming: the last frame was written */
    struct buf text;
    struct buf thoughts;                /* the reasoning before the text, with choice_reason() */
    uint64_t n_thought_tokens;          /* tokens of the reasoning so far, markers included */
    struct reasoning_parser *reasoning; /* NULL: there is none */
    struct buf token_ends;              /* of u64: bytes up to the end of each token's text, until
                                           the reasoning's end is known */
    uint64_t n_bytes;                   /* of text of the tokens read */
    struct buf said;                    /* with tools: text behind the reasoning, as `raw` */
    struct tool_answer *tools;   /* reads the text for calls; NULL: not wanted. Owned; set by the
                                  owner after choice_init() */
    struct buf raw;              /* with reasoning or tools: text that was not looked at yet */
    struct citations *citations; /* of the text; NULL: not wanted. Owned; set by the owner after
                                    choice_init() */
    struct buf ids;              /* "1,2,3", if wanted */
    struct buf lp[LP_N];         /* list members, separated by commas, if wanted */
    uint32_t n_tops;             /* alternatives written per token; set by the owner */
    bool tokens_as_ids;          /* logprobs have "token_id:5" for a token; set by the owner */
    struct buf ranked;           /* members of prompt_logprobs: of a prompt's first answer */
    uint32_t n_ranked;           /* prompt tokens written there */
    /* For text_offset: */
    uint64_t n_chars;          /* whole characters of all tokens so far */
    struct detok chars;        /* the answer's, stop strings included */
    struct detok prompt_chars; /* the echoed prompt's */
    /* Logprobs of the echoed prompt, set by the owner after choice_init(): */
    const struct request *scored; /* the request that has them; NULL: they are not wanted */
    const struct choice *first;   /* of the same prompt, whose request that is */
    const struct buf *echo;       /* the prompt's text */
    uint32_t n_echoed;            /* prompt tokens written */
    size_t n_echo_bytes[LP_N];    /* what all of them are of lp */
    size_t echo_at;               /* bytes of the text before the next one */
};

/* The place of an answer that is not among the n best of best_of. */
#define CHOICE_LEFT_OUT UINT32_MAX

/* Take over the reference to the request. */
void choice_init(struct choice *c, struct request *request, const struct tokenizer *tokenizer);
void choice_fini(struct choice *c);
/* The answer may have reasoning. */
NODISCARD enum status choice_reason(struct choice *c, const struct reasoning_format *format,
                                    enum reasoning_place place);

/* Read up to n_max more tokens. Answer the engine's wake-up first, so that the engine wakes the
 * connection again for anything published later. Logprobs of the prompt come first: in a stream one
 * call reads one frame of them and no token. */
NODISCARD enum status choice_take(struct choice *c, const struct server *srv,
                                  const struct params *p, enum params_kind kind, uint32_t n_max);
/* Whether logprobs of the echoed prompt are still to be written. */
bool choice_has_prompt_left(const struct choice *c);
/* Whether there is something to send. */
bool choice_has_delta(const struct choice *c);
/* Empty the bufs: their contents were sent. */
void choice_reset_delta(struct choice *c);

#endif
