/* engine_sleep.c - parts of the engine rest: no step runs, and the memory of weights and KV is
 * given back.
 *
 * Other threads say which parts are to rest (e->sleep_wanted); the engine thread brings that about
 * between two steps (e->asleep). Sequences that are kept wait meanwhile as after a preemption, so
 * that waking needs no care for them: what they computed is computed again, with the same bits.
 *
 * Weights are loaded again as at the start: from their packed file, or from the model. Their
 * content must be the same, because KV on disk and in the pool, and the rest of kept answers,
 * belong to it. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/adapters.h"
#include "engine/engine_internal.h"

/* --- any thread --- */

/* Under stats_lock. */
static void tell_watchers(struct engine *e)
{
    for (uint32_t i = 0; i < ENGINE_SLEEP_WATCHERS_MAX; i++)
        if (e->sleep_watchers[i].changed)
            e->sleep_watchers[i].changed(e->sleep_watchers[i].arg);
}

enum status engine_sleep_watch(struct engine *e, void (*changed)(void *arg), void *arg)
{
    enum status s = ERR_BUSY;

    pthread_mutex_lock(&e->stats_lock);
    for (uint32_t i = 0; s != OK && i < ENGINE_SLEEP_WATCHERS_MAX; i++)
        if (!e->sleep_watchers[i].changed) {
            e->sleep_watchers[i] = (struct sleep_watcher){changed, arg};
            s = OK;
        }
    pthread_mutex_unlock(&e->stats_lock);
    return s;
}

void engine_sleep_unwatch(struct engine *e, void *arg)
{
    pthread_mutex_lock(&e->stats_lock);
    for (uint32_t i = 0; i < ENGINE_SLEEP_WATCHERS_MAX; i++)
        if (e->sleep_watchers[i].arg == arg)
            e->sleep_watchers[i] = (struct sleep_watcher){0};
    pthread_mutex_unlock(&e->stats_lock);
}

static void want_sleep(struct engine *e, const struct engine_sleep *s, bool is_auto)
{
    pthread_mutex_lock(&e->stats_lock);
    e->wake_error = OK;
    if (s->forgets) {
        atomic_store(&e->forget_wanted, true);
        atomic_store(&e->sleeps_deep, true);
    }
    atomic_store(&e->sleep_is_auto, is_auto);
    atomic_store(&e->sleep_before_ns, s->waits ? clock_now_ns() : 0);
    atomic_fetch_or(&e->sleep_wanted, s->parts);
    tell_watchers(e);
    pthread_mutex_unlock(&e->stats_lock);
    ring_poke(&e->submitted);
}

void engine_sleep(struct engine *e, const struct engine_sleep *s)
{
    want_sleep(e, s, false);
}

void engine_wake(struct engine *e, unsigned parts)
{
    pthread_mutex_lock(&e->stats_lock);
    e->wake_error = OK;
    atomic_fetch_and(&e->sleep_wanted, ~parts);
    if (parts & ENGINE_KV && !(atomic_load(&e->asleep) & ENGINE_KV)) { /* before it slept */
        atomic_store(&e->forget_wanted, false);
        atomic_store(&e->sleeps_deep, false);
    }
    tell_watchers(e);
    pthread_mutex_unlock(&e->stats_lock);
    ring_poke(&e->submitted);
}

void engine_sleep_state(struct engine *e, struct engine_sleep_state *out)
{
    pthread_mutex_lock(&e->stats_lock);
    out->wanted = atomic_load(&e->sleep_wanted);
    out->asleep = atomic_load(&e->asleep);
    out->is_deep = atomic_load(&e->sleeps_deep) && (out->asleep & ENGINE_KV);
    out->error = e->wake_error;
    memcpy(out->why, e->wake_why, sizeof out->why);
    pthread_mutex_unlock(&e->stats_lock);
}

/* --- the engine thread --- */

static bool has_requests(const struct engine *e)
{
    for (int class = 0; class < SCHED_N_CLASSES; class ++)
        if (atomic_load(&e->n_inside[class]) > 0)
            return true;
    return false;
}

/* Fall asleep after sleep_idle_s without requests, and wake for the next one. */
static void watch_idle(struct engine *e, uint64_t now)
{
    const struct engine_sleep all = {.parts = ENGINE_WEIGHTS | ENGINE_KV};
    bool sleeps = atomic_load(&e->sleep_wanted) & all.parts;

    if (e->config.sleep_idle_s == 0)
        return;
    if (has_requests(e)) {
        e->idle_since_ns = 0;
        if (sleeps && atomic_load(&e->sleep_is_auto))
            engine_wake(e, all.parts);
    } else if (e->idle_since_ns == 0) {
        e->idle_since_ns = now;
    } else if (!sleeps && !atomic_load(&e->draining) &&
               now - e->idle_since_ns >= e->config.sleep_idle_s * UINT64_C(1000000000)) {
        want_sleep(e, &all, true);
    }
}

/* Whether a usual request from before the call that wants the sleep is still to end. Where nothing
 * runs, nothing is waited for: parts sleep, or the KV pool is on its way to, and may be freed. */
static bool is_awaited(const struct engine *e)
{
    uint64_t before = atomic_load(&e->sleep_before_ns);
    bool runs = !atomic_load(&e->asleep) && !e->is_resting;
    uint32_t n = before && runs ? e->n_slots - e->n_free_slots : 0;

    for (uint32_t i = 0; i < n; i++) {
        const struct request *r = e->lineup.seqs[e->live_slots[i]].req;

        if (r->class == SCHED_USUAL && atomic_load(&r->t_submit) <= before)
            return true;
    }
    return false;
}

