#include "loadgen/sim/cluster_inner.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cache/balance/rebalance.h"

#define LOAD_HALF_S 5.0 /* half life of an instance's load */
#define TICK_NS UINT64_C(100000000)
#define SEGMENT_TOKENS 256u /* of the directory: an announcement */
#define RECORD_NS 300u      /* of the directory, for a record of an instance */
#define LIFETIME_NS UINT64_C(3000000000)
#define AWAY_NS UINT64_C(500000000)
#define AGAIN_NS UINT64_C(200000000000)

/* Numbers of agenda items: instances first, then these, then transfers. */
enum { ITEM_FAIL, ITEM_JOIN, ITEM_TICK, N_ITEMS };

/* --- life --- */

static void on_shelf(void *arg, uint64_t key, uint32_t n_tokens, bool is_here)
{
    struct node *node = arg;
    struct cluster *c = node->cluster;
    uint32_t at = node->light.index;

    c->n_segments += is_here ? 1 : -1u;
    if (!is_here)
        registry_remove(c->registry, key, at, c->now_ns);
    else if (registry_add(c->registry, key, at, n_tokens, c->now_ns) != OK)
        c->result.n_directory_lost++; /* others will not find it */
}

static void set_up_shelf(struct node *node)
{
    node->light.shelf.changed = on_shelf;
    node->light.shelf.arg = node;
}

static enum status open_parts(struct cluster *c)
{
    const struct cluster_config *config = &c->config;
    uint32_t n = config->n_instances;
    struct registry_config r = {.n_instances = n,
                                .segment_tokens = SEGMENT_TOKENS,
                                .delay_ns = config->directory_ns,
                                .lifetime_ns = LIFETIME_NS,
                                .command_ns = config->is_pool ? config->command_ns : 0,
                                .record_ns = config->is_pool ? RECORD_NS : 0,
                                .away_ns = AWAY_NS,
                                .again_ns = AGAIN_NS};
    struct heavy_config h = {.n_instances = n,
                             .n_items_max = 1u << 16 > 64 * n ? 1u << 16 : 64 * n};

    c->nodes = calloc(n, sizeof *c->nodes);
    c->awake = calloc(n, sizeof *c->awake);
    c->holders = calloc(n, sizeof *c->holders);
    c->loads = calloc(n, sizeof *c->loads);
    c->n_held = calloc(n, sizeof *c->n_held);
    if (!c->nodes || !c->awake || !c->holders || !c->loads || !c->n_held ||
        registry_create(&c->registry, &r) != OK || heavy_create(&c->heavy, &h) != OK)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        struct node *node = &c->nodes[i];
        if (light_init(&node->light, i, &config->light) != OK)
            return ERR_NOMEM;
        node->cluster = c;
        node->is_alive = true;
        agenda_item_init(&node->light.item, i);
        set_up_shelf(node);
    }
    c->n_alive = n;
    return OK;
}

static enum status plan_events(struct cluster *c)
{
    enum status s = OK;
    uint32_t n = c->config.n_instances;

    agenda_item_init(&c->fail, n + ITEM_FAIL);
    agenda_item_init(&c->join, n + ITEM_JOIN);
    agenda_item_init(&c->tick, n + ITEM_TICK);
    if (c->config.fail_ns)
        s = agenda_add(&c->agenda, &c->fail, c->config.fail_ns);
    if (s == OK && c->config.join_ns)
        s = agenda_add(&c->agenda, &c->join, c->config.join_ns);
    return s;
}

enum status cluster_open(struct cluster **out, const struct cluster_config *config, struct buf *why)
{
    struct cluster *c = calloc(1, sizeof *c);

    *out = NULL;
    if (!c)
        return buf_why(why, ERR_NOMEM, "out of memory");
    c->config = *config;
    c->n_out = 256;
    link_init(&c->transfers);
    if (config->is_pool) {
        c->config.light.pool = c;
        c->config.light.ask = cluster_ask;
        c->config.light.read = cluster_read;
        c->config.light.release = cluster_release;
        c->config.light.query_s = cluster_query_s;
    }
    c->config.light.used = cluster_used;
    c->config.light.owner = c;
    if (open_parts(c) != OK || plan_events(c) != OK) {
        cluster_close(c);
        return buf_why(why, ERR_NOMEM, "out of memory");
    }
    *out = c;
    return OK;
}

