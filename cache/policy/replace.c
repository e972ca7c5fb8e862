/* replace.c - entries, tiers, and which entries are candidates. Priorities: priority() here for the
 * published policies, replace_contest.c for contest. */
#include "cache/policy/replace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/memory.h"
#include "cache/policy/replace_inner.h"

#define NO_POSITIONS                                                                               \
    {                                                                                              \
        REPLACE_NONE, REPLACE_NONE, REPLACE_NONE                                                   \
    }

static const char *const order_names[N_ORDERS_MAX] = {"worth", "clock", "recency"};
static const char *const names[REPLACE_N_POLICIES] = {"contest", "pgdsf", "gdsf",
                                                      "lru",     "lfu",   "belady"};

const char *replace_policy_name(enum replace_policy p)
{
    return names[p];
}

enum status replace_policy_parse(const char *name, enum replace_policy *out)
{
    for (int p = 0; p < REPLACE_N_POLICIES; p++)
        if (strcmp(name, names[p]) == 0) {
            *out = (enum replace_policy)p;
            return OK;
        }
    return ERR_NOT_FOUND;
}

/* --- lifecycle --- */

static void *take_memory(struct replace *r, size_t n, size_t size)
{
    r->memory_bytes += (uint64_t)n * size;
    return memory_zeroed(n, size);
}

static enum status init_tier(struct replace *r, struct tier *t, uint64_t capacity)
{
    t->capacity = capacity;
    for (uint32_t order = 0; order < r->n_orders; order++) {
        t->heap[order] = take_memory(r, r->n_entries_max, sizeof(uint32_t));
        if (!t->heap[order])
            return ERR_NOMEM;
    }
    if (r->policy != REPLACE_CONTEST)
        return OK;
    t->sky = take_memory(r, N_ORDERS_MAX, sizeof *t->sky);
    if (!t->sky)
        return ERR_NOMEM;
    for (uint32_t order = 0; order < N_ORDERS_MAX; order++)
        t->sky[order].full = 1 - N_BINS; /* no entry is known: all bins fit */
    t->order = r->is_shared ? ORDER_RECENCY : ORDER_WORTH;
    return OK;
}

static enum status init(struct replace *r, const struct replace_config *config)
{
    enum status s = map_init(&r->by_key, r->n_entries_max);

    if (s != OK)
        return s;
    r->memory_bytes += ((uint64_t)r->by_key.mask + 1) * sizeof(struct map_slot);
    r->entries = take_memory(r, r->n_entries_max, sizeof *r->entries);
    r->places = take_memory(r, (size_t)r->n_entries_max * r->n_tiers, sizeof *r->places);
    if (!r->entries || !r->places)
        return ERR_NOMEM;
    for (uint32_t tier = 0; s == OK && tier < r->n_tiers; tier++)
        s = init_tier(r, &r->tiers[tier], config->capacity_bytes[tier]);
    r->oldest = r->newest = r->unused = REPLACE_NONE;
    for (uint32_t id = r->n_entries_max; id-- > 0;) { /* low ids first */
        r->entries[id].newer = r->unused;
        r->unused = id;
    }
    return s;
}

enum status replace_create(struct replace **out, const struct replace_config *config)
{
    struct replace *r;
    enum status s;

    *out = NULL;
    if (config->n_entries_max == 0 || config->n_entries_max == REPLACE_NONE ||
        config->n_tiers == 0 || config->n_tiers > REPLACE_N_TIERS_MAX ||
        (unsigned)config->policy >= REPLACE_N_POLICIES)
        return ERR_INVALID;
    for (uint32_t tier = 0; tier < config->n_tiers; tier++)
        if (config->capacity_bytes[tier] == 0)
            return ERR_INVALID;
    r = calloc(1, sizeof *r);
    if (!r)
        return ERR_NOMEM;
    r->policy = config->policy;
    r->is_shared = config->is_shared;
    r->n_orders = config->policy == REPLACE_CONTEST ? N_ORDERS_MAX : 1;
    r->n_tiers = config->n_tiers;
    r->n_entries_max = config->n_entries_max;
    r->memory_bytes = sizeof *r;
    s = init(r, config);
    if (s != OK) {
        replace_destroy(r);
        return s;
    }
    *out = r;
    return OK;
}

