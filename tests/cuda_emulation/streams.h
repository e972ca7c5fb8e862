/* streams.h - the emulated device's queues of work.
 *
 * Owns    streams and events until they are destroyed and their work is done.
 * Thread  under runtime_lock.
 * Errors  a wait that can never end is a deadlock of the caller and ends the process.
 * Units   none. */
#ifndef TARN_TESTS_CUDA_EMULATION_STREAMS_H
#define TARN_TESTS_CUDA_EMULATION_STREAMS_H

#include "internal.h"

#include <mutex>

extern std::recursive_mutex runtime_lock;
#define LOCK() std::lock_guard<std::recursive_mutex> locked_(runtime_lock)
/* Begin a call of the runtime. */
#define ENTER_AS(name)                                                                             \
    LOCK();                                                                                        \
    cudaError_t entered_ = call_enter(name);                                                       \
    if (entered_ != cudaSuccess)                                                                   \
    return entered_
#define ENTER() ENTER_AS(__func__)

/* Store the error for cudaGetLastError() and return it. */
cudaError_t runtime_failed(cudaError_t e);

void stream_finish(cudaStream_t s);
/* Have threads that wait for work look again: something else changed what may run. */
void streams_changed(void);
void streams_finish(void);
/* Whether the call must not be made now, because this thread captures a stream: the capture is
 * broken. */
bool stream_capture_forbids(const char *call);

#endif
