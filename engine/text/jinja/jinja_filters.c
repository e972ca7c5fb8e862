/* Filters that walk sequences, and the lookup of all filters by name. */
#include "base/check.h"
#include "engine/text/jinja/jinja_filters.h"
#include "engine/text/jinja/jinja_lexer.h"
#include "engine/text/jinja/jinja_ops.h"
#include "engine/text/jinja/jinja_print.h"
#include "engine/text/jinja/jinja_tests.h"

#define FILTER(fn)                                                                                 \
    static enum status fn(struct jinja_run *r, const struct jinja_value *in,                       \
                          const struct jinja_args *args, struct jinja_value *out)

static bool given(const struct jinja_value *v)
{
    return v->type != JINJA_MISSING && v->type != JINJA_NONE;
}

static struct jinja_value no_item(const char *text)
{
    return jinja_undefined(JINJA_UNDEF_TEXT, text, NULL);
}

/* The key that sort, unique and min compare: item.attribute, in lower case unless
 * case_sensitive. */
static enum status key_of(struct jinja_run *r, const struct jinja_value *item,
                          const struct jinja_value *attribute, bool case_sensitive,
                          struct jinja_value *out)
{
    *out = *item;
    if (given(attribute))
        TRY(jinja_get_path(r, item, attribute, out));
    if (!case_sensitive && out->type == JINJA_STR)
        TRY(jinja_recase(r, out, JINJA_CASE_LOWER, out));
    return OK;
}

/* Whole sequences -------------------------------------------------------------------------- */

FILTER(filter_length)
{
    size_t n = 0;

    TRY(jinja_bind(r, args, "length", "", 0, NULL));
    TRY(jinja_length(r, in, &n));
    *out = jinja_int((int64_t)n);
    return OK;
}

/* A copy of the items, as a sequence of that kind. */
static enum status as_seq(struct jinja_run *r, const struct jinja_value *in,
                          enum jinja_seq_kind kind, struct jinja_value *out)
{
    const struct jinja_seq *seq;
    struct jinja_value copy;

    TRY(jinja_iterate(r, in, &seq));
    TRY(jinja_seq_new(r, kind, seq->n, &copy));
    if (seq->n)
        memcpy(copy.seq->items, seq->items, seq->n * sizeof *seq->items);
    *out = copy;
    return OK;
}

FILTER(filter_list)
{
    TRY(jinja_bind(r, args, "list", "", 0, NULL));
    return as_seq(r, in, JINJA_LIST, out);
}

FILTER(filter_first)
{
    const struct jinja_seq *seq;

    TRY(jinja_bind(r, args, "first", "", 0, NULL));
    TRY(jinja_iterate(r, in, &seq));
    *out = seq->n ? seq->items[0] : no_item("No first item, sequence was empty.");
    return OK;
}

FILTER(filter_last)
{
    const struct jinja_seq *seq;

    TRY(jinja_bind(r, args, "last", "", 0, NULL));
    if (jinja_is_seq(in, JINJA_GENERATOR))
        return jinja_fail(r, ERR_INVALID, "'generator' object is not reversible");
    TRY(jinja_iterate(r, in, &seq));
    *out = seq->n ? seq->items[seq->n - 1] : no_item("No last item, sequence was empty.");
    return OK;
}

FILTER(filter_reverse)
{
    struct jinja_out o = {0};

    TRY(jinja_bind(r, args, "reverse", "", 0, NULL));
    TRY(as_seq(r, in, JINJA_GENERATOR, out));
    struct jinja_value *items = out->seq->items;
    size_t n = out->seq->n;
    for (size_t i = 0; i < n / 2; i++) {
        struct jinja_value v = items[i];
        items[i] = items[n - 1 - i];
        items[n - 1 - i] = v;
    }
    if (in->type != JINJA_STR)
        return OK;
    for (size_t i = 0; i < n; i++)
        TRY(jinja_put(r, &o, items[i].str.p, items[i].str.len));
    *out = jinja_str_like(in, o.p ? o.p : "", o.len);
    return OK;
}

FILTER(filter_join)
{
    struct jinja_value slots[2] = {0}, separator = jinja_str("", 0), item;
    const struct jinja_seq *seq;
    struct jinja_out o = {0};

    TRY(jinja_bind(r, args, "join", "d attribute", 0, slots));
    if (slots[0].type != JINJA_MISSING)
        TRY(jinja_to_str(r, &slots[0], &separator));
    TRY(jinja_iterate(r, in, &seq));
    for (size_t i = 0; i < seq->n; i++) {
        TRY(jinja_charge(r, 1));
        item = seq->items[i];
        if (given(&slots[1]))
            TRY(jinja_get_path(r, &seq->items[i], &slots[1], &item));
        if (i)
            TRY(jinja_put(r, &o, separator.str.p, separator.str.len));
        TRY(jinja_put_str(r, &o, &item));
    }
    *out = jinja_out_value(&o);
    return OK;
}

