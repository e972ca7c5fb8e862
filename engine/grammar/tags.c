/* tags.c - structural tags: formats of xgrammar, which vLLM and SGLang pass on, as expressions.
 *
 *   {"type": "structural_tag", "format": FORMAT}
 *   {"type": "structural_tag", "structures": [{"begin", "schema", "end"}], "triggers": [...]}
 *
 * A FORMAT is an object with a "type": const_string, json_schema, regex, grammar, any_text,
 * sequence, or, tag, triggered_tags, tags_with_separator. */
#include <string.h>

#include "base/check.h"
#include "engine/grammar/free_text.h"
#include "engine/grammar/front.h"

#define DEPTH_MAX 32u
#define ENDS_MAX 64u   /* strings that end or interrupt a free text */
#define TAGS_MAX 1024u /* of one list */

/* Strings that a free text must not contain, as the tag around it ends with them. */
struct outer {
    const char *texts[ENDS_MAX]; /* [n] */
    size_t lens[ENDS_MAX];
    uint32_t n;
};

struct reader {
    struct exprs *e;
    struct buf *why;
    enum status status;
    uint32_t depth;
};

static uint32_t read_format(struct reader *r, const struct json *f, const struct outer *outer);

static uint32_t refuse(struct reader *r, enum status s, const char *what, const char *name)
{
    if (r->status == OK && exprs_status(r->e) == OK)
        r->status = buf_why(r->why, s, "structural tag: %s%s%.60s", what, *name ? " " : "", name);
    return EXPR_FAILED;
}

static bool is_stopped(const struct reader *r)
{
    return r->status != OK || exprs_status(r->e) != OK;
}

/* A string of an object; NULL and refused where there is none. */
static const char *text_of(struct reader *r, const struct json *o, const char *key, size_t *len)
{
    const struct json *v = js_get(o, key);

    *len = 0;
    if (js_is(v, JS_STRING))
        return js_string(v, len);
    refuse(r, ERR_INVALID, "a string is missing:", key);
    return NULL;
}

static bool is_on(struct reader *r, const struct json *o, const char *key)
{
    const struct json *v = js_get_set(o, key);

    if (v && !js_is(v, JS_BOOL))
        refuse(r, ERR_INVALID, "expected true or false:", key);
    return js_is(v, JS_BOOL) && js_bool(v);
}

static const struct json *list_of(struct reader *r, const struct json *o, const char *key)
{
    const struct json *v = js_get(o, key);

    if (js_is(v, JS_ARRAY) && js_len(v) > 0 && js_len(v) <= TAGS_MAX)
        return v;
    refuse(r, ERR_INVALID, "expected a list of 1 to 1024 values:", key);
    return NULL;
}

/* --- free text --- */

static void add_outer(struct reader *r, struct outer *o, const char *text, size_t len)
{
    if (len == 0)
        refuse(r, ERR_INVALID, "an excluded string or a trigger is empty", "");
    else if (o->n == ENDS_MAX)
        refuse(r, ERR_TOO_LARGE, "more than 64 strings end a text", "");
    else {
        o->texts[o->n] = text;
        o->lens[o->n++] = len;
    }
}

static void add_list(struct reader *r, struct outer *o, const struct json *list)
{
    if (list && !js_is(list, JS_ARRAY))
        refuse(r, ERR_INVALID, "expected a list of strings:", "excludes");
    for (size_t i = 0; !is_stopped(r) && i < js_len(list); i++) {
        size_t len = 0;
        const struct json *v = js_at(list, i);
        const char *text = js_is(v, JS_STRING) ? js_string(v, &len) : NULL;
        add_outer(r, o, text ? text : "", len);
    }
}

static uint32_t read_any_text(struct reader *r, const struct json *f, const struct outer *outer)
{
    struct outer not = *outer;
    struct free_text_end ends[ENDS_MAX];
    uint32_t rule = expr_new_rule(r->e);

    add_list(r, &not, js_get_set(f, "excludes"));
    add_list(r, &not, js_get_set(f, "excluded_str"));
    for (uint32_t i = 0; i < not .n; i++)
        ends[i] = (struct free_text_end){not .texts[i], not .lens[i], EXPR_FAILED};
    if (!is_stopped(r))
        front_free_text(r->e, rule, ends, not .n, true);
    return expr_rule(r->e, rule);
}

