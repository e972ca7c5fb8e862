/* cache_table.h - prints the JSON of Tarn's /cache as tables.
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  ERR_INVALID: the JSON is not an answer of /cache (nothing is printed). ERR_NOMEM. A field
 *         that is missing or of another type is printed as "-".
 * Units   sizes as --kv-device-bytes takes them: K, M, G, powers of 1024. */
#ifndef TARN_CLIENTS_TARNCTL_CACHE_TABLE_H
#define TARN_CLIENTS_TARNCTL_CACHE_TABLE_H

#include <stddef.h>
#include <stdio.h>

#include "base/status.h"

/* Print the answer of GET /cache, DELETE /cache and DELETE /cache?span=KEY. */
NODISCARD enum status cache_table_print(FILE *f, const char *json, size_t len);
NODISCARD enum status cache_reset_print(FILE *f, const char *json, size_t len);
NODISCARD enum status cache_erase_print(FILE *f, const char *json, size_t len);

#define CACHE_KEY_DIGITS 64
#define CACHE_KEY_DIGITS_SHOWN 12 /* digits in the table, enough to distinguish spans */

/* Find the spans of an answer of GET /cache whose key begins with `first`, in upper or lower case.
 * Return their number; key [CACHE_KEY_DIGITS + 1] is the key of the first one. 0: none, or the
 * JSON is not an answer of /cache. */
size_t cache_key_find(char *key, const char *json, size_t len, const char *first);

#endif
