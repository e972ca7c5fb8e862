/* report_files.c - JSON, CSV and raw JSON lines. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/check.h"
#include "loadgen/load/report.h"
#include "loadgen/load/report_json.h"

#define FILE_BYTES_MAX ((size_t)4 << 30)

void put(struct put *p, const char *key, struct json *value)
{
    if (p->status == OK && !p->o)
        p->status = ERR_NOMEM;
    if (p->status == OK)
        p->status = js_set(p->o, key, value);
    else
        js_unref(value);
}

void put_count(struct put *p, const char *key, uint64_t v)
{
    put(p, key, js_new_int((int64_t)v));
}

void put_real(struct put *p, const char *key, double v)
{
    put(p, key, js_new_real(v));
}

void put_text(struct put *p, const char *key, const char *text)
{
    put(p, key, text ? js_new_string(text, strlen(text)) : js_new_null());
}

/* --- the result --- */

static double per_second(double n, const struct metrics *m)
{
    return m->duration_s > 0 ? n / m->duration_s : 0;
}

/* vLLM's name for the endpoint. */
static const char *backend_of(const struct report *r)
{
    if (r->sim)
        return "sim";
    if (r->options->backend[0])
        return r->options->backend;
    return r->target->style.kind == TARN_CHAT ? "openai-chat" : "openai";
}

static void put_setting(struct put *p, const struct report *r)
{
    const struct options *o = r->options;
    const struct arrival_config *a = &o->config.arrival;
    bool has_rate = arrival_has_rate(a);
    const char *model = o->model[0] && !r->sim ? o->model : r->target->model;
    char date[32] = ""; /* a simulation has no date: equal simulations give equal files */
    time_t now = time(NULL);
    struct tm tm;

    if (!r->sim && gmtime_r(&now, &tm))
        strftime(date, sizeof date, "%Y%m%d-%H%M%S", &tm);
    put_text(p, "date", date);
    put_text(p, "endpoint_type", backend_of(r));
    put_text(p, "backend", backend_of(r));
    put_text(p, "label", o->label[0] ? o->label : NULL);
    put_text(p, "model_id", model);
    put_text(p, "tokenizer_id", o->tokenizer[0] ? o->tokenizer : model);
    put_count(p, "num_prompts",
              r->metrics->all.n_completed + r->metrics->all.n_failed +
                  r->metrics->all.n_disconnected + r->metrics->all.n_unfinished);
    for (uint32_t i = 0; i < o->metadata.n; i++) {
        char key[128];
        const char *equals = strchr(o->metadata.v[i], '=');
        int n = equals ? (int)(equals - o->metadata.v[i]) : (int)strlen(o->metadata.v[i]);
        snprintf(key, sizeof key, "%.*s", n, o->metadata.v[i]);
        put_text(p, key, equals ? equals + 1 : "");
    }
    if (has_rate && !a->ramp)
        put_real(p, "request_rate", a->rate);
    else
        put_text(p, "request_rate", "inf");
    put_real(p, "burstiness", a->burstiness);
    put(p, "max_concurrency", o->concurrency ? js_new_int((int64_t)o->concurrency) : js_new_null());
    if (a->ramp) {
        put_text(p, "ramp_up_strategy", o->ramp);
        put_real(p, "ramp_up_start_rps", a->ramp_start);
        put_real(p, "ramp_up_end_rps", a->ramp_end);
    }
}

/* A value of a series; null where the series is empty. */
static void put_ms(struct put *p, const char *key, const struct summary *s, double seconds)
{
    put(p, key, s->n ? js_new_real(seconds * 1e3) : js_new_null());
}

static void put_summary(struct put *p, enum metric m, const struct summary *s,
                        const struct percents *percents)
{
    const char *name = metric_name(m);
    char key[96];

    snprintf(key, sizeof key, "mean_%s_ms", name);
    put_ms(p, key, s, s->mean);
    snprintf(key, sizeof key, "median_%s_ms", name);
    put_ms(p, key, s, s->median);
    snprintf(key, sizeof key, "std_%s_ms", name);
    put_ms(p, key, s, s->std);
    for (uint32_t i = 0; i < percents->n; i++) {
        snprintf(key, sizeof key, "p%g_%s_ms", percents->p[i], name);
        put_ms(p, key, s, s->at[i]);
    }
    snprintf(key, sizeof key, "max_%s_ms", name);
    put_ms(p, key, s, s->max);
}

