#include "server/api/embedding_request.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/flags.h"
#include "server/api/embedding_reading.h"
#include "server/api/embeddings.h"
#include "server/server.h"

#define FORMAT_NAMES "float|base64"
#define TYPE_NAMES "query|document"

static const char *const fields[] = {
    "input", "model",      "encoding_format",        "dimensions",
    "user",  "input_type", "truncate_prompt_tokens", "add_special_tokens"};

static const char *const classify_fields[] = {
    "input",          "model",      "user",   "truncate_prompt_tokens", "add_special_tokens",
    "use_activation", "activation", "softmax"};

static size_t n_ids(const struct buf *ids)
{
    return ids->len / sizeof(uint32_t);
}

void embedding_reading_init(struct embedding_reading *g, struct embedding_request *r,
                            const struct json *body, const char *const *names, size_t n_names,
                            struct buf *why)
{
    *r = (struct embedding_request){0};
    *g =
        (struct embedding_reading){.r = r, .role = EMBEDDER_PLAIN, .add_special = true, .why = why};
    buf_init(&r->ids, EMBEDDING_N_TOKENS_MAX * sizeof(uint32_t));
    buf_init(&g->scratch, 2 * EMBEDDER_IDS_BYTES_MAX);
    buf_init(&g->first, EMBEDDER_IDS_BYTES_MAX);
    buf_init(&g->second, EMBEDDER_IDS_BYTES_MAX);
    unknown_fields_find(&r->unknown, body, "", names, n_names);
}

void embedding_reading_fini(struct embedding_reading *g)
{
    buf_fini(&g->scratch);
    buf_fini(&g->first);
    buf_fini(&g->second);
}

/* --- fields --- */

static enum status refuse_model(struct embedding_reading *g, struct embeddings *const *models,
                                size_t n, const char *nothing, const char *given)
{
    const char *names[2] = {NULL, NULL};
    size_t n_names = 0;

    for (size_t i = 0; i < n && n_names < ARRAY_SIZE(names); i++)
        if (models[i])
            names[n_names++] = embeddings_name(models[i]);
    if (n_names == 0)
        return buf_why(g->why, ERR_NOT_FOUND, "%s", nothing);
    return buf_why(g->why, ERR_NOT_FOUND,
                   "model: \"%.200s\" is not for this endpoint, but \"%.200s\"%s%.200s%s is", given,
                   names[0], names[1] ? " or \"" : "", names[1] ? names[1] : "",
                   names[1] ? "\"" : "");
}

enum status embedding_read_model(struct embedding_reading *g, struct embeddings *const *models,
                                 size_t n, const char *nothing, const struct json *body)
{
    const char *given = NULL;
    enum status s = js_get_str(body, "model", &given, NULL, g->why);

    if (s != OK)
        return s;
    for (size_t i = 0; i < n && !g->r->model; i++) {
        if (!models[i])
            continue;
        g->r->of = models[i];
        g->r->model =
            given && given[0] ? embeddings_find(models[i], given) : embeddings_name(models[i]);
    }
    if (!g->r->model)
        return refuse_model(g, models, n, nothing, given ? given : "");
    g->embedder = embeddings_embedder(g->r->of);
    return OK;
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

enum status embedding_read_cut(struct embedding_reading *g, const struct json *body)
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

static enum status read_options(struct embedding_reading *g, const struct json *body)
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
    return s == OK ? embedding_read_cut(g, body) : s;
}

/* --- inputs --- */

enum status embedding_read_text(struct embedding_reading *g, const struct json *v, bool add_special,
                                struct buf *out, const char *name)
{
    struct buf inner;
    size_t len;
    const char *text = js_string(v, &len);

    if (len == 0)
        return buf_why(g->why, ERR_INVALID, "%s: must not be empty", name);
    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status s = embedder_tokenize(g->embedder, g->role, text, len, add_special, out, &inner);
    if (s != OK)
        buf_why(g->why, s, "%s: %s", name, buf_str(&inner));
    buf_fini(&inner);
    return s;
}

static enum status read_ids(struct embedding_reading *g, const struct json *v, const char *name)
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

enum status embedding_take_input(struct embedding_reading *g, bool is_text, const char *name)
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
    if (r->types)
        r->types[r->n] = (uint32_t)n; /* a pair has a second type: score_request.c */
    r->ends[r->n++] = (uint32_t)n_ids(&r->ids);
    return s == OK ? OK : buf_why(g->why, s, "out of memory");
}

