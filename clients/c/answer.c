#include "clients/c/answer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/json.h"

#define N_INDEX_MAX 65536
#define N_TOKENS_MAX ((int64_t)1 << 53)
#define N_SOURCES_MAX 4096
#define IDS_BYTES_MAX (64u << 20)
#define WORDS_OF_BODY 200 /* bytes shown of an error body that is not JSON, as of a proxy */

void answer_init(struct answer *a, enum tarn_kind kind,
                 void (*emit)(void *arg, const struct tarn_chunk *chunk), void *arg)
{
    *a = (struct answer){.kind = kind, .emit = emit, .arg = arg};
    a->usage = (struct tarn_usage){-1, -1, -1, -1, -1, -1, {-1, -1, -1, -1}, -1};
    buf_init(&a->words, BUF_WHY_MAX);
    buf_init(&a->ids, IDS_BYTES_MAX);
}

void answer_fini(struct answer *a)
{
    buf_fini(&a->words);
    buf_fini(&a->ids);
    free(a->sources);
}

static enum tarn_error wrong(struct answer *a, const char *field, const char *wanted,
                             const struct json *got)
{
    buf_why(&a->words, OK, "%s: expected %s, got %s", field, wanted, js_type_name(js_typeof(got)));
    return TARN_ERR_PARSE;
}

/* --- usage --- */

/* Read a count. An absent or malformed one leaves *out unchanged: it must not fail the answer. */
static void get_count(const struct json *obj, const char *key, int64_t *out)
{
    const struct json *v = js_get(obj, key);

    if (js_is(v, JS_INT) && js_int(v) >= 0 && js_int(v) <= N_TOKENS_MAX)
        *out = js_int(v);
}

static void get_tiers(const struct json *tiers, int64_t by_tier[TARN_N_TIERS])
{
    for (int t = 0; t < TARN_N_TIERS; t++)
        get_count(tiers, tarn_tier_name((enum tarn_tier)t), &by_tier[t]);
    get_count(tiers, "storage", &by_tier[TARN_TIER_DISK]); /* SGLang's name */
}

static void take_usage(struct answer *a, const struct json *root)
{
    const struct json *usage = js_get(root, "usage");
    const struct json *prompt = js_get(usage, "prompt_tokens_details");
    struct tarn_usage *u = &a->usage;

    if (u->cached_tokens < 0)
        get_count(js_get(root, "timings"), "cache_n", &u->cached_tokens);
    get_count(usage, "prompt_tokens", &u->prompt_tokens);
    get_count(usage, "completion_tokens", &u->completion_tokens);
    get_count(usage, "total_tokens", &u->total_tokens);
    get_count(prompt, "cached_tokens", &u->cached_tokens);
    get_count(prompt, "cache_write_tokens", &u->cache_write_tokens);
    get_count(prompt, "held_tokens", &u->held_tokens);
    get_tiers(js_get(prompt, "cached_tokens_details"), u->cached_by_tier);
    get_tiers(js_get(js_get(root, "sglext"), "cached_tokens_details"), u->cached_by_tier);
    get_count(js_get(usage, "completion_tokens_details"), "reasoning_tokens", &u->reasoning_tokens);
}

/* --- documents --- */

static void read_source(const struct json *j, struct tarn_source *out)
{
    const struct json *id = js_get(j, "id"), *title = js_get(j, "title");
    const struct json *score = js_get(j, "score");

    *out = (struct tarn_source){.score = TARN_UNSET_REAL, .n_tokens = -1, .cached_tokens = -1};
    for (int t = 0; t < TARN_N_TIERS; t++)
        out->cached_by_tier[t] = -1;
    if (js_is(id, JS_STRING))
        snprintf(out->id, sizeof out->id, "%s", js_string(id, NULL));
    if (js_is(title, JS_STRING))
        snprintf(out->title, sizeof out->title, "%s", js_string(title, NULL));
    if (js_is(score, JS_INT) || js_is(score, JS_REAL))
        out->score = js_number(score);
    get_count(j, "n_tokens", &out->n_tokens);
    get_count(j, "cached_tokens", &out->cached_tokens);
    get_tiers(js_get(j, "cached_tokens_details"), out->cached_by_tier);
}

/* Read the documents that the answer lists; another shape, as of another server, lists none. */
static enum tarn_error take_sources(struct answer *a, const struct json *root)
{
    const struct json *used = js_get(js_get(root, "documents"), "used");
    size_t n = js_is(used, JS_ARRAY) ? js_len(used) : 0;

