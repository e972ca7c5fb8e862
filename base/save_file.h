/* save_file.h - replaces a file atomically: after a crash, a reader finds the old
 * content or the new one, whole.
 *
 * Common subset of C11 and C++.
 *
 * Owns    nothing.
 * Thread  any; two threads must not save the same path at once.
 * Errors  ERR_IO with the path and the system's words; ERR_INVALID: the path is too long.
 * Units   bytes. */
#ifndef TARN_BASE_SAVE_FILE_H
#define TARN_BASE_SAVE_FILE_H

#include <stdbool.h>
#include <stdio.h>

#include "base/buf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Write the text to `path`.new and rename it to `path`. */
NODISCARD enum status save_file(const char *path, const struct buf *text, struct buf *why);
/* The same for a large file: `write` writes the content and returns false on a failure, which errno
 * explains. */
NODISCARD enum status save_file_by(const char *path, bool (*write)(void *arg, FILE *f), void *arg,
                                   struct buf *why);

#ifdef __cplusplus
}
#endif
#endif
