/* cache_table.h - the JSON of Tarn's /cache as tables for people.
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  ERR_INVALID: that is no answer of /cache (nothing was printed). ERR_NOMEM. A field that
 *         is missing or of another type is shown as "-".
 * Units   sizes as --kv-device-bytes takes them: K, M, G, powers of 1024. */
#ifndef TARN_CLIENTS_TARNCTL_CACHE_TABLE_H
#define TARN_CLIENTS_TARNCTL_CACHE_TABLE_H

#include <stddef.h>
#include <stdio.h>

#include "base/status.h"

/* What GET /cache, DELETE /cache and DELETE /cache?span=KEY answered. */
NODISCARD enum status cache_table_print(FILE *f, const char *json, size_t len);
NODISCARD enum status cache_reset_print(FILE *f, const char *json, size_t len);
NODISCARD enum status cache_erase_print(FILE *f, const char *json, size_t len);

#define CACHE_KEY_DIGITS 64
#define CACHE_KEY_DIGITS_SHOWN 12 /* of a span's key in the table: enough to tell spans apart */

/* The key among the spans of GET /cache that begins with `first`, in any case of its letters.
 * Returns how many there are; key [CACHE_KEY_DIGITS + 1] is the first one's. 0: none, or that is no
 * answer of /cache. */
size_t cache_key_find(char *key, const char *json, size_t len, const char *first);

#endif
