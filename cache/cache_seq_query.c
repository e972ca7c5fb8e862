/* cache_seq_query.c - a sequence part of whose prefix stays on other instances, to which it sends
 * queries.
 *
 * While the sequence waits, it chooses a range of whole segments, [from, to) in blocks of its path,
 * that found lookups cover. Blocks before `from` that are not here are read as usual; of a lookup
 * that is at most a part of a segment. At attach the remote part begins where the prefix in memory
 * ends, rounded down to a segment: so each segment lies in one place, and its tile has the bits
 * that attention here would have computed. If the range cannot be used any more, because a lease is
 * over or blocks before it were evicted, the waiting sequence asks the pool again.
 *
 * Several lenders. Lookups that found one part of the path each make one range of several parts,
 * and each layer sends one query to the lender of each part. A long range that one instance lends
 * is spread: lookups for its parts ask other instances, and what they do not lend stays with the
 * first one, which lends the whole range. So each lender attends to a part of the segments at the
 * same time. If one of them is lost, the sequence is dropped, and reads or computes. */
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "cache/cache_seq_inner.h"

#define SPREAD_SEGMENTS 4u /* of one lender: 1024 tokens */

/* --- while it waits --- */

void cache_seq_expect_output(struct cache_seq *s, uint32_t n_tokens)
{
    s->n_output = n_tokens;
}

void cache_seq_bring_here(struct cache_seq *s)
{
    s->never_queries = true;
}

/* Blocks [from, to) of the sequence's path, to which the lookup's lender answers queries. */
struct found {
    uint32_t lookup, from, to;
};

/* List what was found; the lookups that were made last come first. */
static uint32_t list_found(struct cache_seq *s, struct found out[SEQ_LOOKUPS_MAX])
{
    uint32_t n = 0;

    for (uint32_t i = s->n_lookups; i-- > 0;) {
        struct found f = {.lookup = s->lookups[i]};

        if (!store_found(s->cache->store, f.lookup, s->keys, n_keys_to_match(s), &f.from, &f.to))
            continue;
        s->n_offered = f.to > s->n_offered ? f.to : s->n_offered;
        if (store_may_query(s->cache->store, f.lookup))
            out[n++] = f;
    }
    return n;
}

/* Whether one more segment fits into the queries to a lookup's lender. */
static bool has_room(const struct cache_seq *s, const struct remote_range *r, uint32_t lookup)
{
    uint32_t n = 1;

    for (uint32_t i = 0; i < r->n_parts; i++)
        n += r->parts[i].lookup == lookup ? r->parts[i].n_segments : 0;
    return r->n_segments < POOL_QUERY_SEGMENTS_MAX && store_query_rows(s->cache->store, n) > 0;
}

/* Add the segment of blocks [from, to) to the range. False: no lender has the whole segment. */
static bool add_segment(const struct cache_seq *s, struct remote_range *r, const struct found *all,
                        uint32_t n, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < n; i++) {
        struct remote_part *last = r->n_parts > 0 ? &r->parts[r->n_parts - 1] : NULL;
        bool goes_on = last && last->lookup == all[i].lookup;

        if (all[i].from > from || all[i].to < to || !has_room(s, r, all[i].lookup) ||
            (!goes_on && r->n_parts == SEQ_PARTS_MAX))
            continue;
        if (!goes_on) {
            last = &r->parts[r->n_parts++];
            *last = (struct remote_part){.lookup = all[i].lookup, .query = POOL_NO_QUERY};
        }
        last->n_segments++;
        last->to = r->to = to;
        r->n_segments++;
        return true;
    }
    return false;
}

/* Make the longest range of segments, beginning with the first one that a lender has. */
static void make_range(const struct cache_seq *s, const struct found *all, uint32_t n,
                       struct remote_range *r)
{
    struct cursor at = {0};
    uint32_t to = 0, end = n_keys_to_match(s);

    *r = (struct remote_range){.n_parts = 0};
    while (n > 0 && to < end) {
        uint32_t from = to, pos0 = at.pos;

        do {
            cut_next(s, &at);
            to++;
        } while (at.n_in_segment > 0 && to < end);
        if (at.n_in_segment > 0)
            return; /* not closed */
        if (add_segment(s, r, all, n, from, to)) {
            r->from = r->n_segments == 1 ? from : r->from;
            r->pos0 = r->n_segments == 1 ? pos0 : r->pos0;
            r->end = at;
        } else if (r->n_parts > 0) {
            return;
        }
    }
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
           store_is_query_best(s->cache->store, r->parts[r->n_parts - 1].lookup, &q);
}

