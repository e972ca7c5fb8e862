#include "cache/disk/disk_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "cache/disk/disk_room.h"

#define LOCK_AGAIN_NS UINT64_C(20000000)
#define READ_BYTES ((size_t)16 << 20) /* read of the table at a time */
/* The share of the file system that stays free; 1 GiB is enough for logs and other programs. */
#define MARGIN_PERCENT 5
#define MARGIN_BYTES_MAX (UINT64_C(1) << 30)

/* The state of opening a directory. */
struct opening {
    const struct disk_dir_config *config;
    char name[DISK_NAME_BYTES]; /* of the fingerprint's directory */
    int root, dir;
    bool made_dir, is_sizing;
    uint32_t n_before;                  /* old headers that are kept */
    uint64_t table_before, data_before; /* old sizes in bytes */
    uint64_t n_more, n_free; /* bytes to allocate, and free bytes of the file system before */
    struct disk_dir *d;
    struct buf *why;
};

#define SAY(o, status, format, ...)                                                                \
    buf_why((o)->why, status, "{kv_disk_path} %s: " format, (o)->config->path, __VA_ARGS__)

/* "1.5 GiB" */
static const char *size_words(char out[32], uint64_t n)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)n;
    unsigned u = 0;

    for (; v >= 1024 && u + 1 < ARRAY_SIZE(units); u++)
        v /= 1024;
    snprintf(out, 32, u ? "%.1f %s" : "%.0f %s", v, units[u]);
    return out;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* --- directories --- */

/* mkdir -p */
static enum status make_root(struct opening *o)
{
    char part[PATH_MAX];
    int n = snprintf(part, sizeof part, "%s", o->config->path);

    if (n <= 0 || n >= PATH_MAX)
        return SAY(o, ERR_INVALID, "%s", n == 0 ? "it names no directory" : "it is too long");
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(part, 0700) != 0 && errno != EEXIST)
            return SAY(o, ERR_IO, "cannot make %s: %s", part, strerror(errno));
        *slash = '/';
    }
    if (mkdir(part, 0700) != 0 && errno != EEXIST)
        return SAY(o, ERR_IO, "cannot make it: %s", strerror(errno));
    return OK;
}

/* Why a directory is not safe, or NULL. Users who can write to it could choose the KV that the
 * model reads. The root may belong to the superuser, as mounted volumes do. */
static const char *look_at(int dir, bool is_root)
{
    mode_t not = is_root ? S_IWOTH : S_IWGRP | S_IWOTH;
    struct stat st;

    if (fstat(dir, &st) != 0)
        return strerror(errno);
    if (st.st_uid != geteuid() && !(is_root && st.st_uid == 0))
        return "it belongs to another user: name a directory of this one's";
    if (st.st_mode & not )
        return "others may write to it: make it private (chmod 700), or name one inside of it";
    return NULL;
}

static enum status open_dir(struct opening *o, int *out, int at, const char *name)
{
    *out = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const char *wrong = *out < 0 && (errno == ENOTDIR || errno == ELOOP)
                            ? "it is a link or no directory: name the directory itself"
                        : *out < 0 ? strerror(errno)
                                   : look_at(*out, at == AT_FDCWD);
    if (!wrong)
        return OK;
    close_fd(out);
    return at == AT_FDCWD ? SAY(o, ERR_INVALID, "%s", wrong)
                          : SAY(o, ERR_INVALID, "%s in it: %s", name, wrong);
}

static enum status open_file(struct opening *o, int *out, const char *name)
{
    struct stat st;

