/* ptx.cuh - the twin of kernels/cuda/ptx.cuh for the host's compiler; that file has the words.
 *
 * mma sums over k in ascending order, starting from d, in fp32 (products of two 16-bit floats are
 * exact there); the GPU's order inside one instruction is not documented, so results agree within
 * rounding. cp_async16 copies as late as CUDA allows, or earlier, as drawn.
 *
 * Owns    nothing.
 * Thread  as the original.
 * Errors  misaligned addresses, and ones outside shared memory where shared memory must be, end the
 *         process.
 * Units   as the original. */
#ifndef TARN_KERNELS_CUDA_PTX_CUH
#define TARN_KERNELS_CUDA_PTX_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/cuda/kernel_list.cuh"

#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                    \
    do {                                                                                          \
        (void)listed_kernel<(kernel)>::is_listed;                                                 \
        emulation_launch_kernel(#kernel, (kernel), (grid), (block), (shared_bytes), (stream),     \
                                __VA_ARGS__);                                                     \
    } while (0)

#define LAUNCH_EARLY(kernel, grid, block, shared_bytes, stream, early, ...)                       \
    do {                                                                                          \
        (void)listed_kernel<(kernel)>::is_listed;                                                 \
        emulation_launch_early((early));                                                          \
        emulation_launch_kernel(#kernel, (kernel), (grid), (block), (shared_bytes), (stream),     \
                                __VA_ARGS__);                                                     \
    } while (0)

static inline void wait_for_inputs(void)
{
    emulation_wait_for_inputs();
}

static inline void let_next_begin(void)
{
}

#define DYNAMIC_SHARED(type, name) type *name = static_cast<type *>(emulation_dynamic_shared())

template <typename Kernel>
static inline cudaError_t allow_shared(Kernel kernel, size_t n_bytes)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes);
}

template <typename Kernel>
static inline cudaError_t prefer_shared(Kernel kernel)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
}

/* mma.cc */
uint32_t emulation_bf16_bits(float v);
uint32_t emulation_f16_bits(float v);
float emulation_f16_value(uint16_t h);
void emulation_mma_bf16(const emulation_operands all[32]);
void emulation_mma_f16(const emulation_operands all[32]);
void emulation_ldmatrix(const emulation_operands all[32]);
void emulation_ldmatrix_transposed(const emulation_operands all[32]);

static inline uint32_t pack_bf16(float lo, float hi)
{
    return emulation_bf16_bits(hi) << 16 | emulation_bf16_bits(lo);
}

static inline uint32_t pack_f16(float lo, float hi)
{
    return emulation_f16_bits(hi) << 16 | emulation_f16_bits(lo);
}

/* One half of fma_bf16x2(), widened: the sum is rounded to fp32 first, which changes nothing where
 * it is exact there, as it is in the kernels. */
static inline float emulation_fma_half(uint32_t a, uint32_t b, uint32_t c)
{
    float f[3];
    uint32_t u[3] = {a << 16, b << 16, c << 16};

    memcpy(f, u, sizeof f);
    return fmaf(f[0], f[1], f[2]);
}

static inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c)
{
    return pack_bf16(emulation_fma_half(a, b, c), emulation_fma_half(a >> 16, b >> 16, c >> 16));
}

static inline float f32_from_f16(uint16_t h)
{
    return emulation_f16_value(h);
}

static inline void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], EMULATION_PLACE)
{
    emulation_together(WAIT_MMA_BF16, {d, a, b}, emulation_mma_bf16, EMULATION_HERE);
}

static inline void mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2], EMULATION_PLACE)
{
    emulation_together(WAIT_MMA_F16, {d, a, b}, emulation_mma_f16, EMULATION_HERE);
}

static inline void ldmatrix_x4(uint32_t r[4], const void *row, EMULATION_PLACE)
{
    emulation_together(WAIT_LDMATRIX, {r, row, nullptr}, emulation_ldmatrix, EMULATION_HERE);
}

static inline void cp_async16(void *shared, const void *global, bool valid, EMULATION_PLACE)
{
    emulation_reads_input("cp_async16");
    emulation_bytes[EMULATION_COPIED] += valid ? 16 : 0;
    emulation_copy_async(shared, global, valid, EMULATION_HERE);
}

static inline void cp_async_weight16(void *shared, const void *global, EMULATION_PLACE)
{
    emulation_bytes[EMULATION_WEIGHT] += 16;
    emulation_copy_async(shared, global, true, EMULATION_HERE);
}

static inline void cp_async_commit(void)
{
    emulation_copy_commit();
}

template <int N> static inline void cp_async_wait(void)
{
    emulation_copy_wait(N);
}

static inline float fast_exp2(float x)
{
    float r = exp2f(x);

    return r < 1.17549435e-38f ? 0 : r; /* ftz: no denormal results */
}

static inline void keep_loads_behind(void)
{
}

/* Each look at the clock finds it a millisecond later: no kernel waits for long. */
static inline uint64_t global_timer_ns(void)
{
    static uint64_t ns;

    return ns += 1000000;
}

static inline uint4 emulation_load16(const char *name, const void *global)
{
    uint4 r;

    if (reinterpret_cast<uintptr_t>(global) % 16)
        emulation_die("%s: %p is not aligned to 16", name, global);
    memcpy(&r, global, sizeof r);
    return r;
}

static inline uint4 load_once16(const void *global)
{
    emulation_reads_input("load_once16");
    emulation_bytes[EMULATION_ONCE] += 16;
    return emulation_load16("load_once16", global);
}

template <typename Word>
static inline Word emulation_load_once(const char *name, const void *global, bool valid)
{
    Word r = {};

    if (!valid)
        return r;
    emulation_reads_input(name);
    emulation_bytes[EMULATION_ONCE] += sizeof r;
    if (reinterpret_cast<uintptr_t>(global) % sizeof r)
        emulation_die("%s: %p is not aligned to %zu", name, global, sizeof r);
    memcpy(&r, global, sizeof r);
    return r;
}

static inline uint4 load_once16_if(const void *global, bool valid)
{
    return emulation_load_once<uint4>("load_once16_if", global, valid);
}

static inline uint2 load_once8_if(const void *global, bool valid)
{
    return emulation_load_once<uint2>("load_once8_if", global, valid);
}

static inline uint32_t load_once4_if(const void *global, bool valid)
{
    return emulation_load_once<uint32_t>("load_once4_if", global, valid);
}

static inline uint4 load_weight16(const void *global)
{
    emulation_bytes[EMULATION_WEIGHT] += 16;
    return emulation_load16("load_weight16", global);
}

#endif