void replace_destroy(struct replace *r)
{
    if (!r)
        return;
    for (uint32_t tier = 0; tier < r->n_tiers; tier++) {
        for (uint32_t order = 0; order < N_ORDERS_MAX; order++)
            free(r->tiers[tier].heap[order]);
        free(r->tiers[tier].sky);
    }
    free(r->places);
    free(r->entries);
    map_fini(&r->by_key);
    free(r);
}

static struct entry *entry_in_tree(const struct replace *r, uint32_t id)
{
    ASSERT(id < r->n_entries_max && r->entries[id].in_tree);
    return &r->entries[id];
}

static struct place *checked_place(const struct replace *r, uint32_t tier, uint32_t id)
{
    ASSERT(tier < r->n_tiers);
    entry_in_tree(r, id);
    return place_of(r, tier, id);
}

/* --- remembered entries, which left the tree: a list from the oldest to the newest --- */

static void past_append(struct replace *r, uint32_t id)
{
    struct entry *e = &r->entries[id];

    e->older = r->newest;
    e->newer = REPLACE_NONE;
    if (r->newest != REPLACE_NONE)
        r->entries[r->newest].newer = id;
    else
        r->oldest = id;
    r->newest = id;
}

static void past_take(struct replace *r, uint32_t id)
{
    const struct entry *e = &r->entries[id];

    if (e->older != REPLACE_NONE)
        r->entries[e->older].newer = e->newer;
    else
        r->oldest = e->newer;
    if (e->newer != REPLACE_NONE)
        r->entries[e->newer].older = e->older;
    else
        r->newest = e->older;
}

/* Forget a remembered entry and free its id. */
static void forget(struct replace *r, uint32_t id)
{
    struct entry *e = &r->entries[id];

    past_take(r, id);
    ASSERT(map_remove(&r->by_key, e->key));
    for (uint32_t tier = 0; tier < r->n_tiers; tier++)
        if (r->policy == REPLACE_CONTEST)
            contest_forget(r, tier, id);
    e->known = false;
    e->newer = r->unused;
    r->unused = id;
}

/* A free id; the oldest remembered entry is forgotten for it if need be. */
static uint32_t fresh_id(struct replace *r, uint64_t key, uint64_t bytes, uint32_t depth)
{
    uint32_t id;

    if (r->unused == REPLACE_NONE && r->oldest != REPLACE_NONE)
        forget(r, r->oldest);
    id = r->unused;
    if (id == REPLACE_NONE)
        return REPLACE_NONE;
    r->unused = r->entries[id].newer;
    r->entries[id] = (struct entry){.key = key,
                                    .bytes = bytes,
                                    .depth = depth,
                                    .used_s = r->now_s,
                                    .limit_s = INFINITY,
                                    .is_counted = true,
                                    .known = true};
    map_put(&r->by_key, key, id);
    for (uint32_t tier = 0; tier < r->n_tiers; tier++) {
        *place_of(r, tier, id) = (struct place){.pos = NO_POSITIONS, .due = INFINITY};
        if (r->policy == REPLACE_CONTEST)
            contest_entered(r, tier, id);
    }
    return id;
}

