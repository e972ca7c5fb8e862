/* api_completions.c - POST /v1/completions and /v1/completions/render. */
#include "server/api/answer.h"
#include "server/api/api.h"
#include "server/api/call.h"
#include "server/api/lookup.h"
#include "server/api/prompt_cut.h"
#include "server/server.h"

static enum status read_call(struct call *call, const struct json *body, struct buf *why)
{
    struct params *p = &call->params;
    enum status s = params_parse(p, call->srv, body, PARAMS_COMPLETION, why);

    if (s != OK)
        return s;
    /* Documents are put before the prompt by the lookup, also where none of them is looked up. */
    if (lookup_is_needed(body) || js_len(js_get(body, "documents")) > 0)
        return lookup_begin(call, body, why);
    s = prompt_list_parse(&call->prompts, &call->n_prompts, call->srv, body, p, why);
    return s == OK ? prompts_cut(p, call->srv, call->prompts, call->n_prompts, why) : s;
}

void api_completions(struct server *srv, struct http_exchange *x)
{
    call_serve(srv, x, &answer_completion, read_call);
}

void api_completions_render(struct server *srv, struct http_exchange *x)
{
    call_render(srv, x, &answer_completion, read_call);
}
