#include "base/save_file.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool write_text(void *arg, FILE *f)
{
    const struct buf *text = arg;

    return fwrite(text->data, 1, text->len, f) == text->len;
}

static enum status write_all(const char *path, bool (*write)(void *arg, FILE *f), void *arg,
                             struct buf *why)
{
    FILE *f = fopen(path, "w");
    bool good;

    if (!f)
        return buf_why(why, ERR_IO, "%s: %s", path, strerror(errno));
    good = write(arg, f) && fflush(f) == 0 && fsync(fileno(f)) == 0;
    good &= fclose(f) == 0;
    return good ? OK : buf_why(why, ERR_IO, "%s: %s", path, strerror(errno));
}

enum status save_file_by(const char *path, bool (*write)(void *arg, FILE *f), void *arg,
                         struct buf *why)
{
    char unfinished[PATH_MAX];

    if (snprintf(unfinished, sizeof unfinished, "%s.new", path) >= (int)sizeof unfinished)
        return buf_why(why, ERR_INVALID, "%s: the path is too long", path);
    enum status s = write_all(unfinished, write, arg, why);
    if (s == OK && rename(unfinished, path) != 0)
        s = buf_why(why, ERR_IO, "%s: %s", path, strerror(errno));
    if (s != OK)
        unlink(unfinished);
    return s;
}

enum status save_file(const char *path, const struct buf *text, struct buf *why)
{
    return save_file_by(path, write_text, (void *)text, why);
}
