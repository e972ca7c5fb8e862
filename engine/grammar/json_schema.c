/* json_schema.c - JSON schemas as expressions: values, types and combinations.
 *
 * A keyword that the reader cannot enforce is refused by name, so a finished answer is always
 * valid. Where the schema leaves a choice of spelling (order of properties, white space,
 * escapes), the expression has the usual ones only.
 *
 * Combinations become alternatives of schemas without them: a schema with `anyOf` is one of its
 * members joined with the rest, `oneOf` one member and none of those that may hold with it, `if`
 * the condition with `then` or the opposite of the condition with `else`. An alternative that no
 * value matches is a state that is pruned (states.c). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/grammar/front.h"
#include "engine/grammar/json_number.h"
#include "engine/grammar/json_reader.h"
#include "engine/grammar/json_string.h"
#include "engine/grammar/schema_merge.h"
#include "engine/grammar/schema_not.h"
#include "engine/grammar/schema_read.h"

#define DEPTH_MAX 200u
#define MADE_BYTES_MAX ((size_t)16 << 20)
#define COMPARISONS_MAX 5000000u
#define WORK_MAX 20000000u /* of sets of strings */
#define SPACES_MAX 20u     /* of an indented line */

bool reader_is_stopped(const struct reader *r)
{
    return r->status != OK || exprs_status(r->e) != OK;
}

uint32_t reader_refuse(struct reader *r, enum status s, const char *what, const char *name)
{
    if (!reader_is_stopped(r))
        r->status = buf_why(r->why, s, "JSON schema: %s%s%.100s", what, *name ? " " : "", name);
    return EXPR_FAILED;
}

uint32_t reader_fail(struct reader *r, enum status s)
{
    if (r->status == OK)
        r->status = s;
    return EXPR_FAILED;
}

/* --- spelling --- */

uint32_t reader_text(struct reader *r, const char *t)
{
    return expr_cstr(r->e, t);
}

uint32_t reader_rule(struct reader *r, uint32_t x)
{
    uint32_t rule = expr_new_rule(r->e);

    expr_define(r->e, rule, x);
    return rule;
}

uint32_t reader_space(struct reader *r)
{
    static const struct byte_set blanks = {{UINT64_C(1) << ' ' | UINT64_C(1) << '\t', 0, 0, 0}};

    if (r->space == EXPR_FAILED) {
        uint32_t line = expr_seq(r->e, reader_text(r, "\n"),
                                 expr_repeat(r->e, expr_byte(r->e, &blanks), 0, SPACES_MAX));
        r->space = reader_rule(
            r, expr_alt(r->e, expr_empty(r->e), expr_alt(r->e, reader_text(r, " "), line)));
    }
    return expr_rule(r->e, r->space);
}

uint32_t reader_quoted(struct reader *r, uint32_t x)
{
    return expr_seq3(r->e, reader_text(r, "\""), x, reader_text(r, "\""));
}

uint32_t reader_any_string(struct reader *r)
{
    if (r->string == EXPR_FAILED)
        r->string = reader_rule(
            r, reader_quoted(r, expr_repeat(r->e, front_character(r->e), 0, EXPR_MANY)));
    return expr_rule(r->e, r->string);
}

uint32_t reader_list(struct reader *r, uint32_t item, uint32_t min, uint32_t max)
{
    uint32_t comma = expr_seq3(r->e, reader_text(r, ","), reader_space(r), item);
    uint32_t some;

    if (max == 0)
        return expr_empty(r->e);
    some = expr_seq(r->e, item,
                    expr_repeat(r->e, comma, min ? min - 1 : 0, max == EXPR_MANY ? max : max - 1));
    return min == 0 ? expr_repeat(r->e, some, 0, 1) : some;
}

uint32_t reader_bracketed(struct reader *r, const char *open, uint32_t x, const char *close)
{
    return expr_seq3(r->e, expr_seq(r->e, reader_text(r, open), reader_space(r)), x,
                     expr_seq(r->e, reader_space(r), reader_text(r, close)));
}

