#include "loadgen/bench/cache/disk_place.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define N_FDS 8
#define N_STATES 8 /* of /proc/stat's first line; the last one is "steal" */

enum status disk_place_make(struct disk_place *p, const char *path, struct buf *why)
{
    const char *tmp = path[0] ? path : getenv("TMPDIR");
    int n;

    if (!tmp || !*tmp)
        tmp = "/tmp";
    n = snprintf(p->dir, sizeof p->dir, "%s/tarn-cachebench-disk-XXXXXX", tmp);
    if (n < 0 || (size_t)n >= sizeof p->dir) {
        p->dir[0] = '\0';
        return buf_why(why, ERR_IO, "--disk-path or TMPDIR is longer than %d bytes",
                       DISK_PLACE_PATH_BYTES - 40);
    }
    if (!mkdtemp(p->dir)) {
        p->dir[0] = '\0';
        return buf_why(why, ERR_IO,
                       "cannot make a directory in %s (%s): --disk-path must name a "
                       "directory that can be written",
                       tmp, strerror(errno));
    }
    return OK;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st;
    (void)type;
    (void)where;
    remove(path); /* what stays makes its directory stay, and is seen there */
    return 0;
}

void disk_place_remove(struct disk_place *p)
{
    if (p->dir[0])
        nftw(p->dir, remove_one, N_FDS, FTW_DEPTH | FTW_PHYS);
    p->dir[0] = '\0';
}

static _Thread_local uint64_t n_bytes_seen; /* nftw() hands nothing on to its function */

static int add_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)path;
    (void)where;
    if (type == FTW_F)
        n_bytes_seen += (uint64_t)st->st_blocks * 512;
    return 0;
}

uint64_t disk_place_bytes(const struct disk_place *p)
{
    n_bytes_seen = 0;
    nftw(p->dir, add_one, N_FDS, FTW_PHYS);
    return n_bytes_seen;
}

static int forget_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    int fd = type == FTW_F ? open(path, O_RDONLY | O_CLOEXEC) : -1;

    (void)st;
    (void)where;
    if (fd >= 0) {
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    return 0;
}

void disk_place_forget(const struct disk_place *p)
{
    nftw(p->dir, forget_one, N_FDS, FTW_PHYS);
}

void steal_begin(struct steal *s)
{
    uint64_t v[N_STATES];
    FILE *f = fopen("/proc/stat", "re");

    *s = (struct steal){0};
    if (!f)
        return;
    if (fscanf(f,
               "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
               " %" SCNu64 " %" SCNu64,
               &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7]) == N_STATES) {
        s->stolen = v[N_STATES - 1];
        for (int i = 0; i < N_STATES; i++)
            s->all += v[i];
    }
    fclose(f);
}

double steal_share(const struct steal *since)
{
    struct steal now;

    steal_begin(&now);
    if (now.all <= since->all || now.stolen < since->stolen)
        return 0;
    return (double)(now.stolen - since->stolen) / (double)(now.all - since->all);
}
