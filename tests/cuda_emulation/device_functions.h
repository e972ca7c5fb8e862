/* device_functions.h - CUDA's device functions for the emulation: indices, barriers, warp
 * collectives, atomics, bit operations.
 *
 * Functions that wait for other threads pass their source line to grid.cc, which prints it when it
 * finds a deadlock.
 *
 * Owns    nothing.
 * Thread  inside a kernel.
 * Errors  misuse ends the process with a message.
 * Units   none. */
#ifndef TARN_TESTS_CUDA_DEVICE_FUNCTIONS_H
#define TARN_TESTS_CUDA_DEVICE_FUNCTIONS_H

#include "vector_types.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

/* The source line at which a thread waits. */
struct emulation_place {
    const char *file;
    int line;
};
#define EMULATION_PLACE const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE()
#define EMULATION_HERE (emulation_place{file_, line_})

enum emulation_wait {
    WAIT_SYNCTHREADS,
    WAIT_SYNCTHREADS_OR,
    WAIT_SYNCTHREADS_AND,
    WAIT_SYNCTHREADS_COUNT,
    WAIT_SYNCWARP, /* this one and all below: among the threads of a warp */
    WAIT_SHUFFLE,
    WAIT_SHUFFLE_XOR,
    WAIT_SHUFFLE_UP,
    WAIT_SHUFFLE_DOWN,
    WAIT_BALLOT,
    WAIT_VOTE_ALL,
    WAIT_VOTE_ANY,
    WAIT_MATCH_ANY,
    WAIT_REDUCE,
    WAIT_MMA_BF16,
    WAIT_MMA_F16,
    WAIT_LDMATRIX,
    WAIT_LDMATRIX_TRANSPOSED,
    WAIT_WGMMA,
    WAIT_WGMMA_GROUP, /* this one and all below: for something that others complete */
    WAIT_BARRIER_PHASE,
    WAIT_KINDS
};

/* trace.cc: bytes that a kernel read in each of these ways. */
enum emulation_read { EMULATION_WEIGHT, EMULATION_ONCE, EMULATION_COPIED, EMULATION_READS };
extern uint64_t emulation_bytes[EMULATION_READS];

/* grid.cc: a kernel that is launched early must wait in every thread, before it reads by cp_async16
 * or load_once16 or meets others at a barrier, and before it ends. */
void emulation_wait_for_inputs(void);
void emulation_reads_input(const char *how);
[[noreturn]] void emulation_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
int emulation_block_barrier(emulation_wait kind, int predicate, emulation_place place);
void emulation_yield(void);
void *emulation_dynamic_shared(void);
bool emulation_is_shared(const void *p, size_t n_bytes);
unsigned emulation_active_mask(void);
/* Deposit `value`, and return the value deposited by `source_lane`. */
uint64_t emulation_exchange(emulation_wait kind, unsigned mask, uint64_t value,
                            unsigned source_lane, emulation_place place);
/* Deposit `value`, and get the values of all 32 lanes. Lanes that are outside the mask or have
 * returned hold 0; *present is the mask of the others. */
void emulation_gather(emulation_wait kind, unsigned mask, uint64_t value, uint64_t all[32],
                      unsigned *present, emulation_place place);
/* Deposit operands. All 32 lanes must do so; the last one calls fn(operands of all lanes). */
struct emulation_operands {
    void *out;
    const void *a, *b;
};
void emulation_together(emulation_wait kind, emulation_operands mine,
                        void (*fn)(const emulation_operands all[32]), emulation_place place);
unsigned emulation_lane(void);
void emulation_copy_async(void *shared, const void *global, bool valid, emulation_place place);
void emulation_copy_commit(void);
void emulation_copy_wait(unsigned n_young);

static inline void __syncthreads(EMULATION_PLACE)
{
    emulation_block_barrier(WAIT_SYNCTHREADS, 0, EMULATION_HERE);
}

static inline int __syncthreads_or(int predicate, EMULATION_PLACE)
{
    return emulation_block_barrier(WAIT_SYNCTHREADS_OR, predicate, EMULATION_HERE) > 0;
}

