/* virtual_device.h - a device of virtual time behind kernels/device.h, for the simulator.
 *
 * Memory is a range of addresses that are never read. A copy moves nothing and takes
 * bytes / bandwidth on its stream. A stream is the time at which its work will be done, an event is
 * a time, and work that is ordered behind an event does not start before that time. A step that
 * needs blocks of an unfinished copy therefore starts late.
 *
 * The host has a clock too: a wait on the host advances it.
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

/* Close *device with device_close(), which frees *out too. */
NODISCARD enum status virtual_device_open(struct virtual_device **out, struct device **device,
                                          const struct virtual_device_config *config,
                                          struct buf *why);

/* Read the host's clock; advance it to now_ns, if that is later. */
uint64_t virtual_device_now(const struct virtual_device *v);
void virtual_device_advance(struct virtual_device *v, uint64_t now_ns);
/* Launch kernels that take n_ns on the compute stream; returns the time of their end. */
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
