/* api_chat.c - POST /v1/chat/completions and /v1/chat/completions/render. */
#include <stdlib.h>

#include "server/api/answer.h"
#include "server/api/api.h"
#include "server/api/call.h"
#include "server/api/lookup.h"
#include "server/api/preamble_use.h"
#include "server/api/prompt_cut.h"
#include "server/server.h"

static enum status read_call(struct call *call, const struct json *body, struct buf *why)
{
    if (preamble_is_named(body))
        return preamble_use_begin(call, PREAMBLE_CHAT, body, why);
    enum status s = params_parse(&call->params, call->srv, body, PARAMS_CHAT, why);
    if (s != OK)
        return s;
    if (lookup_is_needed(body))
        return lookup_begin(call, body, why);
    call->prompts = calloc(1, sizeof *call->prompts);
    if (!call->prompts)
        return buf_why(why, ERR_NOMEM, "out of memory");
    call->n_prompts = 1;
    prompt_init(call->prompts, prompt_n_ids_max(&call->params, call->srv));
    s = prompt_from_chat(call->prompts, call->srv, body, call->params.add_special, why);
    return s == OK ? prompts_cut(&call->params, call->srv, call->prompts, 1, why) : s;
}

void api_chat(struct server *srv, struct http_exchange *x)
{
    call_serve(srv, x, &answer_chat, read_call);
}

void api_chat_render(struct server *srv, struct http_exchange *x)
{
    call_render(srv, x, &answer_chat, read_call);
}
