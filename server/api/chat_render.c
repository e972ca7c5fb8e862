#include "server/api/chat_render.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "engine/text/chat_history.h"
#include "engine/text/spans.h"
#include "server/api/documents.h"
#include "server/api/provenance.h"
#include "server/api/retention.h"
#include "server/server.h"
#include "server/api/tool_calls.h"
#include "server/api/tools.h"

#define N_MESSAGES_MAX 4096
#define N_PARTS_MAX 1024

/* --- messages --- */

static enum status check_role(const struct json *message, size_t i, const char **role,
                              struct buf *why)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool", "developer"};
    char name[48];

    snprintf(name, sizeof name, "messages[%zu].role", i);
    enum status s = js_read_cstr(js_get(message, "role"), name, role, why);
    if (s != OK)
        return s;
    for (size_t k = 0; k < ARRAY_SIZE(roles); k++)
        if (strcmp(*role, roles[k]) == 0)
            return OK;
    return buf_why(why, ERR_INVALID,
                   "messages[%zu].role: \"%.40s\" is none of system, user, assistant, tool, "
                   "developer",
                   i, *role);
}

static enum status append_part(struct buf *out, const struct json *part, const char *role, size_t i,
                               size_t k, struct buf *why)
{
    /* Only answers and results of tools may be empty. */
    bool is_answer = strcmp(role, "assistant") == 0, may_be_empty = role[0] == 't' || is_answer;
    char name[64];
    const char *type;
    size_t len;

    snprintf(name, sizeof name, "messages[%zu].content[%zu].type", i, k);
    enum status s = js_read_cstr(js_get(part, "type"), name, &type, why);
    if (s != OK)
        return s;
    bool is_refusal = is_answer && strcmp(type, "refusal") == 0;
    if (strcmp(type, "text") != 0 && !is_refusal)
        return buf_why(why, ERR_UNSUPPORTED, "%s: \"%.40s\" parts are not supported, only \"text\"",
                       name, type);
    const char *key = is_refusal ? "refusal" : "text";
    const struct json *text = js_get(part, key);
    if (!js_is(text, JS_STRING))
        return buf_why(why, ERR_INVALID, "messages[%zu].content[%zu].%s: expected a string, got %s",
                       i, k, key, js_type_name(js_typeof(text)));
    const char *bytes = js_string(text, &len);
    if (len == 0 && !may_be_empty)
        return buf_why(why, ERR_INVALID, "messages[%zu].content[%zu].%s: must not be empty", i, k,
                       key);
    s = k > 0 ? buf_putc(out, '\n') : OK; /* joined as vLLM and llama.cpp do */
    return s == OK ? buf_append(out, bytes, len) : s;
}

/* Append a message's content as one text. It may be absent or null for an assistant that called
 * tools or refused to answer; then the refusal is the text. */
static enum status read_content(struct buf *out, const struct json *message, const char *role,
                                size_t i, struct buf *why)
{
    const struct json *v = js_get_set(message, "content");
    bool is_assistant = strcmp(role, "assistant") == 0;
    size_t len;
    enum status s = OK;

    if (!v && is_assistant)
        v = js_get_set(message, "refusal");
    if (!v && is_assistant)
        return OK;
    if (js_is(v, JS_STRING)) {
        const char *bytes = js_string(v, &len);
        return buf_append(out, bytes, len);
    }
    if (!js_is(v, JS_ARRAY))
        return buf_why(why, ERR_INVALID,
                       "messages[%zu].content: expected a string or an array of parts, got %s", i,
                       js_type_name(js_typeof(v)));
    if (js_len(v) > N_PARTS_MAX)
        return buf_why(why, ERR_INVALID, "messages[%zu].content: %zu parts, at most %d are taken",
                       i, js_len(v), N_PARTS_MAX);
    for (size_t k = 0; s == OK && k < js_len(v); k++)
        s = append_part(out, js_at(v, k), role, i, k, why);
    return s;
}

static enum status check_reasoning(const struct json *message, size_t i, struct buf *why)
{
    static const char *const keys[] = {"reasoning_content", "reasoning"};

