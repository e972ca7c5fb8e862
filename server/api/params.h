/* params.h - reads the parameters that chat and text completions share: JSON to typed values.
 *
 * Parameters that a request does not set come from the model's generation_config.json, as in vLLM.
 * Unsupported fields are refused by name. Fields that would not change a token (such as `user`) are
 * checked and have no effect. Unknown fields are ignored and collected (unknown_fields.h).
 *
 * Owns    the arrays of sampling, the tools and a reference of the grammar: params_fini(). Stop
 *         strings and the session are borrowed from the JSON document.
 * Thread  one at a time.
 * Errors  ERR_INVALID, ERR_UNSUPPORTED, ERR_NOT_FOUND (model), each with words that begin with the
 *         name of the field.
 * Units   tokens; seconds where it says so. */
#ifndef TARN_SERVER_API_PARAMS_H
#define TARN_SERVER_API_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "cache/cache.h"
#include "engine/request.h"
#include "server/api/tools.h"
#include "server/api/unknown_fields.h"

struct server;

#define PARAMS_N_MAX 128          /* answers per prompt */
#define PARAMS_N_REQUESTS_MAX 128 /* answers per call: best_of times the prompts */
/* Logprobs of echoed prompts per call: their tokens, times 1 + logprobs, times n. Each takes about
 * 30 bytes of JSON, so an answer has at most 16 MB, which an HTTP thread writes in less than a
 * second. */
#define PARAMS_N_PROMPT_LOGPROBS_MAX (1u << 19)

enum params_kind { PARAMS_CHAT, PARAMS_COMPLETION };

/* Longest session_id. */
#define SESSION_BYTES_MAX 256

/* Must not be moved once parsed: sampling and stopping point into it. */
struct params {
    struct sampling sampling; /* seed is that of choice 0 */
    struct stopping stopping;
    const char *model;       /* the served name that the client gave; the server's string, or */
    struct adapter *adapter; /* that of this adapter, a reference; NULL: the model alone */
    struct kv_scope scope; /* hash of cache_salt, all zero without one; call_serve() replaces it by
                              the tenant's scope, narrowed by this hash */
    uint64_t salt;         /* of cache_salt for KV events; 0: none */
    uint32_t cache_ttl_s;  /* time to keep the whole prompt's KV after the request's end, by all
                              fields of retention.h; 0: not set */
    const char *session;   /* [session_len] session_id; NULL: not set */
    size_t session_len;
    uint32_t n;       /* answers to return */
    uint32_t best_of; /* answers to generate, at least n; the n with the best mean logprob per
                         token are returned */
    int32_t priority;
    uint64_t flow;                   /* of router_read_headers(); 0: none */
    double slo_ttft_ms, slo_tpot_ms; /* targets; 0: none */
    bool stream;
    bool include_usage;
    bool continuous_usage;          /* usage so far in every frame */
    bool logprobs;                  /* n_tops alternatives beside the token's own */
    bool prompt_logprobs;           /* n_prompt_tops beside the token's own; no stream */
    uint32_t n_tops, n_prompt_tops; /* sampling.n_logprobs is the greater one */
    uint32_t n_truncated;           /* leave the last tokens of each prompt; 0: all */
    const char *request_id;         /* the client's id of the call; NULL: not set */
    bool hands_over;                /* kv_transfer_params ask that another instance go on */
    bool return_timings;
    bool names_request; /* the answer has `request_id` */
    bool return_token_ids;
    bool tokens_as_ids;            /* return_tokens_as_token_ids: of logprobs */
    bool echo;                     /* completions */
    bool add_special;              /* add_special_tokens: completions true, chat false */
    bool has_service_tier;         /* service_tier was set, so the answer contains it */
    struct unknown_fields unknown; /* also after an error */
    /* storage */
    uint32_t stop_ids[REQUEST_N_STOP_IDS_MAX];
    struct detok_stop stops[DETOK_N_STOPS_MAX];
    struct logit_bias *logit_bias;
    struct tools_use tools;
    const struct reasoning_format *reasoning; /* of the answers; NULL: they have none */
    bool include_reasoning;                   /* else it is left out */
    struct thought_rule thoughts;             /* their bound; `place` is that of the prompt */
    uint32_t *allowed;                        /* vocab_mask.h; NULL: every id */
    struct buf labels; /* of u32 [best_of]: the one id that each answer to a prompt may be, which
                          `allowed` becomes; empty: there are none */
    struct buf word_ends, word_ids; /* of sampling.rules */
    struct buf prediction;          /* ids */
    struct grammar *grammar;        /* the form of the answers; NULL: any text */
};

NODISCARD enum status params_parse(struct params *p, const struct server *srv,
                                   const struct json *body, enum params_kind kind, struct buf *why);
void params_fini(struct params *p);

/* Read the field "model". *name: the served name that it gives; the first one when it is absent.
 * *adapter: the adapter of that name, a reference, which owns *name then; or NULL. */
NODISCARD enum status params_get_model(const struct server *srv, const struct json *body,
                                       const char **name, struct adapter **adapter,
                                       struct buf *why);

#endif
