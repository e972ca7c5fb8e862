/* staging.h - the small arrays of a step on their way to the device, all in one copy.
 *
 * A step begins, its arrays are added one by one, then they are sent. There are two pinned buffers,
 * so that the next step's arrays can be added while the last step's are still copied. On a host
 * device arrays are read where they are, and nothing is copied.
 *
 * Owns    two pinned buffers and one on the device, sized once; an event for each of the former.
 * Thread  engine thread only.
 * Errors  staging_create(): ERR_NOMEM. The rest: what the device answers. Adding more than fits is
 * a
 *         bug (ASSERT).
 * Units   bytes. */
#ifndef TARN_ENGINE_RUN_STAGING_H
#define TARN_ENGINE_RUN_STAGING_H

#include "kernels/device.h"

struct staging;

/* What an array of n_bytes takes. */
#define STAGING_BYTES(n_bytes) (((size_t)(n_bytes) + 15) / 16 * 16)

/* n_bytes_max: the sum of STAGING_BYTES() of all arrays of a step. */
NODISCARD enum status staging_create(struct staging **out, struct device *d, size_t n_bytes_max);
void staging_destroy(struct staging *s); /* NULL is fine */

/* Waits until the copy of the step before the last has left its buffer; usually it has. */
NODISCARD enum status staging_begin(struct staging *s);
/* Returns where the array will lie for ops after staging_send(), aligned to 16 bytes, until the
 * next step is sent. On a host device `array` itself, which then has to stay as it is. */
const void *staging_add(struct staging *s, const void *array, size_t n_bytes);
/* One copy, on the compute stream: what is launched there later sees the arrays. */
NODISCARD enum status staging_send(struct staging *s);

#endif
