/* api_chat.c - POST /v1/chat/completions.
 *
 * With `documents_order` "cache" the prompt is rendered, looked up in the cache and rendered again:
 * some 10 ms, for which the call waits while a work thread does it. */
#include <stdlib.h>
#include <string.h>

#include "server/api/api.h"
#include "server/api/call.h"
#include "server/api/wait.h"
#include "server/auth/auth.h"
#include "server/server.h"

/* A prompt that is made on a work thread. */
struct lookup {
    struct wait wait;
    const struct server *srv;
    struct json *body;
    bool add_special;
    struct kv_scope scope;
    struct prompt prompt;
};

static void lookup_free(struct wait *w)
{
    struct lookup *l = (struct lookup *)w;

    prompt_fini(&l->prompt);
    js_unref(l->body);
    wait_fini(w);
    free(l);
}

static void lookup_run(void *arg)
{
    struct lookup *l = arg;

    wait_resume(&l->wait,
                prompt_from_chat(&l->prompt, l->srv, l->body, l->add_special, &l->wait.why));
}

static enum status lookup_resumed(struct call *call, struct wait *w, struct buf *why)
{
    struct lookup *l = (struct lookup *)w;

    (void)why;
    prompt_fini(call->prompts);
    *call->prompts = l->prompt;
    call->prompts->scope = NULL;
    prompt_init(&l->prompt, 0);
    return OK;
}

static enum status wait_for_lookup(struct call *call, const struct json *body,
                                   const struct kv_scope *scope, struct buf *why)
{
    struct lookup *l = calloc(1, sizeof *l);

    if (!l)
        return buf_why(why, ERR_NOMEM, "out of memory");
    wait_init(&l->wait);
    l->wait.job = (struct http_job){lookup_run, l};
    l->wait.resumed = lookup_resumed;
    l->wait.free = lookup_free;
    l->wait.name = "documents_order";
    l->srv = call->srv;
    l->body = js_ref((struct json *)(uintptr_t)body);
    l->add_special = call->params.add_special;
    l->scope = *scope;
    prompt_init(&l->prompt, call->srv->info->max_model_len);
    l->prompt.scope = &l->scope;
    call_wait_for(call, &l->wait);
    return OK;
}

static bool looks_up_documents(const struct json *body)
{
    const struct json *order = js_get(body, "documents_order");

    return js_is(order, JS_STRING) && strcmp(js_string(order, NULL), "cache") == 0 &&
           js_len(js_get(body, "documents")) > 0;
}

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
    account_scope(call->account, &call->params.scope, &scope);
    if (looks_up_documents(body))
        return wait_for_lookup(call, body, &scope, why);
    call->prompts->scope = &scope;
    s = prompt_from_chat(call->prompts, call->srv, body, call->params.add_special, why);
    call->prompts->scope = NULL;
    return s;
}

void api_chat(struct server *srv, struct http_exchange *x)
{
    call_serve(srv, x, PARAMS_CHAT, read_call);
}
