/* api_chat.c - POST /v1/chat/completions. */
#include <stdlib.h>

#include "server/api.h"
#include "server/call.h"
#include "server/error.h"
#include "server/server.h"

static enum status read_call(struct call *call, const struct json *body, struct buf *why)
{
    enum status s = params_parse(&call->params, call->srv, body, PARAMS_CHAT, why);

    if (s != OK)
        return s;
    call->prompts = calloc(1, sizeof *call->prompts);
    if (!call->prompts)
        return buf_why(why, ERR_NOMEM, "out of memory");
    call->n_prompts = 1;
    prompt_init(call->prompts, call->srv->info->max_model_len);
    return prompt_from_chat(call->prompts, call->srv, body, call->params.add_special, why);
}

void api_chat(struct server *srv, struct http_exchange *x)
{
    struct json *body = api_read_body(x);
    struct call *call = body ? call_create(srv, x, PARAMS_CHAT) : NULL;
    struct buf why;

    if (!body)
        return;
    buf_init(&why, BUF_WHY_MAX);
    enum status s = call ? read_call(call, body, &why) : ERR_NOMEM;
    if (s == OK) {
        call_start(call, x);
        call = NULL;
    } else if (s == ERR_TOO_LARGE) {
        error_reply_too_long(x, buf_str(&why));
    } else {
        error_reply(x, s, s == ERR_NOT_FOUND ? "model_not_found" : NULL, buf_str(&why));
    }
    call_free(call);
    js_unref(body);
    buf_fini(&why);
}
