#include "tests/unit/test.h"

#include <math.h>
#include <string.h>

#include "cache/policy/replace.h"

static struct replace *make(enum replace_policy policy, uint32_t n_entries_max, uint32_t n_tiers,
                            uint64_t capacity)
{
    struct replace_config config = {
        .policy = policy, .n_entries_max = n_entries_max, .n_tiers = n_tiers};
    struct replace *r;

    for (uint32_t tier = 0; tier < n_tiers; tier++)
        config.capacity_bytes[tier] = capacity << (4 * tier); /* slower tiers are larger */
    assert_ok(replace_create(&r, &config));
    return r;
}

/* A miss that costs s per byte, or a hit (s < 0). */
static void use(struct replace *r, uint32_t id, double s)
{
    struct replace_access a = {.was_cached = s < 0, .miss_s_per_byte = s, .own_s_per_byte = s};

    if (s < 0)
        a.own_s_per_byte = 1;
    replace_accessed(r, id, &a);
}

/* Add an entry of one byte to tier 0 and use it once. */
static uint32_t add(struct replace *r, uint64_t key, uint32_t parent, double s)
{
    uint32_t id = replace_enter(r, key, parent, 0, 1);

    assert_int_not_equal(id, REPLACE_NONE);
    use(r, id, s);
    replace_insert(r, 0, id);
    return id;
}

static uint32_t evict(struct replace *r, uint32_t tier)
{
    struct replace_victim v;

    assert_ok(replace_evict(r, tier, &v));
    return v.id;
}

static void assert_priority(const struct replace *r, uint32_t id, double want)
{
    assert_true(fabs(replace_priority(r, 0, id) - want) < 1e-12);
}

static void names_are_read_back(void **state)
{
    enum replace_policy p;

    (void)state;
    for (int i = 0; i < REPLACE_N_POLICIES; i++) {
        assert_ok(replace_policy_parse(replace_policy_name((enum replace_policy)i), &p));
        assert_int_equal(p, i);
    }
    assert_int_equal(replace_policy_parse("mru", &p), ERR_NOT_FOUND);
}

static void a_config_without_room_is_refused(void **state)
{
    struct replace_config good = {REPLACE_LRU, 4, 1, {10}, false}, bad = good;
    struct replace *r;

    (void)state;
    bad.n_entries_max = 0;
    assert_int_equal(replace_create(&r, &bad), ERR_INVALID);
    bad = good;
    bad.n_tiers = REPLACE_N_TIERS_MAX + 1;
    assert_int_equal(replace_create(&r, &bad), ERR_INVALID);
    bad = good;
    bad.capacity_bytes[0] = 0;
    assert_int_equal(replace_create(&r, &bad), ERR_INVALID);
    assert_null(r);
    replace_destroy(NULL);
}

/* The script of Algorithm 1 of RAGCache; the comments show the computed numbers. */
static void pgdsf_priorities_are_those_of_the_paper(void **state)
{
    struct replace *r = make(REPLACE_PGDSF, 8, 1, 10);
    uint32_t a, b, c;

    (void)state;
    a = add(r, 1, REPLACE_NONE, 2); /* 1 use, AvgCost 2 */
    b = add(r, 2, a, 4);
    assert_priority(r, a, 2);
    assert_priority(r, b, 4);
    use(r, a, -1); /* a hit counts as a use and leaves AvgCost unchanged */
    assert_priority(r, a, 4);
    c = add(r, 3, a, 1);
    use(r, a, 6); /* a miss: AvgCost (2 + 6) / 2, 3 uses */
    assert_priority(r, a, 12);
    assert_int_equal(evict(r, 0), c); /* among the leaves b (4) and c (1): the clock is 1 */
    replace_leave(r, c);
    c = replace_enter(r, 3, a, 0, 1);
    use(r, c, 3); /* known from before: 2 uses, AvgCost (1 + 3) / 2 */
    replace_insert(r, 0, c);
    assert_priority(r, c, 1 + 2 * 2);
    assert_priority(r, b, 4);         /* not used since */
    assert_int_equal(evict(r, 0), b); /* the clock is 4 */
    use(r, a, -1);
    assert_priority(r, a, 4 + 4 * 4);
    assert_int_equal(evict(r, 0), c);
    assert_int_equal(evict(r, 0), a);
    replace_check(r);
    replace_destroy(r);
}

