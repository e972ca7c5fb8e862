/* arrival.h - when requests arrive.
 *
 * Open loops: gaps are drawn whatever the server does. Gamma has the shape `burstiness` (1:
 * Poisson, below 1: in bursts, above: more even) and the mean 1 / rate, as vLLM's --burstiness.
 * A ramp is the same with a rate that grows from one value to another, linearly or
 * exponentially, and then stays. In a closed loop requests have no times: one is sent when an
 * earlier one has ended. A trace has its own times.
 *
 * Owns    nothing; plain data.
 * Thread  one at a time.
 * Errors  none; arrival_check() says ERR_INVALID with words.
 * Units   seconds from the start, requests per second. */
#ifndef TARN_LOADGEN_LOAD_ARRIVAL_H
#define TARN_LOADGEN_LOAD_ARRIVAL_H

#include <stdbool.h>

#include "base/buf.h"
#include "loadgen/load/draw.h"

enum arrival_kind {
    ARRIVAL_GAMMA,    /* Poisson with burstiness 1 */
    ARRIVAL_CONSTANT, /* evenly spaced, the first at 0 */
    ARRIVAL_AT_ONCE,  /* rate inf: all at 0 */
    ARRIVAL_CLOSED,   /* no times */
    ARRIVAL_TRACE,    /* times of the data, scaled to the mean rate `rate` if that is above 0 */
};

struct arrival_config {
    enum arrival_kind kind;
    double rate;
    double burstiness;
    bool ramp;
    bool ramp_exponential;
    double ramp_start, ramp_end; /* requests per second */
    double ramp_s;               /* duration of the growth */
};

struct arrival {
    struct arrival_config config;
    struct draw draw;
    double sum; /* of gaps with mean 1, drawn so far */
    uint64_t n;
};

NODISCARD enum status arrival_check(const struct arrival_config *config, struct buf *why);
/* Whether `rate` says how many requests arrive per second. */
bool arrival_has_rate(const struct arrival_config *config);
void arrival_init(struct arrival *a, const struct arrival_config *config, uint64_t seed);
/* The time of the next arrival, never before the last one; 0 for AT_ONCE, CLOSED and TRACE. */
double arrival_next_s(struct arrival *a);

#endif