    *out = openat(o->dir, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (*out < 0)
        return SAY(o, ERR_IO, "cannot open %s/%s: %s", o->name, name, strerror(errno));
    if (fstat(*out, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid())
        return SAY(o, ERR_INVALID, "%s/%s is no file of this user's: remove it", o->name, name);
    if ((st.st_mode & 0777) != 0600 && fchmod(*out, 0600) != 0)
        return SAY(o, ERR_IO, "cannot make %s/%s private: %s", o->name, name, strerror(errno));
    return OK;
}

/* --- the lock --- */

static enum status busy(struct opening *o)
{
    char text[16] = "";
    ssize_t n = o->d->lock_fd < 0 ? 0 : pread(o->d->lock_fd, text, sizeof text - 1, 0);

    text[n > 0 ? strspn(text, "0123456789") : 0] = '\0';
    return SAY(o, ERR_BUSY,
               "another tarn-server%s%s%s uses %s in it: give each server a directory of its own",
               text[0] ? " (pid " : "", text, text[0] ? ")" : "", o->name);
}

/* flock(). ERR_BUSY: another process holds the lock. OK on file systems that cannot lock
 * directories. */
static enum status lock(struct opening *o, int fd, bool must)
{
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0)
        return OK;
    if (errno == EWOULDBLOCK)
        return ERR_BUSY;
    return must ? SAY(o, ERR_IO, "cannot lock %s: %s", o->name, strerror(errno)) : OK;
}

static void unlock(struct opening *o)
{
    close_fd(&o->d->table_fd);
    close_fd(&o->d->data_fd);
    close_fd(&o->d->lock_fd);
    close_fd(&o->dir);
    close_fd(&o->root);
}

/* Lock the root first, so that no other process creates, removes or sizes a directory in it. Then
 * the three files: the last requests of a killed server hold data or table, not the lock file. */
static enum status try_lock(struct opening *o)
{
    struct disk_dir *d = o->d;
    enum status s = open_dir(o, &o->root, AT_FDCWD, o->config->path);

    if (s == OK && (s = lock(o, o->root, false)) == ERR_BUSY)
        SAY(o, s, "%s", "other servers begin to use it, and do not end: try again");
    if (s != OK)
        return s;
    if (mkdirat(o->root, o->name, 0700) == 0)
        o->made_dir = true;
    else if (errno != EEXIST)
        return SAY(o, ERR_IO, "cannot make %s in it: %s", o->name, strerror(errno));
    s = open_dir(o, &o->dir, o->root, o->name);
    if (s == OK)
        s = open_file(o, &d->lock_fd, "lock");
    if (s == OK && (s = lock(o, d->lock_fd, true)) == ERR_BUSY)
        return busy(o);
    if (s == OK)
        s = open_file(o, &d->table_fd, "table");
    if (s == OK)
        s = open_file(o, &d->data_fd, "data");
    if (s == OK)
        s = lock(o, d->table_fd, true);
    if (s == OK)
        s = lock(o, d->data_fd, true);
    return s == ERR_BUSY ? busy(o) : s;
}

static enum status lock_all(struct opening *o)
{
    uint64_t deadline = clock_now_ns() + DISK_LOCK_WAIT_NS;
    enum status s;

    while ((s = try_lock(o)) == ERR_BUSY && clock_now_ns() < deadline) {
        unlock(o);
        clock_sleep_ns(LOCK_AGAIN_NS);
    }
    if (s == ERR_BUSY)
        o->made_dir = false; /* another process uses it by now */
    return s;
}

/* Write pid and time to the lock file. Its mtime is the time of last use for disk_room.h. */
static void sign(struct opening *o)
{
    char text[16];
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());

    /* An error matters only for messages. */
    if (ftruncate(o->d->lock_fd, 0) != 0 || pwrite(o->d->lock_fd, text, (size_t)n, 0) != n)
        (void)ftruncate(o->d->lock_fd, 0);
    (void)futimens(o->d->lock_fd, NULL);
}

/* --- how large --- */

static uint64_t dir_bytes(uint32_t n_extents, uint64_t extent_bytes)
{
    /* One page is for the lock file. */
    return disk_table_bytes(n_extents) + n_extents * extent_bytes + DISK_PAGE_BYTES;
}

static uint32_t extents_in(uint64_t n_bytes, uint64_t block_bytes)
{
    return n_bytes < DISK_PAGE_BYTES ? 0 : disk_extents_in(n_bytes - DISK_PAGE_BYTES, block_bytes);
}