static void gdsf_counts_the_cost_after_the_whole_prefix(void **state)
{
    struct replace *r = make(REPLACE_GDSF, 8, 1, 10);
    struct replace_access hit = {.was_cached = true, .own_s_per_byte = 5};
    uint32_t a, b;

    (void)state;
    a = add(r, 1, REPLACE_NONE, 2);
    b = add(r, 2, REPLACE_NONE, 3);
    replace_accessed(r, a, &hit); /* 2 uses, cost is now 5 */
    assert_priority(r, a, 10);
    assert_int_equal(evict(r, 0), b);
    use(r, a, -1); /* clock 3, 3 uses, cost 1 */
    assert_priority(r, a, 6);
    replace_destroy(r);
}

static void lru_lfu_and_belady_pick_theirs(void **state)
{
    static const enum replace_policy policies[] = {REPLACE_LRU, REPLACE_LFU, REPLACE_BELADY};

    (void)state;
    for (int p = 0; p < 3; p++) {
        struct replace *r = make(policies[p], 8, 1, 10);
        double next[3] = {7, INFINITY, 9};
        uint32_t id[3];

        for (uint32_t i = 0; i < 3; i++) {
            struct replace_access a = {.next_use = next[i]};

            id[i] = add(r, i, REPLACE_NONE, 1);
            replace_accessed(r, id[i], &a);
        }
        if (policies[p] != REPLACE_BELADY)
            use(r, id[0], -1);                /* entry 0 is the most recently and the most often
                                                 used */
        assert_int_equal(evict(r, 0), id[1]); /* belady: never used again; the others: the oldest */
        assert_int_equal(evict(r, 0), id[2]);
        assert_int_equal(evict(r, 0), id[0]);
        replace_destroy(r);
    }
}

static void a_parent_is_never_evicted_before_its_child(void **state)
{
    (void)state;
    for (int p = 0; p < REPLACE_N_POLICIES; p++) {
        struct replace *r = make((enum replace_policy)p, 8, 1, 10);
        uint32_t a = add(r, 1, REPLACE_NONE, 1), b = add(r, 2, a, 100);

        for (int i = 0; i < 5; i++)
            use(r, b, -1); /* a higher priority than its parent's in every policy */
        assert_int_equal(replace_peek(r, 0), b);
        assert_int_equal(evict(r, 0), b);
        assert_int_equal(evict(r, 0), a);
        replace_destroy(r);
    }
}

static void evict_never_takes_pinned(void **state)
{
    struct replace_victim v;

    (void)state;
    for (int p = 0; p < REPLACE_N_POLICIES; p++) {
        struct replace *r = make((enum replace_policy)p, 8, 1, 10);
        uint32_t a = add(r, 1, REPLACE_NONE, 1), b = add(r, 2, REPLACE_NONE, 5);

        replace_pin(r, 0, a);
        replace_pin(r, 0, a);
        assert_int_equal(evict(r, 0), b);
        replace_unpin(r, 0, a);
        assert_int_equal(replace_evict(r, 0, &v), ERR_NO_BLOCKS);
        assert_int_equal(replace_peek(r, 0), REPLACE_NONE);
        replace_unpin(r, 0, a);
        assert_int_equal(evict(r, 0), a);
        replace_destroy(r);
    }
}

static void entries_of_waiting_requests_are_evicted_last(void **state)
{
    (void)state;
    for (int p = 0; p < REPLACE_N_POLICIES; p++) {
        struct replace *r = make((enum replace_policy)p, 8, 1, 10);
        uint32_t a = add(r, 1, REPLACE_NONE, 1), b = add(r, 2, REPLACE_NONE, 1);

        use(r, b, -1);
        assert_int_equal(replace_peek(r, 0), a);
        replace_expect(r, a, +1);
        replace_expect(r, a, +1);
        assert_int_equal(replace_peek(r, 0), b);
        replace_expect(r, a, -1);
        assert_int_equal(replace_peek(r, 0), b);
        replace_expect(r, a, -1);
        assert_int_equal(replace_peek(r, 0), a);
        replace_expect(r, a, +1);
        assert_int_equal(evict(r, 0), b);
        assert_int_equal(evict(r, 0), a); /* expected entries are evicted last, but they are
                                             evicted */
        replace_destroy(r);
    }
}

