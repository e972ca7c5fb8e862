/* timer.cu - events, and two kernels that compute nothing. */
#include "tests/gpu/timer.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/ptx.cuh"

struct gpu_timer {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    cudaError_t failure; /* the first error */
};

static __global__ void hold_kernel(uint64_t ns)
{
    uint64_t start = global_timer_ns();

    while (global_timer_ns() - start < ns) {
    }
}

static __global__ void empty_kernel(uint32_t unused)
{
    (void)unused;
}

static void note(struct gpu_timer *t, cudaError_t e)
{
    if (t->failure == cudaSuccess)
        t->failure = e;
}

struct gpu_timer *gpu_timer_create(struct stream *stream)
{
    struct gpu_timer *t = static_cast<struct gpu_timer *>(calloc(1, sizeof(*t)));

    if (!t)
        return NULL;
    t->stream = reinterpret_cast<cudaStream_t>(stream);
    note(t, cudaEventCreate(&t->begin));
    note(t, cudaEventCreate(&t->end));
    if (t->failure == cudaSuccess)
        return t;
    gpu_timer_destroy(t);
    return NULL;
}

void gpu_timer_destroy(struct gpu_timer *t)
{
    if (!t)
        return;
    if (t->begin)
        (void)cudaEventDestroy(t->begin);
    if (t->end)
        (void)cudaEventDestroy(t->end);
    free(t);
}

void gpu_timer_hold(struct gpu_timer *t, uint64_t ns)
{
    LAUNCH(hold_kernel, 1, 1, 0, t->stream, ns);
    note(t, cudaGetLastError());
}

void gpu_timer_begin(struct gpu_timer *t)
{
    note(t, cudaEventRecord(t->begin, t->stream));
}

void gpu_timer_end(struct gpu_timer *t)
{
    note(t, cudaEventRecord(t->end, t->stream));
}

bool gpu_timer_begun_early(struct gpu_timer *t)
{
    cudaError_t e = cudaEventQuery(t->begin);

    if (e == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* clear it, or the next launch would seem to fail */
        return false;
    }
    note(t, e);
    return true;
}

double gpu_timer_seconds(struct gpu_timer *t)
{
    float ms = 0;

    note(t, cudaEventSynchronize(t->end));
    if (t->failure == cudaSuccess)
        note(t, cudaEventElapsedTime(&ms, t->begin, t->end));
    if (t->failure == cudaSuccess)
        return ms * 1e-3;
    fprintf(stderr, "timing on the GPU failed: %s\n", cudaGetErrorString(t->failure));
    return -1;
}

void gpu_timer_empty_kernel(struct gpu_timer *t, uint32_t n_blocks)
{
    LAUNCH(empty_kernel, n_blocks, 32, 0, t->stream, 0u);
    note(t, cudaGetLastError());
}
