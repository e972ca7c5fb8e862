#include "server/api/embedding_request.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/flags.h"
#include "base/json.h"
#include "engine/embedder.h"
#include "server/api/embeddings.h"

#define FORMAT_NAMES "float|base64"
#define TYPE_NAMES "query|document"
#define NAME_BYTES 32

static const char *const fields[] = {
    "input", "model",      "encoding_format",        "dimensions",
    "user",  "input_type", "truncate_prompt_tokens", "add_special_tokens"};

static const char *const rerank_fields[] = {"model",
                                            "query",
                                            "documents",
                                            "top_n",
                                            "return_documents",
                                            "max_tokens_per_doc",
                                            "user",
                                            "truncate_prompt_tokens"};

/* The fields that count for all inputs of a request. */
struct reading {
    struct embedding_request *r;
    const struct embedder *embedder;
    enum embedder_role role;
    bool add_special;
    uint32_t cut_to;    /* 0: too long inputs are refused */
    struct buf scratch; /* ids of one input */
    struct buf *why;
};

static size_t n_ids(const struct buf *ids)
{
    return ids->len / sizeof(uint32_t);
}

/* --- fields --- */

static enum status read_model(struct embedding_request *r, const struct embeddings *e,
                              const struct json *body, struct buf *why)
{
    const char *given = NULL;
    enum status s = js_get_str(body, "model", &given, NULL, why);

    if (s != OK)
        return s;
    r->model = given && given[0] ? embeddings_find(e, given) : embeddings_name(e);
    return r->model ? OK
                    : buf_why(why, ERR_NOT_FOUND,
                              "model: \"%.200s\" does not embed texts here, but \"%.200s\" does",
                              given, embeddings_name(e));
}

/* Read a word of a list. *out: its place in the list, unchanged if the field is absent. */
static enum status read_word(const struct json *body, const char *key, const char *words, int *out,
                             struct buf *why)
{
    const char *word = NULL;
    enum status s = js_get_str(body, key, &word, NULL, why);

    if (s != OK || !word)
        return s;
    if (!flag_is_choice(words, word))
        return buf_why(why, ERR_INVALID, "%s: \"%.40s\" is none of %s", key, word, words);
    *out = (int)flag_choice_at(words, word);
    return OK;
}

static enum status read_cut(struct reading *g, const struct json *body)
{
    int64_t max = embedder_max_tokens(g->embedder), cut_to = 0;
    enum status s = js_get_i64(body, "truncate_prompt_tokens", -1, max, &cut_to, g->why);

    if (s == OK && cut_to == 0 && js_get_set(body, "truncate_prompt_tokens"))
        return buf_why(g->why, ERR_INVALID,
                       "truncate_prompt_tokens: expected -1, or a number from 1 to %lld",
                       (long long)max);
    g->cut_to = (uint32_t)(cut_to < 0 ? max : cut_to);
    return s;
}

static enum status read_options(struct reading *g, const struct json *body)
{
    static const enum embedder_role roles[] = {EMBEDDER_QUERY, EMBEDDER_DOCUMENT, EMBEDDER_PLAIN};
    int64_t dim = embedder_dim(g->embedder);
    int format = 0, type = 2;
    const char *user = NULL;
    enum status s = read_word(body, "encoding_format", FORMAT_NAMES, &format, g->why);

    if (s == OK)
        s = read_word(body, "input_type", TYPE_NAMES, &type, g->why);
    if (s == OK)
        s = js_get_i64(body, "dimensions", 1, dim, &dim, g->why);
    if (s == OK)
        s = js_get_str(body, "user", &user, NULL, g->why);
    if (s == OK)
        s = js_get_bool(body, "add_special_tokens", &g->add_special, g->why);
    g->role = roles[type];
    g->r->base64 = format == 1;
    g->r->dim = (uint32_t)dim;
    return s == OK ? read_cut(g, body) : s;
}

/* --- inputs --- */

static enum status read_text(struct reading *g, const struct json *v, const char *name)
{
    struct buf inner;
    size_t len;
    const char *text = js_string(v, &len);

    if (len == 0)
        return buf_why(g->why, ERR_INVALID, "%s: must not be empty", name);
    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status s =
        embedder_tokenize(g->embedder, g->role, text, len, g->add_special, &g->scratch, &inner);
    if (s != OK)
        buf_why(g->why, s, "%s: %s", name, buf_str(&inner));
    buf_fini(&inner);
    return s;
}

static enum status read_ids(struct reading *g, const struct json *v, const char *name)
{
    size_t n = js_len(v);
    enum status s = buf_reserve(&g->scratch, n * sizeof(uint32_t));