/* Two expected entries, a due before b, and one that is not expected and was used last. */
static void expected_entries_are_evicted_latest_due_first(void **state)
{
    (void)state;
    for (int p = 0; p < REPLACE_N_POLICIES; p++) {
        struct replace *r = make((enum replace_policy)p, 8, 1, 10);
        uint32_t a = add(r, 1, REPLACE_NONE, 1), b = add(r, 2, REPLACE_NONE, 1);
        uint32_t held = add(r, 3, REPLACE_NONE, 1), other = add(r, 4, REPLACE_NONE, 1);

        use(r, other, 9);
        assert_true(isinf(replace_survival_s(r, 0)) && isinf(replace_due_s(r, a)));
        replace_time(r, 100);
        replace_expect(r, a, +1);
        replace_due(r, a, 101);
        replace_expect(r, b, +2);
        replace_due(r, b, 5000);
        replace_expect(r, held, +1); /* without a due time: due now */
        assert_true(replace_due_s(r, a) == 101 && replace_due_s(r, held) == 0);
        replace_check(r);
        assert_int_equal(evict(r, 0), other);
        assert_int_equal(replace_peek(r, 0), b);
        replace_due(r, b, 100.5);
        assert_int_equal(replace_peek(r, 0), a);
        replace_expect(r, b, -1);
        assert_int_equal(replace_peek(r, 0), a); /* the other hold is still active */
        replace_expect(r, b, -1);
        assert_int_equal(evict(r, 0), b); /* not expected any more */
        assert_int_equal(evict(r, 0), a);
        assert_int_equal(evict(r, 0), held);
        replace_destroy(r);
    }
}

/* Unexpected entries survive for 10 s, so an entry due later than that is not protected. */
static void entries_due_after_the_survival_time_are_evicted_by_priority(void **state)
{
    struct replace *r = make(REPLACE_LRU, 16, 1, 10);
    uint32_t late, other, soon;

    (void)state;
    for (uint64_t i = 0; i < 40; i++) {
        uint32_t id = add(r, 100 + i, REPLACE_NONE, 1);

        replace_time(r, 10.0 * (double)(i + 1));
        assert_int_equal(evict(r, 0), id);
        replace_leave(r, id);
    }
    assert_true(fabs(replace_survival_s(r, 0) - 10) < 1e-9);
    late = add(r, 1, REPLACE_NONE, 1);
    soon = add(r, 2, REPLACE_NONE, 1);
    other = add(r, 3, REPLACE_NONE, 1);
    replace_expect(r, late, +1);
    replace_expect(r, soon, +1);
    replace_due(r, soon, 409.9);
    assert_int_equal(replace_peek(r, 0), other); /* late is due now as long as no time is given */
    replace_due(r, late, 410.1);
    assert_int_equal(replace_peek(r, 0), late); /* late was used before the other one */
    replace_time(r, 405);
    assert_int_equal(replace_peek(r, 0), late); /* the order follows only the given times */
    replace_due(r, late, 410.1);
    assert_int_equal(replace_peek(r, 0), other);
    replace_due(r, late, 1e9);
    assert_int_equal(evict(r, 0), late);
    assert_true(fabs(replace_survival_s(r, 0) - 10) < 1e-9); /* a victim's age does not change the
                                                                survival time of others */
    replace_insert(r, 0, late);
    assert_int_equal(replace_peek(r, 0), late);
    replace_time(r, 1e9);
    assert_int_equal(replace_peek(r, 0), late);
    replace_remove(r, 0, late);
    replace_insert(r, 0, late); /* the order takes the time of the insertion */
    assert_int_equal(evict(r, 0), other);
    assert_true(replace_survival_s(r, 0) > 1e6);
    replace_check(r);
    replace_destroy(r);
}

