/* cache_dir.h - the folder for what outlives the process, and folders below it.
 *
 * Owns    nothing; what is made stays, with mode 0700.
 * Thread  main, at start. Servers that start at once may make the same folder.
 * Errors  NULL, or words that say what is wrong, constant or strerror()'s.
 * Units   none. */
#ifndef TARN_SERVER_CACHE_DIR_H
#define TARN_SERVER_CACHE_DIR_H

#include <limits.h>
#include <stdbool.h>

/* dir: --cache-dir, "": $XDG_CACHE_HOME/tarn or ~/.cache/tarn. False: the environment names no
 * place, or the path is too long. */
bool cache_dir_find(char out[PATH_MAX], const char *dir);

/* mkdir -p; a folder that is there stays as it is. */
const char *cache_dir_make(const char *path);

/* The folder `name` below cache_dir_find()'s, made if need be. One that is a link, or that others
 * can write to, is not taken: what is read from it must be ours. */
const char *cache_dir_open(char out[PATH_MAX], const char *dir, const char *name);

#endif
