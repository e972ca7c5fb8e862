#include "loadgen/load/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define S_PER_NS 1e-9
#define SECONDS_MAX 10000000u

const char *metric_name(enum metric m)
{
    static const char *const names[N_METRICS] = {
        "ttft",           "tpot",           "itl",      "e2el",    "normalized_latency",
        "ttft_from_send", "e2el_from_send", "send_lag", "program", "program_active",
    };

    return names[m];
}

/* Signed: of two clocks the later one may have been read first. */
static double span_s(uint64_t from_ns, uint64_t to_ns)
{
    return (double)(int64_t)(to_ns - from_ns) * S_PER_NS;
}

double metric_of(const struct outcome *o, enum metric m, bool *has)
{
    uint64_t n = outcome_output_tokens(o);

    *has = o->end == OUTCOME_OK && !o->slow_reader;
    switch (m) {
    case METRIC_TTFT: return span_s(o->intended_ns, o->first_ns);
    case METRIC_E2EL: return span_s(o->intended_ns, o->last_ns);
    case METRIC_TTFT_SEND: return span_s(o->sent_ns, o->first_ns);
    case METRIC_E2EL_SEND: return span_s(o->sent_ns, o->last_ns);
    case METRIC_LAG: *has = o->sent_ns != 0; return span_s(o->free_ns, o->sent_ns);
    case METRIC_TPOT:
        *has = *has && n > 1;
        return *has ? span_s(o->first_ns, o->last_ns) / (double)(n - 1) : 0;
    case METRIC_NORMALIZED:
        *has = *has && n > 0;
        return *has ? span_s(o->intended_ns, o->last_ns) / (double)n : 0;
    case METRIC_PROGRAM: *has = *has && o->is_last; return span_s(o->began_ns, o->last_ns);
    case METRIC_PROGRAM_ACTIVE:
        *has = *has && o->is_last;
        return span_s(o->began_ns + o->paused_ns, o->last_ns);
    case METRIC_ITL:
    case N_METRICS: break;
    }
    *has = false;
    return 0;
}

/* --- one group --- */

static enum status collect(struct series series[N_METRICS], const struct outcome *o)
{
    enum status s = OK;
    bool has;

    for (int m = 0; s == OK && m < N_METRICS; m++) {
        double v = metric_of(o, (enum metric)m, &has);
        if (has)
            s = series_push(&series[m], v);
    }
    if (o->end != OUTCOME_OK || o->slow_reader)
        return s;
    for (uint32_t i = 1; s == OK && i < o->n_tokens; i++)
        s = series_push(&series[METRIC_ITL], span_s(o->token_ns[i - 1], o->token_ns[i]));
    return s;
}

static void summarize(struct summary *out, struct series *s, const struct percents *percents)
{
    series_sort(s);
    out->n = s->n;
    out->mean = stats_mean(s->v, s->n);
    out->median = stats_percentile(s->v, s->n, 50);
    out->std = stats_std(s->v, s->n);
    out->max = s->n ? s->v[s->n - 1] : 0;
    for (uint32_t i = 0; i < percents->n; i++)
        out->at[i] = stats_percentile(s->v, s->n, percents->p[i]);
}

static bool is_good(const struct outcome *o)
{
    static const enum metric of[N_SLO_METRICS] = {METRIC_TTFT, METRIC_TPOT, METRIC_E2EL,
                                                  METRIC_NORMALIZED};
    double ms[N_SLO_METRICS];
    bool has;

    /* A request of one token has no TPOT and cannot miss its limit: as in vLLM it counts as 0. */
    for (int i = 0; i < N_SLO_METRICS; i++)
        ms[i] = metric_of(o, of[i], &has) * 1e3;
    return slo_is_met(&o->slo, ms);
}

static void count_tokens(struct group *g, const struct outcome *o)
{
    bool said_tiers = false;

    g->prompt_tokens += outcome_prompt_tokens(o);
    g->output_tokens += outcome_output_tokens(o);
    if (o->usage.cached_tokens >= 0) {
        g->cached_tokens += (uint64_t)o->usage.cached_tokens;
        g->n_said_cached++;
    }
    for (int t = 0; t < TARN_N_TIERS; t++)
        if (o->usage.cached_by_tier[t] >= 0) {
            g->cached_by_tier[t] += (uint64_t)o->usage.cached_by_tier[t];
            said_tiers = true;
        }
    g->n_said_tiers += said_tiers;
}