uint32_t replace_enter(struct replace *r, uint64_t key, uint32_t parent, uint32_t depth,
                       uint64_t bytes)
{
    uint32_t id;

    ASSERT(bytes > 0);
    if (map_get(&r->by_key, key, &id)) {
        if (r->entries[id].in_tree)
            return REPLACE_NONE;
        if (r->entries[id].bytes == bytes)
            past_take(r, id);
        else { /* an entry of another size: its record does not apply */
            forget(r, id);
            id = REPLACE_NONE;
        }
    } else
        id = REPLACE_NONE;
    if (id == REPLACE_NONE)
        id = fresh_id(r, key, bytes, depth);
    if (id == REPLACE_NONE)
        return REPLACE_NONE;
    if (parent != REPLACE_NONE)
        entry_in_tree(r, parent)->n_children++;
    r->entries[id].parent = parent;
    r->entries[id].depth = depth;
    r->entries[id].in_tree = true;
    r->entries[id].is_dead = false;
    r->entries[id].limit_s = INFINITY;
    return id;
}

/* The upper part's place in a tier: a copy of the lower part's, with that as its only child. */
static void split_place(struct replace *r, uint32_t tier, uint32_t up, uint32_t low)
{
    struct place *p = place_of(r, tier, up);

    *p = *place_of(r, tier, low);
    memcpy(p->pos, (uint32_t[])NO_POSITIONS, sizeof p->pos);
    p->n_pins = 0;
    p->n_children = p->present;
    r->tiers[tier].n_entries += p->present;
}

uint32_t replace_split(struct replace *r, uint32_t id, uint64_t key, uint64_t bytes)
{
    struct entry *low = entry_in_tree(r, id), *upper;
    uint32_t up;

    ASSERT(bytes > 0 && bytes < low->bytes);
    if (map_get(&r->by_key, key, &up)) { /* a remembered entry: the lower part has newer counts */
        if (r->entries[up].in_tree)
            return REPLACE_NONE;
        forget(r, up);
    }
    up = fresh_id(r, key, bytes, low->depth);
    if (up == REPLACE_NONE)
        return REPLACE_NONE;
    for (uint32_t tier = 0; r->policy == REPLACE_CONTEST && tier < r->n_tiers; tier++) {
        contest_forget(r, tier, up);
        contest_forget(r, tier, id);
    }
    upper = &r->entries[up];
    *upper = *low;
    upper->key = key;
    upper->bytes = bytes;
    upper->n_children = 1;
    low->bytes -= bytes;
    low->parent = up;
    for (uint32_t tier = 0; tier < r->n_tiers; tier++) {
        split_place(r, tier, up, id);
        if (r->policy != REPLACE_CONTEST)
            continue;
        contest_know(r, tier, up);
        contest_know(r, tier, id);
    }
    return up;
}

/* Add the counts of the remembered entry `past` to e, and forget `past`. */
static void inherit(struct replace *r, uint32_t id, uint32_t past)
{
    struct entry *e = &r->entries[id];
    const struct entry *p = &r->entries[past];

    e->n_uses += p->n_uses < UINT32_MAX - e->n_uses ? p->n_uses : 0;
    e->n_misses += p->n_misses < UINT32_MAX - e->n_misses ? p->n_misses : 0;
    e->miss_s += p->miss_s;
    for (uint32_t tier = 0; tier < r->n_tiers; tier++) /* both decayed to about the same time */
        place_of(r, tier, id)->score += place_of(r, tier, past)->score;
    forget(r, past);
}

bool replace_grow(struct replace *r, uint32_t id, uint64_t key, uint64_t bytes)
{
    struct entry *e = entry_in_tree(r, id);
    uint32_t other;

    ASSERT(bytes > e->bytes && e->n_children == 0);
    if (map_get(&r->by_key, key, &other)) {
        if (r->entries[other].in_tree)
            return false;
        inherit(r, id, other);
    }
    ASSERT(map_remove(&r->by_key, e->key));
    e->key = key;
    map_put(&r->by_key, key, id);
    for (uint32_t tier = 0; tier < r->n_tiers; tier++) {
        struct tier *t = &r->tiers[tier];

        if (r->policy == REPLACE_CONTEST)
            contest_forget(r, tier, id);
        if (!place_of(r, tier, id)->present)
            continue;
        ASSERT(bytes - e->bytes <= t->capacity - t->used);
        t->used += bytes - e->bytes;
        t->turnovers += (double)(bytes - e->bytes) / (double)t->capacity;
    }
    e->bytes = bytes;
    for (uint32_t tier = 0; r->policy == REPLACE_CONTEST && tier < r->n_tiers; tier++)
        contest_know(r, tier, id);
    return true;
}

