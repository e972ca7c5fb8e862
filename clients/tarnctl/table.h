/* table.h - rows of cells that are printed in aligned columns; the first and the last column are
 * aligned left, the others right. Also reads the JSON fields that become cells.
 *
 * Cells come from a server, so characters that a terminal could obey are printed as '?'.
 *
 * Owns    its cells: table_destroy().
 * Thread  one.
 * Errors  a full table ignores further rows and cells; a long cell is cut.
 * Units   width in characters of UTF-8. */
#ifndef TARN_CLIENTS_TARNCTL_TABLE_H
#define TARN_CLIENTS_TARNCTL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/json.h"

#define TABLE_N_ROWS_MAX 1025 /* a page of 1000 documents and the heads */
#define TABLE_CELL_BYTES 64

struct table;

struct table *table_create(void);    /* NULL: out of memory */
void table_destroy(struct table *t); /* NULL is fine */
/* Remove all rows, and begin with a row of heads. */
void table_reset(struct table *t, const char *const *heads, size_t n);
/* False when no more rows fit. */
bool table_row(struct table *t);
void table_cell(struct table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A count of this name, or "-". */
void table_count(struct table *t, const struct json *o, const char *key);
void table_print(FILE *f, const struct table *t);

/* Replace the characters of a text that a terminal could obey. */
void table_clean(char *text);
/* The string of this name, or "-". */
const char *table_text_of(const struct json *o, const char *key);
/* The count of this name, or 0. */
long long table_count_of(const struct json *o, const char *key);
bool table_is_yes(const struct json *o, const char *key);

#endif
