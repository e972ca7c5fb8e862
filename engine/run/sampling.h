/* sampling.h - the parameters that choose a request's next token, and the record of a chosen token.
 *
 * Owns    nothing: request_create() copies the arrays.
 * Thread  plain data.
 * Errors  none.
 * Units   log-probabilities in nats. */
#ifndef TARN_ENGINE_RUN_SAMPLING_H
#define TARN_ENGINE_RUN_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/run/vocab_rules.h"

#define SAMPLING_N_LOGPROBS_MAX 20
#define SAMPLING_N_LOGIT_BIAS_MAX 1024

struct logit_bias {
    uint32_t id;
    float bias;
};

/* Parameters by which the next token is chosen. Zero temperature is greedy. */
struct sampling {
    float temperature;        /* 0 = greedy */
    float top_p;              /* (0, 1]; 1 = off */
    uint32_t top_k;           /* 0 = off */
    float min_p;              /* [0, 1]; 0 = off */
    float repetition_penalty; /* > 0; 1 = off; over prompt and output, as in vLLM */
    float presence_penalty;   /* over the output */
    float frequency_penalty;  /* over the output */
    uint64_t seed;            /* always set: drawn by the server when the client gives none */
    uint32_t n_logprobs;      /* top alternatives kept per token, at most SAMPLING_N_LOGPROBS_MAX */
    bool want_logprob;        /* keep the chosen token's logprob */
    bool want_prompt_logprobs; /* keep the logprob of each prompt token, with n_logprobs
                                  alternatives: the whole prompt is computed, cached or not */
    uint32_t n_logit_bias;
    const struct logit_bias *logit_bias; /* [n_logit_bias]; request_create() copies it */
    struct vocab_rules rules;            /* request_create() copies the arrays */
};

struct out_token {
    uint32_t id;
    float logprob; /* of the chosen token, if asked for */
};

struct out_top { /* n_logprobs of these per token, best first */
    uint32_t id;
    float logprob;
};

#endif
