#include "loadgen/bench/policy/replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *const replay_orders[REPLAY_N_ORDERS] = {"worth", "clock", "recency"};

struct sim {
    const struct paths *p;
    const struct replay_options *o;
    struct replay_result *result;
    struct replace *policy;
    uint32_t *entry_of;  /* [n_nodes], or REPLACE_NONE */
    uint32_t *node_of;   /* [n_entries_max] */
    uint32_t *n_waiting; /* [n_nodes] waiting requests that want it */
    uint8_t *seen;       /* [n_nodes] an infinite cache has it */
};

static const struct path_step *step_of(const struct sim *s, const struct path *path, uint32_t i)
{
    return &s->p->steps[path->first + i];
}

/* --- waiting requests --- */

static void expect_path(struct sim *s, uint32_t request, int delta)
{
    const struct path *path = &s->p->requests[request];

    for (uint32_t i = 0; i < path->n_nodes; i++) {
        uint32_t node = step_of(s, path, i)->node;

        s->n_waiting[node] += (uint32_t)delta;
        if (s->entry_of[node] != REPLACE_NONE)
            replace_expect(s->policy, s->entry_of[node], delta);
    }
}

static void expect_all_of(struct sim *s, uint32_t node, int delta)
{
    for (uint32_t i = 0; i < s->n_waiting[node]; i++)
        replace_expect(s->policy, s->entry_of[node], delta);
}

/* --- entering and leaving --- */

static bool enter(struct sim *s, uint32_t node)
{
    const struct path_node *n = &s->p->nodes[node];
    uint32_t parent = n->parent == NO_NODE ? REPLACE_NONE : s->entry_of[n->parent];
    uint32_t id = replace_enter(s->policy, node, parent, n->depth, n->n_tokens);

    if (id == REPLACE_NONE)
        return false;
    s->entry_of[node] = id;
    s->node_of[id] = node;
    expect_all_of(s, node, +1);
    return true;
}

static void leave(struct sim *s, uint32_t id)
{
    uint32_t node = s->node_of[id];

    expect_all_of(s, node, -1);
    s->entry_of[node] = REPLACE_NONE;
    replace_leave(s->policy, id);
}

static bool make_room(struct sim *s, uint64_t n_tokens)
{
    struct replace_victim victim;

    while (!replace_has_room(s->policy, 0, n_tokens)) {
        if (replace_evict(s->policy, 0, &victim) != OK)
            return false;
        leave(s, victim.id);
    }
    return true;
}

/* --- a request --- */

struct request_shape {
    uint32_t n_hit, n_entered; /* nodes */
    uint32_t n_cached, n_new;  /* tokens */
    uint32_t n_ideal;          /* tokens an infinite cache would have */
};

static struct request_shape look_up(struct sim *s, const struct path *path)
{
    struct request_shape shape = {0};
    bool hits = true, ideal = true;

    for (uint32_t i = 0; i < path->n_nodes; i++) {
        uint32_t node = step_of(s, path, i)->node, n = s->p->nodes[node].n_tokens;

        hits &= s->entry_of[node] != REPLACE_NONE;
        ideal &= s->seen[node];
        s->seen[node] = 1;
        shape.n_hit += hits;
        *(hits ? &shape.n_cached : &shape.n_new) += n;
        shape.n_ideal += ideal ? n : 0;
    }
    return shape;
}

static void count(struct sim *s, const struct request_shape *shape)
{
    const struct cost_model *cost = s->o->cost;
    uint32_t all = shape->n_cached + shape->n_new;
    double cold = cost_model_seconds(cost, 0, all);

    s->result->n_tokens_hit += shape->n_cached;
    s->result->n_nodes_hit += shape->n_hit;
    s->result->saved_s += cold - cost_model_seconds(cost, shape->n_cached, shape->n_new);
    s->result->ideal_s += cold - cost_model_seconds(cost, shape->n_ideal, all - shape->n_ideal);
}

/* Pin the hits, enter the other nodes into the tree, and report both to the policy. */
static void use_path(struct sim *s, const struct path *path, struct request_shape *shape)
{
    struct replace_access access = {0};
    uint32_t n_before = 0;

    if (shape->n_new)
        access.miss_s_per_byte =
            cost_model_seconds(s->o->cost, shape->n_cached, shape->n_new) / shape->n_new;
    for (uint32_t i = 0; i < path->n_nodes; i++) {
        const struct path_step *step = step_of(s, path, i);
        uint32_t n_tokens = s->p->nodes[step->node].n_tokens;

        if (i < shape->n_hit)
            replace_pin(s->policy, 0, s->entry_of[step->node]);
        else if (!enter(s, step->node))
            break;
        access.was_cached = i < shape->n_hit;
        access.own_s_per_byte = cost_model_seconds(s->o->cost, n_before, n_tokens) / n_tokens;
        access.next_use = step->next_use == NO_REQUEST ? (double)INFINITY : step->next_use;
        replace_accessed(s->policy, s->entry_of[step->node], &access);
        n_before += n_tokens;
        shape->n_entered = i + 1;
    }
}

