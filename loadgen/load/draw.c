#include "loadgen/load/draw.h"

#include <math.h>

#include "base/rng.h"

void draw_init(struct draw *d, uint64_t seed, enum draw_purpose purpose, uint64_t number)
{
    d->seed = seed;
    d->stream = ((uint64_t)purpose << 56) ^ number;
    d->n = 0;
}

uint64_t draw_u64(struct draw *d)
{
    uint32_t x[4];

    rng_philox(d->seed, d->n++, d->stream, x);
    return (uint64_t)x[1] << 32 | x[0];
}

double draw_unit(struct draw *d)
{
    return (double)(draw_u64(d) >> 11) * 0x1p-53;
}

double draw_open(struct draw *d)
{
    return ((double)(draw_u64(d) >> 12) + 0.5) * 0x1p-52;
}

uint64_t draw_below(struct draw *d, uint64_t n)
{
    if (n == 0)
        return 0;
    /* The high half of a product: the bias is below n / 2^64, which no test could see. */
    return (uint64_t)(((unsigned __int128)draw_u64(d) * n) >> 64);
}

double draw_exp(struct draw *d)
{
    return -log(draw_open(d));
}

double draw_normal(struct draw *d)
{
    double radius = sqrt(-2 * log(draw_open(d)));

    return radius * cos(2 * M_PI * draw_unit(d));
}

double draw_lognormal(struct draw *d, double mean, double cv)
{
    double variance = log1p(cv * cv); /* of the logarithm */

    return exp(log(mean) - variance / 2 + sqrt(variance) * draw_normal(d));
}

/* Marsaglia and Tsang, "A simple method for generating gamma variables" (2000), for shape >= 1;
 * a smaller shape by the usual boost from shape + 1. */
double draw_gamma(struct draw *d, double shape)
{
    double boost = 1;

    if (shape < 1) {
        boost = pow(draw_open(d), 1 / shape);
        shape += 1;
    }
    double a = shape - 1.0 / 3, c = 1 / sqrt(9 * a);
    for (;;) {
        double x = draw_normal(d), v = 1 + c * x;
        if (v <= 0)
            continue;
        v = v * v * v;
        if (log(draw_open(d)) < 0.5 * x * x + a - a * v + a * log(v))
            return boost * a * v;
    }
}

void draw_shuffle_u32(struct draw *d, uint32_t *a, size_t n)
{
    for (size_t i = n; i > 1; i--) {
        size_t j = (size_t)draw_below(d, i);
        uint32_t swapped = a[i - 1];
        a[i - 1] = a[j];
        a[j] = swapped;
    }
}

uint64_t draw_mix(uint64_t a, uint64_t b)
{
    uint32_t x[4];

    rng_philox(a, b, 0x7461726eu /* "tarn" */, x);
    return (uint64_t)x[1] << 32 | x[0];
}