static void put_group(struct put *p, const struct group *g, const struct metrics *m)
{
    char key[64];

    put_count(p, "completed", g->n_completed);
    put_count(p, "failed", g->n_failed);
    put_count(p, "total_input_tokens", g->prompt_tokens);
    put_count(p, "total_output_tokens", g->output_tokens);
    put_real(p, "request_throughput", per_second((double)g->n_completed, m));
    put(p, "request_goodput",
        g->n_with_slo ? js_new_real(per_second((double)g->n_good, m)) : js_new_null());
    put_real(p, "output_throughput", per_second((double)g->output_tokens, m));
    put_real(p, "total_token_throughput",
             per_second((double)(g->prompt_tokens + g->output_tokens), m));
    for (int i = 0; i < N_METRICS; i++)
        put_summary(p, (enum metric)i, &g->of[i], &m->percents);
    put_count(p, "prompt_tokens", g->prompt_tokens);
    put(p, "cached_tokens",
        g->n_said_cached ? js_new_int((int64_t)g->cached_tokens) : js_new_null());
    for (int t = 0; g->n_said_tiers && t < TARN_N_TIERS; t++) {
        snprintf(key, sizeof key, "cached_tokens_%s", tarn_tier_name((enum tarn_tier)t));
        put_count(p, key, g->cached_by_tier[t]);
    }
    put(p, "tokens_per_piece",
        g->n_pieces ? js_new_real(metrics_tokens_per_piece(g)) : js_new_null());
    put_count(p, "good", g->n_good);
    put_count(p, "with_slo", g->n_with_slo);
    put_count(p, "disconnected", g->n_disconnected);
    put_count(p, "slow_readers", g->n_slow);
    put_count(p, "unfinished", g->n_unfinished);
}

static void put_groups(struct put *p, const char *key, const char *name_key,
                       const struct group *groups, uint32_t n, const struct metrics *m)
{
    struct json *list = js_new_array();

    if (!list && p->status == OK)
        p->status = ERR_NOMEM;
    for (uint32_t i = 0; p->status == OK && i < n; i++) {
        struct put one = {js_new_object(), OK};
        put_text(&one, name_key, groups[i].name);
        put_group(&one, &groups[i], m);
        if (one.status == OK)
            one.status = js_push(list, js_ref(one.o));
        js_unref(one.o);
        p->status = one.status;
    }
    put(p, key, list);
}

static void put_errors(struct put *p, const struct metrics *m)
{
    struct put kinds = {js_new_object(), OK};

    for (int e = 0; e < TARN_N_ERRORS; e++)
        if (m->n_errors[e])
            put_count(&kinds, tarn_error_name((enum tarn_error)e), m->n_errors[e]);
    if (p->status == OK)
        p->status = kinds.status;
    put(p, "errors_by_kind", kinds.o);
}

static void put_verify(struct put *p, const struct verify_result *v)
{
    struct put one = {js_new_object(), OK};

    put_count(&one, "checked", v->n_checked);
    put_count(&one, "load_differs", v->n_load_differs);
    put_count(&one, "warm_differs", v->n_warm_differs);
    put_count(&one, "failed", v->n_failed);
    put_count(&one, "skipped", v->n_skipped);
    put(&one, "cold", js_new_bool(v->cold));
    if (p->status == OK)
        p->status = one.status;
    put(p, "verify", one.o);
}

static void put_ours(struct put *p, const struct report *r)
{
    const struct options *o = r->options;
    const struct metrics *m = r->metrics;

    put_text(p, "url", r->target->url);
    put_text(p, "workload", workload_kind_name(o->config.kind));
    put_count(p, "seed", o->config.seed);
    put_real(p, "warmup", o->warmup_s);
    put_text(p, "calibration", calibration_name(r->target->calibration));
    put_real(p, "tokens_per_word", r->target->style.tokens_per_word);
    put_real(p, "overhead_tokens", r->target->style.overhead_tokens);
    put_errors(p, m);
    put_real(p, "loop_turn_max_ms", (double)r->loop->turn_ns_max / 1e6);
    put_real(p, "loop_timer_lag_max_ms", (double)r->loop->lag_ns_max / 1e6);
    put_count(p, "connections", r->loop->n_connections);
    put(p, "generator_late", js_new_bool(report_is_late(r)));
    put(p, "interrupted", js_new_bool(r->interrupted));
    if (r->verify)
        put_verify(p, r->verify);
    put_groups(p, "tenants", "tenant", m->tenants, m->n_tenants, m);
    put_groups(p, "priorities", "priority", m->priorities, m->n_priorities, m);
    put_text(p, "loadgen_version", TARN_VERSION);
    if (r->sim)
        report_put_sim(p, r->sim);
}

