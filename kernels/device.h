/* device.h - a device that computes: one backend with its memory, streams and events.
 *
 * Common subset of C11 and C++.
 *
 * Owns    its worker pool, its scratch memory and every allocation until device_free().
 * Thread  device_open/close on one thread; memory calls and ops on the engine thread, ops of the
 *         further devices of a group on their rank threads.
 * Errors  ERR_NOMEM; ERR_UNSUPPORTED with a reason for a backend that this build or machine lacks;
 *         ERR_INTERNAL from a GPU that failed (device_failure() has the reason).
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
    const char *cpu_variant; /* NULL: the machine's best; "amx", "avx512bf16", "avx512", ... */
    enum dtype weights;      /* of most products, */
    uint32_t weights_group;  /* and its group, as in struct weight */
    enum dtype kv;           /* of most KV */
    bool measure;            /* CPU: measure which variant is best for these types, and how weights
                                are prefetched (kernels/cpu/choice.h); else the first of the list */
    const char *measure_dir; /* where the choice is kept; NULL: measured each time */
    uint32_t n_threads;      /* 0: one per core that this process may use */
    const char *numa;      /* threads and weights are spread over the memory nodes of a CPU: "auto":
                           the machine's; a folder laid out as NUMA_DIR; NULL: they are not */
    uint32_t max_rows;     /* most rows in one step; sets the size of the scratch memory */
    uint32_t max_rows_gpu; /* the same on a GPU; 0: max_rows */
    uint32_t max_k;        /* largest K of any product */
    uint32_t max_heads;    /* most query heads of any model */
    uint32_t max_head_dim;
    bool wgmma;           /* CUDA: with `measure`, try whether Hopper's own matrix instructions
                             are right and faster for these weights and this KV
                             (cuda/choice.cuh) */
    uint32_t ordinal;     /* CUDA: number of the GPU among the visible ones, from 0 on */
    bool batch_invariant; /* CUDA: the order of a sum does not depend on the batch (promise P1);
                             always so on a CPU device */
};

NODISCARD enum status device_open(struct device **out, const struct device_config *config,
                                  struct buf *why);
/* Open a device on the caller's backend. The device takes over `state` and closes it, also when
 * this call fails. The device has no host threads and no synchronous copies. */
struct device_backend;
NODISCARD enum status device_open_backend(struct device **out, const struct device_backend *backend,
                                          void *state, struct buf *why);
void device_close(struct device *d); /* NULL is fine */

const struct ops *device_ops(const struct device *d);

/* Devices that compute one model together, each with a share of the weights. The caller runs on
 * devices[rank]. */
#define DEVICE_GROUP_MAX 8
struct device_group {
    struct device *devices[DEVICE_GROUP_MAX];
    uint32_t n;
    uint32_t rank;
};

/* Return a group of one device. */
struct device_group device_group_of(struct device *d);
/* Connect the devices of a group, once, so that ops.all_reduce and device_all_gather() work
 * between them. A group of one needs no connection. ERR_UNSUPPORTED: these devices have no
 * collectives. From then on each device has a thread of its own that runs its ops, and a collective
 * ends when all devices have been given it. */
NODISCARD enum status device_group_connect(const struct device_group *g, struct buf *why);
/* Declare all devices of a connected group as failed, for the reason `words`: a device that has
 * left a collective out would let the others wait for ever. device_failure() of each is not NULL
 * then, and collectives that were enqueued end with any result. Any thread. */
void device_group_fail(const struct device_group *g, const char *words);
/* The collectives of a connected group: ops.all_reduce, whose sums are in the order of the ranks
 * (the same bits on each device, whatever else is summed), and this one:
 *   out[t, r * C + c] = x[t, c] of the device with rank r
 * Each device is given each of them, with the same shape. Whatever a collective answers, the device
 * took part in it, or the whole group has failed: no other device waits for it. */
struct all_gather_params {
    uint32_t n_rows; /* T */
    uint32_t n_cols; /* C, of each device */
    const float *x;  /* [T, C] on this device */
    float *out;      /* [T, n C] on this device; NULL: it only gives its part */
};
NODISCARD enum status device_all_gather(struct device *d, struct stream *s,
                                        const struct all_gather_params *p);

static inline struct device *device_group_self(const struct device_group *g)
{
    return g->devices[g->rank];
}

uint32_t device_n_threads(const struct device *d);
/* Make the calling thread the one that runs ops from now on. The thread may be bound to a core for
 * good, and threads that it starts later inherit the binding. */
void device_adopt_thread(struct device *d);
/* Whether the host can read and write the device's memory in place (true for every CPU backend). */
int device_is_host(const struct device *d);
/* The layout of weights that the device's products read. */
enum weight_layout device_weight_layout(const struct device *d);
/* The reason why the device has failed; NULL while it works. A failed GPU context cannot be
 * recovered: the process has to be restarted. */
const char *device_failure(const struct device *d);
/* Free and total memory of the device. ERR_UNSUPPORTED on a host device. */
NODISCARD enum status device_memory(struct device *d, size_t *n_free, size_t *n_total);

/* Allocate zeroed memory, 64-byte aligned (256 on a GPU), in huge pages where the system has them.
 * Returns NULL when out of memory. */
void *device_alloc(struct device *d, size_t n_bytes);
void device_free(struct device *d, void *p); /* NULL is fine */

/* The threads that will read memory, which is placed near them. */
enum device_place {
    DEVICE_SPLIT,      /* each thread its equal part, in order: weights */
    DEVICE_INTERLEAVED /* each thread all of it: KV */
};
/* Place memory of device_alloc() before it is written. No effect on a machine with one memory node
 * and on small memory. */
