#include "engine/grammar/states.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 1000u   /* of nested expressions */
#define COPY_STATES_MAX 4 /* larger expressions are called, where they are repeated */
#define NOT_BUILT UINT32_MAX

struct builder {
    struct states *st;
    const struct exprs *e;
    uint32_t *rule_state; /* [n_rules] first state, or NOT_BUILT */
    uint32_t *expr_state; /* [e->n] first state of an expression that was made a rule */
    uint32_t *wanted;     /* [n_wanted] rules that were called and are not built yet */
    uint32_t n_wanted;
    enum status status;
};

static uint32_t fail(struct builder *b, enum status s)
{
    if (b->status == OK)
        b->status = s;
    return 0;
}

static uint32_t add(struct builder *b, struct state s)
{
    struct states *st = b->st;

    if (b->status != OK)
        return 0;
    if (st->n == st->cap) {
        uint32_t cap = st->cap ? 2 * st->cap : 256;
        if (st->n >= STATES_MAX)
            return fail(b, ERR_TOO_LARGE);
        struct state *more = realloc(st->v, cap * sizeof *more);
        if (!more)
            return fail(b, ERR_NOMEM);
        st->v = more;
        st->cap = cap;
    }
    st->v[st->n] = s;
    return st->n++;
}

static uint32_t build(struct builder *b, uint32_t x, uint32_t next, uint32_t depth);

/* The first state of a rule; the rule is built later. */
static uint32_t rule_state(struct builder *b, uint32_t rule)
{
    if (b->rule_state[rule] == NOT_BUILT) {
        b->rule_state[rule] = add(b, (struct state){.kind = STATE_NEVER});
        b->wanted[b->n_wanted++] = rule;
    }
    return b->rule_state[rule];
}

/* Build one more copy of a repeated expression: its states again, or a call of them. */
static uint32_t build_copy(struct builder *b, uint32_t x, uint32_t next, uint32_t depth)
{
    if (b->e->v[x].n_states <= COPY_STATES_MAX)
        return build(b, x, next, depth);
    if (b->expr_state[x] == NOT_BUILT) {
        uint32_t end = add(b, (struct state){.kind = STATE_END});
        uint32_t first = build(b, x, end, depth);
        b->expr_state[x] = first;
    }
    return add(b, (struct state){.kind = STATE_CALL, .a = b->expr_state[x], .b = next});
}

static uint32_t build_repeat(struct builder *b, const struct expr *x, uint32_t next, uint32_t depth)
{
    uint32_t s = next, end = next;

    if (x->max == EXPR_MANY) {
        s = add(b, (struct state){.kind = STATE_SPLIT, .b = end});
        uint32_t body = build_copy(b, x->a, s, depth);
        if (b->status == OK)
            b->st->v[s].a = body;
    }
    for (uint32_t i = x->min; x->max != EXPR_MANY && i < x->max && b->status == OK; i++) {
        uint32_t body = build_copy(b, x->a, s, depth);
        s = add(b, (struct state){.kind = STATE_SPLIT, .a = body, .b = end});
    }
    for (uint32_t i = 0; i < x->min && b->status == OK; i++)
        s = build_copy(b, x->a, s, depth);
    return s;
}

/* The first state of expression x, which goes on in state `next`. Front ends nest long sequences
 * and lists of alternatives to the left, where this function does not recurse. */
static uint32_t build(struct builder *b, uint32_t x, uint32_t next, uint32_t depth)
{
    uint32_t others = NOT_BUILT; /* alternatives so far; they go on in `alt_next` */

    if (depth > DEPTH_MAX)
        return fail(b, ERR_TOO_LARGE);
    for (;;) {
        const struct expr *e = &b->e->v[x];
        uint32_t s = 0;

        if (b->status != OK)
            return 0;
        if (e->kind == EXPR_SEQ && others == NOT_BUILT) {
            next = build(b, e->b, next, depth + 1);
            x = e->a;
            continue;
        }
        if (e->kind == EXPR_ALT) {
            uint32_t other = build(b, e->b, next, depth + 1);
            others = others == NOT_BUILT
                         ? other
                         : add(b, (struct state){.kind = STATE_SPLIT, .a = other, .b = others});
            x = e->a;
            continue;
        }
        switch (e->kind) {
        case EXPR_EMPTY: s = next; break;
        case EXPR_NEVER: s = add(b, (struct state){.kind = STATE_NEVER}); break;
        case EXPR_BYTE: s = add(b, (struct state){STATE_BYTE, e->a, next}); break;
        case EXPR_REPEAT: s = build_repeat(b, e, next, depth + 1); break;
        case EXPR_RULE: s = add(b, (struct state){STATE_CALL, rule_state(b, e->a), next}); break;
        default: s = build(b, x, next, depth + 1); break; /* a sequence among alternatives */
        }
        return others == NOT_BUILT
                   ? s
                   : add(b, (struct state){.kind = STATE_SPLIT, .a = s, .b = others});
    }
}

