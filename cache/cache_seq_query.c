/* cache_seq_query.c - a sequence part of whose prefix stays on another instance, to which it sends
 * queries.
 *
 * While the sequence waits, it chooses a found lookup and a range of whole segments: [from, to) in
 * blocks of its path. What lies before `from` and not here is read as usual; of the lookup itself
 * that is at most a part of a segment. At attach the remote part begins where the prefix in memory
 * ends, rounded down to a segment: so each segment lies in one place, and its tile has the bits
 * that attention here would have computed. If the range cannot be used any more, because the lease
 * is over or blocks before it were evicted, the waiting sequence asks the pool again. */
#include "base/check.h"
#include "base/clock.h"
#include "cache/cache_seq_inner.h"

/* --- while it waits --- */

void cache_seq_expect_output(struct cache_seq *s, uint32_t n_tokens)
{
    s->n_output = n_tokens;
}

void cache_seq_bring_here(struct cache_seq *s)
{
    s->never_queries = true;
}

/* Cut blocks [from, to) of a path to whole segments, as many as one query can name. False: there is
 * none. */
static bool cut_to_segments(const struct cache_seq *s, struct remote_range *r)
{
    uint32_t to = r->to;
    bool is_inside = false;
    struct cursor at = {0};

    for (uint32_t i = 0;; i++) {
        if (at.n_in_segment == 0 && is_inside) {
            if (store_query_rows(s->cache->store, r->n_segments + 1) == 0)
                break;
            r->n_segments++;
            r->to = i;
            r->end = at;
        } else if (at.n_in_segment == 0 && i >= r->from) {
            is_inside = true;
            r->from = r->to = i;
            r->pos0 = at.pos;
        }
        if (i == to)
            break;
        cut_next(s, &at);
    }
    return r->n_segments > 0;
}

static bool is_best(const struct cache_seq *s, const struct remote_range *r)
{
    struct store_query q = {.n_blocks = r->to - r->from,
                            .n_tokens = r->end.pos - r->pos0,
                            .n_segments = r->n_segments,
                            .pos0 = r->pos0,
                            .n_prompt_rows = s->n_ids - r->end.pos,
                            .n_output_rows = s->n_output,
                            .is_of_session = s->session != 0};

    return s->cache->config.remote.query == CACHE_QUERY_ALWAYS ||
           store_is_query_best(s->cache->store, r->lookup, &q);
}

bool may_choose_queries(const struct cache_seq *s)
{
    const struct cache_remote_config *config = &s->cache->config.remote;

    return config->attend && config->query != CACHE_QUERY_NEVER && !s->never_queries;
}

void choose_queries(struct cache_seq *s)
{
    struct store *st = s->cache->store;
    struct remote_range best = {.lookup = STORE_NO_LOOKUP};
    bool may = may_choose_queries(s);

    if (s->has_chosen)
        return;
    s->has_chosen = true;
    for (int i = 0; i < 2; i++) {
        struct remote_range r = {.lookup = s->lookups[i]};

        if (r.lookup == STORE_NO_LOOKUP ||
            !store_found(st, r.lookup, s->keys, n_keys_to_match(s), &r.from, &r.to))
            continue;
        s->n_offered = r.to > s->n_offered ? r.to : s->n_offered;
        if (may && store_may_query(st, r.lookup) && cut_to_segments(s, &r) && r.to > best.to)
            best = r;
    }
    if (best.lookup == STORE_NO_LOOKUP || !is_best(s, &best))
        return;
    s->remote = best;
    store_begin_queries(st, best.lookup);
    s->cache->n_querying++;
}

bool may_attach_remote(const struct cache_seq *s, struct ktree_match *m)
{
    const struct remote_range *r = &s->remote;
    struct ktree_match cut;
    uint32_t n;

    if (r->lookup == STORE_NO_LOOKUP || r->to > n_keys_to_match(s) ||
        !store_may_query(s->cache->store, r->lookup))
        return false;
    /* Blocks of a segment that is not closed have KV_BLOCK_TOKENS each. */
    n = m->n_blocks - cursor_behind(s, m).n_in_segment / KV_BLOCK_TOKENS;
    if (n < r->from || n >= r->to)
        return false;
    cut = store_match(s->cache->store, s->keys, n);
    if (cut.n_blocks != n)
        return false;
    *m = cut;
    return true;
}

