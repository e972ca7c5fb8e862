/* Random events against a model that recounts everything, for every policy and two tiers, with due
 * times of expected entries and passing time. */
#include "tests/unit/test.h"

#include <math.h>

#include "base/rng.h"
#include "cache/policy/replace.h"

#define N_TIERS 2
#define N_KEYS 60
#define N_ENTRIES_MAX 40
#define N_STEPS 20000

static const uint64_t capacities[N_TIERS] = {60, 100};

struct node { /* by key; learned values stay after the node leaves the tree, as long as ids last */
    uint32_t id, parent; /* parent: a key, or REPLACE_NONE */
    bool in_tree, present[N_TIERS];
    bool is_dead;
    uint32_t n_pins[N_TIERS], n_expected, n_uses, n_misses;
    uint64_t stamp, left_at, bytes;
    double miss_s, own_s, next_use, key[N_TIERS];
    double due_s, due[N_TIERS], used_s; /* due: INFINITY for entries that are evicted by priority */
};

struct model {
    enum replace_policy policy;
    struct replace *r;
    struct node nodes[N_KEYS];
    uint64_t n_uses, n_left, used[N_TIERS];
    double clock[N_TIERS];
    double now_s, age_s[N_TIERS];
    uint32_t n_ages[N_TIERS];
    uint64_t n_late, n_soon; /* expected victims, of each class */
    uint64_t n_dead;         /* demoted victims */
    uint64_t seed, n_drawn;
    uint64_t victims; /* a checksum of all victims in order */
};

static uint32_t draw(struct model *m, uint32_t n)
{
    return rng_u32(m->seed, m->n_drawn++) % n;
}

static bool is_clocked(const struct model *m)
{
    return m->policy == REPLACE_PGDSF || m->policy == REPLACE_GDSF;
}

static double key_of(const struct model *m, const struct node *n, uint32_t tier)
{
    switch (m->policy) {
    case REPLACE_PGDSF:
        return m->clock[tier] + n->n_uses * (n->n_misses ? n->miss_s / n->n_misses : n->own_s);
    case REPLACE_GDSF: return m->clock[tier] + n->n_uses * n->own_s;
    case REPLACE_LRU: return (double)n->stamp;
    case REPLACE_LFU: return n->n_uses;
    case REPLACE_BELADY: return -n->next_use;
    default: return replace_priority(m->r, tier, n->id); /* not modelled: other tests cover it */
    }
}

static bool has_child(const struct model *m, uint32_t key, uint32_t tier)
{
    for (uint32_t k = 0; k < N_KEYS; k++)
        if (m->nodes[k].in_tree && m->nodes[k].parent == key &&
            (tier == N_TIERS || m->nodes[k].present[tier]))
            return true;
    return false;
}

static bool goes_before(const struct model *m, const struct node *a, const struct node *b,
                        uint32_t tier)
{
    double ka = m->policy == REPLACE_CONTEST ? key_of(m, a, tier) : a->key[tier];
    double kb = m->policy == REPLACE_CONTEST ? key_of(m, b, tier) : b->key[tier];

    if (a->due[tier] != b->due[tier])
        return a->due[tier] > b->due[tier];
    if (a->is_dead != b->is_dead)
        return a->is_dead;
    if (ka != kb)
        return ka < kb;
    return a->stamp != b->stamp ? a->stamp < b->stamp : a->id < b->id;
}

static double survival_s(const struct model *m, uint32_t tier)
{
    return m->n_ages[tier] ? fmax(m->age_s[tier], REPLACE_SOON_S) : (double)INFINITY;
}

/* Entries due sooner than the survival time of unexpected entries are evicted last. */
static double due_in(const struct model *m, const struct node *n, uint32_t tier)
{
    bool soon = n->due_s - m->now_s < survival_s(m, tier);

    return n->n_expected && soon ? n->due_s : (double)INFINITY;
}

static void decide_class(const struct model *m, struct node *n)
{
    for (uint32_t tier = 0; tier < N_TIERS; tier++)
        n->due[tier] = due_in(m, n, tier);
}

static uint32_t naive_victim(const struct model *m, uint32_t tier)
{
    uint32_t best = REPLACE_NONE;

    for (uint32_t k = 0; k < N_KEYS; k++) {
        const struct node *n = &m->nodes[k];

        if (n->in_tree && n->present[tier] && !n->n_pins[tier] && !has_child(m, k, tier) &&
            (best == REPLACE_NONE || goes_before(m, n, &m->nodes[best], tier)))
            best = k;
    }
    return best;
}