/* --- tags --- */

/* Read a tag whose begin has n_begun bytes in the text already: the expression of the rest. */
static uint32_t read_tag(struct reader *r, const struct json *f, size_t n_begun)
{
    const struct json *content = js_get_set(f, "content"), *end = js_get(f, "end");
    struct outer inner = {.n = 0};
    uint32_t x, close = expr_never(r->e);
    size_t n_begin, n_ends = js_is(end, JS_ARRAY) ? js_len(end) : 1;
    const char *begin = text_of(r, f, "begin", &n_begin);

    for (size_t i = 0; !is_stopped(r) && i < n_ends; i++) {
        const struct json *v = js_is(end, JS_ARRAY) ? js_at(end, i) : end;
        size_t len = 0;
        const char *text = js_is(v, JS_STRING) ? js_string(v, &len) : NULL;
        if (!text)
            refuse(r, ERR_INVALID, "a string is missing:", "end");
        else if (len > 0)
            add_outer(r, &inner, text, len);
        close = expr_alt(r->e, close, expr_text(r->e, text ? text : "", len));
    }
    if (!content)
        return refuse(r, ERR_INVALID, "an object is missing:", "content");
    if (is_stopped(r) || !begin)
        return EXPR_FAILED;
    x = expr_seq(r->e, read_format(r, content, &inner), close);
    return expr_seq(r->e, expr_text(r->e, begin + n_begun, n_begin - n_begun), x);
}

static uint32_t as_rule(struct reader *r, uint32_t x)
{
    uint32_t rule = expr_new_rule(r->e);

    expr_define(r->e, rule, x);
    return expr_rule(r->e, rule);
}

/* Any of the tags, of which `trigger` was written (NULL: nothing). *n: how many there are. */
static uint32_t read_tags(struct reader *r, const struct json *tags, const char *trigger,
                          size_t n_trigger, uint32_t *n)
{
    uint32_t x = expr_never(r->e);

    *n = 0;
    for (size_t i = 0; !is_stopped(r) && i < js_len(tags); i++) {
        const struct json *tag = js_at(tags, i), *type = js_get_set(tag, "type");
        size_t len;
        const char *begin = text_of(r, tag, "begin", &len);
        if (type && (!js_is(type, JS_STRING) || strcmp(js_string(type, NULL), "tag") != 0))
            refuse(r, ERR_INVALID, "expected a tag in the list of", "tags");
        if (!begin || (trigger && (len < n_trigger || memcmp(begin, trigger, n_trigger) != 0)))
            continue;
        x = expr_alt(r->e, x, as_rule(r, read_tag(r, tag, trigger ? n_trigger : 0)));
        (*n)++;
    }
    return x;
}

/* Free text with tags, which begin with triggers. */
static uint32_t read_triggered(struct reader *r, const struct json *f, const struct outer *outer)
{
    const struct json *tags = list_of(r, f, "tags"), *triggers = list_of(r, f, "triggers");
    bool needs_one = is_on(r, f, "at_least_one"), is_one = is_on(r, f, "stop_after_first");
    struct free_text_end ends[ENDS_MAX];
    struct outer all = {.n = 0};
    uint32_t n, n_found = 0, rule = expr_new_rule(r->e);
    uint32_t behind = is_one ? expr_empty(r->e) : expr_rule(r->e, rule);

    add_list(r, &all, triggers);
    for (uint32_t i = 0; !is_stopped(r) && i < all.n; i++) {
        uint32_t x = read_tags(r, tags, all.texts[i], all.lens[i], &n);
        n_found += n;
        if (n == 0)
            refuse(r, ERR_INVALID, "no tag begins with the trigger", all.texts[i]);
        ends[i] = (struct free_text_end){all.texts[i], all.lens[i], expr_seq(r->e, x, behind)};
    }
    if (!is_stopped(r) && n_found != js_len(tags))
        refuse(r, ERR_INVALID, "each tag must begin with exactly one trigger", "");
    n = all.n;
    add_list(r, &all, js_get_set(f, "excludes"));
    for (uint32_t i = 0; !is_stopped(r) && i < outer->n; i++)
        add_outer(r, &all, outer->texts[i], outer->lens[i]);
    for (uint32_t i = n; i < all.n; i++)
        ends[i] = (struct free_text_end){all.texts[i], all.lens[i], EXPR_FAILED};
    if (is_stopped(r))
        return EXPR_FAILED;
    front_free_text(r->e, rule, ends, all.n, true);
    if (!needs_one)
        return expr_rule(r->e, rule);
    /* The first tag comes at once, as in xgrammar. */
    return expr_seq(r->e, read_tags(r, tags, NULL, 0, &n), behind);
}

