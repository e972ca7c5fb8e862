#include "loadgen/load/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "loadgen/load/draw.h"

#define N_RESAMPLES 2000

enum status series_push(struct series *s, double value)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 64;
        double *v = realloc(s->v, cap * sizeof *v);
        if (!v)
            return ERR_NOMEM;
        s->v = v;
        s->cap = cap;
    }
    s->v[s->n++] = value;
    s->sorted = false;
    return OK;
}

void series_fini(struct series *s)
{
    free(s->v);
    *s = (struct series){NULL, 0, 0, false};
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void series_sort(struct series *s)
{
    if (!s->sorted && s->n > 1)
        qsort(s->v, s->n, sizeof *s->v, compare_doubles);
    s->sorted = true;
}

double stats_mean(const double *v, size_t n)
{
    long double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += v[i];
    return n ? (double)(sum / n) : 0;
}

double stats_std(const double *v, size_t n)
{
    double mean = stats_mean(v, n);
    long double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (long double)(v[i] - mean) * (v[i] - mean);
    return n ? (double)sqrtl(sum / n) : 0;
}

double stats_percentile(const double *v, size_t n, double p)
{
    if (n == 0)
        return 0;
    double rank = p / 100 * (double)(n - 1);
    if (rank <= 0)
        return v[0];
    if (rank >= (double)(n - 1))
        return v[n - 1];
    size_t below = (size_t)rank;
    double part = rank - (double)below, step = v[below + 1] - v[below];
    /* From the nearer end, as numpy does, so that the last bit agrees. */
    return part < 0.5 ? v[below] + step * part : v[below + 1] - step * (1 - part);
}

const char *statistic_name(enum statistic s)
{
    static const char *const names[N_STATISTICS] = {"mean", "median", "p95", "p99"};

    return names[s];
}

/* Compute a statistic; sorts v in place where the statistic needs it. */
static double compute(double *v, size_t n, enum statistic what)
{
    static const double percents[N_STATISTICS] = {0, 50, 95, 99};

    if (what == STATISTIC_MEAN)
        return stats_mean(v, n);
    qsort(v, n, sizeof *v, compare_doubles);
    return stats_percentile(v, n, percents[what]);
}

/* A ratio without a value: 0 / 0 is not 0. */
static const struct interval no_ratio = {NAN, NAN, NAN};

/* Draw n pairs with replacement into x and y. Return their ratio, or NAN. */
static double resample(const double *a, const double *b, size_t n, enum statistic what,
                       struct draw *d, double *x, double *y)
{
    for (size_t i = 0; i < n; i++) {
        size_t j = (size_t)draw_below(d, n);
        x[i] = a[j];
        y[i] = b[j];
    }
    double of_a = compute(x, n, what);
    return of_a > 0 ? compute(y, n, what) / of_a : (double)NAN;
}

enum status stats_ratio_bootstrap(const double *a, const double *b, size_t n, enum statistic what,
                                  uint64_t seed, struct interval *out)
{
    struct draw d;
    size_t n_ratios = 0;

    *out = no_ratio;
    if (n == 0)
        return OK;
    double *ratios = malloc((N_RESAMPLES + 2 * n) * sizeof *ratios);
    if (!ratios)
        return ERR_NOMEM;
    double *x = ratios + N_RESAMPLES, *y = x + n;
    memcpy(x, a, n * sizeof *x);
    memcpy(y, b, n * sizeof *y);
    double of_a = compute(x, n, what);
    draw_init(&d, seed, DRAW_BOOTSTRAP, what);
    if (of_a > 0) {
        out->value = compute(y, n, what) / of_a;
        for (size_t i = 0; i < N_RESAMPLES; i++) {
            double ratio = resample(a, b, n, what, &d, x, y);
            if (!isnan(ratio))
                ratios[n_ratios++] = ratio;
        }
        qsort(ratios, n_ratios, sizeof *ratios, compare_doubles);
        /* Rarely no resample has a ratio: the one value that is known is then all there is. */
        out->low = n_ratios ? stats_percentile(ratios, n_ratios, 2.5) : out->value;
        out->high = n_ratios ? stats_percentile(ratios, n_ratios, 97.5) : out->value;
    }
    free(ratios);
    return OK;
}

double stats_t975(size_t df)
{
    static const double table[] = {
        12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
        2.2010,  2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
        2.0796,  2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
    };
    const double z = 1.959963984540054, z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;

    if (df == 0)
        return INFINITY;
    if (df <= ARRAY_SIZE(table))
        return table[df - 1];
    /* Cornish and Fisher's expansion: right to five digits from here on. */
    double n = (double)df;
    return z + (z3 + z) / (4 * n) + (5 * z5 + 16 * z3 + 3 * z) / (96 * n * n) +
           (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * n * n * n);
}

struct interval stats_ratio_t(const double *a, const double *b, size_t n, size_t *n_used)
{
    long double sum = 0, squares = 0;
    size_t used = 0;

    for (size_t i = 0; i < n; i++)
        if (a[i] > 0 && b[i] > 0) {
            sum += log(b[i] / a[i]);
            used++;
        }
    *n_used = used;
    if (used == 0)
        return no_ratio;
    double mean = (double)(sum / used);
    for (size_t i = 0; i < n; i++)
        if (a[i] > 0 && b[i] > 0) {
            double off = log(b[i] / a[i]) - mean;
            squares += off * off;
        }
    if (used == 1)
        return (struct interval){exp(mean), 0, INFINITY};
    double half = stats_t975(used - 1) * sqrt((double)squares / (double)(used - 1) / (double)used);
    return (struct interval){exp(mean), exp(mean - half), exp(mean + half)};
}