    for (size_t k = 0; k < ARRAY_SIZE(keys); k++) {
        const struct json *v = js_get_set(message, keys[k]);
        if (v && !js_is(v, JS_STRING))
            return buf_why(why, ERR_INVALID, "messages[%zu].%s: expected a string, got %s", i,
                           keys[k], js_type_name(js_typeof(v)));
    }
    return OK;
}

static enum status set_text(struct json *obj, const char *key, const char *text, size_t len)
{
    return js_set(obj, key, js_new_string(text, len));
}

/* Copy a message for the template, with `content` as its content. cache_control is a field of the
 * API, which templates do not know; `reasoning` is vLLM's newer name of reasoning_content, which
 * they know. */
static enum status make_message(struct json **out, const struct json *message,
                                const struct buf *content)
{
    struct json *m = js_new_object();
    enum status s = m ? OK : ERR_NOMEM;

    for (void *it = js_first(message); s == OK && it; it = js_next(message, it))
        if (strcmp(js_it_key(it), "cache_control") != 0)
            s = js_set(m, js_it_key(it), js_ref(js_it_value(it)));
    if (s == OK && js_get_set(m, "reasoning") && !js_get_set(m, "reasoning_content"))
        s = js_set(m, "reasoning_content", js_copy_deep(js_get(m, "reasoning")));
    /* gpt-oss: the thoughts before a call, whose template refuses other thoughts beside a text. */
    if (s == OK && content->len == 0 && js_get_set(m, "reasoning_content") &&
        !js_get(m, "thinking"))
        s = js_set(m, "thinking", js_copy_deep(js_get(m, "reasoning_content")));
    if (s == OK)
        s = js_set(m, "content", js_new_string(buf_str(content), content->len));
    if (s == OK)
        *out = m;
    else
        js_unref(m);
    return s;
}

static enum status push_system(struct chat_history *history, const char *text, size_t len)
{
    struct json *m = js_new_object();
    enum status s = m ? set_text(m, "role", "system", 6) : ERR_NOMEM;

    if (s == OK)
        s = set_text(m, "content", text, len);
    if (s == OK)
        return chat_history_add(history, m);
    js_unref(m);
    return s;
}

/* Append a message. `documents`: text for the end of the system message; may be empty. asks: ask
 * for citations at its end. */
static enum status push_message(struct chat_history *history, const struct json *message, size_t i,
                                const struct buf *documents, bool asks, struct chat_mark *mark,
                                struct buf *why)
{
    struct buf content;
    const char *role = NULL;
    struct json *made = NULL;

    if (!js_is(message, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "messages[%zu]: expected an object, got %s", i,
                       js_type_name(js_typeof(message)));
    buf_init(&content, CHAT_TEXT_BYTES_MAX);
    enum status s = check_role(message, i, &role, why);
    if (s == OK)
        s = read_content(&content, message, role, i, why);
    if (s == OK)
        s = tool_calls_check(message, role, i, why);
    if (s == OK)
        s = check_reasoning(message, i, why);
    if (s == OK && asks)
        s = buf_puts(&content, "\n\n" DOCUMENTS_CITATION_LINE);
    if (s == OK && i == 0 && documents->len > 0) {
        if (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0) {
            s = content.len ? buf_puts(&content, "\n\n") : OK;
            if (s == OK)
                s = buf_append(&content, documents->data, documents->len);
        } else {
            s = push_system(history, documents->data, documents->len);
        }
    }
    if (s == OK)
        s = make_message(&made, message, &content);
    if (s == OK && mark && mark->at->message == i)
        mark->content = js_ref(js_get(made, "content"));
    if (s == OK)
        s = chat_history_add(history, made);
    buf_fini(&content);
    return s;
}

/* The last message of a user; SIZE_MAX: there is none. */
static size_t last_of_user(const struct json *messages)
{
    size_t i = js_len(messages);

    while (i-- > 0) {
        const struct json *role = js_get(js_at(messages, i), "role");
        if (js_is(role, JS_STRING) && strcmp(js_string(role, NULL), "user") == 0)
            return i;
    }
    return SIZE_MAX;
}

/* Make the template's messages. asks: ask for citations in the last message of a user. Adds to
 * *calls (of struct chat_history_calls) the tool calls that were written as text. */
static enum status make_messages(struct json **out, struct buf *calls, const struct chat_kit *kit,
                                 const struct json *body, const struct buf *documents, bool asks,
                                 struct chat_mark *mark, struct buf *why)
{
    const struct json *given = js_get_set(body, "messages");
    size_t n = js_len(given);