/* When an id is needed, the policy forgets the entry that was evicted first. */
static void forget_if_full(struct model *m)
{
    uint32_t n_known = 0, first = REPLACE_NONE;

    for (uint32_t k = 0; k < N_KEYS; k++) {
        const struct node *n = &m->nodes[k];

        n_known += n->in_tree || n->left_at;
        if (!n->in_tree && n->left_at &&
            (first == REPLACE_NONE || n->left_at < m->nodes[first].left_at))
            first = k;
    }
    if (n_known == N_ENTRIES_MAX && first != REPLACE_NONE)
        m->nodes[first] = (struct node){0};
}

static void do_enter(struct model *m, uint32_t k)
{
    struct node *n = &m->nodes[k];
    uint32_t parent = draw(m, N_KEYS);

    if (n->in_tree)
        return;
    if (parent == k || !m->nodes[parent].in_tree || !m->nodes[parent].present[0])
        parent = REPLACE_NONE;
    if (!n->left_at)
        forget_if_full(m);
    else if (n->bytes != 1 + k % 9) /* a split changed it */
        *n = (struct node){0};
    uint32_t id = replace_enter(m->r, k, parent == REPLACE_NONE ? parent : m->nodes[parent].id,
                                k % 4, 1 + k % 9);
    if (id == REPLACE_NONE)
        return;
    n->id = id;
    if (!n->left_at)
        n->used_s = m->now_s;
    n->parent = parent;
    n->bytes = 1 + k % 9;
    n->in_tree = true;
    n->is_dead = false;
    n->left_at = 0;
    decide_class(m, n);
}

static void do_access(struct model *m, uint32_t k)
{
    struct node *n = &m->nodes[k];
    struct replace_access a = {
        .was_cached = draw(m, 2),
        .miss_s_per_byte = 1 + draw(m, 5),
        .own_s_per_byte = 1 + draw(m, 5),
        .next_use = draw(m, 50) ? (double)draw(m, 1000) : (double)INFINITY,
    };

    if (!n->in_tree)
        return;
    replace_accessed(m->r, n->id, &a);
    n->is_dead = false;
    n->stamp = ++m->n_uses;
    n->used_s = m->now_s;
    n->n_uses++;
    n->n_misses += !a.was_cached;
    n->miss_s += a.was_cached ? 0 : a.miss_s_per_byte;
    n->own_s = a.own_s_per_byte;
    n->next_use = a.next_use;
    for (uint32_t tier = 0; tier < N_TIERS; tier++)
        n->key[tier] = key_of(m, n, tier);
}

static void note_age(struct model *m, const struct node *n, uint32_t tier)
{
    m->n_late += n->n_expected && isinf(n->due[tier]);
    m->n_soon += n->n_expected && !isinf(n->due[tier]);
    m->n_dead += n->is_dead;
    if (n->n_expected || n->is_dead)
        return;
    m->n_ages[tier] += m->n_ages[tier] < 32;
    m->age_s[tier] += (m->now_s - n->used_s - m->age_s[tier]) / m->n_ages[tier];
}

static void do_evict(struct model *m, uint32_t tier)
{
    uint32_t want = naive_victim(m, tier);
    struct replace_victim v;

    if (want == REPLACE_NONE) {
        assert_int_equal(replace_evict(m->r, tier, &v), ERR_NO_BLOCKS);
        return;
    }
    struct node *n = &m->nodes[want];
    /* As in a tree: blocks in a slower tier keep their prefix there. */
    if (tier + 1 < N_TIERS && has_child(m, want, tier + 1) && !n->present[tier + 1])
        return;
    if (is_clocked(m) && isinf(n->due[tier]))
        m->clock[tier] = fmax(m->clock[tier], n->key[tier]);
    note_age(m, n, tier);
    assert_ok(replace_evict(m->r, tier, &v));
    assert_int_equal(v.id, n->id);
    assert_int_equal(v.has_copy, tier + 1 < N_TIERS && n->present[tier + 1]);
    n->present[tier] = false;
    m->used[tier] -= n->bytes;
    m->victims = m->victims * 31 + want;
}

