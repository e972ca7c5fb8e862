/* api_tokenize.c - POST /tokenize and /detokenize (vLLM), POST /v1/tokenize and /v1/detokenize
 * (SGLang).
 *
 * /tokenize takes {"prompt"} or {"messages"} (with the chat template's parameters), and
 * `parse_special` as in llama.cpp: whether a special token's spelling becomes the token, by default
 * true for a prompt. The answer is {"count", "max_model_len", "tokens"}, with return_token_strs
 * also "token_strs". /detokenize takes {"tokens"} and answers {"prompt"}; by SGLang's path also
 * {"text"}, which has no special tokens unless skip_special_tokens is false. A list of prompts, or
 * of lists of tokens, gives lists. */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/json.h"
#include "engine/adapters.h"
#include "server/api/api.h"
#include "server/api/body.h"
#include "server/http/error.h"
#include "server/http/http.h"
#include "server/api/params.h"
#include "server/api/prompt.h"
#include "server/server.h"
#include "server/api/writer.h"

#define ANSWER_BYTES_MAX (1u << 30)

static const char *const tokenize_fields[] = {"model",
                                              "prompt",
                                              "messages",
                                              "add_special_tokens",
                                              "return_token_strs",
                                              "documents",
                                              "documents_placement",
                                              "documents_order",
                                              "citations",
                                              "parse_special",
                                              "add_generation_prompt",
                                              "continue_final_message",
                                              "chat_template_kwargs",
                                              "reasoning_effort"};
static const char *const detokenize_fields[] = {"model", "tokens", "skip_special_tokens"};

/* Report unknown fields. Call it before http_reply(). */
static void report_unknown(struct server *srv, struct http_exchange *x, const struct json *body,
                           const char *const *known, size_t n_known)
{
    struct unknown_fields unknown = {0};

    unknown_fields_find(&unknown, body, "", known, n_known);
    unknown_fields_report(&unknown, &srv->unknown_log, x);
}

static void reply(struct http_exchange *x, enum status s, struct buf *body, const struct buf *why)
{
    if (s == OK)
        http_reply(x, 200, "application/json", body);
    else
        error_reply(x, s, s == ERR_NOT_FOUND ? "model_not_found" : NULL, buf_str(why));
}

/* An adapter has the tokenizer of its model. */
static enum status check_model(const struct server *srv, const struct json *body, struct buf *why)
{
    struct adapter *adapter;
    const char *name;
    enum status s = params_get_model(srv, body, &name, &adapter, why);

    adapter_unref(adapter);
    return s;
}

static enum status read_prompt(struct prompt *p, const struct server *srv, const struct json *body,
                               const struct json *v, bool add_special, struct buf *why)
{
    const char *text = NULL;
    size_t len = 0;
    unsigned flags = 0;
    enum status s = prompt_text_flags(body, add_special, &flags, why);

    if (s == OK && !js_is(v, JS_STRING))
        s = buf_why(why, ERR_INVALID, "prompt: expected a string or an array of strings, got %s",
                    js_type_name(js_typeof(v)));
    if (s == OK)
        text = js_string(v, &len);
    return s == OK ? prompt_from_text(p, srv, text, len, flags, why) : s;
}

static void write_ids(struct writer *w, const struct prompt *p)
{
    const uint32_t *ids = prompt_ids(p);
    uint32_t n = prompt_n_ids(p);

    write_puts(w, "[");
    for (uint32_t i = 0; i < n; i++)
        write_format(w, "%s%u", i ? "," : "", ids[i]);
    write_puts(w, "]");
}

static void write_strings(struct writer *w, const struct server *srv, const struct prompt *p)
{
    const uint32_t *ids = prompt_ids(p);
    uint32_t n = prompt_n_ids(p);
    size_t len;

    write_puts(w, "[");
    for (uint32_t i = 0; i < n; i++) {
        const char *piece = tokenizer_piece(srv->tokenizer, ids[i], &len);
        write_puts(w, i ? "," : "");
        write_json(w, piece ? piece : "", piece ? len : 0);
    }
    write_puts(w, "]");
}

/* The parts of an answer: lists with an entry for each prompt, or what one prompt gives. */
struct tokens {
    struct writer ids, counts, strings;
    struct buf parts[3];
    bool is_list, wants_strings;
};

static enum status add_tokens(struct tokens *t, const struct server *srv, const struct prompt *p)
{
    bool is_next = t->is_list && t->parts[0].len > 0;

    write_puts(&t->ids, is_next ? "," : "");
    write_ids(&t->ids, p);
    write_format(&t->counts, "%s%u", is_next ? "," : "", prompt_n_ids(p));
    if (t->wants_strings) {
        write_puts(&t->strings, is_next ? "," : "");
        write_strings(&t->strings, srv, p);
    }
    return t->ids.status != OK      ? t->ids.status
           : t->counts.status != OK ? t->counts.status
                                    : t->strings.status;
}

/* Tokenize one prompt, v, or the body's messages (v NULL). */
static enum status add_prompt(struct tokens *t, const struct server *srv, const struct json *body,
                              const struct json *v, bool add_special, struct buf *why)
{
    size_t max = srv->config->max_body_bytes;
    struct prompt p;

    /* The context does not limit the ids: clients ask how much longer than the context a text is.
     * A byte makes at most one token, so the limit of the body limits the ids. */
    prompt_init(&p, (uint32_t)(max < (1u << 28) ? max : 1u << 28));
    enum status s = v ? read_prompt(&p, srv, body, v, add_special, why)
                      : prompt_from_chat(&p, srv, body, add_special, why);
    if (s == OK)
        s = add_tokens(t, srv, &p);
    prompt_fini(&p);
    return s;
}

