#include "engine/sched/order.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/memory.h"

/* Hash of the slot number (Knuth's multiplicative hash, then mixed). The weights must look random:
 * weights that grew with the slot number would make the tree a list. */
static uint32_t weight_of(uint32_t slot)
{
    uint32_t x = (slot + 1) * 2654435761u;

    x ^= x >> 15;
    x *= 2246822519u;
    return x ^ x >> 13;
}

enum status order_init(struct order *o, uint32_t n_slots)
{
    *o = (struct order){.nodes = memory_zeroed(n_slots, sizeof *o->nodes), .root = ORDER_NONE};
    if (!o->nodes)
        return ERR_NOMEM;
    for (uint32_t slot = 0; slot < n_slots; slot++)
        o->nodes[slot].weight = weight_of(slot);
    return OK;
}

void order_fini(struct order *o)
{
    free(o->nodes);
    *o = (struct order){.root = ORDER_NONE};
}

static bool key_before(struct order_key a, uint32_t slot_a, struct order_key b, uint32_t slot_b)
{
    if (a.high != b.high)
        return a.high < b.high;
    if (a.middle != b.middle)
        return a.middle < b.middle;
    if (a.low != b.low)
        return a.low < b.low;
    return slot_a < slot_b;
}

struct order_key order_key_of(const struct order *o, uint32_t slot)
{
    return o->nodes[slot].key;
}

bool order_before(const struct order *o, uint32_t a, uint32_t b)
{
    return key_before(o->nodes[a].key, a, o->nodes[b].key, b);
}

/* The link that points at `slot`: its parent's left or right, or the root. */
static uint32_t *link_to(struct order *o, uint32_t slot)
{
    uint32_t parent = o->nodes[slot].parent;

    if (parent == ORDER_NONE)
        return &o->root;
    return o->nodes[parent].left == slot ? &o->nodes[parent].left : &o->nodes[parent].right;
}

static uint32_t n_below(const struct order *o, uint32_t slot)
{
    return slot == ORDER_NONE ? 0 : o->nodes[slot].n_below;
}

static void recount(struct order *o, uint32_t slot)
{
    struct order_node *n = &o->nodes[slot];

    n->n_below = 1 + n_below(o, n->left) + n_below(o, n->right);
}

/* Rotate `slot` above its parent. The sorted order stays. */
static void rotate_up(struct order *o, uint32_t slot)
{
    struct order_node *n = &o->nodes[slot];
    uint32_t parent = n->parent, child;
    struct order_node *p = &o->nodes[parent];

    *link_to(o, parent) = slot;
    n->parent = p->parent;
    p->parent = slot;
    if (p->left == slot) {
        child = n->right;
        n->right = parent;
        p->left = child;
    } else {
        child = n->left;
        n->left = parent;
        p->right = child;
    }
    if (child != ORDER_NONE)
        o->nodes[child].parent = parent;
    recount(o, parent);
    recount(o, slot);
}

void order_insert(struct order *o, uint32_t slot, struct order_key key)
{
    struct order_node *n = &o->nodes[slot];
    uint32_t parent = ORDER_NONE, *at = &o->root;

    while (*at != ORDER_NONE) {
        parent = *at;
        o->nodes[parent].n_below++;
        at = key_before(key, slot, o->nodes[parent].key, parent) ? &o->nodes[parent].left
                                                                 : &o->nodes[parent].right;
    }
    *at = slot;
    n->key = key;
    n->parent = parent;
    n->left = n->right = ORDER_NONE;
    n->n_below = 1;
    while (n->parent != ORDER_NONE && o->nodes[n->parent].weight < n->weight)
        rotate_up(o, slot);
    o->n++;
}

void order_remove(struct order *o, uint32_t slot)
{
    struct order_node *n = &o->nodes[slot];

    ASSERT(o->n > 0);
    while (n->left != ORDER_NONE && n->right != ORDER_NONE)
        rotate_up(o, o->nodes[n->left].weight > o->nodes[n->right].weight ? n->left : n->right);
    uint32_t child = n->left != ORDER_NONE ? n->left : n->right;
    *link_to(o, slot) = child;
    if (child != ORDER_NONE)
        o->nodes[child].parent = n->parent;
    for (uint32_t above = n->parent; above != ORDER_NONE; above = o->nodes[above].parent)
        o->nodes[above].n_below--;
    o->n--;
}

uint32_t order_first(const struct order *o)
{
    uint32_t slot = o->root;

    while (slot != ORDER_NONE && o->nodes[slot].left != ORDER_NONE)
        slot = o->nodes[slot].left;
    return slot;
}

/* The next slot (behind) or the previous one; ORDER_NONE: there is none. */
static uint32_t neighbour(const struct order *o, uint32_t slot, bool behind)
{
    const struct order_node *n = &o->nodes[slot];
    uint32_t x = behind ? n->right : n->left;

    if (x != ORDER_NONE) {
        for (uint32_t next; (next = behind ? o->nodes[x].left : o->nodes[x].right) != ORDER_NONE;)
            x = next;
        return x;
    }
    while (n->parent != ORDER_NONE &&
           (behind ? o->nodes[n->parent].right : o->nodes[n->parent].left) == slot) {
        slot = n->parent;
        n = &o->nodes[slot];
    }
    return n->parent;
}

uint32_t order_next(const struct order *o, uint32_t slot)
{
    return neighbour(o, slot, true);
}

bool order_move(struct order *o, uint32_t slot, struct order_key key)
{
    uint32_t before = neighbour(o, slot, false), behind = neighbour(o, slot, true);

    if ((before == ORDER_NONE || key_before(o->nodes[before].key, before, key, slot)) &&
        (behind == ORDER_NONE || key_before(key, slot, o->nodes[behind].key, behind))) {
        o->nodes[slot].key = key;
        return false;
    }
    order_remove(o, slot);
    order_insert(o, slot, key);
    return true;
}

uint32_t order_position(const struct order *o, uint32_t slot)
{
    uint32_t n = n_below(o, o->nodes[slot].left);

    for (uint32_t above; (above = o->nodes[slot].parent) != ORDER_NONE; slot = above)
        if (o->nodes[above].right == slot)
            n += 1 + n_below(o, o->nodes[above].left);
    return n;
}

uint32_t order_at(const struct order *o, uint32_t position)
{
    uint32_t slot = o->root;

    ASSERT(position < o->n);
    for (;;) {
        uint32_t n_left = n_below(o, o->nodes[slot].left);

        if (position == n_left)
            return slot;
        if (position < n_left) {
            slot = o->nodes[slot].left;
        } else {
            position -= n_left + 1;
            slot = o->nodes[slot].right;
        }
    }
}

void order_check(const struct order *o)
{
    uint32_t n = 0, last = ORDER_NONE;

    for (uint32_t slot = order_first(o); slot != ORDER_NONE; slot = order_next(o, slot)) {
        const struct order_node *node = &o->nodes[slot];

        ASSERT(node->left == ORDER_NONE || o->nodes[node->left].parent == slot);
        ASSERT(node->right == ORDER_NONE || o->nodes[node->right].parent == slot);
        ASSERT(last == ORDER_NONE || order_before(o, last, slot));
        ASSERT(node->n_below == 1 + n_below(o, node->left) + n_below(o, node->right));
        ASSERT(order_position(o, slot) == n && order_at(o, n) == slot);
        last = slot;
        n++;
    }
    ASSERT(n == o->n);
}
