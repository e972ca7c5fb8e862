/* lines.h - an untrusted text file, line by line, with errors that name file:line.
 *
 * Owns    the open file and one line: lines_close().
 * Thread  one at a time.
 * Errors  ERR_NOT_FOUND, ERR_IO, ERR_TOO_LARGE (over LINES_FILE_BYTES_MAX), ERR_INVALID,
 *         ERR_NOMEM.
 * Units   lines count from 1. */
#ifndef TARN_LOADGEN_LOAD_LINES_H
#define TARN_LOADGEN_LOAD_LINES_H

#include <stdbool.h>
#include <stdio.h>

#include "base/json.h"

#define LINES_FILE_BYTES_MAX ((uint64_t)1 << 30)

struct lines {
    FILE *f;
    char *path;
    char *text; /* the line, without its end; borrowed until the next one */
    size_t len;
    size_t cap;
    uint64_t n; /* number of the line */
};

NODISCARD enum status lines_open(struct lines *l, const char *path, struct buf *why);
void lines_close(struct lines *l); /* also fine on a zeroed struct */
/* Read the next line that is not blank; *more is false at the end. */
NODISCARD enum status lines_next(struct lines *l, bool *more, struct buf *why);
/* Put "file:line: " before the words; returns s. */
enum status lines_why(const struct lines *l, struct buf *why, enum status s, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The line as a JSON object; the caller unrefs it. */
NODISCARD enum status lines_json(const struct lines *l, struct json **out, struct buf *why);

/* --- CSV without quotes, the first line being a header --- */

#define CSV_N_FIELDS_MAX 32

struct csv {
    struct lines lines;
    char *header;
    char *names[CSV_N_FIELDS_MAX];
    char *fields[CSV_N_FIELDS_MAX]; /* of the current line */
    uint32_t n;
};

NODISCARD enum status csv_open(struct csv *c, const char *path, struct buf *why);
void csv_close(struct csv *c);
NODISCARD enum status csv_next(struct csv *c, bool *more, struct buf *why);
/* The column called one of names[0..n), or -1. */
int csv_column(const struct csv *c, const char *const *names, size_t n);
/* A whole number in [min, max] of the current line. */
NODISCARD enum status csv_u64(const struct csv *c, int column, uint64_t min, uint64_t max,
                              uint64_t *out, struct buf *why);

#endif
