#include "server/api/running.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/call.h"
#include "server/auth/auth.h"

struct running {
    pthread_mutex_t lock;
    struct call *first; /* linked by call->next_running */
};

enum status running_create(struct running **out)
{
    struct running *r = calloc(1, sizeof *r);

    *out = r;
    if (!r)
        return ERR_NOMEM;
    pthread_mutex_init(&r->lock, NULL);
    return OK;
}

void running_destroy(struct running *r)
{
    if (!r)
        return;
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void running_add(struct running *r, struct call *call)
{
    pthread_mutex_lock(&r->lock);
    call->next_running = r->first;
    call->prev_running = NULL;
    if (r->first)
        r->first->prev_running = call;
    r->first = call;
    call->is_running = true;
    pthread_mutex_unlock(&r->lock);
}

void running_remove(struct running *r, struct call *call)
{
    pthread_mutex_lock(&r->lock);
    if (call->is_running) {
        if (call->prev_running)
            call->prev_running->next_running = call->next_running;
        else
            r->first = call->next_running;
        if (call->next_running)
            call->next_running->prev_running = call->prev_running;
        call->is_running = false;
    }
    pthread_mutex_unlock(&r->lock);
}

static bool fits(const struct call *call, const char *id, bool begins)
{
    const char *names[] = {call->id, call->http_id};

    if (!id)
        return true;
    for (int i = 0; i < 2; i++)
        if (begins ? strncmp(names[i], id, strlen(id)) == 0 : strcmp(names[i], id) == 0)
            return true;
    return false;
}

uint32_t running_abort(struct running *r, const struct account *a, const char *id, bool begins)
{
    uint32_t n = 0;

    pthread_mutex_lock(&r->lock);
    for (struct call *c = r->first; c; c = c->next_running) {
        if ((a && c->account->tenant_id != a->tenant_id) || !fits(c, id, begins))
            continue;
        if (atomic_exchange(&c->is_aborted, true))
            continue; /* an id that is named twice counts once */
        call_cancel(c);
        n++;
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}
