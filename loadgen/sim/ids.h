/* ids.h - the token ids of a generated request, without a tokenizer.
 *
 * The id at a position of a part follows from the part's name and the position alone: equal parts
 * have equal ids, and share KV as in a live run. Spans end where the server ends them
 * (engine/text/spans.h): before the first document and behind each one.
 *
 * A part of real text without a length counts its words, times IDS_PER_WORD.
 *
 * Owns    the memory behind a prompt: sim_prompt_fini().
 * Thread  any.
 * Errors  ERR_NOMEM; ERR_TOO_LARGE for a prompt of more than SIM_PROMPT_TOKENS_MAX tokens.
 * Units   tokens. */
#ifndef TARN_LOADGEN_SIM_IDS_H
#define TARN_LOADGEN_SIM_IDS_H

#include "cache/cache.h"
#include "loadgen/load/request.h"

#define SIM_PROMPT_TOKENS_MAX (1u << 24)
#define IDS_PER_WORD 1.3

/* The id at a position of the part called `name`. */
uint32_t sim_id(uint64_t name, uint32_t position);

/* Name the answer of a turn: by its request alone when later turns contain made words in its place
 * (--history made), or by conversation and turn (real). */
uint64_t sim_answer_name(const struct load_request *r, uint32_t turn, bool real_history);

struct sim_prompt_config {
    uint64_t tenant; /* equal ones share KV */
    uint32_t segment_tokens;
    bool real_history; /* earlier answers are those that were generated */
};

/* Tokens of a part, and the name that its ids follow from. */
uint64_t sim_part_tokens(const struct part *p);
uint64_t sim_part_name(const struct load_request *r, const struct part *p,
                       const struct sim_prompt_config *config);

/* Make ids, span ends and keys, in one piece of memory. */
NODISCARD enum status sim_prompt_make(struct cache_prompt *out, const struct load_request *r,
                                      const struct sim_prompt_config *config);
void sim_prompt_fini(struct cache_prompt *p); /* also fine on a zeroed struct */

#endif
