#include "cache/balance/heavy.h"

#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/map.h"

/* Loads are stored times `scale`, which grows while time passes: nothing else decays. */
#define SCALE_MAX 1e100

struct heavy {
    struct heavy_config config;
    struct heavy_item *items; /* [n] dense */
    uint32_t n;
    struct map at; /* key -> index */
    double total, scale;
    double others; /* not times `scale` */
};

enum status heavy_create(struct heavy **out, const struct heavy_config *config)
{
    struct heavy *h = calloc(1, sizeof *h);

    ASSERT(config->n_instances > 0 && config->n_items_max > 1);
    *out = NULL;
    if (!h)
        return ERR_NOMEM;
    h->config = *config;
    h->config.c = config->c > 0 ? config->c : HEAVY_C;
    h->config.half_life = config->half_life > 0 ? config->half_life : HEAVY_HALF_LIFE;
    h->scale = 1;
    h->items = calloc(config->n_items_max, sizeof *h->items);
    if (!h->items || map_init(&h->at, config->n_items_max) != OK) {
        heavy_destroy(h);
        return ERR_NOMEM;
    }
    *out = h;
    return OK;
}

void heavy_destroy(struct heavy *h)
{
    if (!h)
        return;
    map_fini(&h->at);
    free(h->items);
    free(h);
}

void heavy_set_instances(struct heavy *h, uint32_t n_instances)
{
    ASSERT(n_instances > 0);
    h->config.n_instances = n_instances;
}

void heavy_set_others(struct heavy *h, double load)
{
    ASSERT(load >= 0);
    h->others = load;
}

static void remove_at(struct heavy *h, uint32_t i)
{
    h->total -= h->items[i].load;
    map_remove(&h->at, h->items[i].key);
    h->items[i] = h->items[--h->n];
    if (i < h->n)
        map_put(&h->at, h->items[i].key, i);
    if (h->n == 0)
        h->total = 0; /* rounding */
}

static void forget_light(struct heavy *h)
{
    double limit = 2 * h->total / h->config.n_items_max;

    for (uint32_t i = h->n; i-- > 0;)
        if (h->items[i].load < limit)
            remove_at(h, i);
    if (h->n == h->config.n_items_max) /* cannot be: their sum would be twice the total */
        remove_at(h, h->n - 1);
}

void heavy_add(struct heavy *h, uint64_t key, double load)
{
    uint32_t i;

    ASSERT(load > 0);
    if (!map_get(&h->at, key, &i)) {
        if (h->n == h->config.n_items_max)
            forget_light(h);
        i = h->n++;
        h->items[i] = (struct heavy_item){.key = key, .n_copies = 1};
        map_put(&h->at, key, i);
    }
    h->items[i].load += load * h->scale;
    h->total += load * h->scale;
}

void heavy_tick(struct heavy *h, double n)
{
    h->scale *= exp2(n / h->config.half_life);
    if (h->scale < SCALE_MAX)
        return;
    h->total = 0;
    for (uint32_t i = 0; i < h->n; i++)
        h->total += h->items[i].load /= h->scale;
    h->scale = 1;
}

void heavy_forget(struct heavy *h, uint64_t key)
{
    uint32_t i;

    if (map_get(&h->at, key, &i))
        remove_at(h, i);
}

double heavy_load(const struct heavy *h, uint64_t key)
{
    uint32_t i;

    return map_get(&h->at, key, &i) ? h->items[i].load / h->scale : 0;
}

double heavy_total(const struct heavy *h)
{
    return h->total / h->scale;
}

double heavy_threshold(const struct heavy *h)
{
    uint32_t n = h->config.n_instances;

    return n > 1 ? (heavy_total(h) + h->others) / (n * h->config.c * log(n)) : INFINITY;
}

static void update_copies(const struct heavy *h, struct heavy_item *item, double tau)
{
    uint32_t n = h->config.n_instances, wanted = 1;

    if (tau > 0 && item->load > tau)
        wanted = item->load >= tau * n ? n : (uint32_t)ceil(item->load / tau);
    if (item->n_copies > n)
        item->n_copies = n;
    if (wanted > item->n_copies)
        item->n_copies = wanted;
    while (item->n_copies > wanted && item->load < 0.5 * tau * (item->n_copies - 1))
        item->n_copies--;
}

static int heaviest_first(const void *a, const void *b)
{
    const struct heavy_item *x = a, *y = b;

    if (x->load != y->load)
        return x->load > y->load ? -1 : 1;
    return x->key < y->key ? -1 : x->key > y->key;
}

/* Keep the n_max heaviest in a heap whose root is the lightest. */
static void sift_down(struct heavy_item *v, uint32_t n, uint32_t i)
{
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= n)
            return;
        if (child + 1 < n && heaviest_first(&v[child], &v[child + 1]) < 0)
            child++;
        if (heaviest_first(&v[i], &v[child]) >= 0)
            return;
        struct heavy_item swapped = v[i];
        v[i] = v[child];
        v[child] = swapped;
        i = child;
    }
}

uint32_t heavy_list(struct heavy *h, struct heavy_item *out, uint32_t n_max)
{
    double tau = heavy_threshold(h) * h->scale;
    uint32_t n = 0;

    for (uint32_t i = 0; i < h->n; i++) {
        update_copies(h, &h->items[i], tau);
        if (h->items[i].n_copies <= 1)
            continue;
        if (n < n_max) {
            out[n++] = h->items[i];
            for (uint32_t k = n == n_max ? n / 2 : 0; k-- > 0;)
                sift_down(out, n, k);
        } else if (n_max > 0 && heaviest_first(&h->items[i], &out[0]) < 0) {
            out[0] = h->items[i];
            sift_down(out, n, 0);
        }
    }
    qsort(out, n, sizeof *out, heaviest_first);
    for (uint32_t i = 0; i < n; i++)
        out[i].load /= h->scale;
    return n;
}
