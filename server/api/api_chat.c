/* api_chat.c - POST /v1/chat/completions and /v1/chat/completions/render. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/answer.h"
#include "server/api/api.h"
#include "server/api/call.h"
#include "server/api/functions.h"
#include "server/api/lookup.h"
#include "server/api/preamble_use.h"
#include "server/api/prompt_cut.h"
#include "server/server.h"

static enum status read_prompt(struct call *call, const struct json *body, struct buf *why)
{
    call->prompts = calloc(1, sizeof *call->prompts);
    if (!call->prompts)
        return buf_why(why, ERR_NOMEM, "out of memory");
    call->n_prompts = 1;
    prompt_init(call->prompts, prompt_n_ids_max(&call->params, call->srv));
    enum status s = prompt_from_chat(call->prompts, call->srv, body, call->params.add_special, why);
    return s == OK ? prompts_cut(&call->params, call->srv, call->prompts, 1, why) : s;
}

/* Errors about what functions_to_tools() made begin with the fields that the client sent. */
static void rename_field(struct buf *why)
{
    static const char tools[] = "tools[", function[] = ".function",
                      choice[] = "tool_choice.function";
    char words[BUF_WHY_MAX];

    snprintf(words, sizeof words, "%s", buf_str(why));
    const char *bracket = strstr(words, "]");
    if (strncmp(words, tools, strlen(tools)) == 0 && bracket &&
        strncmp(bracket + 1, function, strlen(function)) == 0)
        (void)buf_why(why, OK, "functions[%.*s]%s", (int)(bracket - words - strlen(tools)),
                      words + strlen(tools), bracket + 1 + strlen(function));
    else if (strncmp(words, choice, strlen(choice)) == 0)
        (void)buf_why(why, OK, "function_call%s", words + strlen(choice));
}

static enum status read_call(struct call *call, const struct json *body, struct buf *why)
{
    bool is_old = functions_are_used(body);
    enum status s = OK;

    if (preamble_is_named(body))
        return preamble_use_begin(call, PREAMBLE_CHAT, body, why);
    if (is_old) {
        js_unref(call->made);
        call->made = NULL;
        s = functions_to_tools(&call->made, body, why);
    }
    if (s == OK)
        s = params_parse(&call->params, call->srv, is_old ? call->made : body, PARAMS_CHAT, why);
    if (s != OK && is_old)
        rename_field(why);
    if (s != OK)
        return s;
    call->params.tools.is_old = js_get_set(body, "functions") != NULL;
    body = is_old ? call->made : body;
    return lookup_is_needed(body) ? lookup_begin(call, body, why) : read_prompt(call, body, why);
}

void api_chat(struct server *srv, struct http_exchange *x)
{
    call_serve(srv, x, &answer_chat, read_call);
}

void api_chat_render(struct server *srv, struct http_exchange *x)
{
    call_render(srv, x, &answer_chat, read_call);
}