static inline int __syncthreads_and(int predicate, EMULATION_PLACE)
{
    return emulation_block_barrier(WAIT_SYNCTHREADS_AND, !predicate, EMULATION_HERE) == 0;
}

static inline int __syncthreads_count(int predicate, EMULATION_PLACE)
{
    return emulation_block_barrier(WAIT_SYNCTHREADS_COUNT, predicate, EMULATION_HERE);
}

static inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATION_PLACE)
{
    emulation_exchange(WAIT_SYNCWARP, mask, 0, emulation_lane(), EMULATION_HERE);
}

template <typename T> static inline uint64_t emulation_to_bits(T v)
{
    uint64_t bits = 0;

    static_assert(sizeof v == 4 || sizeof v == 8, "shuffles take 32 or 64 bits");
    memcpy(&bits, &v, sizeof v);
    return bits;
}

template <typename T> static inline T emulation_from_bits(uint64_t bits)
{
    T v;

    memcpy(&v, &bits, sizeof v);
    return v;
}

template <typename T>
static inline T __shfl_sync(unsigned mask, T v, int source, int width = 32, EMULATION_PLACE)
{
    unsigned segment = emulation_lane() & ~(unsigned)(width - 1);

    return emulation_from_bits<T>(
        emulation_exchange(WAIT_SHUFFLE, mask, emulation_to_bits(v),
                           segment | ((unsigned)source & (unsigned)(width - 1)), EMULATION_HERE));
}

template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T v, int lane_mask, int width = 32, EMULATION_PLACE)
{
    unsigned lane = emulation_lane(), source = lane ^ (unsigned)lane_mask;

    if (source > (lane | (unsigned)(width - 1)))
        source = lane;
    return emulation_from_bits<T>(
        emulation_exchange(WAIT_SHUFFLE_XOR, mask, emulation_to_bits(v), source, EMULATION_HERE));
}

template <typename T>
static inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, EMULATION_PLACE)
{
    unsigned lane = emulation_lane(), in_segment = lane & (unsigned)(width - 1);

    return emulation_from_bits<T>(emulation_exchange(WAIT_SHUFFLE_UP, mask, emulation_to_bits(v),
                                                     delta > in_segment ? lane : lane - delta,
                                                     EMULATION_HERE));
}

template <typename T>
static inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32,
                                 EMULATION_PLACE)
{
    unsigned lane = emulation_lane(), source = lane + delta;

    if (source > (lane | (unsigned)(width - 1)))
        source = lane;
    return emulation_from_bits<T>(
        emulation_exchange(WAIT_SHUFFLE_DOWN, mask, emulation_to_bits(v), source, EMULATION_HERE));
}

static inline unsigned emulation_ballot(emulation_wait kind, unsigned mask, int predicate,
                                        unsigned *present, emulation_place place)
{
    uint64_t all[32];
    unsigned votes = 0;

    emulation_gather(kind, mask, predicate != 0, all, present, place);
    for (unsigned i = 0; i < 32; i++)
        votes |= (unsigned)all[i] << i;
    return votes;
}

static inline unsigned __ballot_sync(unsigned mask, int predicate, EMULATION_PLACE)
{
    unsigned present;

    return emulation_ballot(WAIT_BALLOT, mask, predicate, &present, EMULATION_HERE);
}

static inline int __any_sync(unsigned mask, int predicate, EMULATION_PLACE)
{
    unsigned present;

    return emulation_ballot(WAIT_VOTE_ANY, mask, predicate, &present, EMULATION_HERE) != 0;
}

static inline int __all_sync(unsigned mask, int predicate, EMULATION_PLACE)
{
    unsigned present,
        votes = emulation_ballot(WAIT_VOTE_ALL, mask, predicate, &present, EMULATION_HERE);

    return votes == present;
}

template <typename T> static inline unsigned __match_any_sync(unsigned mask, T v, EMULATION_PLACE)
{
    uint64_t all[32];
    unsigned present, same = 0;

    emulation_gather(WAIT_MATCH_ANY, mask, emulation_to_bits(v), all, &present, EMULATION_HERE);
    for (unsigned i = 0; i < 32; i++)
        same |= (unsigned)((present >> i & 1) && all[i] == emulation_to_bits(v)) << i;
    return same;
}

