/* grammar.c - grammars, the masks that were computed for them, and runs.
 *
 * A cache is a machine and the mask of each configuration that was asked for. Runs of a grammar
 * share its cache. When a cache is large, later runs begin with a new one, and the old one goes
 * with its last run. */
#include "engine/grammar/grammar.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/grammar/front.h"
#include "engine/grammar/machine.h"
#include "engine/grammar/states.h"
#include "engine/grammar/vocab.h"

#define LOOP_BYTES_MIN 60u /* ASCII characters of a loop for which a loop set is made */
#define LOOP_STEPS_MAX 16u /* looked at, where they do not lead back */
#define MASK_BYTES_MAX ((size_t)64 << 20)

/* The tokens that may come in a configuration: those of a loop set and of a list, or a mask. */
struct mask {
    const struct vocab_loop *loop; /* may be NULL */
    uint32_t *ids;                 /* [n] */
    uint32_t n;
    uint32_t *words; /* [n_words], instead of both; NULL: none */
    bool is_known;
};

struct grammar_cache {
    atomic_uint refs;
    struct machine *machine;
    struct mask *masks[2]; /* [n_masks] by configuration: of later tokens, of a first token */
    uint32_t n_masks;
    size_t n_bytes; /* of masks */
};

struct grammar {
    atomic_uint refs;
    struct grammar_vocab *vocab;
    struct states states;
    pthread_mutex_t lock; /* of the pointer, and of every cache of this grammar */
    struct grammar_cache *cache;
    atomic_size_t n_cache_bytes; /* of the cache; read without the lock */
};

/* --- caches; under the lock --- */

static void free_cache(struct grammar_cache *c)
{
    for (uint32_t k = 0; k < 2; k++) {
        for (uint32_t i = 0; c->masks[k] && i < c->n_masks; i++) {
            free(c->masks[k][i].ids);
            free(c->masks[k][i].words);
        }
        free(c->masks[k]);
    }
    machine_destroy(c->machine);
    free(c);
}

static void drop_cache(struct grammar_cache *c)
{
    if (c && atomic_fetch_sub(&c->refs, 1) == 1)
        free_cache(c);
}

static void note_bytes(struct grammar *g)
{
    const struct grammar_cache *c = g->cache;
    size_t n = 2 * c->n_masks * sizeof **c->masks + c->n_bytes + machine_bytes(c->machine);

    atomic_store(&g->n_cache_bytes, n);
}

static enum status new_cache(struct grammar_cache **out, const struct states *st)
{
    struct grammar_cache *c = calloc(1, sizeof *c);
    enum status s = c ? machine_create(&c->machine, st) : ERR_NOMEM;

    if (s == OK) {
        atomic_init(&c->refs, 1);
        *out = c;
    } else {
        free(c);
    }
    return s;
}

/* --- masks; under the lock --- */

/* Characters that all lead from a configuration to one other. */
struct loop {
    struct loop_set set;
    uint32_t n_ascii, to;
};

struct walk {
    struct machine *m;
    uint32_t *words; /* tokens that were found, or NULL: only their list */
    uint32_t *ids;   /* [n] */
    uint32_t n, cap;
};

static enum status add_ids(struct walk *w, const uint32_t *ids, uint32_t n)
{
    if (w->n + n > w->cap) {
        uint32_t cap = 2 * (w->n + n) + 64;
        uint32_t *more = realloc(w->ids, cap * sizeof *more);
        if (!more)
            return ERR_NOMEM;
        w->ids = more;
        w->cap = cap;
    }
    memcpy(w->ids + w->n, ids, n * sizeof *ids);
    w->n += n;
    return OK;
}

/* List the tokens of a tree whose bytes go on from a configuration. */
static enum status walk_tree(struct walk *w, const struct token_tree *t, uint32_t config)
{
    uint32_t at[TOKEN_BYTES_MAX + 1]; /* configurations by depth */
    enum status s = OK;