enum status embedding_read_input(struct embedding_reading *g, const struct json *v,
                                 const char *name)
{
    enum status s;

    buf_reset(&g->scratch);
    if (js_is(v, JS_STRING))
        s = embedding_read_text(g, v, g->add_special, &g->scratch, name);
    else if (js_is(v, JS_ARRAY))
        s = read_ids(g, v, name);
    else
        s = buf_why(g->why, ERR_INVALID, "%s: expected a text or an array of token ids, got %s",
                    name, js_type_name(js_typeof(v)));
    return s == OK ? embedding_take_input(g, js_is(v, JS_STRING), name) : s;
}

enum status embedding_reserve_inputs(struct embedding_reading *g, size_t n)
{
    bool has_labels = embedder_labels(g->embedder) != NULL;

    g->r->ends = calloc(n, sizeof *g->r->ends);
    if (has_labels)
        g->r->types = calloc(n, sizeof *g->r->types);
    return g->r->ends && (g->r->types || !has_labels) ? OK
                                                      : buf_why(g->why, ERR_NOMEM, "out of memory");
}

enum status embedding_read_inputs(struct embedding_reading *g, const struct json *body)
{
    const struct json *v = js_get_set(body, "input");
    bool is_list = js_is(v, JS_ARRAY) && !js_is(js_at(v, 0), JS_INT);
    size_t n = is_list ? js_len(v) : 1;
    char name[EMBEDDING_NAME_BYTES] = "input";

    if (!v)
        return buf_why(g->why, ERR_INVALID, "input: is required");
    if (n == 0)
        return buf_why(g->why, ERR_INVALID, "input: must not be empty");
    if (n > EMBEDDING_N_INPUTS_MAX)
        return buf_why(g->why, ERR_INVALID, "input: %zu entries, at most %d are taken", n,
                       EMBEDDING_N_INPUTS_MAX);
    enum status s = embedding_reserve_inputs(g, n);
    for (size_t i = 0; s == OK && i < n; i++) {
        if (is_list)
            snprintf(name, sizeof name, "input[%zu]", i);
        s = embedding_read_input(g, is_list ? js_at(v, i) : v, name);
    }
    return s;
}

enum status embedding_request_read(struct embedding_request *r, const struct server *srv,
                                   const struct json *body, struct buf *why)
{
    struct embedding_reading g;

    embedding_reading_init(&g, r, body, fields, ARRAY_SIZE(fields), why);
    enum status s = embedding_read_model(&g, &srv->embeddings, 1,
                                         "this server embeds no texts: start it with "
                                         "--embedding-model",
                                         body);
    if (s == OK)
        s = read_options(&g, body);
    if (s == OK)
        s = embedding_read_inputs(&g, body);
    embedding_reading_fini(&g);
    return s;
}

/* --- classify --- */

enum status embedding_read_activation(struct embedding_reading *g, enum label_activation usual,
                                      const struct json *body)
{
    static const char *const names[] = {"softmax", "activation", "use_activation"};
    bool is_on = true;
    enum status s = OK;

    for (size_t i = 0; s == OK && i < ARRAY_SIZE(names); i++)
        s = js_get_bool(body, names[i], &is_on, g->why);
    g->r->activation = is_on ? usual : LABELS_PLAIN;
    return s;
}

static enum status read_classify_options(struct embedding_reading *g, const struct json *body)
{
    const char *user = NULL;
    enum status s = js_get_str(body, "user", &user, NULL, g->why);

    if (s == OK)
        s = js_get_bool(body, "add_special_tokens", &g->add_special, g->why);
    if (s == OK)
        s = embedding_read_activation(g, embedder_labels(g->embedder)->of_texts, body);
    return s == OK ? embedding_read_cut(g, body) : s;
}

enum status classify_request_read(struct embedding_request *r, const struct server *srv,
                                  const struct json *body, struct buf *why)
{
    struct embedding_reading g;

    embedding_reading_init(&g, r, body, classify_fields, ARRAY_SIZE(classify_fields), why);
    enum status s = embedding_read_model(&g, &srv->classifier, 1,
                                         "this server classifies no texts: start it with "
                                         "--rerank-model",
                                         body);
    if (s == OK)
        s = read_classify_options(&g, body);
    if (s == OK)
        s = embedding_read_inputs(&g, body);
    embedding_reading_fini(&g);
    return s;
}

void embedding_request_fini(struct embedding_request *r)
{
    js_unref(r->documents);
    r->documents = NULL;
    free(r->ends);
    free(r->types);
    r->ends = r->types = NULL;
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
