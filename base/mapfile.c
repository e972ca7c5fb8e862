#include "base/mapfile.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"

static uint64_t ns_of(struct timespec t)
{
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Map the file, or with fd -1 as many bytes of memory. */
static enum status map(struct mapfile *m, int fd, const struct stat *st, const char *path,
                       struct buf *why)
{
    size_t n = (size_t)st->st_size;
    void *p = fd < 0 ? mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                     : mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0);

    if (p == MAP_FAILED && errno == ENOMEM)
        return buf_why(why, ERR_NOMEM, "out of memory: cannot map %s, %zu bytes", path, n);
    if (p == MAP_FAILED)
        return buf_why(why, ERR_IO, "cannot map %s: %s", path, strerror(errno));
    *m = (struct mapfile){.data = p,
                          .n_bytes = n,
                          .dev = (uint64_t)st->st_dev,
                          .ino = (uint64_t)st->st_ino,
                          .mtime_ns = ns_of(st->st_mtim),
                          .ctime_ns = ns_of(st->st_ctim)};
    return OK;
}

enum status mapfile_open(struct mapfile *m, const char *path, struct buf *why)
{
    struct stat st;
    int fd;

    *m = (struct mapfile){0};
    enum status s = file_open(&fd, &st, path, why);
    if (s == OK && st.st_size > 0)
        s = map(m, fd, &st, path, why);
    if (fd >= 0)
        close(fd);
    return s;
}

/* Fill the memory with the file's bytes. */
static enum status copy(unsigned char *to, size_t n_bytes, int fd, const char *path,
                        struct buf *why)
{
    for (size_t at = 0; at < n_bytes;) {
        ssize_t n = pread(fd, to + at, n_bytes - at, (off_t)at);

        if (n == 0)
            return buf_why(why, ERR_IO, "%s was cut off while it was read", path);
        if (n < 0 && errno != EINTR)
            return buf_why(why, ERR_IO, "cannot read %s: %s", path, strerror(errno));
        at += n > 0 ? (size_t)n : 0;
    }
    return OK;
}

enum status mapfile_copy(struct mapfile *m, const char *path, size_t n_bytes_max, struct buf *why)
{
    struct stat st;
    int fd;

    *m = (struct mapfile){0};
    enum status s = file_open(&fd, &st, path, why);
    if (s == OK && (uint64_t)st.st_size > n_bytes_max)
        s = buf_why(why, ERR_TOO_LARGE, "%s has %lld bytes, more than the %zu that it may have",
                    path, (long long)st.st_size, n_bytes_max);
    if (s == OK && st.st_size > 0)
        s = map(m, -1, &st, path, why);
    if (m->data)
        s = copy((unsigned char *)(uintptr_t)m->data, m->n_bytes, fd, path, why);
    if (s != OK)
        mapfile_close(m);
    if (fd >= 0)
        close(fd);
    return s;
}

enum status mapfile_reopen(const struct mapfile *m, const char *path, int *fd, struct buf *why)
{
    struct stat found;
    enum status s = file_open(fd, &found, path, why);

    if (s != OK)
        return s == ERR_NOT_FOUND ? ERR_IO : s;
    if ((uint64_t)found.st_ino == m->ino && (uint64_t)found.st_dev == m->dev)
        return OK;
    close(*fd);
    *fd = -1;
    return buf_why(why, ERR_IO, "%s was exchanged while it was read", path);
}

void mapfile_close(struct mapfile *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->n_bytes);
    *m = (struct mapfile){0};
}

void mapfile_forget(const void *data, size_t n_bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t)data / page * page;
    uintptr_t end = ((uintptr_t)data + n_bytes + page - 1) / page * page;

    (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}
