#include "engine/grammar/expr.h"

#include <stdlib.h>
#include <string.h>

#define CODE_MAX 0x10ffffu
#define RANGES_MAX 4096u
#define N_STATES_MAX (UINT32_MAX / 4)
#define CLASS_STATES 8u /* larger classes become rules */

struct code_rule {
    uint64_t hash;
    struct code_range *ranges; /* [n] */
    size_t n;
    uint32_t rule;
};

void exprs_init(struct exprs *e)
{
    *e = (struct exprs){.status = OK};
}

void exprs_fini(struct exprs *e)
{
    for (uint32_t i = 0; i < e->n_classes; i++)
        free(e->classes[i].ranges);
    free(e->classes);
    free(e->v);
    free(e->sets);
    free(e->rules);
    free(e->set_slots);
    free(e->class_slots);
    *e = (struct exprs){0};
}

enum status exprs_status(const struct exprs *e)
{
    return e->status;
}

uint32_t expr_fail(struct exprs *e, enum status s)
{
    if (e->status == OK)
        e->status = s;
    return EXPR_FAILED;
}

/* Make room for one more element. */
static bool grow(struct exprs *e, void **v, uint32_t n, uint32_t *cap, uint32_t n_max, size_t size)
{
    if (n < *cap)
        return true;
    if (n >= n_max)
        return expr_fail(e, ERR_TOO_LARGE) != EXPR_FAILED;
    uint32_t more = *cap ? 2 * *cap : 64;
    void *p = realloc(*v, more * size);
    if (!p)
        return expr_fail(e, ERR_NOMEM) != EXPR_FAILED;
    *v = p;
    *cap = more;
    return true;
}

static uint32_t add(struct exprs *e, struct expr x)
{
    if (e->status != OK || !grow(e, (void **)&e->v, e->n, &e->cap, EXPRS_MAX, sizeof x))
        return EXPR_FAILED;
    e->v[e->n] = x;
    return e->n++;
}

uint32_t expr_empty(struct exprs *e)
{
    return add(e, (struct expr){.kind = EXPR_EMPTY});
}

uint32_t expr_never(struct exprs *e)
{
    return add(e, (struct expr){.kind = EXPR_NEVER, .n_states = 1});
}

static bool make_slots(struct exprs *e, uint32_t **slots)
{
    if (!*slots && !(*slots = calloc(EXPR_SLOTS, sizeof **slots)))
        expr_fail(e, ERR_NOMEM);
    return *slots != NULL;
}

uint32_t expr_byte(struct exprs *e, const struct byte_set *set)
{
    uint64_t h = 0;
    uint32_t i = 0;

    if (!make_slots(e, &e->set_slots))
        return EXPR_FAILED;
    for (int w = 0; w < 4; w++)
        h = (h ^ set->bits[w]) * 0x9E3779B97F4A7C15u;
    uint32_t at = (uint32_t)(h >> 40) % EXPR_SLOTS;
    while ((i = e->set_slots[at]) && memcmp(&e->sets[i - 1], set, sizeof *set) != 0)
        at = (at + 1) % EXPR_SLOTS;
    if (i == 0) {
        if (!grow(e, (void **)&e->sets, e->n_sets, &e->sets_cap, EXPR_SETS_MAX, sizeof *set))
            return EXPR_FAILED;
        e->sets[e->n_sets++] = *set;
        i = e->set_slots[at] = e->n_sets;
    }
    i--;
    return add(e, (struct expr){.kind = EXPR_BYTE, .a = i, .n_states = 1});
}

/* Estimates end at N_STATES_MAX. */
static uint32_t sum_of(const struct exprs *e, uint32_t a, uint32_t b)
{
    uint32_t n = e->v[a].n_states + e->v[b].n_states + 1;

    return n < N_STATES_MAX ? n : N_STATES_MAX;
}

uint32_t expr_seq(struct exprs *e, uint32_t a, uint32_t b)
{
    if (a == EXPR_FAILED || b == EXPR_FAILED)
        return EXPR_FAILED;
    if (e->v[a].kind == EXPR_EMPTY)
        return b;
    if (e->v[b].kind == EXPR_EMPTY)
        return a;
    return add(e, (struct expr){.kind = EXPR_SEQ, .a = a, .b = b, .n_states = sum_of(e, a, b) - 1});
}

