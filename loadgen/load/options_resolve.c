#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/flags.h"
#include "loadgen/load/options_inner.h"

static bool is(const char *text, const char *word)
{
    return strcmp(text, word) == 0;
}

static enum status read_dist(const char *flag, const char *text, const char *preset,
                             struct dist *out, struct buf *why)
{
    struct buf words;

    buf_init(&words, BUF_WHY_MAX);
    enum status s = dist_parse(out, text[0] ? text : preset, &words);
    if (s != OK)
        buf_why(why, s, "%s: %s", flag, buf_str(&words));
    buf_fini(&words);
    return s;
}

/* vLLM's --random-range-ratio. */
static void widen(struct dist *d, double ratio)
{
    for (int i = 0; i < 2; i++) {
        struct dist_form *f = &d->form[i];
        double n = f->a;
        if (ratio == 0 || f->kind != DIST_CONSTANT)
            continue;
        f->kind = DIST_UNIFORM;
        f->a = floor(n * (1 - ratio)) < 1 ? 1 : floor(n * (1 - ratio));
        f->b = ceil(n * (1 + ratio));
    }
}

static enum status resolve_lengths(struct options *o, struct buf *why)
{
    struct workload_config *c = &o->config;
    const char *input = c->kind == WORKLOAD_RAG         ? "32"
                        : c->kind == WORKLOAD_MULTITURN ? "128"
                        : c->kind == WORKLOAD_PREFIX    ? "256"
                                                        : "1024";
    enum status s = read_dist("--input-len", o->input_len, input, &c->input, why);

    if (s == OK)
        s = read_dist("--output-len", o->output_len, "128", &c->output, why);
    bool no_prefix = is(o->prefix_len, "0"); /* as vLLM writes it */
    if (s == OK)
        s = read_dist("--prefix-len", no_prefix ? "" : o->prefix_len, "256", &c->prefix_len, why);
    if (s == OK)
        s = read_dist("--system-len", o->system_len, "1", &c->system_len, why);
    if (s == OK)
        s = read_dist("--document-len", o->document_len, "256", &c->document_len, why);
    if (s == OK)
        s = read_dist("--turns", o->turns, "1", &c->turns, why);
    c->output_given = o->output_len[0] != '\0';
    c->has_prefix = o->prefix_len[0] && !no_prefix && c->kind == WORKLOAD_RANDOM;
    c->has_system = o->system_len[0] != '\0';
    widen(&c->input, o->range_ratio);
    widen(&c->output, o->range_ratio);
    return s;
}

static enum status resolve_arrival(struct options *o, struct buf *why)
{
    struct arrival_config *a = &o->config.arrival;
    bool has_rate = o->rate[0] || (o->sim && o->load > 0);
    bool is_timed = is(o->dataset_name, "timed_trace"); /* --concurrency is only a limit then */
    bool has_times = o->config.kind == WORKLOAD_TRACE && !has_rate &&
                     (is_timed ? o->self_timed : o->concurrency == 0);
    const char *kind = o->arrival;

    if (!kind[0])
        kind = has_times                  ? "trace"
               : o->rate[0] || o->ramp[0] ? "poisson"
               : o->concurrency           ? "closed"
                                          : "poisson";
    *a = (struct arrival_config){.kind = ARRIVAL_GAMMA, .burstiness = o->burstiness};
    if (is(kind, "poisson") && o->burstiness != 1 && is(o->arrival, "poisson"))
        return buf_why(why, ERR_INVALID, "--arrival poisson has burstiness 1: use gamma");
    if (is(kind, "constant"))
        a->kind = ARRIVAL_CONSTANT;
    if (is(kind, "trace"))
        a->kind = ARRIVAL_TRACE;
    if (is(kind, "closed"))
        a->kind = ARRIVAL_CLOSED;
    bool open = a->kind == ARRIVAL_GAMMA || a->kind == ARRIVAL_CONSTANT;
    bool scaled = a->kind == ARRIVAL_TRACE && /* a rate stretches the data's times */
                  (o->config.kind == WORKLOAD_TRACE || o->config.kind == WORKLOAD_FILE);
    if (!open && (o->ramp[0] || (o->rate[0] && (!scaled || is(o->rate, "inf")))))
        return buf_why(why, ERR_INVALID, "--rate: --arrival %s has no such rate", kind);
    if (a->kind == ARRIVAL_CLOSED && o->concurrency == 0)
        return buf_why(why, ERR_INVALID, "--concurrency: a closed loop needs one");
    a->ramp = o->ramp[0] != '\0';
    a->ramp_exponential = is(o->ramp, "exponential");
    a->ramp_start = o->ramp_start;
    a->ramp_end = o->ramp_end;
    a->ramp_s = o->ramp_s > 0 ? o->ramp_s : o->warmup_s + o->duration_s;
    if (o->sim && o->load > 0) {
        if (!(open || scaled) || o->rate[0] || o->ramp[0] || o->concurrency)
            return buf_why(why, ERR_INVALID,
                           "--load: is the rate: give no --rate, --concurrency, "
                           "--ramp-up-strategy or other --arrival than poisson, gamma, constant, "
                           "or trace with --workload trace or file");
        a->rate = 1; /* until the capacity is known */
    } else if (open ? !a->ramp : scaled && o->rate[0]) {
        if (!o->rate[0] || is(o->rate, "inf"))
            a->kind = ARRIVAL_AT_ONCE;
        else if (flag_parse_number(o->rate, &a->rate) != OK || a->rate <= 0)
            return buf_why(why, ERR_INVALID, "--rate: expected a number above 0, or inf");
    }
    /* vLLM's rate inf with a concurrency is a closed loop by another name. */
    if (a->kind == ARRIVAL_AT_ONCE && o->concurrency)
        a->kind = ARRIVAL_CLOSED;
    o->closed = a->kind == ARRIVAL_CLOSED;
    return OK;
}

