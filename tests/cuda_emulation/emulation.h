/* emulation.h - steer the emulated GPU from a test: seeds, injected errors, counters.
 *
 * The .cu files of kernels/cuda, compiled as C++ against the headers of this folder, run here: each
 * CUDA thread is a fiber, and all fibers of a block share one OS thread. A thread runs until it
 * waits for others; who runs next is drawn at random, so what a missing barrier would order shows
 * as a wrong result. Work of streams is queued and done late, in a random order that respects only
 * streams and events.
 *
 * Environment:
 *   TARN_EMULATION_SEED=n       of every draw (default 1)
 *   TARN_EMULATION_PROTECT=0    let host code touch device memory (default: it faults)
 *   TARN_EMULATION_MEMORY_MB=n  of the device (default 1024)
 *   TARN_EMULATION_SM=80|90     limits of which GPU (default 90)
 *   TARN_EMULATION_FAIL=n:e     the n-th runtime call returns cudaError e
 *   TARN_EMULATION_DEVICES=0    a machine without a GPU
 *
 * C and C++. Not part of the real runtime: a test that also runs on a GPU must not call these.
 *
 * Owns    nothing.
 * Thread  as the CUDA runtime.
 * Errors  a kernel that breaks CUDA's rules ends the process (abort) with words on stderr.
 * Units   calls are counted from 1. */
#ifndef TARN_TESTS_CUDA_EMULATION_H
#define TARN_TESTS_CUDA_EMULATION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void emulation_seed(uint64_t seed);
/* The n-th call of the CUDA runtime (launches included) or of cublasLt from now on fails with the
 * cudaError_t; it does nothing else. n = 0: none. */
void emulation_fail_call(uint64_t n, int error);
/* From now on cublasLtMatmul refuses every product (CUBLAS_STATUS_NOT_SUPPORTED), also one that
 * cublasLtMatmulAlgoGetHeuristic found an algorithm for. 0: it multiplies again. */
void emulation_refuse_products(int refuse);
/* From now on every call fails: the context is dead, as after a fault in a kernel. 0: works
 * again. */
void emulation_kill(int error);
/* Runtime calls so far. */
uint64_t emulation_calls(void);
/* Kernels executed so far. */
uint64_t emulation_kernels_run(void);

#ifdef __cplusplus
}
#endif
#endif
