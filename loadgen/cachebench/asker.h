/* asker.h - an engine in this process, and one request after another to it.
 *
 * Owns    the engine, until asker_close().
 * Thread  one; the engine has a thread of its own, and nobody polls while it works.
 * Errors  engine_open()'s and request_create()'s, with their words; ERR_INTERNAL when a request did
 *         not end as it should.
 * Units   nanoseconds, tokens. */
#ifndef TARN_LOADGEN_CACHEBENCH_ASKER_H
#define TARN_LOADGEN_CACHEBENCH_ASKER_H

#include "engine/engine.h"

struct asker;

NODISCARD enum status asker_open(struct asker **out, const struct engine_config *config,
                                 struct buf *why);
void asker_close(struct asker *a); /* NULL is fine */
struct engine *asker_engine(struct asker *a);

struct answer {
    uint64_t ttft_ns;                      /* from submission to the first token */
    uint32_t n_out;
    uint32_t n_cached;                     /* prompt tokens not computed */
    uint32_t n_cached_in[CACHE_N_TIERS];   /* of those, by where they lay */
};

/* Greedy, exactly n_out tokens; returns when the request has ended. n_span_ends may be 0. */
NODISCARD enum status asker_ask(struct asker *a, const uint32_t *ids, uint32_t n_ids,
                                const uint32_t *span_ends, uint32_t n_span_ends, uint32_t n_out,
                                struct answer *out, struct buf *why);

#endif
