#include "engine/text/jinja/jinja_tests.h"

#include "base/check.h"
#include "engine/text/jinja/jinja_filters.h"
#include "engine/text/jinja/jinja_lexer.h"
#include "engine/text/jinja/jinja_ops.h"
#include "engine/text/jinja/jinja_print.h"

#define CHECK(fn)                                                                                  \
    static enum status fn(struct jinja_run *r, const struct jinja_value *in,                       \
                          const struct jinja_args *args, bool *out)

static enum status no_args(struct jinja_run *r, const struct jinja_args *args)
{
    return jinja_bind(r, args, "test", "", 0, NULL);
}

/* Types ------------------------------------------------------------------------------------ */

CHECK(is_defined)
{
    *out = in->type != JINJA_UNDEFINED;
    return no_args(r, args);
}

CHECK(is_undefined)
{
    *out = in->type == JINJA_UNDEFINED;
    return no_args(r, args);
}

CHECK(is_none)
{
    *out = in->type == JINJA_NONE;
    return no_args(r, args);
}

CHECK(is_boolean)
{
    *out = in->type == JINJA_BOOL;
    return no_args(r, args);
}

CHECK(is_true)
{
    *out = in->type == JINJA_BOOL && in->boolean;
    return no_args(r, args);
}

CHECK(is_false)
{
    *out = in->type == JINJA_BOOL && !in->boolean;
    return no_args(r, args);
}

CHECK(is_integer)
{
    *out = in->type == JINJA_INT;
    return no_args(r, args);
}

CHECK(is_float)
{
    *out = in->type == JINJA_FLOAT;
    return no_args(r, args);
}

CHECK(is_number)
{
    *out = in->type == JINJA_INT || in->type == JINJA_FLOAT || in->type == JINJA_BOOL;
    return no_args(r, args);
}

CHECK(is_string)
{
    *out = in->type == JINJA_STR;
    return no_args(r, args);
}

CHECK(is_mapping)
{
    *out = in->type == JINJA_DICT;
    return no_args(r, args);
}

/* jinja2 checks for len() and []. Undefined and dicts have both, generators and views do not. */
CHECK(is_sequence)
{
    *out = in->type == JINJA_STR || in->type == JINJA_DICT || in->type == JINJA_UNDEFINED ||
           (in->type == JINJA_SEQ && in->seq->kind <= JINJA_RANGE);
    return no_args(r, args);
}

CHECK(is_iterable)
{
    *out = in->type == JINJA_STR || in->type == JINJA_DICT || in->type == JINJA_SEQ ||
           in->type == JINJA_UNDEFINED || in->type == JINJA_LOOP;
    return no_args(r, args);
}

CHECK(is_callable)
{
    *out = in->type == JINJA_FUNCTION || in->type == JINJA_METHOD || in->type == JINJA_MACRO ||
           in->type == JINJA_LOOP || in->type == JINJA_UNDEFINED;
    return no_args(r, args);
}

CHECK(is_escaped)
{
    *out = in->type == JINJA_STR && in->markup;
    return no_args(r, args);
}

/* Text and numbers ------------------------------------------------------------------------- */

static enum status one_case(struct jinja_run *r, const struct jinja_value *in, const char *name,
                            bool *out)
{
    struct jinja_value v;

    TRY(jinja_to_str(r, in, &v));
    TRY(jinja_call_method(r, &(struct jinja_method){v, name}, &(struct jinja_args){0}, &v));
    *out = v.boolean;
    return OK;
}

CHECK(is_lower)
{
    TRY(no_args(r, args));
    return one_case(r, in, "islower", out);
}

CHECK(is_upper)
{
    TRY(no_args(r, args));
    return one_case(r, in, "isupper", out);
}

static enum status divides(struct jinja_run *r, const struct jinja_value *in,
                           const struct jinja_value *by, int64_t remainder, bool *out)
{
    struct jinja_value left;
    const struct jinja_value expected = jinja_int(remainder);

    TRY(jinja_binary(r, TOK_MOD, in, by, &left));
    return jinja_equal(r, &left, &expected, out);
}

