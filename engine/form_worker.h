/* form_worker.h - the thread that computes masks which take too long for the engine's step.
 *
 * A job works on a copy of a sequence's run of its grammar, so the sequence may end meanwhile. The
 * owner takes the copy back when the job is done. Of the jobs that wait, the one whose answer took
 * least work so far is next, so an ordinary answer does not wait behind many hostile ones.
 *
 * Owns    one thread, started with the first job; the jobs until they are taken or dropped.
 * Thread  form_worker_add(): any; a job's other functions: its owner, one at a time.
 * Errors  ERR_NOMEM; those of grammar_run_prepare().
 * Units   none. */
#ifndef TARN_ENGINE_FORM_WORKER_H
#define TARN_ENGINE_FORM_WORKER_H

#include "engine/grammar/grammar.h"

struct form_worker;
struct form_job;

NODISCARD enum status form_worker_create(struct form_worker **out);
/* All jobs were taken or dropped. */
void form_worker_destroy(struct form_worker *w); /* NULL is fine */

/* Begin to prepare a copy of the run. */
NODISCARD enum status form_worker_add(struct form_worker *w, const struct grammar_run *run,
                                      struct form_job **out);
bool form_job_is_done(struct form_job *j);
/* End a job that is done: the copy takes the place of the run. Returns what
 * grammar_run_prepare() returned. */
NODISCARD enum status form_job_take(struct form_job *j, struct grammar_run *run);
/* Give a job up, done or not. */
void form_job_drop(struct form_job *j);

#endif
