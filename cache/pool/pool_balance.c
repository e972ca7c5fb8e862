/* pool_balance.c - the load of access to this instance's KV, and further copies of what many read.
 *
 * An access is one token of KV that is sent to a peer, or that attention reads in one step, for a
 * sequence of this instance or for a query, in all layers: so accesses count bytes read. The load
 * of an instance decays by half in HALF_LIFE_S. Each instance's load is in its record, so all know
 * the load of the pool. Accesses of others are also counted per segment (heavy.h). While the loads
 * are uneven, holders are drawn by load (pool_lookup.c), and in each round
 * the paths of recent leases that end with a heavy segment are looked up in the directory, and the
 * engine is asked to offer those with too few holders to lightly loaded instances (place.h), within
 * a share of the link. Copies that were lost are made again by the same rule. Without heavy
 * segments, the fullest instance moves lighter paths away (rebalance.h): it offers the path, and
 * its own copy is evicted first. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "cache/balance/place.h"
#include "cache/balance/rebalance.h"
#include "cache/pool/pool_inner.h"

#define HALF_LIFE_S 8.0
#define N_SEGMENTS_MAX 65536u
#define LINK_SHARE 0.05       /* of what reads achieve */
#define RATE_FIRST 1e8        /* bytes per second, before any read */
#define BUDGET_S 1.0          /* the budget grows for so long */
#define N_COPIES_OF_ROUND 4u  /* of one path */
#define INSTANCE_TTL_MS 3000u /* as directory.h says */
/* A copy pays once a segment has been accessed that often lately. */
#define LOAD_MIN (8.0 * KV_SEGMENT_TOKENS_MAX)

enum status pool_balance_open(struct pool *p)
{
    struct pool_balance *b = &p->balance;
    struct heavy_config config = {
        .n_instances = 1, .n_items_max = N_SEGMENTS_MAX, .half_life = HALF_LIFE_S};

    b->loads = calloc(DIRECTORY_INSTANCES_MAX + 1, sizeof *b->loads);
    b->free = calloc(DIRECTORY_INSTANCES_MAX + 1, sizeof *b->free);
    b->ids = calloc(DIRECTORY_INSTANCES_MAX + 1, sizeof *b->ids);
    if (!b->loads || !b->free || !b->ids)
        return ERR_NOMEM;
    return heavy_create(&b->heavy, &config);
}

void pool_balance_close(struct pool *p)
{
    heavy_destroy(p->balance.heavy);
    free(p->balance.loads);
    free(p->balance.free);
    free(p->balance.ids);
}

/* --- counting --- */

static uint64_t heavy_key(const uint8_t *segment)
{
    uint64_t key;

    memcpy(&key, segment, sizeof key);
    return key;
}

void pool_balance_count_own(struct pool *p, double n_accesses)
{
    p->balance.load += n_accesses;
    p->live.n_accesses += n_accesses;
}

void pool_balance_count(struct pool *p, const struct kv_key *block, double n_accesses)
{
    uint32_t depth;
    const uint8_t *segment = inventory_segment(p->inventory, block, &depth);

    pool_balance_count_own(p, n_accesses);
    if (segment && n_accesses > 0)
        heavy_add(p->balance.heavy, heavy_key(segment), n_accesses);
}

static double rate_of(double load)
{
    return load * log(2) / HALF_LIFE_S;
}

static void decay(struct pool *p)
{
    struct pool_balance *b = &p->balance;
    double s = b->decayed_ns ? (double)(p->now_ns - b->decayed_ns) / 1e9 : 0, rate;

    b->decayed_ns = p->now_ns;
    b->load *= exp2(-s / HALF_LIFE_S);
    heavy_tick(b->heavy, s);
    rate = rate_of(b->load);
    p->info.load = rate < UINT32_MAX ? (uint32_t)rate : UINT32_MAX;
    double per_s = LINK_SHARE * (p->bytes_per_s.n > 0 ? p->bytes_per_s.value : RATE_FIRST);
    b->budget += per_s * s;
    b->budget = b->budget < per_s * BUDGET_S ? b->budget : per_s * BUDGET_S;
}