/* --- vLLM's per-request lists --- */

enum detail {
    DETAIL_INPUT_LENS,
    DETAIL_OUTPUT_LENS,
    DETAIL_TTFTS,
    DETAIL_ITLS,
    DETAIL_START_TIMES,
    DETAIL_TEXTS,
    DETAIL_ERRORS,
    N_DETAILS
};

static double seconds(uint64_t from_ns, uint64_t to_ns)
{
    return (double)(int64_t)(to_ns - from_ns) / 1e9;
}

static struct json *list_gaps(const struct outcome *o)
{
    struct json *list = js_new_array();
    enum status s = list ? OK : ERR_NOMEM;

    for (uint32_t i = 1; s == OK && i < o->n_tokens; i++)
        s = js_push(list, js_new_real(seconds(o->token_ns[i - 1], o->token_ns[i])));
    if (s == OK)
        return list;
    js_unref(list);
    return NULL;
}

static struct json *detail_of(const struct outcome *o, enum detail d, uint64_t start_ns)
{
    bool ok = o->end == OUTCOME_OK;
    const char *words = ok ? "" : o->message ? o->message : outcome_end_name(o->end);

    switch (d) {
    case DETAIL_INPUT_LENS: return js_new_int((int64_t)outcome_prompt_tokens(o));
    case DETAIL_OUTPUT_LENS: return js_new_int(ok ? (int64_t)outcome_output_tokens(o) : 0);
    case DETAIL_TTFTS: return js_new_real(ok ? seconds(o->intended_ns, o->first_ns) : 0);
    case DETAIL_ITLS: return list_gaps(o);
    case DETAIL_START_TIMES: return js_new_real(seconds(start_ns, o->intended_ns));
    case DETAIL_TEXTS: return js_new_string(o->text ? o->text : "", o->text_len);
    case DETAIL_ERRORS: return js_new_string(words, strlen(words));
    case N_DETAILS: break;
    }
    return NULL;
}

static void put_details(struct put *p, const struct report *r)
{
    static const char *const keys[N_DETAILS] = {"input_lens",  "output_lens",     "ttfts", "itls",
                                                "start_times", "generated_texts", "errors"};

    for (int d = 0; d < N_DETAILS && p->status == OK; d++) {
        struct json *list = js_new_array();
        p->status = list ? OK : ERR_NOMEM;
        for (size_t i = 0; p->status == OK && i < r->outcomes->n; i++)
            if (r->outcomes->v[i].measured)
                p->status =
                    js_push(list, detail_of(&r->outcomes->v[i], (enum detail)d, r->start_ns));
        put(p, keys[d], list);
    }
}

struct json *report_json(const struct report *r)
{
    struct put p = {js_new_object(), OK};
    const struct metrics *m = r->metrics;

    put_setting(&p, r);
    put_real(&p, "duration", m->duration_s);
    put_count(&p, "max_output_tokens_per_s", m->peak_output_tokens_per_s);
    put_count(&p, "max_concurrent_requests", m->peak_concurrent);
    put_group(&p, &m->all, m);
    put_ours(&p, r);
    if (r->options->save_detailed)
        put_details(&p, r);
    if (p.status == OK)
        return p.o;
    js_unref(p.o);
    return NULL;
}

/* --- files --- */

static enum status write_all(const char *path, const char *mode, const struct buf *text,
                             struct buf *why)
{
    bool is_stdout = strcmp(path, "-") == 0;
    FILE *f = is_stdout ? stdout : fopen(path, mode);

    if (!f)
        return buf_why(why, ERR_IO, "%s: %s", path, strerror(errno));
    bool good = text->len == 0 || fwrite(text->data, 1, text->len, f) == text->len;
    good = (is_stdout ? fflush(f) : fclose(f)) == 0 && good;
    return good ? OK : buf_why(why, ERR_IO, "%s: %s", path, strerror(errno));
}

