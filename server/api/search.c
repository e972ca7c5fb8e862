#include "server/api/search.h"

#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/flags.h"
#include "engine/embedder.h"
#include "server/api/document_json.h"

#define MODE_NAMES "auto|lexical|vector|hybrid"
#define SCOPE_NAMES "all|own|public"
#define ORDER_NAMES "score|cache|id" /* in the order of enum documents_order */
#define TOP_K_DEFAULT 4

static const char *const fields[] = {"scope", "query",  "embedding", "mode",
                                     "top_k", "filter", "order"};

/* --- the field --- */

bool search_is_wanted(const struct json *body)
{
    return js_get_set(body, "retrieval") != NULL;
}

void search_fini(struct search *s)
{
    buf_fini(&s->query);
    buf_fini(&s->vector);
}

const char *search_order_name(const struct search *s)
{
    static const char *const names[] = {"score", "cache", "id"};

    return names[s->order];
}

/* Read a word of a list. *out: its place in the list, unchanged if the field is absent. */
static enum status read_word(const struct json *r, const char *key, const char *words, int *out,
                             struct buf *why)
{
    const char *word = NULL;
    enum status s = js_get_str(r, key, &word, NULL, why);

    if (s != OK || !word)
        return s;
    if (!flag_is_choice(words, word))
        return buf_why(why, ERR_INVALID, "%s: \"%.40s\" is none of %s", key, word, words);
    *out = (int)flag_choice_at(words, word);
    return OK;
}

static enum status read_words(struct search *s, const struct json *r, struct buf *why)
{
    int mode = RETRIEVAL_AUTO, scope = 0, order = DOCUMENTS_BY_ID;
    enum status st = read_word(r, "scope", SCOPE_NAMES, &scope, why);

    if (st == OK)
        st = read_word(r, "mode", MODE_NAMES, &mode, why);
    if (st == OK)
        st = read_word(r, "order", ORDER_NAMES, &order, why);
    s->own = scope != 2;
    s->public = scope != 1;
    s->mode = (enum retrieval_mode)mode;
    s->order = (enum documents_order)order;
    return st;
}

/* Append at most the room that is left, cut between two characters. */
static enum status append_cut(struct buf *out, const char *text, size_t len)
{
    size_t room = out->max - out->len;

    if (len > room)
        for (len = room; len > 0 && ((unsigned char)text[len] & 0xC0) == 0x80;)
            len--;
    return buf_append(out, text, len);
}

static enum status append_string(struct buf *out, const struct json *v)
{
    size_t len;
    const char *text;

    if (!js_is(v, JS_STRING))
        return OK;
    text = js_string(v, &len);
    return append_cut(out, text, len);
}

/* The last message of a user, or the prompt. A message that is malformed gives no query here; it is
 * refused when the prompt is made. */
static enum status take_default_query(struct search *s, const struct json *body, bool is_chat)
{
    const struct json *messages = js_get(body, "messages");
    enum status st = OK;

    if (!is_chat)
        return append_string(&s->query, js_get(body, "prompt"));
    for (size_t i = js_len(messages); i-- > 0;) {
        const struct json *m = js_at(messages, i), *role = js_get(m, "role");
        const struct json *content = js_get(m, "content");
        if (!js_is(role, JS_STRING) || strcmp(js_string(role, NULL), "user") != 0)
            continue;
        for (size_t k = 0; st == OK && js_is(content, JS_ARRAY) && k < js_len(content); k++) {
            st = s->query.len && s->query.len < s->query.max ? buf_putc(&s->query, '\n') : OK;
            if (st == OK)
                st = append_string(&s->query, js_get(js_at(content, k), "text"));
        }
        return st == OK ? append_string(&s->query, content) : st;
    }
    return OK;
}