    at[0] = config;
    for (uint32_t i = 0; s == OK && i < t->n_nodes;) {
        const struct token_node *n = &t->nodes[i];
        uint32_t to;
        s = machine_step(w->m, at[n->depth], n->byte, &to);
        if (s != OK)
            return s;
        if (to == MACHINE_DEAD) {
            i += n->n_below;
            continue;
        }
        at[n->depth + 1] = to;
        if (n->n_ids)
            s = add_ids(w, t->ids + n->first_id, n->n_ids);
        i++;
    }
    return s;
}

/* Whether all bytes from first to last lead from `from` to `to`. */
static enum status all_lead(struct machine *m, uint32_t from, uint32_t first, uint32_t last,
                            uint32_t to, bool *yes)
{
    enum status s = OK;

    for (uint32_t b = first; s == OK && *yes && b <= last; b++) {
        uint32_t next;
        s = machine_step(m, from, (uint8_t)b, &next);
        *yes = s == OK && next == to;
    }
    return s;
}

/* The configuration to which `byte` leads; DEAD clears *yes. */
static enum status lead(struct machine *m, uint32_t from, uint8_t byte, uint32_t *to, bool *yes)
{
    enum status s = *yes ? machine_step(m, from, byte, to) : OK;

    *yes = *yes && s == OK && *to != MACHINE_DEAD;
    return s;
}

/* Whether every character of several bytes leads from c to `to` (Unicode 15, table 3-7: the
 * well-formed sequences). */
static enum status others_lead(struct machine *m, uint32_t c, uint32_t to, bool *yes)
{
    static const struct {
        uint8_t lead_first, lead_last, second_first, second_last, n_more;
    } rows[] = {{0xc2, 0xdf, 0x80, 0xbf, 0}, {0xe0, 0xe0, 0xa0, 0xbf, 1},
                {0xe1, 0xec, 0x80, 0xbf, 1}, {0xed, 0xed, 0x80, 0x9f, 1},
                {0xee, 0xef, 0x80, 0xbf, 1}, {0xf0, 0xf0, 0x90, 0xbf, 2},
                {0xf1, 0xf3, 0x80, 0xbf, 2}, {0xf4, 0xf4, 0x80, 0x8f, 2}};
    enum status s = OK;

    *yes = true;
    for (size_t i = 0; s == OK && *yes && i < ARRAY_SIZE(rows); i++) {
        uint32_t second = 0, third = to, fourth = to;
        s = lead(m, c, rows[i].lead_first, &second, yes);
        if (s == OK && *yes)
            s = all_lead(m, c, rows[i].lead_first, rows[i].lead_last, second, yes);
        if (s == OK && rows[i].n_more > 0)
            s = lead(m, second, rows[i].second_first, &third, yes);
        if (s == OK && *yes)
            s = all_lead(m, second, rows[i].second_first, rows[i].second_last, third, yes);
        if (s == OK && rows[i].n_more > 1)
            s = lead(m, third, 0x80, &fourth, yes);
        if (s == OK && *yes && rows[i].n_more > 0)
            s = all_lead(m, third, 0x80, 0xbf, fourth, yes);
        if (s == OK && *yes && rows[i].n_more > 1)
            s = all_lead(m, fourth, 0x80, 0xbf, to, yes);
    }
    return s;
}

/* The configuration to which most ASCII characters lead, and these characters; false: not many. */
static enum status find_step(struct machine *m, uint32_t config, struct loop *l)
{
    static const uint8_t tried[] = {'a', 'A', '0'};
    enum status s = OK;

    for (size_t i = 0; s == OK && i < ARRAY_SIZE(tried) && l->n_ascii < LOOP_BYTES_MIN; i++) {
        memset(&l->set, 0, sizeof l->set);
        l->n_ascii = 0;
        s = machine_step(m, config, tried[i], &l->to);
        for (uint32_t b = 0; s == OK && l->to != MACHINE_DEAD && b < 0x80; b++) {
            uint32_t to;
            s = machine_step(m, config, (uint8_t)b, &to);
            if (s == OK && to == l->to) {
                byte_set_add(&l->set.ascii, (uint8_t)b);
                l->n_ascii++;
            }
        }
    }
    return s == OK && l->n_ascii >= LOOP_BYTES_MIN ? others_lead(m, config, l->to, &l->set.others)
                                                   : s;
}