static enum status choose_size(struct opening *o)
{
    const struct disk_dir_config *c = o->config;
    struct disk_super *super = &o->d->super;
    uint32_t n = extents_in(c->n_bytes_max, c->block_bytes);
    uint64_t least = dir_bytes(DISK_EXTENTS_MIN, super->extent_bytes);
    struct disk_room room = {.n_running = 0};
    char a[32], b[32], x[32];

    if (n >= DISK_EXTENTS_MIN) {
        enum status s = disk_room_make(&room, o->root, c->path, o->name, c->n_bytes_max,
                                       dir_bytes(n, super->extent_bytes), o->why);
        if (s != OK)
            return s;
        n = extents_in(room.n_left, c->block_bytes);
    }
    o->d->n_removed_dirs = room.n_removed;
    o->d->n_removed_bytes = room.n_removed_bytes;
    super->n_extents = n;
    if (n >= DISK_EXTENTS_MIN)
        return OK;
    if (room.n_running == 0)
        return SAY(o, ERR_INVALID, "{kv_disk_bytes} is %s; this model needs %s at least",
                   size_words(a, c->n_bytes_max), size_words(b, least));
    return SAY(o, ERR_INVALID,
               "{kv_disk_bytes} is %s for all in it, of which %u other running server%s %s %s; "
               "this model needs %s at least: raise it, or give each server a directory of its "
               "own",
               size_words(a, c->n_bytes_max), room.n_running, room.n_running == 1 ? "" : "s",
               room.n_running == 1 ? "has" : "have", size_words(b, room.n_running_bytes),
               size_words(x, least));
}

/* --- room on the file system --- */

