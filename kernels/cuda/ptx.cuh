/* ptx.cuh - the operations that need the GPU's compiler or instruction set.
 *
 * All other files of this folder are plain C++ with CUDA's built-ins. tests/cuda_emulation has a
 * file of the same path with the same functions for the host's compiler, which finds it first; so
 * kernels need no #ifdef.
 *
 * Fragments of mma are those of m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"); with g =
 * lane / 4 and c = lane % 4:
 *   A [16, 16]: a[0] = A[g][2c, 2c + 1], a[1] = A[g + 8][2c, 2c + 1], a[2] = A[g][2c + 8, 2c + 9],
 *               a[3] = A[g + 8][2c + 8, 2c + 9]; the lower column in the lower half
 *   B [16, 8]:  b[0] = B[2c, 2c + 1][g], b[1] = B[2c + 8, 2c + 9][g]
 *   D [16, 8]:  d[0], d[1] = D[g][2c, 2c + 1]; d[2], d[3] = D[g + 8][2c, 2c + 1]
 *
 * Owns    nothing.
 * Thread  device code; all 32 lanes of a warp call mma and ldmatrix together.
 * Errors  none.
 * Units   bytes where the name says so. */
#ifndef TARN_KERNELS_CUDA_PTX_CUH
#define TARN_KERNELS_CUDA_PTX_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/cuda/kernel_list.cuh"

/* LAUNCH((kernel<8>), grid, block, shared_bytes, stream, arguments...). The caller checks errors
 * by cuda_launched(). Every kernel named in a LAUNCH is loaded when a device opens
 * (kernel_list.cuh). */
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                 \
    do {                                                                       \
        (void)listed_kernel<(kernel)>::is_listed;                              \
        (kernel)<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__);  \
    } while (0)

/* LAUNCH(), and if `early`, blocks may begin before the kernel in front of this one on the stream
 * has ended (programmatic dependent launch, compute capability 9.0). Then every thread calls
 * wait_for_inputs() before it reads what another kernel writes, before it writes, and before it
 * ends: kernels behind this one rely on its end meaning that all kernels in front have ended. */
#define LAUNCH_EARLY(kernel, grid, block, shared_bytes, stream, early, ...)                       \
    do {                                                                                          \
        (void)listed_kernel<(kernel)>::is_listed;                                                 \
        launch_early((kernel), (grid), (block), (shared_bytes), (stream), (early), __VA_ARGS__);  \
    } while (0)

template <typename... Params, typename... Args>
static inline void launch_early(void (*kernel)(Params...), dim3 grid, dim3 block,
                                size_t shared_bytes, cudaStream_t stream, bool early,
                                Args &&...args)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};

    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = early ? 1 : 0;
    (void)cudaLaunchKernelEx(&config, kernel, static_cast<Args &&>(args)...); /* cuda_launched() */
}

/* Wait until all kernels in front have ended and their writes can be seen. */
static __device__ __forceinline__ void wait_for_inputs(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Let the blocks of the next kernel begin, if that was launched early, as soon as every block of
 * this one has called this or ended. */
static __device__ __forceinline__ void let_next_begin(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Declare the block's dynamic shared memory as an array, aligned to 16 bytes. */
#define DYNAMIC_SHARED(type, name)                             \
    extern __shared__ __align__(16) unsigned char tarn_shared[]; \
    type *name = reinterpret_cast<type *>(tarn_shared)

/* Allow a kernel more dynamic shared memory than 48 KB. */
template <typename Kernel>
static inline cudaError_t allow_shared(Kernel kernel, size_t n_bytes)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes);
}

/* Ask for as much of a multiprocessor's memory as shared memory as there is, so that several blocks
 * fit. The device may take it as a hint. */
template <typename Kernel>
static inline cudaError_t prefer_shared(Kernel kernel)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
}

