/* request.h - what a client asked for, and the tokens that the engine publishes for it.
 *
 * Two threads share a request: the engine thread writes tokens, the submitting thread (an HTTP
 * thread) reads them. `out` has room for every token that the request may produce, so publishing a
 * token never blocks and never fails.
 *
 * Owns    its arrays; counted references: the submitter holds one, the engine one while it works
 *         on it. request_unref() frees at zero.
 * Thread  fields before "engine thread" are set before engine_submit() and constant after it;
 *         the atomics may be read by both.
 * Errors  request_create(): ERR_NOMEM, ERR_INVALID with words.
 * Units   times are CLOCK_MONOTONIC nanoseconds (base/clock.h); 0 = not yet. */
#ifndef TARN_ENGINE_REQUEST_H
#define TARN_ENGINE_REQUEST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "cache/cache.h"
#include "engine/grammar/grammar.h"
#include "engine/run/sampling.h"
#include "engine/sched/scheduler.h"
#include "engine/stopping.h"
#include "engine/thoughts.h"

#define REQUEST_ID_BYTES 64
#define REQUEST_N_SPANS_MAX 1024
#define REQUEST_N_STOP_IDS_MAX 32

#define CACHE_TTL_FOREVER UINT32_MAX

struct adapter;
struct engine;

/* The first n_tokens of a prompt, whose KV is held for ttl_s after the request's end. */
struct request_break {
    uint32_t n_tokens, ttl_s; /* ttl_s as cache_ttl_s */
};
#define REQUEST_N_BREAKS_MAX 4

struct request {
    /* Set before engine_submit(), constant after. */
    char id[REQUEST_ID_BYTES];
    int32_t priority;       /* lower is sooner; 0 is usual */
    enum sched_class class; /* stays SCHED_USUAL but for work of the server itself */
    uint64_t tenant;        /* equal for requests of one tenant */
    uint64_t flow;          /* requests that share the scheduler's turns; 0: the tenant's */
    uint64_t session;       /* equal for requests of one session; 0: none */
    struct sampling sampling;
    struct stopping stopping;
    struct cache_prompt prompt;    /* ids, span ends, keys: owned by the request */
    double slo_ttft_s, slo_tpot_s; /* targets in seconds; 0: none */
    uint32_t cache_ttl_s;          /* time to hold the prompt's KV after the end; 0: none;
                                      CACHE_TTL_FOREVER: until engine_cache_release() */
    uint64_t cache_bytes_max;      /* of all KV that requests of this tenant hold; 0: no bound */
    struct request_break breaks[REQUEST_N_BREAKS_MAX]; /* [n_breaks] ascending */
    uint32_t n_breaks;
    struct adapter *adapter;    /* a reference, set by request_adapt(); NULL: the model alone */
    struct grammar *grammar;    /* the form of the answer, a reference; NULL: any text */
    const uint32_t *prediction; /* [n_prediction] ids of an answer that the client expects: a source
                                   of guesses, which changes no token (request_predict()) */
    uint32_t n_prediction;
    const char *grammar_prefix;   /* text that the grammar has read before the answer: a constant */
    struct thought_rule thoughts; /* the bound on the answer's thoughts */
    bool text_continues;          /* generated text continues the prompt (completions) */
    void (*wake)(void *arg);      /* called by the engine thread after it published tokens or the
                                   end, at most once until request_poll(); must not block */
    void *wake_arg;
    bool wake_at_end; /* wake() for the end only: the submitter reads nothing before */

