/* ptx_sm90.cuh - the operations that only sm_90a has: matrix products of a warpgroup, barriers in
 * shared memory, bulk copies.
 *
 * tests/cuda_emulation has a twin of this file, as of ptx.cuh. Only files that are compiled for
 * sm_90a alone include it (TARN_CUDA_SM90A_SOURCES in sources.cmake).
 *
 * A warpgroup is four consecutive warps, the first one with a number divisible by 4. Its product
 * (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions") is D [64, N] += A [64, 16] B
 * [16, N] for N = 64 or 128. Warp w of the group has rows 16 w .. 16 w + 15; with g = lane / 4 and
 * c = lane % 4:
 *   A: a[4] as the A of mma m16n8k16 (ptx.cuh), or in shared memory, named by a matrix descriptor
 *   D: d[4j], d[4j + 1] = D[g][8j + 2c, 8j + 2c + 1]; d[4j + 2], d[4j + 3] = the same of row g + 8
 *   B: in shared memory, named by a matrix descriptor
 * In shared memory, elements along K are neighbours, of A and of B ("K-major").
 *
 * Owns    nothing.
 * Thread  device code; all lanes of a warp, and all warps of a warpgroup, call wgmma_* alike.
 * Errors  a wait of more than BARRIER_WAIT_NS ends the context: a kernel with a bug must not hang
 *         the GPU.
 * Units   bytes. */
#ifndef TARN_KERNELS_CUDA_PTX_SM90_CUH
#define TARN_KERNELS_CUDA_PTX_SM90_CUH

#include "kernels/cuda/ptx.cuh"

/* Longer than a step takes, also while other processes have the GPU. */
#define BARRIER_WAIT_NS UINT64_C(20000000000)

/* LAUNCH() of a kernel that other GPUs have no code for: the caller has asked for its attributes,
 * which loads it, on a device of compute capability 9.0. */
#define LAUNCH_SM90A(kernel, grid, block, shared_bytes, stream, ...) \
    (kernel)<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)

/* The address that matrix descriptors and alignments count by. */
static __device__ __forceinline__ uint32_t shared_address(const void *shared)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* --- barriers: objects in shared memory that count arrivals and bytes --- */

/* One thread calls this; the others use the barrier behind barrier_inits_done() and
 * __syncthreads(). */
static __device__ __forceinline__ void barrier_init(uint64_t *barrier, uint32_t n_arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(n_arrivals)
                 : "memory");
}

/* Make the barriers that this thread has initialised known to bulk copies. */
static __device__ __forceinline__ void barrier_inits_done(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint64_t *barrier)
{
    asm volatile("{\n\t.reg .b64 state;\n\t"
                 "mbarrier.arrive.shared::cta.b64 state, [%0];\n\t}" ::"r"(shared_address(barrier))
                 : "memory");
}

/* Arrive, and let the barrier's phase wait for n_bytes more of bulk copies. */
static __device__ __forceinline__ void barrier_arrive_expecting(uint64_t *barrier,
                                                                uint32_t n_bytes)
{
    asm volatile("{\n\t.reg .b64 state;\n\t"
                 "mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n\t}" ::"r"(
                     shared_address(barrier)),
                 "r"(n_bytes)
                 : "memory");
}

/* End the context by a store to address 0. (With __trap() ptxas ignores the registers that a
 * warpgroup takes.) */
static __device__ __forceinline__ void end_context(void)
{
    asm volatile("st.global.u32 [%0], 0;" ::"l"(UINT64_C(0)) : "memory");
}

/* Wait until the barrier's phase of this parity is complete; its first phase is 0. */
static __device__ __forceinline__ void barrier_wait(uint64_t *barrier, uint32_t parity)
{
    uint64_t begin = 0;

    for (;;) {
        uint32_t done;

        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
        if (done)
            return;
        uint64_t now = global_timer_ns();
        if (begin == 0)
            begin = now;
        else if (now - begin > BARRIER_WAIT_NS)
            end_context();
    }
}

/* Copy n_bytes from global to shared memory, all three multiples of 16; their arrival counts at
 * the barrier. One thread calls this. */
