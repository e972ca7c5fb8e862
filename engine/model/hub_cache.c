#include "engine/model/hub_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define READ_BYTES 65536
#define PATH_MAX_HERE (2 * HUB_PATH_BYTES_MAX)

/* The words of a system call that failed. */
static enum status io_error(struct buf *why, const char *path)
{
    int error = errno;

    if (error == ENOSPC || error == EDQUOT)
        return buf_why(why, ERR_FULL, "%s: %s", path, strerror(error));
    return buf_why(why, ERR_IO, "%s: %s", path, strerror(error));
}

/* Make the directories of a path: all of it, or all but the last part. */
static enum status make_directories(const char *path, bool all, struct buf *why)
{
    char part[PATH_MAX_HERE];
    size_t n = strlen(path);

    if (n >= sizeof part)
        return buf_why(why, ERR_INVALID, "the path of the cache is too long");
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && (i < n || !all))
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return io_error(why, part);
    }
    return OK;
}

enum status hub_cache_open(struct hub_cache *c, const struct hub_name *h, struct buf *why)
{
    static const char *const folders[] = {"blobs", "refs", "snapshots"};
    char root[HUB_PATH_BYTES_MAX], path[PATH_MAX_HERE];
    enum status s = OK;

    hub_cache_root(root);
    if (root[0] != '/' && root[0] != '.')
        return buf_why(why, ERR_INVALID, "the Hugging Face cache: no absolute path: %s (HF_HOME)",
                       root);
    if (snprintf(c->root, sizeof c->root, "%s", root) >= (int)sizeof c->root ||
        snprintf(c->repo, sizeof c->repo, "%s/models--%s--%s", root, h->org, h->name) >=
            (int)sizeof c->repo)
        return buf_why(why, ERR_INVALID, "the path of the cache is too long");
    for (size_t i = 0; s == OK && i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "%s/%s", c->repo, folders[i]);
        s = make_directories(path, true, why);
    }
    snprintf(path, sizeof path, "%s/.locks/models--%s--%s", root, h->org, h->name);
    return s == OK ? make_directories(path, true, why) : s;
}

enum status hub_cache_free_bytes(const struct hub_cache *c, uint64_t *out, struct buf *why)
{
    struct statvfs v;

    if (statvfs(c->repo, &v) != 0)
        return io_error(why, c->repo);
    *out = (uint64_t)v.f_bavail * v.f_frsize;
    return OK;
}

static void blob_path(const struct hub_cache *c, const struct hub_file *f, const char *end,
                      char path[PATH_MAX_HERE])
{
    snprintf(path, PATH_MAX_HERE, "%s/blobs/%s%s", c->repo, f->sum, end);
}

static bool has_bytes(const char *path, uint64_t *n_bytes)
{
    struct stat st;

    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return false;
    *n_bytes = (uint64_t)st.st_size;
    return true;
}

uint64_t hub_cache_bytes_here(const struct hub_cache *c, const struct hub_file *f)
{
    char path[PATH_MAX_HERE];
    uint64_t n = 0;

    blob_path(c, f, "", path);
    if (has_bytes(path, &n) && n == f->n_bytes)
        return n;
    blob_path(c, f, ".incomplete", path);
    return has_bytes(path, &n) && n < f->n_bytes ? n : 0;
}

enum status hub_cache_link(const struct hub_cache *c, const char *commit, const struct hub_file *f,
                           struct buf *why)
{
    char path[PATH_MAX_HERE], fresh[PATH_MAX_HERE + 16], target[HUB_PATH_BYTES_MAX];
    size_t n = 0;

    if (snprintf(path, sizeof path, "%s/snapshots/%s/%s", c->repo, commit, f->path) >=
        (int)sizeof path)
        return buf_why(why, ERR_INVALID, "%s: the path is too long", f->path);
    for (const char *p = f->path; *p; p++)
        if (*p == '/')
            n += (size_t)snprintf(target + n, sizeof target - n, "../");
    snprintf(target + n, sizeof target - n, "../../blobs/%s", f->sum);
    enum status s = make_directories(path, false, why);
    if (s != OK)
        return s;
    snprintf(fresh, sizeof fresh, "%s.%ld", path, (long)getpid());
    unlink(fresh);
    if (symlink(target, fresh) != 0)
        return io_error(why, fresh);
    if (rename(fresh, path) != 0) {
        s = io_error(why, path);
        unlink(fresh);
    }
    return s;
}

enum status hub_cache_set_ref(const struct hub_cache *c, const char *revision, const char *commit,
                              struct buf *why)
{
    char path[PATH_MAX_HERE], fresh[PATH_MAX_HERE + 16];

    if (strcmp(revision, commit) == 0)
        return OK;
    snprintf(path, sizeof path, "%s/refs/%s", c->repo, revision);
    snprintf(fresh, sizeof fresh, "%s.%ld", path, (long)getpid());
    FILE *f = fopen(fresh, "w");
    if (!f)
        return io_error(why, fresh);
    bool is_written = fputs(commit, f) >= 0;
    if (fclose(f) != 0 || !is_written || rename(fresh, path) != 0) {
        enum status s = io_error(why, path);
        unlink(fresh);
        return s;
    }
    return OK;
}

enum status hub_cache_snapshot(const struct hub_cache *c, const char *commit, struct buf *path)
{
    return buf_printf(path, "%s/snapshots/%s", c->repo, commit);
}

/* --- a blob --- */

static void begin_sum(struct hub_blob *b)
{
    char head[48];

    if (b->file->is_large) {
        hash_sha256_begin(&b->sha256);
        return;
    }
    /* Git's name of a file: the SHA-1 of "blob SIZE", a zero byte and the content. */
    int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)b->file->n_bytes);
    sha1_begin(&b->sha1);
    sha1_add(&b->sha1, head, (size_t)n + 1);
}

