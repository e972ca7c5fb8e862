/* api_responses.c - /v1/responses: POST, input_tokens; GET and DELETE of one, its cancel and
 * input_items. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "server/api/answer_response.h"
#include "server/api/api.h"
#include "server/api/background.h"
#include "server/api/call.h"
#include "server/api/caller.h"
#include "server/api/lookup.h"
#include "server/api/preamble_use.h"
#include "server/api/prompt_cut.h"
#include "server/api/response_items.h"
#include "server/auth/auth.h"
#include "server/http/error.h"
#include "server/server.h"

#define PATH "/v1/responses/"
#define CANCEL "/cancel"
#define INPUT_ITEMS "/input_items"
#define REPLY_BYTES_MAX (1u << 30)
#define FOLLOW_BYTES_MAX ((size_t)1 << 20)
#define KEEP_ALIVE_NS UINT64_C(1000000000)
#define CANCEL_WAIT_NS UINT64_C(5000000000)

/* --- POST --- */

/* Words about a field of the chat's body begin with the field's name there. */
static void rename_field(struct buf *why)
{
    static const char *const names[][2] = {
        {"max_completion_tokens", "max_output_tokens"},
        {"reasoning_effort", "reasoning.effort"},
        {"response_format.json_schema", "text.format"},
        {"response_format", "text.format"},
        {"verbosity", "text.verbosity"},
        {"tool_choice.function", "tool_choice"},
    };
    char words[BUF_WHY_MAX];
    const char *function = strstr(buf_str(why), "].function.");

    snprintf(words, sizeof words, "%s", buf_str(why));
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        size_t n = strlen(names[i][0]);
        if (strncmp(words, names[i][0], n) == 0 && strchr(":.", words[n])) {
            (void)buf_why(why, OK, "%s%s", names[i][1], words + n);
            return;
        }
    }
    if (function && strncmp(words, "tools[", 6) == 0) {
        size_t n = (size_t)(function - buf_str(why)) + 1;
        (void)buf_why(why, OK, "%.*s%s", (int)n, words, words + n + strlen(".function"));
    }
}

/* Whether the prompt leaves room: with truncation, for the whole answer that was asked for, or for
 * an eighth of the context. */
static bool fits(const struct call *call, bool truncates)
{
    uint32_t max = call->srv->info->max_model_len, want = call->params.stopping.max_tokens;
    uint32_t room = !truncates ? 1 : want < max / 2 ? want : max / 8;

    return prompt_n_ids(call->prompts) + room <= max;
}

static enum status make_prompt(struct call *call, const struct json *chat, struct buf *why)
{
    prompt_fini(call->prompts);
    prompt_init(call->prompts, prompt_n_ids_max(&call->params, call->srv));
    return prompt_from_chat(call->prompts, call->srv, chat, call->params.add_special, why);
}

/* Drop as few of the oldest messages as the prompt needs to fit: a binary search. */
static enum status truncate_prompt(struct call *call, struct response_ask *ask, struct buf *why)
{
    struct json *all = js_ref(js_get(ask->chat, "messages"));
    size_t low = 0, high = js_len(all); /* dropping `low` is not enough, `high` is */
    enum status s = OK;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        buf_reset(why);
        if (!response_ask_drop(ask, all, middle)) {
            high = middle; /* nothing would be left */
            continue;
        }
        s = make_prompt(call, ask->chat, why);
        if (s != OK && s != ERR_TOO_LARGE)
            break;
        if (s == OK && fits(call, true))
            high = middle;
        else
            low = middle;
    }
    buf_reset(why);
    if ((s == OK || s == ERR_TOO_LARGE) && high < js_len(all) && response_ask_drop(ask, all, high))
        s = make_prompt(call, ask->chat, why);
    else if (s == OK || s == ERR_TOO_LARGE)
        s = buf_why(why, ERR_TOO_LARGE, "input: the last message alone exceeds the context");
    js_unref(all);
    return s;
}

static enum status read_prompt(struct call *call, struct response_ask *ask, struct buf *why)
{
    call->prompts = calloc(1, sizeof *call->prompts);
    if (!call->prompts)
        return buf_why(why, ERR_NOMEM, "out of memory");
    call->n_prompts = 1;
    enum status s = make_prompt(call, ask->chat, why);
    if (ask->truncates && (s == ERR_TOO_LARGE || (s == OK && !fits(call, true))))
        s = truncate_prompt(call, ask, why);
    return s == OK ? prompts_cut(&call->params, call->srv, call->prompts, 1, why) : s;
}

