#include "engine/run/lookup.h"

#include <stdlib.h>

#include "base/check.h"

#define N_BITS_MIN 6u
#define N_BITS_MAX 16u

/* Lengths of the runs of the tables, the longest first. */
static const uint32_t orders[LOOKUP_N_ORDERS] = {4, 2};

static uint32_t id_at(const struct lookup *l, uint32_t i)
{
    return i < l->n_first ? l->first[i] : l->second[i - l->n_first];
}

static uint32_t hash_run(const struct lookup *l, uint32_t end, uint32_t order)
{
    uint64_t h = 0;

    for (uint32_t i = end - order; i < end; i++)
        h = (h + id_at(l, i) + 1) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(h >> (64 - l->n_bits));
}

enum status lookup_init(struct lookup *l, const uint32_t *first, uint32_t n_first,
                        const uint32_t *second, uint32_t n_second_max)
{
    *l = (struct lookup){.first = first,
                         .second = second,
                         .n_first = n_first,
                         .n_max = n_first + n_second_max,
                         .n_bits = N_BITS_MIN};
    while (l->n_bits < N_BITS_MAX && (UINT32_C(1) << l->n_bits) < l->n_max)
        l->n_bits++;
    for (int k = 0; k < LOOKUP_N_ORDERS; k++) {
        l->heads[k] = calloc((size_t)1 << l->n_bits, sizeof *l->heads[k]);
        l->links[k] = malloc(((size_t)l->n_max + 1) * sizeof *l->links[k]);
        if (!l->heads[k] || !l->links[k]) {
            lookup_fini(l);
            return ERR_NOMEM;
        }
    }
    return OK;
}

void lookup_fini(struct lookup *l)
{
    for (int k = 0; k < LOOKUP_N_ORDERS; k++) {
        free(l->heads[k]);
        free(l->links[k]);
    }
    *l = (struct lookup){0};
}

/* Enter the runs that end before index n. Runs do not cross the end of the prediction. */
static void enter(struct lookup *l)
{
    uint32_t begin = l->n > l->n_first ? l->n_first : 0;

    for (int k = 0; k < LOOKUP_N_ORDERS; k++) {
        if (l->n - begin < orders[k])
            continue;
        uint32_t *head = &l->heads[k][hash_run(l, l->n, orders[k])];
        l->links[k][l->n] = *head;
        *head = l->n;
    }
}

static void add(struct lookup *l)
{
    ASSERT(l->n < l->n_max);
    l->n++;
    enter(l);
}

/* Length of the longest common end of the ids before `place` and of all ids. */
static uint32_t match_length(const struct lookup *l, uint32_t place)
{
    uint32_t begin = place > l->n_first ? l->n_first : 0;
    uint32_t n = 0, n_max = place - begin < LOOKUP_MATCH_MAX ? place - begin : LOOKUP_MATCH_MAX;

    while (n < n_max && l->n - n > l->n_first && id_at(l, place - 1 - n) == id_at(l, l->n - 1 - n))
        n++;
    return n;
}

/* Find the longest match; of equal ones the latest place wins. */
static void match(struct lookup *l)
{
    uint32_t n_own = l->n - l->n_first;

    l->n_match = 0;
    l->is_start = false;
    for (int k = 0; k < LOOKUP_N_ORDERS && l->n_match == 0; k++) {
        if (n_own < orders[k])
            continue;
        uint32_t place = l->heads[k][hash_run(l, l->n, orders[k])];
        for (uint32_t tries = 0; place && tries < LOOKUP_N_PLACES_MAX; tries++) {
            /* The end itself has no id behind it, and neither has that of the prediction. */
            uint32_t n = place == l->n || place == l->n_first ? 0 : match_length(l, place);
            if (n >= orders[k] && n > l->n_match) {
                l->n_match = n;
                l->at = place;
            }
            place = l->links[k][place];
        }
    }
}

void lookup_add_prompt(struct lookup *l, uint32_t n)
{
    ASSERT(l->n == 0);
    for (uint32_t i = 0; i < l->n_first; i++)
        add(l);
    for (uint32_t i = 0; i < n; i++)
        add(l);
    match(l);
    if (l->n_first > 0) { /* the answer begins as predicted */
        l->is_start = true;
        l->at = l->n_match = 0;
    }
}

bool lookup_has_guess(const struct lookup *l)
{
    return l->n_match > 0 || l->is_start;
}

struct lookup_guess lookup_push(struct lookup *l)
{
    struct lookup_guess g = {.n_match = l->n_match, .was_made = lookup_has_guess(l)};

    if (g.was_made)
        g.was_right = id_at(l, l->at) == id_at(l, l->n);
    add(l);
    if (!g.was_right) {
        match(l);
        return g;
    }
    l->is_start = false;
    l->at++;
    l->n_match += l->n_match < LOOKUP_MATCH_MAX;
    if (l->at == l->n_first) /* the prediction is used up */
        match(l);
    return g;
}

uint32_t lookup_guess(const struct lookup *l, uint32_t *ids, uint32_t n)
{
    uint32_t k = 0;

    if (!lookup_has_guess(l))
        return 0;
    for (; k < n; k++) {
        uint32_t i = l->at + k;
        if (l->at < l->n_first && i >= l->n_first)
            break;
        ids[k] = i < l->n ? id_at(l, i) : ids[i - l->n];
    }
    return k;
}