void replace_leave(struct replace *r, uint32_t id)
{
    struct entry *e = entry_in_tree(r, id);

    ASSERT(e->n_children == 0 && e->n_expected == 0);
    for (uint32_t tier = 0; tier < r->n_tiers; tier++)
        ASSERT(!place_of(r, tier, id)->present && place_of(r, tier, id)->n_pins == 0);
    e->in_tree = false;
    if (e->parent != REPLACE_NONE)
        r->entries[e->parent].n_children--;
    past_append(r, id);
}

/* --- priorities --- */

static double priority(const struct replace *r, const struct tier *t, const struct entry *e)
{
    switch (r->policy) {
    case REPLACE_PGDSF: return t->clock + e->n_uses * entry_avg_cost(e);
    case REPLACE_GDSF: return t->clock + e->n_uses * e->own_s;
    case REPLACE_LRU: return (double)e->stamp;
    case REPLACE_LFU: return e->n_uses;
    case REPLACE_BELADY: return -e->next_use;
    default: ASSERT(!"contest sets its own keys"); return 0;
    }
}

/* The entry was used: it is in the histograms again. */
static void count_again(struct replace *r, uint32_t id)
{
    r->entries[id].is_counted = true;
    for (uint32_t tier = 0; r->policy == REPLACE_CONTEST && tier < r->n_tiers; tier++)
        contest_know(r, tier, id);
}

void replace_accessed(struct replace *r, uint32_t id, const struct replace_access *access)
{
    struct entry *e = entry_in_tree(r, id);
    bool was_known = e->n_uses > 0;

    e->stamp = ++r->n_uses;
    e->is_dead = false;
    e->used_s = r->now_s;
    e->n_uses += e->n_uses < UINT32_MAX;
    if (!access->was_cached) {
        ASSERT(access->miss_s_per_byte >= 0 && isfinite(access->miss_s_per_byte));
        e->n_misses++;
        e->miss_s += access->miss_s_per_byte;
    }
    ASSERT(access->own_s_per_byte >= 0 && isfinite(access->own_s_per_byte));
    e->own_s = access->own_s_per_byte;
    e->next_use = access->next_use;
    for (uint32_t tier = 0; tier < r->n_tiers; tier++) {
        if (r->policy == REPLACE_CONTEST)
            contest_accessed(r, tier, id, was_known);
        else
            place_of(r, tier, id)->key[0] = priority(r, &r->tiers[tier], e);
        heap_moved(r, tier, id);
    }
    count_again(r, id);
}

/* --- expected entries --- */

/* The due time that counts in this tier: INFINITY for class 1 (replace.h). */
static double due_in(const struct replace *r, uint32_t tier, const struct entry *e)
{
    bool is_soon = e->due_s - r->now_s < replace_survival_s(r, tier);

    return e->n_expected > 0 && is_soon ? e->due_s : INFINITY;
}

static void decide_class(struct replace *r, uint32_t id)
{
    for (uint32_t tier = 0; tier < r->n_tiers; tier++) {
        struct place *p = place_of(r, tier, id);
        double due = due_in(r, tier, &r->entries[id]);

        if (p->due == due)
            continue;
        p->due = due;
        heap_moved(r, tier, id);
    }
}

void replace_expect(struct replace *r, uint32_t id, int delta)
{
    struct entry *e = entry_in_tree(r, id);

    ASSERT(delta >= 0 || e->n_expected >= (uint32_t)-delta);
    if (e->n_expected == 0)
        e->due_s = 0;
    e->n_expected += (uint32_t)delta;
    decide_class(r, id);
}

