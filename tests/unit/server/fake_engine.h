/* fake_engine.h - a test double of engine/: no model, one letter per step.
 *
 * Tokens are bytes (0 to 255), 256 is <s>, 257 is </s>. Answers are "abcdef..." over and over,
 * until max_tokens, a stop string or a cancel. The template writes "role: content\n" per message.
 *
 * Owns    its thread, and a reference to each request inside.
 * Thread  as engine.h; the knobs are atomics.
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
extern atomic_uint fake_n_max;           /* requests inside; one more is ERR_BUSY */
extern atomic_uint fake_n_inside;
extern atomic_int fake_fail_at;         /* token at which a request fails; -1: never */
extern atomic_bool fake_uses_documents; /* what the template says */
extern atomic_bool fake_failed;         /* what engine_failed() says */
extern atomic_uint fake_clock_s;        /* the template begins with the time in units of so many
                                           seconds; 0: it does not */
extern atomic_bool fake_is_stuck;       /* engine_cache_view() waits in vain */
extern _Atomic uint64_t fake_view_ns;   /* how long it takes; 0 ends one that waits */
extern atomic_uint fake_n_viewing;      /* threads inside engine_cache_view() */
extern atomic_uint fake_n_resets;       /* calls of engine_reset_cache() */
extern atomic_uint fake_n_erasures;     /* of engine_cache_erase() that found a span: their first
                                           byte is below 20, as those of the first spans */
extern atomic_bool fake_has_disk;       /* a third tier */

struct engine *fake_engine_create(uint32_t max_model_len);

/* What engine_submit() was told of a request. */
struct fake_submitted {
    uint64_t tenant, session;
    int32_t priority;
};
#define FAKE_N_SUBMITTED_MAX 16
/* The first ones since the last call, in their order; returns how many. */
uint32_t fake_engine_submitted(struct engine *e, struct fake_submitted out[FAKE_N_SUBMITTED_MAX]);

#endif
