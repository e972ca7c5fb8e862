/* api_tokenize.c - POST /tokenize and /detokenize, compatible with vLLM.
 *
 * /tokenize takes {"prompt"} or {"messages"} (with the chat template's parameters), and
 * `parse_special` as in llama.cpp: whether a special token's spelling becomes the token, by default
 * true for a prompt. The answer is {"count", "max_model_len", "tokens"}, with return_token_strs
 * also "token_strs". /detokenize takes {"tokens"} and answers {"prompt"}. */
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
static const char *const detokenize_fields[] = {"model", "tokens"};

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

static enum status make_prompt(struct prompt *p, const struct server *srv, const struct json *body,
                               struct buf *why)
{
    bool is_chat = js_get_set(body, "messages") != NULL;
    bool add_special = !is_chat; /* a template writes the special tokens itself */
    const char *text = NULL;
    size_t len = 0;
    unsigned flags = 0;
    enum status s = check_model(srv, body, why);

    if (s == OK)
        s = js_get_bool(body, "add_special_tokens", &add_special, why);
    if (s == OK && is_chat)
        return prompt_from_chat(p, srv, body, add_special, why);
    if (s == OK)
        s = js_get_str(body, "prompt", &text, &len, why);
    if (s == OK && !text)
        s = buf_why(why, ERR_INVALID, "prompt: is required, or messages");
    if (s == OK)
        s = prompt_text_flags(body, add_special, &flags, why);
    return s == OK ? prompt_from_text(p, srv, text, len, flags, why) : s;
}

static void write_tokens(struct writer *w, const struct server *srv, const struct prompt *p,
                         bool strings)
{
    const uint32_t *ids = prompt_ids(p);
    uint32_t n = prompt_n_ids(p);
    size_t len;

    write_format(w, "{\"count\":%u,\"max_model_len\":%u,\"tokens\":[", n, srv->info->max_model_len);
    for (uint32_t i = 0; i < n; i++)
        write_format(w, "%s%u", i ? "," : "", ids[i]);
    write_puts(w, strings ? "],\"token_strs\":[" : "]");
    for (uint32_t i = 0; strings && i < n; i++) {
        const char *piece = tokenizer_piece(srv->tokenizer, ids[i], &len);
        write_puts(w, i ? "," : "");
        write_json(w, piece ? piece : "", piece ? len : 0);
    }
    write_puts(w, strings ? "]}" : "}");
}

void api_tokenize(struct server *srv, struct http_exchange *x)
{
    struct json *body = body_read(x);
    struct buf answer, why;
    struct prompt p;
    bool strings = false;

    if (!body)
        return;
    report_unknown(srv, x, body, tokenize_fields, ARRAY_SIZE(tokenize_fields));
    buf_init(&why, BUF_WHY_MAX);
    buf_init(&answer, ANSWER_BYTES_MAX);
    /* The context does not limit the ids: clients ask how much longer than the context a text is.
     * A byte makes at most one token, so the limit of the body limits the ids. */
    prompt_init(&p,
                (uint32_t)(srv->config->max_body_bytes < (1u << 28) ? srv->config->max_body_bytes
                                                                    : 1u << 28));
    enum status s = js_get_bool(body, "return_token_strs", &strings, &why);
    if (s == OK)
        s = make_prompt(&p, srv, body, &why);
    if (s == OK) {
        struct writer w = {&answer, OK};
        write_tokens(&w, srv, &p, strings);
        s = w.status;
    }
    reply(x, s, &answer, &why);
    prompt_fini(&p);
    js_unref(body);
    buf_fini(&answer);
    buf_fini(&why);
}

static enum status detokenize(const struct server *srv, const struct json *body, struct buf *answer,
                              struct buf *why)
{
    struct writer w = {answer, OK};
    struct prompt p;
    enum status s = check_model(srv, body, why);

    if (s != OK)
        return s;
    if (!srv->tokenizer)
        return buf_why(why, ERR_UNSUPPORTED, "this model has no tokenizer");
    if (!js_get_set(body, "tokens"))
        return buf_why(why, ERR_INVALID, "tokens: is required");
    prompt_init(&p, (uint32_t)js_len(js_get(body, "tokens")));
    s = prompt_from_ids(&p, srv, js_get(body, "tokens"), "tokens", why);
    if (s == OK)
        s = prompt_decode(srv, prompt_ids(&p), prompt_n_ids(&p), &p.text);
    if (s == OK) {
        write_puts(&w, "{\"prompt\":");
        write_json(&w, buf_str(&p.text), p.text.len);
        write_puts(&w, "}");
        s = w.status;
    }
    prompt_fini(&p);
    return s;
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
    reply(x, detokenize(srv, body, &answer, &why), &answer, &why);
    js_unref(body);
    buf_fini(&answer);
    buf_fini(&why);
}