uint32_t expr_seq3(struct exprs *e, uint32_t a, uint32_t b, uint32_t c)
{
    return expr_seq(e, expr_seq(e, a, b), c);
}

uint32_t expr_alt(struct exprs *e, uint32_t a, uint32_t b)
{
    if (a == EXPR_FAILED || b == EXPR_FAILED)
        return EXPR_FAILED;
    if (e->v[a].kind == EXPR_NEVER)
        return b;
    if (e->v[b].kind == EXPR_NEVER)
        return a;
    return add(e, (struct expr){.kind = EXPR_ALT, .a = a, .b = b, .n_states = sum_of(e, a, b)});
}

uint32_t expr_repeat(struct exprs *e, uint32_t a, uint32_t min, uint32_t max)
{
    if (a == EXPR_FAILED || min > max)
        return expr_fail(e, ERR_INVALID);
    uint64_t n = (uint64_t)e->v[a].n_states * ((max == EXPR_MANY ? min : max) + 1);
    return add(e, (struct expr){.kind = EXPR_REPEAT,
                                .a = a,
                                .min = min,
                                .max = max,
                                .n_states = n < N_STATES_MAX ? (uint32_t)n + 1 : N_STATES_MAX});
}

uint32_t expr_text(struct exprs *e, const char *text, size_t len)
{
    uint32_t all = expr_empty(e);

    for (size_t i = 0; i < len; i++) {
        struct byte_set one = {{0}};
        byte_set_add(&one, (uint8_t)text[i]);
        all = expr_seq(e, all, expr_byte(e, &one));
    }
    return all;
}

uint32_t expr_cstr(struct exprs *e, const char *text)
{
    return expr_text(e, text, strlen(text));
}

uint32_t expr_new_rule(struct exprs *e)
{
    if (e->status != OK ||
        !grow(e, (void **)&e->rules, e->n_rules, &e->rules_cap, EXPR_RULES_MAX, sizeof *e->rules))
        return EXPR_FAILED;
    e->rules[e->n_rules] = EXPR_FAILED;
    return e->n_rules++;
}

void expr_define(struct exprs *e, uint32_t rule, uint32_t expr)
{
    if (rule != EXPR_FAILED)
        e->rules[rule] = expr;
}

uint32_t expr_rule(struct exprs *e, uint32_t rule)
{
    if (rule == EXPR_FAILED)
        return EXPR_FAILED;
    return add(e, (struct expr){.kind = EXPR_RULE, .a = rule, .n_states = 1});
}

/* --- classes --- */

static int by_first(const void *a, const void *b)
{
    uint32_t x = ((const struct code_range *)a)->first, y = ((const struct code_range *)b)->first;

    return (x > y) - (x < y);
}

/* Sort and join the ranges, without surrogates. Return their new number. */
static size_t tidy(struct code_range *r, size_t n)
{
    size_t out = 0;

    qsort(r, n, sizeof *r, by_first);
    for (size_t i = 0; i < n; i++) {
        if (r[i].last > CODE_MAX)
            r[i].last = CODE_MAX;
        if (r[i].first > r[i].last)
            continue;
        if (out > 0 && r[i].first <= r[out - 1].last + 1) {
            if (r[i].last > r[out - 1].last)
                r[out - 1].last = r[i].last;
        } else {
            r[out++] = r[i];
        }
    }
    return out;
}

/* The gaps between the tidy ranges [n]; out has room for n + 1. */
static size_t invert(const struct code_range *r, size_t n, struct code_range *out)
{
    uint32_t next = 0;
    size_t n_out = 0;

    for (size_t i = 0; i < n; i++) {
        if (r[i].first > next)
            out[n_out++] = (struct code_range){next, r[i].first - 1};
        next = r[i].last + 1;
    }
    if (next <= CODE_MAX)
        out[n_out++] = (struct code_range){next, CODE_MAX};
    return n_out;
}

static uint32_t byte_range(struct exprs *e, uint32_t first, uint32_t last)
{
    struct byte_set set = {{0}};

    for (uint32_t b = first; b <= last; b++)
        byte_set_add(&set, (uint8_t)b);
    return expr_byte(e, &set);
}

static uint32_t n_bytes_of(uint32_t code)
{
    return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
}

