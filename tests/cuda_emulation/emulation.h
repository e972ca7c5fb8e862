/* emulation.h - controls the emulated GPU from a test: seeds, injected errors, counters.
 *
 * The .cu files of kernels/cuda are compiled as C++ against the headers of this folder. Each CUDA
 * thread is a fiber, and all fibers of a block share one OS thread. A fiber runs until it waits for
 * others, and the next one to run is drawn at random, so that a missing barrier shows as a wrong
 * result. Work of streams is queued and done as late as possible, in a random order that respects
 * only streams and events.
 *
 * Environment:
 *   TARN_EMULATION_SEED=n       seed of all random choices (default 1)
 *   TARN_EMULATION_ORDER=random|late|early   which stream works first (default random; below)
 *   TARN_EMULATION_PROTECT=0    let host code access device memory (default: it faults)
 *   TARN_EMULATION_MEMORY_MB=n  memory of a device (default 1024)
 *   TARN_EMULATION_SM=80|86|90  compute capability of the emulated GPU (default 90)
 *   TARN_EMULATION_WGMMA=1      products by wgmma take less time than by mma.sync (default: more)
 *   TARN_EMULATION_FAIL=n:e     the n-th runtime call returns cudaError e
 *   TARN_EMULATION_DEVICES=n    number of GPUs, 0 to 8 (default 1)
 *   TARN_EMULATION_HOLD=FILE    while the file exists, a copy out of the memory of another process
 *                               (CUDA IPC) stands still in its middle, and the file gets a byte
 *   TARN_EMULATION_TRACE=FILE   a line for each kernel that ran (trace.cc)
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
/* The order of streams that no event orders: at random; nothing but what the host waits for; or
 * first all that it does not wait for. */
enum emulation_order { EMULATION_RANDOM, EMULATION_LATE, EMULATION_EARLY };
void emulation_order(enum emulation_order order);
/* Each kernel of an executable graph takes so many bytes of device memory (2048 otherwise). keeps:
 * the driver keeps those of destroyed graphs, for later ones only. */
void emulation_graph_memory(uint64_t bytes_of_kernel, int keeps);
/* Make the n-th call from now on of the CUDA runtime (launches included) or of cublasLt fail with
 * the cudaError_t and do nothing else. n = 0: none. */
void emulation_fail_call(uint64_t n, int error);
/* Make cublasLtMatmul refuse all products (CUBLAS_STATUS_NOT_SUPPORTED), even if
 * cublasLtMatmulAlgoGetHeuristic found an algorithm. 0: stop refusing. */
void emulation_refuse_products(int refuse);
/* cublasLtMatmulAlgoGetHeuristic proposes four algorithms. Number 1 and 3 are faster than number 0
 * and have its bits; number 2 is the fastest, and adds in another order, which depends on whether
 * the shape has more than 64 rows. Count of products by an algorithm. */
uint64_t emulation_products_by(unsigned algorithm);
/* Make cudaMemcpyBatchAsync answer cudaErrorNotSupported, as a driver without the call. */
void emulation_miss_batches(int miss);
/* Count of calls of cudaMemcpyBatchAsync that enqueued their copies. */
uint64_t emulation_batches(void);
/* TARN_EMULATION_WGMMA, from now on. */
void emulation_make_wgmma_fast(int fast);
/* Make all calls fail, as after a fault in a kernel that destroyed the context. 0: stop failing. */
void emulation_kill(int error);
/* Count of runtime calls. */
uint64_t emulation_calls(void);
/* Count of executed kernels. */
uint64_t emulation_kernels_run(void);
/* Count of their blocks. */
uint64_t emulation_blocks_run(void);
/* Count of the bytes that they read by load_once16(). */
uint64_t emulation_bytes_once(void);

#ifdef __cplusplus
}
#endif
#endif
