/* kv_store_query.c - lookups to which sequences send queries instead of reading what was found.
 *
 * A sequence that sends queries is a user of the lookup for its whole life, so the ticket and the
 * remote nodes stay while the lease lasts, and each query lengthens the lease. Other requests may
 * read the same nodes meanwhile. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "cache/pool/pool.h"
#include "cache/store/kv_store_slow.h"
#include "cache/store/query_choice.h"

/* The share of evicted KV that is needed again: victims are those that the policy expects least. */
#define EVICTED_USED_SHARE 0.25

bool store_found(const struct store *st, uint32_t lookup, const struct kv_key *keys, uint32_t n,
                 uint32_t *from, uint32_t *to)
{
    const struct lookup *l = &st->remote->lookups[lookup];
    uint32_t n_lent;

    if (!l->is_used || !l->is_found)
        return false;
    n_lent = l->found.n_blocks < l->n ? l->found.n_blocks : l->n;
    n = n < n_lent ? n : n_lent;
    *from = l->n_local;
    for (*to = 0; *to < n && memcmp(&l->keys[*to], &keys[*to], sizeof *keys) == 0; (*to)++) {
    }
    return *from < *to;
}

/* --- the choice --- */

static double query_bytes(const struct store *st)
{
    return sizeof(float) * (double)st->config.remote.n_heads * st->config.pool.head_dim;
}

static double tile_bytes(const struct store *st)
{
    return sizeof(float) * (double)st->config.remote.n_heads * (st->config.pool.head_dim + 2);
}

uint32_t store_query_rows(const struct store *st, uint32_t n_segments)
{
    double n = POOL_QUERY_ROWS_MAX;

    if (n_segments == 0 || n_segments > POOL_QUERY_SEGMENTS_MAX)
        return 0;
    n = fmin(n, POOL_QUERY_BYTES_MAX / query_bytes(st));
    return (uint32_t)fmin(n, POOL_QUERY_BYTES_MAX / (n_segments * tile_bytes(st)));
}

/* The price of the blocks that are evicted to read n blocks. */
static double evict_seconds(const struct store *st, uint32_t n)
{
    enum cache_tier to = load_tier(st);
    uint32_t n_free = tier_n_free(st->tier[to].t);
    double bytes = n > n_free ? (double)(n - n_free) * (double)st->block_bytes : 0;

    return EVICTED_USED_SHARE * bytes * replace_usual_cost(st->policy, order_of(st, to));
}

bool store_is_query_best(const struct store *st, uint32_t lookup, const struct store_query *q)
{
    const struct pool_found *found = &st->remote->lookups[lookup].found;
    uint32_t n_rows = q->n_prompt_rows + q->n_output_rows, end = q->pos0 + q->n_tokens;
    struct query_costs c = {.n_bytes = (double)q->n_blocks * (double)st->block_bytes,
                            .latency_s = found->latency_s,
                            .bytes_per_s = found->bytes_per_s,
                            .evict_s = st->config.seconds ? evict_seconds(st, q->n_blocks) : 0,
                            .query_s = found->query_s,
                            .row_bytes = query_bytes(st) + q->n_segments * tile_bytes(st),
                            .n_layers = st->config.pool.n_layers,
                            .n_prompt_rows = q->n_prompt_rows,
                            .n_output_rows = q->n_output_rows,
                            .n_rows_max = store_query_rows(st, q->n_segments),
                            .lost_s = q->is_of_session ? compute_time(st, end, n_rows) : 0,
                            .compute_s = st->config.seconds ? compute_time(st, q->pos0, q->n_tokens)
                                                            : (double)INFINITY};

    return c.n_rows_max > 0 && query_is_best(&c);
}

/* --- users --- */

void store_begin_queries(struct store *st, uint32_t lookup)
{
    struct lookup *l = &st->remote->lookups[lookup];

    ASSERT(l->is_used && l->is_found && l->ticket != POOL_NO_TICKET);
    l->n_users++;
    if (l->n_queriers++ == 0)
        pool_end_when_read(st->remote->pool, l->ticket, false);
}

void store_end_queries(struct store *st, uint32_t lookup)
{
    struct lookup *l = &st->remote->lookups[lookup];

    ASSERT(l->is_used && l->n_queriers > 0);
    if (--l->n_queriers == 0 && l->ticket != POOL_NO_TICKET)
        pool_end_when_read(st->remote->pool, l->ticket, true);
    store_end_lookup(st, lookup);
}

bool store_may_query(const struct store *st, uint32_t lookup)
{
    const struct lookup *l = &st->remote->lookups[lookup];

    return l->is_used && l->is_found && !l->is_over && l->ticket != POOL_NO_TICKET &&
           l->found.attends && st->now_ns < l->until_ns;
}

uint32_t store_ticket(const struct store *st, uint32_t lookup)
{
    return st->remote->lookups[lookup].ticket;
}

uint32_t store_n_queriers(const struct store *st)
{
    uint32_t n = 0;

    for (uint32_t i = 0; st->remote && i < POOL_TICKETS_MAX; i++)
        n += st->remote->lookups[i].is_used ? st->remote->lookups[i].n_queriers : 0;
    return n;
}

void store_note_queried(struct store *st, uint32_t pos0, uint32_t n_tokens)
{
    double saved_s = st->config.seconds ? compute_time(st, pos0, n_tokens) : n_tokens;

    st->saved_s += saved_s;
    st->tier[CACHE_REMOTE].saved_s += saved_s;
    st->tier[CACHE_REMOTE].n_hit_tokens += n_tokens;
}
