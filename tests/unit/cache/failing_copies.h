/* failing_copies.h - makes copies between tiers fail on request: enqueueing a copy, recording an
 * event after it, ordering a stream after the event.
 *
 * Include it once, and link with the --wrap options that tests/CMakeLists.txt calls failing_copies.
 * Calls inside kernels/ are not wrapped. */
#ifndef TARN_TESTS_UNIT_CACHE_FAILING_COPIES_H
#define TARN_TESTS_UNIT_CACHE_FAILING_COPIES_H

#include "base/rng.h"
#include "kernels/device.h"

/* Read by the copying thread; set only while that thread is idle. */
static uint32_t fail_one_in; /* 0: none */
static uint64_t fail_nth;    /* the only copy that fails, counted from 1 by n_copies; 0: none */
static uint64_t n_copies, n_failed;

static bool fails(void)
{
    bool now = fail_one_in && rng_u32(77, n_copies) % fail_one_in == 0;

    now |= ++n_copies == fail_nth;
    n_failed += now;
    return now;
}

enum status __real_device_upload_async(struct device *d, struct stream *s, void *dst,
                                       const void *src, size_t n);
enum status __wrap_device_upload_async(struct device *d, struct stream *s, void *dst,
                                       const void *src, size_t n);
enum status __real_device_download_async(struct device *d, struct stream *s, void *dst,
                                         const void *src, size_t n);
enum status __wrap_device_download_async(struct device *d, struct stream *s, void *dst,
                                         const void *src, size_t n);
enum status __real_device_copies_async(struct device *d, struct stream *s, void *const *to,
                                       const void *const *from, uint32_t n, size_t n_bytes);
enum status __wrap_device_copies_async(struct device *d, struct stream *s, void *const *to,
                                       const void *const *from, uint32_t n, size_t n_bytes);
enum status __real_device_event_record(struct device *d, struct device_event *e, struct stream *s);
enum status __wrap_device_event_record(struct device *d, struct device_event *e, struct stream *s);
enum status __real_device_event_order(struct device *d, struct device_event *e, struct stream *s);
enum status __wrap_device_event_order(struct device *d, struct device_event *e, struct stream *s);

enum status __wrap_device_upload_async(struct device *d, struct stream *s, void *dst,
                                       const void *src, size_t n)
{
    return fails() ? ERR_INTERNAL : __real_device_upload_async(d, s, dst, src, n);
}

enum status __wrap_device_download_async(struct device *d, struct stream *s, void *dst,
                                         const void *src, size_t n)
{
    return fails() ? ERR_INTERNAL : __real_device_download_async(d, s, dst, src, n);
}

/* Half of the copies are under way when the call fails. */
enum status __wrap_device_copies_async(struct device *d, struct stream *s, void *const *to,
                                       const void *const *from, uint32_t n, size_t n_bytes)
{
    bool now = fails();
    enum status status = __real_device_copies_async(d, s, to, from, now ? n / 2 : n, n_bytes);

    return now ? ERR_INTERNAL : status;
}

enum status __wrap_device_event_record(struct device *d, struct device_event *e, struct stream *s)
{
    return fails() ? ERR_INTERNAL : __real_device_event_record(d, e, s);
}

enum status __wrap_device_event_order(struct device *d, struct device_event *e, struct stream *s)
{
    return fails() ? ERR_INTERNAL : __real_device_event_order(d, e, s);
}

#endif