static enum status read_query(struct search *s, const struct json *r, const struct json *body,
                              bool is_chat, struct buf *why)
{
    const char *text = NULL;
    size_t len = 0;
    enum status st = js_get_str(r, "query", &text, &len, why);

    if (st != OK)
        return st;
    if (text && (len == 0 || len > SEARCH_QUERY_BYTES_MAX))
        return buf_why(why, ERR_INVALID, "query: expected 1 to %u bytes, got %zu",
                       SEARCH_QUERY_BYTES_MAX, len);
    st = text ? buf_append(&s->query, text, len) : take_default_query(s, body, is_chat);
    return st == OK ? OK : buf_why(why, st, "out of memory");
}

static enum status read_filter(struct search *s, const struct json *r, struct buf *why)
{
    struct buf inner;

    s->filter = js_get_set(r, "filter");
    if (!s->filter)
        return OK;
    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status st = catalog_check_filter(s->filter, &inner);
    if (st != OK)
        buf_why(why, st, "filter: %s", buf_str(&inner));
    buf_fini(&inner);
    return st;
}

static enum status read_fields(struct search *s, const struct json *r, const struct json *body,
                               bool is_chat, struct buf *why)
{
    int64_t top_k = TOP_K_DEFAULT;
    enum status st = read_words(s, r, why);

    if (st == OK)
        st = js_get_i64(r, "top_k", 1, RETRIEVAL_TOP_K_MAX, &top_k, why);
    s->top_k = (uint32_t)top_k;
    if (st == OK)
        st = document_read_embedding(&s->vector, r, why);
    if (st == OK)
        st = read_query(s, r, body, is_chat, why);
    return st == OK ? read_filter(s, r, why) : st;
}

enum status search_read(struct search *s, const struct json *body, bool is_chat,
                        struct unknown_fields *unknown, struct buf *why)
{
    const struct json *r = js_get(body, "retrieval");
    const struct json *order = js_get_set(body, "documents_order");
    struct buf inner;

    *s = (struct search){0};
    buf_init(&s->query, SEARCH_QUERY_BYTES_MAX);
    buf_init(&s->vector, DOCUMENT_DIM_MAX * sizeof(float));
    if (!js_is(r, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "retrieval: expected an object, got %s",
                       js_type_name(js_typeof(r)));
    if (unknown)
        unknown_fields_find(unknown, r, "retrieval.", fields, ARRAY_SIZE(fields));
    if (js_is(order, JS_STRING) && strcmp(js_string(order, NULL), "cache") == 0)
        return buf_why(why, ERR_INVALID,
                       "documents_order: beside `retrieval`, documents keep their places before "
                       "the found ones; use retrieval.order");
    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status st = read_fields(s, r, body, is_chat, &inner);
    st = st == ERR_TOO_LARGE ? ERR_INVALID : st; /* not a prompt that is too long */
    if (st != OK)
        buf_why(why, st, "retrieval.%s", buf_str(&inner));
    buf_fini(&inner);
    return st;
}

/* --- the search --- */

static double ms_since(uint64_t from_ns)
{
    return (double)(clock_now_ns() - from_ns) * 1e-6;
}

/* Whether the tenant's documents or the public ones have vectors. */
static bool has_vectors(const struct search *s, const struct library_parts *parts,
                        const char *tenant)
{
    return (s->own && retrieval_dim(parts->retrieval, tenant) > 0) ||
           (s->public && retrieval_dim(parts->retrieval, "") > 0);
}

static enum status embed(struct search *s, struct embedder *e, struct search_state *state,
                         struct buf *why)
{
    uint64_t begin_ns = clock_now_ns();
    uint32_t dim = embedder_dim(e);
    enum status st = buf_reserve(&s->vector, dim * sizeof(float));

