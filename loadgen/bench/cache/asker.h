/* asker.h - an engine in this process, and requests to it: one after another, or some at once.
 *
 * Owns    the engine, until asker_close().
 * Thread  one; the engine has its own thread, and the caller does not poll while the engine works.
 * Errors  engine_open()'s and request_create()'s, with their words; ERR_INTERNAL when a request did
 *         not end as it should.
 * Units   nanoseconds, tokens. */
#ifndef TARN_LOADGEN_BENCH_CACHE_ASKER_H
#define TARN_LOADGEN_BENCH_CACHE_ASKER_H

#include "engine/engine.h"

struct asker;

NODISCARD enum status asker_open(struct asker **out, const struct engine_config *config,
                                 struct buf *why);
void asker_close(struct asker *a); /* NULL is fine */
struct engine *asker_engine(struct asker *a);

struct answer {
    uint64_t ttft_ns; /* from submission to the first token */
    uint32_t n_out;
    uint32_t n_cached;                   /* prompt tokens not computed */
    uint32_t n_cached_in[CACHE_N_TIERS]; /* of those, by where they lay */
};

struct ask {
    const uint32_t *ids; /* [n_ids] */
    uint32_t n_ids;
    const uint32_t *span_ends; /* [n_span_ends]; may be NULL when 0 */
    uint32_t n_span_ends;
    uint32_t n_out;
};

#define ASKER_N_MAX 64

/* Greedy, exactly n_out tokens each; all are submitted at once, n of them (at most ASKER_N_MAX).
 * Return when all have ended. answers [n] */
NODISCARD enum status asker_ask_all(struct asker *a, const struct ask *asks, uint32_t n,
                                    struct answer *answers, struct buf *why);
/* The same with one. */
NODISCARD enum status asker_ask(struct asker *a, const uint32_t *ids, uint32_t n_ids,
                                const uint32_t *span_ends, uint32_t n_span_ends, uint32_t n_out,
                                struct answer *out, struct buf *why);

/* Wait until no KV is in use or in transfer. *out: the cache's statistics at that time.
 * ERR_TIMEOUT, with words: not within two minutes. */
NODISCARD enum status asker_rest(struct asker *a, struct cache_stats *out, struct buf *why);

#endif