bool pool_balance_is_due(const struct pool *p)
{
    return p->config.balances && p->live.load_cv >= REBALANCE_CV_STOP;
}

/* --- draws --- */

uint32_t pool_balance_draw(struct pool *p, uint32_t n)
{
    return rng_u32(p->info.id, p->balance.n_draws++) % n;
}

bool pool_balance_draws_second(struct pool *p, double first, double second)
{
    double u = (double)rng_uniform(p->info.id, p->balance.n_draws++);

    return first + second > 0 ? u * (first + second) < first : u < 0.5;
}

/* --- rounds --- */

/* Fill in loads, ids and blocks of this instance and of those that can be offered a path.
 * Returns their number. */
static uint32_t list_instances(struct pool *p)
{
    struct pool_balance *b = &p->balance;
    uint32_t n = 1;

    b->loads[0] = p->info.load;
    b->free[0] = 0;
    b->ids[0] = p->info.id;
    for (uint32_t i = 0; i < p->n_peers; i++) {
        const struct pool_peer *peer = &p->peers[i];
        if (!peer->is_used || peer->info.is_leaving || !pool_peer_is_usable(p, peer))
            continue;
        b->loads[n] = peer->info.load;
        /* A full memory is no obstacle: the peer evicts what is worth less, or refuses. */
        b->free[n] = peer->info.n_blocks > peer->n_offered_blocks
                         ? peer->info.n_blocks - peer->n_offered_blocks
                         : 0;
        b->ids[n++] = peer->info.id;
    }
    return n;
}

/* Tell the table of heavy hitters the load of the whole pool. */
static void set_others(struct pool *p, uint32_t n)
{
    struct pool_balance *b = &p->balance;
    double others = b->load - heavy_total(b->heavy);

    for (uint32_t i = 1; i < n; i++)
        others += b->loads[i] * HALF_LIFE_S / log(2);
    heavy_set_instances(b->heavy, n);
    heavy_set_others(b->heavy, others > 0 ? others : 0);
    p->live.load_cv = rebalance_cv(b->loads, n);
}

/* Find the deepest segment of a lent path that has more than the threshold, else the deepest one
 * that many read. False: there is none. */
static bool find_candidate(const struct pool *p, const struct pool_lease *l,
                           struct pool_candidate *out)
{
    const struct heavy *h = p->balance.heavy;
    double tau = heavy_threshold(h);
    bool is_found = false;

    if (l->stage == POOL_LEASE_ARRIVES || l->stage == POOL_LEASE_ASKED || l->is_copy)
        return false;
    for (uint32_t end = l->n_lent; end > 0;) {
        uint32_t depth = 0;
        const uint8_t *segment = inventory_segment(p->inventory, &l->keys[end - 1], &depth);
        double load = segment ? heavy_load(h, heavy_key(segment)) : 0;
        if (load >= LOAD_MIN && (!is_found || load > tau)) {
            is_found = true;
            memcpy(out->segment, segment, sizeof out->segment);
            out->last = l->keys[end - 1];
            out->n_blocks = depth + 1;
        }
        if (is_found && load > tau)
            break;
        end -= depth + 1 < end ? depth + 1 : end;
    }
    return is_found;
}

/* Look up the holders of the paths that may get copies. */
static void begin_round(struct pool *p)
{
    struct pool_balance *b = &p->balance;
    uint32_t n = 0;

    b->generation++;
    for (uint32_t i = 0; i < POOL_LEASES_MAX && n < POOL_CANDIDATES_MAX; i++) {
        struct pool_candidate *c = &b->candidates[n];
        uint32_t k = 0;
        if (!find_candidate(p, &p->leases[i], c))
            continue;
        while (k < n && memcmp(b->candidates[k].segment, c->segment, sizeof c->segment) != 0)
            k++;
        if (k == n && directory_lookup(p->directory, &c->segment, 1,
                                       pool_tag(POOL_TAG_BALANCE, n, b->generation)) == OK)
            n++;
    }
}

