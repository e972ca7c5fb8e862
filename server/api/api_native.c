/* api_native.c - POST /generate, with SGLang's body: texts or token ids, and sampling parameters by
 * SGLang's names. The body becomes that of a text completion. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "server/api/answer_native.h"
#include "server/api/api.h"
#include "server/api/call.h"
#include "server/api/prompt.h"
#include "server/api/prompt_cut.h"

#define MAX_NEW_TOKENS 128 /* SGLang's default */

enum rule { OWN, COPIED, NO_EFFECT, REFUSED };

static const struct field {
    const char *name;
    enum rule rule;
    const char *to; /* the name in a completion; NULL: the same */
} fields[] = {
    {"text", OWN, NULL},
    {"input_ids", OWN, NULL},
    {"sampling_params", OWN, NULL},
    {"return_logprob", OWN, NULL},
    {"logprob_start_len", OWN, NULL},
    {"top_logprobs_num", OWN, NULL},
    {"return_text_in_logprobs", OWN, NULL},
    {"stream", COPIED, NULL},
    {"rid", COPIED, NULL},
    {"model", COPIED, NULL},
    {"lora_path", COPIED, "model"},
    {"extra_key", COPIED, "cache_salt"},
    {"priority", COPIED, NULL},
    {"session_id", COPIED, NULL},
    {"log_metrics", NO_EFFECT, NULL},
    {"token_ids_logprob", REFUSED, NULL},
    {"input_embeds", REFUSED, NULL},
    {"image_data", REFUSED, NULL},
    {"audio_data", REFUSED, NULL},
    {"video_data", REFUSED, NULL},
    {"session_params", REFUSED, NULL},
    {"return_hidden_states", REFUSED, NULL},
    {"custom_logit_processor", REFUSED, NULL},
    {"bootstrap_host", REFUSED, NULL},
    {"bootstrap_room", REFUSED, NULL},
};

/* Names of sampling_params that completions do not have. */
static const struct field renamed[] = {
    {"max_new_tokens", COPIED, "max_tokens"},
    {"min_new_tokens", COPIED, "min_tokens"},
    {"no_stop_trim", COPIED, "include_stop_str_in_output"},
    {"sampling_seed", COPIED, "seed"},
};

static const char *name_of(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(renamed); i++)
        if (strcmp(renamed[i].name, name) == 0)
            return renamed[i].to;
    return name;
}

static bool is_refused(const struct json *v)
{
    return v && !(js_is(v, JS_BOOL) && !js_bool(v)) && !(js_len(v) == 0 && js_is(v, JS_ARRAY));
}

static enum status check(const struct json *body, struct buf *why)
{
    const struct json *text = js_get_set(body, "text"), *ids = js_get_set(body, "input_ids");
    const struct json *params = js_get_set(body, "sampling_params");

    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        if (fields[i].rule == REFUSED && is_refused(js_get_set(body, fields[i].name)))
            return buf_why(why, ERR_UNSUPPORTED, "%s: not supported", fields[i].name);
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
        const char *name = fields[i].name, *word;
        bool on;
        enum status s = fields[i].rule == NO_EFFECT ? js_get_bool(body, name, &on, why)
                        : fields[i].to              ? js_get_str(body, name, &word, NULL, why)
                                                    : OK;
        if (s != OK)
            return s;
    }
    if (!text == !ids)
        return buf_why(why, ERR_INVALID, "%s",
                       text ? "input_ids: text and input_ids are both set"
                            : "text: is required, or input_ids");
    if (text && !js_is(text, JS_STRING) && !js_is(js_at(text, 0), JS_STRING))
        return buf_why(why, ERR_INVALID, "text: expected a string or an array of strings, got %s",
                       js_type_name(js_typeof(text)));
    if (ids && !js_is(js_at(ids, 0), JS_INT) && !js_is(js_at(ids, 0), JS_ARRAY))
        return buf_why(why, ERR_INVALID, "input_ids: expected an array of token ids, or of such");
    if (params && !js_is(params, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "sampling_params: expected an object, got %s",
                       js_type_name(js_typeof(params)));
    return OK;
}

