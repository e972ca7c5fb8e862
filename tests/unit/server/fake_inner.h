/* fake_inner.h - what the parts of the fake engine share: fake_engine.c runs requests, fake_text.c
 * is tokenizer and template, fake_cache.c invents figures and answers about the cache.
 *
 * Owns    as fake_engine.h.
 * Thread  as fake_engine.h.
 * Errors  none.
 * Units   nanoseconds. */
#ifndef TARN_TESTS_FAKE_INNER_H
#define TARN_TESTS_FAKE_INNER_H

#include <pthread.h>

#include "tests/unit/server/fake_engine.h"

#define FAKE_N_INSIDE_MAX 1024
#define FAKE_IDLE_NS 200000

struct tokenizer {
    char bytes[256];
};

struct chat_template {
    int unused;
};

struct inside {
    struct request *r;
    struct stop_watch stop;
    uint64_t t_next;
};

struct engine {
    struct engine_info info;
    struct tokenizer tokenizer;
    struct chat_template template;
    uint32_t eos;
    pthread_t thread;
    atomic_bool stopping, draining;
    pthread_mutex_t lock;
    struct inside inside[FAKE_N_INSIDE_MAX]; /* under lock */
    uint32_t n_inside;
    uint64_t n_tokens;
    struct fake_submitted submitted[FAKE_N_SUBMITTED_MAX];
    uint32_t n_submitted;
};

#endif
