/* params_vocab.h - reads the parameters that name tokens or words: logit_bias, allowed_token_ids,
 * bad_words and the bound on thoughts, whose end marker is forced.
 *
 * A bad word is forbidden as vLLM does: by the ids of the word, and by the ids of the word behind a
 * space. Other tokens that spell the same text are not.
 *
 * Owns    arrays of struct params: params_fini().
 * Thread  one at a time.
 * Errors  as params.h.
 * Units   ids; bytes. */
#ifndef TARN_SERVER_API_PARAMS_VOCAB_H
#define TARN_SERVER_API_PARAMS_VOCAB_H

#include "server/api/params.h"

#define BAD_WORD_BYTES_MAX 1024

/* Have answer k to each prompt be label k alone (params->labels), where there are labels. */
void params_allow_label(struct params *p, const struct server *srv, uint32_t k);
NODISCARD enum status params_read_vocab(struct params *p, const struct server *srv,
                                        const struct json *body, struct buf *why);
/* thinking_token_budget, also named thinking_budget. Without effect where p->reasoning is NULL. */
NODISCARD enum status params_read_thoughts(struct params *p, const struct server *srv,
                                           const struct json *body, struct buf *why);
/* Refuse rules that leave no id for an answer's first token, once the stopping rules are read. */
NODISCARD enum status params_check_vocab(const struct params *p, const struct server *srv,
                                         struct buf *why);

#endif
