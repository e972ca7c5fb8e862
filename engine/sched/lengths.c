#include "engine/sched/lengths.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/save_file.h"

/* Bins of lengths: one for each length below N_EXACT, then N_PER_OCTAVE in each octave. */
#define EXACT_LOG2 4
#define N_EXACT (1u << EXACT_LOG2)
#define PER_OCTAVE_LOG2 3
#define LENGTH_LOG2_MAX 20
#define N_BINS (N_EXACT - 1 + ((LENGTH_LOG2_MAX - EXACT_LOG2) << PER_OCTAVE_LOG2))
/* Share of the fixed distribution in every answer, so that no length is impossible. */
#define PRIOR_SHARE 1e-6
/* The fixed distribution ends here. */
#define PRIOR_MAX 8192
/* Answers as which the fixed distribution counts at the start. */
#define PRIOR_ANSWERS 10
/* Weights are divided by this when the weight of a new answer exceeds it. */
#define WEIGHT_MAX 1e6
/* A class is mixed again when so many answers have ended, in all classes. */
#define STALE_AFTER 8

#define N_ROOTS 2 /* of calls and of programs */
#define N_DEPTHS 5
#define NO_CLASS UINT32_MAX
#define N_BANDS 34
#define FILE_BYTES_MAX (1u << 20)
#define COUNT_MAX 1e9 /* of a bin in a file */

struct class
{
    uint64_t key;
    uint32_t parent; /* NO_CLASS: a root */
    uint32_t n_refs; /* children, and callers of lengths_enter() */
    uint64_t t_used; /* n_entered at its last use */
    uint32_t depth;  /* 0: a root */
    uint32_t band;   /* of max_tokens, as in path_of(), at depth 1 */
    uint64_t n_ever; /* answers noted */
    double weight;   /* of the next answer */
    double sum;      /* of the counts */
    float counts[N_BINS];
    /* The counts mixed with the parent's distribution; the sum is 1. */
    double mixed[N_BINS];
    uint64_t mixed_at; /* n_noted */
    bool is_mixed;
};

struct lengths {
    struct map index;
    struct class *classes; /* [LENGTHS_N_CLASSES_MAX] */
    uint32_t n_classes;
    uint64_t n_noted, n_entered;
    double growth; /* of the weight from one answer to the next */
    double prior[N_BINS];
    /* Of each bin: the middle, its inverse, and the last length. */
    double middle[N_BINS], inverse[N_BINS], last[N_BINS];
    bool is_frozen;
    double (
        *scratch)[N_BINS]; /* [N_DEPTHS] distributions of a class and its parents, while frozen */
};

/* --- bins --- */

static uint32_t bin_of(uint32_t n)
{
    uint32_t octave;

    if (n < N_EXACT)
        return n > 0 ? n - 1 : 0;
    if (n >= 1u << LENGTH_LOG2_MAX)
        return N_BINS - 1;
    octave = 31 - (uint32_t)__builtin_clz(n);
    return N_EXACT - 1 + ((octave - EXACT_LOG2) << PER_OCTAVE_LOG2) +
           ((n - (1u << octave)) >> (octave - PER_OCTAVE_LOG2));
}

static uint32_t bin_first(uint32_t bin)
{
    uint32_t i, octave;

    if (bin < N_EXACT - 1)
        return bin + 1;
    i = bin - (N_EXACT - 1);
    octave = EXACT_LOG2 + (i >> PER_OCTAVE_LOG2);
    return (1u << octave) + ((i & ((1u << PER_OCTAVE_LOG2) - 1)) << (octave - PER_OCTAVE_LOG2));
}

static uint32_t bin_last(uint32_t bin)
{
    return bin_first(bin + 1) - 1;
}

uint32_t lengths_step(uint32_t n_generated)
{
    return bin_of(n_generated + 1);
}

/* --- classes --- */

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

static uint32_t band(uint32_t n)
{
    return n ? 32 - (uint32_t)__builtin_clz(n) : 0;
}

static uint64_t band_key(uint64_t root, uint32_t limit_band)
{
    return mix(root + N_ROOTS, limit_band);
}