static void a_copy_in_the_slower_tier_makes_eviction_free(void **state)
{
    struct replace *r = make(REPLACE_PGDSF, 8, 2, 10);
    uint32_t a = add(r, 1, REPLACE_NONE, 1), b = add(r, 2, a, 5);
    struct replace_victim v;

    (void)state;
    assert_ok(replace_evict(r, 0, &v));
    assert_true(v.id == b && !v.has_copy && !v.has_below);
    replace_insert(r, 1, b); /* copied to the slow tier, once */
    assert_ok(replace_evict(r, 0, &v));
    assert_true(v.id == a && !v.has_copy && v.has_below);
    replace_insert(r, 1, a);
    replace_check(r);
    use(r, a, -1);
    replace_insert(r, 0, a); /* promoted: the copy stays */
    assert_ok(replace_evict(r, 0, &v));
    assert_true(v.id == a && v.has_copy && v.has_below);
    assert_int_equal(evict(r, 1), b);
    assert_int_equal(evict(r, 1), a);
    replace_check(r);
    replace_destroy(r);
}

static void each_tier_has_its_own_clock(void **state)
{
    struct replace *r = make(REPLACE_PGDSF, 8, 2, 10);
    struct replace_stats fast, slow;
    uint32_t a = add(r, 1, REPLACE_NONE, 3);

    (void)state;
    assert_int_equal(evict(r, 0), a);
    replace_insert(r, 1, a);
    replace_stats(r, 0, &fast);
    replace_stats(r, 1, &slow);
    assert_true(fast.clock == 3 && slow.clock == 0);
    assert_true(replace_priority(r, 1, a) == 3); /* with the slow tier's clock */
    replace_insert(r, 0, a);
    assert_true(replace_priority(r, 0, a) == 6); /* back in tier 0, with the fast tier's clock */
    replace_destroy(r);
}

static void uses_of_evicted_entries_are_remembered_while_there_is_room(void **state)
{
    struct replace *r = make(REPLACE_LFU, 3, 1, 10);
    uint32_t a;

    (void)state;
    for (uint64_t key = 1; key <= 3; key++) {
        uint32_t id = add(r, key, REPLACE_NONE, 1);

        use(r, id, -1);
        assert_int_equal(evict(r, 0), id);
        replace_leave(r, id);
    }
    a = add(r, 4, REPLACE_NONE, 1); /* takes the slot of entry 1, which was evicted first */
    assert_priority(r, a, 1);
    assert_priority(r, add(r, 2, REPLACE_NONE, 1), 3);
    uint32_t c = replace_enter(r, 3, REPLACE_NONE, 0,
                               2); /* key 3 was remembered with another size: not used */
    use(r, c, 1);
    assert_priority(r, c, 1);
    assert_int_equal(replace_enter(r, 9, REPLACE_NONE, 0, 1), REPLACE_NONE); /* all entries are in
                                                                                the tree */
    replace_check(r);
    replace_destroy(r);
}

static void a_name_in_the_tree_is_not_given_twice(void **state)
{
    struct replace *r = make(REPLACE_LRU, 8, 1, 10);
    uint32_t a = replace_enter(r, 1, REPLACE_NONE, 0, 4);

    (void)state;
    assert_int_equal(replace_enter(r, 1, a, 0, 1), REPLACE_NONE);
    assert_int_equal(replace_split(r, a, 1, 2), REPLACE_NONE);
    replace_check(r);
    replace_destroy(r);
}

static void the_filter_compares_with_the_next_victim(void **state)
{
    struct replace *r = make(REPLACE_LFU, 8, 2, 1); /* a slow tier of 16 */
    uint32_t cheap = replace_enter(r, 1, REPLACE_NONE, 0, 1);
    uint32_t often = replace_enter(r, 2, REPLACE_NONE, 0, 16);
    uint32_t most = replace_enter(r, 3, REPLACE_NONE, 0, 16);

    (void)state;
    use(r, cheap, 1);
    assert_true(replace_admits(r, 1, cheap)); /* there is room */
    for (int i = 0; i < 2; i++)
        use(r, often, 1);
    for (int i = 0; i < 3; i++)
        use(r, most, 1);
    replace_insert(r, 1, often);
    assert_false(replace_admits(r, 1, cheap));
    assert_true(replace_admits(r, 1, most));
    replace_destroy(r);
}