FILTER(filter_items)
{
    TRY(jinja_bind(r, args, "items", "", 0, NULL));
    if (in->type == JINJA_UNDEFINED)
        return jinja_seq_new(r, JINJA_GENERATOR, 0, out);
    if (in->type != JINJA_DICT)
        return jinja_fail(r, ERR_INVALID, "Can only get item pairs from a mapping.");
    TRY(jinja_dict_view(r, in->dict, JINJA_ITEMS, out));
    out->seq->kind = JINJA_GENERATOR;
    return OK;
}

FILTER(filter_sum)
{
    struct jinja_value slots[2] = {0}, item;
    const struct jinja_seq *seq;

    TRY(jinja_bind(r, args, "sum", "attribute start", 0, slots));
    TRY(jinja_iterate(r, in, &seq));
    *out = slots[1].type == JINJA_MISSING ? jinja_int(0) : slots[1];
    for (size_t i = 0; i < seq->n; i++) {
        TRY(jinja_charge(r, 1));
        item = seq->items[i];
        if (given(&slots[0]))
            TRY(jinja_get_path(r, &seq->items[i], &slots[0], &item));
        struct jinja_value so_far = *out;
        TRY(jinja_binary(r, TOK_ADD, &so_far, &item, out));
    }
    return OK;
}

/* Order ------------------------------------------------------------------------------------ */

struct sorted {
    struct jinja_value key;
    struct jinja_value item;
};

/* Stable merge sort; `reverse` keeps the order of equal items too, as Python does. */
static enum status merge(struct jinja_run *r, struct sorted *v, struct sorted *tmp, size_t n,
                         bool reverse)
{
    size_t half = n / 2, left = 0, right = half;

    if (n < 2)
        return OK;
    TRY(merge(r, v, tmp, half, reverse));
    TRY(merge(r, v + half, tmp, n - half, reverse));
    for (size_t i = 0; i < n; i++) {
        int order = 0;
        bool unordered;
        if (left < half && right < n)
            TRY(jinja_compare(r, &v[right].key, &v[left].key, "<", &order, &unordered));
        if (reverse)
            order = -order;
        bool take_right = left == half || (right < n && order < 0);
        tmp[i] = take_right ? v[right++] : v[left++];
    }
    memcpy(v, tmp, n * sizeof *v);
    return OK;
}

static enum status sort_pairs(struct jinja_run *r, struct sorted *v, size_t n, bool reverse,
                              struct jinja_value *out)
{
    struct sorted *tmp;

    TRY(jinja_alloc_array(r, n, sizeof *tmp, &tmp));
    TRY(merge(r, v, tmp, n, reverse));
    TRY(jinja_seq_new(r, JINJA_LIST, n, out));
    for (size_t i = 0; i < n; i++)
        out->seq->items[i] = v[i].item;
    return OK;
}

/* The key of sort(attribute="a,b"): a, then b. */
static enum status multi_key(struct jinja_run *r, const struct jinja_value *item,
                             const struct jinja_value *attribute, bool case_sensitive,
                             struct jinja_value *out)
{
    struct jinja_list keys = {0};
    struct jinja_value key;

    if (!given(attribute) || attribute->type != JINJA_STR ||
        jinja_find(attribute->str, (struct jinja_str){",", 1}, 0) == SIZE_MAX)
        return key_of(r, item, attribute, case_sensitive, out);
    for (struct jinja_str rest = attribute->str;;) {
        size_t comma = jinja_find(rest, (struct jinja_str){",", 1}, 0);
        size_t len = comma == SIZE_MAX ? rest.len : comma;
        struct jinja_value part = jinja_str(rest.p, len);
        TRY(key_of(r, item, &part, case_sensitive, &key));
        TRY(jinja_list_push(r, &keys, &key));
        if (comma == SIZE_MAX)
            return jinja_list_seq(r, JINJA_LIST, &keys, out);
        rest = (struct jinja_str){rest.p + len + 1, rest.len - len - 1};
    }
}