static enum status copy_sampling(struct json *made, const struct json *params)
{
    enum status s = OK;

    for (void *it = js_first(params); s == OK && it; it = js_next(params, it))
        if (!js_is(js_it_value(it), JS_NULL))
            s = js_set(made, name_of(js_it_key(it)), js_ref(js_it_value(it)));
    if (s == OK && !js_get(made, "max_tokens"))
        s = js_set(made, "max_tokens", js_new_int(MAX_NEW_TOKENS));
    return s;
}

static enum status make_body(struct json *made, const struct json *body)
{
    const struct json *text = js_get_set(body, "text");
    enum status s = copy_sampling(made, js_get_set(body, "sampling_params"));

    for (size_t i = 0; s == OK && i < ARRAY_SIZE(fields); i++)
        if (fields[i].rule == COPIED && js_get_set(body, fields[i].name))
            s = js_set(made, fields[i].to ? fields[i].to : fields[i].name,
                       js_ref(js_get(body, fields[i].name)));
    return s == OK ? js_set(made, "prompt",
                            js_ref(text ? js_get(body, "text") : js_get(body, "input_ids")))
                   : s;
}

/* Read what logprobs are wanted, and add it to the completion's body. */
static enum status read_logprobs(struct native_state *n, struct json *made, const struct json *body,
                                 struct buf *why)
{
    bool wanted = false, streams = js_get_set(made, "stream") != NULL;
    int64_t n_tops = 0;
    enum status s = js_get_bool(body, "return_logprob", &wanted, why);

    n->prompt_from = -1;
    if (s == OK)
        s = js_get_i64(body, "logprob_start_len", -1, INT32_MAX, &n->prompt_from, why);
    if (s == OK)
        s = js_get_i64(body, "top_logprobs_num", 0, SAMPLING_N_LOGPROBS_MAX, &n_tops, why);
    if (s == OK)
        s = js_get_bool(body, "return_text_in_logprobs", &n->names_tokens, why);
    if (s == OK && streams)
        s = js_get_bool(body, "stream", &streams, why);
    if (s != OK || !wanted)
        return s;
    if (streams && n->prompt_from >= 0)
        return buf_why(why, ERR_INVALID,
                       "logprob_start_len: logprobs of the prompt are not given in a stream");
    s = js_set(made, "logprobs", js_new_int(n_tops));
    if (s == OK && n->prompt_from >= 0)
        s = js_set(made, "prompt_logprobs", js_new_int(n_tops));
    return s == OK ? s : buf_why(why, s, "out of memory");
}

static enum status read_call(struct call *call, const struct json *body, struct buf *why)
{
    const char *known[ARRAY_SIZE(fields)];
    struct native_state *n = calloc(1, sizeof *n);
    enum status s = check(body, why);

    call->shape_state = n;
    if (s != OK)
        return s;
    call->made = js_new_object();
    if (!n || !call->made || make_body(call->made, body) != OK)
        return buf_why(why, ERR_NOMEM, "out of memory");
    s = read_logprobs(n, call->made, body, why);
    if (s == OK)
        s = params_parse(&call->params, call->srv, call->made, PARAMS_COMPLETION, why);
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        known[i] = fields[i].name;
    unknown_fields_find(&call->params.unknown, body, "", known, ARRAY_SIZE(known));
    const struct json *prompt = js_get(call->made, "prompt");
    n->is_list =
        call->params.n > 1 || (js_is(prompt, JS_ARRAY) && !js_is(js_at(prompt, 0), JS_INT));
    if (s == OK)
        s = prompt_list_parse(&call->prompts, &call->n_prompts, call->srv, call->made,
                              &call->params, why);
    return s == OK ? prompts_cut(&call->params, call->srv, call->prompts, call->n_prompts, why) : s;
}

void api_native(struct server *srv, struct http_exchange *x)
{
    call_serve(srv, x, &answer_native, read_call);
}