    if (!given)
        return buf_why(why, ERR_INVALID, "messages: is required");
    if (!js_is(given, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "messages: expected an array, got %s",
                       js_type_name(js_typeof(given)));
    if (n == 0 || n > N_MESSAGES_MAX)
        return buf_why(why, ERR_INVALID, "messages: expected 1 to %d entries, got %zu",
                       N_MESSAGES_MAX, n);
    struct chat_history history;
    enum status s = chat_history_init(&history, &kit->traits);
    size_t asking = asks ? last_of_user(given) : SIZE_MAX;
    for (size_t i = 0; s == OK && i < n; i++)
        s = push_message(&history, js_at(given, i), i, documents, i == asking, mark, why);
    if (s == OK)
        s = chat_history_take(&history, out);
    chat_history_take_calls(&history, calls);
    chat_history_fini(&history);
    return s;
}

/* --- rendering --- */

static enum status read_flags(struct chat_flags *f, const struct json *body, struct buf *why)
{
    enum status s = js_get_bool(body, "continue_final_message", &f->continue_final_message, why);

    f->add_generation_prompt = !f->continue_final_message;
    if (s == OK)
        s = js_get_bool(body, "add_generation_prompt", &f->add_generation_prompt, why);
    if (s == OK && f->add_generation_prompt && f->continue_final_message)
        s = buf_why(why, ERR_INVALID,
                    "continue_final_message: needs add_generation_prompt to be false");
    return s;
}

static enum status set_optional(struct json *context, const char *key, const char *text)
{
    return text ? set_text(context, key, text, strlen(text)) : OK;
}

/* Some templates, such as that of gpt-oss, use reasoning_effort; those of other models have a
 * switch. chat_template_kwargs overrides both. */
static enum status set_effort(struct json *context, const struct json *body, struct buf *why)
{
    const char *effort = NULL;
    enum status s = js_get_str(body, "reasoning_effort", &effort, NULL, why);

    if (s != OK || !effort)
        return s;
    bool thinks = strcmp(effort, "none") != 0;
    s = set_text(context, "reasoning_effort", effort, strlen(effort));
    if (s == OK)
        s = js_set(context, "enable_thinking", js_new_bool(thinks));
    return s == OK ? js_set(context, "thinking", js_new_bool(thinks)) : s;
}

/* Make the template's context. Takes ownership of messages and documents. */
static enum status make_context(struct json **out, const struct server *srv,
                                const struct chat_kit *kit, const struct json *body,
                                const struct chat_flags *flags, struct json *messages,
                                struct json *documents, struct buf *why)
{
    const struct json *extra = js_get_set(body, "chat_template_kwargs"), *tools = NULL;
    struct json *c = js_new_object();
    enum status s = c ? OK : ERR_NOMEM;

