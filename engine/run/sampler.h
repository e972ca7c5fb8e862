/* sampler.h - one row of logits to one token.
 *
 * Order of operations (as in vLLM): log-probabilities are those of the raw logits; then logit_bias,
 * min_tokens, penalties; greedy picks the largest (ties: lowest id); otherwise temperature, top_k,
 * min_p, top_p, and a draw with the n-th number of the request's own generator. So the token is a
 * function of the logits, the parameters, the seed and n alone (design P1).
 *
 * A NaN is a broken model's; it is never among the best, and has no share of a draw.
 *
 * Owns    sampler_state: one count per vocabulary entry, only where a penalty needs it.
 * Thread  one at a time per state and per scratch; rows may be sampled in parallel.
 * Errors  ERR_NOMEM.
 * Units   logits and log-probabilities in nats. */
#ifndef TARN_ENGINE_RUN_SAMPLER_H
#define TARN_ENGINE_RUN_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/run/sampling.h"
#include "kernels/params.h"

struct sampler_state {
    uint16_t *counts;   /* [V] times in the output; NULL without penalties */
    uint8_t *in_prompt; /* [V] bit set; NULL without a repetition penalty */
    uint32_t *seen;     /* [n_seen_max] each id that a penalty changes, once */
    uint32_t n_seen, n_seen_max;
};

/* prompt [n_prompt] ids feed the repetition penalty; at most n_out_max ids will be counted. */
NODISCARD enum status sampler_state_init(struct sampler_state *st, const struct sampling *sp,
                                         uint32_t n_vocab, const uint32_t *prompt,
                                         uint32_t n_prompt, uint32_t n_out_max);
void sampler_state_fini(struct sampler_state *st);
/* What the penalties look at, for a device: fills list [st->n_seen]. */
void sampler_state_list(const struct sampler_state *st, struct sample_seen *list);
/* An id was chosen. */
void sampler_state_count(struct sampler_state *st, uint32_t id);

struct sampler_candidate {
    float logit;
    uint32_t id;
};

struct sampler_row {
    const struct sampling *sampling;
    const struct sampler_state *state;
    uint32_t n;             /* index of the token in the output */
    const uint32_t *banned; /* [n_banned] ids that may not come (min_tokens) */
    uint32_t n_banned;
    const uint32_t *given; /* a token that is known already, as a prompt's are: only its
                              logprob is wanted; NULL: pick one */
    float *logits;         /* [V]; changed */
    uint32_t n_vocab;
    struct sampler_candidate *scratch; /* [V]; may be NULL with a given token */
    float *raw; /* [V] scratch; may be NULL unless want_logprob, and with a given
                   token */
};

/* top [sampling->n_logprobs] may be NULL when that is 0. */
void sampler_pick(const struct sampler_row *row, struct out_token *out, struct out_top *top);

#endif
