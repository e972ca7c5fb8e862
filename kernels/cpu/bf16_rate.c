/* bf16_rate.c - both instructions in independent chains, in turns; kernels/CMakeLists.txt gives the
 * flags. */
#include "kernels/cpu/bf16_rate.h"

#include <immintrin.h>
#include <stdint.h>

#include "base/clock.h"

/* A sample of floats takes 6 to 12 us, one of bf16 up to 50: long beside the clock's resolution. */
#define N_TURNS 3000
/* The best of so many samples of each kind: an interrupt or a neighbour costs a sample, not the
 * result. The first samples also run while the core changes its clock for wide vectors. */
#define N_SAMPLES 15

/* Twelve chains, each of which waits only for itself: two instructions per cycle with a latency of
 * 4 to 6 cycles need no more. A compiler would keep an array of chains in memory, hence the
 * assembly. */
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
    /* An instruction multiplies 16 floats, or 32 pairs of bf16. */
    return bf16_ns ? 2.0 * (double)floats_ns / (double)bf16_ns : 2.0;
}
