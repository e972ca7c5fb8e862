/* score_request.c - the bodies of POST /rerank and /score.
 *
 *     /rerank  {"query": text, "documents": [texts], "top_n", "return_documents",
 *               "max_tokens_per_doc", "truncate_prompt_tokens", "use_activation", "model", "user"}
 *     /score   {"text_1": texts, "text_2": texts, "truncate_prompt_tokens", "use_activation",
 *               "model", "user"}, also with queries and documents, queries and items, data_1 and
 *               data_2
 *
 * A text is a string or an object with the member "text". One first text goes with each of the
 * second ones; else both lists are of the same length. */
#include <stdio.h>

#include "base/check.h"
#include "server/api/embedding_reading.h"
#include "server/api/embeddings.h"
#include "server/server.h"

static const char *const rerank_fields[] = {
    "model",         "query",   "documents",          "top_n", "return_documents",
    "activation",    "softmax", "max_tokens_per_doc", "user",  "truncate_prompt_tokens",
    "use_activation"};

static const char *const score_fields[] = {"model",
                                           "text_1",
                                           "text_2",
                                           "queries",
                                           "documents",
                                           "items",
                                           "data_1",
                                           "data_2",
                                           "activation",
                                           "softmax",
                                           "use_activation",
                                           "user",
                                           "truncate_prompt_tokens"};

/* The lists of a request that scores; of a ranking, first_name is "query". */
struct pairs {
    const struct json *first, *second;
    const char *first_name, *second_name;
};

/* --- fields --- */

static enum status read_model(struct embedding_reading *g, const struct server *srv,
                              const struct json *body)
{
    const struct embedder *classifier = embeddings_embedder(srv->classifier);
    const struct embedder_labels *labels = classifier ? embedder_labels(classifier) : NULL;
    bool scores = labels && labels->n == 1;
    struct embeddings *const models[] = {scores ? srv->classifier : NULL, srv->embeddings};
    char nothing[160] = "this server scores no pairs of texts: start it with --rerank-model or "
                        "--embedding-model";

    if (labels && !scores)
        snprintf(nothing, sizeof nothing,
                 "this server scores no pairs of texts: its --rerank-model has %u labels, and "
                 "scores are those of a model with one",
                 labels->n);
    return embedding_read_model(g, models, ARRAY_SIZE(models), nothing, body);
}

static enum status read_common(struct embedding_reading *g, const struct json *body)
{
    const struct embedder_labels *labels = embedder_labels(g->embedder);
    const char *user = NULL;
    enum status s = js_get_str(body, "user", &user, NULL, g->why);

    if (s == OK)
        s = embedding_read_activation(g, labels ? labels->of_pairs : LABELS_PLAIN, body);
    g->r->dim = embedder_dim(g->embedder);
    return s == OK ? embedding_read_cut(g, body) : s;
}

static enum status read_rerank_options(struct embedding_reading *g, const struct json *body)
{
    int64_t max = embedder_max_tokens(g->embedder), top_n = EMBEDDING_N_INPUTS_MAX, cut_to = 0;
    bool repeats = false;
    enum status s = read_common(g, body);

    if (s == OK)
        s = js_get_i64(body, "top_n", 1, INT32_MAX, &top_n, g->why);
    if (s == OK)
        s = js_get_bool(body, "return_documents", &repeats, g->why);
    if (s == OK)
        s = js_get_i64(body, "max_tokens_per_doc", 1, INT32_MAX, &cut_to, g->why);
    if (embedder_labels(g->embedder)) {
        g->cut_second = (uint32_t)cut_to;
        cut_to = 0;
    }
    if (g->cut_to == 0) /* unlike embeddings, rankings cut long texts, as Jina's and Cohere's do */
        g->cut_to = (uint32_t)(cut_to > 0 && cut_to < max ? cut_to : max);
    g->r->top_n = (uint32_t)top_n;
    if (s == OK && repeats && !(g->r->documents = js_copy_deep(js_get(body, "documents"))))
        s = buf_why(g->why, ERR_NOMEM, "out of memory");
    return s;
}

/* --- pairs --- */

/* The text: a string, or the member "text" of an object. */
static enum status find_text(struct embedding_reading *g, const struct json *v, const char *name,
                             const struct json **out)
{
    *out = js_is(v, JS_OBJECT) ? js_get(v, "text") : v;
    return js_is(*out, JS_STRING)
               ? OK
               : buf_why(g->why, ERR_INVALID, "%s: expected a text or an object with one, got %s",
                         name, js_type_name(js_typeof(v)));
}

/* Entry i of a list; the whole of a text alone. */
static const struct json *entry(const struct json *list, size_t i)
{
    return js_is(list, JS_ARRAY) ? js_at(list, i) : list;
}

static void name_entry(char *out, size_t n_bytes, const char *field, const struct json *list,
                       size_t i)
{
    if (js_is(list, JS_ARRAY))
        snprintf(out, n_bytes, "%s[%zu]", field, i);
    else
        snprintf(out, n_bytes, "%s", field);
}

/* Read a text as an input of the embedding model. */
static enum status read_alone(struct embedding_reading *g, enum embedder_role role,
                              const struct json *list, size_t i, const char *field)
{
    char name[EMBEDDING_NAME_BYTES];
    const struct json *text;

    name_entry(name, sizeof name, field, list, i);
    g->role = role;
    enum status s = find_text(g, entry(list, i), name, &text);
    return s == OK ? embedding_read_input(g, text, name) : s;
}