bool reader_count(struct reader *r, const struct json *j, const char *name, uint32_t max,
                  uint32_t *out)
{
    const struct json *v = js_get(j, name);
    double n;

    if (!v)
        return false;
    n = js_is(v, JS_INT) || js_is(v, JS_REAL) ? js_number(v) : -1;
    if (n < 0 || floor(n) != n)
        reader_refuse(r, ERR_INVALID, "not a count:", name);
    else if (n > max)
        reader_refuse(r, ERR_TOO_LARGE, "too large:", name);
    else
        *out = (uint32_t)n;
    return true;
}

/* --- values --- */

uint32_t reader_literal(struct reader *r, const struct json *v)
{
    struct buf b;
    uint32_t x = EXPR_FAILED;

    if (js_is(v, JS_STRING)) {
        size_t len;
        const char *s = js_string(v, &len);
        return reader_quoted(r, front_json_text(r->e, s, len));
    }
    buf_init(&b, 1 << 20);
    if (js_write(&b, v) == OK)
        x = expr_text(r->e, b.data, b.len);
    else
        expr_fail(r->e, ERR_TOO_LARGE);
    buf_fini(&b);
    return x;
}

/* Any key and the value. */
static uint32_t any_pair(struct reader *r, uint32_t value)
{
    return expr_seq3(r->e, reader_any_string(r),
                     expr_seq(r->e, reader_text(r, ":"), reader_space(r)), value);
}

static uint32_t any_value(struct reader *r)
{
    if (r->any == EXPR_FAILED) {
        uint32_t x;
        r->any = expr_new_rule(r->e);
        uint32_t value = expr_rule(r->e, r->any);
        x = reader_bracketed(r, "{", reader_list(r, any_pair(r, value), 0, EXPR_MANY), "}");
        x = expr_alt(r->e, x, reader_bracketed(r, "[", reader_list(r, value, 0, EXPR_MANY), "]"));
        x = expr_alt(r->e, x, reader_any_string(r));
        x = expr_alt(r->e, x, front_number(r->e));
        x = expr_alt(r->e, x, reader_text(r, "true"));
        x = expr_alt(r->e, x, reader_text(r, "false"));
        expr_define(r->e, r->any, expr_alt(r->e, x, reader_text(r, "null")));
    }
    return expr_rule(r->e, r->any);
}

static uint32_t read_type(struct reader *r, const struct json *j, const char *type)
{
    if (strcmp(type, "object") == 0)
        return read_object(r, j);
    if (strcmp(type, "array") == 0)
        return read_array(r, j);
    if (strcmp(type, "string") == 0)
        return read_string(r, j);
    if (strcmp(type, "number") == 0)
        return read_number(r, j, false);
    if (strcmp(type, "integer") == 0)
        return read_number(r, j, true);
    if (strcmp(type, "boolean") == 0)
        return expr_alt(r->e, reader_text(r, "true"), reader_text(r, "false"));
    if (strcmp(type, "null") == 0)
        return reader_text(r, "null");
    return reader_refuse(r, ERR_INVALID, "unknown type", type);
}

static uint32_t read_types(struct reader *r, const struct json *j)
{
    const struct json *type = js_get(j, "type");
    const char *implied = type ? NULL : schema_implied_type(j);
    uint32_t x = expr_never(r->e);

    if (implied)
        return read_type(r, j, implied);
    if (!type)
        return any_value(r);
    if (js_is(type, JS_STRING))
        return read_type(r, j, js_string(type, NULL));
    if (!js_is(type, JS_ARRAY) || js_len(type) == 0)
        return reader_refuse(r, ERR_INVALID, "type is no name and no list of names", "");
    for (size_t i = 0; i < js_len(type) && !reader_is_stopped(r); i++) {
        if (!js_is(js_at(type, i), JS_STRING))
            return reader_refuse(r, ERR_INVALID, "type has something else than names", "");
        x = expr_alt(r->e, x, read_type(r, j, js_string(js_at(type, i), NULL)));
    }
    return x;
}