/* Find characters that may come in a row from a configuration on, and how many of them: any number,
 * where they lead back to it, else those up to LOOP_STEPS_MAX. */
static enum status find_loop(struct machine *m, uint32_t config, struct loop *first)
{
    struct loop l = {.n_ascii = 0};
    uint32_t n = 1;
    enum status s = find_step(m, config, first);

    if (s != OK || first->n_ascii < LOOP_BYTES_MIN)
        return s;
    for (uint32_t at = config, to = first->to; n < LOOP_STEPS_MAX; n++) {
        if (at == to) {
            n = UINT32_MAX;
            break;
        }
        l = (struct loop){.n_ascii = 0};
        s = find_step(m, to, &l);
        if (s != OK || memcmp(&l.set, &first->set, sizeof l.set) != 0)
            break;
        at = to;
        to = l.to;
    }
    first->set.chars_max = vocab_loop_chars(n);
    return s;
}

static void set_ids(uint32_t *words, const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        words[ids[i] / 32] |= 1u << ids[i] % 32;
}

static enum status keep_mask(const struct grammar *g, struct grammar_cache *c, struct mask *k,
                             struct walk *w)
{
    uint32_t n_words = g->vocab->n_words;

    if (w->n > n_words) { /* a mask is shorter than the list */
        k->words = calloc(n_words, sizeof *k->words);
        if (!k->words)
            return ERR_NOMEM;
        if (k->loop)
            memcpy(k->words, k->loop->mask, n_words * sizeof *k->words);
        set_ids(k->words, w->ids, w->n);
        k->loop = NULL;
        c->n_bytes += n_words * sizeof *k->words;
    } else {
        k->ids = malloc((w->n + 1) * sizeof *k->ids);
        if (!k->ids)
            return ERR_NOMEM;
        if (w->n > 0)
            memcpy(k->ids, w->ids, w->n * sizeof *k->ids);
        k->n = w->n;
        c->n_bytes += w->n * sizeof *k->ids;
    }
    k->is_known = true;
    return OK;
}

static enum status compute_mask(struct grammar *g, struct grammar_cache *c, uint32_t config,
                                bool is_first, struct mask *k)
{
    const struct token_tree *tree = &g->vocab->tree;
    struct walk w = {.m = c->machine};
    struct loop l = {.n_ascii = 0};
    enum status s = OK;

    if (is_first)
        tree = &g->vocab->first;
    else
        s = find_loop(c->machine, config, &l);
    if (s == OK && l.set.chars_max > 0)
        k->loop = vocab_loop(g->vocab, &l.set);
    if (s == OK)
        s = walk_tree(&w, k->loop ? &k->loop->others : tree, config);
    if (s == OK)
        s = keep_mask(g, c, k, &w);
    free(w.ids);
    return s;
}

/* Room for the masks of all configurations so far. */
static enum status mask_room(struct grammar_cache *c)
{
    uint32_t n = machine_n_configs(c->machine);

    if (n <= c->n_masks)
        return OK;
    n += n / 2;
    for (uint32_t i = 0; i < 2; i++) {
        struct mask *more = realloc(c->masks[i], n * sizeof *more);
        if (!more)
            return ERR_NOMEM;
        memset(more + c->n_masks, 0, (n - c->n_masks) * sizeof *more);
        c->masks[i] = more;
    }
    c->n_masks = n;
    return OK;
}

static enum status mask_of(struct grammar *g, struct grammar_cache *c, uint32_t config,
                           bool is_first, struct mask **out)
{
    struct mask k = {0};
    enum status s = mask_room(c);

    machine_renew_budget(c->machine);
    if (s == OK && !c->masks[is_first][config].is_known) {
        s = compute_mask(g, c, config, is_first, &k);
        if (s == OK)
            c->masks[is_first][config] = k;
    }
    if (s == OK)
        *out = &c->masks[is_first][config];
    return s;
}

/* --- runs --- */

enum status grammar_run_init(struct grammar_run *r, struct grammar *g, bool continues)
{
    enum status s = OK;

