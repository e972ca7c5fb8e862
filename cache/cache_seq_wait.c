/* cache_seq_wait.c - a sequence before it runs: what it expects, what is fetched and read for it,
 * and what it asks the pool for; and what it keeps for later. */
#include <math.h>

#include "base/check.h"
#include "cache/cache_seq_inner.h"

/* Blocks of a waiting prompt that are counted as expected: more would cost more time than it helps.
 */
#define EXPECT_BLOCKS_MAX 1024u
/* A due time counts as unchanged if it moves by less than this share of the time left, or than
 * these seconds. */
#define DUE_SHARE 0.1
#define DUE_SECONDS 0.05
/* Age at which an answer of the pool is old, as a share of the time of a lookup, and how often it
 * doubles at most. */
#define OLD_SHARE 0.25
#define LOOKS_MAX 20
/* Waiting sequences for which KV is read, or asked for: the work of a step must not grow with the
 * queue. In a pool twice as many as run, and those that an idle instance may begin with. */
#define LOAD_AHEAD_MAX 64u
#define LOAD_AHEAD_MIN 4u
#define LOAD_AHEAD_RUNNING 2u

void cache_seq_expect(struct cache_seq *s, uint64_t due_ns)
{
    struct store *st = s->cache->store;
    double due_s = (double)due_ns * 1e-9, was_s = s->due_s;
    bool is_told = s->n_expected > 0 || s->expects_tail;
    uint32_t n = s->n_keys < EXPECT_BLOCKS_MAX ? s->n_keys : EXPECT_BLOCKS_MAX;

    if (n > s->n_match_keys_max)
        n = s->n_match_keys_max;
    cache_assert_owner(s->cache);
    if (!s->cache->config.prefix_caching && !s->has_left)
        return; /* no other sequence computes its path */
    if (is_told && fabs(due_s - was_s) <= fmax(DUE_SECONDS, DUE_SHARE * (was_s - store_now_s(st))))
        due_s = was_s; /* report it again: others may have moved, and time passes */
    s->due_s = due_s;
    if (s->n_expected > 0)
        store_expect_at(st, s->keys, s->n_expected, was_s, due_s);
    else
        s->n_expected = store_expect(st, s->keys, n, due_s);
    if (s->expects_tail)
        store_expect_at(st, &s->tail_name, 1, was_s, due_s);
    else if (s->tail_n > 0)
        s->expects_tail = store_expect(st, &s->tail_name, 1, due_s) == 1;
}

bool cache_seq_prefetch(struct cache_seq *s)
{
    struct store *st = s->cache->store;
    uint64_t n_out = store_n_expected_out(st);
    bool is_told = s->n_expected > 0 || s->expects_tail;

    cache_assert_owner(s->cache);
    if ((s->was_prefetched && s->n_expected_out == n_out) || s->n_blocks > 0 ||
        !store_prefetches(st))
        return true;
    struct ktree_match m = match_path(s);
    s->asked_prefetch = true;
    s->was_prefetched = store_prefetch(st, &m, own_tail(s), is_told ? s->due_s : STORE_NO_DUE);
    s->n_expected_out = n_out;
    return s->was_prefetched;
}

void describe_blocks(const struct cache_seq *s, struct pool_meta *meta, uint32_t n)
{
    struct cursor at = {0};

    for (uint32_t i = 0; i < n; i++) {
        uint32_t pos0 = at.pos, n_tokens = cut_len(s, &at);

        meta[i] = (struct pool_meta){.n_tokens = (uint8_t)n_tokens,
                                     .starts_segment = at.n_in_segment == 0,
                                     .is_public = pos0 + n_tokens <= s->prompt.n_public,
                                     .depth = at.span};
        cut_next(s, &at);
    }
}

static void hesitate(struct cache_seq *s, bool hesitates)
{
    if (s->promised_end == 0 || s->hesitates == hesitates)
        return;
    store_hesitate(s->cache->store, s->keys + s->promised0, s->promised_end - s->promised0,
                   hesitates ? 1 : -1);
    s->hesitates = hesitates;
}

