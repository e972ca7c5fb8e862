/* request.c - writes a tarn_request as JSON: only the fields that are set, in a fixed order. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "clients/c/tarn_client.h"

#define BODY_BYTES_MAX ((size_t)1 << 30)

/* After the first failure nothing more is written, and `status` keeps it. */
struct writer {
    struct buf out;
    struct buf why;
    enum status status;
    const struct json *extra; /* its members replace those of the request; may be NULL */
    bool has_member;
};

void tarn_request_init(struct tarn_request *r, enum tarn_kind kind)
{
    *r = (struct tarn_request){.kind = kind,
                               .n = TARN_UNSET,
                               .max_tokens = TARN_UNSET,
                               .max_completion_tokens = TARN_UNSET,
                               .seed = TARN_UNSET,
                               .logprobs = TARN_UNSET,
                               .top_logprobs = TARN_UNSET,
                               .top_k = TARN_UNSET,
                               .min_tokens = TARN_UNSET,
                               .ignore_eos = TARN_UNSET,
                               .priority = TARN_UNSET,
                               .return_token_ids = TARN_UNSET,
                               .add_special_tokens = TARN_UNSET,
                               .cache_ttl = TARN_UNSET,
                               .temperature = TARN_UNSET_REAL,
                               .top_p = TARN_UNSET_REAL,
                               .presence_penalty = TARN_UNSET_REAL,
                               .frequency_penalty = TARN_UNSET_REAL,
                               .min_p = TARN_UNSET_REAL,
                               .repetition_penalty = TARN_UNSET_REAL};
}

static void put(struct writer *w, const char *text)
{
    if (w->status == OK)
        w->status = buf_puts(&w->out, text);
}

static void put_string(struct writer *w, const char *s, size_t len)
{
    if (w->status == OK)
        w->status = js_write_string(&w->out, s, len);
}

static void put_text(struct writer *w, const struct tarn_text *t)
{
    put_string(w, t->data, t->len || !t->data ? t->len : strlen(t->data));
}

static void put_int(struct writer *w, int64_t v)
{
    if (w->status == OK)
        w->status = buf_printf(&w->out, "%lld", (long long)v);
}

static bool begin(struct writer *w, const char *name)
{
    if (js_get(w->extra, name))
        return false;
    put(w, w->has_member ? ",\"" : "\"");
    put(w, name);
    put(w, "\":");
    w->has_member = true;
    return true;
}

static void member_string(struct writer *w, const char *name, const char *value)
{
    if (value && begin(w, name))
        put_string(w, value, strlen(value));
}

static void member_int(struct writer *w, const char *name, int64_t value)
{
    if (value != TARN_UNSET && begin(w, name))
        put_int(w, value);
}

static void member_bool(struct writer *w, const char *name, int64_t value)
{
    if (value != TARN_UNSET && begin(w, name))
        put(w, value ? "true" : "false");
}

static void member_real(struct writer *w, const char *name, double value)
{
    if (value == TARN_UNSET_REAL)
        return;
    if (!isfinite(value))
        w->status = w->status == OK ? buf_why(&w->why, ERR_INVALID, "%s: not a finite number", name)
                                    : w->status;
    else if (begin(w, name) && w->status == OK)
        w->status = js_write_number(&w->out, value);
}

static void member_ids(struct writer *w, const char *name, const uint32_t *ids, size_t n)
{
    if (!ids || !begin(w, name))
        return;
    put(w, "[");
    for (size_t i = 0; w->status == OK && i < n; i++) {
        put(w, i ? "," : "");
        put_int(w, ids[i]);
    }
    put(w, "]");
}

static void write_messages(struct writer *w, const struct tarn_request *r)
{
    if (r->n_messages == 0 || !begin(w, "messages"))
        return;
    for (size_t i = 0; i < r->n_messages; i++) {
        const struct tarn_message *m = &r->messages[i];
        put(w, i ? ",{\"role\":" : "[{\"role\":");
        put_string(w, m->role ? m->role : "user", strlen(m->role ? m->role : "user"));
        put(w, ",\"content\":");
        put_text(w, &m->content);
        put(w, "}");
    }
    put(w, "]");
}