static uint64_t allocated_bytes(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

/* The bytes to allocate so that a file has n bytes. */
static uint64_t n_more_bytes(int fd, uint64_t n)
{
    uint64_t n_now = allocated_bytes(fd);

    return n > n_now ? n - n_now : 0;
}

/* Bytes that stay free for other programs. */
static uint64_t margin_bytes(uint64_t n_file_system)
{
    uint64_t share = n_file_system / 100 * MARGIN_PERCENT;

    return share < MARGIN_BYTES_MAX ? share : MARGIN_BYTES_MAX;
}

/* Check the free space before anything changes: an attempt that fails would first fill the file
 * system and harm other programs. File systems that report no figures pass. */
static enum status check_free(struct opening *o)
{
    uint32_t n = o->d->super.n_extents;
    struct statvfs v;
    char a[32], b[32], c[32];

    o->n_more = n_more_bytes(o->d->data_fd, n * o->d->super.extent_bytes) +
                n_more_bytes(o->d->table_fd, disk_table_bytes(n));
    if (fstatvfs(o->d->data_fd, &v) != 0 || v.f_blocks == 0)
        return OK;
    uint64_t margin = margin_bytes((uint64_t)v.f_blocks * v.f_frsize);
    o->n_free = (uint64_t)v.f_bavail * v.f_frsize;
    if (o->n_more == 0 || (o->n_free >= margin && o->n_free - margin >= o->n_more))
        return OK;
    return SAY(o, ERR_IO,
               "its file system has %s free, of which %s stay free, and {kv_disk_bytes} asks for "
               "%s more: ask for less, or free some",
               size_words(a, o->n_free), size_words(b, margin), size_words(c, o->n_more));
}

/* The figures are from before the attempt, which may have filled the file system. */
static enum status no_space(struct opening *o)
{
    const char *cause = errno == EDQUOT ? "a quota is used up" : "others write there too";
    char a[32], b[32];

    if (o->n_free < o->n_more)
        return SAY(o, ERR_IO,
                   "its file system has no room for the %s that {kv_disk_bytes} asks "
                   "for: ask for less, or free some",
                   size_words(a, o->n_more));
    return SAY(o, ERR_IO,
               "its file system had %s free, but refused the %s more that "
               "{kv_disk_bytes} asks for (%s): ask for less, or free some",
               size_words(a, o->n_free), size_words(b, o->n_more), cause);
}

/* Set the size of a file to n bytes and allocate them where the file system can. */
static enum status allocate(struct opening *o, int fd, const char *name, uint64_t n)
{
    struct stat st;

    if (fstat(fd, &st) != 0 || ((uint64_t)st.st_size > n && ftruncate(fd, (off_t)n) != 0))
        return SAY(o, ERR_IO, "cannot size %s/%s: %s", o->name, name, strerror(errno));
    if ((uint64_t)st.st_size >= n && (uint64_t)st.st_blocks * 512 >= n)
        return OK;
    int r;
    do
        r = fallocate(fd, 0, 0, (off_t)n);
    while (r != 0 && errno == EINTR);
    if (r != 0 && (errno == EOPNOTSUPP || errno == ENOSYS))
        r = ftruncate(fd, (off_t)n);
    if (r == 0)
        return OK;
    if (errno == ENOSPC || errno == EDQUOT)
        return no_space(o);
    return SAY(o, ERR_IO, "cannot give %s/%s its %llu bytes: %s", o->name, name,
               (unsigned long long)n, strerror(errno));
}

static uint64_t file_bytes(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* --- the table --- */

static enum status read_all(int fd, uint8_t *out, uint64_t n_bytes)
{
    for (uint64_t at = 0; at < n_bytes;) {
        size_t n = n_bytes - at < READ_BYTES ? n_bytes - at : READ_BYTES;
        ssize_t r = pread(fd, out + at, n, (off_t)at);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return r < 0 ? ERR_IO : ERR_CORRUPT;
        at += (uint64_t)r;
    }
    return OK;
}

static enum status write_page(struct opening *o, uint64_t page)
{
    struct disk_dir *d = o->d;
    ssize_t r;

    do
        r = pwrite(d->table_fd, d->table + page * DISK_PAGE_BYTES, DISK_PAGE_BYTES,
                   (off_t)(page * DISK_PAGE_BYTES));
    while (r < 0 && errno == EINTR);
    if (r == DISK_PAGE_BYTES)
        return OK;
    return SAY(o, ERR_IO, "cannot write %s/table: %s", o->name,
               r < 0 ? strerror(errno) : "the file system is full");
}

/* Whether the old content can be used; if not, why_new says why. */
static void look_at_super(struct opening *o, const uint8_t *page)
{
    struct disk_dir *d = o->d;
    struct disk_super before;
    struct buf why;

    buf_init(&why, sizeof d->why_new - 1);
    if (disk_super_decode(&before, page, &why) != OK)
        snprintf(d->why_new, sizeof d->why_new, "%s", buf_str(&why));
    else if (memcmp(before.fingerprint, d->super.fingerprint, KV_FINGERPRINT_BYTES) != 0)
        snprintf(d->why_new, sizeof d->why_new, "its superblock has another fingerprint");
    else if (before.block_bytes != d->super.block_bytes ||
             before.segment_tokens != d->super.segment_tokens)
        snprintf(d->why_new, sizeof d->why_new, "its superblock has other sizes of blocks");
    else
        o->n_before = before.n_extents;
    buf_fini(&why);
}

static enum status look_at_files(struct opening *o)
{
    struct disk_dir *d = o->d;
    uint8_t *page = aligned_alloc(DISK_PAGE_BYTES, DISK_PAGE_BYTES);
    enum status s = OK;

    if (!page)
        return SAY(o, ERR_NOMEM, "%s", "out of memory");
    o->table_before = file_bytes(d->table_fd);
    o->data_before = file_bytes(d->data_fd);
    if (o->table_before > 0) {
        s = read_all(d->table_fd, page, DISK_PAGE_BYTES);
        if (s == OK)
            look_at_super(o, page);
        else if (s == ERR_CORRUPT)
            snprintf(d->why_new, sizeof d->why_new, "its table is shorter than a superblock");
        else
            SAY(o, s, "cannot read %s/table: %s", o->name, strerror(errno));
    }
    free(page);
    d->is_new = o->n_before == 0;
    return s == ERR_CORRUPT ? OK : s;
}

/* Cut off the headers that are not kept before the file grows again, so that all bytes behind the
 * kept headers are zero. */
static enum status size_files(struct opening *o)
{
    struct disk_dir *d = o->d;
    uint32_t n = d->super.n_extents, kept = n < o->n_before ? n : o->n_before;
    uint64_t table_kept = kept ? disk_table_bytes(kept) : 0;
    enum status s = check_free(o);

    if (s != OK)
        return s;
    o->is_sizing = true;
    if (d->is_new && o->data_before > 0 && ftruncate(d->data_fd, 0) != 0)
        return SAY(o, ERR_IO, "cannot empty %s/data: %s", o->name, strerror(errno));
    if (o->table_before > table_kept && ftruncate(d->table_fd, (off_t)table_kept) != 0)
        return SAY(o, ERR_IO, "cannot cut %s/table: %s", o->name, strerror(errno));
    s = allocate(o, d->data_fd, "data", n * d->super.extent_bytes);
    if (s == OK)
        s = allocate(o, d->table_fd, "table", disk_table_bytes(n));
    o->n_before = kept;
    return s;
}

/* Some file systems accept the flag O_DIRECT but fail the reads. */
static bool try_direct(int fd, uint8_t *page)
{
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT) != 0)
        return false;
    if (pread(fd, page, DISK_PAGE_BYTES, DISK_PAGE_BYTES) == DISK_PAGE_BYTES)
        return true;
    (void)fcntl(fd, F_SETFL, flags);
    return false;
}