    /* Written by the engine thread, read by the submitter. */
    struct out_token *out;         /* [stopping.max_tokens] */
    struct out_top *out_top;       /* [stopping.max_tokens * n_logprobs]; NULL when 0 */
    struct out_token *prompt_out;  /* [prompt.n_ids] with want_prompt_logprobs, else NULL.
                                      Nothing precedes token 0: its logprob means nothing */
    struct out_top *prompt_top;    /* [prompt.n_ids * n_logprobs]; NULL when 0 */
    _Atomic uint32_t n_prompt_out; /* published entries of both; all of them before the first
                                      token, and before the end unless the end is an error */
    _Atomic uint32_t n_out;
    _Atomic int finish;      /* enum finish_reason */
    enum status error;       /* valid after finish == FINISH_ERROR */
    const char *error_words; /* constant text; may be NULL */
    int32_t stop_id;         /* the three as in struct stop_verdict, of the */
    int32_t stop_string;     /* tokens so far; written before n_out */
    _Atomic uint32_t n_text_ids;
    _Atomic uint64_t n_text_bytes;
    _Atomic uint32_t n_computed; /* of a request that is not usual: tokens with KV so far, the
                                    cached ones included */
    _Atomic uint32_t n_cached;   /* prompt tokens not computed again */
    _Atomic uint32_t n_cached_in[CACHE_N_TIERS]; /* of those, by the tier that held them */
    _Atomic uint32_t n_guessed, n_accepted;      /* tokens guessed and run; of those: right ones */
    uint32_t n_held;                  /* leading tokens of the prompt that the request's fields
                                          hold; written before `finish` */
    enum cache_hold_limit hold_limit; /* why fewer than asked; likewise */
    _Atomic uint64_t estimated_ttft_us, estimated_e2e_us; /* since t_submit; 0: not predicted yet.
                                                             Published before the first step */
    _Atomic uint64_t t_submit, t_first_step, t_finish;
    _Atomic uint64_t t_first_token; /* of a prefill: when the prompt was computed */

    /* Both. */
    atomic_bool cancel; /* set by request_cancel() */
    atomic_bool woken;  /* wake() was called and not yet answered by a poll */
    atomic_uint refs;

    /* Engine thread. */
    uint32_t *ids; /* the prompt's, then the generated ones */
};

/* Create a request; everything pointed to is copied. span_ends may be NULL. Hashes the block keys
 * on the caller's thread: the ids before n_public (0, or a span end) are shared by all tenants, the
 * ids behind it belong to `scope`. Cuts max_tokens to the context. ERR_INVALID: the prompt is
 * empty, is longer than the context, leaves no room for a token that is to be generated, or has an
 * id outside of the vocabulary. On OK *out has one reference, the caller's. */
NODISCARD enum status request_create(struct request **out, const struct engine *e,
                                     const uint32_t *ids, uint32_t n_ids, const uint32_t *span_ends,
                                     uint32_t n_span_ends, const struct kv_scope *scope,
                                     uint32_t n_public, const struct sampling *sampling,
                                     const struct stopping *stopping, struct buf *why);
/* Copy the ids of a predicted answer; before engine_submit(). ERR_INVALID: an id outside of the
 * vocabulary, ERR_NOMEM. */
NODISCARD enum status request_predict(struct request *r, const struct engine *e,
                                      const uint32_t *ids, uint32_t n, struct buf *why);
/* Have the request computed with an adapter, of which it takes a reference; before
 * engine_submit(). The KV of the whole prompt then belongs to a scope of the adapter's inside of
 * the request's scope: nothing of it is public. */
void request_adapt(struct request *r, const struct engine *e, struct adapter *adapter);
void request_ref(struct request *r);
void request_unref(struct request *r); /* NULL is fine */

/* Have the next token or end call wake() again. The submitter calls this BEFORE it reads n_out and
 * finish, so that nothing published in between is missed. */
void request_poll(struct request *r);
/* Any thread; idempotent. The engine releases all that the request holds before its next step
 * (promise P2). */
void request_cancel(struct request *r);

/* Token counts and times for usage and logs. */
uint32_t request_n_out(const struct request *r);            /* acquire */
enum finish_reason request_finish(const struct request *r); /* acquire */
/* Prompt tokens that the request computed and that its fields hold; after the end. */
uint32_t request_n_written(const struct request *r);

#endif
