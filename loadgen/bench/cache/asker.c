#include "loadgen/bench/cache/asker.h"

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"

#define REST_MAX_NS UINT64_C(120000000000)
#define REST_STEP_NS 1000000u
/* Polls without a change after which the cache counts as quiet: queued writes have no count. */
#define N_STILL 30

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

/* wake_at_end: one call for each request; the engine ends every request that it took. */
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
    *out = (struct answer){.ttft_ns = first - submitted,
                           .n_out = request_n_out(r),
                           .n_cached = atomic_load(&r->n_cached)};
    for (int t = 0; t < CACHE_N_TIERS; t++)
        out->n_cached_in[t] = atomic_load(&r->n_cached_in[t]);
    return OK;
}

static enum status submit(struct asker *a, const struct ask *ask, struct request **out,
                          struct buf *why)
{
    struct sampling sampling = {.top_p = 1, .repetition_penalty = 1, .seed = 1};
    struct stopping stopping = {.max_tokens = ask->n_out, .ignore_eos = true};
    struct kv_scope scope = {{0}};
    enum status s = request_create(out, a->engine, ask->ids, ask->n_ids, ask->span_ends,
                                   ask->n_span_ends, &scope, 0, &sampling, &stopping, why);

    if (s != OK)
        return s;
    (*out)->wake = on_end;
    (*out)->wake_arg = a;
    (*out)->wake_at_end = true;
    s = engine_submit(a->engine, *out, why);
    if (s != OK)
        request_unref(*out);
    return s;
}

enum status asker_ask_all(struct asker *a, const struct ask *asks, uint32_t n,
                          struct answer *answers, struct buf *why)
{
    struct request *r[ASKER_N_MAX];
    uint32_t n_submitted = 0;
    enum status s = OK;

    ASSERT(n <= ASKER_N_MAX);
    while (s == OK && n_submitted < n) {
        s = submit(a, &asks[n_submitted], &r[n_submitted], why);
        n_submitted += s == OK;
    }
    for (uint32_t i = 0; i < n_submitted; i++)
        wait_for_end(a);
    for (uint32_t i = 0; i < n_submitted; i++) {
        if (s == OK)
            s = read_answer(r[i], &answers[i], why);
        request_unref(r[i]);
    }
    return s;
}

enum status asker_ask(struct asker *a, const uint32_t *ids, uint32_t n_ids,
                      const uint32_t *span_ends, uint32_t n_span_ends, uint32_t n_out,
                      struct answer *out, struct buf *why)
{
    struct ask ask = {ids, n_ids, span_ends, n_span_ends, n_out};

    return asker_ask_all(a, &ask, 1, out, why);
}

static bool is_moving(const struct cache_stats *c)
{
    uint32_t n = 0;

    for (int t = 0; t < CACHE_N_TIERS; t++)
        n += c->tier[t].n_in_use + c->tier[t].n_in_transfer;
    return n > 0;
}

enum status asker_rest(struct asker *a, struct cache_stats *out, struct buf *why)
{
    uint64_t until = clock_now_ns() + REST_MAX_NS;
    struct engine_stats *stats = malloc(sizeof *stats);
    enum status s = stats ? OK : buf_why(why, ERR_NOMEM, "out of memory");

    for (uint32_t n_still = 0; s == OK; clock_sleep_ns(REST_STEP_NS)) {
        engine_stats(a->engine, stats);
        *out = stats->cache;
        n_still = stats->n_running + stats->n_waiting || is_moving(out) ? 0 : n_still + 1;
        if (n_still == N_STILL)
            break;
        if (clock_now_ns() > until)
            s = buf_why(why, ERR_TIMEOUT,
                        "the cache does not come to rest: %u blocks are on their "
                        "way to disk%s",
                        out->tier[CACHE_DISK].n_in_transfer,
                        out->disk.is_hung ? ", which hangs" : "");
    }
    free(stats);
    return s;
}