/* Two floats, each rounded to nearest even, `lo` in the lower half. NaN stays NaN. */
static __device__ __forceinline__ uint32_t pack_bf16(float lo, float hi)
{
    uint32_t r;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

static __device__ __forceinline__ uint32_t pack_f16(float lo, float hi)
{
    uint32_t r;

    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

/* a * b + c in both halves, each rounded once to bf16. */
static __device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r;

    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

static __device__ __forceinline__ float f32_from_f16(uint16_t h)
{
    float f;

    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

/* d += a * b, with sums in fp32. */
static __device__ __forceinline__ void mma_bf16(float d[4], const uint32_t a[4],
                                                const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ __forceinline__ void mma_f16(float d[4], const uint32_t a[4],
                                               const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Load four 8x8 matrices of 16-bit elements from shared memory; lane i passes the address of row i
 * % 8 of matrix i / 8 (16 bytes, aligned). r[j] of lane i: elements 2 (i % 4), 2 (i % 4) + 1 of row
 * i / 4 of matrix j. */
static __device__ __forceinline__ void ldmatrix_x4(uint32_t r[4], const void *row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);

    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Copy 16 bytes from global to shared memory, both aligned; if !valid, write zeros and read
 * nothing. The bytes are visible only after commit, wait and a barrier. */
static __device__ __forceinline__ void cp_async16(void *shared, const void *global, bool valid)
{
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    int n = valid ? 16 : 0;

    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(n)
                 : "memory");
}

/* cp_async16() of memory that no kernel writes while this one may run, such as weights: also before
 * wait_for_inputs(). */
static __device__ __forceinline__ void cp_async_weight16(void *shared, const void *global)
{
    cp_async16(shared, global, true);
}

/* Make one group of all copies of this thread since the last commit. */
static __device__ __forceinline__ void cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Wait until at most N of this thread's groups, the youngest, are under way. */
template <int N>
static __device__ __forceinline__ void cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* 2^x to about two units in the last place; exactly 0 for -inf, exactly 1 for 0. */
static __device__ __forceinline__ float fast_exp2(float x)
{
    float r;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* Keep the compiler from moving loads that follow to before this place. */
static __device__ __forceinline__ void keep_loads_behind(void)
{
    asm volatile("" ::: "memory");
}

/* Nanoseconds of the GPU's wall clock, which may advance in steps of up to a microsecond. */
static __device__ __forceinline__ uint64_t global_timer_ns(void)
{
    uint64_t ns;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

/* Load 16 aligned bytes that are read once: the first-level cache does not keep them. To be used
 * for KV and all other memory that another kernel may write. */
static __device__ __forceinline__ uint4 load_once16(const void *global)
{
    uint4 r;

    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "l"(global));
    return r;
}

/* 16, 8 or 4 such bytes if valid, else zeros and no access. */
static __device__ __forceinline__ uint4 load_once16_if(const void *global, bool valid)
{
    uint4 r;

    asm volatile("{\n\t.reg .pred p;\n\t"
                 "setp.ne.b32 p, %5, 0;\n\t"
                 "mov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\tmov.b32 %2, 0;\n\tmov.b32 %3, 0;\n\t"
                 "@p ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n\t}"
                 : "=&r"(r.x), "=&r"(r.y), "=&r"(r.z), "=&r"(r.w)
                 : "l"(global), "r"((int)valid));
    return r;
}

static __device__ __forceinline__ uint2 load_once8_if(const void *global, bool valid)
{
    uint2 r;

    asm volatile("{\n\t.reg .pred p;\n\t"
                 "setp.ne.b32 p, %3, 0;\n\t"
                 "mov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\t"
                 "@p ld.global.L1::no_allocate.v2.u32 {%0,%1}, [%2];\n\t}"
                 : "=&r"(r.x), "=&r"(r.y)
                 : "l"(global), "r"((int)valid));
    return r;
}

static __device__ __forceinline__ uint32_t load_once4_if(const void *global, bool valid)
{
    uint32_t r;

    asm volatile("{\n\t.reg .pred p;\n\t"
                 "setp.ne.b32 p, %2, 0;\n\t"
                 "mov.b32 %0, 0;\n\t"
                 "@p ld.global.L1::no_allocate.u32 %0, [%1];\n\t}"
                 : "=&r"(r)
                 : "l"(global), "r"((int)valid));
    return r;
}

/* load_once16() through the non-coherent path. Only for memory that no kernel writes while this one
 * may run, including kernels of other streams and overlapping launches: in practice, weights. */
static __device__ __forceinline__ uint4 load_weight16(const void *global)
{
    uint4 r;

    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "l"(global));
    return r;
}

#endif
