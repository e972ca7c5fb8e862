#include "server/api/structured.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"

#define KEPT_MAX 64u
#define KEPT_BYTES_MAX ((size_t)256 << 20)
#define SOURCE_BYTES_MAX ((size_t)1 << 20)
#define HASH_BYTES 32

/* Of a schema or a tag that is JSON text in a string. */
static const struct js_limits inner_limits = {.n_values_max = 200000,
                                              .n_bytes_max = (size_t)64 << 20};

struct kept {
    struct grammar *grammar; /* NULL: free */
    uint8_t hash[HASH_BYTES];
    uint64_t used; /* larger: later */
};

struct structured {
    const struct tokenizer *tokenizer;
    uint32_t n_vocab;
    pthread_mutex_t lock;                               /* of all below */
    struct grammar_vocab *vocabs[STRUCTURED_LISTS_MAX]; /* [n_vocabs] by shown tokens */
    struct shown_list {
        uint32_t ids[GRAMMAR_SHOWN_MAX], n;
    } lists[STRUCTURED_LISTS_MAX];
    uint32_t n_vocabs;
    struct kept kept[KEPT_MAX];
    uint64_t n_uses;
};

/* The form that a request asks for. */
struct wish {
    enum grammar_kind kind;
    const struct json *source;
    const char *field; /* NULL: none */
    const struct structured_place *place;
};

enum status structured_create(struct structured **out, const struct tokenizer *tokenizer,
                              uint32_t n_vocab)
{
    struct structured *s = calloc(1, sizeof *s);

    *out = s;
    if (!s)
        return ERR_NOMEM;
    s->tokenizer = tokenizer;
    s->n_vocab = n_vocab;
    pthread_mutex_init(&s->lock, NULL);
    return OK;
}

void structured_destroy(struct structured *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < KEPT_MAX; i++)
        grammar_unref(s->kept[i].grammar);
    for (uint32_t i = 0; i < s->n_vocabs; i++)
        grammar_vocab_destroy(s->vocabs[i]);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* --- fields --- */

static enum status wish_for(struct wish *w, enum grammar_kind kind, const char *field,
                            const struct json *source, struct buf *why)
{
    if (w->field)
        return buf_why(why, ERR_INVALID, "%s: %s asks for a form already; give one of them", field,
                       w->field);
    w->kind = kind;
    w->source = source;
    w->field = field;
    return OK;
}

/* {type: "text" | "json_object"}, {type: "json_schema", json_schema: {schema}}, or
 * {type: "structural_tag", ...} */
static enum status read_response_format(struct wish *w, const struct json *v, struct buf *why)
{
    const char *field = "response_format", *type = NULL;

    if (!js_is(v, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "%s: expected an object, got %s", field,
                       js_type_name(js_typeof(v)));
    if (js_read_cstr(js_get(v, "type"), "response_format: type", &type, why) != OK)
        return ERR_INVALID;
    if (strcmp(type, "text") == 0)
        return OK;
    if (strcmp(type, "json_object") == 0)
        return wish_for(w, GRAMMAR_JSON_OBJECT, field, NULL, why);
    if (strcmp(type, "structural_tag") == 0)
        return wish_for(w, GRAMMAR_TAGS, field, v, why);
    if (strcmp(type, "json_schema") != 0)
        return buf_why(why, ERR_UNSUPPORTED,
                       "%s: type \"%.40s\" is not supported; text, json_object, json_schema and "
                       "structural_tag are",
                       field, type);
    const struct json *schema = js_get(v, "json_schema"), *inner;
    inner = js_is(schema, JS_OBJECT) ? js_get(schema, "schema") : NULL;
    return inner ? wish_for(w, GRAMMAR_JSON_SCHEMA, field, inner, why)
                 : buf_why(why, ERR_INVALID, "%s: json_schema.schema is missing", field);
}

static enum status read_structured_outputs(struct wish *w, const struct json *v, struct buf *why)
{
    static const struct {
        const char *name;
        enum grammar_kind kind;
    } rows[] = {{"json", GRAMMAR_JSON_SCHEMA},
                {"regex", GRAMMAR_REGEX},
                {"choice", GRAMMAR_CHOICE},
                {"grammar", GRAMMAR_EBNF},
                {"structural_tag", GRAMMAR_TAGS}};
    const char *field = "structured_outputs";
    const struct json *object;
    enum status s = OK;