static enum status read_params(struct call *call, struct response_ask *ask, struct buf *why)
{
    /* Another thread reads or frees the chat, which therefore must not share values with the
     * request's body. Params point into the chat. */
    if (lookup_is_needed(ask->chat) || ask->background) {
        struct json *copy = js_copy_deep(ask->chat);
        if (!copy)
            return buf_why(why, ERR_NOMEM, "out of memory");
        js_unref(ask->chat);
        ask->chat = copy;
    }
    enum status s = params_parse(&call->params, call->srv, ask->chat, PARAMS_CHAT, why);
    if (s == OK && (s = response_answer_begin(call)) != OK)
        return buf_why(why, s, "out of memory");
    return s;
}

static enum status read_call(struct call *call, const struct json *body, struct buf *why)
{
    struct response_ask *ask;
    enum status s;

    if (preamble_is_named(body))
        return preamble_use_begin(call, PREAMBLE_RESPONSES, body, why);
    s = response_answer_create(call, &ask);
    if (s != OK)
        return buf_why(why, s, "out of memory");
    s = response_ask_read(ask, call->srv->responses, call->account->owner, call->id, body, why);
    call->error_code = ask->error_code;
    if (s == OK && ask->background && call->srv->config->stored_responses == 0)
        s = buf_why(why, ERR_UNSUPPORTED,
                    "background: this server keeps no responses (--stored-responses 0)");
    ask->store &= call->srv->config->stored_responses > 0;
    if (s == OK)
        s = preamble_add_tools(call, ask->chat, why);
    if (s != OK)
        return s;
    s = read_params(call, ask, why);
    call->wants_found_texts = ask->wants_results;
    call->wants_background = ask->background && !call->renders;
    if (s == OK && lookup_is_needed(ask->chat))
        return lookup_begin(call, ask->chat, why);
    if (s == OK)
        s = read_prompt(call, ask, why);
    if (s != OK)
        rename_field(why);
    return s;
}

void api_responses(struct server *srv, struct http_exchange *x)
{
    call_serve(srv, x, &answer_response, read_call);
}

void api_response_tokens(struct server *srv, struct http_exchange *x)
{
    call_render(srv, x, &answer_response, read_call);
}

/* --- kept responses --- */

static void reply_not_found(struct http_exchange *x, const char *id)
{
    char words[160];

    snprintf(words, sizeof words, "Response with id '%.64s' not found.", id);
    error_reply(x, ERR_NOT_FOUND, NULL, words);
}

/* Copy the id of the path, without `suffix`. False: the error was answered. */
static bool get_id(struct http_exchange *x, const char *suffix, char id[RESPONSE_ID_BYTES])
{
    const char *path = http_path(x) + strlen(PATH);
    size_t n = strlen(path), n_suffix = strlen(suffix);
    char words[160];

    if (n <= n_suffix || strcmp(path + n - n_suffix, suffix) != 0) {
        snprintf(words, sizeof words, "there is no %.16s of %.96s", http_method(x), http_path(x));
        error_reply(x, ERR_NOT_FOUND, NULL, words);
        return false;
    }
    n -= n_suffix;
    if (n < RESPONSE_ID_BYTES) {
        memcpy(id, path, n);
        id[n] = '\0';
        return true;
    }
    reply_not_found(x, path);
    return false;
}

static const char *owner_of(const struct http_exchange *x)
{
    return caller_account(x)->owner;
}

/* --- input_items --- */

#define LIMIT_DEFAULT 20
#define LIMIT_MAX 100

/* The items of all turns up to this one's input, in order: what the response read. */
static enum status collect_items(const struct response_turn *last, struct json *items)
{
    struct buf turns;
    enum status s = OK;

    buf_init(&turns, SIZE_MAX / 2);
    for (const struct response_turn *t = last; s == OK && t; t = t->previous)
        s = buf_append(&turns, &t, sizeof t);
    const struct response_turn **list = (const struct response_turn **)(void *)turns.data;
    for (size_t i = turns.len / sizeof *list; s == OK && i-- > 0;) {
        s = response_items_parse(items, &list[i]->input);
        if (s == OK && i > 0)
            s = response_items_parse(items, &list[i]->output);
    }
    buf_fini(&turns);
    return s;
}

static void write_id(struct writer *w, const char *key, const struct json *item)
{
    const struct json *id = js_get(item, "id");

    write_format(w, ",\"%s\":", key);
    if (w->status == OK)
        w->status = id ? js_write(w->out, id) : buf_puts(w->out, "\"\"");
}