FILTER(filter_sort)
{
    struct jinja_value slots[3] = {0};
    const struct jinja_seq *seq;
    struct sorted *v;

    TRY(jinja_bind(r, args, "sort", "reverse case_sensitive attribute", 0, slots));
    TRY(jinja_iterate(r, in, &seq));
    TRY(jinja_alloc_array(r, seq->n, sizeof *v, &v));
    for (size_t i = 0; i < seq->n; i++) {
        v[i].item = seq->items[i];
        TRY(multi_key(r, &seq->items[i], &slots[2], jinja_truth(&slots[1]), &v[i].key));
    }
    return sort_pairs(r, v, seq->n, jinja_truth(&slots[0]), out);
}

FILTER(filter_dictsort)
{
    struct jinja_value slots[3] = {0};
    const struct jinja_value none = jinja_none();
    struct sorted *v;

    TRY(jinja_bind(r, args, "dictsort", "case_sensitive by reverse", 0, slots));
    if (in->type == JINJA_UNDEFINED)
        return jinja_fail_undefined(r, in);
    if (in->type != JINJA_DICT)
        return jinja_fail(r, ERR_INVALID, "'%s object' has no attribute 'items'",
                          jinja_type_name(in));
    bool by_value = slots[1].type == JINJA_STR && jinja_str_is(slots[1].str, "value");
    if (given(&slots[1]) && !by_value &&
        !(slots[1].type == JINJA_STR && jinja_str_is(slots[1].str, "key")))
        return jinja_fail(r, ERR_INVALID, "You can only sort by either \"key\" or \"value\"");
    size_t n = in->dict->n;
    TRY(jinja_alloc_array(r, n, sizeof *v, &v));
    for (size_t i = 0; i < n; i++) {
        const struct jinja_pair *pair = &in->dict->pairs[i];
        TRY(jinja_pair_tuple(r, &pair->key, &pair->value, &v[i].item));
        TRY(key_of(r, by_value ? &pair->value : &pair->key, &none, jinja_truth(&slots[0]),
                   &v[i].key));
    }
    return sort_pairs(r, v, n, jinja_truth(&slots[2]), out);
}

static enum status extreme(struct jinja_run *r, const struct jinja_value *in,
                           const struct jinja_args *args, bool max, struct jinja_value *out)
{
    struct jinja_value slots[2] = {0}, key, best_key;
    const struct jinja_seq *seq;
    int order = 0;
    bool unordered;

    TRY(jinja_bind(r, args, max ? "max" : "min", "case_sensitive attribute", 0, slots));
    TRY(jinja_iterate(r, in, &seq));
    *out = no_item("No aggregated item, sequence was empty.");
    for (size_t i = 0; i < seq->n; i++) {
        TRY(key_of(r, &seq->items[i], &slots[1], jinja_truth(&slots[0]), &key));
        if (i)
            TRY(jinja_compare(r, &key, &best_key, max ? ">" : "<", &order, &unordered));
        if (i && (max ? order <= 0 : order >= 0))
            continue;
        best_key = key;
        *out = seq->items[i];
    }
    return OK;
}

FILTER(filter_min)
{
    return extreme(r, in, args, false, out);
}

FILTER(filter_max)
{
    return extreme(r, in, args, true, out);
}

FILTER(filter_unique)
{
    struct jinja_value slots[2] = {0}, key;
    const struct jinja_seq *seq;
    struct jinja_list kept = {0}, keys = {0};

    TRY(jinja_bind(r, args, "unique", "case_sensitive attribute", 0, slots));
    TRY(jinja_iterate(r, in, &seq));
    for (size_t i = 0; i < seq->n; i++) {
        bool seen = false;
        TRY(key_of(r, &seq->items[i], &slots[1], jinja_truth(&slots[0]), &key));
        for (size_t k = 0; k < keys.n && !seen; k++)
            TRY(jinja_equal(r, &keys.items[k], &key, &seen));
        if (seen)
            continue;
        TRY(jinja_list_push(r, &keys, &key));
        TRY(jinja_list_push(r, &kept, &seq->items[i]));
    }
    return jinja_list_seq(r, JINJA_GENERATOR, &kept, out);
}

/* Groups ----------------------------------------------------------------------------------- */

static enum status attribute_or(struct jinja_run *r, const struct jinja_value *item,
                                const struct jinja_value *attribute,
                                const struct jinja_value *otherwise, struct jinja_value *out)
{
    TRY(jinja_get_path(r, item, attribute, out));
    if (out->type == JINJA_UNDEFINED && given(otherwise))
        *out = *otherwise;
    return OK;
}

