/* engine_contest.c - contests between scheduling policies, beside the steps.
 *
 * The shadows of a contest take about 0.01 s of one core. A busy server has no idle time for them,
 * and that is when the policy matters. So a thread of its own runs them at the lowest priority
 * (SCHED_IDLE): it gets a core that no other thread wants, and well under 1 % of a wanted one. The
 * engine thread only notes requests, copies 180 kB when a contest begins, and reads the verdict.
 * The threads share no lock: `contest_state` says whose the contest is, so the engine thread never
 * waits for a thread that gets no core. */
#include <sched.h>
#include <string.h>
#include <sys/resource.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_internal.h"
#include "engine/settings.h"

/* Plans between two looks at the order to stop: a few milliseconds. */
#define N_PLANS_SLICE 1000

static bool is_auto(const struct engine *e)
{
    return strcmp(e->config.policy, CONTEST_AUTO) == 0;
}

const char *engine_first_policy(const struct engine *e)
{
    return is_auto(e) ? DEFAULT_SCHEDULING_POLICY : e->config.policy;
}

static enum status open_contest(struct engine *e, const struct lineup_config *l, struct buf *why)
{
    struct contest_config config = {.scheduler = l->scheduler, .follows = is_auto(e)};
    struct cache_stats cache;

    cache_stats(e->cache, &cache);
    config.memory = (struct contest_memory){.n_device_blocks = cache.tier[CACHE_DEVICE].n_blocks,
                                            .n_host_blocks = cache.tier[CACHE_HOST].n_blocks,
                                            .copy_s_per_token = l->copy_s_per_token};
    enum status s = contest_create(&e->contest, &config, why);
    if (s == OK)
        contest_stats(e->contest, &e->live.contest);
    return s;
}

enum status engine_open_lineup(struct engine *e, const struct lineup_config *l, struct buf *why)
{
    enum status s = lineup_create(&e->lineup, l, why);

    return s == OK ? open_contest(e, l, why) : s;
}

void engine_close_lineup(struct engine *e)
{
    contest_destroy(e->contest);
    lineup_destroy(&e->lineup);
}

/* --- the contest thread --- */

static void take_lowest_priority(void)
{
    struct sched_param none = {0};

    if (sched_setscheduler(0, SCHED_IDLE, &none) != 0)
        (void)setpriority(PRIO_PROCESS, 0, 19); /* of this thread only, on Linux */
}

static void *contest_loop(void *arg)
{
    struct engine *e = arg;

    take_lowest_priority();
    while (!atomic_load(&e->stopping)) {
        if (sem_wait(&e->contest_wake) != 0 || atomic_load(&e->contest_state) != CONTEST_RUNS)
            continue;
        while (!atomic_load(&e->stopping))
            if (contest_run(e->contest, N_PLANS_SLICE)) {
                atomic_store(&e->contest_state, CONTEST_ENDED);
                break;
            }
    }
    return NULL;
}

void engine_start_contests(struct engine *e)
{
    sem_init(&e->contest_wake, 0, 0);
    e->contest_thread_runs = pthread_create(&e->contest_thread, NULL, contest_loop, e) == 0;
    if (!e->contest_thread_runs)
        log_event(LOG_WARN, "scheduling policies are not compared", "why=\"no thread\"");
}

void engine_stop_contests(struct engine *e)
{
    if (e->contest_thread_runs) {
        sem_post(&e->contest_wake); /* `stopping` is set */
        pthread_join(e->contest_thread, NULL);
    }
    e->contest_thread_runs = false;
    sem_destroy(&e->contest_wake);
}

/* --- the engine thread --- */

void engine_note_arrival(struct engine *e, uint32_t slot, const struct sched_request *asked)
{
    struct sequence *q = &e->lineup.seqs[slot];
    struct contest_request r = {.asked = *asked, .arrival_ns = atomic_load(&q->req->t_submit)};

    if (asked->class == SCHED_USUAL)
        q->contest_id = contest_arrived(e->contest, &r, slot);
}

void engine_note_leaving(struct engine *e, uint32_t slot)
{
    const struct sequence *q = &e->lineup.seqs[slot];

    if (q->class == SCHED_USUAL)
        contest_ended(e->contest, q->contest_id, q->n_cached, atomic_load(&q->req->n_out));
}

static void change_policy(struct engine *e, const struct contest_verdict *v)
{
    const struct contest_result *from = &v->from->result, *to = &v->best->result;
    enum status s =
        scheduler_set_policy(e->lineup.scheduler, v->best->policy, v->best->variant, NULL);

    ASSERT(s == OK); /* contest_create() has checked all names */
    log_event(LOG_INFO, "the scheduling policy changes",
              "from=%s from_variant=\"%s\" to=%s to_variant=\"%s\" requests=%u "
              "normalized_ms_from=%.1f normalized_ms_to=%.1f normalized_p99_ms_from=%.1f "
              "normalized_p99_ms_to=%.1f e2e_ms_from=%.0f e2e_ms_to=%.0f score_ms_from=%.1f "
              "score_ms_to=%.1f",
              v->from->policy, v->from->variant, v->best->policy, v->best->variant, to->n,
              from->normalized_s.mean * 1e3, to->normalized_s.mean * 1e3,
              from->normalized_s.p99 * 1e3, to->normalized_s.p99 * 1e3, from->e2e_s.mean * 1e3,
              to->e2e_s.mean * 1e3, v->from->score_s * 1e3, v->best->score_s * 1e3);
}

static void end_contest(struct engine *e)
{
    struct contest_verdict v;

    contest_end(e->contest, &v);
    contest_stats(e->contest, &e->live.contest);
    if (!v.best)
        log_event(LOG_WARN, "scheduling policies are not compared", "why=\"out of memory\"");
    if (v.is_change)
        change_policy(e, &v);
}

bool engine_contest_is_due(const struct engine *e)
{
    enum contest_state state = atomic_load(&e->contest_state);

    return state == CONTEST_ENDED ||
           (state == CONTEST_NONE && e->contest_thread_runs && contest_is_due(e->contest));
}

void engine_advance_contest(struct engine *e)
{
    enum contest_state state = atomic_load(&e->contest_state);

    if (state == CONTEST_ENDED) {
        end_contest(e);
        atomic_store(&e->contest_state, state = CONTEST_NONE);
    }
    if (state == CONTEST_NONE && e->contest_thread_runs && contest_is_due(e->contest)) {
        contest_begin(e->contest, &e->cost, e->lineup.scheduler, clock_now_ns());
        atomic_store(&e->contest_state, CONTEST_RUNS);
        sem_post(&e->contest_wake);
    }
}
