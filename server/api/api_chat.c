/* api_chat.c - POST /v1/chat/completions. */
#include <stdlib.h>

#include "server/api/api.h"
#include "server/auth/auth.h"
#include "server/api/call.h"
#include "server/server.h"

static enum status read_call(struct call *call, const struct json *body, struct buf *why)
{
    enum status s = params_parse(&call->params, call->srv, body, PARAMS_CHAT, why);
    struct kv_scope scope;

    if (s != OK)
        return s;
    call->prompts = calloc(1, sizeof *call->prompts);
    if (!call->prompts)
        return buf_why(why, ERR_NOMEM, "out of memory");
    call->n_prompts = 1;
    prompt_init(call->prompts, call->srv->info->max_model_len);
    if (call->account) { /* without an account the call will be refused */
        account_scope(call->account, &call->params.scope, &scope);
        call->prompts->scope = &scope;
    }
    s = prompt_from_chat(call->prompts, call->srv, body, call->params.add_special, why);
    call->prompts->scope = NULL;
    return s;
}

void api_chat(struct server *srv, struct http_exchange *x)
{
    call_serve(srv, x, PARAMS_CHAT, read_call);
}
