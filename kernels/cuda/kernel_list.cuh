/* kernel_list.cuh - the list of all kernels of the program, so that all can be loaded at start.
 *
 * By default CUDA loads a kernel at its first launch, which allocates memory and may wait for the
 * whole device in the middle of a step. CUDA_MODULE_LOADING=EAGER avoids that, but also loads
 * thousands of cuBLASLt's kernels: 0.5 to 1.5 GB for each process. So the device asks for lazy
 * loading, and loads the kernels in this list itself (device.cu).
 *
 * LAUNCH enters its kernel by naming listed_kernel<kernel>, a static member of a class template
 * that is initialized before main() wherever it is named.
 *
 * Owns    the list.
 * Thread  the list is filled before main() and constant from then on.
 * Errors  more than KERNELS_MAX kernels end the program at its start.
 * Units   kernels. */
#ifndef TARN_KERNELS_CUDA_KERNEL_LIST_CUH
#define TARN_KERNELS_CUDA_KERNEL_LIST_CUH

#include <stdint.h>

#define KERNELS_MAX 256

struct kernel_list {
    const void *kernels[KERNELS_MAX];
    uint32_t n;
};
extern struct kernel_list cuda_kernel_list; /* device.cu */

/* Append a kernel; returns true. */
bool cuda_kernel_list_add(const void *kernel);

template <auto KERNEL>
struct listed_kernel {
    static const bool is_listed;
};
template <auto KERNEL>
const bool listed_kernel<KERNEL>::is_listed =
    cuda_kernel_list_add(reinterpret_cast<const void *>(KERNEL));

#endif
