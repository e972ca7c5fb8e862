/* fuzz_folder.h - a folder for targets that read files: in memory where /dev/shm exists.
 *
 * Owns    the folder, removed when the program exits normally.
 * Thread  one.
 * Errors  aborts.
 * Units   bytes. */
#ifndef TARN_TESTS_FUZZ_FUZZ_FOLDER_H
#define TARN_TESTS_FUZZ_FUZZ_FOLDER_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/check.h"

static char fuzz_folder[32];
static char fuzz_files[4][64];
static unsigned fuzz_n_files;

static inline void fuzz_remove_folder(void)
{
    for (unsigned i = 0; i < fuzz_n_files; i++)
        unlink(fuzz_files[i]);
    rmdir(fuzz_folder);
}

/* The folder's path. */
static inline const char *fuzz_make_folder(void)
{
    if (fuzz_folder[0])
        return fuzz_folder;
    bool shm = access("/dev/shm", W_OK) == 0;
    snprintf(fuzz_folder, sizeof fuzz_folder, "%s/tarn-fuzz-XXXXXX", shm ? "/dev/shm" : "/tmp");
    ASSERT(mkdtemp(fuzz_folder) != NULL);
    ASSERT(atexit(fuzz_remove_folder) == 0);
    return fuzz_folder;
}

/* Write a file of the folder; `name` is one of at most four. */
static inline void fuzz_write_file(const char *name, const void *bytes, size_t n)
{
    char path[64];
    unsigned i = 0;

    snprintf(path, sizeof path, "%s/%s", fuzz_make_folder(), name);
    while (i < fuzz_n_files && strcmp(fuzz_files[i], path) != 0)
        i++;
    if (i == fuzz_n_files) {
        ASSERT(i < 4);
        snprintf(fuzz_files[fuzz_n_files++], sizeof path, "%s", path);
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ASSERT(fd >= 0 && (n == 0 || write(fd, bytes, n) == (ssize_t)n));
    close(fd);
}

#endif