void replace_due(struct replace *r, uint32_t id, double due_s)
{
    struct entry *e = entry_in_tree(r, id);

    ASSERT(e->n_expected > 0 && due_s >= 0);
    e->due_s = due_s;
    decide_class(r, id);
}

bool replace_demote(struct replace *r, uint32_t id)
{
    struct entry *e = entry_in_tree(r, id);

    if (e->is_dead)
        return false;
    e->is_dead = true;
    for (uint32_t tier = 0; tier < r->n_tiers; tier++) {
        if (r->policy == REPLACE_CONTEST)
            contest_demoted(r, tier, id);
        heap_moved(r, tier, id);
    }
    e->is_counted = false;
    return true;
}

bool replace_is_demoted(const struct replace *r, uint32_t id)
{
    return r->entries[id].is_dead;
}

void replace_limit_cost(struct replace *r, uint32_t id, double s_per_byte)
{
    struct entry *e = entry_in_tree(r, id);
    double was = entry_avg_cost(e);

    ASSERT(s_per_byte >= 0);
    e->limit_s = s_per_byte;
    if (entry_avg_cost(e) == was)
        return;
    for (uint32_t tier = 0; tier < r->n_tiers; tier++) {
        if (r->policy == REPLACE_CONTEST)
            contest_repriced(r, tier, id, was);
        else
            place_of(r, tier, id)->key[0] = priority(r, &r->tiers[tier], e);
        heap_moved(r, tier, id);
    }
}

void replace_time(struct replace *r, double now_s)
{
    r->now_s = fmax(r->now_s, now_s);
}

/* --- tiers --- */

/* Put the entry into the heaps if it is a candidate, else take it out. */
static void update_candidate(struct replace *r, uint32_t tier, uint32_t id)
{
    const struct place *p = place_of(r, tier, id);
    bool is = p->pos[0] != REPLACE_NONE;
    bool should = p->present && p->n_pins == 0 && p->n_children == 0;

    if (should && !is)
        heap_push(r, tier, id);
    else if (is && !should)
        heap_take(r, tier, id);
}

/* Whether the entry lies in this tier or a faster one. */
static bool lies_within(const struct replace *r, uint32_t tier, uint32_t id)
{
    for (uint32_t t = 0; t <= tier; t++)
        if (place_of(r, t, id)->present)
            return true;
    return false;
}

void replace_insert(struct replace *r, uint32_t tier, uint32_t id)
{
    struct place *p = checked_place(r, tier, id);
    struct entry *e = &r->entries[id];
    struct tier *t = &r->tiers[tier];

    ASSERT(!p->present && e->bytes <= t->capacity - t->used);
    ASSERT(e->parent == REPLACE_NONE || lies_within(r, tier, e->parent));
    p->present = true;
    t->used += e->bytes;
    t->n_entries++;
    t->turnovers += (double)e->bytes / (double)t->capacity;
    if (r->policy != REPLACE_CONTEST)
        p->key[0] = priority(r, t, e); /* uses the clock of this tier, after its evictions */
    if (e->parent != REPLACE_NONE) {
        place_of(r, tier, e->parent)->n_children++;
        update_candidate(r, tier, e->parent);
    }
    p->due = due_in(r, tier, e);
    update_candidate(r, tier, id);
}

void replace_remove(struct replace *r, uint32_t tier, uint32_t id)
{
    struct place *p = checked_place(r, tier, id);
    struct entry *e = &r->entries[id];
    struct tier *t = &r->tiers[tier];

    ASSERT(p->present && p->n_pins == 0);
    p->present = false;
    ASSERT(p->n_children == 0 || lies_within(r, tier, id)); /* its children keep their prefix */
    t->used -= e->bytes;
    t->n_entries--;
    update_candidate(r, tier, id);
    if (e->parent != REPLACE_NONE) {
        place_of(r, tier, e->parent)->n_children--;
        update_candidate(r, tier, e->parent);
    }
}