    if (st == OK)
        st = embedder_encode(e, EMBEDDER_QUERY, buf_str(&s->query), s->query.len,
                             (float *)(void *)s->vector.data, NULL, why);
    if (st == OK)
        s->vector.len = dim * sizeof(float);
    state->embedding_ms = ms_since(begin_ns);
    return st;
}

/* Decide which lists are searched, and embed the query if that needs it. */
static enum status choose_lists(struct search *s, const struct library_parts *parts,
                                const char *tenant, struct search_state *state, struct buf *why)
{
    bool wants_vector = s->mode == RETRIEVAL_VECTOR || s->mode == RETRIEVAL_HYBRID;
    bool has = has_vectors(s, parts, tenant);
    enum status st = OK;

    if (s->query.len == 0 && (s->vector.len == 0 || s->mode == RETRIEVAL_LEXICAL))
        return buf_why(why, ERR_INVALID,
                       "query: is required, because there is no message of a user with a text");
    if (s->vector.len == 0 && wants_vector && !parts->embedder)
        return buf_why(why, ERR_INVALID,
                       "mode: \"%s\" needs `embedding`, or a server with --embedding-model",
                       s->mode == RETRIEVAL_VECTOR ? "vector" : "hybrid");
    if (s->mode == RETRIEVAL_HYBRID && s->query.len == 0)
        return buf_why(why, ERR_INVALID, "query: \"hybrid\" needs one beside `embedding`");
    if (s->mode == RETRIEVAL_LEXICAL)
        buf_reset(&s->vector);
    else if (s->vector.len == 0 && parts->embedder && (wants_vector || has))
        st = embed(s, parts->embedder, state, why);
    bool vector = s->vector.len > 0 && (wants_vector || has || s->query.len == 0);
    bool lexical = s->query.len > 0 && s->mode != RETRIEVAL_VECTOR;
    state->mode = vector && lexical ? "hybrid" : vector ? "vector" : "lexical";
    return st;
}

static enum status run_stages(struct retrieval_search *search, uint32_t n_stages_min,
                              enum status (*step)(void *arg, const struct search_state *state),
                              void *arg, struct search_state *state, struct buf *why)
{
    enum status st = OK;
    bool is_final = false;

    while (st == OK && !state->is_last) {
        if (!is_final)
            st = retrieval_next(search, state->hits, &state->n_hits, &is_final, why);
        state->n_stages++;
        state->is_last = is_final && state->n_stages >= n_stages_min;
        if (st == OK)
            st = step(arg, state);
    }
    return st;
}

enum status search_run(struct search *s, const struct library_parts *parts, const char *tenant,
                       enum status (*step)(void *arg, const struct search_state *state), void *arg,
                       struct search_state *state, struct buf *why)
{
    struct retrieval_search *search = NULL;
    struct buf inner;

    *state = (struct search_state){0};
    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status st = choose_lists(s, parts, tenant, state, &inner);
    if (st == ERR_INVALID)
        buf_why(why, st, "retrieval.%s", buf_str(&inner));
    const struct retrieval_query q = {
        .scope = {.tenant = tenant, .own = s->own, .public = s->public},
        .text = s->query.len ? s->query.data : NULL,
        .text_len = s->query.len,
        .vector = s->vector.len ? (const float *)(const void *)s->vector.data : NULL,
        .dim = (uint32_t)(s->vector.len / sizeof(float)),
        .filter = s->filter,
        .mode = s->mode,
        .top_k = s->top_k,
        .n_stages = SEARCH_N_STAGES};
    if (st == OK)
        st = retrieval_begin(&search, parts->retrieval, &q, &inner);
    /* The other fields were checked before. */
    if (search == NULL && st == ERR_INVALID && why->len == 0)
        buf_why(why, st, "retrieval.embedding: %s", buf_str(&inner));
    if (st == OK)
        st = run_stages(search, s->n_stages_min, step, arg, state, &inner);
    retrieval_end(search);
    if (st != OK && why->len == 0) /* step() may have written its own words */
        buf_why(why, st, "retrieval: %s", inner.len ? buf_str(&inner) : status_words(st));
    buf_fini(&inner);
    return st;
}
