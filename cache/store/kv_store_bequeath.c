/* kv_store_bequeath.c - private KV that is handed to another instance when its sequence ends.
 *
 * A sequence that sends queries computes its own KV behind a part of the path that is not here, so
 * its blocks cannot enter the tree. The instance that lends the end of that part has everything
 * before them. When the sequence ends, its closed blocks stay for BEQUEST_NS, and are offered to
 * that instance, which asks for what it lacks and enters it behind its own path: the next turn of
 * the conversation finds the whole of it there, and an instance that leaves loses nothing.
 *
 * The blocks count as private until they are given back: when the other instance has read them, or
 * refuses, or the time is over. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cache/pool/pool.h"
#include "cache/store/kv_store_slow.h"

#define BEQUEST_NS UINT64_C(3000000000)
#define BEQUEST_SHARE 0.125 /* of the device blocks, unless this instance drains */

static void end_bequest(struct store *st, struct bequest *b)
{
    for (uint32_t i = b->from; i < b->n; i++)
        store_give(st, b->blocks[i - b->from]);
    st->remote->n_bequeathed -= b->n - b->from;
    free(b->keys);
    *b = (struct bequest){.is_used = false};
}

static bool has_bequest_room(const struct store *st, uint32_t n)
{
    uint32_t most = tier_n_blocks(device_tier(st));

    return st->remote->drains || st->remote->n_bequeathed + n <= (uint32_t)(BEQUEST_SHARE * most);
}

/* Memory for keys, blocks and tokens of a path. */
static bool allocate(struct bequest *b, uint32_t from, uint32_t n)
{
    size_t n_private = n - from;

    b->keys = malloc(n * sizeof *b->keys + n_private * (sizeof *b->blocks + sizeof *b->n_tokens));
    if (!b->keys)
        return false;
    b->blocks = (uint32_t *)(b->keys + n);
    b->n_tokens = (uint8_t *)(b->blocks + n_private);
    b->from = from;
    b->n = n;
    return true;
}

bool store_bequeath(struct store *st, uint32_t lookup, const struct store_bequest *what)
{
    struct store_remote *r = st->remote;
    const struct lookup *l = &r->lookups[lookup];
    struct bequest *b = r->bequests;
    uint32_t n_private = what->n - what->from;

    ASSERT(what->n > what->from && what->n <= POOL_PATH_MAX);
    while (b < r->bequests + N_BEQUESTS && b->is_used)
        b++;
    if (b == r->bequests + N_BEQUESTS || st->copies || !l->is_found ||
        !has_bequest_room(st, n_private) || !allocate(b, what->from, what->n))
        return false;
    if (!pool_offer(r->pool, &(struct pool_offer){.keys = what->keys,
                                                  .meta = what->meta,
                                                  .n = what->n,
                                                  .n_there = what->from,
                                                  .to = l->found.peer,
                                                  .ticket = POOL_NO_TICKET})) {
        free(b->keys);
        *b = (struct bequest){.is_used = false};
        return false;
    }
    memcpy(b->keys, what->keys, what->n * sizeof *b->keys);
    memcpy(b->blocks, what->blocks, n_private * sizeof *b->blocks);
    for (uint32_t i = 0; i < n_private; i++)
        b->n_tokens[i] = what->meta[what->from + i].n_tokens;
    b->is_used = true;
    b->until_ns = st->now_ns + BEQUEST_NS;
    r->n_bequeathed += n_private;
    return true;
}

struct bequest *find_bequest(struct store *st, const struct pool_ask *ask)
{
    struct store_remote *r = st->remote;

    for (struct bequest *b = r->bequests; b < r->bequests + N_BEQUESTS; b++)
        if (b->is_used && !b->is_over && ask->n <= b->n && ask->n > ask->n_there &&
            ask->n_there >= b->from &&
            memcmp(&b->keys[ask->n - 1], &ask->keys[ask->n - 1], sizeof *b->keys) == 0)
            return b;
    return NULL;
}

void lend_bequest(struct store *st, struct bequest *b, const struct pool_ask *ask)
{
    struct pool_block *blocks = st->remote->blocks;

    for (uint32_t i = ask->n_there; i < ask->n; i++)
        blocks[i - ask->n_there] =
            (struct pool_block){.memory = tier_memory(device_tier(st), b->blocks[i - b->from]),
                                .n_tokens = b->n_tokens[i - b->from]};
    b->n_loans++;
    pool_lend(st->remote->pool, ask->lease, blocks, ask->n, 0);
}

void return_bequest(struct bequest *b)
{
    ASSERT(b->n_loans > 0);
    b->n_loans--;
    b->is_over = true;
}

void drop_bequests(struct store *st)
{
    for (uint32_t i = 0; i < N_BEQUESTS; i++)
        st->remote->bequests[i].is_over = st->remote->bequests[i].is_used;
}

void poll_bequests(struct store *st)
{
    struct store_remote *r = st->remote;
    bool is_all_over = pool_n_offers(r->pool) == 0;

    for (struct bequest *b = r->bequests; r->n_bequeathed > 0 && b < r->bequests + N_BEQUESTS; b++)
        if (b->is_used && b->n_loans == 0 &&
            (b->is_over || is_all_over || st->now_ns >= b->until_ns))
            end_bequest(st, b);
}

void fini_bequests(struct store *st)
{
    for (uint32_t i = 0; st->remote && i < N_BEQUESTS; i++)
        if (st->remote->bequests[i].is_used)
            end_bequest(st, &st->remote->bequests[i]);
}
