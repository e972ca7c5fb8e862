/* pieces.h - a prompt as a chain of keys: what the light model of an instance needs of it.
 *
 * Each part is cut into pieces of at most `piece_tokens`, from its own beginning. The key of a
 * piece follows from the keys before it and the part's name, so equal keys mean equal prefixes, as
 * with the block keys of the real cache. Prompts that diverge inside of a piece share nothing of
 * it.
 *
 * Owns    its array: pieces_fini().
 * Thread  any.
 * Errors  ERR_NOMEM; ERR_TOO_LARGE as ids.h.
 * Units   tokens. */
#ifndef TARN_LOADGEN_SIM_PIECES_H
#define TARN_LOADGEN_SIM_PIECES_H

#include "loadgen/sim/ids.h"

struct piece {
    uint64_t key;
    uint32_t n_tokens;
};
struct pieces {
    struct piece *v; /* [n] */
    uint32_t n, n_tokens;
};

NODISCARD enum status pieces_make(struct pieces *out, const struct load_request *r,
                                  const struct sim_prompt_config *config, uint32_t piece_tokens);
void pieces_fini(struct pieces *p); /* fine when zeroed */
/* Append an answer called `name`. */
NODISCARD enum status pieces_extend(struct pieces *p, uint64_t name, uint32_t n_tokens,
                                    uint32_t piece_tokens);
/* A hash of the first n_tokens of the prompt, in whole parts. */
uint64_t pieces_beginning(const struct load_request *r, uint32_t n_tokens);

#endif