void promise_blocks(struct cache_seq *s)
{
    struct cache *c = s->cache;
    uint32_t n = n_keys_to_match(s) < POOL_PATH_MAX ? n_keys_to_match(s) : POOL_PATH_MAX;
    struct ktree_match m;

    if (!c->pool || !c->config.prefix_caching || s->remote.n_parts > 0) {
        end_promise(s);
        return; /* what lies behind a part that stays elsewhere is private */
    }
    hesitate(s, false);
    m = match_path(s);
    if (s->promised_end > 0 && m.n_blocks > s->promised0)
        end_promise(s); /* a part of it was found elsewhere */
    if (s->promised_end > 0 || m.n_blocks >= n)
        return;
    describe_blocks(s, c->meta, n);
    s->promised0 = m.n_blocks;
    s->promised_end = store_promise(c->store, s->keys, c->meta, m.n_blocks, n);
    if (s->promised_end == s->promised0)
        s->promised_end = 0;
}

void end_promise(struct cache_seq *s)
{
    hesitate(s, false);
    if (s->promised_end > 0)
        store_unpromise(s->cache->store, s->keys + s->promised0, s->promised_end - s->promised0);
    s->promised_end = 0;
}

static bool is_looking(const struct cache_seq *s)
{
    for (uint32_t i = 0; i < s->n_lookups; i++)
        if (store_is_looking(s->cache->store, s->lookups[i]))
            return true;
    return false;
}

static bool has_answer(const struct cache_seq *s)
{
    for (uint32_t i = 0; i < s->n_lookups; i++)
        if (!store_is_looking(s->cache->store, s->lookups[i]))
            return true;
    return false;
}

/* Join the lookups of other requests for the path; one place is kept for an own one. */
static void join_lookups(struct cache_seq *s, uint32_t n)
{
    uint32_t lookup;

    while (s->n_lookups + 1 < SEQ_LOOKUPS_MAX &&
           (lookup = store_join_lookup(s->cache->store, s->keys, n, s->lookups, s->n_lookups)) !=
               STORE_NO_LOOKUP)
        s->lookups[s->n_lookups++] = lookup;
}

/* Ask the pool once, and again while other instances are said to have more than was found. */
static void ask_pool(struct cache_seq *s, uint32_t n)
{
    struct cache *c = s->cache;
    bool is_told = s->n_expected > 0 || s->expects_tail;
    bool is_more = s->own_lookup != STORE_NO_LOOKUP && store_leaves_more(c->store, s->own_lookup);

    if ((s->has_looked && !is_more) || s->n_lookups == SEQ_LOOKUPS_MAX)
        return;
    describe_blocks(s, c->meta, n);
    s->own_lookup = store_begin_lookup(
        c->store,
        &(struct store_ask){.keys = s->keys,
                            .meta = c->meta,
                            .n = n,
                            .n_delayed = 1 + c->n_seqs - c->n_loading,
                            .wait_s = is_told ? fmax(s->due_s - store_now_s(c->store), 0) : 0,
                            .is_again = s->n_looks > 0,
                            .others = s->lookups,
                            .n_others = s->has_looked ? s->n_lookups : 0});
    s->has_looked = true;
    s->looked_s = store_now_s(c->store);
    if (s->own_lookup != STORE_NO_LOOKUP)
        s->lookups[s->n_lookups++] = s->own_lookup;
}

/* Ask the pool for what no tier here has. True: an answer is awaited. */
static bool looks_elsewhere(struct cache_seq *s)
{
    uint32_t n = n_keys_to_match(s) < POOL_PATH_MAX ? n_keys_to_match(s) : POOL_PATH_MAX;

    if (s->n_spread == 0) {
        join_lookups(s, n);
        if (!is_looking(s))
            ask_pool(s, n);
    }
    if (!is_looking(s))
        return false;
    hesitate(s, true);
    return true;
}

/* The blocks before the remote part could not be read: read the rest, too, or compute it. */
static bool gives_up_queries(struct cache_seq *s)
{
    struct ktree_match m = match_path(s);

    if (may_attach_remote(s, &m) || m.n_blocks >= s->remote.to)
        return false;
    end_queries(s);
    return true;
}