CHECK(is_odd)
{
    const struct jinja_value two = jinja_int(2);

    TRY(no_args(r, args));
    return divides(r, in, &two, 1, out);
}

CHECK(is_even)
{
    const struct jinja_value two = jinja_int(2);

    TRY(no_args(r, args));
    return divides(r, in, &two, 0, out);
}

CHECK(is_divisibleby)
{
    struct jinja_value slots[1] = {0};

    TRY(jinja_bind(r, args, "divisibleby", "num", 1, slots));
    return divides(r, in, &slots[0], 0, out);
}

/* Comparisons ------------------------------------------------------------------------------ */

static enum status relate(struct jinja_run *r, int op, const struct jinja_value *in,
                          const struct jinja_args *args, bool *out)
{
    struct jinja_value slots[1] = {0};

    TRY(jinja_bind(r, args, "test", "other", 1, slots));
    return jinja_relate(r, op, in, &slots[0], out);
}

CHECK(is_eq)
{
    return relate(r, TOK_EQ, in, args, out);
}

CHECK(is_ne)
{
    return relate(r, TOK_NE, in, args, out);
}

CHECK(is_lt)
{
    return relate(r, TOK_LT, in, args, out);
}

CHECK(is_le)
{
    return relate(r, TOK_LE, in, args, out);
}

CHECK(is_gt)
{
    return relate(r, TOK_GT, in, args, out);
}

CHECK(is_ge)
{
    return relate(r, TOK_GE, in, args, out);
}

CHECK(is_in)
{
    return relate(r, TOK_IN, in, args, out);
}

/* Python's `is`: the same sequence or dict. Other values are compared by equality. */
CHECK(is_sameas)
{
    struct jinja_value slots[1] = {0};

    TRY(jinja_bind(r, args, "sameas", "other", 1, slots));
    *out = false;
    if (in->type != slots[0].type)
        return OK;
    if (in->type == JINJA_SEQ || in->type == JINJA_DICT) {
        *out = in->dict == slots[0].dict;
        return OK;
    }
    return jinja_equal(r, in, &slots[0], out);
}

static enum status name_slot(struct jinja_run *r, const struct jinja_value *in,
                             const struct jinja_args *args, const char **name)
{
    struct jinja_value text = jinja_str("", 0);

    TRY(no_args(r, args));
    return jinja_cdup(r, in->type == JINJA_STR ? in->str : text.str, name);
}

CHECK(is_filter)
{
    const char *name = NULL;

    TRY(name_slot(r, in, args, &name));
    *out = jinja_filter_find(name) != NULL;
    return OK;
}

CHECK(is_test)
{
    const char *name = NULL;

    TRY(name_slot(r, in, args, &name));
    *out = jinja_test_find(name) != NULL;
    return OK;
}

const struct jinja_test *jinja_test_find(const char *name)
{
    static const struct jinja_test tests[] = {
        {"defined", is_defined},
        {"undefined", is_undefined},
        {"none", is_none},
        {"boolean", is_boolean},
        {"true", is_true},
        {"false", is_false},
        {"integer", is_integer},
        {"float", is_float},
        {"number", is_number},
        {"string", is_string},
        {"mapping", is_mapping},
        {"sequence", is_sequence},
        {"iterable", is_iterable},
        {"callable", is_callable},
        {"escaped", is_escaped},
        {"lower", is_lower},
        {"upper", is_upper},
        {"odd", is_odd},
        {"even", is_even},
        {"divisibleby", is_divisibleby},
        {"==", is_eq},
        {"eq", is_eq},
        {"equalto", is_eq},
        {"!=", is_ne},
        {"ne", is_ne},
        {"<", is_lt},
        {"lt", is_lt},
        {"lessthan", is_lt},
        {"<=", is_le},
        {"le", is_le},
        {">", is_gt},
        {"gt", is_gt},
        {"greaterthan", is_gt},
        {">=", is_ge},
        {"ge", is_ge},
        {"in", is_in},
        {"sameas", is_sameas},
        {"filter", is_filter},
        {"test", is_test},
    };

    for (size_t i = 0; i < ARRAY_SIZE(tests); i++)
        if (strcmp(tests[i].name, name) == 0)
            return &tests[i];
    return NULL;
}
