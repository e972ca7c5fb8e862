/* grammar.c - grammars, the masks that were computed for them, and runs.
 *
 * A cache is a machine and the mask of each configuration that was asked for. Runs of a grammar
 * share its cache. When a cache is large, a run that needs a new mask goes on in a new cache, and
 * the old one goes with its last run.
 *
 * Whether a run is refused must not depend on what other runs made its cache remember (promise
 * P1). A mask's work is counted as of an empty cache (machine.h), and a run is refused for lack of
 * room in a cache of its own only. */
#include "engine/grammar/grammar.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "engine/grammar/front.h"
#include "engine/grammar/machine.h"
#include "engine/grammar/mask.h"
#include "engine/grammar/states.h"
#include "engine/grammar/vocab.h"

#define MASK_BYTES_MAX ((size_t)32 << 20)
#define SLICE 50000u /* states, while the lock is held: some 1 ms */
#define LOCK_WAIT_NS 3000000
#define FORCED_BYTES_MAX 256u
#define FORCED_SLICE 2000u
#define FORCED_CHANCE 0.9 /* that a model spells a text with the longest tokens */
#define CREDIT_MAX UINT64_C(40000000)
#define CREDIT_PER_TOKEN 50000u

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
    pthread_mutex_t lock;       /* of every cache of this grammar, and of the pointer to one */
    atomic_uint n_wanted;       /* threads that wait for the lock */
    pthread_mutex_t cache_lock; /* of the pointer alone: a thread that has either may read it */
    struct grammar_cache *cache;
    atomic_size_t n_cache_bytes; /* of the cache; read without the lock */
};

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* --- caches; under the lock --- */

