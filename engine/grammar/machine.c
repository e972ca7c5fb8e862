#include "engine/grammar/machine.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define NODES_MAX (1u << 20)
#define CONFIGS_MAX (1u << 18)
#define LARGE_BYTES ((size_t)16 << 20)
#define BYTES_MAX ((size_t)64 << 20)
#define WAYS_MAX 4096u       /* of one configuration */
#define DEPTH_MAX 512u       /* of calls */
#define STEP_WORK_MAX 60000u /* states of one step: some 1.5 ms; fits into struct step */
#define WAYS_PER_UNIT 16u    /* ways that are tried with a byte, at the price of one state */
#define UNKNOWN UINT32_MAX
#define BOTTOM 0u /* the stack below the first rule */

/* A state and what is below it. As a way: a STATE_BYTE; as a part of a stack: the state behind a
 * call. */
struct node {
    uint32_t state;
    uint32_t below; /* node, or BOTTOM */
    uint32_t depth;
};

struct config {
    uint32_t first, n; /* ways: node numbers, ascending */
    uint32_t next;     /* place of its n_classes steps, or UNKNOWN */
    bool accepts;
};

struct step {
    uint32_t to;    /* UNKNOWN: not computed yet */
    uint16_t work;  /* states looked at to compute it */
    uint16_t round; /* the question that counted it last */
};

/* Numbers by hash, with open addressing. */
struct table {
    uint32_t *slots; /* [mask + 1]; UNKNOWN: empty */
    uint32_t mask, n;
};

struct machine {
    const struct states *st;
    struct node *nodes; /* [n_nodes]; 0 is BOTTOM */
    uint32_t n_nodes, nodes_cap;
    struct config *configs; /* [n_configs]; 0 is MACHINE_DEAD */
    uint32_t n_configs, configs_cap;
    uint32_t *ways; /* [n_ways] of all configurations */
    uint32_t n_ways, ways_cap;
    struct step *steps; /* [n_steps] */
    uint32_t n_steps, steps_cap;
    struct table node_table, config_table;
    size_t n_bytes;
    /* The configuration that is being made. */
    uint32_t *todo; /* [n_todo] nodes whose ways are not found yet */
    uint32_t n_todo, todo_cap;
    uint32_t *seen; /* [seen_cap] the round that saw a node */
    uint32_t seen_cap;
    uint32_t round;
    uint32_t found[WAYS_MAX];
    uint32_t n_found;
    bool accepts;
    uint32_t step_work;
    /* The question that is being answered. */
    uint16_t question;
    uint32_t work, n_spent, slice;
    bool is_full;
};

/* --- memory --- */

static enum status grow(struct machine *m, void **v, uint32_t n, uint32_t *cap, uint32_t n_more,
                        uint32_t n_max, size_t size)
{
    uint32_t to = *cap ? *cap : 256;

    if (n_more > n_max - n) {
        m->is_full = true;
        return ERR_TOO_LARGE;
    }
    if (n + n_more <= *cap)
        return OK;
    while (to < n + n_more)
        to *= 2;
    if (m->n_bytes + (size_t)(to - *cap) * size > BYTES_MAX) {
        m->is_full = true;
        return ERR_TOO_LARGE;
    }
    void *p = realloc(*v, to * size);
    if (!p)
        return ERR_NOMEM;
    m->n_bytes += (size_t)(to - *cap) * size;
    *v = p;
    *cap = to;
    return OK;
}

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
}

static void table_put(struct table *t, uint64_t hash, uint32_t number)
{
    uint32_t at = (uint32_t)hash & t->mask;

    while (t->slots[at] != UNKNOWN)
        at = (at + 1) & t->mask;
    t->slots[at] = number;
    t->n++;
}

static uint64_t node_hash(const struct machine *m, uint32_t i)
{
    return mix(m->nodes[i].state, m->nodes[i].below);
}

static uint64_t ways_hash(const uint32_t *ways, uint32_t n, bool accepts)
{
    uint64_t h = mix(n, accepts);

    for (uint32_t i = 0; i < n; i++)
        h = mix(h, ways[i]);
    return h;
}

static uint64_t config_hash(const struct machine *m, uint32_t i)
{
    const struct config *c = &m->configs[i];

    return ways_hash(m->ways + c->first, c->n, c->accepts);
}

