/* Methods of dict, list, tuple and loop, and the lookup of all methods by name. */
#include "engine/text/jinja/jinja_methods.h"

#include "engine/text/jinja/jinja_ops.h"

static enum status no_args(struct jinja_run *r, const struct jinja_args *args, const char *what)
{
    return jinja_bind(r, args, what, "", 0, NULL);
}

/* dict and list ---------------------------------------------------------------------------- */

static enum status dict_items(struct jinja_run *r, const struct jinja_value *self,
                              const struct jinja_args *args, struct jinja_value *out)
{
    TRY(no_args(r, args, "items"));
    return jinja_dict_view(r, self->dict, JINJA_ITEMS, out);
}

static enum status dict_keys(struct jinja_run *r, const struct jinja_value *self,
                             const struct jinja_args *args, struct jinja_value *out)
{
    TRY(no_args(r, args, "keys"));
    return jinja_dict_view(r, self->dict, JINJA_KEYS, out);
}

static enum status dict_values(struct jinja_run *r, const struct jinja_value *self,
                               const struct jinja_args *args, struct jinja_value *out)
{
    TRY(no_args(r, args, "values"));
    return jinja_dict_view(r, self->dict, JINJA_VALUES, out);
}

static enum status dict_get(struct jinja_run *r, const struct jinja_value *self,
                            const struct jinja_args *args, struct jinja_value *out)
{
    struct jinja_value slots[2] = {0};
    const struct jinja_value *found;

    TRY(jinja_bind(r, args, "get", "key default", 1, slots));
    TRY(jinja_dict_get(r, self->dict, &slots[0], &found));
    *out = found ? *found : slots[1].type == JINJA_MISSING ? jinja_none() : slots[1];
    return OK;
}

/* Values cannot change in the sandbox, so a copy may be the same object. */
static enum status self_copy(struct jinja_run *r, const struct jinja_value *self,
                             const struct jinja_args *args, struct jinja_value *out)
{
    *out = *self;
    return no_args(r, args, "copy");
}

static enum status list_index(struct jinja_run *r, const struct jinja_value *self,
                              const struct jinja_args *args, struct jinja_value *out)
{
    struct jinja_value slots[1] = {0};
    bool same = false;

    TRY(jinja_bind(r, args, "index", "value", 1, slots));
    for (size_t i = 0; i < self->seq->n; i++) {
        TRY(jinja_equal(r, &self->seq->items[i], &slots[0], &same));
        if (same) {
            *out = jinja_int((int64_t)i);
            return OK;
        }
    }
    return jinja_fail(r, ERR_INVALID, "the value is not in the list");
}

static enum status list_count(struct jinja_run *r, const struct jinja_value *self,
                              const struct jinja_args *args, struct jinja_value *out)
{
    struct jinja_value slots[1] = {0};
    int64_t n = 0;
    bool same = false;

    TRY(jinja_bind(r, args, "count", "value", 1, slots));
    for (size_t i = 0; i < self->seq->n; i++) {
        TRY(jinja_equal(r, &self->seq->items[i], &slots[0], &same));
        n += same;
    }
    *out = jinja_int(n);
    return OK;
}

/* Tables ----------------------------------------------------------------------------------- */

static const struct jinja_method_row dict_methods[] = {
    {"items", dict_items}, {"keys", dict_keys}, {"values", dict_values},
    {"get", dict_get},     {"copy", self_copy}, {"fromkeys", NULL},
    {NULL, NULL},
};
static const struct jinja_method_row list_methods[] = {
    {"index", list_index},
    {"count", list_count},
    {"copy", self_copy},
    {NULL, NULL},
};
static const struct jinja_method_row tuple_methods[] = {
    {"index", list_index},
    {"count", list_count},
    {NULL, NULL},
};
static const char *const dict_unsafe[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
static const char *const list_unsafe[] = {"append", "clear",  "pop",    "reverse", "insert",
                                          "sort",   "extend", "remove", NULL};

/* NULL: no methods here. Python's int and float have some, but templates do not use them. */
static const struct jinja_method_row *methods_of(const struct jinja_value *self,
                                                 const char *const **unsafe_out)
{
    static const char *const none[] = {NULL};

    *unsafe_out = none;
    if (self->type == JINJA_STR)
        return jinja_str_methods;
    if (self->type == JINJA_DICT) {
        *unsafe_out = dict_unsafe;
        return dict_methods;
    }
    if (jinja_is_seq(self, JINJA_LIST)) {
        *unsafe_out = list_unsafe;
        return list_methods;
    }
    return jinja_is_seq(self, JINJA_TUPLE) || jinja_is_seq(self, JINJA_RANGE) ? tuple_methods
                                                                              : NULL;
}

static const struct jinja_method_row *find_method(const struct jinja_value *self, const char *name,
                                                  bool *unsafe)
{
    const char *const *refused;
    const struct jinja_method_row *m = methods_of(self, &refused);

    *unsafe = false;
    for (; *refused; refused++)
        *unsafe |= strcmp(*refused, name) == 0;
    for (; m && m->name; m++)
        if (strcmp(m->name, name) == 0)
            return m;
    return NULL;
}

/* Whether `name` is loop.cycle or loop.changed. */
static bool loop_method(const struct jinja_value *self, const char *name)
{
    return self->type == JINJA_LOOP && (strcmp(name, "cycle") == 0 || strcmp(name, "changed") == 0);
}

bool jinja_has_method(const struct jinja_value *self, const char *name, bool *unsafe)
{
    const struct jinja_method_row *m = find_method(self, name, unsafe);

    return m || *unsafe || loop_method(self, name);
}

static enum status call_loop_method(struct jinja_run *r, struct jinja_loop *l, const char *name,
                                    const struct jinja_args *args, struct jinja_value *out)
{
    struct jinja_value now;
    bool same = false;

    if (name[1] == 'y') {
        if (args->n_pos == 0)
            return jinja_fail(r, ERR_INVALID, "no items for cycling given");
        *out = args->pos[l->index0 % args->n_pos];
        return OK;
    }
    TRY(jinja_seq_new(r, JINJA_TUPLE, args->n_pos, &now));
    for (size_t i = 0; i < args->n_pos; i++)
        now.seq->items[i] = args->pos[i];
    if (l->last_changed.type != JINJA_MISSING)
        TRY(jinja_equal(r, &l->last_changed, &now, &same));
    l->last_changed = now;
    *out = jinja_bool(!same);
    return OK;
}

enum status jinja_call_method(struct jinja_run *r, const struct jinja_method *method,
                              const struct jinja_args *args, struct jinja_value *out)
{
    bool unsafe;

    if (method->self.type == JINJA_LOOP)
        return call_loop_method(r, method->self.loop, method->name, args, out);
    const struct jinja_method_row *m = find_method(&method->self, method->name, &unsafe);
    if (!m || !m->call)
        return jinja_fail(r, ERR_UNSUPPORTED, "unknown method '%s' of '%s'", method->name,
                          jinja_type_name(&method->self));
    return m->call(r, &method->self, args, out);
}