static void choose_direct(struct disk_dir *d)
{
    d->is_direct = try_direct(d->table_fd, d->table) && try_direct(d->data_fd, d->table);
    if (!d->is_direct) {
        int flags = fcntl(d->table_fd, F_GETFL);
        if (flags >= 0)
            (void)fcntl(d->table_fd, F_SETFL, flags & ~O_DIRECT);
    }
}

/* Zero everything behind the kept headers, also in their last page. */
static enum status load_table(struct opening *o, uint32_t n_said)
{
    struct disk_dir *d = o->d;
    uint64_t n_bytes = disk_table_bytes(d->super.n_extents);
    uint64_t used = DISK_PAGE_BYTES + (uint64_t)o->n_before * DISK_HEADER_BYTES;
    enum status s = OK;

    d->table = aligned_alloc(DISK_PAGE_BYTES, n_bytes);
    if (!d->table)
        return SAY(o, ERR_NOMEM, "out of memory for the table of %u extents", d->super.n_extents);
    choose_direct(d);
    if (read_all(d->table_fd, d->table, n_bytes) != OK)
        return SAY(o, ERR_IO, "cannot read %s/table: %s", o->name, strerror(errno));
    memset(d->table + used, 0, n_bytes - used);
    if (n_said == d->super.n_extents)
        return OK;
    if (used % DISK_PAGE_BYTES != 0)
        s = write_page(o, used / DISK_PAGE_BYTES);
    disk_super_encode(d->table, &d->super);
    return s == OK ? write_page(o, 0) : s;
}

/* --- open and close --- */

/* Undo a failed opening: files that existed before get their old sizes back. */
static void undo(struct opening *o)
{
    struct disk_dir *d = o->d;

    if (o->made_dir && o->dir >= 0) {
        (void)unlinkat(o->dir, "data", 0);
        (void)unlinkat(o->dir, "table", 0);
        (void)unlinkat(o->dir, "lock", 0);
        (void)unlinkat(o->root, o->name, AT_REMOVEDIR);
    } else if (o->is_sizing && (d->is_new || file_bytes(d->data_fd) >= o->data_before)) {
        (void)ftruncate(d->data_fd, d->is_new ? 0 : (off_t)o->data_before);
    }
    free(d->table);
    unlock(o);
    *d = (struct disk_dir){.table = NULL};
}

enum status disk_dir_open(struct disk_dir *out, const struct disk_dir_config *config,
                          struct buf *why)
{
    struct opening o = {.config = config, .root = -1, .dir = -1, .d = out, .why = why};