void replace_pin(struct replace *r, uint32_t tier, uint32_t id)
{
    struct place *p = checked_place(r, tier, id);

    ASSERT(p->present);
    p->n_pins++;
    update_candidate(r, tier, id);
}

void replace_unpin(struct replace *r, uint32_t tier, uint32_t id)
{
    struct place *p = checked_place(r, tier, id);

    ASSERT(p->n_pins > 0);
    if (--p->n_pins == 0)
        r->entries[id].used_s = r->now_s;
    update_candidate(r, tier, id);
}

uint32_t replace_peek(const struct replace *r, uint32_t tier)
{
    const struct tier *t = &r->tiers[tier];

    ASSERT(tier < r->n_tiers);
    return t->n_candidates ? t->heap[t->order][0] : REPLACE_NONE;
}

/* Add an unexpected victim to the means: its time since the last use, and its cost. */
static void note_age(const struct replace *r, struct tier *t, const struct entry *e)
{
    if (e->n_expected > 0 || e->is_dead)
        return;
    t->n_ages += t->n_ages < SURVIVAL_MEMORY;
    t->age_s += (r->now_s - e->used_s - t->age_s) / t->n_ages;
    t->cost_s += (entry_avg_cost(e) - t->cost_s) / t->n_ages;
}

enum status replace_evict(struct replace *r, uint32_t tier, struct replace_victim *out)
{
    uint32_t id = replace_peek(r, tier);
    struct tier *t = &r->tiers[tier];

    if (id == REPLACE_NONE)
        return ERR_NO_BLOCKS;
    /* The priority of an expected victim may be high; it must not raise the clock. */
    if ((r->policy == REPLACE_PGDSF || r->policy == REPLACE_GDSF) &&
        place_of(r, tier, id)->due == INFINITY)
        t->clock = fmax(t->clock, place_of(r, tier, id)->key[0]);
    note_age(r, t, &r->entries[id]);
    replace_remove(r, tier, id);
    t->n_evicted++;
    *out = (struct replace_victim){.id = id, .is_dead = r->entries[id].is_dead};
    for (uint32_t slower = tier + 1; slower < r->n_tiers; slower++) {
        out->has_copy |= place_of(r, slower, id)->present;
        out->has_below |= place_of(r, slower, id)->n_children > 0;
    }
    return OK;
}

bool replace_admits(const struct replace *r, uint32_t tier, uint32_t id)
{
    uint32_t victim = replace_peek(r, tier);

    checked_place(r, tier, id);
    if (replace_has_room(r, tier, r->entries[id].bytes))
        return true;
    return victim != REPLACE_NONE && !heap_less(r, tier, r->tiers[tier].order, id, victim);
}

/* --- watching --- */

uint32_t replace_n_expected(const struct replace *r, uint32_t id)
{
    return entry_in_tree(r, id)->n_expected;
}

uint32_t replace_n_uses(const struct replace *r, uint32_t id)
{
    return entry_in_tree(r, id)->n_uses;
}

double replace_due_s(const struct replace *r, uint32_t id)
{
    const struct entry *e = entry_in_tree(r, id);

    return e->n_expected ? e->due_s : INFINITY;
}

double replace_survival_s(const struct replace *r, uint32_t tier)
{
    ASSERT(tier < r->n_tiers);
    return r->tiers[tier].n_ages ? fmax(r->tiers[tier].age_s, REPLACE_SOON_S) : (double)INFINITY;
}

double replace_relative_cost(const struct replace *r, uint32_t tier, uint32_t id)
{
    double cost_s = entry_avg_cost(entry_in_tree(r, id)), usual_s = r->tiers[tier].cost_s;

    return cost_s > 0 && usual_s > 0 ? fmin(fmax(cost_s / usual_s, 1.0 / 8), 8) : 1;
}

