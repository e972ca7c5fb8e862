/* engine_internal.h - the engine's state, shared by engine.c (lifecycle) and step.c (the loop).
 *
 * Owns    as engine.h.
 * Thread  fields are grouped by who may touch them.
 * Errors  as engine.h.
 * Units   as engine.h. */
#ifndef TARN_ENGINE_ENGINE_INTERNAL_H
#define TARN_ENGINE_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/ring.h"
#include "engine/run/batch.h"
#include "engine/run/cost_profile.h"
#include "engine/run/device_sampler.h"
#include "engine/engine.h"
#include "engine/run/forward.h"
#include "engine/lineup.h"
#include "engine/model/model.h"
#include "engine/run/sampler.h"
#include "engine/stopping.h"
#include "engine/model/weights.h"

/* What another thread asks of the cache (engine_ask.c). */
struct cache_question {
    struct engine_cache_view *view; /* to be filled; NULL: not asked for */
    const struct kv_key *erase;     /* to be erased first; NULL: nothing */
    uint32_t n_erased;
};

struct engine {
    /* Set by engine_open(), constant after. */
    struct engine_config config;
    struct engine_info info;
    struct model_config model;
    struct weights_config weights_config;
    struct weights weights;
    struct device *device;
    struct tokenizer *tokenizer;
    struct chat_template *chat_template;
    char *model_dir;
    uint8_t fingerprint[KV_FINGERPRINT_BYTES];
    uint32_t n_slots;
    uint64_t gpu_bytes_free_at_open; /* 0: no GPU */

    /* Any thread. */
    struct ring submitted; /* struct request *, one reference each */
    atomic_uint n_inside;  /* submitted and not finished */
    atomic_uint n_rejected;
    atomic_bool draining;
    atomic_bool stopping;
    atomic_bool failed;       /* engine_failed() */
    atomic_bool reset_wanted; /* engine_reset_cache() */
    atomic_bool is_asked;     /* engine_cache_view(), engine_cache_erase() */

    /* Under stats_lock. */
    pthread_mutex_t stats_lock;
    struct engine_stats shared;
    struct cache_question *question; /* NULL: nobody waits */
    pthread_cond_t answered;         /* on CLOCK_MONOTONIC */

    pthread_mutex_t ask_lock; /* one asks at a time */

    /* Engine thread. */
    pthread_t thread;
    bool thread_runs;
    struct cache *cache;
    struct forward *forward;
    struct lineup lineup;
    struct batch batch;
    uint32_t *free_slots; /* stack */
    uint32_t n_free_slots;
    uint32_t *live_slots;                  /* [n_slots - n_free_slots] in no order */
    void **intake;                         /* [n_slots] */
    struct device_sampler *device_sampler; /* NULL: tokens are picked on the host */
    uint32_t n_logits_max;                 /* rows of logits at once */
    struct sampler_candidate *candidates;  /* [max_num_seqs, V]; NULL with a device_sampler */
    float *raw_logits;                     /* the same */
    struct engine_stats live;
    struct cost_model cost;
    struct cost_profile_result profile;
    struct cost_model_subject cost_subject; /* of the file that the model is kept in */
    uint64_t n_prefills_learned;
    uint64_t computed_ns; /* when the step before had its tokens; 0: none just before */
};

/* What a request is told that a failed device ended, or that came too late. */
#define DEVICE_FAILED_WORDS "the device failed; this server is ending, try another one"

const uint8_t *engine_fingerprint(const struct engine *e); /* [KV_FINGERPRINT_BYTES] */
uint32_t engine_segment_tokens(const struct engine *e);

/* --- engine_cost.c --- */

/* T(cached, new, batch): measured, or kept from an earlier start. Without it the server goes on
 * with an estimate, which the first prefills scale. */
void engine_obtain_cost(struct engine *e, const struct kv_pool *pool);
/* What was learned since the start goes into the file for the next one. */
void engine_keep_cost(const struct engine *e);
/* Seconds to copy a token's KV between host and device memory; 0 where that cannot be measured. */
double engine_measure_copy(struct engine *e);

/* --- engine_ask.c --- */

/* On the engine thread, between two steps: forgets and tells what was asked for. True when that may
 * have begun writes to disk. */
bool engine_answer(struct engine *e);

/* --- pick.c --- */

/* A row of logits: the next token of the slot's sequence, or the logprob of the prompt token behind
 * position pos. */
#define PICK_NEXT UINT32_MAX
struct pick_row {
    uint32_t slot;
    uint32_t pos; /* PICK_NEXT: the next token */
};

struct pick_job {
    struct engine *e;
    float *logits;
    const struct pick_row *rows; /* [n] */
    struct out_token *tokens;    /* [n] */
};

/* Pick one token per row of logits, where the logits are. What a device has to do for it is
 * launched and pick_finish() waits for it; a host does it in pick_begin(). */
enum status pick_begin(const struct pick_job *job, uint32_t n);
enum status pick_finish(const struct pick_job *job);
/* True while a prompt has tokens that want a logprob and have none. */
bool prompt_is_to_score(const struct sequence *q);
/* Take the logprobs of the prompt tokens that the step just computed, for the requests that want
 * them. The next tokens are picked already: the logits are overwritten. *scored: there were any. */
enum status score_prompts(struct engine *e, bool *scored);

/* step.c: the engine thread's main function, arg = struct engine *. */
void *engine_loop(void *arg);
/* Publish a snapshot of the statistics. */
void engine_publish_stats(struct engine *e);

#endif