static enum status build_rules(struct builder *b, struct buf *why)
{
    for (uint32_t i = 0; i < b->n_wanted && b->status == OK; i++) {
        uint32_t rule = b->wanted[i], expr = b->e->rules[rule];
        if (expr == EXPR_FAILED)
            return buf_why(why, ERR_INVALID, "a rule of the grammar has no definition");
        uint32_t end = add(b, (struct state){.kind = STATE_END});
        uint32_t first = build(b, expr, end, 0);
        if (b->status == OK) /* the state that was given away goes on to the rule's own */
            b->st->v[b->rule_state[rule]] = (struct state){STATE_SPLIT, first, first};
    }
    if (b->status == ERR_TOO_LARGE)
        return buf_why(why, ERR_TOO_LARGE,
                       "the grammar is too large: over %u states, or nested "
                       "deeper than %u",
                       STATES_MAX, DEPTH_MAX);
    return b->status == OK ? OK : buf_why(why, b->status, "out of memory for the grammar");
}

/* --- left recursion, and states without an end --- */

/* Steps without a byte: a split goes both ways, a call goes to the rule, and behind the call too
 * where the rule can match nothing. A call that can be reached again from the rule it calls, all
 * without a byte, would push calls for ever. */
struct walk {
    const struct states *st;
    uint8_t *nullable; /* [n] the end of the state's rule is reached without a byte */
    uint32_t *heads;   /* [n] the last edge to a state, plus 1; 0: none */
    uint32_t *edges; /* [2n] the next edge to the same state; edge 2s leads to a of state s, 2s + 1
                          to b */
    uint32_t *stack; /* [n] */
};

static uint32_t steps_of(const struct walk *w, uint32_t s, uint32_t to[2])
{
    const struct state *x = &w->st->v[s];
    uint32_t n = 0;

    if (x->kind == STATE_SPLIT || x->kind == STATE_CALL)
        to[n++] = x->a;
    if (x->kind == STATE_SPLIT || (x->kind == STATE_CALL && w->nullable[x->a]))
        to[n++] = x->b;
    return n;
}

static void add_edge(struct walk *w, uint32_t edge, uint32_t to)
{
    w->edges[edge] = w->heads[to];
    w->heads[to] = edge + 1;
}

static bool has_bytes(const struct walk *w, const struct state *x)
{
    const uint64_t *bits = w->st->sets[x->a].bits;

    return bits[0] | bits[1] | bits[2] | bits[3];
}

/* Mark the states from which the end of their rule is reached: a split where one of its two ways
 * is, a call where both the rule and what is behind the call are, with `through_bytes` a byte where
 * the next state is. From the ends of the rules backwards, each edge is taken once. */
static void find_ending(struct walk *w, bool through_bytes, uint8_t *ending)
{
    uint32_t n = 0;

    memset(w->heads, 0, w->st->n * sizeof *w->heads);
    for (uint32_t i = 0; i < w->st->n; i++) {
        const struct state *x = &w->st->v[i];
        if (x->kind == STATE_END) {
            ending[i] = 1;
            w->stack[n++] = i;
        } else if (x->kind == STATE_BYTE && through_bytes && has_bytes(w, x)) {
            add_edge(w, 2 * i, x->b);
        } else if (x->kind == STATE_SPLIT || x->kind == STATE_CALL) {
            add_edge(w, 2 * i, x->a);
            add_edge(w, 2 * i + 1, x->b);
        }
    }
    while (n > 0)
        for (uint32_t e = w->heads[w->stack[--n]]; e; e = w->edges[e - 1]) {
            uint32_t from = (e - 1) / 2;
            const struct state *x = &w->st->v[from];
            if (ending[from] || (x->kind == STATE_CALL && !(ending[x->a] && ending[x->b])))
                continue;
            ending[from] = 1;
            w->stack[n++] = from;
        }
}

/* Tarjan's strongly connected components (1972), without recursion. */
struct components {
    uint32_t *number, *low; /* [n] in the order of the search; 0: not visited */
    uint32_t *open;         /* [n_open] states whose component is not complete */
    uint32_t *path;         /* [n_path] from the root of the search */
    uint8_t *next;          /* [n] the next step to look at */
    uint8_t *is_open;       /* [n] */
    uint32_t n_numbers, n_open, n_path;
};

static void enter(struct components *c, uint32_t s)
{
    c->number[s] = c->low[s] = ++c->n_numbers;
    c->open[c->n_open++] = s;
    c->is_open[s] = 1;
    c->path[c->n_path++] = s;
}

/* A component is complete: set `low` of all its states to the number of its root. */
static void close_component(struct components *c, uint32_t root)
{
    uint32_t s;

    do {
        s = c->open[--c->n_open];
        c->is_open[s] = 0;
        c->low[s] = c->number[root];
    } while (s != root);
}

