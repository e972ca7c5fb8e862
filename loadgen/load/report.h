/* report.h - the result of a run as a table, JSON, CSV and raw JSON lines.
 *
 * The first half of the table is that of `vllm bench serve`, line for line, because scripts parse
 * it; Tarn's own lines follow. JSON has the field names of vLLM's result file and further ones in
 * the same manner; loadgen/README.md documents them.
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  ERR_IO with words, ERR_NOMEM.
 * Units   milliseconds where a name says so; vLLM's per-request lists are in seconds. */
#ifndef TARN_LOADGEN_LOAD_REPORT_H
#define TARN_LOADGEN_LOAD_REPORT_H

#include <stdio.h>

#include "base/http.h"
#include "base/json.h"
#include "loadgen/load/metrics.h"
#include "loadgen/load/options.h"
#include "loadgen/sim/result.h"
#include "loadgen/load/target.h"
#include "loadgen/load/verify.h"

struct report {
    const struct options *options;
    const struct target *target;
    const struct metrics *metrics;
    const struct outcome_list *outcomes;
    const struct verify_result *verify; /* NULL: not asked for */
    const struct http_loop_stats *loop;
    uint64_t start_ns; /* of the first arrivals */
    bool interrupted;
    const struct sim_result *sim; /* NULL: a live run */
};

/* Whether the generator's own lag shows in the results. */
bool report_is_late(const struct report *r);
void report_print(FILE *f, const struct report *r);
/* js_unref(); NULL without memory. */
struct json *report_json(const struct report *r);
/* Write all files that the options ask for. */
NODISCARD enum status report_write_files(const struct report *r, struct buf *why);

/* Make --result-dir and the directories above it, before the run: an error must not cost the
 * results. ERR_INVALID with words. */
NODISCARD enum status report_make_dir(const struct options *o, struct buf *why);

/* Shared with compare's report. */
NODISCARD enum status report_write_json(const struct json *j, const struct options *o,
                                        struct buf *why);

#endif