static void do_insert(struct model *m, uint32_t k, uint32_t tier)
{
    struct node *n = &m->nodes[k];
    bool allowed = n->in_tree && !n->present[tier];

    if (allowed && n->parent != REPLACE_NONE) {
        const struct node *p = &m->nodes[n->parent];

        allowed = p->present[0] || (tier == 1 && p->present[1]);
    }
    if (!allowed)
        return;
    for (int i = 0; i < N_KEYS && m->used[tier] + n->bytes > capacities[tier]; i++)
        do_evict(m, tier);
    assert_int_equal(replace_has_room(m->r, tier, n->bytes),
                     m->used[tier] + n->bytes <= capacities[tier]);
    /* The parent of the entry may have been evicted meanwhile. */
    if (m->used[tier] + n->bytes > capacities[tier] ||
        (n->parent != REPLACE_NONE && !m->nodes[n->parent].present[0] &&
         !(tier == 1 && m->nodes[n->parent].present[1])))
        return;
    replace_insert(m->r, tier, n->id);
    n->present[tier] = true;
    n->key[tier] = key_of(m, n, tier);
    n->due[tier] = due_in(m, n, tier);
    m->used[tier] += n->bytes;
}

static void do_pin(struct model *m, uint32_t k, uint32_t tier, bool pin)
{
    struct node *n = &m->nodes[k];

    if (!n->in_tree || !n->present[tier] || (!pin && !n->n_pins[tier]))
        return;
    if (pin)
        replace_pin(m->r, tier, n->id);
    else
        replace_unpin(m->r, tier, n->id);
    n->n_pins[tier] += pin ? 1 : UINT32_MAX;
    if (n->n_pins[tier] == 0)
        n->used_s = m->now_s;
}

static void do_expect(struct model *m, uint32_t k, int delta)
{
    struct node *n = &m->nodes[k];

    if (!n->in_tree || (delta < 0 && !n->n_expected))
        return;
    if (delta < 0 && (uint32_t)-delta > n->n_expected)
        delta = -(int)n->n_expected;
    replace_expect(m->r, n->id, delta);
    if (n->n_expected == 0)
        n->due_s = 0;
    n->n_expected += (uint32_t)delta;
    decide_class(m, n);
    assert_int_equal(replace_n_expected(m->r, n->id), n->n_expected);
    assert_true(replace_due_s(m->r, n->id) == (n->n_expected ? n->due_s : (double)INFINITY));
}

static void do_due(struct model *m, uint32_t k)
{
    struct node *n = &m->nodes[k];

    if (!n->in_tree || !n->n_expected)
        return;
    if (draw(m, 4)) /* else the same time again */
        n->due_s = draw(m, 10) ? fmax(0, m->now_s - 5 + draw(m, 300)) : (double)INFINITY;
    replace_due(m->r, n->id, n->due_s);
    decide_class(m, n);
}

static void do_demote(struct model *m, uint32_t k)
{
    struct node *n = &m->nodes[k];

    if (!n->in_tree)
        return;
    assert_int_equal(replace_is_demoted(m->r, n->id), n->is_dead);
    assert_int_equal(replace_demote(m->r, n->id), !n->is_dead);
    n->is_dead = true;
}

/* Time alone never moves an entry to another class; only events do. */
static void do_time(struct model *m)
{
    double now_s = m->now_s + draw(m, 100) / 4.0 - 2; /* sometimes an earlier time, which is
                                                         ignored */

    replace_time(m->r, now_s);
    m->now_s = fmax(m->now_s, now_s);
}

static void do_remove(struct model *m, uint32_t k, uint32_t tier)
{
    struct node *n = &m->nodes[k];

    if (!n->in_tree || !n->present[tier] || n->n_pins[tier])
        return;
    for (uint32_t t = tier; t < N_TIERS; t++) /* the prefix of a child is never in a slower tier */
        if (has_child(m, k, t) && !(tier > 0 && n->present[0]) && !(t > tier && n->present[t]))
            return;
    replace_remove(m->r, tier, n->id);
    n->present[tier] = false;
    m->used[tier] -= n->bytes;
}

static void do_grow(struct model *m, uint32_t k, uint32_t to)
{
    struct node *n = &m->nodes[k], past = m->nodes[to];
    uint64_t more = 1 + draw(m, 4);
    uint32_t tier = n->present[0] ? 0 : 1;

    if (!n->in_tree || has_child(m, k, N_TIERS) || (n->present[0] && n->present[1]) ||
        (n->present[tier] && m->used[tier] + more > capacities[tier]))
        return;
    assert_int_equal(replace_is_free_name(m->r, to), !past.in_tree);
    assert_int_equal(replace_grow(m->r, n->id, to, n->bytes + more), !past.in_tree);
    if (past.in_tree)
        return;
    m->used[tier] += n->present[tier] ? more : 0;
    n->bytes += more;
    n->n_uses += past.n_uses;
    n->n_misses += past.n_misses;
    n->miss_s += past.miss_s;
    m->nodes[to] = *n;
    *n = (struct node){0};
    decide_class(m, n);
}

