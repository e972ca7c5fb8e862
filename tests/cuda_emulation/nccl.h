/* nccl.h - the part of NCCL that kernels/cuda/collective.cu uses, for the emulated devices.
 *
 * Owns    a communicator until it is destroyed or aborted.
 * Thread  as the CUDA runtime.
 * Errors  ncclResult_t; a program that breaks NCCL's rules ends with words on stderr.
 * Units   elements. */
#ifndef TARN_TESTS_CUDA_EMULATION_NCCL_H
#define TARN_TESTS_CUDA_EMULATION_NCCL_H

#include "cuda_runtime.h"

typedef struct ncclComm *ncclComm_t;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5
} ncclResult_t;

typedef enum { ncclFloat = 7 } ncclDataType_t;

extern "C" {
const char *ncclGetErrorString(ncclResult_t e);
ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *devices);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclAllGather(const void *send, void *receive, size_t n, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t s);
}

#endif