    if (!js_is(v, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "%s: expected an object, got %s", field,
                       js_type_name(js_typeof(v)));
    if (js_get_set(v, "whitespace_pattern"))
        return buf_why(why, ERR_UNSUPPORTED,
                       "%s: whitespace_pattern is not supported; json, json_object, regex, choice, "
                       "grammar and structural_tag are",
                       field);
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(rows); i++)
        if (js_get_set(v, rows[i].name))
            s = wish_for(w, rows[i].kind, field, js_get(v, rows[i].name), why);
    object = js_get_set(v, "json_object");
    return s == OK && js_is(object, JS_BOOL) && js_bool(object)
               ? wish_for(w, GRAMMAR_JSON_OBJECT, field, NULL, why)
               : s;
}

static enum status read_wish(struct wish *w, const struct json *body, struct buf *why)
{
    static const struct {
        const char *name;
        enum grammar_kind kind;
    } rows[] = {{"guided_json", GRAMMAR_JSON_SCHEMA},
                {"guided_regex", GRAMMAR_REGEX},
                {"guided_choice", GRAMMAR_CHOICE},
                {"guided_grammar", GRAMMAR_EBNF},
                {"json_schema", GRAMMAR_JSON_SCHEMA},
                {"grammar", GRAMMAR_EBNF},
                {"regex", GRAMMAR_REGEX},
                {"ebnf", GRAMMAR_EBNF}};
    const struct json *format = js_get_set(body, "response_format");
    const struct json *outputs = js_get_set(body, "structured_outputs");
    enum status s = format ? read_response_format(w, format, why) : OK;

    if (s == OK && outputs)
        s = read_structured_outputs(w, outputs, why);
    for (size_t i = 0; s == OK && i < ARRAY_SIZE(rows); i++) {
        const struct json *v = js_get_set(body, rows[i].name);
        bool is_empty = js_is(v, JS_STRING) && *js_string(v, NULL) == '\0';
        if (v && !is_empty)
            s = wish_for(w, rows[i].kind, rows[i].name, v, why);
    }
    return s;
}

/* --- grammars; under the lock --- */

static struct kept *find(struct structured *s, const uint8_t hash[HASH_BYTES])
{
    for (uint32_t i = 0; i < KEPT_MAX; i++)
        if (s->kept[i].grammar && memcmp(s->kept[i].hash, hash, HASH_BYTES) == 0)
            return &s->kept[i];
    return NULL;
}

static void drop_oldest(struct structured *s)
{
    struct kept *oldest = NULL;

    for (uint32_t i = 0; i < KEPT_MAX; i++)
        if (s->kept[i].grammar && (!oldest || s->kept[i].used < oldest->used))
            oldest = &s->kept[i];
    if (oldest) {
        grammar_unref(oldest->grammar);
        *oldest = (struct kept){0};
    }
}

static size_t kept_bytes(const struct structured *s, uint32_t *n)
{
    size_t n_bytes = 0;

    *n = 0;
    for (uint32_t i = 0; i < KEPT_MAX; i++)
        if (s->kept[i].grammar) {
            n_bytes += grammar_bytes(s->kept[i].grammar);
            (*n)++;
        }
    return n_bytes;
}

/* Drop grammars until n_more of n_bytes have room: answers have made the others remember more. */
static void make_room(struct structured *s, size_t n_bytes, uint32_t n_more)
{
    uint32_t n;

    while ((kept_bytes(s, &n) + n_bytes > KEPT_BYTES_MAX || n + n_more > KEPT_MAX) && n > 0)
        drop_oldest(s);
}

static void keep(struct structured *s, const uint8_t hash[HASH_BYTES], struct grammar *g)
{
    uint32_t i = 0;

    if (grammar_bytes(g) > KEPT_BYTES_MAX || find(s, hash))
        return;
    make_room(s, grammar_bytes(g), 1);
    while (s->kept[i].grammar)
        i++;
    s->kept[i].grammar = grammar_ref(g);
    s->kept[i].used = ++s->n_uses;
    memcpy(s->kept[i].hash, hash, HASH_BYTES);
}

/* The vocabulary of the place, which is made if it is new. */
static enum status vocab_of(struct structured *s, const struct structured_place *place,
                            struct grammar_vocab **out)
{
    uint32_t i = 0;

    ASSERT(place->n_shown <= GRAMMAR_SHOWN_MAX);
    while (i < s->n_vocabs &&
           (s->lists[i].n != place->n_shown ||
            memcmp(s->lists[i].ids, place->shown, place->n_shown * sizeof *place->shown) != 0))
        i++;
    if (i == STRUCTURED_LISTS_MAX)
        return ERR_UNSUPPORTED;
    if (i == s->n_vocabs) {
        enum status status = grammar_vocab_create_showing(&s->vocabs[i], s->tokenizer, s->n_vocab,
                                                          place->shown, place->n_shown);
        if (status != OK)
            return status;
        s->lists[i].n = place->n_shown;
        memcpy(s->lists[i].ids, place->shown, place->n_shown * sizeof *place->shown);
        s->n_vocabs++;
    }
    *out = s->vocabs[i];
    return OK;
}

/* --- reading --- */

bool structured_allows(const struct reasoning_format *f)
{
    return f && !f->ends[1];
}

/* The source of a GRAMMAR_REASONED. */
static enum status behind_reasoning(struct json **out, const struct wish *w,
                                    const struct json *source)
{
    const struct reasoning_format *f = w->place->reasoning;
    struct json *x = js_new_object();
    enum status s = x ? OK : ERR_NOMEM;

    if (s == OK)
        s = js_set(x, "begin", js_new_string(f->begins[0], strlen(f->begins[0])));
    if (s == OK)
        s = js_set(x, "end", js_new_string(f->ends[0], strlen(f->ends[0])));
    if (s == OK)
        s = js_set(x, "behind", js_new_string(f->behind, strlen(f->behind)));
    if (s == OK)
        s = js_set(x, "before_form", js_new_string(f->before_form, strlen(f->before_form)));
    if (s == OK)
        s = js_set(x, "kind", js_new_int((int64_t)w->kind));
    if (s == OK && source)
        s = js_set(x, "source", js_copy_deep(source));
    if (s == OK)
        *out = x;
    else
        js_unref(x);
    return s;
}

static enum status hash_of(const struct wish *w, uint8_t hash[HASH_BYTES], struct buf *why)
{
    struct buf text;
    enum status s;

