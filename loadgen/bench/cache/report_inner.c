#include "loadgen/bench/cache/report_inner.h"

#include <inttypes.h>

const char *report_verdict(double value, double target)
{
    return value <= target ? "met" : "missed";
}

enum status report_json_figure(struct buf *out, const char *name, const struct figure *f)
{
    return buf_printf(out,
                      "\"%s\": {\"n\": %" PRIu32 ", \"median\": %.6g, \"min\": %.6g, \"max\": "
                      "%.6g, \"p90\": %.6g}",
                      name, f->n, f->median, f->min, f->max, f->p90);
}

enum status report_json_field(struct buf *out, const char *name, const struct figure *f)
{
    enum status s = report_json_figure(out, name, f);

    return s == OK ? buf_puts(out, ", ") : s;
}