/* Evict victims for the computed nodes, from the top. Return the nodes of the path kept. */
static uint32_t keep_path(struct sim *s, const struct path *path, const struct request_shape *shape)
{
    uint32_t i;

    for (i = shape->n_hit; i < shape->n_entered; i++) {
        uint32_t node = step_of(s, path, i)->node;

        if (!make_room(s, s->p->nodes[node].n_tokens))
            break;
        replace_insert(s->policy, 0, s->entry_of[node]);
        replace_pin(s->policy, 0, s->entry_of[node]);
    }
    s->result->n_not_kept += path->n_nodes - i;
    for (uint32_t lost = shape->n_entered; lost-- > i;) /* children first */
        leave(s, s->entry_of[step_of(s, path, lost)->node]);
    return i;
}

static void run_request(struct sim *s, const struct path *path)
{
    struct request_shape shape = look_up(s, path);
    struct replace_stats stats;

    count(s, &shape);
    use_path(s, path, &shape);
    for (uint32_t i = keep_path(s, path, &shape); i-- > 0;)
        replace_unpin(s->policy, 0, s->entry_of[step_of(s, path, i)->node]);
    s->result->n_uses += path->n_nodes;
    replace_stats(s->policy, 0, &stats);
    for (uint32_t i = 0; i < REPLAY_N_ORDERS; i++)
        s->result->order_share[i] += strcmp(stats.order, replay_orders[i]) == 0;
    if (stats.used_bytes > s->result->n_tokens_max)
        s->result->n_tokens_max = stats.used_bytes;
    if (s->o->checks)
        replace_check(s->policy);
}

static void run(struct sim *s)
{
    uint32_t n = s->p->n_requests, n_ahead = s->o->n_lookahead;
    struct replace_stats stats;

    for (uint32_t r = 0; r < n && r < n_ahead; r++)
        expect_path(s, r, +1);
    for (uint32_t r = 0; r < n; r++) {
        if (n_ahead) { /* the request runs, and another one enters the queue */
            expect_path(s, r, -1);
            if (n - r > n_ahead)
                expect_path(s, r + n_ahead, +1);
        }
        run_request(s, &s->p->requests[r]);
    }
    replace_stats(s->policy, 0, &stats);
    s->result->n_evicted = stats.n_evicted;
    s->result->n_switches = stats.n_switches;
    for (uint32_t i = 0; i < REPLAY_N_ORDERS; i++)
        s->result->order_share[i] /= n;
    s->result->memory_bytes = replace_memory_bytes(s->policy);
}

/* --- */

static uint32_t entries_wanted(const struct paths *p, const struct replay_options *o)
{
    double mean = (double)p->n_tokens_distinct / p->n_nodes;
    double n = (double)o->capacity_tokens / mean * (1 + o->history) + 2.0 * p->n_nodes_longest;

    return n < p->n_nodes ? (uint32_t)n : p->n_nodes;
}

static enum status init(struct sim *s)
{
    struct replace_config config = {
        .policy = s->o->policy,
        .n_entries_max = entries_wanted(s->p, s->o),
        .n_tiers = 1,
        .capacity_bytes = {s->o->capacity_tokens},
    };

    s->result->n_entries_max = config.n_entries_max;
    s->entry_of = malloc(sizeof *s->entry_of * s->p->n_nodes);
    s->node_of = malloc(sizeof *s->node_of * config.n_entries_max);
    s->n_waiting = calloc(s->p->n_nodes, sizeof *s->n_waiting);
    s->seen = calloc(s->p->n_nodes, 1);
    if (!s->entry_of || !s->node_of || !s->n_waiting || !s->seen)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < s->p->n_nodes; i++)
        s->entry_of[i] = REPLACE_NONE;
    return replace_create(&s->policy, &config);
}

enum status replay(const struct paths *p, const struct replay_options *o, struct replay_result *out)
{
    struct sim s = {.p = p, .o = o, .result = out};
    clock_t start = clock();
    enum status status;

    *out = (struct replay_result){0};
    status = init(&s);
    if (status == OK)
        run(&s);
    out->cpu_s = (double)(clock() - start) / CLOCKS_PER_SEC;
    replace_destroy(s.policy);
    free(s.entry_of);
    free(s.node_of);
    free(s.n_waiting);
    free(s.seen);
    return status;
}