/* (key, items) for each run of equal keys in the sorted items. */
FILTER(filter_groupby)
{
    struct jinja_value slots[3] = {0}, sorted, group, pair, key;
    const struct jinja_value none = jinja_none();
    const struct jinja_seq *seq;
    struct jinja_list groups = {0}, members = {0};
    struct sorted *v;

    TRY(jinja_bind(r, args, "groupby", "attribute default case_sensitive", 1, slots));
    TRY(jinja_iterate(r, in, &seq));
    TRY(jinja_alloc_array(r, seq->n, sizeof *v, &v));
    for (size_t i = 0; i < seq->n; i++) {
        TRY(attribute_or(r, &seq->items[i], &slots[0], &slots[1], &key));
        TRY(key_of(r, &key, &none, jinja_truth(&slots[2]), &v[i].key));
        v[i].item = seq->items[i];
    }
    TRY(sort_pairs(r, v, seq->n, false, &sorted));
    for (size_t i = 0; i < seq->n; i++) {
        bool same = false;
        TRY(jinja_list_push(r, &members, &v[i].item));
        if (i + 1 < seq->n)
            TRY(jinja_equal(r, &v[i].key, &v[i + 1].key, &same));
        if (same)
            continue;
        TRY(attribute_or(r, &members.items[0], &slots[0], &slots[1], &key));
        TRY(jinja_list_seq(r, JINJA_LIST, &members, &group));
        TRY(jinja_pair_tuple(r, &key, &group, &pair));
        TRY(jinja_list_push(r, &groups, &pair));
        members = (struct jinja_list){0};
    }
    return jinja_list_seq(r, JINJA_LIST, &groups, out);
}

FILTER(filter_batch)
{
    struct jinja_value slots[2] = {0}, row;
    const struct jinja_seq *seq;
    struct jinja_list rows = {0}, members = {0};
    int64_t n;

    TRY(jinja_bind(r, args, "batch", "linecount fill_with", 1, slots));
    if (!jinja_as_int(&slots[0], &n) || n < 1)
        return jinja_fail(r, ERR_INVALID, "batch: the count must be a positive integer");
    TRY(jinja_iterate(r, in, &seq));
    for (size_t i = 0; i < seq->n; i++) {
        TRY(jinja_list_push(r, &members, &seq->items[i]));
        bool last = i + 1 == seq->n;
        for (; last && given(&slots[1]) && members.n < (size_t)n;) {
            TRY(jinja_charge(r, 1));
            TRY(jinja_list_push(r, &members, &slots[1]));
        }
        if (members.n < (size_t)n && !last)
            continue;
        TRY(jinja_list_seq(r, JINJA_LIST, &members, &row));
        TRY(jinja_list_push(r, &rows, &row));
        members = (struct jinja_list){0};
    }
    return jinja_list_seq(r, JINJA_GENERATOR, &rows, out);
}

/* map and select ---------------------------------------------------------------------------- */

/* As jinja2's "if value:" before the loop: None gives no items although it is not iterable. */
static enum status iterate_if_true(struct jinja_run *r, const struct jinja_value *v,
                                   const struct jinja_seq **out)
{
    static const struct jinja_seq empty = {.kind = JINJA_LIST};

    *out = &empty;
    return jinja_truth(v) ? jinja_iterate(r, v, out) : OK;
}

/* The arguments behind the first `n`, which are for map or select themselves. */
static struct jinja_args rest_of(const struct jinja_args *args, size_t n)
{
    struct jinja_args rest = *args;

    n = n < args->n_pos ? n : args->n_pos;
    rest.pos = args->n_pos ? args->pos + n : NULL;
    rest.n_pos -= n;
    return rest;
}

static enum status map_attribute(struct jinja_run *r, const struct jinja_seq *seq,
                                 const struct jinja_args *args, struct jinja_list *list)
{
    struct jinja_value slots[2] = {0}, v;

    TRY(jinja_bind(r, args, "map", "attribute default", 1, slots));
    for (size_t i = 0; i < seq->n; i++) {
        TRY(jinja_charge(r, 1));
        TRY(attribute_or(r, &seq->items[i], &slots[0], &slots[1], &v));
        TRY(jinja_list_push(r, list, &v));
    }
    return OK;
}

