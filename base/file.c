#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum status file_open(int *fd, struct stat *st, const char *path, struct buf *why)
{
    /* Without O_NONBLOCK, open() of a FIFO waits until somebody writes to it. */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0)
        return buf_why(why, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "cannot open %s: %s", path,
                       strerror(errno));
    if (fstat(*fd, st) == 0 && S_ISREG(st->st_mode))
        return OK;
    close(*fd);
    *fd = -1;
    return buf_why(why, ERR_INVALID, "%s is not a regular file", path);
}

enum status file_read(struct buf *text, const char *path, struct buf *why)
{
    char chunk[65536];
    struct stat st;
    ssize_t n = 0;
    int fd;
    enum status s = file_open(&fd, &st, path, why);

    if (s != OK)
        return s;
    while (s == OK && ((n = read(fd, chunk, sizeof chunk)) > 0 || (n < 0 && errno == EINTR)))
        if (n > 0)
            s = buf_append(text, chunk, (size_t)n);
    if (s == OK && n < 0)
        s = buf_why(why, ERR_IO, "cannot read %s: %s", path, strerror(errno));
    else if (s == ERR_TOO_LARGE)
        buf_why(why, s, "%s is larger than %zu bytes", path, text->max);
    else if (s == ERR_NOMEM)
        buf_why(why, s, "out of memory while reading %s", path);
    close(fd);
    return s;
}