/* The values that match the whole schema. of: they are those of its `enum`; NULL: they are not. */
static uint32_t read_values(struct reader *r, const struct json *j,
                            const struct json *const *values, size_t n, const struct json *of)
{
    uint32_t x = expr_never(r->e);

    for (size_t i = 0; i < n && !reader_is_stopped(r); i++) {
        enum schema_verdict yes = schema_check(&r->doc, j, values[i], of);
        if (yes == SCHEMA_UNKNOWN)
            return reader_refuse(r,
                                 r->doc.n_comparisons_left && r->doc.n_work_left ? ERR_UNSUPPORTED
                                                                                 : ERR_TOO_LARGE,
                                 "too many or unknown keywords beside:", "enum or const");
        if (yes == SCHEMA_YES)
            x = expr_alt(r->e, x, reader_literal(r, values[i]));
    }
    return x;
}

static uint32_t read_enum(struct reader *r, const struct json *j, const struct json *list)
{
    size_t n = js_len(list);
    const struct json **values = malloc((n + 1) * sizeof *values);
    uint32_t x = EXPR_FAILED;

    if (!js_is(list, JS_ARRAY))
        reader_refuse(r, ERR_INVALID, "enum is no list", "");
    else if (!values)
        expr_fail(r->e, ERR_NOMEM);
    for (size_t i = 0; i < n && values && !reader_is_stopped(r); i++)
        values[i] = js_at(list, i);
    if (!reader_is_stopped(r))
        x = read_values(r, j, values, n, list);
    free((void *)values);
    return x;
}

/* --- joined schemas --- */

const struct json *reader_keep(struct reader *r, struct json *made)
{
    if (!made) {
        expr_fail(r->e, ERR_NOMEM);
    } else if (r->n_made == JSON_REFS_MAX) {
        reader_refuse(r, ERR_TOO_LARGE, "too many schemas that are joined", "");
        js_unref(made);
        made = NULL;
    } else {
        r->made[r->n_made++] = made;
    }
    return made;
}

/* Count a schema of n bytes that is about to be made. False: the bound is reached. */
static bool count_made(struct reader *r, size_t n)
{
    r->n_made_bytes += n;
    if (r->n_made_bytes > MADE_BYTES_MAX)
        reader_refuse(r, ERR_TOO_LARGE, "too many or too large schemas that are joined", "");
    return r->n_made_bytes <= MADE_BYTES_MAX;
}

const struct json *reader_merge(struct reader *r, const struct json *a, const struct json *b,
                                const char *without)
{
    struct json *m = NULL;
    char conflict[64] = "";

    if (reader_is_stopped(r) || !count_made(r, schema_bytes(a) + schema_bytes(b)))
        return NULL;
    enum status s = schema_merge(&m, a, b, without, conflict, sizeof conflict);
    if (s == OK)
        return reader_keep(r, m);
    reader_refuse(r, s, s == ERR_UNSUPPORTED ? "two schemas for one value cannot be joined:" : "",
                  s == ERR_UNSUPPORTED ? conflict : status_name(s));
    return NULL;
}

const struct json *reader_merge_one(struct reader *r, const struct json *a, const char *key,
                                    struct json *value, const char *without)
{
    struct json *b = js_new_object();
    const struct json *m = NULL;

    if (b && value && js_set(b, key, js_ref(value)) == OK)
        m = reader_merge(r, a, b, without);
    else
        expr_fail(r->e, ERR_NOMEM);
    js_unref(b);
    js_unref(value);
    return m;
}

/* --- references --- */

static const struct json *resolve(struct reader *r, const struct json *ref)
{
    const char *name = js_is(ref, JS_STRING) ? js_string(ref, NULL) : "no string";
    const struct json *target = schema_resolve(r->doc.root, name);

    if (!target && *name != '#')
        reader_refuse(r, ERR_UNSUPPORTED, "a $ref to another document is not supported:", name);
    else if (!target)
        reader_refuse(r, ERR_INVALID, "$ref names nothing in this document:", name);
    return target;
}

