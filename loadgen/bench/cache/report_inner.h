/* report_inner.h - what report.c and report_disk.c share.
 *
 * Owns    nothing.
 * Thread  one.
 * Errors  ERR_NOMEM, ERR_TOO_LARGE of the buffer.
 * Units   the values'. */
#ifndef TARN_LOADGEN_BENCH_CACHE_REPORT_INNER_H
#define TARN_LOADGEN_BENCH_CACHE_REPORT_INNER_H

#include "loadgen/bench/cache/report.h"

/* An appender that does nothing after the first failure. */
#define PUT(...)                                                                                   \
    do {                                                                                           \
        if (s == OK)                                                                               \
            s = buf_printf(out, __VA_ARGS__);                                                      \
    } while (0)

const char *report_verdict(double value, double target); /* "met": at most the target; "missed" */
/* "name": {...} */
NODISCARD enum status report_json_figure(struct buf *out, const char *name, const struct figure *f);
/* The same, with a comma behind. */
NODISCARD enum status report_json_field(struct buf *out, const char *name, const struct figure *f);

/* Parts disk, writes and index, as far as they ran; in JSON each begins with a comma. */
NODISCARD enum status report_disk_text(struct buf *out, const struct cachebench_results *r);
NODISCARD enum status report_disk_json(struct buf *out, const struct cachebench_results *r);

#endif
