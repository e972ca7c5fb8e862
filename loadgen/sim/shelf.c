#include "loadgen/sim/shelf.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define N_NODES_MIN 64u

static void list_free_nodes(struct shelf *s, uint32_t from)
{
    for (uint32_t i = s->n_cap; i-- > from;) {
        s->nodes[i].after = s->first_free;
        s->first_free = i;
    }
}

enum status shelf_init(struct shelf *s, uint64_t n_tokens_max)
{
    *s = (struct shelf){
        .n_tokens_max = n_tokens_max, .n_cap = N_NODES_MIN, .first_free = SHELF_NONE};
    s->nodes = calloc(s->n_cap, sizeof *s->nodes);
    if (!s->nodes)
        return ERR_NOMEM;
    list_free_nodes(s, 1);
    return OK;
}

void shelf_fini(struct shelf *s)
{
    free(s->nodes);
    table_fini(&s->at);
    memset(s, 0, sizeof *s);
}

static struct shelf_node *node_of(const struct shelf *s, uint64_t key)
{
    uint32_t i;

    return table_get(&s->at, key, &i) ? &s->nodes[i] : NULL;
}

bool shelf_has(const struct shelf *s, uint64_t key)
{
    return node_of(s, key) != NULL;
}

uint32_t shelf_match(const struct shelf *s, const struct pieces *p)
{
    uint32_t n = 0;

    while (n < p->n && shelf_has(s, p->v[n].key))
        n++;
    return n;
}

/* --- the list of leaves --- */

static bool can_go(const struct shelf_node *x)
{
    return x->n_children == 0 && x->n_pins == 0;
}

static void unlist(struct shelf *s, struct shelf_node *x)
{
    s->nodes[x->before].after = x->after;
    s->nodes[x->after].before = x->before;
}

/* Insert by last use, looked for from both ends: new leaves belong to one of them. */
static void list(struct shelf *s, struct shelf_node *x)
{
    uint32_t i = (uint32_t)(x - s->nodes), old = s->nodes[0].after, new = s->nodes[0].before;

    while (old != 0 && s->nodes[old].used < x->used && s->nodes[new].used > x->used) {
        old = s->nodes[old].after;
        new = s->nodes[new].before;
    }
    uint32_t after = old == 0 || s->nodes[old].used >= x->used ? old : s->nodes[new].after;
    x->after = after;
    x->before = s->nodes[after].before;
    s->nodes[x->before].after = i;
    s->nodes[after].before = i;
}

void shelf_use(struct shelf *s, const struct pieces *p, uint32_t n)
{
    s->clock++;
    for (uint32_t i = n; i-- > 0;) {
        struct shelf_node *x = node_of(s, p->v[i].key);
        ASSERT(x);
        bool is_listed = can_go(x);
        if (is_listed)
            unlist(s, x);
        x->used = s->clock;
        if (is_listed)
            list(s, x);
    }
}

static void pin_one(struct shelf *s, struct shelf_node *x)
{
    if (can_go(x))
        unlist(s, x);
    if (x->n_pins++ == 0)
        s->n_pinned += x->n_tokens;
}

void shelf_pin(struct shelf *s, uint64_t key)
{
    struct shelf_node *x = node_of(s, key);

    ASSERT(x);
    pin_one(s, x);
    for (uint32_t i = x->parent; i != SHELF_NONE; i = s->nodes[i].parent)
        pin_one(s, &s->nodes[i]);
}

void shelf_move_pin(struct shelf *s, uint64_t child)
{
    struct shelf_node *x = node_of(s, child);

    ASSERT(x);
    pin_one(s, x);
}

void shelf_unpin(struct shelf *s, uint64_t key)
{
    uint32_t i;

    ASSERT(table_get(&s->at, key, &i));
    for (; i != SHELF_NONE; i = s->nodes[i].parent) {
        struct shelf_node *x = &s->nodes[i];
        ASSERT(x->n_pins > 0);
        if (--x->n_pins == 0)
            s->n_pinned -= x->n_tokens;
        if (can_go(x))
            list(s, x);
    }
}

/* --- coming and going --- */