const struct json *reader_target(struct reader *r, const struct json *j)
{
    for (uint32_t n = 0; n < DEPTH_MAX && js_get(j, "$ref") && !schema_has_more(j, "$ref"); n++)
        j = resolve(r, js_get(j, "$ref"));
    return j;
}

/* The rule of a schema that a reference names; it may refer to itself. */
static uint32_t ref_rule(struct reader *r, const struct json *target)
{
    for (uint32_t i = 0; i < r->n_refs; i++)
        if (r->refs[i] == target)
            return expr_rule(r->e, r->ref_rules[i]);
    if (r->n_refs == JSON_REFS_MAX)
        return reader_refuse(r, ERR_TOO_LARGE, "too many references", "");
    uint32_t rule = expr_new_rule(r->e);
    r->refs[r->n_refs] = target;
    r->ref_rules[r->n_refs++] = rule;
    expr_define(r->e, rule, read_schema(r, target));
    return expr_rule(r->e, rule);
}

static uint32_t read_ref(struct reader *r, const struct json *j)
{
    const struct json *target = resolve(r, js_get(j, "$ref"));

    if (!target)
        return EXPR_FAILED;
    if (!schema_has_more(j, "$ref"))
        return ref_rule(r, target);
    const struct json *m = reader_merge(r, j, target, "$ref");
    return m ? read_schema(r, m) : EXPR_FAILED;
}

/* --- combinations --- */

/* A schema whose keywords imply a type has that type, so that no alternative has another one. */
static const struct json *with_type(struct reader *r, const struct json *j)
{
    const char *implied = js_get(j, "type") ? NULL : schema_implied_type(j);

    return implied ? reader_merge_one(r, j, "type", js_new_string(implied, strlen(implied)), "")
                   : j;
}

/* The schema with `no` among those that must not hold; NULL: an error. */
static const struct json *but_not(struct reader *r, const struct json *j, const struct json *no)
{
    return reader_merge_one(r, j, "not", js_copy_deep(no), "");
}

static uint32_t read_all_of(struct reader *r, const struct json *j)
{
    const struct json *all = js_get(j, "allOf"), *m = j;

    if (!js_is(all, JS_ARRAY) || js_len(all) == 0)
        return reader_refuse(r, ERR_INVALID, "allOf is no list", "");
    for (size_t i = 0; m && i < js_len(all); i++) {
        const struct json *part = reader_target(r, js_at(all, i));
        m = part ? reader_merge(r, m, part, i == 0 ? "allOf" : "") : NULL;
    }
    return m ? read_schema(r, m) : EXPR_FAILED;
}

/* Member i of `oneOf`, and none of those that may hold with it. */
static const struct json *one_of(struct reader *r, const struct json *list, size_t i)
{
    const struct json *one = js_at(list, i);

    for (size_t k = 0; k < js_len(list) && one; k++) {
        if (k == i || schemas_exclude(&r->doc, js_at(list, i), js_at(list, k)))
            continue;
        if (r->doc.n_comparisons_left == 0) {
            reader_refuse(r, ERR_TOO_LARGE, "too many values to compare:", "oneOf");
            return NULL;
        }
        if (one == js_at(list, i)) { /* its type is that of the schema, if that has none */
            one = reader_target(r, one);
            one = one && js_is(one, JS_OBJECT) ? with_type(r, one) : one;
        }
        one = one ? but_not(r, one, js_at(list, k)) : NULL;
    }
    return one;
}