void cluster_close(struct cluster *c)
{
    if (!c)
        return;
    while (!link_is_empty(&c->transfers))
        cluster_free_transfer(c, LINK_ITEM(c->transfers.next, transfer, link));
    for (uint32_t i = 0; c->nodes && i < c->config.n_instances; i++) {
        c->nodes[i].light.shelf.changed = NULL;
        light_fini(&c->nodes[i].light);
    }
    registry_destroy(c->registry);
    heavy_destroy(c->heavy);
    table_fini(&c->wanted);
    agenda_fini(&c->agenda);
    free(c->nodes);
    free(c->awake);
    free(c->holders);
    free(c->loads);
    free(c->n_held);
    free(c);
}

/* --- jobs --- */

void cluster_wake(struct cluster *c, uint32_t at)
{
    if (c->nodes[at].is_awake || !c->nodes[at].is_alive)
        return;
    c->nodes[at].is_awake = true;
    c->awake[c->n_awake++] = at;
}

/* The clock of background work runs while there is work. */
static void start_clock(struct cluster *c, uint64_t now_ns)
{
    if (c->tick.place != 0)
        return;
    if (c->tick_ns == 0)
        c->window_ns = now_ns;
    c->tick_ns = now_ns;
    uint64_t n_ns = c->config.balance_ns ? c->config.balance_ns : TICK_NS;
    if (agenda_add(&c->agenda, &c->tick, now_ns + n_ns) != OK)
        c->result.n_directory_lost++;
}

void cluster_submit(struct cluster *c, uint32_t at, struct job *j, uint64_t now_ns)
{
    c->now_ns = now_ns;
    j->at = at;
    start_clock(c, now_ns);
    light_submit(&c->nodes[at].light, j, now_ns);
    cluster_wake(c, at);
}

void cluster_cancel(struct cluster *c, struct job *j)
{
    if (!j->seat)
        return;
    light_cancel(&c->nodes[j->at].light, j);
    cluster_wake(c, j->at);
}

/* --- links --- */

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t duration(const struct cluster *c, uint64_t n_bytes)
{
    return (uint64_t)((double)n_bytes / c->config.link_bytes_per_s * 1e9 + 0.5);
}

uint64_t cluster_send_end(const struct cluster *c, uint32_t from, uint32_t to, uint64_t n_bytes,
                          uint64_t now_ns)
{
    uint64_t begin = later(now_ns, later(c->nodes[from].tx_free_ns, c->nodes[to].rx_free_ns));

    return begin + duration(c, n_bytes) + c->config.link_ns;
}

uint64_t cluster_send(struct cluster *c, uint32_t from, uint32_t to, uint64_t n_bytes,
                      uint64_t now_ns)
{
    uint64_t end = cluster_send_end(c, from, to, n_bytes, now_ns);

    c->nodes[from].tx_free_ns = c->nodes[to].rx_free_ns = end - c->config.link_ns;
    c->result.link_busy_ns += duration(c, n_bytes);
    return end;
}

void cluster_free_transfer(struct cluster *c, struct transfer *t)
{
    agenda_remove(&c->agenda, &t->item);
    link_remove(&t->link);
    if (t->seat && --t->seat->n_reads == 0 && !t->seat->job)
        free(t->seat);
    free(t->path);
    free(t);
}

bool cluster_start(struct cluster *c, struct transfer *t, uint64_t end_ns)
{
    agenda_item_init(&t->item, c->config.n_instances + N_ITEMS + c->n_transfers++);
    t->from_life = c->nodes[t->from].life;
    t->to_life = c->nodes[t->to].life;
    if (agenda_add(&c->agenda, &t->item, end_ns) != OK) {
        free(t->path);
        free(t);
        return false;
    }
    link_append(&c->transfers, &t->link);
    if (t->pin)
        shelf_pin(&c->nodes[t->from].light.shelf, t->pin);
    return true;
}

static void end_transfer(struct cluster *c, struct transfer *t)
{
    if (t->pin && t->from_life == c->nodes[t->from].life)
        shelf_unpin(&c->nodes[t->from].light.shelf, t->pin);
    if (t->kind == TRANSFER_READ)
        cluster_end_read(c, t);
    else
        cluster_end_copy(c, t);
    cluster_wake(c, t->from);
    cluster_wake(c, t->to);
    cluster_free_transfer(c, t);
}

/* --- failures --- */

