/* metrics_estimates.c - the part of GET /metrics about predictions and targets (SLO). */
#include <stdio.h>

#include "base/check.h"
#include "engine/engine.h"
#include "server/api/exposition.h"
#include "server/api/metrics.h"

static void write_factor(struct page *p, const char *what, bool waits,
                         const struct estimate_factors *f)
{
    const struct {
        const char *name;
        double value;
    } quantiles[] = {{"0.5", f->median}, {"0.9", f->high}};
    char more[96];

    for (size_t i = 0; i < ARRAY_SIZE(quantiles); i++) {
        snprintf(more, sizeof more, ",of=\"%s\",waits=\"%s\",quantile=\"%s\"", what,
                 waits ? "true" : "false", quantiles[i].name);
        page_sample(p, "tarn:estimate_factor", more, quantiles[i].value);
    }
}

static void write_targets(struct page *p, const struct engine_stats *st)
{
    static const char name[] = "tarn:slo_requests_total";
    const struct {
        const char *name;
        const struct slo_count *count;
    } targets[] = {{"ttft", &st->slo_ttft}, {"tpot", &st->slo_tpot}, {"all", &st->slo_all}};
    char more[64];

    page_head(p, name, "counter", "Finished requests with a target, by whether it was met.");
    for (size_t i = 0; i < ARRAY_SIZE(targets); i++) {
        snprintf(more, sizeof more, ",target=\"%s\",result=\"met\"", targets[i].name);
        page_sample(p, name, more, (double)targets[i].count->n_met);
        snprintf(more, sizeof more, ",target=\"%s\",result=\"missed\"", targets[i].name);
        page_sample(p, name, more, (double)targets[i].count->n_missed);
    }
    page_counter(p, "tarn:slo_rejected_total",
                 "Requests refused because they were predicted to miss their target.",
                 st->n_slo_rejected);
}

void metrics_write_estimates(struct page *p, const struct engine_stats *st)
{
    page_gauge(p, "tarn:estimated_ttft_seconds",
               "Predicted time to the first token of a request with a usual prompt.",
               st->usual_ttft_s);
    page_gauge(p, "tarn:estimated_e2e_seconds", "Predicted time to its end.", st->usual_e2e_s);
    page_histogram(p, "tarn:estimate_ttft_error",
                   "|predicted - actual| / actual of the time to the first token.",
                   &st->ttft_error);
    page_histogram(p, "tarn:estimate_e2e_error", "The same of the time to the end.",
                   &st->e2e_error);
    page_head(p, "tarn:estimate_factor", "gauge",
              "Correction: quantiles of actual / predicted by the cost model.");
    for (int waits = 0; waits < 2; waits++) {
        write_factor(p, "ttft", waits, &st->estimator.ttft[waits]);
        write_factor(p, "e2e", waits, &st->estimator.e2e[waits]);
    }
    write_targets(p, st);
}
