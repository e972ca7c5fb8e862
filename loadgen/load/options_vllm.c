/* options_vllm.c - the flags of `vllm bench serve` in terms of tarn-loadgen's options.
 *
 * --dataset-name names a workload and brings vLLM's defaults for it; --backend and --endpoint name
 * one of two routes; sampling parameters become members of --extra-body. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/flags.h"
#include "base/json.h"
#include "loadgen/load/options_inner.h"

#define BODY_BYTES_MAX (16u << 20)
#define WHOLE_MOST 9007199254740992.0 /* whole numbers are exact up to here */

static bool is(const char *text, const char *word)
{
    return strcmp(text, word) == 0;
}

/* --- the data --- */

enum dataset_reads { READS_NOTHING, READS_A_FILE };

struct dataset {
    const char *name;     /* vLLM's */
    const char *workload; /* ours */
    enum dataset_reads reads;
    bool ignores_eos;       /* answers have the length that was asked for */
    const char *output_len; /* vLLM's default, where ours is another; or NULL */
};

static const struct dataset datasets[] = {
    {"random", "random", READS_NOTHING, true, NULL},
    {"prefix_repetition", "prefix", READS_NOTHING, false, NULL},
    {"sharegpt", "file", READS_A_FILE, false, NULL},
    {"custom", "file", READS_A_FILE, false, "256"},
    {"timed_trace", "trace", READS_A_FILE, true, NULL},
};

static const struct dataset *find_dataset(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(datasets); i++)
        if (is(datasets[i].name, name))
            return &datasets[i];
    return NULL;
}

static enum status apply_dataset(struct options *o, struct buf *why)
{
    const struct dataset *d = find_dataset(o->dataset_name);
    bool has_file = d && (is(d->name, "sharegpt") || is(d->name, "custom"));

    if (!d)
        return OK;
    if (options_was_given(o, "workload"))
        return buf_why(why, ERR_INVALID, "--dataset-name, --workload: give one of them");
    if (d->reads == READS_NOTHING && o->data[0])
        return buf_why(why, ERR_INVALID,
                       "--dataset-name %s: makes its prompts and reads no "
                       "--dataset-path",
                       d->name);
    if (d->reads == READS_A_FILE && !o->data[0])
        return buf_why(why, ERR_INVALID, "--dataset-name %s: needs --dataset-path FILE", d->name);
    if (d->ignores_eos && !options_was_given(o, "ignore-eos"))
        o->ignore_eos = true;
    o->config.file = (struct file_options){
        .format = is(d->name, "sharegpt") ? FILE_SHAREGPT : FILE_LINES,
        .shuffle = has_file && o->shuffle,
        .repeats = has_file && o->oversample,
    };
    enum status s = flag_set_text(&o->workload, d->workload);
    if (s == OK && is(d->name, "timed_trace"))
        s = flag_set_text(&o->trace_format, "timed_trace");
    if (s == OK && d->output_len && !o->output_len[0])
        s = flag_set_text(&o->output_len, d->output_len);
    return s == OK ? OK : buf_why(why, s, "out of memory");
}

/* --- the route --- */

static enum status apply_route(struct options *o, struct buf *why)
{
    static const char *const known[][2] = {
        {"chat", "chat"},
        {"completions", "completions"},
        {"/v1/chat/completions", "chat"},
        {"/v1/completions", "completions"},
    };
    const char *of_backend = !o->backend[0]                  ? ""
                             : is(o->backend, "openai-chat") ? "chat"
                                                             : "completions";
    const char *route = o->endpoint[0] ? NULL : of_backend;

