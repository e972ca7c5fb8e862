/* wait.c - the functions that wait for the end of a call; each runs a loop of its own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/http.h"
#include "base/json.h"
#include "clients/c/client.h"

#define KEY_DIGITS 64

struct waiting {
    struct tarn_answer *answer;
    struct buf text;
    bool failed; /* the text is too large, or memory is short */
    bool is_raw;
    const char *method, *content_type; /* as call_start_method() */
    bool (*on_chunk)(void *arg, const struct tarn_chunk *chunk);
    void *arg;
};

static enum tarn_error set_error(struct tarn_answer *a, enum tarn_error e, const char *words)
{
    a->error = e;
    snprintf(a->message, sizeof a->message, "%s", words && words[0] ? words : tarn_error_name(e));
    return e;
}

static void on_chunk(void *arg, struct tarn_call *call, const struct tarn_chunk *chunk)
{
    struct waiting *w = arg;

    if (chunk->index == 0 && buf_append(&w->text, chunk->text, chunk->text_len) != OK) {
        w->failed = true;
        tarn_call_cancel(call);
    } else if (w->on_chunk && !w->on_chunk(w->arg, chunk)) {
        tarn_call_cancel(call);
    }
}

static void on_end(void *arg, struct tarn_call *call, const struct tarn_result *r)
{
    struct waiting *w = arg;
    struct tarn_answer *a = w->answer;

    (void)call;
    a->error = r->error;
    a->http_status = r->http_status;
    snprintf(a->message, sizeof a->message, "%s", r->message);
    snprintf(a->code, sizeof a->code, "%s", r->code);
    memcpy(a->finish_reason, r->finish_reason, sizeof a->finish_reason);
    a->retry_after_s = r->retry_after_s;
    a->usage = r->usage;
    a->start_ns = r->start_ns;
    a->first_ns = r->first_ns;
    a->last_ns = r->last_ns;
    a->end_ns = r->end_ns;
    if (w->is_raw && buf_append(&w->text, r->body, r->body_len) != OK)
        w->failed = true;
    if (r->n_sources > 0 && (a->sources = calloc(r->n_sources, sizeof *a->sources)) != NULL) {
        memcpy(a->sources, r->sources, r->n_sources * sizeof *a->sources);
        a->n_sources = r->n_sources;
    }
    if (w->failed || a->n_sources < r->n_sources)
        set_error(a, TARN_ERR_TOO_LARGE, "no room for the answer");
}

static void init_answer(struct tarn_answer *a)
{
    *a = (struct tarn_answer){.error = TARN_ERR_INTERNAL, .retry_after_s = -1};
    a->usage = (struct tarn_usage){-1, -1, -1, -1, -1, -1, {-1, -1, -1, -1}, -1};
}

/* Run one call to its end. path NULL: the path of body->kind. */
static enum tarn_error run(struct waiting *w, const struct tarn_client *client, const char *path,
                           const struct tarn_body *body)
{
    static const struct tarn_handlers handlers = {.on_chunk = on_chunk, .on_end = on_end};
    struct http_loop *loop;
    enum tarn_error e;

    w->is_raw = path != NULL;
    buf_init(&w->text, client->config.body_bytes_max);
    if (http_loop_create(&loop, NULL) != OK)
        return set_error(w->answer, TARN_ERR_INTERNAL, "no event loop");
    if (path)
        e = call_start_method(NULL, loop, client, w->method, w->content_type, path, body->data,
                              body->len, &handlers, w);
    else
        e = tarn_call_start(NULL, loop, client, body, &handlers, w);
    if (e != TARN_OK)
        set_error(w->answer, e,
                  e == TARN_ERR_INVALID ? "the url, a header or the key is malformed" : NULL);
    else if (http_loop_run(loop) != OK)
        set_error(w->answer, TARN_ERR_INTERNAL, "the event loop failed");
    http_loop_destroy(loop);
    return w->answer->error;
}

/* Pass ownership of the text to the answer. The text is NULL only if even "" cannot be copied. */
static enum tarn_error hand_over(struct tarn_answer *a, struct buf *text)
{
    a->text = text->data ? text->data : strdup("");
    a->text_len = text->len;
    *text = (struct buf){.max = text->max};
    return a->text ? a->error : set_error(a, TARN_ERR_NOMEM, NULL);
}