static void remove_leaf(struct shelf *s, uint32_t i)
{
    struct shelf_node *x = &s->nodes[i];
    uint64_t key = x->key;
    uint32_t n_tokens = x->n_tokens;

    ASSERT(can_go(x));
    unlist(s, x);
    table_remove(&s->at, key);
    s->n_cached -= n_tokens;
    s->n_nodes--;
    if (x->parent != SHELF_NONE) {
        struct shelf_node *parent = &s->nodes[x->parent];
        parent->n_children--;
        if (can_go(parent))
            list(s, parent);
    }
    x->after = s->first_free;
    s->first_free = i;
    if (s->changed)
        s->changed(s->arg, key, n_tokens, false);
}

bool shelf_make_room(struct shelf *s, uint64_t n_tokens)
{
    while (s->n_cached + s->n_private + n_tokens > s->n_tokens_max) {
        uint32_t victim = s->nodes[0].after;
        if (victim == 0)
            return false;
        remove_leaf(s, victim);
    }
    return true;
}

static enum status grow(struct shelf *s)
{
    struct shelf_node *nodes = realloc(s->nodes, 2 * (size_t)s->n_cap * sizeof *nodes);

    if (!nodes)
        return ERR_NOMEM;
    s->nodes = nodes;
    s->n_cap *= 2;
    list_free_nodes(s, s->n_cap / 2);
    return OK;
}

enum status shelf_add(struct shelf *s, uint64_t parent, uint64_t key, uint32_t n_tokens)
{
    uint32_t at = SHELF_NONE;

    if (shelf_has(s, key))
        return OK;
    if (parent != 0 && !table_get(&s->at, parent, &at))
        return ERR_NOT_FOUND;
    if (s->first_free == SHELF_NONE && grow(s) != OK)
        return ERR_NOMEM;
    uint32_t i = s->first_free;
    if (table_put(&s->at, key, i) != OK)
        return ERR_NOMEM;
    struct shelf_node *x = &s->nodes[i];
    s->first_free = x->after;
    *x = (struct shelf_node){.key = key, .used = s->clock, .parent = at, .n_tokens = n_tokens};
    if (at != SHELF_NONE) {
        if (can_go(&s->nodes[at]))
            unlist(s, &s->nodes[at]);
        s->nodes[at].n_children++;
    }
    list(s, x);
    s->n_cached += n_tokens;
    s->n_nodes++;
    if (s->changed)
        s->changed(s->arg, key, n_tokens, true);
    return OK;
}

void shelf_demote(struct shelf *s, uint64_t key)
{
    struct shelf_node *x = node_of(s, key);

    if (!x || x->n_pins > 0)
        return;
    bool is_listed = can_go(x);
    if (is_listed)
        unlist(s, x);
    x->used = 0;
    if (is_listed)
        list(s, x);
}

uint32_t shelf_path(const struct shelf *s, uint64_t key, struct piece *out, uint32_t n_max)
{
    uint32_t i, n = 0;

    if (!table_get(&s->at, key, &i))
        return 0;
    for (; i != SHELF_NONE; i = s->nodes[i].parent) {
        if (n == n_max)
            return 0;
        out[n++] = (struct piece){s->nodes[i].key, s->nodes[i].n_tokens};
    }
    return n;
}

bool shelf_drop(struct shelf *s, uint64_t key)
{
    struct shelf_node *x = node_of(s, key);

    if (!x || !can_go(x))
        return false;
    remove_leaf(s, (uint32_t)(x - s->nodes));
    return true;
}

void shelf_check(const struct shelf *s)
{
    uint64_t n_tokens = 0, n_pinned = 0, used = 0;
    uint32_t n_leaves = 0, n_listed = 0, n = 0;

    for (uint32_t i = 0; i < s->at.n_slots; i++)
        if (s->at.slots[i].used) {
            const struct shelf_node *x = &s->nodes[s->at.slots[i].value];
            ASSERT(x->key == s->at.slots[i].key);
            n_tokens += x->n_tokens;
            n_pinned += x->n_pins > 0 ? x->n_tokens : 0;
            n_leaves += can_go(x);
            n++;
        }
    for (uint32_t i = s->nodes[0].after; i != 0; i = s->nodes[i].after) {
        ASSERT(can_go(&s->nodes[i]) && s->nodes[i].used >= used);
        used = s->nodes[i].used;
        n_listed++;
    }
    ASSERT(n == s->n_nodes && n_tokens == s->n_cached && n_listed == n_leaves);
    ASSERT(n_pinned == s->n_pinned);
    ASSERT(s->n_cached + s->n_private <= s->n_tokens_max);
}