static uint32_t limit_band(const struct length_traits *t)
{
    return t->has_limit ? 1 + band(t->n_out_max) : 0;
}

/* The keys of the classes from the root to the deepest one. */
static void path_of(uint64_t keys[N_DEPTHS], const struct length_traits *t)
{
    keys[0] = t->kind == LENGTH_PROGRAM;
    keys[1] = band_key(keys[0], limit_band(t));
    keys[2] = mix(keys[1], t->tenant);
    keys[3] = mix(keys[2], (uint64_t)t->kind << 32 | band(t->n_prompt) / 2);
    keys[4] = mix(keys[3], bin_of(t->n_prompt) / 2); /* a quarter of an octave */
}

static void init_class(struct lengths *l, uint32_t i, uint64_t key, uint32_t parent)
{
    struct class *c = &l->classes[i];

    memset(c, 0, sizeof *c);
    c->key = key;
    c->parent = parent;
    c->depth = parent == NO_CLASS ? 0 : l->classes[parent].depth + 1;
    c->weight = 1;
    map_put(&l->index, key, i);
    if (parent != NO_CLASS) {
        l->classes[parent].n_refs++;
        return;
    }
    for (uint32_t b = 0; b < N_BINS; b++)
        c->counts[b] = (float)(l->prior[b] * PRIOR_ANSWERS);
    c->sum = PRIOR_ANSWERS;
}

/* The unused class that was used longest ago; NO_CLASS: there is none. */
static uint32_t find_unused(const struct lengths *l)
{
    uint32_t found = NO_CLASS;

    for (uint32_t i = N_ROOTS; i < l->n_classes; i++)
        if (l->classes[i].n_refs == 0 &&
            (found == NO_CLASS || l->classes[i].t_used < l->classes[found].t_used))
            found = i;
    return found;
}

static uint32_t new_class(struct lengths *l, uint64_t key, uint32_t parent)
{
    uint32_t i = l->n_classes;

    l->classes[parent].n_refs++; /* find_unused() must not return the parent */
    if (i < LENGTHS_N_CLASSES_MAX) {
        l->n_classes++;
    } else {
        i = find_unused(l);
        if (i != NO_CLASS) {
            l->classes[l->classes[i].parent].n_refs--;
            ASSERT(map_remove(&l->index, l->classes[i].key));
        }
    }
    l->classes[parent].n_refs--;
    if (i != NO_CLASS)
        init_class(l, i, key, parent);
    return i;
}

uint32_t lengths_class(const struct lengths *l, const struct length_traits *t)
{
    uint64_t keys[N_DEPTHS];
    uint32_t class = 0, next;

    path_of(keys, t);
    for (uint32_t depth = 0; depth < N_DEPTHS && map_get(&l->index, keys[depth], &next); depth++)
        class = next;
    return class;
}

uint32_t lengths_enter(struct lengths *l, const struct length_traits *t)
{
    uint64_t keys[N_DEPTHS];
    uint32_t class = NO_CLASS, next;

    path_of(keys, t);
    l->n_entered++;
    for (uint32_t depth = 0; depth < N_DEPTHS; depth++) {
        if (!map_get(&l->index, keys[depth], &next)) {
            next = new_class(l, keys[depth], class);
            if (next == NO_CLASS)
                break;
            l->classes[next].band = limit_band(t);
        }
        class = next;
        l->classes[class].t_used = l->n_entered;
    }
    l->classes[class].n_refs++;
    return class;
}

void lengths_leave(struct lengths *l, uint32_t class)
{
    ASSERT(class < l->n_classes && l->classes[class].n_refs > 0);
    l->classes[class].n_refs--;
}

/* --- life --- */

/* The same mass in each octave. */
static void make_prior(struct lengths *l)
{
    double sum = 0;

    for (uint32_t b = 0; b < N_BINS && bin_first(b) <= PRIOR_MAX; b++)
        sum += l->prior[b] = log2((bin_last(b) + 1.0) / bin_first(b));
    for (uint32_t b = 0; b < N_BINS; b++)
        l->prior[b] /= sum;
}