    if (n == 0 || n > N_SOURCES_MAX || a->sources)
        return TARN_OK;
    a->sources = calloc(n, sizeof *a->sources);
    if (!a->sources)
        return TARN_ERR_NOMEM;
    for (size_t i = 0; i < n; i++)
        read_source(js_at(used, i), &a->sources[i]);
    a->n_sources = n;
    return TARN_OK;
}

/* --- errors --- */

static const char *string_or_null(const struct json *v)
{
    return js_is(v, JS_STRING) && js_string(v, NULL)[0] ? js_string(v, NULL) : NULL;
}

static void set_code(struct answer *a, const struct json *error)
{
    static const char *const keys[] = {"code", "type"};

    for (size_t i = 0; i < ARRAY_SIZE(keys) && !a->code[0]; i++) {
        const struct json *v = js_get(error, keys[i]);
        if (string_or_null(v))
            snprintf(a->code, sizeof a->code, "%s", js_string(v, NULL));
        else if (js_is(v, JS_INT)) /* llama.cpp and vLLM write the HTTP status */
            snprintf(a->code, sizeof a->code, "%lld", (long long)js_int(v));
    }
}

/* The message of an error in any of these forms: {"error": {"message", "code", "type"}},
 * {"error": "words"}, {"message": ...} of old vLLM, {"detail": ...} of FastAPI. NULL: none. */
static const char *take_error(struct answer *a, const struct json *root)
{
    const struct json *error = js_get_set(root, "error");
    const char *words = string_or_null(error);

    if (!error)
        error = root;
    set_code(a, error);
    if (!words)
        words = string_or_null(js_get(error, "message"));
    return words ? words : string_or_null(js_get(error, "detail"));
}

void answer_take_refusal(struct answer *a, int http_status, const char *body, size_t len)
{
    struct json *root = NULL;
    const char *words = NULL;

    if (js_parse(&root, body, len, NULL) == OK)
        words = take_error(a, root);
    if (words)
        buf_why(&a->words, OK, "%s", words);
    else if (len > 0)
        buf_why(&a->words, OK, "HTTP %d: %.*s", http_status,
                (int)(len < WORDS_OF_BODY ? len : WORDS_OF_BODY), body);
    else
        buf_why(&a->words, OK, "HTTP %d without a body", http_status);
    js_unref(root);
}

/* --- choices --- */

static enum tarn_error get_text(struct answer *a, const struct json *obj, const char *key,
                                const char **out, size_t *len)
{
    const struct json *v = js_get_set(obj, key);

    if (!v)
        return TARN_OK;
    if (!js_is(v, JS_STRING))
        return wrong(a, key, "a string", v);
    *out = js_string(v, len);
    return TARN_OK;
}

static enum tarn_error get_ids(struct answer *a, const struct json *choice, struct tarn_chunk *c)
{
    const struct json *ids = js_get_set(choice, "token_ids");

    if (!ids)
        return TARN_OK;
    if (!js_is(ids, JS_ARRAY))
        return wrong(a, "token_ids", "an array", ids);
    buf_reset(&a->ids);
    for (size_t i = 0; i < js_len(ids); i++) {
        const struct json *id = js_at(ids, i);
        if (!js_is(id, JS_INT) || js_int(id) < 0 || js_int(id) > UINT32_MAX)
            return wrong(a, "token_ids", "token ids", id);
        if (buf_u32(&a->ids, (uint32_t)js_int(id)) != OK)
            return TARN_ERR_NOMEM;
    }
    c->ids = (const uint32_t *)(const void *)a->ids.data; /* malloc aligns it */
    c->n_ids = js_len(ids);
    return TARN_OK;
}

/* Read the text of a choice: a chat has it in the member `where` ("delta" or "message"), a
 * completion in the choice itself. */
static enum tarn_error read_said(struct answer *a, const struct json *choice, const char *where,
                                 struct tarn_chunk *c)
{
    const struct json *said = a->kind == TARN_CHAT ? js_get_set(choice, where) : choice;
    enum tarn_error e;

    if (!said)
        return TARN_OK; /* the last chunk may have only a finish reason */
    if (!js_is(said, JS_OBJECT))
        return wrong(a, where, "an object", said);
    e = get_text(a, said, a->kind == TARN_CHAT ? "content" : "text", &c->text, &c->text_len);
    if (e == TARN_OK)
        e = get_text(a, said, "reasoning_content", &c->reasoning, &c->reasoning_len);
    if (e == TARN_OK && c->reasoning_len == 0)
        e = get_text(a, said, "reasoning", &c->reasoning, &c->reasoning_len);
    c->has_role = a->kind == TARN_CHAT && js_get_set(said, "role") != NULL;
    c->has_delta =
        c->text_len > 0 || c->reasoning_len > 0 || js_len(js_get(said, "tool_calls")) > 0;
    return e;
}