static bool read_limit(const char *text, uint32_t *limit)
{
    size_t n = strspn(text, "0123456789");

    *limit = n > 0 && n <= 3 && text[n] == '\0' ? (uint32_t)strtoul(text, NULL, 10) : 0;
    return *limit > 0 && *limit <= LIMIT_MAX;
}

/* Write a page of the items: at most `limit` of them behind the item `after`. False: no item has
 * that id. */
static bool write_page(struct writer *w, const struct json *items, const char *after, size_t limit,
                       bool descends)
{
    size_t n = js_len(items), at = 0, n_page = 0;
    const struct json *first = NULL, *last = NULL;

    for (bool found = after == NULL; !found; at++) {
        if (at == n)
            return false;
        const struct json *id = js_get(js_at(items, descends ? n - 1 - at : at), "id");
        found = js_is(id, JS_STRING) && strcmp(js_string(id, NULL), after) == 0;
    }
    write_puts(w, "{\"object\":\"list\",\"data\":[");
    for (; at < n && n_page < limit; at++, n_page++) {
        last = js_at(items, descends ? n - 1 - at : at);
        first = first ? first : last;
        write_puts(w, n_page ? "," : "");
        if (w->status == OK)
            w->status = js_write(w->out, last);
    }
    write_puts(w, "]");
    write_id(w, "first_id", first);
    write_id(w, "last_id", last);
    write_format(w, ",\"has_more\":%s}", at < n ? "true" : "false");
    return true;
}

static void reply_items(struct server *srv, struct http_exchange *x, const char *id)
{
    const char *order = http_query(x, "order"), *limit_text = http_query(x, "limit");
    struct json *items = NULL;
    struct response_turn *turn;
    struct buf body;
    struct writer w = {&body, OK};
    uint32_t limit = LIMIT_DEFAULT;

    if ((limit_text && !read_limit(limit_text, &limit)) ||
        (order && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0)) {
        error_reply(x, ERR_INVALID, NULL,
                    "input_items: expected limit=1 to 100, order=asc or order=desc");
        return;
    }
    turn = responses_turn(srv->responses, owner_of(x), id);
    if (!turn) {
        reply_not_found(x, id);
        return;
    }
    buf_init(&body, REPLY_BYTES_MAX);
    w.status = (items = js_new_array()) ? collect_items(turn, items) : ERR_NOMEM;
    response_turn_unref(turn);
    if (write_page(&w, items, http_query(x, "after"), limit, !order || order[0] == 'd')) {
        api_reply(x, &w);
    } else {
        error_reply(x, ERR_NOT_FOUND, NULL, "after: the response has no item of this id");
        buf_fini(&body);
    }
    js_unref(items);
}

/* --- events of a response in the background --- */

static enum http_next on_follow_step(void *ctx, struct http_exchange *x)
{
    (void)ctx;
    (void)x;
    return HTTP_STREAM;
}

static enum http_next on_follow_fill(void *ctx, struct buf *out, uint64_t idle_ns)
{
    bool is_over = false;

    if (response_follower_take(ctx, out, FOLLOW_BYTES_MAX, &is_over) != OK)
        return HTTP_ABORT;
    if (!is_over && out->len == 0 && idle_ns >= KEEP_ALIVE_NS &&
        buf_puts(out, answer_response.keep_alive) != OK)
        return HTTP_ABORT;
    return is_over ? HTTP_DONE : HTTP_WAIT;
}

static void on_follow_gone(void *ctx)
{
    response_follower_leave(ctx); /* the response goes on */
}

static void on_follow_close(void *ctx, int status)
{
    (void)status;
    response_follower_close(ctx);
}

static void follow(struct server *srv, struct http_exchange *x, const char *id)
{
    static const struct http_async async = {.step = on_follow_step,
                                            .fill = on_follow_fill,
                                            .gone = on_follow_gone,
                                            .close = on_follow_close};
    const char *text = http_query(x, "starting_after");
    size_t n = text ? strspn(text, "0123456789") : 0;
    struct response_follower *f;

    if (text && (n == 0 || n > 9 || text[n])) {
        error_reply(x, ERR_INVALID, NULL, "starting_after: expected the number of an event");
        return;
    }
    enum status s = responses_follow(&f, srv->responses, owner_of(x), id, text ? atoi(text) : -1);
    if (s == ERR_NOT_FOUND)
        reply_not_found(x, id);
    else if (s != OK)
        error_reply(x, s == ERR_UNSUPPORTED ? ERR_INVALID : s, NULL,
                    "stream: only the events of responses that were made with background and "
                    "stream are kept");
    if (s != OK)
        return;
    if (http_defer(x, &async, f) == OK) {
        response_follower_wake(f, http_wake, http_waker(x));
    } else {
        error_reply(x, ERR_UNAVAILABLE, NULL, "the server is shutting down");
        response_follower_close(f);
    }
}

