#include "engine/form_worker.h"

#include <pthread.h>
#include <stdlib.h>

enum job_state { JOB_WAITS, JOB_RUNS, JOB_DONE, JOB_DROPPED };

struct form_job {
    struct form_worker *worker;
    struct form_job *next; /* of the jobs that wait */
    struct grammar_run run;
    enum status status;
    enum job_state state;
};

struct form_worker {
    pthread_mutex_t lock; /* of all below, and of the jobs' state and list */
    pthread_cond_t added;
    struct form_job *waiting; /* newest first */
    pthread_t thread;
    bool thread_runs, stopping;
};

enum status form_worker_create(struct form_worker **out)
{
    struct form_worker *w = calloc(1, sizeof *w);

    *out = w;
    if (!w)
        return ERR_NOMEM;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->added, NULL);
    return OK;
}

void form_worker_destroy(struct form_worker *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_signal(&w->added);
    pthread_mutex_unlock(&w->lock);
    if (w->thread_runs)
        pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->added);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static void free_job(struct form_job *j)
{
    grammar_run_fini(&j->run);
    free(j);
}

/* Take the waiting job whose answer took least work; the oldest of equal ones. */
static struct form_job *pop(struct form_worker *w)
{
    struct form_job **best = &w->waiting;

    for (struct form_job **at = &w->waiting; *at; at = &(*at)->next)
        if ((*at)->run.n_worked <= (*best)->run.n_worked)
            best = at;
    struct form_job *j = *best;
    *best = j->next;
    return j;
}

static void *work(void *arg)
{
    struct form_worker *w = arg;

    pthread_mutex_lock(&w->lock);
    while (!w->stopping) {
        if (!w->waiting) {
            pthread_cond_wait(&w->added, &w->lock);
            continue;
        }
        struct form_job *j = pop(w);
        j->state = JOB_RUNS;
        pthread_mutex_unlock(&w->lock);
        enum status s = grammar_run_prepare(&j->run);
        pthread_mutex_lock(&w->lock);
        j->status = s;
        if (j->state == JOB_DROPPED)
            free_job(j);
        else
            j->state = JOB_DONE;
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

enum status form_worker_add(struct form_worker *w, const struct grammar_run *run,
                            struct form_job **out)
{
    struct form_job *j = calloc(1, sizeof *j);

    *out = NULL;
    if (!j)
        return ERR_NOMEM;
    j->worker = w;
    grammar_run_copy(&j->run, run);
    pthread_mutex_lock(&w->lock);
    if (!w->thread_runs)
        w->thread_runs = pthread_create(&w->thread, NULL, work, w) == 0;
    bool runs = w->thread_runs;
    if (runs) {
        j->next = w->waiting;
        w->waiting = j;
        pthread_cond_signal(&w->added);
    }
    pthread_mutex_unlock(&w->lock);
    if (!runs) {
        free_job(j);
        return ERR_NOMEM;
    }
    *out = j;
    return OK;
}

bool form_job_is_done(struct form_job *j)
{
    pthread_mutex_lock(&j->worker->lock);
    bool is_done = j->state == JOB_DONE;
    pthread_mutex_unlock(&j->worker->lock);
    return is_done;
}

enum status form_job_take(struct form_job *j, struct grammar_run *run)
{
    enum status s = j->status;

    grammar_run_fini(run);
    *run = j->run;
    free(j);
    return s;
}

void form_job_drop(struct form_job *j)
{
    struct form_worker *w = j->worker;
    bool is_free = true;

    pthread_mutex_lock(&w->lock);
    if (j->state == JOB_WAITS) {
        struct form_job **at = &w->waiting;
        while (*at != j)
            at = &(*at)->next;
        *at = j->next;
    } else if (j->state == JOB_RUNS) {
        j->state = JOB_DROPPED; /* the thread frees the job */
        is_free = false;
    }
    pthread_mutex_unlock(&w->lock);
    if (is_free)
        free_job(j);
}