static void search(const struct walk *w, struct components *c, uint32_t from)
{
    uint32_t to[2];

    enter(c, from);
    while (c->n_path > 0) {
        uint32_t s = c->path[c->n_path - 1], n_to = steps_of(w, s, to);
        if (c->next[s] < n_to) {
            uint32_t t = to[c->next[s]++];
            if (!c->number[t])
                enter(c, t);
            else if (c->is_open[t] && c->number[t] < c->low[s])
                c->low[s] = c->number[t];
            continue;
        }
        c->n_path--;
        if (c->n_path > 0) {
            uint32_t before = c->path[c->n_path - 1];
            c->low[before] = c->low[s] < c->low[before] ? c->low[s] : c->low[before];
        }
        if (c->low[s] == c->number[s])
            close_component(c, s);
    }
}

/* A text never enters a state from which its rule has no end: so an answer cannot begin with
 * something that nothing can follow. */
static void prune(struct states *st, struct walk *w, uint8_t *ending)
{
    find_ending(w, true, ending);
    for (uint32_t i = 0; i < st->n; i++)
        if (!ending[i])
            st->v[i] = (struct state){.kind = STATE_NEVER};
}

/* Refuse left recursion, and prune the states. */
static enum status check_states(struct states *st, struct buf *why)
{
    size_t n = st->n;
    uint32_t *words = calloc(8 * n, sizeof *words);
    uint8_t *bytes = calloc(4 * n, 1);
    struct walk w = {.st = st, .nullable = bytes, .heads = words};
    enum status s = OK;

    if (words && bytes) {
        w.stack = words + n;
        w.edges = words + 6 * n;
        struct components c = {.number = words + 2 * n,
                               .low = words + 3 * n,
                               .open = words + 4 * n,
                               .path = words + 5 * n,
                               .next = bytes + n,
                               .is_open = bytes + 2 * n};
        find_ending(&w, false, w.nullable);
        for (uint32_t i = 0; i < st->n; i++)
            if (!c.number[i])
                search(&w, &c, i);
        for (uint32_t i = 0; i < st->n && s == OK; i++)
            if (st->v[i].kind == STATE_CALL && c.low[i] == c.low[st->v[i].a])
                s = buf_why(why, ERR_UNSUPPORTED,
                            "a rule of the grammar begins with itself (left recursion): write it "
                            "with a repetition");
        if (s == OK)
            prune(st, &w, bytes + 3 * n);
    } else {
        s = buf_why(why, ERR_NOMEM, "out of memory for the grammar");
    }
    free(words);
    free(bytes);
    return s;
}

/* --- classes of bytes --- */

/* Refine the classes by each set in turn: bytes stay together while every set has both or none. */
static void class_bytes(struct states *st)
{
    memset(st->class_of, 0, sizeof st->class_of);
    st->n_classes = 1;
    for (uint32_t i = 0; i < st->n_sets && st->n_classes < 256; i++) {
        int16_t inside[256];
        uint32_t has_out[256] = {0};
        memset(inside, -1, sizeof inside);
        for (uint32_t b = 0; b < 256; b++)
            has_out[st->class_of[b]] |= !byte_set_has(&st->sets[i], (uint8_t)b);
        for (uint32_t b = 0; b < 256; b++) {
            uint8_t old = st->class_of[b];
            if (!byte_set_has(&st->sets[i], (uint8_t)b) || !has_out[old])
                continue;
            if (inside[old] < 0)
                inside[old] = (int16_t)st->n_classes++;
            st->class_of[b] = (uint8_t)inside[old];
        }
    }
    for (uint32_t b = 256; b-- > 0;)
        st->byte_of[st->class_of[b]] = (uint8_t)b;
}

/* --- all of it --- */

enum status states_build(struct states *st, const struct exprs *e, uint32_t first, struct buf *why)
{
    struct builder b = {.st = st, .e = e};
    enum status s = exprs_status(e);

    *st = (struct states){0};
    if (s != OK)
        return buf_why(
            why, s, s == ERR_NOMEM ? "out of memory for the grammar" : "the grammar is too large");
    b.rule_state = malloc((e->n_rules + 1) * sizeof *b.rule_state);
    b.expr_state = malloc((e->n + 1) * sizeof *b.expr_state);
    b.wanted = malloc((e->n_rules + 1) * sizeof *b.wanted);
    st->sets = malloc((e->n_sets + 1) * sizeof *st->sets);
    if (b.rule_state && b.expr_state && b.wanted && st->sets) {
        memset(b.rule_state, 0xff, e->n_rules * sizeof *b.rule_state);
        memset(b.expr_state, 0xff, e->n * sizeof *b.expr_state);
        if (e->n_sets > 0)
            memcpy(st->sets, e->sets, e->n_sets * sizeof *st->sets);
        st->n_sets = e->n_sets;
        st->first = rule_state(&b, first);
        s = build_rules(&b, why);
    } else {
        s = buf_why(why, ERR_NOMEM, "out of memory for the grammar");
    }
    free(b.rule_state);
    free(b.expr_state);
    free(b.wanted);
    if (s == OK)
        s = check_states(st, why);
    if (s == OK)
        class_bytes(st);
    else
        states_fini(st);
    return s;
}

void states_fini(struct states *st)
{
    free(st->v);
    free(st->sets);
    *st = (struct states){0};
}