/* The first block of segment i of the range; of segment n_segments, the block behind the range. */
static uint32_t block_of_segment(const struct cache_seq *s, const struct remote_range *r,
                                 uint32_t i)
{
    struct cursor at = {0};
    uint32_t block = 0;

    for (uint32_t n = 0; block < r->to; block++) {
        if (at.n_in_segment == 0 && block >= r->from && n++ == i)
            break;
        cut_next(s, &at);
    }
    return block;
}

/* Ask another instance for the next part of a long range: one part at a time, because each is asked
 * of an instance that lends no other. The last part stays with its lender. True: an answer is
 * awaited. */
static bool spread(struct cache_seq *s, const struct remote_range *r)
{
    struct cache *c = s->cache;
    uint32_t per_lender = c->config.remote.spread_segments, n, i, lookup;

    per_lender = per_lender > 0 ? per_lender : SPREAD_SEGMENTS;
    n = r->n_segments / per_lender < SEQ_LENDERS_MAX ? r->n_segments / per_lender : SEQ_LENDERS_MAX;
    if (s->n_spread + 1 >= n || s->n_lookups == SEQ_LOOKUPS_MAX)
        return false;
    i = s->n_spread++;
    uint32_t from = block_of_segment(s, r, i * r->n_segments / n);
    uint32_t to = block_of_segment(s, r, (i + 1) * r->n_segments / n);
    describe_blocks(s, c->meta, to);
    lookup = store_begin_lookup(c->store, &(struct store_ask){.keys = s->keys,
                                                              .meta = c->meta,
                                                              .n = to,
                                                              .others = s->lookups,
                                                              .n_others = s->n_lookups,
                                                              .is_part = true,
                                                              .from = from});
    if (lookup == STORE_NO_LOOKUP)
        return false;
    s->lookups[s->n_lookups++] = lookup;
    return true;
}

bool may_choose_queries(const struct cache_seq *s)
{
    const struct cache_remote_config *config = &s->cache->config.remote;

    return config->attend && config->query != CACHE_QUERY_NEVER && !s->never_queries;
}

bool choose_queries(struct cache_seq *s)
{
    struct found all[SEQ_LOOKUPS_MAX];
    struct remote_range r;
    uint32_t n;

    if (s->has_chosen)
        return false;
    n = list_found(s, all);
    make_range(s, all, n, &r);
    if (may_choose_queries(s) && r.n_parts > 0 && is_best(s, &r)) {
        if (spread(s, &r))
            return true;
        s->remote = r;
        for (uint32_t i = 0; i < r.n_parts; i++)
            store_begin_queries(s->cache->store, r.parts[i].lookup);
        s->cache->n_querying += r.n_parts;
    }
    s->has_chosen = true;
    return false;
}

static bool may_query(const struct cache_seq *s)
{
    for (uint32_t i = 0; i < s->remote.n_parts; i++)
        if (!store_may_query(s->cache->store, s->remote.parts[i].lookup))
            return false;
    return s->remote.n_parts > 0;
}

bool may_attach_remote(const struct cache_seq *s, struct ktree_match *m)
{
    const struct remote_range *r = &s->remote;
    struct ktree_match cut;
    uint32_t n;

    if (!may_query(s) || r->to > n_keys_to_match(s))
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

    if (s->remote.n_parts == 0 || s->is_loading || s->n_blocks > 0)
        return;
    m = match_path(s);
    if (may_attach_remote(s, &m))
        return;
    set_loading(s, m.n_blocks < s->remote.to);
    end_queries(s);
    s->is_reading = s->has_looked = s->has_chosen = false;
    s->n_spread = 0;
}

static void forget_queries(struct cache_seq *s)
{
    for (uint32_t i = 0; i < s->remote.n_parts; i++) {
        struct remote_part *part = &s->remote.parts[i];

        if (part->query != POOL_NO_QUERY)
            pool_query_forget(s->cache->pool, part->query);
        part->query = POOL_NO_QUERY;
    }
    s->query_rows = 0;
}