    *out = (struct disk_dir){.table_fd = -1, .data_fd = -1, .lock_fd = -1};
    out->super.block_bytes = config->block_bytes;
    out->super.extent_bytes = disk_extent_bytes(config->block_bytes);
    out->super.segment_tokens = config->segment_tokens;
    memcpy(out->super.fingerprint, config->fingerprint, KV_FINGERPRINT_BYTES);
    hash_hex(o.name, config->fingerprint, KV_FINGERPRINT_BYTES);
    snprintf(o.name + 64, sizeof o.name - 64, "-v%d", DISK_FORMAT_VERSION);
    enum status s = make_root(&o);
    if (s == OK)
        s = lock_all(&o);
    if (s == OK)
        s = choose_size(&o);
    if (s == OK)
        s = look_at_files(&o);
    uint32_t n_said = o.n_before;
    if (s == OK)
        s = size_files(&o);
    if (s == OK)
        s = load_table(&o, n_said);
    if (s != OK) {
        undo(&o);
        return s;
    }
    sign(&o);
    close_fd(&o.dir);
    close_fd(&o.root);
    return OK;
}

void disk_dir_close(struct disk_dir *d)
{
    if (!d->table)
        return;
    free(d->table);
    close_fd(&d->table_fd);
    close_fd(&d->data_fd);
    close_fd(&d->lock_fd);
    *d = (struct disk_dir){.table = NULL};
}

/* --- to read only --- */

static enum status open_read(int *out, const char *dir, const char *name, struct buf *why)
{
    char path[PATH_MAX];
    struct stat st;

    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= PATH_MAX)
        return buf_why(why, ERR_INVALID, "the path is too long");
    *out = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (*out < 0)
        return buf_why(why, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: %s", path,
                       strerror(errno));
    if (fstat(*out, &st) != 0 || !S_ISREG(st.st_mode))
        return buf_why(why, ERR_INVALID, "%s: it is no file", path);
    return OK;
}

static enum status read_super(struct disk_dir *d, const char *dir, struct buf *why)
{
    uint8_t *page = aligned_alloc(DISK_PAGE_BYTES, DISK_PAGE_BYTES);
    enum status s = page ? read_all(d->table_fd, page, DISK_PAGE_BYTES) : ERR_NOMEM;

    if (s == OK)
        s = disk_super_decode(&d->super, page, why);
    else
        buf_why(why, s, "%s/table: %s", dir,
                s == ERR_CORRUPT ? "it is shorter than a superblock"
                : s == ERR_NOMEM ? "out of memory"
                                 : strerror(errno));
    free(page);
    return s;
}

/* The superblock's figures are used only as far as the file goes. */
static enum status read_table(struct disk_dir *d, const char *dir, struct buf *why)
{
    uint64_t there = file_bytes(d->table_fd);
    enum status s = read_super(d, dir, why);

    if (s != OK)
        return s;
    uint64_t n_bytes = disk_table_bytes(d->super.n_extents);
    if (there < n_bytes)
        return buf_why(why, ERR_CORRUPT, "%s/table has %llu bytes, but its superblock says %llu",
                       dir, (unsigned long long)there, (unsigned long long)n_bytes);
    d->table = aligned_alloc(DISK_PAGE_BYTES, n_bytes);
    if (!d->table)
        return buf_why(why, ERR_NOMEM, "%s/table: out of memory", dir);
    s = read_all(d->table_fd, d->table, n_bytes);
    return s == OK ? OK : buf_why(why, s, "%s/table: it cannot be read", dir);
}

enum status disk_dir_open_to_read(struct disk_dir *out, const char *dir, struct buf *why)
{
    *out = (struct disk_dir){.table_fd = -1, .data_fd = -1, .lock_fd = -1};
    enum status s = open_read(&out->table_fd, dir, "table", why);

    if (s == OK)
        s = open_read(&out->data_fd, dir, "data", why);
    if (s == OK)
        s = read_table(out, dir, why);
    if (s == OK)
        return OK;
    close_fd(&out->table_fd);
    close_fd(&out->data_fd);
    free(out->table);
    *out = (struct disk_dir){.table = NULL};
    return s;
}
