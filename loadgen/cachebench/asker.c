#include "loadgen/cachebench/asker.h"

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>

struct asker {
    struct engine *engine;
    sem_t ended;
};

enum status asker_open(struct asker **out, const struct engine_config *config, struct buf *why)
{
    struct asker *a = calloc(1, sizeof *a);

    *out = NULL;
    if (!a)
        return buf_why(why, ERR_NOMEM, "out of memory");
    if (sem_init(&a->ended, 0, 0) != 0) {
        free(a);
        return buf_why(why, ERR_INTERNAL, "no semaphore");
    }
    enum status s = engine_open(&a->engine, config, why);
    if (s == OK && engine_start(a->engine) != OK)
        s = buf_why(why, ERR_INTERNAL, "the engine's thread cannot be started");
    if (s != OK) {
        asker_close(a);
        return s;
    }
    *out = a;
    return OK;
}

void asker_close(struct asker *a)
{
    if (!a)
        return;
    engine_close(a->engine);
    sem_destroy(&a->ended);
    free(a);
}

struct engine *asker_engine(struct asker *a)
{
    return a->engine;
}

static void on_end(void *arg)
{
    struct asker *a = arg;

    sem_post(&a->ended);
}

/* wake_at_end: the engine calls once, and it ends every request that it has taken. */
static void wait_for_end(struct asker *a)
{
    while (sem_wait(&a->ended) != 0 && errno == EINTR)
        continue;
}

static enum status read_answer(const struct request *r, struct answer *out, struct buf *why)
{
    uint64_t submitted = atomic_load(&r->t_submit), first = atomic_load(&r->t_first_token);

    if (request_finish(r) != FINISH_LENGTH || first < submitted)
        return buf_why(why, ERR_INTERNAL, "a request ended with \"%s\" (%s)",
                       finish_reason_name(request_finish(r)),
                       r->error_words ? r->error_words : "no words");
    *out = (struct answer){.ttft_ns = first - submitted, .n_out = request_n_out(r),
                           .n_cached = atomic_load(&r->n_cached)};
    for (int t = 0; t < CACHE_N_TIERS; t++)
        out->n_cached_in[t] = atomic_load(&r->n_cached_in[t]);
    return OK;
}

enum status asker_ask(struct asker *a, const uint32_t *ids, uint32_t n_ids,
                      const uint32_t *span_ends, uint32_t n_span_ends, uint32_t n_out,
                      struct answer *out, struct buf *why)
{
    struct sampling sampling = {.top_p = 1, .repetition_penalty = 1, .seed = 1};
    struct stopping stopping = {.max_tokens = n_out, .ignore_eos = true};
    struct kv_scope scope = {{0}};
    struct request *r;
    enum status s = request_create(&r, a->engine, ids, n_ids, span_ends, n_span_ends, &scope, 0,
                                   &sampling, &stopping, why);

    if (s != OK)
        return s;
    r->wake = on_end;
    r->wake_arg = a;
    r->wake_at_end = true;
    s = engine_submit(a->engine, r, why);
    if (s == OK) {
        wait_for_end(a);
        s = read_answer(r, out, why);
    }
    request_unref(r);
    return s;
}
