#include "cache/balance/place.h"

/* Candidates are drawn this often before all instances are compared. */
#define N_DRAWS 16

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xBF58476D1CE4E5B9);
    x ^= x >> 27;
    x *= UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static bool is_less_loaded(const struct place_instances *in, uint32_t a, uint32_t b)
{
    return b == PLACE_NONE || in->load[a] < in->load[b] || (in->load[a] == in->load[b] && a < b);
}

struct holders {
    const struct place_state *s; /* NULL: nobody holds it */
    uint32_t item;
};

static bool can_take(const struct place_instances *in, const struct holders *h, uint32_t i)
{
    return in->free[i] > 0 && !(h->s && h->s->holds(h->s->arg, h->item, i));
}

static uint32_t two_choice(const struct place_instances *in, uint64_t key, const struct holders *h)
{
    uint32_t best = PLACE_NONE, first = PLACE_NONE;

    for (uint32_t k = 0; k < N_DRAWS; k++) {
        uint32_t i = (uint32_t)(mix(key + k * UINT64_C(0x9E3779B97F4A7C15)) % in->n);
        if (i == first || !can_take(in, h, i))
            continue;
        best = is_less_loaded(in, i, best) ? i : best;
        if (first != PLACE_NONE)
            return best;
        first = i;
    }
    for (uint32_t i = 0; i < in->n; i++)
        if (can_take(in, h, i) && is_less_loaded(in, i, best))
            best = i;
    return best;
}

uint32_t place_new(const struct place_instances *in, uint64_t key, uint32_t producer, double eps)
{
    double sum = 0;

    for (uint32_t i = 0; i < in->n; i++)
        sum += in->load[i];
    eps = eps < 0 ? PLACE_EPS : eps;
    if (producer != PLACE_NONE && in->free[producer] > 0 &&
        in->load[producer] <= (1 + eps) * sum / in->n)
        return producer;
    return two_choice(in, key, &(struct holders){0});
}

static uint32_t least_loaded_holder(const struct place_state *s, uint32_t item)
{
    uint32_t best = PLACE_NONE;

    for (uint32_t i = 0; i < s->in.n; i++)
        if (s->holds(s->arg, item, i) && is_less_loaded(&s->in, i, best))
            best = i;
    return best;
}

uint32_t place_copies(const struct place_state *s, struct place_copy *out, uint32_t n_max)
{
    uint64_t left = s->budget;
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_items; i++) {
        const struct place_item *item = &s->items[i];
        /* Two copies of one plan never go to one place: the caller has not made them yet. */
        uint32_t n_before = n;
        for (uint32_t c = item->n_copies; c > 0 && c < item->n_wanted && n < n_max; c++) {
            if (item->size > left)
                break;
            uint64_t key = item->key + (uint64_t)c * UINT64_C(0xD6E8FEB86659FD93);
            uint32_t to = two_choice(&s->in, key, &(struct holders){s, i});
            uint32_t from = least_loaded_holder(s, i);
            bool is_twice = false;
            for (uint32_t k = n_before; k < n; k++)
                is_twice |= out[k].to == to;
            if (to == PLACE_NONE || from == PLACE_NONE)
                break;
            if (is_twice)
                continue;
            out[n++] = (struct place_copy){i, from, to};
            left -= item->size;
        }
    }
    return n;
}