static enum status tokenize(struct tokens *t, const struct server *srv, const struct json *body,
                            struct buf *why)
{
    bool is_chat = js_get_set(body, "messages") != NULL;
    bool add_special = !is_chat; /* a template writes the special tokens itself */
    const struct json *v = js_get_set(body, "prompt");
    enum status s = check_model(srv, body, why);

    if (s == OK)
        s = js_get_bool(body, "add_special_tokens", &add_special, why);
    if (s == OK)
        s = js_get_bool(body, "return_token_strs", &t->wants_strings, why);
    if (s != OK)
        return s;
    if (!is_chat && !v)
        return buf_why(why, ERR_INVALID, "prompt: is required, or messages");
    t->is_list = !is_chat && js_is(v, JS_ARRAY);
    if (!t->is_list)
        return add_prompt(t, srv, body, is_chat ? NULL : v, add_special, why);
    for (size_t i = 0; s == OK && i < js_len(v); i++)
        s = add_prompt(t, srv, body, js_at(v, i), add_special, why);
    return s;
}

static enum status write_tokens(const struct tokens *t, const struct server *srv, struct buf *out)
{
    const char *begin = t->is_list ? "[" : "", *end = t->is_list ? "]" : "";
    struct writer w = {out, OK};

    write_format(&w, "{\"count\":%s%s%s,\"max_model_len\":%u,\"tokens\":%s", begin,
                 buf_str(&t->parts[1]), end, srv->info->max_model_len, begin);
    write_buf(&w, &t->parts[0]);
    write_puts(&w, end);
    if (t->wants_strings) {
        write_format(&w, ",\"token_strs\":%s", begin);
        write_buf(&w, &t->parts[2]);
        write_puts(&w, end);
    }
    write_puts(&w, "}");
    return w.status;
}

void api_tokenize(struct server *srv, struct http_exchange *x)
{
    struct json *body = body_read(x);
    struct tokens t = {.ids = {&t.parts[0], OK}, .counts = {&t.parts[1], OK}};
    struct buf answer, why;

    if (!body)
        return;
    report_unknown(srv, x, body, tokenize_fields, ARRAY_SIZE(tokenize_fields));
    t.strings = (struct writer){&t.parts[2], OK};
    buf_init(&why, BUF_WHY_MAX);
    buf_init(&answer, ANSWER_BYTES_MAX);
    for (int i = 0; i < 3; i++)
        buf_init(&t.parts[i], ANSWER_BYTES_MAX);
    enum status s = tokenize(&t, srv, body, &why);
    if (s == OK)
        s = write_tokens(&t, srv, &answer);
    reply(x, s, &answer, &why);
    for (int i = 0; i < 3; i++)
        buf_fini(&t.parts[i]);
    js_unref(body);
    buf_fini(&answer);
    buf_fini(&why);
}

/* --- /detokenize --- */

static enum status write_text(struct writer *w, const struct server *srv, const struct json *ids,
                              const char *name, bool shows_special, struct buf *why)
{
    struct prompt p;

    prompt_init(&p, (uint32_t)js_len(ids));
    enum status s = prompt_from_ids(&p, srv, ids, name, why);
    if (s == OK)
        s = prompt_decode(srv, prompt_ids(&p), prompt_n_ids(&p), shows_special, &p.text);
    if (s == OK)
        write_json(w, buf_str(&p.text), p.text.len);
    prompt_fini(&p);
    return s == OK ? w->status : s;
}

/* Write the text of an array of ids, or an array of the texts of such arrays. */
static enum status write_texts(struct writer *w, const struct server *srv, const struct json *v,
                               bool shows_special, struct buf *why)
{
    char name[48];
    enum status s = OK;

    if (!js_is(js_at(v, 0), JS_ARRAY))
        return write_text(w, srv, v, "tokens", shows_special, why);
    write_puts(w, "[");
    for (size_t i = 0; s == OK && i < js_len(v); i++) {
        write_puts(w, i ? "," : "");
        snprintf(name, sizeof name, "tokens[%zu]", i);
        s = write_text(w, srv, js_at(v, i), name, shows_special, why);
    }
    write_puts(w, "]");
    return s == OK ? w->status : s;
}

static enum status detokenize(const struct server *srv, const struct json *body, bool is_sglang,
                              struct buf *answer, struct buf *why)
{
    const struct json *v = js_get_set(body, "tokens");
    bool is_set = js_get_set(body, "skip_special_tokens") != NULL, skips = false;
    struct writer w = {answer, OK};
    enum status s = check_model(srv, body, why);

    if (s == OK)
        s = js_get_bool(body, "skip_special_tokens", &skips, why);
    if (s != OK)
        return s;
    if (!srv->tokenizer)
        return buf_why(why, ERR_UNSUPPORTED, "this model has no tokenizer");
    if (!v)
        return buf_why(why, ERR_INVALID, "tokens: is required");
    write_puts(&w, "{\"prompt\":");
    s = write_texts(&w, srv, v, !skips, why);
    if (s == OK && is_sglang) {
        write_puts(&w, ",\"text\":");
        s = write_texts(&w, srv, v, is_set && !skips, why);
    }
    write_puts(&w, "}");
    return s == OK ? w.status : s;
}

void api_detokenize(struct server *srv, struct http_exchange *x)
{
    struct json *body = body_read(x);
    struct buf answer, why;

    if (!body)
        return;
    report_unknown(srv, x, body, detokenize_fields, ARRAY_SIZE(detokenize_fields));
    buf_init(&why, BUF_WHY_MAX);
    buf_init(&answer, ANSWER_BYTES_MAX);
    bool is_sglang = strncmp(http_path(x), "/v1/", 4) == 0;
    reply(x, detokenize(srv, body, is_sglang, &answer, &why), &answer, &why);
    js_unref(body);
    buf_fini(&answer);
    buf_fini(&why);
}
