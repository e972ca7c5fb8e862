/* fake_engine.h - a test double of engine/ without a model, which generates one letter per step.
 *
 * Tokens are bytes (0 to 255), 256 is <s>, 257 is </s>. Answers repeat the alphabet, "abcdef...",
 * or another text, until max_tokens, a stop string or a cancel. The template writes "role:
 * content\n" per message.
 *
 * Owns    its thread, and a reference to each request inside.
 * Thread  as engine.h; the settings below are atomics.
 * Errors  as engine.h.
 * Units   nanoseconds. */
#ifndef TARN_TESTS_FAKE_ENGINE_H
#define TARN_TESTS_FAKE_ENGINE_H

#include <stdatomic.h>

#include "engine/engine.h"

#define FAKE_N_VOCAB 258
#define FAKE_MAX_NUM_SEQS 64
#define FAKE_MAX_QUEUED 40
#define FAKE_BOS 256
#define FAKE_EOS 257
#define FAKE_N_HOST_BLOCKS 50
#define FAKE_N_DISK_BLOCKS 500

extern _Atomic uint64_t fake_step_ns;    /* pause before each token of a request */
extern _Atomic uint64_t fake_prefill_ns; /* pause before the first one */
extern atomic_uint fake_n_max;           /* most requests at once; one more is ERR_BUSY */
extern atomic_uint fake_usual_ms;        /* engine_usual_ttft_s() */
extern atomic_uint fake_n_inside;        /* requests that have not ended */
extern atomic_int fake_fail_at;          /* token at which a request fails; -1: never */
extern atomic_bool fake_uses_documents;  /* whether the template renders documents */
extern atomic_bool fake_failed;          /* the result of engine_failed() */
extern atomic_uint fake_clock_s;         /* unit in seconds of the time that the template writes at
                                           the start; 0: it writes none */
extern _Atomic(const char *) fake_text;  /* what answers repeat; the alphabet */
extern atomic_bool fake_is_stuck;        /* engine_cache_view() ends with ERR_TIMEOUT */
extern _Atomic uint64_t fake_view_ns;  /* duration of engine_cache_view(); 0 ends a running call */
extern atomic_uint fake_n_viewing;     /* threads inside engine_cache_view() */
extern atomic_uint fake_n_resets;      /* calls of engine_reset_cache() */
extern atomic_uint fake_n_erasures;    /* calls of engine_cache_erase() that found a span, which is
                                           one whose key begins with a byte below 20 */
extern atomic_uint fake_n_releases;    /* the same for engine_cache_release() */
extern atomic_bool fake_has_disk;      /* whether there is a disk tier */
extern atomic_bool fake_has_pool;      /* whether it belongs to a pool of instances */
extern atomic_bool fake_order_is_held; /* document_order_by_cache() waits while it is set */
extern atomic_uint fake_n_orders;      /* calls of document_order_by_cache() that have begun */
extern atomic_uint fake_n_ordered;     /* and ended */

struct engine *fake_engine_create(uint32_t max_model_len);

/* A request's properties as passed to engine_submit(). */
struct fake_submitted {
    uint64_t tenant, flow, session;
    int32_t priority;
    double slo_ttft_s, slo_tpot_s;
};
#define FAKE_N_SUBMITTED_MAX 16
/* Get the first requests submitted since the last call, in their order. Return their number. */
uint32_t fake_engine_submitted(struct engine *e, struct fake_submitted out[FAKE_N_SUBMITTED_MAX]);

#endif