static uint32_t read_choice(struct reader *r, const struct json *j, const char *name)
{
    const struct json *list = js_get(j, name);
    bool has_more = schema_has_more(j, name), is_one = strcmp(name, "oneOf") == 0;
    uint32_t x = expr_never(r->e);

    if (!js_is(list, JS_ARRAY) || js_len(list) == 0)
        return reader_refuse(r, ERR_INVALID, "no list:", name);
    for (size_t i = 0; i < js_len(list) && !reader_is_stopped(r); i++) {
        const struct json *one = is_one ? one_of(r, list, i) : js_at(list, i);
        if (one && has_more)
            one = reader_merge(r, j, one, name);
        if (one)
            x = expr_alt(r->e, x, read_schema(r, one));
    }
    return x;
}

/* A copy without some keywords. */
static const struct json *without(struct reader *r, const struct json *j, const char *const *keys,
                                  size_t n)
{
    if (!count_made(r, schema_bytes(j)))
        return NULL;
    struct json *copy = js_is(j, JS_OBJECT) ? js_copy_deep(j) : NULL;
    for (size_t i = 0; i < n && copy; i++)
        if (js_get(copy, keys[i]) && js_remove(copy, keys[i]) != OK) {
            js_unref(copy);
            copy = NULL;
        }
    return reader_keep(r, copy);
}

/* The rest with `if` and `then`, or without what `if` says and with `else`. */
static uint32_t read_if(struct reader *r, const struct json *j)
{
    static const char *const keys[] = {"if", "then", "else"};
    const struct json *test = js_get(j, "if"), *then = js_get(j, "then"),
                      *otherwise = js_get(j, "else"), *yes, *no;
    const struct json *rest = without(r, j, keys, ARRAY_SIZE(keys));

    rest = rest ? with_type(r, rest) : NULL;
    if (!rest || (!then && !otherwise))
        return rest ? read_schema(r, rest) : EXPR_FAILED;
    yes = reader_merge(r, rest, test, "");
    if (yes && then)
        yes = reader_merge(r, yes, then, "");
    no = but_not(r, rest, test);
    if (no && otherwise)
        no = reader_merge(r, no, otherwise, "");
    uint32_t x = yes ? read_schema(r, yes) : EXPR_FAILED;
    return no ? expr_alt(r->e, x, read_schema(r, no)) : EXPR_FAILED;
}

static struct json *names_of(const char *name)
{
    struct json *list = js_new_array();

    if (list && js_push(list, js_new_string(name, strlen(name))) == OK)
        return list;
    js_unref(list);
    return NULL;
}

/* {name: false} */
static struct json *absent(const char *name)
{
    struct json *j = js_new_object();

    if (j && js_set(j, name, js_new_bool(false)) == OK)
        return j;
    js_unref(j);
    return NULL;
}

/* The schema with what a property brings: a name, names, or a schema. */
static const struct json *with_dependents(struct reader *r, const struct json *j,
                                          const struct json *then)
{
    if (js_is(then, JS_STRING))
        return reader_merge_one(r, j, "required", names_of(js_string(then, NULL)), "");
    return js_is(then, JS_ARRAY) ? reader_merge_one(r, j, "required", js_copy_deep(then), "")
                                 : reader_merge(r, j, then, "");
}

/* The rows of the keyword but the first one, which stay for later. */
static const struct json *with_other_rows(struct reader *r, const struct json *rest,
                                          const char *key, const struct json *rows)
{
    struct json *others = js_copy_deep(rows);

    if (others && js_remove(others, js_it_key(js_first(rows))) == OK)
        return reader_merge_one(r, rest, key, others, "");
    js_unref(others);
    return NULL;
}

/* A property that brings others, or a schema: alternatives without the property, and with both. */
static uint32_t read_dependent(struct reader *r, const struct json *j, const char *key)
{
    const struct json *rows = js_get(j, key), *none, *both;
    void *it = js_is(rows, JS_OBJECT) ? js_first(rows) : NULL;
    const struct json *rest = without(r, j, &key, 1);

    if (!js_is(rows, JS_OBJECT))
        return reader_refuse(r, ERR_INVALID, "no object:", key);
    if (rest && js_len(rows) > 1)
        rest = with_other_rows(r, rest, key, rows);
    if (!rest || !it)
        return rest ? read_schema(r, rest) : EXPR_FAILED;
    rest = with_type(r, rest);
    none = rest ? reader_merge_one(r, rest, "properties", absent(js_it_key(it)), "") : NULL;
    both = rest ? reader_merge_one(r, rest, "required", names_of(js_it_key(it)), "") : NULL;
    both = both ? with_dependents(r, both, js_it_value(it)) : NULL;
    uint32_t x = none ? read_schema(r, none) : EXPR_FAILED;
    return both ? expr_alt(r->e, x, read_schema(r, both)) : EXPR_FAILED;
}

