#include "server/api/warm.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define WAIT_MIN_NS UINT64_C(60000000000)
#define WAIT_MAX_NS UINT64_C(3600000000000)
#define NO_ROOM_NS UINT64_C(10000000000)
#define N_TASKS_FIRST 256

enum status warm_init(struct warm *w)
{
    *w = (struct warm){.free = WARM_NONE};
    return map_init(&w->by_row, WARM_N_TASKS_MAX);
}

void warm_fini(struct warm *w)
{
    for (uint32_t i = 0; i < w->n_all; i++)
        free(w->tasks[i].why);
    free(w->tasks);
    map_fini(&w->by_row);
    *w = (struct warm){.free = WARM_NONE};
}

/* --- tasks --- */

static bool counts(enum warm_state s)
{
    return s == WARM_READY || s == WARM_RUNNING;
}

static void enter_state(struct warm *w, struct warm_task *t, enum warm_state s)
{
    w->n[t->state]--;
    w->n[s]++;
    w->n_blocks -= counts(t->state) ? t->n_blocks : 0;
    w->n_blocks += counts(s) ? t->n_blocks : 0;
    t->state = s;
}

static uint32_t take_free(struct warm *w)
{
    uint32_t i = w->free;

    if (i != WARM_NONE) {
        w->free = w->tasks[i].next;
        return i;
    }
    if (w->n_all == WARM_N_TASKS_MAX)
        return WARM_NONE;
    if (w->n_all == w->n_cap) {
        uint32_t cap = w->n_cap ? 2 * w->n_cap : N_TASKS_FIRST;
        struct warm_task *tasks = realloc(w->tasks, cap * sizeof *tasks);
        if (!tasks)
            return WARM_NONE;
        w->tasks = tasks;
        w->n_cap = cap;
    }
    w->n[WARM_FREE]++;
    return w->n_all++;
}

uint32_t warm_of_row(const struct warm *w, int64_t row)
{
    uint32_t i;

    return map_get(&w->by_row, (uint64_t)row, &i) ? i : WARM_NONE;
}

static void drop(struct warm *w, uint32_t task)
{
    struct warm_task *t = &w->tasks[task];
    uint32_t first = warm_of_row(w, t->row), *link = &first;

    while (*link != task)
        link = &w->tasks[*link].next;
    *link = t->next;
    if (first == WARM_NONE)
        (void)map_remove(&w->by_row, (uint64_t)t->row);
    else
        map_put(&w->by_row, (uint64_t)t->row, first);
    enter_state(w, t, WARM_FREE);
    free(t->why);
    *t = (struct warm_task){.next = w->free};
    w->free = task;
}

bool warm_want(struct warm *w, int64_t row, uint32_t version, uint64_t preamble, bool is_pinned)
{
    uint32_t i = warm_of_row(w, row), first = i;

    while (i != WARM_NONE && (w->tasks[i].preamble != preamble || w->tasks[i].version != version))
        i = w->tasks[i].next;
    if (i == WARM_NONE) {
        i = take_free(w);
        if (i == WARM_NONE)
            return false;
        w->tasks[i] =
            (struct warm_task){.row = row, .preamble = preamble, .version = version, .next = first};
        map_put(&w->by_row, (uint64_t)row, i);
        enter_state(w, &w->tasks[i], WARM_WAITING);
    }
    struct warm_task *t = &w->tasks[i];
    t->scan = w->scan;
    t->is_wanted = true;
    if (is_pinned && !t->is_pinned && t->state != WARM_RUNNING) {
        t->not_before_ns = 0; /* what is ready is not held yet */
        enter_state(w, t, WARM_WAITING);
    }
    t->is_pinned = is_pinned;
    return true;
}

static void let_go(struct warm *w, uint32_t task)
{
    if (w->tasks[task].state == WARM_RUNNING)
        w->tasks[task].is_wanted = false;
    else
        drop(w, task);
}

void warm_row_begin(struct warm *w, int64_t row)
{
    for (uint32_t i = warm_of_row(w, row); i != WARM_NONE; i = w->tasks[i].next)
        w->tasks[i].is_wanted = false;
}

void warm_row_end(struct warm *w, int64_t row,
                  void (*dropped)(void *arg, const struct warm_task *t), void *arg)
{
    for (uint32_t i = warm_of_row(w, row), next; i != WARM_NONE; i = next) {
        const struct warm_task *t = &w->tasks[i];
        next = t->next;
        if (t->is_wanted)
            continue;
        if (t->is_pinned && t->state == WARM_READY)
            dropped(arg, t);
        let_go(w, i);
    }
}

void warm_scan_begin(struct warm *w)
{
    w->scan++;
}

void warm_scan_end(struct warm *w, void (*dropped)(void *arg, const struct warm_task *t), void *arg)
{
    for (uint32_t i = 0; i < w->n_all; i++) {
        const struct warm_task *t = &w->tasks[i];
        if (t->state == WARM_FREE || t->scan == w->scan)
            continue;
        if (t->is_pinned && t->state == WARM_READY)
            dropped(arg, t);
        let_go(w, i);
    }
}

/* --- order --- */

bool warm_has_room(const struct warm *w, const struct warm_task *t, const struct warm_room *room)
{
    if (t->is_pinned)
        return true;
    if (t->state == WARM_EVICTED)
        return room->n_free >= t->n_blocks + room->n_memory / 10;
    return w->n_blocks + t->n_blocks <= room->n_memory / 2 + room->n_disk / 10 * 9;
}

static bool may_run(const struct warm *w, const struct warm_task *t, const struct warm_room *room,
                    uint64_t now_ns)
{
    if (t->state == WARM_FREE || counts(t->state) || now_ns < t->not_before_ns)
        return false;
    return t->n_blocks == 0 || warm_has_room(w, t, room);
}

uint32_t warm_next(struct warm *w, const struct warm_room *room, uint64_t now_ns)
{
    uint32_t n_open = w->n_all - w->n[WARM_FREE] - w->n[WARM_READY] - w->n[WARM_RUNNING];

    for (uint32_t k = 0; n_open > 0 && k < w->n_all; k++) {
        uint32_t i = (w->cursor + k) % w->n_all;
        if (!may_run(w, &w->tasks[i], room, now_ns))
            continue;
        w->cursor = (i + 1) % w->n_all;
        return i;
    }
    return WARM_NONE;
}

static uint64_t wait_ns(uint32_t n_tries)
{
    uint64_t ns = n_tries < 8 ? WAIT_MIN_NS << (n_tries - 1) : WAIT_MAX_NS;

    return ns < WAIT_MAX_NS ? ns : WAIT_MAX_NS;
}

bool warm_set(struct warm *w, uint32_t task, enum warm_state state, const char *why,
              uint64_t now_ns)
{
    struct warm_task *t = &w->tasks[task];

    ASSERT(t->state != WARM_FREE && state != WARM_FREE);
    free(t->why);
    t->why = why ? strdup(why) : NULL; /* without memory the reason is lost, not the state */
    enter_state(w, t, state);
    if (state == WARM_EVICTED || state == WARM_FAILED)
        t->not_before_ns = now_ns + wait_ns(++t->n_tries);
    else if (state == WARM_NO_ROOM)
        t->not_before_ns = now_ns + NO_ROOM_NS;
    if (t->is_wanted || state == WARM_RUNNING)
        return true;
    drop(w, task);
    return false;
}