void device_place(struct device *d, void *p, size_t n_bytes, enum device_place how);
/* Allocate host memory for asynchronous copies, 64-byte aligned, not zeroed. Returns NULL when out
 * of memory. Any thread may call it. */
void *device_alloc_pinned(struct device *d, size_t n_bytes);
void device_free_pinned(struct device *d, void *p); /* NULL is fine */

/* Work on one stream runs in order; work on different streams may overlap. A host device has no
 * streams: device_stream() returns NULL, which every op and copy accepts. */
enum device_stream {
    DEVICE_COMPUTE,   /* the same as NULL */
    DEVICE_COPY_IN,   /* host to device */
    DEVICE_COPY_OUT,  /* device to host */
    DEVICE_COPY_PEER, /* from other processes' device memory; checksums */
    DEVICE_STREAM_COUNT
};
struct stream *device_stream(struct device *d, enum device_stream which);
/* Enqueue a copy. The host memory must be pinned and unchanged until the copy is done. A host
 * device copies at once. */
NODISCARD enum status device_upload_async(struct device *d, struct stream *s, void *dst,
                                          const void *src, size_t n_bytes);
NODISCARD enum status device_download_async(struct device *d, struct stream *s, void *dst,
                                            const void *src, size_t n_bytes);
/* Enqueue n copies of n_bytes each, from[i] to to[i], by one call of the driver where it has one.
 * Both sides are pinned memory or memory of the device: its own, or of device_map(). The copies
 * have no order among themselves. After an error some of them may be under way. A host device
 * copies at once. */
#define DEVICE_COPIES_MAX 256u
NODISCARD enum status device_copies_async(struct device *d, struct stream *s, void *const *to,
                                          const void *const *from, uint32_t n, size_t n_bytes);
/* Enqueue the CRC32C (hash_crc32c(0, ...)) of n pieces of n_bytes of device memory each, a multiple
 * of 4 up to DEVICE_SUM_BYTES_MAX; sums [n] are device memory, too. ERR_UNSUPPORTED on a host
 * device. */
#define DEVICE_SUMS_MAX 256
#define DEVICE_SUM_BYTES_MAX ((size_t)1 << 28)
NODISCARD enum status device_crc32c_async(struct device *d, struct stream *s,
                                          const void *const *pieces, uint32_t n, size_t n_bytes,
                                          uint32_t *sums);
/* Wait on the host until all work of a stream is done. */
NODISCARD enum status device_stream_wait(struct device *d, struct stream *s);

/* A point in a stream. Record it *after* the work that it marks. */
struct device_event;
NODISCARD enum status device_event_create(struct device *d, struct device_event **out);
void device_event_destroy(struct device *d, struct device_event *e); /* NULL is fine */
NODISCARD enum status device_event_record(struct device *d, struct device_event *e,
                                          struct stream *s);
/* Make all later work on stream s wait for the event. */
NODISCARD enum status device_event_order(struct device *d, struct device_event *e,
                                         struct stream *s);
/* Set *done to whether the event was reached; never blocks. An event that was never recorded is
 * done. */
NODISCARD enum status device_event_query(struct device *d, struct device_event *e, bool *done);
NODISCARD enum status device_event_wait(struct device *d, struct device_event *e);

/* Work of the compute stream that is recorded once and launched as a whole, with the arguments of
 * the recording. Between begin and end, ops and asynchronous copies of this thread are recorded
 * instead of done; nothing may be allocated or waited for. end must follow begin in any case; on OK
 * *out is the caller's: device_graph_destroy() when its last launch is done. ERR_UNSUPPORTED: the
 * device has no graphs. */
struct device_graph;
NODISCARD enum status device_graph_begin(struct device *d);
NODISCARD enum status device_graph_end(struct device *d, struct device_graph **out);
NODISCARD enum status device_graph_launch(struct device *d, const struct device_graph *g);
void device_graph_destroy(struct device *d, struct device_graph *g); /* NULL is fine */

/* Between tune(d, true) and tune(d, false), each shape of product that an op meets is timed with
 * several algorithms, and the fastest of those with the same bits is kept. Outputs that are added
 * to (gemm_params.accumulate) are garbage meanwhile, and nothing may be recorded. No effect on a
 * host device. */
void device_tune(struct device *d, bool on);

/* Copy from host to device and back: synchronous, in order with the compute stream. */
NODISCARD enum status device_upload(struct device *d, void *dst, const void *src, size_t n_bytes);
NODISCARD enum status device_download(struct device *d, void *dst, const void *src, size_t n_bytes);

/* Device memory that several processes of one machine use (CUDA IPC). A handle names memory of
 * device_alloc() of another process. Whoever has it, and runs as the same user on the same machine,
 * can read and write that memory. ERR_UNSUPPORTED, with the reason in the log: a host device; a
 * machine, container or pair of GPUs that does not allow it; a handle of this process itself.
 * device_map() and device_unmap(): any thread. No copy from the memory is under way when it is
 * unmapped. The owner should free it only when all others have unmapped it. */
#define DEVICE_HANDLE_BYTES 64
NODISCARD enum status device_export(struct device *d, void *p, uint8_t handle[DEVICE_HANDLE_BYTES]);
NODISCARD enum status device_map(struct device *d, const uint8_t handle[DEVICE_HANDLE_BYTES],
                                 void **out);
void device_unmap(struct device *d, void *p); /* NULL is fine */
/* Run fn(arg, i) for i in [0, n) on the device's host threads (weight packing at load). */
void device_parallel(struct device *d, uint32_t n, void (*fn)(void *arg, uint32_t i), void *arg);

#ifdef __cplusplus
}
#endif
#endif