static void add_to_sum(struct hub_blob *b, const void *bytes, size_t n)
{
    if (b->file->is_large)
        hash_sha256_add(&b->sha256, bytes, n);
    else
        sha1_add(&b->sha1, bytes, n);
}

static bool is_sum_right(struct hub_blob *b)
{
    uint8_t sum[HASH_SHA256_BYTES];
    char hex[2 * HASH_SHA256_BYTES + 1];

    if (b->file->is_large)
        hash_sha256_end(&b->sha256, sum);
    else
        sha1_end(&b->sha1, sum);
    hash_hex(hex, sum, b->file->is_large ? HASH_SHA256_BYTES : SHA1_BYTES);
    return strcmp(hex, b->file->sum) == 0;
}

/* Add the first n bytes of the file to a new sum. */
static enum status sum_up(struct hub_blob *b, uint64_t n, struct buf *why)
{
    unsigned char bytes[READ_BYTES];

    begin_sum(b);
    for (uint64_t at = 0; at < n;) {
        size_t want = n - at < sizeof bytes ? (size_t)(n - at) : sizeof bytes;
        ssize_t got = pread(b->fd, bytes, want, (off_t)at);
        if (b->stop && atomic_load(b->stop)) /* a large file takes minutes */
            return buf_why(why, ERR_CANCELLED, "stopped");
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return buf_why(why, ERR_IO, "%s: the unfinished file cannot be read: %s", b->file->path,
                           got < 0 ? strerror(errno) : "its end is missing");
        add_to_sum(b, bytes, (size_t)got);
        at += (uint64_t)got;
    }
    b->n_here = n;
    return OK;
}

enum status hub_blob_cut(struct hub_blob *b, uint64_t from, struct buf *why)
{
    if (from == b->n_here)
        return OK;
    if (from > b->n_here)
        return buf_why(why, ERR_INVALID, "%s: bytes are missing", b->file->path);
    if (ftruncate(b->fd, (off_t)from) != 0)
        return io_error(why, b->file->path);
    return sum_up(b, from, why);
}

enum status hub_blob_add(struct hub_blob *b, const void *bytes, size_t n, struct buf *why)
{
    const char *p = bytes;

    for (size_t done = 0; done < n;) {
        ssize_t k = pwrite(b->fd, p + done, n - done, (off_t)(b->n_here + done));
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return io_error(why, b->file->path);
        done += (size_t)k;
    }
    add_to_sum(b, bytes, n);
    b->n_here += n;
    return OK;
}

/* Take the lock as huggingface_hub does: flock() on .locks/MODEL/CHECKSUM.lock. */
static enum status take_lock(struct hub_blob *b, struct buf *why)
{
    const struct hub_cache *c = b->cache;
    char path[PATH_MAX_HERE];

    snprintf(path, sizeof path, "%s/.locks/%s/%s.lock", c->root, c->repo + strlen(c->root) + 1,
             b->file->sum);
    b->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (b->lock_fd < 0)
        return io_error(why, path);
    if (flock(b->lock_fd, LOCK_EX | LOCK_NB) == 0)
        return OK;
    enum status s = errno == EWOULDBLOCK ? ERR_BUSY : io_error(why, path);
    close(b->lock_fd);
    b->lock_fd = -1;
    return s;
}

enum status hub_blob_open(struct hub_blob *b, const struct hub_cache *c, const struct hub_file *f,
                          const atomic_bool *stop, bool *is_whole, struct buf *why)
{
    char path[PATH_MAX_HERE];
    uint64_t n_bytes = 0;

    *b = (struct hub_blob){.cache = c, .file = f, .stop = stop, .fd = -1, .lock_fd = -1};
    blob_path(c, f, "", path);
    *is_whole = has_bytes(path, &n_bytes) && n_bytes == f->n_bytes;
    if (*is_whole)
        return OK;
    enum status s = take_lock(b, why);
    if (s != OK)
        return s;
    *is_whole = has_bytes(path, &n_bytes) && n_bytes == f->n_bytes; /* another has finished it */
    if (!*is_whole) {
        blob_path(c, f, ".incomplete", path);
        b->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (b->fd < 0)
            s = io_error(why, path);
        else if (!has_bytes(path, &n_bytes))
            s = buf_why(why, ERR_IO, "%s is no plain file", path);
    }
    if (s == OK && !*is_whole) {
        if (n_bytes > f->n_bytes && ftruncate(b->fd, 0) != 0)
            s = io_error(why, path);
        else
            s = sum_up(b, n_bytes > f->n_bytes ? 0 : n_bytes, why);
    }
    if (s != OK || *is_whole)
        hub_blob_close(b);
    return s;
}

enum status hub_blob_finish(struct hub_blob *b, struct buf *why)
{
    char from[PATH_MAX_HERE], to[PATH_MAX_HERE];

    blob_path(b->cache, b->file, ".incomplete", from);
    blob_path(b->cache, b->file, "", to);
    if (b->n_here != b->file->n_bytes || !is_sum_right(b)) {
        unlink(from);
        return buf_why(why, ERR_CORRUPT,
                       "%s: the checksum of what arrived is not the one that the hub lists; the "
                       "bytes were dropped",
                       b->file->path);
    }
    if (fsync(b->fd) != 0 || rename(from, to) != 0)
        return io_error(why, to);
    return OK;
}

void hub_blob_close(struct hub_blob *b)
{
    if (b->fd >= 0)
        close(b->fd);
    if (b->lock_fd >= 0)
        close(b->lock_fd); /* releases the lock; the file stays, as huggingface_hub's do */
    b->fd = b->lock_fd = -1;
}