    *r = (struct grammar_run){0};
    pthread_mutex_lock(&g->lock);
    if (!g->cache || machine_is_large(g->cache->machine) || g->cache->n_bytes > MASK_BYTES_MAX) {
        struct grammar_cache *more = NULL;
        s = new_cache(&more, &g->states);
        if (s == OK) {
            drop_cache(g->cache);
            g->cache = more;
        }
    }
    if (s == OK) {
        atomic_fetch_add(&g->cache->refs, 1);
        *r = (struct grammar_run){.grammar = grammar_ref(g),
                                  .cache = g->cache,
                                  .config = MACHINE_FIRST,
                                  .is_first = !continues && g->vocab->first.n_nodes > 0};
    }
    pthread_mutex_unlock(&g->lock);
    return s;
}

void grammar_run_fini(struct grammar_run *r)
{
    if (r->grammar) {
        pthread_mutex_lock(&r->grammar->lock);
        drop_cache(r->cache);
        pthread_mutex_unlock(&r->grammar->lock);
        grammar_unref(r->grammar);
    }
    *r = (struct grammar_run){0};
}

enum status grammar_run_mask(struct grammar_run *r, const uint32_t *eos_ids, uint32_t n_eos_ids,
                             uint32_t *mask)
{
    struct grammar *g = r->grammar;
    uint32_t n_words = g->vocab->n_words;
    struct mask *k = NULL;
    bool accepts = true;
    enum status s = OK;

    memset(mask, 0, n_words * sizeof *mask);
    if (!r->is_over) {
        pthread_mutex_lock(&g->lock);
        s = mask_of(g, r->cache, r->config, r->is_first, &k);
        if (s == OK) {
            const uint32_t *words = k->words ? k->words : k->loop ? k->loop->mask : NULL;
            if (words)
                memcpy(mask, words, n_words * sizeof *mask);
            set_ids(mask, k->ids, k->n);
            accepts = machine_accepts(r->cache->machine, r->config);
            note_bytes(g);
            if (!accepts && !words && k->n == 0)
                s = ERR_UNSUPPORTED;
        }
        pthread_mutex_unlock(&g->lock);
    }
    if (s == OK && accepts)
        set_ids(mask, eos_ids, n_eos_ids);
    return s;
}

static enum status step_text(struct machine *m, const char *bytes, size_t len, uint32_t *config)
{
    enum status s = OK;

    machine_renew_budget(m);
    for (size_t i = 0; s == OK && i < len && *config != MACHINE_DEAD; i++)
        s = machine_step(m, *config, (uint8_t)bytes[i], config);
    return s;
}

enum status grammar_run_skip(struct grammar_run *r, const char *text)
{
    struct grammar *g = r->grammar;

    pthread_mutex_lock(&g->lock);
    enum status s = step_text(r->cache->machine, text, strlen(text), &r->config);
    pthread_mutex_unlock(&g->lock);
    return s == OK && r->config == MACHINE_DEAD ? ERR_INVALID : s;
}

enum status grammar_run_feed(struct grammar_run *r, const uint32_t *eos_ids, uint32_t n_eos_ids,
                             uint32_t id)
{
    struct grammar *g = r->grammar;
    uint32_t config = r->config;
    size_t len;

    for (uint32_t i = 0; i < n_eos_ids; i++)
        if (id == eos_ids[i]) {
            r->is_over = true;
            return OK;
        }
    const char *bytes = vocab_bytes(g->vocab, id, r->is_first, &len);
    if (r->is_over || len == 0)
        return ERR_INVALID;
    pthread_mutex_lock(&g->lock);
    enum status s = step_text(r->cache->machine, bytes, len, &config);
    pthread_mutex_unlock(&g->lock);
    r->config = config;
    r->is_first = false;
    return s == OK && config == MACHINE_DEAD ? ERR_INVALID : s;
}

enum status grammar_matches(struct grammar *g, const char *text, size_t len, bool *out)
{
    struct grammar_run r;
    enum status s = grammar_run_init(&r, g, true);

    *out = false;
    if (s != OK)
        return s;
    pthread_mutex_lock(&g->lock);
    s = step_text(r.cache->machine, text, len, &r.config);
    *out = s == OK && machine_accepts(r.cache->machine, r.config);
    note_bytes(g);
    pthread_mutex_unlock(&g->lock);
    grammar_run_fini(&r);
    return s;
}