/* --- not --- */

/* Part i of what must not hold; NULL: there are no more. */
static const struct json *part_of(const struct json *no, size_t i)
{
    const struct json *any = js_get(no, "anyOf");

    if (js_is(any, JS_ARRAY) && !schema_has_more(no, "anyOf"))
        return js_at(any, i);
    return i == 0 ? no : NULL;
}

/* The first part that the type's reader does not enforce; NULL: there is none. */
static const struct json *find_part(const struct json *j, size_t *at)
{
    const struct json *no = js_get(j, "not"), *part;

    for (*at = 0; (part = part_of(no, *at)); ++*at)
        if (!schema_not_is_plain(js_get(j, "type"), part))
            return part;
    return NULL;
}

/* The schema without part `at` of its `not`. */
static const struct json *without_part(struct reader *r, const struct json *j, size_t at)
{
    static const char *const keys[] = {"not"};
    const struct json *no = js_get(j, "not"), *part;
    const struct json *rest = without(r, j, keys, 1);
    struct json *list = js_new_array();
    enum status s = list ? OK : ERR_NOMEM;

    for (size_t i = 0; s == OK && (part = part_of(no, i)); i++)
        if (i != at)
            s = js_push(list, js_copy_deep(part));
    if (s != OK)
        expr_fail(r->e, s);
    if (s == OK && rest && js_len(list) > 0) {
        struct json *all = js_new_object();
        s = all ? js_set(all, "anyOf", js_ref(list)) : ERR_NOMEM;
        rest = reader_merge_one(r, rest, "not", s == OK ? js_ref(all) : NULL, "");
        js_unref(all);
    }
    js_unref(list);
    return s == OK ? rest : NULL;
}

static uint32_t read_not(struct reader *r, const struct json *j)
{
    struct json *made = NULL;
    const struct json *rest, *part;
    char conflict[80] = "";
    size_t at;

    j = with_type(r, j);
    if (!j || !(part = find_part(j, &at)))
        return j ? read_schema(r, j) : EXPR_FAILED;
    if (!(rest = without_part(r, j, at)))
        return EXPR_FAILED;
    enum status s = schema_not(&made, r->doc.root, part, MADE_BYTES_MAX - r->n_made_bytes, conflict,
                               sizeof conflict);
    if (s == ERR_UNSUPPORTED)
        reader_refuse(r, s,
                      "not supported below not, or in oneOf with schemas that may match together "
                      "(use anyOf):",
                      conflict);
    else if (s == ERR_TOO_LARGE)
        (void)count_made(r, MADE_BYTES_MAX + 1);
    else if (s != OK)
        expr_fail(r->e, s);
    const struct json *kept = s == OK ? reader_keep(r, made) : NULL;
    const struct json *m = kept ? reader_merge(r, rest, kept, "") : NULL;
    return m ? read_schema(r, m) : EXPR_FAILED;
}

/* --- all keywords --- */

static bool check_keywords(struct reader *r, const struct json *j)
{
    static const char *const refused[] = {"unevaluatedProperties", "unevaluatedItems",
                                          "$dynamicRef", "$recursiveRef"};

    for (size_t i = 0; i < ARRAY_SIZE(refused); i++)
        if (js_get(j, refused[i]))
            return reader_refuse(r, ERR_UNSUPPORTED, "not supported:", refused[i]) != EXPR_FAILED;
    return true;
}

