/* report.h - figures for people, and as JSON (README.md of this folder documents every field).
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE of the buffer.
 * Units   as the fields' names say. */
#ifndef TARN_LOADGEN_BENCH_SCHED_REPORT_H
#define TARN_LOADGEN_BENCH_SCHED_REPORT_H

#include "loadgen/bench/sched/planning.h"

NODISCARD enum status schedbench_report_text(struct buf *out, const struct planning_result *r,
                                             uint32_t n);
NODISCARD enum status schedbench_report_json(struct buf *out, const struct planning_result *r,
                                             uint32_t n);

#endif
