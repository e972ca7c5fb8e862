/* calls.c - calls of tools: literal text around JSON by schemas. */
#include <string.h>

#include "base/check.h"
#include "engine/grammar/front.h"

#define REASONING_SPACES_MAX 4u /* behind the end of reasoning */

static const char *text_of(const struct json *object, const char *key)
{
    const struct json *v = js_get(object, key);

    return js_is(v, JS_STRING) ? js_string(v, NULL) : "";
}

static bool is_on(const struct json *object, const char *key)
{
    const struct json *v = js_get(object, key);

    return js_is(v, JS_BOOL) && js_bool(v);
}

static enum status read_call(struct exprs *e, const struct json *call, uint32_t *out,
                             struct buf *why)
{
    const struct json *schema = js_get_set(call, "schema");
    uint32_t value = EXPR_FAILED, rule = expr_new_rule(e);
    struct buf inner;
    enum status s = OK;

    buf_init(&inner, BUF_WHY_MAX / 2);
    if (schema)
        s = front_json_schema(e, schema, &value, &inner);
    else
        value = front_json_object(e);
    if (s != OK)
        buf_why(why, s, "the parameters of %s: %s", text_of(call, "name"), buf_str(&inner));
    buf_fini(&inner);
    if (s != OK)
        return s;
    value = expr_seq(e, value, expr_cstr(e, text_of(call, "end")));
    expr_define(e, rule, expr_seq(e, expr_cstr(e, text_of(call, "begin")), value));
    *out = expr_rule(e, rule);
    return OK;
}

/* Any character but these, of ASCII. */
static uint32_t other_than(struct exprs *e, char a, char b)
{
    struct code_range ranges[2] = {{(uint8_t)a, (uint8_t)a}, {(uint8_t)b, (uint8_t)b}};

    if (a > b) {
        ranges[0] = (struct code_range){(uint8_t)b, (uint8_t)b};
        ranges[1] = (struct code_range){(uint8_t)a, (uint8_t)a};
    }
    return expr_class(e, ranges, a == b ? 1 : 2, true);
}

/* A text without the marker. The marker's first byte comes in the marker once: so wherever that
 * byte comes in the text, some of the marker may follow, then another byte or the end, but not the
 * whole marker. */
static uint32_t text_without(struct exprs *e, const char *marker)
{
    size_t n = strlen(marker);
    uint32_t plain = expr_repeat(e, other_than(e, marker[0], marker[0]), 0, EXPR_MANY);
    uint32_t part = expr_empty(e);

    for (size_t j = n - 1; j >= 1; j--) {
        /* marker[0..j) was written: it ends here, or goes on with marker[j] unless that is the
         * last one, or with another byte. */
        uint32_t off = expr_seq(e, other_than(e, marker[0], marker[j]), plain);
        uint32_t more = expr_alt(e, expr_empty(e), off);
        if (j + 1 < n)
            more = expr_alt(e, more, expr_seq(e, expr_text(e, marker + j, 1), part));
        part = more;
    }
    part = expr_seq(e, expr_text(e, marker, 1), part);
    return expr_seq(e, plain, expr_repeat(e, part, 0, EXPR_MANY));
}

static bool is_once(const char *marker)
{
    return marker[0] && marker[1] && !strchr(marker + 1, marker[0]);
}

uint32_t front_reasoning(struct exprs *e, const char *begin, const char *end)
{
    static const struct code_range spaces[] = {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};
    uint32_t x = expr_seq3(e, expr_cstr(e, begin), text_without(e, end), expr_cstr(e, end));
    uint32_t space = expr_class(e, spaces, ARRAY_SIZE(spaces), false);

    x = expr_seq(e, x, expr_repeat(e, space, 0, REASONING_SPACES_MAX));
    return expr_alt(e, expr_empty(e), x);
}

/* *out: the form (NULL: none) or the calls. */
static enum status read_form(struct exprs *e, const struct json *form, uint32_t calls,
                             uint32_t *out, struct buf *why)
{
    uint32_t x = calls;
    enum status s = OK;

    if (js_is(form, JS_BOOL))
        x = front_json_object(e);
    else if (form)
        s = front_json_schema(e, form, &x, why);
    if (s == OK)
        *out = form ? expr_alt(e, x, calls) : calls;
    return s;
}

enum status front_calls(struct exprs *e, const struct json *source, uint32_t *out, struct buf *why)
{
    const struct json *calls = js_get(source, "calls");
    const char *marker = text_of(source, "marker");
    uint32_t any = EXPR_FAILED, rule = expr_new_rule(e), x;

    for (size_t i = 0; i < js_len(calls); i++) {
        enum status s = read_call(e, js_at(calls, i), &x, why);
        if (s != OK)
            return s;
        any = i == 0 ? x : expr_alt(e, any, x);
    }
    if (js_len(calls) == 0 || (is_on(source, "free") && !is_once(marker)))
        return buf_why(why, ERR_INTERNAL, "the calls have no grammar");
    expr_define(e, rule, any);
    any = expr_rule(e, rule);
    x = expr_cstr(e, text_of(source, "gap"));
    x = expr_seq(e, expr_cstr(e, marker), expr_alt(e, expr_empty(e), x));
    x = expr_seq(e, x, expr_cstr(e, text_of(source, "open")));
    x = expr_seq(e, x, any);
    if (is_on(source, "many")) {
        uint32_t more = expr_seq(e, expr_cstr(e, text_of(source, "separator")), any);
        x = expr_seq(e, x, expr_repeat(e, more, 0, EXPR_MANY));
    }
    x = expr_seq(e, x, expr_cstr(e, text_of(source, "close")));
    if (is_on(source, "free"))
        x = expr_seq(e, text_without(e, marker), expr_alt(e, expr_empty(e), x));
    return read_form(e, js_get_set(source, "form"), x, out, why);
}
