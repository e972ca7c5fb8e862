/* scripts.h - prompts of documents, and answers that quote them, as ids.
 *
 * An answer has turns: own words, which are a piece of a text that is not in the prompt, then a
 * quote of 16 to 64 tokens from one of the prompt's documents. The share of quoted tokens is given.
 *
 * Owns    its arrays: scripts_fini().
 * Thread  one at a time; read-only after scripts_make().
 * Errors  ERR_INVALID, ERR_IO, ERR_NOMEM with words.
 * Units   ids. */
#ifndef TARN_LOADGEN_BENCH_DRAFT_SCRIPTS_H
#define TARN_LOADGEN_BENCH_DRAFT_SCRIPTS_H

#include "engine/text/tokenizer/tokenizer.h"
#include "loadgen/bench/draft/options.h"

#define SCRIPTS_N_MAX 64
#define SCRIPTS_N_OUT_MAX 4096
#define SCRIPTS_N_DOCUMENTS_MAX 16

struct script {
    struct buf prompt; /* ids */
    uint32_t answer[SCRIPTS_N_OUT_MAX];
};

struct scripts {
    struct script *v; /* [n] */
    uint32_t n;
};

/* Make o->batch scripts. */
NODISCARD enum status scripts_make(struct scripts *s, const struct tokenizer *t,
                                   const struct draftbench_options *o, struct buf *why);
void scripts_fini(struct scripts *s);

#endif