void tarn_answer_fini(struct tarn_answer *a)
{
    free(a->text);
    free(a->sources);
    a->text = NULL;
    a->text_len = 0;
    a->sources = NULL;
    a->n_sources = 0;
}

enum tarn_error tarn_generate(struct tarn_answer *answer, const struct tarn_client *client,
                              const struct tarn_request *request,
                              bool (*each)(void *arg, const struct tarn_chunk *chunk), void *arg)
{
    struct waiting w = {.answer = answer, .on_chunk = each, .arg = arg};
    struct tarn_body body;

    init_answer(answer);
    enum tarn_error e = tarn_body_build(&body, request, answer->message, sizeof answer->message);
    answer->error = e;
    if (e == TARN_OK)
        run(&w, client, NULL, &body);
    tarn_body_fini(&body);
    return hand_over(answer, &w.text);
}

enum tarn_error wait_fetch(struct tarn_answer *answer, const struct tarn_client *client,
                           const char *method, const char *content_type, const char *path,
                           const char *body, size_t body_len)
{
    struct waiting w = {.answer = answer, .method = method, .content_type = content_type};
    struct tarn_body raw = {.data = (char *)(uintptr_t)body, .len = body_len};

    init_answer(answer);
    run(&w, client, path, &raw);
    return hand_over(answer, &w.text);
}

enum tarn_error wait_refuse(struct tarn_answer *answer, enum tarn_error e, const char *words)
{
    struct buf none = {0};

    init_answer(answer);
    set_error(answer, e, words);
    return hand_over(answer, &none);
}

enum tarn_error tarn_fetch(struct tarn_answer *answer, const struct tarn_client *client,
                           const char *path, const char *body, size_t body_len)
{
    return wait_fetch(answer, client, NULL, NULL, path, body, body_len);
}

enum tarn_error tarn_health(struct tarn_answer *answer, const struct tarn_client *client)
{
    return tarn_fetch(answer, client, "/health", NULL, 0);
}

enum tarn_error tarn_metrics(struct tarn_answer *answer, const struct tarn_client *client)
{
    return tarn_fetch(answer, client, "/metrics", NULL, 0);
}

enum tarn_error tarn_cache_stats(struct tarn_answer *answer, const struct tarn_client *client)
{
    return tarn_fetch(answer, client, "/cache", NULL, 0);
}

enum tarn_error tarn_cache_reset(struct tarn_answer *answer, const struct tarn_client *client)
{
    return wait_fetch(answer, client, "DELETE", NULL, "/cache", NULL, 0);
}

enum tarn_error tarn_cache_erase(struct tarn_answer *answer, const struct tarn_client *client,
                                 const char *key)
{
    char path[16 + KEY_DIGITS];

    /* The key becomes a part of the URL, so only hex digits are allowed. */
    if (strlen(key) != KEY_DIGITS || strspn(key, "0123456789abcdefABCDEF") != KEY_DIGITS)
        return wait_refuse(answer, TARN_ERR_INVALID, "expected a key of 64 hex digits");
    snprintf(path, sizeof path, "/cache?span=%s", key);
    return wait_fetch(answer, client, "DELETE", NULL, path, NULL, 0);
}

/* --- calls that parse the answer's JSON --- */

static enum tarn_error parse(struct tarn_answer *a, struct json **root)
{
    struct buf why;

    buf_init(&why, BUF_WHY_MAX);
    enum status s = js_parse(root, a->text, a->text_len, &why);
    if (s != OK)
        set_error(a, s == ERR_NOMEM ? TARN_ERR_NOMEM : TARN_ERR_PARSE, buf_str(&why));
    buf_fini(&why);
    return a->error;
}

static enum status write_model_ids(const struct json *root, struct buf *out)
{
    const struct json *data = js_get(root, "data");
    enum status s = js_is(data, JS_ARRAY) ? OK : ERR_INVALID;

    for (size_t i = 0; s == OK && i < js_len(data); i++) {
        const struct json *id = js_get(js_at(data, i), "id");
        if (!js_is(id, JS_STRING))
            return ERR_INVALID;
        s = buf_puts(out, js_string(id, NULL));
        if (s == OK)
            s = buf_putc(out, '\n');
    }
    return s;
}

