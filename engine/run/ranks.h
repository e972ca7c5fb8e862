/* ranks.h - the further devices that compute one model together with the engine's device.
 *
 * Each has a thread, which only launches: the engine thread hands it each step through a ring,
 * launches the step on its own device meanwhile, and then waits until all have launched. So before
 * anybody waits for a device, every device has been given every collective of the step, and none
 * waits for another one for ever.
 *
 * A step that one device refuses fails on all, and the next one may succeed. When a device has
 * failed for good, in a launch or later, the whole group is declared as failed.
 *
 * Owns    the forward passes and threads of ranks 1 to n - 1; borrows devices, model, weights.
 * Thread  all calls: engine thread.
 * Errors  ranks_create(): ERR_NOMEM, and as forward_create(). ranks_end(): as forward_run().
 * Units   none. */
#ifndef TARN_ENGINE_RUN_RANKS_H
#define TARN_ENGINE_RUN_RANKS_H

#include "engine/run/forward.h"

struct ranks;

/* first: the configuration of rank 0, without `ranks`, which all share but for group.rank and the
 * weights; weights [group.n]: of each rank, the first is not read. */
NODISCARD enum status ranks_create(struct ranks **out, const struct forward_config *first,
                                   const struct weights *weights);
/* Wait for what was launched, and end the threads. NULL is fine. */
void ranks_destroy(struct ranks *r);

/* Have all ranks launch a batch, or the logits of rows [n]. Batch, pools and rows stay as they are
 * until ranks_end(). */
void ranks_begin(struct ranks *r, struct batch *batch, const struct kv_pool *pools);
void ranks_begin_logits(struct ranks *r, const uint32_t *rows, uint32_t n);
/* Wait until all ranks have launched. own: how rank 0 fared. Returns it, or the error of a rank. */
NODISCARD enum status ranks_end(struct ranks *r, enum status own);

#endif
