/* progress.h - one line on a terminal while a run goes on.
 *
 * Owns    nothing but its last figures.
 * Thread  one.
 * Errors  none: an error of writing is ignored.
 * Units   seconds, tokens per second of the last interval. */
#ifndef TARN_LOADGEN_LOAD_PROGRESS_H
#define TARN_LOADGEN_LOAD_PROGRESS_H

#include "loadgen/load/run.h"

struct progress {
    const char *name; /* "", or which server */
    double last_s;
    uint64_t last_tokens;
    bool shown;
};

bool progress_is_wanted(bool asked); /* and standard error is a terminal */
void progress_show(void *progress, const struct run_progress *p);
void progress_clear(struct progress *progress);

#endif