static void write_document(struct writer *w, const struct tarn_document *d)
{
    put(w, "{");
    if (d->title.data) {
        put(w, "\"title\":");
        put_text(w, &d->title);
        put(w, ",");
    }
    put(w, "\"text\":");
    put_text(w, &d->text);
    put(w, "}");
}

static void write_documents(struct writer *w, const struct tarn_request *r)
{
    size_t n_ids = r->n_document_ids, n = n_ids + r->n_documents;

    if (n == 0 || !begin(w, "documents"))
        return;
    for (size_t i = 0; i < n; i++) {
        put(w, i ? "," : "[");
        if (i < n_ids)
            put_string(w, r->document_ids[i], strlen(r->document_ids[i]));
        else
            write_document(w, &r->documents[i - n_ids]);
    }
    put(w, "]");
}

static void write_retrieval(struct writer *w, const struct tarn_retrieval *t)
{
    if (!t || !begin(w, "retrieval"))
        return;
    struct writer inner = {.out = w->out, .why = w->why, .status = w->status};
    put(&inner, "{");
    member_string(&inner, "scope", t->scope);
    if (t->query.data && begin(&inner, "query"))
        put_text(&inner, &t->query);
    if (t->top_k > 0)
        member_int(&inner, "top_k", t->top_k);
    if (t->filter && begin(&inner, "filter"))
        put(&inner, t->filter);
    member_string(&inner, "order", t->order);
    put(&inner, "}");
    w->out = inner.out;
    w->status = inner.status;
}

static void write_stop(struct writer *w, const struct tarn_request *r)
{
    if (r->n_stop == 0 || !begin(w, "stop"))
        return;
    for (size_t i = 0; i < r->n_stop; i++) {
        put(w, i ? "," : "[");
        put_string(w, r->stop[i], strlen(r->stop[i]));
    }
    put(w, "]");
}

static void write_prompt(struct writer *w, const struct tarn_request *r)
{
    if (r->kind == TARN_CHAT) {
        write_messages(w, r);
    } else if (r->prompt_ids) {
        member_ids(w, "prompt", r->prompt_ids, r->n_prompt_ids);
    } else if (r->prompt.data && begin(w, "prompt")) {
        put_text(w, &r->prompt);
    }
    write_documents(w, r);
    member_string(w, "documents_placement", r->documents_placement);
    write_retrieval(w, r->retrieval);
}

static void write_sampling(struct writer *w, const struct tarn_request *r)
{
    member_int(w, "n", r->n);
    member_int(w, "max_tokens", r->max_tokens);
    member_int(w, "max_completion_tokens", r->max_completion_tokens);
    member_int(w, "seed", r->seed);
    member_real(w, "temperature", r->temperature);
    member_real(w, "top_p", r->top_p);
    member_real(w, "presence_penalty", r->presence_penalty);
    member_real(w, "frequency_penalty", r->frequency_penalty);
    write_stop(w, r);
    if (r->kind == TARN_CHAT)
        member_bool(w, "logprobs", r->logprobs);
    else
        member_int(w, "logprobs", r->logprobs);
    member_int(w, "top_logprobs", r->top_logprobs);
    member_string(w, "user", r->user);
    member_int(w, "top_k", r->top_k);
    member_int(w, "min_tokens", r->min_tokens);
    member_bool(w, "ignore_eos", r->ignore_eos);
    member_int(w, "priority", r->priority);
    member_bool(w, "return_token_ids", r->return_token_ids);
    member_bool(w, "add_special_tokens", r->add_special_tokens);
    member_real(w, "min_p", r->min_p);
    member_real(w, "repetition_penalty", r->repetition_penalty);
    if (r->n_stop_token_ids > 0)
        member_ids(w, "stop_token_ids", r->stop_token_ids, r->n_stop_token_ids);
    member_string(w, "session_id", r->session_id);
    member_string(w, "cache_salt", r->cache_salt);
    member_int(w, "cache_ttl", r->cache_ttl);
    member_string(w, "request_id", r->request_id);
}

