/* options_inner.h - the second half of reading options: from texts to what a run needs.
 *
 * Owns    as options.h.
 * Thread  as options.h.
 * Errors  as options.h.
 * Units   as options.h. */
#ifndef TARN_LOADGEN_LOAD_OPTIONS_INNER_H
#define TARN_LOADGEN_LOAD_OPTIONS_INNER_H

#include "loadgen/load/options.h"

/* Fills config, closed and percents; checks what must fit together. */
NODISCARD enum status options_resolve(struct options *o, struct buf *why);
/* Applies what vLLM's flags mean: --dataset-name, --backend, --endpoint, --header KEY=VALUE and
 * sampling parameters. Runs before options_resolve(), whose defaults depend on the workload. */
NODISCARD enum status options_apply_vllm(struct options *o, struct buf *why);

#endif
