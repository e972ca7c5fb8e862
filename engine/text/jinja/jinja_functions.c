#include "engine/text/jinja/jinja_functions.h"

#include <time.h>

#include "base/check.h"
#include "engine/text/jinja/jinja_marks.h"
#include "engine/text/jinja/jinja_print.h"

static enum status int_arg(struct jinja_run *r, const struct jinja_value *v, int64_t *out)
{
    if (v->type == JINJA_UNDEFINED)
        return jinja_fail_undefined(r, v);
    if (!jinja_as_int(v, out))
        return jinja_fail(r, ERR_INVALID,
                          "range(): '%s' object cannot be interpreted as an "
                          "integer",
                          jinja_type_name(v));
    return OK;
}

static enum status range_length(struct jinja_run *r, const struct jinja_seq *s, size_t *out)
{
    uint64_t span = s->step > 0 ? (uint64_t)s->stop - (uint64_t)s->start
                                : (uint64_t)s->start - (uint64_t)s->stop;
    uint64_t stride = s->step > 0 ? (uint64_t)s->step : 0 - (uint64_t)s->step;

    *out = 0;
    if (s->step > 0 ? s->start >= s->stop : s->start <= s->stop)
        return OK;
    uint64_t n = (span - 1) / stride + 1;
    if (n > JINJA_RANGE_MAX)
        return jinja_fail(r, ERR_TOO_LARGE, "range() of more than %d items", JINJA_RANGE_MAX);
    *out = (size_t)n;
    return OK;
}

static enum status call_range(struct jinja_run *r, const struct jinja_args *args,
                              struct jinja_value *out)
{
    struct jinja_seq s = {.step = 1};
    int64_t *slots[] = {&s.start, &s.stop, &s.step};
    size_t n;

    if (args->n_pos < 1 || args->n_pos > 3 || args->n_kw)
        return jinja_fail(r, ERR_INVALID, "range() takes 1 to 3 arguments");
    if (args->n_pos == 1)
        TRY(int_arg(r, &args->pos[0], &s.stop));
    for (size_t i = 0; i < args->n_pos && args->n_pos > 1; i++)
        TRY(int_arg(r, &args->pos[i], slots[i]));
    if (s.step == 0)
        return jinja_fail(r, ERR_INVALID, "range() arg 3 must not be zero");
    TRY(range_length(r, &s, &n));
    TRY(jinja_seq_new(r, JINJA_RANGE, n, out));
    out->seq->start = s.start;
    out->seq->stop = s.stop;
    out->seq->step = s.step;
    int64_t v = s.start;
    for (size_t i = 0; i < n; i++, v = (int64_t)((uint64_t)v + (uint64_t)s.step))
        out->seq->items[i] = jinja_int(v);
    return OK;
}

/* dict(pairs or dict, **more), also used by namespace(). */
static enum status call_dict(struct jinja_run *r, const struct jinja_args *args,
                             struct jinja_value *out)
{
    const struct jinja_seq *pairs, *pair;

    if (args->n_pos > 1)
        return jinja_fail(r, ERR_INVALID, "dict() takes at most 1 positional argument");
    TRY(jinja_dict_new(r, args->n_kw, out));
    if (args->n_pos && args->pos[0].type == JINJA_DICT) {
        const struct jinja_dict *from = args->pos[0].dict;
        for (size_t i = 0; i < from->n; i++)
            TRY(jinja_dict_set(r, out->dict, &from->pairs[i].key, &from->pairs[i].value));
    } else if (args->n_pos) {
        TRY(jinja_iterate(r, &args->pos[0], &pairs));
        for (size_t i = 0; i < pairs->n; i++) {
            TRY(jinja_iterate(r, &pairs->items[i], &pair));
            if (pair->n != 2)
                return jinja_fail(r, ERR_INVALID, "dict(): item %zu has length %zu; 2 is required",
                                  i, pair->n);
            TRY(jinja_dict_set(r, out->dict, &pair->items[0], &pair->items[1]));
        }
    }
    for (size_t i = 0; i < args->n_kw; i++) {
        struct jinja_value key = jinja_str(args->kw[i].name.p, args->kw[i].name.len);
        TRY(jinja_dict_set(r, out->dict, &key, &args->kw[i].value));
    }
    return OK;
}

static enum status call_namespace(struct jinja_run *r, const struct jinja_args *args,
                                  struct jinja_value *out)
{
    TRY(call_dict(r, args, out));
    out->type = JINJA_NAMESPACE;
    return OK;
}

static enum status call_raise_exception(struct jinja_run *r, const struct jinja_args *args,
                                        struct jinja_value *out)
{
    struct jinja_value message[1] = {0}, text;

    *out = jinja_none();
    TRY(jinja_bind(r, args, "raise_exception", "message", 1, message));
    TRY(jinja_to_str(r, &message[0], &text));
    return jinja_fail(r, ERR_INVALID, "%.*s", (int)(text.str.len > 400 ? 400 : text.str.len),
                      text.str.p);
}

static enum status call_strftime_now(struct jinja_run *r, const struct jinja_args *args,
                                     struct jinja_value *out)
{
    struct jinja_value format[1] = {0};
    char text[256];
    const char *f;
    struct tm tm;
    time_t now = (time_t)r->now_s;

    TRY(jinja_bind(r, args, "strftime_now", "format", 1, format));
    if (format[0].type != JINJA_STR)
        return jinja_fail(r, ERR_INVALID, "strftime_now(): the format must be a string");
    TRY(jinja_cdup(r, format[0].str, &f));
    if (!gmtime_r(&now, &tm))
        return jinja_fail(r, ERR_INVALID, "strftime_now(): the time is out of range");
    size_t n = strftime(text, sizeof text, f, &tm);
    if (n == 0 && *f)
        return jinja_fail(r, ERR_TOO_LARGE, "strftime_now(): the format is empty or too long");
    char *p;
    TRY(jinja_alloc(r, n + 1, &p));
    memcpy(p, text, n);
    *out = jinja_str(p, n);
    return jinja_marks_any(r, format[0].str.p, format[0].str.len) ? jinja_marks_set(r, p, n) : OK;
}

const struct jinja_function *jinja_function_find(const char *name)
{
    static const struct jinja_function functions[] = {
        {"range", call_range},
        {"namespace", call_namespace},
        {"dict", call_dict},
        {"raise_exception", call_raise_exception},
        {"strftime_now", call_strftime_now},
    };

    for (size_t i = 0; i < ARRAY_SIZE(functions); i++)
        if (strcmp(functions[i].name, name) == 0)
            return &functions[i];
    return NULL;
}
