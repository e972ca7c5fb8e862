/* target.h - one server to be measured: its clients (one per tenant), model and prompt style.
 *
 * Owns    its clients: target_close().
 * Thread  one.
 * Errors  ERR_UNAVAILABLE, ERR_INVALID with words that name the server.
 * Units   none. */
#ifndef TARN_LOADGEN_LOAD_TARGET_H
#define TARN_LOADGEN_LOAD_TARGET_H

#include "loadgen/load/options.h"
#include "loadgen/load/probe.h"
#include "loadgen/load/prompt.h"

struct target {
    char url[512];
    char model[512];
    struct tarn_client *clients[N_TENANTS_MAX]; /* [n_clients] */
    uint32_t n_clients;
    struct prompt_style style;
    enum calibration calibration;
};

/* Connect to the server and wait until it is ready, without calibration. `is_b`: the second server
 * of compare. */
NODISCARD enum status target_open(struct target *t, const struct options *o, bool is_b,
                                  struct buf *why);
void target_close(struct target *t); /* also fine on a zeroed struct */
void target_calibrate(struct target *t, const struct options *o);

#endif
