/* api_completions.c - POST /v1/completions. */
#include "server/api.h"
#include "server/call.h"
#include "server/error.h"
#include "server/server.h"

static enum status read_call(struct call *call, const struct json *body, struct buf *why)
{
    struct params *p = &call->params;
    enum status s = params_parse(p, call->srv, body, PARAMS_COMPLETION, why);

    if (s == OK)
        s = prompt_list_parse(&call->prompts, &call->n_prompts, call->srv, body, p->add_special,
                              p->echo, why);
    return s;
}

void api_completions(struct server *srv, struct http_exchange *x)
{
    struct json *body = api_read_body(x);
    struct call *call = body ? call_create(srv, x, PARAMS_COMPLETION) : NULL;
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
