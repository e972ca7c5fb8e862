#include "loadgen/bench/engine/median.h"

#include <stdlib.h>

#include "base/check.h"

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double median_of(double *values, uint32_t n)
{
    ASSERT(n >= 1);
    qsort(values, n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}
