/* staging.h - copies the small arrays of a step to the device, all in one copy.
 *
 * The caller begins a step, adds its arrays one by one and sends them. Two pinned buffers take
 * turns, so the caller can add the next step's arrays while the device still copies the last ones.
 * On a host device, ops read the arrays in place and nothing is copied.
 *
 * Owns    two pinned buffers and one on the device, sized once; an event for each of the former.
 * Thread  engine thread only.
 * Errors  staging_create(): ERR_NOMEM. Other functions: errors of the device. Adding more than fits
 *         is a bug (ASSERT).
 * Units   bytes. */
#ifndef TARN_ENGINE_RUN_STAGING_H
#define TARN_ENGINE_RUN_STAGING_H

#include "kernels/device.h"

struct staging;

/* Bytes of the buffer that an array of n_bytes takes. */
#define STAGING_BYTES(n_bytes) (((size_t)(n_bytes) + 15) / 16 * 16)

/* n_bytes_max: the sum of STAGING_BYTES() of all arrays of a step. */
NODISCARD enum status staging_create(struct staging **out, struct device *d, size_t n_bytes_max);
void staging_destroy(struct staging *s); /* NULL is fine */

/* Wait until the copy of the step before the last is done; usually it is. */
NODISCARD enum status staging_begin(struct staging *s);
/* Add an array; return the address at which ops read it after staging_send(), aligned to 16 bytes
 * and valid until the next step is sent. On a host device this is `array` itself, which must not
 * change until then. */
const void *staging_add(struct staging *s, const void *array, size_t n_bytes);
/* Enqueue the copy on the compute stream: ops launched after it see the arrays. */
NODISCARD enum status staging_send(struct staging *s);

#endif
