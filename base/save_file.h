/* save_file.h - replaces a file atomically: after a crash, a reader finds the old
 * content or the new one, whole.
 *
 * Common subset of C11 and C++.
 *
 * Owns    nothing.
 * Thread  any. Processes and threads that save the same path at once wait for each other, for 10 s
 *         at most: the file has the content of one of them.
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

/* Keep other processes that call this from the directory, from before a file of it is read until
 * the file that was missing is saved: so one of them makes it, and the others read it. Waits for
 * 10 s at most. -1: the directory cannot be locked, which the caller need not care about. */
int save_lock_dir(const char *dir);
void save_unlock_dir(int lock); /* -1 is fine */

#ifdef __cplusplus
}
#endif
#endif