/* Make room for one more number; the table stays at most half full. */
static enum status table_room(struct machine *m, struct table *t,
                              uint64_t (*hash)(const struct machine *, uint32_t))
{
    struct table more = {.mask = t->slots ? 2 * t->mask + 1 : 1023};

    if (t->slots && 2 * t->n <= t->mask)
        return OK;
    more.slots = malloc((more.mask + 1) * sizeof *more.slots);
    if (!more.slots)
        return ERR_NOMEM;
    memset(more.slots, 0xff, (more.mask + 1) * sizeof *more.slots);
    for (uint32_t i = 0; t->slots && i <= t->mask; i++)
        if (t->slots[i] != UNKNOWN)
            table_put(&more, hash(m, t->slots[i]), t->slots[i]);
    m->n_bytes += (more.mask - t->mask) * sizeof *more.slots;
    free(t->slots);
    *t = more;
    return OK;
}

/* --- nodes --- */

/* The number of the node, which is made if it is new. */
static enum status node_of(struct machine *m, uint32_t state, uint32_t below, uint32_t *out)
{
    uint64_t hash = mix(state, below);
    enum status s = table_room(m, &m->node_table, node_hash);

    if (s != OK)
        return s;
    for (uint32_t at = (uint32_t)hash & m->node_table.mask; m->node_table.slots[at] != UNKNOWN;
         at = (at + 1) & m->node_table.mask) {
        const struct node *n = &m->nodes[m->node_table.slots[at]];
        if (n->state == state && n->below == below) {
            *out = m->node_table.slots[at];
            return OK;
        }
    }
    s = grow(m, (void **)&m->nodes, m->n_nodes, &m->nodes_cap, 1, NODES_MAX, sizeof *m->nodes);
    if (s == OK && m->nodes_cap != m->seen_cap) {
        uint32_t *seen = realloc(m->seen, m->nodes_cap * sizeof *seen);
        if (!seen)
            return ERR_NOMEM;
        memset(seen + m->seen_cap, 0, (m->nodes_cap - m->seen_cap) * sizeof *seen);
        m->n_bytes += (m->nodes_cap - m->seen_cap) * sizeof *seen;
        m->seen = seen;
        m->seen_cap = m->nodes_cap;
    }
    if (s != OK)
        return s;
    m->nodes[m->n_nodes] = (struct node){state, below, m->nodes[below].depth + 1};
    table_put(&m->node_table, hash, m->n_nodes);
    *out = m->n_nodes++;
    return OK;
}

/* Look at a state on top of a stack later in this round. */
static enum status push(struct machine *m, uint32_t state, uint32_t below)
{
    uint32_t node;
    enum status s = m->step_work < STEP_WORK_MAX ? node_of(m, state, below, &node) : ERR_TOO_LARGE;

    if (s != OK || m->seen[node] == m->round)
        return s;
    m->step_work++;
    m->seen[node] = m->round;
    s = grow(m, (void **)&m->todo, m->n_todo, &m->todo_cap, 1, NODES_MAX, sizeof *m->todo);
    if (s == OK)
        m->todo[m->n_todo++] = node;
    return s;
}

/* A call that is the last thing of its rule returns to where that rule returns to: so repetition
 * that is written as recursion needs no stack. */
static enum status push_call(struct machine *m, const struct state *call, uint32_t below)
{
    uint32_t back = below;
    enum status s = OK;

    if (m->st->v[call->b].kind != STATE_END)
        s = node_of(m, call->b, below, &back);
    if (s != OK || m->nodes[back].depth > DEPTH_MAX)
        return s;
    return push(m, call->a, back);
}

static enum status take(struct machine *m, uint32_t node)
{
    struct node n = m->nodes[node];
    const struct state *x = &m->st->v[n.state];
    enum status s = OK;

    switch (x->kind) {
    case STATE_NEVER: break;
    case STATE_SPLIT: s = push(m, x->a, n.below); return s == OK ? push(m, x->b, n.below) : s;
    case STATE_CALL: return push_call(m, x, n.below);
    case STATE_BYTE:
        if (m->n_found == WAYS_MAX)
            return ERR_TOO_LARGE;
        m->found[m->n_found++] = node;
        break;
    case STATE_END:
        if (n.below == BOTTOM)
            m->accepts = true;
        else
            return push(m, m->nodes[n.below].state, m->nodes[n.below].below);
    }
    return s;
}

/* --- configurations --- */

static int ascending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static void begin_config(struct machine *m)
{
    m->round++;
    m->n_todo = m->n_found = m->step_work = 0;
    m->accepts = false;
}

static enum status end_config(struct machine *m, uint32_t *out)
{
    enum status s = OK;