enum status lengths_create(struct lengths **out)
{
    struct lengths *l = calloc(1, sizeof *l);
    enum status s = l ? map_init(&l->index, LENGTHS_N_CLASSES_MAX) : ERR_NOMEM;

    *out = NULL;
    if (s == OK) {
        l->classes = memory_zeroed(LENGTHS_N_CLASSES_MAX, sizeof *l->classes);
        l->scratch = memory_zeroed(N_DEPTHS, sizeof *l->scratch);
        s = l->classes && l->scratch ? OK : ERR_NOMEM;
    }
    if (s != OK) {
        lengths_destroy(l);
        return s;
    }
    l->growth = exp2(1.0 / LENGTHS_HALF_LIFE);
    make_prior(l);
    for (uint32_t b = 0; b < N_BINS; b++) {
        l->middle[b] = (bin_first(b) + bin_last(b)) * 0.5;
        l->inverse[b] = 1 / l->middle[b];
        l->last[b] = bin_last(b);
    }
    for (uint32_t i = 0; i < N_ROOTS; i++)
        init_class(l, i, i, NO_CLASS);
    l->n_classes = N_ROOTS;
    *out = l;
    return OK;
}

void lengths_destroy(struct lengths *l)
{
    if (!l)
        return;
    map_fini(&l->index);
    free(l->classes);
    free(l->scratch);
    free(l);
}

/* --- learning --- */

/* Keep the weights small. Weights that become 0 are of answers long faded. */
static void rescale(struct class *c)
{
    c->sum = 0;
    for (uint32_t b = 0; b < N_BINS; b++) {
        c->counts[b] /= (float)WEIGHT_MAX;
        c->sum += (double)c->counts[b];
    }
    c->weight /= WEIGHT_MAX;
}

void lengths_note(struct lengths *l, uint32_t class, uint32_t n_tokens)
{
    uint32_t bin = bin_of(n_tokens);

    ASSERT(class < l->n_classes);
    for (uint32_t i = class; i != NO_CLASS; i = l->classes[i].parent) {
        struct class *c = &l->classes[i];
        c->counts[bin] += (float)c->weight;
        c->sum += c->weight;
        c->weight *= l->growth;
        c->n_ever++;
        if (c->weight > WEIGHT_MAX)
            rescale(c);
    }
    l->n_noted++;
}

uint64_t lengths_n_noted(const struct lengths *l)
{
    return l->n_noted;
}

/* The distribution of a class, which a few answers may have changed since. */
static const double *distribution(const struct lengths *l, uint32_t class)
{
    struct class *c = &l->classes[class];

    if (c->is_mixed && l->n_noted - c->mixed_at < STALE_AFTER)
        return c->mixed;
    const double *below = c->parent == NO_CLASS ? l->prior : distribution(l, c->parent);
    double lean = c->parent == NO_CLASS ? c->sum * PRIOR_SHARE : LENGTHS_LEAN * c->weight;
    double *mixed = l->is_frozen ? l->scratch[c->depth] : c->mixed;
    for (uint32_t b = 0; b < N_BINS; b++)
        mixed[b] = ((double)c->counts[b] + lean * below[b]) / (c->sum + lean);
    if (l->is_frozen)
        return mixed;
    c->is_mixed = true;
    c->mixed_at = l->n_noted;
    return mixed;
}

void lengths_freeze(struct lengths *l, bool is_frozen)
{
    l->is_frozen = is_frozen;
}

/* --- answers --- */

/* The mass of the answers longer than n_generated, which is at the lower end of its bin. */
static double mass_from(const double *mixed, uint32_t bin)
{
    double mass = 0;

    for (uint32_t b = bin; b < N_BINS; b++)
        mass += mixed[b];
    return mass;
}

double lengths_mean_left(const struct lengths *l, uint32_t class, uint32_t n_generated)
{
    const double *mixed = distribution(l, class);
    uint32_t first = bin_of(n_generated + 1);
    double mass = mass_from(mixed, first), sum = 0;

    for (uint32_t b = first; b < N_BINS; b++)
        sum += mixed[b] * l->middle[b];
    return mass > 0 ? fmax(1, sum / mass - (bin_first(first) - 1)) : n_generated + 1.0;
}

