/* api_generate.c - POST /inference/v1/generate: token ids in and out, with vLLM's body, which the
 * render endpoints write. The body becomes that of a text completion. */
#include <string.h>

#include "server/api/answer.h"
#include "server/api/api.h"
#include "server/api/call.h"
#include "server/api/prompt.h"
#include "server/api/prompt_cut.h"
#include "base/check.h"

enum rule { OWN, COPIED, REFUSED };

static const struct {
    const char *name;
    enum rule rule;
} fields[] = {
    {"token_ids", OWN},     {"sampling_params", OWN},       {"model", COPIED},
    {"stream", COPIED},     {"stream_options", COPIED},     {"cache_salt", COPIED},
    {"priority", COPIED},   {"kv_transfer_params", COPIED}, {"return_timings", COPIED},
    {"session_id", COPIED}, {"request_id", COPIED},         {"features", REFUSED}, /* of pictures */
};

static enum status copy_members(struct json *made, const struct json *from)
{
    enum status s = OK;

    for (void *it = js_first(from); s == OK && it; it = js_next(from, it))
        s = js_set(made, js_it_key(it), js_ref(js_it_value(it)));
    return s;
}

static enum status make_body(struct json *made, const struct json *body)
{
    enum status s = copy_members(made, js_get_set(body, "sampling_params"));

    for (size_t i = 0; s == OK && i < ARRAY_SIZE(fields); i++)
        if (fields[i].rule == COPIED && js_get_set(body, fields[i].name))
            s = js_set(made, fields[i].name, js_ref(js_get(body, fields[i].name)));
    if (s == OK)
        s = js_set(made, "prompt", js_ref(js_get(body, "token_ids")));
    return s == OK ? js_set(made, "return_token_ids", js_new_bool(true)) : s;
}

static enum status check(const struct json *body, struct buf *why)
{
    const struct json *ids = js_get_set(body, "token_ids");
    const struct json *params = js_get_set(body, "sampling_params");

    if (!ids)
        return buf_why(why, ERR_INVALID, "token_ids: is required");
    if (!js_is(ids, JS_ARRAY) || !js_is(js_at(ids, 0), JS_INT))
        return buf_why(why, ERR_INVALID, "token_ids: expected an array of token ids");
    if (params && !js_is(params, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "sampling_params: expected an object, got %s",
                       js_type_name(js_typeof(params)));
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        if (fields[i].rule == REFUSED && js_get_set(body, fields[i].name))
            return buf_why(why, ERR_UNSUPPORTED, "%s: not supported", fields[i].name);
    return OK;
}

static enum status read_call(struct call *call, const struct json *body, struct buf *why)
{
    const char *known[ARRAY_SIZE(fields)];
    enum status s = check(body, why);

    if (s != OK)
        return s;
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        known[i] = fields[i].name;
    call->made = js_new_object();
    if (!call->made || make_body(call->made, body) != OK)
        return buf_why(why, ERR_NOMEM, "out of memory");
    s = params_parse(&call->params, call->srv, call->made, PARAMS_COMPLETION, why);
    call->params.names_request = true;
    unknown_fields_find(&call->params.unknown, body, "", known, ARRAY_SIZE(known));
    if (s == OK)
        s = prompt_list_parse(&call->prompts, &call->n_prompts, call->srv, call->made,
                              &call->params, why);
    return s == OK ? prompts_cut(&call->params, call->srv, call->prompts, call->n_prompts, why) : s;
}

void api_generate(struct server *srv, struct http_exchange *x)
{
    call_serve(srv, x, &answer_completion, read_call);
}
