/* segment_work.h - the order in which a GPU reads the segments of a decode step: one that several
 * sequences have, such as a document or a system prompt, is read once for a group of them.
 *
 * Segments are the same if their positions, their tokens and all their blocks are, which a prefix
 * in the cache gives them. The sum of a row over one segment does not depend on the group, so
 * groups change no bit (promise P1).
 *
 * Owns    its arrays, sized once.
 * Thread  engine thread only.
 * Errors  segment_work_create(): ERR_NOMEM.
 * Units   segments. */
#ifndef TARN_ENGINE_RUN_SEGMENT_WORK_H
#define TARN_ENGINE_RUN_SEGMENT_WORK_H

#include "engine/run/batch.h"

/* A step with more segments has no groups: finding them would take the host too long. */
#define SEGMENT_WORK_MAX 65536

struct segment_work;

/* n_segments_max: of a step, padding included. */
NODISCARD enum status segment_work_create(struct segment_work **out, uint32_t n_segments_max);
void segment_work_destroy(struct segment_work *w); /* NULL is fine */

/* List the segments of the batch's sequences of one row, in groups of at most n_together (1 to
 * ATTN_WORK_MAX), then padding up to n. The result is valid until the next call. */
const struct attn_work *segment_work_list(struct segment_work *w, const struct batch *b,
                                          uint32_t n_together, uint32_t n);

#endif
