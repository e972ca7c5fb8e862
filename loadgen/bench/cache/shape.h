/* shape.h - the measured model, and the configuration that the engines of all parts share.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  model_config_load()'s, with its words.
 * Units   bytes. */
#ifndef TARN_LOADGEN_BENCH_CACHE_SHAPE_H
#define TARN_LOADGEN_BENCH_CACHE_SHAPE_H

#include "engine/engine.h"
#include "loadgen/bench/engine/counts.h"
#include "loadgen/bench/cache/model_files.h"
#include "loadgen/bench/cache/options.h"

/* Read the shape of --model, with the options' dtypes. Without --model a directory is made for the
 * shape that the project's figures are stated for (0.49 B parameters); model_files_remove() when
 * the engines have read it, also after an error. *dir points into the options or `files`. */
NODISCARD enum status shape_open(struct bench_shape *shape, bool *tied, const char **dir,
                                 struct model_files *files, const struct cachebench_options *o,
                                 struct buf *why);
/* KV of 32 tokens. */
uint64_t shape_block_bytes(const struct bench_shape *shape);
/* A CPU engine over that model; sizes are the caller's. */
void shape_engine_config(struct engine_config *c, const struct cachebench_options *o,
                         const char *dir);

#endif
