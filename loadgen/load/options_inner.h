/* options_inner.h - from the texts of options to the configuration of a run.
 *
 * Owns    as options.h.
 * Thread  as options.h.
 * Errors  as options.h.
 * Units   as options.h. */
#ifndef TARN_LOADGEN_LOAD_OPTIONS_INNER_H
#define TARN_LOADGEN_LOAD_OPTIONS_INNER_H

#include "loadgen/load/options.h"

/* Fill config, closed and percents; refuse options that contradict each other. */
NODISCARD enum status options_resolve(struct options *o, struct buf *why);
/* Apply vLLM's flags: --dataset-name, --backend, --endpoint, --header KEY=VALUE and sampling
 * parameters. The call precedes options_resolve(), whose defaults depend on the workload. */
NODISCARD enum status options_apply_vllm(struct options *o, struct buf *why);

#endif