static void free_cache(struct grammar_cache *c)
{
    for (uint32_t k = 0; k < 2; k++) {
        for (uint32_t i = 0; c->masks[k] && i < c->n_masks; i++)
            mask_fini(&c->masks[k][i]);
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

/* Step the configuration over a text; MACHINE_DEAD where the text does not go on. */
static enum status step_text(struct machine *m, const char *bytes, size_t len, uint32_t *config)
{
    enum status s = OK;

    for (size_t i = 0; s == OK && i < len && *config != MACHINE_DEAD; i++) {
        machine_ask(m, UINT32_MAX);
        s = machine_step(m, *config, (uint8_t)bytes[i], config);
    }
    return s;
}

/* Read what grammar_run_feed() or grammar_run_skip() left. */
static enum status read_unread(struct grammar_run *r)
{
    uint32_t config = r->config;
    enum status s = step_text(r->cache->machine, r->unread, r->n_unread, &config);

    if (s == OK && config == MACHINE_DEAD)
        return ERR_INVALID;
    if (s == OK) {
        r->config = config;
        r->n_unread = 0;
    }
    return s;
}

/* The mask of the run's place, computed if it is new. ERR_BUSY: the slice does not suffice, or
 * vocab_build_loops() has work. */
static enum status mask_of(struct grammar_run *r, uint32_t slice, bool may_grow, struct mask **out)
{
    struct grammar_cache *c = r->cache;
    struct grammar_vocab *v = r->grammar->vocab;
    enum status s = mask_room(c);
    struct mask *k = s == OK ? &c->masks[r->is_first][r->config] : NULL;

    if (s == OK && !k->is_known) {
        struct mask more = {.n = 0};
        if (!may_grow && machine_is_large(c->machine))
            return ERR_BUSY; /* growing it more takes long */
        machine_ask(c->machine, slice);
        s = mask_compute(&more, v, c->machine, r->config, r->is_first);
        if (s == OK) {
            *k = more;
            c->n_bytes += mask_bytes(k, v);
            note_bytes(r->grammar);
        }
    }
    if (s == OK) {
        *out = k;
        r->work = k->work;
        if (k->work > r->credit)
            s = ERR_TOO_LARGE;
    }
    return s;
}

/* --- runs --- */

static bool cache_is_large(const struct grammar_cache *c)
{
    return machine_is_large(c->machine) || c->n_bytes > MASK_BYTES_MAX;
}

/* Later runs begin with this cache. */
static void publish(struct grammar *g, struct grammar_cache *c)
{
    struct grammar_cache *old = g->cache;

    atomic_fetch_add(&c->refs, 1);
    pthread_mutex_lock(&g->cache_lock);
    g->cache = c;
    pthread_mutex_unlock(&g->cache_lock);
    drop_cache(old);
}

/* Lock a grammar whose masks another thread may be computing: that thread gives way between two
 * slices. */
static void lock(struct grammar *g)
{
    atomic_fetch_add(&g->n_wanted, 1);
    pthread_mutex_lock(&g->lock);
    atomic_fetch_sub(&g->n_wanted, 1);
}

/* Lock it unless that takes long: a thread that computes a mask may have lost its core. */
static bool lock_soon(struct grammar *g)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LOCK_WAIT_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    atomic_fetch_add(&g->n_wanted, 1);
    bool is_locked =
        pthread_mutex_trylock(&g->lock) == 0 || pthread_mutex_timedlock(&g->lock, &until) == 0;
    atomic_fetch_sub(&g->n_wanted, 1);
    return is_locked;
}

void grammar_run_init(struct grammar_run *r, struct grammar *g, bool continues)
{
    pthread_mutex_lock(&g->cache_lock);
    atomic_fetch_add(&g->cache->refs, 1);
    *r = (struct grammar_run){.grammar = grammar_ref(g),
                              .cache = g->cache,
                              .config = MACHINE_FIRST,
                              .credit = CREDIT_MAX,
                              .is_first = !continues && g->vocab->first.n_nodes > 0};
    pthread_mutex_unlock(&g->cache_lock);
}

void grammar_run_copy(struct grammar_run *r, const struct grammar_run *from)
{
    *r = *from;
    if (r->grammar) {
        grammar_ref(r->grammar);
        atomic_fetch_add(&r->cache->refs, 1);
    }
}

void grammar_run_fini(struct grammar_run *r)
{
    if (r->grammar) {
        drop_cache(r->cache);
        grammar_unref(r->grammar);
    }
    *r = (struct grammar_run){0};
}

/* Compute the mask, and let others lock the grammar now and then. */
static enum status prepare(struct grammar_run *r)
{
    struct grammar *g = r->grammar;
    uint32_t slice = SLICE + mask_walk_work(g->vocab); /* each turn gets on by a SLICE */
    struct mask *k;
    enum status s;

    while ((s = mask_of(r, slice, true, &k)) == ERR_BUSY) {
        pthread_mutex_unlock(&g->lock);
        vocab_build_loops(g->vocab);
        while (atomic_load(&g->n_wanted) > 0)
            sched_yield();
        pthread_mutex_lock(&g->lock);
    }
    return s;
}

/* Go on in another cache of the same grammar. */
static enum status move_to(struct grammar_run *r, struct grammar_cache *c)
{
    uint32_t config;

    machine_ask(c->machine, UINT32_MAX);
    enum status s = machine_import(c->machine, r->cache->machine, r->config, &config);
    if (s != OK)
        return s;
    atomic_fetch_add(&c->refs, 1);
    drop_cache(r->cache);
    r->cache = c;
    r->config = config;
    return OK;
}

/* Go on in a new cache, which no other run has until the mask is there: so whether there is room
 * for the mask depends on the run alone. */
static enum status prepare_alone(struct grammar_run *r)
{
    struct grammar_cache *fresh = NULL;
    enum status s = new_cache(&fresh, &r->grammar->states);

    if (s != OK)
        return s;
    s = move_to(r, fresh);
    if (s == OK)
        s = prepare(r);
    if (s == OK && cache_is_large(r->grammar->cache))
        publish(r->grammar, fresh);
    drop_cache(fresh);
    return s;
}

/* Compute the mask in a cache that has room. */
static enum status prepare_anywhere(struct grammar_run *r)
{
    struct grammar *g = r->grammar;
    enum status s = OK;

    if (!cache_is_large(r->cache))
        s = prepare(r);
    else if (cache_is_large(g->cache))
        s = prepare_alone(r);
    else if ((s = move_to(r, g->cache)) == OK)
        s = prepare(r);
    if (s == ERR_TOO_LARGE && machine_is_full(r->cache->machine))
        s = prepare_alone(r);
    return s;
}

enum status grammar_run_prepare(struct grammar_run *r)
{
    struct grammar *g = r->grammar;

    if (!g || r->is_over)
        return OK;
    pthread_mutex_lock(&g->lock);
    enum status s = read_unread(r);
    if (s == OK)
        s = prepare_anywhere(r);
    note_bytes(g);
    pthread_mutex_unlock(&g->lock);
    return s;
}

enum status grammar_run_try_mask(struct grammar_run *r, uint32_t slice, const uint32_t *eos_ids,
                                 uint32_t n_eos_ids, uint32_t *mask)
{
    struct grammar *g = r->grammar;
    uint32_t n_words = g->vocab->n_words;
    struct mask *k = NULL;
    bool accepts = true;
    enum status s = OK;

    if (r->is_over) {
        memset(mask, 0, n_words * sizeof *mask);
    } else if (!lock_soon(g)) {
        return ERR_BUSY;
    } else {
        s = read_unread(r);
        if (s == OK)
            s = mask_of(r, slice, slice == UINT32_MAX, &k);
        if (s == ERR_TOO_LARGE && machine_is_full(r->cache->machine))
            s = ERR_BUSY;
        if (s == OK) {
            mask_write(k, g->vocab, mask);
            accepts = machine_accepts(r->cache->machine, r->config);
            if (!accepts && mask_is_empty(k))
                s = ERR_UNSUPPORTED;
        }
        pthread_mutex_unlock(&g->lock);
    }
    for (uint32_t i = 0; s == OK && accepts && i < n_eos_ids; i++)
        mask[eos_ids[i] / 32] |= 1u << eos_ids[i] % 32;
    return s;
}

enum status grammar_run_mask(struct grammar_run *r, const uint32_t *eos_ids, uint32_t n_eos_ids,
                             uint32_t *mask)
{
    enum status s = grammar_run_prepare(r);

    while (s == OK &&
           (s = grammar_run_try_mask(r, UINT32_MAX, eos_ids, n_eos_ids, mask)) == ERR_BUSY)
        s = grammar_run_prepare(r);
    return s;
}

/* The bytes that must come next; under the lock. */
static uint32_t forced_bytes(struct machine *m, uint32_t config, uint8_t bytes[FORCED_BYTES_MAX])
{
    uint32_t n = 0;

    machine_ask(m, FORCED_SLICE);
    while (n < FORCED_BYTES_MAX && machine_is_forced(m, config, &bytes[n])) {
        if (machine_step(m, config, bytes[n], &config) != OK || config == MACHINE_DEAD)
            break;
        n++;
    }
    return n;
}

uint32_t grammar_run_forced(const struct grammar_run *r, uint32_t *ids, double *chances, uint32_t n)
{
    uint8_t bytes[FORCED_BYTES_MAX];
    uint32_t len = 0, n_ids = 0;

    if (!r->grammar || r->is_over || r->is_first || r->n_unread > 0 ||
        pthread_mutex_trylock(&r->grammar->lock) != 0)
        return 0; /* a guess is not worth waiting for */
    if (!machine_is_large(r->cache->machine))
        len = forced_bytes(r->cache->machine, r->config, bytes);
    pthread_mutex_unlock(&r->grammar->lock);
    for (uint32_t at = 0; at < len && n_ids < n; n_ids++) {
        bool is_only;
        uint32_t n_bytes = token_tree_longest(&r->grammar->vocab->tree, bytes + at, len - at,
                                              &ids[n_ids], &is_only);
        if (n_bytes == 0)
            break;
        chances[n_ids] = is_only ? 1 : FORCED_CHANCE;
        at += n_bytes;
    }
    return n_ids;
}

/* Go on in a new cache where the run's is large; under the lock. */
static enum status leave_large(struct grammar_run *r)
{
    struct grammar_cache *fresh = NULL;
    enum status s = cache_is_large(r->cache) ? new_cache(&fresh, &r->grammar->states) : OK;

    if (s != OK || !fresh)
        return s;
    s = move_to(r, fresh);
    publish(r->grammar, fresh);
    drop_cache(fresh);
    return s;
}

enum status grammar_run_skip(struct grammar_run *r, const char *text)
{
    struct grammar *g = r->grammar;

    if (!*text)
        return OK;
    if (!lock_soon(g)) {
        r->unread = text;
        r->n_unread = strlen(text);
        return OK;
    }
    enum status s = leave_large(r);
    if (s == OK)
        s = step_text(r->cache->machine, text, strlen(text), &r->config);
    pthread_mutex_unlock(&g->lock);
    return s == OK && r->config == MACHINE_DEAD ? ERR_INVALID : s;
}

enum status grammar_run_feed(struct grammar_run *r, const uint32_t *eos_ids, uint32_t n_eos_ids,
                             uint32_t id)
{
    struct grammar *g = r->grammar;
    enum status s = OK;
    size_t len;

    for (uint32_t i = 0; i < n_eos_ids; i++)
        if (id == eos_ids[i]) {
            r->is_over = true;
            return OK;
        }
    const char *bytes = vocab_bytes(g->vocab, id, r->is_first, &len);
    if (r->is_over || len == 0)
        return ERR_INVALID;
    bool is_locked = lock_soon(g);
    if (!is_locked && r->n_unread > 0) { /* there is room for one token */
        lock(g);
        is_locked = true;
    }
    if (is_locked)
        s = read_unread(r);
    if (s == OK) {
        r->unread = bytes;
        r->n_unread = len;
    }
    if (is_locked && s == OK)
        s = read_unread(r);
    if (is_locked)
        pthread_mutex_unlock(&g->lock);
    r->is_first = false;
    r->credit = min_u64(r->credit - min_u64(r->credit, r->work) + CREDIT_PER_TOKEN, CREDIT_MAX);
    r->n_worked += r->work;
    r->work = 0;
    return s;
}

enum status grammar_matches(struct grammar *g, const char *text, size_t len, bool *out)
{
    struct grammar_run r;
    enum status s;

    *out = false;
    grammar_run_init(&r, g, true);
    lock(g);
    s = leave_large(&r);
    if (s == OK)
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

/* {"begin", "end", "behind", "before_form", "kind", "source"} */
static enum status read_reasoned(struct exprs *e, const struct json *source, uint32_t *out,
                                 struct buf *why)
{
    const char *begin = js_string(js_get(source, "begin"), NULL);
    const char *end = js_string(js_get(source, "end"), NULL);
    const char *behind = js_string(js_get(source, "behind"), NULL);
    const char *before = js_string(js_get(source, "before_form"), NULL);
    enum grammar_kind kind = (enum grammar_kind)js_int(js_get(source, "kind"));
    uint32_t form = EXPR_FAILED;
    enum status s = kind == GRAMMAR_REASONED
                        ? ERR_INTERNAL
                        : read_source(e, kind, js_get_set(source, "source"), &form, why);

    if (s == OK)
        *out = expr_seq3(e, front_reasoning(e, begin, end, behind),
                         expr_cstr(e, kind == GRAMMAR_CALLS ? "" : before), form);
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
    case GRAMMAR_TAGS: return front_tags(e, source, out, why);
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
    atomic_init(&g->n_wanted, 0);
    pthread_mutex_init(&g->lock, NULL);
    pthread_mutex_init(&g->cache_lock, NULL);
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
    pthread_mutex_destroy(&g->cache_lock);
    drop_cache(g->cache);
    states_fini(&g->states);
    pthread_mutex_destroy(&g->lock);
    free(g);
}