static bool holds(const void *arg, uint32_t item, uint32_t instance)
{
    const struct pool *p = arg;
    const struct directory_event *e = &p->event;
    const struct pool_candidate *c = &p->balance.candidates[pool_tag_index(e->tag)];

    (void)item;
    for (uint32_t i = 0; i < e->n_holders; i++)
        if (e->holders[i].id == p->balance.ids[instance] &&
            e->holders[i].tier < DIRECTORY_TIER_DISK && e->holders[i].n_blocks >= c->n_blocks)
            return true;
    return instance == 0;
}

static void ask_engine(struct pool *p, const struct pool_candidate *c, uint32_t to,
                       enum pool_offer_why why)
{
    struct pool_copy copy = {.last = c->last, .to = p->balance.ids[to], .why = why};

    if (spsc_push(p->copies, &copy))
        p->has_posted = true;
}

/* Each holder serves a part of the load, so all of them have as much as this one. */
static void plan_copies(struct pool *p, const struct pool_candidate *c, uint32_t n, double share)
{
    struct pool_balance *b = &p->balance;
    struct place_copy copies[N_COPIES_OF_ROUND];
    struct place_item item = {.key = heavy_key(c->segment), .size = 1};

    for (uint32_t i = 0; i < n; i++)
        item.n_copies += holds(p, 0, i);
    double wanted = ceil(share * item.n_copies);
    item.n_wanted = wanted < n ? (uint32_t)wanted : n;
    struct place_state s = {.in = {b->loads, b->free, n},
                            .items = &item,
                            .n_items = 1,
                            .holds = holds,
                            .arg = p,
                            .budget = N_COPIES_OF_ROUND};
    uint32_t n_copies = place_copies(&s, copies, N_COPIES_OF_ROUND);
    for (uint32_t i = 0; i < n_copies; i++)
        ask_engine(p, c, copies[i].to, POOL_OFFER_COPY);
}

/* One path that is not heavy moves from this instance, if this is the fullest one. */
static void plan_move(struct pool *p, const struct pool_candidate *c, uint32_t n)
{
    struct pool_balance *b = &p->balance;
    struct rebalance_item item = {.load = rate_of(heavy_load(b->heavy, heavy_key(c->segment))),
                                  .size = c->n_blocks};
    struct rebalance_state s = {.load = b->loads,
                                .free = b->free,
                                .n_instances = n,
                                .items = &item,
                                .n_items = 1,
                                .holds = holds,
                                .arg = p,
                                .budget = UINT64_MAX};
    struct rebalance_move move;

    if (rebalance_plan(&s, &move, 1) == 1)
        ask_engine(p, c, move.to, POOL_OFFER_MOVE);
}

/* *e is p->event. */
void pool_balance_found(struct pool *p, const struct directory_event *e)
{
    struct pool_balance *b = &p->balance;
    const struct pool_candidate *c = &b->candidates[pool_tag_index(e->tag)];

    if (e->kind != DIRECTORY_FOUND || (uint32_t)e->tag != b->generation || b->budget < 0)
        return;
    uint32_t n = list_instances(p);
    double load = heavy_load(b->heavy, heavy_key(c->segment)), tau = heavy_threshold(b->heavy);
    if (load > tau)
        plan_copies(p, c, n, load / tau);
    else if (n > 1 && spsc_is_empty(p->copies))
        plan_move(p, c, n);
}

void pool_balance_timers(struct pool *p)
{
    struct pool_balance *b = &p->balance;
    uint32_t ttl_ms = p->config.directory.instance_ttl_ms;

    if (p->now_ns < b->round_ns)
        return;
    b->round_ns = p->now_ns + (ttl_ms ? ttl_ms : INSTANCE_TTL_MS) * POOL_MS / 3;
    decay(p);
    set_others(p, list_instances(p));
    if (pool_balance_is_due(p) && !p->info.is_leaving && b->budget >= 0 &&
        spsc_is_empty(p->copies) && !pool_offer_balances(p))
        begin_round(p);
}