void end_queries(struct cache_seq *s)
{
    forget_queries(s);
    s->remote0 = s->n_remote = s->n_remote_blocks = 0;
    if (s->remote.n_parts == 0)
        return;
    for (uint32_t i = 0; i < s->remote.n_parts; i++)
        store_end_queries(s->cache->store, s->remote.parts[i].lookup);
    s->cache->n_querying -= s->remote.n_parts;
    s->remote.n_parts = 0;
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

void bequeath_private(struct cache_seq *s)
{
    struct cursor at = s->remote.end;
    uint32_t from = s->remote.to, n = from;

    if (s->n_remote == 0 || !s->cache->config.prefix_caching ||
        (s->session == 0 && !store_drains(s->cache->store)))
        return;
    while (n < s->n_blocks && n < s->n_keys && n < POOL_PATH_MAX &&
           at.pos + cut_len(s, &at) <= s->n_tokens) {
        cut_next(s, &at);
        n++;
    }
    if (n == from)
        return;
    describe_blocks(s, s->cache->meta, n);
    if (!store_bequeath(s->cache->store, s->remote.parts[s->remote.n_parts - 1].lookup,
                        &(struct store_bequest){.keys = s->keys,
                                                .meta = s->cache->meta,
                                                .blocks = s->blocks + from,
                                                .from = from,
                                                .n = n}))
        return;
    memmove(s->blocks + from, s->blocks + n, (s->n_blocks - n) * sizeof *s->blocks);
    s->n_blocks -= n - from;
}

bool cache_seq_queries(const struct cache_seq *s)
{
    return s->n_remote > 0;
}

uint32_t cache_seq_query_rows(const struct cache_seq *s)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < s->remote.n_parts; i++)
        if (s->remote.parts[i].n_segments > most)
            most = s->remote.parts[i].n_segments;
    return s->n_remote > 0 ? store_query_rows(s->cache->store, most) : 0;
}

/* Queries of this sequence fail from now on, so that it runs without them after a drop. */
static enum status lose_remote(struct cache_seq *s, enum status error)
{
    forget_queries(s);
    s->never_queries = true;
    return error;
}

/* Fill in the segments of the part from remote segment `at` on. Returns their number; 0 where the
 * local prefix covers the part. */
static uint32_t segments_of_part(const struct cache_seq *s, const struct remote_part *part,
                                 uint32_t at, struct pool_segment *out)
{
    uint32_t n = 0;

    for (; at + n < s->n_remote; n++) {
        uint32_t i = s->remote0 + at + n;
        const struct attn_segment *x = &s->segments[i];
        uint32_t end = i + 1 < s->n_segments ? x[1].block0 : s->n_blocks;

        if (x->block0 >= part->to)
            break;
        out[n] =
            (struct pool_segment){x->block0, (uint16_t)(end - x->block0), (uint16_t)x->n_tokens};
    }
    return n;
}

/* Send the query to the lender of each part. */
static enum status query_parts(struct cache_seq *s, struct pool_query query)
{
    struct pool_segment segments[POOL_QUERY_SEGMENTS_MAX];
    enum status st = OK;

    query.segments = segments;
    for (uint32_t i = 0, at = 0; i < s->remote.n_parts && st == OK; i++) {
        struct remote_part *part = &s->remote.parts[i];

        query.n_segments = part->n_queried = segments_of_part(s, part, at, segments);
        if (query.n_segments == 0)
            continue;
        at += query.n_segments;
        query.ticket = store_ticket(s->cache->store, part->lookup);
        st = pool_query(s->cache->pool, &query, &part->query);
        if (st != OK)
            part->query = POOL_NO_QUERY;
    }
    return st;
}

enum status cache_seq_query(struct cache_seq *s, uint32_t layer, const float *q, size_t q_stride,
                            uint32_t n_rows)
{
    enum status st;

    cache_assert_owner(s->cache);
    ASSERT(s->n_remote > 0 && n_rows > 0 && n_rows <= cache_seq_query_rows(s));
    forget_queries(s);
    if (s->never_queries)
        return ERR_UNAVAILABLE;
    s->query_until_ns = clock_now_ns() + s->cache->config.remote.query_ms * UINT64_C(1000000);
    struct pool_query query = {.layer = layer,
                               .n_rows = n_rows,
                               .q = q,
                               .q_stride = q_stride,
                               .until_ns = s->query_until_ns};
    st = query_parts(s, query);
    if (st != OK)
        return lose_remote(s, st);
    s->query_rows = n_rows;
    return OK;
}

enum status cache_seq_answer(struct cache_seq *s, const float **tiles)
{
    const struct cache_config *config = &s->cache->config;
    size_t tile = (size_t)s->query_rows * config->remote.n_heads * (config->pool.head_dim + 2);
    uint64_t began_ns = clock_now_ns();
    enum status st = s->query_rows > 0 ? OK : ERR_UNAVAILABLE;
    const float *first;

    cache_assert_owner(s->cache);
    for (uint32_t i = 0; i < s->remote.n_parts && st == OK; i++) {
        const struct remote_part *part = &s->remote.parts[i];

        if (part->n_queried == 0)
            continue;
        st = pool_query_end(s->cache->pool, part->query, s->query_until_ns, &first);
        for (uint32_t k = 0; k < part->n_queried && st == OK; k++)
            *tiles++ = first + k * tile;
    }
    if (s->query_rows > 0)
        store_note_wait(s->cache->store, CACHE_REMOTE, (double)(clock_now_ns() - began_ns) * 1e-9,
                        st == OK);
    return st == OK ? OK : lose_remote(s, st);
}
