#include "cache/disk/disk_room.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"

#define N_DIRS_MAX 4096u
#define N_FILES 3

static const char *const file_names[N_FILES] = {"lock", "table", "data"};

struct other {
    char name[DISK_NAME_BYTES];
    uint64_t n_bytes;
    struct timespec used;
    bool runs, is_gone;
};

struct others {
    struct other *all;
    uint32_t n;
};

bool disk_room_is_ours(const char *name)
{
    size_t n_hex = strspn(name, "0123456789abcdef");
    const char *version = name + 66;

    return n_hex == 64 && strncmp(name + 64, "-v", 2) == 0 && version[0] &&
           strlen(version) < DISK_NAME_BYTES - 66 &&
           strspn(version, "0123456789") == strlen(version);
}

enum status disk_room_lock(int dir, int *fds)
{
    for (int i = 0; i < N_FILES; i++) {
        fds[i] = openat(dir, file_names[i], O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fds[i] < 0 || flock(fds[i], LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
            continue;
        for (; i >= 0; i--)
            if (fds[i] >= 0)
                close(fds[i]);
        return ERR_BUSY;
    }
    return OK;
}

/* --- the directories under the root --- */

static bool look_at(struct other *o, int dir)
{
    int fds[N_FILES];
    struct stat st;

    if (fstat(dir, &st) != 0 || st.st_uid != geteuid())
        return false;
    o->used = st.st_mtim;
    for (int i = 0; i < N_FILES; i++) {
        if (fstatat(dir, file_names[i], &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            continue;
        o->n_bytes += (uint64_t)st.st_size;
        if (i == 0)
            o->used = st.st_mtim;
    }
    o->runs = disk_room_lock(dir, fds) != OK;
    for (int i = 0; i < N_FILES && !o->runs; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return true;
}

/* Links and directories of other users are ignored. */
static enum status add(struct others *list, int root, const char *name)
{
    struct other o = {.n_bytes = 0};
    int dir = openat(root, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (dir < 0)
        return OK;
    bool ours = look_at(&o, dir);
    close(dir);
    if (!ours || list->n == N_DIRS_MAX)
        return OK;
    if ((list->n & (list->n - 1)) == 0) { /* full at powers of two */
        struct other *more = realloc(list->all, (list->n ? 2 * list->n : 1) * sizeof *more);
        if (!more)
            return ERR_NOMEM;
        list->all = more;
    }
    memcpy(o.name, name, strlen(name) + 1);
    list->all[list->n++] = o;
    return OK;
}

static enum status find_others(struct others *list, int root, const char *own)
{
    int fd = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    enum status s = OK;
    struct dirent *e;

    if (!d) {
        if (fd >= 0)
            close(fd);
        return ERR_IO;
    }
    while (s == OK && (e = readdir(d)))
        if (disk_room_is_ours(e->d_name) && strcmp(e->d_name, own) != 0)
            s = add(list, root, e->d_name);
    closedir(d);
    return s;
}

/* --- making room --- */

static bool is_older(const struct other *a, const struct other *b)
{
    return a->used.tv_sec != b->used.tv_sec ? a->used.tv_sec < b->used.tv_sec
                                            : a->used.tv_nsec < b->used.tv_nsec;
}

/* The least recently used directory that is not locked, or NULL. */
static struct other *oldest_idle(const struct others *list)
{
    struct other *found = NULL;

    for (uint32_t i = 0; i < list->n; i++) {
        struct other *o = &list->all[i];
        if (!o->runs && !o->is_gone && (!found || is_older(o, found)))
            found = o;
    }
    return found;
}

static uint64_t idle_bytes(const struct others *list)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < list->n; i++)
        if (!list->all[i].runs && !list->all[i].is_gone)
            n += list->all[i].n_bytes;
    return n;
}

/* Remove our files, and the directory unless it contains files of others. */
static enum status remove_one(struct other *o, int root, const char *path, struct buf *why)
{
    int dir = openat(root, o->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int error = dir < 0 ? errno : 0;

    for (int i = N_FILES - 1; !error && i >= 0; i--) /* the lock file last */
        if (unlinkat(dir, file_names[i], 0) != 0 && errno != ENOENT)
            error = errno;
    if (dir >= 0)
        close(dir);
    if (!error && unlinkat(root, o->name, AT_REMOVEDIR) != 0 && errno != ENOTEMPTY &&
        errno != EEXIST)
        error = errno;
    if (error)
        return buf_why(why, ERR_IO,
                       "{kv_disk_path} %s: another model's %s, which no server uses, is to make "
                       "room, but cannot be removed: %s",
                       path, o->name, strerror(error));
    o->is_gone = true;
    return OK;
}

static enum status remove_idle(struct disk_room *out, struct others *list, int root,
                               const char *path, uint64_t n_max, uint64_t n_wanted, struct buf *why)
{
    uint64_t n_free = n_max > out->n_running_bytes ? n_max - out->n_running_bytes : 0;
    enum status s = OK;
    struct other *o;

    if (n_wanted > n_free)
        n_wanted = n_free;
    while (s == OK && idle_bytes(list) > n_free - n_wanted && (o = oldest_idle(list))) {
        s = remove_one(o, root, path, why);
        if (s == OK) {
            out->n_removed++;
            out->n_removed_bytes += o->n_bytes;
        }
    }
    if (s == OK)
        out->n_left = n_free - idle_bytes(list);
    return s;
}

enum status disk_room_make(struct disk_room *out, int root, const char *path, const char *own,
                           uint64_t n_max, uint64_t n_wanted, struct buf *why)
{
    struct others list = {.n = 0};
    enum status s = find_others(&list, root, own);

    *out = (struct disk_room){.n_left = 0};
    if (s != OK)
        buf_why(why, s, "{kv_disk_path} %s: cannot see what is there: %s", path,
                s == ERR_NOMEM ? "out of memory" : strerror(errno));
    for (uint32_t i = 0; i < list.n; i++) {
        out->n_running += list.all[i].runs;
        out->n_running_bytes += list.all[i].runs ? list.all[i].n_bytes : 0;
    }
    if (s == OK)
        s = remove_idle(out, &list, root, path, n_max, n_wanted, why);
    free(list.all);
    return s;
}
