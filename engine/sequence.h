/* sequence.h - a sequence inside the engine: one record per slot, and the home of each fact.
 *
 *   fact                                        home
 *   ids known and computed; waits or runs       the scheduler: scheduler_seq()
 *   block table, keys of blocks, cached KV      kv: cache/cache.h
 *   ids, limits, what a client may read         req: request.h
 *   whether the answer ends, and what is text   stop: stopping.h
 *
 * The lineup owns the records and the first group of fields; the engine owns the second group. The
 * simulator runs the lineup without requests and leaves the second group zero.
 *
 * Owns    as its fields' modules say.
 * Thread  the engine thread.
 * Errors  none.
 * Units   tokens, nanoseconds. */
#ifndef TARN_ENGINE_SEQUENCE_H
#define TARN_ENGINE_SEQUENCE_H

#include "cache/cache.h"
#include "engine/form.h"
#include "engine/request.h"
#include "engine/run/lookup.h"
#include "engine/run/sampler.h"
#include "engine/sched/drafting.h"
#include "engine/sched/estimate.h"

struct sequence {
    /* The lineup's. */
    struct cache_seq *kv; /* NULL: the slot is free */
    enum sched_class class;
    uint64_t session;
    uint64_t wanted_ns; /* since when only a read from disk holds the sequence up; 0: none does */
    uint32_t n_cached;  /* tokens found when it was admitted for the first time */
    uint32_t n_cached_in[CACHE_N_TIERS];

    /* The engine's. */
    struct request *req;
    uint32_t live_at; /* index in engine.live_slots */
    struct stop_watch stop;
    struct form form;
    struct sampler_state sampler;
    uint64_t t_last_token;
    struct estimate estimate;
    uint64_t contest_id;      /* of contest_arrived() */
    struct lookup lookup;     /* zeroed: the sequence guesses nothing */
    struct acceptance accept; /* of its guesses */
    uint32_t n_guessed;       /* tokens that the step under way verifies; they lie in req->ids
                                 behind the known ones */
    bool by_model;            /* those are of the draft model, with these leads (draft_model.h) */
    float leads[DRAFT_TOKENS_MAX];
    uint32_t out0, ahead0; /* rows of logits of the step under way: the first one, and that of
                                 the first guess */
    uint32_t next0;        /* the same of the step that follows it (async.c), */
    bool follows;          /* where the sequence has a row in that one */
    uint32_t n_scored;     /* leading prompt positions whose next token has its logprob */
};

#endif