static void write_extra(struct writer *w)
{
    for (void *it = js_first(w->extra); it; it = js_next(w->extra, it)) {
        put(w, w->has_member ? "," : "");
        put_string(w, js_it_key(it), strlen(js_it_key(it)));
        put(w, ":");
        if (w->status == OK)
            w->status = js_write(&w->out, js_it_value(it));
        w->has_member = true;
    }
}

static enum status parse_object(struct json **out, const char *name, const char *text,
                                struct buf *why)
{
    struct buf inner;

    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status s = js_parse(out, text, strlen(text), &inner);
    if (s == OK && !js_is(*out, JS_OBJECT)) {
        js_unref(*out);
        *out = NULL;
        s = buf_why(why, ERR_INVALID, "%s: expected a JSON object", name);
    } else if (s != OK) {
        buf_why(why, s, "%s: %s", name, buf_str(&inner));
    }
    buf_fini(&inner);
    return s;
}

/* Check a JSON object that the caller gives as text; NULL is fine. */
static enum status check_object(const char *name, const char *text, struct buf *why)
{
    struct json *j = NULL;
    enum status s = text ? parse_object(&j, name, text, why) : OK;

    js_unref(j);
    return s;
}

static enum status check(struct writer *w, const struct tarn_request *r)
{
    bool has_prompt = r->prompt_ids || r->prompt.data || js_get(w->extra, "prompt");
    bool has_messages = r->n_messages > 0 || js_get(w->extra, "messages");

    if (r->kind == TARN_CHAT && !has_messages)
        return buf_why(&w->why, ERR_INVALID, "a chat needs messages");
    if (r->kind == TARN_COMPLETION && !has_prompt)
        return buf_why(&w->why, ERR_INVALID, "a completion needs a prompt");
    return r->retrieval ? check_object("retrieval.filter", r->retrieval->filter, &w->why) : OK;
}

static bool is_stream(const struct tarn_request *r, const struct json *extra)
{
    const struct json *v = js_get(extra, "stream");

    return v ? js_is(v, JS_BOOL) && js_bool(v) : r->stream;
}

static void write_body(struct writer *w, const struct tarn_request *r)
{
    put(w, "{");
    member_string(w, "model", r->model);
    write_prompt(w, r);
    if (r->stream && begin(w, "stream"))
        put(w, "true");
    if (r->stream && r->include_usage && begin(w, "stream_options"))
        put(w, "{\"include_usage\":true}");
    write_sampling(w, r);
    write_extra(w);
    put(w, "}");
}

enum tarn_error tarn_body_build(struct tarn_body *out, const struct tarn_request *r, char *why,
                                size_t why_size)
{
    struct writer w = {.status = OK};
    struct json *extra = NULL;

    *out = (struct tarn_body){.kind = r->kind};
    buf_init(&w.out, BODY_BYTES_MAX);
    buf_init(&w.why, BUF_WHY_MAX);
    if (r->extra_body)
        w.status = parse_object(&extra, "extra_body", r->extra_body, &w.why);
    w.extra = extra;
    if (w.status == OK)
        w.status = check(&w, r);
    write_body(&w, r);
    if (w.status == OK) {
        out->data = w.out.data; /* passes ownership */
        out->len = w.out.len;
        out->stream = is_stream(r, extra);
    } else {
        buf_fini(&w.out);
    }
    if (why && why_size > 0)
        snprintf(why, why_size, "%s",
                 w.status == OK ? ""
                 : w.why.len    ? buf_str(&w.why)
                                : status_name(w.status));
    js_unref(extra);
    buf_fini(&w.why);
    return w.status == OK ? TARN_OK : w.status == ERR_NOMEM ? TARN_ERR_NOMEM : TARN_ERR_INVALID;
}

void tarn_body_fini(struct tarn_body *b)
{
    free(b->data);
    b->data = NULL;
    b->len = 0;
}