/* The byte sequences of the numbers from first to last, written as a byte with the bits `lead` set
 * and n continuation bytes: cut into parts whose bytes are independent ranges. */
static uint32_t cut(struct exprs *e, uint32_t first, uint32_t last, uint32_t n, uint32_t lead)
{
    uint32_t shift = 6 * n, mask = (1u << shift) - 1;
    uint32_t low = first >> shift, high = last >> shift;

    if (n == 0)
        return byte_range(e, lead | first, lead | last);
    if (low != high) {
        if (first & mask) /* the part with the first lead byte */
            return expr_alt(e, cut(e, first, first | mask, n, lead),
                            cut(e, (first | mask) + 1, last, n, lead));
        if ((last & mask) != mask)
            return expr_alt(e, cut(e, first, (last & ~mask) - 1, n, lead),
                            cut(e, last & ~mask, last, n, lead));
        return expr_seq(e, byte_range(e, lead | low, lead | high), cut(e, 0, mask, n - 1, 0x80));
    }
    return expr_seq(e, byte_range(e, lead | low, lead | low),
                    cut(e, first & mask, last & mask, n - 1, 0x80));
}

/* The part of a range whose code points have n_bytes bytes. */
static uint32_t encode_range(struct exprs *e, struct code_range r)
{
    static const uint32_t lasts[] = {0x7f, 0x7ff, 0xffff, CODE_MAX},
                          leads[] = {0, 0xc0, 0xe0, 0xf0};
    uint32_t all = expr_never(e);

    for (uint32_t first = r.first; first <= r.last;) {
        uint32_t n = n_bytes_of(first);
        uint32_t last = r.last < lasts[n - 1] ? r.last : lasts[n - 1];
        if (first < 0xd800 && last >= 0xd800)
            last = 0xd7ff;
        if (first >= 0xd800 && first <= 0xdfff) { /* surrogates */
            first = 0xe000;
            continue;
        }
        if (n > 1)
            all = expr_alt(e, all, cut(e, first, last, n - 1, leads[n - 1]));
        first = last + 1;
    }
    return all;
}

static uint32_t encode(struct exprs *e, const struct code_range *r, size_t n)
{
    struct byte_set ascii = {{0}};
    uint32_t all = expr_never(e);
    bool has_ascii = false;

    for (size_t i = 0; i < n; i++) {
        for (uint32_t c = r[i].first; c <= r[i].last && c < 0x80; c++) {
            byte_set_add(&ascii, (uint8_t)c);
            has_ascii = true;
        }
        all = expr_alt(e, all, encode_range(e, r[i]));
    }
    return has_ascii ? expr_alt(e, expr_byte(e, &ascii), all) : all;
}

static uint64_t hash_of(const struct code_range *r, size_t n)
{
    uint64_t h = 0x9E3779B97F4A7C15u;

    for (size_t i = 0; i < n; i++)
        h = (h ^ ((uint64_t)r[i].first << 32 | r[i].last)) * 0x94D049BB133111EBu;
    return h;
}

/* The place of a class among the slots: the one that has it, or a free one. */
static uint32_t class_slot(const struct exprs *e, const struct code_range *r, size_t n)
{
    uint64_t hash = hash_of(r, n);
    uint32_t at = (uint32_t)(hash >> 40) % EXPR_SLOTS, i;

    while ((i = e->class_slots[at])) {
        const struct code_rule *c = &e->classes[i - 1];
        if (c->hash == hash && c->n == n && memcmp(c->ranges, r, n * sizeof *r) == 0)
            break;
        at = (at + 1) % EXPR_SLOTS;
    }
    return at;
}

/* The same class again is the same rule. */
static uint32_t class_rule(struct exprs *e, const struct code_range *r, size_t n, uint32_t expr)
{
    uint32_t at = class_slot(e, r, n);

    if (!grow(e, (void **)&e->classes, e->n_classes, &e->classes_cap, EXPR_CLASSES_MAX,
              sizeof *e->classes))
        return EXPR_FAILED;
    struct code_range *copy = malloc((n ? n : 1) * sizeof *copy);
    uint32_t rule = expr_new_rule(e);
    if (!copy || rule == EXPR_FAILED) {
        free(copy);
        return expr_fail(e, ERR_NOMEM);
    }
    memcpy(copy, r, n * sizeof *r);
    expr_define(e, rule, expr);
    e->classes[e->n_classes++] = (struct code_rule){hash_of(r, n), copy, n, rule};
    e->class_slots[at] = e->n_classes;
    return expr_rule(e, rule);
}

