#include "base/hist.h"

#include "base/check.h"

const double hist_bounds_ttft_s[22] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                       1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const double hist_bounds_itl_s[19] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                      .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const double hist_bounds_e2e_s[21] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                      30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const double hist_bounds_tokens[20] = {1,     2,      5,      10,     20,      50,     100,
                                       200,   500,    1000,   2000,   5000,    10000,  20000,
                                       50000, 100000, 200000, 500000, 1000000, 2000000};
const double hist_bounds_step_tokens[15] = {1,    8,    16,   32,   64,    128,   256,  512,
                                            1024, 2048, 4096, 8192, 16384, 32768, 65536};
const double hist_bounds_n[5] = {1, 2, 5, 10, 20};
const double hist_bounds_step_s[17] = {.0005, .001, .002, .005, .01, .015, .02, .03, .05,
                                       .075,  .1,   .15,  .2,   .5,  1,    2,   10};
const double hist_bounds_gap_s[14] = {5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4,
                                      .001, .002, .005, .01,  .02,  .05,  .1};

void hist_init(struct hist *h, const double *bounds, uint32_t n_bounds)
{
    ASSERT(n_bounds >= 1 && n_bounds <= HIST_N_BOUNDS_MAX);
    *h = (struct hist){.bounds = bounds, .n_bounds = n_bounds};
}

void hist_add(struct hist *h, double value)
{
    uint32_t i = 0;

    if (value != value)
        return;
    while (i < h->n_bounds && value > h->bounds[i])
        i++;
    h->counts[i]++;
    h->n++;
    h->sum += value;
}

double hist_quantile(const struct hist *h, double q)
{
    double want = q * (double)h->n, seen = 0;

    for (uint32_t i = 0; i <= h->n_bounds; i++) {
        double here = (double)h->counts[i];
        if (here > 0 && seen + here >= want) {
            double low = i ? h->bounds[i - 1] : 0;
            double high = i < h->n_bounds ? h->bounds[i] : low;
            return low + (high - low) * (want - seen) / here;
        }
        seen += here;
    }
    return 0;
}
