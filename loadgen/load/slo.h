/* slo.h - what a request must meet to count as goodput, written as vLLM's --goodput:
 *
 *     ttft:200 tpot:50 e2el:10000     (also separated by commas)
 *
 * Owns    nothing; plain data.
 * Thread  any.
 * Errors  ERR_INVALID with words.
 * Units   milliseconds; a limit of 0 is none. `normalized` is ms per output token. */
#ifndef TARN_LOADGEN_LOAD_SLO_H
#define TARN_LOADGEN_LOAD_SLO_H

#include <stdbool.h>

#include "base/buf.h"

enum slo_metric { SLO_TTFT, SLO_TPOT, SLO_E2EL, SLO_NORMALIZED, N_SLO_METRICS };

struct slo {
    double limit_ms[N_SLO_METRICS];
};

/* Add the limits of `text` to those of *slo. */
NODISCARD enum status slo_parse(struct slo *s, const char *text, struct buf *why);
/* Set the limit of one metric, as in a tenant's ttft=500. ERR_NOT_FOUND for an unknown name. */
NODISCARD enum status slo_set(struct slo *s, const char *metric, const char *limit,
                              struct buf *why);
bool slo_is_set(const struct slo *s);
/* Limits are inclusive, as vLLM's. */
bool slo_is_met(const struct slo *s, const double measured_ms[N_SLO_METRICS]);
const char *slo_metric_name(enum slo_metric m);

#endif
