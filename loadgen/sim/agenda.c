#include "loadgen/sim/agenda.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/check.h"

void agenda_fini(struct agenda *a)
{
    free(a->items);
    *a = (struct agenda){0};
}

void agenda_item_init(struct agenda_item *item, uint64_t number)
{
    *item = (struct agenda_item){.number = number};
}

static bool is_before(const struct agenda_item *a, const struct agenda_item *b)
{
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->number < b->number;
}

static void put_at(struct agenda *a, uint32_t place, struct agenda_item *item)
{
    a->items[place - 1] = item;
    item->place = place;
}

static void rise(struct agenda *a, uint32_t place, struct agenda_item *item)
{
    for (; place > 1 && is_before(item, a->items[place / 2 - 1]); place /= 2)
        put_at(a, place, a->items[place / 2 - 1]);
    put_at(a, place, item);
}

static void sink(struct agenda *a, uint32_t place, struct agenda_item *item)
{
    for (uint32_t child; (child = 2 * place) <= a->n; place = child) {
        if (child < a->n && is_before(a->items[child], a->items[child - 1]))
            child++;
        if (!is_before(a->items[child - 1], item))
            break;
        put_at(a, place, a->items[child - 1]);
    }
    put_at(a, place, item);
}

enum status agenda_add(struct agenda *a, struct agenda_item *item, uint64_t due_ns)
{
    ASSERT(item->place == 0);
    if (a->n == a->cap) {
        uint32_t cap = a->cap ? 2 * a->cap : 64;
        struct agenda_item **items = realloc(a->items, cap * sizeof *items);
        if (!items)
            return ERR_NOMEM;
        a->items = items;
        a->cap = cap;
    }
    item->due_ns = due_ns;
    rise(a, ++a->n, item);
    return OK;
}

void agenda_remove(struct agenda *a, struct agenda_item *item)
{
    uint32_t place = item->place;

    if (place == 0)
        return;
    struct agenda_item *last = a->items[--a->n];
    item->place = 0;
    if (last == item)
        return;
    if (place > 1 && is_before(last, a->items[place / 2 - 1]))
        rise(a, place, last);
    else
        sink(a, place, last);
}

struct agenda_item *agenda_first(const struct agenda *a)
{
    return a->n ? a->items[0] : NULL;
}