/* --- one response --- */

static void reply_response(struct server *srv, struct http_exchange *x, const char *id)
{
    struct buf body;

    buf_init(&body, REPLY_BYTES_MAX);
    enum status s = responses_get(srv->responses, owner_of(x), id, &body);
    if (s == OK)
        http_reply(x, 200, "application/json", &body);
    else if (s == ERR_NOT_FOUND)
        reply_not_found(x, id);
    else
        error_reply(x, s, NULL, "the answer does not fit into memory");
    buf_fini(&body);
}

void api_response(struct server *srv, struct http_exchange *x)
{
    const char *path = http_path(x), *stream = http_query(x, "stream");
    size_t n = strlen(path), n_items = strlen(INPUT_ITEMS);
    char id[RESPONSE_ID_BYTES];

    if (n > n_items && strcmp(path + n - n_items, INPUT_ITEMS) == 0) {
        if (get_id(x, INPUT_ITEMS, id))
            reply_items(srv, x, id);
    } else if (get_id(x, "", id)) {
        if (stream && strcmp(stream, "true") == 0)
            follow(srv, x, id);
        else
            reply_response(srv, x, id);
    }
}

void api_response_delete(struct server *srv, struct http_exchange *x)
{
    char id[RESPONSE_ID_BYTES];
    struct buf body;
    struct writer w = {&body, OK};

    if (!get_id(x, "", id))
        return;
    (void)background_cancel(srv->background, owner_of(x), id);
    if (!responses_delete(srv->responses, owner_of(x), id)) {
        reply_not_found(x, id);
        return;
    }
    buf_init(&body, REPLY_BYTES_MAX);
    write_format(&w, "{\"id\":\"%s\",\"object\":\"response\",\"deleted\":true}", id);
    api_reply(x, &w);
}

/* --- cancel --- */

/* The engine ends the request with its step; the answer waits for that. */
struct cancel {
    struct server *srv;
    struct response_follower *end;
    uint64_t until_ns;
    char id[RESPONSE_ID_BYTES];
};

static enum http_next on_cancel_step(void *ctx, struct http_exchange *x)
{
    struct cancel *c = ctx;
    struct buf none;
    bool is_over = false;

    buf_init(&none, 1);
    enum status s = response_follower_take(c->end, &none, 0, &is_over);
    if (s == OK && !is_over && clock_now_ns() < c->until_ns)
        return HTTP_WAIT;
    reply_response(c->srv, x, c->id);
    return HTTP_DONE;
}

static void on_cancel_gone(void *ctx)
{
    struct cancel *c = ctx;

    response_follower_leave(c->end);
}

static void on_cancel_close(void *ctx, int status)
{
    struct cancel *c = ctx;

    (void)status;
    response_follower_close(c->end);
    free(c);
}

static void answer_at_end(struct server *srv, struct http_exchange *x, const char *id)
{
    static const struct http_async async = {
        .step = on_cancel_step, .gone = on_cancel_gone, .close = on_cancel_close};
    struct cancel *c = calloc(1, sizeof *c);
    enum status s =
        c ? responses_follow(&c->end, srv->responses, owner_of(x), id, RESPONSE_END) : ERR_NOMEM;

    if (s == OK) {
        c->srv = srv;
        c->until_ns = clock_now_ns() + CANCEL_WAIT_NS;
        memcpy(c->id, id, strlen(id) + 1);
        s = http_defer(x, &async, c);
    }
    if (s == OK) {
        http_wake_at(x, c->until_ns);
        response_follower_wake(c->end, http_wake, http_waker(x));
        return;
    }
    if (s == ERR_NOT_FOUND)
        reply_not_found(x, id);
    else
        error_reply(x, s, NULL, status_words(s));
    response_follower_close(c ? c->end : NULL);
    free(c);
}

void api_response_cancel(struct server *srv, struct http_exchange *x)
{
    enum response_state state;
    bool was_background = true;
    char id[RESPONSE_ID_BYTES];

    if (!get_id(x, CANCEL, id))
        return;
    (void)background_cancel(srv->background, owner_of(x), id);
    if (!responses_look(srv->responses, owner_of(x), id, &state, &was_background))
        reply_not_found(x, id);
    else if (was_background)
        answer_at_end(srv, x, id);
    else
        error_reply(x, ERR_INVALID, NULL, "Cannot cancel a synchronous response.");
}
