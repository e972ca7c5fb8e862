/* model_files.h - a model directory that holds a config.json only: enough for dummy weights.
 *
 * Owns    the directory, until model_files_remove().
 * Thread  one.
 * Errors  ERR_IO with words that name the directory.
 * Units   none. */
#ifndef TARN_LOADGEN_BENCH_CACHE_MODEL_FILES_H
#define TARN_LOADGEN_BENCH_CACHE_MODEL_FILES_H

#include "base/buf.h"

#define MODEL_FILES_PATH_BYTES 512

struct model_files {
    char dir[MODEL_FILES_PATH_BYTES]; /* "": nothing is there to be removed */
};

/* Below $TMPDIR, or /tmp without it. */
NODISCARD enum status model_files_make(struct model_files *m, const char *config_json,
                                       struct buf *why);
void model_files_remove(struct model_files *m); /* also fine on a zeroed struct, and twice */

#endif
