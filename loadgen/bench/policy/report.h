/* report.h - results as a table or as JSON (fields: README.md of this folder).
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  ERR_TOO_LARGE, ERR_NOMEM of the buffer.
 * Units   as in replay.h. */
#ifndef TARN_LOADGEN_BENCH_POLICY_REPORT_H
#define TARN_LOADGEN_BENCH_POLICY_REPORT_H

#include "loadgen/bench/policy/options.h"
#include "loadgen/bench/policy/replay.h"

/* results [n_policies][n_shares] in the order of the options. */
NODISCARD enum status report_table(struct buf *out, const struct sim_options *o,
                                   const struct paths *p, const struct replay_result *results);
NODISCARD enum status report_json(struct buf *out, const struct sim_options *o,
                                  const struct paths *p, const struct replay_result *results);

#endif
