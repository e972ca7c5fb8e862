/* chain.h - the later turns of a conversation, from their generation until they are sent.
 *
 * A source generates all turns of a conversation one after another; each turn is due when the one
 * before it has ended.
 *
 * Owns    the turns not sent yet, and the answers that were kept.
 * Thread  one at a time.
 * Errors  ERR_NOMEM; errors of the source.
 * Units   turns. */
#ifndef TARN_LOADGEN_LOAD_CHAIN_H
#define TARN_LOADGEN_LOAD_CHAIN_H

#include "base/buf.h"
#include "clients/c/tarn_client.h"
#include "loadgen/load/request.h"

/* Where requests come from. ERR_NOT_FOUND: there are no more. */
struct load_source {
    enum status (*next)(void *arg, struct load_request *out);
    void *arg;
};

struct chain {
    struct load_request *turns; /* [n] turns[0] is the first that follows */
    uint32_t n, next;
    struct tarn_text *answers; /* [n_answers] by turn */
    uint32_t n_answers;
};

/* Generate all turns that follow the request `first`; *out is NULL when there are none. Turns that
 * will never be sent are generated too: the source's next request is then the same in every run. */
NODISCARD enum status chain_pull(struct chain **out, const struct load_request *first,
                                 const struct load_source *source);
void chain_free(struct chain *c); /* NULL is fine */
/* Keep the answer of a turn for the prompts of later turns. On OK the chain owns the bytes. */
NODISCARD enum status chain_keep_answer(struct chain *c, uint32_t turn, struct buf *text);

#endif
