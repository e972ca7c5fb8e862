#include "base/save_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

/* Waits for another process: a save takes milliseconds, a measurement under save_lock_dir() a
 * second. */
#define WAIT_NS UINT64_C(10000000000)
#define NAP_NS UINT64_C(10000000)

/* Take an exclusive lock. False: another process kept it for WAIT_NS. A file system that cannot
 * lock counts as locked: nothing better can be done there. */
static bool lock(int fd)
{
    uint64_t until_ns = clock_now_ns() + WAIT_NS;

    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return true;
        if (clock_now_ns() >= until_ns) {
            errno = EWOULDBLOCK;
            return false;
        }
        clock_sleep_ns(NAP_NS);
    }
    return true;
}

int save_lock_dir(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd >= 0 && !lock(fd)) {
        close(fd);
        return -1;
    }
    return fd;
}

void save_unlock_dir(int fd)
{
    if (fd >= 0)
        close(fd);
}

static bool is_at(int fd, const char *path)
{
    struct stat mine, there;

    return fstat(fd, &mine) == 0 && stat(path, &there) == 0 && mine.st_dev == there.st_dev &&
           mine.st_ino == there.st_ino;
}

/* Open the file and lock it. Whoever had the lock before has renamed or removed the file that was
 * opened: then the next one is opened. -1: errno says why. */
static int open_unfinished(const char *path)
{
    for (;;) {
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);

        if (fd < 0 || (lock(fd) && is_at(fd, path)))
            return fd;
        int error = errno;
        bool is_late = error == EWOULDBLOCK;
        close(fd);
        errno = error;
        if (is_late)
            return -1;
    }
}

/* The lock of `f` ends when it is closed, behind the rename. */
static enum status write_and_rename(FILE *f, const char *unfinished, const char *path,
                                    bool (*write)(void *arg, FILE *f), void *arg, struct buf *why)
{
    if (ftruncate(fileno(f), 0) != 0 || !write(arg, f) || fflush(f) != 0 || fsync(fileno(f)) != 0) {
        enum status s = buf_why(why, ERR_IO, "%s: %s", unfinished, strerror(errno));

        unlink(unfinished);
        return s;
    }
    if (rename(unfinished, path) == 0)
        return OK;
    enum status s = buf_why(why, ERR_IO, "%s: %s", path, strerror(errno));
    unlink(unfinished);
    return s;
}

enum status save_file_by(const char *path, bool (*write)(void *arg, FILE *f), void *arg,
                         struct buf *why)
{
    char unfinished[PATH_MAX];

    if (snprintf(unfinished, sizeof unfinished, "%s.new", path) >= (int)sizeof unfinished)
        return buf_why(why, ERR_INVALID, "%s: the path is too long", path);
    int fd = open_unfinished(unfinished);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!f) {
        enum status s = buf_why(why, ERR_IO, "%s: %s", unfinished, strerror(errno));

        if (fd >= 0)
            close(fd);
        return s;
    }
    enum status s = write_and_rename(f, unfinished, path, write, arg, why);
    (void)fclose(f); /* all of it was written and synchronized */
    return s;
}

static bool write_text(void *arg, FILE *f)
{
    const struct buf *text = arg;

    return fwrite(text->data, 1, text->len, f) == text->len;
}

enum status save_file(const char *path, const struct buf *text, struct buf *why)
{
    return save_file_by(path, write_text, (void *)text, why);
}