static enum status resolve_amount(struct options *o, struct buf *why)
{
    bool finite = o->config.kind == WORKLOAD_TRACE ||
                  (o->config.kind == WORKLOAD_FILE && !o->config.file.repeats);

    if (o->count == 0 && o->duration_s == 0 && !finite)
        o->count = 1000;
    if (o->config.arrival.kind == ARRIVAL_AT_ONCE && o->count == 0 && !finite)
        return buf_why(why, ERR_INVALID, "--duration: give a --rate or a --concurrency with it");
    if (o->seed[0]) {
        char *end;
        o->config.seed = strtoull(o->seed, &end, 10);
        if (*end || o->seed[0] == '-')
            return buf_why(why, ERR_INVALID, "--seed: expected a whole number");
    } else {
        /* A new seed for each run: with a fixed one a second run would find the first one's
         * prompts in the cache. Short enough to be typed again. */
        o->config.seed = clock_unix_ns() / 1000 % 1000000000;
    }
    return OK;
}

static enum status resolve_tenants(struct options *o, struct buf *why)
{
    struct workload_config *c = &o->config;
    struct buf words;
    enum status s = OK;

    buf_init(&words, BUF_WHY_MAX);
    for (uint32_t i = 0; s == OK && i < o->tenants.n; i++)
        s = tenant_parse(&c->tenants[c->n_tenants++], o->tenants.v[i], &words);
    if (s != OK)
        buf_why(why, s, "--tenant: %s", buf_str(&words));
    for (uint32_t i = 0; s == OK && i < o->slo.n; i++) {
        s = slo_parse(&c->slo, o->slo.v[i], &words);
        if (s != OK)
            buf_why(why, s, "--goodput: %s", buf_str(&words));
    }
    buf_fini(&words);
    return s;
}

static void resolve_rest(struct options *o)
{
    static const char *const formats[] = {"auto", "mooncake", "timed_trace", "ragpulse", "csv"};
    struct workload_config *c = &o->config;

    c->input_max = (uint32_t)o->max_input_len;
    c->output_max = (uint32_t)o->max_output_len;
    c->input_scale = o->scale_input;
    c->output_scale = o->scale_output;
    c->data = o->data[0] ? o->data : NULL;
    c->n_prefixes = (uint32_t)o->n_prefixes;
    c->think_s = o->think_s;
    c->think_cv = o->think_cv;
    c->n_documents = (uint32_t)o->n_documents;
    c->n_retrieved = (uint32_t)o->n_retrieved;
    c->popularity = is(o->popularity, "zipf") ? POPULARITY_ZIPF : POPULARITY_MEASURED;
    c->zipf = o->zipf >= 0 ? o->zipf : c->kind == WORKLOAD_PREFIX ? 0 : 1;
    c->draw_documents = is(o->retrieval, "draw");
    c->shuffle_documents = is(o->document_order, "shuffled");
    c->keeps_order = !o->shuffle;
    for (int i = 0; i < (int)ARRAY_SIZE(formats); i++)
        if (is(o->trace_format, formats[i]))
            c->trace.format = (enum trace_format)i;
    if (is(o->trace_format, "azure"))
        c->trace.format = TRACE_CSV;
    c->trace.order = is(o->trace_order, "reuse") ? TRACE_ORDER_REUSE : TRACE_ORDER_GIVEN;
    c->trace.block_tokens = (uint32_t)o->trace_block;
    c->trace.time_unit_s = o->trace_unit_s;
    c->trace_speed = o->trace_speed;
    c->disconnect_share = o->disconnect_rate;
    c->slow_share = o->slow_rate;
    c->verify_share = o->verify;
}

