/* report.c - the table. */
#include "loadgen/load/report.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "loadgen/load/report_json.h"

#define WIDTH 50
/* From here on the report says that pieces hold several tokens. Below, it is a character that needs
 * two tokens now and then. */
#define TOKENS_PER_PIECE_SAID 1.01

/* Python's centered format: the right side gets the odd one. */
static void print_title(FILE *f, const char *title, char fill)
{
    int n = (int)strlen(title), left = (WIDTH - n) / 2;

    for (int i = 0; i < left; i++)
        fputc(fill, f);
    fputs(title, f);
    for (int i = left + n; i < WIDTH; i++)
        fputc(fill, f);
    fputc('\n', f);
}

static void print_count(FILE *f, const char *name, uint64_t n)
{
    fprintf(f, "%-40s %-10" PRIu64 "\n", name, n);
}

static void print_real(FILE *f, const char *name, double v)
{
    fprintf(f, "%-40s %-10.2f\n", name, v);
}

/* Print nothing for a metric that no request has: a 0 would look like a measurement. */
static void print_metric(FILE *f, const char *title, const char *label, const struct summary *s,
                         const struct percents *percents)
{
    char name[96];

    if (s->n == 0)
        return;
    print_title(f, title, '-');
    snprintf(name, sizeof name, "Mean %s:", label);
    print_real(f, name, s->mean * 1e3);
    snprintf(name, sizeof name, "Median %s:", label);
    print_real(f, name, s->median * 1e3);
    for (uint32_t i = 0; i < percents->n; i++) {
        snprintf(name, sizeof name, "P%g %s:", percents->p[i], label);
        print_real(f, name, s->at[i] * 1e3);
    }
}

static bool lists(const char *list, const char *word)
{
    size_t n = strlen(word);

    for (const char *p = list; *p;) {
        size_t len = strcspn(p, ",");
        if (len == n && strncmp(p, word, n) == 0)
            return true;
        p += len + (p[len] == ',');
    }
    return false;
}

static double per_second(double n, const struct metrics *m)
{
    return m->duration_s > 0 ? n / m->duration_s : 0;
}

/* --- vLLM's half --- */

static void print_counts(FILE *f, const struct report *r)
{
    const struct options *o = r->options;
    const struct metrics *m = r->metrics;
    const struct arrival_config *a = &o->config.arrival;
    const struct group *g = &m->all;
    bool has_rate = arrival_has_rate(a);

    print_title(f, " Serving Benchmark Result ", '=');
    print_count(f, "Successful requests:", g->n_completed);
    print_count(f, "Failed requests:", g->n_failed);
    if (o->concurrency)
        print_count(f, "Maximum request concurrency:", o->concurrency);
    if (has_rate && !a->ramp)
        print_real(f, "Request rate configured (RPS):", a->rate);
    print_real(f, "Benchmark duration (s):", m->duration_s);
    print_count(f, "Total input tokens:", g->prompt_tokens);
    print_count(f, "Total generated tokens:", g->output_tokens);
    print_real(f, "Request throughput (req/s):", per_second((double)g->n_completed, m));
    if (g->n_with_slo)
        print_real(f, "Request goodput (req/s):", per_second((double)g->n_good, m));
    print_real(f, "Output token throughput (tok/s):", per_second((double)g->output_tokens, m));
    print_real(f, "Peak output token throughput (tok/s):", (double)m->peak_output_tokens_per_s);
    print_real(f, "Peak concurrent requests:", (double)m->peak_concurrent);
    print_real(f, "Total token throughput (tok/s):",
               per_second((double)(g->prompt_tokens + g->output_tokens), m));
}

