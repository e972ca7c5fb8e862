/* attend.h - computes the tiles of a peer's query (pool_config.attend).
 *
 * A device of one thread reads the lent blocks in place. Its kernels are those of the engine's
 * device, so the tiles have the bits that attention on the peer would have computed (promise P1).
 *
 * Owns    the device.
 * Thread  attend_create(), attend_destroy(): the creator's. attend_tiles(): the pool's query
 *         thread, one call at a time.
 * Errors  attend_create(): ERR_NOMEM; ERR_UNSUPPORTED where it is not possible.
 *         attend_tiles(): ERR_INVALID for a query of other shapes than the model's.
 * Units   as struct pool_attend. */
#ifndef TARN_ENGINE_RUN_ATTEND_H
#define TARN_ENGINE_RUN_ATTEND_H

#include "cache/cache.h"
#include "engine/model/model.h"
#include "kernels/device.h"

struct attend;

struct attend_config {
    const struct device *device; /* the engine's */
    const struct model_config *model;
    struct kv_layout layout;
};

/* Whether this device can send queries for the model, and attend to those of peers. Windows and
 * soft caps have no tiles. */
bool attend_is_possible(const struct device *d, const struct model_config *m);
NODISCARD enum status attend_create(struct attend **out, const struct attend_config *config);
void attend_destroy(struct attend *a); /* NULL is fine; no call is under way */

/* arg is the struct attend. The addresses of the blocks lie in one KV memory: whole blocks apart.
 */
NODISCARD enum status attend_tiles(void *arg, const struct pool_attend *x);

#endif