    if (s == OK && extra && !js_is(extra, JS_OBJECT))
        s = buf_why(why, ERR_INVALID, "chat_template_kwargs: expected an object, got %s",
                    js_type_name(js_typeof(extra)));
    if (s == OK)
        s = set_effort(c, body, why);
    static const char *const refused[] = {"chat_template", "tokenize"}; /* as in vLLM */
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(refused); i++)
        if (js_get(extra, refused[i]))
            s = buf_why(why, ERR_UNSUPPORTED, "chat_template_kwargs.%s: not supported", refused[i]);
    for (void *it = js_first(extra); s == OK && it; it = js_next(extra, it))
        s = js_set(c, js_it_key(it), js_ref(js_it_value(it)));
    if (s == OK && srv->tokenizer)
        s = set_optional(c, "bos_token", tokenizer_bos_text(srv->tokenizer));
    if (s == OK && srv->tokenizer)
        s = set_optional(c, "eos_token", tokenizer_eos_text(srv->tokenizer));
    if (s == OK)
        s = js_set(c, "add_generation_prompt", js_new_bool(flags->add_generation_prompt));
    if (s == OK)
        s = tools_check(kit, body, &tools, why);
    /* Hugging Face defines absent tools and documents as null; templates may rely on it. */
    if (s == OK)
        s = js_set(c, "tools", tools ? js_copy_deep(tools) : js_new_null());
    if (s == OK) {
        s = js_set(c, "documents", documents ? documents : js_new_null());
        documents = NULL;
    }
    if (s == OK) {
        s = js_set(c, "messages", messages);
        messages = NULL;
    }
    js_unref(messages);
    js_unref(documents);
    if (s == OK)
        *out = c;
    else
        js_unref(c);
    return s;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Find where continue_final_message cuts the text from `start` on: after the last occurrence of the
 * final message, as Hugging Face does. Searches for the message without white space at its ends,
 * because templates may strip it. */
static enum status find_final(const struct buf *text, size_t start, const struct json *messages,
                              size_t *n_kept, struct buf *why)
{
    const struct json *content = js_get(js_at(messages, js_len(messages) - 1), "content");
    size_t len = 0, skip = 0;

    if (!js_is(content, JS_STRING))
        return buf_why(why, ERR_INVALID, "continue_final_message: the final message has no text");
    const char *s = js_string(content, &len);
    while (skip < len && is_space(s[skip]))
        skip++;
    s += skip;
    len -= skip;
    size_t stripped = len;
    while (stripped > 0 && is_space(s[stripped - 1]))
        stripped--;
    for (size_t at = text->len + 1; stripped > 0 && at-- > start;) {
        if (text->len - at < stripped || memcmp(text->data + at, s, stripped) != 0)
            continue;
        bool whole = text->len - at >= len && memcmp(text->data + at, s, len) == 0;
        *n_kept = at + (whole ? len : stripped);
        return OK;
    }
    return buf_why(why, ERR_INVALID,
                   "continue_final_message: the final message is not in the rendered prompt");
}

/* Render the context. Adds the ranges of *out that are untrusted to *untrusted (may be NULL).
 * calls, documents_len, own: see provenance_collect(). */
static enum status render_context(const struct chat *chat, const struct json *context,
                                  const struct buf *calls, size_t documents_len,
                                  const struct ranges *own, struct buf *out,
                                  struct ranges *untrusted)
{
    struct buf texts, inner;
    enum status s = OK;

    buf_init(&texts, CHAT_TEXT_BYTES_MAX);
    buf_init(&inner, BUF_WHY_MAX / 2);
    if (chat->mark && chat->mark->content) {
        struct chat_text text = {js_string(chat->mark->content, NULL), chat->mark->at->n_bytes};
        s = buf_append(&texts, &text, sizeof text);
    } else if (untrusted && !chat->mark) {
        s = provenance_collect(&texts, context, calls, documents_len, own);
    }
    if (s == OK) {
        s = chat_template_render_marked(chat->kit->template, context, chat->now_s,
                                        (const struct chat_text *)(const void *)texts.data,
                                        texts.len / sizeof(struct chat_text), out, untrusted,
                                        &inner);
        if (s == ERR_NOMEM)
            buf_why(chat->why, s, "out of memory while the chat template renders the messages");
        else if (s != OK)
            buf_why(chat->why, s, "messages: the chat template refused: %s", buf_str(&inner));
    }
    buf_fini(&texts);
    buf_fini(&inner);
    return s;
}

/* Find out where the end of the rendered text stands in the reasoning. */
static void find_reasoning(struct chat *chat, const struct json *messages, const struct buf *out)
{
    const struct reasoning_format *f = chat->kit->reasoning;
    const struct json *final = js_get(js_at(messages, js_len(messages) - 1), "content");
    size_t len = 0;
    const char *text = js_is(final, JS_STRING) ? js_string(final, &len) : NULL;

    chat->reasoning = REASONING_MAY_BEGIN;
    if (f && chat->flags.continue_final_message && len > 0)
        chat->reasoning = reasoning_place_in(f, text, len);
    else if (f)
        chat->reasoning = reasoning_place_of(f, buf_str(out), chat->n_kept);
}

enum status chat_render(struct chat *chat, struct json *documents, struct buf *out,
                        struct ranges *untrusted)
{
    struct json *messages = NULL, *context = NULL;
    struct buf system_text, calls = {0};
    struct ranges own = {0};
    size_t start = out->len;
    enum status s = OK;