    if (n == 0)
        return buf_why(g->why, ERR_INVALID, "%s: must not be empty", name);
    for (size_t i = 0; s == OK && i < n; i++) {
        const struct json *id = js_at(v, i);
        if (!js_is(id, JS_INT))
            return buf_why(g->why, ERR_INVALID, "%s[%zu]: expected a token id, got %s", name, i,
                           js_type_name(js_typeof(id)));
        if (js_int(id) < 0 || js_int(id) >= embedder_n_vocab(g->embedder))
            return buf_why(g->why, ERR_INVALID, "%s[%zu]: token id %lld is outside of [0, %u)",
                           name, i, (long long)js_int(id), embedder_n_vocab(g->embedder));
        s = buf_u32(&g->scratch, (uint32_t)js_int(id));
    }
    return s == OK ? OK : buf_why(g->why, s, "%s: %s", name, status_words(s));
}

/* Cut the input in the scratch, or refuse it, and append it to the others. */
static enum status take_input(struct reading *g, bool is_text, const char *name)
{
    struct embedding_request *r = g->r;
    uint32_t max = embedder_max_tokens(g->embedder);
    uint32_t *ids = (uint32_t *)(void *)g->scratch.data;
    size_t n = n_ids(&g->scratch);

    if (g->cut_to > 0)
        n = embedder_cut(g->embedder, ids, n, g->cut_to, is_text && g->add_special);
    if (n > max)
        return buf_why(g->why, ERR_TOO_LARGE,
                       "%s: This model's maximum context length is %u tokens, but the input has "
                       "%zu; truncate_prompt_tokens -1 cuts it.",
                       name, max, n);
    if (n > EMBEDDING_N_TOKENS_MAX - n_ids(&r->ids))
        return buf_why(g->why, ERR_INVALID,
                       "input: more than %d tokens in all; send fewer inputs at once",
                       EMBEDDING_N_TOKENS_MAX);
    enum status s = buf_append(&r->ids, ids, n * sizeof *ids);
    r->ends[r->n++] = (uint32_t)n_ids(&r->ids);
    return s == OK ? OK : buf_why(g->why, s, "out of memory");
}

static enum status read_input(struct reading *g, const struct json *v, const char *name)
{
    enum status s;

    buf_reset(&g->scratch);
    if (js_is(v, JS_STRING))
        s = read_text(g, v, name);
    else if (js_is(v, JS_ARRAY))
        s = read_ids(g, v, name);
    else
        s = buf_why(g->why, ERR_INVALID, "%s: expected a text or an array of token ids, got %s",
                    name, js_type_name(js_typeof(v)));
    return s == OK ? take_input(g, js_is(v, JS_STRING), name) : s;
}

static enum status read_inputs(struct reading *g, const struct json *v)
{
    bool is_list = js_is(v, JS_ARRAY) && !js_is(js_at(v, 0), JS_INT);
    size_t n = is_list ? js_len(v) : 1;
    char name[NAME_BYTES] = "input";
    enum status s = OK;

    if (!v)
        return buf_why(g->why, ERR_INVALID, "input: is required");
    if (n == 0)
        return buf_why(g->why, ERR_INVALID, "input: must not be empty");
    if (n > EMBEDDING_N_INPUTS_MAX)
        return buf_why(g->why, ERR_INVALID, "input: %zu entries, at most %d are taken", n,
                       EMBEDDING_N_INPUTS_MAX);
    g->r->ends = calloc(n, sizeof *g->r->ends);
    if (!g->r->ends)
        return buf_why(g->why, ERR_NOMEM, "out of memory");
    for (size_t i = 0; s == OK && i < n; i++) {
        if (is_list)
            snprintf(name, sizeof name, "input[%zu]", i);
        s = read_input(g, is_list ? js_at(v, i) : v, name);
    }
    return s;
}

enum status embedding_request_read(struct embedding_request *r, const struct embeddings *e,
                                   const struct json *body, struct buf *why)
{
    struct reading g = {
        .r = r, .embedder = embeddings_embedder(e), .add_special = true, .why = why};

    *r = (struct embedding_request){0};
    buf_init(&r->ids, EMBEDDING_N_TOKENS_MAX * sizeof(uint32_t));
    buf_init(&g.scratch, EMBEDDER_IDS_BYTES_MAX);
    unknown_fields_find(&r->unknown, body, "", fields, ARRAY_SIZE(fields));
    enum status s = read_model(r, e, body, why);
    if (s == OK)
        s = read_options(&g, body);
    if (s == OK)
        s = read_inputs(&g, js_get_set(body, "input"));
    buf_fini(&g.scratch);
    return s;
}

