/* api_messages.c - POST /v1/messages and /v1/messages/count_tokens, as Anthropic's API. */
#include <stdlib.h>

#include "server/api/answer_messages.h"
#include "server/api/api.h"
#include "server/api/call.h"
#include "server/api/lookup.h"
#include "server/api/messages_request.h"
#include "server/api/preamble_use.h"
#include "server/server.h"

static enum status read_chat(struct call *call, struct json *chat, struct buf *why)
{
    enum status s = params_parse(&call->params, call->srv, chat, PARAMS_CHAT, why);

    if (s != OK)
        return s;
    if (lookup_is_needed(chat)) {
        /* Another thread reads the chat, while this one frees the body, whose values it shares. */
        struct json *copy = js_copy_deep(chat);
        s = copy ? lookup_begin(call, copy, why) : buf_why(why, ERR_NOMEM, "out of memory");
        js_unref(copy);
        return s;
    }
    call->prompts = calloc(1, sizeof *call->prompts);
    if (!call->prompts)
        return buf_why(why, ERR_NOMEM, "out of memory");
    call->n_prompts = 1;
    prompt_init(call->prompts, call->srv->info->max_model_len);
    return prompt_from_chat(call->prompts, call->srv, chat, false, why);
}

static enum status read_body(struct call *call, const struct json *body, bool counts,
                             struct buf *why)
{
    struct json *chat;
    enum status s;

    if (preamble_is_named(body))
        return preamble_use_begin(call, PREAMBLE_MESSAGES, body, why);
    s = messages_to_chat(&chat, body, counts, why);
    if (s != OK)
        return s;
    if (messages_state_attach(call, chat) != OK)
        return buf_why(why, ERR_NOMEM, "out of memory");
    s = preamble_add_tools(call, chat, why);
    if (s == OK)
        s = read_chat(call, chat, why);
    messages_find_unknown(&call->params.unknown, body);
    return s;
}

static enum status read_message(struct call *call, const struct json *body, struct buf *why)
{
    return read_body(call, body, false, why);
}

static enum status read_counted(struct call *call, const struct json *body, struct buf *why)
{
    return read_body(call, body, true, why);
}

void api_messages(struct server *srv, struct http_exchange *x)
{
    call_serve(srv, x, &answer_messages, read_message);
}

void api_count_tokens(struct server *srv, struct http_exchange *x)
{
    call_render(srv, x, &answer_messages, read_counted);
}