    buf_init(&system_text, CHAT_TEXT_BYTES_MAX);
    if (documents && !chat->in_template)
        s = documents_write(documents, chat->wants_citations, &system_text, &own);
    if (s == OK)
        s = make_messages(&messages, &calls, chat->kit, chat->body, &system_text,
                          documents && chat->in_template && chat->wants_citations, chat->mark,
                          chat->why);
    if (s == OK)
        s = make_context(&context, chat->srv, chat->kit, chat->body, &chat->flags, messages,
                         documents && chat->in_template ? js_ref(documents) : NULL, chat->why);
    if (s == OK)
        s = render_context(chat, context, &calls, system_text.len, &own, out, untrusted);
    chat->n_kept = out->len;
    if (s == OK && chat->flags.continue_final_message)
        s = find_final(out, start, js_get(context, "messages"), &chat->n_kept, chat->why);
    if (s == OK)
        find_reasoning(chat, js_get(context, "messages"), out);
    if (s != OK && chat->why->len == 0)
        buf_why(chat->why, s, "messages: %s", status_words(s));
    js_unref(context);
    buf_fini(&system_text);
    buf_fini(&calls);
    ranges_fini(&own);
    return s;
}

enum status chat_render_documents(void *arg, struct json *documents, struct buf *out)
{
    return chat_render(arg, documents, out, NULL);
}

/* --- chats of requests, and of the server --- */

enum status chat_render_open(struct chat *chat, struct documents *d, const struct server *srv,
                             const struct json *body, struct buf *why)
{
    const struct chat_kit *kit;
    enum status s = chat_kit_get(&kit, srv, body, why);

    *chat = (struct chat){.srv = srv,
                          .kit = kit,
                          .body = body,
                          .in_template = d->in_template,
                          .wants_citations = d->wants_citations,
                          .documents = d,
                          .now_s = (int64_t)(clock_unix_ns() / 1000000000u),
                          .parse_special = srv->config->parse_special,
                          .why = why};
    if (s == OK)
        s = js_get_bool(body, "parse_special", &chat->parse_special, why);
    return s == OK ? read_flags(&chat->flags, body, why) : s;
}

void chat_render_close(struct chat *chat)
{
    chat_kit_put(chat->srv, chat->kit);
}

enum status chat_render_read_documents(struct documents *d, const struct server *srv,
                                       const struct json *body, struct buf *why)
{
    *d = (struct documents){0};
    if (!srv->template && !js_get_set(body, "chat_template"))
        return buf_why(why, ERR_UNSUPPORTED,
                       "messages: this model has no chat template; start the server with "
                       "--chat-template or use /v1/completions");
    return documents_read(d, srv, body, true, NULL, why);
}

enum status chat_render_body(const struct server *srv, const struct json *body, struct buf *out,
                             struct buf *why)
{
    struct documents documents;
    struct chat chat;
    enum status s = chat_render_read_documents(&documents, srv, body, why);

    if (s == OK) {
        s = chat_render_open(&chat, &documents, srv, body, why);
        if (s == OK)
            s = chat_render(&chat, documents.list, out, NULL);
        if (s == OK) {
            out->len = chat.n_kept;
            out->data[out->len] = '\0';
        }
        chat_render_close(&chat);
    }
    documents_fini(&documents);
    return s;
}

enum status chat_render_own(const struct server *srv, const struct json *body,
                            struct json *documents, bool in_template, int64_t now_s,
                            struct buf *out, struct ranges *untrusted, size_t *first,
                            struct buf *why)
{
    struct chat chat = {.srv = srv,
                        .kit = &srv->kit,
                        .body = body,
                        .flags = {.add_generation_prompt = true},
                        .in_template = in_template,
                        .now_s = now_s,
                        .why = why};
    struct spans_render how = {chat_render_documents, &chat};
    struct spans spans;
    enum status s =
        chat_render(&chat, documents, out, srv->config->parse_special ? NULL : untrusted);

    if (first)
        *first = 0;
    if (s != OK || !documents || !first)
        return s;
    spans_init(&spans);
    s = spans_find(&spans, srv->span_marks, documents, buf_str(out), out->len, untrusted, &how);
    /* There are two ends per document, unless the first document begins at 0. */
    if (s == OK && spans_n_ends(&spans) == 2 * js_len(documents))
        *first = spans_end(&spans, 0);
    spans_fini(&spans);
    return s;
}