void reconsider_queries(struct cache_seq *s)
{
    struct ktree_match m;

    if (s->remote.lookup == STORE_NO_LOOKUP || s->is_loading || s->n_blocks > 0)
        return;
    m = match_path(s);
    if (may_attach_remote(s, &m))
        return;
    set_loading(s, m.n_blocks < s->remote.to);
    end_queries(s);
    s->is_reading = s->has_looked = s->has_chosen = false;
}

void end_queries(struct cache_seq *s)
{
    if (s->query != POOL_NO_QUERY)
        pool_query_forget(s->cache->pool, s->query);
    s->query = POOL_NO_QUERY;
    s->remote0 = s->n_remote = s->n_remote_blocks = 0;
    if (s->remote.lookup == STORE_NO_LOOKUP)
        return;
    store_end_queries(s->cache->store, s->remote.lookup);
    s->cache->n_querying--;
    s->remote = (struct remote_range){.lookup = STORE_NO_LOOKUP};
}

/* --- while it runs --- */

void attach_remote(struct cache_seq *s, uint32_t *found)
{
    uint32_t pos0 = s->cursor.pos, n_tokens;

    s->remote0 = s->n_segments;
    s->n_remote_blocks = s->remote.to - s->n_blocks;
    while (s->n_blocks < s->remote.to) {
        uint32_t n = cut_len(s, &s->cursor);

        hold_block(s, CACHE_NO_BLOCK);
        s->segments[s->n_segments - 1].n_tokens += n;
    }
    n_tokens = s->cursor.pos - pos0;
    s->n_remote = s->n_segments - s->remote0;
    s->n_tokens = s->n_slots = s->cursor.pos;
    s->is_private = true;
    found[CACHE_REMOTE] += n_tokens;
    if (s->use.is_new)
        store_note_queried(s->cache->store, pos0, n_tokens);
}

bool cache_seq_queries(const struct cache_seq *s)
{
    return s->n_remote > 0;
}

uint32_t cache_seq_query_rows(const struct cache_seq *s)
{
    return s->n_remote > 0 ? store_query_rows(s->cache->store, s->n_remote) : 0;
}

/* Queries of this sequence fail from now on, so that it runs without them after a drop. */
static enum status lose_remote(struct cache_seq *s, enum status error)
{
    s->never_queries = true;
    return error;
}

enum status cache_seq_query(struct cache_seq *s, uint32_t layer, const float *q, size_t q_stride,
                            uint32_t n_rows)
{
    struct pool_segment segments[POOL_QUERY_SEGMENTS_MAX];
    struct pool_query query = {.ticket = 0,
                               .layer = layer,
                               .n_rows = n_rows,
                               .q = q,
                               .q_stride = q_stride,
                               .segments = segments,
                               .n_segments = s->n_remote};
    enum status st;

    cache_assert_owner(s->cache);
    ASSERT(s->n_remote > 0 && n_rows > 0 && n_rows <= cache_seq_query_rows(s));
    if (s->query != POOL_NO_QUERY)
        pool_query_forget(s->cache->pool, s->query);
    s->query = POOL_NO_QUERY;
    if (s->never_queries)
        return ERR_UNAVAILABLE;
    for (uint32_t i = 0; i < s->n_remote; i++) {
        uint32_t at = s->remote0 + i;
        const struct attn_segment *x = &s->segments[at];
        uint32_t end = at + 1 < s->n_segments ? x[1].block0 : s->n_blocks;

        segments[i] =
            (struct pool_segment){x->block0, (uint16_t)(end - x->block0), (uint16_t)x->n_tokens};
    }
    query.ticket = store_ticket(s->cache->store, s->remote.lookup);
    s->query_until_ns = clock_now_ns() + s->cache->config.remote.query_ms * UINT64_C(1000000);
    query.until_ns = s->query_until_ns;
    st = pool_query(s->cache->pool, &query, &s->query);
    if (st == OK)
        return OK;
    s->query = POOL_NO_QUERY;
    return lose_remote(s, st);
}

enum status cache_seq_answer(struct cache_seq *s, const float **tiles)
{
    uint64_t began_ns = clock_now_ns();
    enum status st;

    cache_assert_owner(s->cache);
    if (s->query == POOL_NO_QUERY)
        return lose_remote(s, ERR_UNAVAILABLE);
    st = pool_query_end(s->cache->pool, s->query, s->query_until_ns, tiles);
    store_note_wait(s->cache->store, CACHE_REMOTE, (double)(clock_now_ns() - began_ns) * 1e-9,
                    st == OK);
    if (st == OK)
        return OK;
    pool_query_forget(s->cache->pool, s->query);
    s->query = POOL_NO_QUERY;
    return lose_remote(s, st);
}
