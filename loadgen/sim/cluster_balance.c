/* cluster_balance.c - background work of a pool: copies of heavy pieces, and moves. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cache/balance/place.h"
#include "cache/balance/rebalance.h"
#include "loadgen/sim/cluster_inner.h"

#define N_COPIES_MAX 256u /* of one tick */
#define N_HOLDERS 32u     /* of a piece that are compared in moves */

struct balance {
    struct cluster *c;
    struct heavy_item *heavy; /* [n_heavy] */
    uint32_t n_heavy;
    struct place_item *items; /* [n_heavy] */
    uint64_t *free;           /* [n_instances] */
};

static bool holds(const void *arg, uint32_t item, uint32_t instance)
{
    const struct balance *b = arg;
    const struct node *node = &b->c->nodes[instance];

    return node->is_alive && shelf_has(&node->light.shelf, b->heavy[item].key);
}

/* Pieces of the path to the key that `to` lacks, the last first. */
static uint32_t missing(const struct cluster *c, uint64_t key, uint32_t from, uint32_t to,
                        struct piece *out)
{
    uint32_t n = shelf_path(&c->nodes[from].light.shelf, key, out, CLUSTER_PATH_MAX), kept = 0;

    while (kept < n && !shelf_has(&c->nodes[to].light.shelf, out[kept].key))
        kept++;
    return kept;
}

/* Send the path; it also keeps the piece before it, by which it will be entered. */
static uint64_t send_path(struct cluster *c, enum transfer_kind kind, uint64_t key, uint32_t from,
                          uint32_t to)
{
    static _Thread_local struct piece path[CLUSTER_PATH_MAX];
    uint32_t n = missing(c, key, from, to, path), n_all;
    uint64_t n_tokens = 0;

    if (n == 0)
        return 0;
    n_all = shelf_path(&c->nodes[from].light.shelf, key, path, CLUSTER_PATH_MAX);
    for (uint32_t i = 0; i < n; i++)
        n_tokens += path[i].n_tokens;
    struct transfer *t = calloc(1, sizeof *t);
    if (!t || !(t->path = malloc(n_all * sizeof *path))) {
        free(t);
        return 0;
    }
    memcpy(t->path, path, n_all * sizeof *path);
    link_init(&t->link);
    t->n_path = n_all;
    t->kind = kind;
    t->from = from;
    t->to = to;
    t->pin = key;
    uint64_t end_ns = cluster_send(c, from, to, n_tokens * c->config.bytes_per_token, c->now_ns);
    if (!cluster_start(c, t, end_ns))
        return 0;
    c->result.copied_tokens += n_tokens;
    c->result.n_copies += kind == TRANSFER_COPY;
    c->result.n_moves += kind == TRANSFER_MOVE;
    return n_tokens;
}

void cluster_end_copy(struct cluster *c, struct transfer *t)
{
    struct shelf *to = &c->nodes[t->to].light.shelf;

    if (t->to_life != c->nodes[t->to].life || !c->nodes[t->to].is_alive)
        return;
    for (uint32_t i = t->n_path; i-- > 0;) {
        uint64_t parent = i + 1 < t->n_path ? t->path[i + 1].key : 0;
        if (shelf_has(to, t->path[i].key))
            continue;
        if (parent && !shelf_has(to, parent))
            return;
        if (parent)
            shelf_pin(to, parent);
        bool has_room = shelf_make_room(to, t->path[i].n_tokens);
        if (parent)
            shelf_unpin(to, parent);
        if (!has_room || shelf_add(to, parent, t->path[i].key, t->path[i].n_tokens) != OK)
            return;
    }
    if (t->kind == TRANSFER_MOVE && t->from_life == c->nodes[t->from].life)
        (void)shelf_drop(&c->nodes[t->from].light.shelf, t->pin);
}

/* Under way to the same place already. */
static bool is_coming(const struct cluster *c, uint64_t key, uint32_t to)
{
    for (const struct link *l = c->transfers.next; l != &c->transfers; l = l->next) {
        const struct transfer *t = LINK_ITEM(l, transfer, link);
        if (t->kind != TRANSFER_READ && t->pin == key && t->to == to)
            return true;
    }
    return false;
}

