/* cache_dir.h - finds and makes the folder for files that outlive the process, and folders in it.
 *
 * Owns    nothing; folders are made with mode 0700 and never removed.
 * Thread  main, at start. Servers that start at the same time may make the same folder.
 * Errors  NULL for success, or an error message: constant, or from strerror().
 * Units   none. */
#ifndef TARN_SERVER_CACHE_DIR_H
#define TARN_SERVER_CACHE_DIR_H

#include <limits.h>
#include <stdbool.h>

/* Find the folder. dir: --cache-dir, "": $XDG_CACHE_HOME/tarn or ~/.cache/tarn. False: neither
 * XDG_CACHE_HOME nor HOME is set, or the path is too long. */
bool cache_dir_find(char out[PATH_MAX], const char *dir);

/* Make the folder and its parents, as mkdir -p does. An existing folder is left unchanged. */
const char *cache_dir_make(const char *path);

/* Find or make the folder `name` in the folder of cache_dir_find(). Refuses a symbolic link, a
 * folder of another user and one that all users can write to: the server trusts the files that it
 * reads there. */
const char *cache_dir_open(char out[PATH_MAX], const char *dir, const char *name);

#endif