template <typename T, typename F>
static inline T emulation_reduce(unsigned mask, T v, F join, emulation_place place)
{
    uint64_t all[32];
    unsigned present;
    bool first = true;
    T r = v;

    emulation_gather(WAIT_REDUCE, mask, emulation_to_bits(v), all, &present, place);
    for (unsigned i = 0; i < 32; i++)
        if (present >> i & 1) {
            r = first ? emulation_from_bits<T>(all[i]) : join(r, emulation_from_bits<T>(all[i]));
            first = false;
        }
    return r;
}

#define EMULATION_REDUCE(name, type, expression)                                                   \
    static inline type name(unsigned mask, type v, EMULATION_PLACE)                                \
    {                                                                                              \
        return emulation_reduce(                                                                   \
            mask, v, [](type a, type b) -> type { return expression; }, EMULATION_HERE);           \
    }
EMULATION_REDUCE(__reduce_add_sync, unsigned, a + b)
EMULATION_REDUCE(__reduce_add_sync, int, (int)((unsigned)a + (unsigned)b))
EMULATION_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
EMULATION_REDUCE(__reduce_max_sync, int, a > b ? a : b)
EMULATION_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
EMULATION_REDUCE(__reduce_min_sync, int, a < b ? a : b)
EMULATION_REDUCE(__reduce_and_sync, unsigned, a &b)
EMULATION_REDUCE(__reduce_or_sync, unsigned, a | b)
EMULATION_REDUCE(__reduce_xor_sync, unsigned, a ^ b)

static inline unsigned __activemask(void)
{
    return emulation_active_mask();
}

static inline void __threadfence(void)
{
    emulation_yield();
}

static inline void __threadfence_block(void)
{
    emulation_yield();
}

static inline void __threadfence_system(void)
{
    emulation_yield();
}

static inline void __nanosleep(unsigned ns)
{
    (void)ns;
    emulation_yield();
}

[[noreturn]] static inline void __trap(void)
{
    emulation_die("__trap()");
}

/* Atomics return the old value; others may run before and after. */
#define EMULATION_ATOMIC(name, type, expression)                                                   \
    static inline type name(type *p, type v)                                                       \
    {                                                                                              \
        emulation_yield();                                                                         \
        type old = *p;                                                                             \
        *p = (expression);                                                                         \
        emulation_yield();                                                                         \
        return old;                                                                                \
    }
#define EMULATION_ATOMICS(type, wide)                                                              \
    EMULATION_ATOMIC(atomicAdd, type, (type)((wide)old + (wide)v))                                 \
    EMULATION_ATOMIC(atomicMax, type, old > v ? old : v)                                           \
    EMULATION_ATOMIC(atomicMin, type, old < v ? old : v)                                           \
    EMULATION_ATOMIC(atomicExch, type, v)                                                          \
    EMULATION_ATOMIC(atomicOr, type, old | v)                                                      \
    EMULATION_ATOMIC(atomicAnd, type, old &v)                                                      \
    EMULATION_ATOMIC(atomicXor, type, old ^ v)                                                     \
    static inline type atomicCAS(type *p, type expected, type v)                                   \
    {                                                                                              \
        emulation_yield();                                                                         \
        type old = *p;                                                                             \
        if (old == expected)                                                                       \
            *p = v;                                                                                \
        emulation_yield();                                                                         \
        return old;                                                                                \
    }
EMULATION_ATOMICS(int, unsigned)
EMULATION_ATOMICS(unsigned, unsigned)
EMULATION_ATOMICS(unsigned long long, unsigned long long)
EMULATION_ATOMIC(atomicSub, unsigned, old - v)
EMULATION_ATOMIC(atomicInc, unsigned, old >= v ? 0 : old + 1)
EMULATION_ATOMIC(atomicAdd, float, old + v)
EMULATION_ATOMIC(atomicExch, float, v)

template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}

template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}

template <typename T> static inline T __ldcs(const T *p)
{
    return *p;
}

template <typename T> static inline void __stcs(T *p, T v)
{
    *p = v;
}

template <typename T> static inline void __stcg(T *p, T v)
{
    *p = v;
}

#include "scalar_functions.h"

#endif
