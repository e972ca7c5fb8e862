/* bf16_rate.c - measures two instructions in independent chains, alternating.
 * kernels/CMakeLists.txt sets the compiler flags. */
#include "kernels/cpu/bf16_rate.h"

#include <immintrin.h>
#include <stdint.h>

#include "base/clock.h"

/* A sample of floats takes 6 to 12 us, one of bf16 up to 50 us: long compared with the resolution
 * of the clock. */
#define N_TURNS 3000
/* Number of samples of each kind; the best counts, so an interrupt or a busy neighbour spoils only
 * a sample. During the first samples the core also changes its clock for wide vectors. */
#define N_SAMPLES 15

/* Twelve chains that do not wait for each other: enough for two instructions per cycle with a
 * latency of 4 to 6 cycles. Assembly, because a compiler would keep an array of chains in
 * memory. */
#define TURN(op, a, b)                                                                             \
    __asm__ volatile(op " %12, %13, %0\n\t" op " %12, %13, %1\n\t" op " %12, %13, %2\n\t" op       \
                        " %12, %13, %3\n\t" op " %12, %13, %4\n\t" op " %12, %13, %5\n\t" op       \
                        " %12, %13, %6\n\t" op " %12, %13, %7\n\t" op " %12, %13, %8\n\t" op       \
                        " %12, %13, %9\n\t" op " %12, %13, %10\n\t" op " %12, %13, %11"            \
                     : "+v"(c0), "+v"(c1), "+v"(c2), "+v"(c3), "+v"(c4), "+v"(c5), "+v"(c6),       \
                       "+v"(c7), "+v"(c8), "+v"(c9), "+v"(c10), "+v"(c11)                          \
                     : "v"(a), "v"(b))
#define CHAINS(start)                                                                              \
    __m512 c0 = start, c1 = start, c2 = start, c3 = start, c4 = start, c5 = start, c6 = start,     \
           c7 = start, c8 = start, c9 = start, c10 = start, c11 = start

static void run_floats(void)
{
    __m512 factor = _mm512_set1_ps(0.01f);
    CHAINS(factor);

    for (int turn = 0; turn < N_TURNS; turn++)
        TURN("vfmadd231ps", factor, factor);
}

static void run_bf16(void)
{
    __m512i pair = _mm512_set1_epi32(0x3c243c24); /* 0.01 twice */
    CHAINS(_mm512_set1_ps(0.01f));

    for (int turn = 0; turn < N_TURNS; turn++)
        TURN("vdpbf16ps", pair, pair);
}

static uint64_t shorter(uint64_t best_ns, void (*run)(void))
{
    uint64_t start_ns = clock_now_ns();

    run();
    uint64_t taken_ns = clock_now_ns() - start_ns;
    return taken_ns < best_ns ? taken_ns : best_ns;
}

double bf16_rate_measure(void)
{
    uint64_t floats_ns = UINT64_MAX, bf16_ns = UINT64_MAX;

    for (int i = 0; i < N_SAMPLES; i++) {
        floats_ns = shorter(floats_ns, run_floats);
        bf16_ns = shorter(bf16_ns, run_bf16);
    }
    /* One instruction multiplies 16 floats, or 32 numbers in bf16. */
    return bf16_ns ? 2.0 * (double)floats_ns / (double)bf16_ns : 2.0;
}