static uint32_t read_keywords(struct reader *r, const struct json *j)
{
    static const char *const dependent[] = {"dependentRequired", "dependentSchemas",
                                            "dependencies"};
    const struct json *constant = js_get(j, "const"), *values = js_get(j, "enum");
    size_t at;

    if (!check_keywords(r, j))
        return EXPR_FAILED;
    if (constant)
        return read_values(r, j, &constant, 1, NULL);
    if (values)
        return read_enum(r, j, values);
    if (js_get(j, "$ref"))
        return read_ref(r, j);
    if (js_get(j, "if"))
        return read_if(r, j);
    for (size_t i = 0; i < ARRAY_SIZE(dependent); i++)
        if (js_get(j, dependent[i]))
            return read_dependent(r, j, dependent[i]);
    if (js_get(j, "anyOf"))
        return read_choice(r, j, "anyOf");
    if (js_get(j, "oneOf"))
        return read_choice(r, j, "oneOf");
    if (js_get(j, "allOf"))
        return read_all_of(r, j);
    return js_get(j, "not") && find_part(j, &at) ? read_not(r, j) : read_types(r, j);
}

static bool has_combination(const struct json *j)
{
    static const char *const keys[] = {"$ref",
                                       "anyOf",
                                       "oneOf",
                                       "allOf",
                                       "not",
                                       "if",
                                       "dependentRequired",
                                       "dependentSchemas",
                                       "dependencies"};

    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        if (js_get(j, keys[i]))
            return true;
    return false;
}

uint32_t read_schema(struct reader *r, const struct json *j)
{
    uint32_t x;

    if (reader_is_stopped(r))
        return EXPR_FAILED;
    if (!j || (js_is(j, JS_BOOL) && js_bool(j)))
        return any_value(r);
    if (js_is(j, JS_BOOL))
        return expr_never(r->e);
    if (!js_is(j, JS_OBJECT))
        return reader_refuse(r, ERR_INVALID, "a schema is no object", "");
    if (r->depth == DEPTH_MAX)
        return reader_refuse(r, ERR_TOO_LARGE, "schemas are nested too deeply", "");
    const struct json *nullable = js_get(j, "nullable"); /* OpenAPI 3.0 */
    bool takes_null = js_is(nullable, JS_BOOL) && js_bool(nullable);
    if (takes_null && has_combination(j)) { /* whose parts need not take it */
        static const char *const key = "nullable";
        if (!(j = without(r, j, &key, 1)))
            return EXPR_FAILED;
    }
    r->depth++;
    x = read_keywords(r, j);
    r->depth--;
    return takes_null ? expr_alt(r->e, x, reader_text(r, "null")) : x;
}

static struct reader *new_reader(struct exprs *e, const struct json *root, struct buf *why)
{
    struct reader *r = calloc(1, sizeof *r);

    if (r) {
        r->e = e;
        r->doc = (struct schema_document){
            .root = root, .n_comparisons_left = COMPARISONS_MAX, .n_work_left = WORK_MAX};
        r->why = why;
        r->space = r->any = r->string = EXPR_FAILED;
    }
    return r;
}

enum status front_json_schema(struct exprs *e, const struct json *schema, uint32_t *out,
                              struct buf *why)
{
    struct reader *r = new_reader(e, schema, why);

    if (!r)
        return buf_why(why, ERR_NOMEM, "out of memory for the schema");
    *out = read_schema(r, schema);
    enum status s = r->status;
    for (uint32_t i = 0; i < r->n_made; i++)
        js_unref(r->made[i]);
    schema_document_fini(&r->doc);
    free(r);
    return s;
}

uint32_t front_json_object(struct exprs *e)
{
    struct reader *r = new_reader(e, NULL, NULL);
    uint32_t x;

    if (!r)
        return expr_fail(e, ERR_NOMEM);
    x = reader_bracketed(r, "{", reader_list(r, any_pair(r, any_value(r)), 0, EXPR_MANY), "}");
    free(r);
    return x;
}