static void print_latencies(FILE *f, const struct report *r)
{
    static const struct {
        enum metric metric;
        const char *title, *label;
    } rows[] = {
        {METRIC_TTFT, "Time to First Token", "TTFT (ms)"},
        {METRIC_TPOT, "Time per Output Token (excl. 1st token)", "TPOT (ms)"},
        {METRIC_ITL, "Inter-token Latency", "ITL (ms)"},
        {METRIC_E2EL, "End-to-end Latency", "E2EL (ms)"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (lists(r->options->percentile_metrics, metric_name(rows[i].metric)))
            print_metric(f, rows[i].title, rows[i].label, &r->metrics->all.of[rows[i].metric],
                         &r->options->percents);
}

/* --- ours --- */

static void print_cached(FILE *f, const struct group *g)
{
    char name[64];

    if (!g->n_said_cached)
        return;
    print_count(f, "Cached prompt tokens:", g->cached_tokens);
    print_real(f, "Cached share of prompts (%):",
               g->prompt_tokens ? 100.0 * (double)g->cached_tokens / (double)g->prompt_tokens : 0);
    for (int t = 0; g->n_said_tiers && t < TARN_N_TIERS; t++) {
        snprintf(name, sizeof name, "  of these from %s:", tarn_tier_name((enum tarn_tier)t));
        print_count(f, name, g->cached_by_tier[t]);
    }
}

static void print_pieces(FILE *f, const struct group *g)
{
    double n = metrics_tokens_per_piece(g);

    if (n < TOKENS_PER_PIECE_SAID)
        return;
    print_real(f, "Tokens per piece of text:", n);
    fputs("NOTE: the server sent several tokens in one piece of text. ITL is the time between\n"
          "      pieces here, not between tokens; TPOT counts tokens.\n",
          f);
}

static void print_errors(FILE *f, const struct report *r)
{
    const struct group *g = &r->metrics->all;
    char name[64];

    if (g->n_completed == 0)
        fputs("No request succeeded: there are no latencies.\n", f);
    else if (g->of[METRIC_E2EL].n == 0)
        fputs("No request that counts has latencies: all were read slowly.\n", f);

    if (g->n_disconnected)
        print_count(f, "Hung up on purpose:", g->n_disconnected);
    if (g->n_slow)
        print_count(f, "Slow readers (latencies not counted):", g->n_slow);
    if (g->n_unfinished)
        print_count(f, "Unfinished when the run ended:", g->n_unfinished);
    for (int e = 0; e < TARN_N_ERRORS; e++)
        if (r->metrics->n_errors[e]) {
            snprintf(name, sizeof name, "Errors, %s:", tarn_error_name((enum tarn_error)e));
            print_count(f, name, r->metrics->n_errors[e]);
        }
    for (size_t i = 0; i < r->outcomes->n; i++) {
        const struct outcome *o = &r->outcomes->v[i];
        if (!o->measured || o->end != OUTCOME_FAILED || !o->message)
            continue;
        fprintf(f, "  first error, request %" PRIu64 ": %.150s\n", o->index, o->message);
        break;
    }
}

static void print_verify(FILE *f, const struct report *r)
{
    const struct verify_result *v = r->verify;

    if (!v)
        return;
    print_title(f, "Answers Compared", '-');
    print_count(f,
                v->cold ? "Sent again alone, cold and warm:" : "Sent again alone (no cache reset):",
                v->n_checked);
    print_count(f, "Under load another text:", v->n_load_differs);
    print_count(f, "Cached another text:", v->n_warm_differs);
    if (v->n_failed)
        print_count(f, "No answer alone:", v->n_failed);
    if (verify_differs(v))
        fprintf(f, "  first: request %" PRIu64 ", from byte %zu on\n", v->first_index,
                v->first_byte);
}

static void print_group_row(FILE *f, const struct group *g, const struct metrics *m)
{
    static const enum metric shown[] = {METRIC_TTFT, METRIC_TPOT, METRIC_E2EL, METRIC_NORMALIZED};
    char good[16] = "-";

    if (g->n_with_slo)
        snprintf(good, sizeof good, "%.1f%%", 100.0 * (double)g->n_good / (double)g->n_with_slo);
    fprintf(f, "%-16.16s %7" PRIu64 " %6" PRIu64, g->name, g->n_completed, g->n_failed);
    for (size_t i = 0; i < ARRAY_SIZE(shown); i++) {
        const struct summary *s = &g->of[shown[i]];
        if (s->n)
            fprintf(f, " %9.1f", s->mean * 1e3);
        else
            fprintf(f, " %9s", "-");
    }
    fprintf(f, " %10.1f %8s\n", per_second((double)g->output_tokens, m), good);
}

static void print_groups(FILE *f, const char *what, const struct group *groups, uint32_t n,
                         const struct metrics *m)
{
    if (n == 0)
        return;
    fprintf(f, "%-16s %7s %6s %9s %9s %9s %9s %10s %8s\n", what, "ok", "failed", "TTFT ms",
            "TPOT ms", "E2E ms", "norm ms", "out tok/s", "in SLO");
    for (uint32_t i = 0; i < n; i++)
        print_group_row(f, &groups[i], m);
}

/* A loaded machine delays by less than 10 ms; 1 % of the median changes no printed figure. */
bool report_is_late(const struct report *r)
{
    const struct summary *lag = &r->metrics->all.of[METRIC_LAG];
    double p99 = lag->at[r->metrics->percents.n - 1];

    return p99 > 0.010 && p99 > 0.01 * r->metrics->all.of[METRIC_E2EL].median;
}

static void print_lag(FILE *f, const struct report *r)
{
    const struct metrics *m = r->metrics;
    const struct summary *lag = &m->all.of[METRIC_LAG];

    if (lag->n == 0)
        return;
    print_title(f, "Generator's Own Lag", '-');
    print_real(f, "Mean send lag (ms):", lag->mean * 1e3);
    print_real(f, "P99 send lag (ms):", lag->at[m->percents.n - 1] * 1e3);
    print_real(f, "Max send lag (ms):", lag->max * 1e3);
    print_real(f, "Longest turn of the loop (ms):", (double)r->loop->turn_ns_max / 1e6);
    if (report_is_late(r))
        fputs("WARNING: the generator itself was late; its machine is too busy for this load, and\n"
              "         the latencies above contain its delay.\n",
              f);
}

static void print_setting(FILE *f, const struct report *r)
{
    const struct options *o = r->options;

    fprintf(f, "%-40s %s\n", r->sim ? "Simulated, cost of:" : "Server, model:", r->target->url);
    fprintf(f, "%-40s %s\n", "", r->target->model);
    fprintf(f, "%-40s %s, seed %" PRIu64 "\n", "Workload:", workload_kind_name(o->config.kind),
            o->config.seed);
    if (r->interrupted)
        fprintf(f, "%-40s\n", "Interrupted: what was in flight is not counted");
    if (r->target->calibration != CALIBRATION_NONE)
        fprintf(f, "%-40s %.3f, and %.1f a prompt (%s)\n",
                "Tokens per word:", r->target->style.tokens_per_word,
                r->target->style.overhead_tokens, calibration_name(r->target->calibration));
}

void report_print(FILE *f, const struct report *r)
{
    const struct metrics *m = r->metrics;

    print_counts(f, r);
    print_latencies(f, r);
    print_title(f, "", '=');
    print_title(f, " tarn-loadgen ", '=');
    print_setting(f, r);
    if (m->all.n_with_slo)
        print_real(f, "Requests that kept their SLO (%):",
                   100.0 * (double)m->all.n_good / (double)m->all.n_with_slo);
    print_cached(f, &m->all);
    print_errors(f, r);
    print_pieces(f, &m->all);
    print_metric(f, "Normalized Latency (E2E / output tokens)", "normalized latency (ms/tok)",
                 &m->all.of[METRIC_NORMALIZED], &r->options->percents);
    if (!lists(r->options->percentile_metrics, "e2el"))
        print_metric(f, "End-to-end Latency", "E2EL (ms)", &m->all.of[METRIC_E2EL],
                     &r->options->percents);
    print_metric(f, "Whole Conversation", "conversation (ms)", &m->all.of[METRIC_PROGRAM],
                 &r->options->percents);
    print_metric(f, "Whole Conversation without Pauses", "active conversation (ms)",
                 &m->all.of[METRIC_PROGRAM_ACTIVE], &r->options->percents);
    if (r->sim)
        report_print_sim(f, r->sim);
    else
        print_lag(f, r);
    print_verify(f, r);
    print_groups(f, "Tenant", m->tenants, m->n_tenants, m);
    print_groups(f, "Priority", m->priorities, m->n_priorities, m);
    print_title(f, "", '=');
}
