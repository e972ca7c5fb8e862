/* device.h - a place to compute: pick a backend; memory and streams behind it.
 *
 * Common subset of C11 and C++.
 *
 * Owns    its worker pool, its scratch memory and every allocation until device_free().
 * Thread  device_open/close on one thread; memory calls and ops on the engine thread.
 * Errors  ERR_NOMEM; ERR_UNSUPPORTED with words for a backend this build or machine lacks.
 * Units   bytes. */
#ifndef TARN_KERNELS_DEVICE_H
#define TARN_KERNELS_DEVICE_H

#include "base/status.h"
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

struct buf;

enum device_kind {
    DEVICE_AUTO, /* the best CPU variant of this machine (a GPU once there is a CUDA backend) */
    DEVICE_REF,
    DEVICE_CPU,
};

struct device_config {
    enum device_kind kind;
    const char *cpu_variant; /* NULL: best of this machine; "amx", "avx512bf16", "avx512", ... */
    uint32_t n_threads;      /* 0: one per core that this process may use */
    uint32_t max_rows;       /* most rows of one step: sizes the scratch memory */
    uint32_t max_k;          /* largest K of any product */
    uint32_t max_heads;      /* most query heads */
    uint32_t max_head_dim;
};

NODISCARD enum status device_open(struct device **out, const struct device_config *config,
                                  struct buf *why);
void device_close(struct device *d); /* NULL is fine */

const struct ops *device_ops(const struct device *d);
uint32_t device_n_threads(const struct device *d);
/* The calling thread is the one that will run ops from now on: it may be bound to a core for good.
 * Threads that it starts later inherit that. */
void device_adopt_thread(struct device *d);
/* Whether its memory can be read and written in place by the host (true for every CPU backend). */
int device_is_host(const struct device *d);

/* Zeroed, 64-byte aligned, huge pages where the system gives them. NULL when out of memory. */
void *device_alloc(struct device *d, size_t n_bytes);
void device_free(struct device *d, void *p); /* NULL is fine */
/* Host to device and back; synchronous. */
NODISCARD enum status device_upload(struct device *d, void *dst, const void *src, size_t n_bytes);
NODISCARD enum status device_download(struct device *d, void *dst, const void *src,
                                      size_t n_bytes);
/* Run fn(arg, i) for i in [0, n) on the device's host threads (weight packing at load). */
void device_parallel(struct device *d, uint32_t n, void (*fn)(void *arg, uint32_t i), void *arg);

#ifdef __cplusplus
}
#endif
#endif