static void fail_first(struct cluster *c, uint64_t now_ns)
{
    struct node *node = &c->nodes[0];
    struct link moved;
    struct job *j;

    if (c->config.n_instances < 2)
        return;
    link_init(&moved);
    node->is_alive = false;
    node->helps = 0; /* the step goes on without it */
    cluster_end_group(c, 0, 0);
    agenda_remove(&c->agenda, &node->light.item);
    c->n_segments -= node->light.shelf.n_nodes;
    node->light.shelf.changed = NULL;
    while ((j = light_die(&node->light)))
        link_append(&moved, &j->link);
    node->life++;
    c->n_alive--;
    registry_die(c->registry, 0, now_ns);
    heavy_set_instances(c->heavy, c->n_alive);
    set_up_shelf(node);
    while (!link_is_empty(&moved)) {
        j = LINK_ITEM(moved.next, job, link);
        link_remove(&j->link);
        c->result.n_moved_jobs++;
        cluster_submit(c, c->config.route(c->config.arg, j, now_ns), j, now_ns);
    }
}

static void join_first(struct cluster *c)
{
    struct node *node = &c->nodes[0];

    if (node->is_alive)
        return;
    node->is_alive = true;
    c->n_alive++;
    heavy_set_instances(c->heavy, c->n_alive);
}

/* --- time --- */

static double served_cv(const struct cluster *c, bool since_window)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->config.n_instances; i++) {
        const struct node *x = &c->nodes[i];
        if (x->is_alive || !since_window)
            c->loads[n++] = (double)(x->n_served - (since_window ? x->n_served_before : 0));
    }
    return rebalance_cv(c->loads, n);
}

static void end_window(struct cluster *c, uint64_t now_ns)
{
    if (now_ns < c->window_ns + CLUSTER_WINDOW_NS)
        return;
    c->cv_sum += served_cv(c, true);
    c->n_windows++;
    c->window_ns = now_ns;
    for (uint32_t i = 0; i < c->config.n_instances; i++)
        c->nodes[i].n_served_before = c->nodes[i].n_served;
}

static double exp2_of(double x) /* 2^-x for small x >= 0 */
{
    double y = x * 0.6931471805599453;

    return 1 / (1 + y + y * y / 2 + y * y * y / 6);
}

static void run_tick(struct cluster *c, uint64_t now_ns)
{
    uint64_t elapsed_ns = now_ns - c->tick_ns;
    double kept = exp2_of((double)elapsed_ns / 1e9 / LOAD_HALF_S);
    uint32_t n_inside = 0;

    for (uint32_t i = 0; i < c->config.n_instances; i++) {
        c->nodes[i].load *= kept;
        n_inside += c->nodes[i].light.n_inside;
    }
    end_window(c, now_ns);
    if (c->config.is_pool) {
        registry_keep_alive(c->registry, c->n_alive, c->n_segments, elapsed_ns, now_ns);
        if (c->config.balance_ns)
            cluster_balance(c);
    }
    c->tick_ns = now_ns;
    if (n_inside > 0)
        start_clock(c, now_ns);
}

uint64_t cluster_next(const struct cluster *c)
{
    const struct agenda_item *item = agenda_first(&c->agenda);

    return c->n_awake > 0 ? c->now_ns : item ? item->due_ns : CLUSTER_NEVER;
}

static void run_item(struct cluster *c, struct agenda_item *item, uint64_t now_ns)
{
    uint32_t n = c->config.n_instances;

    if (item->number < n) {
        struct light *l = &c->nodes[item->number].light;
        if (l->group.n > 1)
            cluster_end_group(c, l->index, l->ends_ns - l->began_ns);
        light_end_step(l, now_ns);
        cluster_wake(c, l->index);
    } else if (item->number == n + ITEM_FAIL) {
        fail_first(c, now_ns);
    } else if (item->number == n + ITEM_JOIN) {
        join_first(c);
    } else if (item->number == n + ITEM_TICK) {
        run_tick(c, now_ns);
    } else {
        end_transfer(c, (struct transfer *)item);
    }
}

void cluster_end_steps(struct cluster *c, uint64_t now_ns)
{
    struct agenda_item *item;

    c->now_ns = now_ns;
    while ((item = agenda_first(&c->agenda)) && item->due_ns <= now_ns) {
        agenda_remove(&c->agenda, item);
        run_item(c, item, now_ns);
    }
}