static enum status write_json(const struct json *j, const char *path, bool append, struct buf *why)
{
    struct buf text;

    buf_init(&text, FILE_BYTES_MAX);
    enum status s = js_write(&text, j);
    if (s == OK)
        s = buf_putc(&text, '\n');
    s = s == OK ? write_all(path, append ? "a" : "w", &text, why)
                : buf_why(why, s, "%s: the result does not fit into memory", path);
    buf_fini(&text);
    return s;
}

enum status report_write_json(const struct json *j, const struct options *o, struct buf *why)
{
    return o->json_file[0] ? write_json(j, o->json_file, o->append_result, why) : OK;
}

/* --- vLLM's file --- */

static bool is_saved(const struct options *o)
{
    return o->save_result || (o->append_result && !o->json_file[0]);
}

/* A number as Python writes a float: 5.0, 2.5. */
static enum status put_python_float(struct buf *b, double v)
{
    return buf_printf(b, v == floor(v) && v < 1e15 ? "%.1f" : "%.15g", v);
}

/* Append the name that vLLM's tool would choose:
 * LABEL-RATEqps[-concurrencyN]-MODEL-DATE.json; a simulation has no date. */
static enum status put_usual_name(struct buf *b, const struct report *r, const struct json *result)
{
    const struct options *o = r->options;
    const struct arrival_config *a = &o->config.arrival;
    const char *model = js_string(js_get(result, "model_id"), NULL);
    const char *date = js_string(js_get(result, "date"), NULL);
    const char *slash = strrchr(model, '/');
    bool has_rate = arrival_has_rate(a);
    enum status s = buf_printf(b, "%s-", o->label[0] ? o->label : backend_of(r));

    if (s == OK && a->ramp)
        s = buf_printf(b, "ramp-up-%s-%gqps-%g", o->ramp, a->ramp_start, a->ramp_end);
    else if (s == OK)
        s = has_rate ? put_python_float(b, a->rate) : buf_puts(b, "inf");
    if (s == OK)
        s = buf_puts(b, "qps");
    if (s == OK && o->concurrency)
        s = buf_printf(b, "-concurrency%" PRIu64, o->concurrency);
    if (s == OK)
        s = buf_printf(b, "-%s%s%s.json", slash ? slash + 1 : model, date[0] ? "-" : "", date);
    return s;
}

static enum status save_result(const struct report *r, const struct json *result, struct buf *why)
{
    const struct options *o = r->options;
    struct buf path;
    enum status s = OK;

    buf_init(&path, PATH_MAX);
    if (o->result_dir[0])
        s = buf_printf(&path, "%s/", o->result_dir);
    if (s == OK)
        s = o->result_filename[0] ? buf_puts(&path, o->result_filename)
                                  : put_usual_name(&path, r, result);
    s = s == OK
            ? write_json(result, buf_str(&path), o->append_result, why)
            : buf_why(why, s, "--result-dir, --result-filename: longer than %d bytes", PATH_MAX);
    if (s == OK && !o->quiet)
        fprintf(stderr, "tarn-loadgen: the result is in %s\n", buf_str(&path));
    buf_fini(&path);
    return s;
}

enum status report_make_dir(const struct options *o, struct buf *why)
{
    char part[PATH_MAX];
    size_t n = strlen(o->result_dir);

    if (n == 0)
        return OK;
    if (n >= sizeof part)
        return buf_why(why, ERR_INVALID, "--result-dir: longer than %d bytes", PATH_MAX);
    for (size_t i = 1; i <= n; i++) {
        if (i < n && o->result_dir[i] != '/')
            continue;
        memcpy(part, o->result_dir, i);
        part[i] = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return buf_why(why, ERR_INVALID, "--result-dir %s: %s", part, strerror(errno));
    }
    struct stat st;
    if (stat(o->result_dir, &st) != 0 || !S_ISDIR(st.st_mode))
        return buf_why(why, ERR_INVALID, "--result-dir %s: is no directory", o->result_dir);
    return OK;
}

/* Numbers and texts of the result in the order of the JSON; lists and objects are left out. */
static enum status write_csv_line(struct buf *out, const struct json *j, bool header)
{
    enum status s = OK;
    bool first = true;