static void do_split(struct model *m, uint32_t k, uint32_t upper)
{
    struct node *n = &m->nodes[k], *up = &m->nodes[upper];

    if (!n->in_tree || n->bytes < 2 || up->in_tree)
        return;
    uint64_t bytes = 1 + draw(m, (uint32_t)n->bytes - 1);
    if (up->left_at)
        *up = (struct node){0};
    else
        forget_if_full(m);
    uint32_t id = replace_split(m->r, n->id, upper, bytes);
    if (id == REPLACE_NONE)
        return;
    *up = *n;
    up->id = id;
    up->bytes = bytes;
    up->n_pins[0] = up->n_pins[1] = 0;
    n->parent = upper;
    n->bytes -= bytes;
}

static void do_leave(struct model *m, uint32_t k)
{
    struct node *n = &m->nodes[k];

    if (!n->in_tree || n->n_expected || n->present[0] || n->present[1] || has_child(m, k, N_TIERS))
        return;
    replace_leave(m->r, n->id);
    n->in_tree = false;
    n->left_at = ++m->n_left;
}

static void step(struct model *m)
{
    uint32_t k = draw(m, N_KEYS), tier = draw(m, N_TIERS), what = draw(m, 109);

    if (what < 20)
        do_enter(m, k);
    else if (what < 45)
        do_access(m, k);
    else if (what < 65)
        do_insert(m, k, tier);
    else if (what < 75)
        do_evict(m, tier);
    else if (what < 79)
        do_pin(m, k, tier, true);
    else if (what < 85)
        do_pin(m, k, tier, false);
    else if (what < 88)
        do_expect(m, k, 1 + (int)draw(m, 3));
    else if (what < 91)
        do_expect(m, k, -1 - (int)draw(m, 3));
    else if (what < 94)
        do_split(m, k, draw(m, N_KEYS));
    else if (what < 95)
        do_grow(m, k, draw(m, N_KEYS));
    else if (what < 96)
        do_remove(m, k, tier);
    else if (what < 100)
        do_leave(m, k);
    else if (what < 104)
        do_due(m, k);
    else if (what < 107)
        do_demote(m, k);
    else
        do_time(m);
}

static uint64_t run(enum replace_policy policy, uint64_t seed)
{
    struct model m = {.policy = policy, .seed = seed};
    struct replace_config config = {
        policy, N_ENTRIES_MAX, N_TIERS, {capacities[0], capacities[1]}, seed % 2 == 0};
    struct replace_stats stats;

    assert_ok(replace_create(&m.r, &config));
    for (int i = 0; i < N_STEPS; i++) {
        step(&m);
        replace_check(m.r);
        for (uint32_t tier = 0; tier < N_TIERS; tier++) {
            uint32_t want = naive_victim(&m, tier), got = replace_peek(m.r, tier);

            assert_int_equal(got, want == REPLACE_NONE ? REPLACE_NONE : m.nodes[want].id);
            replace_stats(m.r, tier, &stats);
            assert_int_equal(stats.used_bytes, m.used[tier]);
            assert_true(stats.used_bytes <= capacities[tier]);
            assert_true(stats.clock == m.clock[tier]);
            assert_true(stats.survival_s == survival_s(&m, tier));
        }
    }
    assert_true(stats.n_evicted > 100 && m.n_late > 20 && m.n_soon > 5 &&
                m.n_dead > 20); /* or the test would prove nothing */
    replace_destroy(m.r);
    return m.victims;
}

static void victims_match_the_model(void **state)
{
    (void)state;
    for (int p = 0; p < REPLACE_N_POLICIES; p++)
        run((enum replace_policy)p, 1);
}

static void equal_events_give_equal_victims(void **state)
{
    (void)state;
    for (int p = 0; p < REPLACE_N_POLICIES; p++)
        assert_int_equal(run((enum replace_policy)p, 2), run((enum replace_policy)p, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(victims_match_the_model),
        cmocka_unit_test(equal_events_give_equal_victims),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
