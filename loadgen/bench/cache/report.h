/* report.h - figures for people, and as JSON (README.md of this folder documents every field).
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE of the buffer.
 * Units   as the fields' names say. */
#ifndef TARN_LOADGEN_BENCH_CACHE_REPORT_H
#define TARN_LOADGEN_BENCH_CACHE_REPORT_H

#include "loadgen/bench/cache/disk_ttft.h"
#include "loadgen/bench/cache/index.h"
#include "loadgen/bench/cache/miss.h"
#include "loadgen/bench/cache/tree.h"
#include "loadgen/bench/cache/ttft.h"
#include "loadgen/bench/cache/writes.h"

/* The results of each part; NULL: the part did not run. */
struct cachebench_results {
    const struct ttft_result *ttft;
    const struct tree_result *tree;
    const struct miss_result *miss;
    const struct disk_ttft_result *disk;
    const struct writes_result *writes;
    const struct index_result *index;
};

NODISCARD enum status cachebench_report_text(struct buf *out, const struct cachebench_results *r);
NODISCARD enum status cachebench_report_json(struct buf *out, const struct cachebench_results *r);

#endif