/* Copy heavy pieces that have fewer copies than they should; returns the budget that is left. */
static uint64_t replicate(struct balance *b, uint64_t budget)
{
    struct cluster *c = b->c;
    struct place_copy copies[N_COPIES_MAX];
    uint32_t n_items = 0;

    for (uint32_t i = 0; i < b->n_heavy; i++) {
        uint32_t n =
            registry_exact(c->registry, b->heavy[i].key, c->holders, c->config.n_instances);
        struct piece one;
        b->items[n_items++] = (struct place_item){.key = b->heavy[i].key,
                                                  .load = b->heavy[i].load,
                                                  .size = sizeof one,
                                                  .n_copies = n,
                                                  .n_wanted = b->heavy[i].n_copies};
    }
    struct place_state s = {.in = {c->loads, b->free, c->config.n_instances},
                            .items = b->items,
                            .n_items = n_items,
                            .holds = holds,
                            .arg = b,
                            .budget = UINT64_MAX};
    uint32_t n = place_copies(&s, copies, N_COPIES_MAX);
    for (uint32_t i = 0; i < n && budget > 0; i++) {
        uint64_t key = b->heavy[copies[i].item].key;
        if (is_coming(c, key, copies[i].to))
            continue;
        uint64_t n_bytes = send_path(c, TRANSFER_COPY, key, copies[i].from, copies[i].to) *
                           c->config.bytes_per_token;
        budget -= n_bytes < budget ? n_bytes : budget;
    }
    return budget;
}

/* Move single copies of heavy pieces away from the fullest instance. */
static void rebalance(struct balance *b, uint64_t budget)
{
    struct cluster *c = b->c;
    struct rebalance_move moves[16];
    struct rebalance_item *items = calloc(b->n_heavy + 1, sizeof *items);
    uint32_t *from = calloc(b->n_heavy + 1, sizeof *from);

    for (uint32_t i = 0; items && from && i < b->n_heavy; i++) {
        uint32_t n = registry_exact(c->registry, b->heavy[i].key, c->holders, N_HOLDERS);
        bool is_single = n == 1 && b->heavy[i].n_copies <= 2;
        from[i] = n > 0 ? c->holders[0] : 0;
        items[i] = (struct rebalance_item){.load = is_single ? b->heavy[i].load : 0,
                                           .size = c->config.bytes_per_token,
                                           .instance = from[i]};
    }
    if (items && from) {
        struct rebalance_state s = {.load = c->loads,
                                    .free = b->free,
                                    .n_instances = c->config.n_instances,
                                    .items = items,
                                    .n_items = b->n_heavy,
                                    .holds = holds,
                                    .arg = b,
                                    .budget = budget};
        uint32_t n = rebalance_plan(&s, moves, 16);
        for (uint32_t i = 0; i < n && budget > 0; i++) {
            uint64_t key = b->heavy[moves[i].item].key;
            uint32_t at = from[moves[i].item];
            if (!shelf_has(&c->nodes[at].light.shelf, key) || is_coming(c, key, moves[i].to))
                continue;
            uint64_t n_bytes =
                send_path(c, TRANSFER_MOVE, key, at, moves[i].to) * c->config.bytes_per_token;
            budget -= n_bytes < budget ? n_bytes : budget;
        }
    }
    free(items);
    free(from);
}

void cluster_balance(struct cluster *c)
{
    struct balance b = {.c = c,
                        .heavy = calloc(CLUSTER_HEAVY_MAX, sizeof *b.heavy),
                        .items = calloc(CLUSTER_HEAVY_MAX, sizeof *b.items),
                        .free = calloc(c->config.n_instances, sizeof *b.free)};
    double s = (double)c->config.balance_ns / 1e9;
    uint64_t budget =
        (uint64_t)(c->config.balance_share * c->config.link_bytes_per_s * s * c->n_alive);

    heavy_tick(c->heavy, 1);
    table_fini(&c->wanted);
    if (b.heavy && b.items && b.free) {
        b.n_heavy = heavy_list(c->heavy, b.heavy, CLUSTER_HEAVY_MAX);
        for (uint32_t i = 0; i < b.n_heavy; i++)
            if (table_put(&c->wanted, b.heavy[i].key, b.heavy[i].n_copies) != OK)
                break; /* such copies may be demoted */
        for (uint32_t i = 0; i < c->config.n_instances; i++) {
            const struct node *x = &c->nodes[i];
            const struct shelf *shelf = &x->light.shelf;
            c->loads[i] = x->load;
            b.free[i] = x->is_alive && light_in_use(&x->light) < 0.9
                            ? shelf->n_tokens_max - shelf->n_private - shelf->n_pinned
                            : 0;
        }
        budget = replicate(&b, budget);
        rebalance(&b, budget);
    }
    free(b.heavy);
    free(b.items);
    free(b.free);
}