void cluster_begin_steps(struct cluster *c, uint64_t now_ns)
{
    c->now_ns = now_ns;
    if (c->config.is_elastic && c->n_awake > 0)
        cluster_plan_groups(c, now_ns);
    while (c->n_awake > 0) {
        struct node *node = &c->nodes[c->awake[--c->n_awake]];
        node->is_awake = false;
        if (!node->is_alive || node->helps || node->light.ends_ns != CLUSTER_NEVER)
            continue;
        light_begin_step(&node->light, now_ns);
        if (node->light.group.n > 1 && node->light.ends_ns == CLUSTER_NEVER)
            cluster_end_group(c, node->light.index, 0);
        if (node->light.ends_ns != CLUSTER_NEVER &&
            agenda_add(&c->agenda, &node->light.item, node->light.ends_ns) != OK)
            c->result.n_directory_lost++;
    }
}

/* --- looking --- */

bool cluster_is_alive(const struct cluster *c, uint32_t at)
{
    return c->nodes[at].is_alive;
}

uint32_t cluster_n_inside(const struct cluster *c, uint32_t at)
{
    return c->nodes[at].light.n_inside;
}

uint32_t cluster_n_waiting(const struct cluster *c, uint32_t at)
{
    return c->nodes[at].light.n_waiting;
}

double cluster_in_use(const struct cluster *c, uint32_t at)
{
    return light_in_use(&c->nodes[at].light);
}

void cluster_match(const struct cluster *c, const struct pieces *p, uint32_t *n_tokens)
{
    uint32_t before = 0;

    memset(n_tokens, 0, c->config.n_instances * sizeof *n_tokens);
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t n = registry_exact(c->registry, p->v[i].key, c->holders, c->config.n_instances);
        for (uint32_t k = 0; k < n; k++)
            if (n_tokens[c->holders[k]] == before)
                n_tokens[c->holders[k]] += p->v[i].n_tokens;
        if (n == 0)
            return;
        before += p->v[i].n_tokens;
    }
}

void cluster_count(struct cluster *c, struct sim_result *r, uint64_t now_ns)
{
    struct registry_stats d;
    double s = (double)(now_ns - SIM_START_NS) / 1e9;

    registry_stats(c->registry, &d);
    for (uint32_t i = 0; i < c->config.n_instances; i++) {
        const struct light *l = &c->nodes[i].light;
        light_check(l);
        r->n_steps += l->result.n_steps;
        r->n_items += l->result.n_items;
        r->n_step_tokens += l->result.n_step_tokens;
        r->busy_ns += l->result.busy_ns;
        r->n_cut += l->result.n_cut;
        r->n_tokens_restored += l->result.n_tokens_restored;
        r->n_preempted_for_memory += l->result.n_preempted_for_memory;
        r->memory_bytes += l->shelf.n_cap * sizeof *l->shelf.nodes +
                           l->shelf.at.n_slots * sizeof *l->shelf.at.slots;
    }
    r->access_cv = served_cv(c, false);
    r->access_cv_windows = c->n_windows > 0 ? c->cv_sum / c->n_windows : r->access_cv;
    r->n_lookups = d.n_lookups;
    r->n_lookups_refused = d.n_refused;
    r->n_directory_commands = d.n_commands;
    r->directory_busy_share = s > 0 ? (double)d.busy_ns / 1e9 / s : 0;
    r->n_directory_entries = d.n_entries;
    r->memory_bytes += d.n_bytes;
    r->link_busy_share =
        s > 0 ? (double)c->result.link_busy_ns / 1e9 / s / c->config.n_instances : 0;
    r->n_stale = c->result.n_stale;
    r->n_reads = c->result.n_reads;
    r->read_tokens = c->result.read_tokens;
    r->n_queries = c->result.n_queries;
    r->query_bytes = c->result.query_bytes;
    r->n_copies = c->result.n_copies;
    r->copied_tokens = c->result.copied_tokens;
    r->n_moves = c->result.n_moves;
    r->n_moved_jobs = c->result.n_moved_jobs;
    r->n_group_steps = c->result.n_group_steps;
    r->helped_ns = c->result.helped_ns;
    r->busy_ns += c->result.helped_ns;
    r->n_directory_lost = c->result.n_directory_lost;
    r->read_bytes = r->read_tokens * c->config.bytes_per_token;
}