static uint32_t read_separated(struct reader *r, const struct json *f)
{
    const struct json *tags = list_of(r, f, "tags");
    bool needs_one = is_on(r, f, "at_least_one"), is_one = is_on(r, f, "stop_after_first");
    size_t len;
    const char *separator = text_of(r, f, "separator", &len);
    uint32_t n, any;

    if (is_stopped(r))
        return EXPR_FAILED;
    any = as_rule(r, read_tags(r, tags, NULL, 0, &n));
    uint32_t more = expr_seq(r->e, expr_text(r->e, separator, len), any);
    uint32_t x = is_one ? any : expr_seq(r->e, any, expr_repeat(r->e, more, 0, EXPR_MANY));
    return needs_one ? x : expr_repeat(r->e, x, 0, 1);
}

/* --- formats --- */

/* A front end's own words, inside of ours. */
static uint32_t noted(struct reader *r, enum status s, uint32_t x, const struct buf *inner)
{
    return s == OK ? x : refuse(r, s, buf_str(inner), "");
}

static uint32_t read_schema(struct reader *r, const struct json *schema)
{
    uint32_t x = EXPR_FAILED;
    struct buf inner;

    buf_init(&inner, BUF_WHY_MAX / 2);
    enum status s = front_json_schema(r->e, schema, &x, &inner);
    x = noted(r, s, x, &inner);
    buf_fini(&inner);
    return x;
}

static uint32_t read_json(struct reader *r, const struct json *f)
{
    const struct json *style = js_get_set(f, "style");

    if (style && (!js_is(style, JS_STRING) || strcmp(js_string(style, NULL), "json") != 0))
        return refuse(r, ERR_UNSUPPORTED, "not supported: style other than", "json");
    return js_get(f, "json_schema") ? read_schema(r, js_get(f, "json_schema"))
                                    : refuse(r, ERR_INVALID, "a schema is missing:", "json_schema");
}

static uint32_t read_text(struct reader *r, const struct json *f, const char *key)
{
    size_t len;
    const char *text = text_of(r, f, key, &len);
    uint32_t x = EXPR_FAILED;
    enum status s = OK;
    struct buf inner;

    if (!text)
        return EXPR_FAILED;
    buf_init(&inner, BUF_WHY_MAX / 2);
    if (strcmp(key, "value") == 0)
        x = expr_text(r->e, text, len);
    else if (strcmp(key, "pattern") == 0)
        s = front_regex(r->e, text, len, 0, &x, &inner);
    else
        s = front_ebnf(r->e, text, len, &x, &inner);
    x = noted(r, s, x, &inner);
    buf_fini(&inner);
    return x;
}

static uint32_t read_elements(struct reader *r, const struct json *f, bool is_sequence,
                              const struct outer *outer)
{
    static const struct outer none;
    const struct json *list = list_of(r, f, "elements");
    uint32_t x = is_sequence ? expr_empty(r->e) : expr_never(r->e);

    for (size_t i = 0; !is_stopped(r) && i < js_len(list); i++) {
        bool is_last = !is_sequence || i + 1 == js_len(list);
        uint32_t y = read_format(r, js_at(list, i), is_last ? outer : &none);
        x = is_sequence ? expr_seq(r->e, x, y) : expr_alt(r->e, x, y);
    }
    return x;
}

