#include "server/api/params.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/flags.h"
#include "base/hash.h"
#include "engine/adapters.h"
#include "server/api/estimates.h"
#include "server/api/params_prediction.h"
#include "server/api/params_service.h"
#include "server/api/params_vocab.h"
#include "server/api/retention.h"
#include "server/api/search.h"
#include "server/server.h"
#include "server/api/structured.h"

/* --- known and refused fields --- */

enum rule {
    FINE, /* read elsewhere */
    /* Accepted without effect, because no token depends on them. Only the type is checked. */
    SWITCH, /* a boolean */
    TEXT,   /* a string */
    WORD,   /* a string, one of `fine`, which are separated by | */
    MAP,    /* an object */
    NUMBER,
    /* Not supported. */
    NOT_SET,   /* refused unless null, false, 0, "" or empty; `fine`: what to do instead */
    NOT_OTHER, /* refused unless it is the string `fine` */
};

struct field {
    const char *name;
    enum rule rule;
    const char *fine;
};

static const struct field fields[] = {
    {"model", FINE, NULL},
    {"messages", FINE, NULL},
    {"prompt", FINE, NULL},
    {"stream", FINE, NULL},
    {"stream_options", FINE, NULL},
    {"max_tokens", FINE, NULL},
    {"max_completion_tokens", FINE, NULL},
    {"temperature", FINE, NULL},
    {"top_p", FINE, NULL},
    {"top_k", FINE, NULL},
    {"min_p", FINE, NULL},
    {"repetition_penalty", FINE, NULL},
    {"presence_penalty", FINE, NULL},
    {"frequency_penalty", FINE, NULL},
    {"logit_bias", FINE, NULL},
    {"allowed_token_ids", FINE, NULL},
    {"bad_words", FINE, NULL},
    {"logprobs", FINE, NULL},
    {"top_logprobs", FINE, NULL},
    {"prompt_logprobs", FINE, NULL},
    {"truncate_prompt_tokens", FINE, NULL},
    {"n", FINE, NULL},
    {"best_of", FINE, NULL},
    {"seed", FINE, NULL},
    {"stop", FINE, NULL},
    {"stop_token_ids", FINE, NULL},
    {"min_tokens", FINE, NULL},
    {"ignore_eos", FINE, NULL},
    {"skip_special_tokens", FINE, NULL},
    {"include_stop_str_in_output", FINE, NULL},
    {"return_token_ids", FINE, NULL},
    {"return_tokens_as_token_ids", FINE, NULL},
    {"priority", FINE, NULL},
    {"slo_ttft_ms", FINE, NULL},
    {"slo_tpot_ms", FINE, NULL},
    {"cache_salt", FINE, NULL},
    {"cache_ttl", FINE, NULL},
    {"cache_control", FINE, NULL},
    {"prompt_cache_retention", FINE, NULL},
    {"prompt_cache_options", FINE, NULL},
    {"session_id", FINE, NULL},
    {"request_id", FINE, NULL},
    {"rid", FINE, NULL},
    {"kv_transfer_params", FINE, NULL},
    {"return_timings", FINE, NULL},
    {"chat_template_kwargs", FINE, NULL},
    {"add_generation_prompt", FINE, NULL},
    {"continue_final_message", FINE, NULL},
    {"preamble", FINE, NULL},
    {"documents", FINE, NULL},
    {"documents_placement", FINE, NULL},
    {"documents_order", FINE, NULL},
    {"retrieval", FINE, NULL},
    {"citations", FINE, NULL},
    {"parse_special", FINE, NULL},
    {"response_format", FINE, NULL},
    {"structured_outputs", FINE, NULL},
    {"guided_json", FINE, NULL},
    {"guided_regex", FINE, NULL},
    {"guided_choice", FINE, NULL},
    {"guided_grammar", FINE, NULL},
    {"json_schema", FINE, NULL},
    {"grammar", FINE, NULL},
    {"regex", FINE, NULL},
    {"ebnf", FINE, NULL},
    {"include_reasoning", FINE, NULL},
    {"thinking_token_budget", FINE, NULL},
    {"thinking_budget", FINE, NULL},
    {"tools", FINE, NULL},
    {"tool_choice", FINE, NULL},
    {"parallel_tool_calls", FINE, NULL},
    {"echo", FINE, NULL},
    {"add_special_tokens", FINE, NULL},
    /* Hints about style, billing, abuse, storage and routing. reasoning_effort is also a variable
     * of the chat template (prompt.c). */
    {"reasoning_effort", WORD, "none|minimal|low|medium|high|xhigh|max"},
    {"verbosity", WORD, "low|medium|high"},
    {"service_tier", WORD, "auto|default|flex|scale|priority|fast"},
    {"store", SWITCH, NULL},
    {"metadata", MAP, NULL},
    {"user", TEXT, NULL},
    {"safety_identifier", TEXT, NULL},
    {"prompt_cache_key", TEXT, NULL},
    {"prediction", FINE, NULL},

    {"functions", FINE, NULL}, /* of chats: functions.h */
    {"function_call", FINE, NULL},
    {"modalities", NOT_OTHER, "text"},
    {"audio", NOT_SET, NULL},
    {"moderation", NOT_SET, NULL},
    {"web_search_options", NOT_SET, NULL},
    {"suffix", NOT_SET, NULL},
    {"use_beam_search", NOT_SET, NULL},
    {"chat_template", FINE, NULL},
    {"prompt_embeds", NOT_SET, NULL},
    /* Of vLLM and SGLang. */
    {"length_penalty", NUMBER, NULL}, /* of beams */
    {"spaces_between_special_tokens", SWITCH, NULL},
    {"custom_labels", MAP, NULL}, /* of metrics */
    {"truncation_side", NOT_OTHER, "left"},
    {"logprob_token_ids", NOT_SET, "/generative_scoring has the probabilities of given tokens"},
    {"repetition_detection", NOT_SET, NULL},
    {"stop_regex", NOT_SET, NULL},
    {"vllm_xargs", NOT_SET, NULL},
    {"custom_logit_processor", NOT_SET, NULL},
    {"custom_params", NOT_SET, NULL},
    {"input_ids", NOT_SET, "/v1/completions takes token ids as its prompt"},
    {"lora_path", NOT_SET, "an adapter is named as the model"},
    {"extra_key", NOT_SET, "cache_salt separates KV"},
    {"session_params", NOT_SET, "session_id names a session"},
    {"return_hidden_states", NOT_SET, NULL},
    {"bootstrap_host", NOT_SET, "kv_transfer_params hand a request over"},
    {"bootstrap_port", NOT_SET, "kv_transfer_params hand a request over"},
    {"bootstrap_room", NOT_SET, "kv_transfer_params hand a request over"},
    {"routed_dp_rank", NOT_SET, "a server has one rank"},
    {"data_parallel_rank", NOT_SET, "a server has one rank"},
};