/* The rest is for the percentiles that every result file has. */
#define N_PERCENTS_ASKED_MAX (N_PERCENTS_MAX - 4)

static enum status resolve_percents(struct options *o, struct buf *why)
{
    char copy[256];
    char *save = NULL;

    if (strlen(o->metric_percentiles) >= sizeof copy)
        return buf_why(why, ERR_INVALID, "--metric-percentiles: too long");
    memcpy(copy, o->metric_percentiles, strlen(o->metric_percentiles) + 1);
    for (char *one = strtok_r(copy, ",", &save); one; one = strtok_r(NULL, ",", &save)) {
        double p;
        if (flag_parse_number(one, &p) != OK || p < 0 || p > 100 ||
            o->percents.n == N_PERCENTS_ASKED_MAX)
            return buf_why(why, ERR_INVALID,
                           "--metric-percentiles: expected at most %d numbers in "
                           "[0, 100]",
                           N_PERCENTS_ASKED_MAX);
        o->percents.p[o->percents.n++] = p;
    }
    return OK;
}

static enum status check_together(const struct options *o, struct buf *why)
{
    bool ids = is(o->prompt_format, "ids");

    if (ids && is(o->endpoint, "chat"))
        return buf_why(why, ERR_INVALID, "--prompt-format ids: only /v1/completions takes ids");
    if (is(o->documents_as, "field") && (ids || is(o->endpoint, "completions")))
        return buf_why(why, ERR_INVALID, "--documents-as field: only chat requests have one");
    if (ids && is(o->history, "real"))
        return buf_why(why, ERR_INVALID, "--history real: answers are text, not ids");
    if (o->compare && (!o->url_a[0] || !o->url_b[0]))
        return buf_why(why, ERR_INVALID, "compare: needs --a URL and --b URL");
    if (!o->compare && (o->url_a[0] || o->url_b[0]))
        return buf_why(why, ERR_INVALID, "--a, --b: belong to `tarn-loadgen compare`");
    if (o->compare && (o->config.kind == WORKLOAD_MULTITURN || o->verify > 0))
        return buf_why(why, ERR_INVALID, "compare: knows neither multiturn nor --verify");
    if (o->compare && is(o->interleave, "requests") && (o->closed || o->block > 0))
        return buf_why(why, ERR_INVALID,
                       "--interleave requests: needs a --rate (or times) and "
                       "no --block; --concurrency 1 sends pairs, one after the other");
    if ((o->result_dir[0] || o->result_filename[0]) && !o->save_result && !o->append_result)
        return buf_why(why, ERR_INVALID,
                       "--result-dir, --result-filename: nothing is saved "
                       "without --save-result");
    if (o->compare && o->save_result)
        return buf_why(why, ERR_INVALID, "--save-result: compare writes its result with --json");
    if (o->compare && o->count == 0)
        return buf_why(why, ERR_INVALID, "compare: needs a --count");
    return OK;
}

static enum status resolve_sim(struct options *o, struct buf *why)
{
    double ms;

    if (is(o->starvation_ms, "inf")) {
        o->starvation_s = INFINITY;
        return OK;
    }
    if (flag_parse_number(o->starvation_ms, &ms) != OK || ms < 0)
        return buf_why(why, ERR_INVALID,
                       "--starvation-ms: expected 0, milliseconds or inf, got "
                       "\"%s\"",
                       o->starvation_ms);
    o->starvation_s = ms / 1e3;
    return OK;
}

enum status options_resolve(struct options *o, struct buf *why)
{
    for (int k = 0; k < N_WORKLOADS; k++)
        if (is(o->workload, workload_kind_name((enum workload_kind)k)))
            o->config.kind = (enum workload_kind)k;
    resolve_rest(o);
    enum status s = resolve_lengths(o, why);
    if (s == OK)
        s = resolve_arrival(o, why);
    if (s == OK)
        s = resolve_amount(o, why);
    if (s == OK)
        s = resolve_tenants(o, why);
    if (s == OK)
        s = resolve_percents(o, why);
    if (s == OK)
        s = resolve_sim(o, why);
    return s == OK ? check_together(o, why) : s;
}