static void a_grown_entry_is_found_by_its_new_key_only(void **state)
{
    (void)state;
    for (int p = 0; p < REPLACE_N_POLICIES; p++) {
        struct replace *r = make((enum replace_policy)p, 4, 2, 10);
        uint32_t a = add(r, 1, REPLACE_NONE, 1), b = add(r, 2, REPLACE_NONE, 1);
        struct replace_stats stats;

        assert_false(replace_grow(r, a, 2, 3)); /* the key belongs to another entry */
        assert_false(replace_is_free_name(r, 2));
        replace_stats(r, 0, &stats);
        assert_int_equal(stats.used_bytes, 2);
        assert_true(replace_grow(r, a, 3, 9));
        assert_true(replace_is_free_name(r, 1) && !replace_is_free_name(r, 3));
        replace_stats(r, 0, &stats);
        assert_int_equal(stats.used_bytes, 10);
        assert_false(replace_has_room(r, 0, 1));
        assert_int_equal(replace_enter(r, 3, REPLACE_NONE, 0, 1), REPLACE_NONE);
        replace_check(r);
        replace_remove(r, 0, a);
        replace_stats(r, 0, &stats);
        assert_int_equal(stats.used_bytes, 1);
        assert_int_equal(evict(r, 0), b);
        replace_check(r);
        replace_destroy(r);
    }
}

static void an_entry_grown_to_a_remembered_key_inherits_its_uses(void **state)
{
    struct replace *r = make(REPLACE_LFU, 8, 1, 10);
    uint32_t a = replace_enter(r, 1, REPLACE_NONE, 0, 2);

    (void)state;
    for (int i = 0; i < 3; i++)
        use(r, a, 1);
    replace_leave(r, a);
    assert_true(replace_is_free_name(r, 1)); /* a key that is only remembered is free */
    uint32_t b = add(r, 2, REPLACE_NONE, 1);
    assert_true(replace_grow(r, b, 1, 2));
    use(r, b, 1);
    assert_priority(r, b, 5);
    replace_check(r);
    replace_destroy(r);
}

static void several_are_expected_and_taken_back_at_once(void **state)
{
    (void)state;
    for (int p = 0; p < REPLACE_N_POLICIES; p++) {
        struct replace *r = make((enum replace_policy)p, 8, 1, 10);
        uint32_t a = add(r, 1, REPLACE_NONE, 1), b = add(r, 2, REPLACE_NONE, 1), up;

        use(r, b, -1);
        replace_expect(r, a, +3);
        assert_int_equal(replace_n_expected(r, a), 3);
        assert_int_equal(replace_peek(r, 0), b);
        replace_expect(r, a, 0);
        replace_expect(r, a, -2);
        assert_int_equal(replace_n_expected(r, a), 1);
        assert_int_equal(replace_peek(r, 0), b);
        assert_true(replace_grow(r, a, 3, 2));
        up = replace_split(r, a, 4, 1);
        assert_true(replace_n_expected(r, up) == 1 && replace_n_expected(r, a) == 1);
        replace_expect(r, a, -1);
        assert_int_equal(replace_n_expected(r, a), 0);
        assert_int_equal(replace_n_expected(r, up), 1);
        assert_int_equal(replace_peek(r, 0), a);
        replace_check(r);
        replace_destroy(r);
    }
}

/* An entry that also lies in a faster tier may leave a slower tier before its children there. */
static void an_inner_entry_leaves_a_slower_tier(void **state)
{
    (void)state;
    for (int p = 0; p < REPLACE_N_POLICIES; p++) {
        struct replace *r = make((enum replace_policy)p, 8, 2, 10);
        uint32_t a = add(r, 1, REPLACE_NONE, 1), b = replace_enter(r, 2, a, 0, 1);
        struct replace_victim v;

        use(r, b, 1);
        replace_insert(r, 1, a);
        replace_insert(r, 1, b);
        replace_remove(r, 1, a);
        assert_true(replace_in_tier(r, 0, a) && !replace_in_tier(r, 1, a));
        replace_check(r);
        assert_ok(replace_evict(r, 0, &v));
        assert_true(v.id == a && v.has_below && !v.has_copy);
        replace_insert(r, 1, a); /* its place above b is known */
        assert_int_equal(evict(r, 1), b);
        assert_int_equal(evict(r, 1), a);
        replace_check(r);
        replace_destroy(r);
    }
}

/* --- contest --- */

#define N_KEYS 40000