static bool is_set(const struct json *v)
{
    size_t len;

    switch (js_typeof(v)) {
    case JS_NULL: return false;
    case JS_BOOL: return js_bool(v);
    case JS_INT:
    case JS_REAL: return js_number(v) != 0;
    case JS_STRING: js_string(v, &len); return len > 0;
    case JS_ARRAY:
    case JS_OBJECT: return js_len(v) > 0;
    }
    return true;
}

/* Whether the value is the word, as in "text", {"type": "text"} and ["text"]. */
static bool says(const struct json *v, const char *word)
{
    const char *text;

    if (js_is(v, JS_OBJECT))
        v = js_get(v, "type");
    else if (js_is(v, JS_ARRAY) && js_len(v) == 1)
        v = js_at(v, 0);
    return js_read_cstr(v, word, &text, NULL) == OK && strcmp(text, word) == 0;
}

static enum status check_word(const struct json *body, const struct field *f, struct buf *why)
{
    const char *word = "";
    enum status s = js_get_str(body, f->name, &word, NULL, why);

    if (s != OK || flag_is_choice(f->fine, word))
        return s;
    return buf_why(why, ERR_INVALID, "%s: \"%.40s\" is none of %s", f->name, word, f->fine);
}

static enum status check_map(const struct json *body, const struct field *f, struct buf *why)
{
    const struct json *v = js_get(body, f->name);

