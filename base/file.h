/* file.h - opens and reads files that users name.
 *
 * Such a path may name a FIFO, a device or a folder, by mistake or on purpose. Only regular files
 * are opened, and no call waits for a writer.
 *
 * Owns    nothing: the caller closes the descriptor and owns the buf.
 * Thread  any.
 * Errors  ERR_NOT_FOUND no such file; ERR_INVALID no regular file; ERR_IO with the path and the
 *         system's words; ERR_TOO_LARGE the file is larger than the maximum of the buf; ERR_NOMEM.
 * Units   bytes. */
#ifndef TARN_BASE_FILE_H
#define TARN_BASE_FILE_H

#include <sys/stat.h>

#include "base/buf.h"

/* Open a regular file for reading. *fd is -1 after an error. */
NODISCARD enum status file_open(int *fd, struct stat *st, const char *path, struct buf *why);
/* Append the whole file to *text. */
NODISCARD enum status file_read(struct buf *text, const char *path, struct buf *why);

#endif
