/* verify.h - tarnctl cache verify: what cache/disk/disk_verify.h found, for people and for programs.
 *
 * Needs no server: it reads the directory itself.
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  an exit code, and words on `err` about what could not be checked.
 * Units   sizes as --kv-disk-bytes takes them: K, M, G, powers of 1024. */
#ifndef TARN_CLIENTS_TARNCTL_VERIFY_H
#define TARN_CLIENTS_TARNCTL_VERIFY_H

#include <stdbool.h>
#include <stdio.h>

enum { VERIFY_FINE = 0, VERIFY_DAMAGED = 1, VERIFY_UNREADABLE = 2 };

/* path: what --kv-disk-path names, or one directory in it. The worst of all directories is
 * returned. Progress goes to `err` if that is a terminal. */
int verify_path(FILE *out, FILE *err, const char *path, bool json);

#endif