struct toy {
    struct replace *r;
    uint32_t ids[N_KEYS]; /* id + 1 */
    uint32_t key_of[N_KEYS];
    uint32_t n_hits;
};

/* One request for one entry of one byte, without parent or child. */
static void ask(struct toy *t, uint32_t key)
{
    bool hit = t->ids[key] != 0;

    if (!hit)
        t->ids[key] = replace_enter(t->r, key, REPLACE_NONE, 0, 1) + 1;
    uint32_t id = t->ids[key] - 1;
    t->key_of[id] = key;
    t->n_hits += hit;
    use(t->r, id, hit ? -1 : 1);
    if (hit)
        return;
    if (!replace_has_room(t->r, 0, 1)) {
        uint32_t victim = evict(t->r, 0);

        replace_leave(t->r, victim);
        t->ids[t->key_of[victim]] = 0;
    }
    replace_insert(t->r, 0, id);
}

static uint32_t random_below(uint32_t *seed, uint32_t n)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % n;
}

/* Popular documents among prompts that come only once: recency keeps the wrong entries. */
static void ask_documents(struct toy *t, uint32_t n)
{
    uint32_t seed = 1, once = 1000;

    for (uint32_t i = 0; i < n; i++)
        ask(t, i % 3 == 0 ? random_below(&seed, 120) : once++);
}

/* Conversations: four turns soon after each other, then never again: counting keeps finished
 * ones. */
static void ask_conversations(struct toy *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t turn = 0; turn < 4; turn++)
            ask(t, 20000 + (i >= turn * 40 ? i - turn * 40 : i));
}

static struct toy *toy_create(enum replace_policy policy)
{
    struct toy *t = test_calloc(1, sizeof *t);

    t->r = make(policy, 1000, 1, 200);
    return t;
}

static void toy_destroy(struct toy *t)
{
    replace_check(t->r);
    replace_destroy(t->r);
    test_free(t);
}

static uint32_t hits_of(enum replace_policy policy, void (*workload)(struct toy *, uint32_t),
                        const char **order)
{
    struct toy *t = toy_create(policy);
    struct replace_stats stats;

    workload(t, 6000);
    replace_stats(t->r, 0, &stats);
    *order = stats.order;
    uint32_t n_hits = t->n_hits;
    toy_destroy(t);
    return n_hits;
}

static void contest_keeps_documents_like_counting(void **state)
{
    const char *order;
    uint32_t contest = hits_of(REPLACE_CONTEST, ask_documents, &order);

    (void)state;
    assert_string_equal(order, "worth");
    assert_true(contest > 1.2 * hits_of(REPLACE_LRU, ask_documents, &order));
}

static void contest_keeps_conversations_like_recency(void **state)
{
    const char *order, *ignored;
    uint32_t contest = hits_of(REPLACE_CONTEST, ask_conversations, &order);

    (void)state;
    assert_string_equal(order, "recency");
    assert_true(contest > 0.98 * hits_of(REPLACE_LRU, ask_conversations, &ignored));
}

static void contest_changes_its_mind_with_the_workload(void **state)
{
    struct toy *t = toy_create(REPLACE_CONTEST);
    struct replace_stats stats;

    (void)state;
    ask_documents(t, 6000);
    replace_stats(t->r, 0, &stats);
    assert_string_equal(stats.order, "worth");
    ask_conversations(t, 6000);
    replace_stats(t->r, 0, &stats);
    assert_string_equal(stats.order, "recency");
    replace_check(t->r);
    toy_destroy(t);
}

/* A demoted entry makes room for any other, so an entry used before it is not crowded out by it. */
static void demoted_entries_take_no_room_in_the_estimates(void **state)
{
    struct toy *t = toy_create(REPLACE_CONTEST);
    struct replace_stats stats;
    uint32_t once = 30000;

    (void)state;
    for (uint32_t i = 0; i < 1000; i++)
        for (uint32_t turn = 0; turn < 2; turn++) {
            ask(t, 20000 + (i >= turn * 40 ? i - turn * 40 : i));
            for (uint32_t k = 0; k < 4; k++) {
                ask(t, once);
                (void)replace_demote(t->r, t->ids[once++] - 1);
            }
        }
    replace_stats(t->r, 0, &stats);
    assert_string_equal(stats.order, "recency");
    toy_destroy(t);
}