/* The class of the tidy ranges [n]. */
static uint32_t class_of(struct exprs *e, const struct code_range *r, size_t n)
{
    if (!make_slots(e, &e->class_slots))
        return EXPR_FAILED;
    uint32_t known = e->class_slots[class_slot(e, r, n)];
    if (known)
        return expr_rule(e, e->classes[known - 1].rule);
    uint32_t x = encode(e, r, n);
    return x != EXPR_FAILED && e->v[x].n_states > CLASS_STATES ? class_rule(e, r, n, x) : x;
}

uint32_t expr_class(struct exprs *e, const struct code_range *ranges, size_t n, bool negated)
{
    struct code_range *r = NULL, *other = NULL;
    uint32_t x = EXPR_FAILED;

    if (n > RANGES_MAX)
        return expr_fail(e, ERR_TOO_LARGE);
    r = malloc((n + 1) * sizeof *r);
    other = malloc((n + 2) * sizeof *other);
    if (r && other) {
        if (n > 0)
            memcpy(r, ranges, n * sizeof *r);
        n = tidy(r, n);
        if (negated)
            n = invert(r, n, other);
        x = class_of(e, negated ? other : r, n);
    } else {
        expr_fail(e, ERR_NOMEM);
    }
    free(r);
    free(other);
    return x;
}

/* --- lengths --- */

#define COUNT_DEPTH_MAX 1000u
#define COUNT_VISITS_MAX 100000u

struct chars {
    uint64_t least, most;
};

#define CHARS_MANY ((uint64_t)EXPR_MANY)

static uint64_t times(uint64_t a, uint64_t b)
{
    if (a == 0 || b == 0)
        return 0;
    return a >= CHARS_MANY || b >= CHARS_MANY || a * b > CHARS_MANY ? CHARS_MANY : a * b;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
    return a + b < CHARS_MANY ? a + b : CHARS_MANY;
}

/* A byte that only goes on with a character counts nothing. */
static bool begins_character(const struct byte_set *s)
{
    return s->bits[0] || s->bits[1] || s->bits[3];
}

static bool count_chars(const struct exprs *e, uint32_t x, uint32_t depth, uint32_t *n_left,
                        struct chars *out)
{
    const struct expr *v = &e->v[x];
    struct chars a = {0, 0}, b = {0, 0};
    bool is_pair = v->kind == EXPR_SEQ || v->kind == EXPR_ALT;
    bool has_a = is_pair || v->kind == EXPR_REPEAT || v->kind == EXPR_RULE;
    uint32_t inner = v->kind == EXPR_RULE ? e->rules[v->a] : v->a;

    if (depth == COUNT_DEPTH_MAX || (*n_left)-- == 0 || (has_a && inner == EXPR_FAILED))
        return *n_left = 0, false;
    if (has_a && !count_chars(e, inner, depth + 1, n_left, &a))
        return false;
    if (is_pair && !count_chars(e, v->b, depth + 1, n_left, &b))
        return false;
    switch (v->kind) {
    case EXPR_NEVER: return *n_left = 0, false;
    case EXPR_EMPTY: *out = a; break;
    case EXPR_BYTE:
        a.least = a.most = begins_character(&e->sets[v->a]);
        *out = a;
        break;
    case EXPR_RULE: *out = a; break;
    case EXPR_SEQ: *out = (struct chars){plus(a.least, b.least), plus(a.most, b.most)}; break;
    case EXPR_ALT:
        *out = (struct chars){a.least < b.least ? a.least : b.least,
                              a.most > b.most ? a.most : b.most};
        break;
    case EXPR_REPEAT: *out = (struct chars){times(a.least, v->min), times(a.most, v->max)}; break;
    }
    return true;
}

bool exprs_count_chars(const struct exprs *e, uint32_t x, uint32_t *least, uint32_t *most)
{
    uint32_t n_left = COUNT_VISITS_MAX;
    struct chars c;

    if (exprs_status(e) != OK || !count_chars(e, x, 0, &n_left, &c))
        return false;
    *least = (uint32_t)c.least;
    *most = (uint32_t)c.most;
    return true;
}
