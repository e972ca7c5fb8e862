/* cuda_runtime.h - declares the part of the CUDA runtime that Tarn uses, for the host's compiler.
 *
 * Names and meanings are those of NVIDIA's "CUDA Runtime API" and "CUDA C++ Programming Guide";
 * numbers of enums are the runtime's where a program could see them.
 *
 * Owns    as the CUDA runtime.
 * Thread  as the CUDA runtime; one lock inside.
 * Errors  as the CUDA runtime; a runtime call inside a kernel ends the process.
 * Units   bytes. */
#ifndef TARN_TESTS_CUDA_RUNTIME_H
#define TARN_TESTS_CUDA_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <functional>
#include <tuple>
#include <type_traits>

#define CUDART_VERSION 13000

#include "vector_types.h"

enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorCudartUnloading = 4,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorInsufficientDriver = 35,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorDeviceUninitialized = 201,
    cudaErrorMapBufferObjectFailed = 205,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorECCUncorrectable = 214,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchOutOfResources = 701,
    cudaErrorLaunchTimeout = 702,
    cudaErrorAssert = 710,
    cudaErrorHardwareStackError = 714,
    cudaErrorIllegalInstruction = 715,
    cudaErrorMisalignedAddress = 716,
    cudaErrorInvalidAddressSpace = 717,
    cudaErrorInvalidPc = 718,
    cudaErrorLaunchFailure = 719,
    cudaErrorNotPermitted = 800,
    cudaErrorNotSupported = 801,
    cudaErrorSystemDriverMismatch = 803,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorUnknown = 999
};
typedef enum cudaError cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};

enum cudaMemcpySrcAccessOrder {
    cudaMemcpySrcAccessOrderInvalid = 0,
    cudaMemcpySrcAccessOrderStream = 1,
    cudaMemcpySrcAccessOrderDuringApiCall = 2,
    cudaMemcpySrcAccessOrderAny = 3
};

struct cudaMemLocation {
    int type, id;
};

struct cudaMemcpyAttributes {
    enum cudaMemcpySrcAccessOrder srcAccessOrder;
    struct cudaMemLocation srcLocHint, dstLocHint;
    unsigned flags;
};

enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};

enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrClockRate = 13,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrIntegrated = 18,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrUnifiedAddressing = 41,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxRegistersPerMultiprocessor = 82,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};

#define cudaStreamDefault 0u
#define cudaStreamNonBlocking 1u
#define cudaEventDefault 0u
#define cudaEventBlockingSync 1u
#define cudaEventDisableTiming 2u
#define cudaEventWaitDefault 0u
#define cudaHostAllocDefault 0u
#define cudaHostAllocPortable 1u
#define cudaHostAllocMapped 2u
#define cudaHostAllocWriteCombined 4u
#define cudaDeviceScheduleAuto 0u
#define cudaDeviceScheduleSpin 1u
#define cudaDeviceScheduleYield 2u
#define cudaDeviceScheduleBlockingSync 4u
#define cudaDeviceMapHost 8u
#define cudaIpcMemLazyEnablePeerAccess 1u
#define CUDA_IPC_HANDLE_SIZE 64

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    size_t sharedMemPerBlock;
    int warpSize;
    int maxThreadsPerBlock;
    int maxGridSize[3];
    int major, minor;
    int multiProcessorCount;
    int l2CacheSize;
    size_t sharedMemPerMultiprocessor;
    size_t sharedMemPerBlockOptin;
};

typedef struct cudaIpcMemHandle_st {
    char reserved[CUDA_IPC_HANDLE_SIZE];
} cudaIpcMemHandle_t;

struct cudaFuncAttributes {
    size_t sharedSizeBytes;
    size_t localSizeBytes;
    int maxThreadsPerBlock;
    int numRegs;
    int maxDynamicSharedSizeBytes;
};

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;

enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed = 2
};

extern "C" {
cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaSetDeviceFlags(unsigned flags);
cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceReset(void);
cudaError_t cudaMemGetInfo(size_t *n_free, size_t *n_total);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t e);
const char *cudaGetErrorString(cudaError_t e);

cudaError_t cudaFree(void *p);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemcpy(void *dst, const void *src, size_t n_bytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n_bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s = nullptr);
cudaError_t cudaMemcpyBatchAsync(void *const *dsts, const void *const *srcs, const size_t *sizes,
                                 size_t n, struct cudaMemcpyAttributes *attrs, size_t *firsts,
                                 size_t n_attrs, cudaStream_t s);
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p);
cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void *p);
cudaError_t cudaMemset(void *p, int byte, size_t n_bytes);
cudaError_t cudaMemsetAsync(void *p, int byte, size_t n_bytes, cudaStream_t s = nullptr);

cudaError_t cudaStreamCreate(cudaStream_t *out);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamQuery(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags = 0);

cudaError_t cudaEventCreate(cudaEvent_t *out);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s = nullptr);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph,
                                 unsigned long long flags = 0);
cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t s);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t s);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);
}

/* Functions for the templates below. */
cudaError_t emulation_malloc(void **out, size_t n_bytes);
cudaError_t emulation_host_alloc(void **out, size_t n_bytes);
cudaError_t emulation_func_set_attribute(const void *f, enum cudaFuncAttribute attr, int value);
cudaError_t emulation_func_get_attributes(struct cudaFuncAttributes *out, const void *f);
cudaError_t emulation_occupancy(int *n, const void *f, int block, size_t shared_bytes);
/* The next launch is an early one. */
void emulation_launch_early(bool early);
void emulation_launch(const char *name, const void *kernel, dim3 grid, dim3 block,
                      size_t shared_bytes, cudaStream_t s, size_t n_argument_bytes,
                      std::function<void()> body);

template <typename T> static inline cudaError_t cudaMalloc(T **out, size_t n_bytes)
{
    return emulation_malloc(reinterpret_cast<void **>(out), n_bytes);
}

template <typename T>
static inline cudaError_t cudaHostAlloc(T **out, size_t n_bytes, unsigned flags)
{
    (void)flags;
    return emulation_host_alloc(reinterpret_cast<void **>(out), n_bytes);
}

template <typename T>
static inline cudaError_t cudaMallocHost(T **out, size_t n_bytes, unsigned flags = 0)
{
    (void)flags;
    return emulation_host_alloc(reinterpret_cast<void **>(out), n_bytes);
}

template <typename T>
static inline cudaError_t cudaFuncSetAttribute(T *f, enum cudaFuncAttribute attr, int value)
{
    return emulation_func_set_attribute(reinterpret_cast<const void *>(f), attr, value);
}

template <typename T>
static inline cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, T *f)
{
    return emulation_func_get_attributes(out, reinterpret_cast<const void *>(f));
}

template <typename T>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, T *f, int block,
                                                                        size_t shared_bytes)
{
    return emulation_occupancy(n, reinterpret_cast<const void *>(f), block, shared_bytes);
}

/* kernel<<<...>>>(arguments): the arguments are converted to the kernel's parameters and copied at
 * the time of the call. */
template <typename... Params, typename... Args>
static inline void emulation_launch_kernel(const char *name, void (*kernel)(Params...), dim3 grid,
                                           dim3 block, size_t shared_bytes, cudaStream_t s,
                                           Args &&...args)
{
    std::tuple<std::decay_t<Params>...> copy(static_cast<Args &&>(args)...);

    emulation_launch(name, reinterpret_cast<const void *>(kernel), grid, block, shared_bytes, s,
                     sizeof(copy), [kernel, copy] { std::apply(kernel, copy); });
}

#include "device_functions.h"

#endif