enum tarn_error tarn_models(struct tarn_answer *answer, const struct tarn_client *client)
{
    struct json *root = NULL;
    struct buf text;

    if (tarn_fetch(answer, client, "/v1/models", NULL, 0) != TARN_OK ||
        parse(answer, &root) != TARN_OK)
        return answer->error;
    buf_init(&text, client->config.body_bytes_max);
    enum status s = write_model_ids(root, &text);
    js_unref(root);
    if (s != OK) {
        buf_fini(&text);
        return set_error(answer, s == ERR_INVALID ? TARN_ERR_PARSE : TARN_ERR_NOMEM,
                         "data: expected an array of models with ids");
    }
    tarn_answer_fini(answer);
    return hand_over(answer, &text);
}

static enum status read_ids(const struct json *root, uint32_t **ids, size_t *n_ids)
{
    const struct json *tokens = js_get(root, "tokens");
    size_t n = js_len(tokens);
    uint32_t *list;

    if (!js_is(tokens, JS_ARRAY))
        return ERR_INVALID;
    list = calloc(n + 1, sizeof *list);
    if (!list)
        return ERR_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const struct json *id = js_at(tokens, i);
        if (!js_is(id, JS_INT) || js_int(id) < 0 || js_int(id) > UINT32_MAX) {
            free(list);
            return ERR_INVALID;
        }
        list[i] = (uint32_t)js_int(id);
    }
    *ids = list;
    *n_ids = n;
    return OK;
}

static enum tarn_error post(struct tarn_answer *answer, const struct tarn_client *client,
                            const char *path, struct buf *body, enum status s)
{
    if (s == OK)
        return tarn_fetch(answer, client, path, body->data, body->len);
    return wait_refuse(answer, s == ERR_NOMEM ? TARN_ERR_NOMEM : TARN_ERR_INVALID,
                       "the request cannot be written");
}

enum tarn_error tarn_tokenize(struct tarn_answer *answer, const struct tarn_client *client,
                              const char *text, size_t len, uint32_t **ids, size_t *n_ids)
{
    struct json *root = NULL;
    struct buf body;

    *ids = NULL;
    *n_ids = 0;
    buf_init(&body, client->config.body_bytes_max);
    enum status s = buf_puts(&body, "{\"prompt\":");
    if (s == OK)
        s = js_write_string(&body, text, len);
    if (s == OK)
        s = buf_putc(&body, '}');
    post(answer, client, "/tokenize", &body, s);
    buf_fini(&body);
    if (answer->error != TARN_OK || parse(answer, &root) != TARN_OK)
        return answer->error;
    s = read_ids(root, ids, n_ids);
    js_unref(root);
    if (s != OK)
        set_error(answer, s == ERR_NOMEM ? TARN_ERR_NOMEM : TARN_ERR_PARSE,
                  "tokens: expected an array of token ids");
    return answer->error;
}

static enum status write_ids(struct buf *out, const uint32_t *ids, size_t n_ids)
{
    enum status s = buf_puts(out, "{\"tokens\":[");

    for (size_t i = 0; s == OK && i < n_ids; i++)
        s = buf_printf(out, "%s%u", i ? "," : "", ids[i]);
    return s == OK ? buf_puts(out, "]}") : s;
}

enum tarn_error tarn_detokenize(struct tarn_answer *answer, const struct tarn_client *client,
                                const uint32_t *ids, size_t n_ids)
{
    const struct json *prompt;
    struct json *root = NULL;
    struct buf body, text;
    size_t len = 0;

    buf_init(&body, client->config.body_bytes_max);
    post(answer, client, "/detokenize", &body, write_ids(&body, ids, n_ids));
    buf_fini(&body);
    if (answer->error != TARN_OK || parse(answer, &root) != TARN_OK)
        return answer->error;
    buf_init(&text, client->config.body_bytes_max);
    prompt = js_get(root, "prompt");
    if (!js_is(prompt, JS_STRING)) {
        set_error(answer, TARN_ERR_PARSE, "prompt: expected a string");
    } else {
        const char *found = js_string(prompt, &len);
        if (buf_append(&text, found, len) != OK) {
            set_error(answer, TARN_ERR_NOMEM, NULL);
        } else {
            tarn_answer_fini(answer);
            hand_over(answer, &text);
        }
    }
    js_unref(root);
    buf_fini(&text);
    return answer->error;
}