static enum status map_filter(struct jinja_run *r, const struct jinja_seq *seq,
                              const struct jinja_args *args, struct jinja_list *list)
{
    const struct jinja_filter *filter;
    struct jinja_args rest = rest_of(args, 1);
    struct jinja_value v;
    const char *name;

    if (args->n_pos == 0 || args->pos[0].type != JINJA_STR)
        return jinja_fail(r, ERR_INVALID, "map requires a filter argument");
    TRY(jinja_cdup(r, args->pos[0].str, &name));
    filter = jinja_filter_find(name);
    if (!filter)
        return jinja_fail(r, ERR_UNSUPPORTED, "unknown filter '%s'", name);
    if (++r->depth > JINJA_DEPTH_MAX) /* "map" can call itself */
        return jinja_fail(r, ERR_TOO_LARGE, "nested deeper than %u levels", JINJA_DEPTH_MAX);
    for (size_t i = 0; i < seq->n; i++) {
        TRY(jinja_charge(r, 1));
        TRY(filter->apply(r, &seq->items[i], &rest, &v));
        TRY(jinja_list_push(r, list, &v));
    }
    r->depth--;
    return OK;
}

FILTER(filter_map)
{
    const struct jinja_seq *seq;
    struct jinja_list list = {0};

    TRY(iterate_if_true(r, in, &seq));
    if (args->n_pos == 0 && args->n_kw)
        TRY(map_attribute(r, seq, args, &list));
    else
        TRY(map_filter(r, seq, args, &list));
    return jinja_list_seq(r, JINJA_GENERATOR, &list, out);
}

/* select(test, ...), selectattr(attribute, test, ...), and reject(), rejectattr(). */
static enum status choose(struct jinja_run *r, const struct jinja_value *in,
                          const struct jinja_args *args, bool by_attribute, bool want,
                          struct jinja_value *out)
{
    const struct jinja_seq *seq;
    const struct jinja_test *test = NULL;
    struct jinja_args rest = rest_of(args, by_attribute ? 2 : 1);
    struct jinja_list list = {0};
    struct jinja_value v;
    const char *name;

    if (by_attribute && args->n_pos == 0)
        return jinja_fail(r, ERR_INVALID, "Missing parameter for attribute name");
    if (args->n_pos > (by_attribute ? 1 : 0)) {
        const struct jinja_value *test_name = &args->pos[by_attribute ? 1 : 0];
        if (test_name->type != JINJA_STR)
            return jinja_fail(r, ERR_INVALID, "select: the name of a test must be a string");
        TRY(jinja_cdup(r, test_name->str, &name));
        test = jinja_test_find(name);
        if (!test)
            return jinja_fail(r, ERR_UNSUPPORTED, "unknown test '%s'", name);
    }
    TRY(iterate_if_true(r, in, &seq));
    for (size_t i = 0; i < seq->n; i++) {
        TRY(jinja_charge(r, 1));
        v = seq->items[i];
        if (by_attribute)
            TRY(jinja_get_path(r, &seq->items[i], &args->pos[0], &v));
        bool yes = jinja_truth(&v);
        if (test)
            TRY(test->check(r, &v, &rest, &yes));
        if (yes == want)
            TRY(jinja_list_push(r, &list, &seq->items[i]));
    }
    return jinja_list_seq(r, JINJA_GENERATOR, &list, out);
}

FILTER(filter_select)
{
    return choose(r, in, args, false, true, out);
}

FILTER(filter_reject)
{
    return choose(r, in, args, false, false, out);
}

FILTER(filter_selectattr)
{
    return choose(r, in, args, true, true, out);
}

FILTER(filter_rejectattr)
{
    return choose(r, in, args, true, false, out);
}

const struct jinja_filter jinja_filters_seq[] = {
    {"length", filter_length},
    {"count", filter_length},
    {"list", filter_list},
    {"first", filter_first},
    {"last", filter_last},
    {"reverse", filter_reverse},
    {"join", filter_join},
    {"items", filter_items},
    {"sum", filter_sum},
    {"sort", filter_sort},
    {"dictsort", filter_dictsort},
    {"min", filter_min},
    {"max", filter_max},
    {"unique", filter_unique},
    {"groupby", filter_groupby},
    {"batch", filter_batch},
    {"map", filter_map},
    {"select", filter_select},
    {"reject", filter_reject},
    {"selectattr", filter_selectattr},
    {"rejectattr", filter_rejectattr},
};
const size_t jinja_n_filters_seq = ARRAY_SIZE(jinja_filters_seq);

static const struct jinja_filter *find_in(const struct jinja_filter *table, size_t n,
                                          const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

const struct jinja_filter *jinja_filter_find(const char *name)
{
    const struct jinja_filter *f = find_in(jinja_filters_text, jinja_n_filters_text, name);

    return f ? f : find_in(jinja_filters_seq, jinja_n_filters_seq, name);
}