static void log_parts(const char *event, unsigned parts, uint64_t since)
{
    log_event(LOG_INFO, event, "steps=%d weights=%d kv=%d s=%.3f", (parts & ENGINE_STEPS) != 0,
              (parts & ENGINE_WEIGHTS) != 0, (parts & ENGINE_KV) != 0,
              (double)(clock_now_ns() - since) * 1e-9);
}

/* False: KV in memory is lent or moved at the moment, go on after the next step. */
static bool rest_kv(struct engine *e, uint64_t now)
{
    if (!e->is_resting) {
        lineup_rest(&e->lineup, now);
        forward_forget(e->forward);
    }
    e->is_resting = true;
    if (atomic_exchange(&e->forget_wanted, false))
        cache_reset(e->cache);
    return cache_sleep(e->cache);
}

/* False: an adapter is being loaded, which reads them. */
static bool rest_weights(struct engine *e)
{
    if (!adapters_sleep(e->adapters))
        return false;
    forward_forget(e->forward);
    engine_free_weights(e);
    if (e->draft_model)
        draft_model_sleep(e->draft_model);
    return true;
}

static void fall_asleep(struct engine *e, unsigned parts, uint64_t now)
{
    uint64_t began = clock_now_ns();

    if ((parts & ENGINE_KV && !rest_kv(e, now)) || (parts & ENGINE_WEIGHTS && !rest_weights(e)))
        return;
    atomic_fetch_or(&e->asleep, parts);
    log_parts("asleep", parts, began);
}

static enum status wake_weights(struct engine *e, struct buf *why)
{
    uint8_t hash[sizeof e->content_hash];
    enum status s = engine_load_weights(e, hash, why);

    if (s != OK)
        return s;
    if (memcmp(e->content_hash, hash, sizeof e->content_hash) != 0)
        s = buf_why(why, ERR_INVALID,
                    "the files of the model have changed since the start; start the server again "
                    "to serve them");
    if (s == OK && e->draft_model)
        s = draft_model_wake(e->draft_model, why);
    if (s == OK)
        adapters_wake(e->adapters);
    else
        engine_free_weights(e);
    return s;
}

static enum status wake_kv(struct engine *e, struct buf *why)
{
    enum status s = cache_wake(e->cache);

    e->is_resting = s != OK;
    return s == OK ? s : buf_why(why, s, "out of memory for the KV pool");
}

/* The parts sleep on. Requests that cannot wait for another attempt end. */
static void note_failure(struct engine *e, unsigned parts, enum status s, const struct buf *why)
{
    log_event(LOG_ERROR, "cannot wake up", "why=\"%s\"", buf_str(why));
    pthread_mutex_lock(&e->stats_lock);
    atomic_fetch_or(&e->sleep_wanted, parts);
    e->wake_error = s;
    snprintf(e->wake_why, sizeof e->wake_why, "%s", buf_str(why));
    pthread_mutex_unlock(&e->stats_lock);
    if (atomic_load(&e->sleep_is_auto) || atomic_load(&e->draining))
        engine_end_all(e, ERR_UNAVAILABLE, "the model could not be loaded again after a sleep");
}

/* Each part by itself: where memory is short, one of them may wake. */
static void wake(struct engine *e, unsigned parts)
{
    uint64_t began = clock_now_ns();
    unsigned left = parts;
    enum status s = OK;
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    if (left & ENGINE_WEIGHTS && (s = wake_weights(e, &why)) == OK)
        left &= ~(unsigned)ENGINE_WEIGHTS;
    if (s == OK && left & ENGINE_KV && (s = wake_kv(e, &why)) == OK)
        left &= ~(unsigned)ENGINE_KV;
    if (s == OK)
        left = 0;
    atomic_fetch_and(&e->asleep, ~(parts & ~left));
    if (s != OK)
        note_failure(e, left, s, &why);
    else
        log_parts("awake", parts, began);
    if (!(atomic_load(&e->asleep) & (ENGINE_WEIGHTS | ENGINE_KV))) {
        atomic_store(&e->sleeps_deep, false);
        atomic_store(&e->sleep_is_auto, false);
    }
    buf_fini(&why);
}

bool engine_advance_sleep(struct engine *e, uint64_t now)
{
    unsigned wanted, asleep = atomic_load(&e->asleep);

    watch_idle(e, now);
    wanted = atomic_load(&e->sleep_wanted);
    if (atomic_load(&e->draining)) /* those inside finish */
        wanted &= atomic_load(&e->n_inside[SCHED_USUAL]) > 0 ? 0 : ~(unsigned)ENGINE_STEPS;
    unsigned to_sleep = wanted & ~asleep, to_wake = asleep & ~wanted;
    if (asleep & ENGINE_KV && atomic_exchange(&e->forget_wanted, false))
        cache_reset(e->cache); /* a deeper sleep than before */
    if (e->is_resting && !((wanted | asleep) & ENGINE_KV))
        to_wake |= ENGINE_KV; /* before it was asleep */
    bool falls = to_sleep && !is_awaited(e);
    if (falls)
        fall_asleep(e, to_sleep, now);
    if (to_wake)
        wake(e, to_wake);
    if (falls || to_wake) {
        engine_publish_stats(e); /* who is told finds the new numbers */
        pthread_mutex_lock(&e->stats_lock);
        tell_watchers(e);
        pthread_mutex_unlock(&e->stats_lock);
    }
    e->falls_asleep = falls && to_sleep & ~atomic_load(&e->asleep);
    return e->falls_asleep || atomic_load(&e->asleep) != 0;
}
