/* Questions of other threads: a view of the cache, an erasure, a release, a reset, a session,
 * a prediction.
 * The engine thread answers between two steps, after it has drained the submit ring: a request that
 * is submitted after the question attaches after the answer. */
#include "base/check.h"
#include "base/clock.h"
#include "engine/engine_internal.h"

/* Limit of the wait for the end of a step. */
#define ANSWER_WAIT_NS UINT64_C(10000000000)

void engine_reset_cache(struct engine *e)
{
    atomic_store(&e->reset_wanted, true);
    ring_poke(&e->submitted);
}

void engine_pause(struct engine *e, bool pauses)
{
    atomic_store(&e->is_paused, pauses);
    ring_poke(&e->submitted);
}

bool engine_is_paused(const struct engine *e)
{
    return atomic_load(&e->is_paused);
}

static enum status ask(struct engine *e, struct question *q)
{
    uint64_t until = clock_now_ns() + ANSWER_WAIT_NS;
    struct timespec ts = {(time_t)(until / 1000000000), (long)(until % 1000000000)};
    enum status s = OK;

    pthread_mutex_lock(&e->ask_lock);
    pthread_mutex_lock(&e->stats_lock);
    if (atomic_load(&e->stopping)) /* the engine thread may have given its last answer */
        s = ERR_UNAVAILABLE;
    else
        e->question = q;
    atomic_store(&e->is_asked, true);
    ring_poke(&e->submitted);
    while (s == OK && e->question)
        if (pthread_cond_timedwait(&e->answered, &e->stats_lock, &ts) != 0)
            s = e->question ? ERR_TIMEOUT : OK;
    e->question = NULL; /* after a timeout the question must not be answered: it is on our stack */
    pthread_mutex_unlock(&e->stats_lock);
    pthread_mutex_unlock(&e->ask_lock);
    return s;
}

enum status engine_cache_view(struct engine *e, uint32_t n_spans_max, struct engine_cache_view *out)
{
    struct question q = {.view = out};

    *out = (struct engine_cache_view){
        .n_spans = n_spans_max < ENGINE_N_SPANS_MAX ? n_spans_max : ENGINE_N_SPANS_MAX};
    return ask(e, &q);
}

enum status engine_cache_spans(struct engine *e, const struct kv_key *keys, uint32_t n,
                               struct cache_span *spans)
{
    struct question q = {.keys = keys, .n_keys = n, .spans = spans};

    ASSERT(n <= ENGINE_N_SPANS_MAX);
    return n > 0 ? ask(e, &q) : OK;
}

bool engine_cache_knows(const struct engine *e, const struct kv_key *key)
{
    return cache_knows(e->cache, key);
}

enum status engine_cache_erase(struct engine *e, const struct kv_key *first, uint32_t *n_blocks)
{
    struct question q = {.erase = first};
    enum status s = ask(e, &q);

    *n_blocks = q.n_erased;
    return s;
}

enum status engine_cache_release(struct engine *e, const struct kv_key *key, uint32_t *n_blocks)
{
    struct question q = {.release = key};
    enum status s = ask(e, &q);

    *n_blocks = q.n_released;
    return s;
}

enum status engine_session(struct engine *e, uint64_t session, bool close,
                           struct engine_session *out)
{
    struct question q = {.session = session, .closes = close, .seen = out};

    *out = (struct engine_session){0};
    return ask(e, &q);
}

static void answer_session(struct engine *e, const struct question *q)
{
    struct engine_session *out = q->seen;
    bool has_kv = cache_session(e->cache, q->session, &out->kv);

    out->is_known = scheduler_session(e->lineup.scheduler, q->session, &out->received) || has_kv;
    if (!q->closes)
        return;
    (void)scheduler_close_session(e->lineup.scheduler, q->session);
    (void)cache_close_session(e->cache, q->session, &out->n_released);
}

enum status engine_estimate(struct engine *e, const struct estimate_query *query,
                            struct engine_estimate *out)
{
    struct question q = {.query = query, .estimate = out};

    return ask(e, &q);
}

enum status engine_place_adapter(struct engine *e, struct adapter *a)
{
    struct question q = {.adapter = a, .placed = ERR_UNAVAILABLE};
    enum status s = e->thread_runs ? ask(e, &q) : adapter_place(a, e->device);

    return s == OK && e->thread_runs ? q.placed : s;
}

static void answer_spans(const struct engine *e, const struct question *q)
{
    for (uint32_t i = 0; i < q->n_keys; i++)
        if (!cache_find_span(e->cache, &q->keys[i], &q->spans[i]))
            q->spans[i] = (struct cache_span){.key = q->keys[i]};
}

static bool answer_question(struct engine *e)
{
    struct question *q;
    bool erased = false;

    pthread_mutex_lock(&e->stats_lock);
    q = e->question;
    if (q) {
        if (q->erase) {
            q->n_erased = cache_erase(e->cache, q->erase);
            erased = true;
        }
        if (q->release)
            q->n_released = cache_release(e->cache, q->release);
        answer_spans(e, q);
        if (q->session)
            answer_session(e, q);
        if (q->adapter)
            q->placed = adapter_place(q->adapter, e->device);
        if (q->view) {
            cache_stats(e->cache, &q->view->stats);
            q->view->n_spans =
                cache_top_spans(e->cache, q->view->spans, q->view->n_spans, &q->view->n_spans_all);
        }
        if (q->query)
            engine_answer_estimate(e, q->query, q->estimate);
        e->question = NULL;
        pthread_cond_signal(&e->answered);
    }
    pthread_mutex_unlock(&e->stats_lock);
    return erased;
}

bool engine_answer(struct engine *e)
{
    bool writes = atomic_exchange(&e->reset_wanted, false);

    if (writes)
        cache_reset(e->cache);
    /* While the engine stops, questions are answered without the flag: a thread that is about to
     * set it has either stored its question under the lock, or sees `stopping` and does not ask. */
    if (atomic_exchange(&e->is_asked, false) || atomic_load(&e->stopping))
        writes |= answer_question(e);
    return writes;
}