/* Read a text without the special tokens, for the model that reads pairs. */
static enum status read_half(struct embedding_reading *g, const struct json *list, size_t i,
                             const char *field, struct buf *out)
{
    char name[EMBEDDING_NAME_BYTES];
    const struct json *text;

    name_entry(name, sizeof name, field, list, i);
    buf_reset(out);
    enum status s = find_text(g, entry(list, i), name, &text);
    return s == OK ? embedding_read_text(g, text, false, out, name) : s;
}

static enum status join(struct embedding_reading *g, const struct pairs *p, size_t i)
{
    struct embedding_request *r = g->r;
    size_t most = g->cut_second * sizeof(uint32_t);
    char name[EMBEDDING_NAME_BYTES];
    struct buf inner;
    uint32_t n_first;

    if (most > 0 && g->second.len > most)
        g->second.len = most;
    name_entry(name, sizeof name, p->second_name, p->second, i);
    buf_reset(&g->scratch);
    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status s =
        embedder_join(g->embedder, &g->first, &g->second, g->cut_to, &g->scratch, &n_first, &inner);
    if (s != OK)
        buf_why(g->why, s, "%s: %s", s == ERR_INVALID ? "truncate_prompt_tokens" : name,
                buf_str(&inner));
    else
        s = embedding_take_input(g, false, name);
    if (s == OK)
        r->types[r->n - 1] = n_first;
    buf_fini(&inner);
    return s;
}

/* The first texts are tokenized once. */
static enum status read_joined(struct embedding_reading *g, const struct pairs *p)
{
    enum status s = OK;

    for (size_t i = 0; s == OK && i < g->r->n_pairs; i++) {
        if (i == 0 || !g->r->shares_first)
            s = read_half(g, p->first, i, p->first_name, &g->first);
        if (s == OK)
            s = read_half(g, p->second, i, p->second_name, &g->second);
        if (s == OK)
            s = join(g, p, i);
    }
    return s;
}

static enum status read_apart(struct embedding_reading *g, const struct pairs *p)
{
    enum status s = OK;

    for (size_t i = 0; s == OK && i < g->r->n_pairs; i++) {
        if (i == 0 || !g->r->shares_first)
            s = read_alone(g, EMBEDDER_QUERY, p->first, i, p->first_name);
        if (s == OK)
            s = read_alone(g, EMBEDDER_DOCUMENT, p->second, i, p->second_name);
    }
    return s;
}

static enum status read_pairs(struct embedding_reading *g, const struct pairs *p)
{
    size_t n_first = js_is(p->first, JS_ARRAY) ? js_len(p->first) : 1;
    size_t n = js_is(p->second, JS_ARRAY) ? js_len(p->second) : 1;

    if (n == 0 || n >= EMBEDDING_N_INPUTS_MAX)
        return buf_why(g->why, ERR_INVALID, "%s: expected an array of 1 to %d texts",
                       p->second_name, EMBEDDING_N_INPUTS_MAX - 1);
    if (n_first != 1 && n_first != n)
        return buf_why(g->why, ERR_INVALID,
                       "%s: %zu texts, expected one, or as many as %s has: %zu", p->first_name,
                       n_first, p->second_name, n);
    g->r->n_pairs = (uint32_t)n;
    g->r->shares_first = n_first == 1;
    enum status s = embedding_reserve_inputs(g, 2 * n);
    if (s != OK)
        return s;
    return g->r->types ? read_joined(g, p) : read_apart(g, p);
}

/* --- requests --- */

enum status rerank_request_read(struct embedding_request *r, const struct server *srv,
                                const struct json *body, struct buf *why)
{
    struct embedding_reading g;
    struct pairs p = {js_get(body, "query"), js_get_set(body, "documents"), "query", "documents"};

    embedding_reading_init(&g, r, body, rerank_fields, ARRAY_SIZE(rerank_fields), why);
    enum status s = read_model(&g, srv, body);
    if (s == OK)
        s = read_rerank_options(&g, body);
    if (s == OK && !js_is(p.second, JS_ARRAY))
        s = buf_why(why, ERR_INVALID, "documents: expected an array of 1 to %d texts",
                    EMBEDDING_N_INPUTS_MAX - 1);
    if (s == OK && js_is(p.first, JS_ARRAY))
        s = buf_why(why, ERR_INVALID, "query: expected a text or an object with one, got an array");
    if (s == OK)
        s = read_pairs(&g, &p);
    if (s == OK && r->top_n > r->n_pairs)
        r->top_n = r->n_pairs;
    embedding_reading_fini(&g);
    return s;
}

/* Find which names the lists have. */
static enum status find_lists(const struct json *body, struct pairs *p, struct buf *why)
{
    static const struct {
        const char *first, *second;
    } names[] = {
        {"text_1", "text_2"}, {"queries", "documents"}, {"queries", "items"}, {"data_1", "data_2"}};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        *p = (struct pairs){js_get_set(body, names[i].first), js_get_set(body, names[i].second),
                            names[i].first, names[i].second};
        if (p->first && p->second)
            return OK;
    }
    return buf_why(why, ERR_INVALID,
                   "text_1: text_1 and text_2, or queries and documents, are required");
}

enum status score_request_read(struct embedding_request *r, const struct server *srv,
                               const struct json *body, struct buf *why)
{
    struct embedding_reading g;
    struct pairs p;

    embedding_reading_init(&g, r, body, score_fields, ARRAY_SIZE(score_fields), why);
    enum status s = read_model(&g, srv, body);
    if (s == OK)
        s = read_common(&g, body);
    if (s == OK)
        s = find_lists(body, &p, why);
    if (s == OK)
        s = read_pairs(&g, &p);
    embedding_reading_fini(&g);
    return s;
}