    buf_init(&text, SOURCE_BYTES_MAX);
    s = buf_printf(&text, "%d %s ", (int)w->kind,
                   structured_allows(w->place->reasoning) ? w->place->reasoning->name : "");
    for (uint32_t i = 0; s == OK && i < w->place->n_shown; i++)
        s = buf_printf(&text, "%u ", w->place->shown[i]);
    if (s == OK && w->source)
        s = js_write(&text, w->source);
    if (s == OK)
        hash_blake2b(hash, HASH_BYTES, text.data, text.len, NULL, 0);
    else
        s = buf_why(why, s, "%s: longer than %zu bytes", w->field, SOURCE_BYTES_MAX);
    buf_fini(&text);
    return s;
}

static enum status compile(struct grammar_vocab *vocab, const struct wish *w, struct grammar **out,
                           struct buf *why)
{
    struct json *parsed = NULL, *behind = NULL;
    const struct json *source = w->source;
    bool reasons = structured_allows(w->place->reasoning);
    struct buf inner;
    enum status status = OK;

    buf_init(&inner, BUF_WHY_MAX / 2);
    bool is_json = w->kind == GRAMMAR_JSON_SCHEMA || w->kind == GRAMMAR_TAGS;
    if (is_json && js_is(source, JS_STRING)) { /* JSON text */
        size_t len;
        const char *text = js_string(source, &len);
        status = js_parse_limited(&parsed, text, len, &inner_limits, &inner);
        source = parsed;
    }
    if (status == OK && reasons)
        status = behind_reasoning(&behind, w, source);
    if (status == OK)
        status = grammar_create(out, vocab, reasons ? GRAMMAR_REASONED : w->kind,
                                reasons ? behind : source, &inner);
    if (status != OK)
        buf_why(why, status, "%s: %s", w->field, buf_str(&inner));
    buf_fini(&inner);
    js_unref(parsed);
    js_unref(behind);
    return status;
}

/* The grammar that was kept, else a new one, made without the lock. */
static enum status grammar_for(struct structured *s, const struct wish *w, struct grammar **out,
                               struct buf *why)
{
    struct grammar_vocab *vocab = NULL;
    uint8_t hash[HASH_BYTES];
    enum status status = hash_of(w, hash, why);

    if (status != OK)
        return status;
    pthread_mutex_lock(&s->lock);
    status = vocab_of(s, w->place, &vocab);
    struct kept *k = status == OK ? find(s, hash) : NULL;
    if (k) {
        k->used = ++s->n_uses;
        *out = grammar_ref(k->grammar);
        make_room(s, 0, 0);
    }
    pthread_mutex_unlock(&s->lock);
    if (status != OK)
        return buf_why(why, status, "%s: %s", w->field,
                       status == ERR_NOMEM
                           ? "out of memory"
                           : "the chat templates of requests have too many special tokens");
    if (*out)
        return OK;
    status = compile(vocab, w, out, why);
    if (status == OK) {
        pthread_mutex_lock(&s->lock);
        keep(s, hash, *out);
        pthread_mutex_unlock(&s->lock);
    }
    return status;
}

enum status structured_read(struct structured *s, const struct json *body,
                            const struct structured_place *place, struct grammar **out,
                            struct buf *why)
{
    struct wish w = {.field = NULL, .place = place};
    enum status status = read_wish(&w, body, why);

    *out = NULL;
    if (status != OK || !w.field)
        return status;
    if (!s || !s->tokenizer)
        return buf_why(why, ERR_UNSUPPORTED, "%s: this model has no tokenizer", w.field);
    return grammar_for(s, &w, out, why);
}

enum status structured_calls(struct structured *s, const struct json *source,
                             const struct structured_place *place, struct grammar **out,
                             struct buf *why)
{
    struct wish w = {.kind = GRAMMAR_CALLS, .source = source, .field = "tools", .place = place};

    *out = NULL;
    if (!s || !s->tokenizer)
        return buf_why(why, ERR_UNSUPPORTED, "tools: this model has no tokenizer");
    return grammar_for(s, &w, out, why);
}
