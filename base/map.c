#include "base/map.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/memory.h"

enum status map_init(struct map *m, uint32_t n_max)
{
    uint64_t n_slots = 16;

    *m = (struct map){.n_max = n_max};
    while (n_slots < (uint64_t)n_max * 2) /* at most half full, for short probes */
        n_slots *= 2;
    m->slots = memory_zeroed(n_slots, sizeof *m->slots);
    if (!m->slots)
        return ERR_NOMEM;
    m->mask = (uint32_t)(n_slots - 1);
    return OK;
}

void map_fini(struct map *m)
{
    free(m->slots);
    *m = (struct map){0};
}

static uint32_t home(const struct map *m, uint64_t key)
{
    return (uint32_t)((key * 0x9E3779B97F4A7C15u) >> 32) & m->mask;
}

/* The slot of key, or the empty slot where key would go. */
static uint32_t find(const struct map *m, uint64_t key)
{
    uint32_t i = home(m, key);

    while (m->slots[i].used && m->slots[i].key != key)
        i = (i + 1) & m->mask;
    return i;
}

void map_prefetch(const struct map *m, uint64_t key)
{
    __builtin_prefetch(&m->slots[home(m, key)]);
}

bool map_get(const struct map *m, uint64_t key, uint32_t *value)
{
    const struct map_slot *s = &m->slots[find(m, key)];

    if (!s->used)
        return false;
    *value = s->value;
    return true;
}

void map_put(struct map *m, uint64_t key, uint32_t value)
{
    struct map_slot *s = &m->slots[find(m, key)];

    if (!s->used) {
        ASSERT(m->n < m->n_max);
        m->n++;
    }
    *s = (struct map_slot){key, value, 1};
}

bool map_remove(struct map *m, uint64_t key)
{
    uint32_t i = find(m, key);

    if (!m->slots[i].used)
        return false;
    /* Backward shift closes the gap, so that no tombstones accumulate. */
    for (uint32_t j = (i + 1) & m->mask; m->slots[j].used; j = (j + 1) & m->mask) {
        uint32_t h = home(m, m->slots[j].key);
        if (((j - h) & m->mask) >= ((j - i) & m->mask)) {
            m->slots[i] = m->slots[j];
            i = j;
        }
    }
    m->slots[i].used = 0;
    m->n--;
    return true;
}