double lengths_quantile_left(const struct lengths *l, uint32_t class, uint32_t n_generated,
                             double p)
{
    const double *mixed = distribution(l, class);
    uint32_t b = bin_of(n_generated + 1);
    double left = mass_from(mixed, b) * p;

    while (b + 1 < N_BINS && left > mixed[b])
        left -= mixed[b++];
    return fmax(1, (double)bin_last(b) - n_generated);
}

double lengths_rank(const struct lengths *l, uint32_t class, uint32_t n_generated, double prefill,
                    enum latency_objective objective)
{
    const double *mixed = distribution(l, class);
    uint32_t first = bin_of(n_generated + 1);
    double behind = mass_from(mixed, first), had = bin_first(first) - 1.0;
    double cost = prefill * behind, gain = 0, rank = DBL_MAX;

    for (uint32_t b = first; b < N_BINS; b++) {
        double m = mixed[b];
        behind -= m;
        cost += m * (l->middle[b] - had);
        gain += objective == OBJECTIVE_NORMALIZED ? m * l->inverse[b] : m;
        double best = cost + (behind > 0 ? behind : 0) * (l->last[b] - had);
        if (best < rank * gain)
            rank = best / gain;
    }
    return fmax(1, rank); /* no such answer was ever seen */
}

/* --- file --- */

static bool is_kept(const struct class *c)
{
    return c->depth < 2 && c->sum > 0;
}

/* The counts in units of the next answer's weight. */
static enum status write_class(struct buf *out, const struct class *c)
{
    enum status s;
    bool is_first = true;

    if (c->depth == 0)
        s = buf_printf(out, "{\"programs\":%s,\"counts\":[", c->key ? "true" : "false");
    else
        s = buf_printf(out, "{\"programs\":%s,\"band\":%u,\"counts\":[",
                       c->parent ? "true" : "false", c->band);
    for (uint32_t b = 0; s == OK && b < N_BINS; b++) {
        double n = (double)c->counts[b] / c->weight;
        if (n < 1e-3)
            continue;
        s = buf_printf(out, "%s[%u,%.6g]", is_first ? "" : ",", b, n);
        is_first = false;
    }
    return s == OK ? buf_printf(out, "]}") : s;
}

enum status lengths_write(struct buf *out, const struct lengths *l, const uint8_t fingerprint[32])
{
    char hex[65];
    enum status s;
    bool is_first = true;

    hash_hex(hex, fingerprint, 32);
    s = buf_printf(out, "{\"format\":1,\"model\":\"%s\",\"classes\":[", hex);
    for (uint32_t i = 0; s == OK && i < l->n_classes; i++) {
        if (!is_kept(&l->classes[i]))
            continue;
        s = is_first ? OK : buf_printf(out, ",\n");
        if (s == OK)
            s = write_class(out, &l->classes[i]);
        is_first = false;
    }
    return s == OK ? buf_printf(out, "]}\n") : s;
}

static enum status read_counts(struct class *c, const struct json *counts, struct buf *why)
{
    memset(c->counts, 0, sizeof c->counts);
    c->sum = 0;
    for (size_t i = 0; i < js_len(counts); i++) {
        const struct json *bin = js_at(js_at(counts, i), 0), *n = js_at(js_at(counts, i), 1);
        bool is_number = js_is(n, JS_INT) || js_is(n, JS_REAL);

        if (!js_is(bin, JS_INT) || js_int(bin) < 0 || js_int(bin) >= (int64_t)N_BINS ||
            !is_number || !(js_number(n) >= 0 && js_number(n) <= COUNT_MAX))
            return buf_why(why, ERR_INVALID, "counts[%zu]: expected [bin below %u, count]", i,
                           N_BINS);
        c->sum += js_number(n) - (double)c->counts[js_int(bin)];
        c->counts[js_int(bin)] = (float)js_number(n);
    }
    return c->sum > 0 ? OK : buf_why(why, ERR_INVALID, "counts: expected some above 0");
}