/* Add the pieces of one answer, and the tokens in them. */
static void count_pieces(struct group *g, const struct outcome *o)
{
    bool has_end_token = strcmp(o->finish_reason, "stop") == 0;
    uint64_t n = outcome_output_tokens(o);

    if (o->usage.completion_tokens < 0 || o->n_tokens == 0)
        return;
    n -= has_end_token && n > o->n_tokens;
    g->n_pieces += o->n_tokens;
    g->n_piece_tokens += n;
}

static void count(struct group *g, const struct outcome *o)
{
    g->n_failed += o->end == OUTCOME_FAILED;
    g->n_disconnected += o->end == OUTCOME_DISCONNECTED;
    g->n_unfinished += o->end == OUTCOME_UNFINISHED;
    if (o->end != OUTCOME_OK)
        return;
    g->n_completed++;
    g->n_slow += o->slow_reader;
    count_tokens(g, o);
    if (!o->slow_reader)
        count_pieces(g, o);
    if (slo_is_set(&o->slo) && !o->slow_reader) {
        g->n_with_slo++;
        g->n_good += is_good(o);
    }
}

enum selection { SELECT_ALL, SELECT_TENANT, SELECT_PRIORITY };

static bool is_selected(const struct outcome *o, enum selection by, int64_t value)
{
    return o->measured && (by == SELECT_ALL || (by == SELECT_TENANT && o->tenant == value) ||
                           (by == SELECT_PRIORITY && o->priority == value));
}

static enum status compute_group(struct group *g, const struct outcome *v, size_t n,
                                 enum selection by, int64_t value, const struct percents *percents)
{
    struct series series[N_METRICS] = {{0}};
    enum status s = OK;

    for (size_t i = 0; s == OK && i < n; i++) {
        if (!is_selected(&v[i], by, value))
            continue;
        count(g, &v[i]);
        s = collect(series, &v[i]);
    }
    for (int m = 0; m < N_METRICS; m++) {
        if (s == OK)
            summarize(&g->of[m], &series[m], percents);
        series_fini(&series[m]);
    }
    return s;
}

/* --- groups --- */

static enum status compute_tenants(struct metrics *m, const struct outcome *v, size_t n,
                                   const struct metrics_options *o)
{
    enum status s = OK;

    if (o->n_tenants < 2)
        return OK;
    m->tenants = calloc(o->n_tenants, sizeof *m->tenants);
    if (!m->tenants)
        return ERR_NOMEM;
    m->n_tenants = o->n_tenants;
    for (uint32_t i = 0; s == OK && i < o->n_tenants; i++) {
        snprintf(m->tenants[i].name, sizeof m->tenants[i].name, "%s", o->tenant_names[i]);
        s = compute_group(&m->tenants[i], v, n, SELECT_TENANT, i, &o->percents);
    }
    return s;
}

static int compare_i32(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

    return (x > y) - (x < y);
}

/* Collect the different priorities of measured outcomes, ascending, in out[0..n). */
static size_t list_priorities(const struct outcome *v, size_t n, int32_t *out)
{
    size_t n_all = 0, n_different = 0;

    for (size_t i = 0; i < n; i++)
        if (v[i].measured)
            out[n_all++] = v[i].priority;
    if (n_all > 1)
        qsort(out, n_all, sizeof *out, compare_i32);
    for (size_t i = 0; i < n_all; i++)
        if (i == 0 || out[i] != out[i - 1])
            out[n_different++] = out[i];
    return n_different;
}

static enum status compute_priorities(struct metrics *m, const struct outcome *v, size_t n,
                                      const struct metrics_options *o)
{
    int32_t *all = malloc((n ? n : 1) * sizeof *all);
    enum status s = all ? OK : ERR_NOMEM;
    size_t n_different = s == OK ? list_priorities(v, n, all) : 0;

    /* More than this is no class of service but a number per request. */
    if (s == OK && n_different > 1 && n_different <= 64) {
        m->priorities = calloc(n_different, sizeof *m->priorities);
        s = m->priorities ? OK : ERR_NOMEM;
    }
    for (size_t i = 0; s == OK && m->priorities && i < n_different; i++) {
        m->n_priorities++;
        snprintf(m->priorities[i].name, sizeof m->priorities[i].name, "%d", all[i]);
        s = compute_group(&m->priorities[i], v, n, SELECT_PRIORITY, all[i], &o->percents);
    }
    free(all);
    return s;
}