    for (size_t i = 0; i < ARRAY_SIZE(known) && !route; i++)
        if (is(o->endpoint, known[i][0]))
            route = known[i][1];
    if (!route)
        return buf_why(why, ERR_INVALID,
                       "--endpoint: \"%.80s\" is none of /v1/completions, "
                       "/v1/chat/completions, completions, chat; what stands before /v1 belongs "
                       "to --url",
                       o->endpoint);
    if (of_backend[0] && !is(route, of_backend))
        return buf_why(why, ERR_INVALID,
                       "--backend %s, --endpoint %.80s: they are different "
                       "routes; openai-chat asks /v1/chat/completions, the others "
                       "/v1/completions",
                       o->backend, o->endpoint);
    return flag_set_text(&o->endpoint, route);
}

/* --- requests --- */

/* Turn vLLM's KEY=VALUE into KEY: VALUE; a header with a colon before the = stays. */
static enum status apply_headers(struct options *o, struct buf *why)
{
    enum status s = OK;
    struct buf line;

    for (uint32_t i = 0; s == OK && i < o->headers.n; i++) {
        const char *h = o->headers.v[i];
        size_t n = strcspn(h, ":=");
        if (h[n] != '=')
            continue;
        buf_init(&line, BODY_BYTES_MAX);
        s = buf_printf(&line, "%.*s: %s", (int)n, h, h + n + 1);
        if (s == OK)
            s = flag_set_text(&o->headers.v[i], buf_str(&line));
        buf_fini(&line);
    }
    return s == OK ? OK : buf_why(why, s, "--header: too long");
}

struct parameter {
    const char *flag, *key, *value;
    bool is_whole;
};

static enum status add_parameter(struct json *body, const struct parameter *p, struct buf *why)
{
    double v;

    if (is(p->value, "none"))
        return OK;
    if (flag_parse_number(p->value, &v) != OK ||
        (p->is_whole && (fabs(v) > WHOLE_MOST || v != floor(v))))
        return buf_why(why, ERR_INVALID, "--%s: expected a %snumber, or none", p->flag,
                       p->is_whole ? "whole " : "");
    if (js_get(body, p->key))
        return OK; /* --extra-body wins, as vLLM's */
    return js_set(body, p->key, p->is_whole ? js_new_int((int64_t)v) : js_new_real(v));
}

/* Add the sampling parameters without a field in struct prompt_style to --extra-body. */
static enum status apply_parameters(struct options *o, struct buf *why)
{
    const struct parameter all[] = {
        {"top-k", "top_k", o->top_k, true},
        {"min-p", "min_p", o->min_p, false},
        {"frequency-penalty", "frequency_penalty", o->frequency_penalty, false},
        {"presence-penalty", "presence_penalty", o->presence_penalty, false},
        {"repetition-penalty", "repetition_penalty", o->repetition_penalty, false},
    };
    const char *given = o->extra_body[0] ? o->extra_body : "{}";
    struct json *body = NULL;
    struct buf words, text;

    buf_init(&words, BUF_WHY_MAX);
    buf_init(&text, BODY_BYTES_MAX);
    enum status s = js_parse(&body, given, strlen(given), &words);
    if (s != OK || !js_is(body, JS_OBJECT))
        s = buf_why(why, ERR_INVALID, "--extra-body: expected a JSON object%s%s",
                    words.len ? ": " : "", buf_str(&words));
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(all); i++)
        s = add_parameter(body, &all[i], why);
    if (s == OK && js_len(body) > 0) {
        s = js_write(&text, body);
        if (s == OK)
            s = flag_set_text(&o->extra_body, buf_str(&text));
    }
    if (s == ERR_NOMEM || s == ERR_TOO_LARGE)
        buf_why(why, s, "--extra-body: %s", status_name(s));
    js_unref(body);
    buf_fini(&text);
    buf_fini(&words);
    return s;
}

enum status options_apply_vllm(struct options *o, struct buf *why)
{
    enum status s = apply_dataset(o, why);

    if (s == OK)
        s = apply_route(o, why);
    if (s == OK)
        s = apply_headers(o, why);
    return s == OK && !o->sim ? apply_parameters(o, why) : s;
}