    while (s == OK && m->n_todo > 0)
        s = take(m, m->todo[--m->n_todo]);
    if (s == OK)
        s = table_room(m, &m->config_table, config_hash);
    if (s != OK)
        return s;
    *out = MACHINE_DEAD;
    if (m->n_found == 0 && !m->accepts)
        return OK;
    qsort(m->found, m->n_found, sizeof *m->found, ascending);
    uint64_t hash = ways_hash(m->found, m->n_found, m->accepts);
    for (uint32_t at = (uint32_t)hash & m->config_table.mask; m->config_table.slots[at] != UNKNOWN;
         at = (at + 1) & m->config_table.mask) {
        const struct config *c = &m->configs[m->config_table.slots[at]];
        if (c->n == m->n_found && c->accepts == m->accepts &&
            memcmp(m->ways + c->first, m->found, c->n * sizeof *m->found) == 0) {
            *out = m->config_table.slots[at];
            return OK;
        }
    }
    s = grow(m, (void **)&m->ways, m->n_ways, &m->ways_cap, m->n_found, UINT32_MAX / 2,
             sizeof *m->ways);
    if (s == OK)
        s = grow(m, (void **)&m->configs, m->n_configs, &m->configs_cap, 1, CONFIGS_MAX,
                 sizeof *m->configs);
    if (s != OK)
        return s;
    if (m->n_found > 0)
        memcpy(m->ways + m->n_ways, m->found, m->n_found * sizeof *m->found);
    m->configs[m->n_configs] = (struct config){m->n_ways, m->n_found, UNKNOWN, m->accepts};
    m->n_ways += m->n_found;
    table_put(&m->config_table, hash, m->n_configs);
    *out = m->n_configs++;
    return OK;
}

/* The state count of a step is a property of its configuration and byte alone. */
static enum status compute_step(struct machine *m, uint32_t config, uint8_t byte, struct step *out)
{
    enum status s = OK;
    uint32_t to = MACHINE_DEAD;

    if (m->n_spent >= m->slice)
        return ERR_BUSY;
    begin_config(m);
    m->step_work = m->configs[config].n / WAYS_PER_UNIT;
    for (uint32_t i = 0; s == OK && i < m->configs[config].n; i++) {
        struct node n = m->nodes[m->ways[m->configs[config].first + i]];
        const struct state *x = &m->st->v[n.state];
        if (byte_set_has(&m->st->sets[x->a], byte))
            s = push(m, x->b, n.below);
    }
    if (s == OK)
        s = end_config(m, &to);
    m->n_spent += m->step_work + 1;
    if (s == OK)
        *out = (struct step){to, (uint16_t)(m->step_work + 1), 0};
    return s;
}

enum status machine_step(struct machine *m, uint32_t config, uint8_t byte, uint32_t *out)
{
    uint32_t class = m->st->class_of[byte], n = m->st->n_classes;
    enum status s = OK;

    if (m->configs[config].next == UNKNOWN) {
        s = grow(m, (void **)&m->steps, m->n_steps, &m->steps_cap, n, UINT32_MAX / 2,
                 sizeof *m->steps);
        if (s != OK)
            return s;
        for (uint32_t i = 0; i < n; i++)
            m->steps[m->n_steps + i] = (struct step){.to = UNKNOWN};
        m->configs[config].next = m->n_steps;
        m->n_steps += n;
    }
    struct step *step = &m->steps[m->configs[config].next + class];
    if (step->to == UNKNOWN && (s = compute_step(m, config, byte, step)) != OK)
        return s;
    if (step->round != m->question) {
        step->round = m->question;
        m->work += step->work;
        if (m->work > MACHINE_WORK_MAX)
            return ERR_TOO_LARGE;
    }
    *out = step->to;
    return OK;
}

void machine_ask(struct machine *m, uint32_t slice)
{
    m->work = m->n_spent = 0;
    m->slice = slice;
    m->is_full = false;
    if (++m->question != 0)
        return;
    for (uint32_t i = 0; i < m->n_steps; i++)
        m->steps[i].round = 0;
    m->question = 1;
}

enum status machine_spend(struct machine *m, uint32_t n)
{
    m->n_spent += n;
    return m->n_spent >= m->slice ? ERR_BUSY : OK;
}

uint32_t machine_work(const struct machine *m)
{
    return m->work;
}

bool machine_is_full(const struct machine *m)
{
    return m->is_full;
}

/* --- configurations of another machine --- */

/* Copy node `from`, whose lower nodes were copied already. copies [nodes of `other`] are new
 * numbers, BOTTOM where there is none yet. */