/* --- peaks --- */

static uint64_t second_of(uint64_t from_ns, uint64_t at_ns)
{
    return at_ns > from_ns ? (at_ns - from_ns) / UINT64_C(1000000000) : 0;
}

static void count_peaks(const struct outcome *v, size_t n, uint64_t first_ns, uint32_t *tokens,
                        uint32_t *requests, uint64_t n_seconds)
{
    for (size_t i = 0; i < n; i++) {
        const struct outcome *o = &v[i];
        if (!o->measured || o->end != OUTCOME_OK)
            continue;
        for (uint32_t k = 0; k < o->n_tokens; k++)
            tokens[second_of(first_ns, o->token_ns[k])]++;
        uint64_t last = second_of(first_ns, o->last_ns);
        for (uint64_t s = second_of(first_ns, o->intended_ns); s <= last && s < n_seconds; s++)
            requests[s]++;
    }
}

/* vLLM's: seconds count from the first request. */
static enum status compute_peaks(struct metrics *m, const struct outcome *v, size_t n)
{
    uint64_t first_ns = UINT64_MAX, last_ns = 0;

    for (size_t i = 0; i < n; i++) {
        if (!v[i].measured || v[i].end != OUTCOME_OK)
            continue;
        first_ns = v[i].intended_ns < first_ns ? v[i].intended_ns : first_ns;
        last_ns = v[i].last_ns > last_ns ? v[i].last_ns : last_ns;
    }
    uint64_t n_seconds = last_ns ? second_of(first_ns, last_ns) + 1 : 0;
    if (n_seconds == 0 || n_seconds > SECONDS_MAX)
        return OK;
    uint32_t *tokens = calloc(2 * n_seconds, sizeof *tokens);
    if (!tokens)
        return ERR_NOMEM;
    uint32_t *requests = tokens + n_seconds;
    count_peaks(v, n, first_ns, tokens, requests, n_seconds);
    for (uint64_t s = 0; s < n_seconds; s++) {
        if (tokens[s] > m->peak_output_tokens_per_s)
            m->peak_output_tokens_per_s = tokens[s];
        if (requests[s] > m->peak_concurrent)
            m->peak_concurrent = requests[s];
    }
    free(tokens);
    return OK;
}

enum status metrics_compute(struct metrics *m, const struct outcome *v, size_t n,
                            const struct metrics_options *o)
{
    uint64_t end_ns = o->until_ns > o->start_ns ? o->until_ns : o->start_ns;

    memset(m, 0, sizeof *m);
    m->percents = o->percents;
    for (size_t i = 0; i < n; i++) {
        if (!v[i].measured)
            continue;
        end_ns = v[i].end_ns > end_ns ? v[i].end_ns : end_ns;
        if (v[i].end == OUTCOME_FAILED)
            m->n_errors[v[i].error]++;
    }
    m->duration_s = span_s(o->start_ns, end_ns);
    enum status s = compute_group(&m->all, v, n, SELECT_ALL, 0, &o->percents);
    if (s == OK)
        s = compute_tenants(m, v, n, o);
    if (s == OK)
        s = compute_priorities(m, v, n, o);
    if (s == OK)
        s = compute_peaks(m, v, n);
    if (s != OK)
        metrics_fini(m);
    return s;
}

double metrics_tokens_per_piece(const struct group *g)
{
    return g->n_pieces ? (double)g->n_piece_tokens / (double)g->n_pieces : 0;
}

void metrics_add_usual_percents(struct percents *p)
{
    static const double usual[] = {50, 90, 95, 99};

    for (int i = 0; i < 4 && p->n < N_PERCENTS_MAX; i++) {
        bool has = false;
        for (uint32_t k = 0; k < p->n; k++)
            has |= p->p[k] == usual[i];
        if (!has || usual[i] == 99)
            p->p[p->n++] = usual[i];
    }
}

void metrics_fini(struct metrics *m)
{
    free(m->tenants);
    free(m->priorities);
    memset(m, 0, sizeof *m);
}
