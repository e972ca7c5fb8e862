/* report.h - results for a human and as JSON.
 *
 * JSON (one object): {"limits":{...} or null,"rows":[...]}; README.md of this folder names the
 * fields. Rates there are in 1e9 per second; a limit that the machine does not have is null.
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE of the buffer.
 * Units   as the fields' names say. */
#ifndef TARN_LOADGEN_BENCH_ENGINE_REPORT_H
#define TARN_LOADGEN_BENCH_ENGINE_REPORT_H

#include <stdio.h>

#include "loadgen/bench/engine/runner.h"

void report_machine(FILE *f, const struct rig_info *info);
void report_limits(FILE *f, const struct limits *l);
void report_rows(FILE *f, const struct runner_result *r);
void report_profiles(FILE *f, const struct runner_result *r);

/* rows NULL: limits only. limits NULL: not measured. */
NODISCARD enum status report_json(struct buf *out, const struct limits *limits,
                                  const struct runner_result *rows);

#endif
