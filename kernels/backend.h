/* backend.h - the interface of a GPU backend to device.c, which hides CUDA from everything above.
 *
 * A backend is an object library that defines `tarn_cuda_backend`; a program gets it by linking
 * that library. There are two: kernels/cuda compiled by nvcc, and the same files compiled as C++
 * against tests/cuda_emulation.
 *
 * Common subset of C11 and C++.
 *
 * Owns    open() creates a state; close() frees it and everything still allocated from it.
 * Thread  as device.h.
 * Errors  as device.h. A function that returns a status has logged the device's failure once.
 * Units   bytes. */
#ifndef TARN_KERNELS_BACKEND_H
#define TARN_KERNELS_BACKEND_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct device_backend {
    /* ERR_UNSUPPORTED with a message: the machine has no such device. */
    enum status (*open)(void **state, const struct device_config *config, struct buf *why);
    void (*close)(void *state);
    const struct ops *(*ops)(const void *state);
    const char *(*failure)(const void *state);
    enum status (*memory)(void *state, size_t *n_free, size_t *n_total);
    void *(*alloc)(void *state, size_t n_bytes); /* zeroed */
    void (*free)(void *state, void *p);
    void *(*alloc_pinned)(void *state, size_t n_bytes);
    void (*free_pinned)(void *state, void *p);
    struct stream *(*stream)(void *state, enum device_stream which);
    enum status (*upload)(void *state, struct stream *s, void *dst, const void *src,
                          size_t n_bytes); /* asynchronous */
    enum status (*download)(void *state, struct stream *s, void *dst, const void *src,
                            size_t n_bytes); /* asynchronous */
    enum status (*stream_wait)(void *state, struct stream *s);
    enum status (*event_create)(void *state, struct device_event **out);
    void (*event_destroy)(void *state, struct device_event *e);
    enum status (*event_record)(void *state, struct device_event *e, struct stream *s);
    enum status (*event_order)(void *state, struct device_event *e, struct stream *s);
    enum status (*event_query)(void *state, struct device_event *e, bool *done);
    enum status (*event_wait)(void *state, struct device_event *e);
    enum status (*graph_begin)(void *state); /* NULL: the backend has no graphs */
    enum status (*graph_end)(void *state, struct device_graph **out);
    enum status (*graph_launch)(void *state, const struct device_graph *g);
    void (*graph_destroy)(void *state, struct device_graph *g);
    void (*tune)(void *state, bool on); /* NULL: the backend has nothing to tune */
    enum status (*copies)(void *state, struct stream *s, void *const *to, const void *const *from,
                          uint32_t n, size_t n_bytes); /* asynchronous */
    /* NULL: the backend has no shared memory; nor the ones below. */
    enum status (*crc32c)(void *state, struct stream *s, const void *const *pieces, uint32_t n,
                          size_t n_bytes, uint32_t *sums); /* asynchronous */
    enum status (*export_memory)(void *state, void *p, uint8_t handle[DEVICE_HANDLE_BYTES]);
    enum status (*map)(void *state, const uint8_t handle[DEVICE_HANDLE_BYTES], void **out);
    void (*unmap)(void *state, void *p);
    /* All three NULL: the backend has no groups. As device_group_connect(), device_group_fail() and
     * device_all_gather(). */
    enum status (*connect)(void *const *states, uint32_t n, struct buf *why);
    void (*fail)(void *state, const char *words);
    enum status (*all_gather)(void *state, struct stream *s, const struct all_gather_params *p);
};

/* Weak: NULL in a program that does not link the backend. */
extern const struct device_backend tarn_cuda_backend __attribute__((weak));

/* The state created by open(), for the backend's ops. */
void *device_backend_state(struct device *d);

#ifdef __cplusplus
}
#endif
#endif
