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

/* What GET /cache and DELETE /cache answered. */
NODISCARD enum status cache_table_print(FILE *f, const char *json, size_t len);
NODISCARD enum status cache_reset_print(FILE *f, const char *json, size_t len);

#endif