static enum status copy_node(struct machine *m, const struct machine *other, uint32_t from,
                             uint32_t *copies)
{
    uint32_t path[DEPTH_MAX + 2], n = 0;
    enum status s = OK;

    for (uint32_t i = from; i != BOTTOM && copies[i] == BOTTOM; i = other->nodes[i].below)
        path[n++] = i;
    while (s == OK && n > 0) {
        const struct node *x = &other->nodes[path[--n]];
        s = node_of(m, x->state, x->below == BOTTOM ? BOTTOM : copies[x->below], &copies[path[n]]);
    }
    return s;
}

enum status machine_import(struct machine *m, const struct machine *other, uint32_t config,
                           uint32_t *out)
{
    const struct config *c = &other->configs[config];
    uint32_t *copies = calloc(other->n_nodes, sizeof *copies);
    enum status s = copies ? OK : ERR_NOMEM;

    ASSERT(m->st == other->st && m != other);
    begin_config(m);
    for (uint32_t i = 0; s == OK && i < c->n; i++) {
        uint32_t from = other->ways[c->first + i];
        s = copy_node(m, other, from, copies);
        m->found[m->n_found++] = copies[from];
    }
    m->accepts = c->accepts;
    if (s == OK)
        s = end_config(m, out);
    free(copies);
    return s;
}

bool machine_accepts(const struct machine *m, uint32_t config)
{
    return m->configs[config].accepts;
}

bool machine_goes_on(const struct machine *m, uint32_t config)
{
    return m->configs[config].n > 0;
}

bool machine_is_forced(const struct machine *m, uint32_t config, uint8_t *byte)
{
    const struct config *c = &m->configs[config];
    struct byte_set all = {{0}};
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        const struct node *way = &m->nodes[m->ways[c->first + i]];
        const struct byte_set *set = &m->st->sets[m->st->v[way->state].a];
        for (uint32_t k = 0; k < ARRAY_SIZE(all.bits); k++)
            all.bits[k] |= set->bits[k];
    }
    for (uint32_t k = 0; k < ARRAY_SIZE(all.bits); k++)
        n += (uint32_t)__builtin_popcountll(all.bits[k]);
    if (n != 1 || c->accepts)
        return false;
    for (uint32_t k = 0; k < ARRAY_SIZE(all.bits); k++)
        if (all.bits[k])
            *byte = (uint8_t)(64 * k + (uint32_t)__builtin_ctzll(all.bits[k]));
    return true;
}

uint32_t machine_n_configs(const struct machine *m)
{
    return m->n_configs;
}

size_t machine_bytes(const struct machine *m)
{
    return sizeof *m + m->n_bytes;
}

bool machine_is_large(const struct machine *m)
{
    return m->n_bytes > LARGE_BYTES || m->n_configs > CONFIGS_MAX / 2 || m->n_nodes > NODES_MAX / 2;
}

/* --- life --- */

/* BOTTOM, MACHINE_DEAD and MACHINE_FIRST. */
static enum status begin(struct machine *m)
{
    uint32_t first;
    enum status s = grow(m, (void **)&m->nodes, 0, &m->nodes_cap, 1, NODES_MAX, sizeof *m->nodes);

    if (s == OK)
        s = grow(m, (void **)&m->configs, 0, &m->configs_cap, 2, CONFIGS_MAX, sizeof *m->configs);
    m->seen = calloc(m->nodes_cap ? m->nodes_cap : 1, sizeof *m->seen);
    if (s != OK || !m->seen)
        return ERR_NOMEM;
    m->seen_cap = m->nodes_cap;
    m->nodes[m->n_nodes++] = (struct node){UNKNOWN, BOTTOM, 0};
    m->configs[m->n_configs++] = (struct config){.next = UNKNOWN};
    begin_config(m);
    s = push(m, m->st->first, BOTTOM);
    if (s == OK)
        s = end_config(m, &first);
    if (s == OK && first == MACHINE_DEAD) /* a grammar without any text */
        m->configs[m->n_configs++] = (struct config){.next = UNKNOWN};
    return s;
}

enum status machine_create(struct machine **out, const struct states *st)
{
    struct machine *m = calloc(1, sizeof *m);
    enum status s;

    *out = NULL;
    if (!m)
        return ERR_NOMEM;
    m->st = st;
    machine_ask(m, UINT32_MAX);
    s = begin(m);
    if (s == OK)
        *out = m;
    else
        machine_destroy(m);
    return s;
}

void machine_destroy(struct machine *m)
{
    if (!m)
        return;
    free(m->nodes);
    free(m->configs);
    free(m->ways);
    free(m->steps);
    free(m->node_table.slots);
    free(m->config_table.slots);
    free(m->todo);
    free(m->seen);
    free(m);
}
