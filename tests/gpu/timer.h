/* timer.h - time work on the GPU by the GPU's own clock.
 *
 * A host that launches short kernels one after another measures how fast it launches. So the timer
 * first holds the stream with a kernel that only waits, the host enqueues everything behind it, and
 * two events around the work give its time without any gap. gpu_timer_begun_early() says whether
 * the hold was too short for that.
 *
 * Owns    two events.
 * Thread  the device's.
 * Errors  a call that fails is reported by gpu_timer_seconds() as -1, with words on stderr.
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

/* NULL without memory or events. `stream` is where the work goes. */
struct gpu_timer *gpu_timer_create(struct stream *stream);
void gpu_timer_destroy(struct gpu_timer *t); /* NULL is fine */
/* Keep the stream busy for so long. */
void gpu_timer_hold(struct gpu_timer *t, uint64_t ns);
/* Mark where the work begins and ends, in the order of the stream. */
void gpu_timer_begin(struct gpu_timer *t);
void gpu_timer_end(struct gpu_timer *t);
/* Return whether the stream has come to the work already. */
bool gpu_timer_begun_early(struct gpu_timer *t);
/* Wait for the end; return seconds of GPU time from begin to end. */
double gpu_timer_seconds(struct gpu_timer *t);
/* Enqueue a kernel of n_blocks blocks that does nothing: what a launch costs. */
void gpu_timer_empty_kernel(struct gpu_timer *t, uint32_t n_blocks);

#ifdef __cplusplus
}
#endif
#endif
