/* ptx_sm90.cuh - the twin of kernels/cuda/ptx_sm90.cuh for the host's compiler; that file has the
 * words, and async.cc the semantics.
 *
 * Owns    nothing.
 * Thread  as the original.
 * Errors  what PTX leaves undefined ends the process, or gives NaN.
 * Units   bytes. */
#ifndef TARN_KERNELS_CUDA_PTX_SM90_CUH
#define TARN_KERNELS_CUDA_PTX_SM90_CUH

#include "kernels/cuda/ptx.cuh"

#define LAUNCH_SM90A(kernel, grid, block, shared_bytes, stream, ...)                              \
    emulation_launch_kernel(#kernel, (kernel), (grid), (block), (shared_bytes), (stream),         \
                            __VA_ARGS__)

/* async.cc */
uint32_t emulation_shared_address(const void *shared);
void emulation_barrier_init(uint64_t *barrier, uint32_t n_arrivals);
void emulation_barrier_arrive(uint64_t *barrier, uint32_t n_bytes_expected);
void emulation_barrier_wait(uint64_t *barrier, uint32_t parity, emulation_place place);
void emulation_bulk_copy(void *shared, const void *global, uint32_t n_bytes, uint64_t *barrier,
                         emulation_place place);
/* D [64, n_cols] = A [64, 16] B [16, n_cols], or += . */
struct emulation_product {
    uint64_t a, b;    /* descriptors */
    bool a_is_shared; /* else it is in registers */
    bool adds;
    bool is_f16;      /* else bf16 */
    unsigned n_cols;
    emulation_place place;
};
void emulation_wgmma(const emulation_operands all[32]);
void emulation_wgmma_fence(void);
void emulation_wgmma_commit(void);
void emulation_wgmma_wait(unsigned n_young, emulation_place place);

static inline uint32_t shared_address(const void *shared)
{
    return emulation_shared_address(shared);
}

static inline void barrier_init(uint64_t *barrier, uint32_t n_arrivals)
{
    emulation_barrier_init(barrier, n_arrivals);
}

static inline void barrier_inits_done(void)
{
}

static inline void barrier_arrive(uint64_t *barrier)
{
    emulation_barrier_arrive(barrier, 0);
}

static inline void barrier_arrive_expecting(uint64_t *barrier, uint32_t n_bytes)
{
    emulation_barrier_arrive(barrier, n_bytes);
}

static inline void barrier_wait(uint64_t *barrier, uint32_t parity, EMULATION_PLACE)
{
    emulation_barrier_wait(barrier, parity, EMULATION_HERE);
}

static inline void bulk_copy(void *shared, const void *global, uint32_t n_bytes, uint64_t *barrier,
                             EMULATION_PLACE)
{
    emulation_bulk_copy(shared, global, n_bytes, barrier, EMULATION_HERE);
}

static inline void wgmma_fence(void)
{
    emulation_wgmma_fence();
}

static inline void wgmma_commit(void)
{
    emulation_wgmma_commit();
}

template <int N> static inline void wgmma_wait(EMULATION_PLACE)
{
    emulation_wgmma_wait(N, EMULATION_HERE);
}

template <typename T, int N> static inline void pin_registers(T (&registers)[N])
{
    (void)registers;
}

static inline void fence_stores_for_products(void)
{
}

template <int N> static inline void take_registers(void)
{
}

template <int N> static inline void give_registers(void)
{
}

#define WGMMA_OF(type, is_f16)                                                                     \
    template <int N>                                                                               \
    static inline void wgmma_##type(float (&d)[N], const uint32_t *a, uint64_t b, bool adds,       \
                                    EMULATION_PLACE)                                               \
    {                                                                                              \
        static_assert(N == 32 || N == 64, "64 or 128 columns");                                    \
        const emulation_product right = {0, b, false, adds, is_f16, 2 * N, EMULATION_HERE};        \
                                                                                                   \
        emulation_together(WAIT_WGMMA, {d, a, &right}, emulation_wgmma, EMULATION_HERE);           \
    }                                                                                              \
                                                                                                   \
    static inline void wgmma_##type##_shared(float (&d)[32], uint64_t a, uint64_t b, bool adds,    \
                                             EMULATION_PLACE)                                      \
    {                                                                                              \
        const emulation_product right = {a, b, true, adds, is_f16, 64, EMULATION_HERE};            \
                                                                                                   \
        emulation_together(WAIT_WGMMA, {d, nullptr, &right}, emulation_wgmma, EMULATION_HERE);     \
    }

WGMMA_OF(bf16, false)
WGMMA_OF(f16, true)

#undef WGMMA_OF

#endif