static void in_a_pool_contest_begins_with_recency_and_learns_slowly(void **state)
{
    struct replace_config config = {REPLACE_CONTEST, 1000, 1, {200}, true};
    struct toy *t = test_calloc(1, sizeof *t);
    struct replace_stats stats;

    (void)state;
    assert_ok(replace_create(&t->r, &config));
    replace_stats(t->r, 0, &stats);
    assert_string_equal(stats.order, "recency");
    ask_conversations(t, 1000);
    replace_stats(t->r, 0, &stats);
    assert_string_equal(stats.order, "recency");
    assert_int_equal(stats.n_switches, 0);
    ask_documents(t, 6000);
    replace_stats(t->r, 0, &stats);
    assert_string_equal(stats.order, "worth");
    toy_destroy(t);
}

/* The order by which the contest goes after an entry behind `depth` spans, in a pool, n_turnovers
 * after the start. */
static const char *order_in_a_pool(uint32_t depth, uint32_t n_turnovers)
{
    struct replace_config config = {REPLACE_CONTEST, 64, 1, {8}, true};
    struct replace_stats stats;
    struct replace *r;

    assert_ok(replace_create(&r, &config));
    for (uint32_t i = 0; i < 8 * n_turnovers; i++) {
        if (!replace_has_room(r, 0, 1))
            (void)evict(r, 0);
        (void)add(r, 100 + i, REPLACE_NONE, 1);
    }
    assert_int_not_equal(replace_enter(r, 1, REPLACE_NONE, depth, 1), REPLACE_NONE);
    replace_stats(r, 0, &stats);
    replace_check(r);
    replace_destroy(r);
    return stats.order;
}

static void in_a_pool_contest_begins_with_worth_where_prompts_have_documents(void **state)
{
    (void)state;
    assert_string_equal(order_in_a_pool(0, 0), "recency");
    assert_string_equal(order_in_a_pool(CONTEST_SHARED_DEPTH - 1, 0), "recency");
    assert_string_equal(order_in_a_pool(CONTEST_SHARED_DEPTH, 0), "worth");
    assert_string_equal(order_in_a_pool(CONTEST_SHARED_DEPTH, 1), "recency");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_read_back),
        cmocka_unit_test(a_config_without_room_is_refused),
        cmocka_unit_test(pgdsf_priorities_are_those_of_the_paper),
        cmocka_unit_test(gdsf_counts_the_cost_after_the_whole_prefix),
        cmocka_unit_test(lru_lfu_and_belady_pick_theirs),
        cmocka_unit_test(a_parent_is_never_evicted_before_its_child),
        cmocka_unit_test(evict_never_takes_pinned),
        cmocka_unit_test(entries_of_waiting_requests_are_evicted_last),
        cmocka_unit_test(expected_entries_are_evicted_latest_due_first),
        cmocka_unit_test(entries_due_after_the_survival_time_are_evicted_by_priority),
        cmocka_unit_test(a_copy_in_the_slower_tier_makes_eviction_free),
        cmocka_unit_test(each_tier_has_its_own_clock),
        cmocka_unit_test(uses_of_evicted_entries_are_remembered_while_there_is_room),
        cmocka_unit_test(a_name_in_the_tree_is_not_given_twice),
        cmocka_unit_test(the_filter_compares_with_the_next_victim),
        cmocka_unit_test(a_grown_entry_is_found_by_its_new_key_only),
        cmocka_unit_test(an_entry_grown_to_a_remembered_key_inherits_its_uses),
        cmocka_unit_test(several_are_expected_and_taken_back_at_once),
        cmocka_unit_test(an_inner_entry_leaves_a_slower_tier),
        cmocka_unit_test(contest_keeps_documents_like_counting),
        cmocka_unit_test(contest_keeps_conversations_like_recency),
        cmocka_unit_test(contest_changes_its_mind_with_the_workload),
        cmocka_unit_test(demoted_entries_take_no_room_in_the_estimates),
        cmocka_unit_test(in_a_pool_contest_begins_with_recency_and_learns_slowly),
        cmocka_unit_test(in_a_pool_contest_begins_with_worth_where_prompts_have_documents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