static enum status read_class(struct lengths *l, const struct json *j, struct buf *why)
{
    bool programs = false;
    int64_t of_band = -1;
    enum status s = js_get_bool(j, "programs", &programs, why);

    if (s == OK)
        s = js_get_i64(j, "band", 0, N_BANDS, &of_band, why);
    if (s != OK)
        return s;
    uint32_t i = programs;
    if (of_band >= 0) {
        uint64_t key = band_key(programs, (uint32_t)of_band);
        if (!map_get(&l->index, key, &i))
            i = new_class(l, key, programs);
        if (i == NO_CLASS)
            return OK; /* the file has more classes than fit */
        l->classes[i].band = (uint32_t)of_band;
    }
    return read_counts(&l->classes[i], js_get(j, "counts"), why);
}

static enum status read_root(struct lengths *l, const struct json *root,
                             const uint8_t fingerprint[32], struct buf *why)
{
    const struct json *classes = js_get(root, "classes");
    const char *model = "";
    int64_t format = 0;
    char hex[65];
    enum status s = js_is(root, JS_OBJECT) ? OK : buf_why(why, ERR_INVALID, "expected an object");

    if (s == OK)
        s = js_get_i64(root, "format", 0, INT64_MAX, &format, why);
    if (s == OK)
        s = js_get_str(root, "model", &model, NULL, why);
    if (s != OK)
        return s;
    hash_hex(hex, fingerprint, 32);
    if (format != 1 || strcmp(model, hex) != 0)
        return buf_why(why, ERR_NOT_FOUND, "the file is for another %s",
                       format != 1 ? "version" : "model");
    if (!js_is(classes, JS_ARRAY))
        return buf_why(why, ERR_INVALID, "classes: expected an array");
    for (size_t i = 0; s == OK && i < js_len(classes); i++)
        s = read_class(l, js_at(classes, i), why);
    return s;
}

/* Replace *l by a new one that the file fills. No caller holds a class yet. */
static enum status fill(struct lengths *l, const struct json *root, const uint8_t fingerprint[32],
                        struct buf *why)
{
    struct lengths *fresh;
    enum status s = lengths_create(&fresh);

    if (s != OK)
        return s;
    s = read_root(fresh, root, fingerprint, why);
    if (s == OK) {
        struct lengths old = *l;
        *l = *fresh;
        *fresh = old;
    }
    lengths_destroy(fresh);
    return s;
}

enum status lengths_read(struct lengths *l, const char *text, size_t len,
                         const uint8_t fingerprint[32], struct buf *why)
{
    struct json *root;
    enum status s = js_parse(&root, text, len, why);

    if (s != OK)
        return s;
    s = fill(l, root, fingerprint, why);
    js_unref(root);
    return s;
}

static enum status file_name(char path[PATH_MAX], const char *dir, const uint8_t fingerprint[32],
                             struct buf *why)
{
    char hex[65];

    hash_hex(hex, fingerprint, 32);
    if (snprintf(path, PATH_MAX, "%s/lengths-%.16s.json", dir, hex) >= PATH_MAX)
        return buf_why(why, ERR_INVALID, "%s: the path is too long", dir);
    return OK;
}

enum status lengths_save(const struct lengths *l, const char *dir, const uint8_t fingerprint[32],
                         struct buf *why)
{
    char path[PATH_MAX];
    struct buf text;
    enum status s = file_name(path, dir, fingerprint, why);

    if (s != OK)
        return s;
    buf_init(&text, FILE_BYTES_MAX);
    s = lengths_write(&text, l, fingerprint);
    if (s == OK)
        s = save_file(path, &text, why);
    buf_fini(&text);
    return s;
}

enum status lengths_load(struct lengths *l, const char *dir, const uint8_t fingerprint[32],
                         struct buf *why)
{
    char path[PATH_MAX];
    struct json *root;
    enum status s = file_name(path, dir, fingerprint, why);

    if (s == OK)
        s = js_parse_file(&root, path, FILE_BYTES_MAX, why);
    if (s != OK)
        return s;
    s = fill(l, root, fingerprint, why);
    js_unref(root);
    return s;
}