    return js_is(v, JS_OBJECT) ? OK
                               : buf_why(why, ERR_INVALID, "%s: expected an object, got %s",
                                         f->name, js_type_name(js_typeof(v)));
}

/* v: the value of this field of the body. */
static enum status check_field(const struct json *body, const struct field *f, const struct json *v,
                               struct buf *why)
{
    const char *text;
    double number;
    bool on;

    if (js_is(v, JS_NULL))
        return OK;
    switch (f->rule) {
    case FINE: return OK;
    case SWITCH: return js_get_bool(body, f->name, &on, why);
    case TEXT: return js_get_str(body, f->name, &text, NULL, why);
    case WORD: return check_word(body, f, why);
    case MAP: return check_map(body, f, why);
    case NUMBER: return js_get_f64(body, f->name, -1e9, 1e9, &number, why);
    case NOT_SET:
        return is_set(v) ? buf_why(why, ERR_UNSUPPORTED, "%s: not supported%s%s", f->name,
                                   f->fine ? "; " : "", f->fine ? f->fine : "")
                         : OK;
    case NOT_OTHER: break;
    }
    if (says(v, f->fine))
        return OK;
    return buf_why(why, ERR_UNSUPPORTED, "%s: only \"%s\" is supported", f->name, f->fine);
}

