/* scheduler_trajectory.c - what the scheduler remembers of sessions: the level at which the last
 * request ended, and the mean pause between requests. */
#include <stdlib.h>

#include "base/check.h"
#include "base/memory.h"
#include "engine/sched/scheduler_internal.h"

#define PAUSE_RATE 0.25 /* weight of a new pause in the moving mean */

enum status trajectories_init(struct trajectories *t, uint32_t n_max)
{
    enum status s = map_init(&t->index, n_max);

    if (s != OK)
        return s;
    t->v = memory_zeroed(n_max, sizeof *t->v);
    t->n_max = n_max;
    t->oldest = t->newest = NO_TRAJECTORY;
    return t->v ? OK : ERR_NOMEM;
}

void trajectories_fini(struct trajectories *t)
{
    map_fini(&t->index);
    free(t->v);
}

/* --- list of sessions without a request, the one that ended first at the front --- */

static void list_append(struct trajectories *t, uint32_t i)
{
    t->v[i].older = t->newest;
    t->v[i].newer = NO_TRAJECTORY;
    if (t->newest == NO_TRAJECTORY)
        t->oldest = i;
    else
        t->v[t->newest].newer = i;
    t->newest = i;
}

static void list_take(struct trajectories *t, uint32_t i)
{
    const struct trajectory *x = &t->v[i];

    if (x->older == NO_TRAJECTORY)
        t->oldest = x->newer;
    else
        t->v[x->older].newer = x->newer;
    if (x->newer == NO_TRAJECTORY)
        t->newest = x->older;
    else
        t->v[x->newer].older = x->older;
}

/* A place for a new session. When the table is full, the session that ended longest ago is
 * forgotten. */
static uint32_t new_place(struct trajectories *t, uint64_t session)
{
    uint32_t i = t->n;

    if (t->n < t->n_max) {
        t->n++;
    } else {
        i = t->oldest;
        if (i == NO_TRAJECTORY)
            return NO_TRAJECTORY;
        list_take(t, i);
        ASSERT(map_remove(&t->index, t->v[i].session));
    }
    t->v[i] = (struct trajectory){.session = session};
    map_put(&t->index, session, i);
    return i;
}

static void note_pause(struct trajectory *x, double pause_s)
{
    x->pause_s = x->pause_s > 0 ? x->pause_s + PAUSE_RATE * (pause_s - x->pause_s) : pause_s;
}

uint32_t trajectories_enter(struct trajectories *t, uint64_t session, uint64_t now_ns,
                            uint64_t max_pause_ns, bool *goes_on)
{
    uint32_t i;

    *goes_on = false;
    if (session == 0)
        return NO_TRAJECTORY;
    if (map_get(&t->index, session, &i)) {
        struct trajectory *x = &t->v[i];
        uint64_t pause_ns = now_ns > x->ended_ns ? now_ns - x->ended_ns : 0;

        *goes_on = x->refs > 0 || pause_ns < max_pause_ns;
        if (x->refs == 0) {
            list_take(t, i);
            note_pause(x, (double)pause_ns / NS_PER_S);
        }
    } else {
        i = new_place(t, session);
    }
    if (i != NO_TRAJECTORY)
        t->v[i].refs++;
    return i;
}

void trajectories_leave(struct trajectories *t, uint32_t i, uint32_t level, double charged_s,
                        uint64_t now_ns)
{
    struct trajectory *x = &t->v[i];

    ASSERT(x->refs > 0);
    x->level = level;
    x->charged_s = charged_s;
    x->ended_ns = now_ns;
    if (--x->refs == 0)
        list_append(t, i);
}

double trajectories_pause_s(const struct trajectories *t, uint64_t session)
{
    uint32_t i;

    return session && map_get(&t->index, session, &i) ? t->v[i].pause_s : 0;
}
