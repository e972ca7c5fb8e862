#include "loadgen/load/weighted.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* After so many misses in a row the rest is rare, and one pass in order finds the next thing. */
#define TRIES_MAX 64

enum status weighted_init(struct weighted *w, const double *weights, uint32_t n)
{
    double sum = 0;

    *w = (struct weighted){NULL, n};
    if (n == 0)
        return ERR_INVALID;
    w->upto = malloc(n * sizeof *w->upto);
    if (!w->upto)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(weights[i]) || weights[i] < 0) {
            weighted_fini(w);
            return ERR_INVALID;
        }
        sum += weights[i];
        w->upto[i] = sum;
    }
    if (sum > 0 && isfinite(sum))
        return OK;
    weighted_fini(w);
    return ERR_INVALID;
}

enum status weighted_init_zipf(struct weighted *w, uint32_t n, double alpha)
{
    double *weights = malloc((n ? n : 1) * sizeof *weights);

    *w = (struct weighted){NULL, 0};
    if (!weights)
        return ERR_NOMEM;
    for (uint32_t k = 0; k < n; k++)
        weights[k] = pow(k + 1.0, -alpha);
    enum status s = weighted_init(w, weights, n);
    free(weights);
    return s;
}

void weighted_fini(struct weighted *w)
{
    free(w->upto);
    *w = (struct weighted){NULL, 0};
}

static double weight_of(const struct weighted *w, uint32_t i)
{
    return w->upto[i] - (i ? w->upto[i - 1] : 0);
}

/* The first whose sum is above x. */
static uint32_t find(const struct weighted *w, double x)
{
    uint32_t lo = 0, hi = w->n - 1;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (w->upto[mid] > x)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

uint32_t weighted_draw(const struct weighted *w, struct draw *d)
{
    return find(w, draw_unit(d) * w->upto[w->n - 1]);
}

static bool has(const uint32_t *a, uint32_t n, uint32_t x)
{
    for (uint32_t i = 0; i < n; i++)
        if (a[i] == x)
            return true;
    return false;
}

/* Draw an index that is not among taken[0..n), by weight, in one pass over all indices. */
static bool draw_slowly(const struct weighted *w, struct draw *d, const uint32_t *taken, uint32_t n,
                        uint32_t *out)
{
    double left = 0;

    for (uint32_t i = 0; i < w->n; i++)
        left += has(taken, n, i) ? 0 : weight_of(w, i);
    double x = draw_unit(d) * left;
    bool found = false;
    for (uint32_t i = 0; i < w->n && (!found || x >= 0); i++) {
        double weight = weight_of(w, i);
        if (weight <= 0 || has(taken, n, i))
            continue;
        *out = i;
        found = true;
        x -= weight;
    }
    return found;
}

enum status weighted_draw_distinct(const struct weighted *w, struct draw *d, uint32_t *out,
                                   uint32_t *k)
{
    uint32_t n = 0;

    while (n < *k) {
        uint32_t tries = 0, x = 0;
        do
            x = weighted_draw(w, d);
        while (has(out, n, x) && ++tries < TRIES_MAX);
        if (tries == TRIES_MAX && !draw_slowly(w, d, out, n, &x))
            break;
        out[n++] = x;
    }
    *k = n;
    return n > 0 ? OK : ERR_INVALID;
}