static const struct field *find_field(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        if (fields[i].name[0] == name[0] && strcmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

static enum status check_fields(struct params *p, const struct json *body, struct buf *why)
{
    const char *known[ARRAY_SIZE(fields)];
    enum status s = OK;

    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        known[i] = fields[i].name;
    for (void *it = js_first(body); s == OK && it; it = js_next(body, it)) {
        const struct field *f = find_field(js_it_key(it));
        if (f)
            s = check_field(body, f, js_it_value(it), why);
        else
            unknown_fields_add(&p->unknown, "", js_it_key(it), known, ARRAY_SIZE(known));
    }
    p->has_service_tier = js_get_set(body, "service_tier") != NULL;
    return s;
}

/* Find an adapter by its name, or by SGLang's form MODEL:ADAPTER. */
static struct adapter *find_adapter(const struct server *srv, const char *given)
{
    struct adapters *as = engine_adapters(srv->engine);
    struct adapter *a = adapters_find(as, given);

    for (uint32_t i = 0; !a && i < srv->n_model_names; i++) {
        size_t n = strlen(srv->model_names[i]);

        if (strncmp(given, srv->model_names[i], n) == 0 && given[n] == ':')
            a = adapters_find(as, given + n + 1);
    }
    return a;
}

enum status params_get_model(const struct server *srv, const struct json *body, const char **name,
                             struct adapter **adapter, struct buf *why)
{
    const char *given = NULL;
    enum status s = js_get_str(body, "model", &given, NULL, why);

    *adapter = NULL;
    *name = given && given[0] ? server_find_model(srv, given) : srv->model_names[0];
    if (s != OK || *name)
        return s;
    *adapter = find_adapter(srv, given);
    if (*adapter)
        *name = adapter_name(*adapter);
    return *adapter
               ? OK
               : buf_why(why, ERR_NOT_FOUND, "model: \"%.200s\" is not served here, but \"%s\" is",
                         given, srv->model_names[0]);
}

/* --- sampling --- */

static enum status get_f32(const struct json *body, const char *key, double min, double max,
                           float *out, struct buf *why)
{
    double v = *out;
    enum status s = js_get_f64(body, key, min, max, &v, why);

    *out = (float)v;
    return s;
}

static enum status get_u32(const struct json *body, const char *key, int64_t min, int64_t max,
                           uint32_t *out, struct buf *why)
{
    int64_t v = *out;
    enum status s = js_get_i64(body, key, min, max, &v, why);

    if (s == OK)
        *out = (uint32_t)v;
    return s;
}

static enum status get_top_k(const struct json *body, uint32_t *out, struct buf *why)
{
    int64_t v = *out;
    enum status s = js_get_i64(body, "top_k", -1, INT32_MAX, &v, why);

    if (s == OK)
        *out = v < 0 ? 0 : (uint32_t)v; /* vLLM writes "all" as -1 */
    return s;
}

static enum status get_seed(const struct json *body, uint64_t *out, struct buf *why)
{
    int64_t v;

    hash_random(out, sizeof *out);
    if (!js_get_set(body, "seed"))
        return OK;
    v = 0;
    enum status s = js_get_i64(body, "seed", INT64_MIN, INT64_MAX, &v, why);
    if (s == OK)
        *out = (uint64_t)v;
    return s;
}

static enum status parse_sampling(struct params *p, const struct server *srv,
                                  const struct json *body, struct buf *why)
{
    const struct engine_info *info = srv->info;
    struct sampling *sm = &p->sampling;

    *sm = (struct sampling){.temperature = info->default_temperature,
                            .top_p = info->default_top_p,
                            .top_k = info->default_top_k,
                            .min_p = info->default_min_p,
                            .repetition_penalty = info->default_repetition_penalty};
    enum status s = get_f32(body, "temperature", 0, 100, &sm->temperature, why);
    if (s == OK)
        s = get_f32(body, "top_p", 0, 1, &sm->top_p, why);
    if (s == OK && sm->top_p <= 0)
        s = buf_why(why, ERR_INVALID, "top_p: must be above 0");
    if (s == OK)
        s = get_top_k(body, &sm->top_k, why);
    if (s == OK)
        s = get_f32(body, "min_p", 0, 1, &sm->min_p, why);
    if (s == OK)
        s = get_f32(body, "repetition_penalty", 0, 100, &sm->repetition_penalty, why);
    if (s == OK && sm->repetition_penalty <= 0)
        s = buf_why(why, ERR_INVALID, "repetition_penalty: must be above 0");
    if (s == OK)
        s = get_f32(body, "presence_penalty", -2, 2, &sm->presence_penalty, why);
    if (s == OK)
        s = get_f32(body, "frequency_penalty", -2, 2, &sm->frequency_penalty, why);
    return s == OK ? get_seed(body, &sm->seed, why) : s;
}

/* Read a number of alternatives. vLLM's -1, all tokens, would be megabytes of JSON per token. */
static enum status get_n_logprobs(const struct json *body, const char *name, uint32_t *n,
                                  struct buf *why)
{
    const struct json *v = js_get_set(body, name);

    if (v && js_is(v, JS_INT) && js_int(v) == -1)
        return buf_why(why, ERR_UNSUPPORTED,
                       "%s: -1, all tokens of the vocabulary, is not supported; ask for at most %d",
                       name, SAMPLING_N_LOGPROBS_MAX);
    return get_u32(body, name, 0, SAMPLING_N_LOGPROBS_MAX, n, why);
}

/* Read prompt_logprobs. The engine keeps as many alternatives of prompt and answer as the greater
 * of the two fields asks for. */
static enum status parse_prompt_logprobs(struct params *p, const struct json *body, struct buf *why)
{
    uint32_t n = 0;

    if (!js_get_set(body, "prompt_logprobs"))
        return OK;
    enum status s = get_n_logprobs(body, "prompt_logprobs", &n, why);
    if (s != OK)
        return s;
    p->prompt_logprobs = true;
    p->n_prompt_tops = n;
    if (p->sampling.n_logprobs < n)
        p->sampling.n_logprobs = n;
    return OK;
}

static enum status parse_logprobs(struct params *p, const struct json *body, enum params_kind kind,
                                  struct buf *why)
{
    enum status s;

    if (kind == PARAMS_COMPLETION) {
        p->logprobs = js_get_set(body, "logprobs") != NULL;
        s = get_n_logprobs(body, "logprobs", &p->n_tops, why);
    } else {
        s = js_get_bool(body, "logprobs", &p->logprobs, why);
        if (s == OK)
            s = get_n_logprobs(body, "top_logprobs", &p->n_tops, why);
        if (s == OK && p->n_tops > 0 && !p->logprobs)
            s = buf_why(why, ERR_INVALID, "top_logprobs: needs logprobs to be true");
    }
    p->sampling.n_logprobs = p->n_tops;
    return s == OK ? parse_prompt_logprobs(p, body, why) : s;
}

/* --- stopping --- */

static enum status add_stop(struct params *p, const struct json *v, const char *name,
                            struct buf *why)
{
    size_t len;

    if (!js_is(v, JS_STRING))
        return buf_why(why, ERR_INVALID, "%s: expected a string, got %s", name,
                       js_type_name(js_typeof(v)));
    const char *text = js_string(v, &len);
    if (len == 0)
        return buf_why(why, ERR_INVALID, "%s: must not be empty", name);
    if (len > DETOK_STOP_BYTES_MAX)
        return buf_why(why, ERR_INVALID, "%s: longer than %d bytes", name, DETOK_STOP_BYTES_MAX);
    p->stops[p->stopping.n_stops++] = (struct detok_stop){.text = text, .len = (uint32_t)len};
    return OK;
}

static enum status parse_stop(struct params *p, const struct json *body, struct buf *why)
{
    const struct json *v = js_get_set(body, "stop");
    char name[32];
    enum status s = OK;

    p->stopping.stops = p->stops;
    if (!v)
        return OK;
    if (js_is(v, JS_STRING))
        return add_stop(p, v, "stop", why);
    if (!js_is(v, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "stop: expected a string or an array, got %s",
                       js_type_name(js_typeof(v)));
    if (js_len(v) > DETOK_N_STOPS_MAX)
        return buf_why(why, ERR_INVALID, "stop: %zu entries, at most %d are taken", js_len(v),
                       DETOK_N_STOPS_MAX);
    for (size_t i = 0; s == OK && i < js_len(v); i++) {
        snprintf(name, sizeof name, "stop[%zu]", i);
        s = add_stop(p, js_at(v, i), name, why);
    }
    return s;
}

static enum status parse_stop_ids(struct params *p, const struct server *srv,
                                  const struct json *body, struct buf *why)
{
    const struct json *v = js_get_set(body, "stop_token_ids");

    p->stopping.stop_ids = p->stop_ids;
    if (!v)
        return OK;
    if (!js_is(v, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "stop_token_ids: expected an array, got %s",
                       js_type_name(js_typeof(v)));
    if (js_len(v) > REQUEST_N_STOP_IDS_MAX)
        return buf_why(why, ERR_INVALID, "stop_token_ids: %zu entries, at most %d are taken",
                       js_len(v), REQUEST_N_STOP_IDS_MAX);
    for (size_t i = 0; i < js_len(v); i++) {
        const struct json *id = js_at(v, i);
        if (!js_is(id, JS_INT) || js_int(id) < 0 || js_int(id) >= srv->info->n_vocab)
            return buf_why(why, ERR_INVALID, "stop_token_ids[%zu]: expected a token id below %u", i,
                           srv->info->n_vocab);
        p->stop_ids[p->stopping.n_stop_ids++] = (uint32_t)js_int(id);
    }
    return OK;
}

static enum status parse_stopping(struct params *p, const struct server *srv,
                                  const struct json *body, enum params_kind kind, struct buf *why)
{
    struct stopping *st = &p->stopping;
    bool skip_special = true;

    /* OpenAI's default for text completions is 16; a chat may use what the context leaves. */
    *st =
        (struct stopping){.max_tokens = kind == PARAMS_COMPLETION ? 16 : srv->info->max_model_len};
    enum status s = get_u32(body, "max_tokens", 0, UINT32_MAX, &st->max_tokens, why);
    if (s == OK)
        s = get_u32(body, "max_completion_tokens", 0, UINT32_MAX, &st->max_tokens, why);
    if (st->max_tokens > srv->info->max_model_len)
        st->max_tokens = srv->info->max_model_len;
    if (s == OK)
        s = get_u32(body, "min_tokens", 0, UINT32_MAX, &st->min_tokens, why);
    if (s == OK && st->min_tokens > st->max_tokens)
        s = buf_why(why, ERR_INVALID, "min_tokens: %u is more than max_tokens %u", st->min_tokens,
                    st->max_tokens);
    if (s == OK)
        s = js_get_bool(body, "ignore_eos", &st->ignore_eos, why);
    if (s == OK)
        s = js_get_bool(body, "include_stop_str_in_output", &st->include_stop, why);
    if (s == OK)
        s = js_get_bool(body, "skip_special_tokens", &skip_special, why);
    st->show_special = !skip_special;
    if (s == OK)
        s = parse_stop(p, body, why);
    return s == OK ? parse_stop_ids(p, srv, body, why) : s;
}

/* --- the rest --- */

/* include_obfuscation asks for padding of the frames, which Tarn does not add. */
static const char *const stream_options[] = {"include_usage", "continuous_usage_stats",
                                             "include_obfuscation"};

static enum status parse_stream(struct params *p, const struct json *body, struct buf *why)
{
    const struct json *options = js_get_set(body, "stream_options");
    struct buf inner;
    enum status s = js_get_bool(body, "stream", &p->stream, why);

    if (s != OK || !options)
        return s;
    if (!js_is(options, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "stream_options: expected an object, got %s",
                       js_type_name(js_typeof(options)));
    if (!p->stream)
        return buf_why(why, ERR_INVALID, "stream_options: needs stream to be true");
    unknown_fields_find(&p->unknown, options, "stream_options.", stream_options,
                        ARRAY_SIZE(stream_options));
    buf_init(&inner, BUF_WHY_MAX / 2);
    s = js_get_bool(options, "include_usage", &p->include_usage, &inner);
    if (s == OK)
        s = js_get_bool(options, "continuous_usage_stats", &p->continuous_usage, &inner);
    if (s != OK)
        buf_why(why, s, "stream_options.%s", buf_str(&inner));
    buf_fini(&inner);
    return s;
}

static enum status parse_retention(struct params *p, const struct json *body, struct buf *why)
{
    static const char *const options[] = {"mode", "ttl"}, *const control[] = {"type", "ttl"};
    struct retention r;
    enum status s = retention_parse(&r, body, why);

    if (s != OK)
        return s;
    p->cache_ttl_s = r.ttl_s;
    unknown_fields_find(&p->unknown, js_get(body, "prompt_cache_options"), "prompt_cache_options.",
                        options, ARRAY_SIZE(options));
    unknown_fields_find(&p->unknown, js_get(body, "cache_control"), "cache_control.", control,
                        ARRAY_SIZE(control));
    return OK;
}

/* Read n and best_of. A best_of of 0 or of 1, OpenAI's default, means n. Streams cannot have a
 * best_of above n, because they begin before the best answers are known. */
static enum status parse_counts(struct params *p, const struct json *body, enum params_kind kind,
                                struct buf *why)
{
    uint32_t best_of = 0;
    enum status s = get_u32(body, "n", 1, PARAMS_N_MAX, &p->n, why);

    if (s == OK)
        s = get_u32(body, "best_of", 0, PARAMS_N_MAX, &best_of, why);
    if (s != OK)
        return s;
    p->best_of = best_of > 1 ? best_of : p->n;
    if (best_of > 1 && kind == PARAMS_CHAT)
        return buf_why(why, ERR_INVALID, "best_of: only /v1/completions has it");
    if (p->best_of < p->n)
        return buf_why(why, ERR_INVALID, "best_of: %u is less than n, which is %u", p->best_of,
                       p->n);
    if (p->best_of > p->n && p->stream)
        return buf_why(why, ERR_INVALID,
                       "best_of: an answer of the best cannot be streamed; leave "
                       "out stream or best_of");
    p->sampling.want_logprob = p->logprobs || p->prompt_logprobs || p->best_of > p->n;
    return OK;
}

/* Read the targets, which estimates_read_headers() may overwrite. */
static enum status parse_targets(struct params *p, const struct server *srv,
                                 const struct json *body, struct buf *why)
{
    p->slo_ttft_ms = srv->config->slo_ttft_ms;
    p->slo_tpot_ms = srv->config->slo_tpot_ms;
    enum status s = js_get_f64(body, "slo_ttft_ms", 0, SLO_MS_MAX, &p->slo_ttft_ms, why);
    return s == OK ? js_get_f64(body, "slo_tpot_ms", 0, SLO_MS_MAX, &p->slo_tpot_ms, why) : s;
}

/* Read truncate_prompt_tokens. -1 stands for the longest prompt that leaves room for max_tokens
 * where the request sets that, else for one token. */
static enum status parse_truncation(struct params *p, const struct server *srv,
                                    const struct json *body, struct buf *why)
{
    uint32_t max = srv->info->max_model_len, room = p->stopping.max_tokens;
    int64_t n = 0;

    if (!js_get_set(body, "truncate_prompt_tokens"))
        return OK;
    enum status s = js_get_i64(body, "truncate_prompt_tokens", -1, max, &n, why);
    if (s == OK && n == 0)
        s = buf_why(why, ERR_INVALID,
                    "truncate_prompt_tokens: expected -1 or a number from 1 to %u", max);
    if (s == OK && (js_len(js_get(body, "documents")) > 0 || search_is_wanted(body)))
        s = buf_why(why, ERR_INVALID,
                    "truncate_prompt_tokens: a prompt with documents is not cut; leave one of "
                    "them out");
    p->n_truncated = n > 0 ? (uint32_t)n : max - (room < max ? room : 1);
    return s;
}

static enum status parse_flags(struct params *p, const struct server *srv, const struct json *body,
                               enum params_kind kind, struct buf *why)
{
    int64_t priority = 0;
    enum status s = parse_counts(p, body, kind, why);

    if (s == OK)
        s = js_get_i64(body, "priority", INT32_MIN, INT32_MAX, &priority, why);
    p->priority = (int32_t)priority;
    if (s == OK)
        s = js_get_bool(body, "return_token_ids", &p->return_token_ids, why);
    if (s == OK)
        s = js_get_bool(body, "return_tokens_as_token_ids", &p->tokens_as_ids, why);
    if (s == OK)
        s = js_get_bool(body, "add_special_tokens", &p->add_special, why);
    if (s == OK)
        s = js_get_bool(body, "echo", &p->echo, why);
    if (s == OK && p->echo && kind == PARAMS_CHAT)
        s = buf_why(why, ERR_UNSUPPORTED, "echo: only /v1/completions has it");
    p->sampling.want_prompt_logprobs = (p->echo && p->logprobs) || p->prompt_logprobs;
    if (s == OK && p->prompt_logprobs && p->stream)
        s = buf_why(why, ERR_INVALID,
                    "prompt_logprobs: are not given in a stream; leave out one of the two fields");
    return s == OK ? parse_truncation(p, srv, body, why) : s;
}

/* Read the form of the answers, the tools, and how reasoning is told apart. */
static enum status parse_form_with(struct params *p, const struct server *srv,
                                   const struct chat_kit *kit, const struct json *body,
                                   enum params_kind kind, struct buf *why)
{
    struct structured_place place = {NULL, p->stopping.shown, 0};

    if (kind == PARAMS_CHAT && kit->reasoning && srv->tokenizer) {
        p->reasoning = place.reasoning = kit->reasoning;
        for (int i = 0; i < 2; i++) {
            stopping_show(&p->stopping, srv->tokenizer, p->reasoning->begins[i]);
            stopping_show(&p->stopping, srv->tokenizer, p->reasoning->ends[i]);
        }
        for (int i = 0; i < REASONING_WORDS_MAX; i++)
            stopping_show(&p->stopping, srv->tokenizer, p->reasoning->words[i]);
        place.n_shown = p->stopping.n_shown;
    }
    enum status s = params_read_thoughts(p, srv, body, why);
    if (s == OK)
        s = structured_read(srv->structured, body, &place, &p->grammar, why);
    if (s == OK)
        s = tools_read(&p->tools, &p->grammar, &p->stopping, srv, kit, body, kind == PARAMS_CHAT,
                       why);
    if (s == OK && p->grammar && p->stopping.ignore_eos)
        s = buf_why(why, ERR_INVALID,
                    "ignore_eos: an answer of a given form ends where the form does; leave one of "
                    "them out");
    return s;
}

static enum status parse_form(struct params *p, const struct server *srv, const struct json *body,
                              enum params_kind kind, struct buf *why)
{
    const struct chat_kit *kit = &srv->kit;
    enum status s = js_get_bool(body, "include_reasoning", &p->include_reasoning, why);

    if (s == OK && js_get_set(body, "preamble")) /* a chat's body has it no longer */
        s = buf_why(why, ERR_UNSUPPORTED, "preamble: only chats can name a preamble");
    if (s == OK && kind == PARAMS_CHAT)
        s = chat_kit_get(&kit, srv, body, why);
    if (s == OK)
        s = parse_form_with(p, srv, kit, body, kind, why);
    chat_kit_put(srv, kit);
    return s;
}

enum status params_parse(struct params *p, const struct server *srv, const struct json *body,
                         enum params_kind kind, struct buf *why)
{
    memset(p, 0, sizeof *p);
    p->n = p->best_of = 1;
    buf_init(&p->labels, PARAMS_N_MAX * sizeof(uint32_t));
    p->include_reasoning = true;
    p->add_special = kind == PARAMS_COMPLETION;
    enum status s = params_get_model(srv, body, &p->model, &p->adapter, why);
    if (s == OK)
        s = check_fields(p, body, why);
    if (s == OK)
        s = parse_sampling(p, srv, body, why);
    if (s == OK)
        s = params_read_vocab(p, srv, body, why);
    if (s == OK)
        s = parse_logprobs(p, body, kind, why);
    if (s == OK)
        s = parse_stopping(p, srv, body, kind, why);
    if (s == OK)
        s = params_check_vocab(p, srv, why);
    if (s == OK)
        s = params_read_prediction(p, srv, body, why);
    if (s == OK)
        s = parse_stream(p, body, why);
    if (s == OK)
        s = params_read_service(p, srv, body, why);
    if (s == OK)
        s = parse_targets(p, srv, body, why);
    if (s == OK)
        s = parse_retention(p, body, why);
    if (s == OK)
        s = parse_flags(p, srv, body, kind, why);
    return s == OK ? parse_form(p, srv, body, kind, why) : s;
}

void params_fini(struct params *p)
{
    free(p->logit_bias);
    free(p->allowed);
    p->logit_bias = NULL;
    tools_use_fini(&p->tools);
    p->allowed = NULL;
    buf_fini(&p->word_ends);
    buf_fini(&p->word_ids);
    buf_fini(&p->prediction);
    buf_fini(&p->labels);
    grammar_unref(p->grammar);
    p->grammar = NULL;
    adapter_unref(p->adapter);
    p->adapter = NULL;
}
