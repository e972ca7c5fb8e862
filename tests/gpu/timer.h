/* timer.h - measures the time of GPU work by the GPU's own clock.
 *
 * When a host launches short kernels one after another, the time measured is that of the launches.
 * So the timer first blocks the stream with a kernel that only waits. The host enqueues all work
 * behind it, and two events around the work give its time without gaps. gpu_timer_begun_early()
 * returns true if the blocking kernel ended before the work was enqueued.
 *
 * Owns    two events.
 * Thread  the device's.
 * Errors  after a call that failed, gpu_timer_seconds() returns -1 and prints a message on stderr.
 * Units   nanoseconds, seconds. */
#ifndef TARN_TESTS_GPU_TIMER_H
#define TARN_TESTS_GPU_TIMER_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct stream;
struct gpu_timer;

/* Create a timer for work on `stream`. NULL: no memory or no events. */
struct gpu_timer *gpu_timer_create(struct stream *stream);
void gpu_timer_destroy(struct gpu_timer *t); /* NULL is fine */
/* Block the stream for this time. */
void gpu_timer_hold(struct gpu_timer *t, uint64_t ns);
/* Mark the begin and the end of the work in the stream. */
void gpu_timer_begin(struct gpu_timer *t);
void gpu_timer_end(struct gpu_timer *t);
/* Whether the stream has already begun the work. */
bool gpu_timer_begun_early(struct gpu_timer *t);
/* Wait for the end of the work. Return the seconds of GPU time from begin to end. */
double gpu_timer_seconds(struct gpu_timer *t);
/* Enqueue a kernel of n_blocks blocks that does nothing, to measure a launch. */
void gpu_timer_empty_kernel(struct gpu_timer *t, uint32_t n_blocks);

#ifdef __cplusplus
}
#endif
#endif
