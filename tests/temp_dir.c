#include "tests/temp_dir.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_FDS 8

static void die(const char *what, const char *path)
{
    fprintf(stderr, "temp_dir: %s: ", what);
    perror(path);
    abort();
}

void temp_dir_make(struct temp_dir *d)
{
    strcpy(d->path, "/tmp/tarn-disk-XXXXXX");
    if (!mkdtemp(d->path))
        die("cannot make", d->path);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st;
    (void)type;
    (void)where;
    return remove(path);
}

void temp_dir_remove(const struct temp_dir *d)
{
    if (nftw(d->path, remove_one, N_FDS, FTW_DEPTH | FTW_PHYS) != 0)
        die("cannot remove", d->path);
}