/* --- grammars --- */

static enum status read_source(struct exprs *e, enum grammar_kind kind, const struct json *source,
                               uint32_t *out, struct buf *why);

/* {"begin", "end", "kind", "source"} */
static enum status read_reasoned(struct exprs *e, const struct json *source, uint32_t *out,
                                 struct buf *why)
{
    const char *begin = js_string(js_get(source, "begin"), NULL);
    const char *end = js_string(js_get(source, "end"), NULL);
    enum grammar_kind kind = (enum grammar_kind)js_int(js_get(source, "kind"));
    uint32_t form = EXPR_FAILED;
    enum status s = kind == GRAMMAR_REASONED
                        ? ERR_INTERNAL
                        : read_source(e, kind, js_get_set(source, "source"), &form, why);

    if (s == OK)
        *out = expr_seq(e, front_reasoning(e, begin, end), form);
    return s;
}

static enum status read_source(struct exprs *e, enum grammar_kind kind, const struct json *source,
                               uint32_t *out, struct buf *why)
{
    size_t len = 0;
    const char *text = js_is(source, JS_STRING) ? js_string(source, &len) : NULL;

    switch (kind) {
    case GRAMMAR_JSON_OBJECT: *out = front_json_object(e); return OK;
    case GRAMMAR_JSON_SCHEMA: return front_json_schema(e, source, out, why);
    case GRAMMAR_CHOICE: return front_choice(e, source, out, why);
    case GRAMMAR_CALLS: return front_calls(e, source, out, why);
    case GRAMMAR_REASONED: return read_reasoned(e, source, out, why);
    case GRAMMAR_REGEX:
        return text ? front_regex(e, text, len, 0, out, why)
                    : buf_why(why, ERR_INVALID, "the regular expression must be a string");
    case GRAMMAR_EBNF:
        return text ? front_ebnf(e, text, len, out, why)
                    : buf_why(why, ERR_INVALID, "the grammar must be a string");
    }
    return ERR_INTERNAL;
}

enum status grammar_create(struct grammar **out, struct grammar_vocab *v, enum grammar_kind kind,
                           const struct json *source, struct buf *why)
{
    struct grammar *g = calloc(1, sizeof *g);
    struct exprs e;
    uint32_t first = EXPR_FAILED;

    *out = NULL;
    if (!g)
        return buf_why(why, ERR_NOMEM, "out of memory for the grammar");
    g->vocab = v;
    atomic_init(&g->refs, 1);
    atomic_init(&g->n_cache_bytes, 0);
    pthread_mutex_init(&g->lock, NULL);
    exprs_init(&e);
    enum status s = read_source(&e, kind, source, &first, why);
    if (s == OK) {
        uint32_t rule = expr_new_rule(&e);
        expr_define(&e, rule, first);
        s = states_build(&g->states, &e, rule, why);
    }
    exprs_fini(&e);
    if (s == OK && (s = new_cache(&g->cache, &g->states)) != OK)
        buf_why(why, s,
                s == ERR_NOMEM ? "out of memory for the grammar"
                               : "the grammar can be read in too many ways");
    if (s == OK && !machine_accepts(g->cache->machine, MACHINE_FIRST) &&
        !machine_goes_on(g->cache->machine, MACHINE_FIRST))
        s = buf_why(why, ERR_INVALID, "the grammar matches no text");
    if (s == OK) {
        note_bytes(g);
        *out = g;
    } else {
        grammar_unref(g);
    }
    return s;
}

size_t grammar_bytes(const struct grammar *g)
{
    return sizeof *g + atomic_load(&g->n_cache_bytes) + g->states.cap * sizeof *g->states.v +
           g->states.n_sets * sizeof *g->states.sets;
}

struct grammar *grammar_ref(struct grammar *g)
{
    atomic_fetch_add(&g->refs, 1);
    return g;
}

void grammar_unref(struct grammar *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1)
        return;
    drop_cache(g->cache);
    states_fini(&g->states);
    pthread_mutex_destroy(&g->lock);
    free(g);
}
