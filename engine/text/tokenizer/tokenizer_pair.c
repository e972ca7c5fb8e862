/* tokenizer_pair.c - what the post-processor puts around two texts. A template of another order
 * than text A, text B, or with types that are not those of the header, counts as none: a model that
 * takes one text at a time needs no such template. */
#include "engine/text/tokenizer/tokenizer_internal.h"

#include <string.h>

enum place { BEFORE, BETWEEN, AFTER, N_PLACES };

/* The template as far as it was read. */
struct reading {
    const struct tokenizer *t;
    struct tok_pair *pair;
    uint32_t place;
    bool second_type;    /* an entry had type 1, so that all later ones must */
    bool is_other_shape; /* the template is not supported */
};

static bool is_known(const struct tokenizer *t, const struct json *id)
{
    return js_is(id, JS_INT) && js_int(id) >= 0 && js_int(id) < t->vocab.n_tokens;
}

/* Take the type of an entry, which stands at `place`. */
static void take_type(struct reading *r, const struct json *type)
{
    int64_t v = js_is(type, JS_INT) ? js_int(type) : type ? -1 : 0;

    if ((v != 0 && v != 1) || v < r->second_type)
        r->is_other_shape = true;
    if (v == 1 && !r->second_type) {
        r->is_other_shape |= r->place != BETWEEN;
        r->second_type = r->pair->has_types = true;
        r->pair->n_first = r->pair->ids[BETWEEN].n;
    }
}

static enum status take_id(struct reading *r, const struct json *id)
{
    if (!is_known(r->t, id)) {
        r->is_other_shape = true;
        return OK;
    }
    return tok_push(&r->pair->ids[r->place], (uint32_t)js_int(id));
}

static enum status take_special(struct reading *r, const struct json *node,
                                const struct json *special)
{
    const struct json *name = js_get(special, "id");
    const struct json *list =
        js_is(name, JS_STRING)
            ? js_get(js_get(js_get(node, "special_tokens"), js_string(name, NULL)), "ids")
            : NULL;
    enum status s = OK;

    take_type(r, js_get(special, "type_id"));
    if (!js_is(list, JS_ARRAY))
        r->is_other_shape = true;
    for (size_t i = 0; s == OK && !r->is_other_shape && i < js_len(list); i++)
        s = take_id(r, js_at(list, i));
    return s;
}

static void take_sequence(struct reading *r, const struct json *sequence)
{
    const struct json *name = js_get(sequence, "id");
    const char *want = r->place == BEFORE ? "A" : "B";

    if (r->place == AFTER || !js_is(name, JS_STRING) || strcmp(js_string(name, NULL), want) != 0)
        r->is_other_shape = true;
    take_type(r, js_get(sequence, "type_id"));
    r->place += r->place < AFTER;
}

static enum status read_template(struct reading *r, const struct json *node)
{
    const struct json *list = js_get(node, "pair");
    enum status s = OK;

    if (!js_is(list, JS_ARRAY))
        r->is_other_shape = true;
    for (size_t i = 0; s == OK && !r->is_other_shape && i < js_len(list); i++) {
        const struct json *special = js_get(js_at(list, i), "SpecialToken");
        const struct json *sequence = js_get(js_at(list, i), "Sequence");

        if (sequence)
            take_sequence(r, sequence);
        else if (special)
            s = take_special(r, node, special);
        else
            r->is_other_shape = true;
    }
    if (r->place != AFTER)
        r->is_other_shape = true;
    return s;
}

/* [CLS] A [SEP] B [SEP], the last two of type 1; or <s> A </s></s> B </s>, all of type 0. */
static enum status read_ends(struct reading *r, const struct json *node, bool is_roberta)
{
    const struct json *cls = js_at(js_get(node, "cls"), 1), *sep = js_at(js_get(node, "sep"), 1);
    enum status s = take_id(r, cls);

    r->place = BETWEEN;
    if (s == OK)
        s = take_id(r, sep);
    if (s == OK && is_roberta)
        s = take_id(r, sep);
    r->pair->has_types = !is_roberta;
    r->pair->n_first = r->pair->ids[BETWEEN].n;
    r->place = AFTER;
    return s == OK ? take_id(r, sep) : s;
}

void tok_pair_fini(struct tok_pair *p)
{
    for (size_t i = 0; i < N_PLACES; i++)
        tok_vec_fini(&p->ids[i]);
    p->is_known = false;
}

enum status tok_pair_load(struct tokenizer *t, const char *type, const struct json *node)
{
    struct reading r = {.t = t, .pair = &t->pair};
    enum status s;

    if (t->pair.n_processors++ > 0) { /* each processor would change the result of the one before */
        tok_pair_fini(&t->pair);
        return OK;
    }
    if (strcmp(type, "TemplateProcessing") == 0)
        s = read_template(&r, node);
    else
        s = read_ends(&r, node, strcmp(type, "RobertaProcessing") == 0);
    t->pair.is_known = s == OK && !r.is_other_shape;
    if (!t->pair.is_known)
        tok_pair_fini(&t->pair);
    return s;
}

bool tokenizer_pair(const struct tokenizer *t, struct tokenizer_pair *out)
{
    const struct tok_vec *v = t->pair.ids;

    *out = (struct tokenizer_pair){
        .before = v[BEFORE].v,
        .between = v[BETWEEN].v,
        .after = v[AFTER].v,
        .n_before = v[BEFORE].n,
        .n_between = v[BETWEEN].n,
        .n_after = v[AFTER].n,
        .n_first = t->pair.n_first,
        .has_types = t->pair.has_types,
    };
    return t->pair.is_known;
}