static void emit(struct answer *a, const struct tarn_chunk *c)
{
    if (a->stopped)
        return;
    a->n_chunks++;
    if (c->has_delta) {
        a->n_deltas++;
        a->last_ns = c->time_ns;
        a->first_ns = a->first_ns ? a->first_ns : c->time_ns;
    }
    if (c->finish_reason && c->index == 0)
        snprintf(a->finish_reason, sizeof a->finish_reason, "%s", c->finish_reason);
    if (a->emit)
        a->emit(a->arg, c);
}

static enum tarn_error take_choice(struct answer *a, const struct json *choice, const char *where,
                                   uint64_t time_ns)
{
    struct tarn_chunk c = {.time_ns = time_ns, .text = "", .reasoning = ""};
    const struct json *index = js_get_set(choice, "index");
    const struct json *finish = js_get_set(choice, "finish_reason");
    enum tarn_error e;

    if (!js_is(choice, JS_OBJECT))
        return wrong(a, "choices[]", "an object", choice);
    if (index && (!js_is(index, JS_INT) || js_int(index) < 0 || js_int(index) >= N_INDEX_MAX))
        return wrong(a, "index", "a small number", index);
    if (finish && !js_is(finish, JS_STRING))
        return wrong(a, "finish_reason", "a string", finish);
    c.index = index ? (uint32_t)js_int(index) : 0;
    c.finish_reason = finish ? js_string(finish, NULL) : NULL;
    e = read_said(a, choice, where, &c);
    if (e == TARN_OK)
        e = get_ids(a, choice, &c);
    c.has_delta |= c.n_ids > 0;
    if (e == TARN_OK)
        emit(a, &c);
    return e;
}

static enum tarn_error take_choices(struct answer *a, const struct json *root, const char *where,
                                    uint64_t time_ns)
{
    const struct json *choices = js_get_set(root, "choices");
    enum tarn_error e = TARN_OK;

    if (choices && !js_is(choices, JS_ARRAY))
        return wrong(a, "choices", "an array", choices);
    for (size_t i = 0; e == TARN_OK && i < js_len(choices); i++)
        e = take_choice(a, js_at(choices, i), where, time_ns);
    return e;
}

/* --- JSON --- */

static enum tarn_error parse(struct answer *a, const char *json, size_t len, struct json **root)
{
    enum status s = js_parse(root, json, len, &a->words);

    if (s != OK)
        return s == ERR_NOMEM ? TARN_ERR_NOMEM : TARN_ERR_PARSE;
    if (js_is(*root, JS_OBJECT))
        return TARN_OK;
    enum tarn_error e = wrong(a, "the answer", "an object", *root);
    js_unref(*root);
    *root = NULL;
    return e;
}

static bool says_error(const struct json *root)
{
    const char *object = string_or_null(js_get(root, "object"));

    return js_get_set(root, "error") || (object && strcmp(object, "error") == 0);
}

enum tarn_error answer_take_event(struct answer *a, const char *json, size_t len, bool is_error,
                                  uint64_t time_ns)
{
    struct json *root = NULL;
    enum tarn_error e = parse(a, json, len, &root);

    if (e == TARN_ERR_PARSE && is_error) { /* an error event that is plain text */
        buf_why(&a->words, OK, "%.*s", (int)(len < WORDS_OF_BODY ? len : WORDS_OF_BODY), json);
        return TARN_ERR_STREAM;
    }
    if (e != TARN_OK)
        return e;
    if (is_error || says_error(root)) {
        const char *words = take_error(a, root);
        buf_why(&a->words, OK, "%s", words ? words : "an error without words");
        e = TARN_ERR_STREAM;
    } else {
        take_usage(a, root);
        e = take_sources(a, root);
        if (e == TARN_OK)
            e = take_choices(a, root, "delta", time_ns);
    }
    js_unref(root);
    return e;
}

enum tarn_error answer_take_whole(struct answer *a, const char *json, size_t len, uint64_t time_ns)
{
    struct json *root = NULL;
    enum tarn_error e = parse(a, json, len, &root);

    if (e != TARN_OK)
        return e;
    if (says_error(root)) { /* some servers send errors with status 200 */
        const char *words = take_error(a, root);
        buf_why(&a->words, OK, "%s", words ? words : "an error without words");
        e = TARN_ERR_STREAM;
    } else if (!js_is(js_get(root, "choices"), JS_ARRAY)) {
        e = wrong(a, "choices", "an array", js_get(root, "choices"));
    } else {
        take_usage(a, root);
        e = take_sources(a, root);
        if (e == TARN_OK)
            e = take_choices(a, root, "message", time_ns);
    }
    js_unref(root);
    return e;
}