static uint32_t read_known(struct reader *r, const struct json *f, const char *type,
                           const struct outer *outer)
{
    if (strcmp(type, "const_string") == 0)
        return read_text(r, f, "value");
    if (strcmp(type, "json_schema") == 0)
        return read_json(r, f);
    if (strcmp(type, "regex") == 0)
        return read_text(r, f, "pattern");
    if (strcmp(type, "grammar") == 0)
        return read_text(r, f, "grammar");
    if (strcmp(type, "any_text") == 0)
        return read_any_text(r, f, outer);
    if (strcmp(type, "sequence") == 0 || strcmp(type, "or") == 0)
        return read_elements(r, f, *type == 's', outer);
    if (strcmp(type, "tag") == 0)
        return read_tag(r, f, 0);
    if (strcmp(type, "triggered_tags") == 0)
        return read_triggered(r, f, outer);
    if (strcmp(type, "tags_with_separator") == 0)
        return read_separated(r, f);
    return refuse(r, ERR_UNSUPPORTED, "not supported: the format", type);
}

static uint32_t read_format(struct reader *r, const struct json *f, const struct outer *outer)
{
    const struct json *type = js_get(f, "type");
    uint32_t x = EXPR_FAILED;

    if (is_stopped(r))
        return EXPR_FAILED;
    if (!js_is(type, JS_STRING))
        return refuse(r, ERR_INVALID, "a format must be an object with a", "type");
    if (r->depth == DEPTH_MAX)
        return refuse(r, ERR_TOO_LARGE, "nested deeper than 32 formats", "");
    r->depth++;
    x = read_known(r, f, js_string(type, NULL), outer);
    r->depth--;
    return x;
}

/* The older form: {"structures": [{"begin", "schema", "end"}], "triggers"}, as triggered tags. */
static uint32_t read_structures(struct reader *r, const struct json *source)
{
    static const struct outer none;
    const struct json *structures = list_of(r, source, "structures");
    struct json *f = js_new_object(), *tags = js_new_array();
    enum status s = f && tags ? OK : ERR_NOMEM;
    uint32_t x = EXPR_FAILED;

    for (size_t i = 0; s == OK && i < js_len(structures); i++) {
        const struct json *from = js_at(structures, i);
        struct json *tag = js_new_object(), *content = js_new_object();
        static const char *const keys[] = {"begin", "end"};
        s = content ? js_set(content, "type", js_new_string("json_schema", 11)) : ERR_NOMEM;
        if (s == OK && js_get(from, "schema"))
            s = js_set(content, "json_schema", js_ref(js_get(from, "schema")));
        if (s == OK && tag)
            s = js_set(tag, "content", js_ref(content));
        for (size_t k = 0; s == OK && tag && k < ARRAY_SIZE(keys); k++)
            if (js_get(from, keys[k]))
                s = js_set(tag, keys[k], js_ref(js_get(from, keys[k])));
        js_unref(content);
        if (s == OK && tag)
            s = js_push(tags, tag);
        else
            js_unref(tag);
        s = s == OK && !tag ? ERR_NOMEM : s;
    }
    if (s == OK)
        s = js_set(f, "tags", js_ref(tags));
    if (s == OK && js_get(source, "triggers"))
        s = js_set(f, "triggers", js_ref(js_get(source, "triggers")));
    if (s == OK)
        x = read_triggered(r, f, &none);
    else
        expr_fail(r->e, s);
    js_unref(tags);
    js_unref(f);
    return x;
}

enum status front_tags(struct exprs *e, const struct json *source, uint32_t *out, struct buf *why)
{
    static const struct outer none;
    struct reader r = {.e = e, .why = why};
    const struct json *format = js_get_set(source, "format");

    if (!js_is(source, JS_OBJECT))
        return buf_why(why, ERR_INVALID, "a structural tag must be an object");
    if (format)
        *out = read_format(&r, format, &none);
    else if (js_get_set(source, "structures"))
        *out = read_structures(&r, source);
    else
        refuse(&r, ERR_INVALID, "neither format nor structures are given", "");
    return r.status;
}