double replace_usual_cost(const struct replace *r, uint32_t tier)
{
    return r->tiers[tier].cost_s;
}

bool replace_is_free_name(const struct replace *r, uint64_t key)
{
    uint32_t id;

    return !map_get(&r->by_key, key, &id) || !r->entries[id].in_tree;
}

bool replace_in_tier(const struct replace *r, uint32_t tier, uint32_t id)
{
    return checked_place(r, tier, id)->present;
}

bool replace_has_room(const struct replace *r, uint32_t tier, uint64_t bytes)
{
    const struct tier *t = &r->tiers[tier];

    ASSERT(tier < r->n_tiers);
    return bytes <= t->capacity - t->used;
}

double replace_priority(const struct replace *r, uint32_t tier, uint32_t id)
{
    return checked_place(r, tier, id)->key[r->tiers[tier].order];
}

void replace_stats(const struct replace *r, uint32_t tier, struct replace_stats *out)
{
    const struct tier *t = &r->tiers[tier];

    ASSERT(tier < r->n_tiers);
    *out = (struct replace_stats){
        .capacity_bytes = t->capacity,
        .used_bytes = t->used,
        .n_entries = t->n_entries,
        .n_candidates = t->n_candidates,
        .n_evicted = t->n_evicted,
        .survival_s = replace_survival_s(r, tier),
        .clock = t->clock,
        .order = r->policy == REPLACE_CONTEST ? order_names[t->order] : "",
        .n_switches = t->n_switches,
    };
}

uint64_t replace_memory_bytes(const struct replace *r)
{
    return r->memory_bytes;
}

/* Recount the children and bytes of a tier. O(entries * tiers). */
static void check_tier(const struct replace *r, uint32_t tier)
{
    const struct tier *t = &r->tiers[tier];
    uint64_t used = 0, n_children = 0, n_with_parent = 0;
    uint32_t n_entries = 0, n_candidates = 0;

    for (uint32_t id = 0; id < r->n_entries_max; id++) {
        const struct entry *e = &r->entries[id];
        const struct place *p = place_of(r, tier, id);
        bool should = p->present && p->n_pins == 0 && p->n_children == 0;

        if (!e->in_tree)
            continue;
        ASSERT((p->pos[0] != REPLACE_NONE) == should);
        ASSERT(p->due == INFINITY || (e->n_expected && p->due == e->due_s));
        n_children += p->n_children;
        n_candidates += should;
        if (!p->present)
            continue;
        n_entries++;
        used += e->bytes;
        if (e->parent != REPLACE_NONE) {
            n_with_parent++;
            ASSERT(place_of(r, tier, e->parent)->n_children > 0);
            ASSERT(lies_within(r, tier, e->parent));
        }
    }
    ASSERT(used == t->used && used <= t->capacity && n_entries == t->n_entries);
    ASSERT(n_candidates == t->n_candidates && n_children == n_with_parent);
    heap_check(r, tier);
    if (r->policy == REPLACE_CONTEST)
        contest_check(r, tier);
}

void replace_check(const struct replace *r)
{
    uint32_t n_in_tree = 0, n_past = 0, n_unused = 0;

    for (uint32_t id = 0; id < r->n_entries_max; id++)
        n_in_tree += r->entries[id].in_tree;
    for (uint32_t id = r->oldest; id != REPLACE_NONE; id = r->entries[id].newer)
        n_past++;
    for (uint32_t id = r->unused; id != REPLACE_NONE; id = r->entries[id].newer)
        n_unused++;
    ASSERT(n_in_tree + n_past == r->by_key.n);
    ASSERT(n_in_tree + n_past + n_unused == r->n_entries_max);
    for (uint32_t tier = 0; tier < r->n_tiers; tier++)
        check_tier(r, tier);
}