/* --- rerank --- */

static enum status read_rerank_options(struct reading *g, const struct json *body)
{
    int64_t max = embedder_max_tokens(g->embedder), top_n = EMBEDDING_N_INPUTS_MAX, cut_to = 0;
    bool repeats = false;
    const char *user = NULL;
    enum status s = js_get_i64(body, "top_n", 1, INT32_MAX, &top_n, g->why);

    if (s == OK)
        s = js_get_bool(body, "return_documents", &repeats, g->why);
    if (s == OK)
        s = js_get_str(body, "user", &user, NULL, g->why);
    if (s == OK)
        s = read_cut(g, body);
    if (s == OK)
        s = js_get_i64(body, "max_tokens_per_doc", 1, INT32_MAX, &cut_to, g->why);
    if (g->cut_to == 0) /* unlike embeddings, rankings cut long texts, as Jina's and Cohere's do */
        g->cut_to = (uint32_t)(cut_to > 0 && cut_to < max ? cut_to : max);
    g->r->top_n = (uint32_t)top_n;
    if (s == OK && repeats && !(g->r->documents = js_copy_deep(js_get(body, "documents"))))
        s = buf_why(g->why, ERR_NOMEM, "out of memory");
    return s;
}

/* Read one text: a string, or the member "text" of an object. */
static enum status read_ranked(struct reading *g, const struct json *v, const char *name)
{
    const struct json *text = js_is(v, JS_OBJECT) ? js_get(v, "text") : v;

    if (!js_is(text, JS_STRING))
        return buf_why(g->why, ERR_INVALID, "%s: expected a text or an object with one, got %s",
                       name, js_type_name(js_typeof(v)));
    return read_input(g, text, name);
}

static enum status read_documents(struct reading *g, const struct json *body)
{
    const struct json *list = js_get_set(body, "documents");
    char name[NAME_BYTES];
    enum status s = OK;

    if (!js_is(list, JS_ARRAY) || js_len(list) == 0 || js_len(list) >= EMBEDDING_N_INPUTS_MAX)
        return buf_why(g->why, ERR_INVALID, "documents: expected an array of 1 to %d texts",
                       EMBEDDING_N_INPUTS_MAX - 1);
    g->r->ends = calloc(js_len(list) + 1, sizeof *g->r->ends);
    if (!g->r->ends)
        return buf_why(g->why, ERR_NOMEM, "out of memory");
    g->role = EMBEDDER_QUERY;
    s = read_ranked(g, js_get(body, "query"), "query");
    g->role = EMBEDDER_DOCUMENT;
    for (size_t i = 0; s == OK && i < js_len(list); i++) {
        snprintf(name, sizeof name, "documents[%zu]", i);
        s = read_ranked(g, js_at(list, i), name);
    }
    return s;
}

enum status rerank_request_read(struct embedding_request *r, const struct embeddings *e,
                                const struct json *body, struct buf *why)
{
    struct reading g = {
        .r = r, .embedder = embeddings_embedder(e), .add_special = true, .why = why};

    *r = (struct embedding_request){.ranks = true, .dim = embedder_dim(g.embedder)};
    buf_init(&r->ids, EMBEDDING_N_TOKENS_MAX * sizeof(uint32_t));
    buf_init(&g.scratch, EMBEDDER_IDS_BYTES_MAX);
    unknown_fields_find(&r->unknown, body, "", rerank_fields, ARRAY_SIZE(rerank_fields));
    enum status s = read_model(r, e, body, why);
    if (s == OK)
        s = read_rerank_options(&g, body);
    if (s == OK)
        s = read_documents(&g, body);
    if (s == OK && r->top_n > r->n - 1)
        r->top_n = r->n - 1;
    buf_fini(&g.scratch);
    return s;
}

void embedding_request_fini(struct embedding_request *r)
{
    js_unref(r->documents);
    r->documents = NULL;
    free(r->ends);
    r->ends = NULL;
    buf_fini(&r->ids);
}

uint32_t embedding_request_n_tokens(const struct embedding_request *r)
{
    return (uint32_t)n_ids(&r->ids);
}

const uint32_t *embedding_request_ids(const struct embedding_request *r, uint32_t i, uint32_t *n)
{
    uint32_t begin = i > 0 ? r->ends[i - 1] : 0;

    *n = r->ends[i] - begin;
    return (const uint32_t *)(const void *)r->ids.data + begin;
}