    for (void *it = js_first(j); s == OK && it; it = js_next(j, it)) {
        const struct json *v = js_it_value(it);
        enum js_type t = js_typeof(v);
        if (t == JS_ARRAY || t == JS_OBJECT)
            continue;
        s = first ? OK : buf_putc(out, ',');
        first = false;
        if (s != OK || t == JS_NULL)
            s = s == OK && header ? buf_puts(out, js_it_key(it)) : s;
        else if (header)
            s = buf_puts(out, js_it_key(it));
        else if (t == JS_STRING && !strpbrk(js_string(v, NULL), ",\"\r\n"))
            s = buf_puts(out, js_string(v, NULL));
        else
            s = js_write(out, v); /* a text with a comma: its JSON form is quoted */
    }
    return s == OK ? buf_putc(out, '\n') : s;
}

static enum status write_csv(const struct json *j, const char *path, struct buf *why)
{
    struct buf text;
    FILE *f = fopen(path, "r");
    bool is_new = !f || fgetc(f) == EOF;

    if (f)
        fclose(f);
    buf_init(&text, FILE_BYTES_MAX);
    enum status s = is_new ? write_csv_line(&text, j, true) : OK;
    if (s == OK)
        s = write_csv_line(&text, j, false);
    s = s == OK ? write_all(path, "a", &text, why) : buf_why(why, s, "%s: too large", path);
    buf_fini(&text);
    return s;
}

static enum status write_raw_line(struct buf *b, const struct outcome *o, uint64_t start_ns)
{
    enum status s = buf_printf(
        b,
        "{\"index\":%" PRIu64 ",\"measured\":%s,\"tenant\":%u,\"priority\":%d"
        ",\"session\":%" PRIu64 ",\"turn\":%u,\"end\":\"%s\",\"error\":\"%s\",\"status\":%d"
        ",\"slow_reader\":%s"
        ",\"prompt_tokens\":%" PRIu64 ",\"output_tokens\":%" PRIu64 ",\"cached_tokens\":%" PRId64
        ",\"start_ns\":%" PRIu64 ",\"intended_ns\":%" PRIu64 ",\"free_ns\":%" PRIu64
        ",\"sent_ns\":%" PRIu64 ",\"first_ns\":%" PRIu64 ",\"last_ns\":%" PRIu64
        ",\"end_ns\":%" PRIu64 ",\"finish_reason\":",
        o->index, o->measured ? "true" : "false", o->tenant, o->priority, o->session, o->turn,
        outcome_end_name(o->end), tarn_error_name(o->error), o->http_status,
        o->slow_reader ? "true" : "false", outcome_prompt_tokens(o), outcome_output_tokens(o),
        o->usage.cached_tokens, start_ns, o->intended_ns, o->free_ns, o->sent_ns, o->first_ns,
        o->last_ns, o->end_ns);
    const char *words = o->message ? o->message : "";

    if (s == OK)
        s = js_write_string(b, o->finish_reason, strlen(o->finish_reason));
    if (s == OK)
        s = buf_puts(b, ",\"message\":");
    if (s == OK)
        s = js_write_string(b, words, strlen(words));
    if (s == OK)
        s = buf_puts(b, ",\"token_ns\":[");
    for (uint32_t i = 0; s == OK && i < o->n_tokens; i++)
        s = buf_printf(b, "%s%" PRIu64, i ? "," : "", o->token_ns[i]);
    return s == OK ? buf_puts(b, "]}\n") : s;
}

static enum status write_raw(const struct report *r, const char *path, struct buf *why)
{
    struct buf text;
    enum status s = OK;

    buf_init(&text, FILE_BYTES_MAX);
    for (size_t i = 0; s == OK && i < r->outcomes->n; i++)
        s = write_raw_line(&text, &r->outcomes->v[i], r->start_ns);
    s = s == OK ? write_all(path, "w", &text, why) : buf_why(why, s, "%s: too large", path);
    buf_fini(&text);
    return s;
}

enum status report_write_files(const struct report *r, struct buf *why)
{
    const struct options *o = r->options;
    struct json *j = report_json(r);
    enum status s = j ? OK : buf_why(why, ERR_NOMEM, "out of memory");

    if (s == OK)
        s = report_write_json(j, o, why);
    if (s == OK && is_saved(o))
        s = save_result(r, j, why);
    if (s == OK && o->csv_file[0])
        s = write_csv(j, o->csv_file, why);
    if (s == OK && o->raw_file[0])
        s = write_raw(r, o->raw_file, why);
    js_unref(j);
    return s;
}
