/* verify.h - tarnctl cache verify: checks a disk tier by cache/disk/disk_verify.h and prints the
 * result as text or JSON. No server is needed.
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  an exit code, and messages on `err` about directories that could not be checked.
 * Units   sizes as --kv-disk-bytes takes them: K, M, G, powers of 1024. */
#ifndef TARN_CLIENTS_TARNCTL_VERIFY_H
#define TARN_CLIENTS_TARNCTL_VERIFY_H

#include <stdbool.h>
#include <stdio.h>

enum { VERIFY_FINE = 0, VERIFY_DAMAGED = 1, VERIFY_UNREADABLE = 2 };

/* Check all directories. path: the directory of --kv-disk-path, or one directory in it. Return the
 * worst result of all directories. Print progress to `err` if that is a terminal. */
int verify_path(FILE *out, FILE *err, const char *path, bool json);

#endif
