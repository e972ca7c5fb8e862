/* replace_heap.c - binary heaps of ids with positions kept in the entries, one per order. */
#include "base/check.h"
#include "cache/policy/replace_inner.h"

bool heap_less(const struct replace *r, uint32_t tier, uint32_t order, uint32_t a, uint32_t b)
{
    const struct entry *ea = &r->entries[a], *eb = &r->entries[b];
    const struct place *pa = place_of(r, tier, a), *pb = place_of(r, tier, b);

    if (pa->due != pb->due)
        return pa->due > pb->due;
    if (ea->is_dead != eb->is_dead)
        return ea->is_dead;
    if (pa->key[order] != pb->key[order])
        return pa->key[order] < pb->key[order];
    if (ea->stamp != eb->stamp)
        return ea->stamp < eb->stamp;
    return a < b;
}

static void put(struct replace *r, uint32_t tier, uint32_t order, uint32_t at, uint32_t id)
{
    r->tiers[tier].heap[order][at] = id;
    place_of(r, tier, id)->pos[order] = at;
}

static void sift_up(struct replace *r, uint32_t tier, uint32_t order, uint32_t at)
{
    const uint32_t *heap = r->tiers[tier].heap[order];
    uint32_t id = heap[at];

    while (at > 0 && heap_less(r, tier, order, id, heap[(at - 1) / 2])) {
        put(r, tier, order, at, heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put(r, tier, order, at, id);
}

static void sift_down(struct replace *r, uint32_t tier, uint32_t order, uint32_t at, uint32_t n)
{
    const uint32_t *heap = r->tiers[tier].heap[order];
    uint32_t id = heap[at];

    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child >= n)
            break;
        if (child + 1 < n && heap_less(r, tier, order, heap[child + 1], heap[child]))
            child++;
        if (!heap_less(r, tier, order, heap[child], id))
            break;
        put(r, tier, order, at, heap[child]);
        at = child;
    }
    put(r, tier, order, at, id);
}

void heap_push(struct replace *r, uint32_t tier, uint32_t id)
{
    struct tier *t = &r->tiers[tier];

    for (uint32_t order = 0; order < r->n_orders; order++) {
        put(r, tier, order, t->n_candidates, id);
        sift_up(r, tier, order, t->n_candidates);
    }
    t->n_candidates++;
}

void heap_take(struct replace *r, uint32_t tier, uint32_t id)
{
    struct tier *t = &r->tiers[tier];
    struct place *p = place_of(r, tier, id);

    t->n_candidates--;
    for (uint32_t order = 0; order < r->n_orders; order++) {
        uint32_t at = p->pos[order], last = t->heap[order][t->n_candidates];

        p->pos[order] = REPLACE_NONE;
        if (last == id)
            continue;
        put(r, tier, order, at, last);
        sift_up(r, tier, order, at);
        sift_down(r, tier, order, place_of(r, tier, last)->pos[order], t->n_candidates);
    }
}

void heap_moved(struct replace *r, uint32_t tier, uint32_t id)
{
    const struct place *p = place_of(r, tier, id);

    for (uint32_t order = 0; order < r->n_orders && p->pos[0] != REPLACE_NONE; order++) {
        sift_up(r, tier, order, p->pos[order]);
        sift_down(r, tier, order, p->pos[order], r->tiers[tier].n_candidates);
    }
}

void heap_check(const struct replace *r, uint32_t tier)
{
    const struct tier *t = &r->tiers[tier];

    for (uint32_t order = 0; order < r->n_orders; order++)
        for (uint32_t i = 0; i < t->n_candidates; i++) {
            uint32_t id = t->heap[order][i];

            ASSERT(place_of(r, tier, id)->pos[order] == i);
            ASSERT(i == 0 || !heap_less(r, tier, order, id, t->heap[order][(i - 1) / 2]));
        }
}
