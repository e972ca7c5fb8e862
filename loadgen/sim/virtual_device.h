/* virtual_device.h - a device of virtual time behind kernels/device.h, for the simulator.
 *
 * Memory is addresses that nobody reads. Copies move nothing: they take bytes / bandwidth on their
 * stream. A stream is the time at which all that it was given will be done, an event a time, and to
 * order a stream behind an event is to let nothing on it start earlier. So a step that must have
 * blocks which a copy still brings starts late, and one whose blocks came ahead of time does not.
 *
 * The host has a clock as well: what waits on the host moves it on.
 *
 * Owns    the state behind the device; device_close() frees it.
 * Thread  one at a time.
 * Errors  ERR_NOMEM; memory calls return NULL when the process may have no such range of addresses.
 * Units   virtual nanoseconds, bytes, bytes per second. */
#ifndef TARN_LOADGEN_SIM_VIRTUAL_DEVICE_H
#define TARN_LOADGEN_SIM_VIRTUAL_DEVICE_H

#include "kernels/device.h"

struct virtual_device;

struct virtual_device_config {
    double in_bytes_per_s, out_bytes_per_s; /* host to device and back; above 0 */
};

/* *device is to be closed by device_close(), after which *out is gone too. */
NODISCARD enum status virtual_device_open(struct virtual_device **out, struct device **device,
                                          const struct virtual_device_config *config,
                                          struct buf *why);

/* The host's clock, and moving it on to now_ns if it is not there yet. */
uint64_t virtual_device_now(const struct virtual_device *v);
void virtual_device_advance(struct virtual_device *v, uint64_t now_ns);
/* Kernels that take n_ns are given to the compute stream now; returns when they are done. */
uint64_t virtual_device_run(struct virtual_device *v, uint64_t n_ns);
/* The first time after now at which an event is reached; UINT64_MAX: there is none. */
uint64_t virtual_device_next(const struct virtual_device *v);

struct virtual_device_stats {
    uint64_t in_bytes, out_bytes;
    uint64_t compute_waited_ns; /* kernels for copies */
    uint64_t host_waited_ns;
};
void virtual_device_stats(const struct virtual_device *v, struct virtual_device_stats *out);

#endif