bool cache_seq_load(struct cache_seq *s, bool is_first)
{
    struct store *st = s->cache->store;
    bool is_told = s->n_expected > 0 || s->expects_tail;
    uint64_t n_events = store_n_load_events(st);

    cache_assert_owner(s->cache);
    reconsider_queries(s);
    if (!s->is_loading)
        return true;
    if (is_first)
        store_load_first(st, s);
    if (s->is_reading && s->n_load_events == n_events)
        return true;
    bool looks = s->cache->pool && looks_elsewhere(s);
    if (s->cache->pool && !looks)
        looks = choose_queries(s);
    bool queries = s->remote.n_parts > 0;
    uint32_t n = queries ? s->remote.from : n_keys_to_match(s);
    enum store_load_state state = STORE_LOADED;
    /* A lookup may have found blocks to which this sequence will send queries: no block is read
     * before that is decided. */
    if (!looks || !has_answer(s) || !may_choose_queries(s))
        state = store_load(st, s->keys, n, s, is_told ? s->due_s : STORE_NO_DUE, queries);
    s->n_load_events = n_events;
    s->is_reading = state == STORE_LOADING || (looks && state == STORE_LOADED);
    set_loading(s, looks || state != STORE_LOADED);
    if (!s->is_loading && queries && gives_up_queries(s))
        set_loading(s, true);
    if (!s->is_loading) {
        stop_loading(s);
        promise_blocks(s);
    }
    s->asked_prefetch |= s->is_loading;
    return state != STORE_CANNOT_LOAD;
}

uint32_t cache_n_load_ahead(const struct cache *c, uint32_t n_running)
{
    if (!c->pool || n_running >= (LOAD_AHEAD_MAX - LOAD_AHEAD_MIN) / LOAD_AHEAD_RUNNING)
        return LOAD_AHEAD_MAX;
    return LOAD_AHEAD_MIN + LOAD_AHEAD_RUNNING * n_running;
}

/* The required age of an answer doubles each time, so that a sequence that waits for long seldom
 * asks. */
static bool is_answer_old(const struct cache_seq *s)
{
    const struct store *st = s->cache->store;
    int n = s->n_looks < LOOKS_MAX ? (int)s->n_looks : LOOKS_MAX;

    return store_now_s(st) - s->looked_s > ldexp(OLD_SHARE * store_lookup_seconds(st), n);
}

void cache_seq_look_again(struct cache_seq *s)
{
    cache_assert_owner(s->cache);
    if (!s->cache->pool || !s->has_looked || s->is_loading || s->n_blocks > 0 ||
        s->remote.n_parts > 0 || !is_answer_old(s))
        return;
    struct ktree_match m = match_path(s);
    if (m.n_blocks >= n_keys_to_match(s))
        return;
    s->n_looks++;
    s->has_looked = s->has_chosen = s->is_reading = false;
    set_loading(s, true);
}

void cache_seq_begin_wait(struct cache_seq *s)
{
    s->waits = true;
    s->wait_began_s = store_now_s(s->cache->store);
}

bool cache_seq_is_loading(const struct cache_seq *s)
{
    return s->is_loading;
}

void cache_seq_stop_loading(struct cache_seq *s)
{
    stop_loading(s);
}

void cache_seq_sleep(struct cache_seq *s)
{
    cache_seq_drop(s);
    stop_loading(s);
    end_queries(s);
    set_loading(s, cache_reads_slow(s->cache));
    s->is_reading = s->has_looked = s->has_chosen = false;
    s->n_offered = s->n_spread = s->n_looks = 0;
}

uint32_t cache_seq_hold(struct cache_seq *s, uint32_t n_tokens, const struct cache_hold *hold,
                        enum cache_hold_limit *limit)
{
    struct cursor at = {0};
    uint32_t n = 0;

    cache_assert_owner(s->cache);
    if (limit)
        *limit = CACHE_HOLD_NO_LIMIT;
    if (!s->cache->config.prefix_caching)
        return 0;
    while (n < s->n_keys && at.pos + cut_len(s, &at) <= n_tokens) {
        cut_next(s, &at);
        n++;
    }
    n = store_hold(s->cache->store, s->keys, n, hold, limit);
    store_save(s->cache->store, s->keys, n, &s->use);
    struct ktree_match m = store_match(s->cache->store, s->keys, n);
    return store_match_tokens(s->cache->store, &m);
}

void cache_seq_join_session(struct cache_seq *s, uint64_t session)
{
    cache_assert_owner(s->cache);
    ASSERT(session && s->n_blocks == 0);
    s->session = session;
    store_session_goes_on(s->cache->store, session);
}

void cache_seq_keep(struct cache_seq *s, uint64_t due_ns, uint64_t until_ns)
{
    s->keeps = s->session != 0;
    s->keep_due_ns = due_ns;
    s->keep_until_ns = until_ns;
}
