/* device.h - a place to compute: pick a backend; memory, streams and events behind it.
 *
 * Common subset of C11 and C++.
 *
 * Owns    its worker pool, its scratch memory and every allocation until device_free().
 * Thread  device_open/close on one thread; memory calls and ops on the engine thread.
 * Errors  ERR_NOMEM; ERR_UNSUPPORTED with words for a backend this build or machine lacks;
 *         ERR_INTERNAL from a GPU that failed (device_failure() has the words).
 * Units   bytes. */
#ifndef TARN_KERNELS_DEVICE_H
#define TARN_KERNELS_DEVICE_H

#include <stdbool.h>

#include "base/status.h"
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

struct buf;

enum device_kind {
    DEVICE_AUTO, /* a GPU if this build and machine have one, else the best CPU variant */
    DEVICE_REF,
    DEVICE_CPU,
    DEVICE_CUDA,
};

struct device_config {
    enum device_kind kind;
    const char *cpu_variant; /* NULL: fastest on this machine; "amx", "avx512bf16", "avx512", ... */
    bool bf16_weights;       /* most products will read bf16 weights: counts for the best variant */
    uint32_t n_threads;      /* 0: one per core that this process may use */
    uint32_t max_rows;       /* most rows of one step: sizes the scratch memory */
    uint32_t max_k;          /* largest K of any product */
    uint32_t max_heads;      /* most query heads */
    uint32_t max_head_dim;
    bool batch_invariant; /* CUDA: products in an order that no batch changes (promise P1); CPU
                             devices always do so */
};

NODISCARD enum status device_open(struct device **out, const struct device_config *config,
                                  struct buf *why);
/* On a backend of the caller's, whose state is open already and becomes the device's (closed also
 * when this fails). It has no host threads, and no synchronous copies. */
struct device_backend;
NODISCARD enum status device_open_backend(struct device **out, const struct device_backend *backend,
                                          void *state, struct buf *why);
void device_close(struct device *d); /* NULL is fine */

const struct ops *device_ops(const struct device *d);

/* Devices that compute one model together, each with its share of the weights; the caller runs
 * devices[rank]. */
#define DEVICE_GROUP_MAX 8
struct device_group {
    struct device *devices[DEVICE_GROUP_MAX];
    uint32_t n;
    uint32_t rank;
};

/* Return a group of one device. */
struct device_group device_group_of(struct device *d);

static inline struct device *device_group_self(const struct device_group *g)
{
    return g->devices[g->rank];
}

uint32_t device_n_threads(const struct device *d);
/* The calling thread is the one that will run ops from now on: it may be bound to a core for good.
 * Threads that it starts later inherit that. */
void device_adopt_thread(struct device *d);
/* Whether its memory can be read and written in place by the host (true for every CPU backend). */
int device_is_host(const struct device *d);
/* The layout of weights that its products read. */
enum weight_layout device_weight_layout(const struct device *d);
/* Words for the failure after which this device computes nothing any more, NULL while it works. A
 * GPU's context does not come back from one: the process has to end and be started again. */
const char *device_failure(const struct device *d);
/* Free and total memory of the device. ERR_UNSUPPORTED on a host device. */
NODISCARD enum status device_memory(struct device *d, size_t *n_free, size_t *n_total);

/* Zeroed, 64-byte aligned (256 on a GPU), huge pages where the system gives them. NULL when out of
 * memory. */
void *device_alloc(struct device *d, size_t n_bytes);
void device_free(struct device *d, void *p); /* NULL is fine */
/* Host memory that asynchronous copies can use, 64-byte aligned, not zeroed. NULL when out of
 * memory. Any thread. */
void *device_alloc_pinned(struct device *d, size_t n_bytes);
void device_free_pinned(struct device *d, void *p); /* NULL is fine */

/* Streams: work on one goes in order, work on two goes side by side. A host device has none and
 * returns NULL, which every op and copy takes for its default. */
enum device_stream {
    DEVICE_COMPUTE,  /* the same as NULL */
    DEVICE_COPY_IN,  /* host to device */
    DEVICE_COPY_OUT, /* device to host */
    DEVICE_STREAM_COUNT
};
struct stream *device_stream(struct device *d, enum device_stream which);
/* Enqueue a copy; the host memory is pinned and stays as it is until the copy is done. On a host
 * device the copy is done at once. */
NODISCARD enum status device_upload_async(struct device *d, struct stream *s, void *dst,
                                          const void *src, size_t n_bytes);
NODISCARD enum status device_download_async(struct device *d, struct stream *s, void *dst,
                                            const void *src, size_t n_bytes);
/* Wait on the host until all work of a stream is done. */
NODISCARD enum status device_stream_wait(struct device *d, struct stream *s);

/* A point in a stream. Record it *after* the work it stands for. */
struct device_event;
NODISCARD enum status device_event_create(struct device *d, struct device_event **out);
void device_event_destroy(struct device *d, struct device_event *e); /* NULL is fine */
NODISCARD enum status device_event_record(struct device *d, struct device_event *e,
                                          struct stream *s);
/* What comes on stream s from now on waits for the event. */
NODISCARD enum status device_event_order(struct device *d, struct device_event *e,
                                         struct stream *s);
/* *done: whether it has been reached; never blocks. An event that was never recorded is done. */
NODISCARD enum status device_event_query(struct device *d, struct device_event *e, bool *done);
NODISCARD enum status device_event_wait(struct device *d, struct device_event *e);

/* Host to device and back; synchronous, in order with the compute stream. */
NODISCARD enum status device_upload(struct device *d, void *dst, const void *src, size_t n_bytes);
NODISCARD enum status device_download(struct device *d, void *dst, const void *src, size_t n_bytes);
/* Run fn(arg, i) for i in [0, n) on the device's host threads (weight packing at load). */
void device_parallel(struct device *d, uint32_t n, void (*fn)(void *arg, uint32_t i), void *arg);

#ifdef __cplusplus
}
#endif
#endif
