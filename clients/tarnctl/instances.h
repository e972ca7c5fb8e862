/* instances.h - prints the JSON of Tarn's /v1/instances as a table.
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  ERR_INVALID: the JSON is not an answer of /v1/instances (nothing is printed). ERR_NOMEM.
 *         A field that is missing or of another type is printed as "-".
 * Units   blocks, requests. */
#ifndef TARN_CLIENTS_TARNCTL_INSTANCES_H
#define TARN_CLIENTS_TARNCTL_INSTANCES_H

#include <stddef.h>
#include <stdio.h>

#include "base/status.h"

NODISCARD enum status instances_print(FILE *f, const char *json, size_t len);

#endif
