#include "loadgen/sim/table.h"

#include <stdlib.h>
#include <string.h>

#define N_SLOTS_MIN 64u

void table_fini(struct table *t)
{
    free(t->slots);
    memset(t, 0, sizeof *t);
}

static uint32_t home_of(const struct table *t, uint64_t key)
{
    return (uint32_t)(key * UINT64_C(0x9E3779B97F4A7C15) >> 32) & (t->n_slots - 1);
}

/* The slot of the key, or the free slot where it belongs. */
static uint32_t find(const struct table *t, uint64_t key)
{
    uint32_t i = home_of(t, key);

    while (t->slots[i].used && t->slots[i].key != key)
        i = (i + 1) & (t->n_slots - 1);
    return i;
}

bool table_get(const struct table *t, uint64_t key, uint32_t *value)
{
    if (t->n == 0)
        return false;
    const struct table_slot *s = &t->slots[find(t, key)];
    if (s->used)
        *value = s->value;
    return s->used;
}

static enum status grow(struct table *t)
{
    struct table bigger = {.n_slots = t->n_slots ? 2 * t->n_slots : N_SLOTS_MIN, .n = t->n};

    bigger.slots = calloc(bigger.n_slots, sizeof *bigger.slots);
    if (!bigger.slots)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < t->n_slots; i++)
        if (t->slots[i].used)
            bigger.slots[find(&bigger, t->slots[i].key)] = t->slots[i];
    free(t->slots);
    *t = bigger;
    return OK;
}

enum status table_put(struct table *t, uint64_t key, uint32_t value)
{
    if (t->n + 1 > t->n_slots / 4 * 3) {
        enum status s = grow(t);
        if (s != OK)
            return s;
    }
    struct table_slot *s = &t->slots[find(t, key)];
    t->n += !s->used;
    *s = (struct table_slot){key, value, 1};
    return OK;
}

void table_remove(struct table *t, uint64_t key)
{
    if (t->n == 0)
        return;
    uint32_t hole = find(t, key), mask = t->n_slots - 1;
    if (!t->slots[hole].used)
        return;
    t->n--;
    for (uint32_t i = (hole + 1) & mask; t->slots[i].used; i = (i + 1) & mask) {
        uint32_t distance = (i - home_of(t, t->slots[i].key)) & mask;
        if (distance < ((i - hole) & mask))
            continue; /* it would be before its home */
        t->slots[hole] = t->slots[i];
        hole = i;
    }
    t->slots[hole].used = 0;
}
