#include "loadgen/load/arrival.h"

#include <math.h>

#define RATE_MAX 1e6

static bool is_rate(double r)
{
    return r > 0 && r <= RATE_MAX;
}

static bool is_drawn(const struct arrival_config *c)
{
    return c->kind == ARRIVAL_GAMMA || c->kind == ARRIVAL_CONSTANT;
}

bool arrival_has_rate(const struct arrival_config *c)
{
    return is_drawn(c) || (c->kind == ARRIVAL_TRACE && c->rate > 0);
}

enum status arrival_check(const struct arrival_config *c, struct buf *why)
{
    if (c->kind == ARRIVAL_TRACE && c->rate != 0 && !is_rate(c->rate))
        return buf_why(why, ERR_INVALID, "the rate must be above 0 and at most 1e6 a second");
    if (!is_drawn(c))
        return c->ramp ? buf_why(why, ERR_INVALID, "a ramp needs open-loop arrivals") : OK;
    if (!c->ramp && !is_rate(c->rate))
        return buf_why(why, ERR_INVALID, "the rate must be above 0 and at most 1e6 a second");
    if (c->kind == ARRIVAL_GAMMA && !(c->burstiness > 0 && c->burstiness <= 1e6))
        return buf_why(why, ERR_INVALID, "the burstiness must be above 0 and at most 1e6");
    if (c->ramp && (!is_rate(c->ramp_start) || !is_rate(c->ramp_end) || !(c->ramp_s > 0)))
        return buf_why(why, ERR_INVALID, "a ramp needs two rates above 0 and a length above 0");
    return OK;
}

void arrival_init(struct arrival *a, const struct arrival_config *config, uint64_t seed)
{
    *a = (struct arrival){.config = *config};
    draw_init(&a->draw, seed, DRAW_ARRIVAL, 0);
}

/* When a process whose rate ramps has had `sum` expected arrivals: the integral of the rate,
 * inverted. */
static double ramp_time_s(const struct arrival_config *c, double sum)
{
    double a = c->ramp_start, b = c->ramp_end, d = c->ramp_s, grown;

    if (c->ramp_exponential && a != b)
        grown = (b - a) * d / log(b / a);
    else
        grown = (a + b) / 2 * d;
    if (sum >= grown)
        return d + (sum - grown) / b;
    if (a == b)
        return sum / a;
    if (c->ramp_exponential)
        return d / log(b / a) * log1p(sum * log(b / a) / (a * d));
    double slope = (b - a) / d;
    /* Of the two ways to write the root, the one without cancellation. */
    return 2 * sum / (a + sqrt(a * a + 2 * slope * sum));
}

double arrival_next_s(struct arrival *a)
{
    const struct arrival_config *c = &a->config;

    switch (c->kind) {
    case ARRIVAL_GAMMA: a->sum += draw_gamma(&a->draw, c->burstiness) / c->burstiness; break;
    case ARRIVAL_CONSTANT: a->sum = (double)a->n; break;
    case ARRIVAL_AT_ONCE:
    case ARRIVAL_CLOSED:
    case ARRIVAL_TRACE: return 0;
    }
    a->n++;
    return c->ramp ? ramp_time_s(c, a->sum) : a->sum / c->rate;
}
