#include "loadgen/bench/cache/figure.h"

#include <stdlib.h>

#include "base/check.h"
#include "loadgen/bench/engine/median.h"

enum status figure_series_init(struct figure_series *s, uint32_t n_max)
{
    *s = (struct figure_series){.values = calloc(n_max, sizeof *s->values), .n_max = n_max};
    return s->values ? OK : ERR_NOMEM;
}

void figure_series_fini(struct figure_series *s)
{
    free(s->values);
    *s = (struct figure_series){0};
}

enum status figure_series_init_all(struct figure_series *s, uint32_t n, uint32_t n_max)
{
    enum status st = OK;

    for (uint32_t i = 0; st == OK && i < n; i++)
        st = figure_series_init(&s[i], n_max);
    return st;
}

void figure_series_fini_all(struct figure_series *s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        figure_series_fini(&s[i]);
}

void figure_series_add(struct figure_series *s, double value)
{
    ASSERT(s->n < s->n_max);
    s->values[s->n++] = value;
}

struct figure figure_of(struct figure_series *s)
{
    struct figure f = {.n = s->n};

    if (s->n == 0)
        return f;
    f.median = median_of(s->values, s->n);
    f.min = s->values[0];
    f.max = s->values[s->n - 1];
    f.p90 = s->values[((uint64_t)s->n * 9 + 9) / 10 - 1];
    return f;
}
