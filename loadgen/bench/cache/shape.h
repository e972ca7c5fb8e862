/* shape.h - the model that is measured, and what the parts' engines have in common.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  model_config_load()'s, with its words.
 * Units   bytes. */
#ifndef TARN_LOADGEN_BENCH_CACHE_SHAPE_H
#define TARN_LOADGEN_BENCH_CACHE_SHAPE_H

#include "engine/engine.h"
#include "loadgen/bench/engine/counts.h"
#include "loadgen/bench/cache/options.h"

/* config.json of the shape that the project's figures are stated for: 0.49 B parameters. */
extern const char shape_config_json[];

/* What `dir` says, with the options' dtypes. */
NODISCARD enum status shape_read(struct bench_shape *shape, bool *tied,
                                 const struct cachebench_options *o, const char *dir,
                                 struct buf *why);
/* KV of 32 tokens. */
uint64_t shape_block_bytes(const struct bench_shape *shape);
/* A CPU engine over that model; sizes are the caller's. */
void shape_engine_config(struct engine_config *c, const struct cachebench_options *o,
                         const char *dir);

#endif
