/* cost.h - the cost model of a simulation: a built-in one, or a file of engine/sched/cost_model.h.
 *
 * The built-in one is OPT-13B on one A100 with 40 GB as FastServe's authors measured it: a decode
 * step of about 30 ms at batch 16, nearly whatever the batch; 0.17 ms per token of a prefill. As a
 * formula, in ms:
 *   a step of n sequences that decode behind c tokens each   27 + 0.0006 c n
 *   a chunk of n tokens behind c                             27 + 0.17 n + 0.0006 c
 * of which a step of several things pays the 27 (weights are read, kernels are launched) once.
 * 0.0006 ms is what reading the KV of a token takes: 0.82 MB at 1.4 TB/s.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  ERR_NOT_FOUND, ERR_INVALID with words that name the file.
 * Units   tokens, seconds. */
#ifndef TARN_LOADGEN_SIM_COST_H
#define TARN_LOADGEN_SIM_COST_H

#include "engine/sched/cost_model.h"

/* KV of a token in that model: 40 layers, K and V of 5120 fp16 numbers. */
#define SIM_BUILTIN_BYTES_PER_TOKEN 819200
#define SIM_BUILTIN_NAME "OPT-13B on A100-40G (built-in)"

NODISCARD enum status sim_cost_builtin(struct cost_model *m, struct buf *why);
/* Read a file of any model and device. */
NODISCARD enum status sim_cost_load(struct cost_model *m, const char *path, struct buf *why);

#endif
