/* stopping.h - which token ends an answer, and which part of the answer is text.
 *
 * The engine thread feeds every token of a sequence to the sequence's stop_watch, publishes the
 * verdict in the request before the token, and ends the sequence where the verdict says so. Threads
 * that write answers follow the published verdict and decide nothing.
 *
 * Rules, in this order:
 *   - an end-of-sequence id (unless ignore_eos), then a stop id, ends the answer with FINISH_STOP,
 *     but not among the first min_tokens tokens: the sampler's mask forbids these ids there. The id
 *     is no part of the text unless include_stop;
 *   - a stop string ends the answer with FINISH_STOP where it is complete; the text ends before it,
 *     with include_stop behind it. A stop string that ends within the first min_tokens tokens is
 *     text;
 *   - max_tokens ends the answer with FINISH_LENGTH.
 *
 * Owns    a watch: its detokenizer and its mask.
 * Thread  one at a time per watch.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE: as detokenize.h.
 * Units   tokens; bytes of UTF-8. */
#ifndef TARN_ENGINE_STOPPING_H
#define TARN_ENGINE_STOPPING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "engine/text/detokenize.h"

enum finish_reason {
    FINISH_NONE = 0,  /* still running */
    FINISH_STOP,      /* end-of-sequence token, stop string or stop id */
    FINISH_LENGTH,    /* max_tokens, or the model's context is full */
    FINISH_CANCELLED, /* the client left or the server was told to stop */
    FINISH_ERROR,     /* of this request only (promise P4) */
};
const char *finish_reason_name(enum finish_reason r); /* "stop", "length", "abort", "error" */

/* Stop rules of one request. */
struct stopping {
    uint32_t max_tokens; /* cut to what the context leaves; 0: stopping_is_prefill() */
    uint32_t min_tokens;
    bool ignore_eos;
    bool include_stop;                        /* include_stop_str_in_output */
    bool show_special;                        /* skip_special_tokens = false */
    uint32_t shown[DETOK_SHOWN_MAX], n_shown; /* special tokens that are text all the same */
    uint32_t n_stop_ids;
    const uint32_t *stop_ids; /* copied by request_create() */
    uint32_t n_stops;
    const struct detok_stop *stops; /* copied by request_create() */
};

/* Have a word be text, where it is a special token of the vocabulary. NULL or "": none. */
void stopping_show(struct stopping *s, const struct tokenizer *t, const char *word);

/* Whether the request only has its prompt's KV computed and committed. No token is generated, and
 * the request ends with FINISH_LENGTH. */
static inline bool stopping_is_prefill(const struct stopping *s)
{
    return s->max_tokens == 0;
}

/* Facts about the model that a watch reads. */
struct stop_model {
    const uint32_t *eos_ids; /* [n_eos_ids] */
    uint32_t n_eos_ids;
    uint32_t n_vocab;
    const struct tokenizer *tokenizer; /* NULL: there is no text, and stop strings are not met */
};

#define STOP_TEXT_ALL UINT64_MAX

/* The answer so far. */
struct stop_verdict {
    enum finish_reason finish; /* FINISH_NONE: the answer goes on */
    int32_t stop_id;           /* the stop id that ended it, or -1 */
    int32_t stop_string;       /* index of the stop string that ended it, or -1 */
    uint32_t n_text_ids;       /* leading tokens that are text */
    uint64_t n_text_bytes;     /* leading bytes of their text that are certain: none of them will
                                  become part of a stop string; STOP_TEXT_ALL: all bytes */
};

struct stop_watch {
    const struct stopping *rules;
    struct stop_model model;
    uint32_t *mask; /* vocab_mask.h: of the first min_tokens tokens; NULL: every id is allowed */
    bool reads_text;
    struct detok detok;
    struct buf piece;
    struct stop_verdict now;
};

/* rules and what `model` points to are borrowed for the life of the watch. text_continues: as
 * `continues` of detok_init(). */
NODISCARD enum status stop_watch_init(struct stop_watch *w, const struct stopping *rules,
                                      const struct stop_model *model, bool text_continues);
void stop_watch_fini(struct stop_watch *w); /* fine on a zeroed struct */

/* The ids that may come as token n of the answer, NULL: all. */
const uint32_t *stop_watch_mask(const struct stop_watch *w, uint32_t n);
/* Token n of the answer is `id`, n counted up from 0. The verdict is w->now. */
NODISCARD enum status stop_watch_feed(struct stop_watch *w, uint32_t n, uint32_t id);

#endif
