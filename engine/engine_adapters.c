/* Adapters in the engine: their list, the order of a step's sequences, and counts. */
#include <stdlib.h>

#include "base/check.h"
#include "engine/engine_internal.h"
#include "engine/model/family.h"

static enum status place(void *arg, struct adapter *a)
{
    return engine_place_adapter(arg, a);
}

enum status engine_create_adapters(struct engine *e, struct buf *why)
{
    const struct engine_config *c = &e->config;
    struct adapters_config a = {.model = &e->model,
                                .weights = &e->weights,
                                .layout = device_weight_layout(e->device),
                                .n_max = c->max_adapters,
                                .rank_max = c->max_adapter_rank,
                                .place = device_is_host(e->device) ? NULL : place,
                                .arg = e};

    if (c->max_adapters == 0)
        return OK;
    if (!adapter_is_possible(&e->model))
        return buf_why(why, ERR_UNSUPPORTED, "a model of the family %s takes no adapters",
                       e->model.family->name);
    enum status s = adapters_create(&e->adapters, &a);
    return s == OK ? OK : buf_why(why, s, "out of memory for the list of adapters");
}

struct adapters *engine_adapters(const struct engine *e)
{
    return e->adapters;
}

static uint64_t number_of(const struct engine *e, const struct plan_item *item)
{
    const struct adapter *a = e->lineup.seqs[item->slot].req->adapter;

    return a ? a->number : 0;
}

/* An insertion sort: it keeps the order of equal items and allocates nothing. */
void engine_sort_adapted(struct engine *e)
{
    struct plan_item *items = e->lineup.items;

    for (uint32_t i = 1; e->n_adapted > 0 && i < e->lineup.n_items; i++) {
        struct plan_item item = items[i];
        uint64_t number = number_of(e, &item);
        uint32_t k = i;

        for (; k > 0 && number_of(e, &items[k - 1]) > number; k--)
            items[k] = items[k - 1];
        items[k] = item;
    }
}

/* Three walks over the sequences: reset the counts, count, publish. */
void engine_count_adapted(struct engine *e)
{
    uint32_t n = e->n_slots - e->n_free_slots;

    for (int walk = 0; e->n_adapted > 0 && walk < 3; walk++)
        for (uint32_t i = 0; i < n; i++) {
            uint32_t slot = e->live_slots[i];
            struct adapter *a = e->lineup.seqs[slot].req->adapter;

            if (!a)
                continue;
            if (walk == 0) {
                a->counted_running = a->counted_waiting = 0;
            } else if (walk == 1) {
                bool waits = scheduler_seq(e->lineup.scheduler, slot).waits;
                a->counted_waiting += waits;
                a->counted_running += !waits;
            } else {
                atomic_store(&a->n_running, a->counted_running);
                atomic_store(&a->n_waiting, a->counted_waiting);
            }
        }
}