static __device__ __forceinline__ void bulk_copy(void *shared, const void *global,
                                                 uint32_t n_bytes, uint64_t *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
                 "l"(global), "r"(n_bytes), "r"(shared_address(barrier))
                 : "memory");
}

/* To be called by a thread behind its ordinary stores to shared memory, before it tells other
 * threads to start products that read them. */
static __device__ __forceinline__ void fence_stores_for_products(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* --- registers --- */

/* All warps of a warpgroup take part. From here on each thread has N registers, more than before;
 * other warpgroups of the block must have given them back. */
template <int N>
static __device__ __forceinline__ void take_registers(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N) : "memory");
}

/* The same, with less than before. */
template <int N>
static __device__ __forceinline__ void give_registers(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N) : "memory");
}

/* --- products of a warpgroup --- */

/* To be called before a product, behind the last change of registers that it reads or adds to. */
static __device__ __forceinline__ void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Make one group of all products since the last commit. */
static __device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Wait until at most N groups, the youngest, are under way. */
template <int N>
static __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Keep the compiler from moving uses of these registers over this place: it does not know that a
 * product under way still reads or writes them. */
template <int N>
static __device__ __forceinline__ void pin_registers(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

template <int N>
static __device__ __forceinline__ void pin_registers(uint32_t (&a)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(a[i])::"memory");
}

#define D8(d, i)                                                                               \
    "+f"((d)[(i)]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3]),                 \
        "+f"((d)[(i) + 4]), "+f"((d)[(i) + 5]), "+f"((d)[(i) + 6]), "+f"((d)[(i) + 7])

#define SUMS_32                                                                                    \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"      \
    "%24,%25,%26,%27,%28,%29,%30,%31}, "
#define SUMS_64                                                                                    \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"      \
    "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"     \
    "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "

/* wgmma_bf16() and wgmma_f16(): d = a * b, or d += a * b, with sums in fp32. Until a wait, d must
 * not be touched and a must not be written, nor B. With _shared A is in shared memory, which must
 * not be written until a wait either. */
#define WGMMA_OF(type)                                                                             \
    static __device__ __forceinline__ void wgmma_##type(float (&d)[64], const uint32_t *a,         \
                                                        uint64_t b, bool adds)                     \
    {                                                                                              \
        asm volatile("{\n\t.reg .pred adds;\n\t"                                                  \
                     "setp.ne.b32 adds, %69, 0;\n\t"                                              \
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32." #type "." #type " " SUMS_64    \
                     "{%64,%65,%66,%67}, %68, adds, 1, 1, 0;\n\t}"                                \
                     : D8(d, 0), D8(d, 8), D8(d, 16), D8(d, 24), D8(d, 32), D8(d, 40), D8(d, 48),  \
                       D8(d, 56)                                                                   \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)adds));        \
    }                                                                                              \
                                                                                                   \
    static __device__ __forceinline__ void wgmma_##type(float (&d)[32], const uint32_t *a,         \
                                                        uint64_t b, bool adds)                     \
    {                                                                                              \
        asm volatile("{\n\t.reg .pred adds;\n\t"                                                  \
                     "setp.ne.b32 adds, %37, 0;\n\t"                                              \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." #type "." #type " " SUMS_32     \
                     "{%32,%33,%34,%35}, %36, adds, 1, 1, 0;\n\t}"                                \
                     : D8(d, 0), D8(d, 8), D8(d, 16), D8(d, 24)                                    \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)adds));        \
    }                                                                                              \
                                                                                                   \
    static __device__ __forceinline__ void wgmma_##type##_shared(float (&d)[32], uint64_t a,       \
                                                                 uint64_t b, bool adds)            \
    {                                                                                              \
        asm volatile("{\n\t.reg .pred adds;\n\t"                                                  \
                     "setp.ne.b32 adds, %34, 0;\n\t"                                              \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." #type "." #type " " SUMS_32     \
                     "%32, %33, adds, 1, 1, 0, 0;\n\t}"                                           \
                     : D8(d, 0), D8(d, 8), D8(d, 16), D8(d, 24)                                    \
                     : "l"(a), "l"(b), "r"((int)adds));                                            \
    }

WGMMA_OF(bf16)
WGMMA_OF(f16)

#undef WGMMA_OF
#undef SUMS_64
#undef SUMS_32
#undef D8

#endif
